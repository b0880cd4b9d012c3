//! Tests of pools on files: created, opened again, grown, refused and destroyed.

use super::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use tidegate_api::pool::{PoolGroupSpec, PoolLayout, PoolTier};
use tidegate_engine::lease::{Guard, Refused, Takeover};

const SIZE: u64 = 200 << 20;

struct World {
    folder: tempfile::TempDir,
    /// Of the daemon that runs.
    pools: Pools,
}

fn host(id: u8) -> HostIdentity {
    HostIdentity {
        id: [id; 16],
        name: format!("host{id}"),
        lock: [id; 16],
    }
}

fn named(name: &str) -> Name {
    name.parse().unwrap()
}

fn free(_: &Path) -> Outcome<()> {
    Ok(())
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let pools = Pools::new(folder.path(), host(1));
        World { folder, pools }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn group(&self, layout: PoolLayout, names: &[&str]) -> PoolGroupSpec {
        PoolGroupSpec {
            layout,
            devices: names.iter().map(|name| self.path(name)).collect(),
            tier: PoolTier::Slow,
        }
    }

    fn order(&self, groups: Vec<PoolGroupSpec>) -> PoolCreate {
        PoolCreate {
            name: named("p"),
            groups,
            minimum_free_bytes: 0,
            size_bytes: Some(SIZE),
            data: PoolData::Keep,
        }
    }

    fn create(&self) {
        let stripe = self.group(PoolLayout::Stripe, &["a", "b"]);
        let order = self.order(vec![stripe]);
        self.pools.create(&order, free).unwrap();
    }

    /// The daemon ends, and another one begins.
    fn restart(&mut self) {
        self.pools.end();
        self.pools = Pools::new(self.folder.path(), host(1));
    }

    fn add(&self, names: &[&str]) -> Outcome<()> {
        let order = PoolGroupAdd {
            group: self.group(PoolLayout::Single, names),
            size_bytes: Some(SIZE),
            data: PoolData::Keep,
        };
        self.pools.add_group(&named("p"), &order, free)
    }

    fn findings(&self) -> Outcome<Vec<String>> {
        self.pools.with(&named("p"), |pool| pool.catalog.check())
    }

    fn opening(&self) -> Problem {
        self.findings().unwrap_err()
    }
}

#[test]
fn a_pool_is_created_opened_again_grown_and_destroyed() {
    let mut world = World::new();
    world.create();
    world.restart();
    assert_eq!(world.findings().unwrap(), Vec::<String>::new());
    world.add(&["c"]).unwrap();
    world.restart();
    let seen = world.pools.with(&named("p"), |pool| {
        let space = pool.catalog.space();
        Ok((space.all, pool.catalog.groups()?.len(), pool.paths()))
    });
    let (grants, groups, paths) = seen.unwrap();
    // 200 MiB without 5 of superblocks and catalog have three grants.
    assert_eq!((grants, groups), (9, 2));
    let expected = ["a", "b", "c"].map(|name| Some(world.path(name)));
    assert_eq!(paths, expected);
    assert_eq!(world.findings().unwrap(), Vec::<String>::new());
    let destroy = PoolDestroy::default();
    world.pools.destroy(&named("p"), &destroy).unwrap();
    assert_eq!(world.opening().code, ProblemCode::NotFound);
    // Its members are empty again.
    world.create();
}

#[test]
fn what_is_on_a_member_is_not_overwritten_unless_it_is_given_up() {
    let world = World::new();
    File::create(world.path("a"))
        .and_then(|file| {
            file.set_len(SIZE)?;
            file.write_all_at(b"a file system", 1024)
        })
        .unwrap();
    let single = world.group(PoolLayout::Single, &["a"]);
    let mut order = world.order(vec![single]);
    let refused = world.pools.create(&order, free).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Exists);
    order.data = PoolData::Overwrite;
    world.pools.create(&order, free).unwrap();
    // A member of a pool is not free, whatever is given up.
    order.name = named("q");
    let refused = world.pools.create(&order, free).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy);
}

#[test]
fn a_refused_pool_leaves_no_record_and_no_file() {
    let world = World::new();
    let refused = |groups: Vec<PoolGroupSpec>| {
        let order = world.order(groups);
        let refused = world.pools.create(&order, free).unwrap_err();
        assert!(!world.path("a").exists());
        assert_eq!(world.pools.names().unwrap(), []);
        refused.code
    };
    let group = |layout, names: &[&str]| vec![world.group(layout, names)];
    let mirror = refused(group(PoolLayout::Mirror, &["a", "b"]));
    assert_eq!(mirror, ProblemCode::Unsupported);
    let both = refused(group(PoolLayout::MirrorStripe, &["a", "b"]));
    assert_eq!(both, ProblemCode::Unsupported);
    for groups in [
        Vec::new(),
        group(PoolLayout::Single, &["a", "b"]),
        group(PoolLayout::Stripe, &["a"]),
        group(PoolLayout::Stripe, &["a", "a"]),
    ] {
        assert_eq!(refused(groups), ProblemCode::Invalid);
    }
    let mut order = world.order(group(PoolLayout::Single, &["a"]));
    order.size_bytes = Some(20 << 20);
    let small = world.pools.create(&order, free).unwrap_err();
    assert_eq!(small.code, ProblemCode::Invalid);
    assert!(!world.path("a").exists());
}

