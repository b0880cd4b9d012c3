//! A minimal I/O thread for tests of images in memory.

use super::super::{Image, ImageCx, Job, Progress};
use crate::blocking::BlockingWorker;
use crate::sys::buffers::Buffers;
use crate::sys::ring::Ring;
use crate::tag::ImageId;
use tidegate_core::request::{Data, DiskId, Flags, IoId, Op, Outcome};
use tidegate_core::units::Time;

/// The parts of an I/O thread without a thread: its tests run the turns.
pub(in crate::datastore) struct Bench {
    pub(in crate::datastore) now: Time,
    ring: Ring,
    buffers: Buffers,
    finished: Vec<(DiskId, IoId, Outcome)>,
    blocking: BlockingWorker,
}

impl Bench {
    pub(in crate::datastore) fn new() -> Bench {
        Bench {
            now: Time::ZERO,
            ring: Ring::new().expect("a ring"),
            buffers: Buffers::new(),
            finished: Vec::new(),
            blocking: BlockingWorker::start("test", |_, _| ()).expect("a thread"),
        }
    }

    /// Calls the image with a context.
    pub(in crate::datastore) fn with<T>(&mut self, act: impl FnOnce(&mut ImageCx<'_>) -> T) -> T {
        act(&mut ImageCx {
            now: self.now,
            image: ImageId::first(DiskId(3)),
            ring: &mut self.ring,
            buffers: &mut self.buffers,
            finished: &mut self.finished,
            blocking: &self.blocking,
        })
    }

    /// A buffer full of `byte`.
    pub(in crate::datastore) fn buffer(&mut self, byte: u8, len: usize) -> u32 {
        let buffer = self.buffers.claim_pool(DiskId(0), len).expect("memory");
        self.buffers
            .put(Data { buffer, start: 0 }, &vec![byte; len]);
        buffer
    }

    /// Whether all of a buffer is `byte`.
    pub(in crate::datastore) fn is_full_of(&self, byte: u8, buffer: u32) -> bool {
        let mut all = vec![!byte; self.buffers.len(buffer)];
        self.buffers.get(Data { buffer, start: 0 }, &mut all);
        all.iter().all(|&one| one == byte)
    }

    /// Starts job `io` of `image` on all of a buffer.
    pub(in crate::datastore) fn start(
        &mut self,
        image: &mut dyn Image,
        io: u64,
        op: Op,
        offset: u64,
        buffer: u32,
    ) -> Progress {
        let job = Job {
            io: IoId::from_bits(io),
            op,
            flags: Flags::NONE,
            offset,
            len: self.buffers.len(buffer) as u64,
            data: Data { buffer, start: 0 },
        };
        self.with(|cx| image.start(cx, job))
    }

    /// One turn of the ring. Returns whether `image` had anything on it.
    pub(in crate::datastore) fn turn(&mut self, image: &mut dyn Image) -> bool {
        let mut completions = Vec::new();
        self.ring.submit();
        self.ring.reap(256, &mut completions);
        for &completion in &completions {
            self.with(|cx| image.completed(cx, completion));
        }
        !completions.is_empty()
    }

    /// The jobs that have ended since the last call.
    pub(in crate::datastore) fn ended(&mut self) -> Vec<u64> {
        let ended = self.finished.drain(..);
        ended
            .map(|(_, io, outcome)| {
                assert_eq!(outcome, Ok(()));
                io.to_bits()
            })
            .collect()
    }
}
