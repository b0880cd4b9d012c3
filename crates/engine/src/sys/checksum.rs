//! Checksums of blocks in memory that others may write to meanwhile: a guest's.
//!
//! Rust has no read of such memory that a library for checksums could use: it would first be copied. A flash cache checks
//! every block that it answers from, so the sum is a part of each hit: it must be cheap before all. One round of AES takes
//! sixteen bytes in one instruction, and spreads each of their bits over four bytes of the state, in each of the rounds that
//! follow over all of it. Eight states take turns, because the result of an instruction takes some cycles.
//!
//! It finds decay and blocks of another age or place. It is no protection from someone who makes up bytes: the keys are known.
//!
//! # Format
//! It is stored on flash: every version of the program must compute the same.
//! - the bytes, in words of 16, with zeros up to a multiple of [`STRIDE`] bytes
//! - word `n` enters state `n mod 8`: `state = round(state) ^ word`, from [`SEEDS`] on
//! - the states enter the first one in the same way, then the length, then two words of zeros
//! - the sum is the exclusive or of the four words of 32 bits of the result
//!
//! # Source
//! FIPS 197 for the round, as the instruction AESENC performs it. aHash and Meow hash for its use without secrets.

use super::guest::Segment;

/// States that take turns.
const LANES: usize = 8;
/// Bytes that they take in one turn of the loop.
const STRIDE: usize = 512;
/// Bytes of a block of a cache. So many are copied at a time if they are in several pieces.
const BLOCK: usize = 4096;

const _: () = assert!(STRIDE.is_multiple_of(16 * LANES) && BLOCK.is_multiple_of(4 * STRIDE));

/// What the states begin with: the hexadecimal digits of pi after the point.
const SEEDS: [u128; LANES] = [
    0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0_082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377_be54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd_3f84_d5b5_b547_0917,
    0x9216_d5d9_8979_fb1b_d131_0ba6_98df_b5ac,
    0x2ffd_72db_d01a_dfb7_b8e1_afed_6a26_7e96,
    0xba7c_9045_f12c_7f99_24a1_9947_b391_6cf7,
    0x0801_f2e2_858e_fc16_6369_20d8_7157_4e69,
];

/// How this processor computes sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum {
    /// Whether it has the instructions.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "there are none")
    )]
    is_native: bool,
}

impl Checksum {
    /// Asks the processor.
    pub(crate) fn new() -> Checksum {
        #[cfg(target_arch = "x86_64")]
        let is_native = is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx");
        #[cfg(not(target_arch = "x86_64"))]
        let is_native = false;
        Checksum { is_native }
    }

    /// The sum of these pieces, one after another.
    pub(crate) fn of(self, mut pieces: impl Iterator<Item = Segment>) -> u32 {
        let (first, second) = (pieces.next(), pieces.next());
        match (first, second) {
            (Some(only), None) => self.of_piece(&only),
            (first, second) => of_copies(first.into_iter().chain(second).chain(pieces)),
        }
    }

    /// The sum of one piece.
    #[inline(always)]
    pub(crate) fn of_piece(self, piece: &Segment) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self.is_native {
            let start = piece.0.iov_base.cast::<u8>();
            if piece.len() == BLOCK {
                // SAFETY: a segment is valid memory of its length (module invariant), and the processor has the instructions.
                return unsafe { x86::sum_of_block(start) };
            }
            // SAFETY: as above.
            return unsafe { x86::sum(start, piece.len()) };
        }
        let same = Segment::new(piece.0.iov_base.cast(), piece.len());
        of_copies(std::iter::once(same))
    }
}

