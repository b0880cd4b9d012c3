//! A seeded random number generator: the model's only source of randomness.
//!
//! The generator is SplitMix64. It has eight bytes of state, is equidistributed, takes a few nanoseconds per draw, and
//! accepts any seed including zero. It is not cryptographically secure. It uses integer arithmetic only, so a seed
//! gives the same numbers on every machine and with every compiler.
//!
//! # Source
//! Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014 (the 64-bit finaliser variant
//! that is in the public domain).

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

/// Binary digits of the fractions that [`Random::exponential`] computes with.
const FRACTION: u32 = 16;

/// The natural logarithm of 2 with [`FRACTION`] binary digits.
const LN_2: u64 = 45_426;

impl Random {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next 64 random bits.
    pub const fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; zero when `bound` is zero. Its bias is at most `bound / 2^64`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.draw() as u128 * bound as u128) >> 64) as u64
    }

    /// True `permille` times in a thousand.
    pub const fn chance(&mut self, permille: u32) -> bool {
        self.below(1_000) < permille as u64
    }

    /// A draw from the exponential distribution with this mean; at most 45 times the mean.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "45 x mean: means are validated far below"
    )]
    pub const fn exponential(&mut self, mean: u64) -> u64 {
        // -ln(u) for u uniform in (0, 1], written as (64 - log2(U)) * ln 2 for U uniform in [1, 2^64).
        let exponent = (64 << FRACTION) - log2(self.draw() | 1);
        ((mean as u128 * exponent as u128 * LN_2 as u128) >> (2 * FRACTION)) as u64
    }
}

/// The binary logarithm of `x > 0` with [`FRACTION`] binary digits, rounded down: by repeated squaring.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the mantissa stays below 2^64 by construction"
)]
const fn log2(x: u64) -> u64 {
    let whole = x.ilog2();
    let mut mantissa = x << (63 - whole);
    let mut log = whole as u64;
    let mut digit = 0;
    while digit < FRACTION {
        let squared = (mantissa as u128 * mantissa as u128) >> 63;
        let carry = (squared >> 64) as u32;
        mantissa = (squared >> carry) as u64;
        log = log << 1 | carry as u64;
        digit += 1;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_numbers() {
        let (mut a, mut b) = (Random::new(9), Random::new(9));
        for _ in 0..100 {
            assert_eq!(a.draw(), b.draw());
        }
        assert_ne!(Random::new(1).draw(), Random::new(2).draw());
    }

    #[test]
    fn seed_zero_starts_with_the_published_value() {
        assert_eq!(Random::new(0).draw(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn powers_of_two_have_exact_logarithms() {
        for power in 0..64 {
            assert_eq!(log2(1 << power), power << FRACTION);
        }
        // log2(3) = 1.58496...
        assert_eq!(log2(3), 103_872);
    }

    #[test]
    fn exponential_draws_have_the_right_mean_and_variance() {
        let mut random = Random::new(1);
        let (n, mean) = (200_000_u64, 1_000_000_u64);
        let (mut sum, mut above, mut squares) = (0_u64, 0_u64, 0_u128);
        for _ in 0..n {
            let x = random.exponential(mean);
            sum += x;
            squares += u128::from(x) * u128::from(x);
            above += u64::from(x > mean);
        }
        let measured = sum / n;
        assert!(measured.abs_diff(mean) < mean / 100, "mean {measured}");
        // Variance equals the square of the mean; 1/e of the draws lie above it.
        let second = squares / u128::from(n);
        assert!(
            second.abs_diff(2_000_000_000_000) < 50_000_000_000,
            "second moment {second}"
        );
        assert!((above * 1_000 / n).abs_diff(368) < 8, "above {above}");
    }

    #[test]
    fn numbers_below_a_bound_are_below_it_and_reach_it() {
        let mut random = Random::new(3);
        let mut seen = [false; 10];
        for _ in 0..1_000 {
            seen[usize::try_from(random.below(10)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }
}
