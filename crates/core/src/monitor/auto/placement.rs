//! Placement of disks on threads: which disk to move where, by busy shares (largest processing time first).
//!
//! All functions are pure. Loads are thousandths of a thread's time. The busy share of a thread is divided among its
//! disks in proportion to the time that each took, so that the disks' loads add up to it.
//!
//! # Always true
//! - only active threads get disks
//! - ties go to the lower number, of disks and of threads

use super::super::{DiskLoad, Permille, ThreadNumber};
use crate::request::DiskId;
use alloc::vec::Vec;

/// A disk's part of its thread's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) disk: DiskId,
    pub(super) thread: ThreadNumber,
    pub(super) load: Permille,
    /// Whether it may be moved now.
    pub(super) movable: bool,
}

/// A move: disk, from, to.
pub(super) type Relocation = (DiskId, ThreadNumber, ThreadNumber);

/// The loads of active threads, by number; `None`: not active.
pub(super) type Loads = Vec<Option<Permille>>;

/// The disks with their parts of the threads' loads, largest first.
pub(super) fn parts<'a>(
    disks: impl Iterator<Item = &'a DiskLoad> + Clone,
    threads: &[Permille],
    movable: impl Fn(&DiskLoad) -> bool,
) -> Vec<Part> {
    let mut busy = alloc::vec![0_u64; threads.len()];
    let mut count = alloc::vec![0_u64; threads.len()];
    for disk in disks.clone() {
        if let Some(sum) = busy.get_mut(usize::from(disk.thread)) {
            *sum = sum.saturating_add(disk.busy.as_nanos());
            count[usize::from(disk.thread)] += disk.arrivals;
        }
    }
    let known = disks.filter(|disk| usize::from(disk.thread) < threads.len());
    let part = |disk: &DiskLoad| {
        let at = usize::from(disk.thread);
        // Where no disk's time is known, requests stand for it.
        let (of, all) = match busy[at] {
            0 => (disk.arrivals, count[at]),
            all => (disk.busy.as_nanos(), all),
        };
        Part {
            disk: disk.disk,
            thread: disk.thread,
            load: super::super::ratio(of, all, u64::from(threads[at])),
            movable: movable(disk),
        }
    };
    let mut parts: Vec<Part> = known.map(part).collect();
    parts.sort_by_key(|part| (core::cmp::Reverse(part.load), part.disk));
    parts
}

/// The least loaded active thread other than `but`.
fn least(loads: &Loads, but: Option<ThreadNumber>) -> Option<(ThreadNumber, Permille)> {
    let numbered = (0..).zip(loads);
    let active = numbered.filter_map(|(number, load)| load.map(|load| (number, load)));
    let others = active.filter(|&(number, _)| Some(number) != but);
    others.min_by_key(|&(number, load)| (load, number))
}

/// The move that relieves thread `from` best: afterwards the busier of both threads is as idle as possible. `None`: no
/// thread has room below `most`, or nothing gets better by at least `gain`.
pub(super) fn relieve(
    from: ThreadNumber,
    loads: &Loads,
    parts: &[Part],
    most: Permille,
    gain: Permille,
) -> Option<Relocation> {
    let current = loads.get(usize::from(from)).copied().flatten()?;
    let (to, room) = least(loads, Some(from))?;
    let own = parts.iter().filter(|part| part.thread == from);
    let fits = own.filter(|part| part.movable && part.load > 0 && room + part.load <= most);
    let after = |part: &Part| (current.saturating_sub(part.load)).max(room + part.load);
    let best = fits.min_by_key(|part| (after(part), part.disk))?;
    (after(best) + gain <= current).then_some((best.disk, from, to))
}

/// Which disks of `from` go to an idle thread, so that the busier of both has as little as possible. Empty if the
/// largest disk alone leaves less than `gain` of the load to others.
pub(super) fn halve(
    from: ThreadNumber,
    to: ThreadNumber,
    parts: &[Part],
    gain: Permille,
) -> Vec<Relocation> {
    let own: Vec<&Part> = parts.iter().filter(|part| part.thread == from).collect();
    let total: Permille = own.iter().map(|part| part.load).sum();
    let stuck = own.iter().filter(|part| !part.movable);
    let mut stay: Permille = stuck.map(|part| part.load).sum();
    let mut go = 0;
    let mut moves = Vec::new();
    // The largest stays, as its move would gain nothing over the moves of all others.
    for part in own.iter().filter(|part| part.movable && part.load > 0) {
        if stay <= go {
            stay += part.load;
        } else {
            go += part.load;
            moves.push((part.disk, from, to));
        }
    }
    match stay.max(go) + gain <= total {
        true => moves,
        false => Vec::new(),
    }
}

/// The moves that empty thread `from`, and the highest load afterwards; `None` if there is no other thread.
pub(super) fn empty(
    from: ThreadNumber,
    loads: &Loads,
    parts: &[Part],
) -> Option<(Vec<Relocation>, Permille)> {
    let mut loads = loads.clone();
    let mut moves = Vec::new();
    for part in parts.iter().filter(|part| part.thread == from) {
        let (to, load) = least(&loads, Some(from))?;
        loads[usize::from(to)] = Some(load + part.load);
        moves.push((part.disk, from, to));
    }
    let others = (0..).zip(&loads).filter(|&(number, _)| number != from);
    let highest = others.filter_map(|(_, load)| *load).max()?;
    Some((moves, highest))
}

