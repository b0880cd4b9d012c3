//! Disks with layouts: several images on one I/O thread, driven by NBD clients.

use super::client::{Verifier, pattern};
use super::rig::{
    PATIENCE, Server, all_abilities, client, engine, image, open_file, spec, tempdir,
};
use std::path::{Path, PathBuf};
use tidegate_core::layout::LayoutSpec;
use tidegate_engine::datastore::{OpenedImage, dir, emulated, memory, nbd, null};
use tidegate_engine::nbd::handshake::BlockSizes;
use tidegate_engine::{Disk, DiskSpec, Engine, Kind};

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
