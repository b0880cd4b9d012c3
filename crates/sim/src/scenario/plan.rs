//! The checked plan of a scenario: names are resolved, copies made, ranges checked.
//!
//! [`super::Scenario::read`] calls it with the parsed file.

use super::quantities::{self, Length};
use super::raw::{
    RawBandwidth, RawDisk, RawFault, RawGroup, RawLimit, RawPhase, RawScenario, RawShares,
    RawWorkload,
};
use super::{
    Ceiling, Disk, Fault, FaultKind, Group, Host, Io, Pace, Phase, Scenario, ScenarioError,
    Settings, Workload, configuration, datastore, expect, layout, named, within, wrong,
};
use crate::numbers::whole;
use crate::trace::Trace;
use std::path::Path;
use std::sync::Arc;
use tidegate_core::units::{Span, Time};

/// The largest I/O of a guest: the limit of the front ends.
const LARGEST_IO: u64 = 32 << 20;
/// The size of a 50 GB database with its log.
const DISK_SIZE: u64 = 64 << 30;

pub(super) fn plan(raw: RawScenario) -> Result<Scenario, ScenarioError> {
    let datastore = datastore::datastore(&raw.datastore)?;
    let mut hosts = Vec::new();
    // (name in the file, hosts made of it)
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for host in &raw.host {
        if groups.iter().any(|(name, _)| *name == host.name) {
            return wrong(format!("two hosts are called `{}`", host.name));
        }
        let (count, threads) = (
            within("count", host.count, 1, 255)?,
            within("threads", host.threads, 1, 64)?,
        );
        let first = hosts.len();
        for copy in 1..=count {
            hosts.push(Host {
                name: numbered(&host.name, copy, count),
                threads: threads as usize,
                joins: at(host.joins),
            });
        }
        groups.push((host.name.clone(), (first..hosts.len()).collect()));
    }
    let limits = raw.group.iter().map(group).collect::<Result<Vec<_>, _>>()?;
    let mut disks: Vec<Disk> = Vec::new();
    for raw in &raw.disk {
        let Some((_, on)) = groups.iter().find(|(name, _)| *name == raw.host) else {
            return wrong(format!(
                "disk `{}` is on host `{}`, which is not among the hosts",
                raw.name, raw.host
            ));
        };
        for &host in on {
            for copy in 1..=within("count", raw.count, 1, 4_096)? {
                let place = Place {
                    host,
                    copy,
                    many_hosts: on.len() > 1,
                };
                let mut made = disk(raw, place, &hosts, &disks, datastore.arrays)?;
                made.policy.group = member(raw, &limits)?;
                disks.push(made);
            }
        }
    }
    if hosts.is_empty() || disks.is_empty() {
        return wrong("nothing happens without a [[host]] and a [[disk]]");
    }
    let phases = phases(&raw, &disks)?;
    let faults = raw.fault.iter().map(|f| fault(f, &hosts));
    let mut scenario = Scenario {
        faults: faults.collect::<Result<_, _>>()?,
        name: raw.name,
        title: raw.title,
        source: raw.source,
        hosts,
        groups: limits,
        disks,
        phases,
        configurations: configuration::configurations(&raw.configuration, &datastore.array)?,
        quality: Vec::new(),
        expects: Vec::new(),
        datastore,
    };
    layout::check(&scenario)?;
    configuration::check(&scenario)?;
    let settling = raw.settling.map_or(Span::from_secs(5), |length| length.0);
    for mut raw in raw.quality {
        // It is about each phase.
        raw.phase
            .get_or_insert_with(|| scenario.phases[0].name.clone());
        let checked = expect::expect(&raw, &scenario, settling);
        let checked = checked.or_else(|e| wrong(format!("quality `{}`: {e}", raw.what)))?;
        scenario.quality.push(checked);
    }
    for raw in &raw.expect {
        let checked = expect::expect(raw, &scenario, settling);
        let checked = checked.or_else(|e| wrong(format!("expectation `{}`: {e}", raw.what)))?;
        scenario.expects.push(checked);
    }
    Ok(scenario)
}

