//! The turn of an I/O thread of a world: what it takes, what that costs, and when it polls or sleeps.

use super::super::guest::{Request, Vcpu};
use super::super::io_thread::{Doing, Taken};
use super::super::trace::{Idle, Trace};
use super::{Event, World};
use tidegate_core::monitor::weight;
use tidegate_core::round_robin::{Allowance, Flow, Flows, Left, RoundRobin};
use tidegate_core::units::Span;
use tidegate_model::cpu::ENDLESS;

/// Completions of datastores in a turn, as in the engine.
const COMPLETIONS: usize = 256;
/// Requests of a queue in a piece of a turn, as in the engine.
const REQUESTS: u32 = 16;

impl World<'_> {
    pub(super) fn wake_thread(&mut self, thread: usize) {
        let own = &mut self.threads[thread];
        own.doing = Doing::Turning;
        own.totals.wakes += 1;
        let task = own.task;
        self.cpus.wake(self.now, task, self.trace.costs.turn);
    }

    /// A vCPU's kick has arrived.
    pub(super) fn kicked(&mut self, vcpu: usize) {
        let thread = self.disks[self.vcpus[vcpu].vm].thread;
        let own = &mut self.vcpus[vcpu];
        own.kicking = false;
        own.armed = false;
        own.empty_scans = 0;
        own.last = self.now;
        self.threads[thread].totals.kicks += 1;
        self.nudge(thread);
    }

    /// A thread has done what it was at.
    pub(super) fn thread_done(&mut self, thread: usize) {
        let run = self.run_time(self.threads[thread].task);
        self.threads[thread].count(run);
        match self.threads[thread].doing {
            Doing::Turning => {
                if self.finish_turn(thread) {
                    return;
                }
            }
            Doing::Calling => {
                let mut calls = std::mem::take(&mut self.threads[thread].calls);
                self.threads[thread].totals.calls += calls.len() as u64;
                for vcpu in calls.drain(..) {
                    self.interrupt(vcpu);
                }
                self.threads[thread].calls = calls;
            }
            Doing::Polling | Doing::Sleeping => {}
        }
        self.next_turn(thread);
    }

    /// Replies to what the turn has done, and starts I/O of the datastore. Returns whether guests are called now.
    fn finish_turn(&mut self, thread: usize) -> bool {
        let mut taken = std::mem::take(&mut self.threads[thread].taken);
        for Taken {
            vcpu,
            request,
            completed,
        } in taken.drain(..)
        {
            let vm = self.vcpus[vcpu].vm;
            let latency = self.load(vm, request.phase).latency;
            if completed || latency == 0 {
                self.answer(thread, vcpu, request);
            } else {
                self.threads[thread].in_flight += 1;
                let after = latency / 2 + self.random.exponential(latency / 2);
                let event = Event::Completed {
                    thread,
                    vcpu,
                    request,
                };
                self.put(self.now + after, event);
            }
        }
        self.threads[thread].taken = taken;
        self.call(thread)
    }

    /// Begins to call the guests that are to be called. Returns whether there are any.
    fn call(&mut self, thread: usize) -> bool {
        if self.threads[thread].calls.is_empty() {
            return false;
        }
        let costs = &self.trace.costs;
        let calls = self.threads[thread].calls.iter();
        let cost: u64 = calls
            .map(|vcpu| match self.cpus.is_blocked(self.vcpus[*vcpu].task) {
                true => costs.wakeup,
                false => costs.notify,
            })
            .sum();
        self.threads[thread].doing = Doing::Calling;
        let task = self.threads[thread].task;
        self.cpus.work(self.now, task, cost);
        true
    }

    fn answer(&mut self, thread: usize, vcpu: usize, request: Request) {
        let vm = self.vcpus[vcpu].vm;
        let weight = weight(self.load(vm, request.phase).size);
        let totals = &mut self.threads[thread].totals;
        totals.completions += 1;
        totals.work += weight;
        let disk = &mut self.disks[vm];
        disk.completions += 1;
        disk.work += weight;
        disk.bytes += self.trace.phases[request.phase].loads[vm].size;
        disk.outstanding += self.now - request.queued;
        let own = &mut self.vcpus[vcpu];
        own.in_flight -= 1;
        own.used.push_back(request);
        self.published(thread, vcpu);
    }

    /// Takes what there is, or polls, or sleeps.
    pub(super) fn next_turn(&mut self, thread: usize) {
        self.hand_over(thread);
        self.call_due(thread);
        if self.call(thread) {
            return;
        }
        let mut cost = self.take_completions(thread);
        cost += self.take_requests(thread);
        let task = self.threads[thread].task;
        if cost > 0 {
            if self.threads[thread].doing == Doing::Polling || self.threads[thread].empty_since > 0
            {
                self.threads[thread].note_gap(self.now);
                self.threads[thread].empty_since = 0;
            }
            self.threads[thread].doing = Doing::Turning;
            self.threads[thread].totals.turns += 1;
            self.cpus.work(self.now, task, cost + self.trace.costs.turn);
            return;
        }
        let polled = self.threads[thread].doing == Doing::Polling;
        if self.threads[thread].empty_since == 0 {
            self.threads[thread].empty_since = self.now.max(1);
        }
        if let Some(time) = self.polls(thread, polled) {
            self.threads[thread].doing = Doing::Polling;
            self.cpus.work(self.now, task, time);
            return;
        }
        self.ask_for_kicks(thread);
        self.threads[thread].doing = Doing::Sleeping;
        self.cpus.block(self.now, task);
    }

    /// How long the thread polls now that it has no work.
    fn polls(&self, thread: usize, polled: bool) -> Option<u64> {
        let own = &self.threads[thread];
        match own.idle {
            Idle::Sleep => None,
            Idle::Poll if own.disks.is_empty() => None,
            Idle::Poll => Some(ENDLESS),
            Idle::Spin => {
                let spin = self.trace.costs.spin;
                let pays = own.gap < spin && !polled && !own.disks.is_empty();
                (pays && !self.cpus.is_contended(own.task)).then_some(spin)
            }
        }
    }

    /// Disks that leave go to their new threads, and those that have come are served.
    fn hand_over(&mut self, thread: usize) {
        let mut leaving = std::mem::take(&mut self.threads[thread].leaving);
        for (disk, to) in leaving.drain(..) {
            self.threads[thread].disks.retain(|other| *other != disk);
            self.disks[disk].left = self.now;
            self.threads[to].inbox.push(disk);
            self.nudge(to);
        }
        self.threads[thread].leaving = leaving;
        let mut inbox = std::mem::take(&mut self.threads[thread].inbox);
        for disk in inbox.drain(..) {
            self.threads[thread].disks.push(disk);
            let own = &mut self.disks[disk];
            own.thread = thread;
            own.moving = None;
            own.moved = Some(self.now);
            let pause = self.now - own.left;
            self.outcome.pauses.record(Span::from_nanos(pause));
            for at in 0..self.disks[disk].vcpus.len() {
                // The queue is read in any case, so that no kick is lost.
                let vcpu = self.disks[disk].vcpus[at];
                self.vcpus[vcpu].armed = false;
                self.vcpus[vcpu].last = self.now;
                self.vcpus[vcpu].flow.moved();
            }
        }
        self.threads[thread].inbox = inbox;
    }

    /// Takes completions of datastores; passes those of disks that have left to their threads. Returns what that costs.
    fn take_completions(&mut self, thread: usize) -> u64 {
        let (mut cost, mut taken) = (0, 0);
        while taken < COMPLETIONS
            && let Some((vcpu, request)) = self.threads[thread].completions.pop_front()
        {
            taken += 1;
            cost += self.trace.costs.completion;
            let vm = self.vcpus[vcpu].vm;
            let home = self.disks[vm].thread;
            if self.threads[thread].disks.contains(&vm) || home == thread {
                self.threads[thread].in_flight = self.threads[thread].in_flight.saturating_sub(1);
                self.disks[vm].busy += self.trace.costs.completion;
                self.threads[thread].taken.push(Taken {
                    vcpu,
                    request,
                    completed: true,
                });
            } else {
                self.threads[thread].in_flight = self.threads[thread].in_flight.saturating_sub(1);
                self.threads[home].in_flight += 1;
                self.threads[home].completions.push_back((vcpu, request));
                self.nudge(home);
            }
        }
        cost
    }

    /// Takes requests of the active queues by the core's round robin. Returns what they cost.
    fn take_requests(&mut self, thread: usize) -> u64 {
        let mut queues = std::mem::take(&mut self.threads[thread].queues);
        self.active_queues(thread, &mut queues);
        let own = &mut self.threads[thread];
        own.rotation += 1;
        let first = own.rotation;
        let before = own.taken.len();
        let mut fetch = Fetch {
            now: self.now,
            queues: &queues,
            vcpus: &mut self.vcpus,
            trace: self.trace,
            taken: &mut own.taken,
        };
        match queues.len() {
            0 => {}
            1 => {
                let mut allowance = Allowance::of_requests(REQUESTS);
                fetch.visit(0, &mut allowance);
            }
            _ => {
                own.turns.begin();
                if own.turns.is_learning() {
                    fetch.learn(&mut own.turns, first);
                }
                own.turns.pass(&mut fetch, first, REQUESTS);
            }
        }
        let mut cost = 0;
        for at in before..self.threads[thread].taken.len() {
            let Taken { vcpu, request, .. } = self.threads[thread].taken[at];
            let disk = self.vcpus[vcpu].vm;
            let own = self.trace.cost(disk, request.phase);
            cost += own;
            let delay = Span::from_nanos(self.now - request.queued);
            self.threads[thread].delays.record(delay);
            self.threads[thread].totals.arrivals += 1;
            self.disks[disk].delays.record(delay);
            self.disks[disk].arrivals += 1;
            self.disks[disk].busy += own;
        }
        self.threads[thread].queues = queues;
        cost
    }

    /// The queues of a thread that are polled. One that was empty for long asks for kicks from now on.
    fn active_queues(&mut self, thread: usize, queues: &mut Vec<usize>) {
        queues.clear();
        for disk in &self.threads[thread].disks {
            for &vcpu in &self.disks[*disk].vcpus {
                let own = &mut self.vcpus[vcpu];
                if own.armed {
                    continue;
                }
                if own.avail.is_empty() && self.now - own.last > self.trace.costs.quiet {
                    own.armed = true;
                } else {
                    queues.push(vcpu);
                }
            }
        }
    }
}

