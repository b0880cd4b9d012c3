//! The state block of a mirror's member: who is in sync, and where members may differ.
//!
//! Each member has two places for it. A new state goes to the place of the older one, so that a torn write leaves the
//! newer one readable.
//!
//! # Always true
//! - a block is read as it was written, or refused with the reason; bytes and flags without a meaning are not read, and zero
//!   when written
//!
//! # Picture
//! ```text
//!    0  magic "TIDEMIRR" 8, version 2
//!   16  disk 16, sequence 8, members in sync 4, this member 1, members 1, regions 2
//!   48  member being rebuilt 1 (0xff: none), flags 1, rebuilt up to 8 (at 56)
//!   64  for each of 4 members out of sync: the first sequence without it 8, or 0
//!   96  for each of them: the last sequence that it had in sync 8, or all ones
//!  128  the last sequence that all members had 8
//!  160  regions, 4 each; the highest bit: members in sync are equal there
//! 4092  CRC32C of all before it 4
//! ```
//! Both sequences stay while a member is rebuilt by regions. They are 0 while it gets all bytes.
//! Flags: 1 = members out of sync may lack any region; 2 = the member being rebuilt gets all bytes.
//!
//! # Units
//! Little-endian. A region is [`REGION`] bytes; "rebuilt up to" is bytes.

use super::MEMBERS_MAX;
use crate::block::{BLOCK, Reader, Unreadable, Writer};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a region of the write-intent log. Origin: md's bitmap chunks and DRBD's extents are of 1 to 64 MiB.
pub const REGION: u64 = 1 << 20;
/// The most regions of a state: as many as fit in a block, rounded down.
pub const HOT_MAX: usize = 980;
/// Regions have smaller numbers: disks are below 2 PiB.
pub const MISSED: u32 = 1 << 31;

/// No mirror gets this far; what says so is damaged, and its successors would have no numbers.
const SEQUENCE_MAX: u64 = 1 << 62;

/// A member that was never in sync.
pub const NEVER: u64 = u64::MAX;

const MAGIC: [u8; 8] = *b"TIDEMIRR";
const VERSION: u16 = 1;
const OVERFLOW: u8 = 1;
const FULL: u8 = 2;

/// What a state block says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Which disk's mirror it is.
    pub disk: [u8; 16],
    /// Each state of a mirror has a higher one.
    pub sequence: u64,
    /// The members that have every acknowledged write, one bit each.
    pub in_sync: u32,
    /// How many members there are.
    pub members: u8,
    /// The member that is being rebuilt.
    pub syncing: Option<Syncing>,
    /// For each member out of sync: the first sequence that says so. Zero for one that gets all bytes.
    pub since: [u64; MEMBERS_MAX],
    /// For each of them: the last sequence that all members had while it was in sync; [`NEVER`] if it was not.
    pub until: [u64; MEMBERS_MAX],
    /// The last sequence that all members used then had. A member in sync has it, or a later one.
    pub previous: u64,
    /// Whether members out of sync may lack any region.
    pub overflow: bool,
    /// Regions in which members in sync may differ after a crash; with [`MISSED`]: only those out of sync lack them.
    /// Ascending by region.
    pub regions: Vec<u32>,
}

/// How far the rebuild of a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syncing {
    /// The member.
    pub member: u8,
    /// Whether it gets all bytes, or only the regions of the state.
    pub full: bool,
    /// It has everything below this offset, but for hot regions.
    pub upto: u64,
}

impl State {
    /// The block, for one member.
    ///
    /// # Panics
    /// With more than [`HOT_MAX`] regions.
    pub fn encode(&self, member: u8) -> Box<[u8; BLOCK]> {
        assert!(self.regions.len() <= HOT_MAX, "regions are bounded");
        let mut out = Writer::new(MAGIC, VERSION);
        out.go_to(16);
        out.put(&self.disk);
        out.put(&self.sequence.to_le_bytes());
        out.put(&self.in_sync.to_le_bytes());
        out.put(&[member, self.members]);
        let regions = u16::try_from(self.regions.len()).expect("at most HOT_MAX");
        out.put(&regions.to_le_bytes());
        let full = self.syncing.is_some_and(|syncing| syncing.full);
        let flags = if self.overflow { OVERFLOW } else { 0 } | if full { FULL } else { 0 };
        out.put(&[self.syncing.map_or(0xff, |syncing| syncing.member), flags]);
        out.go_to(56);
        let upto = self.syncing.map_or(0, |syncing| syncing.upto);
        out.put(&upto.to_le_bytes());
        for sequence in self.since.iter().chain(&self.until) {
            out.put(&sequence.to_le_bytes());
        }
        out.put(&self.previous.to_le_bytes());
        out.go_to(160);
        for region in &self.regions {
            out.put(&region.to_le_bytes());
        }
        Box::new(out.finish())
    }

