//! The device dies between any two stores. Its successor resumes from the in-flight region.
//!
//! At any point, the successor takes each chain that the guest does not see as used. It takes each exactly once, in the
//! order in which they were made available. It takes no chain that the guest sees as used.

use super::driver::{self, Desc, Driver, ROOM, header};
use super::memory::Memory;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use tidegate_front::vhost::inflight::region_len;
use tidegate_front::vhost::queue::{Queue, QueueConfig, RingError, Taken};

/// The host: everything that outlives the device.
struct World {
    memory: Memory,
    guest: Driver,
    region: Rc<RefCell<Vec<u8>>>,
    event_idx: bool,
    /// Heads that the guest may use.
    free: VecDeque<u16>,
    /// Heads that were made available and not collected, in order.
    outstanding: Vec<u16>,
}

impl World {
    fn new(size: u16, base: u16) -> World {
        let memory = driver::memory();
        let guest = Driver::new(&memory, size, base);
        memory.poke(ROOM, &header(4, 0));
        let pieces = [Desc::read(ROOM, 16), Desc::write(ROOM + 16, 1)];
        for head in 0..size {
            guest.indirect(head, ROOM + 0x100, &pieces);
        }
        World {
            memory,
            guest,
            region: Rc::new(RefCell::new(vec![0; region_len(size)])),
            event_idx: true,
            free: (0..size).collect(),
            outstanding: Vec::new(),
        }
    }

    fn add(&mut self) {
        if let Some(head) = self.free.pop_front() {
            self.guest.add(head);
            self.outstanding.push(head);
        }
    }

    /// The guest collects the entries that it sees as used.
    fn collect(&mut self) {
        for (head, _) in self.guest.collect() {
            let at = self.outstanding.iter().position(|&out| out == head);
            self.outstanding
                .remove(at.expect("a chain is completed once"));
            self.free.push_back(head);
        }
    }

    fn start(&self, base: u16) -> Result<Device, RingError> {
        let config = QueueConfig {
            base,
            event_idx: self.event_idx,
            ..self.guest.config()
        };
        let mut queue = Queue::new(&self.memory, config)?;
        let len = self.region.borrow().len();
        let left_behind = queue.track(self.memory.view(&self.region), len)?;
        Ok(Device {
            memory: self.memory.clone(),
            queue,
            left_behind: left_behind.into(),
            in_flight: Vec::new(),
        })
    }
}

/// A device process.
struct Device {
    memory: Memory,
    queue: Queue<Memory>,
    left_behind: VecDeque<u16>,
    in_flight: Vec<u16>,
}

impl Device {
    fn take(&mut self) -> Option<u16> {
        let mut data = Vec::new();
        let taken = match self.left_behind.pop_front() {
            Some(head) => Some(
                self.queue
                    .retake(&self.memory, head, &mut data)
                    .expect("a valid ring"),
            ),
            None => self
                .queue
                .next(&self.memory, &mut data)
                .expect("a valid ring"),
        };
        let head = match taken? {
            Taken::Request(request) => request.head,
            Taken::Bad { why, .. } => panic!("{why:?}"),
        };
        self.in_flight.push(head);
        Some(head)
    }

    fn complete(&mut self, which: usize) {
        if !self.in_flight.is_empty() {
            let head = self.in_flight.remove(which % self.in_flight.len());
            self.queue.complete(head, 1);
        }
    }

    fn take_all(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.take()).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Add,
    Take,
    Complete(u8),
    Publish,
    /// The guest collects.
    Collect,
}

use Act::{Add, Collect, Complete, Publish, Take};

/// Runs a device until it dies or has no acts left. The guest continues after a device's death.
fn act(world: &mut World, device: &mut Device, acts: &[Act]) {
    for &act in acts {
        match act {
            Add => world.add(),
            Collect => world.collect(),
            _ if world.memory.is_dead() => {}
            Take => {
                device.take();
            }
            Complete(which) => device.complete(which.into()),
            Publish => {
                device.queue.publish(&world.memory);
            }
        }
    }
}

/// The base that the front end sends after its device has died.
#[derive(Clone, Copy, Debug)]
enum FrontEndBase {
    /// The used index, like QEMU.
    Used,
    /// An index that it read before the last completions were published.
    Old(u16),
}

