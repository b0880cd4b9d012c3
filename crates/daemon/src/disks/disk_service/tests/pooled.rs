//! Disks on pools: created, attached, written, grown and deleted, over restarts, full pools and added groups.

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use tidegate_api::disk::Allocation;
use tidegate_api::events::Happening;
use tidegate_api::pool::{
    PoolCreate, PoolDestroy, PoolGiveUp, PoolGroupAdd, PoolGroupSpec, PoolLevel,
};
use tidegate_core::layout::{LayoutNotice, LayoutOrder};

use super::super::pooled::quiet::{InUse, Quiet};
use crate::disks::notices::Notice;
use crate::host::nbd::{ExportInfo, Negotiated};

mod snapshots;

/// Five grants on each member, beside 5 MiB of superblocks and catalog.
const MEMBER: u64 = 330 << 20;

fn group(stage: &Stage, names: &[&str]) -> PoolGroupSpec {
    PoolGroupSpec {
        layout: match names.len() {
            1 => tidegate_api::pool::PoolLayout::Single,
            _ => tidegate_api::pool::PoolLayout::Stripe,
        },
        devices: names.iter().map(|it| stage.place.path().join(it)).collect(),
        tier: Default::default(),
    }
}

pub(super) fn create_pool(stage: &Stage, names: &[&str]) {
    let order = PoolCreate {
        name: name("p"),
        groups: vec![group(stage, names)],
        minimum_free_bytes: 0,
        size_bytes: Some(MEMBER),
        data: Default::default(),
    };
    stage.disk_service.create_pool(&order).unwrap();
}

fn add_group(stage: &Stage, names: &[&str]) {
    let order = PoolGroupAdd {
        group: group(stage, names),
        size_bytes: Some(MEMBER),
        data: Default::default(),
    };
    stage
        .disk_service
        .add_pool_group(&name("p"), &order)
        .unwrap();
}

pub(super) fn create(stage: &Stage, disk: &str, size: u64) -> Outcome<api::Disk> {
    let mut order = DiskCreate::new(name(disk), size);
    order.datastore = Some(name("p"));
    stage.disk_service.create(&order)
}

pub(super) fn attach(stage: &Stage, disk: &str) -> api::Disk {
    stage.attach(disk, Outside::default()).unwrap()
}

pub(super) fn detach(stage: &Stage, disk: &str) {
    stage
        .disk_service
        .detach(&name(disk), Clients::Disconnect)
        .unwrap();
}

/// What an administrator was told of pools since the last call.
fn happenings(stage: &Stage) -> Vec<Happening> {
    let notices = stage.disk_service.notices().take().into_iter();
    let of_pool = notices.filter_map(|(_, notice)| match notice {
        Notice::Member { happening, .. } => Some(happening),
        _ => None,
    });
    of_pool.collect()
}

/// A client of an attached disk, with simple replies.
struct Client(UnixStream);

impl Client {
    fn of(stage: &Stage, disk: &str) -> Client {
        let live = stage.disk_service.live().get(&name(disk)).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let negotiated = negotiated(live.export_info());
        live.serve_nbd(
            theirs.into(),
            &negotiated,
            api::ClientKind::Nbd,
            "test",
            Box::new(()),
        )
        .unwrap();
        Client(ours)
    }

    /// A client of a disk without front ends.
    fn of_quiet(quiet: &Quiet) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let negotiated = negotiated(quiet.disk().export_info("quiet"));
        let served = quiet.disk().serve_nbd(theirs.into(), &negotiated, ());
        served.unwrap();
        Client(ours)
    }

    /// Sends a request and waits for its error number: 0 if there is none.
    fn ask(&mut self, kind: u16, at: u64, length: u32, data: &[u8]) -> u32 {
        let mut head = Vec::new();
        head.extend(0x2560_9513_u32.to_be_bytes());
        head.extend(0_u16.to_be_bytes());
        head.extend(kind.to_be_bytes());
        head.extend(7_u64.to_be_bytes());
        head.extend(at.to_be_bytes());
        head.extend(length.to_be_bytes());
        self.0.write_all(&head).unwrap();
        self.0.write_all(data).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    fn write(&mut self, at: u64, byte: u8) -> u32 {
        let data = vec![byte; 1 << 20];
        self.ask(1, at, 1 << 20, &data)
    }

    fn flush(&mut self) {
        assert_eq!(self.ask(3, 0, 0, &[]), 0);
    }

    /// Whether all of a mebibyte is this byte.
    fn has(&mut self, at: u64, byte: u8) -> bool {
        assert_eq!(self.ask(0, at, 1 << 20, &[]), 0);
        let mut data = vec![0; 1 << 20];
        self.0.read_exact(&mut data).unwrap();
        data.iter().all(|it| *it == byte)
    }
}

