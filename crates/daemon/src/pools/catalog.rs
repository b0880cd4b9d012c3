//! A pool's catalog: its members, disks, snapshots and grants, changed by transactions.
//!
//! It is a redb database over the members' [`MemberSet`]. A transaction is on all current members, durably, when it returns.
//! The broker decides which grant a disk gets; it is rebuilt from the tables when the pool is opened.
//!
//! # Always true
//! - a grant is in the catalog before its disk uses it, and has one disk
//! - a catalog that contradicts itself is not opened
//! - after a failed transaction nothing is read from this value any more: the pool must be opened again
//!
//! # Picture
//! ```text
//!   counts     name -> number                     format, next life, minimum free
//!   members    member -> group, column, grants, bytes
//!   groups     group -> layout, tier
//!   disks      uuid -> grants reserved, tier, name, descriptor
//!   snapshots  disk, name -> generation, set, moment, size, parent
//!   latest     disk -> its latest snapshot
//!   clones     disk -> parent, generation
//!   grants     column, number -> disk, index, life
//! ```

use std::collections::BTreeMap;

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use tidegate_api::descriptor::Uuid;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::pool::{GRANTS_MAX, Grant};
use tidegate_core::pool::Tier;
use tidegate_core::pool::broker::{Broker, GroupUse, NewColumn, NoGrant, Space};

use super::member_set::MemberSet;
use crate::os_error::Outcome;

mod snapshots;

pub(crate) use snapshots::{NewSnapshot, Origin};

const COUNTS: TableDefinition<&str, u64> = TableDefinition::new("counts");
/// Group, column, grants, bytes.
const MEMBERS: TableDefinition<u16, (u16, u16, u32, u64)> = TableDefinition::new("members");
/// Layout, tier.
const GROUPS: TableDefinition<u16, (&str, u8)> = TableDefinition::new("groups");
/// Grants reserved, tier, name, descriptor.
const DISKS: TableDefinition<u128, (u64, u8, &str, &str)> = TableDefinition::new("disks");
/// Generation, set, seconds since 1970, bytes of the disk, and the name of the parent; empty: none.
type SnapshotValue = (u32, u128, u64, u64, &'static str);
const SNAPSHOTS: TableDefinition<(u128, &str), SnapshotValue> = TableDefinition::new("snapshots");
/// Disk, index, life.
const GRANTS: TableDefinition<(u16, u32), (u128, u32, u64)> = TableDefinition::new("grants");

const FORMAT: &str = "format";
const LIFE: &str = "life";
const MINIMUM: &str = "minimum";
/// The version of the tables.
const VERSION: u64 = 1;
/// Bytes of memory for pages of the database. Origin: chosen; a catalog of 16 TiB fits.
const CACHE: usize = 32 << 20;

/// See the module.
pub(crate) struct Catalog {
    database: Database,
    member_set: MemberSet,
    broker: Broker,
    /// Whether a change has failed: what the members have is not known then.
    has_failed: bool,
}

/// A column, as the catalog lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberRow {
    pub(crate) group: u16,
    pub(crate) column: u16,
    pub(crate) grants: u32,
    pub(crate) bytes: u64,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRow {
    pub(crate) layout: String,
    pub(crate) tier: Tier,
}

/// A disk on the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskRow {
    /// Grants that it reserves.
    pub(crate) reserves: u64,
    /// The tier that it wants.
    pub(crate) wants: Option<Tier>,
    /// Its name.
    pub(crate) name: String,
    /// Its descriptor, as text.
    pub(crate) descriptor: String,
}

/// A snapshot of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRow {
    /// The generation of the disk that it keeps.
    pub(crate) generation: u32,
    /// Snapshots that were taken together have the same set.
    pub(crate) set: Uuid,
    /// When it was taken, in seconds since 1970.
    pub(crate) at: u64,
    /// Size of the disk at that time, in bytes.
    pub(crate) size: u64,
    /// The snapshot that the disk had as its latest one then.
    pub(crate) parent: Option<String>,
}

impl SnapshotRow {
    fn of((generation, set, at, size, parent): (u32, u128, u64, u64, &str)) -> SnapshotRow {
        SnapshotRow {
            generation,
            set: Uuid(set.to_be_bytes()),
            at,
            size,
            parent: (!parent.is_empty()).then(|| parent.to_owned()),
        }
    }
}

type Db<T> = Result<T, redb::Error>;

