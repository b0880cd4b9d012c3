//! The image alone: a test delivers the completions of its ring in any order.

use super::*;
use crate::blocking::BlockingWorker;
use crate::datastore::condition::Harm;
use crate::sys::buffers::Buffers;
use crate::sys::ring::Ring;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use tempfile::TempDir;
use tidegate_core::request::Outcome;
use tidegate_core::units::Time;

const SIZE: u64 = 1 << 20;
const HALF: u64 = SIZE / 2;
const BLOCK: u64 = 4096;

/// An image full of ones, and the place of an I/O thread.
struct Rig {
    image: Dir,
    condition: Arc<Condition>,
    /// The same file, for whoever is not us.
    file: File,
    ring: Ring,
    buffers: Buffers,
    blocking: BlockingWorker,
    finished: Vec<(DiskId, IoId, Outcome)>,
    asked: u64,
    _place: TempDir,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(Options::default())
    }

    /// Through the page cache.
    fn cached() -> Rig {
        Rig::with(Options {
            buffered: true,
            ..Options::default()
        })
    }

    /// On a device of which the smallest direct I/O is 4 KiB.
    fn coarse() -> Rig {
        let mut rig = Rig::new();
        assert!(rig.image.direct.is_some(), "these tests need direct I/O");
        rig.image.grain = Grain {
            unit: BLOCK,
            memory: 512,
            block: BLOCK,
        };
        rig
    }

    fn with(options: Options) -> Rig {
        let place = TempDir::with_prefix("tidegate-dir-").expect("a directory");
        let path = place.path().join("image");
        std::fs::write(&path, vec![1; usize::try_from(SIZE).expect("small")]).expect("an image");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let condition = Arc::default();
        let (image, _) = open_dir(&path, options, &condition).expect("it opens");
        Rig {
            image,
            condition,
            file: file.expect("a file"),
            ring: Ring::new().expect("a ring"),
            buffers: Buffers::new(),
            blocking: BlockingWorker::start("test", |_, _| ()).expect("a thread"),
            finished: Vec::new(),
            asked: 0,
            _place: place,
        }
    }

    fn act<T>(&mut self, act: impl FnOnce(&mut Dir, &mut ImageCx<'_>) -> T) -> T {
        let mut cx = ImageCx {
            now: Time::ZERO,
            disk: DiskId(0),
            ring: &mut self.ring,
            buffers: &mut self.buffers,
            finished: &mut self.finished,
            blocking: &self.blocking,
        };
        act(&mut self.image, &mut cx)
    }

    /// Asks for a block; returns the name of the I/O.
    fn ask(&mut self, op: Op, offset: u64) -> IoId {
        self.ask_for(op, Flags::NONE, offset, BLOCK)
    }

    fn ask_for(&mut self, op: Op, flags: Flags, offset: u64, len: u64) -> IoId {
        self.ask_with(op, flags, offset, len, 2)
    }

    /// The same, with bytes of this value.
    fn ask_with(&mut self, op: Op, flags: Flags, offset: u64, len: u64, value: u8) -> IoId {
        let buffer = self.buffers.claim_pool(bytes(len)).expect("memory");
        let data = Data { buffer, start: 0 };
        self.buffers.put(data, &vec![value; bytes(len)]);
        let io = IoId::from_bits(self.asked);
        self.asked += 1;
        let job = Job {
            io,
            op,
            flags,
            offset,
            len,
            data,
        };
        if let Progress::Done(outcome) = self.act(|image, cx| image.start(cx, job)) {
            self.finished.push((DiskId(0), io, outcome));
        }
        io
    }

    fn held(&self) -> usize {
        let slots = u32::try_from(self.image.pending.len()).expect("few");
        (0..slots)
            .filter(|&s| self.image.smoothing.holds(s))
            .count()
    }

    /// Waits for all operations that are under way.
    fn completions(&mut self) -> Vec<Completion> {
        let on_ring = |p: &&Pending| !p.waits;
        let pending = self.image.pending.iter().flatten().filter(on_ring).count();
        let under_way = pending - self.held() - self.image.syncs.idle();
        let mut completions = Vec::new();
        while completions.len() < under_way {
            self.ring.wait(None);
            self.ring.reap(under_way, &mut completions);
        }
        completions
    }

    fn deliver(&mut self, completions: impl IntoIterator<Item = Completion>) {
        for completion in completions {
            self.act(|image, cx| image.completed(cx, completion));
        }
    }

    /// Has everything end.
    fn finish(&mut self) {
        while self.image.pending.iter().any(Option::is_some) {
            let completions = self.completions();
            self.deliver(completions);
        }
    }

    /// Teaches the image that its disk answers whole batches, and has it hold back a write to the last block but one.
    fn hold_a_write(&mut self) -> IoId {
        for _ in 0..20 {
            for block in 0..32 {
                self.ask(Op::Read, block * BLOCK);
            }
            self.finish();
        }
        for block in 0..7 {
            self.ask(Op::Read, block * BLOCK);
        }
        let write = self.ask(Op::Write, SIZE - 2 * BLOCK);
        assert_eq!(self.held(), 1, "the eighth of a batch is held back");
        write
    }

    fn outcome(&self, io: IoId) -> Option<Outcome> {
        let finished = self.finished.iter().find(|(_, ended, _)| *ended == io);
        finished.map(|(_, _, outcome)| *outcome)
    }

    /// The value of each sector of the file's first blocks; every byte of a sector has the same.
    fn sectors(&self) -> [u8; 16] {
        let mut bytes = [0; 16 * 512];
        let read = self.file.read_exact_at(&mut bytes, 0);
        read.expect("the image is whole");
        std::array::from_fn(|sector| {
            let sector = &bytes[sector * 512..][..512];
            assert!(sector.iter().all(|byte| *byte == sector[0]));
            sector[0]
        })
    }

    fn len(&self) -> u64 {
        self.file.metadata().expect("a file").len()
    }
}

