//! Disks with layouts: several images on one I/O thread, driven by NBD clients.

use super::client::{Client, Verifier, pattern};
use super::rig::{
    PATIENCE, Server, all_abilities, client, engine, eventually, filters, image, open_file, spec,
    tempdir,
};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_core::layout::{
    DATA_AT, LayoutNotice, LayoutOrder, LayoutSpec, MemberState, Refusal, Target,
};
use tidegate_core::request::{Fault, Flags, Op};
use tidegate_engine::datastore::{OpenedImage, dir, emulated, memory, nbd, null};
use tidegate_engine::nbd::handshake::BlockSizes;
use tidegate_engine::{Disk, DiskSpec, Engine, Kind, LayoutOptions, NoticeSink};

mod growth;
mod loss;
mod pools;

const SIZE: u64 = LEN as u64;
const LEN: u32 = 6 << 20;
const STRIPE: LayoutSpec = LayoutSpec::Stripe { chunk: 16 << 10 };

fn layout(layout: LayoutSpec, size: u64) -> DiskSpec {
    DiskSpec {
        layout,
        ..spec("disk", size)
    }
}

/// New images for a disk of this layout.
fn files(place: &Path, spec: LayoutSpec, members: usize) -> Vec<PathBuf> {
    let size = spec.member_size(SIZE, members);
    let name = |number: usize| format!("member{number}");
    (0..members)
        .map(|number| image(place, &name(number), size))
        .collect()
}

fn open_all(paths: &[PathBuf]) -> Vec<Option<OpenedImage>> {
    paths.iter().map(|path| Some(open_file(path))).collect()
}

fn attach(engine: &Engine, spec: LayoutSpec, members: Vec<Option<OpenedImage>>) -> Disk {
    let attached = engine.attach_members(layout(spec, SIZE), members, PATIENCE);
    attached.expect("the disk attaches")
}

fn refused(
    engine: &Engine,
    spec: DiskSpec,
    members: Vec<Option<OpenedImage>>,
) -> tidegate_engine::Error {
    let attached = engine.attach_members(spec, members, PATIENCE);
    attached.err().expect("the disk is refused")
}

/// Writes and reads all over a disk, in pieces much longer and shorter than a chunk.
fn verify(disk: &Disk, rounds: u32) {
    for (seed, unit) in [(1, 4096), (2, 512), (3, 1)] {
        let mut fresh = client(disk);
        fresh.write(0, &vec![0; LEN as usize / 2]).expect("a write");
        let mut verifier = Verifier::new(fresh, 0, SIZE / 2, unit, seed);
        for _ in 0..rounds {
            verifier.round();
        }
        verifier.client.flush().expect("a flush");
        verifier.check_all();
    }
}

#[test]
fn a_stripe_of_files_keeps_its_bytes_over_a_detach() {
    let place = tempdir();
    let paths = files(place.path(), STRIPE, 3);
    let engine = engine(1);
    let disk = attach(&engine, STRIPE, open_all(&paths));
    verify(&disk, 10);
    let all = pattern(0, 7, LEN as usize);
    client(&disk).write(0, &all).expect("a write");
    disk.detach(PATIENCE).expect("the disk is detached");
    let disk = attach(&engine, STRIPE, open_all(&paths));
    assert!(client(&disk).read(0, LEN).expect("a read") == all);
    disk.detach(PATIENCE).expect("the disk is detached");
}

#[test]
fn a_stripe_without_a_member_fails_what_is_there_and_serves_the_rest() {
    let place = tempdir();
    let paths = files(place.path(), STRIPE, 3);
    let engine = engine(1);
    let disk = attach(&engine, STRIPE, open_all(&paths));
    let all = pattern(0, 7, LEN as usize);
    let mut client = client(&disk);
    client.write(0, &all).expect("a write");
    let old = disk.set_member(Target(1), None).expect("it is replaced");
    old.wait(PATIENCE).expect("the old image is closed");
    for (chunk, served) in [(0, true), (1, false), (2, true), (3, true), (4, false)] {
        let found = client.read(chunk << 14, 1 << 14);
        let start = usize::try_from(chunk << 14).expect("small");
        match served {
            true => assert!(found.expect("a read") == all[start..start + (1 << 14)]),
            // Not `Gone`: to a client that says that the disk is being detached.
            false => assert_eq!(found, Err(Fault::Io)),
        }
    }
    assert_eq!(client.read(0, 1 << 16), Err(Fault::Io));
    let back = disk.set_member(Target(1), Some(open_file(&paths[1])));
    drop(back.expect("it is replaced"));
    assert!(client.read(0, LEN).expect("a read") == all);
    disk.detach(PATIENCE).expect("the disk is detached");
}

