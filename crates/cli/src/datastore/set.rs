//! `tidegate datastore set`: the settings of a datastore's I/O control.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueHint};
use tidegate_api::datastore::DatastoreSet;
use tidegate_api::iocontrol::{CongestionThreshold, IoControlMode, IoControlSet};
use tidegate_api::name::Name;
use tidegate_api::routes;
use tidegate_api::units::Size;

use crate::complete;
use crate::failure::Failure;
use crate::session::Session;

/// Change the I/O control of a datastore
///
/// The change takes effect at once on every host that shares the datastore's directory and has disks of it attached. Other
/// hosts apply it when they attach a disk.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("changes").required(true).multiple(true).args([
        "io_control", "congestion_threshold", "io_unit", "coordination", "no_coordination",
    ]),
    after_help = "\
Examples:
  tidegate datastore set shared --congestion-threshold 12ms
  tidegate datastore set shared --io-control observe
  tidegate datastore set far --coordination /mnt/shared/far

Modes of --io-control:
  on       limits always apply; shares and reservations apply while the datastore is congested
  observe  computes and shows everything, but delays no I/O, not even for limits
  off      only limits apply"
)]
pub(crate) struct Set {
    /// The datastore
    #[arg(add = complete::datastores())]
    name: Name,

    /// The mode of I/O control; on unless set otherwise
    #[arg(long, value_enum, value_name = "MODE")]
    io_control: Option<Mode>,

    /// The latency at which the datastore counts as congested: auto, a time from 200us to 100ms, or off
    ///
    /// auto is learnt while serving: the lowest latency at which the datastore reaches nine tenths of its maximum.
    #[arg(long, value_name = "LATENCY")]
    congestion_threshold: Option<CongestionThreshold>,

    /// The part of a request that limits and reservations count as one I/O, 4KiB to 128KiB; 32KiB unless set otherwise
    #[arg(long, value_name = "SIZE")]
    io_unit: Option<Size>,

    /// A directory through which hosts that share the datastore coordinate (kinds other than dir)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "no_coordination")]
    coordination: Option<PathBuf>,

    /// Do not coordinate with other hosts
    #[arg(long)]
    no_coordination: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    On,
    Observe,
    Off,
}

impl Set {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.clone();
        let set = self.order()?;
        let datastore = session
            .client()?
            .order(routes::DATASTORE_SET, &[name.as_str()], &set)?;
        session.console.done(
            &datastore,
            &format!("datastore {name} changed; see what it does: tidegate datastore show {name}"),
        )
    }

    fn order(self) -> Result<DatastoreSet, Failure> {
        let coordination = match (self.coordination, self.no_coordination) {
            (Some(path), _) => {
                Some(Some(std::path::absolute(&path).map_err(|e| {
                    Failure::io(format!("cannot use {}", path.display()), &e)
                })?))
            }
            (None, true) => Some(None),
            (None, false) => None,
        };
        let io_unit_bytes = match self.io_unit {
            None => None,
            Some(Size(bytes)) => Some(u32::try_from(bytes).map_err(|_| {
                Failure::usage(
                    format!("an I/O unit of {bytes} bytes is too large"),
                    "use 4KiB to 128KiB",
                )
            })?),
        };
        Ok(DatastoreSet {
            io_control: IoControlSet {
                mode: self.io_control.map(|mode| match mode {
                    Mode::On => IoControlMode::On,
                    Mode::Observe => IoControlMode::Observe,
                    Mode::Off => IoControlMode::Off,
                }),
                congestion_threshold: self.congestion_threshold,
                io_unit_bytes,
                coordination,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        set: Set,
    }

    fn sent(words: &[&str]) -> String {
        let line = Line::try_parse_from(["set", "ds1"].iter().chain(words));
        let set = line.unwrap_or_else(|e| panic!("{e}")).set;
        serde_json::to_string(&set.order().unwrap()).unwrap()
    }

    #[test]
    fn only_what_was_said_is_sent() {
        for (words, json) in [
            (&["--io-control", "observe"][..], r#""mode":"observe""#),
            (
                &["--congestion-threshold", "12ms"],
                r#""congestion_threshold":"12ms""#,
            ),
            (&["--io-unit", "16KiB"], r#""io_unit_bytes":16384"#),
            (&["--coordination", "/srv/x"], r#""coordination":"/srv/x""#),
            (&["--no-coordination"], r#""coordination":null"#),
        ] {
            assert_eq!(sent(words), format!(r#"{{"io_control":{{{json}}}}}"#));
        }
    }

    #[test]
    fn nonsense_is_a_usage_error_that_says_what_would_do() {
        for (words, says) in [
            (&[][..], "--io-control"),
            (&["--congestion-threshold", "1s"], "200us to 100ms"),
            (&["--io-control", "maybe"], "observe"),
            (
                &["--coordination", "/x", "--no-coordination"],
                "cannot be used",
            ),
        ] {
            let line = ["set", "ds1"].iter().chain(words);
            let error = Line::try_parse_from(line).err().unwrap();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
