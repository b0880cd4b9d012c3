//! Shadows: several policies simulated on a sample of a disk's pages, and the choice among them.
//!
//! A page is in the sample if its hash is below a threshold. A cache of a part of the slots, which sees the same part of the
//! pages, has nearly the hit ratio of the whole (miniature simulation). All candidates see the same sample.
//!
//! # Always true
//! - all shadows together take at most 64 KiB, allocated in [`Shadows::new`]
//! - a choice comes at the earliest [`EVERY`] after the last one
//!
//! # The choice
//! The cost of a candidate is its miss ratio, and an eighth ([`FLASH_SHIFT`]) of what it writes to flash for each sub-block
//! accessed. The lowest cost wins. The one in use stays unless another's cost is lower by [`HYSTERESIS`], or by
//! [`HYSTERESIS_WEAR`] if it writes more to flash.
//!
//! # Source
//! Waldspurger and others, "Cache Modeling and Optimization using Miniature Simulations", USENIX ATC 2017.

use super::{Access, Figures, Params, Shadow, mixed};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// The time between two choices.
pub const EVERY: Span = Span::from_secs(600);

/// Eight sub-blocks written to flash cost as much as one miss. Origin: chosen. Flash endures a limited number of writes, and
/// a block that is not hit once in eight times was not worth one. Admission on the first access pays only beyond that.
const FLASH_SHIFT: u32 = 3;

/// A change of policy has to lower the cost by so much, in ten thousandths: half a point. Origin: the error of the sample.
const HYSTERESIS: u64 = 50;

/// The same for a change to a policy that writes more to flash. Origin: chosen, as wear cannot be undone.
const HYSTERESIS_WEAR: u64 = 150;

/// Figures of the time until the shadows are full do not count, but no longer than so many times [`EVERY`]. Origin: while
/// there is free room, early admission costs nothing, and what it brings says nothing about later.
const WARM_UP: u32 = 6;

/// The most slots of a shadow. Eight of them take just less than 64 KiB.
const MOST_SLOTS: u32 = 256;

/// The fewest slots of a shadow, if the cache has as many. Smaller ones err too much.
const FEWEST_SLOTS: u32 = 128;

/// At most one page in so many is in the sample of a cache large enough, for the instructions that its accesses take.
const RATE: u32 = 8;

/// Sampled sub-blocks before the figures say anything.
const ENOUGH: u64 = 4_000;

const SMALL_AND_MAIN: Params = Params::CLOCK_2Q_PLUS;

/// The sets of parameters among which `auto` chooses. The first is in use until the first choice.
///
/// They differ in what workloads differ in: how soon a page proves that it will return, whether its neighbours are wanted,
/// and whether recency or frequency tells. A write proves less than a read: the guest has what it writes in memory.
pub const CANDIDATES: [Params; 8] = [
    Params {
        correlated: Span::from_millis(100),
        admit_write: 5,
        ..SMALL_AND_MAIN.admitting(3).filling(2)
    },
    Params {
        correlated: Span::from_millis(10),
        admit_write: 6,
        ..SMALL_AND_MAIN.admitting(4).filling(2)
    },
    SMALL_AND_MAIN.admitting(3).filling(4),
    Params {
        correlated: Span::from_millis(100),
        ..SMALL_AND_MAIN.admitting(2)
    },
    SMALL_AND_MAIN,
    Params::FAST,
    Params {
        ghost_percent: 100,
        ..Params::LRU.admitting(2)
    },
    Params::LRU,
];

/// A candidate and what its shadow measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Its place in [`CANDIDATES`].
    pub candidate: usize,
    /// Sub-blocks missed, in ten thousandths of those accessed.
    pub miss_ratio: u64,
    /// Sub-blocks written to flash, in ten thousandths of those accessed.
    pub flash_ratio: u64,
}

impl Judged {
    /// What is compared; see the module.
    pub fn cost(&self) -> u64 {
        self.miss_ratio + (self.flash_ratio >> FLASH_SHIFT)
    }
}

/// A change of policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The policy in use until now.
    pub from: Judged,
    /// The one to use from now on.
    pub to: Judged,
    /// Sub-blocks on which the figures rest.
    pub sampled: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Shadows {
    shadows: Vec<Shadow>,
    /// Pages whose hash, in 32 bits, is smaller are in the sample.
    threshold: u64,
    current: usize,
    /// When the next choice is due; unknown until the first call.
    due: Option<Time>,
    /// Times [`EVERY`] until figures count, at most.
    warm_up: u32,
    /// The figures of an earlier use of the disk. Once the shadows are full, they go on from these.
    earlier: [Figures; CANDIDATES.len()],
}

