//! Commands on datastores: adding, describing, changing and removing them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::StatVfsMountFlags;
use tidegate_api::datastore::{Datastore, DatastoreSet, DatastoreSettings};
use tidegate_api::iocontrol::{DatastoreControl, IO_UNIT_MAX, IO_UNIT_MIN, IoControl};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::pool::GRANT;
use tidegate_engine::control::Change;
use tidegate_engine::mounts;

use super::DiskService;
use crate::config::plan::ImagePlan;
use crate::config::plan::policy;
use crate::control::report;
use crate::disks::image_file;
use crate::host;
use crate::os_error::{self, Outcome};
use crate::pools::Pools;
use crate::store;
use crate::text::quoted;

/// The default datastore if none is named and there are several.
const USUAL: &str = "local";

/// How long adding a datastore waits while another is being added.
const ADD_PATIENCE: Duration = Duration::from_secs(10);

/// A datastore with less free space is full: a guest can fill the rest in a moment.
const FULL_BYTES: u64 = 16 << 20;

/// On a small file system, a datastore is full if less than one in this many bytes is free.
const FULL_PART: u64 = 100;

impl DiskService {
    /// Every datastore.
    pub(crate) fn datastores(&self) -> Outcome<Vec<Datastore>> {
        let readable = self.readable_datastores()?;
        Ok(readable
            .map(|(name, settings)| self.describe_datastore(name, settings))
            .collect())
    }

    /// The datastores whose records can be read. The others have no settings: the status reports them
    /// ([`DiskService::unreadable_datastores`]).
    fn readable_datastores(&self) -> Outcome<impl Iterator<Item = (Name, DatastoreSettings)>> {
        let all = self.store.datastores()?.into_iter();
        Ok(all.filter_map(|(name, settings)| Some((name, settings.ok()?))))
    }

    /// Every datastore, without its I/O control, which would require reading its disks' descriptors. The monitor needs
    /// no more.
    pub(crate) fn datastores_at_a_glance(&self) -> Outcome<Vec<Datastore>> {
        Ok(self.glance()?.0)
    }

    /// The same, and the names of all disks: one on several datastores is one disk.
    pub(crate) fn glance(&self) -> Outcome<(Vec<Datastore>, BTreeSet<Name>)> {
        let readable = self.readable_datastores()?;
        let mut attached: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
        for live in self.live.all() {
            for on in live.datastores() {
                let others = attached.entry(on).or_default();
                others.insert(live.name().clone());
            }
        }
        let mut all = BTreeSet::new();
        let describe = |(name, settings): (Name, DatastoreSettings)| {
            let here = attached.remove(&name).unwrap_or_default();
            let (store, on, of) = (self.store.clone(), name.clone(), settings.clone());
            let pools = Arc::clone(&self.pools);
            let seen = self.surveys.at(&name, move || {
                Ok((
                    store.disk_names(&on, &of, &here)?,
                    space_at(&pools, &on, &of),
                ))
            });
            let seen = seen.map(|(disks, space)| {
                let count = disks.len() as u64;
                all.extend(disks);
                (count, space)
            });
            self.tell_datastore(name, settings, seen, None)
        };
        let datastores = readable.map(describe).collect();
        Ok((datastores, all))
    }

    /// The problems of datastores whose records cannot be read. They have no settings to show and appear in no list.
    pub(crate) fn unreadable_datastores(&self) -> Outcome<Vec<Problem>> {
        let told = |(name, settings): (Name, Outcome<DatastoreSettings>)| {
            let problem = settings.err()?;
            Some(problem.within(format!("datastore {name} cannot be used")))
        };
        Ok(self
            .store
            .datastores()?
            .into_iter()
            .filter_map(told)
            .collect())
    }

    /// One datastore.
    pub(crate) fn datastore(&self, name: &Name) -> Outcome<Datastore> {
        let settings = self.store.datastore(name)?;
        Ok(self.describe_datastore(name.clone(), settings))
    }

