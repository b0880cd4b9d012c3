//! Tests of front ends that connect and leave, on a real I/O thread.

use super::front_ends::Registration;
use super::*;
use crate::datastore::null;
use crate::error::Kind;
use crate::handle::{Disk, Engine, Settings};
use crate::thread::commands::{Change, What};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tidegate_core::layout::LayoutSpec;
use tidegate_core::units::Span;

/// Deadline of a test that waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Size of a guest's memory, and its address in its front end's process.
const MEMORY: u64 = 0x1_0000;
const USER: u64 = 0x7000_0000;
const AVAIL: u64 = 0x4000;
const USED: u64 = 0x8000;
const SIZE: u32 = 256;

const REGION: VhostUserInflight = VhostUserInflight {
    mmap_size: 0,
    mmap_offset: 0,
    num_queues: 1,
    queue_size: 256,
};

fn engine() -> Engine {
    let settings = Settings {
        threads: 1,
        max_threads: 1,
        poll: Span::ZERO,
        curves: true,
        monitor: crate::monitor::Settings::NONE,
        coalesce: tidegate_core::coalesce::Coalesce::default(),
        always_poll: false,
        cpus: Vec::new(),
    };
    Engine::start(&settings).expect("the engine starts")
}

fn disk(engine: &Engine) -> Disk {
    let spec = DiskSpec {
        name: "disk".into(),
        size: 1 << 20,
        block_size: 512,
        read_only: false,
        write_back: true,
        serial: String::new(),
        uuid: [7; 16],
        queues: 2,
        seg_max: 30,
        filters: Vec::new(),
        layout: LayoutSpec::Plain,
        io: crate::IoSettings::default(),
        layout_options: Default::default(),
        control: None,
    };
    engine
        .attach(spec, null::open(1 << 20))
        .expect("the disk attaches")
}

/// A virtual machine's side of a connection, and ours.
struct FrontEnd<'a> {
    theirs: UnixStream,
    protocol: Protocol,
    registration: Registration<'a>,
    memory: File,
    kick: EventFd,
    features: u64,
}

impl FrontEnd<'_> {
    fn connect(disk: &Disk) -> FrontEnd<'_> {
        let device = &disk.core.device;
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let registration = device
            .front_ends
            .register(ours)
            .expect("the front end is admitted");
        FrontEnd {
            theirs,
            protocol: Protocol::new(Arc::clone(device), registration.id),
            registration,
            memory: os::memory_file(c"guest", MEMORY).expect("memory"),
            kick: EventFd::new().expect("a descriptor"),
            features: feature::PROTOCOL_FEATURES | feature::VERSION_1,
        }
    }

    /// Sends all messages up to the one that starts the first ring.
    fn start(&mut self) -> Result<()> {
        let protocol = &mut self.protocol;
        protocol.set_features(self.features)?;
        let region = VhostUserMemoryRegion::new(0, MEMORY, USER, 0);
        let memory = self.memory.try_clone().expect("a descriptor");
        protocol.set_mem_table(&[region], vec![memory], None)?;
        protocol.set_vring_num(0, SIZE)?;
        protocol.set_vring_base(0, 0)?;
        let plain = VhostUserVringAddrFlags::empty();
        protocol.set_vring_addr(0, plain, USER, USER + USED, USER + AVAIL, 0)?;
        let kick = self.kick.to_file().expect("a descriptor");
        protocol.set_vring_kick(0, Some(kick))?;
        protocol.set_vring_enable(0, true)
    }

    /// Resets the guest, and starts it again with the same front end: its ring stops, and requests in flight get a new
    /// region.
    fn reset(&mut self) -> Result<()> {
        self.protocol.get_vring_base(0)?;
        self.protocol.get_inflight_fd(&REGION)?;
        self.start()
    }

    fn runs(&self) -> bool {
        self.protocol.rings[0].running.is_some()
    }

    /// Does what a connection's thread does at its end.
    fn end(self) {
        drop(self.protocol);
        drop(self.registration);
    }
}

/// Blocks the I/O thread that serves `other` until the returned sender is dropped.
fn hold_thread(other: &Disk) -> Sender<()> {
    let (entered, inside) = channel();
    let (open, gate) = channel::<()>();
    let command = Command::Run(Box::new(move |_| {
        let _ = entered.send(());
        let _ = gate.recv();
    }));
    other.core.device.inbox().send_always(command);
    inside.recv_timeout(PATIENCE).expect("the thread runs it");
    open
}