/// One device process, which dies after `stores` stores. The guest continues meanwhile.
fn run_until_death(
    world: &mut World,
    front_end_base: FrontEndBase,
    acts: &[Act],
    stores: u64,
) -> bool {
    let base = match front_end_base {
        FrontEndBase::Used => world.guest.used_idx(),
        FrontEndBase::Old(base) => base,
    };
    world.memory.die_after(stores);
    let mut device = world.start(base).expect("the region fits");
    act(world, &mut device, acts);
    let died = world.memory.is_dead();
    drop(device);
    world.memory.revive();
    died
}

/// A successor recovers and completes every chain, and then the ring works as usual.
fn recover(world: &mut World, front_end_base: FrontEndBase) {
    let base = match front_end_base {
        FrontEndBase::Used => world.guest.used_idx(),
        FrontEndBase::Old(base) => base,
    };
    world.collect();
    let mut device = world.start(base).expect("the region fits");
    let taken = device.take_all();
    assert_eq!(
        taken, world.outstanding,
        "exactly the guest's outstanding chains, in order"
    );
    assert_eq!(usize::from(device.queue.in_flight()), taken.len());
    while !device.in_flight.is_empty() {
        device.complete(1);
    }
    device.queue.publish(&world.memory);
    world.collect();
    assert_eq!(world.outstanding, []);
    for _ in 0..2 * world.guest.size {
        world.add();
        assert_eq!(device.take(), world.outstanding.first().copied());
        device.complete(0);
        device.queue.publish(&world.memory);
        world.collect();
    }
    drop(device);
    let calm = world
        .start(world.guest.used_idx())
        .expect("the region fits");
    assert_eq!(calm.left_behind, []);
}

const LIFE: [Act; 22] = [
    Add,
    Add,
    Add,
    Take,
    Take,
    Complete(1),
    Take,
    Publish,
    Collect,
    Add,
    Complete(0),
    Complete(0),
    Take,
    Publish,
    Add,
    Collect,
    Add,
    Take,
    Take,
    Complete(1),
    Publish,
    Collect,
];

#[test]
fn a_crash_between_any_two_stores_loses_and_repeats_no_chain() {
    for base in [0, 0xfffe] {
        let mut stores = 0;
        loop {
            let mut world = World::new(4, base);
            let died = run_until_death(&mut world, FrontEndBase::Used, &LIFE, stores);
            recover(&mut world, FrontEndBase::Used);
            if !died {
                break;
            }
            stores += 1;
        }
        assert!(stores > 40, "the device makes many stores");
    }
}

