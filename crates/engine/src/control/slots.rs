//! The slot file in a datastore's directory, through which hosts exchange their state.
//!
//! `.tidegate/hosts.v1` holds 256 slots of 4 KiB, `.tidegate/owners/K` says which host sits in slot K. The slot_io
//! ([`super::slot_io`]) reads and writes here, and may hang with the datastore; what the bytes mean is the governor's
//! business. What goes wrong is told as an error, and tried anew at the next call.
//!
//! What is open is what stands at its path: a file or directory that was moved away is not used any more, and where
//! another file system has come in the place of the datastore, as when it is unmounted, nothing is made there.
//!
//! # Always true
//! - a host writes its own slot and slot 0, nothing else
//! - slot 0 is changed under a lock, where the file system has locks: no change is lost to another at the same moment
//! - two hosts that claim at one moment do not get the same slot: one of them makes the owner's file
//! - a slot is taken from its owner only after nothing has moved in it for a lease of our own time
//!
//! # Picture
//! ```text
//!   hosts.v1   | 0 common | 1 host | 2 host | 3 nobody | ...          owners/   1 2
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

/// Up to which slot everything is read at once: more costs more bytes than asking for each head.
const WHOLE: u16 = 32;
/// How many slots beyond those in use are read each time: newcomers take the lowest that is free.
const AHEAD: u16 = 8;
/// Of a slot's head, what direct I/O reads least everywhere that slots can be read in parts.
const HEAD: usize = 512;
/// Where hosts meet, below the datastore's directory, and what is there.
const MEETING: &str = ".tidegate";
const FILE: &str = "hosts.v1";
const OWNERS: &str = "owners";
/// What says which datastore it is, and more bytes than it has.
const MARK: &str = "datastore-id";
const MARK_MOST: usize = 64;
/// More than an owner's file has; no more of it is read.
const OWNER_MOST: usize = 64;
/// The time between two reads of the whole file: a new host may take any slot, and must be seen within eight seconds.
/// At rest, and at a pace of four seconds, each read is of the whole file.
const SWEEP: Span = Span::from_secs(4);
/// How long nothing must have moved in a slot that holds no record before its owner counts as gone: a host that has
/// just claimed it writes within a tick, 4 s at most.
const UNWRITTEN: Span = Span::from_secs(60);

/// What makes no sense and has not moved for so long is not somebody's half-written word.
const SETTLED: Span = Span::from_secs(2);
/// How long another may be at slot 0: a read and a write, of a datastore that works.
const TURN: Duration = Duration::from_secs(2);
/// How often it is looked whether the other has done.
const TURN_LOOK: Duration = Duration::from_millis(5);

/// A slot as it was read.
pub(crate) type Slot = (u16, Vec<u8>);

/// See the module.
pub(crate) struct SlotFile {
    /// The datastore's directory, and which one that is, once it was used.
    directory: PathBuf,
    home: Option<Place>,
    /// What its mark said then, if it had one.
    mark: Option<Vec<u8>>,
    /// The slot file that was open last.
    last: Option<Place>,
    host: [u8; 16],
    file: Option<Open>,
    /// The slot that is ours.
    own: Option<u16>,
    /// The highest that held anything.
    top: u16,
    /// When all slots were read last.
    swept: Option<Time>,
    /// What each slot's head said, and since when.
    heads: BTreeMap<u16, Head>,
    /// Since when slot 0 makes no sense.
    foreign: Option<Time>,
    page: Aligned,
    all: Aligned,
}

/// A file or directory, whatever its name.
type Place = (u64, u64);

struct Open {
    file: File,
    place: Place,
    writable: bool,
    /// Whether heads can be read without the rest.
    heads: bool,
}

struct Head {
    /// Host, incarnation, sequence; nothing where there is no record.
    who: Option<([u8; 16], u64, u64)>,
    since: Time,
    /// Whether it holds a record, or nothing.
    sound: bool,
    /// How long its owner may be silent.
    lease: Span,
}

