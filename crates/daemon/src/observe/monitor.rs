//! The monitor: samples the attached disks and collects the events of their datastores, for `explain` and the event
//! list.
//!
//! It samples once a second while there is I/O. When I/O ends, it samples a few more times and then waits for a
//! wake-up by a governor. A governor wakes it when it has noticed something or its datastore is used again. It queries
//! the governors first, which costs no I/O thread anything. It queries the I/O threads only when one of them has work.
//!
//! # Always true
//! - In an idle daemon the monitor causes no wake-up.
//! - The I/O threads return a few sums per disk, never their histograms.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_api::descriptor::BURST_SECONDS;
use tidegate_api::events::Happening;
use tidegate_api::explain::{Cause, Explanation};
use tidegate_api::name::Name;
use tidegate_core::dense::INTERVAL;
use tidegate_core::governor::{DiskReport, Threshold};
use tidegate_core::iocontrol::DiskKey;
use tidegate_core::layout::LayoutNotice;
use tidegate_core::units::{Span, Time};
use tidegate_engine::control::{self as engine, Report};
use tokio::sync::Notify;

use crate::clock;
use crate::config::plan::policy;
use crate::control;
use crate::disks::attached::{self, Attached};
use crate::disks::notices::Notice;
use crate::host;
use crate::listen::tls::expiry;
use crate::observe::dense::{DenseWatch, TELL_AGAIN};
use crate::observe::events::{self, Journal};
use crate::observe::explain::timeline::{Beat, Level, Timeline, Used, Worked};
use crate::observe::explain::{self, About, Facts, Terms};
use crate::observe::io_threads;
use crate::observe::layouts;
use crate::observe::sample::ControlMoment;
use crate::os_error::{self, Outcome};
use crate::services::Services;

/// Sampling interval while there is I/O.
const BUSY: Duration = Duration::from_secs(1);
/// Interval of certificate checks: the clock may be set, and a machine may sleep.
const CERTIFICATES: Duration = Duration::from_secs(3600);
/// The note of `explain` while dense mode is on.
const DENSE: &str = "dense mode is on: I/Os may take up to 2 ms longer, except on disks with settings of their own for their \
                     completions, and disks of class latency (`tidegate status` says why it is on)";
/// Idle samples before it waits for a wake-up: a governor may not have counted yet the I/O that it signals.
const RESTS: u32 = 3;

/// See the module.
pub(crate) struct Monitor {
    services: Arc<Services>,
    dense: DenseWatch,
    timelines: Mutex<BTreeMap<Name, Watched>>,
    journal: Journal,
    known: Mutex<Known>,
    /// Notified when a governor has signalled.
    called: Notify,
}

/// The names of disks and hosts in governors' events, also of those that are gone since.
#[derive(Default)]
struct Known {
    disks: BTreeMap<DiskKey, Name>,
    hosts: BTreeMap<[u8; 16], String>,
}

/// The timeline of one disk.
struct Watched {
    attached: Time,
    timeline: Timeline,
}

/// The time of all I/O threads, and the counters of every attached disk, at one moment.
pub(crate) struct Standing {
    pub(crate) threads: Vec<Worked>,
    /// Sorted by name.
    pub(crate) disks: Vec<(Arc<Attached>, Beat)>,
}

/// The result of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Some disk had I/O.
    Work,
    /// There are disks, but no I/O.
    Rest,
    /// There is no disk.
    Nothing,
}

impl Monitor {
    /// The monitor of a daemon that has just started.
    pub(crate) fn new(services: Arc<Services>, dense: DenseWatch) -> Monitor {
        Monitor {
            services,
            dense,
            timelines: Mutex::default(),
            journal: Journal::default(),
            known: Mutex::default(),
            called: Notify::new(),
        }
    }

    /// The services that the monitor reads from.
    pub(crate) fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Dense mode on this host.
    pub(crate) fn dense(&self) -> &DenseWatch {
        &self.dense
    }

    /// The events.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last minutes of a disk, if known.
    pub(crate) fn timeline(&self, disk: &Attached) -> Option<Timeline> {
        let timelines = self.timelines();
        let watched = timelines.get(disk.name())?;
        (watched.attached == disk.attached()).then(|| watched.timeline.clone())
    }

    /// The last sample of a disk, if any.
    pub(crate) fn last(&self, disk: &Attached) -> Option<Beat> {
        let timelines = self.timelines();
        let watched = timelines.get(disk.name())?;
        (watched.attached == disk.attached()).then(|| watched.timeline.last())
    }

