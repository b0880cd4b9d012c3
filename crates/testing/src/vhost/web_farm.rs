//! A web farm: guests that each serve pages at a fixed rate, and read the parts of a page one after the other.
//!
//! Arrivals do not wait for answers (an open loop), so a server that is slower does not get less to do. A guest sleeps
//! while it waits: it asks for an interrupt for each completion that it has not seen.
//!
//! # Units
//! Latencies in nanoseconds, from the moment at which a read was due.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::vm::Vm;
use crate::load::{Kind, Operation};
use crate::tally::SILENCE;

/// What each guest does.
#[derive(Clone, Copy, Debug)]
pub struct WebFarm {
    /// Pages that a guest serves in a second.
    pub pages_per_s: u32,
    /// Reads of a page: the document and its parts.
    pub reads: u32,
    /// The time between two reads of a page.
    pub gap: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Reads that were answered.
    pub reads: u64,
    /// Reads that failed.
    pub errors: u64,
    /// Kicks sent.
    pub kicks: u64,
    /// Of each read, sorted.
    pub latencies: Vec<u64>,
}

/// A guest's next read.
struct Next {
    due: Duration,
    /// Which read of its page.
    part: u32,
    page: u32,
}

impl Served {
    /// The latency that `percent` of the reads do not exceed.
    #[must_use]
    pub fn latency(&self, percent: usize) -> Duration {
        let at = (self.latencies.len() * percent).div_ceil(100).max(1) - 1;
        Duration::from_nanos(self.latencies.get(at).copied().unwrap_or(0))
    }
}

impl WebFarm {
    /// Has each of `vms` serve its pages for `span`, from one thread. The guests' pages are spread evenly over time.
    ///
    /// # Errors
    /// The server breaks the protocol, or does not answer.
    pub fn run(&self, vms: &mut [Vm], span: Duration) -> Result<Served> {
        let period = Duration::from_secs(1) / self.pages_per_s;
        let guests = u32::try_from(vms.len()).context("some guests")?;
        let mut nexts: Vec<Next> = (0..guests)
            .map(|guest| Next {
                due: period * guest / guests,
                part: 0,
                page: 0,
            })
            .collect();
        let mut served = Served::default();
        let clock = Instant::now();
        let mut in_flight = 0_u64;
        loop {
            let now = clock.elapsed();
            let mut soonest = span;
            for ((vm, next), guest) in vms.iter_mut().zip(&mut nexts).zip(0..) {
                in_flight -= collect(vm, now, &mut served)?;
                while next.due <= now && next.due < span {
                    if issue(vm, next, &mut served)? {
                        in_flight += 1;
                    } else {
                        // No free slot: it is tried again in a moment.
                        break;
                    }
                    next.part = (next.part + 1) % self.reads;
                    next.page += u32::from(next.part == 0);
                    next.due = period * guest / guests + period * next.page + self.gap * next.part;
                }
                soonest = soonest.min(next.due);
            }
            if now >= span && in_flight == 0 {
                served.latencies.sort_unstable();
                return Ok(served);
            }
            if now >= span + SILENCE {
                bail!("{in_flight} reads are not answered after {SILENCE:?}");
            }
            let pause = soonest.saturating_sub(clock.elapsed());
            std::thread::sleep(pause.clamp(Duration::from_micros(20), Duration::from_micros(200)));
        }
    }
}

/// Takes the completions of a guest's queue, and asks for an interrupt for the next. Returns how many there were.
fn collect(vm: &mut Vm, now: Duration, served: &mut Served) -> Result<u64> {
    let mut count = 0;
    let queue = &mut vm.queues[0];
    loop {
        while let Some(slot) = queue.ring.pop()? {
            let (_, due) = queue.requests[usize::from(slot)];
            served.errors += u64::from(queue.ring.status(slot) != 0);
            served.reads += 1;
            served.latencies.push(nanos(now).saturating_sub(due));
            queue.free.push(slot);
            count += 1;
        }
        if count == 0 || !queue.ring.arm() {
            return Ok(count);
        }
    }
}

/// Issues a guest's next read; false if all slots are in use.
fn issue(vm: &mut Vm, next: &Next, served: &mut Served) -> Result<bool> {
    let block = vm.options().block;
    let blocks = vm.config().size / u64::from(block);
    let queue = &mut vm.queues[0];
    let Some(slot) = queue.free.pop() else {
        return Ok(false);
    };
    // Pages are spread over the disk; the parts of a page lie beside each other.
    let at = (u64::from(next.page).wrapping_mul(0x9e37_79b9) + u64::from(next.part)) % blocks;
    let operation = Operation {
        kind: Kind::Read,
        offset: at * u64::from(block),
        length: block,
        sequence: 0,
    };
    queue
        .ring
        .prepare(slot, operation.kind, operation.offset / 512, block);
    queue.requests[usize::from(slot)] = (operation, nanos(next.due));
    queue.ring.push(slot);
    if queue.ring.publish() {
        served.kicks += 1;
        queue.kick.write(1).context("cannot kick")?;
    }
    Ok(true)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
