//! The sampled accesses of a disk: which are drawn, and what became of them.
//!
//! This is not on the path of most requests. At first one access in eight is drawn, until that gives a curve. Then fewer are,
//! at last one in 64. Each drawn access stands for as many. A page whose watch ends without an access counts as one that no
//! cache hits. If too many pages are watched, half of them are dropped at random, and the others stand for twice as many.
//! If few of them are left later, more are drawn again.
//!
//! # Always true
//! - an access is drawn as often as any other, whatever its page: a page with many accesses costs no more

use super::reuse::Reuse;
use super::watched::{self, MayWatch, Watched};
use super::{Curve, ENOUGH, MOST_PAGES, Of, PAGE, PAGE_BITS, POINTS, Trust, page};
use crate::request::Op;
use crate::units::Time;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// At first one access in so many is drawn, as a binary logarithm.
const FIRST_EVERY: u8 = 3;

/// At last one access in so many is drawn. Origin: a drawn access costs some 200 instructions, and a request of 1,230
/// instructions may take two in a hundred more. With half as many, the error on the recorded disk exceeds 0.02 for some seeds.
const EVERY: u8 = 6;

/// Accesses that are drawn at the first rate: enough for a curve.
const FIRST_DRAWN: u64 = 2 * ENOUGH;

/// Accesses that are drawn at each next rate. Origin: from the 20,000th access to the 120,000th, this and the last rate cost
/// less than two in a hundred of a request's instructions.
const NEXT_DRAWN: u64 = 750;

/// So many accesses are never drawn.
const NEVER: u64 = u64::MAX;

/// Half of the history fades after so many drawn accesses, and pages that were drawn before the time before are forgotten.
/// Origin: a ratio that so many draws estimate is wrong by 0.01 at most, 19 times in 20. With one in 64 drawn, a disk at a
/// thousand accesses a second forgets half in 17 minutes.
const FADE_AFTER: u64 = 1 << 14;

/// History fades after so many accesses at the latest, so that times fit 32 bits.
const FADE_AFTER_ACCESSES: u32 = 1 << 30;

/// The space in use is not taken from fewer watched pages. Origin: 64 of them are wrong by an eighth.
const FEW_WATCHED: usize = 64;

/// A range of more pages is looked for among the watched ones, instead of each of its pages.
const FEW_PAGES: u64 = 64;

/// By operation, reads and writes first: accesses up to and including the next drawn one.
type Left = [u64; Op::ALL.len()];

/// See the module.
#[derive(Debug)]
pub(super) struct Sampled {
    since: Time,
    /// One access in so many is drawn, as a binary logarithm.
    every: u8,
    /// Reads, writes: the number of the next drawn access.
    next: [u64; 2],
    /// Reads, writes: the place of the last drawn access in its group.
    drawn_at: [u64; 2],
    random: u32,
    drawn: u64,
    /// After so many drawn accesses, fewer are drawn.
    next_rate: u64,
    /// The history fades after so many drawn accesses.
    next_fade: u64,
    /// Sampled accesses that the curve is made of: reads, writes.
    counted: [u64; 2],
    /// Accesses until the history last faded, and what still counts of them.
    faded: [Faded; 2],
    /// Pages that were drawn before are forgotten next.
    mark: u32,
    watched: Watched,
    reuse: Reuse,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faded {
    at: u64,
    rest: u64,
}

impl Sampled {
    /// This allocates all that it will ever use.
    pub(super) fn new(now: Time, seed: u32, may_watch: &mut MayWatch) -> Sampled {
        may_watch.begin();
        Sampled {
            since: now,
            every: FIRST_EVERY,
            next: [1; 2],
            drawn_at: [0; 2],
            random: seed,
            drawn: 0,
            next_rate: FIRST_DRAWN,
            next_fade: FADE_AFTER,
            counted: [0; 2],
            faded: [Faded::default(); 2],
            mark: 0,
            watched: Watched::new(),
            reuse: Reuse::new(),
        }
    }

