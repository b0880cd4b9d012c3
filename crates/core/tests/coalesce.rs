//! Tests of completion coalescing: what is never held, how long a call is held, and what it saves in virtual time.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tidegate_core::coalesce::{Batch, Call, Coalesce, Coalescer, Moment, Published};
use tidegate_core::units::{Span, Time};

fn setting() -> impl Strategy<Value = Coalesce> {
    let batch = (1..=64_u32, 0..=200_u64).prop_map(|(frames, micros)| {
        Coalesce::Static(Batch::new(frames, Span::from_micros(micros)).expect("in range"))
    });
    prop_oneof![Just(Coalesce::Off), Just(Coalesce::Adaptive), batch]
}

/// What happens to a queue.
#[derive(Clone, Debug)]
enum Step {
    /// Completions: how many, how many requests remain in flight, whether more wait, and whether one is urgent.
    Publish(u32, u32, bool, bool),
    /// The thread's next turn, after so many nanoseconds.
    Turn(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let publish = (
        1..40_u32,
        prop_oneof![Just(0), 0..40_u32],
        any::<bool>(),
        prop::bool::weighted(0.05),
    )
        .prop_map(|(count, left, more, urgent)| Step::Publish(count, left, more, urgent));
    let step = prop_oneof![publish, (1..20_000_u64).prop_map(Step::Turn)];
    prop::collection::vec(step, 1..3_000)
}

proptest! {
    /// With the thread's rule (a call that is due is sent in the next turn), for every setting and learnt batch.
    #[test]
    fn the_last_completion_is_never_held_and_no_call_longer_than_its_time(setting in setting(), steps in steps()) {
        let mut calls = Coalescer::new(setting);
        let mut now = Time::from_nanos(1_000);
        // Completions that the guest was not called for: how many, since when, and the longest time then in use.
        let mut held: Option<(u32, Time, Span)> = None;
        let longest = match setting {
            Coalesce::Off => Span::ZERO,
            Coalesce::Static(batch) => batch.time(),
            Coalesce::Adaptive => Span::from_micros(64),
        };
        for step in steps {
            match step {
                Step::Turn(ns) => {
                    now = now + Span::from_nanos(ns);
                    if calls.is_holding() && calls.due() <= now {
                        calls.called(true, now);
                        let (_, since, _) = held.take().expect("something is held");
                        prop_assert!(now.since(since) <= longest + Span::from_nanos(ns));
                    }
                }
                Step::Publish(completions, in_flight, unfetched, urgent) => {
                    let batch = calls.batch();
                    let published = Published { completions, in_flight, urgent };
                    let call = calls.published(now, published, || unfetched);
                    let (count, since, _) = held.unwrap_or((0, now, longest));
                    let count = count + completions;
                    match call {
                        Call::Hold => {
                            prop_assert!(in_flight > 0 || unfetched, "nothing else would come");
                            prop_assert!(!urgent && count < batch.frames() && setting != Coalesce::Off);
                            prop_assert!(calls.is_holding() && calls.due() <= since + longest);
                            held = Some((count, since, longest));
                        }
                        Call::Send(moment) => {
                            prop_assert!(!calls.is_holding());
                            prop_assert!(setting == Coalesce::Adaptive || moment == Moment::AtOnce);
                            held = None;
                            calls.called(true, now);
                        }
                    }
                }
            }
            prop_assert_eq!(calls.is_holding(), held.is_some());
        }
    }
}

/// A guest with an interrupt, an I/O thread that polls, and a device, in virtual time.
struct World {
    calls: Coalescer,
    now: u64,
    /// Requests in flight, by the time at which the device has completed them.
    device: BTreeMap<(u64, u64), ()>,
    /// Completions in the used ring that the guest has not taken.
    published: u32,
    unfetched: u32,
    /// When the guest runs next; none: it sleeps, and wants a call.
    wakes: Option<u64>,
    /// A call that waits for its moment.
    timed: Option<u64>,
    random: u64,
    issued: u64,
    completed: u64,
    called: u64,
}

/// Wake-up of a vCPU.
const WAKE: u64 = 8_000;
/// The guest's work for each completion and request.
const GUEST: u64 = 500;
/// The least time of the device. Up to as much more is random.
const DEVICE: u64 = 60_000;
const TURN: u64 = 1_000;

impl World {
    fn run(setting: Coalesce, depth: u32, long: u64) -> World {
        let mut world = World {
            calls: Coalescer::new(setting),
            now: 0,
            device: BTreeMap::new(),
            published: 0,
            unfetched: depth,
            wakes: None,
            timed: None,
            random: 1,
            issued: 0,
            completed: 0,
            called: 0,
        };
        while world.now < long {
            world.turn();
            world.now += TURN;
        }
        world
    }

