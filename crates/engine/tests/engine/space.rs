//! Tests of a file system's space: discarded, exhausted, truncated.

use super::client::pattern;
use super::rig::{attach, client, engine, image, open_file, spec, tempdir};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tidegate_core::request::{ExtentKind, Fault, Flags};
use tidegate_engine::datastore::condition::Harm;

fn blocks(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks()
}

#[test]
fn a_discard_frees_space_and_write_zeroes_frees_it_if_allowed() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 8 << 20);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    let mut c = client(&disk);
    c.write_with(Flags::FUA, 0, &pattern(0, 1, 8 << 20))
        .unwrap();
    let full = blocks(&path);
    assert!(full >= (8 << 20) / 512, "{full}");
    c.discard(0, 2 << 20).unwrap();
    c.flush().unwrap();
    let (after, half) = (blocks(&path), (2 << 20) / 512);
    assert!(after <= full - half + 64, "{full} -> {after}");
    assert!(c.read(0, 2 << 20).unwrap().iter().all(|b| *b == 0));
    // May free the space, and does.
    c.write_zeroes(Flags::MAY_UNMAP.with(Flags::FUA), 2 << 20, 2 << 20)
        .unwrap();
    assert!(blocks(&path) <= after - half + 64);
    // Must keep its space, and does.
    let before = blocks(&path);
    c.write_zeroes(Flags::NONE, 4 << 20, 2 << 20).unwrap();
    c.flush().unwrap();
    assert!(blocks(&path) + 64 >= before);
    assert!(c.read(2 << 20, 4 << 20).unwrap().iter().all(|b| *b == 0));
    // An unaligned range: exactly its bytes, and no others.
    c.write_zeroes(Flags::MAY_UNMAP, (6 << 20) + 100, 10_000)
        .unwrap();
    let bytes = c.read(6 << 20, 16_384).unwrap();
    let wanted = pattern(6 << 20, 1, 16_384);
    assert!(bytes[..100] == wanted[..100] && bytes[10_100..] == wanted[10_100..]);
    assert!(bytes[100..10_100].iter().all(|b| *b == 0));
}

#[test]
fn the_extents_of_a_sparse_file_are_reported() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 8 << 20);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    let mut c = client(&disk);
    c.write_with(Flags::FUA, 1 << 20, &[1; 1 << 20]).unwrap();
    c.write_with(Flags::FUA, 4 << 20, &[1; 65_536]).unwrap();
    let extents: Vec<_> = c
        .extents(0, 8 << 20)
        .iter()
        .map(|e| (e.len, e.kind))
        .collect();
    let (hole, data) = (ExtentKind::Hole, ExtentKind::Data);
    let wanted = [
        (1 << 20, hole),
        (1 << 20, data),
        (2 << 20, hole),
        (65_536, data),
        ((4 << 20) - 65_536, hole),
    ];
    assert_eq!(extents, wanted);
    let inside: Vec<_> = c
        .extents((1 << 20) + 512, 1024)
        .iter()
        .map(|e| (e.len, e.kind))
        .collect();
    assert_eq!(inside, [(1024, data)]);
}

#[test]
fn the_extents_of_an_image_of_odd_size_reach_its_last_byte() {
    let (hole, data) = (ExtentKind::Hole, ExtentKind::Data);
    let dir = tempdir();
    let engine = engine(1);
    for size in [(1 << 20) + 512, (1 << 20) + 5 * 512, (1 << 20) + 700] {
        let path = image(dir.path(), &format!("image-{size}"), size);
        let disk = attach(&engine, open_file(&path));
        let mut c = client(&disk);
        let rest = u32::try_from(size - (1 << 20)).unwrap();
        let extents = |c: &mut super::client::Client, at, len| -> Vec<_> {
            let extents = c.try_extents(at, len).expect("the image is whole");
            extents.iter().map(|e| (e.len, e.kind)).collect()
        };
        assert_eq!(extents(&mut c, 0, (1 << 20) + rest), [(size, hole)]);
        assert_eq!(extents(&mut c, size - 1, 1), [(1, hole)]);
        c.write_with(Flags::FUA, 1 << 20, &vec![1; rest as usize])
            .unwrap();
        let wanted = [(1 << 20, hole), (rest.into(), data)];
        assert_eq!(extents(&mut c, 0, (1 << 20) + rest), wanted);
        assert_eq!(extents(&mut c, size - 1, 1), [(1, data)]);
    }
}

/// A small file system of its own.
struct Mount {
    dir: TempDir,
}