/// The active queues of a thread, as the round robin sees them.
struct Fetch<'a> {
    now: u64,
    queues: &'a [usize],
    vcpus: &'a mut [Vcpu],
    trace: &'a Trace,
    taken: &'a mut Vec<Taken>,
}

impl Fetch<'_> {
    /// The round robin learns what one queue's completions cost, and one queue's requests.
    fn learn(&mut self, turns: &mut RoundRobin, which: usize) {
        let before = self.taken.len();
        let completed = self.taken.get(which % before.max(1));
        if let Some(&Taken { vcpu, .. }) = completed {
            let own = self.taken.iter().filter(|taken| taken.vcpu == vcpu);
            let count = own.count();
            self.vcpus[vcpu]
                .flow
                .completed(turns, u32::try_from(count).expect("a turn's"));
            let took = self.trace.costs.completion * count as u64;
            turns.learn_completions(self, Span::from_nanos(took));
        }
        turns.sample(self);
        let sampled = self.taken[before..].iter();
        let took = sampled.map(|taken| {
            self.trace
                .cost(self.vcpus[taken.vcpu].vm, taken.request.phase)
        });
        let took = Span::from_nanos(took.sum());
        turns.learn_requests(self, took);
    }
}

impl Flows for Fetch<'_> {
    fn count(&self) -> usize {
        self.queues.len()
    }

    fn flow(&mut self, at: usize) -> Option<&mut Flow> {
        Some(&mut self.vcpus[self.queues[at]].flow)
    }

    fn visit(&mut self, at: usize, allowance: &mut Allowance) -> Left {
        let vcpu = self.queues[at];
        let own = &mut self.vcpus[vcpu];
        while allowance.is_left()
            && let Some(request) = own.avail.pop_front()
        {
            own.taken += 1;
            own.in_flight += 1;
            own.last = self.now;
            allowance.take(self.trace.phases[request.phase].loads[own.vm].size);
            self.taken.push(Taken {
                vcpu,
                request,
                completed: false,
            });
        }
        match own.avail.is_empty() {
            true => Left::Nothing,
            false => Left::More,
        }
    }
}
