//! Reads any bytes as the superblock of a pool's member, and decides with it which members can be used.
//!
//! # Always true
//! - A superblock is read, or refused with a reason.
//! - What was read is written as the same block, but for bytes to which the format gives no meaning.
//! - Which members can be used is decided for any superblock, and a pool is used only with all current ones.

use super::sealed::{differences, sealed};
use tidegate_core::block::{BLOCK, Unreadable};
use tidegate_core::pool::members::judge;
use tidegate_core::pool::superblock::{MemberState, Superblock};

/// Runs one input: as it is, and as a block with a right checksum.
pub(crate) fn run(input: &[u8]) {
    check(input);
    let refused = check(&sealed(input));
    assert_ne!(refused, Some(Unreadable::Short));
}

/// Why it is no superblock, if it is none.
fn check(bytes: &[u8]) -> Option<Unreadable> {
    let read = Superblock::decode(bytes);
    let found = [Some([read.clone(), Err(Unreadable::Empty)])];
    let pool = read.as_ref().map_or([0; 16], |one| one.pool);
    let judged = judge(pool, &found);
    let one = match read {
        Ok(one) => one,
        Err(why) => return Some(why),
    };
    assert!(usize::from(one.member) < one.members.len());
    if let Ok(standing) = judged {
        let is_there = |number: usize| number == usize::from(one.member);
        let mut members = one.members.iter().enumerate();
        assert!(members.all(|(nth, place)| place.state != MemberState::Current || is_there(nth)));
        assert_eq!(standing.generation, one.generation);
    }
    let again = one.encode();
    assert_eq!(Superblock::decode(&again).as_ref(), Ok(&one));
    assert_eq!(again[..34], one.beginning());
    let end = 128 + 8 * one.members.len();
    for at in differences(bytes, &again) {
        let is_free = match at {
            10..16 | 36..40 | 104..128 => true,
            // The end of each place in the table.
            128.. if at < end => (at - 128) % 8 >= 6,
            _ => at >= end && at < BLOCK - 4,
        };
        assert!(is_free, "byte {at} is lost");
    }
    None
}
