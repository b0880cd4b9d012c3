//! The pools of this host: their records, their members, and their catalogs.
//!
//! The disk service calls this. A pool is opened when it is first used, and stays open until the daemon ends: meanwhile its
//! leases keep other hosts away. Its catalog has the descriptors of its disks (`disks`). The host's state has only its identity and the paths of its members.
//!
//! # Always true
//! - a pool has one record, and exists only once that is written; its members were empty before, or the caller gave up what
//!   they had
//! - a pool is destroyed only if it has no disk, or the caller gives up what it has
//! - after a failed change of a catalog it is opened again before it is used. The members stay locked and leased: disks
//!   may be using them
//!
//! # Picture
//! ```text
//! STATE/pools/NAME.toml     identity, paths of the members
//! member                    superblocks, lease, catalog, grants
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::pool::{PoolCreate, PoolData, PoolDestroy, PoolGroupAdd};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::block::BLOCK;
use tidegate_core::pool::broker::Space;
use tidegate_core::pool::level::Level;
use tidegate_core::pool::members::Standing;
use tidegate_core::pool::superblock::{MOST_CATALOG, Place};
use tidegate_core::pool::{CATALOG_AT, EXTENT, GRANT, LEASE_AT, SUPERBLOCKS};
use tidegate_engine::lease::{Leases, Settings};

use crate::caches::devices::{self, Prepared};
use crate::control::Identity as HostIdentity;
use crate::host;
use crate::os_error::{self, Outcome};
use crate::store::Identity;
use crate::text::new_uuid;
use catalog::Catalog;
use columns::{key, new_members, seats};
use member_set::MemberSet;
use opening::{Held, Locked};
use record::Record;
use refusals::{must_be_built, must_be_few, must_have_entries, must_have_space};
use uses::Uses;

pub(crate) mod catalog;
mod columns;
mod disks;
pub(crate) mod grants;
pub(crate) mod member_set;
mod opening;
pub(crate) mod record;
mod refusals;
pub(crate) mod reported;
pub(crate) mod store;
pub(crate) mod uses;

/// The smallest region of a catalog. Origin: an empty one takes 0.1 MiB, and it doubles as it grows.
const LEAST_CATALOG: u64 = 4 << 20;
/// Bytes of a catalog for each grant, with room to grow to four times as many: the region stays as it is.
const ENTRY_AND_ROOM: u64 = 4 * refusals::ENTRY;
/// How long the first opening waits for a daemon before this one, whose last operations have not ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long datastores may take to release leases; other hosts wait until these expire otherwise.
const FAREWELL: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct Pools {
    folder: PathBuf,
    host: HostIdentity,
    leases: Mutex<Option<Leases>>,
    /// Pools that are open, by name. A lock is held while a pool is opened or changed, which can take long.
    open: Mutex<BTreeMap<Name, Arc<Mutex<Slot>>>>,
    /// Pools that were opened, or could not be.
    tried: Mutex<BTreeSet<Name>>,
    /// What was wrong with pools when they were used last.
    troubles: Mutex<BTreeMap<Name, Problem>>,
    /// The space of each pool that was used, after the last use.
    spaces: Mutex<BTreeMap<Name, Space>>,
    /// Told of what an administrator should know.
    alarm: OnceLock<Alarms>,
    /// Serialises changes of records.
    changing: Mutex<()>,
    /// Disks that are open.
    uses: Arc<Uses>,
}

/// Receives alarms of pools. It must return at once.
type Alarms = Box<dyn Fn(&Name, Alarm) + Send + Sync>;

/// What an administrator should know of a pool.
#[derive(Clone, Debug)]
pub(crate) enum Alarm {
    /// It has reached another level.
    Level(Space),
    /// It has no space for this disk.
    Refused(Name),
}

/// A pool that may be open.
#[derive(Default)]
enum Slot {
    #[default]
    Closed,
    Open(Box<OpenPool>),
    /// Its catalog must be opened again. These members are still held, by number.
    Failed(Vec<Option<Held>>),
}

impl Slot {
    fn pool(&self) -> Option<&OpenPool> {
        match self {
            Slot::Open(pool) => Some(pool),
            Slot::Closed | Slot::Failed(_) => None,
        }
    }
}

/// A pool that is open.
pub(crate) struct OpenPool {
    pub(crate) catalog: Catalog,
    /// By member.
    held: Vec<Option<Held>>,
    /// Paths of the record that are left of an addition that was undone.
    left: Vec<PathBuf>,
}