impl Shadows {
    /// Shadows of a cache of `slots`.
    pub fn new(slots: u32) -> Shadows {
        let own = (slots / RATE)
            .clamp(FEWEST_SLOTS, MOST_SLOTS)
            .min(slots.max(1));
        Shadows {
            shadows: CANDIDATES
                .iter()
                .map(|params| Shadow::new(own, *params))
                .collect(),
            threshold: threshold(own, slots),
            current: 0,
            due: None,
            warm_up: WARM_UP,
            earlier: [Figures::default(); CANDIDATES.len()],
        }
    }

    /// Goes on with the choice of an earlier use of the disk, and with its figures once the shadows are full: they are empty.
    pub(super) fn resume(&mut self, candidate: usize, figures: [Figures; CANDIDATES.len()]) {
        (self.current, self.earlier) = (candidate, figures);
    }

    /// The place of the parameters in use, and the figures that the next choice counts.
    pub(super) fn learned(&self) -> (usize, [Figures; CANDIDATES.len()]) {
        let mut figures = self.earlier;
        if self.warm_up == 0 {
            for (figures, shadow) in figures.iter_mut().zip(&self.shadows) {
                *figures = *shadow.figures();
            }
        }
        (self.current, figures)
    }

    /// Goes on with another number of slots. The sample gets smaller or larger; the shadows stay as they are.
    pub fn resize(&mut self, slots: u32) {
        let own = self
            .shadows
            .first()
            .map_or(1, |shadow| shadow.policy().slots());
        self.threshold = threshold(own, slots);
    }

    /// Takes an access of the disk.
    #[inline]
    pub fn access(&mut self, access: Access, now: Time) {
        // Another hash than that of the ghosts' sets: a sample would fill few sets.
        if mixed(!access.page) >> 32 < self.threshold {
            self.sampled(access, now);
        }
    }

    #[cold]
    fn sampled(&mut self, access: Access, now: Time) {
        for shadow in &mut self.shadows {
            shadow.access(access, now);
        }
    }

    /// The parameters that should be in use.
    pub fn params(&self) -> &'static Params {
        &CANDIDATES[self.current]
    }

    /// Chooses, if it is time. Returns the choice if it is a change. Call it every few seconds.
    pub fn choose(&mut self, now: Time) -> Option<Choice> {
        let due = *self.due.get_or_insert(now + EVERY);
        let sampled = self.shadows.first()?.figures().accessed;
        if now < due || sampled < ENOUGH {
            return None;
        }
        self.due = Some(now + EVERY);
        if self.warms_up() {
            return None;
        }
        let judged = self.judged();
        for shadow in &mut self.shadows {
            shadow.figures_mut().fade();
        }
        let from = judged[self.current];
        let to = *judged.iter().min_by_key(|judged| judged.cost())?;
        let hysteresis = match to.flash_ratio > from.flash_ratio {
            true => HYSTERESIS_WEAR,
            false => HYSTERESIS,
        };
        if to.cost() + hysteresis > from.cost() {
            return None;
        }
        self.current = to.candidate;
        Some(Choice { from, to, sampled })
    }

    /// Whether the figures do not count yet. When the shadows are full, they begin anew.
    fn warms_up(&mut self) -> bool {
        if self.warm_up == 0 {
            return false;
        }
        // The last candidate admits on the first access.
        let last = self.shadows.last();
        let full = last.is_some_and(|it| it.policy().pages() == it.policy().slots());
        self.warm_up = if full { 0 } else { self.warm_up - 1 };
        if self.warm_up == 0 {
            for (shadow, earlier) in self.shadows.iter_mut().zip(self.earlier) {
                *shadow.figures_mut() = earlier;
            }
        }
        true
    }

    /// What each candidate's shadow has measured, for reports.
    pub fn judged(&self) -> [Judged; CANDIDATES.len()] {
        core::array::from_fn(|candidate| {
            let figures = self
                .shadows
                .get(candidate)
                .map_or_else(Figures::default, |it| *it.figures());
            Judged {
                candidate,
                miss_ratio: figures.miss_ratio(),
                flash_ratio: figures.flash_ratio(),
            }
        })
    }

    /// Bytes that they take, with all that they allocated.
    pub fn memory(&self) -> usize {
        size_of::<Shadows>() + self.shadows.iter().map(Shadow::memory).sum::<usize>()
    }
}

/// The sample of a shadow with `own` slots for a cache of `slots`.
fn threshold(own: u32, slots: u32) -> u64 {
    (u64::from(own) << 32) / u64::from(slots.max(own))
}