    fn timelines(&self) -> MutexGuard<'_, BTreeMap<Name, Watched>> {
        self.timelines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Samples until the daemon stops.
pub(crate) async fn keep(monitor: Arc<Monitor>) {
    let mut rests = 0;
    loop {
        let looking = Arc::clone(&monitor);
        let found = os_error::blocking(move || looking.look()).await;
        let found = match found {
            Ok(found) => found,
            Err(problem) => {
                tracing::debug!(%problem, "cannot read the disks' counters");
                Found::Rest
            }
        };
        rests = if found == Found::Rest { rests + 1 } else { 0 };
        let live = monitor.services.disk_service.live();
        let pause = async {
            match found {
                Found::Work => tokio::time::sleep(BUSY).await,
                Found::Rest if rests < RESTS => tokio::time::sleep(BUSY).await,
                Found::Rest => monitor.called.notified().await,
                Found::Nothing => live.one_is_attached().await,
            }
        };
        tokio::select! {
            () = pause => {}
            () = monitor.services.stopped() => return,
        }
        if rests >= RESTS {
            rests = 0;
        }
    }
}

/// Collects what governors notice, as soon as they do, until the daemon stops.
pub(crate) async fn listen(monitor: Arc<Monitor>) {
    loop {
        tokio::select! {
            () = monitor.services.disk_service.controls().rung() => {}
            () = monitor.services.stopped() => return,
        }
        let hearing = Arc::clone(&monitor);
        let heard = os_error::blocking(move || {
            hearing.hear();
            Ok(())
        });
        if let Err(problem) = heard.await {
            tracing::debug!(%problem, "cannot read the datastores' events");
        }
        monitor.called.notify_one();
    }
}

/// Records what the layouts of disks report, and what administrators do with I/O threads, until the daemon stops.
pub(crate) async fn listen_to_layouts(monitor: Arc<Monitor>) {
    let disk_service = &monitor.services.disk_service;
    loop {
        tokio::select! {
            () = disk_service.notices().come() => {}
            () = monitor.services.stopped() => return,
        }
        monitor.gather_orders();
        let at_ms = now_ms();
        for (disk, notice) in disk_service.notices().take() {
            let notice = match notice {
                Notice::Layout(notice) => notice,
                Notice::Moved { from, to } => {
                    let moved = Happening::DiskMoved { disk, from };
                    monitor.journal().add(Some(&to), at_ms, moved);
                    continue;
                }
                Notice::Member { on, happening } => {
                    monitor.journal().add(on.as_ref(), at_ms, happening);
                    continue;
                }
            };
            if let LayoutNotice::Rebuilt { member } = notice {
                disk_service.member_is_back(&disk, member.0.into());
            }
            let live = disk_service.live().get(&disk);
            let Some((datastore, happening)) = layouts::happening(&disk, live.as_deref(), notice)
            else {
                continue;
            };
            monitor.journal().add(Some(&datastore), at_ms, happening);
        }
    }
}

/// Decides on dense mode once a minute.
pub(crate) async fn watch_dense(monitor: Arc<Monitor>) {
    let every = Duration::from_nanos(INTERVAL.as_nanos());
    let mut moments = tokio::time::interval(every);
    moments.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    moments.tick().await;
    loop {
        let here = Arc::clone(&monitor);
        let told =
            os_error::blocking(move || Ok(here.dense().tell(here.services().disk_service.host())));
        let is_moment = match told.await {
            Ok(true) => {
                moments.tick().await;
                true
            }
            Ok(false) | Err(_) => tokio::select! {
                _ = moments.tick() => true,
                () = tokio::time::sleep(TELL_AGAIN) => false,
            },
        };
        if !is_moment {
            continue;
        }
        let here = Arc::clone(&monitor);
        let sampled = os_error::blocking(move || {
            let disk_service = &here.services().disk_service;
            let declared = disk_service.declared_vcpus();
            if let Some(happening) = here.dense().sample(disk_service.host(), &declared) {
                here.journal().add(None, now_ms(), happening);
            }
            Ok(())
        });
        if let Err(problem) = sampled.await {
            tracing::warn!(%problem, "dense mode could not be decided on");
        }
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.map_or(0, |since| since.as_millis())).unwrap_or(u64::MAX)
}

/// Records an event for each certificate that is about to expire or has expired, until the daemon stops.
pub(crate) async fn watch_certificates(monitor: Arc<Monitor>) {
    let certificates = &monitor.services.certificates;
    if certificates.is_empty() {
        return;
    }
    loop {
        let at = expiry::now();
        let at_ms = u64::try_from(at).unwrap_or(0).saturating_mul(1000);
        for happening in certificates.news(at) {
            monitor.journal().add(None, at_ms, happening);
        }
        tokio::select! {
            () = tokio::time::sleep(CERTIFICATES) => {}
            () = monitor.services.stopped() => return,
        }
    }
}

impl Monitor {
    /// Explains why a disk is as fast as it is, judged over the last `last`.
    pub(crate) fn explain(&self, name: &Name, last: Span) -> Outcome<Explanation> {
        let live = self.services.disk_service.must_be_attached(name)?;
        let terms = Monitor::terms(&live);
        let reports = self.control_reports();
        let beats = self.beats(&reports)?;
        // The disk was detached between the two lookups.
        let (_, now) = beats
            .into_iter()
            .find(|(of, _)| Arc::ptr_eq(of, &live))
            .ok_or_else(|| attached::not_attached(name))?;
        let stretch = {
            let timelines = self.timelines();
            match timelines
                .get(name)
                .filter(|it| it.attached == live.attached())
            {
                Some(watched) => watched.timeline.over(last, &now),
                None => Timeline::new(live.attached()).over(last, &now),
            }
        };
        let about = About {
            disk: name,
            datastore: live.datastore(),
            terms: &terms,
        };
        let facts = Facts::of(&stretch).with(live.claim()).harmed(live.harm());
        let mut explanation = explain::explain(about, &facts, last);
        if explanation.cause == Cause::IoThread {
            self.gather_decisions();
            let events = self.journal.since(0);
            let note = io_threads::note(explanation.thread.thread, events.iter());
            explanation.notes.extend(note);
        }
        let places = live.descriptor().map(|descriptor| descriptor.members);
        if let Some(places) = places.filter(|places| !places.is_empty())
            && let Some(report) = live.layout()
        {
            explanation.notes.extend(layouts::notes(&places, &report));
        }
        if let Some(of) = self.services.disk_service.space_of(&live) {
            let notes = layouts::space_notes(live.datastore(), &of);
            explanation.notes.extend(notes);
        }
        if let Some(report) = live.cache_report() {
            explanation
                .notes
                .extend(layouts::cache_notes(&report, explanation.parts.as_slice()));
            let part = self.services.disk_service.part_note(&live);
            explanation.notes.extend(part);
            let devices = self.services.disk_service.devices_note(&live);
            explanation.notes.extend(devices);
        } else if let Some(problem) = live.cache_problem() {
            let note = layouts::unused_cache_note(live.name(), &problem);
            explanation.notes.push(note);
        }
        if self.dense.is_on() {
            explanation.notes.push(DENSE.to_owned());
        }
        Ok(explanation)
    }