    /// Changes a datastore's I/O control. If its hosts share a directory, all of them adopt the change.
    pub(crate) fn set_datastore(&self, name: &Name, order: &DatastoreSet) -> Outcome<Datastore> {
        let what = format!("cannot change datastore {name}");
        let (record, _turn) = self.store.record_to_change(name)?;
        let running = self.controls.running(name);
        let mut after = record.io_control.clone();
        if let Some(running) = &running
            && let Ok(report) = running.control.report()
        {
            // The current mode, which another host may have set.
            let common = report.governor.common;
            after.mode = report::mode(common.mode());
            after.congestion_threshold = report::threshold(common.threshold());
            after.io_unit_bytes = common.io_unit;
        }
        let order = &order.io_control;
        after.mode = order.mode.unwrap_or(after.mode);
        after.congestion_threshold = order
            .congestion_threshold
            .unwrap_or(after.congestion_threshold);
        after.io_unit_bytes = order.io_unit_bytes.unwrap_or(after.io_unit_bytes);
        if let Some(directory) = &order.coordination {
            after.coordination = directory.clone();
        }
        check_control(&record.settings, &after).map_err(|problem| problem.within(&what))?;
        if let Some(Some(directory)) = &order.coordination {
            self.must_not_be_deleted_with_a_disk(directory)
                .map_err(|problem| problem.within(&what))?;
        }
        if running.is_some() && after.coordination != record.io_control.coordination {
            return Err(Problem::new(ProblemCode::Busy, what)
                .because(
                    "disks on it are attached, and their I/O control uses the present directory",
                )
                .remedy(format!(
                    "detach them first: {}",
                    listed(self.using(name).iter().map(|live| live.name()))
                )));
        }
        let change = Change {
            mode: order.mode.map(policy::mode),
            threshold: order.congestion_threshold.map(policy::threshold),
            io_unit: order.io_unit_bytes,
        };
        let is_heard = running.is_some() || policy::directory(&record.settings, &after).is_some();
        let is_told = is_heard && change != Change::default();
        if is_told {
            // Checked before anything is saved: a refused command changes nothing.
            self.store.must_be_mounted(name, &record.settings)?;
        }
        self.store.set_io_control(name, after.clone())?;
        if is_told {
            // If no disk is attached, this starts the governor only to inform the other hosts, and stops it at once.
            let in_use = self
                .controls
                .enter(&self.host, name, &record.settings, &after)?;
            let changed = in_use.control().change(change);
            changed.map_err(|error| host::problem(&error).within(&what))?;
        }
        let threshold = after.congestion_threshold;
        tracing::info!(datastore = %name, mode = ?after.mode, %threshold, "I/O control of a datastore was changed");
        self.datastore(name)
    }

    /// Adds a datastore.
    pub(crate) fn add_datastore(
        &self,
        name: &Name,
        settings: DatastoreSettings,
    ) -> Outcome<Datastore> {
        // Before the check of its path, which depends on the stored records for that name.
        self.store.must_be_new_datastore(name)?;
        if self.pools.has(name) {
            let what = format!("cannot add datastore {name}");
            return Err(Problem::new(ProblemCode::Exists, what)
                .because("there is a pool of that name, and disks name either by its name")
                .remedy("choose another name"));
        }
        check(name, &settings)?;
        // Two concurrent commands do not see each other's new datastore.
        let Some(_turn) = self.adding.enter(ADD_PATIENCE) else {
            let what = format!("cannot add datastore {name}");
            return Err(Problem::new(ProblemCode::Busy, what)
                .because("another datastore is being added, and does not respond")
                .remedy("check whether its file server responds, and try again"));
        };
        // Checked again: a command that was waited for may have added it.
        self.store.must_be_new_datastore(name)?;
        self.must_not_conflict(name, &settings)?;
        self.store.add_datastore(name, settings)?;
        tracing::info!(datastore = %name, "added");
        self.datastore(name)
    }

    /// Fails if a new datastore is an existing one or a copy of it, or has disks whose names are taken. All conflicts
    /// are reported together.
    fn must_not_conflict(&self, name: &Name, settings: &DatastoreSettings) -> Outcome<()> {
        let copied = self.copy_of(name, settings)?;
        self.must_lie_apart(name, settings)?;
        let disks = self.store.disks_before_added(name, settings)?.into_iter();
        let taken: Vec<_> = disks
            .filter(|(disk, found)| found.is_ok() && self.search(disk).is_ok())
            .map(|(disk, _)| disk)
            .collect();
        if copied.is_none() && taken.is_empty() {
            return Ok(());
        }
        let mut refused = Problem::new(ProblemCode::Exists, format!("cannot add datastore {name}"));
        let mut remedies = Vec::new();
        if let Some((other, mark)) = copied {
            let mark = mark.display();
            refused = refused.because(format!(
                "it contains the mark of datastore {other}: it is the same directory, or a copy of it"
            ));
            remedies.push(format!(
                "use {other}; or, if this is a copy, remove {mark} from it"
            ));
        }
        if !taken.is_empty() {
            refused = refused.because(format!(
                "it contains disks with names that are taken: {}",
                listed(&taken)
            ));
            remedies.push(
                "rename their directories in one of the two datastores: a disk's name is unique on a host"
                    .to_owned(),
            );
        }
        Err(refused.remedy(remedies.join("; and ")))
    }

