//! The slot file on a datastore's directory, through which hosts that share it hear of each other.
//!
//! `.tidegate/hosts.v1` holds 256 slots of 4 KiB, `.tidegate/owners/K` says which host sits in slot K. The carrier
//! ([`super::carrier`]) reads and writes here, and may hang with the datastore; what the bytes mean is the governor's
//! business. What goes wrong is told as an error, and tried anew at the next call.
//!
//! # Always true
//! - a host writes its own slot and slot 0, nothing else
//! - two hosts that claim at one moment do not get the same slot: one of them makes the owner's file
//! - a slot is taken from its owner only after nothing has moved in it for a lease of our own time
//!
//! # Picture
//! ```text
//!   hosts.v1   | 0 common | 1 host | 2 host | 3 nobody | ...          owners/   1 2
//!              one read of all in use; beyond 32, their heads, and then those that moved
//! ```

use crate::sys::aligned::Aligned;
use crate::sys::os;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tidegate_core::governor::peers::lease;
use tidegate_core::governor::slot::{Record, SLOT, SLOTS};
use tidegate_core::units::{Span, Time};

/// Up to which slot everything is read at once: more costs more bytes than asking for each head.
const WHOLE: u16 = 32;
/// How many slots beyond those in use are read: newcomers take the lowest that is free.
const AHEAD: u16 = 8;
/// Of a slot's head, what direct I/O reads least everywhere that slots can be read in parts.
const HEAD: usize = 512;
/// How long nothing must have moved in a slot that holds no record before its owner counts as gone: a host that has
/// just claimed it writes within a tick, 4 s at most.
const UNWRITTEN: Span = Span::from_secs(60);

/// A slot as it was read.
pub(crate) type Slot = (u16, Vec<u8>);

/// See the module.
pub(crate) struct SlotFile {
    folder: PathBuf,
    host: [u8; 16],
    file: Option<Open>,
    /// The slot that is ours.
    own: Option<u16>,
    /// The highest that held anything.
    top: u16,
    /// What each slot's head said, and since when.
    heads: BTreeMap<u16, Head>,
    page: Aligned,
    all: Aligned,
}

struct Open {
    file: File,
    writable: bool,
    /// Whether heads can be read without the rest.
    heads: bool,
}

