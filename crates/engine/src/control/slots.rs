//! The slot file in a datastore's directory, through which hosts exchange their state.
//!
//! `.tidegate/hosts.v1` contains 256 slots of 4 KiB; `.tidegate/owners/K` names the host that owns slot K. The slot
//! thread ([`super::slot_io`]) reads and writes here, and may hang with the datastore. The governor interprets the
//! contents. Failures are returned as errors; the next call tries again.
//!
//! The open file is always the one at its path. A file or directory that was moved away is not used any more. If
//! another file system appears in place of the datastore, as after an unmount, nothing is created there.
//!
//! # Always true
//! - a host writes its own slot and slot 0, nothing else
//! - slot 0 is changed under a lock, if the file system has locks: no concurrent change is lost
//! - two hosts that claim at the same time do not get the same slot: only one of them creates the owner's file
//! - a slot is taken from its owner only after it has not changed for a lease, by this host's clock
//!
//! # Picture
//! ```text
//!   hosts.v1   | 0 common | 1 host | 2 host | 3 empty  | ...          owners/   1 2
//!              one read of all in use; beyond 32, their heads, and then those that moved
//! ```

use crate::beneath::{self, Folder};
use crate::lease::Guard;
use crate::sys::aligned::Aligned;
use crate::sys::os;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidegate_core::governor::peers::lease;
use tidegate_core::governor::slot::{Common, Record, SLOT, SLOTS, Unreadable};
use tidegate_core::units::{Span, Time};

/// Up to this slot the file is read as a whole: beyond it, reading each head transfers fewer bytes.
const WHOLE: u16 = 32;
/// How many slots beyond those in use are read each time: new hosts claim the lowest free slot.
const AHEAD: u16 = 8;
/// The part of a slot that is read as its head: the smallest unit of direct I/O wherever parts can be read.
const HEAD: usize = 512;
/// The directory of the slot file, below the datastore's directory, and its contents.
const FOLDER: &str = ".tidegate";
const FILE: &str = "hosts.v1";
const OWNERS: &str = "owners";
/// The file that identifies the datastore, and more bytes than it has.
const MARK: &str = "datastore-id";
const MARK_MOST: usize = 64;
/// More bytes than an owner's file has; no more are read.
const OWNER_MOST: usize = 64;
/// The time between two reads of the whole file: a new host may take any slot, and must be seen within eight seconds.
/// At rest, and at a pace of four seconds, each read is of the whole file.
const FULL_READ: Span = Span::from_secs(4);
/// How long a slot without a record must not change before its owner counts as gone. A host that has just claimed it
/// writes within a tick, 4 s at most.
const UNWRITTEN: Span = Span::from_secs(60);

/// An invalid record that has not changed for this long is not just half written.
const SETTLED: Span = Span::from_secs(2);
/// Timeout for the lock of slot 0: another host needs a read and a write on a working datastore.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the lock of slot 0 is tried.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// A slot's number and content.
pub(crate) type Slot = (u16, Vec<u8>);

/// See the module.
pub(crate) struct SlotFile {
    /// The datastore's directory, and its identity after the first use.
    directory: PathBuf,
    home: Option<FileId>,
    /// The content of its mark then, if it had one.
    mark: Option<Vec<u8>>,
    /// The slot file that was open last.
    last: Option<FileId>,
    host: [u8; 16],
    file: Option<Open>,
    /// This host's slot.
    own: Option<u16>,
    /// The highest slot with any content.
    top: u16,
    /// When all slots were last read.
    full_read_at: Option<Time>,
    /// The last head of each slot, and since when it is unchanged.
    heads: BTreeMap<u16, Head>,
    /// Since when slot 0 is invalid.
    foreign: Option<Time>,
    page: Aligned,
    all: Aligned,
}

/// The identity of a file or directory, whatever its name.
type FileId = (u64, u64);

struct Open {
    file: File,
    file_id: FileId,
    writable: bool,
    /// Whether heads can be read alone.
    heads: bool,
}

struct Head {
    /// Host, incarnation, sequence; `None` without a record.
    writer: Option<([u8; 16], u64, u64)>,
    since: Time,
    /// Whether it contains a valid record, or nothing.
    sound: bool,
    /// How long its owner may be silent.
    lease: Span,
}

