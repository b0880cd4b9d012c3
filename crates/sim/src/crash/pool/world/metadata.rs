//! The pool check: what headers and roots say agrees with itself, with the catalog, and with what the layouts report.
//!
//! It reads the blocks on the stores, as a program would that repairs pools. Everything was flushed before.
//!
//! # Always true
//! - What a header names lies in a grant that the catalog gives to the same disk, with the same life.
//! - No two records of one extent and one generation have a sub-block in common.
//! - What no header names is free, and the layout counts it so.

use super::{World, seat_of};
use crate::crash::pool::GEOMETRY;
use crate::crash::pool::catalog::{self, identity};
use crate::crash::pool::oracle::Disk;
use crate::crash::world::GuestRequest;
use std::collections::BTreeMap;
use tidegate_core::block::BLOCK;
use tidegate_core::layout::pool::{Entry, Generation, Grant, Header, PoolReport, Root};
use tidegate_core::request::{Flags, Op};

/// What the blocks of a disk say: the extents of each generation, and the sub-blocks of each extent in each generation.
#[derive(Default)]
struct Found {
    extents: BTreeMap<Generation, u64>,
    sub_blocks: BTreeMap<(u32, Generation), u16>,
}

impl World {
    /// Checks each disk, once nothing is under way.
    pub(super) fn check_pool(&mut self) {
        // A mark goes one commit after what takes its place.
        for _ in 0..2 {
            for disk in self.disks() {
                let flush = GuestRequest {
                    op: Op::Flush,
                    flags: Flags::NONE,
                    sector: 0,
                    sectors: 0,
                };
                self.submit(disk, flush);
            }
            self.finish();
        }
        if self.breach.is_some() {
            return;
        }
        for disk in self.disks() {
            if let Err(what) = self.check_disk(disk) {
                self.fail(format!("the pool check of {disk:?}: {what}"));
            }
        }
        if let Err(what) = self.check_members() {
            self.fail(format!("the pool check of members: {what}"));
        }
    }

    /// Checks what a crash has left, before any disk opens.
    pub(super) fn check_after_crash(&mut self) {
        for disk in self.disks() {
            if let Err(what) = self.check_left(disk) {
                self.fail(format!("the pool check of {disk:?} after a crash: {what}"));
            }
        }
    }

    /// Headers name extents of the disk only, and generations that its root has. Two of them may have the same sub-block, if
    /// nobody was told that it is durable.
    fn check_left(&self, disk: Disk) -> Result<(), String> {
        let entry = self.catalog.entry(disk).ok_or("it is not in the catalog")?;
        let root = self.root(disk, entry);
        for (index, grant) in owned(entry) {
            let Some(header) = self.header(disk, entry, index, grant)? else {
                continue;
            };
            for (_, it) in entries(index, &header, entry.sectors)? {
                let is_known = match &root {
                    Some(root) => root.generations.iter().any(|b| b.number == it.generation),
                    None => it.generation == Generation::FIRST,
                };
                if !is_known {
                    return Err(format!("the root does not have {it:?}: {root:?}"));
                }
            }
        }
        Ok(())
    }

    /// The newest root of a disk, if it has one.
    fn root(&self, disk: Disk, entry: &catalog::Entry) -> Option<Root> {
        let home = entry.grants.first().copied().flatten()?;
        let roots = (0..2).flat_map(|nth| {
            let at = GEOMETRY.grant_at(home) + GEOMETRY.root_at(nth);
            let blocks = self.blocks(home, at).into_iter();
            blocks.filter_map(|block| Root::decode(&block).ok())
        });
        let ours = |it: &Root| it.owner.life == home.life && it.owner.disk == identity(disk);
        roots.filter(ours).max_by_key(|it| it.sequence)
    }

    fn check_disk(&self, disk: Disk) -> Result<(), String> {
        let report = self.report(seat_of(disk)).ok_or("it has no report")?;
        let entry = self.catalog.entry(disk).ok_or("it is not in the catalog")?;
        let mut found = Found::default();
        let (mut extents, mut grants) = (0, 0);
        for (index, grant) in owned(entry) {
            let has_headers = GEOMETRY.has_headers(index);
            extents += u64::from(GEOMETRY.extents - u32::from(has_headers));
            grants += 1;
            if let Some(header) = self.header(disk, entry, index, grant)? {
                found.add(index, &header, entry.sectors)?;
            }
        }
        check_counts(&report, &found, extents, grants)?;
        self.check_root(disk, entry, &report, &found)
    }