    /// Adds what administrators have done with I/O threads to the events.
    fn gather_orders(&self) {
        for happening in self.services.disk_service.notices().take_of_threads() {
            self.journal.add(None, now_ms(), happening);
        }
    }

    /// Adds the decisions of the I/O threads' policy to the events, and the orders of administrators.
    pub(crate) fn gather_decisions(&self) {
        self.gather_orders();
        let events = self.services.disk_service.host().take_decisions();
        if events.is_empty() {
            return;
        }
        let live = self.services.disk_service.live().all();
        let name_of = |disk| {
            let mut named = live.iter().filter(|live| live.key() == disk);
            named.next().map(|live| live.name().clone())
        };
        let (now, now_ms) = (clock::now(), now_ms());
        for event in events {
            let ago_ms = now.since(event.decision.at).as_nanos() / 1_000_000;
            let happening = io_threads::happening(&event, name_of);
            self.journal
                .add(None, now_ms.saturating_sub(ago_ms), happening);
        }
    }

    /// Samples once: adds a beat to the timeline of every disk, or marks all as idle if no disk had I/O.
    fn look(&self) -> Outcome<Found> {
        self.gather_decisions();
        let live = self.services.disk_service.live().all();
        if live.is_empty() {
            self.timelines().clear();
            return Ok(Found::Nothing);
        }
        let reports = self.control_reports();
        self.know(&live, &reports);
        let mut found = Found::Rest;
        if self.is_stirred(&live, &reports) {
            found = Found::Work;
            let beats = self.beats(&reports)?;
            let mut timelines = self.timelines();
            for (disk, beat) in beats {
                let watched = watched(&mut timelines, &disk);
                watched.timeline.add(beat);
            }
        } else {
            let now = clock::now();
            for watched in self.timelines().values_mut() {
                watched.timeline.rest(now);
            }
        }
        let here: BTreeSet<&Name> = live.iter().map(|disk| disk.name()).collect();
        self.timelines().retain(|name, _| here.contains(name));
        Ok(found)
    }

