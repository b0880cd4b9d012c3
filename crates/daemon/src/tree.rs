//! The control tree: files of short text that show and change I/O threads and the devices that they serve.
//!
//! REST, the command line, the mounted tree and the manual read one table of nodes ([`nodes`]). This file finds the node
//! of a path, lists directories, reads and writes. What the nodes show comes through [`Controlled`], so that tests can
//! play the daemon.
//!
//! # Always true
//! - A write took effect before it is answered, or changed nothing.
//! - Every problem has the name of a system error, whatever the path and the value are (tested with random ones).
//! - A path or value of a client is never longer than [`LONGEST`] where it is parsed.
//!
//! # Source
//! IOcm's files in `/sys/class/vhost/`, in our words.

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::thread::Thread;
use tidegate_api::tree::{Errno, TreeAccess, TreeChange, TreeEntry, TreeKind, TreeNode};
use tidegate_engine::counters::QueueActivity;

use crate::os_error::Outcome;

mod controlled;
pub(crate) mod nodes;

pub(crate) use controlled::Controlled;
use controlled::{Machine, Queue};
use nodes::{DIRECTORIES, File, Node, nodes};

/// The longest path and the longest value, in bytes: a page, as in sysfs.
const LONGEST: usize = 4096;

/// What a placeholder in a path stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Of {
    /// There is no placeholder.
    Host,
    /// `N`: an I/O thread.
    Thread(u32),
    /// `NAME`: an attached disk.
    Device(Name),
    /// `QUEUE`: a queue of an attached disk, or its NBD connections.
    Queue(Name, Queue),
    /// `PID`: the process of a virtual machine.
    Machine(u32),
}

