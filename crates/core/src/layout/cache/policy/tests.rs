//! Tests of the policy family against simple models of its special cases.

use super::*;
use crate::units::Span;
use alloc::collections::VecDeque;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

/// A run of pages that is the same each time: a third popular, the others rarely seen again.
fn pages(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|n| {
        let hash = n.wrapping_mul(0x9e37_79b1) >> 7;
        if hash % 3 == 0 {
            hash % 64
        } else {
            hash % 4096
        }
    })
}

/// Feeds a cache of `slots` and returns how often each page was hit or missed: `true` for a hit.
fn run(policy: &mut Policy, pages: impl Iterator<Item = u32>) -> Vec<bool> {
    let mut free: Vec<u32> = (0..policy.slots()).rev().collect();
    let mut result = Vec::new();
    for (n, page) in pages.enumerate() {
        let now = at(n as u64 * 20);
        let slot = (0..policy.slots()).find(|slot| policy.page(*slot) == Some(page));
        result.push(slot.is_some());
        match slot {
            Some(slot) => assert!(policy.hit(slot, now), "it has a page"),
            None if policy.miss(page, now, false) => {
                let slot = free.pop().or_else(|| policy.victim(|_| true));
                policy.insert(page, slot.expect("a slot"));
            }
            None => {}
        }
    }
    result
}

/// The same for a list that the oldest page leaves; `reorder` makes it LRU.
fn listed(slots: usize, reorder: bool, nth: u32, pages: impl Iterator<Item = u32>) -> Vec<bool> {
    let mut list = VecDeque::new();
    let mut counts = alloc::collections::BTreeMap::new();
    let mut result = Vec::new();
    for page in pages {
        let found = list.iter().position(|it| *it == page);
        result.push(found.is_some());
        match found {
            Some(found) if reorder => {
                list.remove(found);
                list.push_back(page);
            }
            Some(_) => {}
            None => {
                let count = counts.entry(page).or_insert(0);
                *count += 1;
                if *count >= nth {
                    *count = 0;
                    list.push_back(page);
                    if list.len() > slots {
                        list.pop_front();
                    }
                }
            }
        }
    }
    result
}

#[test]
fn without_a_small_queue_and_references_it_is_fifo() {
    let got = run(&mut Policy::new(100, Params::FIFO), pages(20_000));
    assert_eq!(got, listed(100, false, 1, pages(20_000)));
}

#[test]
fn with_reordering_it_is_lru() {
    let got = run(&mut Policy::new(100, Params::LRU), pages(20_000));
    assert_eq!(got, listed(100, true, 1, pages(20_000)));
}

#[test]
fn the_rule_of_fast_cache_admits_the_third_access_and_evicts_the_least_recently_used() {
    // So few pages that ghosts forget none and mistake none.
    let few = || pages(20_000).map(|page| page % 90);
    let got = run(&mut Policy::new(64, Params::FAST), few());
    let expected = listed(64, true, 3, few());
    let differ = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
    assert!(differ < 200, "{differ}");
    let mut policy = Policy::new(64, Params::FAST);
    assert!(!policy.miss(7, at(0), false));
    assert!(!policy.miss(7, at(0), true));
    assert!(policy.miss(7, at(0), false));
}

#[test]
fn clock_saves_a_referenced_page_once() {
    let mut policy = Policy::new(3, Params::CLOCK);
    for slot in 0..3 {
        policy.insert(slot + 10, slot);
    }
    policy.hit(0, at(0));
    policy.hit(0, at(1));
    assert_eq!(policy.victim(|_| true), Some(1));
    assert_eq!(policy.victim(|_| true), Some(2));
    assert_eq!(policy.victim(|_| true), Some(0));
    assert_eq!(policy.victim(|_| true), None);
}

