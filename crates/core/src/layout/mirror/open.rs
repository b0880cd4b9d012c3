//! Opening a mirror, and using a member again that was out of sync.
//!
//! Opening reads the states of all members. The newest one says who is in sync. All of these must be there, because an
//! absent one may have taken writes alone since. Then each hot region is copied from one member in sync to the others,
//! before the disk takes requests. Members out of sync are read once the disk is open, and get what they lack.
//!
//! # Always true
//! - a member that missed writes is never read before it was rebuilt
//! - after opening, members in sync are equal
//! - a new mirror opens only if all members that are used have both of its first states
//! - a member gets only the regions that it missed if its own state shows that it was in sync until it was dropped, or that
//!   it has been rebuilt by regions since

use super::copier::Copier;
use super::state::{MISSED, NEVER, REGION, State, Syncing};
use super::{MEMBERS_MAX, Mirror, STATE, each, tag};
use crate::block::Unreadable;
use crate::layout::{BlockOutcome, LayoutCx, LayoutNotice, OrderRefusal, Refusal, Target};
use crate::request::{Fault, Outcome};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// The first pause before a dropped member is tried again. It doubles up to the longest. Origin: chosen; no measurement.
const FIRST_PAUSE: Span = Span::from_secs(10);
const LONGEST_PAUSE: Span = Span::from_secs(300);

/// How far opening has come.
pub(super) enum Opening {
    /// The states of a new disk are written; so many more.
    Fresh {
        left: u32,
    },
    /// Blocks that have not been read, and the newest state of each member with its place.
    States {
        left: u32,
        states: Vec<Option<(State, u32)>>,
        /// Members of which a block could not be read, one bit each. It may be the newest one.
        unreadable: u32,
        refusal: Option<Refusal>,
    },
    /// The newest state is written to so many more members.
    Level {
        left: u32,
    },
    /// Hot regions are copied.
    Recover,
    /// The state after that is recorded.
    Record,
    Done,
}

/// Members that are to be used again.
#[derive(Default)]
pub(super) struct Readmission {
    /// Members that are not tried, one bit each.
    pub(super) barred: u32,
    /// When each is tried.
    pub(super) at: [Option<Time>; MEMBERS_MAX],
    pause: [Span; MEMBERS_MAX],
    reading: Option<Reading>,
    /// Of the last one.
    round: u32,
    /// The member whose label is being checked.
    labelling: Option<u8>,
    /// Members with another image than before: they get all bytes. One bit each.
    pub(super) replaced: u32,
}

/// A member whose state is being read.
struct Reading {
    member: u8,
    /// What its blocks have for a round: those of an earlier one may be of an image that was replaced.
    round: u32,
    left: u32,
    state: Option<State>,
    fault: Option<Fault>,
    foreign: bool,
}

impl Readmission {
    /// The member was dropped, or could not be rebuilt.
    pub(super) fn later(&mut self, member: u8, now: Time) {
        let place = usize::from(member);
        let pause = self.pause[place].max(FIRST_PAUSE);
        self.at[place] = Some(now + pause);
        self.pause[place] = Span::from_nanos(2 * pause.as_nanos()).min(LONGEST_PAUSE);
    }

    /// Whether it is not known yet if a member can be used again.
    pub(super) fn is_busy(&self) -> bool {
        self.reading.is_some() || self.labelling.is_some()
    }

    /// Whether it is being found out if this member can be used again.
    pub(super) fn is_trying(&self, member: u8) -> bool {
        let reading = self.reading.as_ref().map(|reading| reading.member);
        reading == Some(member) || self.labelling == Some(member)
    }

    /// The member is in sync.
    pub(super) fn done(&mut self, member: u8) {
        self.at[usize::from(member)] = None;
        self.pause[usize::from(member)] = FIRST_PAUSE;
    }
}

impl Mirror {
    pub(super) fn opening_is_done(&self) -> bool {
        matches!(self.opening, Some(Opening::Done))
    }

    pub(super) fn begin_opening(&mut self, cx: &mut LayoutCx<'_>, usable: u32, fresh: bool) {
        let usable = usable & self.all();
        if !self.kept {
            self.in_sync = 1;
            self.readmission.barred = u32::MAX;
            self.opening = Some(Opening::Done);
            cx.opened(Ok(()));
            return self.begin_rebuild(cx, 1, true);
        }
        if fresh {
            self.in_sync = if self.zeroed { self.all() } else { 1 };
            self.opening = Some(Opening::Fresh { left: 2 });
            self.records.version = 1;
            return self.record(cx);
        }
        self.readmission.barred = self.all() & !usable;
        self.opening = Some(Opening::States {
            left: 2 * usable.count_ones(),
            states: (0..self.members).map(|_| None).collect(),
            unreadable: 0,
            refusal: None,
        });
        if usable == 0 {
            return self.refuse(cx, Refusal::Missing(Target(0)));
        }
        for target in each(usable) {
            for place in 0..2 {
                let offset = Mirror::state_at(place);
                cx.read_block(tag(STATE, place, target), target, offset);
            }
        }
    }

