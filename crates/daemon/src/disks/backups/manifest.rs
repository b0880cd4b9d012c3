//! The manifest of a directory of backups: which files it has, in which order, of which snapshots.
//!
//! # Always true
//! - It ends with the checksum of what is before it: a damaged one is refused.
//! - Each increment is based on an earlier backup; numbers ascend.
//! - A file's name is made of the backup's number and snapshot, so no path leads out of the directory.

use serde::{Deserialize, Serialize};
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::toml_error;

use crate::os_error::Outcome;
use crate::text::hex;

/// The file's name.
pub(crate) const NAME: &str = "backups.toml";
/// The largest manifest that is read: some 100,000 backups.
pub(crate) const MOST: usize = 64 << 20;
const VERSION: u32 = 1;
/// The line before the checksum.
const SEAL: &str = "[seal]\n";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    version: u32,
    /// The disk's name when its first backup was made.
    pub(crate) disk: Name,
    pub(crate) uuid: Uuid,
    /// The snapshot of a backup that is being made. If that was interrupted, the next one deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<Name>,
    #[serde(default)]
    pub(crate) backups: Vec<Entry>,
}

/// One backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) number: u32,
    pub(crate) snapshot: Name,
    /// The generation of the disk that the snapshot keeps. Each number is used once.
    pub(crate) generation: u32,
    /// Whether the backup took the snapshot itself, and may delete it.
    pub(crate) is_own: bool,
    /// The number of the backup that it is based on. None: it is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<u32>,
    /// Of the disk.
    pub(crate) size_bytes: u64,
    pub(crate) file_bytes: u64,
    /// Bytes of the disk that it covers: all, or what changed.
    pub(crate) covered_bytes: u64,
    /// Of the file, in hexadecimal.
    pub(crate) sha256: String,
    /// When it was made, in seconds since 1970.
    pub(crate) at: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Seal {
    seal: Sha256,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sha256 {
    sha256: String,
}

impl Entry {
    /// The name of its file.
    pub(crate) fn file(&self) -> String {
        file_name(self.number, &self.snapshot)
    }
}

/// The name of a backup's file.
pub(crate) fn file_name(number: u32, snapshot: &Name) -> String {
    format!("{number:04}-{snapshot}.qcow2")
}

impl Manifest {
    /// Of a directory without backups.
    pub(crate) fn new(disk: Name, uuid: Uuid) -> Manifest {
        Manifest {
            version: VERSION,
            disk,
            uuid,
            pending: None,
            backups: Vec::new(),
        }
    }

    /// Its text.
    ///
    /// # Errors
    /// If it cannot be written as text, which no valid name causes.
    pub(crate) fn encode(&self) -> Outcome<String> {
        let text = toml::to_string(self).map_err(|e| {
            Problem::new(
                ProblemCode::Internal,
                "cannot write the manifest of backups",
            )
            .because_of(&e)
            .remedy("report this as a bug")
        })?;
        let sha256 = checksum(text.as_bytes());
        Ok(format!("{text}\n{SEAL}sha256 = \"{sha256}\"\n"))
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// It is damaged, or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Outcome<Manifest> {
        let what = "the manifest of these backups is damaged";
        let damaged = |why: String| {
            Problem::new(ProblemCode::Corrupt, what).because(why).remedy(
                "get the directory again from a copy; the images can be read without the manifest: qemu-img info \
                 --backing-chain FILE.qcow2",
            )
        };
        let text = std::str::from_utf8(bytes).map_err(|e| damaged(e.to_string()))?;
        let (body, seal) = text
            .rsplit_once(SEAL)
            .and_then(|(body, seal)| Some((body.strip_suffix('\n')?, seal)))
            .ok_or_else(|| damaged("its end is missing".to_owned()))?;
        let whole = format!("{SEAL}{seal}");
        let seal: Seal = toml::from_str(&whole).map_err(|e| damaged(toml_error::message(&e)))?;
        if seal.seal.sha256 != checksum(body.as_bytes()) {
            return Err(damaged("its checksum is another one".to_owned()));
        }
        let manifest: Manifest =
            toml::from_str(body).map_err(|e| damaged(toml_error::message(&e)))?;
        if manifest.version != VERSION {
            let why = format!("its format is version {}, not {VERSION}", manifest.version);
            return Err(
                Problem::new(ProblemCode::Unsupported, "these backups cannot be used")
                    .because(why)
                    .remedy("use the version of Tidegate that wrote them"),
            );
        }
        manifest.check().map_err(damaged)?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        let mut last = 0;
        for entry in &self.backups {
            if entry.number <= last {
                return Err(format!("backup {} follows backup {last}", entry.number));
            }
            if let Some(base) = entry.base
                && (base >= entry.number || self.backup(base).is_none())
            {
                return Err(format!(
                    "backup {} is based on backup {base}, which is not before it",
                    entry.number
                ));
            }
            last = entry.number;
        }
        Ok(())
    }

    /// The backup of this number.
    pub(crate) fn backup(&self, number: u32) -> Option<&Entry> {
        self.backups.iter().find(|entry| entry.number == number)
    }

    /// The newest one.
    pub(crate) fn last(&self) -> Option<&Entry> {
        self.backups.last()
    }

    /// The number of the next one.
    pub(crate) fn next_number(&self) -> u32 {
        self.last().map_or(1, |entry| entry.number + 1)
    }

    /// The backup of a snapshot's name, or of a number; the newest one if none is given.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find(&self, at: Option<&str>) -> Outcome<&Entry> {
        let found = match at {
            None => self.last(),
            Some(at) => {
                let mut newest = self.backups.iter().rev();
                let named = newest.find(|entry| entry.snapshot.as_str() == at);
                named.or_else(|| self.backup(at.parse().ok()?))
            }
        };
        found.ok_or_else(|| {
            let what = match at {
                Some(at) => format!("there is no backup {at} here"),
                None => "there is no complete backup here".to_owned(),
            };
            let names: Vec<&str> = self.backups.iter().map(|it| it.snapshot.as_str()).collect();
            let problem = Problem::new(ProblemCode::NotFound, what);
            match names.is_empty() {
                true => problem.remedy("make one: tidegate backup DISK DIR"),
                false => problem.remedy(format!("choose one of: {}", names.join(", "))),
            }
        })
    }

    /// A backup and those that it needs, the newest first.
    pub(crate) fn chain<'a>(&'a self, of: &'a Entry) -> Vec<&'a Entry> {
        let beneath = |entry: &&'a Entry| self.backup(entry.base?);
        std::iter::successors(Some(of), beneath).collect()
    }

    /// The backups whose snapshots they took themselves and that no next increment needs: all but the newest one.
    pub(crate) fn spent(&self) -> Vec<&Entry> {
        let kept = self.last().map(|entry| &entry.snapshot);
        let is_spent = |entry: &&Entry| entry.is_own && Some(&entry.snapshot) != kept;
        self.backups.iter().filter(is_spent).collect()
    }

    /// The snapshot of a backup was deleted.
    pub(crate) fn no_longer_own(&mut self, number: u32) {
        let found = self.backups.iter_mut().find(|entry| entry.number == number);
        if let Some(entry) = found {
            entry.is_own = false;
        }
    }
}

/// The SHA-256 of bytes, in hexadecimal.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}
