//! The daemon of a simulated pool: what it does when a layout reports something, commit by commit.
//!
//! Each [`Deed`] is one step: a commit of the catalog, or an order. A crash between two steps loses the later ones. After a
//! start the daemon compares what each layout has found with the catalog.

use super::{Holding, Kind, Leaving, World, seat_of};
use crate::crash::pool::catalog::Named;
use crate::crash::pool::oracle::{Disk, InDoubt};
use std::collections::BTreeSet;
use tidegate_core::effect::Effect;
use tidegate_core::layout::pool::{Generation, PoolReport};
use tidegate_core::layout::{LayoutNotice, LayoutOrder, OrderRefusal, Refusal};
use tidegate_core::request::DiskId;
use tidegate_core::shard::Event;

/// One step of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Commits one more grant of a disk. The order follows.
    Give(u32),
    /// Commits that a grant of a disk is nobody's.
    TakeBack(u32, u32),
    /// Gives an order.
    Order(u32, LayoutOrder),
    /// Something about a member of a column, for all disks.
    Member(MemberDeed),
}

/// What the daemon does about members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberDeed {
    /// Commits that a member is behind, because a layout has asked for it. Orders follow.
    Behind(u32, usize),
    /// Begins to rebuild a member.
    Sync(usize),
    /// Commits that it is in sync.
    Join(usize),
}

impl Deed {
    fn seat(self) -> u32 {
        match self {
            Deed::Give(seat) | Deed::TakeBack(seat, _) | Deed::Order(seat, _) => seat,
            Deed::Member(_) => u32::MAX,
        }
    }
}

/// An act on a whole disk that the administrator has ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ordered {
    /// A snapshot: answered by a notice.
    Snapshot,
    /// A rollback to this generation: answered by the end of the order.
    Rollback(Generation),
    /// A deletion: it goes on in the background after the answer.
    Delete(Generation),
}

impl World {
    /// Takes the next step of the daemon.
    pub fn work(&mut self) {
        let Some(deed) = self.deeds.pop_front() else {
            return;
        };
        if let Deed::Member(deed) = deed {
            self.note(|| format!("daemon: {deed:?}"));
            return self.work_on_members(deed);
        }
        let Some(columns) = self.seats.get(&deed.seat()).map(|seat| seat.columns) else {
            return;
        };
        self.note(|| format!("daemon: {deed:?}"));
        match deed {
            Deed::Give(seat) => {
                let Some(disk) = self.disk_of(seat) else {
                    return self.fail("a view wants a grant".to_owned());
                };
                let order = match self.catalog.give(disk, columns) {
                    Some((index, grant)) => LayoutOrder::Grant { index, grant },
                    None => LayoutOrder::NoSpace,
                };
                self.deeds.push_front(Deed::Order(seat, order));
            }
            Deed::TakeBack(seat, index) => {
                let disk = self.disk_of(seat);
                if !disk.is_some_and(|disk| self.catalog.take_back(disk, index)) {
                    self.fail(format!("grant {index} of seat {seat} is given back twice"));
                }
                self.tell_refused();
            }
            Deed::Order(number, LayoutOrder::DeleteGeneration(generation)) => {
                if let Some(seat) = self.seats.get_mut(&number) {
                    if seat.ordered.is_some() {
                        return self.deeds.push_back(deed);
                    }
                    seat.ordered = Some(Ordered::Delete(generation));
                }
                self.order(number, LayoutOrder::DeleteGeneration(generation));
            }
            Deed::Order(number, order) => self.order(number, order),
            Deed::Member(_) => {}
        }
    }

    /// A commit may have made grants free: the disks that were refused may ask again.
    fn tell_refused(&mut self) {
        for (number, seat) in &self.seats {
            let order = Deed::Order(*number, LayoutOrder::SpaceAvailable);
            let has_room = self.catalog.free(seat.columns) > 0;
            if seat.is_refused && has_room && !self.deeds.contains(&order) {
                self.deeds.push_back(order);
            }
        }
    }

    /// Gives an order to a layout.
    pub(super) fn order(&mut self, number: u32, order: LayoutOrder) {
        self.note(|| format!("order for seat {number}: {order:?}"));
        if let Some(seat) = self.seats.get_mut(&number) {
            match order {
                LayoutOrder::NoSpace => seat.is_refused = true,
                LayoutOrder::SpaceAvailable => seat.is_refused = false,
                LayoutOrder::Grant { index, .. } => {
                    seat.is_refused = false;
                    seat.returned.remove(&index);
                }
                _ => {}
            }
        }
        self.handle(Event::LayoutOrder {
            disk: DiskId(number),
            order,
        });
        if order.is_of_column() {
            match self.take_answer(number) {
                Some(outcome) => self.member_ordered(number, order, outcome),
                None => self.fail(format!("{order:?} is not answered at once")),
            }
        }
        if is_of_space(order) {
            self.answered_at_once(number, order);
            // Something may have become free between the commit and the order.
            self.tell_refused();
        }
    }

