//! Replays a trace, on an attached disk over NBD or on a modelled array in virtual time.
//!
//! Which I/O is asked for when is decided by the simulator's own guest ([`tidegate_sim::guest`]), here and there; what it
//! came to stands beside what was recorded. [`disk`] speaks to a daemon.
//!
//! # Always true
//! - What is recorded and what is replayed are figures of the same I/Os: what is left out is left out of both, and counted.
//! - A disk that is smaller than its trace reaches is refused before anything is asked.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tidegate_core::layout::LayoutSpec;
use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};
use tidegate_model::ArraySpec;
pub use tidegate_sim::scenario::Pace;
use tidegate_sim::scenario::{
    Control, Datastore, Disk, Host, Kind, Phase, Scenario, Settings, Threshold, Workload,
};
pub use tidegate_sim::trace::{ReadError, Trace, TracedIo};
use tidegate_sim::{Policy, Variant, world};

use crate::trace::Figures;

pub mod disk;

/// Whether what changes the disk is asked for too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// It is left out.
    LeaveOut,
    /// It is: what is on the disk is lost.
    Replay,
}

/// I/Os of a trace that are not asked for again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// They change the disk, and that was not asked for.
    pub writes: u64,
    /// They had failed when they were recorded.
    pub failed: u64,
    /// There is no way to ask for them there.
    pub impossible: u64,
}

/// What came of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// As it was recorded.
    pub recorded: Figures,
    /// As it was now.
    pub replayed: Figures,
    /// I/Os that ended with an error now.
    pub errors: u64,
    /// What was not asked for.
    pub left_out: LeftOut,
    /// Flushes that were asked for and are in no figure: of an array's nothing is reported.
    pub uncounted: u64,
    /// I/Os that the recording itself has lost.
    pub lost: u64,
    /// By how much I/Os were asked for later than at their time, in the mean; 0 at the pace of what was outstanding.
    pub late_mean_us: f64,
    /// By how much the latest was.
    pub late_max_us: f64,
    /// It was ended before all was asked for.
    pub interrupted: bool,
}

/// The I/Os of a trace that are asked for, and how many are not.
fn choose(
    trace: &Trace,
    writes: Writes,
    possible: impl Fn(&TracedIo) -> bool,
) -> Result<(Trace, LeftOut)> {
    let mut left_out = LeftOut::default();
    for io in &trace.ios {
        let count = if io.failed {
            &mut left_out.failed
        } else if io.op.modifies() && writes == Writes::LeaveOut {
            &mut left_out.writes
        } else if !possible(io) {
            &mut left_out.impossible
        } else {
            continue;
        };
        *count += 1;
    }
    let chosen = trace
        .only(|io| !io.failed && (writes == Writes::Replay || !io.op.modifies()) && possible(io));
    if chosen.ios.is_empty() {
        bail!(
            "nothing of it can be replayed: {} of its I/Os change the disk, {} had failed, {} cannot be asked for",
            left_out.writes,
            left_out.failed,
            left_out.impossible
        );
    }
    Ok((chosen, left_out))
}

/// The scenario's file of a replay, to be changed and run by hand.
#[must_use]
pub fn scenario_text(file: &str, trace: &Trace, pace: Pace, array: &str) -> String {
    let seconds = trace.lasts().as_nanos().div_ceil(1_000_000_000).max(1);
    let (pace, seconds) = match pace {
        Pace::Outstanding => ("pace = \"outstanding\"".to_owned(), seconds),
        Pace::Recorded { speed } => (
            format!("speed = {:.2}", f64::from(speed) / 100.0),
            (seconds * 100).div_ceil(speed.into()).max(1),
        ),
    };
    // Quoted as TOML's literal strings are; no file of ours has a quote in its name.
    let file = file.replace('\'', "");
    format!(
        "# {} I/Os of a disk, asked for again. See docs/simulator.md.\n\
         name = \"replay\"\n\
         title = \"A trace, replayed\"\n\
         lasts = \"{seconds}s\"\n\
         \n\
         [datastore]\n\
         array = \"{array}\"\n\
         threshold = \"auto\"\n\
         \n\
         [[host]]\n\
         name = \"host1\"\n\
         \n\
         [[disk]]\n\
         name = \"disk1\"\n\
         host = \"host1\"\n\
         workload = {{ kind = \"trace\", file = '{file}', {pace} }}\n",
        trace.ios.len()
    )
}

