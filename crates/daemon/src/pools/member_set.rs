//! The catalog's bytes, the same on each current member of a pool.
//!
//! The catalog is one database. Each of its writes goes to every current member, and a sync syncs all. A member that fails
//! is left behind: the superblocks of the others say so, durably, before the sync counts.
//!
//! # Always true
//! - a sync succeeds only if each member that the newest superblock calls current has everything
//! - a member becomes current only when its copy is durable; its own superblock is the last to say so
//! - of members that differ after a crash, one is used and the others are copied from it. They are not current meanwhile
//!
//! # Picture
//! ```text
//!   write ──> all current members        one fails
//!   sync  ──> all current members ──────────────────> superblocks without it, synced ──> the sync counts
//! ```

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::block::{BLOCK, Unreadable};
use tidegate_core::pool::members::Standing;
use tidegate_core::pool::superblock::{MemberState, Place, Superblock};
use tidegate_core::pool::{CATALOG_AT, SUPERBLOCKS};

use super::store::Store;

/// Bytes that are copied or compared at once.
const PIECE: usize = 256 << 10;

/// See the module. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MemberSet(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    pool: [u8; 16],
    catalog: u64,
    data_at: u64,
    length: u64,
    generation: u64,
    members: Vec<Member>,
}

/// A member of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) place: Place,
    /// Bytes of it that are used.
    pub(crate) size: u64,
    /// None: it is not there.
    pub(crate) store: Option<Arc<dyn Store>>,
    /// Why it cannot be used.
    pub(crate) trouble: Option<String>,
    /// Whether it has no superblock yet.
    is_blank: bool,
}

impl Member {
    /// A member that is there and is to have its first superblock.
    pub(crate) fn new(place: Place, size: u64, store: Arc<dyn Store>) -> Member {
        Member {
            place,
            size,
            store: Some(store),
            trouble: None,
            is_blank: true,
        }
    }

    fn is_current(&self) -> bool {
        self.place.state == MemberState::Current
    }

    /// Does something to it, and remembers if that fails.
    fn attempt<T>(&mut self, act: impl FnOnce(&dyn Store) -> io::Result<T>) -> Option<T> {
        if self.trouble.is_some() {
            return None;
        }
        let done = match &self.store {
            Some(store) => act(&**store),
            None => Err(io::Error::other("it is not there")),
        };
        done.map_err(|error| {
            tracing::warn!(member = ?self.store, %error, "a member of a pool cannot be used for its catalog");
            self.trouble = Some(error.to_string());
        })
        .ok()
    }
}

impl MemberSet {
    /// The members of a new pool, with a catalog without bytes. Nothing is written yet.
    pub(crate) fn create(
        pool: [u8; 16],
        catalog: u64,
        data_at: u64,
        members: Vec<Member>,
    ) -> MemberSet {
        MemberSet::of(State {
            pool,
            catalog,
            data_at,
            length: 0,
            generation: 0,
            members,
        })
    }

    /// The members of a pool that was judged, by what is at each path. Members that do not have the catalog get it, and an
    /// addition that was interrupted is undone.
    pub(crate) fn open(
        pool: [u8; 16],
        standing: &Standing,
        stores: &[Option<Arc<dyn Store>>],
    ) -> io::Result<MemberSet> {
        let members = standing.members.iter().map(|seat| {
            let store = seat.path.and_then(|path| stores.get(path)?.clone());
            Member {
                place: seat.place,
                size: seat.size.unwrap_or(0),
                trouble: store.is_none().then(|| "it is not there".to_owned()),
                store,
                is_blank: false,
            }
        });
        let mut state = State {
            pool,
            catalog: standing.catalog,
            data_at: standing.data_at,
            length: standing.length,
            generation: standing.generation,
            members: members.collect(),
        };
        state.make_equal()?;
        Ok(MemberSet::of(state))
    }