impl SlotFile {
    /// The slot file of the datastore at `directory`, for this host. Accesses nothing yet.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(directory: &Path, host: [u8; 16]) -> io::Result<SlotFile> {
        Ok(SlotFile {
            directory: directory.into(),
            home: None,
            mark: None,
            last: None,
            host,
            file: None,
            own: None,
            top: SLOTS - 1,
            full_read_at: None,
            heads: BTreeMap::new(),
            foreign: None,
            page: Aligned::new(SLOT)?,
            all: Aligned::new(usize::from(SLOTS) * SLOT)?,
        })
    }

    /// This host's slot.
    pub(crate) fn own(&self) -> Option<u16> {
        self.own
    }

    /// Changes this host's identity. Its old slot belongs to the other host with that identity. Returns false if the
    /// identity is the same.
    pub(crate) fn rename(&mut self, host: [u8; 16]) -> bool {
        let is_new = self.host != host;
        if is_new {
            self.host = host;
            self.own = None;
        }
        is_new
    }

    /// Reads all slots in use, or, if there are many, slot 0 and those that changed.
    ///
    /// # Errors
    /// If there is no file and none can be created, or it cannot be read.
    pub(crate) fn read(&mut self, now: Time) -> io::Result<Vec<Slot>> {
        self.open()?;
        let heads = self.file.as_ref().is_some_and(|open| open.heads) && !self.heads.is_empty();
        let full_read = self
            .full_read_at
            .is_none_or(|full_read_at| now.since(full_read_at) >= FULL_READ);
        let last = match full_read {
            true => SLOTS - 1,
            false => (self.top + AHEAD).min(SLOTS - 1),
        };
        let read = if self.top <= WHOLE || !heads {
            self.read_whole(last)
        } else {
            self.read_moved(last)
        };
        if full_read && read.is_ok() {
            self.full_read_at = Some(now);
        }
        if read.is_err() {
            // A file whose server was lost is not the one that returns.
            self.file = None;
        }
        let read = read?;
        self.note(now, &read);
        Ok(read)
    }

    /// Writes this host's slot.
    ///
    /// # Errors
    /// If this host has no slot, or it cannot be written.
    pub(crate) fn write(&mut self, bytes: &[u8; SLOT]) -> io::Result<()> {
        // Our slot is known only for the current file.
        self.open_to_write()?;
        match self.own {
            Some(slot) => self.write_at(slot, bytes),
            None => Err(io::Error::other("this host owns no slot of the file")),
        }
    }

    /// Changes slot 0, which contains the common settings. `change` maps the current settings to new ones; `None`
    /// leaves them. Returns what was written.
    ///
    /// # Errors
    /// If it cannot be read or written, is of a newer version, or another host keeps it locked.
    pub(crate) fn change_common(
        &mut self,
        change: impl FnOnce(Option<Common>) -> Option<Common>,
    ) -> io::Result<Option<Common>> {
        self.open()?;
        let _lock = self.lock_common()?;
        let (_, bytes) = self.read_one(0)?;
        let current = match Common::decode(&bytes) {
            // Implausible settings are overwritten.
            Ok(current) => Some(current).filter(Common::is_plausible),
            Err(Unreadable::Newer(version)) => {
                let text = format!("slot 0 is of version {version}: a newer program must set it");
                return Err(io::Error::other(text));
            }
            Err(_) => None,
        };
        let common = change(current);
        if let Some(common) = common {
            self.write_at(0, &common.encode())?;
        }
        Ok(common)
    }

    /// Slots that are invalid and do not change.
    pub(crate) fn foreign(&self, now: Time) -> Vec<u16> {
        let (own, top) = (self.own, self.heads.keys().last().map_or(0, |slot| *slot));
        (0..=top)
            .filter(|slot| Some(*slot) != own && self.is_foreign(*slot, now))
            .collect()
    }

    /// Whether a slot is invalid and does not change.
    pub(crate) fn is_foreign(&self, slot: u16, now: Time) -> bool {
        let since = match (slot, self.heads.get(&slot)) {
            (0, _) => self.foreign,
            (_, head) => head.filter(|head| !head.sound).map(|head| head.since),
        };
        since.is_some_and(|since| now.since(since) > SETTLED)
    }

    /// Releases this host's slot.
    pub(crate) fn leave(&mut self) {
        if let Some(slot) = self.own.take() {
            // If it cannot be removed, this host claims the slot again when it returns.
            let _ = self
                .owners()
                .and_then(|owners| owners.remove_file(slot.to_string()));
        }
    }

    fn write_at(&mut self, slot: u16, bytes: &[u8; SLOT]) -> io::Result<()> {
        self.open_to_write()?;
        let open = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let page = self.page.bytes();
        page.copy_from_slice(bytes);
        let written = open.file.write_all_at(page, at(slot));
        if written.is_err() {
            self.file = None;
        }
        written
    }

    /// As [`SlotFile::open`], for writing: a file that was read-only may be writable now.
    fn open_to_write(&mut self) -> io::Result<()> {
        let writable = |file: &Option<Open>| file.as_ref().is_some_and(|open| open.writable);
        self.open()?;
        if !writable(&self.file) {
            self.file = None;
            self.open()?;
        }
        match writable(&self.file) {
            true => Ok(()),
            false => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }

    /// Makes sure that the open file is the one at its path.
    ///
    /// # Errors
    /// If there is none and none can be created.
    pub(crate) fn open(&mut self) -> io::Result<()> {
        if let Some(open) = &self.file
            && self.current().is_ok_and(|current| current == open.file_id)
        {
            return Ok(());
        }
        self.file = None;
        let home = fs::metadata(&self.directory).map_err(|error| {
            let text = format!("{}: {error}", self.directory.display());
            io::Error::new(error.kind(), text)
        })?;
        let home = (home.dev(), home.ino());
        let is_home = self.home.is_none_or(|known| known == home);
        if !is_home && self.current().is_err() {
            let text = format!(
                "{} is another directory than before, without a .tidegate/hosts.v1: is the datastore mounted?",
                self.directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let mark = self.mark();
        // A mount point may contain a slot file itself: of another datastore, or from before the mount.
        if !is_home && self.mark.is_some() && mark != self.mark {
            let text = format!(
                "{} is another directory than before, and its .tidegate/datastore-id is another one: is the datastore mounted?",
                self.directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let file = open(&self.directory).map_err(|error| match error.raw_os_error() {
            // Something else has the name of the file.
            None => {
                let path = self.directory.join(FOLDER).join(FILE);
                io::Error::new(
                    error.kind(),
                    format!("{}: {error}: remove it", path.display()),
                )
            }
            Some(_) => error,
        })?;
        let is_another = self.last.replace(file.file_id) != Some(file.file_id);
        self.file = Some(file);
        self.home = Some(home);
        self.mark = mark.or(self.mark.take());
        if !is_another {
            return Ok(());
        }
        // What was known of another file's slots is void; the owners' files show which slot is ours.
        self.heads.clear();
        self.foreign = None;
        self.top = SLOTS - 1;
        self.full_read_at = None;
        let (ours, owners) = (owner_text(self.host), self.owners());
        let is_ours = |slot: &u16| {
            let owners = owners.as_ref().ok();
            owners.is_some_and(|owners| owner(owners, *slot) == ours.as_bytes())
        };
        self.own = self.own.filter(is_ours);
        Ok(())
    }

    fn folder(&self) -> io::Result<Folder> {
        Folder::named(&self.directory)?.folder(FOLDER)
    }

    /// The content of the directory's mark, if there is one, without surrounding white space.
    fn mark(&self) -> Option<Vec<u8>> {
        let mark = self.folder().ok()?.read(MARK, MARK_MOST).ok()?;
        let mark = mark.trim_ascii();
        (!mark.is_empty()).then(|| mark.to_vec())
    }

    fn owners(&self) -> io::Result<Folder> {
        self.folder()?.folder(OWNERS)
    }

    /// The identity of the file at the slot file's path.
    fn current(&self) -> io::Result<FileId> {
        Ok(beneath::identity(&self.folder()?.look(FILE)?))
    }

    /// The right to change slot 0, until dropped. A file system without locks grants it to all.
    fn lock_common(&self) -> io::Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = self.folder()?.open("common.lock", flags, 0o644)?;
        let begun = Instant::now();
        loop {
            match os::lock(&file, 0, true) {
                Ok(()) => return Ok(Some(file)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(None),
            }
            if begun.elapsed() > LOCK_TIMEOUT {
                let text = "another host is changing slot 0 all the time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(LOCK_RETRY);
        }
    }

    fn read_whole(&mut self, last: u16) -> io::Result<Vec<Slot>> {
        let slots = last + 1;
        let len = usize::from(slots) * SLOT;
        let open = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let bytes = &mut self.all.bytes()[..len];
        let got = read_at(&open.file, bytes, 0)?;
        // Beyond the end of the file slots are empty.
        bytes[got..].fill(0);
        let slots = (0..slots).zip(bytes.chunks_exact(SLOT));
        Ok(slots.map(|(slot, bytes)| (slot, bytes.to_vec())).collect())
    }

    fn read_moved(&mut self, last: u16) -> io::Result<Vec<Slot>> {
        let mut read = vec![self.read_one(0)?];
        for slot in 1..=last {
            let open = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
            let page = self.page.bytes();
            let got = read_at(&open.file, &mut page[..HEAD], at(slot))?;
            page[got..].fill(0);
            let moved = match self.heads.get(&slot) {
                Some(head) => Record::peek(page) != head.writer,
                None => true,
            };
            if moved {
                read.push(self.read_one(slot)?);
            }
        }
        Ok(read)
    }

    fn read_one(&mut self, slot: u16) -> io::Result<Slot> {
        let open = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let page = self.page.bytes();
        let got = read_at(&open.file, page, at(slot))?;
        page[got..].fill(0);
        Ok((slot, page.to_vec()))
    }

    /// Records which slots have changed, which are valid, and how many are in use.
    fn note(&mut self, now: Time, read: &[Slot]) {
        for (slot, bytes) in read {
            if *slot == 0 {
                let sound = is_sound(Common::decode(bytes).map(drop));
                self.foreign = (!sound).then(|| self.foreign.unwrap_or(now));
                continue;
            }
            let writer = Record::peek(bytes);
            let known = self.heads.get(slot).filter(|head| head.writer == writer);
            if known.is_some_and(|head| head.sound && writer.is_some()) {
                continue;
            }
            let record = Record::decode(bytes);
            let lease = match &record {
                Ok(record) => lease(Span::from_millis(record.tick_ms.into())),
                Err(_) => UNWRITTEN,
            };
            let sound = is_sound(record.map(drop));
            let since = known
                .filter(|head| head.sound == sound)
                .map_or(now, |head| head.since);
            let head = Head {
                writer,
                since,
                sound,
                lease,
            };
            self.heads.insert(*slot, head);
        }
        let used = self.heads.iter().filter(|(_, head)| head.writer.is_some());
        let highest = used.map(|(slot, _)| *slot).max().unwrap_or(0);
        self.top = highest.max(self.own.unwrap_or(0));
    }

    /// Claims a slot for this host, other than `excluded`: its previous one, otherwise the lowest free one, otherwise one
    /// whose owner is gone.
    ///
    /// # Errors
    /// If the owners' files cannot be created, the slot cannot be written, or every slot has a live owner.
    pub(crate) fn claim(&mut self, now: Time, excluded: Option<u16>) -> io::Result<u16> {
        self.open_to_write()?;
        let places = || (1..SLOTS).filter(|slot| Some(*slot) != excluded);
        let ours = owner_text(self.host);
        let owners = self.owners()?;
        let before = places().find(|slot| owner(&owners, *slot) == ours.as_bytes());
        if let Some(slot) = before {
            return self.use_slot(slot);
        }
        for slot in places() {
            if make_owner(&owners, slot, &ours)? {
                return self.use_slot(slot);
            }
        }
        let gone = |slot: &u16| {
            let head = self.heads.get(slot);
            head.is_some_and(|head| now.since(head.since) > head.lease)
        };
        let stale: Vec<u16> = places().filter(gone).collect();
        for slot in stale {
            if take_over(&owners, slot, &ours)? {
                return self.use_slot(slot);
            }
        }
        let text = "all 255 slots have an owner; remove those of hosts that are gone from .tidegate/owners";
        Err(io::Error::other(text))
    }

    /// Takes a claimed slot into use. Its content is from an earlier owner and must not count as this host's record.
    fn use_slot(&mut self, slot: u16) -> io::Result<u16> {
        self.write_at(slot, &[0; SLOT])?;
        self.own = Some(slot);
        Ok(slot)
    }
}

/// The content of a slot's owner file; empty if there is none.
fn owner(owners: &Folder, slot: u16) -> Vec<u8> {
    owners
        .read(slot.to_string(), OWNER_MOST)
        .unwrap_or_default()
}

/// Creates the owner file of a slot; false if it exists.
fn make_owner(owners: &Folder, slot: u16, ours: &str) -> io::Result<bool> {
    let (name, flags) = (slot.to_string(), OFlags::WRONLY | OFlags::CREATE);
    match owners.open(&name, flags | OFlags::EXCL, 0o644) {
        Ok(mut file) => {
            let written = file
                .write_all(ours.as_bytes())
                .and_then(|()| file.sync_all());
            if written.is_err() {
                let _ = owners.remove_file(&name);
            }
            written.map(|()| true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes a slot from an owner that is gone; false if another host was faster. The host that moves the old file away
/// wins.
fn take_over(owners: &Folder, slot: u16, ours: &str) -> io::Result<bool> {
    let old = slot.to_string();
    let moved = format!("{old}.gone-{}", ours.trim_end());
    let read = |name: &str| owners.read(name, OWNER_MOST).unwrap_or_default();
    let before = read(&old);
    match owners.rename(&old, &moved) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return make_owner(owners, slot, ours);
        }
        Err(error) => return Err(error),
    }
    if read(&moved) != before {
        // The file belonged to a new owner: restore it, unless yet another one exists.
        let _ = owners.link(&moved, &old);
        owners.remove_file(&moved)?;
        return Ok(false);
    }
    owners.remove_file(&moved)?;
    make_owner(owners, slot, ours)
}

fn at(slot: u16) -> u64 {
    u64::from(slot) * SLOT as u64
}

/// The content of an owner's file.
fn owner_text(host: [u8; 16]) -> String {
    let hex = host.iter().map(|byte| format!("{byte:02x}"));
    hex.chain(["\n".into()]).collect()
}

/// Whether a slot contains a valid record, or nothing.
fn is_sound(read: Result<(), Unreadable>) -> bool {
    matches!(read, Ok(()) | Err(Unreadable::Empty))
}

/// Opens the slot file of a datastore, and creates it if possible. A read-only file still allows reading the other
/// hosts.
fn open(directory: &Path) -> io::Result<Open> {
    // Not the datastore's directory itself: if it is missing, the datastore is.
    let home = Folder::named(directory)?;
    let made = home
        .make_folder(FOLDER, 0o755)
        .and_then(|folder| folder.make_folder(OWNERS, 0o755).map(|_| folder));
    // On a local file system all processes share the cache, and no record must survive the machine.
    let folder = directory.join(FOLDER);
    let local = Guard::of(&folder, &folder.join(FILE)) == Guard::Kernel;
    let (file, direct, writable) = match made.and_then(|folder| open_as(&folder, true, local)) {
        Ok((file, direct)) => (file, direct, true),
        Err(error) => {
            let read = home.folder(FOLDER);
            match read.and_then(|folder| open_as(&folder, false, local)) {
                Ok((file, direct)) => (file, direct, false),
                Err(_) => return Err(error),
            }
        }
    };
    let meta = file.metadata()?;
    let len = at(SLOTS);
    if writable && meta.len() < len {
        os::preallocate(&file, len)?;
    }
    let alignment = os::direct_alignment(&file).map_or(HEAD, |a| a.offset);
    let heads = !direct || alignment <= HEAD;
    Ok(Open {
        file,
        file_id: (meta.dev(), meta.ino()),
        writable,
        heads,
    })
}

/// Opens it uncached if possible, so that other hosts' writes are visible, and with durable writes. A file that only
/// this machine reads is opened with the kernel's defaults.
fn open_as(folder: &Folder, writable: bool, local: bool) -> io::Result<(File, bool)> {
    let access = match writable {
        true => OFlags::RDWR | OFlags::CREATE,
        false => OFlags::RDONLY,
    };
    let shared = if local {
        OFlags::empty()
    } else {
        OFlags::DSYNC
    };
    let open = |more: OFlags| folder.open(FILE, access | shared | more, 0o644);
    if local {
        return Ok((open(OFlags::empty())?, false));
    }
    match open(OFlags::DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((open(OFlags::empty())?, false))
        }
        Err(error) => Err(error),
    }
}

/// Fills the buffer up to the end of the file.
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A read that ended within a block met the end of the file: direct I/O cannot continue from there.
        if !got.is_multiple_of(HEAD) {
            break;
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests;
