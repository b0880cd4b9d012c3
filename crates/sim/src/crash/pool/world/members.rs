//! The members of a simulated pool's columns: lost, back, replaced, and what the daemon records of them.
//!
//! A target of the layouts is a member. The catalog says which are in sync, durably; which one syncs is forgotten in a crash. As
//! long as one member in sync of each column lives, no guest sees an error.
//!
//! # Always true
//! - The catalog never calls the last member in sync of a column behind.
//! - A member is in sync once every disk of the pool has copied its part.

use super::daemon::{Deed, MemberDeed};
use super::{Kind, Leaving, World, seat_of};
use crate::crash::pool::catalog::identity;
use crate::crash::pool::oracle::Disk;
use crate::crash::pool::{EXTENT, GEOMETRY, SUB_BLOCK};
use crate::crash::{SECTOR, fill};
use tidegate_core::effect::Effect;
use tidegate_core::layout::pool::{Grant, Header, PoolSetup, Standing};
use tidegate_core::layout::{LayoutNotice, LayoutOrder, OrderRefusal, Target};

/// What a replaced member has of an earlier use.
const REPLACED: u64 = 0xbad2;

impl World {
    /// The column that a target is of.
    pub(super) fn column_of(&self, target: usize) -> u16 {
        let column = target / usize::from(self.catalog.mirrors());
        u16::try_from(column).expect("few columns")
    }

    /// The members that have everything of their column.
    pub(super) fn in_sync(&self, column: u16) -> Vec<usize> {
        let in_sync = |target: &usize| self.catalog.standing(*target) == Standing::InSync;
        self.targets_of(column).filter(in_sync).collect()
    }

    fn targets_of(&self, column: u16) -> impl Iterator<Item = usize> + use<> {
        let mirrors = usize::from(self.catalog.mirrors());
        let first = usize::from(column) * mirrors;
        first..first + mirrors
    }

    /// Whether a column has everything without this member.
    pub(super) fn can_spare(&self, target: usize) -> bool {
        if self.catalog.mirrors() == 1 {
            return false;
        }
        let mut others = self.targets_of(self.column_of(target));
        let has_all = |other: usize| {
            let is_there = (self.faulted | self.gone) >> other & 1 == 0;
            is_there && self.catalog.standing(other) == Standing::InSync
        };
        self.catalog.standing(target) != Standing::InSync
            || others.any(|other| other != target && has_all(other))
    }

    /// What a layout is built of, with the member that syncs.
    pub(super) fn with_syncing(&self, mut setup: PoolSetup) -> PoolSetup {
        if let Some(target) = self.syncing
            && let Some(column) = setup.members.get_mut(usize::from(self.column_of(target)))
        {
            column[target % usize::from(self.catalog.mirrors())] = Standing::Syncing;
        }
        setup
    }

    /// A member fails everything from now on, if its column can do without it.
    pub fn lose_member(&mut self, target: usize) {
        let exists = self.column_of(target) < u16::from(self.catalog.columns());
        if exists && self.can_spare(target) {
            self.note(|| format!("member {target} is lost"));
            self.gone |= 1 << target;
            self.faulted |= 1 << target;
        }
    }

    /// A member that is behind is there again, as it was or with other bytes: it is rebuilt.
    pub fn bring_back(&mut self, target: usize, is_replaced: bool) {
        if self.catalog.mirrors() == 1
            || self.column_of(target) >= u16::from(self.catalog.columns())
        {
            return;
        }
        self.gone &= !(1 << target);
        let is_behind = self.catalog.standing(target) == Standing::Behind;
        if !is_behind || self.syncing.is_some() {
            return;
        }
        let is_busy = self
            .in_flight
            .iter()
            .any(|started| started.target == target);
        if is_replaced && !is_busy {
            let store = &mut self.stores[target];
            let sectors = store.sectors();
            let bytes: Vec<u8> = (0..sectors)
                .flat_map(|at| fill(REPLACED + at, REPLACED))
                .collect();
            store.write(0, &bytes, true);
        }
        self.note(|| format!("member {target} is back, replaced: {is_replaced}"));
        self.deeds.push_back(Deed::Member(MemberDeed::Sync(target)));
    }

    /// Members that can be lost or come back.
    pub fn members(&self) -> usize {
        match self.catalog.mirrors() {
            1 => 0,
            mirrors => usize::from(mirrors) * usize::from(self.catalog.columns()),
        }
    }

    /// Takes a step of the daemon.
    pub(super) fn work_on_members(&mut self, deed: MemberDeed) {
        match deed {
            MemberDeed::Behind(asked_by, target) => {
                if self.syncing == Some(target) {
                    self.syncing = None;
                }
                let member = place(target);
                if self.catalog.stand(target, Standing::Behind) {
                    self.faulted &= !(1 << target);
                    let standing = Standing::Behind;
                    self.order_all(LayoutOrder::Standing { member, standing });
                } else {
                    let order = LayoutOrder::Unrecorded(member);
                    self.deeds.push_back(Deed::Order(asked_by, order));
                }
            }
            MemberDeed::Sync(target) => {
                let is_behind = self.catalog.standing(target) == Standing::Behind;
                if is_behind && self.syncing.is_none() && self.gone >> target & 1 == 0 {
                    self.syncing = Some(target);
                    self.rebuilt.clear();
                    let (member, standing) = (place(target), Standing::Syncing);
                    self.order_all(LayoutOrder::Standing { member, standing });
                }
            }
            MemberDeed::Join(target) if self.syncing == Some(target) && self.have_all_rebuilt() => {
                self.syncing = None;
                self.joined += 1;
                self.faulted &= !(1 << target);
                self.catalog.stand(target, Standing::InSync);
                let (member, standing) = (place(target), Standing::InSync);
                self.order_all(LayoutOrder::Standing { member, standing });
            }
            MemberDeed::Join(_) => {}
        }
    }