/// A replay in virtual time is given so much longer than the recording took, and as often twice as long again as it is
/// not at its end.
const MORE: Span = Span::from_secs(10);
const TRIES: u32 = 12;

/// Asks a modelled array, in virtual time, through the scheduler and the governor of a host of its own.
///
/// # Errors
/// Nothing of the trace can be asked for there, or it never ends.
pub fn on_array(trace: &Trace, pace: Pace, array: &ArraySpec) -> Result<Replayed> {
    let modelled = |io: &TracedIo| matches!(io.op, Op::Read | Op::Write | Op::Flush);
    let (chosen, left_out) = choose(trace, Writes::Replay, modelled)?;
    let chosen = Arc::new(chosen);
    // The simulator gives no account of flushes: they are asked for, and counted nowhere.
    let counted = chosen.only(|io| io.op != Op::Flush);
    let mut lasts = chosen.lasts() + MORE;
    if let Pace::Recorded { speed } = pace {
        let ns = u128::from(lasts.as_nanos()) * 100 / u128::from(speed);
        lasts = Span::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)) + MORE;
    }
    for _ in 0..TRIES {
        let scenario = alone(&chosen, pace, array, lasts);
        let run = world::run(&scenario, &Variant::of(Policy::Ours), 1)
            .context("the replay cannot be modelled")?;
        let series = &run.results.disks[0];
        if series.latencies_us.len() < counted.ios.len() {
            lasts = lasts + lasts;
            continue;
        }
        let last = series.bins.iter().rposition(|bin| bin.ios > 0);
        let bins = u64::try_from(last.map_or(0, |last| last + 1)).unwrap_or(0);
        let took = Span::from_nanos(bins * tidegate_sim::results::BIN.as_nanos());
        // Which latency is whose does not matter for figures of all of them.
        let ios = counted.ios.iter().zip(&series.latencies_us);
        let ios = ios.map(|(io, us)| (io.op, io.len, Span::from_micros((*us).into())));
        return Ok(Replayed {
            recorded: Figures::recorded(&counted),
            replayed: Figures::of(ios, took),
            errors: 0,
            left_out,
            uncounted: (chosen.ios.len() - counted.ios.len()) as u64,
            lost: trace.lost,
            late_mean_us: 0.0,
            late_max_us: 0.0,
            interrupted: false,
        });
    }
    bail!("the array is so much slower that the replay does not end")
}

/// A host with the traced disk alone.
fn alone(trace: &Arc<Trace>, pace: Pace, array: &ArraySpec, lasts: Span) -> Scenario {
    Scenario {
        name: "replay".to_owned(),
        title: "A trace, replayed".to_owned(),
        source: String::new(),
        datastore: Datastore {
            array: array.clone(),
            threshold: Threshold::Auto,
            control: Control::On,
            kind: Kind::Unknown,
            io_unit: 32 << 10,
            learn: false,
            coordination: None,
            arrays: 1,
        },
        hosts: vec![Host {
            name: "host1".to_owned(),
            threads: 1,
            joins: Time::ZERO,
        }],
        groups: Vec::new(),
        disks: vec![traced_disk(trace, pace)],
        phases: vec![Phase {
            name: "all".to_owned(),
            begins: Time::ZERO,
            ends: Time::ZERO + lasts,
            active: vec![true],
            speed: 1_000,
            set: Vec::new(),
            members: Vec::new(),
        }],
        faults: Vec::new(),
        configurations: Vec::new(),
        quality: Vec::new(),
        expects: Vec::new(),
    }
}