#[test]
fn a_front_end_that_connects_as_the_last_one_leaves_is_served_after_its_rings_stopped() {
    let engine = engine();
    let (disk, other) = (disk(&engine), disk(&engine));
    let mut old = FrontEnd::connect(&disk);
    old.start().expect("its ring runs");
    let held = hold_thread(&other);
    std::thread::scope(|scope| {
        let socket = old.theirs.try_clone().expect("a descriptor");
        socket
            .shutdown(std::net::Shutdown::Both)
            .expect("it is connected");
        let mut new = FrontEnd::connect(&disk);
        let (sender, received) = channel();
        scope.spawn(move || {
            let started = new.start().map_err(|error| error.to_string());
            let notices = sender.send((started, new.runs(), new));
            notices.expect("the result is received");
        });
        // Only now does the old one's thread notice, and waits for the I/O thread.
        scope.spawn(|| old.end());
        let deadline = Instant::now() + PATIENCE;
        let mut early = None;
        while !disk.core.device.front_ends.is_waited_for()
            && early.is_none()
            && Instant::now() < deadline
        {
            early = received.try_recv().ok();
            std::thread::yield_now();
        }
        let waits = disk.core.device.front_ends.is_waited_for();
        early = early.or_else(|| received.try_recv().ok());
        // Release the thread first: others depend on it.
        drop(held);
        let early = early.map(|(started, ..)| started);
        assert_eq!((early, waits), (None, true), "it waits for the rings");
        let (started, runs, new) = received.recv_timeout(PATIENCE).expect("it is served");
        assert_eq!((started, runs), (Ok(()), true));
        new.end();
    });
    assert!(!disk.core.device.front_ends.any());
}

#[test]
fn a_detach_ends_only_after_every_queue_has_ended() {
    let engine = engine();
    let disk = disk(&engine);
    let mut old = FrontEnd::connect(&disk);
    old.start().expect("its ring runs");
    std::thread::scope(|scope| {
        let (sender, received) = channel();
        let (core, disk) = (&disk.core, &disk);
        scope.spawn(move || sender.send(disk.detach_fully().map_err(|error| error.to_string())));
        let deadline = Instant::now() + PATIENCE;
        let mut byte = [0];
        // Its socket is shut down, but its thread still runs: its ring still belongs to this disk.
        assert_eq!(
            std::io::Read::read(&mut &old.theirs, &mut byte).ok(),
            Some(0)
        );
        let refusal = || {
            let (reply, answer) = channel();
            let what = What::Size {
                disk: 1 << 20,
                image: Some(1 << 20),
            };
            let disk = core.device.id;
            let change = Change { disk, what, reply };
            let order = Command::Change(Box::new(change));
            core.device.inbox().send_always(order);
            let answer = answer.recv_timeout(PATIENCE).expect("an answer");
            answer.err().map(|error| error.kind())
        };
        let refused = loop {
            assert!(
                Instant::now() < deadline,
                "the command reaches the thread in time"
            );
            if let Some(refused) = refusal() {
                break refused;
            }
        };
        assert_eq!(refused, Kind::Busy, "the disk still exists");
        assert_eq!(received.try_recv().ok(), None, "its queue has not ended");
        old.end();
        assert_eq!(received.recv_timeout(PATIENCE), Ok(Ok(())));
    });
}

#[test]
fn a_guest_is_called_once_when_its_call_descriptor_is_set_whether_its_ring_runs_or_not() {
    let engine = engine();
    let disk = disk(&engine);
    let mut front_end = FrontEnd::connect(&disk);
    for runs in [false, true] {
        if runs {
            front_end.start().expect("its ring runs");
        }
        let call = EventFd::new().expect("a descriptor");
        let file = call.to_file().expect("a descriptor");
        front_end
            .protocol
            .set_vring_call(0, Some(file))
            .expect("the descriptor is accepted");
        // A running ring's I/O thread handles the new descriptor before it stops the ring.
        front_end.protocol.get_vring_base(0).expect("it stops");
        assert_eq!(call.drain(), 1, "{runs}");
    }
    front_end.end();
}

#[test]
fn a_guest_sees_the_seg_max_of_its_disk() {
    let engine = engine();
    let disk = disk(&engine);
    let mut front_end = FrontEnd::connect(&disk);
    let space = front_end
        .protocol
        .get_config(12, 4, VhostUserConfigFlags::empty());
    assert_eq!(
        space.expect("the configuration is read"),
        30_u32.to_le_bytes()
    );
    front_end.end();
}

