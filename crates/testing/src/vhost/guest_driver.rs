//! Drives the queues of many guests from one thread. It sleeps on their interrupts, or polls.
//!
//! There is one thread for all guests. With several threads on one core, the OS scheduler's time slices (milliseconds)
//! would hide the server's own fairness (microseconds).
//!
//! # Always true
//! - A round visits every queue once, processes its completions, and issues as many new requests. The order of a round
//!   is random, because a fixed order could synchronise with the server's own order.
//! - The thread never sleeps while a completion is in a used ring: interrupts are enabled before the last check.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::vm::{Queue, Vm};
use crate::dips::Curve;
use crate::load::{Kind, Source};
use crate::tally::{Edge, SILENCE, Tally, Until};

/// How a client waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Sleeps until the server interrupts, like a guest.
    Sleep,
    /// Polls the ring.
    Poll,
}

/// Marks events of a guest's socket, as opposed to a queue's interrupt.
const SOCKET: u64 = 1 << 32;
/// A poller checks the clock and sockets only once in so many loops: a check of an empty ring takes nanoseconds.
const SPINS: u32 = 4096;
/// How long a server may take to interrupt a guest after a completion, in milliseconds: longer than its loop iteration.
const GRACE_MS: i32 = 100;

/// The guests and their thread's state.
#[derive(Debug)]
pub struct GuestDriver {
    vms: Vec<Vm>,
    wait: Wait,
    /// The interval between samples of the curve, if it is recorded.
    step: Option<Duration>,
    curve: Curve,
}

/// The progress of one run.
struct Run<'a> {
    epoll: Epoll,
    clock: Instant,
    until: Until,
    probe: &'a mut dyn FnMut(Edge),
    opened: Option<u64>,
    closed: Option<u64>,
    /// When the curve's next sample is due: never, if it is not recorded.
    due: u64,
    step: u64,
    curve: Curve,
    issued: u64,
    last_reply: u64,
    scratch: Vec<u8>,
}

impl GuestDriver {
    /// Creates a driver of these guests.
    #[must_use]
    pub fn new(vms: Vec<Vm>, wait: Wait) -> Self {
        Self {
            vms,
            wait,
            step: None,
            curve: Curve::default(),
        }
    }

    /// Records the number of completed requests every `step`, in every window from now on.
    pub fn record_curve(&mut self, step: Duration) {
        self.step = Some(step);
    }

    /// The curve of the last window.
    #[must_use]
    pub fn curve(&self) -> &Curve {
        &self.curve
    }

    /// The guests.
    #[must_use]
    pub fn vms(&self) -> &[Vm] {
        &self.vms
    }

    /// The guests, to be changed while nothing is in flight.
    pub fn vms_mut(&mut self) -> &mut [Vm] {
        &mut self.vms
    }

