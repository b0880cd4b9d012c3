//! The guests of a world: phases, requests that are due, and what a vCPU does next.

use super::super::guest::{Doing, Request};
use super::{Event, World};
use tidegate_model::Random;
use tidegate_model::cpu::ENDLESS;

impl World<'_> {
    pub(super) fn begin_phase(&mut self, phase: usize) {
        if phase > 0 {
            self.end_phase();
        }
        self.phase = phase;
        self.window.begin(self.trace.vms.len());
        for vm in 0..self.trace.vms.len() {
            let load = self.load(vm, phase);
            if load.rate > 0 {
                self.put_due(vm, phase);
            }
            for at in 0..self.disks[vm].vcpus.len() {
                let vcpu = self.disks[vm].vcpus[at];
                for _ in 0..load.outstanding {
                    let request = Request {
                        began: self.now,
                        queued: self.now,
                        phase,
                        last: true,
                    };
                    self.vcpus[vcpu].due.push_back(request);
                }
                self.rouse(vcpu);
            }
        }
    }

    fn put_due(&mut self, vm: usize, phase: usize) {
        let mean = 1_000_000_000 / self.load(vm, phase).rate;
        let at = self.now + self.random.exponential(mean);
        self.put(at, Event::Due { vm, phase });
    }

    /// A request of a load with a rate is due.
    pub(super) fn due(&mut self, vm: usize, phase: usize) {
        if phase != self.phase {
            return;
        }
        let count = self.disks[vm].vcpus.len() as u64;
        let at = usize::try_from(self.random.below(count)).unwrap_or(0);
        let vcpu = self.disks[vm].vcpus[at];
        let group = self.load(vm, phase).group.max(1);
        for number in 1..=group {
            let request = Request {
                began: self.now,
                queued: self.now,
                phase,
                last: number == group,
            };
            self.vcpus[vcpu].due.push_back(request);
        }
        self.window.offered += 1;
        self.rouse(vcpu);
        self.put_due(vm, phase);
    }

    /// A vCPU has something to do: it wakes up, or it stops computing.
    fn rouse(&mut self, vcpu: usize) {
        let task = self.vcpus[vcpu].task;
        match self.vcpus[vcpu].doing {
            Doing::Halted => {
                self.vcpus[vcpu].doing = Doing::Interrupted;
                self.cpus.wake(self.now, task, self.trace.costs.exit.max(1));
            }
            Doing::Computing { .. } => {
                self.cpus.cut(self.now, task, 0);
            }
            _ => {}
        }
    }

    /// A call has come.
    pub(super) fn interrupt(&mut self, vcpu: usize) {
        self.vcpus[vcpu].called = false;
        if matches!(self.vcpus[vcpu].doing, Doing::Computing { .. }) {
            self.vcpus[vcpu].interrupt = true;
        }
        self.rouse(vcpu);
    }

    /// Counts what vCPUs that compute have done until now.
    pub(super) fn count_computing(&mut self) {
        for vcpu in 0..self.vcpus.len() {
            self.count_computing_of(vcpu);
        }
    }

    fn count_computing_of(&mut self, vcpu: usize) {
        if let Doing::Computing { from } = self.vcpus[vcpu].doing {
            let run = self.run_time(self.vcpus[vcpu].task);
            self.window.useful += run - from;
            self.window.computed += run - from;
            self.vcpus[vcpu].doing = Doing::Computing { from: run };
        }
    }

    /// A vCPU has done what it was at.
    pub(super) fn vcpu_done(&mut self, vcpu: usize) {
        match self.vcpus[vcpu].doing {
            Doing::Computing { .. } => self.count_computing_of(vcpu),
            Doing::Preparing(request) => {
                let request = Request {
                    queued: self.now,
                    ..request
                };
                self.vcpus[vcpu].avail.push_back(request);
                if self.submitted(vcpu) {
                    return;
                }
            }
            Doing::Replied | Doing::Interrupted => {}
            Doing::Halting => {
                let own = &self.vcpus[vcpu];
                if own.due.is_empty() && own.used.is_empty() {
                    self.vcpus[vcpu].doing = Doing::Halted;
                    self.cpus.block(self.now, self.vcpus[vcpu].task);
                    return;
                }
            }
            Doing::Kicking => self.kicked(vcpu),
            Doing::Halted => unreachable!("a vCPU that halts has no work"),
        }
        self.next_of(vcpu);
    }

    /// A request is in the queue: the thread polls it, or the guest kicks. Returns whether the vCPU kicks now.
    fn submitted(&mut self, vcpu: usize) -> bool {
        let own = &self.vcpus[vcpu];
        let thread = self.disks[own.vm].thread;
        if !own.armed {
            self.nudge(thread);
            return false;
        }
        if own.kicking || own.avail.len() < own.kicks_at {
            return false;
        }
        let costs = &self.trace.costs;
        let sleeps = self.cpus.is_blocked(self.threads[thread].task);
        let write = if sleeps { costs.wakeup } else { costs.notify };
        let work = write + costs.exit;
        self.vcpus[vcpu].kicking = true;
        self.vcpus[vcpu].doing = Doing::Kicking;
        let task = self.vcpus[vcpu].task;
        self.cpus.work(self.now, task, work);
        true
    }

    /// The vCPU's next work: an interrupt, replies, requests that are due, computing, or none.
    fn next_of(&mut self, vcpu: usize) {
        let costs = &self.trace.costs;
        let (vm, task) = (self.vcpus[vcpu].vm, self.vcpus[vcpu].task);
        let load = self.load(vm, self.phase);
        let phases = &self.trace.phases;
        let mut replied = None;
        let own = &mut self.vcpus[vcpu];
        let work = if own.interrupt {
            own.interrupt = false;
            own.doing = Doing::Interrupted;
            costs.exit
        } else if let Some(request) = own.used.pop_front() {
            let again = load.outstanding > 0 && request.phase == self.phase;
            own.doing = match again {
                true => Doing::Preparing(Request {
                    began: self.now,
                    ..request
                }),
                false => Doing::Replied,
            };
            replied = Some(request);
            if again {
                varied(&mut self.random, load.work)
            } else {
                costs.reply
            }
        } else if let Some(request) = own.due.pop_front() {
            let work = varied(&mut self.random, phases[request.phase].loads[vm].work);
            own.doing = Doing::Preparing(request);
            work
        } else if load.compute {
            let from = self.cpus.times(self.now, task).run;
            own.doing = Doing::Computing { from };
            ENDLESS
        } else {
            own.doing = Doing::Halting;
            costs.exit
        };
        if let Some(request) = replied {
            self.record(vm, request);
        }
        self.cpus.work(self.now, task, work);
    }
}

/// Work of this mean, evenly from half of it to one and a half: no two requests are alike.
fn varied(random: &mut Random, mean: u64) -> u64 {
    mean / 2 + random.below(mean + 1)
}