/// What a pool has, before another group comes.
struct Extent {
    members: u16,
    columns: u16,
    groups: u16,
    grants: u64,
    data_at: u64,
    catalog: u64,
    left: Vec<PathBuf>,
}

impl OpenPool {
    fn new(
        catalog: Catalog,
        held: Vec<Option<Held>>,
        standing: &Standing,
        record: &Record,
    ) -> Outcome<OpenPool> {
        let left = standing.unused.iter().filter(|(_, why)| why.is_none());
        let left = left.filter_map(|(path, _)| record.members.get(*path).cloned());
        let mut pool = OpenPool {
            catalog,
            held,
            left: left.collect(),
        };
        pool.adopt_columns()?;
        pool.avoid_troubled();
        Ok(pool)
    }

    /// Groups with a member that cannot be used give no space any more.
    fn avoid_troubled(&mut self) {
        let members = self.catalog.member_set().members();
        for member in members.iter().filter(|member| member.trouble.is_some()) {
            self.catalog.set_away(member.place.group);
        }
    }

    fn extent(&self) -> Extent {
        let member_set = self.catalog.member_set();
        let members = member_set.members();
        let next = |of: fn(&Place) -> u16| {
            let numbers = members.iter().map(|member| of(&member.place) + 1);
            numbers.max().unwrap_or(0)
        };
        Extent {
            members: key(members.len()),
            columns: next(|place| place.column),
            groups: next(|place| place.group),
            grants: self.catalog.space().all,
            data_at: member_set.data_at(),
            catalog: member_set.size().0,
            left: self.left.clone(),
        }
    }

    /// Its first member that cannot be used for the catalog, as a problem.
    fn trouble(&self, name: &Name) -> Option<Problem> {
        let members = self.catalog.member_set().members();
        let mut troubles = members.iter().enumerate();
        let (number, why) = troubles.find_map(|(number, member)| {
            let why = member.trouble.as_ref()?;
            Some((number, why.clone()))
        })?;
        let what = format!("member {number} of pool {name} cannot be used for its catalog");
        Some(
            Problem::new(ProblemCode::Datastore, what)
                .because(why)
                .remedy(format!(
                    "see `tidegate pool show {name}`; repair the device, and start the daemon again"
                )),
        )
    }

    /// Where its members are, by number.
    pub(crate) fn paths(&self) -> Vec<Option<PathBuf>> {
        let path = |held: &Option<Held>| held.as_ref().map(|held| held.path.clone());
        self.held.iter().map(path).collect()
    }
}

impl Pools {
    /// The pools of a root's state directory.
    pub(crate) fn new(state: &Path, host: HostIdentity) -> Pools {
        Pools {
            folder: state.join("pools"),
            host,
            leases: Mutex::default(),
            open: Mutex::default(),
            tried: Mutex::default(),
            troubles: Mutex::default(),
            spaces: Mutex::default(),
            alarm: OnceLock::new(),
            changing: Mutex::default(),
            uses: Arc::default(),
        }
    }

    /// Disks of pools that are open.
    pub(crate) fn uses(&self) -> &Arc<Uses> {
        &self.uses
    }

    /// The names of all pools.
    pub(crate) fn names(&self) -> Outcome<Vec<Name>> {
        record::names(&self.folder)
    }

    /// The record of a pool.
    pub(crate) fn record(&self, name: &Name) -> Outcome<Record> {
        record::read(&self.folder, name)
    }

    /// Whether there is a pool of this name.
    pub(crate) fn has(&self, name: &Name) -> bool {
        record::exists(&self.folder, name)
    }

    /// Does something with a pool that is open, and opens it before if it is not.
    pub(crate) fn with<T>(
        &self,
        name: &Name,
        act: impl FnOnce(&mut OpenPool) -> Outcome<T>,
    ) -> Outcome<T> {
        let slot = self.slot(name);
        let mut slot = locked(&slot);
        self.open_slot(name, &mut slot).inspect_err(|problem| {
            if problem.code != ProblemCode::NotFound || self.has(name) {
                locked(&self.troubles).insert(name.clone(), problem.clone());
            }
        })?;
        let Slot::Open(pool) = &mut *slot else {
            unreachable!("it is open")
        };
        let done = act(pool);
        pool.avoid_troubled();
        self.note_space(name, pool.catalog.space());
        match pool.trouble(name) {
            Some(problem) => locked(&self.troubles).insert(name.clone(), problem),
            None => locked(&self.troubles).remove(name),
        };
        if pool.catalog.has_failed() {
            // What was written of a failed change is found out when it is opened again.
            *slot = Slot::Failed(std::mem::take(&mut pool.held));
        }
        done
    }