/// The variance of the loads, in squared thousandths.
pub(super) fn variance(loads: &Loads) -> u64 {
    let loads: Vec<u64> = loads.iter().flatten().map(|&load| load.into()).collect();
    let count = loads.len() as u64;
    let Some(mean) = loads.iter().sum::<u64>().checked_div(count) else {
        return 0;
    };
    let squares = loads.iter().map(|&load| load.abs_diff(mean).pow(2));
    squares.sum::<u64>() / count
}

/// Up to `most` moves, each from the busiest to the least busy thread, that make the loads more even; and the variance
/// afterwards.
pub(super) fn even(loads: &Loads, parts: &[Part], most: usize) -> (Vec<Relocation>, u64) {
    let mut loads = loads.clone();
    let mut parts = parts.to_vec();
    let mut moves = Vec::new();
    while moves.len() < most {
        let numbered = (0..).zip(&loads);
        let active = numbered.filter_map(|(number, load)| load.map(|load| (load, number)));
        let Some((_, from)) = active.max_by_key(|&(load, number)| (load, u16::MAX - number)) else {
            break;
        };
        let Some((disk, from, to)) = relieve(from, &loads, &parts, 1000, 1) else {
            break;
        };
        let part = parts.iter_mut().find(|part| part.disk == disk);
        let part = part.expect("the move is of one of these disks");
        let (source, target) = (usize::from(from), usize::from(to));
        loads[source] = loads[source].map(|load| load.saturating_sub(part.load));
        loads[target] = loads[target].map(|load| load + part.load);
        part.thread = to;
        // A disk is not moved twice.
        part.movable = false;
        moves.push((disk, from, to));
    }
    let after = variance(&loads);
    (moves, after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Span;
    use alloc::vec;

    fn part(disk: u32, thread: ThreadNumber, load: Permille) -> Part {
        Part {
            disk: DiskId(disk),
            thread,
            load,
            movable: true,
        }
    }

    #[test]
    fn parts_of_a_thread_add_up_to_its_load_largest_first() {
        let mut disks = [
            DiskLoad::idle(DiskId(0), 0),
            DiskLoad::idle(DiskId(1), 0),
            DiskLoad::idle(DiskId(2), 1),
        ];
        disks[0].busy = Span::from_micros(1);
        disks[1].busy = Span::from_micros(3);
        disks[2].arrivals = 5;
        let parts = parts(disks.iter(), &[800, 300], |_| true);
        let loads: Vec<_> = parts.iter().map(|part| (part.disk.0, part.load)).collect();
        assert_eq!(loads, [(1, 600), (2, 300), (0, 200)]);
    }

    #[test]
    fn the_move_that_evens_both_threads_relieves_best() {
        let parts = [part(0, 0, 500), part(1, 0, 300), part(2, 0, 150)];
        let loads = vec![Some(950), Some(200), None];
        assert_eq!(
            relieve(0, &loads, &parts, 750, 50),
            Some((DiskId(1), 0, 1)),
            "500 on both, instead of 450 and 700 or 800 and 350"
        );
        let full = vec![Some(950), Some(700), None];
        assert_eq!(relieve(0, &full, &parts, 750, 50), None);
        let alone = [part(0, 0, 950)];
        assert_eq!(relieve(0, &vec![Some(950), Some(0)], &alone, 750, 50), None);
    }

    #[test]
    fn half_of_a_load_goes_unless_it_is_one_disk() {
        let four: Vec<Part> = (0..4).map(|disk| part(disk, 0, 250)).collect();
        assert_eq!(
            halve(0, 1, &four, 50),
            [(DiskId(1), 0, 1), (DiskId(3), 0, 1)]
        );
        let alone = [part(0, 0, 970), part(1, 0, 10)];
        assert!(halve(0, 1, &alone, 50).is_empty());
    }

    #[test]
    fn an_emptied_threads_disks_go_to_the_least_busy() {
        let parts = [part(0, 2, 200), part(1, 2, 100), part(9, 0, 300)];
        let loads = vec![Some(300), Some(150), Some(300)];
        let (moves, highest) = empty(2, &loads, &parts).expect("there are others");
        assert_eq!(moves, [(DiskId(0), 2, 1), (DiskId(1), 2, 0)]);
        assert_eq!(highest, 400);
        assert_eq!(empty(0, &vec![Some(1)], &[part(0, 0, 1)]), None);
    }

    #[test]
    fn an_even_load_stays_and_an_uneven_one_is_moved_once() {
        let even_parts = [part(0, 0, 400), part(1, 1, 400)];
        assert_eq!(even(&vec![Some(400), Some(400)], &even_parts, 4).0, []);
        let parts = [part(0, 0, 300), part(1, 0, 300), part(2, 1, 100)];
        let (moves, after) = even(&vec![Some(600), Some(100)], &parts, 4);
        assert_eq!(moves, [(DiskId(0), 0, 1)]);
        assert_eq!(after, 2500);
    }
}
