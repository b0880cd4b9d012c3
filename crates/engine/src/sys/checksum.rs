//! CRC32C of memory that others may write to meanwhile: a guest's.
//!
//! Rust has no read of such memory that a library for checksums could use: it would first be copied. The processor's own
//! instruction reads it here, in three streams, because its result takes three cycles and one may begin in each. The
//! streams are joined by carry-less multiplication.
//!
//! # Source
//! Gopal et al., Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction, Intel, 2011.

use super::guest::Segment;

/// The CRC32C of these pieces, one after another.
pub(crate) fn crc32c(pieces: impl Iterator<Item = Segment>) -> u32 {
    let mut state = !0;
    for piece in pieces {
        let start = piece.0.iov_base.cast::<u8>();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq") {
            // SAFETY: a segment is valid memory of its length (module invariant), and the processor has the instructions.
            state = unsafe { x86::update(state, start, piece.len()) };
            continue;
        }
        state = copied(state, start, piece.len());
    }
    !state
}

/// The same by copies, for processors without such instructions.
fn copied(mut state: u32, start: *const u8, len: usize) -> u32 {
    let mut copy = [0; 512];
    let mut done = 0;
    while done < len {
        let now = &mut copy[..(len - done).min(512)];
        let from = start.wrapping_add(done);
        // SAFETY: the caller's segment is valid memory of `len` bytes; `copy` is our own.
        unsafe { std::ptr::copy_nonoverlapping(from, now.as_mut_ptr(), now.len()) };
        state = !crc32c::crc32c_append(!state, now);
        done += now.len();
    }
    state
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_xor_si128,
    };

    /// Bytes that three streams take, and of these each.
    const BLOCK: usize = 4096 - 16;
    const STREAM: usize = BLOCK / 3;
    /// Words of each stream in one turn of the loop.
    const TURN: usize = 17;

    const _: () = assert!(STREAM.is_multiple_of(8 * TURN));

    /// Goes on with `len` bytes.
    ///
    /// # Safety
    /// They are valid memory, and the processor has the instructions.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(super) unsafe fn update(mut state: u32, start: *const u8, len: usize) -> u32 {
        let mut at = start;
        let mut left = len;
        while left >= BLOCK {
            // SAFETY: so many bytes are left.
            state = unsafe { block(state, at) };
            at = at.wrapping_add(BLOCK);
            left -= BLOCK;
        }
        let mut wide = u64::from(state);
        while left >= 8 {
            // SAFETY: eight bytes are left.
            unsafe {
                asm!("crc32 {wide}, qword ptr [{at}]", wide = inout(reg) wide, at = in(reg) at,
                    options(nostack, readonly, preserves_flags));
            }
            at = at.wrapping_add(8);
            left -= 8;
        }
        let mut state = low(wide);
        while left > 0 {
            // SAFETY: a byte is left.
            unsafe {
                asm!("crc32 {state:e}, byte ptr [{at}]", state = inout(reg) state, at = in(reg) at,
                    options(nostack, readonly, preserves_flags));
            }
            at = at.wrapping_add(1);
            left -= 1;
        }
        state
    }

    /// Goes on with [`BLOCK`] bytes, in three streams.
    ///
    /// # Safety
    /// They are valid memory, and the processor has the instructions.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    unsafe fn block(state: u32, start: *const u8) -> u32 {
        let (mut a, mut b, mut c) = (u64::from(state), 0_u64, 0_u64);
        // SAFETY: the three streams are within the block.
        unsafe {
            asm!(
                "2:",
                ".set tidegate_at, 0",
                ".rept {turn}",
                "crc32 {a}, qword ptr [{at} + tidegate_at]",
                "crc32 {b}, qword ptr [{at} + tidegate_at + {stream}]",
                "crc32 {c}, qword ptr [{at} + tidegate_at + 2*{stream}]",
                ".set tidegate_at, tidegate_at + 8",
                ".endr",
                "add {at}, 8*{turn}",
                "cmp {at}, {end}",
                "jne 2b",
                a = inout(reg) a,
                b = inout(reg) b,
                c = inout(reg) c,
                at = inout(reg) start => _,
                end = in(reg) start.wrapping_add(STREAM),
                turn = const TURN,
                stream = const STREAM,
                options(nostack, readonly),
            );
        }
        const OVER_TWO: i64 = shift(2 * STREAM);
        const OVER_ONE: i64 = shift(STREAM);
        let word = |value: u64| _mm_cvtsi64_si128(value.cast_signed());
        let a = _mm_clmulepi64_si128::<0>(word(a), _mm_cvtsi64_si128(OVER_TWO));
        let b = _mm_clmulepi64_si128::<0>(word(b), _mm_cvtsi64_si128(OVER_ONE));
        let both = _mm_cvtsi128_si64(_mm_xor_si128(a, b)).cast_unsigned();
        low(_mm_crc32_u64(0, both) ^ c)
    }

    /// What a state is multiplied by to go on with so many zero bytes, less the 33 bits by which the product of two states
    /// and its reduction shift it already.
    const fn shift(bytes: usize) -> i64 {
        let mut power = 1_u32 << 31;
        let mut bits = 8 * bytes - 33;
        while bits > 0 {
            power = power >> 1 ^ if power & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bits -= 1;
        }
        power as i64
    }

    /// A state is in the lower half.
    fn low(wide: u64) -> u32 {
        u32::try_from(wide & u64::from(u32::MAX)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes with no pattern.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_be_bytes()[0]
        };
        std::iter::repeat_with(&mut next).take(len).collect()
    }

    fn in_pieces(bytes: &mut [u8], cut: usize) -> u32 {
        let (first, second) = bytes.split_at_mut(cut);
        let pieces = [first, second].map(|piece| Segment::new(piece.as_mut_ptr(), piece.len()));
        crc32c(pieces.into_iter())
    }

    #[test]
    fn the_sum_is_that_of_the_library_whatever_the_length_and_the_pieces() {
        let mut bytes = noise(20_000);
        for len in [
            0, 1, 7, 8, 9, 4079, 4080, 4081, 4095, 4096, 8160, 12_345, 20_000,
        ] {
            for cut in [0, 1, 5, 512, 4096, 4101] {
                let bytes = &mut bytes[..len];
                let expected = crc32c::crc32c(bytes);
                assert_eq!(in_pieces(bytes, cut.min(len)), expected, "{len} at {cut}");
                assert_eq!(!copied(!0, bytes.as_ptr(), len), expected, "copied: {len}");
            }
        }
    }
}