    fn of(state: State) -> MemberSet {
        MemberSet(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The members, by number.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.state().members.clone()
    }

    /// The pool's identity.
    pub(crate) fn pool(&self) -> [u8; 16] {
        self.state().pool
    }

    /// Where grant 0 is on each member.
    pub(crate) fn data_at(&self) -> u64 {
        self.state().data_at
    }

    /// Bytes of the catalog's region, and of it those in use.
    pub(crate) fn size(&self) -> (u64, u64) {
        let state = self.state();
        (state.catalog, state.length)
    }

    /// Adds members, which get the catalog. Nothing else may change it meanwhile.
    pub(crate) fn add(&self, new: Vec<Member>) -> io::Result<()> {
        let mut state = self.state();
        let first = state.members.len();
        let joining = |mut member: Member| {
            member.place.state = MemberState::Joining;
            member
        };
        state.members.extend(new.into_iter().map(joining));
        let all: Vec<usize> = (first..state.members.len()).collect();
        state.advance(&[])?;
        for nth in &all {
            if state.copy_to(*nth)? {
                // From now on it is known as one that is being added.
                state.write_superblock(*nth);
            }
        }
        let mut troubles = all
            .iter()
            .filter_map(|nth| state.members[*nth].trouble.clone());
        if let Some(why) = troubles.next() {
            state.undo_joining()?;
            return Err(io::Error::other(why));
        }
        state.promote(&all)
    }

    /// What differs between the members, as sentences.
    pub(crate) fn differences(&self) -> Vec<String> {
        let mut state = self.state();
        let mut findings = Vec::new();
        let current: Vec<usize> = state.current();
        let Some((first, others)) = current.split_first() else {
            return vec!["no member has the catalog".to_owned()];
        };
        for other in others {
            match state.is_equal(*first, *other) {
                Some(true) => {}
                Some(false) => findings.push(format!(
                    "members {first} and {other} have different catalogs"
                )),
                None => findings.push(format!(
                    "the catalogs of members {first} and {other} cannot be compared"
                )),
            }
        }
        let generation = state.generation;
        for nth in current {
            match state.members[nth].attempt(newest) {
                Some(Some(found)) if found == state.superblock(nth) => {}
                Some(_) => findings.push(format!(
                    "member {nth} has no superblock of generation {generation}"
                )),
                None => findings.push(format!("member {nth} cannot be read")),
            }
        }
        findings
    }
}

/// Both superblocks of a member.
pub(crate) fn superblocks(store: &dyn Store) -> io::Result<[Result<Superblock, Unreadable>; 2]> {
    let mut read = [Err(Unreadable::Empty), Err(Unreadable::Empty)];
    for (at, read) in SUPERBLOCKS.iter().zip(&mut read) {
        let mut block = [0; BLOCK];
        store.read_at(&mut block, *at)?;
        *read = Superblock::decode(&block);
    }
    Ok(read)
}

/// The newer of a member's superblocks.
fn newest(store: &dyn Store) -> io::Result<Option<Superblock>> {
    let found = superblocks(store)?.into_iter().flatten();
    Ok(found.max_by_key(|one| one.generation))
}

impl State {
    /// Numbers of the members that have the catalog.
    fn current(&self) -> Vec<usize> {
        let members = self.members.iter().enumerate();
        let current = members.filter(|(_, member)| member.is_current() && member.trouble.is_none());
        current.map(|(nth, _)| nth).collect()
    }

    fn has_failed(&self) -> bool {
        let mut members = self.members.iter();
        members.any(|member| member.is_current() && member.trouble.is_some())
    }

    fn superblock(&self, nth: usize) -> Superblock {
        Superblock {
            pool: self.pool,
            member: u16::try_from(nth).unwrap_or(u16::MAX),
            generation: self.generation,
            catalog: self.catalog,
            length: self.length,
            data_at: self.data_at,
            size: self.members[nth].size,
            members: self.members.iter().map(|member| member.place).collect(),
        }
    }

    fn write_superblock(&mut self, nth: usize) {
        let superblock = self.superblock(nth);
        let member = &mut self.members[nth];
        // Both places are valid from the first one on: part of a later one is then known as that, not as foreign.
        let places = match member.is_blank {
            true => SUPERBLOCKS.to_vec(),
            false => vec![superblock.place()],
        };
        let written = member.attempt(|store| {
            for at in places {
                store.write_at(&superblock.encode(), at)?;
            }
            store.sync()
        });
        if written.is_some() {
            member.is_blank = false;
        }
    }

    /// The next generation: durable on all current members, and then on those that become current by it. Members that fail
    /// are left behind.
    fn advance(&mut self, new: &[usize]) -> io::Result<()> {
        loop {
            let is_old = |nth: &usize| !new.contains(nth);
            if !self.current().iter().any(is_old) {
                // Whoever opens the pool finds it as the last sync has left it.
                return Err(self.none_left());
            }
            for member in &mut self.members {
                if member.is_current() && member.trouble.is_some() {
                    member.place.state = MemberState::Behind;
                }
            }
            self.generation += 1;
            for nth in self.current().into_iter().filter(is_old) {
                self.write_superblock(nth);
            }
            if self.has_failed() {
                continue;
            }
            for nth in new {
                if self.members[*nth].is_current() {
                    self.write_superblock(*nth);
                }
            }
            if !self.has_failed() {
                return Ok(());
            }
        }
    }

    /// Why nothing can be written any more.
    fn none_left(&self) -> io::Error {
        let mut troubles = self.members.iter().rev();
        let why = troubles.find_map(|member| member.trouble.clone());
        let why = why.unwrap_or_else(|| "all are behind".to_owned());
        io::Error::other(format!("no member of the pool can be used: {why}"))
    }

    /// Makes members current that have the catalog, durably.
    fn promote(&mut self, equal: &[usize]) -> io::Result<()> {
        for nth in equal {
            self.members[*nth].place.state = MemberState::Current;
        }
        self.advance(equal)
    }

    /// Copies the catalog to a member, durably. False: the member failed.
    fn copy_to(&mut self, nth: usize) -> io::Result<bool> {
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < self.length {
            let bytes = part(&mut piece, self.length - at);
            self.read(bytes, at)?;
            let written = self.members[nth].attempt(|store| store.write_at(bytes, CATALOG_AT + at));
            if written.is_none() {
                return Ok(false);
            }
            at += PIECE as u64;
        }
        Ok(self.members[nth].attempt(|store| store.sync()).is_some())
    }

