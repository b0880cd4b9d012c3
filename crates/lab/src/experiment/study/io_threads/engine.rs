//! The trace of phases on this machine: a real engine, and guests that are threads of this process.
//!
//! The phases have the shape of those in virtual time ([`tidegate_sim::threads::phases`]): eight guests of one vCPU, each with a
//! disk on modelled flash and one in memory. What a machine cannot be told is replaced: deep queues read 32 KiB, whose copy costs
//! an I/O thread what the trace's service does. A guest's thread has the name of a vCPU, so the policies see its CPU time.
//!
//! The result is reported and decides nothing: other programs and machines take CPUs meanwhile, and guests compete with I/O threads
//! for as many CPUs as the machine has.
//!
//! # Units
//! `work` is what a phase is for: iterations of computing guests, or answered requests, per second.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tidegate_core::coalesce::Coalesce;
use tidegate_core::layout::LayoutSpec;
use tidegate_core::monitor::{self, Action, Limits};
use tidegate_core::units::Span;
use tidegate_engine::datastore::{OpenedImage, emulated, memory};
use tidegate_engine::monitor::Settings as Policy;
use tidegate_engine::{Disk, DiskSpec, Engine, IoSettings, LayoutOptions, Settings, ThreadState};
use tidegate_testing::load::{Load, Source};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use super::{Made, POLICIES, Part};

/// Guests, each with one vCPU.
const GUESTS: usize = 8;
/// The size of each disk.
const SIZE: u64 = 16 << 20;
/// Flash: an NVMe device, as the simulator models it.
const FLASH: &str = "nvme";
/// A computing guest has a request in this time.
const BETWEEN: Duration = Duration::from_millis(8);
/// Iterations of a computing guest between two looks at its clock: some 10 us.
const CHUNK: u64 = 10_000;
/// After it, a phase counts.
const SETTLES: Duration = Duration::from_secs(1);
/// How long a phase takes at the study's full length, and at least.
const PHASE: Duration = Duration::from_secs(10);
const SHORTEST_PHASE: Duration = Duration::from_secs(2);
/// The most requests of a guest at a time.
const DEEP: u16 = 32;
/// How long what is in flight may take to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// The polling time of the daemon's default.
const POLL: Span = Span::from_micros(200);

/// What a guest does in a phase.
#[derive(Clone, Copy)]
enum Does {
    Nothing,
    Compute,
    /// So many requests of so many bytes at a time.
    Flash(u16, u32),
    Memory(u16, u32),
}

/// The phases of the trace, in order, with what each guest does.
const TRACE: [[Does; GUESTS]; 8] = {
    let compute = [Does::Compute; GUESTS];
    let deep = [Does::Flash(DEEP, 32 << 10); GUESTS];
    let mut one = [Does::Nothing; GUESTS];
    one[0] = Does::Memory(1, 4096);
    let mut mixed = [Does::Nothing; GUESTS];
    mixed[0] = Does::Memory(4, 512);
    mixed[1] = Does::Memory(4, 512);
    mixed[2] = Does::Memory(4, 512);
    mixed[3] = Does::Flash(1, 4096);
    [compute, deep, one, mixed, one, compute, mixed, deep]
};

/// How an idle thread of a fixed set-up waits.
#[derive(Clone, Copy)]
enum Idle {
    Sleep,
    Spin,
    Poll,
}

/// CPUs of this machine; more threads than four are not tried.
fn cpus() -> usize {
    thread::available_parallelism()
        .map_or(1, usize::from)
        .min(4)
}

/// The parts: each fixed set-up, and each policy.
pub(in crate::experiment::study) fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for threads in 1..=cpus().max(2) {
        for idle in ["sleep", "spin", "poll"] {
            let slug = format!("engine-fixed-{threads}-{idle}");
            parts.push(Part::new(slug, format!("{threads} {idle}, fixed")));
        }
    }
    for policy in POLICIES {
        parts.push(Part::new(format!("engine-policy-{policy}"), policy));
    }
    parts
}

/// How long a part takes at so many percent of its length.
pub(in crate::experiment::study) fn takes(percent: u64) -> Duration {
    let phase = PHASE.mul_f64(percent as f64 / 100.0);
    phase.max(SHORTEST_PHASE) * 8
}

