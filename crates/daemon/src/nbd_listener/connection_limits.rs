//! The connection limits of NBD listeners: a limit during the handshake, then limits by disk and peer.
//!
//! Anyone who reaches a TCP port can connect and send nothing. A TCP client therefore has only a place, not a seat,
//! until its handshake is over. Clients on a Unix socket were admitted by its permissions.
//!
//! # Always true
//! - TCP and Unix-socket clients have separate seat limits of equal size, set by the plan. [`super::seats`] limits the
//!   seats per peer and per disk.
//! - A TCP client has no seat before its handshake is over.
//! - A peer gets another place only while it has fewer places than are free: it cannot take the last ones.
//! - A reason for refusal is logged once until a client is admitted, and not again within [`PAUSE`].

use std::collections::{BTreeMap, HashMap};
use std::mem::Discriminant;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use crate::disks::attached::AttachedDisks;
use crate::listen::refusals::Refusals;
use crate::os_error::Outcome;
use crate::os_error::limits;

use super::seats::{NoSeat, Peer, Seat, Seats, locked};

/// The failed action in error messages about refused clients.
const LET_IN: &str = "cannot accept an NBD client";

/// TCP connections whose handshake is not over. A handshake takes milliseconds. A peer may start half as many at once,
/// as after a restart. Ten hostile peers that take all they can leave twenty places to others.
const PLACES: usize = 256;

/// Hostile clients can fill the limits again and again; this pause prevents them from flooding the log.
const PAUSE: Duration = Duration::from_secs(60);

/// The limits that all endpoints share.
#[derive(Clone)]
pub(crate) struct ConnectionLimits {
    pub(super) disks: Arc<AttachedDisks>,
    unix: Arc<Seats>,
    tcp: Arc<Seats>,
    porch: Arc<Porch>,
    told: Arc<Told>,
    refusals: Arc<Refusals>,
}

/// The transport that a client uses.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// With the process id of the client, if known.
    Unix(Option<i32>),
    Tcp(IpAddr),
}

impl ConnectionLimits {
    /// Limits for clients of these disks, with `seats` seats for each transport.
    pub(crate) fn new(disks: Arc<AttachedDisks>, seats: usize) -> ConnectionLimits {
        ConnectionLimits {
            disks,
            unix: Seats::new(seats),
            tcp: Seats::new(seats),
            porch: Arc::default(),
            told: Arc::default(),
            refusals: Arc::default(),
        }
    }

    /// Counts a client that gets no disk, and logs the reason once.
    pub(super) fn refuse(&self, way: Way, peer: &str, reason: &str) {
        self.disks.count_refused();
        let whom = match way {
            Way::Unix(_) => "a Unix socket".to_owned(),
            Way::Tcp(ip) => network(ip).to_string(),
        };
        if let Some(left_out) = self.refusals.must_tell(&whom, reason, Instant::now()) {
            let left_out = (left_out > 0).then_some(left_out);
            tracing::warn!(peer, reason, left_out, "an NBD client is refused");
        }
    }

    /// Admits a client, or logs why not.
    pub(super) fn admit(&self, way: Way, peer: &str) -> Option<Ticket> {
        match self.ticket(way) {
            Ok(ticket) => {
                self.told.somebody_came_in();
                Some(ticket)
            }
            Err(lack) => {
                self.disks.count_refused();
                if self.told.must_tell(&lack, Instant::now()) {
                    let problem = lack.problem();
                    tracing::warn!(peer, %problem, "an NBD client was refused by its limit");
                }
                None
            }
        }
    }

    /// Waits until all Unix-socket clients have disconnected.
    pub(super) async fn all_have_left(&self) {
        self.unix.are_all_free().await;
    }

    fn ticket(&self, way: Way) -> Result<Ticket, Lack> {
        let ticket = match way {
            Way::Unix(process) => {
                let seat = self.unix.take(process.map(Peer::Process))?;
                Ticket {
                    seats: Arc::clone(&self.unix),
                    held: Mutex::new(Held::Seat(seat)),
                }
            }
            // A client that would find no seat after its handshake need not start it.
            Way::Tcp(_) if self.tcp.is_full() => return Err(NoSeat::All.into()),
            Way::Tcp(peer) => {
                let place = self.porch.enter(peer)?;
                Ticket {
                    seats: Arc::clone(&self.tcp),
                    held: Mutex::new(Held::Place(place)),
                }
            }
        };
        limits::must_have_room(LET_IN).map_err(Lack::Descriptors)?;
        Ok(ticket)
    }
}