    /// The answer to an order that was given just now is the last one of its disk. Acts may be answered before, or later.
    fn answered_at_once(&mut self, number: u32, order: LayoutOrder) {
        let answers = |effect: &Effect| matches!(effect, Effect::LayoutOrdered { disk, .. } if disk.0 == number);
        let last = self.effects.iter().rposition(answers);
        let answer = last.and_then(|at| self.effects.remove(at));
        let Some(seat) = self.seats.get_mut(&number) else {
            return;
        };
        let is_done = matches!(
            &answer,
            Some(Effect::LayoutOrdered {
                outcome: Ok(()),
                ..
            })
        );
        seat.columns += u8::from(is_done && order == LayoutOrder::AddMember);
        let is_used = seat.opened == Some(Ok(())) && seat.holding == Holding::No;
        match answer {
            Some(Effect::LayoutOrdered {
                outcome: Err(refusal),
                ..
            }) if is_used && seat.leaving == Leaving::No => {
                self.fail(format!("{order:?} is refused: {refusal:?}"));
            }
            Some(_) => {}
            None => self.fail(format!("{order:?} is not answered at once")),
        }
    }

    /// The disk of a seat, if it is no view.
    pub(super) fn disk_of(&self, number: u32) -> Option<Disk> {
        match self.seats.get(&number)?.kind {
            Kind::Disk(disk) => Some(disk),
            Kind::View(..) => None,
        }
    }

    /// An order is answered.
    pub(super) fn ordered(&mut self, number: u32, outcome: Result<(), OrderRefusal>) {
        self.note(|| format!("seat {number} has carried out an order: {outcome:?}"));
        let Some(seat) = self.seats.get_mut(&number) else {
            return;
        };
        let act = seat.ordered;
        match (act, outcome) {
            (Some(Ordered::Snapshot), Ok(())) => seat.half_answered(),
            _ => seat.ordered = None,
        }
        match (act, outcome) {
            (Some(Ordered::Snapshot | Ordered::Rollback(_)), Err(refusal)) => {
                self.refused(number, act, refusal);
            }
            (Some(Ordered::Rollback(to)), Ok(())) => self.rolled_back(number, to),
            (Some(Ordered::Delete(of)), Err(refusal)) if !self.has_fault => {
                self.fail(format!("{of:?} cannot be deleted: {refusal:?}"));
            }
            (None, Err(_)) => self.fail(format!("seat {number} answers an order twice")),
            _ => {}
        }
    }

    fn refused(&mut self, number: u32, act: Option<Ordered>, refusal: OrderRefusal) {
        let Some(disk) = self.disk_of(number) else {
            return;
        };
        self.oracle.refused(disk);
        if act == Some(Ordered::Snapshot) {
            // It may exist nevertheless after a crash.
            let current = self.current.get(&disk).copied().unwrap_or_default();
            self.failed.insert((disk, current));
        }
        // It needs a grant for its root.
        let lacks_root = self.report(number).is_none_or(|report| report.grants == 0);
        if !self.has_fault && refusal != OrderRefusal::TooMany && !lacks_root {
            self.fail(format!("{act:?} of {disk:?} is refused: {refusal:?}"));
        }
    }

    fn rolled_back(&mut self, number: u32, to: Generation) {
        let (Some(disk), Some(report)) = (self.disk_of(number), self.report(number)) else {
            return;
        };
        if let Err(what) = self.oracle.rolled_back(disk) {
            return self.fail(what);
        }
        if parent_of(&report, report.current) != Some(to) {
            return self.fail(format!(
                "{disk:?} was rolled back to {to:?}, and is {report:?}"
            ));
        }
        self.acted(disk, &report);
    }

    /// From now on the disk writes another generation.
    fn acted(&mut self, disk: Disk, report: &PoolReport) {
        self.current.insert(disk, report.current);
        let now = self.oracle.history(disk).tick();
        self.own.insert(disk, (now, BTreeSet::new()));
        // What is still under way may need space in the new one.
        let seat = seat_of(disk);
        let pending = self.pending.values_mut().filter(|it| it.seat == seat);
        pending.for_each(|it| it.has_space = false);
    }