impl Mount {
    fn tmpfs(size: &str) -> Mount {
        let dir = tempdir();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
            .arg(dir.path())
            .status()
            .expect("mount exists");
        assert!(
            status.success(),
            "a tmpfs is mounted: this test must run as root"
        );
        Mount { dir }
    }

    fn ext4(size: u64) -> Mount {
        let dir = tempdir();
        let file = image(dir.path(), "ext4", size);
        let run = |program: &str, args: &[&str], last: &[&Path]| {
            let status = Command::new(program)
                .args(args)
                .args(last)
                .status()
                .expect(program);
            assert!(
                status.success(),
                "{program} works: this test must run as root"
            );
        };
        let inner = dir.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        run(
            "mkfs.ext4",
            &["-q", "-m", "0", "-O", "^has_journal"],
            &[&file],
        );
        run("mount", &["-o", "loop"], &[&file, &inner]);
        Mount { dir }
    }

    fn path(&self) -> PathBuf {
        let inner = self.dir.path().join("inner");
        if inner.exists() {
            inner
        } else {
            self.dir.path().to_owned()
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A leftover mount fails the test elsewhere.
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.path())
            .status();
    }
}

/// Fills a file system below a disk, and frees space again.
fn fill(mount: &Mount) {
    let ballast = mount.path().join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let path = image(&mount.path(), "image", 64 << 20);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    let mut c = client(&disk);
    let piece = 256 << 10;
    let place = |index: u64| index * 2 * piece as u64;
    let write = |c: &mut super::client::Client, index| {
        c.write_with(Flags::FUA, place(index), &pattern(place(index), 1, piece))
    };
    let full = (0..64).find(|index| write(&mut c, *index) == Err(Fault::NoSpace));
    let full = full.expect("a full datastore says so");
    assert!(full > 4, "there was room for some");
    // Reads continue, and acknowledged data is there.
    for index in 0..full {
        let bytes = c.read(place(index), u32::try_from(piece).unwrap()).unwrap();
        assert!(
            bytes == pattern(place(index), 1, piece),
            "piece {index} is torn"
        );
    }
    // Allocated ranges can be written again.
    c.write_with(Flags::FUA, 0, &pattern(0, 2, piece)).unwrap();
    c.write_with(Flags::FUA, 0, &pattern(0, 1, piece)).unwrap();
    // The write that found no space may have written a part of its data, and nothing else.
    let bytes = c.read(place(full), u32::try_from(piece).unwrap()).unwrap();
    let wanted = pattern(place(full), 1, piece);
    let mut sectors = bytes.chunks(512).zip(wanted.chunks(512));
    assert!(sectors.all(|(is, was)| is == was || is.iter().all(|b| *b == 0)));
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(write(&mut c, full), Ok(()));
    assert!(c.read(place(full), u32::try_from(piece).unwrap()).unwrap() == wanted);
}

#[test]
fn a_full_tmpfs_refuses_only_writes_until_space_is_freed() {
    fill(&Mount::tmpfs("16M"));
}

#[test]
fn a_full_ext4_refuses_only_writes_until_space_is_freed() {
    fill(&Mount::ext4(20 << 20));
}

