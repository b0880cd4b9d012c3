//! Reads any bytes as what a flash cache writes for itself: labels of devices, headers, and blocks of the journal.
//!
//! # Always true
//! - A block is read, or refused with a reason.
//! - A label, a generation and a header that were read are written as the same block, but for bytes without a meaning.
//! - What a journal's block says does not contradict itself.

use super::sealed::{differences, sealed};
use tidegate_core::block::Unreadable;
use tidegate_core::layout::cache::blocks::{Header, Journalled};
use tidegate_core::layout::cache::label::{DeviceLabel, SeenRecord};

/// Runs one input: as it is, and as a block with a right checksum.
pub(crate) fn run(input: &[u8]) {
    let bare = [label, seen, header, journal].map(|check| check(input));
    must_be_one(&bare);
    let block = sealed(input);
    let whole = [label, seen, header, journal].map(|check| check(&block));
    must_be_one(&whole);
    assert!(!whole.contains(&Some(Unreadable::Short)));
}

/// Each kind has a beginning of its own.
fn must_be_one(refused: &[Option<Unreadable>]) {
    let read = refused.iter().filter(|why| why.is_none()).count();
    assert!(read <= 1, "it is read as {read} kinds of block");
}

fn label(bytes: &[u8]) -> Option<Unreadable> {
    let label = match DeviceLabel::decode(bytes) {
        Ok(label) => label,
        Err(why) => return Some(why),
    };
    assert!(label.device < label.devices);
    let again = label.encode();
    assert_eq!(DeviceLabel::decode(&again), Ok(label));
    must_be_free(bytes, &again, |at| matches!(at, 28..32 | 48..));
    None
}

fn seen(bytes: &[u8]) -> Option<Unreadable> {
    let seen = match SeenRecord::decode(bytes) {
        Ok(seen) => seen,
        Err(why) => return Some(why),
    };
    let again = seen.encode();
    assert_eq!(SeenRecord::decode(&again), Ok(seen));
    must_be_free(bytes, &again, |at| at >= 34);
    None
}

fn header(bytes: &[u8]) -> Option<Unreadable> {
    let header = match Header::decode(bytes) {
        Ok(header) => header,
        Err(why) => return Some(why),
    };
    assert!(header.device < header.devices);
    let again = header.encode();
    must_be_free(bytes, &again[..], |at| matches!(at, 10..16 | 103..));
    assert_eq!(Header::decode(&again[..]), Ok(header));
    None
}

fn journal(bytes: &[u8]) -> Option<Unreadable> {
    let block = match Journalled::decode(bytes) {
        Ok(block) => block,
        Err(why) => return Some(why),
    };
    assert!(block.sweep.tail <= block.sweep.from && block.sweep.from <= block.sequence);
    assert!(block.named.is_none_or(|named| named.in_sync() != 0));
    for record in &block.records {
        let mut blocks = 0;
        for place in record.places.iter().flatten() {
            assert_eq!(place.valid & blocks, 0, "a block is in one slot");
            assert_eq!(place.dirty & !place.valid, 0);
            blocks |= place.valid;
            let checks = (0..16).filter(|block| place.valid >> block & 1 == 0);
            assert!(checks.into_iter().all(|block| place.checks[block] == 0));
        }
    }
    None
}

/// Fails if bytes with a meaning were lost.
fn must_be_free(before: &[u8], after: &[u8], is_free: impl Fn(usize) -> bool) {
    for at in differences(before, after) {
        assert!(is_free(at), "byte {at} is lost");
    }
}
