//! A/B comparison: variants alternate, and ratios are taken between trials of the same time.
//!
//! The bench and A/B tests share it. There are two ways to alternate:
//!
//! - Trials: each variant has a new server and a whole trial, one after the other ([`rotation`], [`until_accepted`]). For
//!   differences by factors.
//! - Slices: all servers run side by side and are measured for some milliseconds each ([`in_slices`]). For differences of a
//!   percent: a machine's speed changes by tens of percent from second to second, and both have the same of it within a
//!   fifth of a second.
//!
//! A block has one trial of each variant, with new servers: how the memory of a process happens to lie changes its speed
//! by percents. Ratios are taken within a block; [`crate::statistics`] has their median and its confidence interval.
//!
//! # Always true
//! - In a block all variants have equally many slices, and each comes as often before as after each other.
//! - A variant without a slice has no client, and sleeps.

mod variant;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::machine;
use crate::measure::Figures;
use tidegate_testing::server::own_cpu_time;

pub use variant::Started;

/// How often a trial is made before the block is given up.
pub const TRIES: usize = 3;

/// How long a slice is measured, and how long the variant works before that.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Before the window.
    pub before: Duration,
    /// The window.
    pub span: Duration,
}

/// A machine's speed changes within tens of milliseconds. Measured: five equal servers whose guests poll each differ from
/// the block's mean by 2.7 % (one standard deviation, blocks of a second) in slices of 40 ms, by 1.9 % in slices of 10 and
/// 2.0 % in slices of 5; with guests that sleep by 2.0, 2.2 and 1.6 %.
pub const BRIEF: Slice = Slice {
    before: Duration::from_millis(2),
    span: Duration::from_millis(10),
};

/// The places of `count` variants in a block: another one is first in each block. A disk may be slower after a busy
/// neighbour.
pub fn rotation(block: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| (block + place) % count)
}

/// Makes a trial until `accept` takes it, [`TRIES`] times at most; the last one.
///
/// # Errors
/// A trial fails.
pub fn until_accepted<T>(
    mut trial: impl FnMut() -> Result<T>,
    mut accept: impl FnMut(&T) -> bool,
) -> Result<T> {
    let mut made = trial()?;
    for _ in 1..TRIES {
        if accept(&made) {
            return Ok(made);
        }
        made = trial()?;
    }
    // The caller counts the last one, too.
    accept(&made);
    Ok(made)
}

/// Warms all variants up and measures them in slices, each for `span` in all; the figures of each. `stop` says before each
/// slice whether to give up.
///
/// # Errors
/// A server or a guest fails, or it was given up.
pub fn in_slices(
    mut variants: Vec<Started>,
    slice: Slice,
    (warm, span): (Duration, Duration),
    stop: &dyn Fn() -> bool,
) -> Result<Vec<Figures>> {
    for variant in &mut variants {
        variant.warm(warm)?;
    }
    let slices = span.as_nanos().div_ceil(slice.span.as_nanos());
    let slices = usize::try_from(slices).context("a trial's slices")?;
    let (from, before) = (machine::look()?, spent_by_all(&variants)?);
    for place in order(variants.len(), slices) {
        if stop() {
            bail!("given up");
        }
        variants[place].slice(slice)?;
    }
    let own = spent_by_all(&variants)?.saturating_sub(before);
    let noise = machine::between(&from, &machine::look()?, own);
    variants
        .into_iter()
        .map(|variant| variant.end(noise))
        .collect()
}

/// CPU time of all variants and of this process until now.
fn spent_by_all(variants: &[Started]) -> Result<Duration> {
    let all = variants.iter().map(Started::spent);
    Ok(all.sum::<Result<Duration>>()? + own_cpu_time()?)
}

/// The order of the slices, as each of `count` variants has `slices`: there and back again, with another one first each time.
fn order(count: usize, slices: usize) -> impl Iterator<Item = usize> {
    (0..slices).flat_map(move |slice| {
        (0..count).map(move |place| {
            let step = if slice % 2 == 0 {
                place
            } else {
                count - 1 - place
            };
            (slice / 2 + step) % count
        })
    })
}

/// The vhost-user sockets of a variant's guests in its scratch directory.
#[must_use]
pub fn sockets(scratch: &std::path::Path, guests: usize) -> Vec<PathBuf> {
    let names = (0..guests).map(|guest| scratch.join(format!("{guest}.sock")));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_have_equally_many_slices_and_each_comes_as_often_before_as_after_each_other() {
        const COUNT: usize = 5;
        let order: Vec<usize> = order(COUNT, 4 * COUNT).collect();
        let place = |block: &[usize], one| block.iter().position(|other| *other == one);
        for one in 0..COUNT {
            let slices = order.iter().filter(|other| **other == one).count();
            assert_eq!(slices, 4 * COUNT);
            for other in (0..COUNT).filter(|other| *other != one) {
                let blocks = order.chunks(COUNT);
                let before = blocks.filter(|block| place(block, one) < place(block, other));
                assert_eq!(before.count(), 2 * COUNT, "{one} before {other}");
            }
        }
    }

    #[test]
    fn a_rejected_trial_is_repeated_and_another_variant_is_first_in_each_block() {
        assert_eq!(rotation(1, 3).collect::<Vec<_>>(), [1, 2, 0]);
        let mut made = 0;
        let mut trial = || {
            made += 1;
            Ok(made)
        };
        assert_eq!(until_accepted(&mut trial, |made| *made == 2).ok(), Some(2));
        assert_eq!(until_accepted(&mut trial, |_| false).ok(), Some(2 + TRIES));
    }
}
