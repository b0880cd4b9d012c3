//! Command lines of the compared servers: Tidegate and its peers.
//!
//! A/B tests and the bench decide which are run against which.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::server::Launch;
use crate::vhost::Wait;

/// The size of null disks.
pub const NULL_SIZE: u64 = 1 << 30;

/// The storage of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// None: reads complete at once.
    Null,
    /// The server's memory.
    Memory,
    /// A file, with O_DIRECT where the peer supports it.
    File(PathBuf),
}

/// Options of a Tidegate server.
#[derive(Clone, Debug)]
pub struct Tidegate {
    /// The binary.
    pub program: PathBuf,
    /// The storage of its disk.
    pub store: Store,
    /// Filters, guest side first.
    pub filters: Vec<String>,
    /// How long its I/O thread polls before it sleeps; `None` for the default.
    pub poll_us: Option<u32>,
}

fn args<const N: usize>(args: [&str; N]) -> Vec<OsString> {
    args.iter().map(OsString::from).collect()
}

fn launch(
    name: &str,
    program: &Path,
    arguments: Vec<OsString>,
    sockets: &[PathBuf],
    cpu: usize,
) -> Launch {
    Launch {
        name: name.into(),
        program: program.into(),
        arguments,
        sockets: sockets.to_vec(),
        cpu: Some(cpu),
        own_group: false,
    }
}

/// `tidegate serve-one`, listening on a vhost-user socket or an NBD one.
#[must_use]
pub fn tidegate(
    name: &str,
    options: &Tidegate,
    vhost: Option<&Path>,
    nbd: Option<&Path>,
    cpu: usize,
) -> Launch {
    let mut arguments = args(["serve-one"]);
    arguments.push(match &options.store {
        Store::Null => format!("null:{NULL_SIZE}").into(),
        Store::Memory => format!("memory:{NULL_SIZE}").into(),
        Store::File(path) => path.into(),
    });
    for (flag, socket) in [("--vhost-user", vhost), ("--nbd", nbd)] {
        if let Some(socket) = socket {
            arguments.extend([flag.into(), socket.into()]);
        }
    }
    for filter in &options.filters {
        arguments.extend(args(["--filter", filter]));
    }
    if let Some(poll_us) = options.poll_us {
        arguments.extend(args(["--poll-us", &poll_us.to_string()]));
    }
    arguments.extend(args(["--cpu", &cpu.to_string()]));
    let sockets: Vec<PathBuf> = [vhost, nbd]
        .into_iter()
        .flatten()
        .map(Path::to_owned)
        .collect();
    // It pins its I/O thread itself. Its other threads must use the same core, so that their CPU time is counted there.
    launch(name, &options.program, arguments, &sockets, cpu)
}

fn qemu_node(store: &Store, name: &str) -> String {
    match store {
        Store::Null | Store::Memory => {
            format!("driver=null-co,node-name={name},size={NULL_SIZE},read-zeroes=on")
        }
        Store::File(path) => {
            format!(
                "driver=file,node-name={name},filename={},aio=io_uring,cache.direct=on",
                path.display()
            )
        }
    }
}

/// qemu-storage-daemon with one vhost-user-blk export per socket, all on its single thread.
#[must_use]
pub fn storage_daemon(store: &Store, sockets: &[PathBuf], cpu: usize) -> Launch {
    let mut arguments = Vec::new();
    for (index, socket) in sockets.iter().enumerate() {
        let node = qemu_node(store, &format!("d{index}"));
        let export = format!(
            "type=vhost-user-blk,id=e{index},node-name=d{index},writable=on,addr.type=unix,addr.path={}",
            socket.display()
        );
        arguments.extend(args(["--blockdev", &node, "--export", &export]));
    }
    launch(
        "qemu-storage-daemon",
        Path::new("qemu-storage-daemon"),
        arguments,
        sockets,
        cpu,
    )
}

/// qemu-storage-daemon with an NBD export named `d`.
#[must_use]
pub fn storage_daemon_nbd(store: &Store, socket: &Path, cpu: usize) -> Launch {
    let server = format!("addr.type=unix,addr.path={}", socket.display());
    let arguments = args([
        "--blockdev",
        &qemu_node(store, "d"),
        "--nbd-server",
        &server,
        "--export",
        "type=nbd,id=e,node-name=d,name=d,writable=on",
    ]);
    launch(
        "qemu-storage-daemon",
        Path::new("qemu-storage-daemon"),
        arguments,
        &[socket.into()],
        cpu,
    )
}

