//! A processor of several cores in virtual time, shared by tasks: vCPUs of guests and I/O threads.
//!
//! The driver gives a task work; the task is runnable until the work is done. Then [`Cpus::pop`] hands the task back, and the
//! driver gives it more work or blocks it. The scheduler decides which task runs on which core. It is a small EEVDF, as Linux
//! has since 6.6: all tasks weigh the same; among eligible tasks the earliest virtual deadline runs. Slices end exactly, as
//! with high-resolution ticks. A woken task preempts the current one if that has had more than its part, or if its own slice is
//! shorter and its deadline earlier. So a thread with a slice of 0.1 ms runs at once beside a vCPU of 4 ms. With equal slices it
//! waits, unless it has slept for most of the time.
//!
//! # Always true
//! - For each task, run, wait and sleep sum to the time since it was spawned.
//! - For each core, run, switch and idle sum to wall time.
//! - A runnable task waits only while every core that it may use has another task.
//! # Units
//! Time is nanoseconds in a `u64`. Cores are bits of a mask, at most 64.
//! # Source
//! Stoica, Abdel-Wahab: "Earliest Eligible Virtual Deadline First" (1995); `kernel/sched/fair.c` of Linux 6.12 (`RUN_TO_PARITY`,
//! `PREEMPT_SHORT`).

mod core;

use self::core::Core;
use alloc::vec::Vec;

/// More work than a run is long: a task that polls until it is interrupted.
pub const ENDLESS: u64 = u64::MAX / 4;

/// What the processor costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSpec {
    /// The number of cores, 1 to 64.
    pub cores: u32,
    /// From the wake-up of a task until it runs on an idle core.
    pub wake: u64,
    /// From the end of one task until the next one runs on the same core.
    pub switch: u64,
}

/// A task's number, in the order in which they were spawned.
pub type TaskId = usize;

/// Where a task's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTimes {
    /// On a core.
    pub run: u64,
    /// Runnable without a core, with latencies of wake-ups and switches: the run delay.
    pub wait: u64,
    /// Blocked.
    pub sleep: u64,
}

/// Where a core's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTimes {
    /// A task ran.
    pub run: u64,
    /// A task was about to run: wake-ups from idle and switches.
    pub switch: u64,
    /// Nothing was runnable.
    pub idle: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Blocked since this time.
    Blocked,
    /// In a core's queue.
    Queued,
    /// A core's current task.
    Current,
}

#[derive(Clone, Debug)]
struct Task {
    state: State,
    /// When the state, or the part of it that is counted already, began.
    since: u64,
    /// The core that it is on, or was on last.
    core: usize,
    /// The cores that it may use.
    mask: u64,
    slice: u64,
    /// Work that is left.
    left: u64,
    /// Virtual run time on its core; while blocked, how far it was ahead of the core's average.
    vruntime: i64,
    deadline: i64,
    times: TaskTimes,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Cpus {
    spec: CpuSpec,
    tasks: Vec<Task>,
    cores: Vec<Core>,
    began: u64,
}

impl Cpus {
    /// A processor whose cores are all idle at `now`.
    ///
    /// # Panics
    /// If it has no core or more than 64.
    #[must_use]
    pub fn new(now: u64, spec: CpuSpec) -> Cpus {
        assert!(
            (1..=64).contains(&spec.cores),
            "a processor has 1 to 64 cores"
        );
        Cpus {
            spec,
            tasks: Vec::new(),
            cores: (0..spec.cores).map(|_| Core::new(now)).collect(),
            began: now,
        }
    }

    /// Adds a task that is blocked. `slice` is its time on a core before another one may have it; `mask` are its cores.
    ///
    /// # Panics
    /// If the mask has none of the cores, or the slice is zero.
    pub fn spawn(&mut self, now: u64, slice: u64, mask: u64) -> TaskId {
        assert!(slice > 0, "a slice has a length");
        let mask = self.usable(mask);
        self.tasks.push(Task {
            state: State::Blocked,
            since: now,
            core: usize::try_from(mask.trailing_zeros()).unwrap_or(0),
            mask,
            slice,
            left: 0,
            vruntime: 0,
            deadline: 0,
            times: TaskTimes::default(),
        });
        self.tasks.len() - 1
    }

