//! The policy of tiers: which parts of 16 MiB of a pool's disks belong to the fast members, and which move next.
//!
//! Heat is a mean of reads and writes a window, in which what is older counts half after each half-life. A part that was used
//! in several windows and is hotter than what is on the fast tier moves there; the coldest part leaves it if room is wanted. The
//! daemon calls it once a window; it decides in integers, and nothing of it is on the data path.
//!
//! # Always true
//! - a part that was used in one window only, as by a scan, stays on the slow tier
//! - a part whose place was changed stays there for a while, unless its disk is pinned elsewhere
//! - to take the place of another part, one must be hotter by a fifth
//! - no more bytes are moved than the rate allows, and one window's worth at once
//! - parts of a pinned disk move whatever their heat; a disk that is pinned to the slow tier takes no room of the fast one
//!
//! # Picture
//! ```text
//!   counts ──window──> heat, windows in use ──plan──> leave the fast tier: pinned slow, then the coldest
//!                                               └───> enter it: pinned fast, then the hottest
//! ```
//!
//! # Units
//! Heat is I/Os a window, times 65,536. Room is extents.

use super::Tier;
use super::heat::{PART, Touches};
use crate::units::{Span, Time};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A disk, as the caller numbers them.
pub type Number = u32;

/// One I/O a window.
const ONE: u64 = 1 << 16;
/// I/Os of a part in a window that count. Origin: chosen; a part that has more is hot in any case.
const MOST: u64 = 1 << 20;
/// Of the last eight windows a part must have been used in so many. Origin: chosen; a scan uses a part in one or two.
const WINDOWS: u32 = 3;
/// Percent by which a part must be hotter to take another one's place. Origin: the design.
const HOTTER: u64 = 120;
/// A part that is colder is forgotten, and may leave the fast tier at any time: one I/O in a thousand windows.
const COLD: u64 = ONE / 1000;

/// Where a disk's data belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// To the fast tier, all of it.
    Fast,
    /// To the slow tier, all of it.
    Slow,
    /// Where its heat says.
    #[default]
    Auto,
}

/// How tiering works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TieringLimits {
    /// How long counts are collected.
    pub window: Span,
    /// After so long an I/O counts half.
    pub half_life: Span,
    /// So long a part stays where it was moved.
    pub stay: Span,
    /// Bytes a second that are moved at most.
    pub rate: u64,
    /// Bytes of an extent.
    pub extent: u64,
}

impl Default for TieringLimits {
    /// Origin: window and half-life by the design's 24 h; the rest is chosen.
    fn default() -> TieringLimits {
        TieringLimits {
            window: Span::from_secs(600),
            half_life: Span::from_secs(24 * 3600),
            stay: Span::from_secs(3600),
            rate: 32 << 20,
            extent: super::EXTENT,
        }
    }
}

/// A part of a disk that has data, as its layout reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartReport {
    /// Which part.
    pub part: u32,
    /// What was counted since the last report.
    pub touches: Touches,
    /// Extents that are mapped.
    pub extents: u32,
    /// Of these, extents on the fast tier.
    pub fast: u32,
}

/// A part that is to be on a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartMove {
    /// The disk.
    pub disk: Number,
    /// Which part.
    pub part: u32,
    /// Where it goes.
    pub to: Tier,
    /// Extents that have to move.
    pub extents: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    heat: u64,
    /// When it was moved last. `None`: not since it is known.
    moved: Option<Time>,
    extents: u16,
    fast: u16,
    /// The last windows in which it was used: the lowest bit is the newest.
    windows: u8,
}

impl Part {
    fn slow(&self) -> u16 {
        self.extents - self.fast
    }
}

struct Disk {
    pin: Pin,
    parts: BTreeMap<u32, Part>,
}

/// See the module.
pub struct Tiering {
    limits: TieringLimits,
    /// What is left of the heat after a window, of 2^32.
    decay: u64,
    disks: BTreeMap<Number, Disk>,
    /// Bytes that may be moved now.
    allowance: u64,
    last: Option<Time>,
}

impl Tiering {
    /// The policy of a pool without disks.
    pub fn new(limits: TieringLimits) -> Tiering {
        Tiering {
            decay: left_after(limits.window, limits.half_life),
            limits,
            disks: BTreeMap::new(),
            allowance: 0,
            last: None,
        }
    }

