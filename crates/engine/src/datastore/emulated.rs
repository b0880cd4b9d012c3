//! The `emulated` datastore: bytes in memory, latencies of a modelled array.
//!
//! It drives the array of `tidegate-model`, which the simulator runs in virtual time, with the thread's clock. It shows
//! how a host behaves on storage that is not available. A job's bytes are copied when the model reports it complete.
//!
//! # Always true
//! - a job ends at the model's completion time, or in the thread's first turn after it; later if many bytes have to be
//!   copied
//! - jobs end in the model's order; each sees all of another or nothing
//! - a request beyond the memory is refused, even if the disk has grown since
//! - the deadline is the model's next completion, known without a scan of the jobs; it is in the past while bytes are
//!   copied
//!
//! # Units
//! The model counts nanoseconds since the clock's origin, and bytes; it wraps offsets beyond its capacity.

use super::memory::chunked_copy::{ChunkedCopy, PORTION};
use super::{Image, ImageCx, ImageInfo, Job, OpenedImage, Progress, bytes};
use crate::error::{Error, Kind, Result};
use crate::sys::memory::Memory;
use std::str::FromStr;
use tidegate_core::request::{Extent, ExtentKind, Fault, Flags, Op};
use tidegate_core::units::Time;
use tidegate_model::{Array, ArraySpec, IoKind, ModelIo};

/// Cost of a mapping change (a discard): one sector's write.
const MAP_CHANGE: u64 = 512;
/// The smallest size of a disk.
const SMALLEST: u64 = 512;

/// Which array, the size of the disk on it, and the random seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The model's name for it, as in `raid5-8x10k+cache`.
    pub array: String,
    /// Bytes of the disk.
    pub size: u64,
    /// Seed of the model's random numbers; equal seeds and I/O give equal times.
    pub seed: u64,
}

impl FromStr for Spec {
    type Err = Error;

    /// Reads `raid5-8x10k,size=10G,seed=1`, with or without `emulated:` before it.
    fn from_str(text: &str) -> Result<Spec> {
        let text = text.strip_prefix("emulated:").unwrap_or(text);
        let mut words = text.split(',');
        let array = words.next().unwrap_or_default().to_owned();
        let (mut size, mut seed) = (None, 0);
        for word in words {
            match word.split_once('=') {
                Some(("size", value)) => size = Some(size_of(value)?),
                Some(("seed", value)) => {
                    seed = value
                        .parse()
                        .map_err(|_| invalid(format!("seed={value} is not a whole number")))?;
                }
                _ => {
                    return Err(invalid(format!(
                        "an emulated datastore has no option `{word}`: write emulated:ARRAY,size=10G,seed=1"
                    )));
                }
            }
        }
        let size = size.ok_or_else(|| {
            invalid("an emulated datastore needs a size: write emulated:ARRAY,size=10G".into())
        })?;
        Ok(Spec { array, size, seed })
    }
}

/// Reads `10G`, `512MiB`, `4096`: binary multiples, like all disk sizes.
fn size_of(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1_u64,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        _ => {
            return Err(invalid(format!(
                "size={text} is not a size: write 10G or 512MiB"
            )));
        }
    };
    let count: Option<u64> = digits.parse().ok();
    count
        .and_then(|count| count.checked_mul(unit))
        .ok_or_else(|| invalid(format!("size={text} is not a size: write 10G or 512MiB")))
}

fn invalid(what: String) -> Error {
    Error::new(Kind::Invalid, what)
}

/// Opens an image on an idle array, all zeroes.
///
/// # Errors
/// When no array has that name, or the system has no address space for the bytes.
pub fn open(spec: &Spec) -> Result<OpenedImage> {
    let array = ArraySpec::named(&spec.array)
        .and_then(|array| Array::new(&array, spec.seed))
        .map_err(|error| invalid(error.to_string()))?;
    open_on(array, spec.size)
}

/// Opens an image of `size` bytes on this idle array, all zeroes.
///
/// # Errors
/// When the size is too small, or the system has no address space for it.
pub(crate) fn open_on(array: Array, size: u64) -> Result<OpenedImage> {
    if size < SMALLEST {
        return Err(invalid(format!(
            "an emulated disk of {size} bytes: at least {SMALLEST} are needed"
        )));
    }
    let memory = Memory::new(bytes(size)).map_err(|e| {
        Error::io(
            format!("cannot reserve {size} bytes of memory for a disk"),
            e,
        )
    })?;
    let remark = (size > array.capacity()).then(|| {
        format!(
            "the disk is larger than the {} bytes of the emulated array: offsets beyond wrap round in its timing",
            array.capacity()
        )
    });
    let info = ImageInfo {
        size,
        block_size: 512,
        buffered: false,
        remark,
    };
    let image = Emulated {
        memory,
        size,
        array,
        jobs: Vec::new(),
        free: Vec::new(),
        moving: None,
    };
    Ok(OpenedImage::new(Box::new(image), info).with_zeroes(true))
}

