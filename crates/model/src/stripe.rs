//! The striping of an array: the location of data, and the reads and parity writes of a write.
//!
//! [`crate::array`] gets the parts of an I/O from it: those that start first, and those that start when the first are
//! finished. RAID 5 reads before it writes, except for a whole row.
//!
//! # Picture
//! RAID 5, left-symmetric, four members; `P` moves, and a row's data begins right after it:
//! ```text
//! row 0   d0 d1 d2 P
//! row 1   d4 d5 P  d3
//! row 2   d8 P  d6 d7
//! ```
//!
//! # Always true
//! - The data parts of a write cover its range exactly once (RAID 1 and 10: once per copy).

use alloc::vec::Vec;

use crate::kind::IoKind;

/// RAID levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Striped, no redundancy; also the level of a single member.
    Raid0,
    /// Every member has all data.
    Raid1,
    /// Striped, with one member's worth of rotating parity.
    Raid5,
    /// Striped over mirrored pairs.
    Raid10,
}

impl Level {
    /// The level of this number.
    pub fn named(number: &str) -> Option<Level> {
        Some(match number {
            "0" => Level::Raid0,
            "1" => Level::Raid1,
            "5" => Level::Raid5,
            "10" => Level::Raid10,
            _ => return None,
        })
    }

    /// Number of members' worth of data among `members`.
    pub const fn data_members(self, members: u32) -> u32 {
        match self {
            Level::Raid0 => members,
            Level::Raid1 => 1,
            Level::Raid5 => members.saturating_sub(1),
            Level::Raid10 => members / 2,
        }
    }

    /// Number of copies of a chunk.
    const fn copies(self, members: u32) -> u32 {
        match self {
            Level::Raid0 | Level::Raid5 => 1,
            Level::Raid1 => members,
            Level::Raid10 => 2,
        }
    }
}

/// One member's part of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) member: u32,
    pub(crate) kind: IoKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// An array's geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripe {
    pub(crate) level: Level,
    pub(crate) members: u32,
    pub(crate) chunk: u64,
}

impl Stripe {
    /// Bytes of data in one row of chunks.
    pub(crate) fn row(&self) -> u64 {
        self.chunk * u64::from(self.level.data_members(self.members))
    }

    /// Appends the parts of an I/O: those that start first to `first`, those that follow to `then`.
    ///
    /// `load` is the work of each member. A read of mirrored data uses the least busy copy.
    pub(crate) fn split(
        &self,
        kind: IoKind,
        offset: u64,
        len: u64,
        load: &[u32],
        first: &mut Vec<Part>,
        then: &mut Vec<Part>,
    ) {
        if kind == IoKind::Flush {
            first.extend((0..self.members).map(|member| Part {
                member,
                kind,
                offset: 0,
                len: 0,
            }));
            return;
        }
        let (end, row_len) = (offset + len, self.row());
        let mut at = offset;
        while at < end {
            let row = at / row_len;
            let row_end = ((row + 1) * row_len).min(end);
            let (from, to) = (at - row * row_len, row_end - row * row_len);
            match (self.level, kind) {
                (Level::Raid5, IoKind::Write) => self.write_with_parity(row, from, to, first, then),
                _ => self.spread(kind, row, from, to, load, first),
            }
            at = row_end;
        }
    }

    /// Bytes `from..to` of a row's data, without parity.
    fn spread(
        &self,
        kind: IoKind,
        row: u64,
        from: u64,
        to: u64,
        load: &[u32],
        parts: &mut Vec<Part>,
    ) {
        let copies = self.level.copies(self.members);
        for (data, start, len) in self.chunks(from, to) {
            let member = self.member(row, data);
            let offset = row * self.chunk + start;
            let copies = member..member + copies;
            match kind {
                IoKind::Write => {
                    parts.extend(copies.map(|member| Part {
                        member,
                        kind,
                        offset,
                        len,
                    }));
                }
                IoKind::Read | IoKind::Flush => {
                    let member = copies
                        .min_by_key(|&copy| load[copy as usize])
                        .unwrap_or(member);
                    parts.push(Part {
                        member,
                        kind,
                        offset,
                        len,
                    });
                }
            }
        }
    }

    /// Bytes `from..to` of a row's data and its parity, with as few reads as possible.
    fn write_with_parity(
        &self,
        row: u64,
        from: u64,
        to: u64,
        first: &mut Vec<Part>,
        then: &mut Vec<Part>,
    ) {
        let data = self.level.data_members(self.members);
        let base = row * self.chunk;
        let parity = self.parity_member(row);
        let (mut touched, mut whole) = (0, 0);
        for (_, _, len) in self.chunks(from, to) {
            touched += 1;
            whole += u32::from(len == self.chunk);
        }
        // Two or more chunks seldom share a range narrower than the chunk: the whole chunk is taken.
        let (start, len) = match touched {
            1 => (from % self.chunk, to - from),
            _ => (0, self.chunk),
        };
        let parity = Part {
            member: parity,
            kind: IoKind::Write,
            offset: base + start,
            len,
        };
        let writes = self.chunks(from, to).map(|(data, start, len)| Part {
            member: self.member(row, data),
            kind: IoKind::Write,
            offset: base + start,
            len,
        });
        if whole == data {
            first.extend(writes.chain([parity]));
            return;
        }
        let as_read = |part: Part| Part {
            kind: IoKind::Read,
            ..part
        };
        if touched < data - whole {
            // Read-modify-write: old data and old parity give the new parity.
            first.extend(writes.clone().chain([parity]).map(as_read));
        } else {
            // Reconstruct-write: the chunks that are not wholly overwritten give the new parity.
            let remains = |&chunk: &u32| {
                !self
                    .chunks(from, to)
                    .any(|(d, _, len)| d == chunk && len == self.chunk)
            };
            first.extend((0..data).filter(remains).map(|chunk| Part {
                member: self.member(row, chunk),
                kind: IoKind::Read,
                offset: base + start,
                len,
            }));
        }
        then.extend(writes.chain([parity]));
    }

