//! The control tree as the kernel asks for it: each request becomes one of the REST client's, and its problem an errno.
//!
//! Files have a size of 4096 and bypass the page cache (`direct_io`), as those of sysfs do: a read at the beginning
//! takes the value anew, later reads go on with what it took. A write is a whole value; its offset has no meaning.
//!
//! # Always true
//! - A number of an inode that the kernel knows stands for one path until the kernel forgets it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use tidegate_api::routes;
use tidegate_api::tree::{self, TreeAccess, TreeKind, TreeNode, TreeSet};

use crate::client::Client;
use crate::failure::Failure;

/// How long the kernel may use an entry without asking again: disks and threads come and go.
const FRESH: Duration = Duration::from_secs(1);

/// The size that files have: a page, as in sysfs. Their text may be shorter or longer.
const SIZE: u64 = 4096;

/// The longest value that a write may have, as the daemon has it.
const LONGEST: usize = 4096;

/// See the module.
pub(super) struct Files {
    client: Client,
    nodes: Mutex<Nodes>,
    open: Mutex<Open>,
    mounted: SystemTime,
    /// The user and the group that mounted it.
    owner: (u32, u32),
}

/// The nodes that the kernel knows.
struct Nodes(HashMap<u64, Known>);

struct Known {
    /// Without a slash at its beginning.
    path: String,
    kind: TreeKind,
    access: TreeAccess,
    /// How often the kernel was told of it, less what it has forgotten.
    lookups: u64,
}

/// What open files and directories have read.
#[derive(Default)]
struct Open {
    last: u64,
    handles: HashMap<u64, Vec<u8>>,
}

impl Nodes {
    fn new() -> Nodes {
        let root = Known {
            path: String::new(),
            kind: TreeKind::Directory,
            access: TreeAccess::Read,
            lookups: 1,
        };
        Nodes(HashMap::from([(INodeNo::ROOT.0, root)]))
    }

    /// The number of a path that the kernel is told of.
    fn told(&mut self, node: &TreeNode) -> u64 {
        let path = node.path.trim_start_matches('/');
        let mut number = number_of(path);
        // Two paths of one number: the second gets the next free one.
        while self.0.get(&number).is_some_and(|it| it.path != path) {
            number = number.wrapping_add(1).max(2);
        }
        let known = self.0.entry(number).or_insert_with(|| Known {
            path: path.to_owned(),
            kind: node.kind,
            access: node.access,
            lookups: 0,
        });
        known.lookups += 1;
        number
    }

    /// The kernel has forgotten a number this often.
    fn forgotten(&mut self, number: u64, times: u64) {
        if number == INodeNo::ROOT.0 {
            return;
        }
        if let Some(known) = self.0.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(times);
            if known.lookups == 0 {
                self.0.remove(&number);
            }
        }
    }
}

