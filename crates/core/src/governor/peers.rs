//! The other hosts: live, suspect or dead, by their slots alone.
//!
//! The governor passes in every successful read of the slots file, and reports every failed one. Wall clocks are never
//! compared. The age of a peer is our own time between successful reads that showed the same sequence number.
//!
//! # Always true
//! - A slot that is torn, foreign or garbage changes nothing: the last valid copy counts, and ages. A host that writes
//!   new torn slots is alive, whatever the age of its last valid record. If a slot is overwritten or empty, its host
//!   gets the longest lease, because it may have announced a longer interval.
//! - A time without successful reads makes no peer older.
//! - A dead peer's record is removed: its part is divided at the next tick.
//! - Of two live daemons with the same name, as after a copy of a root, one is notified to take another name.
//!
//! # Picture
//! ```text
//!   first record    same sequence > 3 ticks       > lease
//!   --------> live --------------------> suspect --------> dead (forgotten)
//!               ^  a new sequence number    |
//!               +---------------------------+         leaving: forgotten at once
//! ```

use super::pace::SLOWEST;
use super::slot::{Record, Unreadable};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// The shortest lease, whatever the tick interval: a busy datastore may delay a slot for two seconds. Origin: chosen;
/// no measurement.
const LEASE_LEAST: Span = Span::from_secs(2);
/// Ticks of silence after which a host counts as dead. Origin: chosen; no measurement.
const LEASE_TICKS: u64 = 8;
/// Ticks of silence after which a host is suspect. Origin: chosen; no measurement.
const LIVE_TICKS: u64 = 3;

/// How long a host with this tick interval may be silent before its part is given to others.
pub fn lease(tick: Span) -> Span {
    LEASE_LEAST.max(Span::from_nanos(
        tick.as_nanos().saturating_mul(LEASE_TICKS),
    ))
}

/// Another host.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its slot number.
    pub slot: u16,
    /// Its last record.
    pub record: Record,
    /// The time since its last new record.
    pub age: Span,
    /// The time since it last showed that it is alive, also by a torn slot.
    silent: Span,
    /// The sequence number of the last torn slot.
    torn: u64,
    /// Its slot is foreign or empty. What was overwritten may have announced a longer interval.
    overwritten: bool,
}

impl Peer {
    fn new(slot: u16, record: Record) -> Peer {
        Peer {
            slot,
            torn: record.sequence,
            record,
            age: Span::ZERO,
            silent: Span::ZERO,
            overwritten: false,
        }
    }

    /// Its announced interval.
    fn tick(&self) -> Span {
        Span::from_millis(u64::from(self.record.tick_ms))
    }

    /// How long it may be silent before its part is given to others.
    pub fn lease(&self) -> Span {
        lease(if self.overwritten {
            SLOWEST
        } else {
            self.tick()
        })
    }

    /// Its slot contains no valid record; `words` is what can be read of its start.
    fn mark_invalid(&mut self, words: Option<Words>) {
        let own = words.filter(|&(host, incarnation, _)| {
            (self.record.host, self.record.incarnation) == (host, incarnation)
        });
        self.overwritten = own.is_none();
        if let Some((_, _, sequence)) = own.filter(|own| own.2 != self.torn) {
            self.torn = sequence;
            self.silent = Span::ZERO;
        }
    }

    /// Whether it has published lately. Otherwise it is suspect: it retains its part, and its record is old.
    pub fn live(&self) -> bool {
        self.age.as_nanos() <= self.tick().as_nanos().saturating_mul(LIVE_TICKS)
    }
}

/// The news of a read of the slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// New hosts.
    pub seen: Vec<[u8; 16]>,
    /// Hosts that died or left, and whether they announced it.
    pub lost: Vec<([u8; 16], bool)>,
    /// A peer has newly set the urgent flag.
    pub urgent: bool,
    /// Another host uses our slot.
    pub displaced: bool,
    /// Another live daemon has our name, and this host must take another.
    pub doubled: bool,
    /// The number of slots without a valid record.
    pub unreadable: u32,
}

/// The fields that change with each write of a slot: host, incarnation, sequence.
type Words = ([u8; 16], u64, u64);

/// All other hosts of a datastore.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    peers: Vec<Peer>,
    /// The last records of dead hosts, which are still in their slots.
    last_words: Vec<(u16, Words)>,
    /// By slot: incarnation and sequence of another start of our own daemon.
    namesakes: Vec<(u16, u64, u64)>,
    /// The last read, if it and all later ones succeeded.
    read: Option<Time>,
}

impl Peers {
    /// In slot order.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether this host is alone.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// The time from the last read until the lease of the first suspect peer ends, if it stays silent.
    pub fn first_to_die(&self) -> Option<Span> {
        let suspect = self.peers.iter().filter(|peer| !peer.live());
        let left = suspect.map(|peer| {
            let lease = peer.lease().as_nanos();
            Span::from_nanos(lease.saturating_sub(peer.silent.as_nanos()))
        });
        left.min()
    }

