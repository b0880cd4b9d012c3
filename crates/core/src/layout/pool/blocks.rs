//! The blocks of a pool's disk on its members: the header of each grant, and the root.
//!
//! Each has two places. The next version goes over the other one, so that a torn write leaves a valid one.
//!
//! # Always true
//! - a block is read as it was written, or refused with the reason; bytes without a meaning are not read, and zero when
//!   written
//! - nothing is allocated that the bytes drive: all counts have bounds
//!
//! # Picture
//! ```text
//! header                                            root
//!    0  magic "TIDEPHDR" 8, version 2                  0  magic "TIDEPROT" 8, version 2
//!   16  pool 16, disk 16                              16  pool 16, disk 16
//!   48  life 8, sequence 8                            48  life of grant 0 8, sequence 8
//!   64  index 4, number 4                             64  generation that is written 4, last number given 4
//!   72  column 2, extents 2, marks 2                  72  generations 4
//!   96  extents, 12 each: extent of the disk 4,       96  generations, 8 each: number 4, parent 4 (highest bit: it goes)
//!       generation 4 (0: free), sub-blocks 2, zero 2
//!  864  marks, 12 each: extent of the disk 4,
//!       generation 4, sub-blocks 2, zero 2
//! 4092  CRC32C of all before it 4                   4092  CRC32C of all before it 4
//! ```
//!
//! # Units
//! Little-endian.

use super::setup::{EXTENTS_MAX, Generation, Grant};
use crate::block::{BLOCK, Reader, Unreadable, Writer};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The most marks of a header: as many as fit in a block, rounded down.
pub const MARKS_MAX: usize = 256;
/// The most generations of a disk: as many as fit in a root, rounded down.
pub const GENERATIONS_MAX: usize = 480;

const HEADER: [u8; 8] = *b"TIDEPHDR";
const ROOT: [u8; 8] = *b"TIDEPROT";
const VERSION: u16 = 1;
const ENTRIES_AT: usize = 96;
const MARKS_AT: usize = ENTRIES_AT + 12 * EXTENTS_MAX as usize;
const GOES: u32 = 1 << 31;

/// Whose block it is. Another owner's blocks are as good as none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The pool.
    pub pool: [u8; 16],
    /// The disk.
    pub disk: [u8; 16],
    /// How often the catalog has given the grant.
    pub life: u64,
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose it is.
    pub owner: Owner,
    /// Each header of a grant has a higher one.
    pub sequence: u64,
    /// The index of the grant.
    pub index: u32,
    /// Its column.
    pub column: u16,
    /// Its number on the column.
    pub number: u32,
    /// What its extents have, in order.
    pub extents: Vec<Entry>,
    /// What is hidden, without a place.
    pub marks: Vec<Entry>,
}

/// An extent of the disk as one generation has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Which extent of the disk.
    pub extent: u32,
    /// The generation. None has number 0: the extent is free.
    pub generation: Generation,
    /// The sub-blocks that it has, one bit each. Of a mark: those that read as zeroes.
    pub sub_blocks: u16,
}

/// What a root says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Whose it is.
    pub owner: Owner,
    /// Each root of a disk has a higher one.
    pub sequence: u64,
    /// The generation that is written now.
    pub current: Generation,
    /// The last number that was given to any.
    pub last: Generation,
    /// All generations, ascending.
    pub generations: Vec<Branch>,
}

/// A generation in a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its number.
    pub number: Generation,
    /// What it sees where it has nothing.
    pub parent: Option<Generation>,
    /// Whether it was deleted, and goes once nothing of it is needed.
    pub is_going: bool,
}

impl Owner {
    /// Whether a block names this owner, whatever the checksum says. The block is a header, or a root.
    pub fn is_named_in(&self, bytes: &[u8]) -> bool {
        self.is_named_with(HEADER, bytes) || self.is_named_with(ROOT, bytes)
    }

    /// The same of a block of one kind.
    pub(super) fn is_named_with(&self, magic: [u8; 8], bytes: &[u8]) -> bool {
        Reader::peek(bytes, magic, 16).is_some_and(|mut from| {
            let (pool, disk) = (from.take(), from.take());
            let life = u64::from_le_bytes(from.take());
            let found = Owner { pool, disk, life };
            found == *self
        })
    }

