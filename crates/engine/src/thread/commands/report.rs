//! The reports of an I/O thread: statistics of thread and disks, a bounded part in each turn.
//!
//! A copy of one disk's histograms is 60 kB, and takes longer than an I/O of a fast datastore. So a turn spends on those
//! who ask no more than one such copy takes, however many ask and however many disks are here; the rest comes in the next
//! turns, between which guests are served. Those who ask wait in a row, and who is not done goes to its end.
//!
//! # Always true
//! - a disk is told of as it was at one moment, which is told with it; different disks may be told of at different moments
//! - a turn copies the histograms of one disk at most
//! - nobody who asks costs a turn anything in which nothing is told: the inbox says that there is something to tell
//!
//! # Units
//! What is told is weighed in places of disks that are looked at: some 0.2 us, mostly to fetch them from memory.

use crate::sys::os;
use crate::thread::IoThread;
use std::sync::mpsc::Sender;
use tidegate_core::filter::FilterReport;
use tidegate_core::filter::stats::Pulse;
use tidegate_core::request::DiskId;
use tidegate_core::shard::DiskReport;
use tidegate_core::units::{Span, Time};

/// What a turn tells at most, but that it does not break off within a disk: about 50 us.
const TURN: usize = 256;
/// The histograms of a `stats` filter: 61,440 bytes in 16 pieces are found room for and copied, in some 50 us.
const HISTOGRAMS: usize = TURN;
/// The sums of one: 25 cache lines here and there.
const SUMS: usize = 8;
/// The place of a disk, a queue or a connection, whether or not there is one.
const PLACE: usize = 1;

/// What an I/O thread tells of itself.
#[derive(Clone, Debug)]
pub struct ThreadReport {
    /// Its name.
    pub name: String,
    /// How long it has lived.
    pub age: Span,
    /// How much of that it worked.
    pub busy: Span,
    /// How much it looked for work in vain.
    pub spinning: Span,
    /// How much it slept.
    pub sleeping: Span,
    /// Turns, and those among them that found nothing.
    pub turns: u64,
    /// Turns that found nothing.
    pub empty_turns: u64,
    /// Times it was woken.
    pub wakes: u64,
    /// CPU time that the system counts for it.
    pub cpu: Span,
    /// I/Os inside its shard.
    pub in_flight: usize,
    /// Completions that matched no I/O: must be zero.
    pub strays: u64,
    /// Its disks, each as it was a little later than what is told of the thread. One that came or went meanwhile may be
    /// missing.
    pub disks: Vec<DiskReading>,
    /// Guests' queues on it.
    pub queues: usize,
    /// NBD clients on it.
    pub connections: usize,
}

/// What an I/O thread tells of one disk.
#[derive(Clone, Debug)]
pub struct DiskReading {
    /// Which one.
    pub disk: DiskId,
    /// When it was read.
    pub now: Time,
    /// What the shard knows of it.
    pub report: DiskReport,
}

/// The sums of what an I/O thread and its disks have done: small enough to be asked for every second.
#[derive(Clone, Debug)]
pub struct ThreadPulse {
    /// How long the thread has lived.
    pub age: Span,
    /// How much of that it worked.
    pub busy: Span,
    /// How much it looked for work in vain.
    pub spinning: Span,
    /// Its disks, each as it was a little later than the thread. One that came or went meanwhile may be missing.
    pub disks: Vec<DiskPulse>,
}

/// The sums of one disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskPulse {
    /// Which one.
    pub disk: DiskId,
    /// When it was read.
    pub now: Time,
    /// Those of its topmost filter that measures, if it has one.
    pub sums: Option<Pulse>,
}

/// What somebody asks, and how much of it was told.
pub(crate) enum Question {
    /// All of the thread and its disks.
    Report(Box<Survey<ThreadReport>>),
    /// All of one disk.
    Disk(DiskId, Sender<Option<DiskReading>>),
    /// The sums only.
    Pulse(Box<Survey<ThreadPulse>>),
}

impl Question {
    pub(crate) fn report(reply: Sender<ThreadReport>) -> Question {
        Question::Report(Box::new(Survey::new(reply)))
    }

    pub(crate) fn pulse(reply: Sender<ThreadPulse>) -> Question {
        Question::Pulse(Box::new(Survey::new(reply)))
    }
}