    /// Number of queues of all guests together. It equals the number of sources and tallies.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.vms.iter().map(|vm| vm.queues.len()).sum()
    }

    /// Runs one source per queue (the first guest's queues first) and returns one tally per queue. `probe` is called
    /// when the measured window opens and when it closes. Nothing is in flight afterwards.
    ///
    /// # Errors
    /// The server breaks the protocol, does not return, or is silent.
    pub fn run(
        &mut self,
        sources: &mut [Source],
        until: Until,
        probe: &mut dyn FnMut(Edge),
    ) -> Result<Vec<Tally>> {
        assert_eq!(sources.len(), self.queues(), "one source per queue");
        let mut tallies = vec![Tally::default(); sources.len()];
        let longest = sources
            .iter()
            .map(|source| source.load().block)
            .max()
            .unwrap_or(0);
        let mut run = Run {
            epoll: Epoll::new().context("cannot create an epoll")?,
            clock: Instant::now(),
            until,
            probe,
            opened: None,
            closed: None,
            due: u64::MAX,
            step: self.step.map_or(u64::MAX, nanos),
            curve: Curve::default(),
            issued: 0,
            last_reply: 0,
            scratch: vec![0; usize::try_from(longest).context("a block fits memory")?],
        };
        run.watch_all(&self.vms)?;
        self.drive(sources, &mut tallies, &mut run)?;
        let elapsed = run.elapsed();
        for tally in &mut tallies {
            tally.elapsed = elapsed;
        }
        self.curve = run.curve;
        Ok(tallies)
    }

    /// The index of each guest's first queue.
    fn firsts(&self) -> Vec<usize> {
        let counts = self.vms.iter().map(|vm| vm.queues.len());
        counts
            .scan(0, |next, count| {
                let first = *next;
                *next += count;
                Some(first)
            })
            .collect()
    }

    fn drive(
        &mut self,
        sources: &mut [Source],
        tallies: &mut [Tally],
        run: &mut Run<'_>,
    ) -> Result<()> {
        let mut idle = 0;
        let guests = self.vms.len();
        let firsts = self.firsts();
        let mut draw = 1_u32;
        run.advance_clock(0, tallies);
        loop {
            let mut progress = false;
            let mut busy = false;
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let first_guest = ((draw >> 16) as usize * guests) >> 16;
            for guest in (first_guest..guests).chain(0..first_guest) {
                let (vm, first) = (&mut self.vms[guest], firsts[guest]);
                let end = first + vm.queues.len();
                let pairs = sources[first..end].iter_mut().zip(&mut tallies[first..end]);
                for (queue, (source, tally)) in vm.queues.iter_mut().zip(pairs) {
                    progress |= run.visit(&vm.memory, queue, source, tally)?;
                    busy |= queue.in_flight() > 0;
                }
            }
            if progress {
                idle = 0;
                let now = run.now();
                run.last_reply = now;
                run.advance_clock(now, tallies);
                continue;
            }
            if !busy {
                run.advance_clock(run.now(), tallies);
                run.close(tallies);
                return Ok(());
            }
            idle += 1;
            if self.wait == Wait::Poll && idle % SPINS != 0 {
                std::hint::spin_loop();
                continue;
            }
            self.sleep(run, tallies)?;
        }
    }

    /// Sleeps until an interrupt (a poller only checks its sockets), and handles lost servers.
    fn sleep(&mut self, run: &mut Run<'_>, tallies: &mut [Tally]) -> Result<()> {
        if self.wait == Wait::Sleep {
            let mut answered = false;
            for queue in self.vms.iter_mut().flat_map(|vm| &mut vm.queues) {
                answered |= queue.in_flight() > 0 && queue.ring.arm();
            }
            if answered {
                return Ok(());
            }
        }
        let timeout = if self.wait == Wait::Sleep { 1000 } else { 0 };
        let mut events = [EpollEvent::default(); 32];
        let count = match run.epoll.wait(timeout, &mut events) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => 0,
            other => other.context("cannot wait for interrupts")?,
        };
        for event in &events[..count] {
            if event.data() & SOCKET != 0 {
                self.lost(event.data(), run, tallies)?;
            }
        }
        if count == 0 && self.wait == Wait::Sleep {
            self.check_interrupts(run)?;
        }
        let now = run.now();
        run.advance_clock(now, tallies);
        if Duration::from_nanos(now.saturating_sub(run.last_reply)) > SILENCE {
            bail!("the server has completed nothing for {SILENCE:?}");
        }
        Ok(())
    }

    /// After a timeout: a guest with completions and interrupts enabled must get its interrupt within [`GRACE_MS`].
    fn check_interrupts(&self, run: &Run<'_>) -> Result<()> {
        let mut queues = self.vms.iter().flat_map(|vm| &vm.queues);
        if !queues.any(|queue| queue.in_flight() > 0 && queue.ring.has_answers()) {
            return Ok(());
        }
        let mut event = [EpollEvent::default()];
        let interrupts = run.epoll.wait(GRACE_MS, &mut event);
        if interrupts.context("cannot wait for interrupts")? == 0 {
            bail!("the server completed a sleeping guest's request without an interrupt");
        }
        Ok(())
    }

    fn lost(&mut self, data: u64, run: &mut Run<'_>, tallies: &mut [Tally]) -> Result<()> {
        let index = usize::try_from(data & !SOCKET).context("a guest's number")?;
        let before: usize = self.vms[..index].iter().map(|vm| vm.queues.len()).sum();
        self.vms[index].reconnect()?;
        run.watch_socket(&self.vms[index], index)?;
        tallies[before].reconnections += 1;
        run.last_reply = run.now();
        Ok(())
    }
}

