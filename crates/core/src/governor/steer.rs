//! One tick of the governor, step by step: observe, read, control, divide, publish.
//!
//! [`super::Governor::tick`] selects the steps; they are in this file. The control laws are in the neighbouring files.

use super::division::{Demand, Division};
use super::learn::{FEATURES, Factors};
use super::number::{SECOND, left, median, real, span};
use super::pace::Cost;
use super::peers::lease;
use super::slot::{Entry, Flags, Record, SLOT};
use super::{Governor, GovernorEvent, alone, common, parts, window};
use crate::iocontrol::{Bin, Mode};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// Control disengages only below this part of the threshold, which gives hysteresis. Origin: chosen; no measurement.
const FAR_BELOW: f64 = 0.6;
/// Latency must be far below the threshold for this long before control disengages. Origin: chosen; no measurement.
const BELOW_FOR: Span = Span::from_secs(10);
/// Ticks above the threshold before control engages. Origin: chosen; no measurement.
const ABOVE_FOR: u32 = 2;
/// A window with at least this utilisation limits its host. Origin: chosen; no measurement.
const BINDS: f64 = 0.7;
/// A host's window that moved by less than this part counts as unchanged. Origin: chosen; no measurement.
const STEADY: f64 = 0.08;
/// The ratio of the I/O in flight to that of the last tick within which throughput and latency belong to it. Origin:
/// simulation (`row-17-tail`; decisions/0010).
const SETTLED: core::ops::RangeInclusive<f64> = 0.8..=1.25;
/// Hosts agree if their windows of the cluster differ by less than this part. Origin: chosen; no measurement.
const AGREED: f64 = 0.1;
/// The part of a fixed threshold at which the window law aims: latency should stay below the threshold, not around
/// it. Origin: simulation (`sioc-1`, `sioc-4`; decisions/0014).
const AIM: f64 = 0.93;
/// The ratio of latency to threshold within which a window that limits moves at the normal pace. Origin: chosen; no
/// measurement.
pub(super) const NEAR: core::ops::RangeInclusive<f64> = 0.75..=1.3;
/// Ticks after engaging that follow each other as soon as the last one's effect is visible. Origin: simulation
/// (`row-11-late-slots`).
const NEW_TICKS: u32 = 10;
/// Ticks after engaging in which a host that appears counts as starting too. Origin: chosen; no measurement.
const START_TICKS: u32 = 5;
/// The part of the throughput that a latency target must leave. Origin: chosen; simulation shows its cost
/// (`row-18-unattainable`, `row-18-isolation`; decisions/0010).
const THROUGHPUT_LEAST: f64 = 0.7;
/// The half-life of the throughput that sets the pace: a datastore that does hardly anything for a moment is not a
/// slow one. Origin: simulation (`row-12-start`; decisions/0010); the length is chosen.
const RATE_HALF_LIFE: Span = Span::from_secs(10);
/// The half-life of the time that our I/Os stay in flight. Origin: simulation (`row-12-start`; decisions/0010).
const STAY_HALF_LIFE: Span = Span::from_secs(10);
/// The interval of PARDA's law while the slots cannot be read. Origin: chosen; no measurement.
const ALONE_EVERY: Span = Span::from_secs(1);
/// The length of a bin of cost learning, as schedulers count them, in nanoseconds.
const MOMENT: u64 = 100_000_000;
/// Bytes of a block of cost learning.
const BLOCK: f64 = 65_536.0;

impl Governor {
    /// A daemon that was paused for longer than its lease is dead for the other hosts: it starts again.
    pub(super) fn notice_pause(&mut self, now: Time) {
        let Some(ticked) = self.ticked else { return };
        let gap = now.since(ticked);
        // The planned wait for a tick is not a pause; only the excess counts.
        if gap <= lease(self.planned) {
            return;
        }
        self.events.push(GovernorEvent::Paused { span: gap });
        self.joined = self.peers.is_empty();
        self.reset_external_detector();
        self.under = None;
        if !self.joined && self.heard.is_some_and(|heard| now.since(heard) <= gap) && !self.frozen {
            self.join();
        }
    }