/// A look at all disks, one after the other.
pub(crate) struct Survey<T> {
    reply: Sender<T>,
    /// The thread, and the disks that were looked at. Nothing before the first turn.
    told: Option<T>,
    /// The number of the disk that comes next.
    next: u32,
}

impl<T> Survey<T> {
    fn new(reply: Sender<T>) -> Survey<T> {
        Survey {
            reply,
            told: None,
            next: 0,
        }
    }

    /// Goes on to the end, or until nothing is `left` to spend; whether it is done. Each disk is read by `read`, which
    /// tells what it weighed.
    fn go_on(
        &mut self,
        disks: usize,
        left: &mut usize,
        begin: impl FnOnce(&mut usize) -> T,
        read: impl Fn(&mut T, DiskId) -> usize,
    ) -> bool {
        let told = self.told.get_or_insert_with(|| begin(left));
        while (self.next as usize) < disks {
            if *left == 0 {
                return false;
            }
            let weight = read(told, DiskId(self.next));
            *left = left.saturating_sub(weight);
            self.next += 1;
        }
        if let Some(told) = self.told.take() {
            // Who asked may have gone meanwhile.
            let _ = self.reply.send(told);
        }
        true
    }
}

impl IoThread {
    /// Tells those who asked as much as a turn may; true when there is more to tell.
    pub(in crate::thread) fn tell(&mut self) -> bool {
        let mut left = TURN;
        while left > 0
            && let Some(mut question) = self.questions.pop_front()
        {
            if !self.answer_some(&mut question, &mut left) {
                self.questions.push_back(question);
            }
        }
        !self.questions.is_empty()
    }

    /// Goes on with an answer; whether it is whole.
    fn answer_some(&self, question: &mut Question, left: &mut usize) -> bool {
        let now = os::now();
        let disks = self.disks.len();
        match question {
            Question::Report(survey) => survey.go_on(
                disks,
                left,
                |left| self.report(now, left),
                |told, disk| {
                    let (reading, weight) = self.reading(now, disk);
                    told.disks.extend(reading);
                    weight
                },
            ),
            Question::Disk(disk, reply) => {
                let (reading, weight) = self.reading(now, *disk);
                *left = left.saturating_sub(weight);
                let _ = reply.send(reading);
                true
            }
            Question::Pulse(survey) => survey.go_on(
                disks,
                left,
                |_| self.pulse(now),
                |told, disk| {
                    let sums = self.cx.shard.pulse(disk);
                    let measured = sums.is_some_and(|sums| sums.is_some());
                    told.disks
                        .extend(sums.map(|sums| DiskPulse { disk, now, sums }));
                    if measured { SUMS } else { PLACE }
                },
            ),
        }
    }

    /// A disk, if there is one of that number, and what it weighs.
    fn reading(&self, now: Time, disk: DiskId) -> (Option<DiskReading>, usize) {
        let Some(report) = self.cx.shard.report(disk) else {
            return (None, PLACE);
        };
        let filters = report.filters.iter();
        let weights = filters.map(|(_, _, report)| match report {
            FilterReport::Stats(_) => HISTOGRAMS,
            FilterReport::Nothing | FilterReport::Fault(_) | FilterReport::Trace(_) => 0,
        });
        let weight = PLACE + weights.sum::<usize>();
        (Some(DiskReading { disk, now, report }), weight)
    }

    /// The thread, without its disks.
    fn pulse(&self, now: Time) -> ThreadPulse {
        ThreadPulse {
            age: self.tally.age(now),
            busy: self.tally.busy,
            spinning: self.tally.spinning,
            disks: Vec::new(),
        }
    }

    /// The thread, without its disks.
    fn report(&self, now: Time, left: &mut usize) -> ThreadReport {
        let places = self.queues.len() + self.connections.len();
        *left = left.saturating_sub(places * PLACE);
        ThreadReport {
            name: self.name.clone(),
            age: self.tally.age(now),
            busy: self.tally.busy,
            spinning: self.tally.spinning,
            sleeping: self.tally.sleeping,
            turns: self.tally.turns,
            empty_turns: self.tally.empty_turns,
            wakes: self.tally.wakes,
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