    /// The chunks that bytes `from..to` of a row touch: index, offset in it, length.
    fn chunks(&self, from: u64, to: u64) -> impl Iterator<Item = (u32, u64, u64)> + Clone {
        let chunk = self.chunk;
        (from / chunk..to.div_ceil(chunk)).map(move |data| {
            let (start, end) = (from.max(data * chunk), to.min((data + 1) * chunk));
            let index = u32::try_from(data).expect("a row has fewer chunks than members");
            (index, start - data * chunk, end - start)
        })
    }

    /// The member with a row's `data`-th chunk. Of copies, the first.
    fn member(&self, row: u64, data: u32) -> u32 {
        match self.level {
            Level::Raid0 => data,
            Level::Raid1 => 0,
            Level::Raid10 => data * 2,
            Level::Raid5 => (self.parity_member(row) + 1 + data) % self.members,
        }
    }

    fn parity_member(&self, row: u64) -> u32 {
        let position = row % u64::from(self.members);
        self.members - 1 - u32::try_from(position).expect("a remainder of a u32")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 64 << 10;

    fn parts(
        level: Level,
        members: u32,
        kind: IoKind,
        offset: u64,
        len: u64,
    ) -> (Vec<Part>, Vec<Part>) {
        let (mut first, mut then) = (Vec::new(), Vec::new());
        let stripe = Stripe {
            level,
            members,
            chunk: CHUNK,
        };
        let load = alloc::vec![0; members as usize];
        stripe.split(kind, offset, len, &load, &mut first, &mut then);
        (first, then)
    }

    fn count(parts: &[Part], kind: IoKind) -> usize {
        parts.iter().filter(|part| part.kind == kind).count()
    }

    #[test]
    fn a_small_write_on_raid_5_reads_twice_and_writes_twice() {
        let (first, then) = parts(Level::Raid5, 8, IoKind::Write, 5 * CHUNK, 4_096);
        assert_eq!((first.len(), count(&first, IoKind::Read)), (2, 2));
        assert_eq!((then.len(), count(&then, IoKind::Write)), (2, 2));
        assert_ne!(then[0].member, then[1].member);
    }

    #[test]
    fn a_whole_row_on_raid_5_reads_nothing() {
        let (first, then) = parts(Level::Raid5, 8, IoKind::Write, 0, 7 * CHUNK);
        assert_eq!((first.len(), count(&first, IoKind::Write)), (8, 8));
        assert!(then.is_empty());
    }

    #[test]
    fn most_of_a_row_on_raid_5_reads_only_the_rest() {
        let (first, then) = parts(Level::Raid5, 8, IoKind::Write, 0, 6 * CHUNK);
        assert_eq!((first.len(), count(&first, IoKind::Read)), (1, 1));
        assert_eq!(then.len(), 7);
    }

    #[test]
    fn parity_moves_and_no_member_is_hit_twice_in_a_row() {
        for row in 0..8 {
            let (first, _) = parts(Level::Raid5, 4, IoKind::Write, row * 3 * CHUNK, 3 * CHUNK);
            let mut members: Vec<_> = first.iter().map(|part| part.member).collect();
            assert_eq!(
                members[3],
                3 - u32::try_from(row % 4).unwrap(),
                "parity of row {row}"
            );
            members.sort_unstable();
            assert_eq!(members, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn a_mirrored_write_goes_to_every_copy_and_a_read_to_the_least_busy() {
        let (first, _) = parts(Level::Raid1, 3, IoKind::Write, 0, 4_096);
        assert_eq!(first.len(), 3);
        let (first, _) = parts(Level::Raid10, 4, IoKind::Write, CHUNK, 4_096);
        assert_eq!(
            first.iter().map(|part| part.member).collect::<Vec<_>>(),
            [2, 3]
        );
        let stripe = Stripe {
            level: Level::Raid1,
            members: 3,
            chunk: CHUNK,
        };
        let mut reads = Vec::new();
        stripe.split(
            IoKind::Read,
            0,
            4_096,
            &[4, 1, 2],
            &mut reads,
            &mut Vec::new(),
        );
        assert_eq!(reads[0].member, 1);
    }

    #[test]
    fn the_data_parts_of_any_read_cover_it_exactly_once() {
        for level in [Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid10] {
            for (offset, len) in [
                (0, 1),
                (CHUNK - 1, 2),
                (12_345, 10 * CHUNK),
                (7 * CHUNK, CHUNK),
            ] {
                let (first, then) = parts(level, 4, IoKind::Read, offset, len);
                assert_eq!(
                    first.iter().map(|part| part.len).sum::<u64>(),
                    len,
                    "{level:?}"
                );
                assert!(then.is_empty());
                let mut places: Vec<_> = first.iter().map(|p| (p.member, p.offset)).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), first.len(), "{level:?}: no place twice");
            }
        }
    }
}