/// The sum of pieces that are copied first.
fn of_copies(pieces: impl Iterator<Item = Segment>) -> u32 {
    let mut states = SEEDS;
    let mut copy = [0_u8; BLOCK];
    let (mut full, mut len) = (0, 0);
    for piece in pieces {
        let start = piece.0.iov_base.cast::<u8>();
        let mut done = 0;
        while done < piece.len() {
            let now = &mut copy[full..];
            let count = (piece.len() - done).min(now.len());
            let from = start.wrapping_add(done);
            // SAFETY: a segment is valid memory of its length (module invariant); the copy is our own, and long enough.
            unsafe { std::ptr::copy_nonoverlapping(from, now.as_mut_ptr(), count) };
            (done, full, len) = (done + count, full + count, len + count as u128);
            if full == BLOCK {
                states = take(states, &copy);
                full = 0;
            }
        }
    }
    let rest = full.next_multiple_of(STRIDE);
    copy[full..rest].fill(0);
    states = take(states, &copy[..rest]);
    let [first, others @ ..] = states;
    let ends = [len, 0, 0];
    let end = others.into_iter().chain(ends).fold(first, portable::round);
    folded(end)
}

/// The states after some words more.
fn take(mut states: [u128; LANES], bytes: &[u8]) -> [u128; LANES] {
    let (words, _) = bytes.as_chunks::<16>();
    for (nth, word) in words.iter().enumerate() {
        let state = &mut states[nth % LANES];
        *state = portable::round(*state, u128::from_le_bytes(*word));
    }
    states
}

fn folded(state: u128) -> u32 {
    let word = |nth: u32| u32::try_from(state >> (32 * nth) & u128::from(u32::MAX)).unwrap_or(0);
    word(0) ^ word(1) ^ word(2) ^ word(3)
}

/// The round in plain arithmetic.
mod portable {
    /// A round of AES with a word as its key: bytes are substituted, rows shifted, columns mixed.
    pub(super) fn round(state: u128, word: u128) -> u128 {
        let bytes = state.to_le_bytes();
        let mut mixed = [0; 16];
        for column in 0..4 {
            let mut sum = 0;
            for (row, turned) in [0, 8, 16, 24].into_iter().enumerate() {
                let byte = bytes[(4 * (column + row) + row) % 16];
                sum ^= COLUMNS[usize::from(byte)].rotate_left(turned);
            }
            mixed[4 * column..][..4].copy_from_slice(&sum.to_le_bytes());
        }
        u128::from_le_bytes(mixed) ^ word
    }

    /// What a byte of the first row adds to its column, once it is substituted.
    static COLUMNS: [u32; 256] = {
        let mut columns = [0; 256];
        let (mut place, mut byte) = (0, 0_u8);
        while place < columns.len() {
            let once = substituted(byte);
            let twice = times(once, 2);
            columns[place] = u32::from_le_bytes([twice, once, once, twice ^ once]);
            (place, byte) = (place + 1, byte.wrapping_add(1));
        }
        columns
    };

    /// The S-box: the inverse in GF(2^8), and an affine map.
    const fn substituted(byte: u8) -> u8 {
        // The inverse is the 254th power.
        let (mut inverse, mut nth) = (1, 0);
        while nth < 254 {
            inverse = times(inverse, byte);
            nth += 1;
        }
        let turned = inverse.rotate_left(1) ^ inverse.rotate_left(2);
        inverse ^ turned ^ inverse.rotate_left(3) ^ inverse.rotate_left(4) ^ 0x63
    }