#[test]
fn s3_fifo_moves_a_page_with_two_references_to_main_and_remembers_the_others() {
    let mut policy = Policy::new(20, Params::S3_FIFO);
    for slot in 0..20 {
        policy.insert(slot + 100, slot);
    }
    policy.hit(0, at(0));
    policy.hit(0, at(1));
    policy.hit(1, at(2));
    // Slot 0 goes to the main queue; one reference does not suffice for slot 1.
    assert_eq!(policy.victim(|_| true), Some(1));
    assert_eq!((policy.small.len, policy.main.len), (18, 1));
    // The evicted page returns to the main queue.
    policy.insert(101, 1);
    assert_eq!((policy.small.len, policy.main.len), (18, 2));
}

#[test]
fn references_in_the_correlation_window_do_not_count() {
    let mut policy = Policy::new(100, Params::CLOCK_2Q_PLUS);
    for slot in 0..10 {
        policy.insert(slot, slot);
    }
    // The window is half of a tenth: the newest five pages.
    for slot in 0..10 {
        policy.hit(slot, at(0));
    }
    let referenced = (0..10).filter(|slot| policy.tags[*slot].refs() > 0);
    assert_eq!(referenced.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn correlated_accesses_count_once() {
    let correlated = Span::from_millis(100);
    let params = Params {
        correlated,
        ..Params::CLOCK_2Q_PLUS.admitting(2)
    };
    let mut policy = Policy::new(100, params);
    assert!(!policy.miss(5, at(1_000), false));
    assert!(!policy.miss(5, at(1_050), false));
    assert!(policy.miss(5, at(1_150), false));
    let params = Params {
        correlated,
        ..Params::CLOCK
    };
    let mut policy = Policy::new(4, params);
    assert!(policy.miss(9, at(0), false));
    policy.insert(9, 0);
    policy.hit(0, at(99));
    assert_eq!(policy.tags[0].refs(), 0);
    policy.hit(0, at(100));
    assert_eq!(policy.tags[0].refs(), 1);
}

#[test]
fn writes_have_a_threshold_of_their_own() {
    let params = Params {
        admit_write: 4,
        ..Params::CLOCK_2Q_PLUS.admitting(2)
    };
    let mut policy = Policy::new(100, params);
    let now = Time::ZERO;
    assert!(!policy.miss(5, now, true));
    assert!(!policy.miss(5, now, true));
    assert!(policy.miss(5, now, false));
    assert!(policy.miss(5, now, true));
}

#[test]
fn pages_that_may_not_be_taken_are_passed_over_within_the_bound() {
    let mut policy = Policy::new(1000, Params::CLOCK_2Q_PLUS);
    for slot in 0..1000 {
        policy.insert(slot, slot);
        policy.hit(slot, at(0));
    }
    let mut looked = 0;
    let found = policy.victim(|slot| {
        looked += 1;
        slot == 100
    });
    assert_eq!(found, Some(100));
    let mut looked_again = 0;
    let none = policy.victim(|_| {
        looked_again += 1;
        false
    });
    assert_eq!(none, None);
    assert!(looked <= MOST_STEPS && looked_again == MOST_STEPS);
    assert_eq!(policy.pages(), 999);
}

#[test]
fn a_removed_page_is_in_no_queue_and_its_slot_is_free() {
    let mut policy = Policy::new(4, Params::LRU);
    for slot in 0..4 {
        policy.insert(slot + 10, slot);
    }
    policy.remove(1);
    policy.remove(1);
    assert_eq!((policy.page(1), policy.pages()), (None, 3));
    policy.insert(20, 1);
    let order: Vec<_> = core::iter::from_fn(|| policy.victim(|_| true)).collect();
    assert_eq!(order, [0, 2, 3, 1]);
}

#[test]
#[should_panic(expected = "a page enters a free slot")]
fn a_page_enters_no_used_slot() {
    let mut policy = Policy::new(2, Params::LRU);
    policy.insert(1, 0);
    policy.insert(2, 0);
}

#[test]
fn a_policy_takes_at_most_16_bytes_a_slot_and_a_fixed_part() {
    for slots in [0, 1, 7, 256, 1_000, 16_384, 100_000, 1_000_000] {
        let mut policy = Policy::new(slots, Params::CLOCK_2Q_PLUS);
        let bound = slots as usize * 16 + 3 * 1024;
        assert!(policy.memory() <= bound, "{slots}: {}", policy.memory());
        policy.resize(slots + 256);
        assert!(policy.memory() <= bound + 256 * 16, "{slots}");
    }
}

#[test]
fn a_policy_grows_and_shrinks_with_its_pages_and_ghosts() {
    let mut policy = Policy::new(256, Params::CLOCK_2Q_PLUS.admitting(2));
    for page in 0..200 {
        policy.miss(page, at(0), false);
    }
    for slot in 0..100 {
        policy.insert(1_000 + slot, slot);
    }
    for slots in [512, 5_000, 300, 256, 100] {
        policy.resize(slots);
        assert_eq!((policy.slots(), policy.pages()), (slots, 100));
        let known = (0..200).filter(|page| policy.ghosts.count(*page).is_some());
        let known = known.count();
        assert!(
            known >= if slots >= 256 { 140 } else { 70 },
            "{slots}: {known}"
        );
    }
    let left = core::iter::from_fn(|| policy.victim(|_| true)).count();
    assert_eq!(left, 100);
}

#[test]
#[should_panic(expected = "slots that go away are free")]
fn a_used_slot_does_not_go_away() {
    let mut policy = Policy::new(8, Params::LRU);
    policy.insert(1, 7);
    policy.resize(7);
}

#[test]
fn ghosts_survive_export_and_import_also_into_another_size() {
    let mut policy = Policy::new(1_000, Params::FAST);
    for page in 0..500 {
        policy.miss(page, at(0), false);
        policy.miss(page, at(0), false);
    }
    let mut bytes = Vec::new();
    policy.export_ghosts(&mut bytes);
    assert!(bytes.len() <= 2 * 1_000 + 4);
    for slots in [1_000, 300, 4_000] {
        let mut other = Policy::new(slots, Params::FAST);
        assert_eq!(other.import_ghosts(&bytes), Ok(()));
        let known = (0..500).filter(|page| other.ghosts.count(*page) == Some(2));
        let known = known.count();
        assert!(
            known >= if slots == 300 { 250 } else { 490 },
            "{slots}: {known}"
        );
    }
}

#[test]
fn damaged_ghosts_are_refused_and_change_nothing() {
    let mut policy = Policy::new(64, Params::FAST);
    policy.miss(3, at(0), false);
    let before = policy.ghosts.clone();
    let mut bytes = Vec::new();
    policy.export_ghosts(&mut bytes);
    let mut others = alloc::vec![
        Vec::new(),
        bytes[1..].to_vec(),
        bytes[..bytes.len() - 1].to_vec()
    ];
    for (place, byte) in [(0, 9), (1, 60), (1, 255), (2, 255), (3, 1)] {
        let mut other = bytes.clone();
        other[place] = byte;
        others.push(other);
    }
    for other in others {
        assert_eq!(policy.import_ghosts(&other), Err(BadGhosts));
    }
    assert_eq!(policy.ghosts, before);
    assert_eq!(policy.import_ghosts(&[1, 0, 0, 0]), Ok(()));
    assert_eq!(policy.ghosts.count(3), None);
}

/// The state of a policy and its shadows.
fn exported(policy: &Policy, shadows: Option<&Shadows>) -> Vec<u8> {
    let mut out = Vec::new();
    while export(policy, shadows, 1 << 30, 100, &mut out) == Exported::Part {}
    out
}

#[test]
fn a_state_has_the_parameters_in_use_and_the_figures_behind_them() {
    let mut policy = Policy::new(1_000, CANDIDATES[0]);
    let mut shadows = Shadows::new(1_000);
    let figures = core::array::from_fn(|nth| Figures {
        accessed: 100_000,
        hits: 1_000 * nth as u64,
        flash: nth as u64,
    });
    shadows.resume(5, figures);
    policy.miss(3, at(0), false);
    let bytes = exported(&policy, Some(&shadows));
    let (mut other, mut others) = (Policy::new(500, CANDIDATES[0]), Shadows::new(500));
    let size = 1 << 30;
    assert_eq!(import(&mut other, Some(&mut others), size, &bytes), Ok(()));
    assert_eq!(others.learned(), (5, figures));
    assert_eq!(*other.params(), CANDIDATES[5]);
    assert_eq!(other.ghosts.count(3), Some(1));
    // Its shadows are empty, so nothing is chosen before they are full.
    assert_eq!(others.choose(at(0)), None);
    assert_eq!(others.choose(at(0) + EVERY + EVERY), None);
    assert!(others.memory() <= 64 << 10, "{}", others.memory());
    // One without shadows has parameters that were given.
    let mut given = Policy::new(500, Params::LRU);
    assert_eq!(import(&mut given, None, size, &bytes), Ok(()));
    assert_eq!(*given.params(), Params::LRU);
    let bytes = exported(&given, None);
    assert_eq!(import(&mut other, Some(&mut others), size, &bytes), Ok(()));
    assert_eq!(others.learned().0, 5, "it goes on choosing");
}

#[test]
fn parameters_that_are_no_candidate_any_more_are_not_used() {
    let mut policy = Policy::new(100, CANDIDATES[0]);
    let mut shadows = Shadows::new(100);
    shadows.resume(3, [Figures::default(); CANDIDATES.len()]);
    let mut bytes = exported(&policy, Some(&shadows));
    assert_eq!(check_state(&bytes), Ok(()));
    bytes[1] = 99;
    let mut others = Shadows::new(100);
    let size = 1 << 30;
    assert_eq!(import(&mut policy, Some(&mut others), size, &bytes), Ok(()));
    assert_eq!(others.learned().0, 0);
    // More hits than accesses.
    bytes[56] = 1;
    assert_eq!(check_state(&bytes), Err(BadState));
    let refused = import(&mut policy, Some(&mut others), size, &bytes);
    assert_eq!(refused, Err(BadState));
}

#[test]
fn the_state_of_a_cache_of_four_tebibytes_is_bounded_and_has_the_newest_ghosts() {
    let slots = 1 << 26;
    let mut policy = Policy::new(slots, Params::FAST);
    policy.miss(3, at(0), false);
    let bytes = exported(&policy, None);
    assert!(bytes.len() <= (16 << 20) + 64, "{}", bytes.len());
    let mut other = Policy::new(1_000, Params::FAST);
    assert_eq!(import(&mut other, None, 1 << 30, &bytes), Ok(()));
    assert_eq!(other.ghosts.count(3), Some(1));
}

#[test]
fn a_run_of_a_mebibyte_is_sequential_also_among_127_others() {
    let mut streams = Streams::new();
    let base = |stream: u64| stream << 40;
    for step in 0..20_u64 {
        for stream in 0..REMEMBERED as u64 {
            let sequential = streams.access(base(stream) + step * 65_536, 65_536);
            assert_eq!(sequential, step >= 15, "{stream} {step}");
        }
    }
    // After one more the request that was the last one of the first stream is forgotten.
    assert!(!streams.access(base(500), 4096));
    assert!(!streams.access(base(0) + 20 * 65_536, 65_536));
    assert!(streams.access(base(2) + 20 * 65_536, 65_536));
}

#[test]
fn requests_that_continue_none_are_not_sequential() {
    let mut streams = Streams::new();
    for n in 0..100_000_u64 {
        let offset = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 << 12;
        assert!(!streams.access(offset, 4096));
    }
    assert!(streams.access(u64::MAX, u64::MAX));
    assert!(!streams.access(0, 1));
    assert!(streams.memory() <= 5 * 1024);
}

fn access(page: u32) -> Access {
    Access {
        page,
        blocks: 1,
        is_write: false,
        is_sequential: false,
    }
}

#[test]
fn a_shadow_counts_what_it_fills_and_what_it_hits() {
    let mut shadow = Shadow::new(4, Params::LRU);
    let of = |blocks, is_write| Access {
        blocks,
        is_write,
        ..access(1)
    };
    shadow.access(of(0b11, false), at(0));
    shadow.access(of(0b110, false), at(1));
    shadow.access(of(0b1000, true), at(2));
    let figures = *shadow.figures();
    assert_eq!((figures.accessed, figures.hits, figures.flash), (5, 1, 4));
    shadow.set_params(Params::LRU.filling(Params::WHOLE));
    shadow.access(of(0b1_0000, false), at(3));
    shadow.access(of(0xffff, false), at(4));
    let figures = *shadow.figures();
    assert_eq!(
        (figures.accessed, figures.hits, figures.flash),
        (22, 17, 16)
    );
}

#[test]
fn sequential_runs_bypass_a_shadow_and_invalidate_what_they_write() {
    let mut shadow = Shadow::new(4, Params::LRU.bypassing());
    let sequential = |is_write| Access {
        is_write,
        is_sequential: true,
        ..access(1)
    };
    shadow.access(sequential(false), at(0));
    assert_eq!((shadow.policy().pages(), shadow.figures().flash), (0, 0));
    shadow.access(access(1), at(1));
    shadow.access(sequential(false), at(2));
    assert_eq!((shadow.figures().hits, shadow.figures().flash), (1, 1));
    shadow.access(sequential(true), at(3));
    shadow.access(sequential(false), at(4));
    assert_eq!((shadow.figures().hits, shadow.figures().flash), (1, 1));
}

#[test]
fn a_shadow_finds_each_page_until_it_is_evicted() {
    let mut shadow = Shadow::new(100, Params::FIFO);
    let hits = |shadow: &mut Shadow, pages: core::ops::Range<u32>| {
        let before = shadow.figures().hits;
        pages.for_each(|page| shadow.access(access(page * 977), at(0)));
        shadow.figures().hits - before
    };
    assert_eq!(hits(&mut shadow, 0..1_000), 0);
    assert_eq!(hits(&mut shadow, 900..1_000), 100);
    assert_eq!(hits(&mut shadow, 0..900), 0);
}

#[test]
fn shadows_take_at_most_64_kib() {
    for slots in [0, 1, 100, 1_024, 4_096, 1 << 26] {
        let memory = Shadows::new(slots).memory();
        assert!(memory <= 64 << 10, "{slots}: {memory}");
    }
}

/// Feeds one access each 20 ms, chooses each second, and returns the choices.
fn choices(shadows: &mut Shadows, pages: impl Iterator<Item = u32>) -> Vec<(Time, Choice)> {
    let mut found = Vec::new();
    for (n, page) in pages.enumerate() {
        let now = at(n as u64 * 20);
        shadows.access(access(page), now);
        if n % 50 == 0 {
            found.extend(shadows.choose(now).map(|choice| (now, choice)));
        }
    }
    found
}

#[test]
fn shadows_choose_early_admission_where_pages_are_soon_used_twice_and_never_again() {
    let mut shadows = Shadows::new(1_024);
    let pages = (0..300_000_u32).map(|n| {
        if n % 2 == 0 {
            n / 2
        } else {
            (n / 2).saturating_sub(200)
        }
    });
    let choices = choices(&mut shadows, pages);
    assert!(shadows.params().admit == 1, "{choices:?}");
    let (_, first) = choices[0];
    assert!(
        first.to.miss_ratio + 2_000 < first.from.miss_ratio,
        "{first:?}"
    );
    assert!(first.sampled >= 4_000);
}

#[test]
fn shadows_stay_with_what_writes_little_where_nothing_returns() {
    let mut shadows = Shadows::new(1_024);
    assert_eq!(choices(&mut shadows, 0..300_000), []);
    assert_eq!(shadows.params(), &CANDIDATES[0]);
}

#[test]
fn choices_are_at_least_ten_minutes_apart() {
    let mut shadows = Shadows::new(1_024);
    // The workload changes its kind every fifteen minutes.
    let pages = (0..600_000_u32).map(|n| match n / 45_000 % 2 {
        0 if n % 2 == 0 => n / 2,
        0 => (n / 2).saturating_sub(200),
        _ => n.wrapping_mul(0x9e37_79b1) >> 20,
    });
    let choices = choices(&mut shadows, pages);
    assert!(!choices.is_empty());
    let times: Vec<Time> = choices.iter().map(|(now, _)| *now).collect();
    assert!(times.windows(2).all(|pair| pair[1].since(pair[0]) >= EVERY));
    assert!(times[0] >= Time::ZERO + EVERY);
}