    /// The task is runnable with so much work. Does nothing for a task that is not blocked.
    pub fn wake(&mut self, now: u64, id: TaskId, work: u64) {
        if self.tasks[id].state != State::Blocked {
            return;
        }
        self.settle(id, now);
        self.tasks[id].left = work;
        self.enter(now, id);
    }

    /// Gives more work to a task that was popped.
    ///
    /// # Panics
    /// If it is blocked, or still has work.
    pub fn work(&mut self, now: u64, id: TaskId, work: u64) {
        let core = self.tasks[id].core;
        self.charge(core, now);
        let task = &mut self.tasks[id];
        assert!(
            task.state != State::Blocked && task.left == 0,
            "only a task without work is given some"
        );
        task.left = work;
    }

    /// Blocks a task that was popped. Its core takes the next one.
    ///
    /// # Panics
    /// If it is blocked, or still has work.
    pub fn block(&mut self, now: u64, id: TaskId) {
        let core = self.tasks[id].core;
        self.charge(core, now);
        self.settle(id, now);
        self.remember_lag(core, id);
        let task = &mut self.tasks[id];
        assert!(
            task.state != State::Blocked && task.left == 0,
            "only a task without work can block"
        );
        let was = ::core::mem::replace(&mut task.state, State::Blocked);
        task.since = now;
        if was == State::Current {
            self.cores[core].current = None;
            self.choose(core, now);
        } else {
            // Another task has preempted it since it was popped.
            self.cores[core].queue.retain(|other| *other != id);
        }
    }

    /// Takes away what is left of a task's work, except for at most `leave`: it is handed back soon. Returns the part that was
    /// taken away. A task that waits for a core is handed back once it has one.
    pub fn cut(&mut self, now: u64, id: TaskId, leave: u64) -> u64 {
        let core = self.tasks[id].core;
        self.charge(core, now);
        let task = &mut self.tasks[id];
        let taken = task.left.saturating_sub(leave);
        task.left -= taken;
        taken
    }

    /// Restricts a task to these cores. If it is on another one, it moves at once.
    ///
    /// # Panics
    /// If the mask has none of the cores.
    pub fn restrict(&mut self, now: u64, id: TaskId, mask: u64) {
        let mask = self.usable(mask);
        self.tasks[id].mask = mask;
        let core = self.tasks[id].core;
        if self.tasks[id].state == State::Blocked || mask >> core & 1 == 1 {
            return;
        }
        self.charge(core, now);
        self.settle(id, now);
        self.remember_lag(core, id);
        if self.tasks[id].state == State::Current {
            self.cores[core].current = None;
            self.tasks[id].state = State::Blocked;
            self.choose(core, now);
        } else {
            self.cores[core].queue.retain(|other| *other != id);
        }
        self.enter(now, id);
    }

    /// The time of the next event that [`pop`](Self::pop) handles.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        let times = self.cores.iter().filter_map(|core| self.due(core));
        times.min()
    }

    /// Handles events up to `now`. Returns a task whose work is done. The driver must call [`work`](Self::work) or
    /// [`block`](Self::block) before the next `pop`; it may wake other tasks before. None if no task's work ends until `now`.
    pub fn pop(&mut self, now: u64) -> Option<TaskId> {
        loop {
            let due = self.cores.iter().enumerate();
            let due = due.filter_map(|(at, core)| Some((self.due(core)?, at)));
            let (when, at) = due.min().filter(|(when, _)| *when <= now)?;
            self.charge(at, when);
            let id = self.cores[at]
                .current
                .expect("a core with an event has a task");
            if self.tasks[id].left == 0 && self.cores[at].starts <= when {
                return Some(id);
            }
            self.slice_over(at, when);
        }
    }