    /// A layout reports something.
    pub(super) fn noticed(&mut self, number: u32, notice: LayoutNotice) {
        self.note(|| format!("notice of seat {number}: {notice:?}"));
        if self.member_noticed(number, notice) {
            return;
        }
        let Some(disk) = self.disk_of(number) else {
            return self.fail(format!("a view reports {notice:?}"));
        };
        match notice {
            LayoutNotice::GrantWanted { .. } => self.deeds.push_back(Deed::Give(number)),
            LayoutNotice::GrantEmpty { index } => {
                if let Some(seat) = self.seats.get_mut(&number) {
                    seat.returned.insert(index);
                }
                self.deeds.push_back(Deed::TakeBack(number, index));
            }
            LayoutNotice::Generation(generation) => self.taken(number, disk, generation),
            LayoutNotice::GenerationGone(generation) => self.generation_gone(disk, generation),
            _ => {}
        }
    }

    /// A snapshot was taken.
    fn taken(&mut self, number: u32, disk: Disk, generation: Generation) {
        if let Some(seat) = self.seats.get_mut(&number) {
            seat.half_answered();
        }
        let current = self.current.get(&disk).copied();
        let snapshot = match self.oracle.snapshot_taken(disk) {
            Ok(snapshot) if current == Some(generation) => snapshot,
            Ok(_) => {
                return self.fail(format!(
                    "{current:?} was written, and {generation:?} is frozen"
                ));
            }
            Err(what) => return self.fail(what),
        };
        let named = Named {
            snapshot,
            is_going: false,
        };
        if let Some(entry) = self.catalog.entry_mut(disk) {
            entry.snapshots.insert(generation, named);
        }
        if let Some(report) = self.report(number) {
            self.acted(disk, &report);
        }
    }

    fn generation_gone(&mut self, disk: Disk, generation: Generation) {
        let entry = self.catalog.entry_mut(disk);
        let named = entry.and_then(|entry| entry.snapshots.remove(&generation));
        self.shown.remove(&(disk, generation));
        let was_expected = match named {
            Some(named) => named.is_going,
            // One that failed, or that was written before a rollback.
            None => true,
        };
        if !was_expected {
            self.fail(format!(
                "{generation:?} of {disk:?} is gone, and nobody deleted it"
            ));
        }
    }

    /// A layout has opened, or refuses to.
    pub(super) fn opened(&mut self, number: u32, outcome: Result<(), Refusal>) {
        self.note(|| format!("seat {number} opened: {outcome:?}"));
        let has_fault = self.has_fault;
        let Some(seat) = self.seats.get_mut(&number) else {
            return;
        };
        let kind = seat.kind;
        if seat.opened.replace(outcome).is_some() {
            return self.fail(format!("{kind:?} has opened twice"));
        }
        match (kind, outcome) {
            (Kind::Disk(disk), Ok(())) => match self.report(number) {
                Some(report) => self.settle(number, disk, &report),
                None => self.fail(format!("{disk:?} has no report")),
            },
            (Kind::View(..), Ok(())) => {}
            (_, Err(refusal)) if !has_fault => {
                self.fail(format!("{kind:?} does not open: {refusal:?}"));
            }
            // After an exchange of its layout, requests wait until it is detached.
            (_, Err(_)) if self.pending.values().any(|it| it.seat == number) => {
                self.leave(number, Leaving::Returns);
            }
            (_, Err(_)) => {}
        }
    }

    /// Compares the generations that a disk has with those that it should have.
    fn settle(&mut self, number: u32, disk: Disk, report: &PoolReport) {
        let before = self.current.get(&disk).copied();
        let has_changed = before.is_some_and(|before| before != report.current);
        match (self.oracle.in_doubt(disk), before) {
            // An earlier snapshot of the same generation has failed: nobody reads what there is of it.
            (Some(InDoubt::Snapshot), Some(frozen)) if self.failed.contains(&(disk, frozen)) => {
                self.oracle.decide(disk, false);
            }
            (Some(InDoubt::Snapshot), Some(frozen)) => {
                if let Some(snapshot) = self.oracle.decide(disk, has_changed)
                    && let Some(entry) = self.catalog.entry_mut(disk)
                {
                    let named = Named {
                        snapshot,
                        is_going: false,
                    };
                    entry.snapshots.insert(frozen, named);
                }
            }
            (Some(InDoubt::Rollback), _) => drop(self.oracle.decide(disk, has_changed)),
            (_, Some(frozen)) if has_changed && !self.failed.contains(&(disk, frozen)) => {
                let now = report.current;
                return self.fail(format!("{disk:?} wrote {frozen:?}, and writes {now:?} now"));
            }
            _ => {}
        }
        self.acted(disk, report);
        self.compare_names(number, disk, report);
    }

