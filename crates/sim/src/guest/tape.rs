//! Replay of a trace: the time at which each of its I/Os is issued again.
//!
//! [`Guest`](super::Guest) has one where its workload is a trace. Every I/O is asked for once, in the order in which they
//! arrived, with its place in the trace as its actor.
//!
//! # Always true
//! - At the pace of what was outstanding, no more are outstanding at any moment than were when the last of them arrived.
//! - A tape that has nothing outstanding and is not at its end asks for the next I/O, or to be woken for it.

use std::sync::Arc;

use super::Want;
use crate::numbers::small;
use crate::scenario::Pace;
use crate::trace::Trace;
use tidegate_core::units::{Span, Time};

/// See the module.
pub(super) struct Tape {
    trace: Arc<Trace>,
    pace: Pace,
    next: usize,
    outstanding: u32,
    /// When the trace's zero was, or would have been.
    zero: Time,
    /// Wakings of an earlier start are stale.
    epoch: u32,
}

impl Tape {
    pub(super) fn new(trace: Arc<Trace>, pace: Pace) -> Tape {
        Tape {
            trace,
            pace,
            next: 0,
            outstanding: 0,
            zero: Time::ZERO,
            epoch: 0,
        }
    }

    /// Begins, goes on after a rest, or begins again after its end.
    pub(super) fn start(&mut self, now: Time, out: &mut Vec<Want>) {
        if self.is_over() {
            self.next = 0;
        }
        self.epoch += 1;
        if let Some(io) = self.trace.ios.get(self.next) {
            // Time stands still during a rest: what would have been asked for meanwhile does not come in one heap.
            let passed = self.scaled(io.at).as_nanos();
            self.zero = Time::from_nanos(now.as_nanos().saturating_sub(passed));
        }
        self.go_on(now, out);
    }

    /// Asks for what is due.
    pub(super) fn woke(&mut self, now: Time, epoch: u32, out: &mut Vec<Want>) {
        if epoch == self.epoch {
            self.go_on(now, out);
        }
    }

    /// One was answered; if the guest is active it goes on.
    pub(super) fn answered(&mut self, now: Time, active: bool, out: &mut Vec<Want>) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if active && self.pace == Pace::Outstanding {
            self.go_on(now, out);
        }
    }

    /// Nothing of what is under way will be answered.
    pub(super) fn lose(&mut self) {
        self.outstanding = 0;
    }

    /// Everything was asked for and answered.
    pub(super) fn is_over(&self) -> bool {
        self.next == self.trace.ios.len() && self.outstanding == 0
    }

    fn go_on(&mut self, now: Time, out: &mut Vec<Want>) {
        while let Some(io) = self.trace.ios.get(self.next) {
            match self.pace {
                Pace::Recorded { .. } => {
                    let at = self.zero + self.scaled(io.at);
                    if at > now {
                        return out.push(Want::Wake {
                            actor: 0,
                            epoch: self.epoch,
                            at,
                        });
                    }
                }
                Pace::Outstanding => {
                    if self.outstanding > io.beside {
                        return;
                    }
                }
            }
            out.push(Want::Io {
                actor: Some(small(self.next)),
                op: io.op,
                offset: io.offset,
                len: io.len,
            });
            self.outstanding += 1;
            self.next += 1;
        }
    }

    /// How long after its beginning that moment of the trace is now.
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

    /// Reads that arrived then, with so many beside them.
    fn tape(ios: &[(u64, u32)], pace: Pace) -> Tape {
        let ios = ios.iter().map(|&(ms, beside)| TracedIo {
            at: Span::from_millis(ms),
            op: Op::Read,
            flags: Flags::NONE,
            offset: 0,
            len: 512,
            latency: Span::from_millis(1),
            failed: false,
            beside,
        });
        let trace = Trace {
            disk: TracedDisk::default(),
            ios: ios.collect(),
            lost: 0,
        };
        Tape::new(Arc::new(trace), pace)
    }

    fn ms(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    /// The I/Os that were asked for, and when to be woken.
    fn wants(out: &mut Vec<Want>) -> (Vec<u32>, Option<(u32, Time)>) {
        let (mut ios, mut wake) = (Vec::new(), None);
        for want in out.drain(..) {
            match want {
                Want::Io { actor, .. } => ios.extend(actor),
                Want::Wake { epoch, at, .. } => wake = Some((epoch, at)),
            }
        }
        (ios, wake)
    }

    #[test]
    fn at_its_own_pace_each_is_asked_for_at_its_time_and_twice_as_fast_at_half_of_it() {
        for (speed, second) in [(100, 10), (200, 5)] {
            let mut tape = tape(&[(0, 0), (0, 1), (10, 2)], Pace::Recorded { speed });
            let mut out = Vec::new();
            tape.start(ms(100), &mut out);
            let (ios, wake) = wants(&mut out);
            let (epoch, at) = wake.expect("there is one more");
            assert_eq!((ios, at), (vec![0, 1], ms(100 + second)));
            tape.answered(ms(101), true, &mut out);
            assert_eq!(wants(&mut out), (vec![], None));
            tape.woke(at, epoch, &mut out);
            assert_eq!(wants(&mut out), (vec![2], None));
            tape.answered(at, true, &mut out);
            assert!(!tape.is_over(), "one is still outstanding");
            tape.answered(at, true, &mut out);
            assert!(tape.is_over());
        }
    }

    #[test]
    fn a_rest_is_left_out_and_an_old_waking_does_nothing() {
        let mut tape = tape(&[(0, 0), (10, 0)], Pace::Recorded { speed: 100 });
        let mut out = Vec::new();
        tape.start(ms(0), &mut out);
        let (_, wake) = wants(&mut out);
        let (old, _) = wake.expect("there is one more");
        tape.start(ms(500), &mut out);
        assert_eq!(wants(&mut out), (vec![1], None));
        tape.woke(ms(510), old, &mut out);
        assert_eq!(wants(&mut out), (vec![], None));
    }

    #[test]
    fn at_the_pace_of_what_was_outstanding_as_many_are_kept_so() {
        let mut tape = tape(&[(0, 0), (1, 1), (2, 1), (900, 0)], Pace::Outstanding);
        let mut out = Vec::new();
        tape.start(ms(0), &mut out);
        assert_eq!(wants(&mut out).0, [0, 1]);
        tape.answered(ms(5), true, &mut out);
        assert_eq!(wants(&mut out).0, [2]);
        tape.answered(ms(6), true, &mut out);
        assert_eq!(wants(&mut out).0, [0; 0]);
        tape.answered(ms(7), true, &mut out);
        assert_eq!(wants(&mut out).0, [3], "nobody waits for its time");
        tape.start(ms(8), &mut out);
        assert_eq!(wants(&mut out).0, [0; 0], "it goes on, and is at its end");
        tape.answered(ms(9), true, &mut out);
        assert!(tape.is_over());
        tape.start(ms(10), &mut out);
        assert_eq!(wants(&mut out).0, [0, 1], "it begins again");
    }
}
