//! Crashes and failing members at each write of a catalog, on members in memory that lose and tear unsynced writes.

use std::collections::BTreeMap;

use tidegate_api::descriptor::Uuid;
use tidegate_core::layout::pool::Grant;
use tidegate_core::pool::Tier;
use tidegate_core::pool::members::{Refusal, Why, judge};

use super::*;
use crate::os_error::Outcome;
use crate::pools::catalog::{Catalog, DiskRow, GroupRow, MemberRow, NewSnapshot, SnapshotRow};

const POOL: [u8; 16] = [5; 16];
const REGION: u64 = 2 << 20;
const DATA_AT: u64 = 3 << 20;
const SIZE: u64 = DATA_AT + 8 * tidegate_core::pool::GRANT;
const SECTOR: usize = 512;
const A: Uuid = Uuid([1; 16]);
const B: Uuid = Uuid([2; 16]);

/// The power of a host: it can go after a number of operations on any member.
#[derive(Clone, Debug, Default)]
struct Power(Arc<Mutex<Supply>>);

#[derive(Debug, Default)]
struct Supply {
    operations: u64,
    /// The operation in which it goes.
    ends_at: Option<u64>,
}

impl Power {
    fn supply(&self) -> MutexGuard<'_, Supply> {
        self.0.lock().unwrap()
    }

    fn ends_at(operation: u64) -> Power {
        let power = Power::default();
        power.supply().ends_at = Some(operation);
        power
    }

    /// The number of the next operation, and whether the power goes in it or has gone.
    fn next(&self) -> (u64, bool) {
        let mut supply = self.supply();
        let operation = supply.operations;
        supply.operations += 1;
        (
            operation,
            supply.ends_at.is_some_and(|end| operation >= end),
        )
    }
}

/// A member in memory.
#[derive(Debug)]
struct Ram {
    power: Power,
    /// It fails from this operation on.
    fails_at: Option<u64>,
    bytes: Mutex<Bytes>,
}

#[derive(Clone, Debug, Default)]
struct Bytes {
    /// As read.
    cached: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

impl Ram {
    fn new(durable: Vec<u8>, power: &Power, fails_at: Option<u64>) -> Arc<Ram> {
        let bytes = Bytes {
            cached: durable.clone(),
            durable,
            unsynced: Vec::new(),
        };
        Arc::new(Ram {
            power: power.clone(),
            fails_at,
            bytes: Mutex::new(bytes),
        })
    }

