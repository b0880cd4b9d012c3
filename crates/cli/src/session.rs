//! One run of the program: how it prints, and which daemon it talks to.

use std::path::PathBuf;

use crate::client::Client;
use crate::daemon;
use crate::failure::Failure;
use crate::output::Console;

/// What every verb is given.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Where its words go.
    pub(crate) console: Console,
    /// The root that was named, if one was.
    pub(crate) root: Option<PathBuf>,
}

impl Session {
    /// A way to the root's daemon, which need not be running.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Client::new(daemon::api_socket(self.root.clone())?)
    }
}
