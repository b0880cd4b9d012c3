//! Caches whose flash another version of the program has written.

use super::world::World;
use tidegate_core::block::BLOCK;
use tidegate_core::layout::cache::PAGE;
use tidegate_core::layout::{Refusal, Target};

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |sum: u32| sum >> 1 ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
    let byte = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |sum, _| bit(sum));
    !bytes.iter().fold(!0, byte)
}

#[test]
fn a_cache_of_another_version_begins_empty_unless_it_has_what_the_disk_lacks() {
    let mut before = World::new(4, None);
    for _ in 0..4 {
        before.write(0, PAGE);
    }
    let mut blocks = before.blocks.clone();
    assert!(
        World::over(blocks.clone(), true).refusal.is_none(),
        "it is read"
    );
    let headers = blocks
        .values_mut()
        .filter(|block| block[..8] == *b"TIDECACH");
    let mut found = 0;
    for block in headers {
        block[8..10].copy_from_slice(&1_u16.to_le_bytes());
        let sum = crc32c(&block[..BLOCK - 4]).to_le_bytes();
        block[BLOCK - 4..].copy_from_slice(&sum);
        found += 1;
    }
    assert!(found > 0);
    let refused = World::over(blocks.clone(), true);
    assert_eq!(refused.refusal, Some(Refusal::Newer(Target(1))));
    let empty = World::over(blocks, false);
    assert_eq!(empty.refusal, None);
    assert_eq!(empty.cache().free, empty.cache().pages);
}