    /// The state, and of which member it is.
    ///
    /// # Errors
    /// The bytes are no state block of a version that is known, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<(State, u8), Unreadable> {
        let mut from = Reader::open(bytes, MAGIC, VERSION)?;
        from.go_to(16);
        let disk = from.take();
        let sequence = u64::from_le_bytes(from.take());
        let in_sync = u32::from_le_bytes(from.take());
        let [member, members] = from.take();
        let regions = usize::from(u16::from_le_bytes(from.take()));
        let [rebuilt, flags] = from.take();
        from.go_to(56);
        let upto = u64::from_le_bytes(from.take());
        let since = [(); MEMBERS_MAX].map(|()| u64::from_le_bytes(from.take()));
        let until = [(); MEMBERS_MAX].map(|()| u64::from_le_bytes(from.take()));
        let previous = u64::from_le_bytes(from.take());
        let known = match usize::from(members) {
            1..=MEMBERS_MAX => (1_u32 << members) - 1,
            _ => return Err(Unreadable::Torn),
        };
        let contradicts = member >= members || in_sync == 0 || in_sync & !known != 0;
        if contradicts || regions > HOT_MAX || sequence > SEQUENCE_MAX {
            return Err(Unreadable::Torn);
        }
        let syncing = (rebuilt != 0xff).then_some(Syncing {
            member: rebuilt,
            full: flags & FULL != 0,
            upto,
        });
        if syncing
            .is_some_and(|syncing| syncing.member >= members || in_sync >> syncing.member & 1 == 1)
        {
            return Err(Unreadable::Torn);
        }
        from.go_to(160);
        let regions: Vec<u32> = (0..regions)
            .map(|_| u32::from_le_bytes(from.take()))
            .collect();
        if !regions.is_sorted_by(|a, b| a & !MISSED < b & !MISSED) {
            return Err(Unreadable::Torn);
        }
        let state = State {
            disk,
            sequence,
            in_sync,
            members,
            syncing,
            since,
            until,
            previous,
            overflow: flags & OVERFLOW != 0,
            regions,
        };
        Ok((state, member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            disk: [7; 16],
            sequence: 9,
            in_sync: 0b101,
            members: 3,
            syncing: Some(Syncing {
                member: 1,
                full: true,
                upto: 77 << 20,
            }),
            since: [0, 8, 0, 0],
            until: [0, 7, 0, NEVER],
            previous: 8,
            overflow: true,
            regions: alloc::vec![0, 5 | MISSED, 900_000],
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let full = State {
            regions: (0..).take(HOT_MAX).collect(),
            ..state()
        };
        for state in [state(), full] {
            let block = state.encode(2);
            assert_eq!(State::decode(&block[..]), Ok((state, 2)));
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let none_in_sync = State {
            in_sync: 0,
            ..state()
        };
        let unknown_member = State {
            in_sync: 0b1000,
            ..state()
        };
        let unsorted = State {
            regions: alloc::vec![5, MISSED],
            ..state()
        };
        let rebuilt_in_sync = State {
            syncing: Some(Syncing {
                member: 2,
                full: false,
                upto: 0,
            }),
            ..state()
        };
        let last = State {
            sequence: u64::MAX,
            ..state()
        };
        for state in [
            none_in_sync,
            unknown_member,
            unsorted,
            rebuilt_in_sync,
            last,
        ] {
            let block = state.encode(0);
            assert_eq!(State::decode(&block[..]), Err(Unreadable::Torn));
        }
        assert_eq!(State::decode(&state().encode(3)[..]), Err(Unreadable::Torn));
        assert_eq!(State::decode(&[0; BLOCK]), Err(Unreadable::Empty));
    }
}