/// Which of a disk's copies one is.
#[derive(Clone, Copy)]
struct Place {
    host: usize,
    copy: u32,
    many_hosts: bool,
}

fn disk(
    raw: &RawDisk,
    place: Place,
    hosts: &[Host],
    before: &[Disk],
    arrays: usize,
) -> Result<Disk, ScenarioError> {
    let Place {
        host,
        copy,
        many_hosts,
    } = place;
    let own = numbered(&raw.name, copy, raw.count);
    let name = match many_hosts {
        true => format!("{}.{own}", hosts[host].name),
        false => own,
    };
    if before.iter().any(|disk| disk.name == name) {
        return wrong(format!("two disks are called `{name}`"));
    }
    let on_host = before.iter().filter(|disk| disk.host == host).count();
    let threads = hosts[host].threads;
    let thread = raw
        .thread
        .map_or(on_host % threads, |thread| thread as usize);
    if thread >= threads {
        return wrong(format!(
            "disk `{name}` is on I/O thread {thread}, but its host has {threads}, counted from 0"
        ));
    }
    let settings = Settings {
        shares: shares(raw.shares.as_ref(), before.len())?,
        reservation: raw.reservation.unwrap_or(0),
        limit: ceiling(raw.limit.as_ref())?,
        bandwidth: raw.bandwidth.as_ref().map(bandwidth),
        latency_target: raw.latency_target.map(|length| length.0),
        group: None,
    };
    let workload = workload(&raw.workload);
    let workload = workload.or_else(|error| wrong(format!("disk `{name}`: {error}")))?;
    let traced = match &workload {
        Workload::Trace { trace, .. } => trace.disk.size.max(trace.reaches()),
        Workload::Shop { .. } | Workload::Access { .. } | Workload::Open { .. } => 0,
    };
    let size = raw.size.map_or(DISK_SIZE.max(traced), |size| size.0);
    if size < 2 * LARGEST_IO {
        return wrong(format!("disk `{name}` is too small: give it 64MiB or more"));
    }
    if let Workload::Trace { trace, .. } = &workload
        && trace.reaches() > size
    {
        let reaches = trace.reaches();
        return wrong(format!(
            "disk `{name}` is too small: its trace reaches to byte {reaches}"
        ));
    }
    let (layout, members) = layout::layout(raw, arrays)?;
    Ok(Disk {
        workload,
        name,
        host,
        thread,
        size: layout.round_up(size, members.len()),
        policy: settings,
        unmanaged: raw.unmanaged,
        layout,
        members,
        cached: raw.cached,
        working_set: raw.working_set.map(|size| size.0),
        fresh: raw.fresh,
        scan: raw.scan.map(|size| size.0),
    })
}

fn group(raw: &RawGroup) -> Result<Group, ScenarioError> {
    Ok(Group {
        name: raw.name.clone(),
        limit: ceiling(raw.limit.as_ref())?,
        bandwidth: raw.bandwidth.as_ref().map(bandwidth),
    })
}

/// The index of a disk's group.
fn member(disk: &RawDisk, groups: &[Group]) -> Result<Option<usize>, ScenarioError> {
    let Some(name) = &disk.group else {
        return Ok(None);
    };
    match groups.iter().position(|group| group.name == *name) {
        Some(place) => Ok(Some(place)),
        None => wrong(format!(
            "disk `{}` is of group `{name}`, which is not among the groups",
            disk.name
        )),
    }
}

fn bandwidth(raw: &RawBandwidth) -> Ceiling {
    Ceiling {
        sustained: raw.sustained.0,
        peak: raw.peak.map_or(0, |size| size.0),
        burst: raw
            .burst
            .map_or((raw.sustained.0 / 10).max(1), |size| size.0),
    }
}