/// A disk whose guest asks for what the trace says.
fn traced_disk(trace: &Arc<Trace>, pace: Pace) -> Disk {
    Disk {
        name: "disk1".to_owned(),
        host: 0,
        thread: 0,
        size: trace.disk.size.max(trace.reaches()),
        policy: Settings::of_shares(1_000),
        unmanaged: false,
        layout: LayoutSpec::Plain,
        members: vec![0],
        cached: false,
        working_set: None,
        fresh: false,
        scan: None,
        workload: Workload::Trace {
            trace: Arc::clone(trace),
            pace,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::filter::trace::format::TracedDisk;
    use tidegate_core::request::Flags;

    fn io(at_ms: u64, op: Op, latency_ms: u64) -> TracedIo {
        TracedIo {
            at: Span::from_millis(at_ms),
            op,
            flags: Flags::NONE,
            offset: at_ms * 4_096,
            len: if op == Op::Flush { 0 } else { 4_096 },
            latency: Span::from_millis(latency_ms),
            failed: false,
            outstanding: 0,
        }
    }

    fn trace(ios: Vec<TracedIo>) -> Trace {
        let trace = Trace {
            disk: TracedDisk {
                size: 1 << 30,
                ..TracedDisk::default()
            },
            ios,
            lost: 0,
        };
        trace.only(|_| true)
    }

    #[test]
    fn what_changes_the_disk_is_left_out_unless_it_is_asked_for_and_what_failed_always() {
        let mut ios: Vec<_> = Op::ALL.iter().map(|op| io(1, *op, 1)).collect();
        ios.push(TracedIo {
            failed: true,
            ..io(2, Op::Read, 1)
        });
        let all = |_: &TracedIo| true;
        let (chosen, left_out) = choose(&trace(ios.clone()), Writes::LeaveOut, all).expect("some");
        assert_eq!(chosen.ios.len(), 4);
        assert_eq!(
            (left_out.writes, left_out.failed, left_out.impossible),
            (3, 1, 0)
        );
        let reads = |io: &TracedIo| io.op == Op::Read;
        let (chosen, left_out) = choose(&trace(ios), Writes::Replay, reads).expect("some");
        assert_eq!((chosen.ios.len(), left_out.impossible), (1, 6));
        choose(&trace(vec![io(0, Op::Write, 1)]), Writes::LeaveOut, all).expect_err("nothing");
    }

    #[test]
    fn a_slower_array_takes_longer_for_the_same_ios() {
        let ios = (0..2_000).map(|n| io(n * 5, Op::Read, 1)).collect();
        let trace = trace(ios);
        let fast = ArraySpec::named("ssd").expect("a name of the model's");
        let slow = ArraySpec::named("7k").expect("a name of the model's");
        let recorded = Pace::Recorded { speed: 100 };
        let on = |array, pace| on_array(&trace, pace, array).expect("it ends");
        let (ssd, disk) = (on(&fast, recorded), on(&slow, recorded));
        assert_eq!(ssd.recorded, Figures::recorded(&trace));
        assert_eq!((ssd.replayed.ios, disk.replayed.ios), (2_000, 2_000));
        assert!(disk.replayed.latency_mean_us > 10.0 * ssd.replayed.latency_mean_us);
        // One at a time, as fast as they are answered: no gap is left between them.
        let closed = on(&fast, Pace::Outstanding);
        assert_eq!(closed.replayed.ios, 2_000);
        assert!(closed.replayed.iops > 5.0 * ssd.replayed.iops);
    }

    #[test]
    fn the_scenario_of_a_replay_is_one_that_can_be_read() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let trace = trace(vec![io(0, Op::Read, 1)]);
        let file = place.path().join("a.trace").display().to_string();
        for pace in [Pace::Outstanding, Pace::Recorded { speed: 250 }] {
            let text = scenario_text(&file, &trace, pace, "ssd");
            let error = Scenario::read(&text).expect_err("the trace is not there");
            assert!(error.to_string().contains("it cannot be read"), "{error}");
        }
    }
}
