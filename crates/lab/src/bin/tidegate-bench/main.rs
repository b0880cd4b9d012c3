//! `tidegate-bench`: the data-path bench and its reference servers.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tidegate_api::io::Coalesce;
use tidegate_lab::measure::{self, Ask};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::Wait;
use tidegate_testing::{bare, peers, server};

mod bench;
mod coalescing;
mod compare;
mod dashboard;
mod data_path;
mod engine;
mod fleet;
mod instructions;
mod report;
mod scenarios;

use bench::Options;
use engine::{Control, Place};

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
    /// Serve empty disks by the engine alone, each to one vhost-user client
    Engine {
        /// Where to listen, once for each disk
        #[arg(long = "socket", required = true)]
        sockets: Vec<PathBuf>,
        /// Under I/O control, which never engages
        #[arg(long)]
        controlled: bool,
        /// Where the disks are
        #[arg(long, value_enum, default_value_t = Place::Null)]
        place: Place,
        /// How completions are coalesced: off, adaptive, or as static:16,64us
        #[arg(long, default_value = "adaptive")]
        coalesce: Coalesce,
    },
    /// Load the disks of a running server with 4 KiB random reads, as one guest each: to look at its profile meanwhile
    Guests {
        /// The vhost-user sockets
        #[arg(required = true)]
        sockets: Vec<PathBuf>,
        /// Requests in flight, per queue
        #[arg(long, default_value_t = 32)]
        depth: u16,
        /// Queues, per disk
        #[arg(long, default_value_t = 1)]
        queues: u16,
        /// How long
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// The guests' core
        #[arg(long, default_value_t = 1)]
        cpu: usize,
        /// Poll instead of sleeping: no wake-up is in the way
        #[arg(long)]
        poll: bool,
        /// Write instead of reading
        #[arg(long)]
        writes: bool,
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
            data_path::run(options)
        }
        Verb::Bare { socket, poll } => {
            let wait = if poll { Wait::Poll } else { Wait::Sleep };
            bare::serve(&socket, peers::NULL_SIZE, wait).map(|()| true)
        }
        Verb::Engine {
            sockets,
            controlled,
            place,
            coalesce,
        } => {
            let control = if controlled {
                Control::NotEngaged
            } else {
                Control::None
            };
            engine::serve(&sockets, place, control, coalesce).map(|()| true)
        }
        Verb::Guests {
            sockets,
            depth,
            queues,
            seconds,
            cpu,
            poll,
            writes,
        } => {
            server::pin(cpu)?;
            let until = Until::Time(Duration::ZERO, Duration::from_secs(seconds));
            let mut ask = Ask {
                wait: if poll { Wait::Poll } else { Wait::Sleep },
                queues,
                ..Ask::random_reads(depth)
            };
            if writes {
                ask.load.read_percent = 0;
            }
            let (mut driver, mut sources) = measure::driver(&sockets, &ask)?;
            let tallies = driver.run(&mut sources, until, &mut |_| {})?;
            let all = Tally::sum(&tallies);
            println!(
                "{:.0} IOPS, p50 {:.1} us, p99 {:.1} us",
                all.iops(),
                all.percentile_us(50.0),
                all.percentile_us(99.0)
            );
            if sockets.len() > 1 {
                let each = tallies.iter().map(|one| format!("{:.0}", one.iops()));
                println!("each: {}", each.collect::<Vec<_>>().join(" "));
            }
            Ok(true)
        }
    }
}