    /// The datastore that has the same mark as a new one, with the mark's file. Fails if both are the same directory,
    /// by any path.
    fn copy_of(
        &self,
        name: &Name,
        settings: &DatastoreSettings,
    ) -> Outcome<Option<(Name, PathBuf)>> {
        let what = || format!("cannot add datastore {name}");
        let DatastoreSettings::Dir { path: new, .. } = settings else {
            return Ok(None);
        };
        let here = Directory::at(new).map_err(|e| os_error::io(what(), &e))?;
        let mut copied = None;
        for (other, settings) in self.store.datastores()? {
            let Ok(DatastoreSettings::Dir { path, .. }) = settings else {
                continue;
            };
            if other == *name {
                continue;
            }
            let look = {
                let path = path.clone();
                move || Directory::at(&path).map_err(|e| os_error::io("it cannot be read", &e))
            };
            // An unreachable datastore is a different one, or cannot be added here either.
            let Ok(there) = self.surveys.at(&other, look) else {
                continue;
            };
            if there.place == here.place {
                let path = path.display();
                return Err(Problem::new(ProblemCode::Exists, what())
                    .because(format!("datastore {other} is the same directory, {path}"))
                    .remedy(format!("use {other}, or give another directory")));
            }
            if here.mark.is_some() && there.mark == here.mark {
                copied = Some((other, store::mark_file(new)));
            }
        }
        Ok(copied)
    }

    /// Removes a datastore whose disks are all detached. Its content stays.
    pub(crate) fn remove_datastore(&self, name: &Name) -> Outcome<()> {
        let what = format!("cannot remove datastore {name}");
        // Its settings are not read: a datastore that has become unreadable must be removable.
        if !self.store.datastores()?.contains_key(name) {
            return self.store.datastore(name).map(|_| ());
        }
        if self.store.has_pool(name) {
            return Err(Problem::new(ProblemCode::Unsupported, what)
                .because("it is a pool")
                .remedy(format!(
                    "delete its disks, and destroy the pool: tidegate pool destroy {name}"
                )));
        }
        let members = self.wanted_with_members_on(name)?;
        // While this is locked, no command begins to use the datastore. Later commands find it removed.
        let claimed = self.claims.all();
        let wanted = self.store.attached()?;
        let live = self.live.all();
        let wanted = wanted.iter();
        let wanted = wanted.filter(|(disk, on)| *on == name || members.contains(*disk));
        let coming = claimed.iter().filter(|(_, on)| *on == Some(name));
        let served = live.iter().filter(|live| live.datastores().contains(name));
        let holds: BTreeSet<Name> = wanted
            .map(|(disk, _)| disk.clone())
            .chain(coming.map(|(disk, _)| disk.clone()))
            .chain(served.map(|live| live.name().clone()))
            .collect();
        if !holds.is_empty() {
            let each = |disk: &Name| format!("tidegate disk detach {disk}");
            let detach: Vec<_> = holds.iter().map(each).collect();
            return Err(Problem::new(ProblemCode::Busy, what)
                .because(format!(
                    "disks on it are attached, to be attached or still being detached: {}",
                    listed(&holds)
                ))
                .remedy(format!("detach them first: {}", detach.join("; "))));
        }
        self.store.remove_datastore(name)?;
        tracing::info!(datastore = %name, "removed");
        Ok(())
    }

    /// The wanted disks that are not attached and have a member on a datastore, as far as they can be read.
    fn wanted_with_members_on(&self, datastore: &Name) -> Outcome<BTreeSet<Name>> {
        let wanted = self.store.attached()?.into_keys();
        let has_member = |disk: &Name| {
            let found = match self.live.get(disk) {
                Some(_) => return false,
                None => self.find(disk),
            };
            let places = found.map(|found| found.descriptor.members);
            let mut places = places.unwrap_or_default().into_iter();
            places.any(|place| !place.removed && place.datastore == *datastore)
        };
        Ok(wanted.filter(has_member).collect())
    }

