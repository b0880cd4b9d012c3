//! Acts of the administrator of a simulated pool: snapshots, rollbacks, deletions, clones, views, detachments, columns.
//!
//! An act that the daemon would refuse does nothing.

use super::daemon::{Deed, Ordered};
use super::{COLUMNS_MAX, Holding, Kind, Leaving, VIEWS, World, seat_of};
use crate::crash::SECTOR;
use crate::crash::pool::oracle::Disk;
use crate::crash::world::GuestRequest;
use tidegate_core::layout::LayoutOrder;
use tidegate_core::layout::pool::Generation;
use tidegate_core::request::{DiskId, Flags, Op};
use tidegate_core::shard::Event;

/// The most disks of a pool.
const DISKS_MAX: usize = 4;

impl World {
    /// Whether a disk is open, and nothing else is done to it.
    fn is_free(&self, disk: Disk) -> bool {
        let seat = self.seats.get(&seat_of(disk));
        seat.is_some_and(|seat| {
            let is_used = seat.leaving == Leaving::No && seat.holding == Holding::No;
            seat.opened == Some(Ok(()))
                && seat.ordered.is_none()
                && is_used
                && !self.oracle.is_busy(disk)
        })
    }

    /// The snapshots of a disk that are not being deleted, the oldest first.
    pub fn snapshots(&self, disk: Disk) -> Vec<Generation> {
        let entry = self.catalog.entry(disk);
        let named = entry.map(|entry| entry.snapshots.iter());
        let named = named.into_iter().flatten().filter(|(_, it)| !it.is_going);
        named.map(|(generation, _)| *generation).collect()
    }

    /// Takes a snapshot of a disk.
    pub fn snapshot(&mut self, disk: Disk) {
        if self.is_free(disk) {
            self.oracle.order_snapshot(disk);
            self.act(disk, Ordered::Snapshot, LayoutOrder::TakeSnapshot);
        }
    }

    /// The disk shows a snapshot again.
    pub fn roll_back(&mut self, disk: Disk, to: Generation) {
        let Some(snapshot) = self.named(disk, to) else {
            return;
        };
        if self.is_free(disk) {
            self.oracle.order_rollback(disk, snapshot);
            self.act(disk, Ordered::Rollback(to), LayoutOrder::RollBack(to));
        }
    }

    /// Deletes a snapshot that no clone and no reader needs.
    pub fn delete(&mut self, disk: Disk, generation: Generation) {
        let is_needed = self.catalog.has_clone(disk, Some(generation))
            || self.is_viewed(disk, Some(generation));
        if self.named(disk, generation).is_none() || !self.is_free(disk) || is_needed {
            return;
        }
        if let Some(entry) = self.catalog.entry_mut(disk)
            && let Some(named) = entry.snapshots.get_mut(&generation)
        {
            named.is_going = true;
        }
        let order = LayoutOrder::DeleteGeneration(generation);
        self.act(disk, Ordered::Delete(generation), order);
    }

    fn act(&mut self, disk: Disk, act: Ordered, order: LayoutOrder) {
        let number = seat_of(disk);
        if let Some(seat) = self.seats.get_mut(&number) {
            seat.ordered = Some(act);
        }
        self.order(number, order);
    }

    fn named(&self, disk: Disk, generation: Generation) -> Option<super::Snapshot> {
        let is_deleted = self.seats.get(&seat_of(disk));
        if is_deleted.is_some_and(|seat| seat.leaving == Leaving::Goes) {
            return None;
        }
        let named = self.catalog.entry(disk)?.snapshots.get(&generation)?;
        (!named.is_going).then_some(named.snapshot)
    }

    fn is_viewed(&self, disk: Disk, at: Option<Generation>) -> bool {
        self.seats.values().any(|seat| match seat.kind {
            Kind::View(of, generation, _) => of == disk && at.is_none_or(|at| at == generation),
            Kind::Disk(_) => false,
        })
    }

    /// Makes a disk of a snapshot.
    pub fn clone_of(&mut self, disk: Disk, generation: Generation) {
        let Some(snapshot) = self.named(disk, generation) else {
            return;
        };
        if self.catalog.disks().len() >= DISKS_MAX {
            return;
        }
        let sectors = self.sectors(disk);
        let clone = self.catalog.create(sectors, Some((disk, generation)));
        self.note(|| format!("{clone:?} is a clone of {generation:?} of {disk:?}"));
        self.oracle.create(clone, sectors, Some(snapshot));
        self.attach(clone);
    }