    /// Whether any disk is new, did anything since the last sample, or had I/Os outstanding then.
    fn is_stirred(&self, live: &[Arc<Attached>], reports: &BTreeMap<Name, Report>) -> bool {
        let mut timelines = self.timelines();
        let index = index(reports);
        live.iter().any(|disk| {
            let used = index.get(disk.key()).map(|(used, _)| known(used));
            let last = watched(&mut timelines, disk).timeline.last();
            // Without a governor that counts, only the I/O thread knows.
            used.is_none() || used != last.used || last.pulse.is_some_and(|p| p.outstanding > 0)
        })
    }

    /// The counters of every attached disk now.
    fn beats(&self, reports: &BTreeMap<Name, Report>) -> Outcome<Vec<(Arc<Attached>, Beat)>> {
        Ok(self.standing(reports)?.disks)
    }

    /// The counters of every I/O thread and every attached disk now.
    pub(crate) fn standing(&self, reports: &BTreeMap<Name, Report>) -> Outcome<Standing> {
        let mut threads = Vec::new();
        let mut told = Vec::new();
        for (thread, pulse) in (0..).zip(self.services.disk_service.host().pulses()?) {
            let worked = Worked {
                thread,
                age: pulse.age,
                busy: pulse.busy,
                polling: pulse.spinning,
            };
            threads.push(worked);
            let disks = pulse.disks.into_iter();
            told.extend(disks.map(|told| (told.disk, (worked, told))));
        }
        let told = Sorted::of(told);
        let index = index(reports);
        let beat = |live: Arc<Attached>| {
            // A disk that is being attached or detached is left out.
            let (worked, told) = told.get(live.key())?;
            let report = reports.get(live.control_datastore());
            let own = index.get(told.disk).copied();
            // A disk with several images is known to several governors.
            let here = |key| report.and_then(|r| r.governor.disks.iter().find(|d| d.key == key));
            let own = own.map(|(used, known)| match live.members().len() {
                0 | 1 => (used, known),
                _ => (used, here(used.key)),
            });
            let beat = Beat {
                at: told.now,
                pulse: told.sums,
                used: own.map(|(used, _)| known(&used)),
                level: report.map(|report| level(report, own)),
                thread: *worked,
            };
            Some((live, beat))
        };
        let all = self.services.disk_service.live().all().into_iter();
        let disks = all.filter_map(beat).collect();
        Ok(Standing { threads, disks })
    }

    /// Collects what the governors noticed.
    fn hear(&self) {
        let mut told = self.services.disk_service.controls().told();
        told.retain(|(_, events)| events.lost > 0 || !events.told.is_empty());
        if told.is_empty() {
            return;
        }
        let live = self.services.disk_service.live().all();
        self.know(&live, &self.control_reports());
        let now = clock::now();
        let now_ms = now_ms();
        let mut known = self.known();
        for (datastore, events) in told {
            if events.lost > 0 {
                let missed = Happening::Missed { count: events.lost };
                self.journal.add(Some(&datastore), now_ms, missed);
            }
            for (at, event) in events.told {
                let ago_ms = now.since(at).as_nanos() / 1_000_000;
                let disk = |key| known.disks.get(&key).cloned();
                let host = |host| known.hosts.get(&host).cloned();
                let happening = events::happening(event, disk, host);
                let at_ms = now_ms.saturating_sub(ago_ms);
                self.journal.add(Some(&datastore), at_ms, happening);
            }
        }
        // Detached disks cause no further events.
        let here: BTreeSet<DiskKey> = live.iter().filter_map(|live| key(live)).collect();
        known.disks.retain(|key, _| here.contains(key));
    }

    /// Stores the names of disks and hosts.
    fn know(&self, live: &[Arc<Attached>], reports: &BTreeMap<Name, Report>) {
        let mut known = self.known();
        let disks = live
            .iter()
            .filter_map(|live| Some((key(live)?, live.name().clone())));
        known.disks.extend(disks);
        for host in reports.values().flat_map(|report| &report.governor.hosts) {
            if let Some(name) = control::report::host_name(host) {
                known.hosts.insert(host.host, name);
            }
        }
    }

    /// The reports of all datastores' controls. One that has just ended is left out.
    pub(crate) fn control_reports(&self) -> BTreeMap<Name, Report> {
        let running = self
            .services
            .disk_service
            .controls()
            .all_running()
            .into_iter();
        running
            .filter_map(|(name, running)| Some((name, running.control.report().ok()?)))
            .collect()
    }

