//! Reads any bytes as a header or a root of a pool's disk.
//!
//! Input: what a block has.
//!
//! # Always true
//! - A header or a root is read, or refused with a reason.
//! - What was read is written as the same block, but for bytes to which the format gives no meaning.

use super::sealed::{differences, sealed};
use tidegate_core::block::Unreadable;
use tidegate_core::layout::pool::{EXTENTS_MAX, GENERATIONS_MAX, Header, MARKS_MAX, Root};

/// Runs one input: as it is, and as a block with a right checksum.
pub(crate) fn run(input: &[u8]) {
    let _ = (header(input), root(input));
    let input = sealed(input);
    assert_ne!(header(&input).err(), Some(Unreadable::Short));
    assert_ne!(root(&input).err(), Some(Unreadable::Short));
}

fn header(bytes: &[u8]) -> Result<(), Unreadable> {
    let header = Header::decode(bytes)?;
    let (extents, marks) = (header.extents.len(), header.marks.len());
    assert!(extents <= EXTENTS_MAX as usize && marks <= MARKS_MAX);
    assert!(header.marks.iter().all(|mark| !mark.is_free()));
    let again = header.encode();
    assert_eq!(Header::decode(&again[..]), Ok(header));
    let marks_at = 96 + 12 * EXTENTS_MAX as usize;
    for at in differences(bytes, &again[..]) {
        let free = match at {
            10..16 | 78..96 => true,
            96.. if at < marks_at => (at - 96) / 12 >= extents || (at - 96) % 12 >= 10,
            _ => at >= marks_at && ((at - marks_at) / 12 >= marks || (at - marks_at) % 12 >= 10),
        };
        assert!(free, "byte {at} is lost");
    }
    Ok(())
}

fn root(bytes: &[u8]) -> Result<(), Unreadable> {
    let root = Root::decode(bytes)?;
    let count = root.generations.len();
    assert!((1..=GENERATIONS_MAX).contains(&count));
    assert!(root.generations.is_sorted_by(|a, b| a.number < b.number));
    let again = root.encode();
    assert_eq!(Root::decode(&again[..]), Ok(root));
    for at in differences(bytes, &again[..]) {
        let free = matches!(at, 10..16 | 76..96) || at >= 96 + 8 * count;
        assert!(free, "byte {at} is lost");
    }
    Ok(())
}