fn settings(slug: &str) -> Result<Settings> {
    let fixed = slug.strip_prefix("engine-fixed-");
    let policy = slug.strip_prefix("engine-policy-");
    let (threads, idle, kind) = match (fixed.and_then(|it| it.split_once('-')), policy) {
        (Some((threads, idle)), _) => {
            let idle = match idle {
                "sleep" => Idle::Sleep,
                "spin" => Idle::Spin,
                _ => Idle::Poll,
            };
            (threads.parse().context("a number of threads")?, idle, None)
        }
        (None, Some(name)) => {
            let kind = match name {
                "iocm" => monitor::Kind::Iocm,
                "spdk" => monitor::Kind::Spdk,
                _ => monitor::Kind::Auto,
            };
            (1, Idle::Spin, Some(kind))
        }
        (None, None) => bail!("there is no part `{slug}`"),
    };
    let max = cpus().max(2);
    let limits = Limits {
        min: 1,
        max: u16::try_from(max).unwrap_or(1),
    };
    Ok(Settings {
        threads,
        max_threads: threads.max(kind.map_or(1, |_| max)),
        poll: match idle {
            Idle::Sleep => Span::ZERO,
            Idle::Spin => POLL,
            Idle::Poll => Span::from_secs(1),
        },
        always_poll: matches!(idle, Idle::Poll),
        cpus: Vec::new(),
        curves: false,
        coalesce: Coalesce::Off,
        monitor: kind.map_or(Policy::NONE, |policy| Policy { policy, limits }),
    })
}

/// Plays the trace with a set-up or a policy.
pub(in crate::experiment::study) fn play(percent: u64, slug: &str) -> Result<Made> {
    let phase = takes(percent) / 8;
    let engine = Engine::start(&settings(slug)?).context("cannot start the engine")?;
    let scratch = tempfile::tempdir().context("cannot make a directory for sockets")?;
    let mut disks = Vec::new();
    // First all of one kind, so that each thread of a fixed set-up has as many of each.
    for kind in ["flash", "memory"] {
        for guest in 0..GUESTS {
            let socket = scratch.path().join(format!("{kind}{guest}"));
            disks.push(serve(&engine, kind, &socket)?);
        }
    }
    // Guests connect before the first phase begins.
    let begin = Instant::now() + Duration::from_millis(500);
    let guests: Result<Vec<JoinHandle<Result<Vec<Served>>>>> = (0..GUESTS)
        .map(|guest| {
            let sockets = [guest, GUESTS + guest].map(|at| disks[at].socket.clone());
            let thread = thread::Builder::new().name(format!("vcpu{guest}"));
            let body = move || run_guest(guest, &sockets, begin, phase);
            thread.spawn(body).context("cannot start a guest")
        })
        .collect();
    let mut made = Made::default();
    for place in 0..TRACE.len() {
        let ends = begin + phase * u32::try_from(place + 1).unwrap_or(1);
        thread::sleep(ends.saturating_duration_since(Instant::now()));
        let states = engine.thread_states();
        let active = states.iter().filter(|state| **state == ThreadState::Active);
        let threads = active.count() as f64;
        made.figures
            .insert(format!("phase{place}.threads"), threads);
    }
    let mut served = Vec::new();
    for guest in guests? {
        let phases = guest
            .join()
            .map_err(|_| anyhow::anyhow!("a guest panicked"))?;
        served.push(phases?);
    }
    for place in 0..TRACE.len() {
        let of = |what: fn(&Served) -> f64| served.iter().map(|all| what(&all[place])).sum::<f64>();
        let tallies: Vec<Tally> = served.iter().map(|all| all[place].tally.clone()).collect();
        let p99 = Tally::sum(&tallies).percentile_us(99.0);
        let settled = (phase - SETTLES).as_secs_f64();
        let whole = (of(|it| it.settled) + of(|it| it.before)) / phase.as_secs_f64();
        let mut figure = |name: &str, value| {
            made.figures.insert(format!("phase{place}.{name}"), value);
        };
        figure("work", of(|it| it.settled) / settled);
        figure("work_whole", whole);
        figure("p99_us", p99);
    }
    note_decisions(&engine, &mut made);
    for disk in disks {
        disk.disk
            .detach(PATIENCE)
            .context("a disk does not detach")?;
        let served = disk.server.join();
        served.map_err(|_| anyhow::anyhow!("a server panicked"))?;
    }
    engine.stop();
    Ok(made)
}

/// A disk and the thread that serves it.
struct Attached {
    disk: Disk,
    socket: PathBuf,
    server: JoinHandle<()>,
}

fn serve(engine: &Engine, kind: &str, socket: &Path) -> Result<Attached> {
    let opened: OpenedImage = match kind {
        "flash" => {
            let spec: emulated::Spec = format!("{FLASH},size={SIZE}")
                .parse()
                .context("the modelled flash")?;
            emulated::open(&spec)?
        }
        _ => memory::open(SIZE)?,
    };
    let spec = DiskSpec {
        name: socket
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        size: SIZE,
        block_size: 512,
        read_only: false,
        write_back: true,
        serial: String::new(),
        uuid: [1; 16],
        queues: 1,
        seg_max: 126,
        filters: Vec::new(),
        layout: LayoutSpec::Plain,
        io: IoSettings::default(),
        layout_options: LayoutOptions::default(),
        control: None,
    };
    let disk = engine
        .attach(spec, opened)
        .context("cannot attach a disk")?;
    let listener = UnixListener::bind(socket).context("cannot make a socket")?;
    let own = disk.clone();
    let server = thread::spawn(move || {
        // It ends when its guest has hung up.
        if let Ok((stream, _)) = listener.accept() {
            let _ = own.serve_vhost(stream);
        }
    });
    Ok(Attached {
        disk,
        socket: socket.to_owned(),
        server,
    })
}