    /// Whether a request is drawn, touches several pages, or touches a watched page. Most that do not touch another page of
    /// the same chain.
    #[inline(always)]
    pub(super) fn concerns(
        &self,
        may_watch: &MayWatch,
        left: &Left,
        kind: usize,
        offset: u64,
        len: u64,
    ) -> bool {
        let last = offset.wrapping_add(len).wrapping_sub(1);
        left[kind] == 0
            || (last ^ offset) >= PAGE
            || self.watched.has(may_watch, page(offset >> PAGE_BITS))
    }

    /// A read (kind 0) or write (1). `left` are the accesses of each kind up to and including the next drawn one. The first
    /// page of this request is counted there.
    #[inline(never)]
    pub(super) fn access(
        &mut self,
        may_watch: &mut MayWatch,
        left: &mut Left,
        kind: usize,
        offset: u64,
        len: u64,
    ) {
        let first = offset >> PAGE_BITS;
        let last = offset.saturating_add(len - 1) >> PAGE_BITS;
        self.access_page(may_watch, left, kind, page(first));
        if last > first {
            let last = last.min(first.saturating_add(MOST_PAGES - 1));
            self.access_more(may_watch, left, kind, first + 1..=last);
        }
    }

    /// The pages of a request after its first.
    #[inline(never)]
    fn access_more(
        &mut self,
        may_watch: &mut MayWatch,
        left: &mut Left,
        kind: usize,
        pages: RangeInclusive<u64>,
    ) {
        for number in pages {
            left[kind] -= 1;
            let page = page(number);
            if left[kind] == 0 || may_watch.has(page) {
                self.access_page(may_watch, left, kind, page);
            }
        }
    }

    #[inline(always)]
    fn access_page(&mut self, may_watch: &mut MayWatch, left: &mut Left, kind: usize, page: u32) {
        let now = self.now(left);
        // Other pages have the same hash.
        if let Some((drawn, weight)) = self.watched.take(may_watch, page) {
            self.counted[kind] += 1;
            self.reuse.add(now.wrapping_sub(drawn), 1 << weight, kind);
        }
        if left[kind] == 0 {
            self.draw(may_watch, left, kind, page, now);
        }
    }

    /// Watches a page from now on, and draws the next access.
    #[inline(always)]
    fn draw(
        &mut self,
        may_watch: &mut MayWatch,
        left: &mut Left,
        kind: usize,
        page: u32,
        now: u32,
    ) {
        self.watched.insert(may_watch, page, now, self.every);
        self.drawn += 1;
        if self.drawn >= self.next_rate || self.watched.len() >= watched::MOST {
            self.change_rate(may_watch);
        }
        if self.drawn >= self.next_fade || now.wrapping_sub(self.mark) >= FADE_AFTER_ACCESSES {
            self.fade(may_watch, left);
        }
        // One access of each group is drawn, so that the number of drawn ones is right.
        let group = 1 << self.every;
        let place = u64::from(next_random(&mut self.random) >> (u32::BITS - u32::from(self.every)));
        let gap = group - self.drawn_at[kind] + place;
        self.drawn_at[kind] = place;
        left[kind] = gap;
        self.next[kind] += gap;
    }

    #[cold]
    #[inline(never)]
    fn change_rate(&mut self, may_watch: &mut MayWatch) {
        if self.watched.len() >= watched::MOST {
            self.halve(may_watch);
        } else if self.every < EVERY {
            self.next_rate += NEXT_DRAWN;
            self.draw_every(self.every + 1);
        } else {
            self.next_rate = NEVER;
        }
    }

    fn draw_every(&mut self, every: u8) {
        self.every = every;
        self.drawn_at = [0; 2];
    }

    /// Drops half of the watched pages. The others stand for them.
    fn halve(&mut self, may_watch: &mut MayWatch) {
        // One of two pages stays, at random: so half of them do, whatever order they are in.
        let (random, mut first) = (&mut self.random, None::<bool>);
        self.watched.retain(may_watch, |_, _| match first.take() {
            Some(stayed) => !stayed,
            None => *first.insert(next_random(random) >> 31 == 0),
        });
        self.watched.double_weights();
        self.draw_every(self.every + 1);
    }