    /// What a crash leaves: of each unsynced write all sectors, none, or some.
    fn after_crash(&self, seed: &mut u64) -> Vec<u8> {
        let bytes = self.bytes.lock().unwrap();
        let mut left = bytes.durable.clone();
        for (at, written) in &bytes.unsynced {
            let fate = random(seed) % 3;
            for (nth, sector) in written.chunks(SECTOR).enumerate() {
                let lands = match fate {
                    0 => false,
                    1 => true,
                    _ => random(seed).is_multiple_of(2),
                };
                if lands {
                    let at = at + nth * SECTOR;
                    left[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        left
    }

    fn is_broken(&self, operation: u64) -> bool {
        self.fails_at.is_some_and(|from| operation >= from)
    }
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn broken<T>() -> io::Result<T> {
    Err(io::Error::other("broken"))
}

impl Store for Ram {
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let supply = self.power.supply();
        let is_over = supply.ends_at.is_some_and(|end| supply.operations > end);
        if is_over || self.is_broken(supply.operations) {
            return broken();
        }
        let at = usize::try_from(at).unwrap();
        let cached = &self.bytes.lock().unwrap().cached;
        bytes.copy_from_slice(&cached[at..at + bytes.len()]);
        Ok(())
    }

    fn write_at(&self, written: &[u8], at: u64) -> io::Result<()> {
        let (operation, is_over) = self.power.next();
        if self.is_broken(operation) || operation > self.power.supply().ends_at.unwrap_or(u64::MAX)
        {
            return broken();
        }
        let at = usize::try_from(at).unwrap();
        let mut bytes = self.bytes.lock().unwrap();
        bytes.cached[at..at + written.len()].copy_from_slice(written);
        bytes.unsynced.push((at, written.to_vec()));
        if is_over { broken() } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let (operation, is_over) = self.power.next();
        if is_over || self.is_broken(operation) {
            return broken();
        }
        let mut bytes = self.bytes.lock().unwrap();
        for (at, written) in std::mem::take(&mut bytes.unsynced) {
            bytes.durable[at..at + written.len()].copy_from_slice(&written);
        }
        Ok(())
    }
}

/// The members of a host, and its power.
struct World {
    power: Power,
    members: Vec<Arc<Ram>>,
}

/// What the tables say.
type Tables = (
    BTreeMap<u16, MemberRow>,
    BTreeMap<u16, GroupRow>,
    BTreeMap<u128, DiskRow>,
    BTreeMap<(u128, String), SnapshotRow>,
    Vec<(u128, u32, Grant)>,
);

fn tables(catalog: &Catalog) -> Tables {
    (
        catalog.members().unwrap(),
        catalog.groups().unwrap(),
        catalog.disks().unwrap(),
        catalog.snapshots().unwrap(),
        catalog.grants().unwrap(),
    )
}

fn place(column: u16) -> Place {
    Place {
        state: MemberState::Current,
        tier: Tier::Slow,
        group: 0,
        column,
    }
}

fn group() -> GroupRow {
    GroupRow {
        layout: "stripe".to_owned(),
        tier: Tier::Slow,
    }
}

fn rows(members: std::ops::Range<u16>, group: u16) -> BTreeMap<u16, MemberRow> {
    let row = |column| MemberRow {
        group,
        column,
        grants: 8,
        bytes: SIZE,
    };
    members.map(|number| (number, row(number))).collect()
}

impl World {
    fn new(images: &[Vec<u8>], power: Power, fails: Option<(usize, u64)>) -> World {
        let members = images.iter().enumerate().map(|(nth, image)| {
            let fails_at = fails.filter(|(which, _)| *which == nth).map(|(_, at)| at);
            Ram::new(image.clone(), &power, fails_at)
        });
        World {
            members: members.collect(),
            power,
        }
    }

    fn stores(&self) -> Vec<Option<Arc<dyn Store>>> {
        let store = |member: &Arc<Ram>| Some(Arc::clone(member) as Arc<dyn Store>);
        self.members.iter().map(store).collect()
    }

    fn judge(&self) -> Result<Standing, Refusal> {
        let found: Vec<_> = self
            .members
            .iter()
            .map(|member| superblocks(&**member).ok())
            .collect();
        judge(POOL, &found)
    }

    fn open(&self) -> Option<Catalog> {
        let standing = self.judge().unwrap();
        let member_set = MemberSet::open(POOL, &standing, &self.stores()).ok()?;
        Catalog::open(member_set).ok()
    }

    fn after_crash(&self, seed: &mut u64) -> Vec<Vec<u8>> {
        let members = self.members.iter();
        members.map(|member| member.after_crash(seed)).collect()
    }
}

/// The members of a new pool of three columns, as they are after its creation.
fn new_pool() -> Vec<Vec<u8>> {
    let length = usize::try_from(DATA_AT).unwrap();
    // What was there before the pool must not matter.
    let mut image = vec![0xaa; length];
    image[..usize::try_from(CATALOG_AT).unwrap()].fill(0);
    let world = World::new(
        &[image.clone(), image.clone(), image],
        Power::default(),
        None,
    );
    let members = (0..).zip(&world.members).map(|(column, member)| {
        let store = Arc::clone(member) as Arc<dyn Store>;
        Member::new(place(column), SIZE, store)
    });
    let member_set = MemberSet::create(POOL, REGION, DATA_AT, members.collect());
    let mut catalog = Catalog::create(member_set, 1).unwrap();
    catalog.add_group(0, &group(), &rows(0..3, 0)).unwrap();
    drop(catalog);
    world.after_crash(&mut 1)
}

const TRANSACTIONS: usize = 9;

/// One of several changes that follow one another.
fn transaction(catalog: &mut Catalog, nth: usize) -> Outcome<()> {
    let disk = |text: &str, reserves| DiskRow {
        reserves,
        wants: Some(Tier::Fast),
        name: "a".to_owned(),
        descriptor: text.to_owned(),
    };
    match nth {
        0 => catalog.put_disk(A, &disk("one", 0)),
        1 => catalog.grant(A, 0).map(drop),
        2 => catalog.put_disk(B, &disk("two", 3)),
        3 => catalog.grant(B, 0).map(drop),
        4 => catalog.add_snapshots(&[NewSnapshot {
            disk: A,
            name: "monday",
            row: SnapshotRow {
                generation: 1,
                set: B,
                at: 77,
                size: 512,
                parent: None,
            },
        }]),
        // The catalog must grow for this one.
        5 => catalog.put_disk(A, &disk(&"long ".repeat(60_000), 0)),
        6 => catalog.grant(A, 1).map(drop),
        7 => catalog.give_back(B, 1, 0),
        _ => catalog.remove_disk(A),
    }
}

/// The tables before the first and after each transaction, and the operations of all.
fn plain_run(images: &[Vec<u8>]) -> (Vec<Tables>, u64) {
    let world = World::new(images, Power::default(), None);
    let mut catalog = world.open().unwrap();
    let mut states = vec![tables(&catalog)];
    let before = catalog.member_set().size();
    for nth in 0..TRANSACTIONS {
        transaction(&mut catalog, nth).unwrap();
        states.push(tables(&catalog));
    }
    assert_ne!(before, catalog.member_set().size(), "the catalog has grown");
    drop(catalog);
    let operations = world.power.supply().operations;
    (states, operations)
}

/// Opens the pool and makes changes until one fails. Answers how many did not.
fn run(world: &World) -> usize {
    let Some(mut catalog) = world.open() else {
        return 0;
    };
    let done = |nth: &usize| transaction(&mut catalog, *nth).is_ok();
    (0..TRANSACTIONS).take_while(done).count()
}

/// Opens what is left of a pool, which has the state after so many transactions, or one more.
fn must_have(images: &[Vec<u8>], states: &[Tables], done: usize, story: &str) {
    let world = World::new(images, Power::default(), None);
    let catalog = world
        .open()
        .unwrap_or_else(|| panic!("{story}: it does not open"));
    let found = tables(&catalog);
    let may = &states[done..(done + 2).min(states.len())];
    assert!(may.contains(&found), "{story}: not the state of {done}");
    let findings = catalog.check().unwrap();
    assert!(findings.is_empty(), "{story}: {findings:?}");
    let members = catalog.member_set().members();
    assert!(members.iter().all(Member::is_current), "{story}");
}

#[test]
fn a_crash_at_each_write_leaves_the_last_answered_transaction_or_the_next() {
    let images = new_pool();
    let (states, operations) = plain_run(&images);
    assert!(operations > 100, "{operations}");
    let mut seed = 42;
    for end in 0..operations {
        let world = World::new(&images, Power::ends_at(end), None);
        let done = run(&world);
        let left = world.after_crash(&mut seed);
        must_have(&left, &states, done, &format!("cut at {end}"));
        // And once more while the pool is opened again.
        if end.is_multiple_of(5) {
            let again = Power::ends_at(random(&mut seed) % 40);
            let story = format!("cut at {end}, then at {:?}", again.supply().ends_at);
            let world = World::new(&left, again, None);
            drop(world.open());
            must_have(&world.after_crash(&mut seed), &states, done, &story);
        }
    }
}

#[test]
fn a_member_that_fails_at_any_write_is_left_behind_and_then_brought_up_to_date() {
    let images = new_pool();
    let (states, operations) = plain_run(&images);
    let mut seed = 7;
    // One that cannot be read when the pool is opened is missing.
    for from in (1..operations).step_by(5) {
        let which = usize::try_from(random(&mut seed) % 3).unwrap();
        let story = format!("member {which} fails at {from}");
        let world = World::new(&images, Power::default(), Some((which, from)));
        assert_eq!(run(&world), TRANSACTIONS, "{story}");
        let left = world.after_crash(&mut seed);
        must_have(&left, &states, TRANSACTIONS, &story);
        // Without the others, it does not count.
        let alone = [left[which].clone()];
        let refused = World::new(&alone, Power::default(), None).judge();
        assert!(
            matches!(refused.map_err(|refusal| refusal.why), Err(Why::Missing(_))),
            "{story}"
        );
    }
}

#[test]
fn a_member_fails_and_then_the_power() {
    let images = new_pool();
    let (states, operations) = plain_run(&images);
    let mut seed = 99;
    for _ in 0..60 {
        let which = usize::try_from(random(&mut seed) % 3).unwrap();
        let from = 1 + random(&mut seed) % operations;
        let end = from + random(&mut seed) % 60;
        let world = World::new(&images, Power::ends_at(end), Some((which, from)));
        let done = run(&world);
        let story = format!("member {which} fails at {from}, the power at {end}");
        must_have(&world.after_crash(&mut seed), &states, done, &story);
    }
}

/// Adds a fourth member as a group of its own.
fn grow(catalog: &mut Catalog, member: &Arc<Ram>) -> Outcome<()> {
    let mut at = place(3);
    at.group = 1;
    let store = Arc::clone(member) as Arc<dyn Store>;
    let added = catalog.member_set().add(vec![Member::new(at, SIZE, store)]);
    added.map_err(|e| crate::os_error::io("cannot add", &e))?;
    catalog.add_group(1, &group(), &rows(3..4, 1))
}

#[test]
fn a_member_is_added_wholly_or_not_at_all() {
    let mut images = new_pool();
    let length = images[0].len();
    let mut blank = vec![0xbb; length];
    blank[..usize::try_from(CATALOG_AT).unwrap()].fill(0);
    images.push(blank);
    let whole = World::new(&images, Power::default(), None);
    let mut catalog = whole.open().unwrap();
    let before = tables(&catalog);
    grow(&mut catalog, &whole.members[3]).unwrap();
    let after = tables(&catalog);
    assert_eq!(catalog.check().unwrap(), Vec::<String>::new());
    drop(catalog);
    let operations = whole.power.supply().operations;
    let mut seed = 3;
    let mut seen = [0, 0];
    for end in 0..operations {
        let world = World::new(&images, Power::ends_at(end), None);
        let done = world
            .open()
            .is_some_and(|mut catalog| grow(&mut catalog, &world.members[3]).is_ok());
        let left = World::new(&world.after_crash(&mut seed), Power::default(), None);
        let mut catalog = left.open().unwrap_or_else(|| panic!("cut at {end}"));
        let members = catalog.member_set().members();
        assert!(members.iter().all(Member::is_current), "cut at {end}");
        let now = tables(&catalog);
        assert!(now == after || now == before && !done, "cut at {end}");
        seen[usize::from(members.len() == 4)] += 1;
        // What was interrupted can be repeated.
        if members.len() == 3 {
            grow(&mut catalog, &left.members[3]).unwrap();
            assert_eq!(tables(&catalog), after);
        }
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

#[test]
fn a_catalog_that_is_full_refuses_and_keeps_what_it_has() {
    let images = new_pool();
    let world = World::new(&images, Power::default(), None);
    let mut catalog = world.open().unwrap();
    let before = tables(&catalog);
    let row = DiskRow {
        reserves: 0,
        wants: None,
        name: "a".to_owned(),
        descriptor: "x".repeat(3 << 20),
    };
    let refused = catalog.put_disk(A, &row).unwrap_err();
    assert_eq!(refused.code, tidegate_api::problem::ProblemCode::Full);
    drop(catalog);
    assert_eq!(tables(&world.open().unwrap()), before);
}
