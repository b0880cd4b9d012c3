//! One core of the processor: which of its tasks runs next, for how long, and where a woken task goes.

use super::{Cpus, State, TaskId};
use alloc::vec::Vec;

/// A core with its current task and those that wait for it.
#[derive(Clone, Debug)]
pub(super) struct Core {
    pub(super) current: Option<TaskId>,
    /// When the current task begins to run, after its wake-up or switch.
    pub(super) starts: u64,
    /// When its slice is over.
    pub(super) slice_ends: u64,
    /// Up to when the current task's time is counted.
    pub(super) charged: u64,
    /// Tasks that wait.
    pub(super) queue: Vec<TaskId>,
    /// The average virtual time when the core had its last task.
    pub(super) virtual_time: i64,
    pub(super) run: u64,
    pub(super) switch: u64,
}

impl Core {
    pub(super) fn new(now: u64) -> Core {
        Core {
            current: None,
            starts: now,
            slice_ends: now,
            charged: now,
            queue: Vec::new(),
            virtual_time: 0,
            run: 0,
            switch: 0,
        }
    }

    /// Runnable tasks here.
    fn load(&self) -> usize {
        self.queue.len() + usize::from(self.current.is_some())
    }
}

fn signed(span: u64) -> i64 {
    i64::try_from(span).unwrap_or(i64::MAX)
}

impl Cpus {
    /// When something happens on a core: its task's work is done, or its slice is over and others wait.
    pub(super) fn due(&self, core: &Core) -> Option<u64> {
        let left = self.tasks[core.current?].left;
        let done = core.charged.max(core.starts).saturating_add(left);
        Some(match core.queue.is_empty() {
            true => done,
            false => done.min(core.slice_ends),
        })
    }

    /// Counts a core's time until `now`.
    pub(super) fn charge(&mut self, at: usize, now: u64) {
        let core = &mut self.cores[at];
        let Some(id) = core.current else {
            core.charged = core.charged.max(now);
            return;
        };
        if now <= core.charged {
            return;
        }
        let starts = core.starts.clamp(core.charged, now);
        let (switch, run) = (starts - core.charged, now - starts);
        core.switch += switch;
        core.run += run;
        core.charged = now;
        let task = &mut self.tasks[id];
        task.times.wait += switch;
        task.times.run += run;
        task.since = now;
        task.left = task.left.saturating_sub(run);
        task.vruntime += signed(run);
    }

    /// Counts the time of a task that is not on a core until `now`.
    pub(super) fn settle(&mut self, id: TaskId, now: u64) {
        let task = &mut self.tasks[id];
        let passed = now.saturating_sub(task.since);
        match task.state {
            State::Blocked => task.times.sleep += passed,
            State::Queued => task.times.wait += passed,
            State::Current => return,
        }
        task.since = task.since.max(now);
    }

    /// The average virtual run time of a core's runnable tasks.
    fn average(&self, at: usize) -> i64 {
        let core = &self.cores[at];
        let all = core.queue.iter().chain(core.current.iter());
        let (mut sum, mut count) = (0_i128, 0_i128);
        for id in all {
            sum += i128::from(self.tasks[*id].vruntime);
            count += 1;
        }
        match count {
            0 => core.virtual_time,
            count => i64::try_from(sum.div_euclid(count)).unwrap_or(core.virtual_time),
        }
    }

    /// Before a task leaves a core: by how much it is ahead of the others, at most a slice.
    pub(super) fn remember_lag(&mut self, at: usize, id: TaskId) {
        let average = self.average(at);
        self.cores[at].virtual_time = average;
        let task = &mut self.tasks[id];
        let most = signed(task.slice);
        task.vruntime = (task.vruntime - average).clamp(-most, most);
    }

    /// A runnable task, whose `vruntime` is its lag, goes to a core and preempts the current task if it may.
    pub(super) fn enter(&mut self, now: u64, id: TaskId) {
        let at = self.place(id);
        self.charge(at, now);
        let average = self.average(at);
        let task = &mut self.tasks[id];
        task.core = at;
        task.vruntime += average;
        task.deadline = task.vruntime + signed(task.slice);
        task.since = now;
        task.state = State::Queued;
        if self.cores[at].current.is_none() {
            return self.run(at, id, now, self.spec.wake);
        }
        self.cores[at].queue.push(id);
        self.renew(at, now);
        if self.preempts(at, id) {
            self.requeue_current(at, now);
            self.cores[at].queue.retain(|other| *other != id);
            self.run(at, id, now, self.spec.switch);
        }
    }

    /// The core for a task that becomes runnable: its last one if that is idle, another idle one, or the one with the fewest
    /// tasks.
    fn place(&self, id: TaskId) -> usize {
        let task = &self.tasks[id];
        let may = |at: &usize| task.mask >> *at & 1 == 1;
        let rank = |at: &usize| (self.cores[*at].load(), usize::from(*at != task.core), *at);
        let all = (0..self.cores.len()).filter(may);
        all.min_by_key(rank).expect("a task has a core")
    }