struct Emulated {
    memory: Memory,
    size: u64,
    array: Array,
    /// Jobs inside the array, by the model's id.
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    /// A job that is complete in the array, and whose bytes are being copied.
    moving: Option<ChunkedCopy>,
}

impl Image for Emulated {
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        if !job.is_within(self.size) {
            return Progress::Done(Err(Fault::Invalid));
        }
        let unmapped = job.op == Op::WriteZeroes && job.flags.has(Flags::MAY_UNMAP);
        let (kind, len) = match job.op {
            Op::Read => (IoKind::Read, job.len),
            Op::Flush => (IoKind::Flush, 0),
            Op::Write => (IoKind::Write, job.len),
            Op::WriteZeroes if !unmapped => (IoKind::Write, job.len),
            Op::WriteZeroes | Op::Discard => (IoKind::Write, MAP_CHANGE),
            Op::Prefetch => return Progress::Done(Ok(())),
            Op::Extents => {
                let all = Extent {
                    len: job.len,
                    kind: ExtentKind::Data,
                };
                cx.buffers.put(job.data, &all.encode());
                return Progress::Done(Ok(()));
            }
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            self.jobs.len() - 1
        });
        self.jobs[place] = Some(job);
        let io = ModelIo {
            id: place as u64,
            kind,
            offset: job.offset,
            len,
        };
        self.array.submit(cx.now.as_nanos(), io);
        Progress::Pending
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.jobs.len() && self.moving.is_none()
    }

    fn deadline(&self) -> Option<Time> {
        if self.moving.is_some() {
            return Some(Time::ZERO);
        }
        self.array.next_completion().map(Time::from_nanos)
    }

    fn tick(&mut self, cx: &mut ImageCx<'_>) {
        let mut left_in_turn = PORTION;
        loop {
            let Some(mut copy) = self.moving.take().or_else(|| self.next_done(cx.now)) else {
                return;
            };
            if !copy.copy_some(&mut self.memory, cx.buffers, &mut left_in_turn) {
                self.moving = Some(copy);
                return;
            }
            cx.finish(copy.io(), Ok(()));
        }
    }
}

impl Emulated {
    /// The next job that is complete in the array.
    fn next_done(&mut self, now: Time) -> Option<ChunkedCopy> {
        let done = self.array.pop_completed(now.as_nanos())?;
        let place = bytes(done.id);
        let job = self.jobs[place].take().expect("the model ends an I/O once");
        self.free.push(place);
        Some(ChunkedCopy::new(job))
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::bench::Bench;
    use super::*;

    #[test]
    fn a_spec_names_the_array_the_size_and_the_seed() {
        let spec: Spec = "emulated:raid5-8x10k,size=10G,seed=7"
            .parse()
            .expect("a spec");
        let expected = Spec {
            array: "raid5-8x10k".into(),
            size: 10 << 30,
            seed: 7,
        };
        assert_eq!(spec, expected);
        let short: Spec = "ssd,size=512MiB".parse().expect("a spec");
        assert_eq!((short.size, short.seed), (512 << 20, 0));
    }

    #[test]
    fn invalid_specs_are_explained() {
        for text in [
            "ssd",
            "ssd,size=x",
            "ssd,size=1Q",
            "ssd,size=1G,seed=-1",
            "ssd,size=1G,fast",
        ] {
            let error = text.parse::<Spec>().expect_err(text);
            assert_eq!(error.kind(), Kind::Invalid, "{text}");
        }
        let unknown: Spec = "raid7-3xtape,size=1G"
            .parse()
            .expect("names are judged when it is opened");
        assert_eq!(open(&unknown).err().map(|e| e.kind()), Some(Kind::Invalid));
    }
    #[test]
    fn completed_jobs_are_copied_in_portions_in_the_models_order() {
        let mut bench = Bench::new();
        let spec = "nvme,size=4M".parse().expect("a spec");
        let mut image = open(&spec).expect("memory").image;
        let image = &mut *image;
        let (ones, found) = (bench.buffer(1, 1 << 20), bench.buffer(0, 1 << 20));
        let mut both = Vec::new();
        for (io, op, buffer) in [(1, Op::Write, ones), (2, Op::Read, found)] {
            let begun = bench.start(image, io, op, 0, buffer);
            assert_eq!(begun, Progress::Pending);
            bench.now = Time::from_nanos(bench.now.as_nanos() + 1_000_000_000);
        }
        let mut ticks = 0;
        while let Some(due) = image.deadline() {
            assert!(due <= bench.now);
            bench.with(|cx| image.tick(cx));
            ticks += 1;
            both.extend(bench.ended());
        }
        assert_eq!((both, ticks), (vec![1, 2], 8));
        assert!(bench.is_full_of(1, found));
    }
}
