//! The daemon: reads configuration, makes a plan of it, has the engine carry it out, and answers who asks.
//!
//! Its life is `serve`. Words come in through REST and files, and become decisions in `plan`; the keeper
//! carries out orders on the store (what lies on disk) and on the engine (what is attached). The data path is not
//! here: a socket is accepted, its client is heard out, and the engine takes both.
//!
//! The command line needs [`serve()`], [`serve_one`], [`Root`] (to find the socket) and the references that become
//! documents: [`openapi_json`], [`metrics_reference`], [`config_reference`].

#![forbid(unsafe_code)]

mod accept;
mod control;
mod copy;
mod dashboard;
mod events;
mod explain;
mod export;
mod first_run;
mod formats;
mod host;
mod import;
mod jobs;
mod keeper;
mod limits;
mod live;
mod log;
mod lookout;
mod metrics;
mod nbd_listener;
mod notify;
mod one;
mod plan;
mod prepare;
mod reference;
mod refusals;
mod rest;
mod root;
mod sample;
mod serve;
mod snippet;
mod sockets;
mod store;
mod tls;
mod trouble;
mod vhost_listener;
mod watch;

pub use one::{OneOptions, serve_one};
pub use prepare::{check_config, read_config_file};
pub use reference::{config_reference, metrics_reference, openapi_json};
pub use root::Root;
pub use serve::{ServeOptions, serve};