impl Run<'_> {
    fn watch_all(&self, vms: &[Vm]) -> Result<()> {
        for (index, vm) in vms.iter().enumerate() {
            self.watch_socket(vm, index)?;
            for queue in &vm.queues {
                // Edge-triggered: the counter need not be read, which saves a system call per interrupt.
                let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, index as u64);
                let fd = std::os::fd::AsRawFd::as_raw_fd(&queue.call);
                self.epoll
                    .ctl(ControlOperation::Add, fd, event)
                    .context("cannot watch an interrupt")?;
            }
        }
        Ok(())
    }

    fn watch_socket(&self, vm: &Vm, index: usize) -> Result<()> {
        let event = EpollEvent::new(EventSet::READ_HANG_UP, SOCKET | index as u64);
        self.epoll
            .ctl(ControlOperation::Add, vm.watched(), event)
            .context("cannot watch a socket")
    }

    #[inline]
    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Processes one queue's completions and issues as many new requests.
    #[inline]
    fn visit(
        &mut self,
        memory: &super::memory::Memory,
        queue: &mut Queue,
        source: &mut Source,
        tally: &mut Tally,
    ) -> Result<bool> {
        let mut now = None;
        // Requests completed after the window are drained, not measured.
        let counted = self.closed.is_none();
        while let Some(slot) = queue.ring.pop()? {
            let now = *now.get_or_insert_with(|| self.now());
            let (operation, started) = queue.requests[usize::from(slot)];
            let ok = queue.ring.status(slot) == 0;
            if !ok {
                tally.errors += 1;
            } else if counted {
                tally.completed += 1;
            }
            if counted {
                tally.latency.record(now.saturating_sub(started));
            }
            if source.verifies() {
                let length = usize::try_from(operation.length).expect("u32 fits usize");
                let data = &mut self.scratch[..length];
                if operation.kind == Kind::Read {
                    memory.read(queue.ring.buffer(slot), data);
                }
                if let Err(mismatch) = source.answered(&operation, ok, data) {
                    tally.mismatch(mismatch);
                }
            }
            queue.free.push(slot);
        }
        if !queue.free.is_empty() && !self.is_over() {
            self.issue(memory, queue, source, &mut now)?;
        }
        Ok(now.is_some())
    }

    fn is_over(&self) -> bool {
        match self.until {
            Until::Time(..) => self.closed.is_some(),
            Until::Count(count) => self.issued >= count,
            Until::Exhausted => false,
        }
    }

    #[inline]
    fn issue(
        &mut self,
        memory: &super::memory::Memory,
        queue: &mut Queue,
        source: &mut Source,
        now: &mut Option<u64>,
    ) -> Result<()> {
        let mut pushed = false;
        while let Some(slot) = queue.free.pop() {
            let operation = if self.is_over() {
                None
            } else {
                source.next_operation()
            };
            let Some(operation) = operation else {
                queue.free.push(slot);
                break;
            };
            queue.ring.prepare(
                slot,
                operation.kind,
                operation.offset / 512,
                operation.length,
            );
            if source.verifies() && operation.kind == Kind::Write {
                let length = usize::try_from(operation.length).expect("u32 fits usize");
                let data = &mut self.scratch[..length];
                source.fill(&operation, data);
                memory.write(queue.ring.buffer(slot), data);
            }
            let started = *now.get_or_insert_with(|| self.now());
            queue.requests[usize::from(slot)] = (operation, started);
            queue.ring.push(slot);
            self.issued += 1;
            pushed = true;
        }
        if pushed && queue.ring.publish() {
            queue.kick.write(1).context("cannot kick")?;
        }
        Ok(())
    }

    /// Opens and closes the window when it is time.
    fn advance_clock(&mut self, now: u64, tallies: &mut [Tally]) {
        let Until::Time(warm, span) = self.until else {
            if self.opened.is_none() {
                self.open(now, tallies);
            }
            return;
        };
        if self.opened.is_none() && now >= nanos(warm) {
            self.open(now, tallies);
        }
        if now >= self.due && self.closed.is_none() {
            self.point(now, tallies);
        }
        if let (Some(opened), None) = (self.opened, self.closed)
            && now.saturating_sub(opened) >= nanos(span)
        {
            self.close(tallies);
        }
    }

    fn open(&mut self, now: u64, tallies: &mut [Tally]) {
        for tally in &mut *tallies {
            tally.reopen();
        }
        (self.probe)(Edge::Open);
        // The probe's own time is excluded.
        let opened = self.now().max(now);
        self.opened = Some(opened);
        if self.step < u64::MAX {
            self.point(opened, tallies);
        }
    }

    /// Records one more sample of the curve.
    #[cold]
    fn point(&mut self, now: u64, tallies: &[Tally]) {
        let answered = tallies.iter().map(|tally| tally.completed).sum();
        self.curve
            .add(self.clock + Duration::from_nanos(now), answered);
        self.due = now.saturating_add(self.step);
    }

    fn close(&mut self, tallies: &[Tally]) {
        if self.closed.is_none() {
            let now = self.now();
            self.closed = Some(now);
            if self.step < u64::MAX {
                self.point(now, tallies);
            }
            (self.probe)(Edge::Close);
        }
    }

    fn elapsed(&self) -> Duration {
        let (opened, closed) = (
            self.opened.unwrap_or(0),
            self.closed.unwrap_or_else(|| self.now()),
        );
        Duration::from_nanos(closed - opened)
    }
}

/// A span in nanoseconds.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
