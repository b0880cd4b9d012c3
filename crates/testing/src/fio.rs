//! fio, on the file itself or over NBD. On the file it shows the limit of any server of that file.
//!
//! [`run`] does one job; [`Running`] is a job that can be stopped and continued. Guests of QEMU get the same arguments.
//!
//! # Units
//! - fio reports nanoseconds and percent; [`Done`] has microseconds and percent of a core.

mod running;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub use running::Running;

/// Where fio works.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A file or a block device, by io_uring and O_DIRECT.
    File(&'a Path),
    /// The only export of an NBD server at this socket.
    Nbd(&'a Path),
}

/// What fio does.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Where.
    pub target: Target<'a>,
    /// Bytes of a request.
    pub size: u32,
    /// How many of 100 are reads.
    pub reads: u8,
    /// At random places, or one after the other.
    pub random: bool,
    /// Makes what was written durable after so many writes; 0 for never.
    pub flush_every: u32,
    /// How many ask side by side.
    pub jobs: u16,
    /// What each keeps in flight.
    pub depth: u16,
    /// Before the window.
    pub warm: Duration,
    /// The window.
    pub span: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Requests a second.
    pub iops: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// fio's own, in percent of a core.
    pub cpu_percent: f64,
}

impl Job<'_> {
    /// The words after `fio`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mode = match (self.reads, self.random) {
            (100, true) => "randread",
            (100, false) => "read",
            (0, true) => "randwrite",
            (0, false) => "write",
            (_, true) => "randrw",
            (_, false) => "rw",
        };
        let mut words = vec![
            "--name=limit".to_owned(),
            "--thread".to_owned(),
            "--output-format=json".to_owned(),
            "--unified_rw_reporting=1".to_owned(),
            "--group_reporting=1".to_owned(),
            "--time_based".to_owned(),
            format!("--rw={mode}"),
            format!("--bs={}", self.size),
            format!("--numjobs={}", self.jobs),
            format!("--iodepth={}", self.depth),
            format!("--ramp_time={}ms", self.warm.as_millis()),
            format!("--runtime={}ms", self.span.as_millis()),
        ];
        match self.target {
            Target::File(path) => words.extend([
                "--ioengine=io_uring".to_owned(),
                "--direct=1".to_owned(),
                format!("--filename={}", path.display()),
            ]),
            Target::Nbd(socket) => words.extend([
                "--ioengine=nbd".to_owned(),
                format!("--uri=nbd+unix:///?socket={}", socket.display()),
            ]),
        }
        if !matches!(self.reads, 0 | 100) {
            words.push(format!("--rwmixread={}", self.reads));
        }
        if self.flush_every > 0 {
            words.push(format!("--fsync={}", self.flush_every));
        }
        words
    }
}

/// Runs a job, pinned to `cpu`.
///
/// # Errors
/// fio is missing or fails.
pub fn run(job: &Job<'_>, cpu: usize) -> Result<Done> {
    let output = command(job, cpu).output().context("cannot start fio")?;
    if !output.status.success() {
        bail!(
            "fio failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    parse(&String::from_utf8_lossy(&output.stdout), job.jobs)
}

/// fio with a job, pinned to `cpu`.
fn command(job: &Job<'_>, cpu: usize) -> Command {
    let mut command = Command::new("taskset");
    let cpu = cpu.to_string();
    command
        .args(["--cpu-list", &cpu, "fio"])
        .args(job.arguments());
    command
}

/// 4 KiB random reads of `file` with io_uring and O_DIRECT, without an end.
#[must_use]
pub fn random_reads_of(file: &Path, depth: u16) -> Job<'_> {
    Job {
        target: Target::File(file),
        size: 4096,
        reads: 100,
        random: true,
        flush_every: 0,
        jobs: 1,
        depth,
        warm: Duration::ZERO,
        span: Duration::from_secs(24 * 60 * 60),
    }
}

/// Reads what so many jobs in one group reported.
///
/// # Errors
/// It is no report of fio's, or has no figures.
pub fn parse(text: &str, jobs: u16) -> Result<Done> {
    // fio may write warnings before the document.
    let start = text.find('{').context("fio wrote no JSON")?;
    let value = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    let value = value.take(1).next().context("fio wrote no JSON")?;
    let value = value.context("fio wrote broken JSON")?;
    let job = &value["jobs"][0];
    let number = |value: &Value, what: &str| {
        value
            .as_f64()
            .with_context(|| format!("fio's report has no {what}"))
    };
    if job["error"].as_i64().is_some_and(|error| error != 0) {
        bail!("fio ended with error {}", job["error"]);
    }
    let all = &job["mixed"];
    let latency = &all["clat_ns"]["percentile"];
    let percentile =
        |key: &str| number(&latency[key], "latency percentile").map(|nanos| nanos / 1000.0);
    // A group's processor time is the mean of its jobs'.
    let cpu = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    Ok(Done {
        iops: number(&all["iops"], "IOPS")?,
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        p999_us: percentile("99.900000")?,
        cpu_percent: cpu * f64::from(jobs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"note: a warning
        {"jobs": [{"error": 0, "usr_cpu": 10.0, "sys_cpu": 20.0, "mixed": {"iops": 60000.0,
        "clat_ns": {"percentile": {"50.000000": 250000, "99.000000": 900000, "99.900000": 1000000}}}}]}
        and a last word"#;

    #[test]
    fn the_report_is_read_in_our_units() {
        let done = parse(REPORT, 8).expect("a report");
        assert_eq!(
            (done.iops, done.p50_us, done.p999_us),
            (60_000.0, 250.0, 1000.0)
        );
        assert_eq!(done.cpu_percent, 240.0);
    }

    #[test]
    fn a_report_without_figures_is_an_error() {
        parse("{}", 1).expect_err("no job");
        parse("fio: bad option", 1).expect_err("no JSON");
        let failed = REPORT.replace("\"error\": 0", "\"error\": 5");
        let error = parse(&failed, 1).expect_err("an error of fio's own");
        assert!(error.to_string().contains("error 5"), "{error}");
    }

    #[test]
    fn a_mix_on_a_file_and_a_log_over_nbd_are_said_in_fios_words() {
        let job = Job {
            target: Target::File(Path::new("/f")),
            size: 4096,
            reads: 70,
            random: true,
            flush_every: 0,
            jobs: 8,
            depth: 32,
            warm: Duration::from_millis(500),
            span: Duration::from_secs(2),
        };
        let words = job.arguments().join(" ");
        for word in [
            "--rw=randrw",
            "--rwmixread=70",
            "--numjobs=8",
            "--filename=/f",
            "--runtime=2000ms",
        ] {
            assert!(words.contains(word), "{word}: {words}");
        }
        let log = Job {
            target: Target::Nbd(Path::new("/s")),
            reads: 0,
            random: false,
            flush_every: 8,
            jobs: 1,
            depth: 1,
            ..job
        };
        let words = log.arguments().join(" ");
        for word in ["--rw=write", "--fsync=8", "--uri=nbd+unix:///?socket=/s"] {
            assert!(words.contains(word), "{word}: {words}");
        }
        assert!(!words.contains("rwmixread"), "{words}");
    }
}
