//! The division of a flash cache among disks: by miss-ratio curves and shares, between minimum and maximum.
//!
//! The daemon calls [`decide`] from time to time, with what it knows of each disk that uses the cache. It then has disks give
//! chunks back, and gives others more.
//!
//! A chunk goes where it adds most hits, weighted by shares. A curve may fall in one step, so the search looks ahead: it
//! compares the hits of each chunk on the way to each point of each curve, and gives all chunks up to the best point. A plan
//! holds until another one is better by 3 % of the hits, and is carried out in steps.
//!
//! # Picture
//! ```text
//!   minimums ──> shares, where no curve is known ──> pieces with most hits for each chunk ──> the rest, by shares
//!            ──> is it better by GAIN than the plan that holds? ──> the next step
//! ```
//!
//! # Always true
//! - a disk's part is from its minimum to its maximum, if the sum of the minimums fits
//! - all parts together are at most the whole; what is left is what no disk may have
//! - the same input gives the same plan
//!
//! # Units
//! Chunks; hits in millionths of a disk's accesses.
//!
//! # Source
//! Qureshi and Patt, "Utility-Based Cache Partitioning", MICRO 2006 (lookahead).

use alloc::vec::Vec;

/// All accesses of a disk.
pub const ALL: u32 = 1_000_000;

/// A plan is replaced by one with so many more hits, in millionths of the weighted accesses of the disks that it changes.
/// Origin: a sampled curve is wrong by 0.011 in the mean, and what leaves a part must be read from the disk again.
const GAIN: u128 = 30_000;

/// In one step, at most this part of the chunks change their disk. Origin: all do in 32 steps, half an hour.
const STEP: u32 = 32;

/// A disk that uses the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Sizes of a part, rising, and its hits. `None`: not known yet.
    pub curve: Option<Vec<(u32, u32)>>,
    /// Reads and writes in some time that is the same for all disks.
    pub accesses: u64,
    /// Its shares.
    pub shares: u32,
    /// The least part.
    pub min: u32,
    /// The largest part.
    pub max: u32,
    /// Its part now.
    pub now: u32,
    /// Its part in the plan that holds, if it is in that.
    pub planned: Option<u32>,
}

/// A disk's part in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its size.
    pub chunks: u32,
    /// Why it is that large.
    pub reason: Reason,
}

/// Why a part is as large as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// More would add fewer hits than elsewhere.
    Hits,
    /// Its curve is not known yet: it has its share.
    Shares,
    /// It has the least: more would add no hits, or more hits elsewhere.
    Minimum,
    /// It may have no more.
    Maximum,
    /// It has what it gains from, and a share of what no disk gains from.
    Rest,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The plan, in the order of the disks.
    pub targets: Vec<Target>,
    /// Whether it is a new one.
    pub is_new: bool,
    /// Its hits beyond those of the plan before, in millionths of the weighted accesses of the disks that it changes.
    pub gain: u32,
    /// The parts at the end of this step, in the order of the disks. Those that become smaller do so first.
    pub step: Vec<u32>,
}

/// Decides how large the parts of these disks are to be, which have so many chunks together with the free ones.
pub fn decide(whole: u32, disks: &[Disk]) -> Decision {
    let mut targets = divide(whole, disks);
    let planned = disks.iter().map(|disk| disk.planned.unwrap_or(disk.now));
    let planned: Vec<u32> = planned.collect();
    let gain = gain(disks, &planned, &targets);
    let holds = gain < GAIN && is_possible(whole, disks, &planned, &targets);
    if holds {
        for (target, chunks) in targets.iter_mut().zip(&planned) {
            target.chunks = *chunks;
        }
    }
    Decision {
        is_new: targets.iter().zip(&planned).any(|(t, p)| t.chunks != *p),
        gain: u32::try_from(gain.min(u128::from(ALL))).unwrap_or(ALL),
        step: step(whole, disks, &targets),
        targets,
    }
}

/// Whether a plan is within all bounds, and gives as many chunks as another one.
fn is_possible(whole: u32, disks: &[Disk], planned: &[u32], proposed: &[Target]) -> bool {
    let sum: u64 = planned.iter().map(|chunks| u64::from(*chunks)).sum();
    let most: u64 = proposed.iter().map(|target| u64::from(target.chunks)).sum();
    let mut parts = disks.iter().zip(planned);
    let is_within =
        |(disk, chunks): (&Disk, &u32)| (disk.min..=disk.max.max(disk.min)).contains(chunks);
    // What is left must be of no use.
    let mut wants = disks.iter().zip(planned).map(|(disk, part)| {
        let gains = disk.curve.is_none() || disk.value(*part) > 0;
        *part < disk.max && gains
    });
    let is_full = sum == u64::from(whole) || !wants.any(|wants| wants);
    (most..=u64::from(whole)).contains(&sum) && is_full && parts.all(is_within)
}

