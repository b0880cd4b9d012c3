//! Tests of the image alone: a test delivers the completions of its ring in any order.

use super::*;
use crate::blocking::BlockingWorker;
use crate::datastore::condition::Harm;
use crate::sys::buffers::Buffers;
use crate::sys::ring::Ring;
use crate::tag::ImageId;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use tempfile::TempDir;
use tidegate_core::request::Outcome;
use tidegate_core::units::Time;

const SIZE: u64 = 1 << 20;
const HALF: u64 = SIZE / 2;
const BLOCK: u64 = 4096;

/// An image full of ones, with the parts of an I/O thread that it needs.
struct Rig {
    image: Dir,
    condition: Arc<Condition>,
    /// The same file, opened by another program.
    file: File,
    ring: Ring,
    buffers: Buffers,
    blocking: BlockingWorker,
    finished: Vec<(DiskId, IoId, Outcome)>,
    submitted: u64,
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

    /// On a device whose smallest direct I/O is 4 KiB.
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
            submitted: 0,
            _place: place,
        }
    }

    fn act<T>(&mut self, act: impl FnOnce(&mut Dir, &mut ImageCx<'_>) -> T) -> T {
        let mut cx = ImageCx {
            now: Time::ZERO,
            image: ImageId::first(DiskId(0)),
            ring: &mut self.ring,
            buffers: &mut self.buffers,
            finished: &mut self.finished,
            blocking: &self.blocking,
        };
        act(&mut self.image, &mut cx)
    }

    /// Submits one block; returns the I/O's id.
    fn submit(&mut self, op: Op, offset: u64) -> IoId {
        self.submit_range(op, Flags::NONE, offset, BLOCK)
    }

    fn submit_range(&mut self, op: Op, flags: Flags, offset: u64, len: u64) -> IoId {
        self.submit_data(op, flags, offset, len, 2)
    }

    /// Submits a request with data of this value.
    fn submit_data(&mut self, op: Op, flags: Flags, offset: u64, len: u64, value: u8) -> IoId {
        let buffer = self
            .buffers
            .claim_pool(DiskId(0), bytes(len))
            .expect("memory");
        let data = Data { buffer, start: 0 };
        self.buffers.put(data, &vec![value; bytes(len)]);
        let io = IoId::from_bits(self.submitted);
        self.submitted += 1;
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

    /// Waits for all operations in flight.
    fn completions(&mut self) -> Vec<Completion> {
        let on_ring = |p: &&Pending| !p.waits;
        let pending = self.image.pending.iter().flatten().filter(on_ring).count();
        let in_flight = pending - self.held() - self.image.syncs.idle();
        let mut completions = Vec::new();
        while completions.len() < in_flight {
            self.ring.wait(None);
            self.ring.reap(in_flight, &mut completions);
        }
        completions
    }

    fn deliver(&mut self, completions: impl IntoIterator<Item = Completion>) {
        for completion in completions {
            self.act(|image, cx| image.completed(cx, completion));
        }
    }

    /// Completes everything.
    fn finish(&mut self) {
        while self.image.pending.iter().any(Option::is_some) {
            let completions = self.completions();
            self.deliver(completions);
        }
    }

    /// Teaches the image that its disk completes whole batches, and has it hold back a write to the last block but one.
    fn hold_a_write(&mut self) -> IoId {
        for _ in 0..20 {
            for block in 0..32 {
                self.submit(Op::Read, block * BLOCK);
            }
            self.finish();
        }
        for block in 0..7 {
            self.submit(Op::Read, block * BLOCK);
        }
        let write = self.submit(Op::Write, SIZE - 2 * BLOCK);
        assert_eq!(self.held(), 1, "one in eight is held back");
        write
    }

    fn outcome(&self, io: IoId) -> Option<Outcome> {
        let finished = self.finished.iter().find(|(_, ended, _)| *ended == io);
        finished.map(|(_, _, outcome)| *outcome)
    }

    /// The value of each sector of the file's first blocks; all bytes of a sector are equal.
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
fn a_held_back_write_fails_after_a_truncation() {
    let mut rig = Rig::new();
    let write = rig.hold_a_write();
    let read = IoId::from_bits(rig.submitted - 2);
    rig.file.set_len(HALF).expect("cut");
    let completions = rig.completions();
    assert_eq!(rig.outcome(write), None);
    rig.deliver(completions);
    assert_eq!(rig.outcome(write), Some(Err(Fault::Io)));
    assert_eq!(rig.outcome(read), Some(Ok(())), "the rest can be read");
    rig.finish();
    assert_eq!(rig.len(), HALF, "nothing extended the image again");
    assert_eq!(rig.finished.len() as u64, rig.submitted);
}

#[test]
fn a_held_back_write_fails_after_the_lease_was_lost() {
    let mut rig = Rig::new();
    let write = rig.hold_a_write();
    // A gate that was never opened.
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
    assert_eq!(rig.finished.len() as u64, rig.submitted);
}

#[test]
fn a_write_held_back_is_performed_after_the_first_completion() {
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
fn a_write_in_flight_during_a_truncation_is_not_acknowledged_and_nothing_is_read_afterwards() {
    let mut rig = Rig::new();
    // The first operation of a turn is submitted at once, the second is not yet.
    let first = rig.submit(Op::Read, 0);
    let write = rig.submit(Op::Write, SIZE - 2 * BLOCK);
    rig.file.set_len(HALF).expect("cut");
    rig.finish();
    assert_eq!(
        rig.len(),
        SIZE - BLOCK,
        "the write extended the image again"
    );
    assert_eq!(rig.outcome(write), Some(Err(Fault::Io)));
    let hole = rig.submit(Op::Read, HALF);
    rig.finish();
    assert_eq!(
        rig.outcome(hole),
        Some(Err(Fault::Io)),
        "no zeroes in place of data"
    );
    // The one that completed first may have been delivered before the truncation was visible.
    assert!(rig.outcome(first).is_some());
}

/// The same operations, as the kernel completes them when the disk is unreachable.
fn broken(completions: Vec<Completion>) -> impl Iterator<Item = Completion> {
    let broken = |completion| Completion {
        result: -libc::EIO,
        ..completion
    };
    completions.into_iter().map(broken)
}

#[test]
fn after_a_failed_sync_no_earlier_or_later_flush_succeeds() {
    let mut rig = Rig::cached();
    let first = rig.submit(Op::Flush, 0);
    let completions = rig.completions();
    let meanwhile = rig.submit(Op::Flush, 0);
    rig.deliver(broken(completions));
    assert_eq!(rig.outcome(first), Some(Err(Fault::Io)));
    assert_eq!(
        rig.outcome(meanwhile),
        Some(Err(Fault::Io)),
        "the kernel has forgotten the error, and would complete this sync with success"
    );
    let later = rig.submit(Op::Flush, 0);
    let durable = rig.submit_range(Op::Write, Flags::FUA, 512, 512);
    let zeroes = rig.submit_range(Op::WriteZeroes, Flags::FUA, 0, BLOCK);
    let (read, write) = (rig.submit(Op::Read, 0), rig.submit(Op::Write, 0));
    rig.finish();
    for io in [later, durable, zeroes] {
        assert_eq!(rig.outcome(io), Some(Err(Fault::Io)));
    }
    for io in [read, write] {
        assert_eq!(rig.outcome(io), Some(Ok(())));
    }
}

#[test]
fn durable_direct_writes_need_no_sync_of_whole_or_partial_units() {
    let mut rig = Rig::coarse();
    let sync = rig.submit(Op::Flush, 0);
    let completions = rig.completions();
    rig.deliver(broken(completions));
    assert_eq!(rig.outcome(sync), Some(Err(Fault::Io)));
    let whole = rig.submit_range(Op::Write, Flags::FUA, BLOCK, BLOCK);
    let part = rig.submit_range(Op::Write, Flags::FUA, 512, 512);
    rig.finish();
    for io in [whole, part] {
        assert_eq!(rig.outcome(io), Some(Ok(())), "it reached the device");
    }
}

#[test]
fn flushes_during_a_sync_share_the_next_one() {
    let mut rig = Rig::new();
    let first = rig.submit(Op::Flush, 0);
    let completions = rig.completions();
    assert_eq!(completions.len(), 1);
    let others = [(); 3].map(|()| rig.submit(Op::Flush, 0));
    rig.deliver(completions);
    assert_eq!(rig.outcome(first), Some(Ok(())));
    assert_eq!(
        others.map(|io| rig.outcome(io)),
        [None; 3],
        "that sync started before"
    );
    let next = rig.completions();
    assert_eq!(next.len(), 1, "one is enough for all");
    rig.deliver(next);
    assert_eq!(others.map(|io| rig.outcome(io)), [Some(Ok(())); 3]);
}

#[test]
fn a_durable_cached_write_completes_after_its_own_sync() {
    let mut rig = Rig::cached();
    let write = rig.submit_range(Op::Write, Flags::FUA, 512, 512);
    let written = rig.completions();
    rig.deliver(written);
    assert_eq!(rig.outcome(write), None, "it is in the page cache");
    assert_eq!(rig.condition.harm(), None);
    let synced = rig.completions();
    rig.deliver(broken(synced));
    assert_eq!(rig.outcome(write), Some(Err(Fault::Io)));
    let flush = rig.submit(Op::Flush, 0);
    assert_eq!(
        rig.outcome(flush),
        Some(Err(Fault::Io)),
        "the flush fails as well"
    );
    assert_eq!(rig.condition.harm(), Some(Harm::FlushesFail));
}

mod odd;
mod overlap;