#[test]
fn a_write_held_back_is_refused_when_the_image_was_cut_meanwhile() {
    let mut rig = Rig::new();
    let write = rig.hold_a_write();
    let read = IoId::from_bits(rig.asked - 2);
    rig.file.set_len(HALF).expect("cut");
    let completions = rig.completions();
    assert_eq!(rig.outcome(write), None);
    rig.deliver(completions);
    assert_eq!(rig.outcome(write), Some(Err(Fault::Io)));
    assert_eq!(rig.outcome(read), Some(Ok(())), "what is left can be read");
    rig.finish();
    assert_eq!(rig.len(), HALF, "nothing made the image long again");
    assert_eq!(rig.finished.len() as u64, rig.asked);
}

#[test]
fn a_write_held_back_is_refused_when_the_lease_was_lost_meanwhile() {
    let mut rig = Rig::new();
    let write = rig.hold_a_write();
    // A gate that nobody has opened.
    rig.image.fence(&Arc::new(Fence::default()));
    let completions = rig.completions();
    assert_eq!(rig.outcome(write), None);
    rig.deliver(completions);
    assert_eq!(rig.outcome(write), Some(Err(Fault::Io)));
    rig.finish();
    let mut bytes = [0; 4096];
    let read = rig.file.read_exact_at(&mut bytes, SIZE - 2 * BLOCK);
    read.expect("the image is whole");
    assert_eq!(bytes, [1; 4096], "nothing was written");
    assert_eq!(rig.finished.len() as u64, rig.asked);
}

#[test]
fn a_write_held_back_goes_on_when_nothing_is_amiss() {
    let mut rig = Rig::new();
    let write = rig.hold_a_write();
    rig.finish();
    assert_eq!(rig.outcome(write), Some(Ok(())));
    let mut bytes = [0; 4096];
    let read = rig.file.read_exact_at(&mut bytes, SIZE - 2 * BLOCK);
    read.expect("the image is whole");
    assert_eq!(bytes, [2; 4096]);
}

#[test]
fn a_write_under_way_as_the_image_is_cut_is_not_acknowledged_and_nothing_is_read_any_more() {
    let mut rig = Rig::new();
    // The first operation of a turn is submitted at once, the second is not yet.
    let first = rig.ask(Op::Read, 0);
    let write = rig.ask(Op::Write, SIZE - 2 * BLOCK);
    rig.file.set_len(HALF).expect("cut");
    rig.finish();
    assert_eq!(
        rig.len(),
        SIZE - BLOCK,
        "the write made the image long again"
    );
    assert_eq!(rig.outcome(write), Some(Err(Fault::Io)));
    let hole = rig.ask(Op::Read, HALF);
    rig.finish();
    assert_eq!(
        rig.outcome(hole),
        Some(Err(Fault::Io)),
        "no zeroes for data"
    );
    // The one that ended first may have been delivered before anything showed.
    assert!(rig.outcome(first).is_some());
}