/// The number of a path: the same in listings and in later requests (FNV-1a). One is the root's.
fn number_of(path: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    path.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(2)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete, so another thread's panic leaves no partial state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Files {
    /// The tree of this client's daemon.
    pub(super) fn new(client: Client) -> Files {
        // The process's own directory belongs to who runs it.
        let own = std::fs::metadata("/proc/self");
        Files {
            client,
            nodes: Mutex::new(Nodes::new()),
            open: Mutex::default(),
            mounted: SystemTime::now(),
            owner: own.map_or((0, 0), |own| (own.uid(), own.gid())),
        }
    }

    fn path(&self, number: INodeNo) -> Result<String, Errno> {
        let nodes = locked(&self.nodes);
        nodes
            .0
            .get(&number.0)
            .map(|known| known.path.clone())
            .ok_or(Errno::ENOENT)
    }

    fn node(&self, path: &str) -> Result<TreeNode, Errno> {
        self.client
            .look(routes::TREE, &[path])
            .map_err(|failure| errno(&failure))
    }

    /// The node of a name in a directory.
    fn found(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        let path = match self.path(parent)?.as_str() {
            "" => name.to_owned(),
            parent => format!("{parent}/{name}"),
        };
        let node = self.node(&path)?;
        let number = locked(&self.nodes).told(&node);
        Ok(self.attributes(number, node.kind, node.access))
    }

    fn known(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        let nodes = locked(&self.nodes);
        let known = nodes.0.get(&number.0).ok_or(Errno::ENOENT)?;
        Ok(self.attributes(number.0, known.kind, known.access))
    }

    fn attributes(&self, number: u64, kind: TreeKind, access: TreeAccess) -> FileAttr {
        let (kind, perm, size, nlink) = match (kind, access) {
            (TreeKind::Directory, _) => (FileType::Directory, 0o555, 0, 2),
            (TreeKind::File, TreeAccess::Read) => (FileType::RegularFile, 0o444, SIZE, 1),
            (TreeKind::File, TreeAccess::Write) => (FileType::RegularFile, 0o200, SIZE, 1),
            (TreeKind::File, TreeAccess::ReadWrite) => (FileType::RegularFile, 0o644, SIZE, 1),
        };
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: 0,
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// The text of a file.
    fn text(&self, number: INodeNo) -> Result<Vec<u8>, Errno> {
        let node = self.node(&self.path(number)?)?;
        match (node.kind, node.value) {
            (TreeKind::Directory, _) => Err(Errno::EISDIR),
            (TreeKind::File, Some(value)) => Ok(value.into_bytes()),
            (TreeKind::File, None) => Err(Errno::EACCES),
        }
    }

    /// What a read gives: at the beginning the value anew, later what was taken then.
    fn part(&self, number: INodeNo, handle: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let begins = offset == 0 || !locked(&self.open).handles.contains_key(&handle);
        if begins {
            let text = self.text(number)?;
            locked(&self.open).handles.insert(handle, text);
        }
        let open = locked(&self.open);
        let text = open.handles.get(&handle).map_or(&[][..], Vec::as_slice);
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(text.len());
        let most = usize::try_from(size).unwrap_or(usize::MAX);
        Ok(text[from..].iter().copied().take(most).collect())
    }

    fn set(&self, number: INodeNo, data: &[u8]) -> Result<(), Errno> {
        if data.len() > LONGEST {
            return Err(Errno::E2BIG);
        }
        let value = std::str::from_utf8(data).map_err(|_| Errno::EINVAL)?;
        let order = TreeSet {
            value: value.to_owned(),
        };
        let path = self.path(number)?;
        let set = self
            .client
            .order(routes::TREE_SET, &[path.as_str()], &order);
        set.map(drop).map_err(|failure| errno(&failure))
    }
}

/// The system error for a failure of the REST client.
fn errno(failure: &Failure) -> Errno {
    let problem = match failure {
        Failure::Unreachable(_) => return Errno::ESHUTDOWN,
        Failure::Failed(problem) | Failure::Usage(problem) => problem,
        Failure::NobodyReads => return Errno::EIO,
    };
    match problem.errno() {
        tree::Errno::NoEntry => Errno::ENOENT,
        tree::Errno::NotADirectory => Errno::ENOTDIR,
        tree::Errno::IsADirectory => Errno::EISDIR,
        tree::Errno::Access => Errno::EACCES,
        tree::Errno::Invalid => Errno::EINVAL,
        tree::Errno::Busy => Errno::EBUSY,
        tree::Errno::Exists => Errno::EEXIST,
        tree::Errno::NoSpace => Errno::ENOSPC,
        tree::Errno::TooBig => Errno::E2BIG,
        tree::Errno::Unsupported => Errno::EOPNOTSUPP,
        tree::Errno::Again => Errno::EAGAIN,
        tree::Errno::ShutDown => Errno::ESHUTDOWN,
        tree::Errno::Io => Errno::EIO,
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.found(parent, name) {
            Ok(attributes) => reply.entry(&FRESH, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        locked(&self.nodes).forgotten(number.0, times);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.known(number) {
            Ok(attributes) => reply.attr(&FRESH, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    /// A shell truncates a file before it writes: that changes nothing, as in sysfs.
    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        match self.known(number) {
            Ok(attributes) => reply.attr(&FRESH, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut open = locked(&self.open);
        open.last += 1;
        reply.opened(FileHandle(open.last), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.part(number, handle.0, offset, size) {
            Ok(part) => reply.data(&part),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match (self.set(number, data), u32::try_from(data.len())) {
            (Ok(()), Ok(size)) => reply.written(size),
            (Ok(()), Err(_)) => reply.error(Errno::E2BIG),
            (Err(errno), _) => reply.error(errno),
        }
    }

    /// Nothing is left to write when a file is closed.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        locked(&self.open).handles.remove(&handle.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self
            .path(number)
            .and_then(|path| Ok((self.node(&path)?, path)));
        let (node, path) = match listed {
            Ok(listed) => listed,
            Err(errno) => return reply.error(errno),
        };
        if node.kind == TreeKind::File {
            return reply.error(Errno::ENOTDIR);
        }
        let own = [".", ".."].map(|name| (number, FileType::Directory, name.to_owned()));
        let others = node.entries.into_iter().map(|entry| {
            let inner = match path.as_str() {
                "" => entry.name.clone(),
                path => format!("{path}/{}", entry.name),
            };
            let kind = match entry.kind {
                TreeKind::Directory => FileType::Directory,
                TreeKind::File => FileType::RegularFile,
            };
            (INodeNo(number_of(&inner)), kind, entry.name)
        });
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let all = (1..).zip(own.into_iter().chain(others)).skip(from);
        for (next, (number, kind, name)) in all {
            if reply.add(number, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::problem::{Problem, ProblemCode};

    fn node(path: &str) -> TreeNode {
        TreeNode {
            path: path.to_owned(),
            kind: TreeKind::File,
            access: TreeAccess::Read,
            about: String::new(),
            value: None,
            entries: Vec::new(),
        }
    }

    #[test]
    fn a_number_stands_for_a_path_until_the_kernel_has_forgotten_it_as_often_as_it_was_told() {
        let mut nodes = Nodes::new();
        let number = nodes.told(&node("/thread/0/state"));
        assert_eq!(nodes.told(&node("/thread/0/state")), number);
        assert_eq!(number, number_of("thread/0/state"));
        nodes.forgotten(number, 1);
        assert_eq!(nodes.0[&number].path, "thread/0/state");
        nodes.forgotten(number, 1);
        assert!(!nodes.0.contains_key(&number));
        nodes.forgotten(INodeNo::ROOT.0, u64::MAX);
        nodes.forgotten(77, 1);
        assert!(nodes.0.contains_key(&INodeNo::ROOT.0));
    }

    #[test]
    fn two_paths_never_have_one_number() {
        let mut nodes = Nodes::new();
        let number = nodes.told(&node("/a"));
        let known = nodes.0.get_mut(&number).unwrap();
        known.path = "b".to_owned();
        assert_ne!(nodes.told(&node("/a")), number);
    }

    #[test]
    fn a_problem_of_the_daemon_is_its_system_error() {
        let refused = Problem::new(ProblemCode::Busy, "it moves");
        let code = |failure| format!("{:?}", errno(&failure));
        assert_eq!(
            code(Failure::Failed(refused.clone())),
            format!("{:?}", Errno::EBUSY)
        );
        for (named, expected) in [
            (tree::Errno::NoEntry, Errno::ENOENT),
            (tree::Errno::NotADirectory, Errno::ENOTDIR),
            (tree::Errno::IsADirectory, Errno::EISDIR),
            (tree::Errno::Access, Errno::EACCES),
            (tree::Errno::Invalid, Errno::EINVAL),
            (tree::Errno::TooBig, Errno::E2BIG),
            (tree::Errno::Again, Errno::EAGAIN),
            (tree::Errno::Io, Errno::EIO),
        ] {
            let problem = refused.clone().with_errno(named);
            assert_eq!(code(Failure::Failed(problem)), format!("{expected:?}"));
        }
        assert_eq!(
            code(Failure::Unreachable(refused)),
            format!("{:?}", Errno::ESHUTDOWN)
        );
    }
}
