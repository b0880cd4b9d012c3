//! `tidegate stats`: the counters of disks, once or repeatedly.

use std::time::Duration;

use clap::Args;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::stats::{DiskStats, LatencySummary, OpStats, Sample};
use tidegate_api::units::Span;

use crate::client::{Client, Stream};
use crate::failure::Failure;
use crate::output::{Detail, Shown, names};
use crate::session::Session;
use crate::{complete, figures, table};

/// Show the I/O statistics of disks
///
/// Without --watch, figures cover the time since each disk was attached. With --watch, each sample covers the time since the
/// sample before. Latency is split into stages: in the queue (from the guest's kick to the stack), in the filters, in the
/// datastore.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate stats
  tidegate stats web1
  tidegate stats web1 --watch --interval 5s
  tidegate stats --watch -o json | jq '.disks[] | {name, p99: .all.latency.total.p99_us}'")]
pub(crate) struct Stats {
    /// One disk, in detail; default: all attached disks
    #[arg(add = complete::disks())]
    disk: Option<Name>,

    /// Continue until interrupted; as JSON, one line for each sample
    #[arg(short, long)]
    watch: bool,

    /// The time between samples, from 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "watch", value_parser = interval)]
    interval: Span,
}

/// An interval that the daemon's stream can be asked for.
pub(crate) fn interval(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    if (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&span.to_duration()) {
        Ok(span)
    } else {
        Err("it must be from 100ms to 60s".to_owned())
    }
}

/// Samples of all disks and I/O threads, one each `interval`.
pub(crate) fn samples(client: Client, interval: Duration) -> Result<Stream<Sample>, Failure> {
    let query = format!("interval_ms={}", interval.as_millis());
    // A daemon on a loaded host may be late; one that is ten seconds late is not coming.
    client.stream(
        routes::STATS_STREAM,
        &query,
        interval + Duration::from_secs(10),
    )
}

impl Stats {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let client = session.client()?;
        let console = &session.console;
        if !self.watch {
            return match &self.disk {
                None => console.show(&client.look(routes::STATS, &[])?),
                Some(disk) => console.show(&client.look(routes::DISK_STATS, &[disk.as_str()])?),
            };
        }
        if let Some(disk) = &self.disk {
            // Reports an unknown name at once, instead of showing nothing.
            client.look(routes::DISK, &[disk.as_str()])?;
        }
        let mut samples = samples(client, self.interval.to_duration())?;
        loop {
            let sample = samples.next()?;
            match &self.disk {
                None => console.show_next(&sample)?,
                Some(name) => console.show_next(&of_disk(sample, name)?)?,
            }
        }
    }
}

fn of_disk(sample: Sample, name: &Name) -> Result<DiskStats, Failure> {
    sample
        .disks
        .into_iter()
        .find(|disk| disk.name == *name)
        .ok_or_else(|| {
            Failure::Failed(
                Problem::new(ProblemCode::NotFound, format!("cannot watch disk {name}"))
                    .because("it is not attached, so it has no I/O")
                    .remedy(format!("attach it: tidegate disk attach {name}")),
            )
        })
}

/// What a disk did by one operation; nothing if it never did.
pub(crate) fn op<'a>(disk: &'a DiskStats, name: &str) -> Option<&'a OpStats> {
    disk.ops.iter().find(|op| op.op == name)
}

const HEAD: [&str; 12] = [
    "DISK",
    "OP",
    "OPS",
    "IOPS",
    "MB/S",
    "OUTST",
    "MEAN",
    "P50",
    "P99",
    "QUEUE",
    "FILTERS",
    "DATASTORE",
];