    /// After reads have failed for a lease, this host works alone.
    pub(super) fn notice_silence(&mut self, now: Time) {
        let since = *self.heard.get_or_insert(now);
        if !self.alone && now.since(since) > lease(self.pace.interval()) {
            self.alone = true;
            self.part = if self.engaged {
                self.part
            } else {
                f64::from(self.settings.window_most)
            };
            self.events.push(GovernorEvent::Alone { on: true });
        }
    }

    /// After writes have failed for half a lease, the others may consider us dead: we use at most our last published
    /// part.
    pub(super) fn notice_mute(&mut self, now: Time) {
        let failing = self.failing.map_or(Span::ZERO, |since| now.since(since));
        // Only a successful write ends this state. A longer interval of ours since then does not.
        let long = failing.as_nanos() > lease(self.pace.interval()).as_nanos() / 2;
        let mute = self.failing.is_some() && (self.mute || long);
        if mute != self.mute {
            self.mute = mute;
            self.events.push(GovernorEvent::Mute { on: mute });
        }
        if mute {
            self.part = self.part.min(self.published_part);
        }
    }

    /// Adopts the values that the engaged hosts agree on.
    pub(super) fn join(&mut self) {
        self.joined = true;
        if let Some(mean) = self.mean_of_others() {
            self.cluster = mean;
            self.engage();
        }
    }

    fn mean_of_others(&self) -> Option<f64> {
        let engaged = |record: &&Record| record.flags.has(Flags::ENGAGED);
        let live = self
            .peers
            .iter()
            .filter(|peer| peer.live())
            .map(|peer| &peer.record);
        let windows: Vec<f64> = live.filter(engaged).map(|record| record.cluster).collect();
        if windows.is_empty() {
            return None;
        }
        Some(windows.iter().sum::<f64>() / f64::from(u32::try_from(windows.len()).ok()?))
    }

    /// Sums up the recent load of all hosts, and updates the threshold.
    pub(super) fn measure(&mut self, now: Time) {
        let elapsed = self.pace.since(now);
        let meter = self.disks.meter();
        self.meter = meter;
        let mut sight = window::Sight {
            hosts: 1,
            ..window::Sight::default()
        };
        let (mut ios, mut sum) = (meter.ios, meter.ios * meter.latency);
        // One host whose I/Os hung for seconds must not make all others yield.
        let most = self.target / window::LEAST_RATIO;
        let mut felt = meter.ios * meter.latency.min(most);
        sight.in_flight = meter.in_flight;
        sight.rate = meter.rate;
        let mut pressure = self.disks.pressure();
        let mut thresholds = Vec::new();
        if self.curve.knee().is_some() {
            thresholds.push(self.seeker.at());
        }
        if !self.alone {
            for peer in self.peers.iter() {
                let record = &peer.record;
                sight.hosts += 1;
                sight.in_flight += record.in_flight;
                sight.rate += record.rate;
                ios += record.ios;
                sum += record.ios * record.latency;
                felt += record.ios * record.latency.min(most);
                pressure = pressure.max(record.pressure);
                if record.threshold > 0.0 {
                    thresholds.push(record.threshold);
                }
            }
        }
        sight.latency = if ios > 0.0 { sum / ios } else { 0.0 };
        self.felt = if ios > 0.0 { felt / ios } else { 0.0 };
        // While the I/O in flight changes, it and the rate come from different intervals.
        let moved = sight.in_flight / self.sight.in_flight;
        let steadily = SETTLED.contains(&moved);
        self.sight = sight;
        self.busiest = sight.rate.max(self.busiest * left(elapsed, RATE_HALF_LIFE));
        if sight.latency > 0.0 {
            let decay = if self.smooth > 0.0 {
                left(elapsed, Span::from_millis(200))
            } else {
                0.0
            };
            self.smooth = decay * self.smooth + (1.0 - decay) * sight.latency;
        }
        if steadily {
            self.compare_stays(elapsed);
        }
        if self.watch.level().is_none() && steadily {
            self.curve.saw(elapsed.min(Span::from_secs(4)), &sight);
        }
        if let Some(knee) = self
            .curve
            .knee()
            .filter(|knee| knee.saturated || self.engaged)
        {
            self.seeker.seek(elapsed, &knee);
        }
        let auto = median(&mut thresholds).unwrap_or(self.seeker.at());
        let base = common::target(&self.common, auto);
        // If no I/O is delayed, the window is not the reason for a missed target.
        let pressure = if self.engaged { pressure } else { 0.0 };
        self.pressure.felt(elapsed, pressure);
        self.target = self
            .pressure
            .on(base, self.curve.tightest(THROUGHPUT_LEAST, base));
        self.base = base;
        if self.common.threshold_mode == 0
            && !(0.9..=1.1).contains(&(self.target / self.told_threshold))
        {
            self.told_threshold = self.target;
            self.events.push(GovernorEvent::ThresholdMoved {
                to: span(self.target),
            });
        }
        self.learn_from_all(elapsed);
    }

