//! One run of the program: its output form, and the daemon it talks to.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use tidegate_api::routes::{Nothing, Route};

use crate::client::Client;
use crate::daemon;
use crate::failure::Failure;
use crate::output::{Console, Shown};

/// What every verb is given.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Where its words go.
    pub(crate) console: Console,
    /// The root that was named, if one was.
    pub(crate) root: Option<PathBuf>,
    /// The daemon's REST socket that was named, if one was.
    pub(crate) socket: Option<PathBuf>,
}

impl Session {
    /// A way to the daemon of the named socket or root, which need not be running.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        match &self.socket {
            Some(socket) => Client::new(socket.clone()),
            None => Client::new(daemon::api_socket(self.root.clone())?),
        }
    }

    /// Asks the daemon without changing anything, and prints what it answers.
    pub(crate) fn show<A: DeserializeOwned + Shown>(
        &self,
        route: Route<Nothing, A>,
        arguments: &[&str],
    ) -> Result<(), Failure> {
        self.console.show(&self.client()?.look(route, arguments)?)
    }
}