/// The node of a path.
enum Found {
    Directory(&'static nodes::Directory, Of),
    File(&'static Node, Of),
}

/// Reads a node: the text of a file, or the entries of a directory.
pub(crate) fn read(on: &dyn Controlled, path: &str) -> Outcome<TreeNode> {
    let told = |problem: Problem| named("read", path, problem);
    match find(path).map_err(told)? {
        Found::Directory(directory, of) => Ok(TreeNode {
            path: filled(directory.path, &of),
            kind: TreeKind::Directory,
            access: TreeAccess::Read,
            about: directory.about.to_owned(),
            value: None,
            entries: entries(on, directory, &of).map_err(told)?,
        }),
        Found::File(node, of) => Ok(TreeNode {
            path: filled(node.path, &of),
            kind: TreeKind::File,
            access: node.file.access(),
            about: node.about.to_owned(),
            value: text(on, node, &of).map_err(told)?,
            entries: Vec::new(),
        }),
    }
}

/// Writes a file.
pub(crate) fn write(on: &dyn Controlled, path: &str, value: &str) -> Outcome<TreeChange> {
    let told = |problem: Problem| named("write", path, problem);
    match find(path).map_err(told)? {
        Found::Directory(directory, of) => Err(told(refused(
            ProblemCode::Invalid,
            Errno::IsADirectory,
            "it is a directory",
            &format!(
                "write one of its files: `tidegate get {}` lists them",
                filled(directory.path, &of)
            ),
        ))),
        Found::File(node, of) => Ok(TreeChange {
            path: filled(node.path, &of),
            result: change(on, node, &of, value).map_err(told)?,
        }),
    }
}

/// The text of a file; none if it can only be written.
fn text(on: &dyn Controlled, node: &Node, of: &Of) -> Outcome<Option<String>> {
    let line = |text: String| match text.is_empty() || text.ends_with('\n') {
        true => text,
        false => text + "\n",
    };
    let text = match (&node.file, of) {
        (File::Host { read, .. }, Of::Host) => read.map(|read| read(on)).transpose()?,
        (File::Monitor { read, .. }, Of::Host) => Some(read(&on.monitor()?)),
        (File::Thread { read, .. }, Of::Thread(thread)) => {
            let thread = thread_of(on, *thread)?;
            read.map(|read| read(&thread))
        }
        (File::Device { read, .. }, Of::Device(name)) => {
            let device = on.device(name)?;
            read.map(|read| read(&device))
        }
        (File::Queue { read }, Of::Queue(name, queue)) => Some(read(&queue_of(on, name, *queue)?)),
        (File::Machine { read }, Of::Machine(pid)) => Some(read(&machine_of(on, *pid)?)),
        _ => return Err(nothing_there()),
    };
    Ok(text.map(line))
}

/// Writes a file, and returns the result for the caller.
fn change(on: &dyn Controlled, node: &Node, of: &Of, value: &str) -> Outcome<String> {
    let value = checked(value)?;
    match (&node.file, of) {
        (File::Host { write, .. } | File::Monitor { write, .. }, Of::Host) => match write {
            Some(write) => write(on, value),
            None => Err(read_only()),
        },
        (File::Thread { write, .. }, Of::Thread(thread)) => {
            thread_of(on, *thread)?;
            match write {
                Some(write) => write(on, *thread, value),
                None => Err(read_only()),
            }
        }
        (File::Device { write, .. }, Of::Device(name)) => {
            on.device(name)?;
            match write {
                Some(write) => write(on, name, value),
                None => Err(read_only()),
            }
        }
        (File::Queue { .. }, Of::Queue(name, queue)) => {
            queue_of(on, name, *queue)?;
            Err(read_only())
        }
        (File::Machine { .. }, Of::Machine(pid)) => {
            machine_of(on, *pid)?;
            Err(read_only())
        }
        _ => Err(nothing_there()),
    }
}

/// A value without the space around it.
fn checked(value: &str) -> Outcome<&str> {
    if value.len() > LONGEST {
        return Err(refused(
            ProblemCode::TooLarge,
            Errno::TooBig,
            &format!("the value has {} bytes", value.len()),
            &format!("write at most {LONGEST} bytes"),
        ));
    }
    Ok(value.trim())
}

/// What a directory has: first its files and fixed directories in the order of the table, then the things of this host.
fn entries(on: &dyn Controlled, directory: &nodes::Directory, of: &Of) -> Outcome<Vec<TreeEntry>> {
    exists(on, of)?;
    let mut entries = Vec::new();
    let directories = DIRECTORIES.iter().map(|it| (it.path, None));
    let files = nodes().map(|it| (it.path, Some(&it.file)));
    for (path, file) in files.chain(directories) {
        let Some(name) = child(directory.path, path) else {
            continue;
        };
        let names = match name {
            "N" => on
                .threads()?
                .iter()
                .map(|it| it.thread.to_string())
                .collect(),
            "NAME" => on.devices().iter().map(Name::to_string).collect(),
            "QUEUE" => queues(on),
            "PID" => on.machines().iter().map(u32::to_string).collect(),
            fixed => vec![fixed.to_owned()],
        };
        entries.extend(names.into_iter().map(|name| TreeEntry {
            name,
            kind: match file {
                Some(_) => TreeKind::File,
                None => TreeKind::Directory,
            },
            access: file.map_or(TreeAccess::Read, File::access),
        }));
    }
    Ok(entries)
}

/// The last part of `path`, if it lies directly in `directory`.
fn child<'a>(directory: &str, path: &'a str) -> Option<&'a str> {
    let name = path.strip_prefix(directory.trim_end_matches('/'))?;
    let name = name.strip_prefix('/')?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// Whether the thing that a path is about exists.
fn exists(on: &dyn Controlled, of: &Of) -> Outcome<()> {
    match of {
        Of::Host => Ok(()),
        Of::Thread(thread) => thread_of(on, *thread).map(drop),
        Of::Device(name) => on.device(name).map(drop),
        Of::Queue(name, queue) => queue_of(on, name, *queue).map(drop),
        Of::Machine(pid) => machine_of(on, *pid).map(drop),
    }
}

fn thread_of(on: &dyn Controlled, number: u32) -> Outcome<Thread> {
    let found = on.threads()?.into_iter().find(|it| it.thread == number);
    found.ok_or_else(|| {
        missing(
            &format!("there is no I/O thread {number}"),
            "`tidegate thread list` shows them",
        )
    })
}

/// The queues of all attached disks. Each disk is read once.
fn queues(on: &dyn Controlled) -> Vec<String> {
    let devices = on.devices().into_iter();
    let of = |name: Name| {
        // A disk that was detached meanwhile is left out.
        let queues = on.queues(&name).unwrap_or_default().into_iter();
        let names = queues.map(|(queue, _)| format!("{name}.{queue}"));
        names.collect::<Vec<_>>()
    };
    devices.flat_map(of).collect()
}

fn queue_of(on: &dyn Controlled, name: &Name, queue: Queue) -> Outcome<QueueActivity> {
    let mut queues = on.queues(name)?.into_iter();
    let found = queues.find(|(it, _)| *it == queue);
    found.map(|(_, did)| did).ok_or_else(|| {
        missing(
            &format!("disk {name} has no queue {queue}"),
            "`tidegate get /queue` lists them",
        )
    })
}

fn machine_of(on: &dyn Controlled, pid: u32) -> Outcome<Machine> {
    on.machine(pid).ok_or_else(|| {
        missing(
            &format!("process {pid} uses no disk as a virtual machine"),
            "`tidegate get /vm` lists those that do",
        )
    })
}

/// Finds the node of a path in the table.
fn find(path: &str) -> Outcome<Found> {
    if path.len() > LONGEST {
        return Err(nothing_there());
    }
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    for directory in DIRECTORIES {
        if let Some(of) = matches(directory.path, &words) {
            return Ok(Found::Directory(directory, of));
        }
    }
    for node in nodes() {
        if let Some(of) = matches(node.path, &words) {
            return Ok(Found::File(node, of));
        }
    }
    let through_a_file = (1..words.len()).any(|most| {
        let mut files = nodes();
        files.any(|node| matches(node.path, &words[..most]).is_some())
    });
    Err(match through_a_file {
        true => refused(
            ProblemCode::NotFound,
            Errno::NotADirectory,
            "a part of the path is a file",
            "`tidegate get PATH` lists a directory",
        ),
        false => nothing_there(),
    })
}

/// What the placeholder of a pattern stands for in a path; none if the path does not have that form.
fn matches(pattern: &str, words: &[&str]) -> Option<Of> {
    let parts = pattern.split('/').filter(|part| !part.is_empty());
    let mut of = Of::Host;
    let mut words = words.iter();
    for part in parts {
        let word = *words.next()?;
        match part {
            "N" => of = Of::Thread(number(word)?),
            "NAME" => of = Of::Device(word.parse().ok()?),
            "QUEUE" => {
                let (name, queue) = word.rsplit_once('.')?;
                of = Of::Queue(name.parse().ok()?, Queue::of(queue)?);
            }
            "PID" => of = Of::Machine(number(word)?),
            fixed if fixed == word => {}
            _ => return None,
        }
    }
    words.next().is_none().then_some(of)
}

/// A number in its only form: a thread has one path.
fn number(word: &str) -> Option<u32> {
    let number: u32 = word.parse().ok()?;
    (number.to_string() == word).then_some(number)
}

/// A pattern with its placeholder filled in.
fn filled(pattern: &'static str, of: &Of) -> String {
    let (place, text) = match of {
        Of::Host => return pattern.to_owned(),
        Of::Thread(thread) => ("/N", format!("/{thread}")),
        Of::Device(name) => ("/NAME", format!("/{name}")),
        Of::Queue(name, queue) => ("/QUEUE", format!("/{name}.{queue}")),
        Of::Machine(pid) => ("/PID", format!("/{pid}")),
    };
    pattern.replacen(place, &text, 1)
}

/// A problem as the failure of a read or write, with the name of its system error.
fn named(act: &str, path: &str, problem: Problem) -> Problem {
    let errno = problem.errno();
    let path: String = path.chars().take(200).collect();
    let path = path.trim_start_matches('/');
    problem
        .within(format!("cannot {act} /{path} ({})", errno.as_str()))
        .with_errno(errno)
}

fn refused(code: ProblemCode, errno: Errno, why: &str, remedy: &str) -> Problem {
    Problem::new(code, why).remedy(remedy).with_errno(errno)
}

fn missing(why: &str, remedy: &str) -> Problem {
    refused(ProblemCode::NotFound, Errno::NoEntry, why, remedy)
}

fn nothing_there() -> Problem {
    missing(
        "nothing has that path",
        "`tidegate get /` lists what there is, and docs/control-tree.md describes it",
    )
}

fn read_only() -> Problem {
    refused(
        ProblemCode::WrongMethod,
        Errno::Access,
        "it can only be read",
        "docs/control-tree.md says which files can be written",
    )
}

/// The problem of a value that makes no sense.
fn senseless(value: &str, remedy: &str) -> Problem {
    let shown: String = value.chars().take(80).collect();
    let why = match shown.is_empty() {
        true => "no value was written".to_owned(),
        false => format!("{shown:?} is not possible"),
    };
    refused(ProblemCode::Invalid, Errno::Invalid, &why, remedy)
}

/// All nodes as a page of the manual.
pub(crate) fn reference() -> String {
    let mut text = String::from(
        "# The control tree\n\n\
         The control tree has files of short text. They show and change I/O threads and devices while disks are in use.\n\
         There are three ways to it:\n\n\
         | way | read | write |\n|---|---|---|\n\
         | command line | `tidegate get PATH` | `tidegate set PATH VALUE` |\n\
         | REST | `GET /v1/tree/PATH`; `?watch` for server-sent events | `PUT /v1/tree/PATH` with `{\"value\": \"...\"}` |\n\
         | files | `tidegate mount DIR`, then `cat DIR/PATH` | `echo VALUE > DIR/PATH` |\n\n\
         A write took effect before it is answered, or it changed nothing. Errors have the names of system errors:\n\n\
         | error | meaning |\n|---|---|\n\
         | ENOENT | nothing has that path: no such file, I/O thread, attached disk or virtual machine |\n\
         | ENOTDIR, EISDIR | a part of the path is a file; a directory is written |\n\
         | EACCES | the file can only be read, or only be written |\n\
         | EINVAL, E2BIG | the value makes no sense, or names a parked thread; it is longer than 4096 bytes |\n\
         | EBUSY | the state does not allow it: a thread has disks, a disk is moving |\n\
         | ESHUTDOWN | the daemon is stopping, or cannot be reached |\n\n\
         In a path, `N` is the number of an I/O thread, `NAME` an attached disk, `PID` the process of a virtual machine,\n\
         and `QUEUE` a queue of a disk (`db1.0`) or its NBD connections together (`db1.nbd`).\n\
         In the tables, r is a file that is read, w one that is written, rw both.\n",
    );
    for directory in DIRECTORIES {
        let mut files = nodes()
            .filter(|node| child(directory.path, node.path).is_some())
            .peekable();
        if files.peek().is_none() {
            continue;
        }
        text.push_str(&format!(
            "\n## {}\n\n{}\n\n| file | access | meaning |\n|---|---|---|\n",
            directory.path,
            sentence(directory.about)
        ));
        for node in files {
            let access = node.file.access().as_str();
            text.push_str(&format!(
                "| `{}` | {access} | {} |\n",
                node.path, node.about
            ));
        }
    }
    text
}

/// A clause as a sentence.
fn sentence(clause: &str) -> String {
    let mut letters = clause.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

#[cfg(test)]
mod tests;
