//! Tests of the policy of tiers, on traces.

use super::*;

const MIB: u64 = 1 << 20;

/// A pool whose fast tier has room for so many parts, and a disk on its slow tier.
struct Traced {
    tiering: Tiering,
    now: Time,
    free: u64,
    /// By part of the disk: whether it is on the fast tier.
    fast: Vec<bool>,
    moved: u64,
    moves: usize,
}

fn limits() -> TieringLimits {
    TieringLimits {
        window: Span::from_secs(60),
        half_life: Span::from_secs(3600),
        stay: Span::from_secs(1800),
        rate: 64 * MIB,
        extent: MIB,
    }
}

impl Traced {
    fn new(parts: usize, room: u64, limits: TieringLimits) -> Traced {
        let mut traced = Traced {
            tiering: Tiering::new(limits),
            now: Time::ZERO,
            free: room * u64::from(PART),
            fast: alloc::vec![false; parts],
            moved: 0,
            moves: 0,
        };
        traced.tiering.set_pin(0, Pin::Auto);
        traced
    }

    fn report(&self, part: u32, reads: u32) -> PartReport {
        let is_fast = self.fast[part as usize];
        PartReport {
            part,
            touches: Touches { reads, writes: 0 },
            extents: PART,
            fast: if is_fast { PART } else { 0 },
        }
    }

    /// A window in which these parts had so many reads.
    fn window(&mut self, used: &[(u32, u32)]) -> Vec<PartMove> {
        let reports: Vec<PartReport> = used
            .iter()
            .map(|(part, reads)| self.report(*part, *reads))
            .collect();
        self.tiering.window(0, &reports);
        self.now = self.now + self.tiering.limits.window;
        let moves = self.tiering.plan(self.now, self.free);
        for it in &moves {
            let is_fast = it.to == Tier::Fast;
            assert_ne!(self.fast[it.part as usize], is_fast, "{it:?}");
            self.fast[it.part as usize] = is_fast;
            self.free = match is_fast {
                true => self.free - u64::from(it.extents),
                false => self.free + u64::from(it.extents),
            };
            self.moved += u64::from(it.extents) * MIB;
        }
        self.moves += moves.len();
        moves
    }

    fn on_fast(&self) -> Vec<u32> {
        let parts = (0..).zip(&self.fast);
        parts
            .filter(|(_, fast)| **fast)
            .map(|(part, _)| part)
            .collect()
    }
}

fn hot(parts: core::ops::Range<u32>) -> Vec<(u32, u32)> {
    parts.map(|part| (part, 10_000)).collect()
}

#[test]
fn half_is_left_after_a_half_life() {
    let hour = Span::from_secs(3600);
    let near = |left: u64, expected: u64| left.abs_diff(expected) < 1 << 14;
    assert!(near(left_after(hour, hour), 1 << 31));
    assert!(near(left_after(Span::from_secs(7200), hour), 1 << 30));
    assert!(near(left_after(Span::ZERO, hour), 1 << 32));
    // 2^(-1/60) is 0.988514.
    assert!(near(
        left_after(Span::from_secs(60), hour),
        4_245_635_000 - 10_000 + 6_000
    ));
    let mut heat = 1_000_000 * ONE;
    for _ in 0..60 {
        heat = decayed(heat, left_after(Span::from_secs(60), hour));
    }
    assert!((495_000..505_000).contains(&(heat / ONE)), "{}", heat / ONE);
}

#[test]
fn a_hot_set_is_on_the_fast_tier_and_follows_when_it_moves() {
    let mut traced = Traced::new(400, 20, limits());
    for _ in 0..60 {
        traced.window(&hot(0..20));
    }
    assert_eq!(traced.on_fast(), (0..20).collect::<Vec<u32>>());
    let before = traced.moves;
    assert_eq!(before, 20, "each moves once");
    let mut windows = 0;
    while traced.on_fast() != (200..220).collect::<Vec<u32>>() {
        traced.window(&hot(200..220));
        windows += 1;
        assert!(windows < 120, "{:?}", traced.on_fast());
    }
    assert_eq!(traced.moves - before, 40, "twenty leave, twenty come");
}