    /// Reports a failed read: no peer ages until the next successful one.
    pub fn unread(&mut self) {
        self.read = None;
    }

    /// Takes the slots as read from the datastore. An omitted slot counts as unchanged. `me`: our host, incarnation and
    /// slot.
    pub fn heard(
        &mut self,
        now: Time,
        slots: &[(u16, &[u8])],
        me: ([u8; 16], u64, Option<u16>),
    ) -> News {
        let mut news = News::default();
        let passed = self.read.map_or(Span::ZERO, |read| now.since(read));
        self.read = Some(now);
        for peer in &mut self.peers {
            peer.age = peer.age + passed;
            peer.silent = peer.silent + passed;
        }
        for &(slot, bytes) in slots {
            self.one(slot, bytes, me, &mut news);
        }
        let last_words = &mut self.last_words;
        self.peers.retain(|peer| {
            let dead = peer.silent > peer.lease();
            if dead {
                news.lost.push((peer.record.host, false));
                last_words.retain(|(slot, _)| *slot != peer.slot);
                last_words.push((peer.slot, words(&peer.record)));
            }
            !dead
        });
        news
    }

    fn one(&mut self, slot: u16, bytes: &[u8], me: ([u8; 16], u64, Option<u16>), news: &mut News) {
        let place = self.peers.binary_search_by_key(&slot, |peer| peer.slot);
        if let (Ok(place), Some((host, incarnation, sequence))) = (place, Record::peek(bytes)) {
            let peer = &mut self.peers[place];
            if words(&peer.record) == (host, incarnation, sequence) {
                peer.overwritten = false;
                return;
            }
        }
        let record = match Record::decode(bytes) {
            Ok(record) => record,
            Err(why) => {
                news.unreadable += u32::from(why != Unreadable::Empty);
                if let Ok(place) = place {
                    self.peers[place].mark_invalid(Record::peek(bytes));
                }
                return;
            }
        };
        if (record.host, record.incarnation) == (me.0, me.1) {
            return;
        }
        if record.host == me.0 {
            // A live daemon with our name is not an earlier start of ours, but a copy. One of the two must take another
            // name; both records determine which.
            news.doubled |= self.namesake_is_alive(slot, &record) && record.incarnation < me.1;
        } else if me.2 == Some(slot) {
            news.displaced = true;
        }
        // Reading a dead peer's record again does not make it alive.
        if self.last_words.contains(&(slot, words(&record))) {
            return;
        }
        self.last_words.retain(|(of, _)| *of != slot);
        // Another start of our own daemon is dead, or is about to take another name: each host has one daemon.
        let gone = record.host == me.0 || record.flags.has(super::slot::Flags::LEAVING);
        match place {
            Ok(place) if gone => {
                self.peers.remove(place);
                news.lost.push((record.host, true));
            }
            Err(_) if gone => {}
            Ok(place) => {
                let peer = &mut self.peers[place];
                if peer.record.host != record.host {
                    news.lost.push((peer.record.host, false));
                    news.seen.push(record.host);
                }
                let urgent = super::slot::Flags::URGENT;
                news.urgent |= record.flags.has(urgent) && !peer.record.flags.has(urgent);
                *peer = Peer::new(slot, record);
            }
            Err(_) if self.has_moved(slot, &record) => {}
            Err(place) => {
                // It counts as live from now on. If its host has stopped writing, its lease ends as usual.
                news.urgent = true;
                news.seen.push(record.host);
                self.peers.insert(place, Peer::new(slot, record));
            }
        }
    }
}

impl Peers {
    /// Whether another start of our own daemon has published a new record in this slot since the last read, and so is
    /// alive.
    fn namesake_is_alive(&mut self, slot: u16, record: &Record) -> bool {
        let says = (slot, record.incarnation, record.sequence);
        let Some(said) = self.namesakes.iter_mut().find(|said| said.0 == slot) else {
            self.namesakes.push(says);
            return false;
        };
        let speaks = said.1 == says.1 && said.2 != says.2;
        *said = says;
        speaks
    }

    /// Whether this is a known host in another slot. A host uses one slot at a time, and this one had to take another.
    fn has_moved(&mut self, slot: u16, record: &Record) -> bool {
        let identity = |record: &Record| (record.host, record.incarnation);
        let known = self
            .peers
            .iter()
            .position(|peer| identity(&peer.record) == identity(record));
        let Some(known) = known else { return false };
        // The record in its old slot is older than the new one. It never changes any more, even if the host dies.
        let left = if self.peers[known].record.sequence < record.sequence {
            let peer = core::mem::replace(&mut self.peers[known], Peer::new(slot, record.clone()));
            self.peers.sort_unstable_by_key(|peer| peer.slot);
            (peer.slot, words(&peer.record))
        } else {
            (slot, words(record))
        };
        self.last_words.retain(|(of, _)| *of != left.0);
        self.last_words.push(left);
        true
    }
}

fn words(record: &Record) -> Words {
    (record.host, record.incarnation, record.sequence)
}

#[cfg(test)]
mod tests;
