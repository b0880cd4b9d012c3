//! Listening sockets, created here or inherited from the parent process. Stale socket files of dead daemons are
//! removed.
//!
//! # Always true
//! - A socket file is removed only if no process listens on it. Anything else in its place is an error that names it.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use tidegate_api::problem::{Problem, ProblemCode};

use crate::os_error::{self, Outcome};

/// Longest path of a Unix socket, in bytes.
const LONGEST: usize = 107;

/// Listens on a Unix socket with the given permissions.
pub(crate) fn listen_unix(path: &Path, mode: u32) -> Outcome<UnixListener> {
    match look(path)? {
        Place::Free => {}
        Place::Stale => fs::remove_file(path).map_err(|e| unix_refused(path, &e))?,
        Place::Taken(_) => return Err(taken(cannot_listen(path))),
    }
    UnixListener::bind(path)
        .and_then(|listener| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })
        .map_err(|error| unix_refused(path, &error))
}

/// Checks whether [`listen_unix`] would succeed, without listening. Two processes may own the socket already: the one
/// that exits when this configuration is used (`makes_way`), and a service manager, which passes the socket on.
pub(crate) fn check_unix(path: &Path, makes_way: Option<u32>) -> Outcome<()> {
    match look(path)? {
        Place::Taken(Some(pid)) if makes_way == Some(pid) || is_service_manager(pid) => Ok(()),
        Place::Taken(_) => Err(taken(cannot_listen(path))),
        Place::Free | Place::Stale => {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let access = Access::WRITE_OK | Access::EXEC_OK;
            rustix::fs::accessat(CWD, folder, access, AtFlags::EACCESS)
                .map_err(|error| unix_refused(path, &error.into()))
        }
    }
}

fn is_service_manager(pid: u32) -> bool {
    pid == 1 || fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == "systemd")
}

/// Listens on a TCP address.
pub(crate) fn listen_tcp(address: SocketAddr) -> Outcome<TcpListener> {
    TcpListener::bind(address)
        .and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        })
        .map_err(|error| tcp_refused(address, &error))
}

/// Checks whether [`listen_tcp`] would succeed, without listening. `makes_way` is as in [`check_unix`], but the owner
/// of a TCP port cannot be determined.
pub(crate) fn check_tcp(address: SocketAddr, makes_way: Option<u32>) -> Outcome<()> {
    let bind = || -> io::Result<()> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        Ok(rustix::net::bind(&socket, &address)?)
    };
    match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && makes_way.is_some() => Ok(()),
        tried => tried.map_err(|error| tcp_refused(address, &error)),
    }
}

fn cannot_listen(path: &Path) -> String {
    format!("cannot listen on {}", path.display())
}

/// The error for a path that cannot be listened on, with its remedy.
fn unix_refused(path: &Path, error: &io::Error) -> Problem {
    let folder = path.parent().unwrap_or(path).display();
    let problem = os_error::io(cannot_listen(path), error);
    match error.kind() {
        // sockaddr_un has room for 107 bytes; the kernel's error for a longer path does not say so.
        _ if path.as_os_str().len() > LONGEST => problem.remedy(format!(
            "use a shorter path, for example by --root DIR: a socket's path may have {LONGEST} bytes"
        )),
        io::ErrorKind::NotFound => problem.remedy(format!("create its directory: mkdir -p {folder}")),
        io::ErrorKind::NotADirectory => {
            problem.remedy(format!("choose another path: {folder} is no directory"))
        }
        _ => problem,
    }
}

/// The error for an address that cannot be listened on, with its remedy.
fn tcp_refused(address: SocketAddr, error: &io::Error) -> Problem {
    let problem = os_error::io(format!("cannot listen on {address}"), error);
    match error.kind() {
        io::ErrorKind::AddrInUse => problem.remedy(
            "stop the program that listens there (see `ss -ltnp`), or choose another port in the configuration",
        ),
        io::ErrorKind::AddrNotAvailable => {
            problem.remedy("choose an address that this host has (see `ip addr`)")
        }
        io::ErrorKind::PermissionDenied => {
            problem.remedy("choose a port from 1024 on, or give the daemon CAP_NET_BIND_SERVICE")
        }
        _ => problem,
    }
}