    /// The datastore that a command uses.
    pub(super) fn choose_datastore(
        &self,
        named: Option<&Name>,
    ) -> Outcome<(Name, DatastoreSettings)> {
        if let Some(name) = named {
            return Ok((name.clone(), self.store.datastore(name)?));
        }
        let known = self.store.datastores()?;
        let usual = known.keys().find(|name| name.as_str() == USUAL);
        match (usual, known.keys().next(), known.len()) {
            (Some(name), _, _) | (None, Some(name), 1) => {
                Ok((name.clone(), self.store.datastore(name)?))
            }
            (_, _, 0) => Err(os_error::invalid("there is no datastore yet")
                .remedy("add one: tidegate datastore add NAME --kind dir --path DIR")),
            _ => Err(
                os_error::invalid("it is not clear which datastore is meant")
                    .because("there are several datastores, and none is called local")
                    .remedy("name one of them (see `tidegate datastore list`)"),
            ),
        }
    }

    fn describe_datastore(&self, name: Name, settings: DatastoreSettings) -> Datastore {
        let (store, on, of) = (self.store.clone(), name.clone(), settings.clone());
        let pools = Arc::clone(&self.pools);
        let seen = self.surveys.at(&name, move || {
            let count = store.disk_names(&on, &of, &BTreeSet::new())?.len() as u64;
            Ok((store.disks(&on, &of)?, (count, space_at(&pools, &on, &of))))
        });
        let control = self.controls.running(&name).and_then(|running| {
            let disks = seen.iter().flat_map(|(disks, _)| disks);
            let found = disks.filter_map(|(disk, found)| {
                let uuid = found.as_ref().ok()?.descriptor.uuid;
                Some((policy::key(uuid), disk.clone()))
            });
            let using = self.using(&name);
            let members = using.iter().filter_map(|live| {
                Some((policy::key(live.descriptor()?.uuid), live.name().clone()))
            });
            let found = found.chain(members);
            // Skips a governor that is just ending.
            let report = running.control.report().ok()?;
            Some(report::tell(&running, &report, &found.collect()))
        });
        let seen = seen.map(|(_, seen)| seen);
        self.tell_datastore(name, settings, seen, control)
    }

    fn tell_datastore(
        &self,
        name: Name,
        settings: DatastoreSettings,
        seen: Outcome<(u64, Option<Space>)>,
        control: Option<DatastoreControl>,
    ) -> Datastore {
        let (disks, space, problem) = match seen {
            Ok((disks, space)) => (disks, space, None),
            Err(problem) => (0, None, Some(problem)),
        };
        let problem = problem.or_else(|| {
            let space = space.as_ref()?;
            let read_only = space.read_only(&name);
            read_only.or_else(|| space.full(&name, &settings))
        });
        let io_control = self.store.record(&name).map(|record| record.io_control);
        let using = self.using(&name);
        // A datastore without files has nothing that says so of a later member.
        let unlisted = match &settings {
            DatastoreSettings::Dir { .. } | DatastoreSettings::Pool {} => 0,
            _ => using
                .iter()
                .filter(|live| *live.datastore() != name)
                .count(),
        };
        Datastore {
            io_control: io_control.unwrap_or_default(),
            control,
            attached: using.len() as u64,
            disks: disks + unlisted as u64,
            capacity_bytes: space.as_ref().map(|space| space.capacity),
            free_bytes: space.as_ref().map(|space| space.free),
            read_only: space.is_some_and(|space| space.read_only.is_some()),
            problem,
            name,
            settings,
        }
    }
}

/// Identity of a directory, independent of its path.
struct Directory {
    place: (u64, u64),
    mark: Option<String>,
}

impl Directory {
    fn at(path: &Path) -> std::io::Result<Directory> {
        let there = path.metadata()?;
        Ok(Directory {
            place: (there.dev(), there.ino()),
            mark: store::mark_of(path)?,
        })
    }
}

/// The space of a file system, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Space {
    capacity: u64,
    pub(super) free: u64,
    /// Its mount point, if it is read-only.
    read_only: Option<PathBuf>,
}

impl Space {
    fn of(path: &Path) -> Option<Space> {
        let told = rustix::fs::statvfs(path).ok()?;
        let mount = mounts::mount_of(path);
        let flagged = told.f_flag.contains(StatVfsMountFlags::RDONLY);
        let read_only = flagged || mount.as_ref().is_some_and(stopped_after_errors);
        Some(Space {
            capacity: told.f_blocks.saturating_mul(told.f_frsize),
            free: told.f_bavail.saturating_mul(told.f_frsize),
            read_only: read_only.then(|| mount.map_or_else(|| path.into(), |mount| mount.place)),
        })
    }