fn shares(raw: Option<&RawShares>, position: usize) -> Result<u32, ScenarioError> {
    let shares = match raw {
        None => 1_000,
        Some(RawShares::Number(shares)) => *shares,
        Some(RawShares::Name(name)) => match name.as_str() {
            "low" => 500,
            "normal" => 1_000,
            "high" => 2_000,
            _ => {
                return wrong(format!(
                    "shares are low, normal, high or a number, not `{name}`"
                ));
            }
        },
        Some(RawShares::Turns(list)) if list.is_empty() => {
            return wrong("a list of shares is empty");
        }
        Some(RawShares::Turns(list)) => list[position % list.len()],
    };
    within("shares", shares, 100, 10_000)
}

fn ceiling(raw: Option<&RawLimit>) -> Result<Option<Ceiling>, ScenarioError> {
    let Some(raw) = raw else { return Ok(None) };
    let ceiling = match *raw {
        RawLimit::Sustained(sustained) => Ceiling {
            sustained,
            peak: 0,
            // As the daemon does for a plain number: it covers the jitter of timers and batches.
            burst: (sustained / 10).max(1),
        },
        RawLimit::Burst(ref raw) => Ceiling {
            sustained: raw.sustained,
            peak: raw.peak,
            burst: raw.burst,
        },
    };
    let peak = ceiling.peak;
    if ceiling.sustained == 0 || (peak != 0 && peak < ceiling.sustained) {
        return wrong("a limit is above zero, and its peak is not below it");
    }
    Ok(Some(ceiling))
}

fn workload(raw: &RawWorkload) -> Result<Workload, ScenarioError> {
    let io = |size: Option<quantities::Size>, reads: Option<u32>, random: Option<u32>| {
        let size = size.map_or(8 << 10, |size| size.0);
        if !(512..=LARGEST_IO).contains(&size) {
            return wrong("an I/O has 512B to 32MiB");
        }
        Ok(Io {
            size,
            reads: within("reads", reads.unwrap_or(100), 0, 100)?,
            random: within("random", random.unwrap_or(100), 0, 100)?,
            flush_every: 0,
        })
    };
    Ok(match *raw {
        RawWorkload::Shop {
            users,
            think,
            reads,
            writes,
            size,
            depth,
        } => Workload::Shop {
            users: within("users", users, 1, 100_000)?,
            think: think.map_or(Span::from_millis(500), |length| length.0),
            // As measured for DVD Store: one third reads, two thirds writes.
            reads: reads.unwrap_or(2),
            writes: writes.unwrap_or(3),
            size: io(size, None, None)?.size,
            // The default queue depth of a guest's driver.
            depth: within("depth", depth.unwrap_or(32), 1, 65_536)?,
        },
        RawWorkload::Access {
            outstanding,
            size,
            reads,
            random,
            think,
            flush_every,
        } => Workload::Access {
            outstanding: within("outstanding", outstanding, 1, 65_536)?,
            io: Io {
                flush_every: flush_every.unwrap_or(0),
                ..io(size, reads, random)?
            },
            think: think.map_or(Span::ZERO, |length| length.0),
        },
        RawWorkload::Open {
            rate,
            size,
            reads,
            random,
        } => Workload::Open {
            rate: within("rate", rate, 1, 10_000_000)?,
            io: io(size, reads, random)?,
        },
        RawWorkload::Trace {
            ref file,
            ref pace,
            speed,
        } => {
            let read = Trace::open(Path::new(file));
            let trace = read.or_else(|error| wrong(format!("trace {file}: {error}")))?;
            let trace = trace.modelled();
            if trace.ios.is_empty() {
                return wrong(format!(
                    "trace {file}: it has no successful read, write or flush"
                ));
            }
            let speed = speed.map(|speed| whole(speed * 100.0));
            let pace = match (pace.as_deref(), speed) {
                (None | Some("recorded"), speed) => {
                    let speed = u32::try_from(speed.unwrap_or(100)).unwrap_or(u32::MAX);
                    Pace::Recorded {
                        speed: within("speed, in percent,", speed, 1, 100_000)?,
                    }
                }
                (Some("outstanding"), None) => Pace::Outstanding,
                (Some("outstanding"), Some(_)) => {
                    return wrong("a trace has a `speed` at its recorded pace only");
                }
                (Some(other), _) => {
                    return wrong(format!("pace is recorded or outstanding, not `{other}`"));
                }
            };
            Workload::Trace {
                trace: Arc::new(trace),
                pace,
            }
        }
    })
}