fn negotiated(export: ExportInfo) -> Negotiated {
    Negotiated {
        export,
        structured: false,
        context: None,
        bitmaps: Vec::new(),
    }
}

const ENOSPC: u32 = 28;

#[test]
fn a_disk_on_a_pool_keeps_its_bytes_and_gives_its_space_back_when_it_is_deleted() {
    let stage = stage();
    create_pool(&stage, &["a", "b"]);
    let made = create(&stage, "vm1", 1 << 40).unwrap();
    assert_eq!((made.datastore, made.size_bytes), (name("p"), 1 << 40));
    let listed = stage.disk_service.disks(None).unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    for (nth, at) in [0, 1 << 30, (1 << 40) - (1 << 20)].into_iter().enumerate() {
        assert_eq!(client.write(at, u8::try_from(nth + 1).unwrap()), 0);
    }
    client.flush();
    drop(client);
    let space = stage.disk_service.disk(&name("vm1")).unwrap().pool.unwrap();
    assert_eq!(space.mapped_bytes, Some(3 << 20));
    assert!(
        space.granted_bytes >= 64 << 20 && !space.refused,
        "{space:?}"
    );
    detach(&stage, "vm1");
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    assert!(client.has(1 << 30, 2) && client.has((1 << 40) - (1 << 20), 3));
    assert!(
        client.has(2 << 30, 0),
        "what was not written reads as zeroes"
    );
    drop(client);
    let pool = stage.disk_service.pool(&name("p")).unwrap();
    assert!(pool.used_bytes > 0 && pool.disks == 1);
    let busy = stage
        .disk_service
        .destroy_pool(&name("p"), &PoolDestroy::default());
    assert_eq!(busy.unwrap_err().code, ProblemCode::Busy);
    let refused = stage.disk_service.delete(&name("vm1")).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy, "it is attached");
    detach(&stage, "vm1");
    stage.disk_service.delete(&name("vm1")).unwrap();
    let pool = stage.disk_service.pool(&name("p")).unwrap();
    assert_eq!((pool.used_bytes, pool.disks), (0, 0));
    stage
        .disk_service
        .destroy_pool(&name("p"), &PoolDestroy::default())
        .unwrap();
    assert!(stage.disk_service.datastore(&name("p")).is_err());
}

#[test]
fn a_pool_is_a_datastore_of_its_name() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    let datastore = stage.disk_service.datastore(&name("p")).unwrap();
    assert_eq!(datastore.settings, DatastoreSettings::Pool {});
    assert_eq!(datastore.capacity_bytes, Some(5 * (64 << 20)));
    let names: Vec<_> = stage
        .disk_service
        .datastores()
        .unwrap()
        .into_iter()
        .map(|it| it.name)
        .collect();
    assert_eq!(names, [name("p"), name("shared")]);
    let refused = stage.disk_service.remove_datastore(&name("p")).unwrap_err();
    assert!(refused.remedy.unwrap().contains("tidegate pool destroy p"));
    let added = stage
        .disk_service
        .add_datastore(&name("q"), DatastoreSettings::Pool {});
    assert!(
        added
            .unwrap_err()
            .remedy
            .unwrap()
            .contains("tidegate pool create q")
    );
    let set = tidegate_api::datastore::DatastoreSet {
        io_control: tidegate_api::iocontrol::IoControlSet {
            io_unit_bytes: Some(65536),
            ..Default::default()
        },
    };
    let changed = stage.disk_service.set_datastore(&name("p"), &set).unwrap();
    assert_eq!(changed.io_control.io_unit_bytes, 65536);
    stage
        .disk_service
        .destroy_pool(&name("p"), &PoolDestroy::default())
        .unwrap();
    create_pool(&stage, &["a"]);
    let again = stage.disk_service.datastore(&name("p")).unwrap();
    assert_ne!(
        again.io_control.io_unit_bytes, 65536,
        "nothing is left of the old one"
    );
}

