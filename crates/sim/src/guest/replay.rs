//! Replay of a trace: it determines when each of the trace's I/Os is issued again.
//!
//! A [`Guest`](super::Guest) with a trace as its workload has one. Every I/O is issued once, in order of arrival, with
//! its index in the trace as its actor.
//!
//! # Always true
//! - At the pace `outstanding`, an I/O is issued only when no more I/Os are outstanding than at its recorded arrival.
//! - A replay with nothing outstanding that has not ended issues the next I/O or sets a timer for it.

use std::sync::Arc;

use super::Action;
use crate::numbers::small;
use crate::scenario::Pace;
use crate::trace::Trace;
use tidegate_core::units::{Span, Time};

/// See the module.
pub(super) struct Replay {
    trace: Arc<Trace>,
    pace: Pace,
    next: usize,
    outstanding: u32,
    /// The time of the trace's zero.
    zero: Time,
    /// Timers of an earlier start are ignored.
    epoch: u32,
}

impl Replay {
    pub(super) fn new(trace: Arc<Trace>, pace: Pace) -> Replay {
        Replay {
            trace,
            pace,
            next: 0,
            outstanding: 0,
            zero: Time::ZERO,
            epoch: 0,
        }
    }

    /// Starts, continues after a stop, or starts again after its end.
    pub(super) fn start(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.is_over() {
            self.next = 0;
        }
        self.epoch += 1;
        if let Some(io) = self.trace.ios.get(self.next) {
            // Time does not pass while stopped: the I/Os of that time are not issued all at once.
            let passed = self.scaled(io.at).as_nanos();
            self.zero = Time::from_nanos(now.as_nanos().saturating_sub(passed));
        }
        self.issue_due(now, out);
    }

    /// Issues the I/Os that are due.
    pub(super) fn woke(&mut self, now: Time, epoch: u32, out: &mut Vec<Action>) {
        if epoch == self.epoch {
            self.issue_due(now, out);
        }
    }

    /// An I/O has completed. An active guest continues.
    pub(super) fn answered(&mut self, now: Time, active: bool, out: &mut Vec<Action>) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if active && self.pace == Pace::Outstanding {
            self.issue_due(now, out);
        }
    }

    /// The I/Os in flight will not complete.
    pub(super) fn lose(&mut self) {
        self.outstanding = 0;
    }

    /// Whether all I/Os were issued and completed.
    pub(super) fn is_over(&self) -> bool {
        self.next == self.trace.ios.len() && self.outstanding == 0
    }

    fn issue_due(&mut self, now: Time, out: &mut Vec<Action>) {
        while let Some(io) = self.trace.ios.get(self.next) {
            match self.pace {
                Pace::Recorded { .. } => {
                    let at = self.zero + self.scaled(io.at);
                    if at > now {
                        return out.push(Action::Wake {
                            actor: 0,
                            epoch: self.epoch,
                            at,
                        });
                    }
                }
                Pace::Outstanding => {
                    if self.outstanding > io.outstanding {
                        return;
                    }
                }
            }
            out.push(Action::Io {
                actor: Some(small(self.next)),
                op: io.op,
                offset: io.offset,
                len: io.len,
            });
            self.outstanding += 1;
            self.next += 1;
        }
    }

    /// The trace's time `at`, scaled by the pace.
    fn scaled(&self, at: Span) -> Span {
        match self.pace {
            Pace::Outstanding => at,
            Pace::Recorded { speed } => {
                let ns = u128::from(at.as_nanos()) * 100 / u128::from(speed);
                Span::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TracedIo;
    use tidegate_core::filter::trace::format::TracedDisk;
    use tidegate_core::request::{Flags, Op};

    /// A trace of reads with these arrival times and numbers of other outstanding I/Os.
    fn replay(ios: &[(u64, u32)], pace: Pace) -> Replay {
        let ios = ios.iter().map(|&(ms, outstanding)| TracedIo {
            at: Span::from_millis(ms),
            op: Op::Read,
            flags: Flags::NONE,
            offset: 0,
            len: 512,
            latency: Span::from_millis(1),
            failed: false,
            outstanding,
        });
        let trace = Trace {
            disk: TracedDisk::default(),
            ios: ios.collect(),
            lost: 0,
        };
        Replay::new(Arc::new(trace), pace)
    }

    fn ms(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    /// The issued I/Os, and the timer.
    fn actions(out: &mut Vec<Action>) -> (Vec<u32>, Option<(u32, Time)>) {
        let (mut ios, mut wake) = (Vec::new(), None);
        for action in out.drain(..) {
            match action {
                Action::Io { actor, .. } => ios.extend(actor),
                Action::Wake { epoch, at, .. } => wake = Some((epoch, at)),
            }
        }
        (ios, wake)
    }

    #[test]
    fn at_the_recorded_pace_each_io_is_issued_at_its_time_scaled_by_the_speed() {
        for (speed, second) in [(100, 10), (200, 5)] {
            let mut replay = replay(&[(0, 0), (0, 1), (10, 2)], Pace::Recorded { speed });
            let mut out = Vec::new();
            replay.start(ms(100), &mut out);
            let (ios, wake) = actions(&mut out);
            let (epoch, at) = wake.expect("there is one more");
            assert_eq!((ios, at), (vec![0, 1], ms(100 + second)));
            replay.answered(ms(101), true, &mut out);
            assert_eq!(actions(&mut out), (vec![], None));
            replay.woke(at, epoch, &mut out);
            assert_eq!(actions(&mut out), (vec![2], None));
            replay.answered(at, true, &mut out);
            assert!(!replay.is_over(), "one is still outstanding");
            replay.answered(at, true, &mut out);
            assert!(replay.is_over());
        }
    }

    #[test]
    fn a_stop_is_skipped_and_an_old_timer_is_ignored() {
        let mut replay = replay(&[(0, 0), (10, 0)], Pace::Recorded { speed: 100 });
        let mut out = Vec::new();
        replay.start(ms(0), &mut out);
        let (_, wake) = actions(&mut out);
        let (old, _) = wake.expect("there is one more");
        replay.start(ms(500), &mut out);
        assert_eq!(actions(&mut out), (vec![1], None));
        replay.woke(ms(510), old, &mut out);
        assert_eq!(actions(&mut out), (vec![], None));
    }

    #[test]
    fn at_the_pace_of_outstanding_ios_their_number_is_reproduced() {
        let mut replay = replay(&[(0, 0), (1, 1), (2, 1), (900, 0)], Pace::Outstanding);
        let mut out = Vec::new();
        replay.start(ms(0), &mut out);
        assert_eq!(actions(&mut out).0, [0, 1]);
        replay.answered(ms(5), true, &mut out);
        assert_eq!(actions(&mut out).0, [2]);
        replay.answered(ms(6), true, &mut out);
        assert_eq!(actions(&mut out).0, [0; 0]);
        replay.answered(ms(7), true, &mut out);
        assert_eq!(actions(&mut out).0, [3], "its recorded time is ignored");
        replay.start(ms(8), &mut out);
        assert_eq!(actions(&mut out).0, [0; 0], "all I/Os were issued");
        replay.answered(ms(9), true, &mut out);
        assert!(replay.is_over());
        replay.start(ms(10), &mut out);
        assert_eq!(actions(&mut out).0, [0, 1], "it starts again");
    }
}
