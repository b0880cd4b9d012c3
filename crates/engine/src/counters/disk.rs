//! The counters of a disk: of each queue of its device, and of its NBD connections together.
//!
//! The queues move with their disk. So do their counters, and its new I/O thread goes on with them.

use super::delays::{DelayHistogram, Delays};
use crate::sys::os;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

/// See the module.
#[derive(Debug)]
pub(crate) struct DiskCounters {
    queues: Box<[QueueCounters]>,
    connections: QueueCounters,
    /// The processes of its clients. No I/O thread uses it.
    clients: Mutex<Vec<Client>>,
    /// How often it was read.
    #[cfg(test)]
    reads: AtomicU64,
}

/// How a client uses a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    /// As a device of a virtual machine.
    VhostUser,
    /// By a connection, as virtual machines and other programs do.
    Nbd,
}

/// A client's process, and how it uses the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) process: u32,
    pub(crate) kind: ClientKind,
}

/// A client that is connected; dropped when it is gone.
pub(crate) struct Connected {
    disk: Arc<DiskCounters>,
    client: Client,
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut clients = self.disk.clients();
        if let Some(at) = clients.iter().position(|client| *client == self.client) {
            clients.swap_remove(at);
        }
    }
}

/// What a disk has done since it was attached, all queues and connections together: what the monitor reads of each disk.
#[derive(Debug, Default)]
pub(crate) struct DiskSums {
    /// Requests taken of each queue, then of the connections.
    pub(crate) taken: Vec<u64>,
    pub(crate) answered: u64,
    pub(crate) bytes: u64,
    pub(crate) busy: Span,
    pub(crate) outstanding: Span,
    /// When the oldest requests were seen that a last fetch left behind.
    pub(crate) standing_since: Option<Time>,
    /// How long requests waited in the rings, at least.
    pub(crate) delays: DelayHistogram,
}

/// The counters of one queue. Only the disk's I/O thread writes them.
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    taken: AtomicU64,
    answered: AtomicU64,
    bytes: AtomicU64,
    busy: AtomicU64,
    outstanding: AtomicU64,
    kicks: AtomicU64,
    calls: AtomicU64,
    /// When the requests that wait since the last fetch were seen, in nanoseconds; zero: none wait.
    standing_since: AtomicU64,
    delays: Delays,
}

/// What an I/O thread did for a queue since it last accounted for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    /// Requests taken.
    pub(crate) taken: u64,
    /// Requests answered.
    pub(crate) answered: u64,
    /// Bytes of the requests taken.
    pub(crate) bytes: u64,
    /// Kicks of its guest, and interrupts sent to it.
    pub(crate) kicks: u64,
    pub(crate) calls: u64,
    /// Its part of the thread's busy time.
    pub(crate) busy: Span,
    /// The time of requests in flight, added up.
    pub(crate) outstanding: Span,
}

impl DiskCounters {
    pub(crate) fn new(queues: usize) -> DiskCounters {
        DiskCounters {
            queues: (0..queues).map(|_| QueueCounters::default()).collect(),
            connections: QueueCounters::default(),
            clients: Mutex::default(),
            #[cfg(test)]
            reads: AtomicU64::new(0),
        }
    }

    /// A client is connected, until the result is dropped.
    pub(crate) fn connected(self: &Arc<DiskCounters>, client: Client) -> Connected {
        self.clients().push(client);
        Connected {
            disk: Arc::clone(self),
            client,
        }
    }

    fn clients(&self) -> MutexGuard<'_, Vec<Client>> {
        // The list is valid even if a holder of the lock panicked.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes of clients of this kind.
    pub(super) fn processes(&self, kind: ClientKind) -> Vec<u32> {
        let clients = self.clients();
        let such = clients.iter().filter(|client| client.kind == kind);
        such.map(|client| client.process).collect()
    }

    /// Those of a queue, by its number on the device.
    ///
    /// # Panics
    /// If the device has no such queue.
    pub(crate) fn queue(&self, number: u16) -> &QueueCounters {
        &self.queues[usize::from(number)]
    }

    /// Those of all NBD connections.
    pub(crate) fn connections(&self) -> &QueueCounters {
        &self.connections
    }