impl SlotFile {
    /// That of the datastore at `directory`, for this host. Touches nothing yet.
    ///
    /// # Errors
    /// When there is no memory.
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
            swept: None,
            heads: BTreeMap::new(),
            foreign: None,
            page: Aligned::new(SLOT)?,
            all: Aligned::new(usize::from(SLOTS) * SLOT)?,
        })
    }

    /// The slot that is ours.
    pub(crate) fn own(&self) -> Option<u16> {
        self.own
    }

    /// This host goes by another name from now on. What it had under the old one is whoever's that has it as well; false:
    /// it is the old one.
    pub(crate) fn rename(&mut self, host: [u8; 16]) -> bool {
        let is_new = self.host != host;
        if is_new {
            self.host = host;
            self.own = None;
        }
        is_new
    }

    /// Reads all slots in use, or, where there are many, slot 0 and those that moved.
    ///
    /// # Errors
    /// When there is no file and none can be made, or it cannot be read.
    pub(crate) fn read(&mut self, now: Time) -> io::Result<Vec<Slot>> {
        self.open()?;
        let heads = self.file.as_ref().is_some_and(|open| open.heads) && !self.heads.is_empty();
        let sweeps = self.swept.is_none_or(|swept| now.since(swept) >= SWEEP);
        let last = match sweeps {
            true => SLOTS - 1,
            false => (self.top + AHEAD).min(SLOTS - 1),
        };
        let read = if self.top <= WHOLE || !heads {
            self.read_whole(last)
        } else {
            self.read_moved(last)
        };
        if sweeps && read.is_ok() {
            self.swept = Some(now);
        }
        if read.is_err() {
            // A file that went away with its server is not the one that comes back.
            self.file = None;
        }
        let read = read?;
        self.note(now, &read);
        Ok(read)
    }

    /// Writes our slot.
    ///
    /// # Errors
    /// When we have none, or it cannot be written.
    pub(crate) fn write(&mut self, bytes: &[u8; SLOT]) -> io::Result<()> {
        // Which is ours is known of the file that is there now.
        self.open_to_write()?;
        match self.own {
            Some(slot) => self.write_at(slot, bytes),
            None => Err(io::Error::other("no slot of the file is ours")),
        }
    }

    /// Changes slot 0, which holds what is common to all: `change` says what is to stand there after what does. Nothing:
    /// it stays. What was written.
    ///
    /// # Errors
    /// When it cannot be read or written, is of a newer version, or another host is at it all the time.
    pub(crate) fn change_common(
        &mut self,
        change: impl FnOnce(Option<Common>) -> Option<Common>,
    ) -> io::Result<Option<Common>> {
        self.open()?;
        let _turn = self.turn()?;
        let (_, bytes) = self.read_one(0)?;
        let there = match Common::decode(&bytes) {
            // What is not believed is written over.
            Ok(there) => Some(there).filter(Common::is_plausible),
            Err(Unreadable::Newer(version)) => {
                let text = format!("slot 0 is of version {version}: a newer program must set it");
                return Err(io::Error::other(text));
            }
            Err(_) => None,
        };
        let common = change(there);
        if let Some(common) = common {
            self.write_at(0, &common.encode())?;
        }
        Ok(common)
    }

    /// Slots that make no sense, and do not move.
    pub(crate) fn foreign(&self, now: Time) -> Vec<u16> {
        let (own, top) = (self.own, self.heads.keys().last().map_or(0, |slot| *slot));
        (0..=top)
            .filter(|slot| Some(*slot) != own && self.is_foreign(*slot, now))
            .collect()
    }

    /// Whether a slot makes no sense, and does not move.
    pub(crate) fn is_foreign(&self, slot: u16, now: Time) -> bool {
        let since = match (slot, self.heads.get(&slot)) {
            (0, _) => self.foreign,
            (_, head) => head.filter(|head| !head.sound).map(|head| head.since),
        };
        since.is_some_and(|since| now.since(since) > SETTLED)
    }

    /// Gives our slot back.
    pub(crate) fn leave(&mut self) {
        if let Some(slot) = self.own.take() {
            // If it cannot be removed, this host takes the slot again when it comes back.
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

    /// As [`SlotFile::open`], to be written: what could only be read a moment ago may be writable now.
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

    /// Makes sure that what is open is the file at its path.
    ///
    /// # Errors
    /// When there is none and none can be made.
    pub(crate) fn open(&mut self) -> io::Result<()> {
        if let Some(open) = &self.file
            && self.there().is_ok_and(|there| there == open.place)
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
        if !is_home && self.there().is_err() {
            let text = format!(
                "{} is another directory than before, without a .tidegate/hosts.v1: is the datastore mounted?",
                self.directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let mark = self.mark();
        // A mount point may have a slot file of its own below: of another datastore, or from before it was one.
        if !is_home && self.mark.is_some() && mark != self.mark {
            let text = format!(
                "{} is another directory than before, and its .tidegate/datastore-id is another one: is the datastore mounted?",
                self.directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let file = open(&self.directory).map_err(|error| match error.raw_os_error() {
            // Something that is not ours is in the way.
            None => {
                let path = self.directory.join(MEETING).join(FILE);
                io::Error::new(
                    error.kind(),
                    format!("{}: {error}: remove it", path.display()),
                )
            }
            Some(_) => error,
        })?;
        let is_another = self.last.replace(file.place) != Some(file.place);
        self.file = Some(file);
        self.home = Some(home);
        self.mark = mark.or(self.mark.take());
        if !is_another {
            return Ok(());
        }
        // Nothing that was known of another file's slots holds, and whether one of these is ours its owners know.
        self.heads.clear();
        self.foreign = None;
        self.top = SLOTS - 1;
        self.swept = None;
        let (ours, owners) = (owner_text(self.host), self.owners());
        let is_ours = |slot: &u16| {
            let owners = owners.as_ref().ok();
            owners.is_some_and(|owners| owner(owners, *slot) == ours.as_bytes())
        };
        self.own = self.own.filter(is_ours);
        Ok(())
    }

    fn meeting(&self) -> io::Result<Folder> {
        Folder::named(&self.directory)?.folder(MEETING)
    }

    /// What the directory is marked with, if it is; white space around it does not count.
    fn mark(&self) -> Option<Vec<u8>> {
        let mark = self.meeting().ok()?.read(MARK, MARK_MOST).ok()?;
        let mark = mark.trim_ascii();
        (!mark.is_empty()).then(|| mark.to_vec())
    }

    fn owners(&self) -> io::Result<Folder> {
        self.meeting()?.folder(OWNERS)
    }

    /// Which file stands at the slot file's path.
    fn there(&self) -> io::Result<Place> {
        Ok(beneath::identity(&self.meeting()?.look(FILE)?))
    }

    /// The right to change slot 0, until dropped. A file system without locks gives it to everybody.
    fn turn(&self) -> io::Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = self.meeting()?.open("common.lock", flags, 0o644)?;
        let begun = Instant::now();
        loop {
            match os::lock(&file, 0, true) {
                Ok(()) => return Ok(Some(file)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(None),
            }
            if begun.elapsed() > TURN {
                let text = "another host is changing slot 0 all the time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(TURN_LOOK);
        }
    }

    fn read_whole(&mut self, last: u16) -> io::Result<Vec<Slot>> {
        let slots = last + 1;
        let len = usize::from(slots) * SLOT;
        let open = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let bytes = &mut self.all.bytes()[..len];
        let got = read_at(&open.file, bytes, 0)?;
        // What the file does not reach to holds nothing.
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
                Some(head) => Record::peek(page) != head.who,
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

    /// Remembers which slots have moved, which make sense, and how many are in use.
    fn note(&mut self, now: Time, read: &[Slot]) {
        for (slot, bytes) in read {
            if *slot == 0 {
                let sound = is_sound(Common::decode(bytes).map(drop));
                self.foreign = (!sound).then(|| self.foreign.unwrap_or(now));
                continue;
            }
            let who = Record::peek(bytes);
            let known = self.heads.get(slot).filter(|head| head.who == who);
            if known.is_some_and(|head| head.sound && who.is_some()) {
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
                who,
                since,
                sound,
                lease,
            };
            self.heads.insert(*slot, head);
        }
        let used = self.heads.iter().filter(|(_, head)| head.who.is_some());
        let highest = used.map(|(slot, _)| *slot).max().unwrap_or(0);
        self.top = highest.max(self.own.unwrap_or(0));
    }

    /// Takes a slot for this host, another than `avoid`: one that it had before, else the lowest that is free, else one
    /// whose owner is gone.
    ///
    /// # Errors
    /// When the owners' files cannot be made, the slot cannot be written, or every slot has an owner who lives.
    pub(crate) fn claim(&mut self, now: Time, avoid: Option<u16>) -> io::Result<u16> {
        self.open_to_write()?;
        let places = || (1..SLOTS).filter(|slot| Some(*slot) != avoid);
        let ours = owner_text(self.host);
        let owners = self.owners()?;
        let before = places().find(|slot| owner(&owners, *slot) == ours.as_bytes());
        if let Some(slot) = before {
            return self.sit(slot);
        }
        for slot in places() {
            if make_owner(&owners, slot, &ours)? {
                return self.sit(slot);
            }
        }
        let gone = |slot: &u16| {
            let head = self.heads.get(slot);
            head.is_some_and(|head| now.since(head.since) > head.lease)
        };
        let stale: Vec<u16> = places().filter(gone).collect();
        for slot in stale {
            if take_over(&owners, slot, &ours)? {
                return self.sit(slot);
            }
        }
        let text = "all 255 slots have an owner; remove those of hosts that are gone from .tidegate/owners";
        Err(io::Error::other(text))
    }

    /// A slot is ours. What stands in it was said by somebody who has gone, and is not to be taken for one who sits there.
    fn sit(&mut self, slot: u16) -> io::Result<u16> {
        self.write_at(slot, &[0; SLOT])?;
        self.own = Some(slot);
        Ok(slot)
    }
}

/// What the owner's file of a slot says; nothing where there is none.
fn owner(owners: &Folder, slot: u16) -> Vec<u8> {
    owners
        .read(slot.to_string(), OWNER_MOST)
        .unwrap_or_default()
}

/// Makes the owner's file of a slot; false when it has one.
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

/// Takes a slot from an owner who is gone; false when another was faster. Who moves the old file away has won.
fn take_over(owners: &Folder, slot: u16, ours: &str) -> io::Result<bool> {
    let old = slot.to_string();
    let aside = format!("{old}.gone-{}", ours.trim_end());
    let read = |name: &str| owners.read(name, OWNER_MOST).unwrap_or_default();
    let before = read(&old);
    match owners.rename(&old, &aside) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return make_owner(owners, slot, ours);
        }
        Err(error) => return Err(error),
    }
    if read(&aside) != before {
        // It was a new owner's: back with it, unless yet another has come.
        let _ = owners.link(&aside, &old);
        owners.remove_file(&aside)?;
        return Ok(false);
    }
    owners.remove_file(&aside)?;
    make_owner(owners, slot, ours)
}

fn at(slot: u16) -> u64 {
    u64::from(slot) * SLOT as u64
}

/// What an owner's file says.
fn owner_text(host: [u8; 16]) -> String {
    let hex = host.iter().map(|byte| format!("{byte:02x}"));
    hex.chain(["\n".into()]).collect()
}

/// Whether a slot holds what it should, or nothing.
fn is_sound(read: Result<(), Unreadable>) -> bool {
    matches!(read, Ok(()) | Err(Unreadable::Empty))
}

/// Opens the slot file of a datastore, and makes it where that is possible. One that can only be read lets us at least hear.
fn open(directory: &Path) -> io::Result<Open> {
    // Not the datastore's directory: that is there, or the datastore is not.
    let home = Folder::named(directory)?;
    let made = home
        .make_folder(MEETING, 0o755)
        .and_then(|meeting| meeting.make_folder(OWNERS, 0o755).map(|_| meeting));
    // On a file system of this machine alone, nobody's cache is another's, and no word need outlive the machine.
    let meeting = directory.join(MEETING);
    let local = Guard::of(&meeting, &meeting.join(FILE)) == Guard::Kernel;
    let (file, direct, writable) = match made.and_then(|folder| open_as(&folder, true, local)) {
        Ok((file, direct)) => (file, direct, true),
        Err(error) => {
            let read = home.folder(MEETING);
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
        place: (meta.dev(), meta.ino()),
        writable,
        heads,
    })
}

/// Opens it past the page cache where that works, so that another host's writes do not hide behind ours, and each write
/// durable; but as the kernel likes where nobody but this machine reads it.
fn open_as(meeting: &Folder, writable: bool, local: bool) -> io::Result<(File, bool)> {
    let access = match writable {
        true => OFlags::RDWR | OFlags::CREATE,
        false => OFlags::RDONLY,
    };
    let shared = if local {
        OFlags::empty()
    } else {
        OFlags::DSYNC
    };
    let open = |more: OFlags| meeting.open(FILE, access | shared | more, 0o644);
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

/// Fills the buffer as far as the file reaches.
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A read that ended within a block met the file's end: direct I/O does not go on from there.
        if !got.is_multiple_of(HEAD) {
            break;
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests;