    fn turn(&mut self) {
        let now = Time::from_nanos(self.now);
        if let Some(at) = self.wakes
            && at <= self.now
        {
            self.guest();
        }
        if self.timed.is_some_and(|at| at <= self.now) {
            self.timed = None;
            self.call();
        }
        if self.calls.is_holding() && self.calls.due() <= now {
            self.call();
        }
        for _ in 0..std::mem::take(&mut self.unfetched) {
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let latency = DEVICE + (self.random >> 33) % DEVICE;
            self.device.insert((self.now + latency, self.issued), ());
            self.issued += 1;
            self.calls.note_requests(1, now);
        }
        let waiting = self.device.split_off(&(self.now + 1, 0));
        let done = u32::try_from(std::mem::replace(&mut self.device, waiting).len()).expect("few");
        if done == 0 {
            return;
        }
        self.published += done;
        self.completed += u64::from(done);
        let in_flight = u32::try_from(self.device.len()).expect("few");
        let published = Published {
            completions: done,
            in_flight,
            urgent: false,
        };
        if let Call::Send(moment) = self.calls.published(now, published, || false) {
            match moment.wait().as_nanos() {
                0 => self.call(),
                wait => self.timed = Some(self.now + wait),
            }
        }
    }

    /// Calls the guest if it sleeps.
    fn call(&mut self) {
        let wanted = self.wakes.is_none() && self.published > 0;
        self.calls.called(wanted, Time::from_nanos(self.now));
        if wanted {
            self.called += 1;
            self.wakes = Some(self.now + WAKE);
        }
    }

    /// Takes what was published and asks for as much; sleeps if there is nothing.
    fn guest(&mut self) {
        let took = std::mem::take(&mut self.published);
        self.unfetched += took;
        self.wakes = (took > 0).then_some(self.now + GUEST * u64::from(took));
    }

    fn calls_per_completion(&self) -> f64 {
        self.called as f64 / self.completed as f64
    }
}

const LONG: u64 = 3_000_000_000;

#[test]
fn adaptive_saves_a_fifth_of_the_calls_at_depth_32_and_loses_no_completions() {
    let off = World::run(Coalesce::Off, 32, LONG);
    let adaptive = World::run(Coalesce::Adaptive, 32, LONG);
    let [saved, all] = [&adaptive, &off].map(World::calls_per_completion);
    assert!(saved <= 0.8 * all, "{saved} and {all}");
    let part = adaptive.completed as f64 / off.completed as f64;
    assert!(part >= 0.98, "{part} of the completions");
}

/// The moment of its calls is learnt as without batches, so that it does what a guest gets without them.
#[test]
fn depth_1_is_served_as_without_batches() {
    let batch = Batch::new(16, Span::from_micros(64)).expect("in range");
    let [off, fixed] =
        [Coalesce::Off, Coalesce::Static(batch)].map(|how| World::run(how, 1, LONG / 10));
    assert_eq!((fixed.completed, fixed.called), (off.completed, off.called));
    assert_eq!(off.called, off.completed);
    let adaptive = World::run(Coalesce::Adaptive, 1, LONG / 10);
    assert_eq!(adaptive.called, adaptive.completed, "none is saved");
    let part = adaptive.completed as f64 / off.completed as f64;
    assert!(part >= 0.98, "{part} of the completions");
}