/// What a guest did in a phase: in its first second, and afterwards.
#[derive(Default)]
struct Served {
    before: f64,
    settled: f64,
    /// Of the requests that were answered afterwards.
    tally: Tally,
}

fn run_guest(
    guest: usize,
    sockets: &[PathBuf; 2],
    begin: Instant,
    phase: Duration,
) -> Result<Vec<Served>> {
    let connect = |socket: &PathBuf| -> Result<GuestDriver> {
        let options = VmOptions {
            block: 32 << 10,
            ..VmOptions::new(socket, DEEP)
        };
        Ok(GuestDriver::new(vec![Vm::connect(options)?], Wait::Sleep))
    };
    let [mut flash, mut memory] = [connect(&sockets[0])?, connect(&sockets[1])?];
    let mut phases = Vec::new();
    for (place, does) in (0_u32..).zip(TRACE) {
        let begins = begin + phase * place;
        thread::sleep(begins.saturating_duration_since(Instant::now()));
        let mut served = Served::default();
        for (ends, settled) in [(begins + SETTLES, false), (begins + phase, true)] {
            let (work, tally) = match does[guest] {
                Does::Nothing => {
                    thread::sleep(ends.saturating_duration_since(Instant::now()));
                    (0.0, Tally::default())
                }
                Does::Compute => compute(&mut flash, ends)?,
                Does::Flash(depth, block) => requests(&mut flash, depth, block, ends)?,
                Does::Memory(depth, block) => requests(&mut memory, depth, block, ends)?,
            };
            match settled {
                false => served.before = work,
                true => (served.settled, served.tally) = (work, tally),
            }
        }
        phases.push(served);
    }
    Ok(phases)
}

/// Requests until a moment, so many at a time.
fn requests(
    driver: &mut GuestDriver,
    depth: u16,
    block: u32,
    ends: Instant,
) -> Result<(f64, Tally)> {
    let load = Load {
        block,
        ..Load::random_reads(depth, SIZE)
    };
    let left = ends.saturating_duration_since(Instant::now());
    let tallies = driver.run(
        &mut [Source::new(load)],
        Until::Time(Duration::ZERO, left),
        &mut |_| {},
    )?;
    let tally = Tally::sum(&tallies);
    Ok((tally.completed as f64, tally))
}

/// Computes until a moment, with a request now and then. Its work is iterations.
fn compute(driver: &mut GuestDriver, ends: Instant) -> Result<(f64, Tally)> {
    let mut sources = [Source::new(Load::random_reads(1, SIZE))];
    let (mut iterations, mut value) = (0_u64, 1_u64);
    let mut all = Tally::default();
    let mut due = Instant::now() + BETWEEN;
    loop {
        for _ in 0..CHUNK {
            value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005) ^ 1);
        }
        iterations += CHUNK;
        let now = Instant::now();
        if now >= ends {
            return Ok((iterations as f64, all));
        }
        if now >= due {
            due = now + BETWEEN;
            let tallies = driver.run(&mut sources, Until::Count(1), &mut |_| {})?;
            all.follow(&tallies[0]);
        }
    }
}

/// The decisions of the policy, as notes; how many of them moved a disk or changed the number of threads.
fn note_decisions(engine: &Engine, made: &mut Made) {
    let Some(monitor) = engine.monitor() else {
        return;
    };
    let status = monitor.status();
    made.figures.insert("moves".into(), status.moves as f64);
    let resized = status.activated + status.parked;
    made.figures.insert("resized".into(), resized as f64);
    let events = monitor.take_events().into_iter();
    let acts = events.filter(|event| !matches!(event.decision.action, Action::Stay));
    made.notes = acts.map(|event| event.decision.to_string()).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_settings_and_the_trace_is_played_on_an_engine() {
        for part in parts() {
            let settings = settings(&part.slug).expect("it can be set up");
            assert!(settings.threads >= 1 && settings.threads <= settings.max_threads);
        }
        assert!(settings("engine-unknown").is_err());
        let made = play(1, "engine-policy-auto").expect("it can be played");
        for (place, does) in TRACE.iter().enumerate() {
            let figure = |name: &str| made.figures[&format!("phase{place}.{name}")];
            assert!(
                figure("work") > 0.0 && figure("work_whole") > 0.0,
                "{place}"
            );
            assert!(figure("threads") >= 1.0);
            let asks = does.iter().any(|it| !matches!(it, Does::Nothing));
            assert_eq!(figure("p99_us") > 0.0, asks, "{place}");
        }
    }
}
