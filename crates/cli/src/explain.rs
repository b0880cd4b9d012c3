//! `tidegate explain`: why a disk is as fast as it is.

use clap::Args;
use tidegate_api::explain::{Control, Explanation, HoldReason, Part, PartName};
use tidegate_api::iocontrol::IoControlMode;
use tidegate_api::name::Name;
use tidegate_api::routes;
use tidegate_api::units::Span;

use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::{complete, figures, table};

/// Explain what limits a disk
///
/// The answer names the limiting factor: the disk's limit, its shares, its group, the datastore, a filter, the I/O thread, or
/// the guest itself. It shows where I/Os spent their time, and what would change that.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate explain web1
  tidegate explain web1 --last 5s
  tidegate explain web1 -o json | jq -r .cause")]
pub(crate) struct Explain {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The time span to explain, from 1s to 5min
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = last)]
    last: Span,
}

/// A time that the daemon remembers.
pub(crate) fn last(text: &str) -> Result<Span, String> {
    const SECOND: u64 = 1_000_000_000;
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    if (SECOND..=300 * SECOND).contains(&span.0) {
        Ok(span)
    } else {
        Err("it must be from 1s to 5min".to_owned())
    }
}

impl Explain {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let query = format!("last={}", self.last);
        let disk = self.disk.as_str();
        let answer = session
            .client()?
            .look_by(routes::DISK_EXPLAIN, &[disk], &query)?;
        session.console.show(&answer)
    }
}

impl Shown for Explanation {
    fn names(&self) -> Vec<String> {
        vec![self.disk.to_string()]
    }

    fn table(&self, detail: Detail) -> String {
        let Explanation { load, thread, .. } = self;
        let mut pairs = vec![
            ("disk", format!("{} on {}", self.disk, self.datastore)),
            ("limited by", self.because.clone()),
            ("to change it", self.remedy.clone()),
        ];
        pairs.extend(self.notes.iter().map(|note| ("note", note.clone())));
        pairs.push((
            "load",
            format!(
                "{} I/Os a second, {} MB/s, {:.1} outstanding, {} each; over {:.0}s",
                figures::count(load.iops),
                figures::megabytes(load.bytes_per_s),
                load.outstanding_mean,
                figures::micros(load.latency_mean_us),
                self.covers_s
            ),
        ));
        pairs.push((
            "I/O thread",
            format!(
                "{}: {} busy, {} polling, {} sleeping",
                thread.thread,
                figures::percent(thread.busy_ratio),
                figures::percent(thread.polling_ratio),
                figures::percent(thread.sleeping_ratio)
            ),
        ));
        if let Some(control) = &self.control {
            pairs.push(("I/O control", of_control(control)));
        }
        let mut text = table::pairs(&pairs);
        if self.parts.is_empty() {
            return text;
        }
        // Reasons without waiting are shown in the wide form only.
        let told =
            |part: &&Part| detail == Detail::Wide || part.reason.is_none() || part.mean_us > 0.0;
        let rows = self.parts.iter().filter(told).map(|part| {
            vec![
                label(part),
                figures::micros(part.mean_us),
                figures::percent(part.ratio),
            ]
        });
        text.push('\n');
        text.push_str(&table::columns(
            &["WHERE", "MEAN", "PART"],
            &rows.collect::<Vec<_>>(),
        ));
        text
    }
}

fn label(part: &Part) -> String {
    let reason = match part.reason {
        None => "",
        Some(HoldReason::Shares) => " (other disks' shares)",
        Some(HoldReason::Window) => " (the window was full)",
        Some(HoldReason::Limit) => " (its limit)",
        Some(HoldReason::GroupLimit) => " (its group's limit)",
        Some(HoldReason::Bandwidth) => " (its bandwidth limit)",
    };
    let name = match part.part {
        PartName::Queue => "guest's queue",
        PartName::Filters => "filters",
        PartName::Turn => "waiting in the scheduler",
        PartName::Datastore => "datastore",
    };
    format!("{name}{reason}")
}

fn of_control(control: &Control) -> String {
    let mode = match control.mode {
        IoControlMode::On => "on",
        IoControlMode::Observe => "observe",
        IoControlMode::Off => "off",
    };
    let threshold = match control.threshold_us {
        Some(us) => format!("threshold {}", figures::micros(us)),
        None => "no threshold".to_owned(),
    };
    let mut text = format!(
        "{mode}, engaged {} of the time, datastore at {}, {threshold}; shares {}",
        figures::percent(control.engaged_ratio),
        figures::micros(control.latency_us),
        control.shares
    );
    if control.reservation_iops > 0 {
        text.push_str(&format!(", reservation {}", control.reservation_iops));
    }
    if let Some(limit) = control.limit_iops {
        text.push_str(&format!(", limit {limit}"));
    }
    if let Some(rate) = control.limit_bytes_per_s {
        text.push_str(&format!(", limit {}/s", figures::bytes(rate)));
    }
    if control.burst_left > 0 {
        text.push_str(&format!(", {} units of burst left", control.burst_left));
    }
    if let Some(entitled) = control.entitled_iops {
        text.push_str(&format!("; entitled to {entitled} a second"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_within_what_the_daemon_remembers() {
        assert_eq!(last("30s"), Ok(Span(30_000_000_000)));
        for text in ["100ms", "6min", "30", "soon"] {
            assert!(last(text).is_err(), "{text}");
        }
    }
}