    /// The product in GF(2^8), modulo x^8 + x^4 + x^3 + x + 1.
    const fn times(mut left: u8, mut right: u8) -> u8 {
        let mut product = 0;
        while right > 0 {
            if right & 1 == 1 {
                product ^= left;
            }
            left = left << 1 ^ if left & 0x80 == 0 { 0 } else { 0x1b };
            right >>= 1;
        }
        product
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK, LANES, SEEDS, STRIDE};
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, _mm_aesenc_si128, _mm_cvtsi128_si32, _mm_setzero_si128, _mm_shuffle_epi32,
        _mm_xor_si128,
    };

    /// The sum of `len` bytes.
    ///
    /// # Safety
    /// They are valid memory, and the processor has the instructions.
    #[target_feature(enable = "aes,avx")]
    pub(super) unsafe fn sum(start: *const u8, len: usize) -> u32 {
        let whole = len / STRIDE * STRIDE;
        let mut states = SEEDS.map(word);
        if whole > 0 {
            // SAFETY: so many bytes are there.
            states = unsafe { take::<1>(states, start, whole) };
        }
        if len > whole {
            let mut rest = [0_u8; STRIDE];
            let from = start.wrapping_add(whole);
            // SAFETY: so many bytes are left, fewer than a stride; the copy is our own.
            unsafe { std::ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), len - whole) };
            // SAFETY: a stride is there.
            states = unsafe { take::<1>(states, rest.as_ptr(), STRIDE) };
        }
        end(states, len)
    }

    /// The sum of [`BLOCK`] bytes.
    ///
    /// # Safety
    /// They are valid memory, and the processor has the instructions.
    #[target_feature(enable = "aes,avx")]
    pub(super) unsafe fn sum_of_block(start: *const u8) -> u32 {
        // SAFETY: so many bytes are there.
        let states = unsafe { take::<4>(SEEDS.map(word), start, BLOCK) };
        end(states, BLOCK)
    }

    #[inline]
    #[target_feature(enable = "aes,avx")]
    fn end(states: [__m128i; LANES], len: usize) -> u32 {
        let [first, others @ ..] = states;
        let mut end = first;
        for other in others {
            end = _mm_aesenc_si128(end, other);
        }
        end = _mm_aesenc_si128(end, word(len as u128));
        let none = _mm_setzero_si128();
        end = _mm_aesenc_si128(_mm_aesenc_si128(end, none), none);
        end = _mm_xor_si128(end, _mm_shuffle_epi32::<0b00_01_10_11>(end));
        end = _mm_xor_si128(end, _mm_shuffle_epi32::<0b10_11_00_01>(end));
        _mm_cvtsi128_si32(end).cast_unsigned()
    }

    fn word(bits: u128) -> __m128i {
        // SAFETY: both are 16 bytes of any value.
        unsafe { std::mem::transmute(bits) }
    }

    /// The states after so many bytes more, some turns of so many strides.
    ///
    /// # Safety
    /// They are valid memory, and the processor has the instructions.
    #[inline]
    #[target_feature(enable = "aes,avx")]
    unsafe fn take<const STRIDES: usize>(
        states: [__m128i; LANES],
        start: *const u8,
        len: usize,
    ) -> [__m128i; LANES] {
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = states;
        // SAFETY: the loop reads from the start to the end, which the caller has.
        unsafe {
            asm!(
                "2:",
                ".set tidegate_at, 0",
                ".rept {turns}",
                "vaesenc {a}, {a}, xmmword ptr [{at} + tidegate_at]",
                "vaesenc {b}, {b}, xmmword ptr [{at} + tidegate_at + 16]",
                "vaesenc {c}, {c}, xmmword ptr [{at} + tidegate_at + 32]",
                "vaesenc {d}, {d}, xmmword ptr [{at} + tidegate_at + 48]",
                "vaesenc {e}, {e}, xmmword ptr [{at} + tidegate_at + 64]",
                "vaesenc {f}, {f}, xmmword ptr [{at} + tidegate_at + 80]",
                "vaesenc {g}, {g}, xmmword ptr [{at} + tidegate_at + 96]",
                "vaesenc {h}, {h}, xmmword ptr [{at} + tidegate_at + 112]",
                ".set tidegate_at, tidegate_at + 128",
                ".endr",
                "add {at}, {stride}",
                "cmp {at}, {end}",
                "jne 2b",
                a = inout(xmm_reg) a,
                b = inout(xmm_reg) b,
                c = inout(xmm_reg) c,
                d = inout(xmm_reg) d,
                e = inout(xmm_reg) e,
                f = inout(xmm_reg) f,
                g = inout(xmm_reg) g,
                h = inout(xmm_reg) h,
                at = inout(reg) start => _,
                end = in(reg) start.wrapping_add(len),
                turns = const STRIDES * STRIDE / (16 * LANES),
                stride = const STRIDES * STRIDE,
                options(nostack, readonly),
            );
        }
        [a, b, c, d, e, f, g, h]
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

    fn piece(bytes: &mut [u8]) -> Segment {
        Segment::new(bytes.as_mut_ptr(), bytes.len())
    }

    fn whole(bytes: &mut [u8]) -> u32 {
        Checksum::new().of_piece(&piece(bytes))
    }

    /// FIPS 197, appendix B, round 1: what the state is at its start and after it, and its key.
    #[test]
    fn a_round_is_that_of_the_standard() {
        let word = |text: &str| u128::from_str_radix(text, 16).expect("digits").swap_bytes();
        let start = word("193de3bea0f4e22b9ac68d2ae9f84808");
        let key = word("a0fafe1788542cb123a339392a6c7605");
        let end = word("a49c7ff2689f352b6b5bea43026a5049");
        assert_eq!(portable::round(start, key), end);
    }

    #[test]
    fn a_sum_is_the_same_on_every_processor_whatever_the_length_and_the_pieces() {
        let mut bytes = noise(20_001);
        let bytes = &mut bytes[1..];
        for len in [
            0, 1, 15, 16, 511, 512, 513, 4095, 4096, 4097, 8192, 12_345, 20_000,
        ] {
            let bytes = &mut bytes[..len];
            let expected = whole(bytes);
            assert_eq!(of_copies([piece(bytes)].into_iter()), expected, "{len}");
            for cut in [0, 1, 5, 512, 4096, 4101] {
                let (first, second) = bytes.split_at_mut(cut.min(len));
                let pieces = [piece(first), piece(second)];
                let cut_sum = Checksum::new().of(pieces.into_iter());
                assert_eq!(cut_sum, expected, "{len} at {cut}");
            }
        }
    }

    /// What is on flash must be readable by the next version.
    #[test]
    fn sums_are_those_of_the_format() {
        let of = |mut bytes: Vec<u8>| whole(&mut bytes);
        assert_eq!(of(vec![]), SUMS[0]);
        assert_eq!(of(vec![0; 4096]), SUMS[1]);
        assert_eq!(of(noise(4096)), SUMS[2]);
    }

    /// Each bit counts, and so does the order of words and sectors: in all and in the sixteen bits that a cache keeps.
    #[test]
    fn what_decays_or_is_exchanged_has_another_sum() {
        let mut bytes = noise(4096);
        let right = whole(&mut bytes);
        let kept = |sum: u32| (sum ^ sum >> 16) & 0xffff;
        let (mut passed, mut tried) = (0, 0);
        for at in 0..4096 {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                let sum = whole(&mut bytes);
                assert_ne!(sum, right, "bit {bit} of byte {at}");
                (passed, tried) = (passed + u32::from(kept(sum) == kept(right)), tried + 1);
                bytes[at] ^= 1 << bit;
            }
        }
        // One of 65,536 passes, of 32,768.
        assert!(passed <= 5, "{passed} of {tried}");
        for (unit, count) in [(16, 256), (128, 32), (512, 8)] {
            for nth in 0..count - 1 {
                let (left, right_half) = bytes.split_at_mut((nth + 1) * unit);
                left[nth * unit..].swap_with_slice(&mut right_half[..unit]);
                assert_ne!(whole(&mut bytes), right, "units {nth} of {unit} bytes");
                let (left, right_half) = bytes.split_at_mut((nth + 1) * unit);
                left[nth * unit..].swap_with_slice(&mut right_half[..unit]);
            }
        }
    }

    /// Of no bytes, of 4096 zeros, and of [`noise`]: computed by another program.
    const SUMS: [u32; 3] = [0xffb3_71ed, 0x5efa_9be4, 0xcbc9_80f4];
}
