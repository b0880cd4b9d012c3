//! The stored states of the policies of flash caches: a file for each disk's part, beside the record of the cache.
//!
//! The disk service stores it every few minutes of use, and when a disk is detached. The next attach on this host goes on from
//! there. A file that is lost or unusable costs hits, and nothing else.
//!
//! # Always true
//! - a file is used only for the cache and the disk that it names
//!
//! # Picture, little-endian
//! ```text
//! STATE/caches/NAME.DISK.policy
//!    0  magic 8, version u32, cache 16, disk 16, stored at u64 (seconds since 1970)
//!   52  the state, as the engine reads it
//!   -4  CRC32C of all before it u32
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_core::block::crc32c;
use tidegate_core::layout::cache::policy::check_state;

use super::budgets::unix_s;
use super::locked;
use crate::files;

const MAGIC: [u8; 8] = *b"TGPOLICY";
const VERSION: u32 = 1;
const HEAD: usize = 52;
/// A file that is older is not used, in seconds. Origin: chosen. What a disk does changes within weeks.
const MOST_AGE: u64 = 30 * 86_400;
/// The largest file that is read: more than the engine has ever to store.
const MOST: usize = 17 << 20;

/// See the module.
pub(crate) struct Policies {
    folder: PathBuf,
    /// Serialises replacements: a file's next content has one name.
    storing: Mutex<()>,
}

/// Whose policy it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    /// The cache.
    pub(crate) name: &'a Name,
    /// Its identity.
    pub(crate) cache: Uuid,
    /// The disk.
    pub(crate) disk: Uuid,
}

impl Policies {
    pub(super) fn new(folder: &Path) -> Policies {
        Policies {
            folder: folder.to_owned(),
            storing: Mutex::default(),
        }
    }

    /// What is stored. It is empty if there is none.
    ///
    /// # Errors
    /// Why the file is not used. It is removed, unless it cannot be read.
    pub(crate) fn load(&self, owner: Owner<'_>) -> Result<Vec<u8>, String> {
        let file = self.file(owner.name, owner.disk);
        let bytes = match files::read(&file, MOST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(format!("{} cannot be read: {error}", file.display())),
        };
        decode(&bytes, owner, unix_s())
            .map(<[u8]>::to_vec)
            .map_err(|why| {
                // It would be reported again and again.
                let _ = fs::remove_file(&file);
                format!("{} {why}", file.display())
            })
    }

    /// Stores a state in place of the one before.
    pub(crate) fn store(&self, owner: Owner<'_>, state: &[u8]) -> io::Result<()> {
        let bytes = encode(owner, state, unix_s());
        let _alone = locked(&self.storing);
        files::replace(&self.file(owner.name, owner.disk), &bytes)
    }

    /// A disk has no part of the cache any more.
    pub(super) fn forget(&self, name: &Name, disk: Uuid) {
        // It is of no use, and harmless.
        let _ = fs::remove_file(self.file(name, disk));
    }

    fn file(&self, name: &Name, disk: Uuid) -> PathBuf {
        self.folder.join(format!("{name}.{disk}.policy"))
    }
}

fn encode(owner: Owner<'_>, state: &[u8], now: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + state.len() + 4);
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend(owner.cache.0);
    out.extend(owner.disk.0);
    out.extend(now.to_le_bytes());
    out.extend(state);
    out.extend(crc32c(&out).to_le_bytes());
    out
}

/// The state in a file, or why it is not used.
fn decode<'a>(bytes: &'a [u8], owner: Owner<'_>, now: u64) -> Result<&'a [u8], &'static str> {
    let damaged = "is damaged";
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or(damaged)?;
    let (head, state) = body.split_first_chunk::<HEAD>().ok_or(damaged)?;
    if head[..8] != MAGIC || bytes.len() > MOST {
        return Err("is something else");
    }
    if *sum != crc32c(body).to_le_bytes() {
        return Err(damaged);
    }
    if head[8..12] != VERSION.to_le_bytes() || check_state(state).is_err() {
        return Err("has a format of another version");
    }
    if head[12..28] != owner.cache.0 || head[28..44] != owner.disk.0 {
        return Err("is of another disk or cache");
    }
    let at = head
        .last_chunk::<8>()
        .map_or(0, |at| u64::from_le_bytes(*at));
    // A clock that was set back says nothing about the age.
    if now.saturating_sub(at) > MOST_AGE {
        return Err("is older than 30 days");
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1_700_000_000;

    /// The state of a cache without candidates and ghosts.
    fn state() -> Vec<u8> {
        let mut state = vec![1];
        state.resize(29, 0);
        state.extend([1, 0, 0, 0]);
        state
    }

    fn owner(name: &Name, cache: u8, disk: u8) -> Owner<'_> {
        Owner {
            name,
            cache: Uuid([cache; 16]),
            disk: Uuid([disk; 16]),
        }
    }

    #[test]
    fn what_is_damaged_foreign_of_another_version_or_too_old_is_not_used() {
        let name: Name = "fast".parse().unwrap();
        let own = owner(&name, 1, 2);
        let bytes = encode(own, &state(), AT);
        assert_eq!(decode(&bytes, own, AT + 60), Ok(&*state()));
        assert_eq!(decode(&bytes, own, AT - 60), Ok(&*state()), "another clock");
        for other in [owner(&name, 1, 3), owner(&name, 4, 2)] {
            let refused = decode(&bytes, other, AT);
            assert_eq!(refused, Err("is of another disk or cache"));
        }
        let old = decode(&bytes, own, AT + MOST_AGE + 1);
        assert_eq!(old, Err("is older than 30 days"));
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 4;
            assert!(decode(&damaged, own, AT).is_err(), "byte {place}");
            assert!(decode(&bytes[..place], own, AT).is_err(), "{place} bytes");
        }
        let mut newer = bytes[..bytes.len() - 4].to_vec();
        newer[8] = 2;
        newer.extend(crc32c(&newer).to_le_bytes());
        let refused = decode(&newer, own, AT);
        assert_eq!(refused, Err("has a format of another version"));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let policies = Policies::new(folder.path());
        let name: Name = "fast".parse().unwrap();
        let own = owner(&name, 1, 2);
        assert_eq!(policies.load(own), Ok(Vec::new()));
        policies.store(own, &state()).unwrap();
        assert_eq!(policies.load(own), Ok(state()));
        fs::write(policies.file(&name, own.disk), b"something").unwrap();
        let why = policies.load(own).unwrap_err();
        assert!(why.contains("is damaged"), "{why}");
        assert_eq!(policies.load(own), Ok(Vec::new()));
        policies.store(own, &state()).unwrap();
        policies.forget(&name, own.disk);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
