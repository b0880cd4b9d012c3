//! Stored state: datastores, disks, and the disks to attach at start.
//!
//! The disk_service calls this. Nothing here knows which disks are attached, and nothing opens an image for I/O. All
//! calls block.
//!
//! # Always true
//! - Nothing is cached: the files are authoritative, also when another program wrote them.
//! - A disk exists while its directory has its name. One rename creates it and one rename deletes it.
//!
//! # Picture
//! ```text
//! STATE/datastores/NAME.toml        one record each; a pool has one only once its I/O control was changed
//! STATE/attached.toml               the disks to attach at start
//! STATE/groups.toml                 shared limits of groups of disks
//! STATE/jobs.toml                   imports and exports that run (`jobs.rs` writes it)
//! STATE/agreed.toml                 paths outside datastores that disks may use here
//! STATE/homes/NAME.toml             the file system of a datastore of kind `dir`
//! STATE/disks/DATASTORE/NAME/       disk.toml of disks on datastores without files
//! PATH/NAME/disk.toml, image        disks on a datastore of kind `dir`
//! a pool's catalog                  disks on a pool
//! PATH/NAME/snapshots.toml, snapshot-*   their snapshots
//! PATH/.creating-NAME-UUID, .deleting-NAME   transient; removed by the next sweep
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_api::datastore::{DatastoreRecord, DatastoreSettings};
use tidegate_api::descriptor::{self, Descriptor};
use tidegate_api::group::{GroupLimits, GroupsRecord};
use tidegate_api::iocontrol::IoControl;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::toml_error;

use crate::files;
use crate::os_error::{self, Outcome};

mod contents;
pub(crate) mod disks;
mod drafts;
mod home;
mod members;
mod pooled;
mod snapshot_list;
mod snapshots;

pub(crate) use contents::{DESCRIPTOR, is_disks_folder};
pub(crate) use disks::{Found, Identity, NewFolder, Unpublished};
pub(crate) use home::{COMMON, mark_file, mark_of};
pub(crate) use pooled::Catalogs;
pub(crate) use snapshot_list::{ListedSnapshot, ListedSnapshots, MOST as MOST_SNAPSHOTS};
pub(crate) use snapshots::{ImageDraft, snapshot_image};

/// The largest state file that is read.
const MAX_STATE_BYTES: usize = 1 << 20;

/// The stored state, by its directory.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    state: PathBuf,
    /// Those of pools, where there can be any.
    catalogs: Option<Arc<dyn Catalogs>>,
    /// How two images share blocks.
    share: snapshots::ShareBlocks,
}

/// Named items, each either read or with the reason why it cannot be read.
pub(crate) type Listed<T> = BTreeMap<Name, Outcome<T>>;

/// The disks to attach at start.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attached {
    version: u32,
    #[serde(default)]
    disks: BTreeMap<Name, Name>,
    /// Disks attached read-only, regardless of their settings.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    read_only: BTreeSet<Name>,
}

/// Paths outside datastores that this host's administrator allowed, by datastore and disk.
pub(crate) type AgreedPaths = BTreeMap<Name, BTreeMap<Name, BTreeSet<PathBuf>>>;

/// The allowed paths as they are stored.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Agreed {
    version: u32,
    #[serde(default)]
    paths: AgreedPaths,
}

impl Store {
    /// The store of a root's state directory.
    pub(crate) fn open(state: PathBuf) -> Outcome<Store> {
        for folder in ["datastores", "disks"] {
            let folder = state.join(folder);
            fs::create_dir_all(&folder)
                .map_err(|e| os_error::io(format!("cannot create {}", folder.display()), &e))?;
        }
        Ok(Store::at(state))
    }

    fn at(state: PathBuf) -> Store {
        Store {
            state,
            catalogs: None,
            share: snapshots::share_blocks,
        }
    }

    /// The same, with another way to share blocks: for tests on any file system.
    #[cfg(test)]
    pub(crate) fn sharing_by(self, share: snapshots::ShareBlocks) -> Store {
        Store { share, ..self }
    }