/// Has the kernel end a TCP connection whose peer does not respond for `after`: it vanished, or does not read what it
/// is sent.
pub(crate) fn notice_silence(socket: &impl AsFd, after: Duration) {
    // Sends a few probes before the connection is closed. A socket without this option is served anyway.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, after / 2);
    let _ = sockopt::set_tcp_keepintvl(socket, after / 6);
    let millis = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(socket, millis);
}

/// The occupant of a path where a socket is wanted.
enum Place {
    Free,
    /// A socket file on which no process listens.
    Stale,
    /// A process listens; its id, if the kernel reports it.
    Taken(Option<u32>),
}

fn look(path: &Path) -> Outcome<Place> {
    let there = match path.symlink_metadata() {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match path.as_os_str().len() > LONGEST {
                true => Err(unix_refused(path, &io::ErrorKind::InvalidInput.into())),
                false => Ok(Place::Free),
            };
        }
        Err(error) => return Err(unix_refused(path, &error)),
    };
    if !there.file_type().is_socket() {
        return Err(Problem::new(ProblemCode::Exists, cannot_listen(path))
            .because("something that is not a socket is in its place")
            .remedy("move it away, or choose another path"));
    }
    match knock(path) {
        Ok(pid) => Ok(Place::Taken(pid)),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => Ok(Place::Stale),
            // A process whose accept queue is full is still listening.
            io::ErrorKind::WouldBlock => Ok(Place::Taken(None)),
            io::ErrorKind::NotFound => Ok(Place::Free),
            _ => Err(unix_refused(path, &error)),
        },
    }
}

/// Checks whether a process listens and returns its id. Does not wait if its accept queue is full.
fn knock(path: &Path) -> io::Result<Option<u32>> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let peer = sockopt::socket_peercred(&socket).ok();
    Ok(peer.and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok()))
}

fn taken(what: String) -> Problem {
    Problem::new(ProblemCode::Exists, what)
        .because("another process listens there")
        .remedy("stop it (see `ss -lxp`), or choose another path")
}

/// A listening socket that another process opened for us.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// The name that its opener gave it (systemd's `FileDescriptorName=`).
    pub(crate) name: String,
    pub(crate) socket: Listening,
}

/// A listening socket of either family.
#[derive(Debug)]
pub(crate) enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// The sockets passed by `LISTEN_FDS` (systemd socket activation and compatible tools).
pub(crate) fn inherited() -> Outcome<Vec<Inherited>> {
    let what = "cannot take over the inherited sockets";
    let handed = sd_notify::listen_fds_with_names().map_err(|e| os_error::io(what, &e))?;
    let mut sockets = Vec::new();
    for (number, name) in handed {
        let socket = adopt(number)
            .and_then(classify)
            .map_err(|e| os_error::io(what, &e))?;
        sockets.push(Inherited { name, socket });
    }
    Ok(sockets)
}

/// The connected socket that is our standard input.
pub(crate) fn standard_input() -> Outcome<OwnedFd> {
    let what = "cannot serve an NBD client on standard input";
    let socket = adopt(0).map_err(|e| os_error::io(what, &e))?;
    match rustix::net::getpeername(&socket) {
        Ok(_) => Ok(socket),
        Err(error) => Err(os_error::invalid(what)
            .because("it is not a connected socket")
            .because(error)
            .remedy(
                "start it by a program that hands one over, such as libnbd's nbd_connect_command; or name a socket to listen on with --nbd SOCKET",
            )),
    }
}

/// Duplicates a descriptor that is known by number only, for the same open socket. The original stays open as long as
/// the process lives.
fn adopt(number: i32) -> io::Result<OwnedFd> {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    Ok(rustix::process::pidfd_getfd(
        own,
        number,
        PidfdGetfdFlags::empty(),
    )?)
}

