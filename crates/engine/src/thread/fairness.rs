//! The requests of a turn: it fetches them from the active queues and connections, so that none keeps the others waiting.
//!
//! With one active queue it takes what comes, in pieces. Else [`RoundRobin`] says whom to visit and what each may take.
//! A connection decodes as long as it is alone. Otherwise what it has received waits in the [`Backlog`] for its visit.
//!
//! # Always true
//! - a connection that has complete requests and was stopped by its allowance is in the backlog: the thread does not sleep

use super::IoThread;
use crate::sys::os;
use crate::sys::ring::{Completion, Tag};
use crate::tag::{self, ImageId};
use tidegate_core::round_robin::{Allowance, Flow, Flows, Left, RoundRobin};

/// Requests taken from one queue in one turn, so that a deep queue does not delay shallow ones.
const REQUESTS_PER_QUEUE: u32 = tidegate_core::round_robin::MOST_REQUESTS;
/// How many of them are performed and answered before more are taken. A guest that sees completions early submits
/// again, instead of sleeping until all are done.
const REQUESTS_AT_ONCE: u32 = 16;
/// The same, after a wait. A sleeping guest wakes at the first completions, and a disk starts to work, while the others
/// are performed.
const FIRST_REQUESTS: u32 = 4;

/// Connections with received requests that wait for their visit.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    connections: Vec<u32>,
    /// By index of the connection.
    listed: Vec<bool>,
}

impl Backlog {
    /// Adds a connection.
    pub(super) fn add(&mut self, index: u32) {
        let at = index as usize;
        if self.listed.len() <= at {
            self.listed.resize(at + 1, false);
        }
        if !std::mem::replace(&mut self.listed[at], true) {
            self.connections.push(index);
        }
    }

    /// Removes a connection, which leaves the thread.
    pub(super) fn remove(&mut self, index: u32) {
        self.retain(|waiting| waiting != index);
    }

    /// Removes those that `waits` is false for.
    fn retain(&mut self, waits: impl Fn(u32) -> bool) {
        let listed = &mut self.listed;
        self.connections.retain(|&index| {
            let keep = waits(index);
            listed[index as usize] = keep;
            keep
        });
    }
}

impl IoThread {
    /// Takes and performs the requests of one turn, a piece at a time. Returns whether there were any.
    pub(super) fn requests(&mut self) -> bool {
        // What connections have received takes its turn with the queues.
        self.advance_connections();
        let competed = self.competing;
        self.competing = self.active.len() > 1 || !self.backlog.connections.is_empty();
        if self.competing && !competed {
            self.round_robin.begin();
        }
        let mut any = self.is_learning() && self.learn_requests();
        let mut left = REQUESTS_PER_QUEUE;
        let mut piece = if self.wait.is_some() {
            FIRST_REQUESTS
        } else {
            REQUESTS_AT_ONCE
        };
        loop {
            let more = if self.competing {
                self.fetch_in_turns(piece, &mut any)
            } else {
                self.fetch(piece, &mut any)
            };
            if any {
                self.call_after_more();
            }
            self.run_effects();
            left -= piece;
            if !more || left == 0 {
                return any;
            }
            // The rest of the turn may be long with many queues.
            if !self.pending_interrupts.is_empty() {
                self.call_due(os::now());
            }
            piece = REQUESTS_AT_ONCE.min(left);
        }
    }

    /// Takes up to `most` requests from the active queue. Returns whether it may have more.
    fn fetch(&mut self, most: u32, worked: &mut bool) -> bool {
        let Some(&index) = self.active.first() else {
            return false;
        };
        let Some(queue) = &mut self.queues[index as usize] else {
            return false;
        };
        let mut allowance = Allowance::of_requests(most);
        queue.fetch(index, &mut self.cx, &mut allowance);
        *worked |= allowance.taken() > 0;
        allowance.taken() == most
    }

    /// Takes requests from queues and connections by turns, up to `most` of each. Returns whether they may have more in
    /// this turn.
    #[inline(never)]
    fn fetch_in_turns(&mut self, most: u32, worked: &mut bool) -> bool {
        let first = self.rotation.next_first(self.count());
        let passed =
            self.with_round_robin(|round_robin, flows| round_robin.pass(flows, first, most));
        let connections = &self.connections;
        self.backlog.retain(|index| {
            let connection = connections.get(index as usize).and_then(Option::as_ref);
            connection.is_some_and(|connection| connection.is_backlogged())
        });
        *worked |= passed.requests > 0;
        passed.more
    }

    /// What a connection may take outside of its turn: nothing, if others compete.
    pub(super) fn allowance_at_once(&self) -> Allowance {
        let alone = self.active.is_empty() && self.connection_count == 1;
        Allowance::of_requests(if alone { u32::MAX } else { 0 })
    }