    /// Forgets the whole pages of a range.
    #[inline(never)]
    pub(super) fn forget(&mut self, may_watch: &mut MayWatch, offset: u64, len: u64) {
        let first = offset.div_ceil(PAGE);
        let end = offset.saturating_add(len) >> PAGE_BITS;
        if first.saturating_add(FEW_PAGES) < end {
            let range = first..end;
            self.watched
                .retain(may_watch, |page, _| !range.contains(&u64::from(page)));
            return;
        }
        for number in first..end {
            self.watched.take(may_watch, page(number));
        }
    }

    pub(super) fn curve_of(&self, left: &Left, of: Of) -> Curve {
        let kinds: &[usize] = match of {
            Of::All => &[0, 1],
            Of::Reads => &[0],
            Of::Writes => &[1],
        };
        let all = self.all(left);
        let seen = [0, 1].map(|kind| self.remembered(all, kind));
        // Few watched pages say only roughly how many are in use. The largest size of the curve says it better.
        let is_rough = self.watched.len() < FEW_WATCHED && !self.reuse.is_empty();
        let pages = if is_rough { 0 } else { self.watched.weight() };
        let points = self.reuse.points(kinds, seen, pages, POINTS);
        let largest = points.last().map_or(0, |(size, _)| *size);
        let sampled = kinds.iter().map(|&kind| self.counted[kind]).sum();
        let first = points.last().map_or(1.0, |(_, miss)| *miss);
        Curve {
            trust: trust(self.drawn, first),
            points,
            since: Some(self.since),
            accesses: kinds.iter().map(|&kind| all[kind]).sum(),
            sampled,
            distinct_bytes: if is_rough { largest } else { pages * PAGE },
            rate: 1.0 / (1_u64 << self.every) as f64,
        }
    }

    /// Whether the curve can be relied on.
    pub(super) fn is_enough(&self) -> bool {
        trust(self.drawn, 0.0) == Trust::Enough
    }

    /// The curve of reads and writes, without its points.
    pub(super) fn without_points(&self, left: &Left) -> Curve {
        Curve {
            points: Vec::new(),
            since: Some(self.since),
            accesses: self.all(left).iter().sum(),
            sampled: self.counted.iter().sum(),
            distinct_bytes: self.watched.weight() * PAGE,
            rate: 1.0 / (1_u64 << self.every) as f64,
            trust: Trust::FewAccesses,
        }
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<Sampled>() + self.watched.allocated() + self.reuse.allocated()
    }

    /// All accesses: reads, writes.
    fn all(&self, left: &Left) -> [u64; 2] {
        [0, 1].map(|kind| self.next[kind] - left[kind])
    }

    /// The time: all accesses.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "times are compared by their lower 32 bits"
    )]
    fn now(&self, left: &Left) -> u32 {
        let [reads, writes] = self.all(left);
        reads.wrapping_add(writes) as u32
    }

    /// Accesses of the faded history and after it.
    fn remembered(&self, all: [u64; 2], kind: usize) -> u64 {
        let faded = self.faded[kind];
        faded.rest + all[kind].saturating_sub(faded.at)
    }

    #[cold]
    #[inline(never)]
    fn fade(&mut self, may_watch: &mut MayWatch, left: &Left) {
        self.next_fade = self.drawn + FADE_AFTER;
        let all = self.all(left);
        for kind in 0..2 {
            let rest = self.remembered(all, kind) / 2;
            self.faded[kind] = Faded {
                at: all[kind],
                rest,
            };
            self.counted[kind] /= 2;
        }
        self.reuse.halve();
        let (now, mark) = (self.now(left), self.mark);
        let age = now.wrapping_sub(mark);
        self.watched
            .retain(may_watch, |_, time| now.wrapping_sub(time) <= age);
        self.mark = now;
        if self.every > EVERY && self.watched.len() < watched::MOST / 4 {
            self.draw_every(self.every - 1);
        }
    }
}

/// A linear congruential generator: its upper bits look random.
fn next_random(state: &mut u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *state
}

/// Whether a curve of so many drawn accesses, of which a part were first ones, can be relied on.
fn trust(drawn: u64, first: f64) -> Trust {
    if drawn < ENOUGH {
        Trust::FewAccesses
    } else if first > 0.5 {
        Trust::MostlyFirst
    } else {
        Trust::Enough
    }
}