    pub(super) fn refuse(&mut self, cx: &mut LayoutCx<'_>, refusal: Refusal) {
        self.opening = None;
        self.abandon_copies(cx);
        self.in_sync = 0;
        cx.opened(Err(refusal));
    }

    /// A new disk that has lost a member is refused, and formatted again later. States of a mirror with fewer members would
    /// stay on those, and the next formatting could lose others.
    pub(super) fn refuse_new(&mut self, cx: &mut LayoutCx<'_>, lost: u32, fault: Fault) {
        if let (Some(Opening::Fresh { .. }), Some(lost)) = (&self.opening, each(lost).next()) {
            self.refuse(cx, Refusal::Failed(lost, fault));
        }
    }

    /// A state block was read or written.
    pub(super) fn state_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        member: u8,
        outcome: BlockOutcome,
    ) {
        let kind = number % ROUND;
        if kind >= PROBE {
            return self.probe_read(cx, member, outcome);
        }
        if kind >= READMIT {
            return self.readmission_read(cx, number, member, outcome);
        }
        let (disk, members) = (self.disk, self.members);
        match &mut self.opening {
            Some(Opening::States {
                left,
                states,
                unreadable,
                refusal,
            }) => {
                *left -= 1;
                let last = *left == 0;
                *unreadable |= u32::from(outcome.is_err()) << member;
                let known = &mut states[usize::from(member)];
                match decode(disk, members, member, outcome) {
                    Ok(Some(state)) => {
                        let newer = |known: &(State, u32)| known.0.sequence < state.sequence;
                        if known.as_ref().is_none_or(newer) {
                            *known = Some((state, number));
                        }
                    }
                    Ok(None) => {}
                    Err(why) => *refusal = Some(why),
                }
                if last {
                    self.choose(cx);
                }
            }
            Some(Opening::Level { left }) => {
                *left -= 1;
                let last = *left == 0;
                if let Err(fault) = outcome {
                    if self.in_sync == 1 << member {
                        return self.refuse(cx, Refusal::Failed(Target(member), fault));
                    }
                    self.drop_members(cx, 1 << member, fault);
                }
                if last {
                    self.recover(cx);
                }
            }
            _ => {}
        }
    }

    /// All states are known: decides who is in sync.
    fn choose(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(Opening::States {
            states,
            unreadable,
            refusal,
            ..
        }) = &mut self.opening
        else {
            return;
        };
        let (states, unreadable, refusal) = (core::mem::take(states), *unreadable, *refusal);
        let readable = |member: usize| unreadable >> member & 1 == 0;
        let states = states.into_iter().enumerate();
        let states = states.map(|(member, state)| state.filter(|_| readable(member)));
        let states: Vec<Option<(State, u32)>> = states.collect();
        let newest = states.iter().flatten();
        let newest = newest.max_by_key(|(state, _)| state.sequence).cloned();
        for (place, known) in self.records.places.iter_mut().zip(&states) {
            *place = known.as_ref().map_or(0, |(_, place)| *place);
        }
        let states: Vec<_> = states.into_iter().map(|s| Some(s?.0)).collect();
        if let Some(refusal) = refusal {
            return self.refuse(cx, refusal);
        }
        if let (None, Some(target)) = (&newest, each(unreadable).next()) {
            return self.refuse(cx, Refusal::Missing(target));
        }
        let Some((newest, _)) = newest else {
            let first = (0..self.members).find(|member| self.without >> member & 1 == 0);
            return self.refuse(cx, Refusal::Damaged(Target(first.unwrap_or(0))));
        };
        // A crash while a state is recorded leaves some members with the one before. What is older is an old copy.
        let current = |target: Target| {
            let state = states[usize::from(target.0)].as_ref();
            state.is_some_and(|state| state.sequence >= newest.previous)
        };
        let needed = newest.in_sync & !self.without;
        let missing = each(needed).find(|target| !current(*target));
        let none = (needed == 0).then(|| each(newest.in_sync).next()).flatten();
        if let Some(target) = missing.or(none) {
            return self.refuse(cx, Refusal::Missing(target));
        }
        // A member that went on after it was dropped has writes that the others lack.
        let split = (0..self.members).find(|member| {
            let state = states[usize::from(*member)].as_ref();
            state.is_some_and(|state| newest.excludes(*member) && state.is_split(&newest, *member))
        });
        if let Some(member) = split {
            return self.refuse(cx, Refusal::Split(Target(member)));
        }
        self.adopt(&newest, needed, current);
        self.level(cx, &newest, &states);
    }

    /// Takes over the newest state.
    fn adopt(&mut self, newest: &State, in_sync: u32, current: impl Fn(Target) -> bool) {
        self.in_sync = in_sync;
        self.since = newest.since;
        self.overflow = newest.overflow;
        self.until = newest.until;
        self.records.sequence = newest.sequence + LEAP;
        self.records.last = newest.sequence;
        self.records.last_in_sync = newest.in_sync;
        self.syncing = newest
            .syncing
            .filter(|syncing| current(Target(syncing.member)));
        let size = self.size;
        for region in &newest.regions {
            let number = region & !MISSED;
            if u64::from(number) * REGION >= size {
                continue;
            }
            match region & MISSED {
                0 => drop(self.hot.insert(number, super::Hot::default())),
                _ => drop(self.missed.insert(number)),
            }
        }
    }

    /// Writes the newest state to the members that a crash has kept from it. Otherwise a second crash could leave one
    /// further behind, as an old copy is.
    fn level(&mut self, cx: &mut LayoutCx<'_>, newest: &State, states: &[Option<State>]) {
        let behind = each(self.active()).filter(|target| {
            let state = states[usize::from(target.0)].as_ref();
            state.is_none_or(|state| state.sequence < newest.sequence)
        });
        let behind: Vec<Target> = behind.collect();
        let left = u32::try_from(behind.len()).expect("few members");
        self.opening = Some(Opening::Level { left });
        for target in &behind {
            let block = newest.encode(target.0);
            let place = &mut self.records.places[usize::from(target.0)];
            *place = 1 - *place;
            let place = Mirror::state_at(*place);
            cx.write_block(tag(STATE, 0, *target), *target, place, block);
        }
        if behind.is_empty() {
            self.recover(cx);
        }
    }

    /// Copies the hot regions.
    fn recover(&mut self, cx: &mut LayoutCx<'_>) {
        self.opening = Some(Opening::Recover);
        let alone = self.active().count_ones() < 2;
        let hot = self.hot.keys().copied().filter(|_| !alone);
        let ranges = self.ranges_of(hot);
        self.begin_copies(cx, Copier::new(None, ranges), 0);
    }

    /// The hot regions are equal and durable.
    pub(super) fn recovery_ended(&mut self, cx: &mut LayoutCx<'_>) {
        let hot = core::mem::take(&mut self.hot);
        if self.is_degraded() && !self.overflow {
            self.missed.extend(hot.into_keys());
        }
        self.opening = Some(Opening::Record);
        self.records.version += 1;
        self.record(cx);
    }

    pub(super) fn recovery_failed(&mut self, cx: &mut LayoutCx<'_>, target: Target, fault: Fault) {
        self.refuse(cx, Refusal::Failed(target, fault));
    }

    /// A state is recorded.
    pub(super) fn opening_recorded(&mut self, cx: &mut LayoutCx<'_>) {
        let current = self.records.durable >= self.records.version;
        match &mut self.opening {
            Some(Opening::Fresh { left }) if current => {
                *left -= 1;
                if *left > 0 {
                    // Both places get a state of this mirror.
                    self.records.version += 1;
                    return;
                }
            }
            Some(Opening::Record) if current => {}
            _ => return,
        }
        self.opening = Some(Opening::Done);
        cx.opened(Ok(()));
        if let Some(Syncing { member, full, upto }) = self.syncing {
            let ranges = self.lacks(full, upto);
            self.notice_rebuild(cx, member, &ranges);
            let copier = Copier::new(Some(member), ranges);
            return self.begin_copies(cx, copier, 0);
        }
        for target in each(self.all() & !self.in_sync & !self.readmission.barred) {
            self.readmission.at[usize::from(target.0)] = Some(cx.now());
        }
        self.readmit_next(cx);
    }

    /// What a member that is being rebuilt still lacks.
    pub(super) fn lacks(&self, full: bool, upto: u64) -> Vec<(u64, u64)> {
        if full {
            return if upto < self.size {
                alloc::vec![(upto, self.size)]
            } else {
                Vec::new()
            };
        }
        let mut regions: Vec<u32> = self.hot.keys().chain(&self.missed).copied().collect();
        regions.sort_unstable();
        let above = |region: &u32| (u64::from(*region) + 1) * REGION > upto;
        self.ranges_of(regions.into_iter().filter(above))
    }

    fn notice_rebuild(&self, cx: &mut LayoutCx<'_>, member: u8, ranges: &[(u64, u64)]) {
        cx.notice(LayoutNotice::Rebuilding {
            member: Target(member),
            bytes: ranges.iter().map(|(from, to)| to - from).sum(),
        });
    }

    /// Uses a member again: it gets writes from now on, and copies of what it lacks.
    pub(super) fn begin_rebuild(&mut self, cx: &mut LayoutCx<'_>, member: u8, full: bool) {
        self.readmission.at[usize::from(member)] = None;
        self.readmission.replaced &= !(1 << member);
        if full {
            // It may have another image than before: what it had does not count, also if this fails.
            self.until[usize::from(member)] = NEVER;
        }
        if self.kept {
            self.readmission.barred &= !(1 << member);
        }
        self.syncing = Some(Syncing {
            member,
            full,
            upto: 0,
        });
        self.records.version += 1;
        let ranges = self.lacks(full, 0);
        self.notice_rebuild(cx, member, &ranges);
        let version = self.records.version;
        self.begin_copies(cx, Copier::new(Some(member), ranges), version);
    }

    /// When a member is tried again.
    pub(super) fn readmission_at(&self) -> Option<Time> {
        let free = self.syncing.is_none() && self.copier.is_none() && !self.closing;
        let free = free && self.loss.is_none() && !self.readmission.is_busy();
        if !free || !self.opening_is_done() {
            return None;
        }
        let unused = self.all() & !self.in_sync & !self.readmission.barred;
        let times = each(unused).filter_map(|target| self.readmission.at[usize::from(target.0)]);
        times.min()
    }

    /// Tries the members whose time has come.
    pub(super) fn readmit_next(&mut self, cx: &mut LayoutCx<'_>) {
        while self.readmission_at().is_some_and(|at| at <= cx.now()) {
            let unused = self.all() & !self.in_sync & !self.readmission.barred;
            let due = each(unused).find(|target| {
                let at = self.readmission.at[usize::from(target.0)];
                at.is_some_and(|at| at <= cx.now())
            });
            let Some(target) = due else { return };
            // A write that it got long ago must not land on what it gets now.
            if cx.load(target) > 0 {
                self.readmission.later(target.0, cx.now());
                continue;
            }
            let round = self.readmission.round.wrapping_add(1) % ROUNDS;
            self.readmission.round = round;
            self.readmission.reading = Some(Reading {
                member: target.0,
                round,
                left: 2,
                state: None,
                fault: None,
                foreign: false,
            });
            for place in 0..2 {
                let offset = Mirror::state_at(place);
                let number = round * ROUND + READMIT + place;
                cx.read_block(tag(STATE, number, target), target, offset);
            }
        }
    }

    fn readmission_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        member: u8,
        outcome: BlockOutcome,
    ) {
        let (disk, members) = (self.disk, self.members);
        let reading = self.readmission.reading.as_mut();
        let own =
            |reading: &&mut Reading| (reading.member, reading.round) == (member, number / ROUND);
        let Some(reading) = reading.filter(own) else {
            return;
        };
        reading.left -= 1;
        if let Err(fault) = outcome {
            reading.fault = Some(fault);
        }
        match decode(disk, members, member, outcome) {
            Ok(Some(state)) => {
                let known = &mut reading.state;
                if known.as_ref().is_none_or(|k| k.sequence < state.sequence) {
                    *known = Some(state);
                    // It stays until the member has a newer one.
                    self.records.places[usize::from(member)] = number % ROUND - READMIT;
                }
            }
            Ok(None) => {}
            Err(_) => reading.foreign = true,
        }
        if reading.left > 0 {
            return;
        }
        let Some(reading) = self.readmission.reading.take() else {
            return;
        };
        let member = reading.member;
        if self.closing || self.in_sync >> member & 1 == 1 || self.syncing.is_some() {
            return;
        }
        if let Some(fault) = reading.fault {
            self.readmission.later(member, cx.now());
            let member = Target(member);
            return cx.notice(LayoutNotice::RebuildFailed { member, fault });
        }
        let now = self.state();
        let split = |state: &State| state.is_split(&now, member);
        if reading.foreign || reading.state.as_ref().is_some_and(split) {
            // Another disk's, or written without the others: only an order to replace it brings it back.
            self.readmission.barred |= 1 << member;
            let (member, fault) = (Target(member), Fault::Invalid);
            return cx.notice(LayoutNotice::RebuildFailed { member, fault });
        }
        let Some(state) = reading.state else {
            // It may be a new image, without a label.
            self.readmission.labelling = Some(member);
            return cx.check_label(Target(member));
        };
        let is_same = self.readmission.replaced >> member & 1 == 0;
        let delta = is_same && self.lacks_only_missed(member, &state);
        self.begin_rebuild(cx, member, !delta);
    }

    /// A member's label is durable, so that it can get all bytes; or something else is there.
    pub(super) fn label_is_known(
        &mut self,
        cx: &mut LayoutCx<'_>,
        target: Target,
        outcome: Outcome,
    ) {
        let member = target.0;
        self.readmission.labelling.take_if(|of| *of == member);
        let fault = match (outcome, self.may_rebuild(member)) {
            (Err(fault), _) => fault,
            (Ok(()), Ok(())) => return self.begin_rebuild(cx, member, true),
            (Ok(()), Err(OrderRefusal::Busy)) => {
                // It is rebuilt when that has ended.
                self.readmission.barred &= !(1 << member);
                self.readmission.replaced |= 1 << member;
                self.readmission.at[usize::from(member)] = Some(cx.now());
                return;
            }
            (Ok(()), Err(_)) => return,
        };
        match fault {
            Fault::Invalid => self.readmission.barred |= 1 << member,
            _ => self.readmission.later(member, cx.now()),
        }
        let member = target;
        cx.notice(LayoutNotice::RebuildFailed { member, fault });
    }

    /// The member was dropped by an order: it may get another image before its state is read.
    pub(super) fn stop_reading(&mut self, member: u8) {
        let reading = &mut self.readmission.reading;
        reading.take_if(|it| it.member == member);
    }

    /// The state of this member is not waited for any more.
    pub(super) fn give_up_reading(&mut self, cx: &mut LayoutCx<'_>, member: u8) {
        let reading = &mut self.readmission.reading;
        if reading.take_if(|it| it.member == member).is_some() {
            self.readmission.later(member, cx.now());
            let (member, fault) = (Target(member), Fault::Gone);
            cx.notice(LayoutNotice::RebuildFailed { member, fault });
        }
    }
}