    /// Opens a pool, if it is not open. After an error it is as before.
    fn open_slot(&self, name: &Name, slot: &mut Slot) -> Outcome<()> {
        let opened = match slot {
            Slot::Open(_) => return Ok(()),
            Slot::Closed => self.open(name, &[])?,
            Slot::Failed(held) => self.open_again(name, held)?,
        };
        *slot = Slot::Open(Box::new(opened));
        Ok(())
    }

    /// What was wrong with pools when they were used last.
    pub(crate) fn troubles(&self) -> Vec<Problem> {
        let mut troubles: Vec<Problem> = locked(&self.troubles).values().cloned().collect();
        let spaces = locked(&self.spaces);
        troubles.extend(
            spaces
                .iter()
                .filter_map(|(name, space)| filling(name, space)),
        );
        troubles
    }

    /// Tells these of alarms from now on.
    pub(crate) fn on_alarm(&self, alarms: impl Fn(&Name, Alarm) + Send + Sync + 'static) {
        // It is called once, before the first pool is used.
        let _ = self.alarm.set(Box::new(alarms));
    }

    fn alarm(&self, pool: &Name, alarm: Alarm) {
        if let Some(alarms) = self.alarm.get() {
            alarms(pool, alarm);
        }
    }

    /// Notes the space of a pool that was used.
    fn note_space(&self, name: &Name, space: Space) {
        let before = locked(&self.spaces).insert(name.clone(), space);
        if before.map_or(Level::Ample, |before| before.level) != space.level {
            self.alarm(name, Alarm::Level(space));
        }
    }

    fn slot(&self, name: &Name) -> Arc<Mutex<Slot>> {
        Arc::clone(locked(&self.open).entry(name.clone()).or_default())
    }

    /// Opens a pool, without a member that may have a newer catalog and is lost. From now on the others count.
    pub(crate) fn give_up(&self, name: &Name, member: u16) -> Outcome<()> {
        let _changing = locked(&self.changing);
        let slot = self.slot(name);
        let mut slot = locked(&slot);
        if self.open_slot(name, &mut slot).is_ok() {
            return Err(Problem::new(
                ProblemCode::Busy,
                format!("pool {name} can be used without giving anything up"),
            )
            .remedy(format!("see `tidegate pool show {name}`")));
        }
        let opened = self.open(name, &[member])?;
        *slot = Slot::Open(Box::new(opened));
        locked(&self.troubles).remove(name);
        Ok(())
    }

    fn open(&self, name: &Name, given_up: &[u16]) -> Outcome<OpenPool> {
        let record = self.record(name)?;
        let patience = match locked(&self.tried).insert(name.clone()) {
            true => PATIENCE,
            false => Duration::ZERO,
        };
        let opened = opening::open(name, &record, &self.leases()?, patience, given_up)?;
        let stores: Vec<_> = opened
            .held
            .iter()
            .map(|held| held.as_ref().map(Held::store))
            .collect();
        let catalog = open_catalog(name, &record, &opened.standing, &stores)?;
        let mut by_path: Vec<Option<Held>> = opened.held;
        let members = catalog.member_set().members().len();
        let seats = opened.standing.members.iter().take(members);
        let held = seats.map(|seat| by_path.get_mut(seat.path?)?.take());
        OpenPool::new(catalog, held.collect(), &opened.standing, &record)
    }

    /// Opens the catalog of a pool again, whose members are held. They are taken out of the list if that succeeds.
    fn open_again(&self, name: &Name, held: &mut Vec<Option<Held>>) -> Outcome<OpenPool> {
        let record = self.record(name)?;
        let at = |path: &PathBuf| held.iter().flatten().find(|held| held.path == *path);
        let by_path: Vec<_> = record.members.iter().map(at).collect();
        let standing = opening::look_again(name, &record, &by_path)?;
        let stores: Vec<_> = by_path.iter().map(|held| held.map(Held::store)).collect();
        let catalog = open_catalog(name, &record, &standing, &stores)?;
        OpenPool::new(catalog, std::mem::take(held), &standing, &record)
    }

