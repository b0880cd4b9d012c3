//! Compares both sides of a ring with a simple model: each chain is taken once and in order, and no notification is
//! lost.

use super::driver::{self, Desc, Driver, ROOM, header};
use super::memory::Memory;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use tidegate_front::vhost::queue::{MAX_SIZE, Queue, QueueConfig, Taken};

/// A ring with a flush at every head: header and status are in one indirect table.
fn ready(size: u16, base: u16) -> (Memory, Driver) {
    let memory = driver::memory();
    let driver = Driver::new(&memory, size, base);
    memory.poke(ROOM, &header(4, 0));
    let pieces = [Desc::read(ROOM, 16), Desc::write(ROOM + 16, 1)];
    for head in 0..size {
        driver.indirect(head, ROOM + 0x100, &pieces);
    }
    (memory, driver)
}

fn queue(memory: &Memory, driver: &Driver, event_idx: bool) -> Queue<Memory> {
    let config = QueueConfig {
        event_idx,
        ..driver.config()
    };
    Queue::new(memory, config).expect("the ring is valid")
}

fn take(queue: &mut Queue<Memory>, memory: &Memory) -> Option<u16> {
    match queue
        .next(memory, &mut Vec::new())
        .expect("the ring is valid")?
    {
        Taken::Request(request) => Some(request.head),
        Taken::Bad { why, .. } => panic!("{why:?}"),
    }
}

/// An action of one of the sides.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The guest makes some chains available at once.
    Add(u8),
    /// The device takes some.
    Take(u8),
    /// The device completes the one at this position among those in flight.
    Complete(u8),
    Publish,
    /// The device checks whether the guest wants a call for the published completions.
    CheckCall,
    /// The guest collects used entries, and requests a call this many later.
    Collect(u8),
    /// The guest disables calls (without event-idx).
    Mute(bool),
    WantKicks,
    SilenceKicks,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => any::<u8>().prop_map(Act::Add),
        3 => any::<u8>().prop_map(Act::Take),
        6 => any::<u8>().prop_map(Act::Complete),
        3 => Just(Act::Publish),
        3 => Just(Act::CheckCall),
        3 => any::<u8>().prop_map(Act::Collect),
        1 => any::<bool>().prop_map(Act::Mute),
        1 => Just(Act::WantKicks),
        1 => Just(Act::SilenceKicks),
    ];
    proptest::collection::vec(act, 1..200)
}

/// The expected state.
struct Model {
    free: Vec<u16>,
    available: VecDeque<u16>,
    in_flight: Vec<u16>,
    completed: VecDeque<(u16, u32)>,
    /// Completed and published.
    shown: VecDeque<(u16, u32)>,
    used: u16,
    /// The published index at the device's last check for a call.
    call_checked: u16,
    /// The guest wants a call when the used index passes this.
    call_at: u16,
    muted: bool,
    /// The device polls, and has suppressed kicks.
    silent: bool,
    /// The device has set the event index. With event-idx, the word is undefined before that.
    has_said: bool,
    /// The device suppressed kicks, and has not requested them since.
    was_silenced: bool,
    /// The device found no work, and waits for a kick.
    asleep: bool,
}