#[test]
fn a_stripe_may_be_over_datastores_of_every_kind() {
    let place = tempdir();
    let size = STRIPE.member_size(SIZE, 5);
    let upstream = engine(1);
    let exported = upstream
        .attach(spec("upstream", size), memory::open(size).expect("memory"))
        .expect("the disk attaches");
    let server = Server::start(
        place.path(),
        &exported,
        all_abilities(),
        BlockSizes::default(),
    );
    let uri = server.path.display().to_string();
    let emulated: emulated::Spec = format!("emulated:nvme,size={size}")
        .parse()
        .expect("a spec");
    let cached = dir::Options {
        buffered: true,
        ..Default::default()
    };
    let members = vec![
        Some(memory::open(size).expect("memory")),
        Some(emulated::open(&emulated).expect("memory")),
        Some(open_file(&image(place.path(), "direct", size))),
        Some(dir::open(&image(place.path(), "cached", size), cached).expect("it opens")),
        Some(nbd::open(&uri, &nbd::Options::default()).expect("it opens")),
    ];
    let engine = engine(1);
    let sized = SIZE / STRIPE.row(5) * STRIPE.row(5);
    let disk = engine
        .attach_members(layout(STRIPE, sized), members, PATIENCE)
        .expect("the disk attaches");
    verify(&disk, 5);
    disk.detach(PATIENCE).expect("the disk is detached");
}

#[test]
fn members_that_do_not_fit_the_disk_are_refused_and_nothing_stays_attached() {
    let engine = engine(1);
    let open = |size| Some(memory::open(size).expect("memory"));
    let size = STRIPE.member_size(SIZE, 3);
    for (spec, members, says) in [
        (
            layout(STRIPE, SIZE),
            vec![open(size)],
            "needs 2 to 32 members",
        ),
        (
            layout(STRIPE, SIZE),
            vec![open(size), open(size - 4096), open(size)],
            "member 1 of disk disk has",
        ),
        (
            layout(STRIPE, SIZE + 4096),
            vec![open(2 * size), open(2 * size), open(2 * size)],
            "sizes are multiples of 49152 bytes; the next is",
        ),
        (spec("disk", SIZE), vec![open(SIZE)], "has no members"),
    ] {
        let error = refused(&engine, spec, members);
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains(says), "{error}");
    }
    let plain = engine.attach(layout(STRIPE, SIZE), null::open(SIZE));
    assert_eq!(plain.err().map(|error| error.kind()), Some(Kind::Invalid));
    let next = attach(&engine, STRIPE, vec![open(size), open(size), open(size)]);
    assert_eq!(next.id().0, 0, "no number was lost");
}

#[test]
fn a_replaced_image_answers_what_it_was_asked_and_is_then_closed() {
    let place = tempdir();
    let paths = [
        image(place.path(), "old", SIZE),
        image(place.path(), "new", SIZE),
    ];
    let engine = engine(1);
    let disk = engine
        .attach(spec("disk", SIZE), open_file(&paths[0]))
        .expect("the disk attaches");
    let (ones, twos) = (pattern(0, 1, 65_536), pattern(0, 2, 65_536));
    let mut client = client(&disk);
    client.write(0, &ones).expect("a write");
    let old = disk.set_member(Target(0), Some(open_file(&paths[1])));
    old.expect("it is replaced")
        .wait(PATIENCE)
        .expect("the old image is closed");
    assert!(client.read(0, 65_536).expect("a read") == [0; 65_536]);
    client.write(0, &twos).expect("a write");
    let back = disk.set_member(Target(0), Some(open_file(&paths[0])));
    back.expect("it is replaced")
        .wait(PATIENCE)
        .expect("the old image is closed");
    assert!(client.read(0, 65_536).expect("a read") == ones);
    let away = disk.set_member(Target(0), None);
    drop(away.expect("it is replaced"));
    assert_eq!(client.read(0, 512), Err(Fault::Gone));
    disk.detach(PATIENCE).expect("the disk is detached");
    for path in paths {
        drop(open_file(&path));
    }
}

