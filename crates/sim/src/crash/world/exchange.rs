//! Flash devices of a simulated cache that are replaced, removed and added, as the daemon does it.
//!
//! The old device is dropped, the record names the new one, and that is filled. A crash at any time is one after the record
//! names the new device, or before anything was done. What a detached disk has on the other device is made void.

use super::World;
use crate::crash::choice::Choose;
use crate::crash::shape::{CHUNK, FlashDevices, JOURNAL};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::{LayoutOrder, Target};

impl World {
    /// Whether flash devices are replaced, removed and added.
    pub fn exchanges(&self) -> bool {
        self.setup.devices == FlashDevices::Exchanged
    }

    /// The administrator replaces a device, removes one, or adds one; also while the disk is detached.
    pub fn exchange_flash(&mut self, choices: &mut dyn Choose) {
        let nth = choices.choose(2);
        let act = choices.choose(4);
        if !self.has_cache() || (self.away | self.unplugged) != 0 || self.replacing.is_some() {
            return;
        }
        let first = u32::try_from(self.flash_targets().start).expect("few");
        let empty = self.empty >> first;
        match (act, empty) {
            (0, 0) => drop(self.exchange_live(nth, true)),
            (1, 0) => drop(self.exchange_live(nth, false)),
            (3, 0) => self.exchange_detached(nth),
            (_, 0) => {}
            _ => self.add_device(empty.trailing_zeros()),
        }
    }

    /// Puts a blank device in a place of the cache, or leaves that empty, while the disk is used. Returns whether the other
    /// device has everything: otherwise the daemon refuses it.
    pub fn exchange_live(&mut self, nth: u32, is_replaced: bool) -> bool {
        let (target, bit) = self.place(nth);
        let cache = self.cache().filter(|cache| !cache.resyncing);
        let devices = cache.map_or(0, |cache| cache.devices);
        if devices >> (1 - nth) & 1 == 0 {
            return false;
        }
        if devices >> nth & 1 == 1 && !self.is_carried_out(LayoutOrder::Drop(target)) {
            return false;
        }
        self.exchange(target);
        self.decayed &= !bit;
        self.faulty |= bit;
        match is_replaced {
            true => drop(self.is_carried_out(LayoutOrder::Replace(target))),
            false => {
                self.empty = bit;
                self.used.without = 1 << nth;
            }
        }
        true
    }

    /// The empty place gets a blank device.
    pub fn add_device(&mut self, nth: u32) {
        let (target, _) = self.place(nth);
        let cache = self.cache().filter(|cache| !cache.resyncing);
        if cache.is_none_or(|cache| cache.devices >> (1 - nth) & 1 == 0) {
            return;
        }
        self.exchange(target);
        (self.empty, self.used.without) = (0, 0);
        self.is_carried_out(LayoutOrder::Replace(target));
    }

    /// A device is replaced while the disk is detached and the cache has nothing that the disk does not.
    pub fn exchange_detached(&mut self, nth: u32) {
        self.detach();
        self.finish();
        if self.detached && !self.used.has_dirty {
            let (target, bit) = self.place(nth);
            let (other, _) = self.place(1 - nth);
            self.note(|| format!("store {} is void, store {} blank", other.0, target.0));
            for place in 0..2 {
                let at = u64::from(JOURNAL) * CHUNK + place * BLOCK as u64;
                self.stores[usize::from(other.0)].write(at, &[0; BLOCK], true);
            }
            let target = usize::from(target.0);
            self.stores[target] = self.stores[target].blank();
            self.decayed &= !bit;
            self.note_fault(bit);
        }
        self.attach_again();
    }

    /// The target of a place of the cache, and its bit.
    fn place(&self, nth: u32) -> (Target, u32) {
        let target = self.flash_targets().start + nth as usize;
        (Target(u8::try_from(target).expect("few")), 1 << target)
    }

    /// Gives an order. Returns whether it is carried out.
    fn is_carried_out(&mut self, order: LayoutOrder) -> bool {
        self.order_now(order);
        let outcome = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::LayoutOrdered { outcome, .. } => Some(*outcome),
            _ => None,
        });
        outcome == Some(Ok(()))
    }
}
