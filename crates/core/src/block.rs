//! A 4 KiB block of our own on a datastore: magic, version, fields and a checksum.
//!
//! Hosts exchange them ([`governor`](crate::governor)), and layouts keep their state in them ([`layout`](crate::layout)).
//!
//! # Always true
//! - `Reader::open` returns a result for any bytes of any length, and never panics.
//! - Of a block from another version, only the version is read.
//!
//! # Picture
//! ```text
//!    0  magic 8, version 2
//!   10  the fields
//! 4092  CRC32C of all before it 4
//! ```
//!
//! # Units
//! Little-endian.

/// A block's length. A datastore writes it whole, or the checksum detects that it did not. Origin: the file format,
/// version 1.
pub const BLOCK: usize = 4096;

const CRC_AT: usize = BLOCK - 4;

/// Why bytes are not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// All zero: unused.
    Empty,
    /// Shorter or longer than a block.
    Short,
    /// Another kind of data.
    Foreign,
    /// A version that this program does not know.
    Newer(u16),
    /// Partly old, or corrupted.
    Torn,
}

/// Writes one field after another.
pub(crate) struct Writer {
    bytes: [u8; BLOCK],
    at: usize,
}

impl Writer {
    /// An empty block of this kind.
    pub(crate) fn new(magic: [u8; 8], version: u16) -> Writer {
        let mut out = Writer {
            bytes: [0; BLOCK],
            at: 0,
        };
        out.put(&magic);
        out.put(&version.to_le_bytes());
        out
    }

    pub(crate) fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    /// Moves to this offset.
    pub(crate) fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    /// The finished block, with its checksum.
    pub(crate) fn finish(mut self) -> [u8; BLOCK] {
        seal(&mut self.bytes);
        self.bytes
    }
}

/// Reads one field after another from a block of full length.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// Checks the start and the end of a block. The reader is then positioned after the version.
    pub(crate) fn open(
        bytes: &[u8],
        magic: [u8; 8],
        version: u16,
    ) -> Result<Reader<'_>, Unreadable> {
        if bytes.len() != BLOCK {
            return Err(Unreadable::Short);
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(Unreadable::Empty);
        }
        let mut from = Reader { bytes, at: 0 };
        if from.take() != magic {
            return Err(Unreadable::Foreign);
        }
        if bytes[CRC_AT..] != crc32c(&bytes[..CRC_AT]).to_le_bytes() {
            return Err(Unreadable::Torn);
        }
        let wrote = u16::from_le_bytes(from.take());
        if wrote != version {
            return Err(Unreadable::Newer(wrote));
        }
        Ok(from)
    }

    /// A reader at this offset that ignores the checksum; `None` if the block is of another kind.
    pub(crate) fn peek(bytes: &[u8], magic: [u8; 8], at: usize) -> Option<Reader<'_>> {
        (bytes.len() == BLOCK && bytes[..8] == magic).then_some(Reader { bytes, at })
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    /// Where the next field is.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Moves to this offset.
    pub(crate) fn go_to(&mut self, at: usize) {
        self.at = at;
    }
}

/// Writes the checksum at the end.
pub(crate) fn seal(bytes: &mut [u8; BLOCK]) {
    let sum = crc32c(&bytes[..CRC_AT]);
    bytes[CRC_AT..].copy_from_slice(&sum.to_le_bytes());
}

/// CRC32C (Castagnoli) of bytes, eight at a time: a mirror seals a block for each member whenever its state changes.
///
/// # Source
/// Kounavis and Berry, "Novel Table Lookup-Based Algorithms for High-Performance CRC Generation" (2008): slicing by 8.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut sum: u32 = !0;
    for &[a, b, c, d, e, f, g, h] in eights {
        let [p, q, r, s] = (sum ^ u32::from_le_bytes([a, b, c, d])).to_le_bytes();
        let table = |number: usize, byte: u8| TABLES[7 - number][usize::from(byte)];
        sum = table(0, p) ^ table(1, q) ^ table(2, r) ^ table(3, s);
        sum ^= table(4, e) ^ table(5, f) ^ table(6, g) ^ table(7, h);
    }
    for &byte in rest {
        let [low, ..] = sum.to_le_bytes();
        sum = TABLES[0][usize::from(low ^ byte)] ^ sum >> 8;
    }
    !sum
}

/// Table n: what a byte does to the checksum once n bytes of zero have followed it.
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte: u32 = 0;
    while byte < 256 {
        let mut sum = byte;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ 0x82f6_3b78
            } else {
                sum >> 1
            };
            bit += 1;
        }
        tables[0][byte as usize] = sum;
        byte += 1;
    }
    let mut number = 1;
    while number < 8 {
        let mut byte = 0;
        while byte < 256 {
            let sum: u32 = tables[number - 1][byte];
            tables[number][byte] = tables[0][(sum & 0xff) as usize] ^ sum >> 8;
            byte += 1;
        }
        number += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"TIDETEST";

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn fields_are_read_as_they_were_written_and_a_field_may_have_its_place() {
        let mut out = Writer::new(MAGIC, 3);
        out.put(&[7; 4]);
        out.go_to(4_000);
        out.put(&5_u64.to_le_bytes());
        let bytes = out.finish();
        let mut from = Reader::open(&bytes, MAGIC, 3).ok().unwrap();
        assert_eq!(from.take(), [7; 4]);
        from.go_to(4_000);
        assert_eq!(u64::from_le_bytes(from.take()), 5);
    }

    #[test]
    fn invalid_blocks_are_classified() {
        let why = |bytes: &[u8]| Reader::open(bytes, MAGIC, 3).err();
        let bytes = Writer::new(MAGIC, 3).finish();
        assert_eq!(why(&bytes), None);
        assert_eq!(why(&bytes[1..]), Some(Unreadable::Short));
        assert_eq!(why(&[0; BLOCK]), Some(Unreadable::Empty));
        assert_eq!(
            why(&Writer::new([9; 8], 3).finish()),
            Some(Unreadable::Foreign)
        );
        assert_eq!(
            why(&Writer::new(MAGIC, 4).finish()),
            Some(Unreadable::Newer(4))
        );
        let mut torn = bytes;
        torn[9] ^= 1;
        assert_eq!(why(&torn), Some(Unreadable::Torn), "none of it is used");
    }
}
