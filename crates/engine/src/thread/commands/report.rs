//! The reports of an I/O thread: statistics of thread and disks, a bounded part in each turn.
//!
//! A copy of one disk's histograms is 60 kB, and takes longer than an I/O on a fast datastore. So a turn spends at most
//! the time of one such copy on queries, however many queries and disks there are. The rest follows in the next turns,
//! between which guests are served. Queries wait in a queue, and an unfinished one goes to the end.
//!
//! # Always true
//! - a disk's report is a consistent snapshot with its time; different disks may have different times
//! - a turn copies the histograms of one disk at most
//! - a query costs nothing in turns that do not work on it: the inbox notes the pending work
//!
//! # Units
//! Work is counted in disk slots visited: some 0.2 us, mostly for cache misses.

use super::Command;
use crate::sys::os;
use crate::thread::IoThread;
use std::sync::mpsc::Sender;
use tidegate_core::curve::Curve;
use tidegate_core::filter::FilterReport;
use tidegate_core::filter::stats::Pulse;
use tidegate_core::layout::cache::policy::Exported;
use tidegate_core::layout::pool::{Changes, Generation, Searched};
use tidegate_core::layout::{LayoutReport, Target};
use tidegate_core::request::DiskId;
use tidegate_core::shard::DiskReport;
use tidegate_core::units::{Span, Time};

/// The most work of a turn, which is not interrupted within a disk: about 50 us.
const TURN_BUDGET: usize = 256;
/// Cost of a part of a search for changes: 16,384 records are read, in some 50 us.
const CHANGES: usize = TURN_BUDGET;
/// Cost of the histograms of a `stats` filter: 61,440 bytes in 16 pieces are allocated and copied, in some 50 us.
const HISTOGRAMS: usize = TURN_BUDGET;
/// Cost of a miss-ratio curve: some 400 buckets are summed, and 2,048 places visited.
const CURVE: usize = 32;
/// Bytes of a policy's state that a turn copies, and their cost: 20 us.
const STATE_PART: usize = 32 << 10;
const STATE: usize = 100;
/// Cost of its sums: 25 scattered cache lines.
const SUMS: usize = 8;
/// Cost of the slot of a disk, a queue or a connection, used or not.
const PLACE: usize = 1;

/// Statistics of an I/O thread.
#[derive(Clone, Debug)]
pub struct ThreadReport {
    /// Its name.
    pub name: String,
    /// How long it has lived.
    pub age: Span,
    /// Time spent working.
    pub busy: Span,
    /// Time spent polling without finding work.
    pub spinning: Span,
    /// Time spent asleep.
    pub sleeping: Span,
    /// Turns, including empty ones.
    pub turns: u64,
    /// Turns that found no work.
    pub empty_turns: u64,
    /// Times it was woken.
    pub wakes: u64,
    /// CPU time that the system counts for it.
    pub cpu: Span,
    /// I/Os inside its shard.
    pub in_flight: usize,
    /// Completions that matched no I/O: must be zero.
    pub strays: u64,
    /// Its disks, each at a slightly later time. A disk that was attached or detached meanwhile may be missing.
    pub disks: Vec<DiskReading>,
    /// Guests' queues on it.
    pub queues: usize,
    /// NBD clients on it.
    pub connections: usize,
}

/// Statistics of one disk.
#[derive(Clone, Debug)]
pub struct DiskReading {
    /// The disk.
    pub disk: DiskId,
    /// When it was read.
    pub now: Time,
    /// The shard's statistics of it.
    pub report: DiskReport,
}

/// The miss-ratio curves of one disk.
#[derive(Clone, Debug)]
pub struct DiskCurves {
    /// When they were read.
    pub now: Time,
    /// Of reads and writes.
    pub all: Curve,
    /// Of reads.
    pub reads: Curve,
    /// Of writes.
    pub writes: Curve,
}

/// The sums of an I/O thread and its disks: small enough to be queried every second.
#[derive(Clone, Debug)]
pub struct ThreadPulse {
    /// How long the thread has lived.
    pub age: Span,
    /// Time spent working.
    pub busy: Span,
    /// Time spent polling without finding work.
    pub spinning: Span,
    /// Its disks, each at a slightly later time. A disk that was attached or detached meanwhile may be missing.
    pub disks: Vec<DiskPulse>,
}

