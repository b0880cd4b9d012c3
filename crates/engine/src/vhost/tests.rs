//! Front ends that connect and leave, on a real I/O thread.

use super::front_ends::Stay;
use super::*;
use crate::datastore::null;
use crate::error::Kind;
use crate::handle::{Disk, Engine, Settings};
use crate::thread::commands::{Change, What};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tidegate_core::units::Span;

/// How long a test waits before it fails: never reached unless something is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a guest's memory, and where it lies in its front end's process.
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
        poll: Span::ZERO,
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
    stay: Stay<'a>,
    memory: File,
    kick: EventFd,
    features: u64,
}

impl FrontEnd<'_> {
    fn connect(disk: &Disk) -> FrontEnd<'_> {
        let device = &disk.core.device;
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let stay = device.front_ends.enter(ours).expect("it is let in");
        FrontEnd {
            theirs,
            protocol: Protocol::new(Arc::clone(device), stay.id),
            stay,
            memory: os::memory_file(c"guest", MEMORY).expect("memory"),
            kick: EventFd::new().expect("a descriptor"),
            features: feature::PROTOCOL_FEATURES | feature::VERSION_1,
        }
    }

    /// All messages up to the one that has the first ring run.
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

    /// The guest is reset, and started again by the same front end: its ring stops, and what is in flight has a new region.
    fn reset(&mut self) -> Result<()> {
        self.protocol.get_vring_base(0)?;
        self.protocol.get_inflight_fd(&REGION)?;
        self.start()
    }

    fn runs(&self) -> bool {
        self.protocol.rings[0].running.is_some()
    }

    /// What the thread of a connection does at its end.
    fn end(self) {
        drop(self.protocol);
        drop(self.stay);
    }
}

/// Keeps an I/O thread from doing anything else until what comes back is dropped; `other` is a disk of it.
fn hold(other: &Disk) -> Sender<()> {
    let (entered, inside) = channel();
    let (open, gate) = channel::<()>();
    let hold = Command::Run(Box::new(move || {
        let _ = entered.send(());
        let _ = gate.recv();
    }));
    other.core.device.inbox.send_always(hold);
    inside
        .recv_timeout(PATIENCE)
        .expect("the thread gets there");
    open
}

#[test]
fn a_virtual_machine_that_starts_as_the_last_one_leaves_is_served_when_its_rings_have_stopped() {
    let engine = engine();
    let (disk, other) = (disk(&engine), disk(&engine));
    let mut old = FrontEnd::connect(&disk);
    old.start().expect("its ring runs");
    let held = hold(&other);
    std::thread::scope(|scope| {
        let hung_up = old.theirs.try_clone().expect("a descriptor");
        hung_up
            .shutdown(std::net::Shutdown::Both)
            .expect("it is connected");
        let mut new = FrontEnd::connect(&disk);
        let (tell, heard) = channel();
        scope.spawn(move || {
            let started = new.start().map_err(|error| error.to_string());
            let told = tell.send((started, new.runs(), new));
            told.expect("somebody hears it");
        });
        // Only now does the old one's thread notice, and waits for the I/O thread.
        scope.spawn(|| old.end());
        let deadline = Instant::now() + PATIENCE;
        let mut early = None;
        while !disk.core.device.front_ends.is_waited_for()
            && early.is_none()
            && Instant::now() < deadline
        {
            early = heard.try_recv().ok();
            std::thread::yield_now();
        }
        let waits = disk.core.device.front_ends.is_waited_for();
        early = early.or_else(|| heard.try_recv().ok());
        // First of all: nobody else goes on before.
        drop(held);
        let early = early.map(|(started, ..)| started);
        assert_eq!((early, waits), (None, true), "it waits for its turn");
        let (started, runs, new) = heard.recv_timeout(PATIENCE).expect("it is served");
        assert_eq!((started, runs), (Ok(()), true));
        new.end();
    });
    assert!(!disk.core.device.front_ends.any());
}

#[test]
fn a_detach_ends_only_after_the_farewell_of_every_queue() {
    let engine = engine();
    let disk = disk(&engine);
    let mut old = FrontEnd::connect(&disk);
    old.start().expect("its ring runs");
    std::thread::scope(|scope| {
        let (tell, heard) = channel();
        let (core, disk) = (&disk.core, &disk);
        scope.spawn(move || tell.send(disk.detach_fully().map_err(|error| error.to_string())));
        let deadline = Instant::now() + PATIENCE;
        let mut byte = [0];
        // Sent away, it has not said goodbye yet: its ring is still this disk's.
        assert_eq!(
            std::io::Read::read(&mut &old.theirs, &mut byte).ok(),
            Some(0)
        );
        let refusal = || {
            let (reply, answer) = channel();
            let (disk, what) = (disk.core.device.id, What::Size(1 << 20));
            let change = Change { disk, what, reply };
            let order = Command::Change(Box::new(change));
            core.device.inbox.send_always(order);
            let answer = answer.recv_timeout(PATIENCE).expect("an answer");
            answer.err().map(|error| error.kind())
        };
        let refused = loop {
            assert!(Instant::now() < deadline, "the order comes to the thread");
            if let Some(refused) = refusal() {
                break refused;
            }
        };
        assert_eq!(refused, Kind::Busy, "its number is taken");
        assert_eq!(heard.try_recv().ok(), None, "its queue has not ended");
        old.end();
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(Ok(())));
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
            .expect("it is taken");
        // A running ring's I/O thread takes the order before it stops the ring.
        front_end.protocol.get_vring_base(0).expect("it stops");
        assert_eq!(call.drain(), 1, "{runs}");
    }
    front_end.end();
}

