//! The columns of a pool: which member has which, in the superblocks and in the catalog.

use std::collections::BTreeMap;

use tidegate_api::pool::{PoolGroupSpec, PoolLayout, PoolTier};
use tidegate_core::pool::superblock::{MemberState, Place, Superblock};
use tidegate_core::pool::{GRANT, Tier};

use super::OpenPool;
use super::catalog::{GroupRow, MemberRow};
use super::member_set::Member;
use super::opening::Held;
use crate::os_error::Outcome;

impl OpenPool {
    /// Writes new groups and their columns to the catalog.
    pub(super) fn add_groups(
        &mut self,
        first: u16,
        member: u16,
        groups: &[PoolGroupSpec],
    ) -> Outcome<()> {
        let members = self.catalog.member_set().members();
        let data_at = self.catalog.member_set().data_at();
        let mut number = usize::from(member);
        for (group, spec) in (first..).zip(groups) {
            let mut rows = BTreeMap::new();
            for _ in &spec.devices {
                if let Some(member) = members.get(number) {
                    rows.insert(key(number), member_row(member, data_at));
                }
                number += 1;
            }
            let row = GroupRow {
                layout: spec.layout.as_str().to_owned(),
                tier: tier(spec.tier),
            };
            self.catalog.add_group(group, &row, &rows)?;
        }
        Ok(())
    }

    /// Gives members a column that the catalog does not know yet: a crash came between their addition and that.
    pub(super) fn adopt_columns(&mut self) -> Outcome<()> {
        let known = self.catalog.members()?;
        let data_at = self.catalog.member_set().data_at();
        let mut missing = BTreeMap::<u16, (GroupRow, BTreeMap<u16, MemberRow>)>::new();
        for (number, member) in self.catalog.member_set().members().iter().enumerate() {
            if known.contains_key(&key(number)) {
                continue;
            }
            let group = missing.entry(member.place.group).or_insert_with(|| {
                let row = GroupRow {
                    layout: PoolLayout::Stripe.as_str().to_owned(),
                    tier: member.place.tier,
                };
                (row, BTreeMap::new())
            });
            group.1.insert(key(number), member_row(member, data_at));
        }
        for (group, (row, members)) in missing {
            self.catalog.add_group(group, &row, &members)?;
        }
        Ok(())
    }
}

pub(super) fn key(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

fn tier(tier: PoolTier) -> Tier {
    match tier {
        PoolTier::Fast => Tier::Fast,
        PoolTier::Slow => Tier::Slow,
    }
}

fn member_row(member: &Member, data_at: u64) -> MemberRow {
    MemberRow {
        group: member.place.group,
        column: member.place.column,
        grants: Superblock::grants(member.size, data_at),
        bytes: member.size,
    }
}

/// The places of new members: each is a column.
pub(super) fn seats(column: u16, group: u16, groups: &[PoolGroupSpec]) -> Vec<Place> {
    let groups = (group..).zip(groups);
    let members = groups.flat_map(|(group, spec)| {
        let tier = tier(spec.tier);
        spec.devices.iter().map(move |_| (group, tier))
    });
    (column..)
        .zip(members)
        .map(|(column, (group, tier))| Place {
            state: MemberState::Current,
            tier,
            group,
            column,
        })
        .collect()
}

pub(super) fn new_members(seats: &[Place], held: &[Held], data_at: u64) -> Vec<Member> {
    let members = seats.iter().zip(held);
    members
        .map(|(place, held)| {
            let grants = Superblock::grants(held.file.size(), data_at);
            Member::new(*place, data_at + u64::from(grants) * GRANT, held.store())
        })
        .collect()
}