#[test]
fn a_scan_does_not_flush_the_fast_tier() {
    let mut traced = Traced::new(2_000, 20, limits());
    for _ in 0..30 {
        traced.window(&hot(0..20));
    }
    let before = traced.moves;
    // All of the disk is read once, as fast as 16 GiB a minute, beside the hot set.
    for nth in 0..2 {
        let mut used = hot(0..20);
        used.extend(
            (1_000 * nth..1_000 * (nth + 1))
                .filter(|it| *it >= 20)
                .map(|it| (it, 40_000)),
        );
        traced.window(&used);
    }
    for _ in 0..30 {
        traced.window(&hot(0..20));
    }
    assert_eq!(traced.moves, before);
    assert_eq!(traced.on_fast(), (0..20).collect::<Vec<u32>>());
}

#[test]
fn parts_of_equal_heat_do_not_take_turns() {
    let mut traced = Traced::new(60, 20, limits());
    let mut state = 1_u64;
    for _ in 0..600 {
        // Forty parts with the same mean, which varies by a third.
        let used = (0..40).map(|part| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (part, 800 + u32::try_from(state >> 56).unwrap())
        });
        let used: Vec<(u32, u32)> = used.collect();
        traced.window(&used);
    }
    assert_eq!(traced.on_fast().len(), 20);
    assert!(traced.moves <= 24, "{}", traced.moves);
}

#[test]
fn no_more_is_moved_than_the_rate_allows() {
    let slow = TieringLimits {
        rate: 4 * MIB,
        ..limits()
    };
    let mut traced = Traced::new(400, 400, slow);
    let mut last = 0;
    for _ in 0..30 {
        traced.window(&hot(0..400));
        let moved = traced.moved - last;
        assert!(moved <= 4 * MIB * 60, "{moved}");
        last = traced.moved;
    }
    assert!(
        last >= 25 * 4 * MIB * 60 - 30 * 16 * MIB,
        "{last}: it is used"
    );
    // What was not used in an hour is not used at once.
    traced.now = traced.now + Span::from_secs(3600);
    traced.window(&hot(0..400));
    assert!(traced.moved - last <= 4 * MIB * 60);
}

#[test]
fn pinned_disks_are_where_they_are_pinned() {
    let mut traced = Traced::new(40, 10, limits());
    for _ in 0..10 {
        traced.window(&hot(0..10));
    }
    assert_eq!(traced.on_fast().len(), 10);
    // Another disk is pinned to the fast tier: what is there by heat leaves, though it is hotter and came just now.
    traced.tiering.set_pin(1, Pin::Fast);
    let cold: Vec<PartReport> = (0..4)
        .map(|part| PartReport {
            part,
            extents: PART,
            ..PartReport::default()
        })
        .collect();
    traced.tiering.window(1, &cold);
    traced.now = traced.now + Span::from_secs(1800);
    let moves = traced.tiering.plan(traced.now, 0);
    let to = |tier, disk| {
        moves
            .iter()
            .filter(|it| it.to == tier && it.disk == disk)
            .count()
    };
    assert_eq!((to(Tier::Fast, 1), to(Tier::Slow, 0)), (4, 4), "{moves:?}");
    // Pinned to the slow tier, the first disk leaves it at once.
    traced.tiering.set_pin(0, Pin::Slow);
    traced.now = traced.now + Span::from_secs(60);
    let moves = traced.tiering.plan(traced.now, 0);
    assert_eq!(moves.len(), 6, "{moves:?}");
    assert!(moves.iter().all(|it| it.to == Tier::Slow && it.disk == 0));
    traced.tiering.forget(1);
    assert_eq!(traced.tiering.plan(traced.now, 0), []);
}

#[test]
fn cold_parts_are_forgotten() {
    let mut traced = Traced::new(2_000, 0, limits());
    traced.window(&(0..2_000).map(|part| (part, 3)).collect::<Vec<_>>());
    assert_eq!(traced.tiering.parts(), 2_000);
    for _ in 0..600 {
        traced.window(&[]);
    }
    assert_eq!(traced.tiering.parts(), 0);
}

#[test]
fn a_part_that_stays_cold_leaves_only_when_its_room_is_wanted() {
    let mut traced = Traced::new(40, 10, limits());
    for _ in 0..10 {
        traced.window(&hot(0..10));
    }
    for _ in 0..300 {
        assert_eq!(traced.window(&[]), []);
    }
    assert_eq!(traced.on_fast().len(), 10);
    for _ in 0..WINDOWS {
        traced.window(&hot(20..22));
    }
    assert_eq!(traced.on_fast().len(), 10);
    assert!(traced.fast[20] && traced.fast[21]);
}