struct Head {
    /// Host, incarnation, sequence; nothing where there is no record.
    who: Option<([u8; 16], u64, u64)>,
    since: Time,
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
            folder: directory.join(".tidegate"),
            host,
            file: None,
            own: None,
            top: SLOTS - 1,
            heads: BTreeMap::new(),
            page: Aligned::new(SLOT)?,
            all: Aligned::new(usize::from(SLOTS) * SLOT)?,
        })
    }

    /// The slot that is ours.
    pub(crate) fn own(&self) -> Option<u16> {
        self.own
    }

    /// Reads all slots in use, or, where there are many, slot 0 and those that moved.
    ///
    /// # Errors
    /// When there is no file and none can be made, or it cannot be read.
    pub(crate) fn read(&mut self, now: Time) -> io::Result<Vec<Slot>> {
        self.open()?;
        let heads = self.file.as_ref().is_some_and(|open| open.heads) && !self.heads.is_empty();
        let read = if self.top <= WHOLE || !heads {
            self.read_whole()
        } else {
            self.read_moved()
        };
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
        match self.own {
            Some(slot) => self.write_at(slot, bytes),
            None => Err(io::Error::other("no slot of the file is ours")),
        }
    }

    /// Reads slot 0.
    ///
    /// # Errors
    /// When there is no file and none can be made, or it cannot be read.
    pub(crate) fn read_common(&mut self) -> io::Result<Vec<u8>> {
        self.open()?;
        self.read_one(0).map(|(_, bytes)| bytes)
    }

    /// Writes slot 0, which holds what is common to all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_common(&mut self, bytes: &[u8; SLOT]) -> io::Result<()> {
        self.write_at(0, bytes)
    }

    /// Gives our slot back.
    pub(crate) fn leave(&mut self) {
        if let Some(slot) = self.own.take() {
            // If it cannot be removed, this host takes the slot again when it comes back.
            let _ = fs::remove_file(self.owner(slot));
        }
    }

    fn write_at(&mut self, slot: u16, bytes: &[u8; SLOT]) -> io::Result<()> {
        self.open()?;
        let open = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        if !open.writable {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let page = self.page.bytes();
        page.copy_from_slice(bytes);
        let written = open.file.write_all_at(page, at(slot));
        if written.is_err() {
            self.file = None;
        }
        written
    }

    fn open(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(open(&self.folder)?);
        }
        Ok(())
    }

    fn read_whole(&mut self) -> io::Result<Vec<Slot>> {
        let slots = (self.top + AHEAD).min(SLOTS - 1) + 1;
        let len = usize::from(slots) * SLOT;
        let open = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let bytes = &mut self.all.bytes()[..len];
        let got = read_at(&open.file, bytes, 0)?;
        // What the file does not reach to holds nothing.
        bytes[got..].fill(0);
        let slots = (0..slots).zip(bytes.chunks_exact(SLOT));
        Ok(slots.map(|(slot, bytes)| (slot, bytes.to_vec())).collect())
    }

    fn read_moved(&mut self) -> io::Result<Vec<Slot>> {
        let mut read = vec![self.read_one(0)?];
        for slot in 1..=(self.top + AHEAD).min(SLOTS - 1) {
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

    /// Remembers which slots have moved, and how many are in use.
    fn note(&mut self, now: Time, read: &[Slot]) {
        for (slot, bytes) in read.iter().filter(|(slot, _)| *slot != 0) {
            let who = Record::peek(bytes);
            if self.heads.get(slot).is_some_and(|head| head.who == who) {
                continue;
            }
            let lease = match Record::decode(bytes) {
                Ok(record) => lease(Span::from_millis(record.tick_ms.into())),
                Err(_) => UNWRITTEN,
            };
            let since = now;
            self.heads.insert(*slot, Head { who, since, lease });
        }
        let used = self.heads.iter().filter(|(_, head)| head.who.is_some());
        let highest = used.map(|(slot, _)| *slot).max().unwrap_or(0);
        self.top = highest.max(self.own.unwrap_or(0));
    }

    /// Takes a slot for this host, another than `avoid`: one that it had before, else the lowest that is free, else one
    /// whose owner is gone.
    ///
    /// # Errors
    /// When the owners' files cannot be made, or every slot has an owner who lives.
    pub(crate) fn claim(&mut self, now: Time, avoid: Option<u16>) -> io::Result<u16> {
        self.open()?;
        if !self.file.as_ref().is_some_and(|open| open.writable) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let places = || (1..SLOTS).filter(|slot| Some(*slot) != avoid);
        let ours = owner_text(self.host);
        let before = places().find(|slot| {
            let owner = fs::read(self.owner(*slot));
            owner.is_ok_and(|owner| owner == ours.as_bytes())
        });
        if let Some(slot) = before {
            self.own = Some(slot);
            return Ok(slot);
        }
        for slot in places() {
            if self.make_owner(slot, &ours)? {
                self.own = Some(slot);
                return Ok(slot);
            }
        }
        let gone = |slot: &u16| {
            let head = self.heads.get(slot);
            head.is_some_and(|head| now.since(head.since) > head.lease)
        };
        let stale: Vec<u16> = places().filter(gone).collect();
        for slot in stale {
            if self.take_over(slot, &ours)? {
                self.own = Some(slot);
                return Ok(slot);
            }
        }
        let text = "all 255 slots have an owner; remove those of hosts that are gone from .tidegate/owners";
        Err(io::Error::other(text))
    }

    /// Makes the owner's file of a slot; false when it has one.
    fn make_owner(&self, slot: u16, ours: &str) -> io::Result<bool> {
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.owner(slot));
        match made {
            Ok(mut file) => {
                let written = file
                    .write_all(ours.as_bytes())
                    .and_then(|()| file.sync_all());
                if written.is_err() {
                    let _ = fs::remove_file(self.owner(slot));
                }
                written.map(|()| true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes a slot from an owner who is gone; false when another was faster. Who moves the old file away has won.
    fn take_over(&self, slot: u16, ours: &str) -> io::Result<bool> {
        let old = self.owner(slot);
        let aside = old.with_extension(format!("gone-{}", ours.trim_end()));
        let before = fs::read(&old).unwrap_or_default();
        match fs::rename(&old, &aside) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.make_owner(slot, ours);
            }
            Err(error) => return Err(error),
        }
        let moved = fs::read(&aside).unwrap_or_default();
        if moved != before {
            // It was a new owner's: back with it, unless yet another has come.
            let _ = fs::hard_link(&aside, &old);
            fs::remove_file(&aside)?;
            return Ok(false);
        }
        fs::remove_file(&aside)?;
        self.make_owner(slot, ours)
    }

    fn owner(&self, slot: u16) -> PathBuf {
        self.folder.join("owners").join(slot.to_string())
    }
}

fn at(slot: u16) -> u64 {
    u64::from(slot) * SLOT as u64
}

/// What an owner's file says.
fn owner_text(host: [u8; 16]) -> String {
    let hex = host.iter().map(|byte| format!("{byte:02x}"));
    hex.chain(["\n".into()]).collect()
}

/// Opens the slot file, and makes it where that is possible. One that can only be read lets us at least hear.
fn open(folder: &Path) -> io::Result<Open> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder.join("owners"));
    let path = folder.join("hosts.v1");
    let (file, direct, writable) = match made.and_then(|()| open_as(&path, true)) {
        Ok((file, direct)) => (file, direct, true),
        Err(error) => match open_as(&path, false) {
            Ok((file, direct)) => (file, direct, false),
            Err(_) => return Err(error),
        },
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("hosts.v1 is not a file: remove it"));
    }
    let len = at(SLOTS);
    if writable && meta.len() < len {
        os::preallocate(&file, len)?;
    }
    let alignment = os::direct_alignment(&file).map_or(HEAD, |a| a.offset);
    let heads = !direct || alignment <= HEAD;
    Ok(Open {
        file,
        writable,
        heads,
    })
}

/// Opens it past the page cache where that works: another host's writes must not hide behind ours.
fn open_as(path: &Path, writable: bool) -> io::Result<(File, bool)> {
    let open = |flags: i32| {
        OpenOptions::new()
            .read(true)
            .write(writable)
            .create(writable)
            .custom_flags(flags | libc::O_DSYNC | libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .mode(0o644)
            .open(path)
    };
    match open(libc::O_DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok((open(0)?, false)),
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
