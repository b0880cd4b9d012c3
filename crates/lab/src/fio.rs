//! fio on the file itself, the limit of what a server of that file can reach.
//!
//! # Units
//! - fio reports nanoseconds and percent; [`Figures`] are microseconds and percent of a core per 1,000 IOPS.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::report::Figures;

/// Runs 4 KiB random reads with io_uring and O_DIRECT on `file`, pinned to `cpu`.
///
/// # Errors
/// fio is missing or fails.
pub fn random_reads(
    file: &Path,
    depth: u16,
    warm: Duration,
    span: Duration,
    cpu: usize,
) -> Result<Figures> {
    let output = Command::new("taskset")
        .args([
            "--cpu-list",
            &cpu.to_string(),
            "fio",
            "--name=limit",
            "--thread",
            "--output-format=json",
        ])
        .args([
            "--rw=randread",
            "--bs=4k",
            "--ioengine=io_uring",
            "--direct=1",
            "--time_based",
        ])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--ramp_time={}ms", warm.as_millis()))
        .arg(format!("--runtime={}ms", span.as_millis()))
        .output()
        .context("cannot start fio")?;
    if !output.status.success() {
        bail!(
            "fio failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Result<Figures> {
    // fio may write warnings before the document.
    let start = text.find('{').context("fio wrote no JSON")?;
    let value: Value = serde_json::from_str(&text[start..]).context("fio wrote broken JSON")?;
    let job = &value["jobs"][0];
    let number = |value: &Value, what: &str| {
        value
            .as_f64()
            .with_context(|| format!("fio's report has no {what}"))
    };
    let read = &job["read"];
    let latency = &read["clat_ns"]["percentile"];
    let percentile =
        |key: &str| number(&latency[key], "latency percentile").map(|nanos| nanos / 1000.0);
    let cpu = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    let iops = number(&read["iops"], "IOPS")?;
    let figures = Figures {
        iops,
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        p999_us: percentile("99.900000")?,
        cpu_percent_per_kiops: cpu / (iops / 1000.0),
        ..Figures::default()
    };
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"note: a warning
        {"jobs": [{"usr_cpu": 10.0, "sys_cpu": 20.0, "read": {"iops": 60000.0,
        "clat_ns": {"percentile": {"50.000000": 250000, "99.000000": 900000, "99.900000": 1000000}}}}]}"#;

    #[test]
    fn the_report_is_read_in_our_units() {
        let figures = parse(REPORT).expect("a report");
        assert_eq!(
            (figures.iops, figures.p50_us, figures.p999_us),
            (60_000.0, 250.0, 1000.0)
        );
        assert_eq!(figures.cpu_percent_per_kiops, 0.5);
    }

    #[test]
    fn a_report_without_figures_is_an_error() {
        parse("{}").expect_err("no job");
        parse("fio: bad option").expect_err("no JSON");
    }
}