    /// The newest header of a grant, if it has one.
    fn header(
        &self,
        disk: Disk,
        entry: &catalog::Entry,
        index: u32,
        grant: Grant,
    ) -> Result<Option<Header>, String> {
        let place = GEOMETRY.header_of(index);
        let home = entry.grants.get(place as usize).copied().flatten();
        let home = home.ok_or(format!("grant {place} with the header of {index} is gone"))?;
        let headers = (0..2).flat_map(|nth| {
            let at = GEOMETRY.grant_at(home) + GEOMETRY.header_at(index, nth);
            let blocks = self.blocks(home, at).into_iter();
            blocks.filter_map(|block| Header::decode(&block).ok())
        });
        let headers =
            headers.filter(|it| it.is_of(index, grant) && it.owner.disk == identity(disk));
        Ok(headers.max_by_key(|it| it.sequence))
    }

    /// The generations of a disk are those of its root, and what headers name is of these.
    fn check_root(
        &self,
        disk: Disk,
        entry: &catalog::Entry,
        report: &PoolReport,
        found: &Found,
    ) -> Result<(), String> {
        let Some(root) = self.root(disk, entry) else {
            let first = report.current == Generation::FIRST && report.generations.len() == 1;
            return match first {
                true => Ok(()),
                false => Err(format!("it has no root, and {report:?}")),
            };
        };
        let of_root = root.generations.iter().map(|it| (it.number, it.is_going));
        let of_report = report
            .generations
            .iter()
            .map(|it| (it.generation, it.is_going));
        if root.current != report.current || !of_root.eq(of_report) {
            return Err(format!("{root:?} is not {report:?}"));
        }
        let known = |generation: &Generation| {
            let mut all = root.generations.iter();
            all.any(|it| it.number == *generation)
        };
        match found.extents.keys().find(|generation| !known(generation)) {
            Some(unknown) => Err(format!(
                "headers name {unknown:?}, and not the root: {root:?}"
            )),
            None => Ok(()),
        }
    }

    /// A block, as each member in sync has it.
    pub(super) fn blocks(&self, grant: Grant, at: u64) -> Vec<[u8; BLOCK]> {
        let in_sync = self.in_sync(grant.column).into_iter();
        let read = in_sync.map(|target| {
            let mut block = [0; BLOCK];
            self.stores[target].read(at, &mut block);
            block
        });
        read.collect()
    }
}

/// The grants that a disk has, by index.
fn owned(entry: &catalog::Entry) -> impl Iterator<Item = (u32, Grant)> + '_ {
    let grants = (0..).zip(&entry.grants);
    grants.filter_map(|(index, grant)| grant.map(|grant| (index, grant)))
}

/// What a header names, with the place of each extent in its grant; a mark has none.
fn entries(index: u32, header: &Header, sectors: u64) -> Result<Vec<(Option<u32>, Entry)>, String> {
    let extents = (0..).zip(&header.extents).filter(|(_, it)| !it.is_free());
    let extents = extents.map(|(nth, it)| (Some(nth), *it));
    let marks = header.marks.iter().map(|it| (None, *it));
    let all: Vec<(Option<u32>, Entry)> = extents.chain(marks).collect();
    for (nth, it) in &all {
        if *nth == Some(0) && GEOMETRY.has_headers(index) {
            return Err(format!("data is where grant {index} has headers"));
        }
        if u64::from(it.extent) * crate::crash::pool::EXTENT >= sectors {
            return Err(format!("{it:?} of grant {index} is beyond the end"));
        }
    }
    Ok(all)
}

impl Found {
    fn add(&mut self, index: u32, header: &Header, sectors: u64) -> Result<(), String> {
        for (nth, it) in entries(index, header, sectors)? {
            let sub_blocks = self
                .sub_blocks
                .entry((it.extent, it.generation))
                .or_default();
            if *sub_blocks & it.sub_blocks != 0 {
                return Err(format!(
                    "two records have the same as {it:?} of grant {index}"
                ));
            }
            *sub_blocks |= it.sub_blocks;
            if nth.is_some() {
                *self.extents.entry(it.generation).or_default() += 1;
            }
        }
        Ok(())
    }
}

/// Each extent of a disk's grants is used for one thing, and counted so.
fn check_counts(
    report: &PoolReport,
    found: &Found,
    extents: u64,
    grants: u32,
) -> Result<(), String> {
    let mapped: u64 = found.extents.values().sum();
    if report.mapped != mapped {
        return Err(format!("headers name {mapped} extents: {report:?}"));
    }
    let counted = report.mapped + report.zeroed + report.free + report.releasing;
    if counted != extents || report.grants != grants {
        return Err(format!(
            "{grants} grants have {extents} extents: {report:?}"
        ));
    }
    for it in &report.generations {
        let own = found
            .extents
            .get(&it.generation)
            .copied()
            .unwrap_or_default();
        if own != it.extents {
            return Err(format!("headers name {own} extents of {it:?}"));
        }
    }
    Ok(())
}