fn phases(raw: &RawScenario, disks: &[Disk]) -> Result<Vec<Phase>, ScenarioError> {
    let only;
    let stretches: &[RawPhase] = match (raw.phase.is_empty(), raw.lasts) {
        (false, None) => &raw.phase,
        (true, Some(lasts)) => {
            only = [RawPhase {
                name: "all".to_owned(),
                lasts,
                idle: Vec::new(),
                speed: None,
                set: Vec::new(),
                remove: Vec::new(),
                add: Vec::new(),
            }];
            &only
        }
        _ => return wrong("give the run's length: either `lasts` or [[phase]]s"),
    };
    let mut settings: Vec<Settings> = disks.iter().map(|disk| disk.policy.clone()).collect();
    let mut phases: Vec<Phase> = Vec::new();
    for raw in stretches {
        let begins = phases.last().map_or(Time::ZERO, |phase| phase.ends);
        let idle = named(&raw.idle, disks.iter().map(|disk| &disk.name), "disk")?;
        let mut set = Vec::new();
        for change in &raw.set {
            let names = [change.disk.clone()];
            for index in named(&names, disks.iter().map(|disk| &disk.name), "disk")? {
                let now = &mut settings[index];
                if change.shares.is_some() {
                    now.shares = shares(change.shares.as_ref(), index)?;
                }
                if change.limit.is_some() {
                    now.limit = ceiling(change.limit.as_ref())?;
                }
                now.reservation = change.reservation.unwrap_or(now.reservation);
                set.push((index, now.clone()));
            }
        }
        phases.push(Phase {
            name: raw.name.clone(),
            begins,
            ends: begins + raw.lasts.0,
            active: (0..disks.len()).map(|disk| !idle.contains(&disk)).collect(),
            speed: within("speed", raw.speed.unwrap_or(1_000), 1, 10_000)?,
            set,
            members: layout::changes(raw, disks)?,
        });
    }
    Ok(phases)
}

fn fault(raw: &RawFault, hosts: &[Host]) -> Result<Fault, ScenarioError> {
    let kind = match raw.kind.as_str() {
        "dead" => FaultKind::Dead,
        "mute" => FaultKind::Mute,
        "deaf" => FaultKind::Deaf,
        "paused" => FaultKind::Paused,
        "torn" => FaultKind::Torn,
        "delayed" => FaultKind::Delayed,
        "clock" => FaultKind::Clock,
        "stalled" => FaultKind::Stalled,
        "starved" => FaultKind::Starved,
        other => {
            return wrong(format!(
                "a fault is dead, mute, deaf, paused, torn, delayed, clock, stalled or starved, not `{other}`"
            ));
        }
    };
    if matches!(kind, FaultKind::Paused | FaultKind::Stalled) && raw.lasts.is_none() {
        return wrong(format!("a fault `{}` needs `lasts`", raw.kind));
    }
    let by = raw.by.map_or(Span::ZERO, |length| length.0);
    if matches!(kind, FaultKind::Delayed | FaultKind::Starved) && by == Span::ZERO {
        return wrong(format!("a fault `{}` needs `by`", raw.kind));
    }
    let hosts = match &raw.host {
        None => (0..hosts.len()).collect(),
        Some(name) => named(
            std::slice::from_ref(name),
            hosts.iter().map(|host| &host.name),
            "host",
        )?,
    };
    let begins = at(Some(raw.at));
    Ok(Fault {
        kind,
        hosts,
        begins,
        ends: raw.lasts.map_or(Time::NEVER, |lasts| begins + lasts.0),
        chance: within("chance", raw.chance.unwrap_or(1_000), 1, 1_000)?,
        by,
    })
}

fn numbered(name: &str, copy: u32, count: u32) -> String {
    match count {
        1 => name.to_owned(),
        _ => format!("{name}{copy}"),
    }
}

fn at(length: Option<Length>) -> Time {
    Time::ZERO + length.map_or(Span::ZERO, |length| length.0)
}