impl Catalog {
    /// The catalog of a new pool. Thin disks leave `minimum` grants free.
    pub(crate) fn create(member_set: MemberSet, minimum: u64) -> Outcome<Catalog> {
        let database = open(&member_set).map_err(|e| failed(&e))?;
        let mut catalog = Catalog {
            database,
            member_set,
            broker: Broker::new(minimum, 1),
            has_failed: false,
        };
        catalog.change(|tables| {
            let mut counts = tables.open_table(COUNTS)?;
            counts.insert(FORMAT, VERSION)?;
            counts.insert(LIFE, 1)?;
            counts.insert(MINIMUM, minimum)?;
            // All tables exist from now on.
            tables.open_table(MEMBERS)?;
            tables.open_table(GROUPS)?;
            tables.open_table(DISKS)?;
            tables.open_table(SNAPSHOTS)?;
            tables.open_table(GRANTS)?;
            Ok(())
        })?;
        Ok(catalog)
    }

    /// The catalog of a pool that exists.
    pub(crate) fn open(member_set: MemberSet) -> Outcome<Catalog> {
        let (_, length) = member_set.size();
        if length == 0 {
            return Err(damaged("its creation was interrupted"));
        }
        let database = open(&member_set).map_err(|e| failed(&e))?;
        let mut catalog = Catalog {
            database,
            member_set,
            broker: Broker::new(0, 0),
            has_failed: false,
        };
        catalog.broker = catalog.rebuilt()?;
        Ok(catalog)
    }

    /// The members' bytes.
    pub(crate) fn member_set(&self) -> &MemberSet {
        &self.member_set
    }

    /// Its space.
    pub(crate) fn space(&self) -> Space {
        self.broker.space()
    }

    /// Whether a change of it has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Notes that a change of its members has failed.
    pub(crate) fn fail(&mut self) {
        self.has_failed = true;
    }

    /// The broker.
    pub(crate) fn broker(&self) -> &Broker {
        &self.broker
    }

    /// A group gives no space, because its members cannot be used. What disks have there stays theirs.
    pub(crate) fn set_away(&mut self, group: u16) {
        self.broker.set_use(group, GroupUse::Away);
    }

    /// Adds a group and its members, by number. Members that the catalog has already are left as they are.
    pub(crate) fn add_group(
        &mut self,
        number: u16,
        group: &GroupRow,
        members: &BTreeMap<u16, MemberRow>,
    ) -> Outcome<()> {
        self.change(|tables| {
            let mut groups = tables.open_table(GROUPS)?;
            groups.insert(number, (&*group.layout, tier_to(Some(group.tier))))?;
            let mut table = tables.open_table(MEMBERS)?;
            for (member, row) in members {
                table.insert(member, (row.group, row.column, row.grants, row.bytes))?;
            }
            Ok(())
        })?;
        self.broker = self.rebuilt()?;
        Ok(())
    }