#[test]
fn an_image_is_replaced_at_once_while_its_datastore_is_slow() {
    let engine = engine(1);
    let mark = Arc::new(());
    let slow: emulated::Spec = "emulated:raid5-8x10k,size=1G,seed=3"
        .parse()
        .expect("a spec");
    let size = 1 << 30;
    let disk = engine
        .attach(
            spec("disk", size),
            emulated::open(&slow)
                .expect("memory")
                .holding(Box::new(Arc::clone(&mark))),
        )
        .expect("the disk attaches");
    let mut client = client(&disk);
    let read = |client: &mut Client, at: u64| client.send(Op::Read, Flags::NONE, at, 512, &[]);
    // Some hundred milliseconds of seeks.
    let asked: Vec<u64> = (0..200).map(|n| read(&mut client, n * 4_999_680)).collect();
    eventually("the array has many of them", || {
        disk.report().expect("a report").in_flight > 100
    });
    let old = disk.set_member(Target(0), Some(memory::open(size).expect("memory")));
    let last = read(&mut client, 0);
    let mut answered = Vec::new();
    while answered.len() <= asked.len() {
        let (cookie, answer) = client.next_answer().expect("the server answers");
        answer.expect("a read");
        answered.push(cookie);
        // Nobody else may use its bytes yet.
        let has_more = cookie == last && answered.len() <= asked.len();
        assert!(!has_more || Arc::strong_count(&mark) == 2);
    }
    let place = answered.iter().position(|cookie| *cookie == last);
    assert!(
        place < Some(asked.len()),
        "the new image does not wait for the old one"
    );
    old.expect("it is replaced")
        .wait(PATIENCE)
        .expect("the old image is closed");
    assert_eq!(Arc::strong_count(&mark), 1);
    disk.detach(PATIENCE).expect("the disk is detached");
}