    /// Whether the task is on a core at this moment, past its wake-up or switch.
    #[must_use]
    pub fn is_running(&self, now: u64, id: TaskId) -> bool {
        let task = &self.tasks[id];
        task.state == State::Current && self.cores[task.core].starts <= now
    }

    /// Whether the task is blocked.
    #[must_use]
    pub fn is_blocked(&self, id: TaskId) -> bool {
        self.tasks[id].state == State::Blocked
    }

    /// Whether the task is runnable, but another one has its core.
    #[must_use]
    pub fn is_waiting(&self, id: TaskId) -> bool {
        self.tasks[id].state == State::Queued
    }

    /// Whether a core has no task.
    #[must_use]
    pub fn is_idle(&self, core: usize) -> bool {
        self.cores[core].current.is_none()
    }

    /// Whether another task waits for the core that this one is on or was on last.
    #[must_use]
    pub fn is_contended(&self, id: TaskId) -> bool {
        !self.cores[self.tasks[id].core].queue.is_empty()
    }

    /// Where a task's time went until `now`.
    #[must_use]
    pub fn times(&self, now: u64, id: TaskId) -> TaskTimes {
        let task = &self.tasks[id];
        let mut times = task.times;
        let open = now.saturating_sub(task.since);
        match task.state {
            State::Blocked => times.sleep += open,
            State::Queued => times.wait += open,
            State::Current => {
                let starts = self.cores[task.core]
                    .starts
                    .clamp(task.since, now.max(task.since));
                times.wait += starts - task.since;
                times.run += now.saturating_sub(starts);
            }
        }
        times
    }

    /// Where a core's time went until `now`, which no call has passed.
    #[must_use]
    pub fn core_times(&self, now: u64, core: usize) -> CoreTimes {
        let own = &self.cores[core];
        let (mut run, mut switch) = (own.run, own.switch);
        if own.current.is_some() {
            let starts = own.starts.clamp(own.charged, now.max(own.charged));
            switch += starts - own.charged;
            run += now.saturating_sub(starts);
        }
        CoreTimes {
            run,
            switch,
            idle: now.saturating_sub(self.began) - run - switch,
        }
    }

    /// The number of cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    fn usable(&self, mask: u64) -> u64 {
        let all = u64::MAX >> (64 - self.cores.len());
        let usable = mask & all;
        assert!(usable != 0, "a task has a core");
        usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const ANY: u64 = u64::MAX;

    fn cpus(cores: u32) -> Cpus {
        let (wake, switch) = (5_500, 1_200);
        Cpus::new(
            0,
            CpuSpec {
                cores,
                wake,
                switch,
            },
        )
    }

    /// Runs until `end`; tasks get `again` more work each time, or block if that is zero.
    fn drive(cpus: &mut Cpus, end: u64, again: u64) -> Vec<(u64, TaskId)> {
        let mut popped = Vec::new();
        while let Some(when) = cpus.next().filter(|when| *when <= end) {
            let Some(id) = cpus.pop(when) else {
                continue;
            };
            popped.push((when, id));
            match again {
                0 => cpus.block(when, id),
                work => cpus.work(when, id, work),
            }
        }
        popped
    }

    #[test]
    fn work_on_an_idle_core_begins_after_the_wake_up() {
        let mut cpus = cpus(1);
        let task = cpus.spawn(0, 4 * MS, ANY);
        cpus.wake(1_000, task, 7_000);
        assert!(!cpus.is_running(6_499, task) && cpus.is_running(6_500, task));
        assert_eq!(drive(&mut cpus, MS, 0), [(13_500, task)]);
        let times = cpus.times(20_000, task);
        let (run, wait, sleep) = (7_000, 5_500, 7_500);
        assert_eq!(times, TaskTimes { run, wait, sleep });
    }

