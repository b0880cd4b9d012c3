//! The daemon: reads configuration, makes a plan of it, has the engine carry it out, and answers who asks.
//!
//! Its life is `serve`. Words come in through REST and files, and become decisions in `plan`; the disk_service
//! carries out orders on the store (what lies on disk) and on the engine (what is attached). The data path is not
//! here: a socket is accepted, its client is heard out, and the engine takes both.
//!
//! The command line needs [`serve()`], [`serve_one`], [`Root`] (to find the socket) and the references that become
//! documents: [`openapi_json`], [`metrics_reference`], [`config_reference`].

#![forbid(unsafe_code)]

mod config;
mod control;
mod disks;
mod first_run;
mod listen;
mod notify;
mod observe;
mod one;
mod os_error;
mod rest;
mod serve;

pub use config::prepare::{check_config, read_config_file};
pub use config::reference::{config_reference, metrics_reference, openapi_json};
pub use config::root::Root;
pub use one::{OneOptions, serve_one};
pub use serve::{ServeOptions, serve};