    /// Creates a pool. `must_be_free` fails if a file or device is used otherwise.
    pub(crate) fn create(
        &self,
        order: &PoolCreate,
        must_be_free: impl Fn(&Path) -> Outcome<()>,
    ) -> Outcome<()> {
        let _changing = locked(&self.changing);
        let name = &order.name;
        if self.has(name) {
            return Err(Problem::new(
                ProblemCode::Exists,
                format!("there is a pool {name} already"),
            )
            .remedy("choose another name; see `tidegate pool list`"));
        }
        if order.groups.is_empty() {
            return Err(os_error::invalid("a pool has one group at least")
                .remedy("name one: --group stripe:PATH,PATH or --group PATH"));
        }
        order.groups.iter().try_for_each(must_be_built)?;
        let paths: Vec<PathBuf> = order
            .groups
            .iter()
            .flat_map(|of| of.devices.clone())
            .collect();
        let (made, members) = self.take_new(&paths, order.size_bytes, order.data, must_be_free)?;
        let grants: u64 = members.iter().map(|one| one.file.size() / GRANT).sum();
        let catalog = (grants * ENTRY_AND_ROOM)
            .next_power_of_two()
            .clamp(LEAST_CATALOG, MOST_CATALOG);
        let data_at = (CATALOG_AT + catalog).next_multiple_of(EXTENT);
        for member in &members {
            must_have_space(member, data_at)?;
        }
        must_have_entries(grants, catalog)?;
        let uuid = new_uuid()?;
        let held = self.clear_and_take(name, uuid, 0, members)?;
        let seats = seats(0, 0, &order.groups);
        let new = new_members(&seats, &held, data_at);
        let member_set = MemberSet::create(uuid.0, catalog, data_at, new);
        let minimum = order.minimum_free_bytes.div_ceil(GRANT);
        let mut pool = OpenPool {
            catalog: Catalog::create(member_set, minimum)?,
            held: held.into_iter().map(Some).collect(),
            left: Vec::new(),
        };
        pool.add_groups(0, 0, &order.groups)?;
        record::write(&self.folder, name, &Record::new(uuid, paths))?;
        made.keep();
        *locked(&self.slot(name)) = Slot::Open(Box::new(pool));
        Ok(())
    }

    /// Adds a group to a pool.
    pub(crate) fn add_group(
        &self,
        name: &Name,
        order: &PoolGroupAdd,
        must_be_free: impl Fn(&Path) -> Outcome<()>,
    ) -> Outcome<()> {
        let _changing = locked(&self.changing);
        let group = &order.group;
        must_be_built(group)?;
        // It is opened first: what an interrupted addition has left is undone then.
        let before = self.with(name, |pool| Ok(pool.extent()))?;
        self.clear_left(name, &before.left, &group.devices)?;
        must_be_few(usize::from(before.members) + group.devices.len())?;
        let paths = &group.devices;
        let (made, members) = self.take_new(paths, order.size_bytes, order.data, must_be_free)?;
        for member in &members {
            must_have_space(member, before.data_at)?;
        }
        let more: u64 = members.iter().map(|one| one.file.size() / GRANT).sum();
        must_have_entries(before.grants + more, before.catalog)?;
        let mut record = self.record(name)?;
        let held = self.clear_and_take(name, record.uuid, before.members, members)?;
        // The record first: from the next step on the pool may need the new members.
        record.members.retain(|path| !paths.contains(path));
        record.members.extend(paths.iter().cloned());
        record::write(&self.folder, name, &record)?;
        made.keep();
        let specs = std::slice::from_ref(group);
        self.with(name, |pool| {
            let places = seats(before.columns, before.groups, specs);
            let new = new_members(&places, &held, before.data_at);
            let added = pool.catalog.member_set().add(new);
            if let Err(error) = added {
                pool.catalog.fail();
                return Err(os_error::io("cannot add the group", &error));
            }
            pool.held.extend(held.into_iter().map(Some));
            pool.add_groups(before.groups, before.members, specs)
        })
    }