/// The sums of one disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskPulse {
    /// The disk.
    pub disk: DiskId,
    /// When it was read.
    pub now: Time,
    /// Those of its topmost filter that measures, if there is one.
    pub sums: Option<Pulse>,
}

/// A search for what may differ between two generations of a pool's disk.
pub(crate) struct ChangeSearch {
    pub(crate) disk: DiskId,
    pub(crate) from: Generation,
    pub(crate) to: Generation,
    pub(crate) found: Changes,
    /// Told everything, or nothing if there is no such generation.
    pub(crate) reply: Sender<Option<Changes>>,
}

/// A query, and its progress.
pub(crate) enum Query {
    /// Everything about the thread and its disks.
    Report(Box<Survey<ThreadReport>>),
    /// Everything about one disk.
    Disk(DiskId, Sender<Option<DiskReading>>),
    /// The miss-ratio curves of a disk.
    Curves(DiskId, Sender<Option<DiskCurves>>),
    /// What the policy of a disk's flash cache has learned, and what of it is copied.
    PolicyState(DiskId, Vec<u8>, Sender<Option<Vec<u8>>>),
    /// The state of a disk's layout, if it has one; nothing for an unknown disk.
    Layout(DiskId, Sender<Option<Option<LayoutReport>>>),
    /// What may differ between two generations of a pool's disk, and what of it is found.
    Changes(Box<ChangeSearch>),
    /// Which targets of a disk have I/O in flight.
    Busy(DiskId, Sender<Vec<Target>>),
    /// The sums only.
    Pulse(Box<Survey<ThreadPulse>>),
}

impl Query {
    /// The disk that it is about, if it is about one.
    pub(super) fn disk(&self) -> Option<DiskId> {
        match self {
            Query::Disk(disk, _)
            | Query::Curves(disk, _)
            | Query::PolicyState(disk, ..)
            | Query::Layout(disk, _)
            | Query::Busy(disk, _) => Some(*disk),
            Query::Changes(search) => Some(search.disk),
            Query::Report(_) | Query::Pulse(_) => None,
        }
    }

    pub(crate) fn report(reply: Sender<ThreadReport>) -> Query {
        Query::Report(Box::new(Survey::new(reply)))
    }

    pub(crate) fn pulse(reply: Sender<ThreadPulse>) -> Query {
        Query::Pulse(Box::new(Survey::new(reply)))
    }
}

/// A query over all disks, one after the other.
pub(crate) struct Survey<T> {
    reply: Sender<T>,
    /// The report so far. None before the first turn.
    partial: Option<T>,
    /// The number of the next disk.
    next: u32,
}

impl<T> Survey<T> {
    fn new(reply: Sender<T>) -> Survey<T> {
        Survey {
            reply,
            partial: None,
            next: 0,
        }
    }

    /// Continues until the end, or until nothing of `left` remains; returns whether it is done. `read` reads one disk
    /// and returns its cost.
    fn advance(
        &mut self,
        disks: usize,
        left: &mut usize,
        begin: impl FnOnce(&mut usize) -> T,
        read: impl Fn(&mut T, DiskId) -> usize,
    ) -> bool {
        let partial = self.partial.get_or_insert_with(|| begin(left));
        while (self.next as usize) < disks {
            if *left == 0 {
                return false;
            }
            let cost = read(partial, DiskId(self.next));
            *left = left.saturating_sub(cost);
            self.next += 1;
        }
        if let Some(partial) = self.partial.take() {
            // The caller may be gone.
            let _ = self.reply.send(partial);
        }
        true
    }
}

impl IoThread {
    /// Answers queries as far as one turn allows; true if there is more to answer.
    pub(in crate::thread) fn answer_queries(&mut self) -> bool {
        let mut left = TURN_BUDGET;
        while left > 0
            && let Some(query) = self.queries.pop_front()
        {
            let Some(mut query) = self.still_here(query) else {
                continue;
            };
            if !self.continue_query(&mut query, &mut left) {
                self.queries.push_back(query);
            }
        }
        !self.queries.is_empty()
    }

    /// Passes on a query about a disk that has moved since.
    fn still_here(&self, query: Query) -> Option<Query> {
        match query.disk() {
            Some(disk) if self.attached_disk(disk).is_none() => {
                match self.pass_on(disk, Command::Query(query)) {
                    Some(Command::Query(query)) => Some(query),
                    _ => None,
                }
            }
            _ => Some(query),
        }
    }