    /// Whether the round robin learns in this turn what requests cost.
    #[inline(always)]
    pub(super) fn is_learning(&self) -> bool {
        self.competing && self.round_robin.is_learning()
    }

    /// Carries out those completions that are of one disk, and measures how long that takes.
    #[cold]
    #[inline(never)]
    pub(super) fn learn_completions(&mut self, completions: &mut Vec<Completion>) {
        let disk = |completion: &Completion| {
            let Tag { kind, owner, .. } = completion.tag;
            (kind == tag::IMAGE).then(|| ImageId::from_owner(owner).disk())
        };
        let chosen = completions.get(self.rotation.next_first(completions.len()));
        let Some(chosen) = chosen.and_then(disk) else {
            return;
        };
        let began = os::now();
        completions.retain(|completion| {
            let is_other = disk(completion) != Some(chosen);
            if !is_other {
                self.completed(*completion);
            }
            is_other
        });
        self.run_effects();
        let took = os::now().since(began);
        self.with_round_robin(|round_robin, flows| round_robin.learn_completions(flows, took));
    }

    /// Takes and carries out some requests of one queue or connection, and measures how long that takes. Returns whether
    /// there were any.
    #[cold]
    #[inline(never)]
    fn learn_requests(&mut self) -> bool {
        // What the ring has brought is not to be measured.
        self.run_effects();
        let began = os::now();
        let passed = self.with_round_robin(RoundRobin::sample);
        if passed.requests == 0 {
            return false;
        }
        self.call_after_more();
        self.run_effects();
        let took = os::now().since(began);
        self.with_round_robin(|round_robin, flows| round_robin.learn_requests(flows, took));
        true
    }

    /// Has the round robin do something with the queues and connections.
    fn with_round_robin<T>(&mut self, act: impl FnOnce(&mut RoundRobin, &mut IoThread) -> T) -> T {
        let mut round_robin = std::mem::take(&mut self.round_robin);
        let result = act(&mut round_robin, self);
        self.round_robin = round_robin;
        result
    }
}

/// The active queues, then the connections that wait.
impl Flows for IoThread {
    fn count(&self) -> usize {
        self.active.len() + self.backlog.connections.len()
    }

    fn flow(&mut self, at: usize) -> Option<&mut Flow> {
        match self.active.get(at) {
            Some(&index) => {
                let queue = self.queues[index as usize].as_mut()?;
                Some(&mut queue.flow)
            }
            None => {
                let index = *self.backlog.connections.get(at - self.active.len())?;
                let connection = self.connections.get_mut(index as usize)?.as_mut()?;
                Some(&mut connection.flow)
            }
        }
    }

    fn visit(&mut self, at: usize, allowance: &mut Allowance) -> Left {
        if let Some(&index) = self.active.get(at) {
            let queue = self.queues[index as usize].as_mut();
            return queue.map_or(Left::Nothing, |queue| {
                queue.fetch(index, &mut self.cx, allowance)
            });
        }
        let Some(&index) = self.backlog.connections.get(at - self.active.len()) else {
            return Left::Nothing;
        };
        self.advance_connection_by(index, allowance);
        let connection = self.connections.get(index as usize);
        let connection = connection.and_then(Option::as_ref);
        match connection.is_some_and(|connection| connection.is_backlogged()) {
            true => Left::More,
            false => Left::Nothing,
        }
    }
}

/// A random rotation of the queues, so that none is always polled first. It is random because guests also submit at
/// regular intervals: a regular rotation could meet the same ones first each time.
pub(super) struct Rotation(pub(super) u32);

impl Rotation {
    /// A random index below `count`, from which on the queues are polled; zero if there are none.
    #[inline]
    fn next_first(&mut self, count: usize) -> usize {
        // Knuth's and Lewis' quick generator (Numerical Recipes, 7.1), whose upper bits are good.
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((self.0 >> 16) as usize * count) >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::Rotation;

    #[test]
    fn each_queue_is_equally_often_polled_first() {
        const TURNS: u32 = 70_000;
        for count in 1..=7 {
            let mut rotation = Rotation(1);
            let mut firsts = vec![0_u32; count];
            // Also in every second turn, as with guests that submit at regular intervals.
            for turn in 0..2 * TURNS {
                firsts[rotation.next_first(count)] += u32::from(turn % 2 == 0);
            }
            let fair = TURNS / u32::try_from(count).expect("a few");
            for times in firsts {
                assert!(
                    times.abs_diff(fair) < fair / 20,
                    "{times} of {TURNS}, {count} queues"
                );
            }
        }
        assert_eq!(Rotation(1).next_first(0), 0);
    }
}
