//! Seats of NBD clients, with limits in total, per peer and per disk.
//!
//! [`super::connection_limits`] assigns them. A Unix-socket client gets its seat when it connects. A TCP client gets
//! it when its handshake is over, because its disk is known only then.
//!
//! # Always true
//! - Never more seats are taken than exist.
//! - A peer or a disk gets another seat only while it has fewer than are free: it cannot take the last ones.
//! - Dropping a seat frees it in every count: total, peer and disk.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_api::name::Name;
use tokio::sync::Notify;

/// See the module.
pub(super) struct Seats {
    most: usize,
    taken: Mutex<Taken>,
    emptied: Notify,
}

#[derive(Default)]
struct Taken {
    all: usize,
    peers: BTreeMap<Peer, usize>,
    disks: BTreeMap<Name, usize>,
}

/// The client that a seat is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    /// A process on this host.
    Process(i32),
    /// An IPv4 address, or the network of an IPv6 address.
    Network(IpAddr),
}

/// The reason why a client gets no seat.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoSeat {
    All,
    OfPeer,
    OfDisk,
}

/// A seat, until dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    peer: Option<Peer>,
    disk: Option<Name>,
}

impl Seats {
    pub(super) fn new(most: usize) -> Arc<Seats> {
        Arc::new(Seats {
            most,
            taken: Mutex::default(),
            emptied: Notify::new(),
        })
    }

    /// Waits until no seat is taken.
    pub(super) async fn are_all_free(&self) {
        loop {
            // Created before the check, so that no notification between the check and the await is lost.
            let emptied = self.emptied.notified();
            if locked(&self.taken).all == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Whether no seat is free.
    pub(super) fn is_full(&self) -> bool {
        locked(&self.taken).all >= self.most
    }

    /// Takes a seat for this peer. Without a peer, no limit per peer applies.
    pub(super) fn take(self: &Arc<Seats>, peer: Option<Peer>) -> Result<Seat, NoSeat> {
        let mut taken = locked(&self.taken);
        let left = self.most.saturating_sub(taken.all);
        if left == 0 {
            return Err(NoSeat::All);
        }
        if let Some(peer) = peer {
            count(&mut taken.peers, peer, left).ok_or(NoSeat::OfPeer)?;
        }
        taken.all += 1;
        Ok(Seat {
            seats: Arc::clone(self),
            peer,
            disk: None,
        })
    }
}

impl Seat {
    /// Counts this seat for a client of this disk.
    pub(super) fn is_for(&mut self, disk: &Name) -> Result<(), NoSeat> {
        let mut taken = locked(&self.seats.taken);
        // Includes the seat that the client has already.
        let left = self.seats.most.saturating_sub(taken.all) + 1;
        count(&mut taken.disks, disk.clone(), left).ok_or(NoSeat::OfDisk)?;
        self.disk = Some(disk.clone());
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = locked(&self.seats.taken);
        taken.all -= 1;
        if let Some(peer) = self.peer {
            discount(&mut taken.peers, &peer);
        }
        if let Some(disk) = &self.disk {
            discount(&mut taken.disks, disk);
        }
        if taken.all == 0 {
            self.seats.emptied.notify_waiters();
        }
    }
}

/// Counts one more, unless the key already has as many as are left.
fn count<K: Ord>(of: &mut BTreeMap<K, usize>, key: K, left: usize) -> Option<()> {
    let own = of.get(&key).copied().unwrap_or(0);
    if own >= left {
        return None;
    }
    of.insert(key, own + 1);
    Some(())
}

fn discount<K: Ord>(of: &mut BTreeMap<K, usize>, key: &K) {
    match of.get_mut(key) {
        Some(own) if *own > 1 => *own -= 1,
        _ => {
            of.remove(key);
        }
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic leaves one of these half changed, so a poisoned lock is still usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str) -> Name {
        name.parse().unwrap()
    }

    /// As many seats as a peer can get for a disk.
    fn all(seats: &Arc<Seats>, peer: Option<Peer>, name: &str) -> Vec<Seat> {
        let next = || {
            let mut seat = seats.take(peer).ok()?;
            seat.is_for(&disk(name)).ok()?;
            Some(seat)
        };
        std::iter::from_fn(next).take(10_000).collect()
    }

    #[test]
    fn the_clients_of_one_disk_leave_seats_to_those_of_others() {
        for most in [2, 3, 4, 16, 1024] {
            let seats = Seats::new(most);
            let first = all(&seats, None, "first");
            assert_eq!(first.len(), most.div_ceil(2), "of {most}");
            let other = all(&seats, None, "other");
            assert!(!other.is_empty(), "of {most}");
            drop((first, other));
            assert_eq!(locked(&seats.taken).all, 0);
            assert!(locked(&seats.taken).disks.is_empty());
        }
    }

    #[test]
    fn a_peer_leaves_seats_to_others_whatever_disks_it_asks_for() {
        let seats = Seats::new(16);
        let greedy = Some(Peer::Process(7));
        let mut here = Vec::new();
        for name in ["a", "b", "c", "d"] {
            here.extend(all(&seats, greedy, name));
        }
        assert_eq!(here.len(), 8, "half of them");
        assert_eq!(seats.take(greedy).err(), Some(NoSeat::OfPeer));
        let address = IpAddr::from([192, 0, 2, 1]);
        for other in [Peer::Process(8), Peer::Network(address)] {
            assert!(!all(&seats, Some(other), "e").is_empty());
        }
        drop(here);
        assert!(seats.take(greedy).is_ok());
    }

    #[test]
    fn no_more_are_seated_than_there_are_seats() {
        let seats = Seats::new(1);
        let mut only = seats.take(None).ok().unwrap();
        only.is_for(&disk("a")).unwrap();
        assert!(seats.is_full());
        assert_eq!(seats.take(None).err(), Some(NoSeat::All));
        drop(only);
        assert!(!seats.is_full());
    }
}