#[test]
fn two_crashes_in_a_row_lose_and_repeat_no_chain() {
    const SECOND: [Act; 12] = [
        Take,
        Complete(0),
        Publish,
        Take,
        Add,
        Take,
        Complete(1),
        Complete(0),
        Publish,
        Collect,
        Add,
        Take,
    ];
    for base in [0, 0xfffd] {
        let mut first = 0;
        loop {
            let (mut second, mut died) = (0, false);
            loop {
                let mut world = World::new(4, base);
                died |= run_until_death(&mut world, FrontEndBase::Used, &LIFE, first);
                let again = run_until_death(&mut world, FrontEndBase::Used, &SECOND, second);
                recover(&mut world, FrontEndBase::Used);
                if !again {
                    break;
                }
                second += 1;
            }
            if !died {
                break;
            }
            first += 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_sequence_of_crashes_loses_and_repeats_no_chain(
        bits in 0..5_u32,
        before in 0..20_u16,
        lives in proptest::collection::vec((proptest::collection::vec(prop_oneof![
            2 => Just(Add),
            2 => Just(Take),
            2 => any::<u8>().prop_map(Complete),
            1 => Just(Publish),
            1 => Just(Collect),
        ], 0..60), 0..200_u64, any::<bool>()), 1..5),
    ) {
        let base = 0_u16.wrapping_sub(before);
        let mut world = World::new(1 << bits, base);
        for (acts, stores, old) in lives {
            let front_end_base = if old { FrontEndBase::Old(base) } else { FrontEndBase::Used };
            run_until_death(&mut world, front_end_base, &acts, stores);
        }
        recover(&mut world, FrontEndBase::Old(base));
    }
}

#[test]
fn the_region_overrides_a_used_index_that_the_front_end_read_too_early() {
    // The front end disconnects and reads the used index before the last completions are published.
    let mut world = World::new(4, 10);
    let acts = [
        Add,
        Add,
        Take,
        Take,
        Complete(0),
        Publish,
        Complete(0),
        Publish,
    ];
    run_until_death(&mut world, FrontEndBase::Used, &acts, u64::MAX);
    recover(&mut world, FrontEndBase::Old(11));
}

#[test]
fn an_empty_region_uses_the_front_ends_base() {
    // As after a migration: the ring was in use, and the region is new.
    let mut world = World::new(4, 100);
    let mut device = world.start(100).expect("fits");
    assert_eq!(device.left_behind, []);
    world.add();
    assert_eq!(device.take(), Some(0));
}

#[test]
fn a_region_of_a_ring_of_another_size_is_reset() {
    // The guest's firmware used 8 entries, its operating system 4. The front end reused the region.
    let mut world = World::new(8, 0);
    run_until_death(
        &mut world,
        FrontEndBase::Used,
        &[Add, Add, Add, Take, Take, Complete(1)],
        u64::MAX,
    );
    let region = Rc::clone(&world.region);
    let mut world = World::new(4, 0);
    world.region = region;
    let mut device = world.start(0).expect("a longer region fits a shorter ring");
    assert_eq!(device.left_behind, []);
    world.add();
    assert_eq!(device.take(), Some(0));
    drop(device);
    recover(&mut world, FrontEndBase::Used);
}

#[test]
fn a_region_too_short_or_of_an_unknown_version_is_rejected() {
    let mut world = World::new(8, 0);
    world.region = Rc::new(RefCell::new(vec![0; region_len(8) - 64]));
    assert_eq!(world.start(0).err(), Some(RingError::Inflight));
    world.region = Rc::new(RefCell::new(vec![0; region_len(8)]));
    world.region.borrow_mut()[8] = 2;
    assert_eq!(world.start(0).err(), Some(RingError::Inflight));
}

#[test]
fn the_region_has_the_protocols_layout() {
    let mut world = World::new(4, 0);
    let mut device = world.start(0).expect("fits");
    for _ in 0..3 {
        world.add();
        device.take();
    }
    device.complete(1);
    device.complete(1);
    let word =
        |at: usize| u16::from_le_bytes([world.region.borrow()[at], world.region.borrow()[at + 1]]);
    assert_eq!((word(8), word(10)), (1, 4), "version, desc_num");
    assert_eq!(
        (word(12), word(14)),
        (2, 0),
        "last_batch_head, used_idx before it is published"
    );
    let entry = |head: usize| {
        (
            word(16 + 16 * head) & 0xff,
            word(16 + 16 * head + 6),
            word(16 + 16 * head + 8),
        )
    };
    assert_eq!(
        [entry(0), entry(1), entry(2)],
        [(1, 0, 0), (1, 0, 1), (1, 1, 2)],
        "inflight, next, counter"
    );
    device.queue.publish(&world.memory);
    assert_eq!(word(14), 2, "used_idx");
    assert_eq!([entry(0).0, entry(1).0, entry(2).0], [1, 0, 0]);
    assert_eq!(region_len(4) % 64, 0);
    assert!(region_len(128) >= 16 + 16 * 128);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_malformed_region_yields_valid_heads_without_repetition(
        mut bytes in proptest::collection::vec(any::<u8>(), region_len(8)..=region_len(8)),
        valid: bool,
        base: u16,
    ) {
        if valid {
            bytes[8..12].copy_from_slice(&[1, 0, 8, 0]);
        }
        let mut world = World::new(8, base);
        world.region = Rc::new(RefCell::new(bytes));
        if let Ok(mut device) = world.start(base) {
            let mut heads: Vec<u16> = device.left_behind.iter().copied().collect();
            heads.sort_unstable();
            heads.dedup();
            prop_assert_eq!(heads.len(), device.left_behind.len());
            prop_assert!(heads.iter().all(|&head| head < 8));
            while !device.left_behind.is_empty() {
                device.take();
                device.complete(0);
            }
            device.queue.publish(&world.memory);
        }
    }
}
