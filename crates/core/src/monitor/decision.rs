//! Decisions of a policy: an action, and the inputs that led to it in values.
//!
//! The engine carries out the action. The text of a decision ([`words`]) is the line of an event; `explain` and `status`
//! show it.

pub mod words;

use super::{Permille, ThreadNumber};
use crate::request::DiskId;
use crate::units::{Span, Time};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A disk goes to another thread.
    Move {
        /// The disk.
        disk: DiskId,
        /// The active thread that serves it from now on.
        to: ThreadNumber,
    },
    /// A parked thread becomes active, or one that the policy locked.
    Activate {
        /// The thread.
        thread: ThreadNumber,
    },
    /// A thread takes no more disks.
    Lock {
        /// The thread.
        thread: ThreadNumber,
    },
    /// A locked thread without disks drains, and sleeps.
    Park {
        /// The thread.
        thread: ThreadNumber,
    },
    /// Whether idle threads may poll before they sleep.
    Spin {
        /// They may.
        on: bool,
    },
    /// Nothing is done: the decision reports what was found.
    Stay,
}

/// What a policy decided, when and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The time of the snapshot.
    pub at: Time,
    /// What is to be done.
    pub action: Action,
    /// The inputs.
    pub why: Why,
}

/// The figures of a trial: before the change, and with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Weighted completions a second before.
    pub work_before: u64,
    /// Weighted completions a second with it.
    pub work_after: u64,
    /// The queueing delay before: the mean over ticks of the slowest thread's 99th percentile.
    pub delay_before: Span,
    /// The same with it.
    pub delay_after: Span,
    /// CPU time of the guests' vCPUs before, in thousandths of a CPU; `None`: not known.
    pub guests_before: Option<Permille>,
    /// The same with it.
    pub guests_after: Option<Permille>,
    /// How much of the offered load changed meanwhile.
    pub offered_change: Permille,
    /// How much of the CPUs a hypervisor below took.
    pub steal: Permille,
}

/// Why a policy decided so, with its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// `auto`: requests of a busy thread wait too long.
    Congested {
        /// The thread.
        thread: ThreadNumber,
        /// Its busy share.
        busy: Permille,
        /// The 99th percentile of the queueing delay.
        delay: Span,
        /// The target of the delay.
        target: Span,
        /// Whether a request waited through a whole tick.
        standing: bool,
        /// Active threads.
        threads: u16,
    },
    /// `auto`: one disk alone is the load of a congested thread. Neither a move nor a thread helps.
    OneDisk {
        /// The thread.
        thread: ThreadNumber,
        /// The disk.
        disk: DiskId,
        /// The thread's busy share.
        busy: Permille,
        /// The 99th percentile of the queueing delay.
        delay: Span,
        /// Queues of the disk that had requests.
        queues: u16,
    },
    /// `auto`: a congested thread cannot be relieved.
    NoThreadLeft {
        /// The thread.
        thread: ThreadNumber,
        /// Its busy share.
        busy: Permille,
        /// The 99th percentile of the queueing delay.
        delay: Span,
        /// Active threads, and the limit.
        threads: u16,
        /// For how long another thread is not tried, because one did not help or had no verdict; zero: the limit is reached.
        banned: Span,
    },
    /// `auto`: requests of a thread wait because the thread waits for a CPU. Neither a move nor a thread gives it one.
    NoCpu {
        /// The thread.
        thread: ThreadNumber,
        /// Time that it waited for a CPU, in thousandths.
        stolen: Permille,
        /// Its busy share, of the time that it had a CPU.
        busy: Permille,
        /// The 99th percentile of the queueing delay.
        delay: Span,
    },
    /// `auto`: a congested thread is not relieved, since there were too many changes.
    TooManyChanges {
        /// The thread.
        thread: ThreadNumber,
        /// Its busy share.
        busy: Permille,
        /// The 99th percentile of the queueing delay.
        delay: Span,
        /// Until the next change is allowed.
        wait: Span,
    },
    /// `auto`: the load fits fewer threads.
    Unneeded {
        /// Active threads.
        threads: u16,
        /// The highest busy share on one thread fewer.
        packed: Permille,
        /// The highest 99th percentile of the queueing delay.
        delay: Span,
    },
    /// `auto`: the load is uneven, and a move improves it much.
    Uneven {
        /// Variance of the busy shares, in squared thousandths.
        before: u64,
        /// The same after the moves.
        after: u64,
    },
    /// `auto`: the periodic trial of one thread fewer, or without polling, where guests compete for the CPUs.
    Probe {
        /// Active threads.
        threads: u16,
        /// Time that vCPUs waited for a CPU, in thousandths of a CPU.
        guests_delay: Permille,
    },
    /// `auto`: threads may poll again, or must not, as a thread was or was not alone on its CPU.
    Contention {
        /// Time that threads waited for a CPU, in thousandths of their time.
        stolen: Permille,
        /// Time that vCPUs waited for a CPU, in thousandths of a CPU.
        guests_delay: Permille,
    },
    /// `auto`: a trial ended well.
    Better(Verdict),
    /// `auto`: a trial ended badly: it is undone, and not tried again for a while.
    Worse(Verdict, Span),
    /// `auto`: a trial ended without a verdict, because the load or the host changed. If it is taken back, it is not tried again
    /// for this time; zero: it stays, as the load now speaks for it.
    Void(Verdict, Span),
    /// `iocm`: idle time of the I/O threads and of the guests' CPUs, and how many of the last ticks said the same.
    Idle {
        /// Idle time of the active threads, in thousandths of a CPU.
        threads_idle: Permille,
        /// Idle time of the other CPUs, in thousandths of a CPU.
        guests_idle: Permille,
        /// Ticks of the last 20.
        votes: u16,
    },
    /// `iocm`: bytes per microsecond before and after a change: it is kept or undone.
    Regret {
        /// Before.
        before: u64,
        /// After.
        after: u64,
        /// Ticks during which an undone change is not tried again; zero: it is kept.
        banned: u16,
    },
    /// `iocm`: after a change of the number of threads, disks are dealt out by index.
    Index {
        /// The disk's place among all disks.
        index: u32,
        /// Active threads.
        threads: u16,
    },
    /// `spdk`: a disk's and its thread's busy shares against the limits of 20, 80 and 95 %.
    Shares {
        /// Of the disk.
        disk: Permille,
        /// Of the thread that serves it.
        from: Permille,
        /// Of the thread that gets it.
        to: Permille,
    },
    /// `spdk`: a thread has no disks.
    Empty {
        /// Active threads.
        threads: u16,
    },
}

