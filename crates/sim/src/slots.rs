//! The slot file in the simulator, with faults between write and read.
//!
//! The world writes a slot when a host's write has reached the array, and reads when a read has. A write may be delayed
//! or torn.
//!
//! # Always true
//! - For each slot, a reader sees a completely written version, unless the write was torn.

use std::collections::VecDeque;
use tidegate_core::units::Time;

/// Slot 0 is the common one. The hosts' slots follow.
const FIRST: usize = 1;

/// The file.
pub(crate) struct SlotFile {
    slots: Vec<Slot>,
}

#[derive(Clone, Default)]
struct Slot {
    seen: Vec<u8>,
    before: Vec<u8>,
    torn: bool,
    /// Writes that are not visible before their time.
    coming: VecDeque<(Time, Vec<u8>, bool)>,
}

impl SlotFile {
    pub(crate) fn new(hosts: usize) -> SlotFile {
        SlotFile {
            slots: vec![Slot::default(); FIRST + hosts],
        }
    }

    /// Bytes of a read of all slots in use.
    pub(crate) fn read_len(&self) -> u64 {
        4_096 * self.slots.len() as u64
    }

    /// Writes a host's slot. It is visible from `at` on.
    pub(crate) fn write(&mut self, host: usize, at: Time, bytes: Vec<u8>, torn: bool) {
        self.slots[FIRST + host].coming.push_back((at, bytes, torn));
    }

    /// The contents of all written slots.
    pub(crate) fn read(&mut self, now: Time) -> Vec<(u16, Vec<u8>)> {
        let mut read = Vec::new();
        for (place, slot) in (0_u16..).zip(&mut self.slots) {
            while slot.coming.front().is_some_and(|(at, ..)| *at <= now)
                && let Some((_, bytes, torn)) = slot.coming.pop_front()
            {
                slot.before = std::mem::replace(&mut slot.seen, bytes);
                slot.torn = torn;
            }
            if slot.seen.is_empty() {
                continue;
            }
            let mut bytes = slot.seen.clone();
            if slot.torn {
                let half = bytes.len() / 2;
                bytes.truncate(half);
                match slot.before.get(half..) {
                    Some(old) => bytes.extend_from_slice(old),
                    None => bytes.resize(slot.seen.len(), 0),
                }
            }
            read.push((place, bytes));
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delayed_write_is_seen_later_and_a_torn_one_is_half_old() {
        let mut file = SlotFile::new(2);
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        file.write(0, at(0), vec![1; 4], false);
        file.write(0, at(50), vec![2; 4], true);
        assert_eq!(file.read(at(10)), [(1, vec![1; 4])]);
        assert_eq!(file.read(at(50)), [(1, vec![2, 2, 1, 1])]);
        file.write(1, at(60), vec![3; 4], false);
        file.write(0, at(60), vec![4; 4], false);
        assert_eq!(file.read(at(60)), [(1, vec![4; 4]), (2, vec![3; 4])]);
    }
}
