//! Heat counters of a pool's disk: how many reads and writes each part of 16 MiB had since they were looked at.
//!
//! The layout counts on the data path, if the pool has two tiers. The daemon takes the counts once a window, and the policy
//! ([`tiering`](super::tiering)) makes heat of them.
//!
//! # Always true
//! - memory is bounded by what is mapped: 2 KiB for each 4 GiB in which anything was read or written
//! - to count costs the same, whatever the size of the disk

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Extents of a part, as a power of two. Origin: the design: 16 MiB.
pub const PART_SHIFT: u32 = 4;
/// Extents of a part.
pub const PART: u32 = 1 << PART_SHIFT;
/// Parts of a region, as a power of two. Origin: chosen; a region takes 2 KiB.
const REGION_SHIFT: u32 = 8;
const REGION: usize = 1 << REGION_SHIFT;

/// Reads and writes of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// Reads.
    pub reads: u32,
    /// Writes.
    pub writes: u32,
}

impl Touches {
    /// Both together.
    pub fn all(&self) -> u64 {
        u64::from(self.reads) + u64::from(self.writes)
    }
}

/// See the module.
#[derive(Default)]
pub struct Heat {
    regions: Vec<Option<Box<[Touches; REGION]>>>,
}

impl Heat {
    /// Counts a read or a write of an extent of the disk.
    #[inline]
    pub fn count(&mut self, extent: u32, writes: bool) {
        let part = extent >> PART_SHIFT;
        let region = (part >> REGION_SHIFT) as usize;
        let Some(Some(touches)) = self.regions.get_mut(region) else {
            return self.count_first(part, writes);
        };
        let touches = &mut touches[part as usize % REGION];
        match writes {
            true => touches.writes = touches.writes.wrapping_add(1),
            false => touches.reads = touches.reads.wrapping_add(1),
        }
    }

    #[cold]
    fn count_first(&mut self, part: u32, writes: bool) {
        let region = (part >> REGION_SHIFT) as usize;
        if self.regions.len() <= region {
            self.regions.resize_with(region + 1, || None);
        }
        self.regions[region].get_or_insert_with(|| Box::new([Touches::default(); REGION]));
        self.count(part << PART_SHIFT, writes);
    }

    /// Takes the counts of some parts, from this one on, at least one region. Returns the next part; `None` at the end.
    pub fn take(
        &mut self,
        from: u32,
        most: usize,
        mut each: impl FnMut(u32, Touches),
    ) -> Option<u32> {
        let mut found = 0;
        let first = (from >> REGION_SHIFT) as usize;
        for (number, region) in self.regions.iter_mut().enumerate().skip(first) {
            let base = u32::try_from(number << REGION_SHIFT).unwrap_or(u32::MAX);
            if found >= most {
                return Some(base);
            }
            let Some(touches) = region else { continue };
            let mut is_used = false;
            for (part, touches) in (base..).zip(touches.iter_mut()) {
                let taken = core::mem::take(touches);
                if taken != Touches::default() {
                    is_used = true;
                    found += 1;
                    each(part, taken);
                }
            }
            // One that nobody used for a window is not kept.
            if !is_used {
                *region = None;
            }
        }
        None
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let regions = self.regions.iter().flatten().count();
        regions * REGION * size_of::<Touches>()
            + self.regions.capacity() * size_of::<Option<Box<[Touches; REGION]>>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(heat: &mut Heat) -> Vec<(u32, u32, u32)> {
        let mut all = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            from = heat.take(at, 3, |part, it| all.push((part, it.reads, it.writes)));
        }
        all
    }

    #[test]
    fn what_is_counted_is_taken_once() {
        let mut heat = Heat::default();
        for extent in [0, 15, 16, 70_000, 70_000] {
            heat.count(extent, false);
        }
        heat.count(15, true);
        heat.count(u32::MAX - 1, true);
        let last = (u32::MAX - 1) >> PART_SHIFT;
        let expected = [(0, 2, 1), (1, 1, 0), (70_000 >> 4, 2, 0), (last, 0, 1)];
        assert_eq!(taken(&mut heat), expected);
        assert_eq!(taken(&mut heat), []);
    }

    #[test]
    fn memory_is_that_of_what_is_used() {
        let mut heat = Heat::default();
        // One extent in each TiB of 64 TiB.
        for nth in 0..64 {
            heat.count(nth << 20, false);
        }
        assert!(heat.bytes() < 64 * 2048 + 17_000 * 8, "{}", heat.bytes());
        assert_eq!(taken(&mut heat).len(), 64);
        assert_eq!(taken(&mut heat).len(), 0);
        assert!(
            heat.bytes() <= 32_768 * 8,
            "nothing is kept: {}",
            heat.bytes()
        );
    }
}