    /// Requests of its queues that were answered, and interrupts that were sent for them.
    pub(crate) fn calls(&self) -> (u64, u64) {
        let sum = |of: fn(&QueueCounters) -> &AtomicU64| {
            let counts = self.queues.iter().map(of);
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        (sum(|queue| &queue.answered), sum(|queue| &queue.calls))
    }

    /// How often it was read.
    #[cfg(test)]
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Reads the sums, into memory that is reused. It costs a fraction of [`DiskActivity`], which has a histogram of each queue.
    pub(crate) fn sum(&self, sums: &mut DiskSums) {
        sums.taken.clear();
        (sums.answered, sums.bytes) = (0, 0);
        (sums.busy, sums.outstanding) = (Span::ZERO, Span::ZERO);
        sums.standing_since = None;
        sums.delays.clear();
        for queue in self.queues.iter().chain([&self.connections]) {
            queue.add_to(sums);
        }
    }

    pub(super) fn read(&self, disk: DiskId) -> DiskActivity {
        #[cfg(test)]
        self.reads.fetch_add(1, Ordering::Relaxed);
        DiskActivity {
            disk,
            at: os::now(),
            queues: self.queues.iter().map(QueueCounters::read).collect(),
            connections: self.connections.read(),
        }
    }
}

impl QueueCounters {
    /// It was served.
    pub(crate) fn charge(&self, served: &Served) {
        add(&self.taken, served.taken);
        add(&self.answered, served.answered);
        add(&self.bytes, served.bytes);
        add(&self.kicks, served.kicks);
        add(&self.calls, served.calls);
        add(&self.busy, served.busy.as_nanos());
        add(&self.outstanding, served.outstanding.as_nanos());
    }

    /// So many requests were taken that had waited for `delay`, at least.
    pub(crate) fn delayed(&self, requests: u16, delay: Span) {
        self.delays.record(delay, requests.into());
    }

    /// A fetch left requests behind that were first seen then; or none any more.
    pub(crate) fn standing(&self, since: Option<Time>) {
        let since = since.map_or(0, Time::as_nanos);
        self.standing_since.store(since, Ordering::Relaxed);
    }

    fn add_to(&self, sums: &mut DiskSums) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let span = |counter| Span::from_nanos(load(counter));
        let taken = load(&self.taken);
        sums.taken.push(taken);
        let standing = load(&self.standing_since);
        if standing != 0 {
            let since = Time::from_nanos(standing);
            sums.standing_since = Some(sums.standing_since.map_or(since, |it| it.min(since)));
        }
        // One that was never used has no delays, either.
        if taken == 0 {
            return;
        }
        sums.answered += load(&self.answered);
        sums.bytes += load(&self.bytes);
        sums.busy = sums.busy + span(&self.busy);
        sums.outstanding = sums.outstanding + span(&self.outstanding);
        self.delays.add_to(taken, &mut sums.delays);
    }

    fn read(&self) -> QueueActivity {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let requests = load(&self.taken);
        let standing = load(&self.standing_since);
        QueueActivity {
            requests,
            answered: load(&self.answered),
            bytes: load(&self.bytes),
            busy: Span::from_nanos(load(&self.busy)),
            outstanding: Span::from_nanos(load(&self.outstanding)),
            kicks: load(&self.kicks),
            calls: load(&self.calls),
            standing_since: (standing != 0).then(|| Time::from_nanos(standing)),
            delays: self.delays.read(requests),
        }
    }
}

/// Adds to a counter of which the calling thread is the only writer.
pub(super) fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// What the queues of a disk have done since it was attached.
#[derive(Clone, Debug)]
pub struct DiskActivity {
    /// The disk.
    pub disk: DiskId,
    /// When it was read.
    pub at: Time,
    /// By number on its device.
    pub queues: Vec<QueueActivity>,
    /// All NBD connections together.
    pub connections: QueueActivity,
}

impl DiskActivity {
    /// The queues, then the connections.
    pub fn all(&self) -> impl Iterator<Item = &QueueActivity> {
        self.queues.iter().chain([&self.connections])
    }

    /// Time of its I/O threads that they spent for it.
    pub fn busy(&self) -> Span {
        Span::from_nanos(self.all().map(|queue| queue.busy.as_nanos()).sum())
    }

    /// Requests taken.
    pub fn requests(&self) -> u64 {
        self.all().map(|queue| queue.requests).sum()
    }

    /// Requests answered.
    pub fn answered(&self) -> u64 {
        self.all().map(|queue| queue.answered).sum()
    }

    /// Bytes of the requests taken.
    pub fn bytes(&self) -> u64 {
        self.all().map(|queue| queue.bytes).sum()
    }

    /// The time of its requests in flight, added up.
    pub fn outstanding(&self) -> Span {
        Span::from_nanos(self.all().map(|queue| queue.outstanding.as_nanos()).sum())
    }

    /// Kicks of its guest.
    pub fn kicks(&self) -> u64 {
        self.all().map(|queue| queue.kicks).sum()
    }

    /// Interrupts sent.
    pub fn calls(&self) -> u64 {
        self.all().map(|queue| queue.calls).sum()
    }

    /// How long requests waited in the rings, at least.
    pub fn delays(&self) -> DelayHistogram {
        let mut sum = DelayHistogram::default();
        self.all().for_each(|queue| sum.merge(&queue.delays));
        sum
    }
}