    #[test]
    fn equal_tasks_share_a_core_equally() {
        let mut cpus = cpus(1);
        for _ in 0..3 {
            let task = cpus.spawn(0, 4 * MS, ANY);
            cpus.wake(0, task, ENDLESS);
        }
        drive(&mut cpus, 1_200 * MS, 0);
        for task in 0..3 {
            let run = cpus.times(1_200 * MS, task).run;
            assert!(run.abs_diff(400 * MS) <= 4 * MS, "{run}");
        }
    }

    #[test]
    fn a_short_slice_preempts_at_its_wake_up_and_an_equal_one_waits_for_the_slices_end() {
        for (slice, from, to) in [(MS / 10, 0, 2_000), (4 * MS, 2 * MS, 4 * MS)] {
            let mut cpus = cpus(1);
            let hog = cpus.spawn(0, 4 * MS, ANY);
            let thread = cpus.spawn(0, slice, ANY);
            cpus.wake(0, hog, ENDLESS);
            drive(&mut cpus, MS, 0);
            cpus.wake(MS, thread, 10_000);
            let popped = drive(&mut cpus, 20 * MS, 0);
            assert_eq!(popped.len(), 1);
            let waited = cpus.times(20 * MS, thread).wait;
            assert!((from..=to).contains(&waited), "slice {slice}: {waited}");
        }
    }

    #[test]
    fn a_short_slice_has_no_more_than_its_half() {
        let mut cpus = cpus(1);
        let hog = cpus.spawn(0, 4 * MS, ANY);
        let thread = cpus.spawn(0, MS / 10, ANY);
        cpus.wake(0, hog, ENDLESS);
        cpus.wake(0, thread, ENDLESS);
        drive(&mut cpus, 800 * MS, 0);
        let run = cpus.times(800 * MS, thread).run;
        assert!(run.abs_diff(400 * MS) <= 12 * MS, "{run}");
    }

    #[test]
    fn a_core_without_work_takes_a_waiting_task_of_another_core() {
        let mut cpus = cpus(2);
        let tasks: Vec<TaskId> = (0..3).map(|_| cpus.spawn(0, 4 * MS, ANY)).collect();
        for (task, work) in tasks.iter().zip([20 * MS, MS, 20 * MS]) {
            cpus.wake(0, *task, work);
        }
        let ended = drive(&mut cpus, 100 * MS, 0);
        let last = ended.last().expect("they end").0;
        assert!(last < 22 * MS, "{last}");
    }

    #[test]
    fn a_task_stays_on_its_cores_and_moves_when_they_change() {
        let mut cpus = cpus(2);
        let hog = cpus.spawn(0, 4 * MS, 0b01);
        let other = cpus.spawn(0, 4 * MS, 0b01);
        cpus.wake(0, hog, ENDLESS);
        cpus.wake(0, other, ENDLESS);
        drive(&mut cpus, 80 * MS, 0);
        assert_eq!(cpus.core_times(80 * MS, 1).run, 0);
        cpus.restrict(80 * MS, other, 0b10);
        drive(&mut cpus, 160 * MS, 0);
        let run = cpus.core_times(160 * MS, 1).run;
        assert_eq!(run, 80 * MS - 5_500);
    }

    #[test]
    fn work_that_is_cut_is_handed_back() {
        let mut cpus = cpus(1);
        let task = cpus.spawn(0, 4 * MS, ANY);
        cpus.wake(0, task, 100_000);
        assert_eq!(cpus.cut(25_500, task, 200), 79_800);
        assert_eq!(drive(&mut cpus, MS, 0), [(25_700, task)]);
    }

    #[test]
    fn a_core_that_is_given_up_is_idle() {
        let mut cpus = cpus(2);
        let task = cpus.spawn(0, 4 * MS, ANY);
        cpus.wake(0, task, 10_000);
        drive(&mut cpus, MS, 0);
        let (run, switch) = (10_000, 5_500);
        let idle = MS - run - switch;
        assert_eq!(cpus.core_times(MS, 0), CoreTimes { run, switch, idle });
        assert_eq!(cpus.core_times(MS, 1).idle, MS);
        assert!(cpus.is_blocked(task) && !cpus.is_contended(task));
    }
}