#[test]
fn members_that_do_not_exist_or_do_not_fit_are_not_replaced() {
    let engine = engine(1);
    let open = |size| Some(memory::open(size).expect("memory"));
    let size = STRIPE.member_size(SIZE, 3);
    let disk = attach(&engine, STRIPE, vec![open(size), open(size), open(size)]);
    for (target, image, says) in [
        (1, open(size - 1), "member 1 of disk disk has"),
        (4, open(size), "has no member 4: it has 3"),
        (200, open(size), "has no member 200"),
    ] {
        let error = disk
            .set_member(Target(target), image)
            .err()
            .expect("it is refused");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(disk.members(), 3);
    verify(&disk, 2);
    disk.detach(PATIENCE).expect("the disk is detached");
    let gone = disk.set_member(Target(0), open(size));
    assert_eq!(gone.err().map(|error| error.kind()), Some(Kind::Gone));
}

/// Whether each member has every acknowledged write.
fn states(disk: &Disk) -> Vec<MemberState> {
    let report = disk.layout().expect("it is attached");
    let members = report.expect("it has a layout").members;
    members.iter().map(|member| member.state).collect()
}

/// The disk's bytes on a member.
fn data(path: &Path) -> Vec<u8> {
    let all = std::fs::read(path).expect("a file");
    all[usize::try_from(DATA_AT).expect("small")..].to_vec()
}

#[test]
fn a_mirror_of_files_keeps_its_bytes_on_each_member() {
    let place = tempdir();
    let paths = files(place.path(), LayoutSpec::Mirror, 2);
    let engine = engine(1);
    let disk = attach(&engine, LayoutSpec::Mirror, open_all(&paths));
    verify(&disk, 10);
    let all = pattern(0, 7, LEN as usize);
    client(&disk).write(0, &all).expect("a write");
    disk.detach(PATIENCE).expect("the disk is detached");
    for path in &paths {
        assert!(data(path) == all);
    }
    let disk = attach(&engine, LayoutSpec::Mirror, open_all(&paths));
    assert_eq!(states(&disk), [MemberState::InSync; 2]);
    assert!(client(&disk).read(0, LEN).expect("a read") == all);
    disk.detach(PATIENCE).expect("the disk is detached");
}

#[test]
fn a_new_mirror_over_images_with_old_bytes_makes_its_members_equal() {
    let place = tempdir();
    let paths = files(place.path(), LayoutSpec::Mirror, 2);
    for (round, path) in (0..).zip(&paths) {
        let file = OpenOptions::new().write(true).open(path).expect("a file");
        let old = pattern(0, round, LEN as usize);
        file.write_all_at(&old, DATA_AT).expect("written");
    }
    let engine = engine(1);
    let disk = attach(&engine, LayoutSpec::Mirror, open_all(&paths));
    eventually("the members are in sync", || {
        states(&disk) == [MemberState::InSync; 2]
    });
    disk.detach(PATIENCE).expect("the disk is detached");
    assert!(data(&paths[0]) == data(&paths[1]));
}

#[test]
fn a_stripe_of_mirrors_may_be_over_datastores_of_several_kinds() {
    let place = tempdir();
    let spec = LayoutSpec::MirrorStripe { chunk: 16 << 10 };
    let size = spec.member_size(SIZE, 4);
    let emulated: emulated::Spec = format!("emulated:nvme,size={size}")
        .parse()
        .expect("a spec");
    let cached = dir::Options {
        buffered: true,
        ..Default::default()
    };
    let members = vec![
        Some(memory::open(size).expect("memory")),
        Some(emulated::open(&emulated).expect("memory")),
        Some(open_file(&image(place.path(), "direct", size))),
        Some(dir::open(&image(place.path(), "cached", size), cached).expect("it opens")),
    ];
    let engine = engine(1);
    let disk = attach(&engine, spec, members);
    verify(&disk, 5);
    disk.detach(PATIENCE).expect("the disk is detached");
    assert!(data(&place.path().join("direct")) == data(&place.path().join("cached")));
}

#[test]
fn a_mirror_does_without_a_member_that_was_given_up_and_a_stripe_does_not() {
    let place = tempdir();
    let engine = engine(1);
    for (spec, is_served) in [(LayoutSpec::Mirror, true), (STRIPE, false)] {
        let place = place.path().join(spec.to_string());
        std::fs::create_dir(&place).expect("a directory");
        let paths = files(&place, spec, 2);
        let disk = attach(&engine, spec, open_all(&paths));
        disk.detach(PATIENCE).expect("the disk is detached");
        let members = || vec![Some(open_file(&paths[0])), None];
        let error = refused(&engine, layout(spec, SIZE), members());
        assert_eq!(error.refusal(), Some(Refusal::Missing(Target(1))));
        assert!(
            error.to_string().contains("member 1 is not here"),
            "{error}"
        );
        let mut given_up = layout(spec, SIZE);
        given_up.layout_options.without = 0b10;
        if !is_served {
            let error = refused(&engine, given_up, members());
            assert_eq!(error.refusal(), Some(Refusal::Missing(Target(1))));
            continue;
        }
        let attached = engine.attach_members(given_up, members(), PATIENCE);
        let disk = attached.expect("the disk attaches");
        assert_eq!(states(&disk), [MemberState::InSync, MemberState::OutOfSync]);
        verify(&disk, 2);
        disk.detach(PATIENCE).expect("the disk is detached");
        let stale = vec![None, Some(open_file(&paths[1]))];
        let error = refused(&engine, layout(spec, SIZE), stale);
        assert!(error.refusal().is_some(), "{error}");
        let disk = attach(&engine, spec, open_all(&paths));
        eventually("the stale member is rebuilt", || {
            states(&disk) == [MemberState::InSync; 2]
        });
        disk.detach(PATIENCE).expect("the disk is detached");
        assert!(data(&paths[0]) == data(&paths[1]));
    }
}

#[test]
fn a_foreign_member_is_refused_and_keeps_its_bytes() {
    let place = tempdir();
    let engine = engine(1);
    let paths = files(place.path(), LayoutSpec::Mirror, 2);
    let disk = attach(&engine, LayoutSpec::Mirror, open_all(&paths));
    disk.detach(PATIENCE).expect("the disk is detached");
    let before = std::fs::read(&paths[1]).expect("a file");
    let other = DiskSpec {
        uuid: [8; 16],
        ..layout(LayoutSpec::Mirror, SIZE)
    };
    let error = refused(&engine, other, open_all(&paths));
    assert_eq!(error.refusal(), Some(Refusal::Foreign(Target(0))));
    let swapped: Vec<PathBuf> = paths.iter().rev().cloned().collect();
    let error = refused(
        &engine,
        layout(LayoutSpec::Mirror, SIZE),
        open_all(&swapped),
    );
    assert_eq!(error.refusal(), Some(Refusal::Foreign(Target(0))));
    assert!(
        error.to_string().contains("give each member the image"),
        "{error}"
    );
    assert!(std::fs::read(&paths[1]).expect("a file") == before);
    let disk = attach(&engine, LayoutSpec::Mirror, open_all(&paths));
    assert_eq!(disk.id().0, 0, "no number was lost");
}

#[test]
fn a_replaced_member_is_rebuilt_while_the_disk_is_written() {
    let place = tempdir();
    let paths = files(place.path(), LayoutSpec::Mirror, 2);
    let new = image(place.path(), "new", LayoutSpec::Mirror.member_size(SIZE, 2));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&heard);
    let sink = NoticeSink(Arc::new(move |notice| {
        own.lock().expect("plain").push(notice);
    }));
    let spec = DiskSpec {
        layout_options: LayoutOptions {
            notices: Some(sink),
            ..LayoutOptions::default()
        },
        ..layout(LayoutSpec::Mirror, SIZE)
    };
    let engine = engine(1);
    let disk = engine
        .attach_members(spec, open_all(&paths), PATIENCE)
        .expect("the disk attaches");
    let early = disk.order_layout(LayoutOrder::Replace(Target(1)));
    assert!(early.is_err_and(|error| error.to_string().contains("in sync")));
    let busy = disk.set_member(Target(1), Some(open_file(&new)));
    assert_eq!(busy.err().map(|error| error.kind()), Some(Kind::Busy));
    drop(disk.set_member(Target(1), None).expect("it is replaced"));
    verify(&disk, 2);
    let notices = heard.lock().expect("plain").clone();
    assert!(
        matches!(
            notices[..],
            [LayoutNotice::Dropped {
                member: Target(1),
                ..
            }]
        ),
        "{notices:?}"
    );
    let old = disk.set_member(Target(1), Some(open_file(&new)));
    old.expect("it is replaced")
        .wait(PATIENCE)
        .expect("it is closed");
    disk.order_layout(LayoutOrder::Replace(Target(1)))
        .expect("the order is carried out");
    verify(&disk, 5);
    eventually("the new member is rebuilt", || {
        states(&disk) == [MemberState::InSync; 2]
    });
    let rebuilt = LayoutNotice::Rebuilt { member: Target(1) };
    eventually("that is reported", || {
        heard.lock().expect("plain").contains(&rebuilt)
    });
    disk.detach(PATIENCE).expect("the disk is detached");
    assert!(data(&paths[0]) == data(&new));
}

