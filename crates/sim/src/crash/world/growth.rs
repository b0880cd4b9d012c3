//! Growth of a simulated disk, and of a mirror by a member, as the daemon does it: the disk's descriptor names the new
//! member first.

use super::{DISK, World};
use crate::crash::SECTOR;
use crate::crash::choice::Choose;
use crate::crash::shape::Shape;
use crate::crash::store::Store;
use tidegate_core::layout::LayoutOrder;
use tidegate_core::layout::mirror::MEMBERS_MAX;
use tidegate_core::shard::Event;

/// Sectors of a row of a stripe of two.
const ROWS: u64 = 16;
/// A cached disk grows up to so many sectors: eight pages.
const MOST_SECTORS: u64 = 8 * 128;

impl World {
    /// A mirror gets one more member, whose image is blank. Nothing happens if it has as many as are possible.
    pub fn grow(&mut self) {
        let Shape::Mirror { members } = self.setup.shape else {
            return;
        };
        if usize::from(members) == MEMBERS_MAX || self.opened != Some(Ok(())) || self.detached {
            return;
        }
        self.describe(members + 1);
        self.order(LayoutOrder::AddMember);
        if self.members().len() == usize::from(members) {
            // Refused.
            self.describe(members);
        }
    }

    /// The disk grows to so many sectors: its images first, then the descriptor. It does not grow while it moves.
    pub fn resize(&mut self, sectors: u64) {
        if self.is_moving() || self.detached {
            return;
        }
        self.note(|| format!("the disk has {sectors} sectors from now on"));
        self.setup.sectors = sectors;
        for (target, store) in (0..).zip(&mut self.stores) {
            store.grow(self.setup.shape.sectors_of(target, sectors));
        }
        let size = sectors * SECTOR as u64;
        self.handle(Event::Resize { disk: DISK, size });
    }

    /// A cached disk grows by a few sectors, a few times: its cache has no block that the old end cuts.
    pub fn grow_disk(&mut self, choices: &mut dyn Choose) {
        let more = ROWS * (1 + u64::from(choices.choose(3)));
        let is_open = self.opened == Some(Ok(())) && self.is_cached() && !self.detached;
        if is_open && self.setup.sectors + more <= MOST_SECTORS {
            self.resize(self.setup.sectors + more);
        }
    }

    /// A crash after the descriptor names the new member, and before the mirror has it.
    pub fn grow_and_crash(&mut self, choices: &mut dyn Choose) {
        if let Shape::Mirror { members } = self.setup.shape
            && usize::from(members) < MEMBERS_MAX
        {
            self.describe(members + 1);
            self.crash_again(choices);
        }
    }

    /// The descriptor names so many members.
    fn describe(&mut self, members: u8) {
        self.note(|| format!("the descriptor names {members} members"));
        self.setup.shape = Shape::Mirror { members };
        let sectors = self.setup.shape.member_sectors(self.setup.sectors);
        self.stores.truncate(members.into());
        self.stores
            .resize_with(members.into(), || Store::new(sectors));
    }
}