fn row(disk: &DiskStats, op: &OpStats) -> Vec<String> {
    let latency = &op.latency;
    vec![
        disk.name.to_string(),
        op.op.clone(),
        figures::count(figures::to_f64(op.ops_total)),
        figures::count(op.iops),
        figures::megabytes(op.bytes_per_s),
        disk.outstanding.to_string(),
        figures::micros(latency.total.mean_us),
        figures::micros(latency.total.p50_us),
        figures::micros(latency.total.p99_us),
        figures::micros(latency.queue.mean_us),
        figures::micros(latency.filters.mean_us),
        figures::micros(latency.datastore.mean_us),
    ]
}

impl Shown for Sample {
    fn names(&self) -> Vec<String> {
        names(&self.disks, |disk| &disk.name)
    }

    fn table(&self, detail: Detail) -> String {
        let rows = self.disks.iter().flat_map(|disk| {
            let ops = match detail {
                Detail::Usual => &[],
                Detail::Wide => disk.ops.as_slice(),
            };
            std::iter::once(&disk.all)
                .chain(ops)
                .map(|op| row(disk, op))
        });
        table::columns(&HEAD, &rows.collect::<Vec<_>>())
    }
}

impl Shown for DiskStats {
    fn names(&self) -> Vec<String> {
        vec![self.name.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let over = figures::seconds(
            Duration::try_from_secs_f64(self.window_s)
                .unwrap_or_default()
                .as_secs(),
        );
        let mut text = format!(
            "disk {} on {}, I/O thread {}: {} outstanding now, {:.1} on average; figures cover {over}\n\n",
            self.name, self.datastore, self.thread, self.outstanding, self.outstanding_mean
        );
        if !self.measured {
            text.push_str(&format!(
                "Nothing is measured: the disk has no stats filter (tidegate filter add {} stats --at 1).\n",
                self.name
            ));
            return text;
        }
        let ops = || std::iter::once(&self.all).chain(&self.ops);
        let counts = ops().map(|op| {
            vec![
                op.op.clone(),
                figures::count(figures::to_f64(op.ops_total)),
                figures::bytes(op.bytes_total),
                op.errors_total.to_string(),
                figures::percent(op.sequential_ratio),
                figures::count(op.iops),
                figures::megabytes(op.bytes_per_s),
            ]
        });
        let head = ["OP", "OPS", "BYTES", "ERRORS", "SEQUENTIAL", "IOPS", "MB/S"];
        text.push_str(&table::columns(&head, &counts.collect::<Vec<_>>()));
        text.push('\n');
        let latencies =
            ops().flat_map(|op| stages(op).map(|(stage, summary)| latency(op, stage, summary)));
        let head = ["OP", "STAGE", "MEAN", "P50", "P95", "P99", "P99.9", "MAX"];
        text.push_str(&table::columns(&head, &latencies.collect::<Vec<_>>()));
        text
    }
}

/// The stages in the order in which an I/O passes them, and their sum.
pub(crate) fn stages(op: &OpStats) -> [(&'static str, &LatencySummary); 4] {
    let latency = &op.latency;
    [
        ("queue", &latency.queue),
        ("filters", &latency.filters),
        ("datastore", &latency.datastore),
        ("total", &latency.total),
    ]
}

fn latency(op: &OpStats, stage: &str, summary: &LatencySummary) -> Vec<String> {
    let LatencySummary {
        mean_us,
        p50_us,
        p95_us,
        p99_us,
        p999_us,
        max_us,
        ..
    } = *summary;
    let figures = [mean_us, p50_us, p95_us, p99_us, p999_us, max_us].map(figures::micros);
    [op.op.clone(), stage.to_owned()]
        .into_iter()
        .chain(figures)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_within_what_the_daemon_gives() {
        assert_eq!(interval("5s"), Ok(Span(5_000_000_000)));
        for text in ["10ms", "2min", "5", "soon"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_disk_that_is_not_attached_cannot_be_watched() {
        let name = "web1".parse().unwrap();
        let Err(Failure::Failed(problem)) = of_disk(Sample::default(), &name) else {
            panic!("a failure")
        };
        assert!(problem.to_string().contains("tidegate disk attach web1"));
    }
}