    fn compare_names(&mut self, number: u32, disk: Disk, report: &PoolReport) {
        let Some(entry) = self.catalog.entry_mut(disk) else {
            return;
        };
        let found = |generation: Generation| {
            let mut all = report.generations.iter();
            all.find(|it| it.generation == generation)
        };
        entry
            .snapshots
            .retain(|generation, named| !named.is_going || found(*generation).is_some());
        let names = entry.snapshots.clone();
        for (generation, named) in &names {
            let is_there = found(*generation).is_some_and(|it| !it.is_going);
            if named.is_going && is_there {
                let order = LayoutOrder::DeleteGeneration(*generation);
                self.deeds.push_back(Deed::Order(number, order));
            } else if !named.is_going && !is_there {
                return self.fail(format!("{disk:?} has lost {generation:?}: {report:?}"));
            }
        }
        for it in &report.generations {
            let generation = it.generation;
            if it.is_going || generation == report.current || names.contains_key(&generation) {
                continue;
            }
            if !self.failed.contains(&(disk, generation)) {
                return self.fail(format!("nobody ordered {generation:?} of {disk:?}"));
            }
            let order = LayoutOrder::DeleteGeneration(generation);
            self.deeds.push_back(Deed::Order(number, order));
        }
    }

    /// Nothing of a disk is in flight: it gets a layout with the columns that the pool has now.
    pub(super) fn held(&mut self, number: u32) {
        self.note(|| format!("seat {number} is held"));
        let Some(disk) = self.disk_of(number) else {
            return self.fail("a view is held".to_owned());
        };
        self.finish_returns(number);
        let tree = self.tree(disk, None);
        let columns = self.catalog.columns();
        let Some(seat) = self.seats.get_mut(&number) else {
            return;
        };
        if seat.holding != Holding::Asked {
            return self.fail(format!("{disk:?} is held, and nobody asked for it"));
        }
        (seat.holding, seat.opened, seat.columns) = (Holding::No, None, columns);
        seat.is_refused = false;
        seat.returned.clear();
        self.rebuilt.remove(&number);
        self.handle(Event::Relay {
            disk: DiskId(number),
            tree: Some(Box::new(tree)),
        });
    }

    /// Commits what a layout has given back, before another one uses the same grants.
    fn finish_returns(&mut self, number: u32) {
        let deeds = std::mem::take(&mut self.deeds);
        for deed in deeds {
            match deed {
                Deed::TakeBack(seat, index) if seat == number => {
                    if let Some(disk) = self.disk_of(number) {
                        self.catalog.take_back(disk, index);
                    }
                }
                deed if deed.seat() == number => {}
                deed => self.deeds.push_back(deed),
            }
        }
        self.tell_refused();
    }

    /// A disk or a view is detached.
    pub(super) fn detached(&mut self, number: u32) {
        self.note(|| format!("seat {number} is detached"));
        self.finish_returns(number);
        let Some(seat) = self.seats.remove(&number) else {
            return;
        };
        match (seat.kind, seat.leaving) {
            (_, Leaving::No) => self.fail(format!("{:?} is detached by itself", seat.kind)),
            (Kind::Disk(disk), Leaving::Returns) => self.attach(disk),
            (Kind::Disk(disk), Leaving::Goes) => {
                debug_assert_eq!(number, seat_of(disk), "a disk has its own seat");
                self.catalog.remove(disk);
                self.oracle.remove(disk);
                self.current.remove(&disk);
                self.own.remove(&disk);
                self.tell_refused();
            }
            (Kind::View(..), _) => {}
        }
        self.join_if_all();
    }
}

/// Whether an order says what space there is, or where.
fn is_of_space(order: LayoutOrder) -> bool {
    matches!(
        order,
        LayoutOrder::Grant { .. }
            | LayoutOrder::NoSpace
            | LayoutOrder::SpaceAvailable
            | LayoutOrder::AddMember
    )
}

/// What a generation sees where it has nothing of its own.
pub(super) fn parent_of(report: &PoolReport, of: Generation) -> Option<Generation> {
    let mut all = report.generations.iter();
    all.find(|it| it.generation == of)?.parent
}
