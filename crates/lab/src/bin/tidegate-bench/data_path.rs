//! The data-path bench: one run of its scenarios.
//!
//! Scenarios ([`scenarios`], [`fleet`], [`dashboard`], [`instructions`], [`coalescing`]) list variants; [`crate::compare`]
//! measures them.
//!
//! # Units
//! - Percent of one core; IOPS; microseconds.

use anyhow::{Context, Result};
use tidegate_lab::experiment::directory::MachineSeen;
use tidegate_lab::interruption;
use tidegate_lab::machine::IdleCpus;

use crate::bench::{Bench, Options, Scenario};
use crate::report::Report;
use crate::{coalescing, dashboard, fleet, instructions, scenarios};

/// Runs the bench, prints its tables, writes its JSON; whether every check passed (always, with `--no-check`).
pub(crate) fn run(options: Options) -> Result<bool> {
    let awake = options.cpu_latency.hold();
    let mut bench = Bench::new(options)?;
    bench.stop = interruption::noticed().context("cannot catch interruptions")?;
    let mut report = Report {
        machine: MachineSeen::here(),
        ..Report::default()
    };
    report
        .notes
        .push(match (&awake, bench.options.cpu_latency) {
            (Ok(Some(_)), IdleCpus::Within(us)) => {
                format!("the kernel is asked for wake-ups within {us} us")
            }
            (Err(error), _) => {
                format!("idle CPUs sleep as they will, and waking them is measured too: {error:#}")
            }
            _ => "idle CPUs sleep as they will, and waking them is measured too".to_owned(),
        });
    if !bench.has_tidegate() {
        let path = bench.options.tidegate.display();
        let note = format!("{path} does not exist: the peers are measured alone");
        report.notes.push(note);
    }
    let outcome = measure(&bench, &mut report);
    // A terminal interrupts servers and clients, too: then their failures have this reason.
    let outcome = outcome.map_err(|error| bench.check_interrupted().err().unwrap_or(error));
    // What was measured before a failure is shown all the same.
    let passed = finish(&bench, &report)?;
    outcome.map(|()| passed)
}

fn finish(bench: &Bench, report: &Report) -> Result<bool> {
    let machine = &report.machine;
    println!(
        "{}, {} CPUs, Linux {}\n",
        machine.processor, machine.cpus, machine.kernel
    );
    println!("{}", report.table());
    println!("{}", report.rejected());
    for note in &report.notes {
        println!("note: {note}");
    }
    if !bench.options.no_check {
        println!("\n{}", report.verdicts());
    }
    if let Some(path) = &bench.options.json {
        let text =
            serde_json::to_string_pretty(report).context("cannot write the report as JSON")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(bench.options.no_check || report.passed())
}

fn measure(bench: &Bench, report: &mut Report) -> Result<()> {
    for scenario in bench.chosen() {
        match scenario {
            Scenario::Null => scenarios::null(bench, report)?,
            Scenario::File => scenarios::file(bench, report)?,
            Scenario::Nbd => scenarios::nbd(bench, report)?,
            Scenario::Filters => scenarios::filters(bench, report)?,
            Scenario::Control => scenarios::control(bench, report)?,
            Scenario::Vms => fleet::vms(bench, report)?,
            Scenario::Disks => fleet::disks(bench, report)?,
            Scenario::Dashboard => dashboard::run(bench, report)?,
            Scenario::Instructions => instructions::run(bench, report)?,
            Scenario::Coalescing => coalescing::run(bench, report)?,
        }
    }
    Ok(())
}
