//! `tidegate-bench`: the data-path bench, and the bare ring loop that it uses as a ceiling, as a program of its own.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tidegate_lab::bench::{self, Options};
use tidegate_lab::vhost::Wait;
use tidegate_lab::{bare, peers};

/// Measures Tidegate's data path against its peers.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the bench: a table of figures, then which ratios hold; exit code 1 when one does not
    DataPath(Options),
    /// Serve an empty disk by the bare ring loop to one vhost-user client
    Bare {
        /// Where to listen
        #[arg(long)]
        socket: PathBuf,
        /// Poll instead of sleeping
        #[arg(long)]
        poll: bool,
    },
}

fn main() -> ExitCode {
    match run(Command::parse().verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<bool> {
    match verb {
        Verb::DataPath(mut options) => {
            if options.bare.is_none() {
                options.bare = Some(std::env::current_exe().context("cannot find this program")?);
            }
            bench::run(options)
        }
        Verb::Bare { socket, poll } => {
            let wait = if poll { Wait::Poll } else { Wait::Sleep };
            bare::serve(&socket, peers::NULL_SIZE, wait).map(|()| true)
        }
    }
}