/// What one queue has done.
#[derive(Clone, Debug, Default)]
pub struct QueueActivity {
    /// Requests taken, up to 64 turns ago.
    pub requests: u64,
    /// Requests answered.
    pub answered: u64,
    /// Bytes of the requests taken.
    pub bytes: u64,
    /// The time of its requests in flight, added up: by a second it is the mean number in flight. It is estimated from
    /// the number at times some turns apart.
    pub outstanding: Span,
    /// Its part of the busy time of its I/O threads. It is divided by the requests taken and answered, so a clock is
    /// read once a turn, not for each of them.
    pub busy: Span,
    /// Kicks of its guest that arrived.
    pub kicks: u64,
    /// Interrupts sent to its guest.
    pub calls: u64,
    /// The last fetch left requests behind. They were seen then; they may be older.
    pub standing_since: Option<Time>,
    /// How long requests waited in the ring from when the thread first saw them until it took them. They may have
    /// waited for a turn more ([`ThreadActivity::delays`](super::ThreadActivity::delays)).
    pub delays: DelayHistogram,
}

impl QueueActivity {
    /// Whether requests that were seen at least `span` ago are still not taken.
    pub fn is_standing(&self, now: Time, span: Span) -> bool {
        self.standing_since
            .is_some_and(|since| now.since(since) >= span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_the_sum_of_its_queues_and_connections() {
        let counters = DiskCounters::new(2);
        let served = |taken, busy| Served {
            taken,
            answered: taken - 1,
            bytes: taken * 512,
            kicks: 0,
            calls: 1,
            busy: Span::from_micros(busy),
            outstanding: Span::from_micros(2 * busy),
        };
        counters.queue(0).charge(&served(10, 20));
        counters.queue(1).charge(&served(5, 7));
        counters.connections().charge(&served(2, 3));
        counters.queue(1).delayed(3, Span::from_millis(1));
        let read = counters.read(DiskId(4));
        assert_eq!((read.requests(), read.calls()), (17, 3));
        assert_eq!((read.answered(), read.bytes()), (14, 17 * 512));
        assert_eq!(read.busy(), Span::from_micros(30));
        assert_eq!(read.outstanding(), Span::from_micros(60));
        assert_eq!(read.delays().count(), 17);
        assert!(read.delays().quantile(9000) >= Span::from_millis(1));
        assert_eq!(read.delays().quantile(8000), Span::ZERO);
    }

    #[test]
    fn sums_are_those_of_the_activity_whatever_was_in_their_memory() {
        let counters = DiskCounters::new(3);
        let served = |taken, busy| Served {
            taken,
            answered: taken - 1,
            bytes: taken * 512,
            busy: Span::from_micros(busy),
            outstanding: Span::from_micros(2 * busy),
            ..Served::default()
        };
        let mut sums = DiskSums::default();
        for round in 1..4 {
            counters.queue(0).charge(&served(10 * round, 20));
            counters.queue(2).charge(&served(5, 7));
            counters.queue(2).delayed(3, Span::from_millis(round));
            counters
                .queue(0)
                .standing(Some(Time::from_nanos(100 * round)));
            counters
                .queue(2)
                .standing(Some(Time::from_nanos(70 * round)));
            counters.sum(&mut sums);
            let read = counters.read(DiskId(0));
            let taken: Vec<u64> = read.all().map(|queue| queue.requests).collect();
            assert_eq!(sums.taken, taken);
            let own = (sums.answered, sums.bytes, sums.busy, sums.outstanding);
            assert_eq!(
                own,
                (
                    read.answered(),
                    read.bytes(),
                    read.busy(),
                    read.outstanding()
                )
            );
            assert_eq!(sums.standing_since, Some(Time::from_nanos(70 * round)));
            assert_eq!(sums.delays, read.delays());
        }
    }

    #[test]
    fn a_clients_process_is_known_while_it_is_connected() {
        let counters = Arc::new(DiskCounters::new(1));
        let client = |process, kind| Client { process, kind };
        let first = counters.connected(client(7, ClientKind::VhostUser));
        let again = counters.connected(client(7, ClientKind::VhostUser));
        let other = counters.connected(client(9, ClientKind::Nbd));
        drop(again);
        assert_eq!(counters.processes(ClientKind::VhostUser), [7]);
        assert_eq!(counters.processes(ClientKind::Nbd), [9]);
        drop((first, other));
        assert!(counters.processes(ClientKind::VhostUser).is_empty());
    }

    #[test]
    fn requests_stand_while_they_were_seen_and_not_taken() {
        let counters = QueueCounters::default();
        let now = Time::from_nanos(10_000_000);
        let tick = Span::from_millis(5);
        assert!(!counters.read().is_standing(now, tick));
        counters.standing(Some(Time::from_nanos(6_000_000)));
        assert!(!counters.read().is_standing(now, tick));
        counters.standing(Some(Time::from_nanos(5_000_000)));
        assert!(counters.read().is_standing(now, tick));
        counters.standing(None);
        assert!(!counters.read().is_standing(now, tick));
    }
}