    /// The problem that nothing can be written, if the file system is read-only.
    fn read_only(&self, name: &Name) -> Option<Problem> {
        let place = self.read_only.as_ref()?;
        let what = format!("datastore {name} is read-only");
        let problem = Problem::new(ProblemCode::Datastore, what);
        Some(
            problem
                .because(format!("the file system at {} is", place.display()))
                .because("no disk can be created on it, and disks can be attached with --read-only only")
                .remedy(format!(
                    "see the kernel's log (dmesg) for errors of its device, then mount it writable: mount -o \
                     remount,rw {}",
                    quoted(place)
                )),
        )
    }

    /// The problem that there is no space for new data, if so. A read-only file system is never reported as full.
    fn full(&self, name: &Name, settings: &DatastoreSettings) -> Option<Problem> {
        let DatastoreSettings::Dir { path, .. } = settings else {
            return None;
        };
        if self.read_only.is_some() || self.free >= FULL_BYTES.min(self.capacity / FULL_PART) {
            return None;
        }
        let Space { capacity, free, .. } = self;
        let problem = Problem::new(ProblemCode::Full, format!("datastore {name} is full"));
        Some(
            problem
                .because(format!("{free} of its {capacity} bytes are free"))
                .because("a guest's writes that need new space fail")
                .remedy(format!(
                    "free some space on the file system of {}, or enlarge it",
                    path.display()
                )),
        )
    }
}

/// The space on a datastore, if it is known.
fn space_at(pools: &Pools, name: &Name, settings: &DatastoreSettings) -> Option<Space> {
    if *settings != (DatastoreSettings::Pool {}) {
        return space(settings);
    }
    let space = pools.with(name, |pool| Ok(pool.catalog.space())).ok()?;
    Some(Space {
        capacity: space.all * GRANT,
        free: space.available * GRANT,
        read_only: None,
    })
}

/// The space on a datastore's file system, if it has one.
pub(super) fn space(settings: &DatastoreSettings) -> Option<Space> {
    match settings {
        DatastoreSettings::Dir { path, .. } => Space::of(path),
        _ => None,
    }
}

/// Whether a file system refuses writes since its device failed. Newer kernels do not show this as a read-only mount.
fn stopped_after_errors(mount: &mounts::Mount) -> bool {
    mount
        .options
        .split(',')
        .any(|option| option == "emergency_ro")
}

/// Fails if a datastore with these settings cannot be used.
fn check(name: &Name, settings: &DatastoreSettings) -> Outcome<()> {
    let bad = || os_error::invalid(format!("cannot add datastore {name}"));
    match settings {
        DatastoreSettings::Dir { path, .. } => {
            check_folder(path).map_err(|(why, remedy)| bad().because(why).remedy(remedy))
        }
        DatastoreSettings::Nbd { uri } if uri.starts_with("nbds") => Err(bad()
            .because("TLS to an upstream is not supported")
            .remedy("use nbd:// over a trusted network or a tunnel, or nbd+unix:///?socket=PATH")),
        DatastoreSettings::Nbd { uri } => {
            let known = ["nbd://", "nbd+unix://"]
                .iter()
                .any(|scheme| uri.starts_with(scheme));
            match known {
                true => Ok(()),
                false => Err(bad()
                    .because(format!("'{uri}' is not an NBD URI"))
                    .remedy("write it as nbd://HOST[:PORT] or nbd+unix:///?socket=PATH")),
            }
        }
        // The engine knows the valid models; an image of one page costs nothing.
        DatastoreSettings::Emulated { model } => {
            let image = ImagePlan::Emulated {
                model: model.clone(),
                size: 4096,
            };
            host::open(&image, false).map(drop).map_err(|p| {
                bad()
                    .because(p.what)
                    .remedy("write it as 7k, 10k, 15k, ssd or nvme, or as raid5-8x10k+cache")
            })
        }
        DatastoreSettings::Memory {} | DatastoreSettings::Null {} => Ok(()),
        DatastoreSettings::Pool {} => Err(bad()
            .because("a datastore of kind pool comes with its pool")
            .remedy(format!(
                "create the pool: tidegate pool create {name} --group PATH"
            ))),
    }
}