#[test]
fn a_guest_is_told_as_many_segments_as_its_disk_is_set_to() {
    let engine = engine();
    let disk = disk(&engine);
    let mut front_end = FrontEnd::connect(&disk);
    let space = front_end
        .protocol
        .get_config(12, 4, VhostUserConfigFlags::empty());
    assert_eq!(space.expect("it is told"), 30_u32.to_le_bytes());
    front_end.end();
}

#[test]
fn what_a_guest_chose_of_its_cache_holds_for_the_next_one_until_that_chooses() {
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
    let choose = |front_end: &mut FrontEnd<'_>, wish| {
        let space = BlockConfig::WRITEBACK.try_into().expect("a small number");
        let flags = VhostUserConfigFlags::WRITABLE;
        front_end.protocol.set_config(space, &[wish], flags)
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
fn of_a_guest_that_comes_from_elsewhere_each_write_is_durable_until_it_flushes() {
    let engine = engine();
    let disk = disk(&engine);
    let answered_before = |front_end: &FrontEnd<'_>| {
        for ring in [AVAIL, USED] {
            let index = 5_u16.to_le_bytes();
            let written =
                std::os::unix::fs::FileExt::write_all_at(&front_end.memory, &index, ring + 2);
            written.expect("memory takes it");
        }
    };
    let is_write_back = || disk.core.device.facts.write_back.load(Ordering::Relaxed);
    let come = || {
        let mut front_end = FrontEnd::connect(&disk);
        front_end.features |= feature::FLUSH | feature::CONFIG_WCE;
        front_end
    };
    let take_up = |given: &VhostUserInflight, region: &File| {
        let mut again = come();
        answered_before(&again);
        let region = region.try_clone().expect("a descriptor");
        let taken = again.protocol.set_inflight_fd(given, region);
        taken.expect("it fits");
        again.start().expect("its ring runs");
        again
    };
    // One that was here from the beginning, over a restart of the daemon.
    let mut here = come();
    let (given, region) = here.protocol.get_inflight_fd(&REGION).expect("a region");
    here.start().expect("its ring runs");
    assert!(is_write_back());
    here.end();
    let again = take_up(&given, &region);
    assert!(is_write_back());
    again.end();
    // One that was not, and is no better known after a restart.
    let mut migrated = come();
    answered_before(&migrated);
    let (given, region) = migrated
        .protocol
        .get_inflight_fd(&REGION)
        .expect("a region");
    migrated.start().expect("its ring runs");
    assert!(!is_write_back());
    migrated.end();
    let again = take_up(&given, &region);
    assert!(!is_write_back());
    disk.core.device.facts.flushed();
    assert!(is_write_back());
    again.end();
    // One that has chosen is believed.
    let mut chooses = come();
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
    // One that does not acknowledge FLUSH never has a cache, whatever it sends.
    let mut plain = FrontEnd::connect(&disk);
    answered_before(&plain);
    plain.start().expect("its ring runs");
    disk.core.device.facts.flushed();
    assert!(!is_write_back());
    plain.end();
}

#[test]
fn who_did_not_read_the_disks_size_on_this_connection_is_told_to_once_its_ring_runs() {
    let engine = engine();
    let disk = disk(&engine);
    for (reads, resized, told) in [
        (true, None, 0),
        // It has connected again, and believes what it read before.
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
            .set_channel(front_end.stay.id, channel);
        front_end.start().expect("its ring runs");
        front_end.end();
        // The channel has gone with the front end: what it was told can be read to the end.
        let mut heard = Vec::new();
        std::io::Read::read_to_end(&mut &ours, &mut heard).expect("what was told");
        assert_eq!(heard.len(), 12 * told, "{reads} {resized:?}");
    }
}

#[test]
fn a_second_virtual_machine_is_refused_while_the_first_one_is_there() {
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
    third.start().expect("the turn was given back");
    third.end();
    first.end();
}

#[test]
fn after_one_that_had_the_thread_wait_a_ring_runs_a_second_later_also_for_who_had_its_turn_before()
{
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
fn no_ring_runs_over_memory_that_was_cut_until_it_is_shared_anew() {
    let engine = engine();
    let disk = disk(&engine);
    let mut front_end = FrontEnd::connect(&disk);
    front_end.start().expect("its ring runs");
    front_end.protocol.get_vring_base(0).expect("it stops");
    front_end.memory.set_len(0).expect("cut");
    for _ in 0..2 {
        let kick = front_end.kick.to_file().expect("a descriptor");
        let started = front_end.protocol.set_vring_kick(0, Some(kick));
        let refused = started.expect_err("nothing can be read there").to_string();
        assert!(refused.contains("Share it anew"), "{refused}");
        assert!(!front_end.runs());
    }
    front_end.memory.set_len(MEMORY).expect("grown");
    front_end.start().expect("its ring runs");
    assert!(front_end.runs());
    front_end.end();
}

#[test]
fn a_front_end_fills_its_memory_slots_and_no_more() {
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
    assert!(refused.contains("memory slots are taken"), "{refused}");
    front_end.end();
    // What all front ends share has room for two of each of many disks that fill theirs, beside honest ones.
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
        let given = front_end.protocol.set_inflight_fd(&huge, file);
        given.expect_err("nor is it taken");
    }
    for (queues, size) in [(1, 1), (2, 32768)] {
        let (given, file) = front_end
            .protocol
            .get_inflight_fd(&region(queues, size))
            .expect("it has as many");
        let len = file.metadata().expect("it is there").len();
        assert_eq!((given.mmap_size, len / (3 << 20)), (len, 0));
    }
    front_end.end();
}
