//! The end of a run: every disk and every snapshot is read, and what the pool says of itself is checked.

use super::{Kind, World, seat_of};
use crate::crash::choice::Choose;
use crate::crash::pool::oracle::Disk;
use crate::crash::world::GuestRequest;
use tidegate_core::request::{Flags, Op};

/// How often time may pass until what is deleted is gone.
const PATIENCE: u32 = 50;

impl World {
    /// Reads all disks and snapshots twice, once nothing is under way. After a fault the host starts again before.
    pub fn verify(&mut self, choices: &mut dyn Choose) {
        self.finish();
        let mut seats = self.seats.values();
        if self.has_fault || seats.any(|seat| seat.opened != Some(Ok(()))) {
            self.repair();
            if self.breach.is_none() {
                self.crash(choices);
                self.finish();
            }
        }
        for view in self.views() {
            self.close_view(view);
        }
        self.finish();
        self.let_generations_go();
        for disk in self.disks() {
            for _ in 0..2 {
                self.read_all(disk);
            }
            self.read_snapshots(disk);
        }
        self.check_pool();
    }

    /// Nothing fails any more. Each disk that is open can be written, flushed and frozen without another start.
    pub fn go_on_after_faults(&mut self) {
        self.finish();
        self.repair();
        self.has_fault = false;
        for disk in self.disks() {
            for (op, sectors) in [(Op::Write, 1), (Op::Flush, 0)] {
                let request = GuestRequest {
                    op,
                    flags: Flags::NONE,
                    sector: 3,
                    sectors,
                };
                self.submit(disk, request);
                self.finish();
            }
            self.snapshot(disk);
            self.finish();
        }
    }

    fn read_all(&mut self, disk: Disk) {
        if self.breach.is_some() {
            return;
        }
        let number = seat_of(disk);
        let seat = self.seats.get(&number);
        if !seat.is_some_and(|seat| seat.opened == Some(Ok(()))) {
            return self.fail(format!("{disk:?} is not open"));
        }
        let sectors = self.sectors(disk);
        self.submit_to(
            number,
            GuestRequest {
                op: Op::Read,
                flags: Flags::NONE,
                sector: 0,
                sectors,
            },
        );
        self.finish();
    }

    fn read_snapshots(&mut self, disk: Disk) {
        let generations = self.snapshots(disk);
        for generation in &generations {
            if self.breach.is_some() {
                return;
            }
            let Some(number) = self.view(disk, *generation) else {
                return self.fail(format!("{generation:?} of {disk:?} has no view"));
            };
            self.finish();
            self.read_view(number);
            self.finish();
            self.close_view(number);
            self.finish();
            if self.breach.is_none() && !self.shown.contains_key(&(disk, *generation)) {
                self.fail(format!("{generation:?} of {disk:?} cannot be read"));
            }
        }
    }

    /// What is deleted is gone once at most one generation is its child.
    fn let_generations_go(&mut self) {
        for _ in 0..PATIENCE {
            if self.breach.is_some() || self.lingering().is_none() || !self.pass_time() {
                break;
            }
            self.finish();
        }
        if let (None, Some(lingering)) = (&self.breach, self.lingering()) {
            self.fail(format!("it stays though it was deleted: {lingering}"));
        }
    }

    fn lingering(&self) -> Option<String> {
        self.seats.iter().find_map(|(number, seat)| {
            let report = self.report(*number)?;
            let Kind::Disk(disk) = seat.kind else {
                return None;
            };
            let mut all = report.generations.iter();
            let lingers = all.find(|it| {
                let children = report.generations.iter();
                let children = children.filter(|child| child.parent == Some(it.generation));
                it.is_going
                    && children.count() <= 1
                    && !self.catalog.has_clone(disk, Some(it.generation))
            });
            lingers.map(|it| format!("{:?} of {disk:?}", it.generation))
        })
    }
}