#[test]
fn a_cache_mode_survives_a_reset_until_the_next_choice() {
    let engine = engine();
    let disk = disk(&engine);
    let mut front_end = FrontEnd::connect(&disk);
    front_end.features |= feature::FLUSH | feature::CONFIG_WCE;
    let is_write_back = |front_end: &FrontEnd<'_>| {
        let region = front_end.protocol.inflight.as_ref().expect("it has one");
        let facts = &front_end.protocol.facts;
        (
            facts.write_back.load(Ordering::Relaxed),
            region.chosen_write_back(),
        )
    };
    let choose = |front_end: &mut FrontEnd<'_>, value| {
        let space = BlockConfig::WRITEBACK.try_into().expect("a small number");
        let flags = VhostUserConfigFlags::WRITABLE;
        front_end.protocol.set_config(space, &[value], flags)
    };
    front_end.reset().expect("its ring runs");
    assert_eq!(is_write_back(&front_end), (true, None));
    choose(&mut front_end, 0).expect("it may choose");
    assert_eq!(is_write_back(&front_end), (false, Some(false)));
    front_end.reset().expect("its ring runs again");
    assert_eq!(is_write_back(&front_end), (false, Some(false)));
    choose(&mut front_end, 1).expect("it may choose");
    front_end.reset().expect("its ring runs again");
    assert_eq!(is_write_back(&front_end), (true, Some(true)));
    front_end.end();
}

#[test]
fn each_write_of_a_guest_from_another_host_is_durable_until_it_flushes() {
    let engine = engine();
    let disk = disk(&engine);
    let answered_before = |front_end: &FrontEnd<'_>| {
        for ring in [AVAIL, USED] {
            let index = 5_u16.to_le_bytes();
            let written =
                std::os::unix::fs::FileExt::write_all_at(&front_end.memory, &index, ring + 2);
            written.expect("memory is written");
        }
    };
    let is_write_back = || disk.core.device.facts.write_back.load(Ordering::Relaxed);
    let connect = || {
        let mut front_end = FrontEnd::connect(&disk);
        front_end.features |= feature::FLUSH | feature::CONFIG_WCE;
        front_end
    };
    let reconnect = |config: &VhostUserInflight, region: &File| {
        let mut restarted = connect();
        answered_before(&restarted);
        let region = region.try_clone().expect("a descriptor");
        let taken = restarted.protocol.set_inflight_fd(config, region);
        taken.expect("it fits");
        restarted.start().expect("its ring runs");
        restarted
    };
    // A guest that this daemon served from its start, before and after a restart of the daemon.
    let mut here = connect();
    let (config, region) = here.protocol.get_inflight_fd(&REGION).expect("a region");
    here.start().expect("its ring runs");
    assert!(is_write_back());
    here.end();
    let restarted = reconnect(&config, &region);
    assert!(is_write_back());
    restarted.end();
    // A migrated guest: its mode is also unknown after a restart.
    let mut migrated = connect();
    answered_before(&migrated);
    let (config, region) = migrated
        .protocol
        .get_inflight_fd(&REGION)
        .expect("a region");
    migrated.start().expect("its ring runs");
    assert!(!is_write_back());
    migrated.end();
    let restarted = reconnect(&config, &region);
    assert!(!is_write_back());
    disk.core.device.facts.flushed();
    assert!(is_write_back());
    restarted.end();
    // A guest that has chosen a mode gets it.
    let mut chooses = connect();
    answered_before(&chooses);
    chooses.start().expect("its ring runs");
    assert!(!is_write_back());
    let space = BlockConfig::WRITEBACK.try_into().expect("a small number");
    let chosen = chooses
        .protocol
        .set_config(space, &[1], VhostUserConfigFlags::WRITABLE);
    chosen.expect("it may choose");
    assert!(is_write_back());
    chooses.end();
    // A guest that does not acknowledge FLUSH has no write-back cache, whatever it sends.
    let mut plain = FrontEnd::connect(&disk);
    answered_before(&plain);
    plain.start().expect("its ring runs");
    disk.core.device.facts.flushed();
    assert!(!is_write_back());
    plain.end();
}

#[test]
fn a_front_end_that_did_not_read_the_current_size_is_notified_when_its_ring_runs() {
    let engine = engine();
    let disk = disk(&engine);
    for (reads, resized, notices) in [
        (true, None, 0),
        // It has reconnected, and knows an old size.
        (false, None, 1),
        (true, Some(2 << 20), 1),
    ] {
        let mut front_end = FrontEnd::connect(&disk);
        if reads {
            let config = VhostUserConfigFlags::empty();
            let read = front_end.protocol.get_config(0, 8, config);
            assert_eq!(
                read.expect("it may"),
                (disk.core.device.size() / 512).to_le_bytes()
            );
        }
        if let Some(size) = resized {
            disk.resize(size).expect("it grows");
        }
        let (ours, channel) = UnixStream::pair().expect("sockets");
        let channel = Channel::over(channel);
        disk.core
            .device
            .front_ends
            .set_channel(front_end.registration.id, channel);
        front_end.start().expect("its ring runs");
        front_end.end();
        // The channel closes with the front end: its messages can be read to the end.
        let mut received = Vec::new();
        std::io::Read::read_to_end(&mut &ours, &mut received).expect("the messages");
        assert_eq!(received.len(), 12 * notices, "{reads} {resized:?}");
    }
}