/// nbdkit with its null, memory or file plug-in (which uses the page cache).
#[must_use]
pub fn nbdkit(store: &Store, filters: &[&str], socket: &Path, cpu: usize) -> Launch {
    let mut arguments = args(["-f", "-U"]);
    arguments.push(socket.into());
    arguments.extend(
        filters
            .iter()
            .map(|filter| OsString::from(format!("--filter={filter}"))),
    );
    match store {
        Store::Null => arguments.extend(args(["null", &NULL_SIZE.to_string()])),
        Store::Memory => arguments.extend(args(["memory", &NULL_SIZE.to_string()])),
        Store::File(path) => {
            arguments.push("file".into());
            arguments.push(path.into());
        }
    }
    launch(
        "nbdkit",
        Path::new("nbdkit"),
        arguments,
        &[socket.into()],
        cpu,
    )
}

/// qemu-nbd for up to 16 clients.
#[must_use]
pub fn qemu_nbd(store: &Store, socket: &Path, cpu: usize) -> Launch {
    let mut arguments = args(["-k"]);
    arguments.push(socket.into());
    let node = qemu_node(store, "d");
    arguments.extend(args(["-e", "16", "-t", "--image-opts", &node]));
    launch(
        "qemu-nbd",
        Path::new("qemu-nbd"),
        arguments,
        &[socket.into()],
        cpu,
    )
}

/// The engine alone: `tidegate-bench engine` with a disk for each socket, with I/O control that never engages or
/// without.
#[must_use]
pub fn engine(program: &Path, sockets: &[PathBuf], controlled: bool, cpu: usize) -> Launch {
    let mut arguments = args(["engine"]);
    for socket in sockets {
        arguments.extend(["--socket".into(), socket.into()]);
    }
    if controlled {
        arguments.push("--controlled".into());
    }
    launch("engine", program, arguments, sockets, cpu)
}

/// The engine alone with a disk in memory for each socket; `place` is `memory`, or `cached` for one with a flash cache that
/// has all of it.
#[must_use]
pub fn engine_in_memory(program: &Path, sockets: &[PathBuf], place: &str, cpu: usize) -> Launch {
    let mut launch = engine(program, sockets, false, cpu);
    launch.arguments.extend(["--place".into(), place.into()]);
    launch
}

/// The engine alone with one disk, whose completions are coalesced in this way; `place` is `null`, or `ssd` for a modelled one.
#[must_use]
pub fn engine_coalescing(
    program: &Path,
    socket: &Path,
    place: &str,
    coalesce: &str,
    cpu: usize,
) -> Launch {
    let mut launch = engine_in_memory(program, &[socket.into()], place, cpu);
    launch
        .arguments
        .extend(["--coalesce".into(), coalesce.into()]);
    launch
}

/// The bare ring loop: `tidegate-bench bare --socket SOCKET`.
#[must_use]
pub fn bare(program: &Path, socket: &Path, wait: Wait, cpu: usize) -> Launch {
    let mut arguments = args(["bare", "--socket"]);
    arguments.push(socket.into());
    if wait == Wait::Poll {
        arguments.push("--poll".into());
    }
    let name = if wait == Wait::Poll {
        "bare loop, polling"
    } else {
        "bare loop, interrupt-driven"
    };
    launch(name, program, arguments, &[socket.into()], cpu)
}

/// Whether a program is installed.
#[must_use]
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serve_one_is_given_its_store_sockets_and_filters() {
        let options = Tidegate {
            program: "tidegate".into(),
            store: Store::Null,
            filters: vec!["stats".into(), "null".into()],
            poll_us: Some(50),
        };
        let launch = tidegate("ours", &options, Some(Path::new("/s")), None, 1);
        let line: Vec<_> = launch
            .arguments
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        assert_eq!(
            line.join(" "),
            "serve-one null:1073741824 --vhost-user /s --filter stats --filter null --poll-us 50 --cpu 1"
        );
        assert_eq!(launch.sockets, [PathBuf::from("/s")]);
    }
}
