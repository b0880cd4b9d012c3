//! `tidegate-bench`: the data-path bench, and the bare ring loop that it uses as a ceiling, as a program of its own.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tidegate_lab::bench::{self, Options, measure};
use tidegate_lab::tally::{Tally, Until};
use tidegate_lab::vhost::Wait;
use tidegate_lab::{bare, peers, server};

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
    /// Load the disks of a running server with 4 KiB random reads, as one guest each: to look at its profile meanwhile
    Guests {
        /// The vhost-user sockets
        #[arg(required = true)]
        sockets: Vec<PathBuf>,
        /// Requests in flight, per disk
        #[arg(long, default_value_t = 32)]
        depth: u16,
        /// How long
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// The guests' core
        #[arg(long, default_value_t = 1)]
        cpu: usize,
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
        Verb::Guests {
            sockets,
            depth,
            seconds,
            cpu,
        } => {
            server::pin(cpu)?;
            let until = Until::Time(Duration::ZERO, Duration::from_secs(seconds));
            let all = Tally::sum(&measure::load(&sockets, depth, until, &mut |_| {})?);
            println!(
                "{:.0} IOPS, p50 {:.1} us, p99 {:.1} us",
                all.iops(),
                all.percentile_us(50.0),
                all.percentile_us(99.0)
            );
            Ok(true)
        }
    }
}