/// The same operations, as the kernel answers them when nothing reaches the disk any more.
fn broken(completions: Vec<Completion>) -> impl Iterator<Item = Completion> {
    let broken = |completion| Completion {
        result: -libc::EIO,
        ..completion
    };
    completions.into_iter().map(broken)
}

#[test]
fn after_a_failed_sync_none_succeeds_for_whoever_asked_before_meanwhile_or_later() {
    let mut rig = Rig::cached();
    let first = rig.ask(Op::Flush, 0);
    let completions = rig.completions();
    let meanwhile = rig.ask(Op::Flush, 0);
    rig.deliver(broken(completions));
    assert_eq!(rig.outcome(first), Some(Err(Fault::Io)));
    assert_eq!(
        rig.outcome(meanwhile),
        Some(Err(Fault::Io)),
        "the kernel has forgotten the error, and would answer this one with success"
    );
    let later = rig.ask(Op::Flush, 0);
    let durable = rig.ask_for(Op::Write, Flags::FUA, 512, 512);
    let zeroes = rig.ask_for(Op::WriteZeroes, Flags::FUA, 0, BLOCK);
    let (read, write) = (rig.ask(Op::Read, 0), rig.ask(Op::Write, 0));
    rig.finish();
    for io in [later, durable, zeroes] {
        assert_eq!(rig.outcome(io), Some(Err(Fault::Io)));
    }
    for io in [read, write] {
        assert_eq!(rig.outcome(io), Some(Ok(())));
    }
}

#[test]
fn a_durable_direct_write_is_answered_by_itself_and_so_is_one_of_part_of_a_unit() {
    let mut rig = Rig::coarse();
    let sync = rig.ask(Op::Flush, 0);
    let completions = rig.completions();
    rig.deliver(broken(completions));
    assert_eq!(rig.outcome(sync), Some(Err(Fault::Io)));
    let whole = rig.ask_for(Op::Write, Flags::FUA, BLOCK, BLOCK);
    let part = rig.ask_for(Op::Write, Flags::FUA, 512, 512);
    rig.finish();
    for io in [whole, part] {
        assert_eq!(rig.outcome(io), Some(Ok(())), "it reached the device");
    }
}

#[test]
fn whoever_asks_during_a_sync_shares_the_next_one() {
    let mut rig = Rig::new();
    let first = rig.ask(Op::Flush, 0);
    let completions = rig.completions();
    assert_eq!(completions.len(), 1);
    let others = [(); 3].map(|()| rig.ask(Op::Flush, 0));
    rig.deliver(completions);
    assert_eq!(rig.outcome(first), Some(Ok(())));
    assert_eq!(
        others.map(|io| rig.outcome(io)),
        [None; 3],
        "it began before"
    );
    let next = rig.completions();
    assert_eq!(next.len(), 1, "one is enough for all");
    rig.deliver(next);
    assert_eq!(others.map(|io| rig.outcome(io)), [Some(Ok(())); 3]);
}

#[test]
fn a_durable_write_through_the_page_cache_is_answered_after_a_sync_of_its_own() {
    let mut rig = Rig::cached();
    let write = rig.ask_for(Op::Write, Flags::FUA, 512, 512);
    let written = rig.completions();
    rig.deliver(written);
    assert_eq!(rig.outcome(write), None, "it is in the page cache");
    assert_eq!(rig.condition.harm(), None);
    let synced = rig.completions();
    rig.deliver(broken(synced));
    assert_eq!(rig.outcome(write), Some(Err(Fault::Io)));
    let flush = rig.ask(Op::Flush, 0);
    assert_eq!(rig.outcome(flush), Some(Err(Fault::Io)), "nor is the rest");
    assert_eq!(rig.condition.harm(), Some(Harm::FlushesFail));
}

mod odd;
mod overlap;