#[test]
fn a_pool_without_a_member_or_with_a_wrong_one_is_refused() {
    let mut world = World::new();
    world.create();
    world.pools.end();
    let away = world.path("away");
    fs::rename(world.path("b"), &away).unwrap();
    world.restart();
    let missing = world.opening();
    assert_eq!(missing.code, ProblemCode::NotFound, "{missing}");
    assert_eq!(world.pools.troubles(), [missing]);
    // A copy of the other member.
    fs::copy(world.path("a"), world.path("b")).unwrap();
    assert_eq!(world.opening().code, ProblemCode::Corrupt);
    // A member of another pool.
    fs::remove_file(world.path("b")).unwrap();
    let other = World::new();
    other.create();
    other.pools.end();
    fs::copy(other.path("b"), world.path("b")).unwrap();
    let refused = world.opening();
    assert!(refused.to_string().contains("another pool"), "{refused}");
    // Overwritten at its beginning.
    fs::copy(&away, world.path("b")).unwrap();
    let file = File::options().write(true).open(world.path("b")).unwrap();
    file.write_all_at(&[0xee; 4096], 0).unwrap();
    assert_eq!(world.opening().code, ProblemCode::Corrupt);
    // The right one.
    fs::rename(&away, world.path("b")).unwrap();
    assert_eq!(world.findings().unwrap(), Vec::<String>::new());
    assert_eq!(world.pools.troubles(), []);
}

#[test]
fn a_pool_that_cannot_be_opened_is_destroyed_only_by_force() {
    let mut world = World::new();
    world.create();
    world.pools.end();
    fs::remove_file(world.path("b")).unwrap();
    world.restart();
    let mut order = PoolDestroy::default();
    let refused = world.pools.destroy(&named("p"), &order).unwrap_err();
    assert_eq!(refused.code, ProblemCode::NotFound);
    order.data = PoolData::Overwrite;
    world.pools.destroy(&named("p"), &order).unwrap();
    world.create();
}

#[test]
fn a_pool_with_disks_is_not_destroyed() {
    let world = World::new();
    world.create();
    let row = catalog::DiskRow {
        reserves: 0,
        wants: None,
        name: "a".to_owned(),
        descriptor: String::new(),
    };
    let put = |pool: &mut OpenPool| pool.catalog.put_disk(Uuid([9; 16]), &row);
    world.pools.with(&named("p"), put).unwrap();
    let mut order = PoolDestroy::default();
    for data in [PoolData::Keep, PoolData::Overwrite] {
        order.data = data;
        let refused = world.pools.destroy(&named("p"), &order).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy);
    }
}

#[test]
fn another_daemon_on_this_machine_does_not_open_a_pool() {
    let world = World::new();
    world.create();
    let other = Pools::new(world.folder.path(), host(2));
    locked(&other.tried).insert(named("p"));
    let refused = other.with(&named("p"), |_| Ok(())).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Locked);
    world.pools.end();
    other.with(&named("p"), |_| Ok(())).unwrap();
}

#[test]
fn another_host_does_not_get_the_lease_of_a_member() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    File::create(&path)
        .and_then(|file| file.set_len(1 << 20))
        .unwrap();
    let leases = |id| {
        let mut settings = Settings::new("pools", folder.path().into(), [id; 16], 1, "host");
        settings.lease = Duration::from_secs(1);
        Leases::new(settings).unwrap()
    };
    let file = devices::lock(&path, Duration::ZERO).unwrap();
    let take = |leases: &Leases| {
        let place = file.lease_at(LEASE_AT).unwrap();
        leases.take_on(place, [7; 16], "pool p", Guard::Lease, Takeover::Guarded)
    };
    let (one, other) = (leases(1), leases(2));
    let held = take(&one).unwrap();
    assert!(held.watch().unwrap().is_open());
    let refused = take(&other).unwrap_err();
    assert!(matches!(refused, Refused::Live(_)), "{refused:?}");
    drop(held);
    one.end(Duration::from_secs(10)).unwrap();
    let held = take(&other).unwrap();
    // What was written under a lease is not written without it.
    let member = store::MemberFile {
        file: Arc::new(file),
        lease: held.watch(),
    };
    store::Store::write_at(&member, &[1; 512], 0).unwrap();
    drop(held);
    other.end(Duration::from_secs(10)).unwrap();
    assert!(store::Store::write_at(&member, &[2; 512], 0).is_err());
    assert!(store::Store::sync(&member).is_err());
}

#[test]
fn an_addition_that_was_interrupted_before_it_counted_can_be_repeated() {
    let mut world = World::new();
    world.create();
    // The record was written, and nothing else.
    let mut record = world.pools.record(&named("p")).unwrap();
    record.members.push(world.path("c"));
    record::write(&world.pools.folder, &named("p"), &record).unwrap();
    File::create(world.path("c"))
        .and_then(|file| file.set_len(SIZE))
        .unwrap();
    world.restart();
    assert_eq!(world.findings().unwrap(), Vec::<String>::new());
    world.add(&["c"]).unwrap();
    world.restart();
    assert_eq!(world.findings().unwrap(), Vec::<String>::new());
    let record = world.pools.record(&named("p")).unwrap();
    assert_eq!(record.members.len(), 3);
}