#[test]
fn a_full_pool_fails_writes_to_new_space_only_until_a_group_is_added_or_a_disk_deleted() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    for disk in ["vm1", "vm2"] {
        create(&stage, disk, 1 << 40).unwrap();
    }
    attach(&stage, "vm2");
    let mut other = Client::of(&stage, "vm2");
    assert_eq!(other.write(0, 9), 0);
    other.flush();
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    let mut written = 0;
    let fill = |client: &mut Client, written: &mut u64| loop {
        match client.write(*written << 20, 1) {
            0 => *written += 1,
            error => break assert_eq!(error, ENOSPC),
        }
        assert!(*written < 1000, "the pool is full at last");
    };
    fill(&mut client, &mut written);
    assert!(written > 100, "{written} MiB");
    assert_eq!(client.write(0, 2), 0, "mapped space");
    client.flush();
    assert!(
        stage
            .disk_service
            .disk(&name("vm1"))
            .unwrap()
            .pool
            .unwrap()
            .refused
    );
    let problems = stage.disk_service.troubles();
    let problem = problems.iter().find(|it| it.code == ProblemCode::Full);
    let problem = problem.expect("the pool is full");
    assert!(problem.what.contains("pool p is 100 % full"), "{problem}");
    let words: Vec<_> = happenings(&stage).iter().map(|it| it.word()).collect();
    assert_eq!(words, ["pool-level", "pool-level", "pool-full"]);
    add_group(&stage, &["b"]);
    assert!(matches!(
        happenings(&stage).as_slice(),
        [
            Happening::PoolLevel {
                level: PoolLevel::Ample,
                ..
            },
            ..
        ]
    ));
    // The disk gets space without asking again.
    let live = stage.disk_service.live().get(&name("vm1")).unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while live.space().unwrap().is_refused {
        assert!(std::time::Instant::now() < until);
        std::thread::yield_now();
    }
    assert_eq!(client.write(written << 20, 3), 0);
    let before = written;
    written += 1;
    fill(&mut client, &mut written);
    assert!(written > before + 100, "the new group is used");
    drop(other);
    detach(&stage, "vm2");
    stage.disk_service.delete(&name("vm2")).unwrap();
    while live.space().unwrap().is_refused {
        assert!(std::time::Instant::now() < until);
        std::thread::yield_now();
    }
    assert_eq!(client.write(written << 20, 4), 0);
    client.flush();
    drop(client);
    detach(&stage, "vm1");
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    for (at, byte) in [(0, 2), (before, 3), (written, 4)] {
        assert!(client.has(at << 20, byte), "MiB {at}");
    }
}

#[test]
fn a_thick_disk_has_its_space_and_others_leave_it() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    let mut order = DiskCreate::new(name("thick"), 130 << 20);
    order.datastore = Some(name("p"));
    order.allocation = Allocation::Thick;
    stage.disk_service.create(&order).unwrap();
    let pool = stage.disk_service.pool(&name("p")).unwrap();
    assert_eq!(
        (pool.reserved_bytes, pool.available_bytes),
        (3 * (64 << 20), 2 * (64 << 20))
    );
    order.name = name("more");
    let refused = stage.disk_service.create(&order).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Full, "{refused}");
    create(&stage, "thin", 1 << 40).unwrap();
    attach(&stage, "thin");
    let mut thin = Client::of(&stage, "thin");
    let mut written = 0;
    while thin.write(written << 20, 1) == 0 {
        written += 1;
    }
    assert_eq!(written, 127, "two grants, without an extent of metadata");
    attach(&stage, "thick");
    let mut thick = Client::of(&stage, "thick");
    for nth in 0..130 {
        assert_eq!(thick.write(nth << 20, 2), 0, "MiB {nth}");
    }
}

