//! Makes a block of any bytes: its checksum is right, so that decoders go on to the fields.

use tidegate_core::block::BLOCK;

/// Bytes of the checksum, at the end.
const CHECKSUM: usize = 4;

/// The bytes, cut or padded with zeroes, with their checksum.
pub(crate) fn sealed(input: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let len = input.len().min(BLOCK - CHECKSUM);
    block[..len].copy_from_slice(&input[..len]);
    let (bytes, sum) = block.split_at_mut(BLOCK - CHECKSUM);
    sum.copy_from_slice(&crc32c(bytes).to_le_bytes());
    block
}

/// CRC32C, bit by bit: not the code that is tested.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum: u32, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            let low = sum & 1;
            sum >> 1 ^ if low == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

/// Where two blocks differ, but for the checksum.
pub(crate) fn differences(one: &[u8], other: &[u8]) -> Vec<usize> {
    (0..BLOCK - CHECKSUM)
        .filter(|at| one[*at] != other[*at])
        .collect()
}
