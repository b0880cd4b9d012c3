//! Disks of pools: each host has a pool over its part of the arrays, whose space the shipped broker divides.
//!
//! A disk that is not fresh has all of its extents from the beginning, in the order in which a guest that fills it gets them: the
//! headers that say so are on the arrays before it is attached. A fresh one gets its grants as it asks for them.
//!
//! # Always true
//! - A grant has one disk.

use super::{Event, World};
use crate::control::ours::id;
use crate::numbers::{index, small};
use crate::scenario::{Scenario, Variant};
use tidegate_core::block::BLOCK;
use tidegate_core::layout::pool::{Entry, Generation, Grant, Header, Owner, PoolSetup};
use tidegate_core::layout::{LayoutOrder, Target, Tree};
use tidegate_core::pool::broker::{Broker, NewColumn, grants_for};
use tidegate_core::pool::{EXTENT, EXTENTS, Tier, geometry};
use tidegate_core::shard;
use tidegate_core::units::Span;

/// How long the daemon needs to record a grant. Origin: chosen; a transaction is written and flushed twice.
const RECORDED: Span = Span::from_millis(2);

/// Where grants begin on an array: behind the catalog.
const DATA_AT: u64 = 64 << 20;

/// The pool of a host.
pub(super) struct Pool {
    broker: Broker,
    /// Its arrays, in the order of its columns.
    arrays: std::ops::Range<usize>,
}

/// The pools of all hosts; none in a configuration without pools.
pub(super) fn pools(scenario: &Scenario, variant: &Variant) -> Vec<Pool> {
    let Some(plan) = scenario.pool(variant) else {
        return Vec::new();
    };
    let each = scenario.datastore.arrays / scenario.hosts.len();
    let pools = (0..scenario.hosts.len()).map(|host| {
        let first = host * each;
        let arrays = first..first + plan.groups.unwrap_or(each);
        let on_host = scenario.disks.iter().filter(|disk| disk.host == host);
        // A disk asks for one more grant before it needs it.
        let needed: u64 = on_host.map(|disk| grants_for(disk.size) + 1).sum();
        let all = needed * 100 / u64::from(plan.allocated);
        let mut broker = Broker::new(0, 1);
        for group in 0..arrays.len() {
            broker.add_column(NewColumn {
                group: u16::try_from(group).expect("a pool has few groups"),
                tier: Tier::Fast,
                grants: u32::try_from(all.div_ceil(arrays.len() as u64)).unwrap_or(u32::MAX),
            });
        }
        Pool { broker, arrays }
    });
    pools.collect()
}

fn uuid(disk: usize) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&(disk as u64 + 1).to_le_bytes());
    uuid
}

impl World<'_> {
    /// The array of a target of a pool's disk, and where it begins there. `None` if there are no pools.
    pub(super) fn column_of(&self, disk: usize, target: Target) -> Option<(usize, u64)> {
        let pool = self.pools.get(self.scenario.disks[disk].host)?;
        Some((pool.arrays.start + usize::from(target.0), 0))
    }

    /// The arrays of a disk, by target.
    pub(super) fn arrays_of(&self, disk: usize) -> Vec<usize> {
        let plan = &self.scenario.disks[disk];
        match self.pools.get(plan.host) {
            Some(pool) => pool.arrays.clone().collect(),
            None => plan.members.clone(),
        }
    }

    /// The layout of a disk, if it is one of a pool.
    pub(super) fn pooled(&mut self, disk: usize) -> Option<Tree> {
        let plan = &self.scenario.disks[disk];
        let pool = self.pools.get_mut(plan.host)?;
        let added = pool.broker.add_disk(uuid(disk), None, 0);
        let columns = (0..pool.arrays.len()).map(|column| {
            let column = u8::try_from(column).expect("a pool has few columns");
            Target(column)
        });
        let columns: Vec<Target> = columns.collect();
        let mut grants = Vec::new();
        let wanted = if plan.fresh { 0 } else { grants_for(plan.size) };
        for _ in 0..wanted {
            grants.extend(pool.broker.grant(uuid(disk)).ok());
        }
        if added.is_err() || grants.len() as u64 != wanted {
            let message = format!("the pool has no space for disk {}", plan.name);
            self.invariants.breach(self.now, message);
        }
        self.write_headers(disk, &grants);
        let setup = PoolSetup {
            pool: [9; 16],
            disk: uuid(disk),
            size: plan.size,
            geometry: geometry(DATA_AT),
            columns,
            members: Vec::new(),
            grants: grants.into_iter().map(Some).collect(),
            ancestors: Vec::new(),
            thick: false,
        };
        self.disks[disk].grants = setup.grants.len();
        Some(Tree::pool(setup, None))
    }

    /// Writes the headers of grants that have all extents of a disk.
    fn write_headers(&mut self, disk: usize, grants: &[Grant]) {
        let geometry = geometry(DATA_AT);
        let columns = self.arrays_of(disk).len();
        let extents = small(index(self.scenario.disks[disk].size.div_ceil(EXTENT)));
        let mut next = 0;
        // A guest that fills a disk gets an extent of each column in turn.
        for (set, of_set) in grants.chunks(columns).enumerate() {
            let first = small(set * columns);
            let mut entries = vec![Vec::new(); of_set.len()];
            for nth in 0..EXTENTS {
                for (index, entries) in (first..).zip(&mut entries) {
                    let is_used = next < extents && !(nth == 0 && geometry.has_headers(index));
                    entries.push(match is_used {
                        true => Entry {
                            extent: next,
                            generation: Generation::FIRST,
                            sub_blocks: u16::MAX,
                        },
                        false => Entry::default(),
                    });
                    next += u32::from(is_used);
                }
            }
            for ((index, grant), extents) in (first..).zip(of_set).zip(entries) {
                let owner = Owner {
                    pool: [9; 16],
                    disk: uuid(disk),
                    life: grant.life,
                };
                let header = Header {
                    owner,
                    sequence: 1,
                    index,
                    column: grant.column,
                    number: grant.number,
                    extents,
                    marks: Vec::new(),
                };
                let home = grants[geometry.header_of(index) as usize];
                let at = geometry.grant_at(home) + geometry.header_at(index, 0);
                let target = u8::try_from(home.column).expect("a pool has few columns");
                self.blocks.insert((disk, target, at), header.encode());
            }
        }
    }

    /// A disk asks for a grant: its daemon records it first.
    pub(super) fn grant_wanted(&mut self, disk: usize) {
        self.queue.put(self.now + RECORDED, Event::Grant(disk));
    }

    /// A grant is recorded.
    pub(super) fn give_grant(&mut self, disk: usize) {
        let Some(pool) = self.pools.get_mut(self.scenario.disks[disk].host) else {
            return;
        };
        let order = match pool.broker.grant(uuid(disk)) {
            Ok(grant) => {
                let index = small(self.disks[disk].grants);
                self.disks[disk].grants += 1;
                LayoutOrder::Grant { index, grant }
            }
            Err(_) => LayoutOrder::NoSpace,
        };
        let disk_id = id(disk);
        self.deliver(
            disk,
            shard::Event::LayoutOrder {
                disk: disk_id,
                order,
            },
        );
    }
}

const _: () = assert!(
    DATA_AT.is_multiple_of(BLOCK as u64),
    "grants begin with a block"
);