#[test]
fn a_disk_on_a_pool_grows_and_does_not_shrink() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    create(&stage, "vm1", 1 << 30).unwrap();
    attach(&stage, "vm1");
    let resize = |size_bytes| {
        let order = DiskResize {
            size_bytes,
            data: ResizeData::MayCutOff,
        };
        stage.disk_service.resize(&name("vm1"), order)
    };
    assert_eq!(resize(2 << 30).unwrap().size_bytes, 2 << 30);
    let mut client = Client::of(&stage, "vm1");
    assert_eq!(client.write((2 << 30) - (1 << 20), 5), 0);
    drop(client);
    detach(&stage, "vm1");
    assert_eq!(resize(1 << 30).unwrap_err().code, ProblemCode::Unsupported);
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    assert!(client.has((2 << 30) - (1 << 20), 5));
}

#[test]
fn another_daemon_finds_the_disks_of_a_pool_and_what_was_given_but_not_used() {
    let stage = stage();
    create_pool(&stage, &["a", "b"]);
    create(&stage, "vm1", 1 << 30).unwrap();
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    assert_eq!(client.write(0, 1), 0);
    client.flush();
    drop(client);
    detach(&stage, "vm1");
    // A crash after the catalog has changed, and before the layout heard of it.
    let uuid = stage
        .disk_service
        .find(&name("vm1"))
        .unwrap()
        .descriptor
        .uuid;
    let given = stage.disk_service.pools.with(&name("p"), |pool| {
        let next = pool.catalog.grants_of(uuid)?.len();
        pool.catalog.grant(uuid, u32::try_from(next).unwrap())
    });
    given.unwrap();
    let before = stage.disk_service.disk(&name("vm1")).unwrap().pool.unwrap();
    stage.disk_service.pools.end();
    attach(&stage, "vm1");
    let after = stage.disk_service.disk(&name("vm1")).unwrap().pool.unwrap();
    assert_eq!(after.granted_bytes, before.granted_bytes);
    let mut client = Client::of(&stage, "vm1");
    assert!(client.has(0, 1));
}

#[test]
fn a_change_of_the_catalog_that_fails_keeps_the_members_and_the_disk_goes_on() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    create(&stage, "vm1", 1 << 40).unwrap();
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    assert_eq!(client.write(0, 1), 0);
    stage
        .disk_service
        .pools
        .with(&name("p"), |pool| {
            pool.catalog.fail();
            Ok(())
        })
        .unwrap();
    // Images of attached disks have locks: a pool that let go of its members could not open them again.
    let mut written = 1;
    while client.write(written << 20, 2) == 0 {
        written += 1;
    }
    assert!(written > 200, "{written} MiB");
    assert_eq!(
        stage.disk_service.check_pool(&name("p")).unwrap().findings,
        Vec::<String>::new()
    );
}

#[test]
fn what_disks_on_pools_do_not_do_is_refused_with_what_to_do() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    create(&stage, "vm1", 1 << 30).unwrap();
    assert_eq!(
        create(&stage, "vm1", 1 << 30).unwrap_err().code,
        ProblemCode::Exists
    );
    let too_large = create(&stage, "huge", 1 << 50).unwrap_err();
    assert!(too_large.remedy.unwrap().contains("127TiB"));
    create(&stage, "large", 64 << 40).unwrap();
    let mut mirror = DiskCreate::new(name("m"), 1 << 30);
    mirror.layout = Some("mirror".to_owned());
    mirror.members = ["p", "shared"]
        .map(|on| tidegate_api::descriptor::MemberPlace::on(name(on)))
        .to_vec();
    let refused = stage.disk_service.create(&mirror).unwrap_err();
    assert!(refused.to_string().contains("is a pool"), "{refused}");
    let export = DiskExport {
        snapshot: None,
        file: stage.place.path().join("out.img"),
        format: None,
        existing: Existing::Keep,
    };
    let refused = stage.disk_service.export(&name("vm1"), export).unwrap_err();
    assert!(refused.remedy.unwrap().contains("nbdcopy"));
}

