//! The state block of a mirror's member: who is in sync, and where writes may be under way.
//!
//! Each member has two places for it. A new state goes to the place of the older one, so that a torn write leaves the
//! newer one readable.
//!
//! # Always true
//! - a block is read as it was written, or refused with the reason
//!
//! # Picture
//! ```text
//!    0  magic "TIDEMIRR" 8, version 2
//!   16  disk 16, sequence 8, members in sync 4, this member 1, members 1, hot regions 2
//!   64  hot regions, 4 each
//! 4092  CRC32C of all before it 4
//! ```
//!
//! # Units
//! Little-endian. A region is [`REGION`] bytes.

use crate::block::{BLOCK, Reader, Unreadable, Writer};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a region of the write-intent log. Origin: md's bitmap chunks and DRBD's extents are of 1 to 64 MiB.
pub const REGION: u64 = 1 << 20;
/// The most regions that are hot at once: as many as fit in a block, rounded down.
pub const HOT_MAX: usize = 1000;

const MAGIC: [u8; 8] = *b"TIDEMIRR";
const VERSION: u16 = 1;

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
    /// Regions in which members may differ after a crash, ascending.
    pub hot: Vec<u32>,
}

impl State {
    /// The block, for one member.
    ///
    /// # Panics
    /// With more than [`HOT_MAX`] hot regions.
    pub fn encode(&self, member: u8) -> Box<[u8; BLOCK]> {
        assert!(self.hot.len() <= HOT_MAX, "hot regions are bounded");
        let mut out = Writer::new(MAGIC, VERSION);
        out.go_to(16);
        out.put(&self.disk);
        out.put(&self.sequence.to_le_bytes());
        out.put(&self.in_sync.to_le_bytes());
        out.put(&[member, self.members]);
        let hot = u16::try_from(self.hot.len()).expect("at most HOT_MAX");
        out.put(&hot.to_le_bytes());
        out.go_to(64);
        for region in &self.hot {
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
        let hot = usize::from(u16::from_le_bytes(from.take()));
        let known = 1_u32
            .checked_shl(members.into())
            .map_or(u32::MAX, |bit| bit - 1);
        if hot > HOT_MAX || member >= members || in_sync == 0 || in_sync & !known != 0 {
            return Err(Unreadable::Torn);
        }
        from.go_to(64);
        let hot: Vec<u32> = (0..hot).map(|_| u32::from_le_bytes(from.take())).collect();
        if !hot.is_sorted_by(|a, b| a < b) {
            return Err(Unreadable::Torn);
        }
        let state = State {
            disk,
            sequence,
            in_sync,
            members,
            hot,
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
            hot: alloc::vec![0, 5, 900_000],
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let full = State {
            hot: (0..).take(HOT_MAX).collect(),
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
            hot: alloc::vec![5, 0],
            ..state()
        };
        for state in [none_in_sync, unknown_member, unsorted] {
            let block = state.encode(0);
            assert_eq!(State::decode(&block[..]), Err(Unreadable::Torn));
        }
        assert_eq!(State::decode(&state().encode(3)[..]), Err(Unreadable::Torn));
        assert_eq!(State::decode(&[0; BLOCK]), Err(Unreadable::Empty));
    }
}