    /// Whether a task that has just been queued runs at once: it is eligible, and the current one is not, or has a longer slice
    /// and a later deadline.
    fn preempts(&self, at: usize, id: TaskId) -> bool {
        let Some(current) = self.cores[at].current else {
            return true;
        };
        let (own, other) = (&self.tasks[id], &self.tasks[current]);
        let average = self.average(at);
        let shorter = own.slice < other.slice && own.deadline < other.deadline;
        own.vruntime <= average && (other.vruntime > average || shorter)
    }

    /// A slice that ended while no other task waited has been followed by new ones.
    fn renew(&mut self, at: usize, now: u64) {
        let core = &mut self.cores[at];
        let Some(id) = core.current else {
            return;
        };
        let task = &mut self.tasks[id];
        if core.slice_ends <= now {
            let passed = (now - core.slice_ends) / task.slice + 1;
            core.slice_ends += passed * task.slice;
            task.deadline = task.vruntime + signed(core.slice_ends - now);
        }
    }

    /// The current task's slice is over: another one may run, here or on a core with less to do.
    pub(super) fn slice_over(&mut self, at: usize, now: u64) {
        let id = self.cores[at].current.expect("a slice is a task's");
        let task = &mut self.tasks[id];
        task.deadline = task.vruntime + signed(task.slice);
        self.requeue_current(at, now);
        self.choose(at, now);
        self.even_out(at, now);
    }

    fn requeue_current(&mut self, at: usize, now: u64) {
        let id = self.cores[at]
            .current
            .take()
            .expect("there is a current task");
        let task = &mut self.tasks[id];
        task.state = State::Queued;
        task.since = now;
        self.cores[at].queue.push(id);
    }

    /// Chooses a core's next task: of those that are eligible the one with the earliest deadline. An idle core takes a task
    /// that waits elsewhere.
    pub(super) fn choose(&mut self, at: usize, now: u64) {
        let average = self.average(at);
        let key = |id: &&TaskId| (self.tasks[**id].deadline, **id);
        let eligible = |id: &&TaskId| self.tasks[**id].vruntime <= average;
        let queue = self.cores[at].queue.iter();
        let next = queue.filter(eligible).min_by_key(key).copied();
        match next {
            Some(id) => {
                self.cores[at].queue.retain(|other| *other != id);
                self.run(at, id, now, self.spec.switch);
            }
            None => self.pull(at, now),
        }
    }

    /// An idle core takes the longest waiting task of the core with the most.
    fn pull(&mut self, at: usize, now: u64) {
        let others = (0..self.cores.len()).filter(|other| *other != at);
        let mut others: Vec<usize> = others
            .filter(|other| !self.cores[*other].queue.is_empty())
            .collect();
        others.sort_by_key(|other| (usize::MAX - self.cores[*other].load(), *other));
        for from in others {
            if let Some(id) = self.movable(from, at) {
                self.transfer(id, from, at, now);
                return;
            }
        }
    }

    /// Moves a waiting task to a core that has at least two fewer.
    fn even_out(&mut self, from: usize, now: u64) {
        let load = self.cores[from].load();
        let others = (0..self.cores.len()).filter(|to| self.cores[*to].load() + 2 <= load);
        let mut others: Vec<usize> = others.collect();
        others.sort_by_key(|to| (self.cores[*to].load(), *to));
        for to in others {
            if let Some(id) = self.movable(from, to) {
                self.transfer(id, from, to, now);
                return;
            }
        }
    }

    /// The task of a queue that waits longest and may run on the other core.
    fn movable(&self, from: usize, to: usize) -> Option<TaskId> {
        let queue = self.cores[from].queue.iter().copied();
        let may = queue.filter(|id| self.tasks[*id].mask >> to & 1 == 1);
        may.min_by_key(|id| (self.tasks[*id].since, *id))
    }

    fn transfer(&mut self, id: TaskId, from: usize, to: usize, now: u64) {
        self.settle(id, now);
        self.charge(to, now);
        self.remember_lag(from, id);
        self.cores[from].queue.retain(|other| *other != id);
        let average = self.average(to);
        let task = &mut self.tasks[id];
        task.core = to;
        task.vruntime += average;
        task.deadline = task.vruntime + signed(task.slice);
        match self.cores[to].current {
            None => self.run(to, id, now, self.spec.switch),
            Some(_) => {
                self.cores[to].queue.push(id);
                self.renew(to, now);
            }
        }
    }

    /// The task is the core's current one, and runs after so long.
    fn run(&mut self, at: usize, id: TaskId, now: u64, after: u64) {
        self.settle(id, now);
        let core = &mut self.cores[at];
        core.charged = core.charged.max(now);
        core.current = Some(id);
        core.starts = now + after;
        let task = &mut self.tasks[id];
        core.slice_ends = core.starts + task.slice;
        task.state = State::Current;
        task.since = now;
        task.core = at;
    }
}
