//! The end of a run: the disk is read, its members heal, and those in sync are compared.

use super::World;
use crate::crash::SECTOR;
use crate::crash::choice::Choose;
use crate::crash::shape::DATA_AT;
use crate::crash::store::Store;
use crate::crash::world::GuestRequest;
use std::ops::Range;
use tidegate_core::block::BLOCK;
use tidegate_core::layout::mirror::STATE_AT;
use tidegate_core::layout::mirror::state::{REGION, State};
use tidegate_core::layout::{LayoutOrder, MemberState, Target};
use tidegate_core::request::{Flags, Op};

impl World {
    /// Reads these sectors twice, once nothing is under way. A disk that has not opened is started with all its targets.
    pub fn verify(&mut self, sectors: Range<u64>, choices: &mut dyn Choose) {
        let sectors = sectors.start..sectors.end.min(self.setup.sectors);
        self.finish();
        if let (Some(Err(_)), true) = (self.opened, self.away != 0 || self.failed_since_start) {
            self.restart(choices, 0);
            self.finish();
        }
        if self.breach.is_none() && self.opened != Some(Ok(())) {
            let opened = self.opened;
            return self.fail(format!("the disk does not open: {opened:?}"));
        }
        for _ in 0..2 {
            if self.breach.is_none() && !sectors.is_empty() {
                self.submit(GuestRequest {
                    op: Op::Read,
                    flags: Flags::NONE,
                    sector: sectors.start,
                    sectors: sectors.end - sectors.start,
                });
                self.finish();
            }
        }
        self.compare_members();
        if self.away == 0 && self.breach.is_none() && self.setup.shape.is_redundant() {
            self.heal();
            self.compare_members();
        }
        if self.breach.is_none() && self.ordered > 0 {
            self.fail("an order is never answered".to_owned());
        }
    }

    /// Lets time pass until every member is in sync again, if none is away.
    pub fn heal(&mut self) {
        for round in 0..100 {
            self.finish();
            let members = self.members();
            let out = members
                .iter()
                .position(|state| *state == MemberState::OutOfSync);
            let whole = members.iter().all(|state| *state == MemberState::InSync);
            if self.breach.is_some() || whole {
                break;
            }
            // One that an administrator has dropped comes back by an order only.
            let order = match round % 20 {
                10 => Some(LayoutOrder::Rebuild as fn(Target) -> LayoutOrder),
                19 => Some(LayoutOrder::Replace as fn(Target) -> LayoutOrder),
                _ => None,
            };
            if let (Some(order), Some(out)) = (order, out) {
                self.order(order(Target(u8::try_from(out).expect("a member"))));
            } else {
                self.pass_time();
            }
        }
        let members = self.members();
        if members.iter().any(|state| *state != MemberState::InSync) && self.away == 0 {
            self.fail(format!("members stay out of sync: {members:?}"));
        }
    }

    /// Once nothing is under way, the members of a mirror that are in sync are equal. A mirror that has lost its last member
    /// could not record that: then its hot regions may differ until it is opened again.
    pub(super) fn compare_members(&mut self) {
        for mirror in self.setup.shape.mirrors() {
            let Some(newest) = self.newest_state(mirror.clone()) else {
                continue;
            };
            let in_sync = newest.in_sync;
            let first = mirror.start;
            let equal = mirror.clone().filter(|at| in_sync >> (at - first) & 1 == 1);
            let equal: Vec<&Store> = equal.map(|member| &self.stores[member]).collect();
            let may_differ = |sector: u64| {
                let region = (sector * SECTOR as u64 - DATA_AT) / REGION;
                let hot = |hot: &u32| u64::from(*hot) == region;
                self.lost_since_start && newest.regions.iter().any(hot)
            };
            let differ = |pair: &[&Store]| !pair[0].is_equal_from(pair[1], DATA_AT, may_differ);
            if equal.windows(2).any(differ) {
                self.fail(format!(
                    "the members {in_sync:b} of {mirror:?} are in sync and differ"
                ));
            }
        }
    }

    /// The newest state on any store of a mirror.
    fn newest_state(&self, mirror: Range<usize>) -> Option<State> {
        let places = self.stores[mirror].iter().flat_map(|store| {
            [STATE_AT, STATE_AT + BLOCK as u64].map(|at| {
                let mut block = [0; BLOCK];
                store.read(at, &mut block);
                State::decode(&block).ok()
            })
        });
        let newest = places.flatten().max_by_key(|(state, _)| state.sequence);
        newest.map(|(state, _)| state)
    }
}
