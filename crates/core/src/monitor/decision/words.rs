//! The words of decisions: what users read in events, in `status` and in `explain`.
//!
//! A reason is a sentence in plain words, and the measured values behind it. A thread appears as `thread 3 `, so that whoever
//! looks for it finds no other. Numbers of disks are the engine's: an event has the disk's name instead.
//!
//! # Units
//! Shares as percentages, thousandths of CPUs as a number of CPUs, times with their unit.

use super::{Action, Decision, Verdict, Why};
use crate::monitor::Permille;
use crate::units::Span;
use core::fmt;

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Move { disk, to } => write!(f, "move disk={} to={to}", disk.0),
            Action::Activate { thread } => write!(f, "activate thread={thread}"),
            Action::Lock { thread } => write!(f, "lock thread={thread}"),
            Action::Park { thread } => write!(f, "park thread={thread}"),
            Action::Spin { on: true } => write!(f, "poll on"),
            Action::Spin { on: false } => write!(f, "poll off"),
            Action::Stay => write!(f, "stay"),
        }
    }
}

/// Thousandths as a percentage.
struct Percent(Permille);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}%", self.0 / 10, self.0 % 10)
    }
}

/// Thousandths as a number of CPUs.
struct Cpus(Permille);

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

const fn yes(is: bool) -> &'static str {
    match is {
        true => "yes",
        false => "no",
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.work_before, self.work_after);
        write!(f, "weighted_requests_per_second={before}->{after}")?;
        let (before, after) = (self.delay_before, self.delay_after);
        write!(f, " delay_p99={before}->{after}")?;
        if let (Some(before), Some(after)) = (self.guests_before, self.guests_after) {
            write!(f, " guests_cpus={}->{}", Cpus(before), Cpus(after))?;
        }
        let (offered, steal) = (Percent(self.offered_change), Percent(self.steal));
        write!(f, " load_change={offered} hypervisor_took={steal}")
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Why::Congested {
                thread,
                busy,
                delay,
                target,
                standing,
                threads,
            } => {
                let (busy, passed) = (Percent(busy), yes(standing));
                write!(f, "requests wait for thread {thread} (busy={busy}")?;
                write!(f, " delay_p99={delay} target={target} passed_over={passed}")?;
                write!(f, " active_threads={threads})")
            }
            Why::OneDisk {
                thread,
                busy,
                delay,
                queues,
                ..
            } => {
                let busy = Percent(busy);
                write!(
                    f,
                    "one disk is the whole load of thread {thread} (busy={busy}"
                )?;
                write!(f, " delay_p99={delay} queues={queues})")
            }
            Why::NoThreadLeft {
                thread,
                busy,
                delay,
                threads,
                banned,
            } => {
                let busy = Percent(busy);
                write!(f, "requests wait for thread {thread} ")?;
                match banned == Span::ZERO {
                    true => write!(f, "and no other thread may be used")?,
                    false => write!(f, "and another thread was of no use")?,
                }
                write!(
                    f,
                    " (busy={busy} delay_p99={delay} active_threads={threads}"
                )?;
                match banned == Span::ZERO {
                    true => write!(f, ")"),
                    false => write!(f, " not_tried_for={banned})"),
                }
            }
            Why::NoCpu {
                thread,
                stolen,
                busy,
                delay,
            } => {
                let (stolen, busy) = (Percent(stolen), Percent(busy));
                write!(
                    f,
                    "requests wait for thread {thread} because it waits for a CPU"
                )?;
                write!(f, " (stolen={stolen} busy={busy} delay_p99={delay})")
            }
            Why::TooManyChanges {
                thread,
                busy,
                delay,
                wait,
            } => {
                let busy = Percent(busy);
                write!(
                    f,
                    "requests wait for thread {thread} after too many changes"
                )?;
                write!(f, " (busy={busy} delay_p99={delay} next_change_in={wait})")
            }
            Why::Unneeded {
                threads,
                packed,
                delay,
            } => {
                let packed = Percent(packed);
                write!(f, "one thread fewer does (active_threads={threads}")?;
                write!(f, " busy_on_one_fewer={packed} delay_p99={delay})")
            }
            Why::Uneven { before, after } => {
                write!(f, "the load is uneven (variance={before}->{after})")
            }
            Why::Probe {
                threads,
                guests_delay,
            } => {
                let waiting = Cpus(guests_delay);
                write!(f, "guests wait for CPUs, so one thread fewer is tried")?;
                write!(
                    f,
                    " (active_threads={threads} guests_waiting_cpus={waiting})"
                )
            }
            Why::Contention {
                stolen,
                guests_delay,
            } => {
                let (stolen, waiting) = (Percent(stolen), Cpus(guests_delay));
                write!(f, "others want the CPUs, or no longer do")?;
                write!(f, " (stolen={stolen} guests_waiting_cpus={waiting})")
            }
            Why::Better(verdict) => write!(f, "the trial did good ({verdict})"),
            Why::Worse(verdict, ban) => {
                write!(f, "the trial did no good ({verdict} not_tried_for={ban})")
            }
            Why::Void(verdict, hold) => {
                write!(
                    f,
                    "the trial has no verdict, as the load or the host changed"
                )?;
                match hold == Span::ZERO {
                    true => write!(f, " ({verdict})"),
                    false => write!(f, " ({verdict} not_tried_for={hold})"),
                }
            }
            Why::Idle {
                threads_idle,
                guests_idle,
                votes,
            } => {
                let (threads, guests) = (Cpus(threads_idle), Cpus(guests_idle));
                write!(f, "idle time (threads_idle_cpus={threads}")?;
                write!(f, " guests_idle_cpus={guests} ticks={votes}/20)")
            }
            Why::Regret {
                before,
                after,
                banned,
            } => {
                write!(
                    f,
                    "throughput after the change (bytes_per_us={before}->{after}"
                )?;
                write!(f, " not_tried_for_ticks={banned})")
            }
            Why::Index { index, threads } => {
                write!(f, "disks in turn (index={index} active_threads={threads})")
            }
            Why::Shares { disk, from, to } => {
                let (disk, from, to) = (Percent(disk), Percent(from), Percent(to));
                write!(f, "busy shares (disk={disk} from={from} to={to})")
            }
            Why::Empty { threads } => {
                write!(f, "the thread has no disks (active_threads={threads})")
            }
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.why)
    }
}