    /// Fails if the daemon cannot start because its stored state cannot be read.
    pub(crate) fn check(state: PathBuf) -> Outcome<()> {
        let store = Store::at(state);
        store.attached().map(drop)
    }

    /// Every datastore that was added.
    pub(crate) fn datastores(&self) -> Outcome<Listed<DatastoreSettings>> {
        let folder = self.state.join("datastores");
        let mut found = Listed::new();
        for name in names_in(&folder).map_err(|e| os_error::io("cannot list datastores", &e))? {
            let Some(name) = name
                .strip_suffix(".toml")
                .and_then(|name| name.parse::<Name>().ok())
            else {
                continue;
            };
            let settings = self.datastore(&name);
            found.insert(name, settings);
        }
        for name in self.pools()? {
            found.entry(name).or_insert(Ok(DatastoreSettings::Pool {}));
        }
        Ok(found)
    }

    /// One datastore's settings.
    pub(crate) fn datastore(&self, name: &Name) -> Outcome<DatastoreSettings> {
        Ok(self.record(name)?.settings)
    }

    /// The whole stored record of a datastore.
    pub(crate) fn record(&self, name: &Name) -> Outcome<DatastoreRecord> {
        let path = self.datastore_file(name);
        let bytes = match files::read(&path, MAX_STATE_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.has_pool(name) => {
                return Ok(DatastoreRecord {
                    version: DatastoreRecord::VERSION,
                    settings: DatastoreSettings::Pool {},
                    io_control: IoControl::default(),
                });
            }
            bytes => bytes,
        };
        let bytes = bytes.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Problem::new(
                ProblemCode::NotFound,
                format!("there is no datastore {name}"),
            )
            .remedy("see `tidegate datastore list`"),
            _ => os_error::io(format!("cannot read datastore {name}"), &e),
        })?;
        let record: DatastoreRecord = parse(&path, &bytes)?;
        if record.version != DatastoreRecord::VERSION {
            return Err(newer(&path, record.version));
        }
        Ok(record)
    }

    /// The record for a change: no other program changes it while the turn lives.
    pub(crate) fn record_to_change(&self, name: &Name) -> Outcome<(DatastoreRecord, files::Turn)> {
        // If the datastore is missing or unreadable, reading it gives the best error.
        let record = self.record(name)?;
        if record.settings == (DatastoreSettings::Pool {}) {
            return Ok((record, files::Turn::none()));
        }
        let turn = files::turn(&self.datastore_file(name))
            .map_err(|e| os_error::io(format!("cannot change datastore {name}"), &e))?;
        Ok((self.record(name)?, turn))
    }

    /// Stores the I/O control settings of a datastore.
    pub(crate) fn set_io_control(&self, name: &Name, io_control: IoControl) -> Outcome<()> {
        let record = DatastoreRecord {
            io_control,
            ..self.record(name)?
        };
        self.write_record(name, &record)
    }

    fn write_record(&self, name: &Name, record: &DatastoreRecord) -> Outcome<()> {
        let text = toml::to_string(record).expect("every value of a record can be written as TOML");
        files::replace(&self.datastore_file(name), text.as_bytes())
            .map_err(|e| os_error::io(format!("cannot store the record of datastore {name}"), &e))
    }

    /// The shared limits of all groups of disks.
    pub(crate) fn groups(&self) -> Outcome<BTreeMap<Name, GroupLimits>> {
        let path = self.state.join("groups.toml");
        let bytes = match files::read(&path, MAX_STATE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(os_error::io("cannot read the groups of disks", &error)),
        };
        let record: GroupsRecord = parse(&path, &bytes)?;
        if record.version != GroupsRecord::VERSION {
            return Err(newer(&path, record.version));
        }
        Ok(record.groups)
    }

    /// Stores the shared limits of all groups of disks.
    pub(crate) fn set_groups(&self, groups: &BTreeMap<Name, GroupLimits>) -> Outcome<()> {
        let record = GroupsRecord {
            groups: groups.clone(),
            ..GroupsRecord::default()
        };
        let text =
            toml::to_string(&record).expect("every value of a record can be written as TOML");
        files::replace(&self.state.join("groups.toml"), text.as_bytes())
            .map_err(|e| os_error::io("cannot store the groups of disks", &e))
    }

    /// Stores a new datastore.
    pub(crate) fn add_datastore(&self, name: &Name, settings: DatastoreSettings) -> Outcome<()> {
        self.must_be_new_datastore(name)?;
        let memory = home::Memory::of(&self.state, name);
        let remembered = match &settings {
            DatastoreSettings::Dir { path, .. } => memory.adopt(path),
            _ => memory.forget(),
        };
        remembered.map_err(|e| os_error::io(format!("cannot add datastore {name}"), &e))?;
        let record = DatastoreRecord {
            version: DatastoreRecord::VERSION,
            settings,
            io_control: IoControl::default(),
        };
        self.write_record(name, &record)
    }

    /// Fails if a datastore of that name exists, readable or not.
    pub(crate) fn must_be_new_datastore(&self, name: &Name) -> Outcome<()> {
        if !self.datastore_file(name).exists() {
            return Ok(());
        }
        let at = match self.datastore(name) {
            Ok(DatastoreSettings::Dir { path, .. }) => format!(", at {}", path.display()),
            _ => String::new(),
        };
        let what = format!("cannot add datastore {name}");
        Err(Problem::new(ProblemCode::Exists, what)
            .because(format!("there is a datastore {name} already{at}"))
            .remedy(format!(
                "choose another name, or remove that one first: tidegate datastore remove {name}"
            )))
    }

    /// Fails unless a datastore is on the file system on which it was added.
    pub(crate) fn must_be_mounted(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
    ) -> Outcome<()> {
        let DatastoreSettings::Dir { path, .. } = settings else {
            return Ok(());
        };
        let memory = home::Memory::of(&self.state, datastore);
        if let Some(known) = memory.read()? {
            return memory.check(&known, datastore, path);
        }
        // An earlier version added it, and stored no file system identity.
        let unmounted = |why: String| {
            let remedy = format!("mount the file system that belongs at {}", path.display());
            home::not_mounted(datastore, why, remedy)
        };
        let used = home::is_used(path);
        if used.map_err(|error| unmounted(format!("{}: {error}", path.display())))? {
            let what = format!("cannot store which file system datastore {datastore} is on");
            return memory.adopt(path).map_err(|e| os_error::io(what, &e));
        }
        match self.attached()?.values().any(|on| on == datastore) {
            true => {
                let why = "its directory is empty, but disks on it should be attached";
                Err(unmounted(why.to_owned()))
            }
            false => Ok(()),
        }
    }

    /// Removes the record of a datastore. Its content stays.
    pub(crate) fn remove_datastore(&self, name: &Name) -> Outcome<()> {
        let path = self.datastore_file(name);
        fs::remove_file(&path)
            .and_then(|()| home::Memory::of(&self.state, name).forget())
            .and_then(|()| files::sync_folder(&self.state.join("datastores")))
            .map_err(|e| os_error::io(format!("cannot remove the record of datastore {name}"), &e))
    }

    /// Removes the record of a datastore that was a pool, if it has one.
    pub(crate) fn forget_pool(&self, name: &Name) -> Outcome<()> {
        match self.datastore_file(name).exists() {
            true => self.remove_datastore(name),
            false => Ok(()),
        }
    }

    /// The disks to attach at start, with their datastores.
    pub(crate) fn attached(&self) -> Outcome<BTreeMap<Name, Name>> {
        Ok(self.read_attached()?.disks)
    }

    /// The disks to attach read-only, regardless of their settings.
    pub(crate) fn attached_read_only(&self) -> Outcome<BTreeSet<Name>> {
        Ok(self.read_attached()?.read_only)
    }

    fn read_attached(&self) -> Outcome<Attached> {
        let path = self.attached_file();
        let bytes = match files::read(&path, MAX_STATE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Attached {
                    version: 1,
                    ..Attached::default()
                });
            }
            Err(error) => {
                return Err(os_error::io(
                    "cannot read which disks were attached",
                    &error,
                ));
            }
        };
        let attached: Attached = parse(&path, &bytes)?;
        if attached.version != 1 {
            return Err(newer(&path, attached.version));
        }
        Ok(attached)
    }

    /// Stores which disks to attach at start.
    pub(crate) fn set_attached(&self, disks: BTreeMap<Name, Name>) -> Outcome<()> {
        let mut read_only = self.attached_read_only()?;
        read_only.retain(|name| disks.contains_key(name));
        self.write_attached(&Attached {
            version: 1,
            disks,
            read_only,
        })
    }

    /// Stores whether to attach one of them read-only, regardless of its settings.
    pub(crate) fn set_attached_read_only(&self, name: &Name, only_read: bool) -> Outcome<()> {
        let mut attached = self.read_attached()?;
        let changed = match only_read {
            true => attached.read_only.insert(name.clone()),
            false => attached.read_only.remove(name),
        };
        match changed {
            true => self.write_attached(&attached),
            false => Ok(()),
        }
    }

    fn write_attached(&self, attached: &Attached) -> Outcome<()> {
        let text = toml::to_string(attached).expect("names can be written as TOML");
        files::replace(&self.attached_file(), text.as_bytes())
            .map_err(|e| os_error::io("cannot store which disks are attached", &e))
    }

    /// The paths outside datastores that disks may use on this host.
    pub(crate) fn agreed(&self) -> Outcome<AgreedPaths> {
        let path = self.agreed_file();
        let bytes = match files::read(&path, MAX_STATE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => {
                return Err(os_error::io(
                    "cannot read which paths were accepted",
                    &error,
                ));
            }
        };
        let agreed: Agreed = parse(&path, &bytes)?;
        if agreed.version != 1 {
            return Err(newer(&path, agreed.version));
        }
        Ok(agreed.paths)
    }

    /// Stores which paths outside datastores disks may use on this host.
    pub(crate) fn set_agreed(&self, paths: AgreedPaths) -> Outcome<()> {
        let agreed = Agreed { version: 1, paths };
        let what = "cannot store which paths were accepted";
        let text = toml::to_string(&agreed).map_err(|e| {
            os_error::invalid(what)
                .because_of(&e)
                .remedy("use paths that are valid UTF-8")
        })?;
        files::replace(&self.agreed_file(), text.as_bytes()).map_err(|e| os_error::io(what, &e))
    }

    fn agreed_file(&self) -> PathBuf {
        self.state.join("agreed.toml")
    }

    fn attached_file(&self) -> PathBuf {
        self.state.join("attached.toml")
    }

    fn datastore_file(&self, name: &Name) -> PathBuf {
        self.state.join("datastores").join(format!("{name}.toml"))
    }

    /// The directory that contains the directories of a datastore's disks.
    fn disks_folder(&self, datastore: &Name, settings: &DatastoreSettings) -> PathBuf {
        match settings {
            DatastoreSettings::Dir { path, .. } => path.clone(),
            _ => self.state.join("disks").join(datastore.as_str()),
        }
    }
}

/// Names in a directory, without those that begin with a dot.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        if let Ok(name) = entry?.file_name().into_string()
            && !name.starts_with('.')
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read_descriptor(path: &Path) -> Outcome<Descriptor> {
    let bytes = files::read(files::Location::in_disk(path), descriptor::MAX_BYTES)
        .map_err(|e| os_error::io(format!("cannot read {}", path.display()), &e))?;
    Descriptor::read(&bytes).map_err(|error| corrupt(path).because_of(&error))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Outcome<T> {
    let text = std::str::from_utf8(bytes).map_err(|error| corrupt(path).because_of(&error))?;
    toml::from_str(text).map_err(|error| corrupt(path).because(toml_error::message(&error)))
}

fn corrupt(path: &Path) -> Problem {
    Problem::new(
        ProblemCode::Corrupt,
        format!("{} is damaged", path.display()),
    )
    .remedy("repair it by hand or restore a copy; nothing was changed")
}

fn newer(path: &Path, version: u32) -> Problem {
    Problem::new(
        ProblemCode::Corrupt,
        format!("cannot understand {}", path.display()),
    )
    .because(format!(
        "its format is version {version}; this program supports version 1"
    ))
    .remedy("use the program that wrote it")
}