impl State {
    /// Whether this member is not used.
    fn excludes(&self, member: u8) -> bool {
        let rebuilt = self.syncing.is_some_and(|syncing| syncing.member == member);
        self.in_sync >> member & 1 == 0 && !rebuilt
    }

    /// Whether this member went on without those of the newest state, after these had excluded it and all that it had with
    /// it. One that they excluded later never had this state: then nothing was acknowledged with it.
    fn is_split(&self, newest: &State, member: u8) -> bool {
        let excluded = |of: Target| {
            let since = newest.since[usize::from(of.0)];
            since != 0 && self.sequence >= since
        };
        self.in_sync >> member & 1 == 1 && each(self.in_sync).all(excluded)
    }
}

/// Each start leaves a gap in the sequence: a state that was being recorded at a crash, and that an absent member may
/// have, is never taken for another.
const LEAP: u64 = 1 << 20;

/// Numbers of the blocks of one round.
const ROUND: u32 = 8;
/// Rounds, until their numbers begin again.
const ROUNDS: u32 = 1 << 28;
/// Numbers of blocks that are read to use a member again, within their round.
const READMIT: u32 = 2;
/// Numbers of blocks that are read to find out whether a member is back.
pub(super) const PROBE: u32 = 4;

/// A member's state; `None` if the block has none.
pub(super) fn decode(
    disk: [u8; 16],
    members: u8,
    member: u8,
    outcome: BlockOutcome,
) -> Result<Option<State>, Refusal> {
    let target = Target(member);
    let Ok(Some(block)) = outcome else {
        return Ok(None);
    };
    match State::decode(&block[..]) {
        // Fewer if the mirror has got more since: those were never in sync in that state.
        Ok((state, place)) if state.disk == disk && place == member && state.members <= members => {
            Ok(Some(state))
        }
        Ok(_) => Err(Refusal::Foreign(target)),
        Err(Unreadable::Newer(_)) => Err(Refusal::Newer(target)),
        Err(_) => Ok(None),
    }
}