/// Fails if a datastore with these settings does not support this I/O control.
fn check_control(settings: &DatastoreSettings, control: &IoControl) -> Outcome<()> {
    let bad = |(why, remedy): (String, String)| {
        Err(os_error::invalid("its I/O control is invalid")
            .because(why)
            .remedy(remedy))
    };
    if !(IO_UNIT_MIN..=IO_UNIT_MAX).contains(&control.io_unit_bytes) {
        let why = format!(
            "an I/O unit of {} bytes is not from {IO_UNIT_MIN} to {IO_UNIT_MAX}",
            control.io_unit_bytes
        );
        return bad((why, "use --io-unit 4KiB to 128KiB".to_owned()));
    }
    match (settings, &control.coordination) {
        (DatastoreSettings::Dir { .. }, Some(_)) => bad((
            "the hosts of a datastore of kind dir find each other in its own directory".to_owned(),
            "leave --coordination out".to_owned(),
        )),
        (DatastoreSettings::Pool {}, Some(_)) => bad((
            "a pool belongs to one host at a time".to_owned(),
            "leave --coordination out".to_owned(),
        )),
        (_, Some(directory)) => check_folder(directory).or_else(bad),
        (_, None) => Ok(()),
    }
}

/// Why a directory cannot be used, with a remedy.
fn check_folder(path: &Path) -> Result<(), (String, String)> {
    let shown = path.display();
    let refuse = |why: String, remedy: &str| Err((format!("{shown} {why}"), remedy.to_owned()));
    if !path.is_absolute() {
        return refuse(
            "is not an absolute path".to_owned(),
            "give an absolute path",
        );
    }
    let there = match path.metadata() {
        Ok(there) => there,
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("correct the path, or create the directory: mkdir -p {shown}")
                }
                kind => os_error::remedy(kind),
            };
            return refuse(format!("cannot be used: {error}"), &remedy);
        }
    };
    if !there.is_dir() {
        return refuse(
            "is not a directory".to_owned(),
            "name the directory that contains it",
        );
    }
    if let Some(kind) = image_file::pseudo_file_system(path) {
        return refuse(
            format!("is on a file system of type {kind}, which cannot hold disks"),
            "give a directory on another file system, such as one of `df -x tmpfs`",
        );
    }
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).or_else(|error| {
        let remedy = os_error::remedy(io::Error::from(error).kind());
        refuse(format!("cannot be written: {error}"), &remedy)
    })
}

/// Lists names, as many as a person reads.
fn listed<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    const MOST: usize = 20;
    let names: Vec<_> = names.into_iter().map(Name::as_str).collect();
    let shown = names[..names.len().min(MOST)].join(", ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_with_tls_is_refused_by_that_name() {
        let uri = |uri: &str| DatastoreSettings::Nbd {
            uri: uri.to_owned(),
        };
        let name = "far".parse().unwrap();
        let refused = check(&name, &uri("nbds://host")).unwrap_err();
        assert!(refused.to_string().contains("TLS to an upstream"));
        let refused = check(&name, &uri("host")).unwrap_err();
        assert!(refused.remedy.unwrap().contains("nbd+unix:///?socket="));
        check(&name, &uri("nbd://host")).unwrap();
    }

    #[test]
    fn a_datastore_without_room_is_full_unless_nobody_writes_to_it() {
        let dir = DatastoreSettings::Dir {
            path: "/srv/vms".into(),
            io: Default::default(),
        };
        let full = |capacity, free, read_only: bool| {
            let space = Space {
                capacity,
                free,
                read_only: read_only.then(|| "/srv".into()),
            };
            space.full(&"fast".parse().unwrap(), &dir)
        };
        let problem = full(1 << 40, 4096, false).expect("it is full");
        assert_eq!(problem.code, ProblemCode::Full);
        assert!(
            problem
                .to_string()
                .contains("datastore fast is full: 4096 of")
        );
        assert!(problem.remedy.unwrap().contains("/srv/vms"));
        assert!(full(1 << 40, FULL_BYTES - 1, false).is_some());
        assert!(full(1 << 40, FULL_BYTES, false).is_none());
        assert!(full(64 << 20, 1 << 20, false).is_none(), "a small one");
        assert!(full(64 << 20, 0, false).is_some());
        assert!(full(1 << 30, 0, true).is_none(), "an installation medium");
    }

    #[test]
    fn a_file_system_that_stopped_after_errors_is_read_only() {
        let stopped = |options: &str| {
            stopped_after_errors(&mounts::Mount {
                place: "/srv".into(),
                kind: "ext4".to_owned(),
                source: "/dev/vda1".to_owned(),
                options: options.to_owned(),
            })
        };
        assert!(stopped("rw,errors=remount-ro,emergency_ro"));
        assert!(!stopped("rw,errors=remount-ro"));
    }
}