    /// Compares the residence time of our I/Os, by Little's law, with that of all hosts. At equal windows, hosts with
    /// longer residence times get less throughput. While control is new, the earlier queue determines them.
    fn compare_stays(&mut self, elapsed: Span) {
        let (ours, all) = (&self.meter, &self.sight);
        if !self.engaged
            || self.since_engaged <= NEW_TICKS
            || ours.rate <= 0.0
            || ours.in_flight <= 0.0
        {
            return;
        }
        let longer = ours.in_flight / ours.rate * (all.rate / all.in_flight);
        let longer = longer.clamp(0.5, 2.0);
        // The median of three, so that one pause of a daemon has no effect.
        let [a, b] = self.stays;
        self.stays = [b, longer];
        let longer = longer.clamp(a.min(b), a.max(b));
        let decay = left(elapsed, STAY_HALF_LIFE);
        self.stay = decay * self.stay + (1.0 - decay) * longer;
    }

    /// Decides whether control is engaged, and sets the cluster's window.
    pub(super) fn steer(&mut self, now: Time) {
        let elapsed = self.pace.since(now);
        let above = self.sight.latency > self.target;
        self.over = if above {
            self.over.saturating_add(1)
        } else {
            0
        };
        if self.engaged {
            self.disengage_if_calm(now);
        } else if !self.threshold_off() {
            self.engage_if_congested();
        }
        let before = self.part;
        if self.engaged {
            self.law(now);
            self.divide();
            self.watch_shortage(elapsed);
        } else {
            self.dither.stop();
        }
        let ratio = self.sight.latency / self.target;
        let coasting = ratio < 1.0 && !self.binding();
        let steady = (self.part / before - 1.0).abs() < STEADY;
        if !steady {
            self.learner.interrupt();
        }
        let heard = self.failing.is_none();
        let calm = coasting || (ratio - 1.0).abs() < 0.2;
        let tries = self.watch.tries() || self.watch.nears_trial();
        let quiet = steady && heard && !tries && calm;
        let attentive = self.engaged || self.over > 0;
        let cost = self.cost(self.is_far_off(ratio));
        self.pace.ticked(now, attentive, quiet, cost);
    }