#[test]
fn a_detached_disk_takes_orders_and_a_generation_is_shown_beside_it() {
    let stage = stage();
    create_pool(&stage, &["a", "b"]);
    create(&stage, "vm1", 1 << 30).unwrap();
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    assert_eq!(client.write(0, 1), 0);
    client.flush();
    drop(client);
    detach(&stage, "vm1");
    let service = &stage.disk_service;
    let found = service.find(&name("vm1")).unwrap();
    let open = service.use_in_pool(&found).unwrap();
    open.order(LayoutOrder::TakeSnapshot).unwrap();
    let taken = open.reported().unwrap().take(
        |notice| matches!(notice, LayoutNotice::Generation(_)),
        Duration::from_secs(10),
    );
    let Some(LayoutNotice::Generation(generation)) = taken else {
        panic!("{taken:?}");
    };
    assert_eq!(open.report().unwrap().generations.len(), 2);
    let InUse::Quiet(disk) = &open else {
        panic!("it is detached");
    };
    let mut client = Client::of_quiet(disk);
    assert_eq!(client.write(0, 2), 0);
    let view = service.open_quietly(&found, Some(generation)).unwrap();
    let mut before = Client::of_quiet(&view);
    assert!(before.has(0, 1) && client.has(0, 2));
    assert_ne!(before.write(0, 3), 0, "it only shows what was");
    drop((client, open));
    let refused = service.delete(&name("vm1")).unwrap_err();
    assert!(refused.to_string().contains("is being read"), "{refused}");
    assert!(before.has(0, 1));
    drop((before, view));
    service.delete(&name("vm1")).unwrap();
}

#[test]
fn a_lost_member_is_given_up_by_name_and_disks_without_data_there_go_on() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    add_group(&stage, &["b"]);
    create(&stage, "vm1", 1 << 40).unwrap();
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    assert_eq!(client.write(0, 1), 0);
    client.flush();
    drop(client);
    detach(&stage, "vm1");
    let service = &stage.disk_service;
    let give_up = |member| service.give_up_member(&name("p"), &PoolGiveUp { member });
    assert_eq!(
        give_up(1).unwrap_err().code,
        ProblemCode::Busy,
        "nothing is lost"
    );
    service.pools.end();
    fs::rename(
        stage.place.path().join("b"),
        stage.place.path().join("gone"),
    )
    .unwrap();
    let refused = service.pool(&name("p")).unwrap_err();
    assert!(
        refused
            .remedy
            .unwrap()
            .contains("tidegate pool give-up p 1")
    );
    assert!(give_up(0).is_err(), "another one is missing");
    let pool = give_up(1).unwrap();
    assert!(!pool.groups[1].members[0].is_current);
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    assert!(client.has(0, 1));
    // Nothing is put on the lost member.
    for nth in 1..200 {
        assert_eq!(client.write(nth << 20, 2), 0, "MiB {nth}");
    }
    drop(client);
    detach(&stage, "vm1");
    // The others have recorded it: the pool opens without another consent.
    service.pools.end();
    attach(&stage, "vm1");
    let mut client = Client::of(&stage, "vm1");
    assert!(client.has(199 << 20, 2));
}

/// A member that hangs keeps an opening alive that a command has given up: nobody else may write, or get the disk's space.
#[test]
fn a_disk_that_is_not_closed_yet_is_neither_opened_again_nor_deleted() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    create(&stage, "vm1", 1 << 30).unwrap();
    let service = &stage.disk_service;
    let found = service.find(&name("vm1")).unwrap();
    let first = service.open_quietly(&found, None).unwrap();
    let problem = stage.attach("vm1", Outside::default()).unwrap_err();
    assert!(problem.to_string().contains("still open"), "{problem}");
    let problem = service.delete(&name("vm1")).unwrap_err();
    assert!(problem.to_string().contains("still open"), "{problem}");
    drop(first);
    attach(&stage, "vm1");
    detach(&stage, "vm1");
    service.delete(&name("vm1")).unwrap();
}
