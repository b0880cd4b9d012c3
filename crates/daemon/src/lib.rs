//! The daemon: reads configuration, plans it, runs the engine, and answers over REST.
//!
//! [`serve()`] is its life cycle. Requests and files become decisions in `config::plan`. `disks::disk_service` applies
//! them to the store (on disk) and to the engine (attached disks). The data path is not here: the daemon accepts a
//! socket and negotiates with its client, then the engine takes both.
//!
//! # Always true
//! - A module uses only modules below it, or to the right in its row.
//!
//! # Picture
//! ```text
//! one, serve, reference       start and end; the references
//! prepare, first_run          preparation of a start, and the first run
//! rest                        the REST interface, its listeners, the dashboard's listener and guard
//! tree                        the control tree
//! daemon                      state, monitor and dashboard of the daemon that serves
//! observe                     statistics, metrics, events, explanations, the log, the dashboard's data
//! services                    services that the parts above share
//! nbd_listener                the NBD handshake
//! disks                       the attached disks, and the commands that change disks
//! listen, control, host       sockets and TLS; datastores under I/O control; the engine as the daemon sees it
//! config, store               the checked plan and the root; the state on disk
//! accept, clock, files, notify, text, os_error    small helpers
//! ```
//!
//! The command line needs [`serve()`], [`serve_one`], [`Root`] (to find the socket) and the references that become
//! documents: [`openapi_json`], [`metrics_reference`], [`config_reference`],
//! [`control_tree_reference`].

#![forbid(unsafe_code)]

mod accept;
mod caches;
mod clock;
mod config;
mod control;
mod daemon;
mod disks;
mod files;
mod first_run;
mod host;
mod listen;
mod nbd_listener;
mod notify;
mod observe;
mod one;
mod os_error;
mod pools;
mod prepare;
mod reference;
mod rest;
mod serve;
mod services;
mod store;
mod text;
mod tree;

pub use config::root::Root;
pub use one::{OneOptions, serve_one};
pub use prepare::{ServeOptions, check_config, read_config_file};
pub use reference::{config_reference, control_tree_reference, metrics_reference, openapi_json};
pub use serve::serve;