    /// After a start: one member's catalog counts, and the others get it.
    fn make_equal(&mut self) -> io::Result<()> {
        self.undo_joining()?;
        let mut source = None;
        for nth in self.current() {
            // One that cannot be read in full is no source.
            if source.is_none() && self.is_readable(nth) {
                source = Some(nth);
            }
        }
        let Some(source) = source else {
            return Err(io::Error::other("no member has a catalog that can be read"));
        };
        for nth in self.current().into_iter().filter(|nth| *nth != source) {
            // A crash may leave members with different parts of the last change.
            if self.is_equal(source, nth) == Some(false) {
                self.members[nth].place.state = MemberState::Behind;
            }
        }
        let is_behind = |member: &Member| !member.is_current() && member.trouble.is_none();
        let members = self.members.iter().enumerate();
        let behind = members.filter(|(_, member)| is_behind(member));
        let behind: Vec<usize> = behind.map(|(nth, _)| nth).collect();
        // Also if nothing else is to be said: a crash may have left some members without the newest superblock.
        self.advance(&[])?;
        let mut equal = Vec::new();
        for nth in behind {
            if self.copy_to(nth)? {
                equal.push(nth);
            }
        }
        match equal.is_empty() {
            true => Ok(()),
            false => self.promote(&equal),
        }
    }

    /// Forgets members whose addition was interrupted: they are the last ones, and have nothing.
    fn undo_joining(&mut self) -> io::Result<()> {
        let is_joining = |member: &Member| member.place.state == MemberState::Joining;
        let stays = self.members.iter().rposition(|member| !is_joining(member));
        let stays = stays.map_or(0, |last| last + 1);
        if stays == self.members.len() {
            return Ok(());
        }
        self.members.truncate(stays);
        self.advance(&[])
    }

    fn is_readable(&mut self, nth: usize) -> bool {
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < self.length {
            let bytes = part(&mut piece, self.length - at);
            let read = self.members[nth].attempt(|store| store.read_at(bytes, CATALOG_AT + at));
            if read.is_none() {
                return false;
            }
            at += PIECE as u64;
        }
        true
    }

    /// Whether two members have the same catalog. `None`: one cannot be read.
    fn is_equal(&mut self, one: usize, other: usize) -> Option<bool> {
        let mut pieces = [vec![0; PIECE], vec![0; PIECE]];
        let mut at = 0;
        while at < self.length {
            let [mine, others] = pieces.each_mut().map(|piece| part(piece, self.length - at));
            self.members[one].attempt(|store| store.read_at(mine, CATALOG_AT + at))?;
            self.members[other].attempt(|store| store.read_at(others, CATALOG_AT + at))?;
            if mine != others {
                return Some(false);
            }
            at += PIECE as u64;
        }
        Some(true)
    }

    fn must_be_within(&self, at: u64, bytes: usize) -> io::Result<()> {
        let end = at.checked_add(bytes as u64);
        match end.is_some_and(|end| end <= self.length) {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads from the first member that can.
    fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.must_be_within(at, bytes.len())?;
        for nth in self.current() {
            let read = self.members[nth].attempt(|store| store.read_at(bytes, CATALOG_AT + at));
            if read.is_some() {
                return Ok(());
            }
        }
        Err(self.none_left())
    }

    /// Writes to all.
    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.must_be_within(at, bytes.len())?;
        for nth in self.current() {
            self.members[nth].attempt(|store| store.write_at(bytes, CATALOG_AT + at));
        }
        match self.current().is_empty() {
            true => Err(self.none_left()),
            false => Ok(()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        for nth in self.current() {
            self.members[nth].attempt(|store| store.sync());
        }
        match self.has_failed() {
            true => self.advance(&[]),
            false if self.current().is_empty() => Err(self.none_left()),
            false => Ok(()),
        }
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        if length > self.catalog {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the catalog of the pool is full",
            ));
        }
        let before = self.length;
        if length > before {
            // What is there may be of an earlier catalog.
            let zeroes = vec![0; PIECE];
            self.length = length;
            let mut at = before;
            while at < length {
                let bytes = PIECE.min(usize::try_from(length - at).unwrap_or(PIECE));
                self.write(&zeroes[..bytes], at)?;
                at += PIECE as u64;
            }
            self.sync()?;
        }
        self.length = length;
        self.advance(&[])
    }
}

/// At most so many bytes of a piece.
fn part(piece: &mut [u8], most: u64) -> &mut [u8] {
    let bytes = piece.len().min(usize::try_from(most).unwrap_or(usize::MAX));
    &mut piece[..bytes]
}

// glossary: redb's word
impl redb::StorageBackend for MemberSet {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.state().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.state().read(out, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.state().set_length(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.state().sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.state().write(data, offset)
    }
}

#[cfg(test)]
mod tests;
