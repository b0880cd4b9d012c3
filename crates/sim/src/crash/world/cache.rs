//! The flash cache of a simulated disk, as the daemon deals with it.
//!
//! The disk's descriptor names its use, its mode and its chunks, and is durable.

use super::{DISK, World};
use crate::crash::SECTOR;
use crate::crash::choice::Choose;
use crate::crash::shape::{CHUNK, DATA, FlashDevices, JOURNAL, Load, Shape, Use};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::cache::blocks::Header;
use tidegate_core::layout::cache::{Admission, CacheMode};
use tidegate_core::layout::{CacheReport, LayoutOrder, Target};

impl World {
    /// The daemon commits another use of the disk: what flash has is void from then on.
    pub(super) fn give_up_cache(&mut self) {
        self.gave_up = true;
        self.used = Use {
            attachments: [self.next_use(), self.used.attachments[1]],
            has_dirty: false,
            ..self.used
        };
        self.order(LayoutOrder::GiveUpCache);
    }

    /// The descriptor says from now on that the disk is used.
    pub(super) fn commit_use(&mut self) {
        if self.gave_up {
            return;
        }
        self.used.attachments[0] = self.used.attachments[1];
        if let Shape::Cached { mode, .. } = self.setup.shape {
            let mode = *self.used.mode.get_or_insert(mode);
            self.used.has_dirty |= mode == CacheMode::WriteBack;
        }
    }

    /// The administrator changes the mode of the cache. The descriptor says before that it may have what the disk does not.
    pub fn change_mode(&mut self) {
        if self.gave_up || self.opened != Some(Ok(())) || self.detached {
            return;
        }
        let mode = match self.used.mode {
            Some(CacheMode::WriteBack) => CacheMode::WriteThrough,
            _ => CacheMode::WriteBack,
        };
        self.used.mode = Some(mode);
        if mode == CacheMode::WriteBack {
            self.used.has_dirty = true;
            // It may be over before these are answered.
            for pending in self.pending.values_mut() {
                pending.had_dirty = true;
            }
        }
        self.order(LayoutOrder::CacheMode(mode));
    }

    /// Flash has nothing any more that the disk does not have, unless the report is older than the last change of the mode.
    pub(super) fn cache_cleaned(&mut self) {
        let keeps_dirty = self.cache().is_none_or(|cache| cache.keeps_dirty);
        if self.used.mode == Some(CacheMode::WriteThrough) && !keeps_dirty {
            self.used.has_dirty = false;
        }
    }

    /// A start has dropped this target. A flash device without any header has nothing: the other one is alone until it is
    /// filled.
    pub(super) fn dropped_as_new(&mut self, target: Target) {
        let is_flash = self.setup.shape.flash() >> target.0 & 1 == 1;
        if !is_flash || self.opened.is_some() {
            return;
        }
        let header = |nth: u64| {
            let mut block = [0; BLOCK];
            let at = u64::from(JOURNAL) * CHUNK + nth * BLOCK as u64;
            self.stores[usize::from(target.0)].read(at, &mut block);
            Header::decode(&block).is_ok()
        };
        if ![0, 1].into_iter().any(header) {
            self.faulty |= 1 << target.0;
        }
    }

    /// The cache's own report.
    pub fn cache(&self) -> Option<CacheReport> {
        self.shard.layout_report(DISK)?.cache
    }

    /// Whether an administrator can do something about the cache now.
    pub(super) fn has_cache(&self) -> bool {
        let open = self.opened == Some(Ok(())) && !self.detached && !self.gave_up;
        self.is_cached() && open
    }

    /// The cache gets one more chunk. The descriptor names it before.
    pub fn grow_cache(&mut self) {
        let next = DATA.get(usize::from(self.used.chunks)).copied();
        let quiet = self.ordered == 0 && !self.growing && !self.shrinking;
        if let (true, Some(first)) = (quiet && self.has_cache(), next) {
            self.used.chunks += 1;
            self.growing = true;
            self.order(LayoutOrder::GrowCache { first, count: 1 });
        }
    }

