//! The other hosts: live, suspect or dead, by their slots alone.
//!
//! The governor hands in every successful read of the slots file, and every failed one. No wall clock is compared:
//! a peer is as old as our own time between successful reads that showed the same sequence number.
//!
//! # Always true
//! - A slot that is torn, foreign or garbage changes nothing: the last good copy counts, and grows older. But who tears
//!   a slot anew lives: he is not dead, however old his last good word is. And who may have spoken where now something
//!   foreign stands, or nothing, is not held to his last good word: his lease is the longest that there is.
//! - Nobody grows older by a time in which we could not read.
//! - A dead peer's record is gone: its part is divided at the next tick.
//! - Of two daemons with the same name that live, as where a root was copied, one is told that it needs another.
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

/// The shortest lease, however fast the ticks: a busy datastore may delay a slot for two seconds. Origin: chosen; no
/// measurement.
const LEASE_LEAST: Span = Span::from_secs(2);
/// Ticks of silence after which a host counts as dead. Origin: chosen; no measurement.
const LEASE_TICKS: u64 = 8;
/// Ticks of silence after which a host is suspect. Origin: chosen; no measurement.
const LIVE_TICKS: u64 = 3;

/// How long a host that ticks every `tick` may be silent before its part is given to others.
pub fn lease(tick: Span) -> Span {
    LEASE_LEAST.max(Span::from_nanos(
        tick.as_nanos().saturating_mul(LEASE_TICKS),
    ))
}

/// Another host.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its place in the file.
    pub slot: u16,
    /// What it said last.
    pub record: Record,
    /// How long it has said nothing new.
    pub age: Span,
    /// How long it has not shown that it lives: torn words do show that.
    silent: Span,
    /// The sequence number of the last torn ones.
    torn: u64,
    /// Its slot holds something foreign, or nothing: with what stood there it may have said that it would speak less often.
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

    /// How long until it means to speak again.
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

    /// Its slot holds no record; it begins with these words, if with any.
    fn garbled(&mut self, words: Option<Words>) {
        let own = words.filter(|&(host, incarnation, _)| {
            (self.record.host, self.record.incarnation) == (host, incarnation)
        });
        self.overwritten = own.is_none();
        if let Some((_, _, sequence)) = own.filter(|own| own.2 != self.torn) {
            self.torn = sequence;
            self.silent = Span::ZERO;
        }
    }

    /// Whether it has spoken lately; if not, it is suspect: its part stays its own, its word is old.
    pub fn live(&self) -> bool {
        self.age.as_nanos() <= self.tick().as_nanos().saturating_mul(LIVE_TICKS)
    }
}

/// What a read of the slots showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Hosts not known before.
    pub seen: Vec<[u8; 16]>,
    /// Hosts that died or left; whether they said so.
    pub lost: Vec<([u8; 16], bool)>,
    /// A peer asks for attention, newly.
    pub urgent: bool,
    /// Somebody else sits in our slot.
    pub displaced: bool,
    /// Another daemon has our name and lives, and it is on us to take another.
    pub doubled: bool,
    /// Slots that hold something unreadable.
    pub unreadable: u32,
}

/// By what one writing of a slot differs from the next: host, incarnation, sequence.
type Words = ([u8; 16], u64, u64);

/// All other hosts of a datastore.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    peers: Vec<Peer>,
    /// The last words of the dead, which still stand in their slots.
    last_words: Vec<(u16, Words)>,
    /// By slot: incarnation and sequence of what another start of our own daemon says there.
    namesakes: Vec<(u16, u64, u64)>,
    /// The last read, if it and all since succeeded.
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

    /// How long from the last read on until the lease of the first of the suspect ends, if it says nothing meanwhile.
    pub fn first_to_die(&self) -> Option<Span> {
        let suspect = self.peers.iter().filter(|peer| !peer.live());
        let left = suspect.map(|peer| {
            let lease = peer.lease().as_nanos();
            Span::from_nanos(lease.saturating_sub(peer.silent.as_nanos()))
        });
        left.min()
    }

    /// A read failed: the time until the next that succeeds makes nobody older.
    pub fn unread(&mut self) {
        self.read = None;
    }

    /// The slots as they are on the datastore. One that is left out counts as unchanged. `me`: our host, incarnation and
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
                    self.peers[place].garbled(Record::peek(bytes));
                }
                return;
            }
        };
        if (record.host, record.incarnation) == (me.0, me.1) {
            return;
        }
        if record.host == me.0 {
            // Who has our name and speaks is no earlier start of ours, but a copy. One of the two must yield, and the words
            // of both say which.
            news.doubled |= self.namesake_speaks(slot, &record) && record.incarnation < me.1;
        } else if me.2 == Some(slot) {
            news.displaced = true;
        }
        // The dead do not rise by being read again.
        if self.last_words.contains(&(slot, words(&record))) {
            return;
        }
        self.last_words.retain(|(of, _)| *of != slot);
        // Another start of our own daemon is dead, or is about to take another name: there is one daemon to a host.
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
                // Believed to live from now on; if nobody writes there any more, its lease ends like any other.
                news.urgent = true;
                news.seen.push(record.host);
                self.peers.insert(place, Peer::new(slot, record));
            }
        }
    }
}

impl Peers {
    /// Whether another start of our own daemon has said something new in this slot since it was last read: then it lives.
    fn namesake_speaks(&mut self, slot: u16, record: &Record) -> bool {
        let says = (slot, record.incarnation, record.sequence);
        let Some(said) = self.namesakes.iter_mut().find(|said| said.0 == slot) else {
            self.namesakes.push(says);
            return false;
        };
        let speaks = said.1 == says.1 && said.2 != says.2;
        *said = says;
        speaks
    }

    /// Whether this is a host that is known, at another slot: it has had to take another, and sits in one at a time.
    fn has_moved(&mut self, slot: u16, record: &Record) -> bool {
        let who = |record: &Record| (record.host, record.incarnation);
        let known = self
            .peers
            .iter()
            .position(|peer| who(&peer.record) == who(record));
        let Some(known) = known else { return false };
        // What it left behind is older than what it says since, and says nothing any more, also when it has died.
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