    /// All groups.
    pub(crate) fn groups(&self) -> Outcome<BTreeMap<u16, GroupRow>> {
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(GROUPS)?;
            let mut rows = BTreeMap::new();
            for row in table.iter()? {
                let (number, row) = row?;
                let (layout, tier) = row.value();
                let group = GroupRow {
                    layout: layout.to_owned(),
                    tier: tier_of(tier).unwrap_or_default(),
                };
                rows.insert(number.value(), group);
            }
            Ok(rows)
        };
        read().map_err(|e| failed(&e))
    }

    /// All members.
    pub(crate) fn members(&self) -> Outcome<BTreeMap<u16, MemberRow>> {
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(MEMBERS)?;
            let mut rows = BTreeMap::new();
            for row in table.iter()? {
                let (number, row) = row?;
                let (group, column, grants, bytes) = row.value();
                let member = MemberRow {
                    group,
                    column,
                    grants,
                    bytes,
                };
                rows.insert(number.value(), member);
            }
            Ok(rows)
        };
        read().map_err(|e| failed(&e))
    }

    /// All disks.
    pub(crate) fn disks(&self) -> Outcome<BTreeMap<u128, DiskRow>> {
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(DISKS)?;
            let mut rows = BTreeMap::new();
            for row in table.iter()? {
                let (disk, row) = row?;
                let (reserves, wants, name, descriptor) = row.value();
                let about = DiskRow {
                    reserves,
                    wants: tier_of(wants),
                    name: name.to_owned(),
                    descriptor: descriptor.to_owned(),
                };
                rows.insert(disk.value(), about);
            }
            Ok(rows)
        };
        read().map_err(|e| failed(&e))
    }

    /// The disk of this name. Only its row is copied: a pool may have thousands.
    pub(crate) fn disk_named(&self, name: &str) -> Outcome<Option<(Uuid, DiskRow)>> {
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(DISKS)?;
            for row in table.iter()? {
                let (disk, row) = row?;
                let (reserves, wants, other, descriptor) = row.value();
                if other == name {
                    let about = DiskRow {
                        reserves,
                        wants: tier_of(wants),
                        name: name.to_owned(),
                        descriptor: descriptor.to_owned(),
                    };
                    return Ok(Some((Uuid(disk.value().to_be_bytes()), about)));
                }
            }
            Ok(None)
        };
        read().map_err(|e| failed(&e))
    }

    /// All snapshots, by disk and name.
    pub(crate) fn snapshots(&self) -> Outcome<BTreeMap<(u128, String), SnapshotRow>> {
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(SNAPSHOTS)?;
            let mut rows = BTreeMap::new();
            for row in table.iter()? {
                let (key, row) = row?;
                let (disk, name) = key.value();
                let snapshot = SnapshotRow::of(row.value());
                rows.insert((disk, name.to_owned()), snapshot);
            }
            Ok(rows)
        };
        read().map_err(|e| failed(&e))
    }

    /// All grants: the disk, its index, and the place.
    pub(crate) fn grants(&self) -> Outcome<Vec<(u128, u32, Grant)>> {
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(GRANTS)?;
            let mut rows = Vec::new();
            for row in table.iter()? {
                let (place, row) = row?;
                let ((column, number), (disk, index, life)) = (place.value(), row.value());
                let grant = Grant {
                    column,
                    number,
                    life,
                };
                rows.push((disk, index, grant));
            }
            Ok(rows)
        };
        read().map_err(|e| failed(&e))
    }

    /// What contradicts itself in it, as sentences.
    pub(crate) fn check(&self) -> Outcome<Vec<String>> {
        let mut findings = Vec::new();
        let rebuilt = self.rebuild(&mut findings)?;
        if rebuilt.space() != self.broker.space() || rebuilt.life() != self.broker.life() {
            findings.push("the space in use is not what the catalog says".to_owned());
        }
        findings.extend(self.member_set.differences());
        Ok(findings)
    }

    /// The broker of what the tables say; fails if they contradict themselves.
    fn rebuilt(&self) -> Outcome<Broker> {
        let mut findings = Vec::new();
        let broker = self.rebuild(&mut findings)?;
        match findings.into_iter().next() {
            None => Ok(broker),
            Some(finding) => Err(damaged(&finding)),
        }
    }

    fn count(&self, of: &str) -> Outcome<u64> {
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(COUNTS)?;
            Ok(table.get(of)?.map(|value| value.value()))
        };
        let count = read().map_err(|e| failed(&e))?;
        count.ok_or_else(|| damaged("a number is missing in it"))
    }

    fn rebuild(&self, findings: &mut Vec<String>) -> Outcome<Broker> {
        let version = self.count(FORMAT)?;
        if version != VERSION {
            return Err(damaged(&format!("it has format {version}"))
                .remedy("use the version of Tidegate that wrote it"));
        }
        let mut broker = Broker::new(self.count(MINIMUM)?, self.count(LIFE)?);
        let groups = self.groups()?;
        let mut columns = BTreeMap::new();
        for (number, row) in self.members()? {
            if columns.insert(row.column, row).is_some() {
                findings.push(format!("member {number} has a column of another member"));
            }
        }
        for (nth, (column, row)) in columns.iter().enumerate() {
            if nth != usize::from(*column) {
                findings.push(format!("there is no column {nth}"));
            }
            let group = groups.get(&row.group);
            if group.is_none() {
                findings.push(format!("column {column} has no group"));
            }
            broker.add_column(NewColumn {
                group: row.group,
                tier: group.map(|group| group.tier).unwrap_or_default(),
                grants: row.grants,
            });
        }
        let disks = self.disks()?;
        for (disk, row) in &disks {
            broker.restore_disk(disk.to_be_bytes(), row.wants, row.reserves);
        }
        let mut indices = std::collections::BTreeSet::new();
        for (disk, index, grant) in self.grants()? {
            let place = format!("grant {} of column {}", grant.number, grant.column);
            if let Err(why) = broker.restore_grant(disk.to_be_bytes(), grant) {
                findings.push(format!("{place} contradicts the rest: {why:?}"));
            }
            if !indices.insert((disk, index)) {
                findings.push(format!("{place} is not the only one with its index"));
            }
        }
        findings.extend(self.check_snapshots(&disks)?);
        Ok(broker)
    }

    /// One transaction: durable on all current members, or not at all.
    fn change(&mut self, act: impl FnOnce(&WriteTransaction) -> Db<()>) -> Outcome<()> {
        let changed = || -> Db<()> {
            let mut tables = self.database.begin_write()?;
            tables.set_two_phase_commit(true);
            act(&tables)?;
            Ok(tables.commit()?)
        };
        changed().map_err(|e| {
            self.has_failed = true;
            failed(&e)
        })
    }
}