    /// A disk is pinned so, and known from now on.
    pub fn set_pin(&mut self, disk: Number, pin: Pin) {
        let of = self.disks.entry(disk).or_insert_with(|| Disk {
            pin,
            parts: BTreeMap::new(),
        });
        of.pin = pin;
    }

    /// A disk is gone.
    pub fn forget(&mut self, disk: Number) {
        self.disks.remove(&disk);
    }

    /// A window of a disk has passed: these of its parts were used, or were found for the first time.
    pub fn window(&mut self, disk: Number, reports: &[PartReport]) {
        let Some(disk) = self.disks.get_mut(&disk) else {
            return;
        };
        for part in disk.parts.values_mut() {
            part.heat = decayed(part.heat, self.decay);
            part.windows <<= 1;
        }
        for report in reports {
            let part = disk.parts.entry(report.part).or_default();
            let extents = report.extents.min(PART);
            part.extents = u16::try_from(extents).unwrap_or(u16::MAX);
            part.fast = u16::try_from(report.fast.min(extents)).unwrap_or(u16::MAX);
            let used = report.touches.all().min(MOST);
            // The mean over the half-life, whatever the length of a window.
            part.heat += (used * ONE * ((1 << 32) - self.decay)) >> 32;
            part.windows |= u8::from(used > 0);
        }
        let pin = disk.pin;
        disk.parts.retain(|_, part| {
            let is_needed = pin == Pin::Fast && part.slow() > 0;
            part.extents > 0
                && (part.heat >= COLD || part.windows != 0 || part.fast > 0 || is_needed)
        });
    }

    /// What moves now. The fast tier has so many extents free; what is on the way to it is not free.
    pub fn plan(&mut self, now: Time, free: u64) -> Vec<PartMove> {
        let since = self.last.map_or(self.limits.window, |last| now.since(last));
        self.last = Some(now);
        let most = bytes_in(self.limits.rate, self.limits.window);
        let more = bytes_in(self.limits.rate, since);
        self.allowance = (self.allowance + more).min(most);
        let mut plan = Plan {
            free,
            moves: Vec::new(),
        };
        self.leave_pinned(now, &mut plan);
        let mut fast = self.on_fast(now);
        fast.sort_unstable();
        let mut fast = fast.into_iter().peekable();
        let mut wanted = self.wanted(now);
        wanted.sort_unstable_by(|a, b| b.cmp(a));
        for (is_pinned, heat, disk, number) in wanted {
            let part = self.part(disk, number);
            let needs = u64::from(part.slow());
            // Room of colder parts, which leave first.
            let mut leaving = Vec::new();
            let mut room = plan.free;
            while room < needs
                && let Some((cold, of, which)) = fast.peek().copied()
                && (is_pinned || heat * 100 > cold * HOTTER)
            {
                room += u64::from(self.part(of, which).fast);
                leaving.push((of, which));
                fast.next();
            }
            if room < needs {
                break;
            }
            for (of, which) in leaving {
                if !self.begin(now, &mut plan, of, which, Tier::Slow) {
                    return plan.moves;
                }
            }
            if !self.begin(now, &mut plan, disk, number, Tier::Fast) {
                break;
            }
        }
        plan.moves
    }

    fn part(&self, disk: Number, part: u32) -> Part {
        let of = self.disks.get(&disk);
        let found = of.and_then(|it| it.parts.get(&part));
        found.copied().unwrap_or_default()
    }

    /// Whether a part was moved a short time ago.
    fn stays(&self, now: Time, part: &Part) -> bool {
        part.moved
            .is_some_and(|at| now.since(at) < self.limits.stay)
    }

    /// What disks that are pinned to the slow tier have on the fast one.
    fn leave_pinned(&mut self, now: Time, plan: &mut Plan) {
        let slow = self.disks.iter().filter(|(_, it)| it.pin == Pin::Slow);
        let parts = slow.flat_map(|(disk, it)| {
            let on_fast = it.parts.iter().filter(|(_, part)| part.fast > 0);
            on_fast.map(|(number, _)| (*disk, *number))
        });
        let parts: Vec<(Number, u32)> = parts.collect();
        for (disk, part) in parts {
            if !self.begin(now, plan, disk, part, Tier::Slow) {
                return;
            }
        }
    }

