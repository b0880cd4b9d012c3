//! Reads any bytes as the label of a layout's member.
//!
//! # Always true
//! - A label is read, or refused with a reason.
//! - What was read is written as the same block, but for bytes to which the format gives no meaning.

use super::sealed::{differences, sealed};
use tidegate_core::block::Unreadable;
use tidegate_core::layout::LayoutSpec;
use tidegate_core::layout::label::Label;

/// Runs one input: as it is, and as a block with a right checksum.
pub(crate) fn run(input: &[u8]) {
    check(input);
    let refused = check(&sealed(input));
    assert_ne!(refused, Some(Unreadable::Short));
}

/// Why it is no label, if it is none.
fn check(bytes: &[u8]) -> Option<Unreadable> {
    let label = match Label::decode(bytes) {
        Ok(label) => label,
        Err(why) => return Some(why),
    };
    assert!(label.member < label.members);
    let again = label.encode();
    assert_eq!(Label::decode(&again[..]), Ok(label));
    for at in differences(bytes, &again[..]) {
        let free = match at {
            10..16 | 36..40 | 56.. => true,
            // Only stripes have chunks.
            40..48 => label.layout == LayoutSpec::Mirror,
            _ => false,
        };
        assert!(free, "byte {at} is lost");
    }
    None
}