    /// The cache is to give a chunk back. The descriptor names it until it has.
    pub fn shrink_cache(&mut self) {
        let quiet = self.ordered == 0 && !self.growing && !self.shrinking;
        if quiet && self.has_cache() {
            (self.shrinking, self.shrink_asked) = (true, true);
            self.order(LayoutOrder::ShrinkCache { count: 1 });
        }
    }

    /// An order was answered: the first one since a change of the size was ordered is that.
    pub(super) fn cache_ordered(&mut self, is_refused: bool) {
        if self.growing && is_refused {
            self.used.chunks -= 1;
        }
        self.growing = false;
        if std::mem::take(&mut self.shrink_asked) && is_refused {
            self.shrinking = false;
        }
    }

    /// The cache has given chunks back: the descriptor names them no longer, and another disk writes to them.
    pub(super) fn cache_shrunk(&mut self, chunks: u32) {
        self.shrinking = false;
        for _ in 0..chunks {
            self.used.chunks -= 1;
            let chunk = DATA[usize::from(self.used.chunks)];
            let bytes = vec![0xcc; usize::try_from(CHUNK).expect("it is small")];
            for target in self.flash_targets() {
                self.stores[target].write(u64::from(chunk) * CHUNK, &bytes, true);
            }
        }
    }

    pub(super) fn flash_targets(&self) -> std::ops::Range<usize> {
        self.setup.shape.members().into()..self.setup.shape.targets().into()
    }

    /// A block of the cache's pages decays on one of its devices.
    pub fn decay(&mut self, choices: &mut dyn Choose) {
        let targets: Vec<usize> = self.flash_targets().collect();
        let count = u32::try_from(targets.len()).expect("few");
        if count == 0 {
            return;
        }
        let target = targets[choices.choose(count) as usize];
        let sectors = u32::try_from(CHUNK / SECTOR as u64).expect("few");
        let chunk = choices.choose(6);
        let sector = choices.choose(sectors);
        if chunk != JOURNAL {
            self.decayed |= 1 << target;
            self.damage(target, u64::from(chunk * sectors + sector));
        }
    }

    /// A crash, after which the disk does without one of two devices that have everything. Nothing is missing.
    pub fn lose_device(&mut self, choices: &mut dyn Choose) {
        let Shape::Cached { devices: 2, .. } = self.setup.shape else {
            return;
        };
        if !self.has_cache() || (self.away | self.unplugged) != 0 {
            return;
        }
        let report = self.cache();
        let whole = report.is_some_and(|cache| cache.devices == 0b11 && !cache.resyncing);
        let device = choices.choose(2);
        if !whole {
            return;
        }
        self.note(|| format!("device {device} of the cache is given up"));
        self.used.without = 1 << device;
        self.crash_again(choices);
        self.note_fault(1 << (self.flash_targets().start + device as usize));
        self.finish();
        self.used.without = 0;
        if self.opened != Some(Ok(())) && self.breach.is_none() {
            self.fail(format!("without a device: {:?}", self.opened));
        }
    }

    /// A device of the cache is unplugged: its I/Os fail. Or the one that was unplugged is back, and perhaps filled again. Or
    /// its headers or its journal decay, or something else may enter the cache.
    pub fn plug(&mut self, choices: &mut dyn Choose) {
        let flash = self.flash_targets();
        let count = u32::try_from(flash.len()).expect("few");
        match choices.choose(6) {
            0 | 1 if count == 2 => return self.decay_and_crash(choices),
            2 if self.has_cache() => return self.admit(choices),
            _ => {}
        }
        if self.unplugged == 0 {
            let target = flash.start + choices.choose(count.max(1)) as usize;
            self.note(|| format!("store {target} is unplugged"));
            self.unplugged = 1 << target;
            return self.note_fault(self.unplugged);
        }
        let back = u8::try_from(self.unplugged.trailing_zeros()).expect("few");
        self.note(|| format!("store {back} is back"));
        self.unplugged = 0;
        if choices.choose(2) == 1 && self.has_cache() {
            self.order_now(LayoutOrder::Rebuild(Target(back)));
        }
    }

