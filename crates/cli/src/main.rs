//! `tidegate`: the one program. It serves virtual disks, and it is how people and scripts talk to the one that does.
//!
//! `cli` says what can be typed. Each noun has a file: it describes its flags, asks the daemon through `client` and
//! answers through `output`. The daemon itself is entered in `daemon` and nowhere else.
//!
//! Read it so: `cli`, then any noun (`datastore` is the shortest), then `client`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use clap::builder::Resettable;
use clap_complete::CompleteEnv;

mod backup;
mod cache;
mod cli;
mod client;
mod complete;
mod daemon;
mod datastore;
mod disk;
mod documents;
mod events;
mod explain;
mod failure;
mod figures;
mod filter;
mod group;
mod job;
mod lab;
mod mount;
mod output;
mod pool;
mod prompt;
mod serve;
mod session;
mod stats;
mod status;
mod table;
mod thread;
mod top;
mod tree;
mod yaml;

/// Ends with what is wrong with the command line. A root that comes from the environment counts as typed to clap, which then
/// shows how to use that flag in the place of the verb's own: so it is asked once more without.
fn refuse(error: &clap::Error) -> ! {
    let typed = cli::command().mut_arg("root", |root| root.env(Resettable::Reset));
    typed
        .try_get_matches()
        .err()
        .as_ref()
        .unwrap_or(error)
        .exit()
}

fn main() -> ExitCode {
    // When a shell asks for completions, this answers and ends.
    CompleteEnv::with_factory(cli::command).complete();

    let cli = cli::Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    let session = cli.session();
    match cli.run(&session) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(problem) = failure.problem() {
                session.console.complain(problem);
            }
            failure.exit_code()
        }
    }
}