    /// Forgets paths that are left of an addition that was undone, and clears those that are to be added again.
    fn clear_left(&self, name: &Name, left: &[PathBuf], again: &[PathBuf]) -> Outcome<()> {
        if left.is_empty() {
            return Ok(());
        }
        for path in left.iter().filter(|path| again.contains(path)) {
            let store = store::MemberFile {
                file: Arc::new(devices::lock(path, Duration::ZERO)?),
                lease: None,
            };
            clear(path, &store)?;
        }
        let mut record = self.record(name)?;
        record.members.retain(|path| !left.contains(path));
        record::write(&self.folder, name, &record)?;
        self.with(name, |pool| {
            pool.left.clear();
            Ok(())
        })
    }

    /// Destroys a pool. Its members can be used otherwise then.
    pub(crate) fn destroy(&self, name: &Name, order: &PoolDestroy) -> Outcome<()> {
        let _changing = locked(&self.changing);
        let record = self.record(name)?;
        let slot = self.slot(name);
        let mut slot = locked(&slot);
        match self.open_slot(name, &mut slot) {
            Ok(()) => {}
            Err(problem) if problem.code == ProblemCode::Locked => return Err(problem),
            Err(_) if order.data == PoolData::Overwrite => {}
            Err(problem) => {
                return Err(
                    problem.remedy("repair it, or add --force if everything on it may be lost")
                );
            }
        }
        if let Some(pool) = slot.pool() {
            let disks = pool.catalog.disks()?.len();
            if disks > 0 {
                return Err(Problem::new(
                    ProblemCode::Busy,
                    format!("pool {name} has {disks} disks"),
                )
                .remedy("delete them first; see `tidegate disk list`"));
            }
        }
        // The superblocks first: a crash leaves a record of members that are none, which can be destroyed with --force.
        match std::mem::take(&mut *slot) {
            Slot::Open(pool) => {
                let OpenPool { catalog, held, .. } = *pool;
                // It may write once more when it is closed.
                drop(catalog);
                let held = held.iter().flatten();
                let cleared = held.map(|member| clear(&member.path, &*member.store()));
                cleared.collect::<Outcome<()>>()?;
            }
            Slot::Closed | Slot::Failed(_) => self.clear_what_is_there(name, &record)?,
        }
        record::remove(&self.folder, name)?;
        locked(&self.open).remove(name);
        locked(&self.troubles).remove(name);
        locked(&self.spaces).remove(name);
        Ok(())
    }

    /// Fails if a path is a member of a pool of this host.
    pub(crate) fn must_be_of_no_pool(&self, path: &Path) -> Outcome<()> {
        let there = Identity::at(path).ok();
        let is_same = |member: &PathBuf| {
            member == path || there.is_some() && Identity::at(member).ok() == there
        };
        for name in self.names()? {
            let Ok(record) = self.record(&name) else {
                continue;
            };
            if record.members.iter().any(is_same) {
                return Err(Problem::new(
                    ProblemCode::Busy,
                    format!("{} is a member of pool {name}", path.display()),
                )
                .remedy("name another file or device"));
            }
        }
        Ok(())
    }

    /// Closes all pools and releases their leases.
    pub(crate) fn end(&self) {
        let pools = std::mem::take(&mut *locked(&self.open));
        for slot in pools.into_values() {
            *locked(&slot) = Slot::Closed;
        }
        if let Some(leases) = locked(&self.leases).take()
            && let Err(error) = leases.end(FAREWELL)
        {
            tracing::warn!(%error, "the leases of pools could not be released; other hosts wait until they expire");
        }
    }

    fn leases(&self) -> Outcome<Leases> {
        let mut leases = locked(&self.leases);
        if let Some(leases) = &*leases {
            return Ok(leases.clone());
        }
        let incarnation = new_uuid()?.0;
        let incarnation = incarnation
            .first_chunk()
            .map_or(0, |half| u64::from_le_bytes(*half));
        let settings = Settings {
            lock: self.host.lock,
            ..Settings::new(
                "pools",
                self.folder.clone(),
                self.host.id,
                incarnation,
                &self.host.name,
            )
        };
        let started = Leases::new(settings).map_err(|e| host::problem(&e))?;
        *leases = Some(started.clone());
        Ok(started)
    }