    /// Disengages after a long time far below the threshold in which no window delayed I/Os.
    fn disengage_if_calm(&mut self, now: Time) {
        let binding = |record: &Record| record.flags.has(Flags::BINDING);
        let bound = self.binding() || self.peers.iter().any(|peer| binding(&peer.record));
        let low = self.sight.latency < FAR_BELOW * self.target && !bound;
        if !low {
            self.under = None;
        }
        let since = if low {
            *self.under.get_or_insert(now)
        } else {
            now
        };
        if self.threshold_off() || now.since(since) >= BELOW_FOR {
            self.engaged = false;
            self.over = 0;
            self.under = None;
            self.reset_external_detector();
            self.part = f64::from(self.settings.window_most);
            self.events.push(GovernorEvent::Disengaged);
        }
    }

    /// Engages after two ticks above the threshold, or if others have engaged and latency is not far below it.
    fn engage_if_congested(&mut self) {
        let knee = self.curve.knee().filter(|knee| knee.saturated);
        let filled = knee.is_none_or(|knee| self.sight.in_flight > 0.5 * knee.in_flight);
        if self.over >= ABOVE_FOR && filled {
            // The current latency belongs to the current I/O in flight; the law starts from there.
            self.cluster = self.mean_of_others().unwrap_or(self.sight.in_flight);
            self.engage();
        } else if self.sight.latency >= FAR_BELOW * self.target
            && let Some(mean) = self.mean_of_others()
        {
            self.cluster = mean;
            self.engage();
        }
    }

    fn engage(&mut self) {
        if self.engaged || self.threshold_off() {
            return;
        }
        self.engaged = true;
        self.since_engaged = 0;
        self.under = None;
        let (latency, threshold) = (span(self.sight.latency), span(self.target));
        self.events
            .push(GovernorEvent::Engaged { latency, threshold });
    }

    fn law(&mut self, now: Time) {
        let hosts = f64::from(self.sight.hosts);
        let most = f64::from(self.settings.window_most);
        let knee = self
            .curve
            .knee()
            .filter(|knee| knee.saturated)
            .map(|knee| knee.in_flight);
        let seen = self.detect_external_load(now, knee);
        self.events
            .extend(seen.map(|on| GovernorEvent::ExternalLoad { on }));
        if let Some(level) = self.watch.level() {
            self.dither.stop();
            self.cluster = level.max(hosts).min(hosts * most);
            return;
        }
        self.since_engaged = self.since_engaged.saturating_add(1);
        if core::mem::take(&mut self.met) && self.since_engaged <= START_TICKS {
            // We engaged alone, from our own I/O in flight, and now see others engage. The latency belongs to the sum
            // of all.
            self.cluster = self.cluster.max(self.sight.in_flight);
        }
        self.lead_or_follow(now);
        let others = self
            .peers
            .iter()
            .filter(|peer| peer.live())
            .map(|peer| &peer.record);
        let mut agreed = (self.cluster, 1.0);
        for record in others.filter(|record| record.flags.has(Flags::ENGAGED)) {
            agreed = (agreed.0 + record.cluster, agreed.1 + 1.0);
        }
        let mean = agreed.0 / agreed.1;
        // A dither moves the window on purpose; the law does not move it back unless latency is far off.
        let sight = window::Sight {
            latency: self.felt,
            short: self.short,
            ..self.sight
        };
        let calm = self.dither.on().is_some() && sight.latency < 1.3 * self.target;
        let target = if calm { sight.latency } else { self.aim() };
        self.cluster = window::next(self.cluster, mean, target, &sight, most);
        // For a latency target alone the window does not shrink so far that throughput suffers.
        if self.target < self.base
            && sight.latency <= self.base
            && let Some(narrowest) = self.curve.narrowest(THROUGHPUT_LEAST)
        {
            self.cluster = self.cluster.max(narrowest.min(hosts * most));
        }
    }

    /// The latency that the window aims at: that of a knee or of a latency target itself, and slightly less than a
    /// fixed threshold.
    fn aim(&self) -> f64 {
        let set = self.common.threshold_mode == 1 && self.target >= self.base;
        if set { AIM * self.target } else { self.target }
    }