/// How much better a plan is than another.
fn gain(disks: &[Disk], planned: &[u32], proposed: &[Target]) -> u128 {
    let (mut before, mut after, mut all) = (0, 0, 0);
    for ((disk, from), to) in disks.iter().zip(planned).zip(proposed) {
        if *from != to.chunks {
            before += disk.value(*from);
            after += disk.value(to.chunks);
            all += disk.weight();
        }
    }
    let more = after.saturating_sub(before);
    more.checked_div(all).unwrap_or(0)
}

/// The parts of all disks that are best.
fn divide(whole: u32, disks: &[Disk]) -> Vec<Target> {
    let mut targets: Vec<Target> = disks
        .iter()
        .map(|disk| Target {
            chunks: disk.min,
            reason: Reason::Minimum,
        })
        .collect();
    let floor: u64 = disks.iter().map(|disk| u64::from(disk.min)).sum();
    let Some(mut left) = u64::from(whole)
        .checked_sub(floor)
        .and_then(|left| u32::try_from(left).ok())
    else {
        return targets;
    };
    give_shares(whole, disks, &mut targets, &mut left);
    give_hits(disks, &mut targets, &mut left);
    let gains: Vec<bool> = targets
        .iter()
        .zip(disks)
        .map(|(target, disk)| disk.value(target.chunks) > 0)
        .collect();
    give_rest(disks, &mut targets, &mut left, |nth| gains[nth]);
    give_rest(disks, &mut targets, &mut left, |nth| {
        disks[nth].curve.is_none()
    });
    for (target, disk) in targets.iter_mut().zip(disks) {
        if target.chunks >= disk.max && target.chunks > disk.min {
            target.reason = Reason::Maximum;
        }
    }
    targets
}

/// Gives disks without a curve their share of the whole.
fn give_shares(whole: u32, disks: &[Disk], targets: &mut [Target], left: &mut u32) {
    let all: u64 = disks.iter().map(|disk| u64::from(disk.shares)).sum();
    for (disk, target) in disks.iter().zip(targets) {
        if disk.curve.is_none() {
            let fair = u64::from(whole) * u64::from(disk.shares) / all.max(1);
            let fair = u32::try_from(fair).unwrap_or(u32::MAX).min(disk.max);
            let more = fair.saturating_sub(target.chunks).min(*left);
            target.chunks += more;
            target.reason = Reason::Shares;
            *left -= more;
        }
    }
}

/// Gives chunks where they add most hits.
fn give_hits(disks: &[Disk], targets: &mut [Target], left: &mut u32) {
    let mut best: Vec<Option<Piece>> = disks
        .iter()
        .zip(targets.iter())
        .map(|(disk, target)| disk.best(target.chunks, *left))
        .collect();
    loop {
        for (nth, piece) in best.iter_mut().enumerate() {
            // It has become too large.
            if piece.is_some_and(|piece| piece.chunks > *left) {
                *piece = disks[nth].best(targets[nth].chunks, *left);
            }
        }
        let pieces = best.iter().enumerate();
        let pieces = pieces.filter_map(|(nth, piece)| Some((nth, (*piece)?)));
        let first = pieces.reduce(|one, other| match is_before(disks, targets, other, one) {
            true => other,
            false => one,
        });
        let Some((nth, piece)) = first else {
            return;
        };
        let target = &mut targets[nth];
        target.chunks += piece.chunks;
        target.reason = Reason::Hits;
        *left -= piece.chunks;
        best[nth] = disks[nth].best(target.chunks, *left);
    }
}

/// Whether a piece adds more hits with each chunk than another; if as many, whether its disk has less for its shares.
fn is_before(
    disks: &[Disk],
    targets: &[Target],
    (nth, piece): (usize, Piece),
    (other_nth, other): (usize, Piece),
) -> bool {
    let mine = piece.value * u128::from(other.chunks);
    let others = other.value * u128::from(piece.chunks);
    if mine != others {
        return mine > others;
    }
    let size = |of: usize, by: usize| u64::from(targets[of].chunks) * u64::from(disks[by].shares);
    size(nth, other_nth) < size(other_nth, nth)
}

