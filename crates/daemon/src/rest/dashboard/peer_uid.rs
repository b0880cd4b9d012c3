//! The user at the other end of a TCP connection on this host.
//!
//! The kernel is queried for that one socket over netlink. The tables in `/proc` take milliseconds to read. They are a
//! fallback for kernels and containers whose netlink does not answer.
//!
//! # Always true
//! - An end has an owner only if a process has it open in both directions. For closed, half-closed and unaccepted ends
//!   the kernel reports the superuser or no user.
//!
//! # Source
//! sock_diag(7); Linux' `include/uapi/linux/inet_diag.h`; proc_pid_net(5), `/proc/net/tcp`; the states of a connection:
//! Linux' `include/net/tcp_states.h`.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The state of a connection that is open in both directions, by the kernel's number.
const ESTABLISHED: u8 = 1;

/// Netlink constants: a query about sockets of one family, and the request flag.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// Address families and a protocol, each as one byte.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// Length of a message's head: length, kind, flags, sequence number, and sender.
const HEAD: usize = 16;
/// Length of a socket's id: its two ends, its interface and its cookie.
const SOCKET: usize = 48;
/// Length of the query: family, protocol, two bytes, states, the socket.
const QUESTION: usize = HEAD + 8 + SOCKET;
const LENGTH: u32 = 72;
/// Length of the answer: family, state, two bytes, the socket, a timeout, two queues, the owner, the inode.
const ANSWER: usize = HEAD + 4 + SOCKET + 20;
/// Matches any socket between those ends.
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// The user whose process has the other end of a local TCP connection open, if any.
pub(super) fn owner(peer: SocketAddr, here: SocketAddr) -> Option<u32> {
    match ask(peer, here) {
        Ok(end) => end.owner_if_held(),
        Err(_) => owner_by_tables(peer, here),
    }
}

/// Queries the kernel for the other end's socket.
///
/// # Errors
/// There is no such socket, or the kernel does not support the query.
fn ask(peer: SocketAddr, here: SocketAddr) -> io::Result<End> {
    let kernel = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let to = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&kernel, &question(peer, here), SendFlags::empty(), &to)?;
    let mut answer = [0; 512];
    // The kernel has answered by the time the call above returns.
    let (length, _) = rustix::net::recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    let end = answer.get(..length).and_then(read_answer);
    let end = end.filter(|end| end.is_between(peer, here));
    end.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The query. The other end's local address is our peer.