    fn order_all(&mut self, order: LayoutOrder) {
        let seats: Vec<u32> = self.seats.keys().copied().collect();
        for seat in seats {
            self.deeds.push_back(Deed::Order(seat, order));
        }
    }

    /// An order about a member is answered. One that cannot be carried out yet is given again.
    pub(super) fn member_ordered(
        &mut self,
        number: u32,
        order: LayoutOrder,
        outcome: Result<(), OrderRefusal>,
    ) {
        let LayoutOrder::Standing { member, standing } = order else {
            return;
        };
        let is_current = self.syncing == Some(usize::from(member.0));
        match (standing, outcome) {
            (Standing::Syncing, Err(OrderRefusal::InFlight | OrderRefusal::Busy)) if is_current => {
                self.deeds.push_back(Deed::Order(number, order));
            }
            (Standing::Behind, Err(refusal)) if refusal != OrderRefusal::NotOpen => {
                self.fail(format!("{order:?} is refused: {refusal:?}"));
            }
            _ => {}
        }
    }

    /// A layout reports something of a member. Returns whether it is about one.
    pub(super) fn member_noticed(&mut self, number: u32, notice: LayoutNotice) -> bool {
        match notice {
            LayoutNotice::Behind { member, .. } | LayoutNotice::RebuildFailed { member, .. } => {
                // It may have hung: then no I/O of it has failed.
                let target = usize::from(member.0);
                self.has_fault |= !self.can_spare(target);
                self.faulted |= 1 << target;
                let deed = MemberDeed::Behind(number, usize::from(member.0));
                self.deeds.push_back(Deed::Member(deed));
            }
            LayoutNotice::Rebuilt { member } => {
                if self.syncing == Some(usize::from(member.0)) {
                    self.rebuilt.insert(number);
                    self.join_if_all();
                }
            }
            LayoutNotice::ReadFailed { .. } => {}
            _ => return false,
        }
        true
    }

    /// A member is in sync once all disks have copied their parts.
    pub(super) fn join_if_all(&mut self) {
        if let Some(target) = self.syncing.filter(|_| self.have_all_rebuilt()) {
            let deed = Deed::Member(MemberDeed::Join(target));
            if !self.deeds.contains(&deed) {
                self.deeds.push_back(deed);
            }
        }
    }

    fn have_all_rebuilt(&self) -> bool {
        let has = |disk: &Disk| {
            let seat = self.seats.get(&seat_of(*disk));
            let is_there = seat.is_some_and(|seat| {
                matches!(seat.kind, Kind::Disk(_)) && seat.leaving == Leaving::No
            });
            is_there && self.rebuilt.contains(&seat_of(*disk))
        };
        self.catalog.disks().iter().all(has)
    }

    /// What headers name is the same on all members in sync, once everything was flushed.
    pub(super) fn check_members(&self) -> Result<(), String> {
        for disk in self.catalog.disks() {
            let Some(entry) = self.catalog.entry(disk) else {
                continue;
            };
            for (index, grant) in (0..).zip(&entry.grants) {
                if let Some(grant) = *grant
                    && let Some(header) = self.header_of(disk, index, grant)
                {
                    self.check_grant(grant, &header)
                        .map_err(|what| format!("{disk:?}: {what}"))?;
                }
            }
        }
        Ok(())
    }

    fn header_of(&self, disk: Disk, index: u32, grant: Grant) -> Option<Header> {
        let entry = self.catalog.entry(disk)?;
        let home = entry.grants.get(GEOMETRY.header_of(index) as usize);
        let home = home.copied().flatten()?;
        let headers = (0..2).flat_map(|nth| {
            let at = GEOMETRY.grant_at(home) + GEOMETRY.header_at(index, nth);
            let blocks = self.blocks(home, at).into_iter();
            blocks.filter_map(|block| Header::decode(&block).ok())
        });
        let ours = |it: &Header| it.is_of(index, grant) && it.owner.disk == identity(disk);
        headers.filter(ours).max_by_key(|it| it.sequence)
    }

    fn check_grant(&self, grant: Grant, header: &Header) -> Result<(), String> {
        let in_sync = self.in_sync(grant.column);
        for (nth, entry) in (0..).zip(&header.extents) {
            for sub_block in (0..16).filter(|bit| entry.sub_blocks >> bit & 1 == 1) {
                let at =
                    GEOMETRY.grant_at(grant) / SECTOR as u64 + nth * EXTENT + sub_block * SUB_BLOCK;
                let read = |target: &usize| {
                    let mut bytes = vec![0; usize::try_from(SUB_BLOCK).unwrap_or(1) * SECTOR];
                    self.stores[*target].read(at * SECTOR as u64, &mut bytes);
                    bytes
                };
                let mut all = in_sync.iter().map(read);
                let first = all.next();
                if !entry.is_free() && all.any(|other| Some(other) != first) {
                    return Err(format!(
                        "members of column {} differ in sub-block {sub_block} of {entry:?}",
                        grant.column
                    ));
                }
            }
        }
        Ok(())
    }

    /// The last answer of a seat, if one was just given.
    pub(super) fn take_answer(&mut self, number: u32) -> Option<Result<(), OrderRefusal>> {
        let answers = |effect: &Effect| matches!(effect, Effect::LayoutOrdered { disk, .. } if disk.0 == number);
        let last = self.effects.iter().rposition(answers)?;
        match self.effects.remove(last) {
            Some(Effect::LayoutOrdered { outcome, .. }) => Some(outcome),
            _ => None,
        }
    }
}

/// What the layouts call a member.
fn place(target: usize) -> Target {
    Target(u8::try_from(target).expect("few members"))
}
