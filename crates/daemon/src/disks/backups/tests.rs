//! Tests of backups: a chain of increments of a disk in memory, interrupted and damaged.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::ProblemCode;

use super::folder::BackupFolder;
use super::image::{self, Content};
use super::manifest::{Entry, Manifest};
use crate::disks::copy::{Extent, Progress, Source};
use crate::disks::export;
use crate::os_error::Outcome;

const SUB: usize = 64 << 10;
const UUID: Uuid = Uuid([7; 16]);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A disk in memory, which notes what is written.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    changed: RefCell<Vec<Range<u64>>>,
    /// Reads fail from here on.
    fails_at: Option<u64>,
}

impl Memory {
    fn new(size: usize) -> Memory {
        Memory {
            bytes: RefCell::new(vec![0; size]),
            changed: RefCell::default(),
            fails_at: None,
        }
    }

    fn write(&self, at: usize, length: usize, byte: u8) {
        let mut bytes = self.bytes.borrow_mut();
        let end = (at + length).min(bytes.len());
        bytes[at..end].fill(byte);
        let (first, last) = (at / SUB * SUB, end.next_multiple_of(SUB).min(bytes.len()));
        self.changed.borrow_mut().push(first as u64..last as u64);
    }

    /// What changed since the last call, ascending.
    fn take_changed(&self) -> Vec<Range<u64>> {
        let mut changed = self.changed.take();
        changed.sort_by_key(|range| range.start);
        changed
    }
}