    /// A block of a device's headers or journal decays, and then the host crashes. The other device has everything: nothing
    /// is lost. What nobody has overwritten is as it was from then on, so that it does not meet another fault.
    pub fn decay_and_crash(&mut self, choices: &mut dyn Choose) {
        let flash = self.flash_targets();
        let report = self.cache();
        let whole = report.is_some_and(|cache| cache.devices == 0b11 && !cache.resyncing);
        if !whole || !self.has_cache() || (self.away | self.unplugged) != 0 {
            return;
        }
        let target = flash.start + choices.choose(2) as usize;
        let blocks = u32::try_from(CHUNK / BLOCK as u64).expect("few");
        let block = u64::from(JOURNAL) * CHUNK + u64::from(choices.choose(blocks)) * BLOCK as u64;
        let (mut whole, mut decayed) = ([0; BLOCK], [0; BLOCK]);
        self.stores[target].read(block, &mut whole);
        self.damage(target, block / SECTOR as u64);
        self.stores[target].read(block, &mut decayed);
        self.crash_again(choices);
        self.note_fault(1 << target);
        self.finish();
        if self.opened != Some(Ok(())) && self.breach.is_none() {
            self.fail(format!("one decayed block: {:?}", self.opened));
        }
        let mut now = [0; BLOCK];
        self.stores[target].read(block, &mut now);
        if now == decayed {
            self.stores[target].write(block, &whole, true);
        }
    }

    /// Whether requests go past its cache beside others.
    pub fn goes_around(&self) -> bool {
        self.setup.load == Load::Around
    }

    /// What may enter the cache, from now on.
    pub fn admit(&mut self, choices: &mut dyn Choose) {
        if self.has_cache() {
            let all = [Admission::All, Admission::Reads, Admission::Nothing];
            let admission = all[choices.choose(3) as usize];
            self.order_now(LayoutOrder::CacheAdmission(admission));
        }
    }

    /// Whether its flash devices come and go while it is used.
    pub fn unplugs(&self) -> bool {
        self.setup.devices == FlashDevices::Unplugged
    }

    /// A device of the cache is replaced by an empty one.
    pub fn replace_device(&mut self, choices: &mut dyn Choose) {
        let flash = self.flash_targets();
        let count = u32::try_from(flash.len()).expect("few");
        let target = flash.start + choices.choose(count.max(1)) as usize;
        self.replace_flash(Target(u8::try_from(target).expect("few")));
    }

    /// The same, if it has no I/O, is not being filled, and the other one has everything.
    pub(super) fn replace_flash(&mut self, device: Target) {
        let target = usize::from(device.0);
        let first = self.flash_targets().start;
        let settled = self.cache().filter(|cache| !cache.resyncing);
        let others = settled.map_or(0, |cache| cache.devices) & !(1 << (target - first));
        let is_busy = self
            .in_flight
            .iter()
            .any(|started| started.target == target)
            || self.effects.iter().any(|effect| names(effect, target));
        if others == 0
            || is_busy
            || !self.has_cache()
            || (self.away | self.unplugged | self.empty) != 0
        {
            return;
        }
        self.order_now(LayoutOrder::Replace(device));
        // Nothing was performed since: images are exchanged in that moment, unless the order is refused.
        let outcome = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::LayoutOrdered { outcome, .. } => Some(*outcome),
            _ => None,
        });
        if outcome != Some(Ok(())) {
            return;
        }
        self.note(|| format!("store {target} is an empty one"));
        self.stores[target] = self.stores[target].blank();
        self.decayed &= !(1 << target);
        self.note_fault(1 << target);
    }

    /// The disk becomes another one, with the same stores.
    pub fn become_disk(&mut self, disk: u8) {
        self.used = Use {
            disk: [disk; 16],
            ..Use::default()
        };
    }
}

/// Whether an effect is about this target.
fn names(effect: &Effect, of: usize) -> bool {
    match effect {
        Effect::Start { target, .. }
        | Effect::ReadBlock { target, .. }
        | Effect::WriteBlock { target, .. } => usize::from(target.0) == of,
        _ => false,
    }
}