    /// The same reports, with the disks' names.
    pub(crate) fn control_moments(&self) -> Vec<ControlMoment> {
        let live = self.services.disk_service.live().all();
        let names = live.iter().map(|live| (live.key(), live.name().clone()));
        let names: Arc<BTreeMap<_, _>> = Arc::new(names.collect());
        let moment = |(datastore, report)| ControlMoment {
            datastore,
            report,
            names: Arc::clone(&names),
        };
        self.control_reports().into_iter().map(moment).collect()
    }

    /// The settings of a disk.
    pub(crate) fn terms(live: &Attached) -> Terms {
        let policy = live.policy().unwrap_or_default();
        let burst = match (policy.limit, policy.burst) {
            (Some(limit), Some(peak)) => {
                let seconds = policy.burst_seconds.unwrap_or(BURST_SECONDS);
                peak.0
                    .saturating_sub(limit.0)
                    .saturating_mul(seconds.into())
            }
            _ => 0,
        };
        Terms {
            shares: policy.shares.get(),
            reservation: policy.reservation.0,
            limit: policy.limit.map(|limit| limit.0),
            bandwidth: policy.limit_bandwidth.map(|rate| rate.0),
            burst,
            group: policy.group.as_ref().map(ToString::to_string),
        }
    }
}

/// The timeline of a disk; a new one if the disk is new or was attached again.
fn watched<'a>(timelines: &'a mut BTreeMap<Name, Watched>, disk: &Attached) -> &'a mut Watched {
    let new = || Watched {
        attached: disk.attached(),
        timeline: Timeline::new(disk.attached()),
    };
    let watched = timelines.entry(disk.name().clone()).or_insert_with(new);
    if watched.attached != disk.attached() {
        *watched = new();
    }
    watched
}

/// The identity of a disk among hosts.
fn key(live: &Attached) -> Option<DiskKey> {
    Some(policy::key(live.descriptor()?.uuid))
}

/// The usage of a disk, and its governor's report of it; `None` if the governor does not know the disk yet.
type Own<'a> = (engine::Used, Option<&'a DiskReport>);

/// All disks under control, by the engine's keys.
fn index(reports: &BTreeMap<Name, Report>) -> Sorted<host::Key, Own<'_>> {
    let disks = reports.values().flat_map(|report| {
        let known = report.governor.disks.iter();
        let known = Sorted::of(known.map(|disk| (disk.key, disk)).collect());
        let used = report.disks.iter();
        used.map(move |used| (used.disk, (*used, known.get(used.key).copied())))
    });
    let mut all = Sorted::of(disks.collect());
    all.0.dedup_by(|(next, (more, _)), (disk, (used, _))| {
        let is_same = next == disk;
        if is_same {
            add(used, more);
        }
        is_same
    });
    all
}

/// Adds what a disk used of another datastore.
fn add(used: &mut engine::Used, more: &engine::Used) {
    used.ios += more.ios;
    used.units += more.units;
    used.cost += more.cost;
    used.bytes += more.bytes;
    used.latency_ns += more.latency_ns;
    used.burst_left = used.burst_left.max(more.burst_left);
    for (held, other) in used.held_ns.iter_mut().zip(more.held_ns) {
        *held += other;
    }
}

/// A map of some hundred entries in one allocation: it is built and dropped every second, with cold caches.
struct Sorted<K, T>(Vec<(K, T)>);

impl<K: Ord + Copy, T> Sorted<K, T> {
    fn of(mut all: Vec<(K, T)>) -> Sorted<K, T> {
        all.sort_unstable_by_key(|(key, _)| *key);
        Sorted(all)
    }

    fn get(&self, key: K) -> Option<&T> {
        let found = self.0.binary_search_by_key(&key, |(key, _)| *key);
        found.ok().map(|place| &self.0[place].1)
    }
}

fn known(used: &engine::Used) -> Used {
    Used {
        ios: used.ios,
        units: used.units,
        bytes: used.bytes,
        latency_ns: used.latency_ns,
        held_ns: used.held_ns,
    }
}

fn level(report: &Report, own: Option<Own<'_>>) -> Level {
    let governor = &report.governor;
    let (used, own) = own.map_or((None, None), |(used, known)| (Some(used), known));
    Level {
        mode: governor.mode,
        engaged: governor.engaged,
        latency: governor.latency,
        threshold: (governor.common.threshold() != Threshold::Off).then_some(governor.threshold),
        demand: own.map(|disk| disk.demand),
        entitled: own.map_or(0, |disk| disk.entitled),
        unmet: own.is_some_and(|disk| disk.unmet),
        external: governor.external,
        alone: governor.alone,
        mute: governor.mute,
        trouble: report.trouble.is_some(),
        burst_left: used.map_or(0, |used| used.burst_left),
    }
}