    fn lead_or_follow(&mut self, now: Time) {
        if self.common.threshold_mode != 0 {
            return self.dither.stop();
        }
        let live = self
            .peers
            .iter()
            .filter(|peer| peer.live())
            .map(|peer| &peer.record);
        let engaged = live.filter(|record| record.flags.has(Flags::ENGAGED));
        let first = engaged.min_by_key(|record| record.host);
        let leader = first.filter(|record| record.host < self.settings.host);
        self.dither.tick(now, leader.map(|record| record.flags));
    }

    /// Computes our part from the demands of all hosts.
    pub(super) fn divide(&mut self) {
        if !self.engaged {
            self.part = f64::from(self.settings.window_most);
            return;
        }
        let residence = self.residence();
        let window = self.cluster * self.dither.factor();
        let (own, foreign) = self.all_disks();
        let mut reserved = 0.0;
        let demands: Vec<Demand> = own
            .iter()
            .chain(&foreign)
            .map(|disk| {
                if disk.demand > 0.0 {
                    reserved += f64::from(disk.reservation) * disk.unit_cost;
                }
                let limit = u64::from(disk.limit);
                Demand::new(
                    disk.shares,
                    disk.reservation,
                    limit,
                    disk.demand,
                    disk.unit_cost,
                    residence,
                )
            })
            .collect();
        let division = Division::of(&demands, window);
        self.short = division.slack <= 0.0;
        let theirs = foreign.iter().zip(&demands[own.len()..]);
        self.others_lack = parts::is_any_short(&division, theirs);
        let hosts = f64::from(self.sight.hosts);
        let mut sum = division.slack / hosts;
        for disk in &mut self.disks.all {
            // A disk that another host serves by now has its part there.
            let elsewhere = |entry: &Entry| entry.key == disk.key.0 && !entry.merged;
            disk.part = if foreign.iter().any(elsewhere) {
                0.0
            } else {
                division.part(&disk.demand(residence))
            };
            sum += disk.part;
        }
        let most = f64::from(self.settings.window_most);
        let least = window::floor(self.cluster, self.sight.hosts);
        self.part = (sum * self.stay).max(least).min(most);
        let peak = self
            .curve
            .knee()
            .map_or(0.0, |knee| knee.peak)
            .max(self.sight.rate);
        self.shrink(super::admission::feasible(reserved, peak));
    }

    fn shrink(&mut self, theta: f64) {
        let newly = theta < 0.98 && self.theta >= 0.98;
        self.theta = theta;
        if newly {
            let percent = super::number::whole32(theta * 100.0);
            self.events
                .push(GovernorEvent::ReservationsShrunk { percent });
        }
    }

    /// The residence time of a unit of cost, by Little's law: I/O in flight over throughput, at least the latency of
    /// small I/Os.
    pub(super) fn residence(&self) -> f64 {
        let latency = self.smooth;
        if self.sight.rate <= 0.0 || latency <= 0.0 {
            return latency.max(self.target);
        }
        (self.sight.in_flight / self.sight.rate * SECOND).clamp(latency, 4.0 * latency)
    }

    /// One second of the law for a host that works alone.
    pub(super) fn work_alone(&mut self, now: Time) {
        let due = self.alone_at.is_none_or(|at| now.since(at) >= ALONE_EVERY);
        if due && !self.threshold_off() {
            self.alone_at = Some(now);
            let most = f64::from(self.settings.window_most);
            let shares = self.disks.shares();
            // Without completions the last latency is meaningless.
            let latency = if self.meter.ios > 0.0 {
                self.meter.latency
            } else {
                0.0
            };
            self.part = alone::step(self.part, self.target, latency, shares, most);
        }
        let cost = Cost {
            seen: ALONE_EVERY,
            affordable: Span::ZERO,
        };
        self.pace.ticked(now, true, true, cost);
    }

