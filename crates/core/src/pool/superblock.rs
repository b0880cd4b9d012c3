//! The superblock of a pool's member: which pool and place it belongs to, and which members have the current catalog.
//!
//! It is in two places. A new one goes over the older of the two, so a crash while it is written leaves the other.
//!
//! # Always true
//! - a superblock is read as it was written, or refused with the reason; bytes without a meaning are zero
//! - the first 34 bytes of a member never change
//!
//! # Picture
//! ```text
//!    0  magic "TIDEPOOL" 8, version 2
//!   16  pool 16, member 2, members 2
//!   40  generation 8, catalog at 8, catalog length 8, data at 8, size 8
//!   80  sub-block 8, extents of a grant 4, grants of a metadata extent 4, catalog in use 8
//!  128  by member: state 1, tier 1, group 2, column 2, unused 2
//! 4092  CRC32C of all before it 4
//! ```
//!
//! # Units
//! Little-endian. Offsets and lengths are bytes. `state`: 1 current, 2 behind, 3 joining. `tier`: 0 slow, 1 fast.

use super::{CATALOG_AT, EXTENT, EXTENTS, HEADERS, SUB_BLOCK, Tier};
use crate::block::{BLOCK, Reader, Unreadable, Writer};
use alloc::vec::Vec;

const MAGIC: [u8; 8] = *b"TIDEPOOL";
const VERSION: u16 = 1;
/// Bytes at a member's beginning that stay while it belongs to its pool.
const CONSTANT: usize = 34;
const TABLE_AT: usize = 128;
/// Members of a pool at most. Origin: the I/O of one disk has 32 targets ([`crate::layout::MAX_TARGETS`]).
pub const MOST_MEMBERS: usize = 32;
/// Bytes of a catalog at most. Origin: one grant of 64 MiB takes some 128 B, so this is enough for 512 TiB.
pub const MOST_CATALOG: u64 = 1 << 30;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The pool.
    pub pool: [u8; 16],
    /// Which of its members this is.
    pub member: u16,
    /// Grows whenever one of them changes its state, or the catalog its length.
    pub generation: u64,
    /// Bytes of the catalog's region.
    pub catalog: u64,
    /// Bytes of it that are in use.
    pub length: u64,
    /// Where grant 0 is on each member, in bytes.
    pub data_at: u64,
    /// Bytes of this member that are used.
    pub size: u64,
    /// All members, by number.
    pub members: Vec<Place>,
}

/// A member's place in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether its catalog counts.
    pub state: MemberState,
    /// How fast it is.
    pub tier: Tier,
    /// Its group.
    pub group: u16,
    /// Its column: columns are numbered in the whole pool.
    pub column: u16,
}

/// Whether the catalog on a member counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has every change that was answered.
    Current,
    /// It failed or was away while the catalog changed.
    Behind,
    /// It is being added.
    Joining,
}

impl Superblock {
    /// The block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut out = Writer::new(MAGIC, VERSION);
        out.go_to(16);
        out.put(&self.pool);
        out.put(&self.member.to_le_bytes());
        let members = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        out.put(&members.to_le_bytes());
        out.go_to(40);
        let numbers = [
            self.generation,
            CATALOG_AT,
            self.catalog,
            self.data_at,
            self.size,
            SUB_BLOCK,
        ];
        numbers
            .iter()
            .for_each(|number| out.put(&number.to_le_bytes()));
        out.put(&EXTENTS.to_le_bytes());
        out.put(&HEADERS.to_le_bytes());
        out.put(&self.length.to_le_bytes());
        out.go_to(TABLE_AT);
        for place in &self.members {
            let state = match place.state {
                MemberState::Current => 1,
                MemberState::Behind => 2,
                MemberState::Joining => 3,
            };
            out.put(&[state, u8::from(place.tier == Tier::Fast)]);
            out.put(&place.group.to_le_bytes());
            out.put(&place.column.to_le_bytes());
            out.put(&[0; 2]);
        }
        out.finish()
    }

    /// The superblock in a block.
    ///
    /// # Errors
    /// The bytes are no superblock of a version that is known, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, Unreadable> {
        let from = Reader::open(bytes, MAGIC, VERSION)?;
        Superblock::fields(from).ok_or(Unreadable::Torn)
    }

    fn fields(mut from: Reader<'_>) -> Option<Superblock> {
        from.go_to(16);
        let pool = from.take();
        let member = u16::from_le_bytes(from.take());
        let count = u16::from_le_bytes(from.take());
        from.go_to(40);
        let [generation, at, catalog, data_at, size, sub_block]: [u64; 6] =
            core::array::from_fn(|_| u64::from_le_bytes(from.take()));
        let [extents, headers]: [u32; 2] =
            core::array::from_fn(|_| u32::from_le_bytes(from.take()));
        let length = u64::from_le_bytes(from.take());
        let is_known = (at, sub_block, extents, headers)
            == (CATALOG_AT, SUB_BLOCK, EXTENTS, HEADERS)
            && catalog <= MOST_CATALOG
            && length <= catalog
            && catalog.is_multiple_of(BLOCK as u64)
            && data_at >= CATALOG_AT + catalog
            && data_at.is_multiple_of(EXTENT)
            && data_at <= 2 * MOST_CATALOG
            && size >= data_at;
        if !is_known || member >= count || usize::from(count) > MOST_MEMBERS {
            return None;
        }
        from.go_to(TABLE_AT);
        let mut members = Vec::with_capacity(count.into());
        for _ in 0..count {
            members.push(place(&mut from)?);
        }
        Some(Superblock {
            pool,
            member,
            generation,
            catalog,
            length,
            data_at,
            size,
            members,
        })
    }

    /// The bytes at the member's beginning that do not change while it belongs to this pool and place.
    pub fn beginning(&self) -> [u8; CONSTANT] {
        let mut bytes = [0; CONSTANT];
        bytes.copy_from_slice(&self.encode()[..CONSTANT]);
        bytes
    }

    /// Where it is to be written, of [`SUPERBLOCKS`](super::SUPERBLOCKS): generations take turns.
    pub fn place(&self) -> u64 {
        match self.generation.is_multiple_of(2) {
            true => super::SUPERBLOCKS[0],
            false => super::SUPERBLOCKS[1],
        }
    }

    /// How many grants a member of so many bytes has.
    pub fn grants(size: u64, data_at: u64) -> u32 {
        u32::try_from(size.saturating_sub(data_at) / super::GRANT).unwrap_or(u32::MAX)
    }
}