fn classify(socket: OwnedFd) -> io::Result<Listening> {
    if !sockopt::socket_acceptconn(&socket)? {
        let text = "a socket does not listen; a connected one is served by `serve-one --single`, as standard input";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let address = rustix::net::getsockname(socket.as_fd())?;
    let listening = if address.address_family() == AddressFamily::UNIX {
        let listener = UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        Listening::Unix(listener)
    } else {
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        Listening::Tcp(listener)
    };
    Ok(listening)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_connected_socket_is_not_taken_for_one_that_listens() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = classify(ours.into()).unwrap_err();
        assert!(error.to_string().contains("--single"), "{error}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(matches!(classify(listener.into()), Ok(Listening::Tcp(_))));
    }

    #[test]
    fn a_socket_that_nobody_listens_on_makes_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        drop(UnixListener::bind(&path).unwrap());
        let listener = listen_unix(&path, 0o600).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        drop(listener);
    }

    #[test]
    fn a_socket_that_somebody_listens_on_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let other = UnixListener::bind(&path).unwrap();
        let refused = listen_unix(&path, 0o600).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("another process listens there"),
            "{refused}"
        );
        UnixStream::connect(&path).unwrap();
        drop(other);
    }

    #[test]
    fn a_socket_whose_listener_has_a_full_queue_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let other = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&other, 0).unwrap();
        let _waits = UnixStream::connect(&path).unwrap();
        let refused = listen_unix(&path, 0o600).unwrap_err().to_string();
        assert!(
            refused.contains("another process listens there"),
            "{refused}"
        );
        assert!(path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        assert!(listen_unix(&path, 0o600).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let refused = listen_unix(&folder.path().join("x".repeat(120)), 0o600).unwrap_err();
        assert!(refused.to_string().contains("107 bytes"), "{refused}");
    }

    #[test]
    fn what_is_checked_is_refused_as_listening_is_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "").unwrap();
        let _taken = UnixListener::bind(at("taken")).unwrap();
        let long = "x".repeat(120);
        for (name, remedy) in [
            ("file", "move it away"),
            ("gone/s", "mkdir -p"),
            ("file/s", "is no directory"),
            ("taken", "ss -lxp"),
            (&long, "shorter path"),
        ] {
            let checked = check_unix(&at(name), None).unwrap_err();
            let listened = listen_unix(&at(name), 0o600).unwrap_err();
            for told in [&checked, &listened] {
                let told = told.remedy.as_deref().unwrap_or_default();
                assert!(told.contains(remedy), "{name}: {told}");
            }
            assert_eq!(checked, listened);
        }
        check_unix(&at("free"), None).unwrap();
        assert!(!at("free").exists());
        drop(UnixListener::bind(at("stale")).unwrap());
        check_unix(&at("stale"), None).unwrap();
        assert!(at("stale").exists());
        // The daemon that serves now gives up the socket to the new one.
        check_unix(&at("taken"), Some(std::process::id())).unwrap();
        // The remedy in the hint works.
        fs::create_dir(at("gone")).unwrap();
        listen_unix(&at("gone/s"), 0o600).unwrap();
    }

    #[test]
    fn a_tcp_address_is_checked_as_it_is_listened_to() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap();
        let foreign = "192.0.2.1:10809".parse().unwrap();
        for address in [taken, foreign] {
            let checked = check_tcp(address, None).unwrap_err();
            assert_eq!(checked, listen_tcp(address).unwrap_err());
            assert!(checked.remedy.is_some(), "{checked}");
        }
        check_tcp(taken, Some(1)).unwrap();
        drop(other);
        check_tcp(taken, None).unwrap();
        listen_tcp(taken).unwrap();
    }

    #[test]
    fn a_port_in_use_is_a_clear_error() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let refused = listen_tcp(other.local_addr().unwrap())
            .unwrap_err()
            .to_string();
        assert!(refused.contains("another port"), "{refused}");
    }

    #[test]
    fn the_kernel_asks_whether_the_other_end_is_still_there_and_waits_no_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        notice_silence(&socket, Duration::from_secs(30));
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(
            sockopt::tcp_keepidle(&socket).unwrap(),
            Duration::from_secs(15)
        );
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 30_000);
    }

    #[test]
    fn an_inherited_socket_is_known_by_its_family() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let unix = UnixListener::bind(folder.path().join("s")).unwrap();
        let tcp_again = adopt(tcp.as_raw_fd()).and_then(classify).unwrap();
        assert!(matches!(tcp_again, Listening::Tcp(_)));
        let unix_again = adopt(unix.as_raw_fd()).and_then(classify).unwrap();
        assert!(matches!(unix_again, Listening::Unix(_)));
    }
}