/// The limit that is exhausted.
#[derive(Debug)]
enum Lack {
    Seats,
    SeatsOfPeer,
    SeatsOfDisk,
    Places,
    PlacesOfPeer,
    Descriptors(Problem),
}

impl From<NoSeat> for Lack {
    fn from(none: NoSeat) -> Lack {
        match none {
            NoSeat::All => Lack::Seats,
            NoSeat::OfPeer => Lack::SeatsOfPeer,
            NoSeat::OfDisk => Lack::SeatsOfDisk,
        }
    }
}

impl Lack {
    fn problem(self) -> Problem {
        let problem = Problem::new(ProblemCode::Exhausted, LET_IN);
        match self {
            Lack::Seats => problem
                .because("the limit of connections is reached")
                .remedy("disconnect some, or raise the daemon's nbd.max_connections"),
            Lack::SeatsOfPeer => problem
                .because("its process or address has as many connections as remain for all others")
                .remedy("close some of them there, or raise the daemon's nbd.max_connections"),
            Lack::SeatsOfDisk => problem
                .because("its disk has as many clients as remain for all other disks")
                .remedy(
                    "disconnect some of the disk's, or raise the daemon's nbd.max_connections",
                ),
            Lack::Places => problem
                .because(format!(
                    "{PLACES} TCP connections have not completed the handshake"
                ))
                .remedy("restrict access to the port by a firewall"),
            Lack::PlacesOfPeer => problem
                .because(
                    "its address has as many connections without a completed handshake as remain for all others",
                )
                .remedy("find the program there that opens them, or block it by a firewall"),
            Lack::Descriptors(problem) => problem,
        }
    }
}

/// Admission to the limits; ends when the last owner of a part of it drops it.
pub(super) struct Ticket {
    seats: Arc<Seats>,
    held: Mutex<Held>,
}

enum Held {
    Place(Place),
    Seat(Seat),
}

impl Ticket {
    /// Takes a seat among the clients of this disk. The seat replaces the place, if the client has no seat yet.
    pub(super) fn sit(&self, disk: &Name) -> Outcome<()> {
        self.seat(disk).map_err(Lack::problem)
    }

    fn seat(&self, disk: &Name) -> Result<(), Lack> {
        let mut held = locked(&self.held);
        match &mut *held {
            Held::Seat(seat) => seat.is_for(disk)?,
            Held::Place(place) => {
                let mut seat = self.seats.take(Some(Peer::Network(place.peer)))?;
                seat.is_for(disk)?;
                *held = Held::Seat(seat);
            }
        }
        Ok(())
    }
}

/// TCP clients that have not finished their handshake, counted per peer.
#[derive(Default)]
struct Porch(Mutex<BTreeMap<IpAddr, usize>>);

/// A place in the porch, until dropped.
struct Place {
    porch: Arc<Porch>,
    peer: IpAddr,
}