fn question(peer: SocketAddr, here: SocketAddr) -> [u8; QUESTION] {
    let ends = [peer, here].map(|end| (end.ip().to_canonical(), end.port()));
    let mut bytes = Vec::with_capacity(QUESTION);
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    let family = match ends[0].0 {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    };
    bytes.extend([family, IPPROTO_TCP, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    for (_, port) in ends {
        bytes.extend(port.to_be_bytes());
    }
    for (ip, _) in ends {
        let mut word = [0; 16];
        match ip {
            IpAddr::V4(ip) => word[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => word = ip.octets(),
        }
        bytes.extend(word);
    }
    bytes.extend([0; 4]);
    bytes.extend(NO_COOKIE);
    bytes.try_into().expect("the parts have these lengths")
}

/// The socket in the kernel's answer; `None` if the answer is an error.
fn read_answer(bytes: &[u8]) -> Option<End> {
    let bytes: &[u8; ANSWER] = bytes.first_chunk()?;
    let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if u16::from_ne_bytes([bytes[4], bytes[5]]) != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let socket = HEAD + 4;
    let ip = |at: usize| match bytes[HEAD] {
        AF_INET => Some(IpAddr::from(Ipv4Addr::from(word(at)))),
        AF_INET6 => {
            let octets: [u8; 16] = bytes[at..at + 16].try_into().ok()?;
            Some(IpAddr::from(Ipv6Addr::from(octets)))
        }
        _ => None,
    };
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let owner = socket + SOCKET + 12;
    Some(End {
        local: SocketAddr::new(ip(socket + 4)?, port(socket)),
        remote: SocketAddr::new(ip(socket + 20)?, port(socket + 2)),
        state: bytes[HEAD + 1],
        owner: u32::from_ne_bytes(word(owner)),
        inode: u32::from_ne_bytes(word(owner + 4)).into(),
    })
}

fn owner_by_tables(peer: SocketAddr, here: SocketAddr) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let texts = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok());
    let mut owners = texts.filter_map(|text| owner_in(&text, peer, here));
    owners.next()
}

/// Finds the owner in one of the kernel's tables.
fn owner_in(table: &str, peer: SocketAddr, here: SocketAddr) -> Option<u32> {
    let mut ends = table.lines().skip(1).filter_map(End::read);
    let end = ends.find(|end| end.is_between(peer, here))?;
    end.owner_if_held()
}

/// One end of a TCP connection, as the kernel reports it.
struct End {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    owner: u32,
    /// The inode of the socket if a process has it open, otherwise 0.
    inode: u64,
}

impl End {
    fn read(line: &str) -> Option<End> {
        let mut words = line.split_whitespace().skip(1);
        Some(End {
            local: address(words.next()?)?,
            remote: address(words.next()?)?,
            state: u8::from_str_radix(words.next()?, 16).ok()?,
            // Skips queues, timer and retransmits.
            owner: words.nth(3)?.parse().ok()?,
            // Skips a timeout.
            inode: words.nth(1)?.parse().ok()?,
        })
    }

    /// Whether it is the other end of our connection: its local address is our peer.
    fn is_between(&self, peer: SocketAddr, here: SocketAddr) -> bool {
        let same = |a: SocketAddr, b: SocketAddr| {
            a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
        };
        same(self.local, peer) && same(self.remote, here)
    }

    /// The owner, if a process has this end open in both directions. Otherwise the reported owner is meaningless: the
    /// peer has closed (FIN_WAIT, TIME_WAIT), we have closed (CLOSE_WAIT), or the connection is not accepted yet.
    fn owner_if_held(&self) -> Option<u32> {
        (self.state == ESTABLISHED && self.inode != 0).then_some(self.owner)
    }
}

/// Parses `0100007F:20F1`; each word of the address is in this machine's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match (<[u8; 4]>::try_from(bytes.as_slice()), bytes.try_into()) {
        (Ok(v4), _) => IpAddr::from(Ipv4Addr::from(v4)),
        (_, Ok::<[u8; 16], _>(v6)) => IpAddr::from(Ipv6Addr::from(v6)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_and_its_tables_tell_the_same() {
        let own = rustix::process::geteuid().as_raw();
        for place in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(place) else {
                // This machine has no IPv6.
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let to = if place == "[::1]:0" {
                "::1"
            } else {
                "127.0.0.1"
            };
            let client = TcpStream::connect((to, port)).unwrap();
            let (theirs, peer) = listener.accept().unwrap();
            let here = theirs.local_addr().unwrap();
            let end = ask(peer, here).unwrap();
            assert_eq!(end.owner_if_held(), Some(own), "{place}");
            assert_eq!(owner_by_tables(peer, here), Some(own), "{place}");
            // A listening socket is not the other end of a connection.
            let listens = SocketAddr::new(peer.ip(), port);
            assert!(ask(listens, peer_of_nobody(here)).is_err());
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(ask(peer, here).unwrap().owner_if_held(), None, "{place}");
            assert_eq!(owner_by_tables(peer, here), None, "{place}");
        }
    }

    fn peer_of_nobody(here: SocketAddr) -> SocketAddr {
        SocketAddr::new(here.ip(), 1)
    }

    #[test]
    fn an_answer_that_is_cut_or_an_error_tells_of_no_socket() {
        let (peer, here) = ("127.0.0.1:50000", "127.0.0.1:8433");
        let asked = question(peer.parse().unwrap(), here.parse().unwrap());
        // The answer contains the query's socket, four bytes earlier.
        let mut answer = [0; ANSWER];
        answer[..HEAD].copy_from_slice(&asked[..HEAD]);
        answer[HEAD] = asked[HEAD];
        answer[HEAD + 1] = ESTABLISHED;
        answer[HEAD + 4..HEAD + 4 + SOCKET].copy_from_slice(&asked[HEAD + 8..]);
        answer[ANSWER - 8..ANSWER - 4].copy_from_slice(&1000_u32.to_ne_bytes());
        answer[ANSWER - 4..].copy_from_slice(&78_u32.to_ne_bytes());
        let end = read_answer(&answer).unwrap();
        assert!(end.is_between(peer.parse().unwrap(), here.parse().unwrap()));
        assert_eq!(end.owner_if_held(), Some(1000));
        assert!(read_answer(&answer[..ANSWER - 1]).is_none());
        let mut error = answer;
        error[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        assert!(read_answer(&error).is_none());
        let mut strange = answer;
        strange[HEAD] = 1;
        assert!(read_answer(&strange).is_none());
    }

    /// A line of the kernel's table: one end of a loopback connection, given by its ports.
    fn end(local: u16, remote: u16, state: &str, uid: u32, inode: u64) -> String {
        let word = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
        format!(
            "  1: {word}:{local:04X} {word}:{remote:04X} {state} 00000000:00000000 00:00000000 00000000 {uid:5} 0 {inode} 1 0 20 4 30 10 -1"
        )
    }

    fn table(lines: &[String]) -> String {
        format!("  sl  local_address rem_address\n{}\n", lines.join("\n"))
    }

    #[test]
    fn the_kernels_table_is_read_by_the_other_ends_line() {
        let table = table(&[
            end(8433, 50_000, "01", 0, 77),
            end(50_000, 8433, "01", 1000, 78),
        ]);
        let peer = "127.0.0.1:50000".parse().unwrap();
        let here = "127.0.0.1:8433".parse().unwrap();
        assert_eq!(owner_in(&table, peer, here), Some(1000));
        assert_eq!(owner_in(&table, here, peer), Some(0));
        let mapped = "[::ffff:127.0.0.1]:50000".parse().unwrap();
        assert_eq!(owner_in(&table, mapped, here), Some(1000));
        assert_eq!(owner_in("nonsense\nnonsense\n", peer, here), None);
    }

    #[test]
    fn an_end_that_no_process_holds_open_both_ways_is_nobodys() {
        let peer = "127.0.0.1:50000".parse().unwrap();
        let here = "127.0.0.1:8433".parse().unwrap();
        for (what, state, uid, inode) in [
            ("FIN_WAIT1 that was closed", "04", 0, 0),
            ("FIN_WAIT2 that was closed", "05", 0, 0),
            ("FIN_WAIT2 that is read from", "05", 1000, 78),
            ("TIME_WAIT", "06", 0, 0),
            ("CLOSE_WAIT", "08", 1000, 78),
            ("LAST_ACK", "09", 0, 0),
            ("CLOSING", "0B", 0, 0),
            ("ESTABLISHED that nobody has accepted", "01", 0, 0),
        ] {
            let table = table(&[
                end(8433, 50_000, "08", 0, 77),
                end(50_000, 8433, state, uid, inode),
            ]);
            assert_eq!(owner_in(&table, peer, here), None, "{what}");
        }
    }
}