#[test]
fn a_disk_moves_to_another_image_while_it_is_written() {
    let place = tempdir();
    let [old, new] = ["old", "new"].map(|name| image(place.path(), name, SIZE));
    let engine = engine(1);
    let disk = engine
        .attach(spec("disk", SIZE), open_file(&old))
        .expect("the disk attaches");
    let all = pattern(0, 5, LEN as usize);
    client(&disk).write(0, &all).expect("a write");
    disk.begin_transfer(open_file(&new), PATIENCE)
        .expect("the move begins");
    let twice = disk.begin_transfer(memory::open(SIZE).expect("memory"), PATIENCE);
    assert_eq!(twice.err().map(|error| error.kind()), Some(Kind::Invalid));
    assert_eq!(
        disk.resize(SIZE).err().map(|error| error.kind()),
        Some(Kind::Busy)
    );
    verify(&disk, 3);
    eventually("all bytes are there", || {
        states(&disk) == [MemberState::InSync; 2]
    });
    client(&disk).write(0, &all).expect("a write");
    let whole = disk.pause_transfer(PATIENCE).expect("it pauses");
    assert!(whole, "the new image has every byte");
    let left = disk
        .end_transfer(Target(1), PATIENCE)
        .expect("the move ends");
    left.wait(PATIENCE).expect("the old image is closed");
    drop(open_file(&old));
    assert!(disk.layout().expect("it is attached").is_none());
    assert!(client(&disk).read(0, LEN).expect("a read") == all);
    client(&disk).write(0, &[1; 4096]).expect("a write");
    disk.detach(PATIENCE).expect("the disk is detached");
    let [old, new] = [old, new].map(|path| std::fs::read(path).expect("a file"));
    assert!(old == all && new[4096..] == all[4096..] && new[..4096] == [1; 4096]);
}