impl Catalog {
    /// Adds a disk, or gives one another descriptor.
    pub(crate) fn put_disk(&mut self, disk: Uuid, row: &DiskRow) -> Outcome<()> {
        let uuid = u128::from_be_bytes(disk.0);
        let reserved = match self.broker.disk(&disk.0) {
            None => self.broker.add_disk(disk.0, row.wants, row.reserves),
            Some(_) => self.broker.reserve(disk.0, row.reserves),
        };
        reserved.map_err(|e| no_grant(&e))?;
        self.change(|tables| {
            let value = (
                row.reserves,
                tier_to(row.wants),
                &*row.name,
                &*row.descriptor,
            );
            tables.open_table(DISKS)?.insert(uuid, value)?;
            Ok(())
        })
    }

    /// Removes a disk, with its snapshots and grants.
    pub(crate) fn remove_disk(&mut self, disk: Uuid) -> Outcome<()> {
        self.must_be_no_parent(disk)?;
        let uuid = u128::from_be_bytes(disk.0);
        self.change(|tables| {
            tables.open_table(DISKS)?.remove(uuid)?;
            let mut grants = tables.open_table(GRANTS)?;
            grants.retain(|_, (owner, _, _)| owner != uuid)?;
            snapshots::forget(tables, uuid)
        })?;
        self.broker.remove_disk(disk.0);
        Ok(())
    }

    /// The grants of a disk, by index. None: it was given back.
    pub(crate) fn grants_of(&self, disk: Uuid) -> Outcome<Vec<Option<Grant>>> {
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(GRANTS)?;
            let mut rows = Vec::new();
            for (column, number) in self.broker.places(disk.0) {
                if let Some(row) = table.get((column, number))? {
                    let (_, index, life) = row.value();
                    let grant = Grant {
                        column,
                        number,
                        life,
                    };
                    rows.push((index, grant));
                }
            }
            Ok(rows)
        };
        let mut grants = Vec::new();
        for (index, grant) in read().map_err(|e| failed(&e))? {
            if index >= GRANTS_MAX {
                return Err(damaged("a disk has a grant with too high an index"));
            }
            let at = index as usize;
            if at >= grants.len() {
                grants.resize(at + 1, None);
            }
            grants[at] = Some(grant);
        }
        Ok(grants)
    }

    /// Gives a disk its next grant, with this index.
    pub(crate) fn grant(&mut self, disk: Uuid, index: u32) -> Outcome<Grant> {
        let grant = self.broker.grant(disk.0).map_err(|e| no_grant(&e))?;
        let uuid = u128::from_be_bytes(disk.0);
        let life = self.broker.life();
        self.change(|tables| {
            let place = (grant.column, grant.number);
            let mut grants = tables.open_table(GRANTS)?;
            grants.insert(place, (uuid, index, grant.life))?;
            tables.open_table(COUNTS)?.insert(LIFE, life)?;
            Ok(())
        })?;
        Ok(grant)
    }

    /// Takes a grant back, of which nothing is used any more.
    pub(crate) fn give_back(&mut self, disk: Uuid, column: u16, number: u32) -> Outcome<()> {
        let back = self.broker.give_back(disk.0, column, number);
        back.map_err(|why| damaged(&format!("a grant is not the disk's: {why:?}")))?;
        self.change(|tables| {
            tables.open_table(GRANTS)?.remove((column, number))?;
            Ok(())
        })
    }
}

fn open(member_set: &MemberSet) -> Db<Database> {
    let mut builder = Builder::new();
    builder
        .set_cache_size(CACHE)
        .set_check_integrity_on_open(true);
    Ok(builder.create_with_backend(member_set.clone())?)
}

/// A tier as the tables have it. `None`: any.
fn tier_to(tier: Option<Tier>) -> u8 {
    match tier {
        None => 0,
        Some(Tier::Slow) => 1,
        Some(Tier::Fast) => 2,
    }
}

fn tier_of(number: u8) -> Option<Tier> {
    match number {
        1 => Some(Tier::Slow),
        2 => Some(Tier::Fast),
        _ => None,
    }
}

fn no_grant(why: &NoGrant) -> Problem {
    match why {
        NoGrant::NoSpace => Problem::new(ProblemCode::Full, "the pool has no space left for this")
            .remedy("add a group: tidegate pool add-group"),
        NoGrant::Unknown => damaged("the disk is not in it"),
    }
}

fn damaged(why: &str) -> Problem {
    Problem::new(ProblemCode::Corrupt, "the pool's catalog cannot be used")
        .because(why)
        .remedy("see `tidegate pool check`")
}

/// The problem of a database's error.
fn failed(error: &redb::Error) -> Problem {
    let code = match error {
        redb::Error::Corrupted(_) => ProblemCode::Corrupt,
        redb::Error::Io(e) if e.kind() == std::io::ErrorKind::StorageFull => ProblemCode::Full,
        _ => ProblemCode::Datastore,
    };
    Problem::new(code, "cannot read or change the pool's catalog")
        .because_of(error)
        .remedy("see the kernel's log for errors of the members, and `tidegate pool check`")
}