    /// Our slot, if it is time to publish.
    pub(super) fn publish(&mut self, now: Time, law: bool) -> Option<[u8; SLOT]> {
        let fast = self.pace.fast();
        let since = self
            .published_at
            .map_or(Span::from_secs(60), |at| now.since(at));
        let due = if law {
            fast.as_nanos() / 4 * 3
        } else {
            fast.as_nanos() / 2
        };
        if !law {
            self.pace.claimed(now);
        } else if self.frozen && !self.alone {
            self.pace.ticked(now, self.engaged, false, self.cost(false));
        }
        let interval = self.pace.interval();
        // With a shorter announced interval the others would consider us dead.
        let early = since.as_nanos() < due && interval <= self.said;
        if early || common::mode(self.common.mode) == Mode::Off && !law {
            return None;
        }
        self.sequence += 1;
        self.said = interval;
        self.published_at = Some(now);
        self.pending = Some(self.part);
        Some(self.record().encode())
    }

    /// The record that we publish.
    pub(super) fn record(&self) -> Record {
        let knee = self.curve.knee();
        let found = self.learner.found();
        let flags = Flags::default()
            .with(Flags::ENGAGED, self.engaged && !self.alone)
            .with(Flags::FAST, self.pace.interval() == self.pace.fast())
            .with(
                Flags::URGENT,
                self.pace.changed_recently() || self.watch.nears_trial(),
            )
            .with(Flags::BINDING, self.binding())
            .with(Flags::TRYING, self.watch.leads() && self.watch.tries())
            .with(Flags::EXTERNAL, self.watch.leads() && self.watch.on());
        let Flags(dither) = self.dither.flags();
        Record {
            host: self.settings.host,
            incarnation: self.settings.incarnation,
            sequence: self.sequence,
            tick_ms: u32::try_from(self.pace.interval().as_nanos() / 1_000_000).unwrap_or(u32::MAX),
            flags: Flags(flags.0 | dither),
            cluster: self.cluster,
            window: self.part,
            ios: self.meter.ios,
            latency: self.meter.latency,
            p99: self.meter.p99,
            in_flight: self.meter.in_flight,
            rate: self.meter.rate,
            peak: knee.map_or(0.0, |knee| knee.peak),
            threshold: if knee.is_some() {
                self.seeker.at()
            } else {
                0.0
            },
            pressure: self.disks.pressure(),
            costs: found.map_or([0.0; FEATURES], |found| {
                [
                    found.write,
                    found.bytes_read,
                    found.bytes_written,
                    found.read,
                ]
            }),
            name: self.name,
            disks: self.own_entries().collect(),
        }
    }

    fn own_entries(&self) -> impl Iterator<Item = Entry> {
        self.disks.all.iter().map(|disk| Entry {
            key: disk.key.0,
            shares: disk.shares,
            reservation: disk.reservation,
            limit: u32::try_from(disk.limit).unwrap_or(u32::MAX),
            demand: disk.asks(),
            unit_cost: disk.unit_cost,
            served: disk.awake,
            merged: false,
        })
    }