fn run(size: u16, base: u16, event_idx: bool, acts: &[Act]) -> Result<(), TestCaseError> {
    let (memory, mut guest) = ready(size, base);
    let mut queue = queue(&memory, &guest, event_idx);
    guest.call_me_at(base);
    let mut model = Model {
        free: (0..size).rev().collect(),
        available: VecDeque::new(),
        in_flight: Vec::new(),
        completed: VecDeque::new(),
        shown: VecDeque::new(),
        used: base,
        call_checked: base,
        call_at: base,
        muted: false,
        silent: false,
        has_said: false,
        was_silenced: false,
        asleep: false,
    };
    for &act in acts {
        match act {
            Act::Add(many) => {
                let old = guest.avail_idx;
                let waiting = !model.available.is_empty();
                for _ in 0..many % 7 {
                    let Some(head) = model.free.pop() else { break };
                    guest.offer(head);
                    model.available.push_back(head);
                }
                guest.show();
                let kick = guest.avail_idx != old && guest.must_kick(old, event_idx);
                if guest.avail_idx != old && model.asleep && !waiting {
                    prop_assert!(kick, "a sleeping device gets a kick");
                }
                if model.silent {
                    prop_assert!(!kick, "a polling device gets no kick");
                }
                prop_assert_eq!(queue.has_work(), !model.available.is_empty());
            }
            Act::Take(many) => {
                model.asleep = false;
                for _ in 0..many % 9 {
                    let head = take(&mut queue, &memory);
                    prop_assert_eq!(head, model.available.pop_front());
                    model.in_flight.extend(head);
                }
            }
            Act::Complete(which) => {
                if model.in_flight.is_empty() {
                    continue;
                }
                let at = usize::from(which) % model.in_flight.len();
                let head = model.in_flight.remove(at);
                let written = u32::from(head) << 8 | u32::from(which);
                queue.complete(head, written);
                model.completed.push_back((head, written));
            }
            Act::Publish => {
                prop_assert_eq!(queue.is_dirty(), !model.completed.is_empty());
                let count = u16::try_from(model.completed.len()).expect("a ring's length");
                model.shown.append(&mut model.completed);
                model.used = model.used.wrapping_add(count);
                queue.publish(&memory);
            }
            Act::CheckCall => {
                let shown = model.used.wrapping_sub(model.call_checked);
                let passed =
                    (0..shown).any(|at| model.call_checked.wrapping_add(at) == model.call_at);
                let wants = if event_idx {
                    passed
                } else {
                    shown > 0 && !model.muted
                };
                prop_assert_eq!(
                    queue.wants_call(),
                    wants,
                    "from {} to {}",
                    model.call_checked,
                    model.used
                );
                model.call_checked = model.used;
            }
            Act::Collect(later) => {
                let used = guest.collect();
                prop_assert_eq!(&used, &model.shown.drain(..).collect::<Vec<_>>());
                model.free.extend(used.iter().map(|(head, _)| *head));
                model.call_at = guest.used_seen.wrapping_add(u16::from(later) % 4);
                guest.call_me_at(model.call_at);
            }
            Act::Mute(muted) => {
                model.muted = muted;
                guest.want_calls(!muted);
            }
            Act::WantKicks => {
                (model.silent, model.has_said) = (false, true);
                model.was_silenced = false;
                model.asleep = model.available.is_empty();
                prop_assert_eq!(queue.want_kicks(&memory), !model.asleep);
            }
            Act::SilenceKicks => {
                model.has_said |= !model.was_silenced && model.available.is_empty();
                model.was_silenced = true;
                (model.silent, model.asleep) = (model.has_said || !event_idx, false);
                queue.silence_kicks(&memory);
            }
        }
        prop_assert_eq!(usize::from(queue.in_flight()), model.in_flight.len());
        let ahead = u16::try_from(model.available.len()).expect("at most the ring");
        prop_assert_eq!(queue.position(), guest.avail_idx.wrapping_sub(ahead));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_chain_is_taken_once_in_order_and_returned_as_completed(
        bits in 0..=9_u32,
        base: u16,
        event_idx: bool,
        acts in acts(),
    ) {
        run(1 << bits, base, event_idx, &acts)?;
    }

    #[test]
    fn indices_may_wrap_around(
        bits in 0..=5_u32,
        before in 0..40_u16,
        event_idx: bool,
        acts in acts(),
    ) {
        run(1 << bits, 0_u16.wrapping_sub(before), event_idx, &acts)?;
    }
}

#[test]
fn rings_of_every_size_wrap_twice() {
    for bits in 0..=15 {
        let size = 1_u16 << bits;
        let (memory, mut guest) = ready(size, u16::MAX - 2);
        let mut queue = queue(&memory, &guest, true);
        for round in 0..2 {
            for head in 0..size {
                guest.offer(head);
            }
            guest.show();
            for head in 0..size {
                assert_eq!(take(&mut queue, &memory), Some(head), "{size} {round}");
            }
            assert_eq!(take(&mut queue, &memory), None);
            for head in (0..size).rev() {
                queue.complete(head, 1);
            }
            guest.call_me_at(guest.used_seen.wrapping_add(size - 1));
            queue.publish(&memory);
            assert!(
                queue.wants_call(),
                "the guest waits for the last of the batch"
            );
            let expected: Vec<_> = (0..size).rev().map(|head| (head, 1)).collect();
            assert_eq!(guest.collect(), expected);
        }
    }
    assert_eq!(MAX_SIZE, 1 << 15);
}

#[test]
#[should_panic(expected = "completed once")]
fn completing_a_chain_twice_panics() {
    let (memory, mut guest) = ready(4, 0);
    let mut queue = queue(&memory, &guest, false);
    guest.add(1);
    take(&mut queue, &memory);
    queue.complete(1, 0);
    queue.complete(1, 0);
}

#[test]
fn a_base_behind_the_used_index_is_ignored() {
    for base in [0, u16::MAX] {
        let (memory, mut guest) = ready(4, base);
        let mut first = queue(&memory, &guest, false);
        guest.add(0);
        guest.add(1);
        for head in [0, 1] {
            assert_eq!(take(&mut first, &memory), Some(head));
            first.complete(head, 1);
        }
        first.publish(&memory);
        // The front end's base is still the ring's start.
        let mut second = queue(&memory, &guest, false);
        assert_eq!(take(&mut second, &memory), None, "no chain is taken twice");
        guest.add(2);
        assert_eq!(take(&mut second, &memory), Some(2));
    }
}

#[test]
fn the_devices_writes_to_the_ring_are_logged_for_migration() {
    let (memory, mut guest) = ready(4, 3);
    let config = QueueConfig {
        log_used: Some(0x5000),
        ..guest.config()
    };
    let mut queue = Queue::new(&memory, config).expect("a valid ring");
    let before = memory.dirty().len();
    for head in [0, 1] {
        guest.add(head);
        take(&mut queue, &memory);
        queue.complete(head, 0);
    }
    queue.publish(&memory);
    assert_eq!(
        memory.dirty()[before..],
        [(0x5000 + 4 + 24, 8), (0x5000 + 4, 8), (0x5000, 4)]
    );
}

#[test]
fn the_devices_notification_settings_are_logged_for_migration() {
    for event_idx in [false, true] {
        let (memory, guest) = ready(1024, 0);
        let config = QueueConfig {
            log_used: Some(0x5000),
            event_idx,
            ..guest.config()
        };
        let mut queue = Queue::new(&memory, config).expect("a valid ring");
        let before = memory.dirty().len();
        queue.silence_kicks(&memory);
        queue.want_kicks(&memory);
        // With event-idx this word is on another page than a completion's other changes.
        let word = if event_idx { 4 + 8 * 1024 } else { 0 };
        let expected = [(0x5000 + word, 2); 2];
        assert_eq!(memory.dirty()[before..], expected, "event-idx {event_idx}");
    }
}

#[test]
fn a_ring_taken_over_during_migration_is_logged_as_a_whole() {
    let (memory, mut guest) = ready(4, 3);
    let config = QueueConfig {
        log_used: Some(0x5000),
        ..guest.config()
    };
    let mut first = Queue::new(&memory, config).expect("a valid ring");
    guest.add(0);
    take(&mut first, &memory);
    first.complete(0, 0);
    // It dies here. Its successor logs everything that it wrote and did not log.
    let before = memory.dirty().len();
    Queue::new(&memory, config).expect("a valid ring");
    assert_eq!(memory.dirty()[before..], [(0x5000, 4 + 8 * 4 + 2)]);
}

#[test]
fn a_log_at_an_invalid_address_is_harmless() {
    let (memory, mut guest) = ready(4, 0);
    let config = QueueConfig {
        log_used: Some(u64::MAX),
        ..guest.config()
    };
    let mut queue = Queue::new(&memory, config).expect("a valid ring");
    guest.add(0);
    take(&mut queue, &memory);
    queue.complete(0, 0);
    queue.publish(&memory);
    assert!(queue.wants_call());
}

/// Tries every position of the guest's two steps among the device's accesses: both before, between any two, both after.
/// `device` returns whether the device noticed, the second step whether the guest did.
fn interleaved(
    event_idx: bool,
    base: u16,
    prepare: impl Fn(&mut Queue<Memory>, &mut Driver, &Memory),
    first: fn(&mut Driver),
    second: fn(&mut Driver, bool) -> bool,
    device: impl Fn(&mut Queue<Memory>, &Memory) -> bool,
) {
    const MORE_THAN_ACCESSES: u64 = 12;
    for early in 0..MORE_THAN_ACCESSES {
        for late in early..MORE_THAN_ACCESSES {
            let (memory, mut guest) = ready(8, base);
            let mut queue = queue(&memory, &guest, event_idx);
            prepare(&mut queue, &mut guest, &memory);
            let guest = Rc::new(RefCell::new(guest));
            let noticed = Rc::new(RefCell::new(None));
            let own = Rc::clone(&guest);
            memory.between(early, Box::new(move || first(&mut own.borrow_mut())));
            let (own, result) = (Rc::clone(&guest), Rc::clone(&noticed));
            let act = move || *result.borrow_mut() = Some(second(&mut own.borrow_mut(), event_idx));
            memory.between(late, Box::new(act));
            let before = memory.accesses();

            let by_device = device(&mut queue, &memory);

            assert!(
                memory.accesses() - before < MORE_THAN_ACCESSES,
                "every position was tried"
            );
            memory.run_rest();
            let by_guest = noticed.borrow().expect("both steps ran");
            assert!(
                by_device || by_guest,
                "lost: {early} {late} event-idx {event_idx} base {base}"
            );
        }
    }
}

#[test]
fn a_device_that_goes_to_sleep_sees_the_request_or_gets_a_kick() {
    for (event_idx, base) in [
        (false, 0),
        (true, 0),
        (false, 0xffff),
        (true, 0xffff),
        (true, 0xfffe),
    ] {
        interleaved(
            event_idx,
            base,
            |queue, guest, memory| {
                // It was busy, and has taken one chain.
                queue.silence_kicks(memory);
                guest.add(3);
                assert_eq!(take(queue, memory), Some(3));
            },
            |guest| guest.add(5),
            |guest, event_idx| guest.must_kick(guest.avail_idx.wrapping_sub(1), event_idx),
            Queue::want_kicks,
        );
    }
}

#[test]
fn a_device_that_polls_again_before_a_request_gets_no_kick() {
    for (event_idx, base) in [(false, 7), (true, 7), (true, 0), (true, 0xffff)] {
        let (memory, mut guest) = ready(8, base);
        let mut queue = queue(&memory, &guest, event_idx);
        for head in 0..8 {
            // It slept, and a completion of the datastore woke it.
            assert!(!queue.want_kicks(&memory));
            queue.silence_kicks(&memory);
            let old = guest.avail_idx;
            guest.add(head);
            assert!(!guest.must_kick(old, event_idx), "event-idx {event_idx}");
            assert_eq!(take(&mut queue, &memory), Some(head));
        }
    }
}

#[test]
fn a_device_that_goes_to_sleep_with_work_left_does_not() {
    for event_idx in [false, true] {
        let (memory, mut guest) = ready(8, 0xffff);
        let mut queue = queue(&memory, &guest, event_idx);
        guest.add(0);
        guest.add(1);
        take(&mut queue, &memory);
        assert!(queue.want_kicks(&memory));
        take(&mut queue, &memory);
        assert!(!queue.want_kicks(&memory));
    }
}

#[test]
fn a_guest_that_goes_to_sleep_sees_the_completion_or_gets_a_call() {
    for (event_idx, base) in [
        (false, 0),
        (true, 0),
        (false, 0xffff),
        (true, 0xffff),
        (true, 0xfffe),
    ] {
        interleaved(
            event_idx,
            base,
            |queue, guest, memory| {
                guest.want_calls(false);
                guest.call_me_at(guest.used_seen.wrapping_sub(1));
                guest.add(3);
                assert_eq!(take(queue, memory), Some(3));
                queue.complete(3, 1);
            },
            |guest| {
                guest.want_calls(true);
                guest.call_me_at(guest.used_seen);
            },
            |guest, _| !guest.collect().is_empty(),
            |queue, memory| {
                queue.publish(memory);
                queue.wants_call()
            },
        );
    }
}

#[test]
fn a_completion_is_fully_written_before_the_guest_sees_it() {
    // At every access of the device, the entries that the guest sees as used are the completed ones.
    let (memory, mut guest) = ready(4, 0xffff);
    let mut queue = queue(&memory, &guest, true);
    for head in [2, 0] {
        guest.add(head);
        take(&mut queue, &memory);
    }
    let seen = Rc::new(RefCell::new(Vec::new()));
    for access in 0..20 {
        let (mut guest, seen) = (guest.clone(), Rc::clone(&seen));
        memory.between(
            access,
            Box::new(move || seen.borrow_mut().push(guest.collect())),
        );
    }
    queue.complete(0, 0x0102_0304);
    queue.complete(2, 0x0506_0708);
    queue.publish(&memory);
    memory.run_rest();
    let both = vec![(0, 0x0102_0304), (2, 0x0506_0708)];
    assert!(
        seen.borrow()
            .iter()
            .all(|seen| seen.is_empty() || *seen == both)
    );
    assert_eq!(seen.borrow().last(), Some(&both));
}