    /// Deletes a disk that nothing needs, unless it is the last one.
    pub fn remove(&mut self, disk: Disk) {
        let is_needed = self.catalog.has_clone(disk, None) || self.is_viewed(disk, None);
        if self.is_free(disk) && !is_needed && self.catalog.disks().len() > 1 {
            self.leave(seat_of(disk), Leaving::Goes);
        }
    }

    /// Detaches a disk, and attaches it again.
    pub fn detach(&mut self, disk: Disk) {
        if self.is_free(disk) {
            self.leave(seat_of(disk), Leaving::Returns);
        }
    }

    pub(super) fn leave(&mut self, number: u32, leaving: Leaving) {
        self.note(|| format!("detach seat {number}: {leaving:?}"));
        if let Some(seat) = self.seats.get_mut(&number) {
            seat.leaving = leaving;
        }
        self.handle(Event::Detach {
            disk: DiskId(number),
        });
    }

    /// Attaches a reader of a snapshot. Returns its number.
    pub fn view(&mut self, disk: Disk, generation: Generation) -> Option<u32> {
        let snapshot = self.named(disk, generation)?;
        let number = self.next_view;
        self.next_view = VIEWS + (number + 1 - VIEWS) % VIEWS;
        if self.seats.contains_key(&number) {
            return None;
        }
        self.note(|| format!("seat {number} is a view of {generation:?} of {disk:?}"));
        let tree = self.tree(disk, Some(generation));
        let sectors = self.sectors(disk);
        let kind = Kind::View(disk, generation, snapshot);
        self.seat(number, kind, sectors, tree);
        Some(number)
    }

    /// Views that are attached and not leaving.
    pub fn views(&self) -> Vec<u32> {
        let seats = self.seats.iter();
        let views = seats
            .filter(|(_, seat)| matches!(seat.kind, Kind::View(..)) && seat.leaving == Leaving::No);
        views.map(|(number, _)| *number).collect()
    }

    /// A view reads all sectors of its snapshot, if it is open.
    pub fn read_view(&mut self, number: u32) {
        let Some(seat) = self.seats.get(&number) else {
            return;
        };
        let sectors = seat.sectors;
        if seat.opened == Some(Ok(())) && seat.leaving == Leaving::No {
            self.submit_to(
                number,
                GuestRequest {
                    op: Op::Read,
                    flags: Flags::NONE,
                    sector: 0,
                    sectors,
                },
            );
        }
    }

    /// A view is detached.
    pub fn close_view(&mut self, number: u32) {
        let seat = self.seats.get(&number);
        if seat.is_some_and(|seat| seat.opened.is_some() && seat.leaving == Leaving::No) {
            self.leave(number, Leaving::Goes);
        }
    }

    /// The pool gets one more column. Each disk that nothing else is done to learns of it: every other one by an order, the
    /// others with another layout.
    pub fn add_column(&mut self) {
        if self.catalog.columns() == COLUMNS_MAX {
            return;
        }
        self.catalog.add_column();
        self.note(|| "the pool has one more column".to_owned());
        for disk in self.catalog.disks() {
            let number = seat_of(disk);
            if !self.is_free(disk) {
                continue;
            }
            // Below mirrors a layout does not grow.
            if disk.0.is_multiple_of(2) && self.members() == 0 {
                self.deeds
                    .push_back(Deed::Order(number, LayoutOrder::AddMember));
            } else if let Some(seat) = self.seats.get_mut(&number) {
                seat.holding = Holding::Asked;
                self.handle(Event::Hold {
                    disk: DiskId(number),
                });
            }
        }
    }

    /// A disk grows by so many sectors.
    pub fn grow(&mut self, disk: Disk, by: u64) {
        if !self.is_free(disk) {
            return;
        }
        let sectors = self.sectors(disk) + by;
        self.note(|| format!("{disk:?} has {sectors} sectors"));
        if let Some(entry) = self.catalog.entry_mut(disk) {
            entry.sectors = sectors;
        }
        self.oracle.grow(disk, sectors);
        self.handle(Event::Resize {
            disk: DiskId(seat_of(disk)),
            size: sectors * SECTOR as u64,
        });
    }
}