    /// Locks files and devices that become members, and creates the files that are missing.
    fn take_new(
        &self,
        paths: &[PathBuf],
        size: Option<u64>,
        data: PoolData,
        must_be_free: impl Fn(&Path) -> Outcome<()>,
    ) -> Outcome<(Prepared, Vec<Locked>)> {
        must_be_few(paths.len())?;
        let unique: BTreeSet<&PathBuf> = paths.iter().collect();
        if unique.len() != paths.len() {
            return Err(os_error::invalid("a file or device is named twice")
                .remedy("name each member once"));
        }
        for path in paths {
            must_be_free(path)?;
            self.must_be_of_no_pool(path)?;
        }
        let made = devices::prepare(paths, size)?;
        let mut members = Vec::new();
        for (path, file) in paths.iter().zip(made.open()?) {
            if data == PoolData::Keep {
                devices::must_be_empty(&file)?;
            }
            members.push(Locked {
                path: path.clone(),
                file: Arc::new(file),
            });
        }
        Ok((made, members))
    }

    /// Removes what new members have of another pool, and takes their leases.
    fn clear_and_take(
        &self,
        name: &Name,
        uuid: Uuid,
        first: u16,
        members: Vec<Locked>,
    ) -> Outcome<Vec<Held>> {
        for member in &members {
            self.clear_alone(name, member)?;
        }
        let numbered = (first..).zip(members).map(Some).collect();
        let held = opening::take(name, uuid.0, numbered, &self.leases()?)?;
        Ok(held.into_iter().flatten().collect())
    }

    /// Removes the superblocks of a member, unless another host uses it in a pool.
    fn clear_alone(&self, name: &Name, member: &Locked) -> Outcome<()> {
        let store = store::MemberFile {
            file: Arc::clone(&member.file),
            lease: None,
        };
        let found = member_set::superblocks(&store)
            .map_err(|e| os_error::io(format!("cannot read {}", member.path.display()), &e))?;
        if let Some(old) = found.into_iter().flatten().next() {
            let leases = self.leases()?;
            let same = Locked {
                path: member.path.clone(),
                file: Arc::clone(&member.file),
            };
            drop(opening::take(
                name,
                old.pool,
                vec![Some((old.member, same))],
                &leases,
            )?);
            // It is released by a thread that does one thing after the other; this waits for that.
            leases.holder(old.pool);
        }
        clear(&member.path, &store)
    }

    /// Removes the superblocks of what is left of a pool that cannot be opened.
    fn clear_what_is_there(&self, name: &Name, record: &Record) -> Outcome<()> {
        for path in &record.members {
            let Ok(file) = devices::lock(path, Duration::ZERO) else {
                continue;
            };
            let member = Locked {
                path: path.clone(),
                file: Arc::new(file),
            };
            let found = opening::found([Some(&member)].into_iter());
            let mut places = found.iter().flatten().flatten().flatten();
            let is_ours = places.any(|superblock| superblock.pool == record.uuid.0);
            if is_ours {
                self.clear_alone(name, &member)?;
            }
        }
        Ok(())
    }
}

/// The problem of a pool that fills up.
fn filling(name: &Name, space: &Space) -> Option<Problem> {
    if space.level == Level::Ample {
        return None;
    }
    let taken = space.used + space.reserved;
    let percent = taken * 100 / space.all.max(1);
    let problem = Problem::new(
        ProblemCode::Full,
        format!("pool {name} is {percent} % full"),
    );
    let problem = match space.available {
        0 => problem.because("writes of thin disks to new space fail"),
        left => problem.because(format!(
            "thin disks can take {left} grants of {GRANT} bytes more; then their writes to new space fail"
        )),
    };
    Some(problem.remedy(format!(
        "add a group: tidegate pool add-group {name} PATH; or delete disks (see `tidegate pool show {name}`)"
    )))
}

fn open_catalog(
    name: &Name,
    record: &Record,
    standing: &Standing,
    stores: &[Option<Arc<dyn store::Store>>],
) -> Outcome<Catalog> {
    let what = || format!("cannot open pool {name}");
    let member_set =
        MemberSet::open(record.uuid.0, standing, stores).map_err(|e| os_error::io(what(), &e))?;
    Catalog::open(member_set).map_err(|e| e.within(what()))
}

/// Removes superblocks and lease: it is a member of no pool any more.
fn clear(path: &Path, store: &dyn store::Store) -> Outcome<()> {
    let zeroes = [0; BLOCK];
    let cleared = SUPERBLOCKS
        .iter()
        .chain(&[LEASE_AT])
        .try_for_each(|at| store.write_at(&zeroes, *at))
        .and_then(|()| store.sync());
    cleared.map_err(|e| os_error::io(format!("cannot write to {}", path.display()), &e))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