    /// Continues with a query; returns whether it is answered.
    fn continue_query(&self, query: &mut Query, left: &mut usize) -> bool {
        let now = os::now();
        let disks = self.disks.len();
        match query {
            Query::Report(survey) => survey.advance(
                disks,
                left,
                |left| self.report(left),
                |partial, disk| {
                    let (reading, cost) = self.reading(now, disk);
                    partial.disks.extend(reading);
                    cost
                },
            ),
            Query::Disk(disk, reply) => {
                let (reading, cost) = self.reading(now, *disk);
                *left = left.saturating_sub(cost);
                let _ = reply.send(reading);
                true
            }
            Query::Curves(disk, reply) => {
                let curves = self.cx.shard.curves(*disk);
                let curves = curves.map(|[all, reads, writes]| DiskCurves {
                    now,
                    all,
                    reads,
                    writes,
                });
                *left = left.saturating_sub(3 * CURVE);
                let _ = reply.send(curves);
                true
            }
            Query::PolicyState(disk, state, reply) => {
                let part = self.cx.shard.export_policy(*disk, STATE_PART, state);
                *left = left.saturating_sub(STATE);
                if part == Some(Exported::Part) {
                    return false;
                }
                // A cache that was given up meanwhile has none.
                let _ = reply.send(part.map(|_| std::mem::take(state)));
                true
            }
            Query::Layout(disk, reply) => {
                let here = self.attached_disk(*disk);
                let _ = reply.send(here.map(|_| self.cx.shard.layout_report(*disk)));
                true
            }
            Query::Changes(search) => {
                let ChangeSearch { disk, from, to, .. } = **search;
                let shard = &self.cx.shard;
                let searched = shard.find_changes(disk, from, to, &mut search.found);
                *left = left.saturating_sub(CHANGES);
                if searched == Some(Searched::Part) {
                    return false;
                }
                let found = searched.map(|_| std::mem::take(&mut search.found));
                let _ = search.reply.send(found);
                true
            }
            Query::Busy(disk, reply) => {
                let _ = reply.send(self.busy_targets(*disk));
                true
            }
            Query::Pulse(survey) => survey.advance(
                disks,
                left,
                |_| self.pulse(),
                |partial, disk| {
                    let sums = self.cx.shard.pulse(disk);
                    let measured = sums.is_some_and(|sums| sums.is_some());
                    partial
                        .disks
                        .extend(sums.map(|sums| DiskPulse { disk, now, sums }));
                    if measured { SUMS } else { PLACE }
                },
            ),
        }
    }

    /// The report of a disk, if it exists, and its cost.
    fn reading(&self, now: Time, disk: DiskId) -> (Option<DiskReading>, usize) {
        let Some(report) = self.cx.shard.report(disk) else {
            return (None, PLACE);
        };
        let filters = report.filters.iter();
        let costs = filters.map(|(_, _, report)| match report {
            FilterReport::Stats(_) => HISTOGRAMS,
            FilterReport::Nothing | FilterReport::Fault(_) | FilterReport::Trace(_) => 0,
        });
        let curve = if report.curve.points.is_empty() {
            0
        } else {
            CURVE
        };
        let cost = PLACE + curve + costs.sum::<usize>();
        (Some(DiskReading { disk, now, report }), cost)
    }

    /// The thread, without its disks.
    fn pulse(&self) -> ThreadPulse {
        let read = self.tally.read();
        ThreadPulse {
            age: read.age,
            busy: read.busy,
            spinning: read.spinning,
            disks: Vec::new(),
        }
    }

    /// The thread, without its disks.
    fn report(&self, left: &mut usize) -> ThreadReport {
        let read = self.tally.read();
        let places = self.queues.len() + self.connections.len();
        *left = left.saturating_sub(places * PLACE);
        ThreadReport {
            name: self.name.clone(),
            age: read.age,
            busy: read.busy,
            spinning: read.spinning,
            sleeping: read.sleeping,
            turns: read.turns,
            empty_turns: read.empty_turns,
            wakes: read.wakes.sum(),
            cpu: os::thread_cpu().since(Time::ZERO),
            in_flight: self.cx.shard.in_flight(),
            strays: self.cx.shard.strays(),
            disks: Vec::new(),
            queues: self.queues.iter().flatten().count(),
            connections: self.connections.iter().flatten().count(),
        }
    }
}

#[cfg(test)]
mod tests;