/// Truncates an image of a MiB of ones to `cut`, and has the client write before it reads.
fn cut_then_write(dir: &Path, cut: u64, write: impl Fn(&mut super::client::Client) -> [Answer; 2]) {
    let path = image(dir, &format!("cut-{cut}"), 1 << 20);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    let mut c = client(&disk);
    c.write_with(Flags::FUA, 0, &[1; 1 << 20]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(cut).unwrap();
    for answer in write(&mut c) {
        assert_eq!(answer, Err(Fault::Io));
    }
    let after = std::fs::metadata(&path).unwrap().len();
    assert_eq!(after, cut, "no write extends the file again");
    assert_eq!(c.read(0, 4096), Ok(vec![1; 4096]), "the rest can be read");
    assert_eq!(c.read(cut / 4096 * 4096, 4096), Err(Fault::Io));
    std::fs::remove_file(&path).unwrap();
}

type Answer = Result<(), Fault>;

fn writes_do_not_hide_a_cut(dir: &Path) {
    const END: u64 = 1 << 20;
    for cut in [4096, END / 2, END - 4096] {
        // With direct I/O and through the page cache; up to the very end, which leaves the old length.
        cut_then_write(dir, cut, |c| {
            [
                c.write(END - 4096, &[2; 4096]),
                c.write(END - 1024, &[2; 512]),
            ]
        });
        cut_then_write(dir, cut, |c| {
            let zeroes = c.write_zeroes(Flags::NONE, END / 2, 512 << 10);
            [zeroes, c.write(0, &[2; 512])]
        });
    }
    // Inside the last page.
    for cut in [END - 4095, END - 512] {
        cut_then_write(dir, cut, |c| {
            [
                c.write(END - 4096, &[2; 4096]),
                c.write(END - 512, &[2; 512]),
            ]
        });
    }
}

#[test]
fn a_write_beyond_the_new_end_does_not_hide_a_truncation() {
    writes_do_not_hide_a_cut(tempdir().path());
}

#[test]
fn a_write_beyond_the_new_end_hides_no_truncation_on_tmpfs_or_ext4() {
    writes_do_not_hide_a_cut(&Mount::tmpfs("16M").path());
    writes_do_not_hide_a_cut(&Mount::ext4(20 << 20).path());
}

#[test]
fn an_image_that_was_truncated_and_extended_is_not_read() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    let mut c = client(&disk);
    c.write_with(Flags::FUA, 0, &[1; 1 << 20]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(512 << 10).unwrap();
    file.set_len(1 << 20).unwrap();
    assert_eq!(c.read(768 << 10, 4096), Err(Fault::Io), "a hole, not data");
    assert_eq!(c.write(0, &[2; 4096]), Err(Fault::Io));
}

#[test]
fn a_truncated_image_reports_no_holes_in_place_of_data() {
    const END: u64 = 1 << 20;
    let engine = engine(1);
    let plain = tempdir();
    let mounts = [Mount::tmpfs("16M"), Mount::ext4(20 << 20)];
    let places = mounts.iter().map(Mount::path);
    for dir in places.chain([plain.path().to_owned()]) {
        for (cut, grown) in [(END / 2, false), (END / 2, true), (END - 512, false)] {
            let path = image(&dir, &format!("image-{cut}-{grown}"), END);
            let disk = attach(&engine, open_file(&path));
            let mut c = client(&disk);
            c.write_with(Flags::FUA, 0, &[1; 1 << 20]).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(cut).unwrap();
            if grown {
                file.set_len(END).unwrap();
            }
            // No other request has met the truncation before.
            let harm = if grown { Harm::Torn } else { Harm::Cut };
            assert_eq!(c.try_extents(0, 1 << 20), Err(Fault::Io));
            assert_eq!(disk.harm(), Some(harm));
            assert_eq!(c.try_extents(END - 512, 512), Err(Fault::Io));
            assert_eq!(c.try_extents(cut - 512, 1024), Err(Fault::Io));
            // As with reads: the rest is known, unless any of it may be a hole.
            let left = c.try_extents(0, 512 << 10).map(|extents| extents.len());
            assert_eq!(left, if grown { Err(Fault::Io) } else { Ok(1) });
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn a_disk_shorter_than_its_image_tolerates_a_truncation_to_its_size() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 2 << 20);
    let engine = engine(1);
    let disk = engine.attach(spec("disk", 1 << 20), open_file(&path));
    let disk = disk.unwrap();
    let mut c = client(&disk);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    assert_eq!(c.write((1 << 20) - 4096, &[2; 4096]), Ok(()));
    assert_eq!(c.extents(0, 1 << 20).len(), 2);
    // It may grow, and its new range is guarded too.
    file.set_len(2 << 20).unwrap();
    disk.resize(2 << 20).unwrap();
    assert_eq!(c.write((2 << 20) - 8192, &[3; 4096]), Ok(()));
    file.set_len(1 << 20).unwrap();
    assert_eq!(c.write((2 << 20) - 8192, &[4; 4096]), Err(Fault::Io));
}

#[test]
fn a_read_of_a_truncated_image_is_an_error_not_zeroes() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    let mut c = client(&disk);
    c.write_with(Flags::FUA, 0, &[1; 1 << 20]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(512 << 10).unwrap();
    for (at, len) in [
        (512 << 10, 4096),
        (512 << 10, 512),
        ((512 << 10) - 4096, 8192),
        ((512 << 10) - 512, 1024),
    ] {
        assert_eq!(c.read(at, len), Err(Fault::Io), "{at}+{len}");
    }
    assert_eq!(c.read(0, 4096), Ok(vec![1; 4096]));
    // A write near the old end would extend the file, and the hole before it would read as zeroes.
    assert_eq!(c.write((1 << 20) - 4096, &[2; 4096]), Err(Fault::Io));
    assert_eq!(c.read(768 << 10, 4096), Err(Fault::Io));
    // So does another program that extends the file after the truncation was detected.
    file.set_len(1 << 20).unwrap();
    for at in [768 << 10, 0] {
        assert_eq!(c.read(at, 4096), Err(Fault::Io));
        assert_eq!(c.try_extents(at, 4096), Err(Fault::Io));
    }
    assert_eq!(disk.harm(), Some(Harm::Torn));
}