/// Gives what is left to some disks by their shares, up to their maximums.
fn give_rest(
    disks: &[Disk],
    targets: &mut [Target],
    left: &mut u32,
    takes: impl Fn(usize) -> bool,
) {
    while *left > 0 {
        let open: Vec<usize> = (0..disks.len())
            .filter(|nth| takes(*nth) && targets[*nth].chunks < disks[*nth].max)
            .collect();
        let all: u64 = open.iter().map(|nth| u64::from(disks[*nth].shares)).sum();
        let rest = *left;
        for &nth in &open {
            let fair = u64::from(rest) * u64::from(disks[nth].shares) / all.max(1);
            let fair = u32::try_from(fair).unwrap_or(u32::MAX).max(1);
            let room = disks[nth].max - targets[nth].chunks;
            let more = fair.min(room).min(*left);
            targets[nth].chunks += more;
            if more > 0 && disks[nth].curve.is_some() {
                targets[nth].reason = Reason::Rest;
            }
            *left -= more;
        }
        if open.is_empty() {
            return;
        }
    }
}

/// The next step from what disks have to what they are to have.
fn step(whole: u32, disks: &[Disk], targets: &[Target]) -> Vec<u32> {
    let most = (whole / STEP).max(1);
    let has: u64 = disks.iter().map(|disk| u64::from(disk.now)).sum();
    let free = u64::from(whole).saturating_sub(has);
    let mut free = u32::try_from(free).unwrap_or(u32::MAX);
    let mut parts: Vec<u32> = disks.iter().map(|disk| disk.now).collect();
    let grow = |parts: &mut [u32], mut room: u32| {
        for (part, target) in parts.iter_mut().zip(targets) {
            let more = target.chunks.saturating_sub(*part).min(room);
            *part += more;
            room -= more;
        }
        room
    };
    // Free chunks cost nothing.
    free = grow(&mut parts, free);
    let missing = parts.iter().zip(targets);
    let missing = missing.fold(0_u32, |sum, (part, target)| {
        sum.saturating_add(target.chunks.saturating_sub(*part))
    });
    let mut give = match has > u64::from(whole) {
        true => most,
        false => missing.min(most),
    };
    for ((part, target), disk) in parts.iter_mut().zip(targets).zip(disks) {
        // What is above the maximum is given back even if nobody wants it.
        let above = part.saturating_sub(disk.max.max(disk.min)).min(most);
        let less = part.saturating_sub(target.chunks).min(give.max(above));
        *part -= less;
        give = give.saturating_sub(less);
        free += less;
    }
    grow(&mut parts, free);
    parts
}

/// Chunks that a disk gets together, and what they add.
#[derive(Clone, Copy, Debug)]
struct Piece {
    chunks: u32,
    value: u128,
}

impl Disk {
    /// Millionths of its accesses that a part of this size hits.
    pub fn hits(&self, chunks: u32) -> u32 {
        let curve = self.curve.as_deref().unwrap_or(&[]);
        let below = curve.partition_point(|(size, _)| *size <= chunks);
        below.checked_sub(1).map_or(0, |last| curve[last].1)
    }

    fn weight(&self) -> u128 {
        u128::from(self.accesses) * u128::from(self.shares)
    }

    fn value(&self, chunks: u32) -> u128 {
        self.weight() * u128::from(self.hits(chunks))
    }

    /// The chunks beyond its part, at most so many, that add most hits each.
    fn best(&self, part: u32, left: u32) -> Option<Piece> {
        let end = part.saturating_add(left).min(self.max);
        let before = self.value(part);
        let points = self.curve.as_deref().unwrap_or(&[]).iter();
        let pieces = points
            .filter(|(size, _)| (part + 1..=end).contains(size))
            .map(|(size, _)| Piece {
                chunks: size - part,
                value: self.value(*size).saturating_sub(before),
            })
            .filter(|piece| piece.value > 0);
        pieces.reduce(|one, other| {
            match other.value * u128::from(one.chunks) > one.value * u128::from(other.chunks) {
                true => other,
                false => one,
            }
        })
    }
}

/// A disk's curve in chunks, from sizes in bytes and the part of accesses that each would miss.
pub fn in_chunks(points: &[(u64, f64)], chunk: u64) -> Vec<(u32, u32)> {
    let mut curve: Vec<(u32, u32)> = Vec::new();
    for (bytes, miss) in points {
        let size = u32::try_from(bytes.div_ceil(chunk.max(1))).unwrap_or(u32::MAX);
        let hits = millionths(1.0 - miss);
        match curve.last_mut() {
            Some(last) if last.0 == size => last.1 = last.1.max(hits),
            _ => curve.push((size, hits)),
        }
    }
    curve
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part from 0 to 1"
)]
fn millionths(part: f64) -> u32 {
    (part.clamp(0.0, 1.0) * f64::from(ALL)) as u32
}