#[test]
fn a_second_front_end_is_refused_while_the_first_is_connected() {
    let engine = engine();
    let disk = disk(&engine);
    let (mut first, mut second) = (FrontEnd::connect(&disk), FrontEnd::connect(&disk));
    first.start().expect("its ring runs");
    let refused = second.start().expect_err("one at a time").to_string();
    assert!(
        refused.contains("one virtual machine at a time"),
        "{refused}"
    );
    assert!(!second.runs());
    second.end();
    first.protocol.get_vring_base(0).expect("it stops");
    let mut third = FrontEnd::connect(&disk);
    third.start().expect("the rings were released");
    third.end();
    first.end();
}

#[test]
fn after_a_blocking_front_end_a_ring_starts_a_second_later_also_for_a_former_owner() {
    let engine = engine();
    let disk = disk(&engine);
    let (mut first, mut second) = (FrontEnd::connect(&disk), FrontEnd::connect(&disk));
    second.start().expect("its ring runs");
    second.protocol.get_vring_base(0).expect("it stops");
    first.start().expect("its ring runs");
    let begun = Instant::now();
    first
        .protocol
        .standing
        .shun(&disk.core.device.facts.offences);
    first.protocol.get_vring_base(0).expect("it stops");
    let kick = second.kick.to_file().expect("a descriptor");
    second
        .protocol
        .set_vring_kick(0, Some(kick))
        .expect("it runs again");
    assert!(second.runs());
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(!second.protocol.standing.is_shunned());
    first.end();
    second.end();
}

#[test]
fn no_ring_runs_over_truncated_memory_until_it_is_shared_again() {
    let engine = engine();
    let disk = disk(&engine);
    let mut front_end = FrontEnd::connect(&disk);
    front_end.start().expect("its ring runs");
    front_end.protocol.get_vring_base(0).expect("it stops");
    front_end.memory.set_len(0).expect("cut");
    for _ in 0..2 {
        let kick = front_end.kick.to_file().expect("a descriptor");
        let started = front_end.protocol.set_vring_kick(0, Some(kick));
        let refused = started.expect_err("the memory is missing").to_string();
        assert!(refused.contains("Share it again"), "{refused}");
        assert!(!front_end.runs());
    }
    front_end.memory.set_len(MEMORY).expect("grown");
    front_end.start().expect("its ring runs");
    assert!(front_end.runs());
    front_end.end();
}

#[test]
fn a_front_end_may_use_its_memory_slots_and_no_more() {
    let engine = engine();
    let disk = disk(&engine);
    let mut front_end = FrontEnd::connect(&disk);
    let slots = front_end.protocol.get_max_mem_slots().expect("a number");
    let mut plug = |slot: u64| {
        let at = slot * MEMORY;
        let region = VhostUserSingleMemoryRegion::new(at, MEMORY, USER + at, 0);
        let memory = front_end.memory.try_clone().expect("a descriptor");
        front_end.protocol.add_mem_region(&region, memory, None)
    };
    for slot in 0..slots {
        plug(slot).expect("there is room");
    }
    let refused = plug(slots).expect_err("no slot is left").to_string();
    assert!(refused.contains("memory slots are in use"), "{refused}");
    front_end.end();
    // The global limit has room for many disks with two such front ends each, in addition to usual ones.
    assert!(slots <= 64, "{slots}");
}

#[test]
fn an_in_flight_region_is_for_queues_that_the_disk_has() {
    let engine = engine();
    let disk = disk(&engine);
    let mut front_end = FrontEnd::connect(&disk);
    let region = |queues, size| VhostUserInflight::new(0, 0, queues, size);
    for (queues, size) in [(0, 256), (3, 256), (u16::MAX, u16::MAX), (1, 0), (2, 32769)] {
        let wanted = region(queues, size);
        let refused = front_end.protocol.get_inflight_fd(&wanted).err();
        let refused = refused.expect("it is too large").to_string();
        assert!(refused.contains("than the disk has"), "{refused}");
        let huge = VhostUserInflight::new(1 << 20, 0, queues, size);
        let file = os::memory_file(c"region", 1 << 20).expect("memory");
        let config = front_end.protocol.set_inflight_fd(&huge, file);
        config.expect_err("it is rejected");
    }
    for (queues, size) in [(1, 1), (2, 32768)] {
        let (config, file) = front_end
            .protocol
            .get_inflight_fd(&region(queues, size))
            .expect("it has as many");
        let len = file.metadata().expect("it exists").len();
        assert_eq!((config.mmap_size, len / (3 << 20)), (len, 0));
    }
    front_end.end();
}