impl Why {
    /// The congested thread that it is about, if it is about one.
    pub const fn congested(&self) -> Option<ThreadNumber> {
        match *self {
            Why::Congested { thread, .. }
            | Why::OneDisk { thread, .. }
            | Why::NoThreadLeft { thread, .. }
            | Why::NoCpu { thread, .. }
            | Why::TooManyChanges { thread, .. } => Some(thread),
            _ => None,
        }
    }

    /// What was found about a thread, if it is no change and no end of a trial: its kind, and the thread.
    pub const fn finding(&self) -> Option<(Finding, ThreadNumber)> {
        let kind = match self {
            Why::OneDisk { .. } => Finding::OneDisk,
            Why::NoThreadLeft { .. } => Finding::NoThreadLeft,
            Why::NoCpu { .. } => Finding::NoCpu,
            Why::TooManyChanges { .. } => Finding::TooManyChanges,
            _ => return None,
        };
        match self.congested() {
            Some(thread) => Some((kind, thread)),
            None => None,
        }
    }
}

/// Why a congested thread is not relieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// One disk is its whole load.
    OneDisk,
    /// No other thread may be used.
    NoThreadLeft,
    /// The thread lacks a CPU.
    NoCpu,
    /// There were too many changes.
    TooManyChanges,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_decision_is_one_line_with_its_inputs() {
        let decision = Decision {
            at: Time::ZERO,
            action: Action::Move {
                disk: DiskId(7),
                to: 2,
            },
            why: Why::Congested {
                thread: 0,
                busy: 972,
                delay: Span::from_micros(340),
                target: Span::from_micros(100),
                standing: false,
                threads: 3,
            },
        };
        assert_eq!(
            decision.to_string(),
            "move disk=7 to=2: requests wait for thread 0 (busy=97.2% delay_p99=340us target=100us \
             passed_over=no active_threads=3)"
        );
    }

    #[test]
    fn a_verdict_names_the_guests_cpu_only_where_it_is_known() {
        let unknown = Verdict::default();
        assert!(!unknown.to_string().contains("guests"));
        let known = Verdict {
            guests_before: Some(1500),
            guests_after: Some(1420),
            ..unknown
        };
        assert!(known.to_string().contains("guests_cpus=1.500->1.420"));
    }
}