fn place(from: &mut Reader<'_>) -> Option<Place> {
    let [state, tier] = from.take();
    let group = u16::from_le_bytes(from.take());
    let column = u16::from_le_bytes(from.take());
    from.take::<2>();
    let state = match state {
        1 => MemberState::Current,
        2 => MemberState::Behind,
        3 => MemberState::Joining,
        _ => return None,
    };
    let tier = match tier {
        0 => Tier::Slow,
        1 => Tier::Fast,
        _ => return None,
    };
    let is_known = usize::from(group) < MOST_MEMBERS && usize::from(column) < MOST_MEMBERS;
    is_known.then_some(Place {
        state,
        tier,
        group,
        column,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(generation: u64) -> Superblock {
        let place = |state, tier, group, column| Place {
            state,
            tier,
            group,
            column,
        };
        Superblock {
            pool: [7; 16],
            member: 1,
            generation,
            catalog: 8 << 20,
            length: 5 << 20,
            data_at: 9 << 20,
            size: 1 << 40,
            members: Vec::from([
                place(MemberState::Current, Tier::Slow, 0, 0),
                place(MemberState::Behind, Tier::Fast, 1, 1),
                place(MemberState::Joining, Tier::Fast, 1, 2),
            ]),
        }
    }

    #[test]
    fn a_superblock_is_read_as_it_was_written() {
        let one = superblock(5);
        assert_eq!(Superblock::decode(&one.encode()), Ok(one.clone()));
        assert_ne!(one.place(), superblock(6).place());
        assert_eq!(one.place(), superblock(7).place());
    }

    #[test]
    fn the_beginning_of_a_member_stays_while_generations_pass() {
        let before = superblock(5);
        let mut after = superblock(6);
        after.members[0].state = MemberState::Behind;
        after.members.push(after.members[2]);
        assert_eq!(before.beginning(), after.beginning());
        after.member = 0;
        assert_ne!(before.beginning(), after.beginning());
    }

    #[test]
    fn what_is_no_superblock_is_refused_with_the_reason() {
        assert_eq!(Superblock::decode(&[0; BLOCK]), Err(Unreadable::Empty));
        assert_eq!(Superblock::decode(&[7; BLOCK]), Err(Unreadable::Foreign));
        assert_eq!(Superblock::decode(&[0; 100]), Err(Unreadable::Short));
        let mut newer = superblock(5).encode();
        newer[8] = 2;
        crate::block::seal(&mut newer);
        assert_eq!(Superblock::decode(&newer), Err(Unreadable::Newer(2)));
        for at in [8, 16, 40, 128, BLOCK - 1] {
            let mut torn = superblock(5).encode();
            torn[at] ^= 1;
            assert_eq!(
                Superblock::decode(&torn),
                Err(Unreadable::Torn),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_superblock_that_contradicts_itself_is_refused() {
        let refused = |change: fn(&mut Superblock)| {
            let mut one = superblock(5);
            change(&mut one);
            assert_eq!(Superblock::decode(&one.encode()), Err(Unreadable::Torn));
        };
        refused(|one| one.member = 3);
        refused(|one| one.length = one.catalog + 1);
        refused(|one| one.members.clear());
        refused(|one| one.data_at = 8 << 20);
        refused(|one| one.data_at += 4096);
        refused(|one| one.size = 8 << 20);
        refused(|one| one.catalog = !4095);
        refused(|one| one.members[2].column = 32);
        refused(|one| one.members = Vec::from([one.members[0]; 33]));
    }

    #[test]
    fn a_member_has_as_many_grants_as_fit_behind_its_catalog() {
        let at = 9 << 20;
        assert_eq!(Superblock::grants(at, at), 0);
        assert_eq!(Superblock::grants(at + (64 << 20) - 1, at), 0);
        assert_eq!(Superblock::grants(at + (64 << 20), at), 1);
        assert_eq!(Superblock::grants(0, at), 0);
    }
}