#[test]
fn requests_wait_while_a_move_is_recorded_and_go_on_in_either_image() {
    let place = tempdir();
    let engine = engine(1);
    for keep in [0, 1] {
        let names = ["old", "new"].map(|name| format!("{name}{keep}"));
        let paths = names.map(|name| image(place.path(), &name, SIZE));
        let disk = engine
            .attach(spec("disk", SIZE), open_file(&paths[0]))
            .expect("the disk attaches");
        let not_moving = disk.pause_transfer(PATIENCE);
        assert!(not_moving.is_err(), "{not_moving:?}");
        disk.begin_transfer(open_file(&paths[1]), PATIENCE)
            .expect("the move begins");
        eventually("all bytes are there", || {
            states(&disk) == [MemberState::InSync; 2]
        });
        assert!(disk.pause_transfer(PATIENCE).expect("the disk is held"));
        let mut client = client(&disk);
        let bytes = pattern(0, 3, 65_536);
        let written = client.send(Op::Write, Flags::FUA, 0, 65_536, &bytes);
        eventually("the write waits", || {
            disk.report().expect("a report").waiting == 1
        });
        for path in &paths {
            let before = std::fs::read(path).expect("a file");
            assert!(before.iter().all(|byte| *byte == 0));
        }
        let left = disk.end_transfer(Target(keep), PATIENCE);
        left.expect("the move ends")
            .wait(PATIENCE)
            .expect("the other image is closed");
        let (answered, outcome) = client.next_answer().expect("the server answers");
        assert_eq!((answered, outcome.map(drop)), (written, Ok(())));
        disk.detach(PATIENCE).expect("the disk is detached");
        let kept = std::fs::read(&paths[usize::from(keep)]).expect("a file");
        assert!(kept[..65_536] == bytes);
        let other = std::fs::read(&paths[usize::from(1 - keep)]).expect("a file");
        assert!(other[..65_536] != bytes);
    }
}

#[test]
fn a_member_that_does_not_answer_is_named_and_the_disk_is_detached_again() {
    let place = tempdir();
    let size = LayoutSpec::Mirror.member_size(SIZE, 2);
    let upstream = engine(1);
    let stuck = DiskSpec {
        filters: filters(&["fault:delay=3600s"]),
        ..spec("upstream", size)
    };
    let exported = upstream
        .attach(stuck, memory::open(size).expect("memory"))
        .expect("the disk attaches");
    let server = Server::start(
        place.path(),
        &exported,
        all_abilities(),
        BlockSizes::default(),
    );
    let uri = server.path.display().to_string();
    let members = vec![
        Some(memory::open(size).expect("memory")),
        Some(nbd::open(&uri, &nbd::Options::default()).expect("it opens")),
    ];
    let engine = engine(1);
    let patience = Duration::from_millis(300);
    let attached = engine.attach_members(layout(LayoutSpec::Mirror, SIZE), members, patience);
    let error = attached.err().expect("it does not open");
    assert_eq!(error.kind(), Kind::TimedOut);
    assert!(
        error.to_string().contains("member 1 does not answer"),
        "{error}"
    );
    // The upstream answers, and the rest is closed.
    exported
        .restack(&[], PATIENCE)
        .expect("the filter is removed");
    eventually("the number is free again", || {
        let next = engine.attach(spec("next", SIZE), null::open(SIZE));
        let next = next.expect("the disk attaches");
        let number = next.id().0;
        next.detach(PATIENCE).expect("the disk is detached");
        number == 0
    });
}

#[test]
fn a_disk_with_a_layout_grows_by_whole_rows_after_its_images() {
    let place = tempdir();
    let engine = engine(1);
    for (spec, members) in [(STRIPE, 3), (LayoutSpec::Mirror, 2)] {
        let place = place.path().join(spec.to_string());
        std::fs::create_dir(&place).expect("a directory");
        let paths = files(&place, spec, members);
        let disk = attach(&engine, spec, open_all(&paths));
        for path in &paths {
            let file = OpenOptions::new().write(true).open(path).expect("a file");
            file.set_len(spec.member_size(2 * SIZE, members))
                .expect("it grows");
        }
        let error = disk.resize(SIZE + 512).expect_err("it has no such size");
        assert!(error.to_string().contains("the next is"), "{error}");
        disk.resize(2 * SIZE).expect("it grows");
        let all = pattern(SIZE, 4, LEN as usize);
        client(&disk).write(SIZE, &all).expect("a write");
        assert!(client(&disk).read(SIZE, LEN).expect("a read") == all);
        disk.detach(PATIENCE).expect("the disk is detached");
        let attached = engine.attach_members(layout(spec, 2 * SIZE), open_all(&paths), PATIENCE);
        let disk = attached.expect("the disk attaches");
        assert!(client(&disk).read(SIZE, LEN).expect("a read") == all);
        disk.detach(PATIENCE).expect("the disk is detached");
    }
}