impl Source for Memory {
    fn size(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn extent(&self, offset: u64, most: u64) -> io::Result<(u64, Extent)> {
        let bytes = self.bytes.borrow();
        let at = usize::try_from(offset).unwrap();
        let zeroes = bytes[at..].iter().take_while(|byte| **byte == 0).count() as u64;
        Ok(match zeroes {
            0 => (most.min(5000), Extent::Data),
            zeroes => (zeroes.min(most), Extent::Zero),
        })
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        if self
            .fails_at
            .is_some_and(|from| offset + buffer.len() as u64 > from)
        {
            return Err(io::ErrorKind::Other.into());
        }
        buffer.copy_from_slice(&self.bytes.borrow()[at..at + buffer.len()]);
        Ok(())
    }
}

/// Makes the next backup: an increment if there is one before it and `changed` is given.
fn back_up(
    folder: &mut BackupFolder,
    disk: &Memory,
    changed: Option<&[Range<u64>]>,
) -> Outcome<PathBuf> {
    let number = folder.manifest.next_number();
    let snapshot = name(&format!("s{number}"));
    let base = folder
        .manifest
        .last()
        .filter(|_| changed.is_some())
        .cloned();
    let base_file = base.as_ref().map(Entry::file);
    let content = match (changed, &base_file) {
        (Some(ranges), Some(base)) => Content::Changed { ranges, base },
        _ => Content::Full,
    };
    folder.will_take(Some(snapshot.clone()))?;
    let draft = export::draft(&folder.path().join("backup"))?;
    let written = image::write(disk, content, &draft, &Progress::default())?;
    let entry = Entry {
        number,
        snapshot,
        generation: number * 10,
        is_own: true,
        base: base.map(|base| base.number),
        size_bytes: disk.size(),
        file_bytes: written.file_bytes,
        covered_bytes: written.covered_bytes,
        sha256: written.sha256,
        at: 1,
    };
    let path = folder.path().join(entry.file());
    folder.add(&draft, entry)?;
    Ok(path)
}

/// All bytes of a backup.
fn restored(path: &Path, at: &str) -> Vec<u8> {
    let folder = BackupFolder::open(path).unwrap();
    let entry = folder.manifest.find(Some(at)).unwrap();
    let chain = folder.manifest.chain(entry);
    folder.verify(&chain, &Progress::default()).unwrap();
    let image = folder.image(&chain).unwrap();
    let mut bytes = vec![0xff; usize::try_from(image.size()).unwrap()];
    image.read(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_full_backup_and_ten_increments_are_restored_as_the_disk_was() {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("vm1");
    let disk = Memory::new(40 * SUB + 3 * 512);
    let mut random = 12345_usize;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    disk.write(0, 20 * SUB, 1);
    disk.take_changed();
    let mut states = Vec::new();
    let mut bytes_of_increments = 0;
    for round in 0..=10 {
        let mut folder = BackupFolder::begin(&path, &name("vm1"), UUID).unwrap();
        let changed = disk.take_changed();
        let path = back_up(&mut folder, &disk, (round > 0).then_some(&changed)).unwrap();
        if round > 0 {
            bytes_of_increments += folder.manifest.last().unwrap().covered_bytes;
        }
        assert!(path.is_file());
        states.push(disk.bytes.borrow().clone());
        for _ in 0..4 {
            let byte = u8::try_from(next(3)).unwrap();
            disk.write(next(40 * SUB), 1 + next(3 * SUB), byte);
        }
        // The last bytes of a disk that ends within a sub-block.
        disk.write(40 * SUB + 512, 1024, u8::try_from(round).unwrap());
    }
    for (number, state) in (1..).zip(&states) {
        assert!(
            restored(&path, &format!("s{number}")) == *state,
            "backup {number}"
        );
    }
    assert!(
        bytes_of_increments < 10 * disk.size(),
        "they have only what changed"
    );
    let convert = std::process::Command::new("qemu-img")
        .args(["convert", "-O", "raw", "0011-s11.qcow2", "all.raw"])
        .current_dir(&path)
        .output();
    if let Ok(run) = convert {
        assert!(run.status.success(), "{run:?}");
        let raw = fs::read(path.join("all.raw")).unwrap();
        assert!(raw == states[10], "qemu-img reads the same");
    }
}

#[test]
fn a_backup_that_is_interrupted_at_any_step_leaves_those_before_it() {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("vm1");
    let disk = Memory::new(8 * SUB);
    disk.write(0, 3 * SUB, 1);
    disk.take_changed();
    let begin = || BackupFolder::begin(&path, &name("vm1"), UUID).unwrap();
    back_up(&mut begin(), &disk, None).unwrap();
    let first = disk.bytes.borrow().clone();
    disk.write(SUB, SUB, 2);
    let changed = disk.take_changed();
    // After the snapshot was noted.
    begin().will_take(Some(name("s2"))).unwrap();
    assert_eq!(begin().manifest.pending, Some(name("s2")));
    assert!(restored(&path, "s1") == first);
    // After the file got its name, before the manifest.
    let mut folder = begin();
    back_up(&mut folder, &disk, Some(&changed)).unwrap();
    let whole = folder.manifest.clone();
    folder.manifest.backups.pop();
    folder.manifest.pending = Some(name("s2"));
    folder.store().unwrap();
    drop(folder);
    assert!(restored(&path, "s1") == first);
    // The next one takes the place of what was left.
    let mut folder = begin();
    back_up(&mut folder, &disk, Some(&changed)).unwrap();
    assert_eq!(folder.manifest, whole);
    drop(folder);
    assert!(restored(&path, "s2") == *disk.bytes.borrow());
}

#[test]
fn a_disk_that_cannot_be_read_leaves_no_file_and_no_backup() {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("vm1");
    let mut disk = Memory::new(8 * SUB);
    disk.write(0, 8 * SUB, 1);
    disk.fails_at = Some(5 * SUB as u64);
    let mut folder = BackupFolder::begin(&path, &name("vm1"), UUID).unwrap();
    let failed = back_up(&mut folder, &disk, None).unwrap_err();
    assert!(
        failed.to_string().contains("cannot read the disk at byte"),
        "{failed}"
    );
    let left: Vec<_> = fs::read_dir(&path)
        .unwrap()
        .flatten()
        .map(|it| it.file_name())
        .collect();
    assert_eq!(left, ["backups.toml"]);
    assert!(folder.manifest.backups.is_empty());
}

#[test]
fn damage_of_a_file_or_of_the_manifest_is_found() {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("vm1");
    let disk = Memory::new(8 * SUB);
    disk.write(0, 3 * SUB, 1);
    let mut folder = BackupFolder::begin(&path, &name("vm1"), UUID).unwrap();
    let image = back_up(&mut folder, &disk, None).unwrap();
    disk.take_changed();
    back_up(&mut folder, &disk, Some(&[])).unwrap();
    drop(folder);
    let verify = || {
        let folder = BackupFolder::open(&path)?;
        let entry = folder.manifest.find(None)?;
        folder.verify(&folder.manifest.chain(entry), &Progress::default())
    };
    verify().unwrap();
    let good = fs::read(&image).unwrap();
    let mut bad = good.clone();
    bad[70_000] ^= 1;
    for (bytes, why) in [(&bad[..], "checksum"), (&good[..100], "it has 100 bytes")] {
        fs::write(&image, bytes).unwrap();
        let found = verify().unwrap_err();
        assert_eq!(found.code, ProblemCode::Corrupt);
        assert!(found.to_string().contains(why), "{found}");
    }
    fs::remove_file(&image).unwrap();
    assert_eq!(verify().unwrap_err().code, ProblemCode::NotFound);
    fs::write(&image, &good).unwrap();
    verify().unwrap();
    let manifest = path.join("backups.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    let changed = text.replacen("generation = 10", "generation = 11", 1);
    assert_ne!(changed, text);
    for bad in [&changed[..], &text[..text.len() / 2], "", "\u{1}"] {
        fs::write(&manifest, bad).unwrap();
        let found = verify().unwrap_err();
        assert_eq!(found.code, ProblemCode::Corrupt, "{bad}");
    }
}

#[test]
fn a_directory_has_the_backups_of_one_disk_and_one_writer() {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("vm1");
    let begin = |uuid| BackupFolder::begin(&path, &name("vm1"), uuid).map(drop);
    let mut folder = BackupFolder::begin(&path, &name("vm1"), UUID).unwrap();
    assert_eq!(begin(UUID).unwrap_err().code, ProblemCode::Busy);
    let disk = Memory::new(SUB);
    back_up(&mut folder, &disk, None).unwrap();
    assert_eq!(
        BackupFolder::open(&path).map(drop).unwrap_err().code,
        ProblemCode::Busy
    );
    drop(folder);
    assert_eq!(begin(Uuid([8; 16])).unwrap_err().code, ProblemCode::Exists);
    begin(UUID).unwrap();
    let _two = [
        BackupFolder::open(&path).unwrap(),
        BackupFolder::open(&path).unwrap(),
    ];
    let other = outside.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), "").unwrap();
    let refused = BackupFolder::begin(&other, &name("vm1"), UUID).map(drop);
    assert_eq!(refused.unwrap_err().code, ProblemCode::Exists);
    let none = BackupFolder::open(&other).map(drop).unwrap_err();
    assert_eq!(none.code, ProblemCode::NotFound);
}

#[test]
fn a_backup_is_found_by_its_snapshot_or_number_and_spent_snapshots_are_own_and_not_the_newest() {
    let mut manifest = Manifest::new(name("vm1"), UUID);
    assert!(manifest.find(None).is_err());
    for (number, snapshot, is_own, base) in [
        (1, "monday", true, None),
        (2, "kept", false, Some(1)),
        (3, "monday", true, Some(2)),
        (4, "full", true, None),
    ] {
        manifest.backups.push(Entry {
            number,
            snapshot: name(snapshot),
            generation: number * 2,
            is_own,
            base,
            size_bytes: 1,
            file_bytes: 1,
            covered_bytes: 1,
            sha256: String::new(),
            at: 1,
        });
    }
    let manifest = Manifest::decode(manifest.encode().unwrap().as_bytes()).unwrap();
    let number = |at: Option<&str>| manifest.find(at).unwrap().number;
    assert_eq!(
        [None, Some("monday"), Some("1"), Some("kept")].map(number),
        [4, 3, 1, 2]
    );
    let missing = manifest.find(Some("tuesday")).unwrap_err();
    assert!(missing.remedy.unwrap().contains("monday, kept"));
    let chain = |at| manifest.chain(manifest.find(Some(at)).unwrap());
    let numbers = |at| {
        chain(at)
            .iter()
            .map(|entry| entry.number)
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers("monday"), [3, 2, 1]);
    assert_eq!(numbers("full"), [4]);
    let spent: Vec<u32> = manifest.spent().iter().map(|entry| entry.number).collect();
    assert_eq!(spent, [1, 3]);
    let mut bad = manifest.clone();
    bad.backups[1].base = Some(2);
    assert!(Manifest::decode(bad.encode().unwrap().as_bytes()).is_err());
}