    fn put(&self, out: &mut Writer) {
        out.go_to(16);
        out.put(&self.pool);
        out.put(&self.disk);
        out.put(&self.life.to_le_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Owner {
        from.go_to(16);
        Owner {
            pool: from.take(),
            disk: from.take(),
            life: u64::from_le_bytes(from.take()),
        }
    }
}

impl Entry {
    fn put(&self, out: &mut Writer) {
        out.put(&self.extent.to_le_bytes());
        out.put(&self.generation.0.to_le_bytes());
        out.put(&self.sub_blocks.to_le_bytes());
        out.put(&[0; 2]);
    }

    fn take(from: &mut Reader<'_>) -> Entry {
        let entry = Entry {
            extent: u32::from_le_bytes(from.take()),
            generation: Generation(u32::from_le_bytes(from.take())),
            sub_blocks: u16::from_le_bytes(from.take()),
        };
        let _: [u8; 2] = from.take();
        entry
    }

    /// Whether nothing is there.
    pub fn is_free(&self) -> bool {
        self.generation.0 == 0
    }

    fn is_valid(&self) -> bool {
        self.extent != u32::MAX && self.sub_blocks != 0
    }
}

impl Header {
    /// Whether it is the header of this grant.
    pub fn is_of(&self, index: u32, grant: Grant) -> bool {
        (self.index, self.column, self.number, self.owner.life)
            == (index, grant.column, grant.number, grant.life)
    }

    /// The block.
    ///
    /// # Panics
    /// With more than [`EXTENTS_MAX`] extents or [`MARKS_MAX`] marks.
    pub fn encode(&self) -> Box<[u8; BLOCK]> {
        assert!(
            self.extents.len() <= EXTENTS_MAX as usize && self.marks.len() <= MARKS_MAX,
            "extents and marks of a grant are bounded"
        );
        let mut out = Writer::new(HEADER, VERSION);
        self.owner.put(&mut out);
        out.put(&self.sequence.to_le_bytes());
        out.put(&self.index.to_le_bytes());
        out.put(&self.number.to_le_bytes());
        out.put(&self.column.to_le_bytes());
        for count in [self.extents.len(), self.marks.len()] {
            let count = u16::try_from(count).expect("bounded above");
            out.put(&count.to_le_bytes());
        }
        out.go_to(ENTRIES_AT);
        self.extents.iter().for_each(|entry| entry.put(&mut out));
        out.go_to(MARKS_AT);
        self.marks.iter().for_each(|entry| entry.put(&mut out));
        Box::new(out.finish())
    }

    /// The header in a block.
    ///
    /// # Errors
    /// The bytes are no header of a version that is known, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Header, Unreadable> {
        let mut from = Reader::open(bytes, HEADER, VERSION)?;
        let owner = Owner::take(&mut from);
        let sequence = u64::from_le_bytes(from.take());
        let index = u32::from_le_bytes(from.take());
        let number = u32::from_le_bytes(from.take());
        let column = u16::from_le_bytes(from.take());
        let [extents, marks] = [(); 2].map(|()| usize::from(u16::from_le_bytes(from.take())));
        if extents > EXTENTS_MAX as usize || marks > MARKS_MAX || sequence == u64::MAX {
            return Err(Unreadable::Torn);
        }
        from.go_to(ENTRIES_AT);
        let extents: Vec<Entry> = (0..extents).map(|_| Entry::take(&mut from)).collect();
        from.go_to(MARKS_AT);
        let marks: Vec<Entry> = (0..marks).map(|_| Entry::take(&mut from)).collect();
        let valid = extents.iter().all(|it| it.is_free() || it.is_valid())
            && marks.iter().all(|it| !it.is_free() && it.is_valid());
        valid
            .then_some(Header {
                owner,
                sequence,
                index,
                column,
                number,
                extents,
                marks,
            })
            .ok_or(Unreadable::Torn)
    }
}

impl Root {
    /// The root of a disk that has none: one generation.
    pub fn first(owner: Owner) -> Root {
        let number = Generation::FIRST;
        Root {
            owner,
            sequence: 0,
            current: number,
            last: number,
            generations: alloc::vec![Branch {
                number,
                parent: None,
                is_going: false,
            }],
        }
    }

    /// The block.
    ///
    /// # Panics
    /// With more than [`GENERATIONS_MAX`] generations.
    pub fn encode(&self) -> Box<[u8; BLOCK]> {
        let count = self.generations.len();
        assert!(count <= GENERATIONS_MAX, "generations are bounded");
        let mut out = Writer::new(ROOT, VERSION);
        self.owner.put(&mut out);
        out.put(&self.sequence.to_le_bytes());
        out.put(&self.current.0.to_le_bytes());
        out.put(&self.last.0.to_le_bytes());
        let count = u32::try_from(count).expect("bounded above");
        out.put(&count.to_le_bytes());
        out.go_to(ENTRIES_AT);
        for branch in &self.generations {
            let goes = if branch.is_going { GOES } else { 0 };
            let parent = branch.parent.map_or(0, |parent| parent.0);
            out.put(&branch.number.0.to_le_bytes());
            out.put(&(parent | goes).to_le_bytes());
        }
        Box::new(out.finish())
    }