impl Porch {
    fn enter(self: &Arc<Porch>, peer: IpAddr) -> Result<Place, Lack> {
        let peer = network(peer);
        let mut here = locked(&self.0);
        let left = PLACES - here.values().sum::<usize>();
        let own = here.get(&peer).copied().unwrap_or(0);
        if left == 0 {
            return Err(Lack::Places);
        }
        if own >= left {
            return Err(Lack::PlacesOfPeer);
        }
        here.insert(peer, own + 1);
        let porch = Arc::clone(self);
        Ok(Place { porch, peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut here = locked(&self.porch.0);
        match here.get_mut(&self.peer) {
            Some(own) if *own > 1 => *own -= 1,
            _ => {
                here.remove(&self.peer);
            }
        }
    }
}

/// The key that places are counted by: an IPv4 address or an IPv6 /64 network, since its owner has all its addresses.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// The last log line of each exhausted limit.
#[derive(Default)]
struct Told(Mutex<HashMap<Discriminant<Lack>, Telling>>);

struct Telling {
    at: Instant,
    let_in_since: bool,
}

impl Told {
    fn must_tell(&self, lack: &Lack, now: Instant) -> bool {
        let lack = std::mem::discriminant(lack);
        let mut told = locked(&self.0);
        if let Some(last) = told.get(&lack)
            && !(last.let_in_since && now.duration_since(last.at) >= PAUSE)
        {
            return false;
        }
        let telling = Telling {
            at: now,
            let_in_since: false,
        };
        told.insert(lack, telling);
        true
    }

    fn somebody_came_in(&self) {
        for telling in locked(&self.0).values_mut() {
            telling.let_in_since = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::log::captured::Lines;

    fn limits(seats: usize) -> ConnectionLimits {
        ConnectionLimits::new(Arc::default(), seats)
    }

    fn disk() -> Name {
        "disk0".parse().unwrap()
    }

    fn by_tcp(peer: &str) -> Way {
        Way::Tcp(peer.parse().unwrap())
    }

    /// As many tickets as a client of this transport can get.
    fn all(limits: &ConnectionLimits, way: Way) -> Vec<Ticket> {
        let next = || limits.admit(way, "a peer");
        std::iter::from_fn(next).take(2 * PLACES).collect()
    }

    #[test]
    fn who_has_not_finished_its_handshake_takes_no_seat() {
        let limits = limits(1);
        let idle = all(&limits, by_tcp("192.0.2.1"));
        assert!(idle.len() > 1);
        let client = limits.admit(by_tcp("192.0.2.2"), "a client").unwrap();
        client.sit(&disk()).unwrap();
        assert!(idle[0].sit(&disk()).is_err(), "there is one seat");
        drop(client);
        idle[0].sit(&disk()).unwrap();
    }

    #[test]
    fn unix_sockets_and_tcp_do_not_take_each_others_seats() {
        let limits = limits(1);
        let by_unix = limits.admit(Way::Unix(None), "a client").unwrap();
        assert!(limits.admit(Way::Unix(None), "another").is_none());
        let other = limits.admit(by_tcp("192.0.2.1"), "a client").unwrap();
        other.sit(&disk()).unwrap();
        assert!(limits.admit(by_tcp("192.0.2.1"), "another").is_none());
        drop(by_unix);
        assert!(limits.admit(Way::Unix(None), "another").is_some());
    }

    #[test]
    fn no_peer_has_more_places_than_are_left_for_others() {
        let limits = limits(1);
        let one = all(&limits, by_tcp("192.0.2.1"));
        assert_eq!(one.len(), PLACES / 2);
        let other = all(&limits, by_tcp("192.0.2.2"));
        assert_eq!(other.len(), PLACES / 4);
        assert!(limits.admit(by_tcp("192.0.2.3"), "a third").is_some());
        drop(one);
        assert_eq!(all(&limits, by_tcp("192.0.2.1")).len(), PLACES * 3 / 8);
    }

    #[test]
    fn many_peers_together_have_no_more_than_all_places() {
        let limits = limits(1);
        let here: Vec<_> = (0..=255)
            .flat_map(|last| all(&limits, by_tcp(&format!("192.0.2.{last}"))))
            .collect();
        assert_eq!(here.len(), PLACES);
        let one_more = limits.ticket(by_tcp("198.51.100.1"));
        assert!(matches!(one_more, Err(Lack::Places)));
        assert!(limits.admit(Way::Unix(None), "a client").is_some());
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer_and_a_place_is_given_back() {
        let limits = limits(1);
        let here = all(&limits, by_tcp("2001:db8:0:1::1"));
        assert!(limits.admit(by_tcp("2001:db8:0:1:2::"), "it").is_none());
        assert!(limits.admit(by_tcp("2001:db8:0:2::1"), "another").is_some());
        here[0].sit(&disk()).unwrap();
        assert_eq!(
            locked(&limits.porch.0).values().sum::<usize>(),
            here.len() - 1
        );
        drop(here);
        assert!(locked(&limits.porch.0).is_empty());
    }

    #[test]
    fn what_is_lacking_is_told_once_until_somebody_is_let_in_and_some_time_went_by() {
        let told = Told::default();
        let begun = Instant::now();
        assert!(told.must_tell(&Lack::Seats, begun));
        assert!(!told.must_tell(&Lack::Seats, begun + 2 * PAUSE));
        assert!(told.must_tell(&Lack::Places, begun), "another lack");
        told.somebody_came_in();
        assert!(!told.must_tell(&Lack::Seats, begun + PAUSE / 2));
        assert!(told.must_tell(&Lack::Seats, begun + PAUSE));
        assert!(!told.must_tell(&Lack::Seats, begun + 3 * PAUSE));
    }

    #[test]
    fn a_full_hall_writes_one_line_and_counts_all_whom_it_turns_away() {
        let limits = limits(1);
        let lines = Lines::default();
        lines.while_logging(|| {
            let _seat = limits.admit(Way::Unix(None), "a client").unwrap();
            for _ in 0..100 {
                assert!(limits.admit(Way::Unix(None), "another").is_none());
            }
        });
        let text = lines.text();
        assert_eq!(
            text.matches("an NBD client was refused by its limit")
                .count(),
            1
        );
        assert!(text.contains("nbd.max_connections"), "{text}");
        assert_eq!(limits.disks.refused(), 100);
    }
}
