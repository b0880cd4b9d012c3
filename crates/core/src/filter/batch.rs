//! A batch: the I/Os of a disk that pass its filters together, since they came or completed at one moment.
//!
//! The stack hands a layer the whole batch at once, so that what a layer costs is paid once for all of them. Most
//! filters look at one I/O after the other ([`Filter::submit`](super::Filter::submit)) and never see a batch; one that
//! commands to be cheaper takes it as it is ([`Filter::submit_all`](super::Filter::submit_all)).
//!
//! # Always true
//! - the I/Os keep their order
//! - an I/O that a filter does not pass leaves the batch: it is diverted until the batch has passed

use super::{Io, Verdict, Way};
use crate::request::IoId;
use crate::slab::Slab;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// See the module.
pub struct Batch<'a> {
    pub(crate) ids: &'a mut Vec<IoId>,
    pub(crate) ios: &'a mut Slab<Io>,
    pub(crate) diverted: &'a mut VecDeque<Diverted>,
    pub(crate) level: u8,
    pub(crate) way: Way,
}

/// An I/O that a filter took out of its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Diverted {
    pub(crate) io: IoId,
    pub(crate) level: u8,
    pub(crate) way: Way,
    /// Why it is here: anything but `Pass`.
    pub(crate) verdict: Verdict,
}

impl Batch<'_> {
    /// How many I/Os are in it; never none.
    #[expect(clippy::len_without_is_empty, reason = "nobody is handed an empty one")]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Up to `most` of them from place `from` on, in order, to be looked at: for a filter that passes them all.
    #[inline]
    pub fn ios(&self, from: usize, most: usize) -> impl ExactSizeIterator<Item = &Io> + Clone {
        let rest = self.ids.get(from..).unwrap_or_default();
        let ids = rest.get(..most).unwrap_or(rest);
        let inside = self.ios.looked_at();
        ids.iter().map(move |id| inside(*id))
    }

    /// One of them, by its place.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn io(&self, place: usize) -> &Io {
        self.ios.inside(self.ids[place])
    }

    /// Asks `hook` about each of them, in order, and does what it answers.
    #[inline]
    pub fn each(&mut self, mut hook: impl FnMut(&Io) -> Verdict) {
        let mut at = 0;
        while let Some(&id) = self.ids.get(at) {
            match hook(self.ios.inside(id)) {
                Verdict::Pass => at += 1,
                other => at = self.divert(at, other),
            }
        }
    }

    /// Applies a verdict other than `Pass` to the I/O at a position; returns the position to go on at.
    #[cold]
    fn divert(&mut self, at: usize, verdict: Verdict) -> usize {
        if let (Verdict::Done(outcome), Way::Up) = (verdict, self.way) {
            // It goes up with the batch, with another outcome.
            self.ios.inside_mut(self.ids[at]).outcome = outcome;
            return at + 1;
        }
        self.diverted.push_back(Diverted {
            io: self.ids.remove(at),
            level: self.level,
            way: self.way,
            verdict,
        });
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Effect;
    use crate::filter::FilterKey;
    use crate::filter::{Cx, Filter, FilterSpec};
    use crate::request::{Data, DiskId, Fault, Flags, Op, Request, Token};
    use crate::shard::{Event, Shard};
    use crate::stack::Stack;
    use crate::units::Time;
    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use alloc::vec;
    use core::sync::atomic::{AtomicUsize, Ordering};

    const DISK: DiskId = DiskId(0);

    /// Ends every third write, keeps every third, and says how large the batches are that it sees.
    #[derive(Default)]
    struct Third {
        seen: Arc<[AtomicUsize; 2]>,
        kept: Vec<IoId>,
    }

    impl Filter for Third {
        fn name(&self) -> &'static str {
            "third"
        }
        fn submit_all(&mut self, cx: &mut Cx<'_>, batch: &mut Batch<'_>) {
            self.seen[0].store(batch.len(), Ordering::Relaxed);
            batch.each(|io| match io.offset / 512 % 3 {
                0 => Verdict::Pass,
                1 => Verdict::Done(Err(Fault::NoSpace)),
                _ => {
                    self.kept.push(io.id);
                    Verdict::Defer
                }
            });
            for io in self.kept.drain(..) {
                cx.resume(io, Verdict::Pass);
            }
        }
        fn complete_all(&mut self, _cx: &mut Cx<'_>, batch: &mut Batch<'_>) {
            self.seen[1].store(batch.len(), Ordering::Relaxed);
            batch.each(|io| match io.outcome {
                Ok(()) => Verdict::Pass,
                Err(_) => Verdict::Done(Ok(())),
            });
        }
    }

    #[test]
    fn those_that_pass_keep_their_order_and_the_others_go_their_own_ways() {
        let third = Third::default();
        let seen = Arc::clone(&third.seen);
        let filters: Vec<(FilterKey, Box<dyn Filter>)> = vec![
            (FilterKey(0), FilterSpec::Stats.build()),
            (FilterKey(1), Box::new(third)),
        ];
        let (mut shard, mut out) = (Shard::new(16), Vec::new());
        let attach = Event::Attach {
            disk: DISK,
            size: 1 << 20,
            read_only: false,
            stack: Stack::new(filters),
            control: None,
        };
        shard.handle(Time::ZERO, attach, &mut out);
        for token in 0..9 {
            let request = Request {
                op: Op::Write,
                flags: Flags::NONE,
                offset: token * 512,
                len: 512,
                data: Data::NONE,
                arrived: Time::ZERO,
            };
            let token = Token(token);
            let asked = Event::Submitted {
                disk: DISK,
                token,
                request,
            };
            shard.gather(Time::ZERO, asked, &mut out);
        }
        shard.flow(Time::ZERO, &mut out);

        let (mut ios, mut offsets, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for effect in out.drain(..) {
            match effect {
                Effect::Start { io, offset, .. } => {
                    ios.push(io);
                    offsets.push(offset / 512);
                }
                Effect::Answer { token, outcome, .. } => refused.push((token.0, outcome)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(offsets, [0, 3, 6, 2, 5, 8], "what was kept goes after them");
        assert_eq!(refused, [1, 4, 7].map(|token| (token, Err(Fault::NoSpace))));
        assert_eq!(seen[0].load(Ordering::Relaxed), 9);

        for io in ios {
            let outcome = Err(Fault::Io);
            let disk = DISK;
            shard.gather(Time::ZERO, Event::Finished { disk, io, outcome }, &mut out);
        }
        shard.flow(Time::ZERO, &mut out);
        let ends: Vec<_> = out
            .iter()
            .map(|effect| match effect {
                Effect::Answer { token, outcome, .. } => (token.0, *outcome),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ends, [0, 3, 6, 2, 5, 8].map(|token| (token, Ok(()))));
        assert_eq!(seen[1].load(Ordering::Relaxed), 6);
        assert_eq!(shard.in_flight(), 0);
    }
}