    /// The root in a block.
    ///
    /// # Errors
    /// The bytes are no root of a version that is known, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Root, Unreadable> {
        let mut from = Reader::open(bytes, ROOT, VERSION)?;
        let owner = Owner::take(&mut from);
        let sequence = u64::from_le_bytes(from.take());
        let current = Generation(u32::from_le_bytes(from.take()));
        let last = Generation(u32::from_le_bytes(from.take()));
        let count = u32::from_le_bytes(from.take());
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > GENERATIONS_MAX || last.0 >= GOES || sequence == u64::MAX {
            return Err(Unreadable::Torn);
        }
        from.go_to(ENTRIES_AT);
        let mut branch = || {
            let number = Generation(u32::from_le_bytes(from.take()));
            let parent = u32::from_le_bytes(from.take());
            let own = Generation(parent & !GOES);
            Branch {
                number,
                parent: (own.0 != 0).then_some(own),
                is_going: parent & GOES != 0,
            }
        };
        let generations: Vec<Branch> = (0..count).map(|_| branch()).collect();
        let root = Root {
            owner,
            sequence,
            current,
            last,
            generations,
        };
        match root.is_valid() {
            true => Ok(root),
            false => Err(Unreadable::Torn),
        }
    }

    fn is_valid(&self) -> bool {
        let known = |number: Generation| {
            let found = self
                .generations
                .binary_search_by_key(&number, |it| it.number);
            found.ok().map(|place| &self.generations[place])
        };
        let ascending = self.generations.is_sorted_by(|a, b| a.number < b.number);
        let fits = |branch: &Branch| {
            let parent = branch.parent;
            branch.number.0 != 0
                && branch.number <= self.last
                && parent.is_none_or(|parent| parent < branch.number && known(parent).is_some())
                && parent != Some(self.current)
        };
        ascending
            && self.generations.iter().all(fits)
            && known(self.current).is_some_and(|current| !current.is_going)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner {
            pool: [1; 16],
            disk: [2; 16],
            life: 3,
        }
    }

    fn header() -> Header {
        let entry = |extent| Entry {
            extent,
            generation: Generation(extent + 1),
            sub_blocks: 0x8001,
        };
        Header {
            owner: owner(),
            sequence: 9,
            index: 130,
            column: 4,
            number: 77,
            extents: (0..EXTENTS_MAX).map(entry).collect(),
            marks: (0..).map(entry).take(MARKS_MAX).collect(),
        }
    }

    fn root() -> Root {
        let branch = |number: u32| Branch {
            number: Generation(number),
            parent: (number > 1).then(|| Generation(number.div_ceil(2).min(number - 1))),
            is_going: number == 7,
        };
        let last = u32::try_from(GENERATIONS_MAX).unwrap();
        Root {
            owner: owner(),
            sequence: 5,
            current: Generation(last),
            last: Generation(last),
            generations: (1..=last).map(branch).collect(),
        }
    }

    #[test]
    fn blocks_are_read_as_they_were_written() {
        let mut free = header();
        free.extents[3] = Entry::default();
        for header in [header(), free] {
            assert_eq!(Header::decode(&header.encode()[..]), Ok(header));
        }
        for root in [root(), Root::first(owner())] {
            assert_eq!(Root::decode(&root.encode()[..]), Ok(root));
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let refused = |block: Box<[u8; BLOCK]>| {
            assert_eq!(Header::decode(&block[..]).err(), Some(Unreadable::Torn));
        };
        let mut empty = header();
        empty.extents[0].sub_blocks = 0;
        refused(empty.encode());
        let mut free_mark = header();
        free_mark.marks[0].generation = Generation(0);
        refused(free_mark.encode());
        let refused = |change: fn(&mut Root)| {
            let mut root = root();
            change(&mut root);
            let found = Root::decode(&root.encode()[..]);
            assert_eq!(found, Err(Unreadable::Torn));
        };
        refused(|root| root.current = Generation(9_999));
        refused(|root| root.current = Generation(7));
        refused(|root| root.current = Generation(2));
        refused(|root| root.generations.swap(3, 4));
        refused(|root| root.generations[0].parent = Some(Generation(1)));
        refused(|root| root.last = Generation(5));
        assert_eq!(
            Root::decode(&header().encode()[..]),
            Err(Unreadable::Foreign)
        );
    }

    #[test]
    fn a_torn_block_still_names_its_owner() {
        let mut block = header().encode();
        block[3000] ^= 1;
        assert_eq!(Header::decode(&block[..]), Err(Unreadable::Torn));
        assert!(owner().is_named_in(&block[..]));
        let other = Owner { life: 4, ..owner() };
        assert!(!other.is_named_in(&block[..]));
        assert!(!owner().is_named_in(&[0; 20]));
    }
}