    /// Parts that may leave the fast tier: their heat, disk and number.
    fn on_fast(&self, now: Time) -> Vec<(u64, Number, u32)> {
        let auto = self.disks.iter().filter(|(_, it)| it.pin == Pin::Auto);
        let parts = auto.flat_map(|(disk, it)| {
            let on_fast = it.parts.iter().filter(|(_, part)| part.fast > 0);
            let free = on_fast.filter(|(_, part)| !self.stays(now, part));
            free.map(|(number, part)| (part.heat, *disk, *number))
        });
        parts.collect()
    }

    /// Parts that want to enter it: whether by a pin, their heat, disk and number.
    fn wanted(&self, now: Time) -> Vec<(bool, u64, Number, u32)> {
        let mut wanted = Vec::new();
        for (disk, it) in &self.disks {
            for (number, part) in it.parts.iter().filter(|(_, part)| part.slow() > 0) {
                let is_hot = part.windows.count_ones() >= WINDOWS && !self.stays(now, part);
                let wants = it.pin == Pin::Fast || it.pin == Pin::Auto && is_hot;
                if wants {
                    wanted.push((it.pin == Pin::Fast, part.heat, *disk, *number));
                }
            }
        }
        wanted
    }

    /// Moves a part, if the rate allows it.
    fn begin(&mut self, now: Time, plan: &mut Plan, disk: Number, number: u32, to: Tier) -> bool {
        let of = self.disks.get_mut(&disk);
        let Some(part) = of.and_then(|it| it.parts.get_mut(&number)) else {
            return true;
        };
        let extents = match to {
            Tier::Fast => part.slow(),
            Tier::Slow => part.fast,
        };
        let bytes = u64::from(extents) * self.limits.extent;
        let Some(left) = self.allowance.checked_sub(bytes) else {
            return false;
        };
        self.allowance = left;
        part.moved = Some(now);
        match to {
            Tier::Fast => {
                plan.free -= u64::from(extents);
                part.fast = part.extents;
            }
            Tier::Slow => {
                plan.free += u64::from(extents);
                part.fast = 0;
            }
        }
        plan.moves.push(PartMove {
            disk,
            part: number,
            to,
            extents: extents.into(),
        });
        true
    }

    /// The heat of a part, as I/Os a window times 65,536, and whether all of it is on the fast tier.
    pub fn heat(&self, disk: Number, part: u32) -> (u64, bool) {
        let part = self.part(disk, part);
        (part.heat, part.extents > 0 && part.slow() == 0)
    }

    /// Parts that are remembered.
    pub fn parts(&self) -> usize {
        self.disks.values().map(|it| it.parts.len()).sum()
    }
}

struct Plan {
    free: u64,
    moves: Vec<PartMove>,
}

/// Heat after one window.
fn decayed(heat: u64, decay: u64) -> u64 {
    let left = (u128::from(heat) * u128::from(decay)) >> 32;
    u64::try_from(left).unwrap_or(u64::MAX)
}

/// What is left of 2^32 after a span, if half of it is left after another one.
fn left_after(span: Span, half_life: Span) -> u64 {
    let half_life = half_life.as_nanos().max(1);
    let span = u128::from(span.as_nanos());
    let whole = u32::try_from(span / u128::from(half_life)).unwrap_or(u32::MAX);
    // The rest as a binary fraction: each digit is a square root more.
    let mut rest = span % u128::from(half_life);
    let mut root = 1_u64 << 31;
    let mut left = 1_u128 << 32;
    for _ in 0..20 {
        root = (root << 32).isqrt();
        rest *= 2;
        if rest >= u128::from(half_life) {
            rest -= u128::from(half_life);
            left = (left * u128::from(root)) >> 32;
        }
    }
    let left = left.checked_shr(whole).unwrap_or(0);
    u64::try_from(left).unwrap_or(0)
}

fn bytes_in(rate: u64, span: Span) -> u64 {
    let bytes = u128::from(rate) * u128::from(span.as_nanos()) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