    /// Every disk once: our own with current demands (claim-first), and the others' as last published. If two hosts
    /// list a disk, the entry of the host that serves it counts. If both serve it, the higher incarnation counts; any
    /// common rule would do.
    pub(super) fn all_disks(&self) -> (Vec<Entry>, Vec<Entry>) {
        let own = self.settings.incarnation;
        let mut all: Vec<(Entry, u64)> = self.own_entries().map(|entry| (entry, own)).collect();
        for peer in self.peers.iter() {
            let incarnation = peer.record.incarnation;
            all.extend(peer.record.disks.iter().map(|&entry| (entry, incarnation)));
        }
        let rank = |(entry, incarnation): &(Entry, u64)| {
            (entry.merged, entry.key, !entry.served, !incarnation)
        };
        all.sort_by_key(rank);
        all.dedup_by(|later, first| {
            !later.0.merged && !first.0.merged && later.0.key == first.0.key
        });
        let (own, foreign): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|(_, incarnation)| *incarnation == own);
        let entries = |of: Vec<(Entry, u64)>| of.into_iter().map(|(entry, _)| entry).collect();
        (entries(own), entries(foreign))
    }

    /// Whether our window delays I/Os.
    pub(super) fn binding(&self) -> bool {
        self.engaged && (self.meter.held || self.meter.in_flight >= BINDS * self.part)
    }

    pub(super) fn threshold_off(&self) -> bool {
        self.common.threshold_mode == 2 || common::mode(self.common.mode) == Mode::Off
    }

    /// Whether it is worth spending saved budget on ticks: control has just engaged, latency is far from the threshold,
    /// or hosts do not agree. Otherwise more ticks would only measure more noise.
    fn is_far_off(&self, ratio: f64) -> bool {
        let near = |window: f64| (window / self.cluster - 1.0).abs() < AGREED;
        let mut others = self.peers.iter().filter(|peer| peer.live());
        let agree =
            others.all(|peer| !peer.record.flags.has(Flags::ENGAGED) || near(peer.record.cluster));
        let calm = !self.binding() || NEAR.contains(&ratio);
        self.engaged && (self.since_engaged <= NEW_TICKS || !agree || !calm)
    }

    /// The cost of a tick for the datastore. It is measured against the known peak throughput. The throughput of an
    /// idle time is no measure of that, and ticks are rare while control is not engaged.
    pub(super) fn cost(&self, in_haste: bool) -> Cost {
        let known = self.curve.knee().map_or(0.0, |knee| knee.peak);
        let peak = if self.engaged {
            known.max(self.busiest)
        } else {
            0.0
        };
        let cost = Cost::of(self.target, self.sight.hosts, peak);
        let seen = if in_haste {
            cost.seen
        } else {
            cost.seen.max(cost.affordable)
        };
        Cost { seen, ..cost }
    }

    /// Passes intervals in which our window was the limit to the fit of costs.
    pub(super) fn learn(&mut self, bins: &[Bin]) {
        if !self.settings.learn || !self.engaged || !self.binding() || self.alone {
            return;
        }
        for bin in bins {
            let moment = bin.at.as_nanos() / MOMENT;
            if moment != self.moment.0 {
                let (_, brought) = core::mem::replace(&mut self.moment, (moment, [0.0; FEATURES]));
                if brought.iter().any(|&some| some > 0.0) {
                    self.learner.add(brought);
                }
            }
            let more = [
                real(bin.reads),
                real(bin.writes),
                real(bin.bytes_read) / BLOCK,
                real(bin.bytes_written) / BLOCK,
            ];
            for (sum, more) in self.moment.1.iter_mut().zip(more) {
                *sum += more;
            }
        }
    }

    /// Moves our costs towards the median of all hosts' fits, since all hosts must charge equal costs.
    fn learn_from_all(&mut self, elapsed: Span) {
        if !self.settings.learn {
            return;
        }
        let mut columns: [Vec<f64>; FEATURES] = Default::default();
        let mut add = |costs: [f64; FEATURES]| {
            for (column, cost) in columns.iter_mut().zip(costs) {
                column.push(cost);
            }
        };
        if let Some(found) = self.learner.found() {
            add([
                found.write,
                found.bytes_read,
                found.bytes_written,
                found.read,
            ]);
        }
        for peer in self.peers.iter().filter(|peer| peer.record.costs[0] > 0.0) {
            add(peer.record.costs);
        }
        let [write, bytes_read, bytes_written, read] =
            columns.map(|mut column| median(&mut column));
        if let (Some(write), Some(bytes_read), Some(bytes_written), Some(read)) =
            (write, bytes_read, bytes_written, read)
        {
            self.learner.approach(
                elapsed,
                &Factors {
                    read,
                    write,
                    bytes_read,
                    bytes_written,
                },
            );
        }
    }
}
