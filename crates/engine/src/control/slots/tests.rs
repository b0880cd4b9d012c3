//! Tests of the slot file with two hosts: claims, take-over, foreign bytes, a directory without write permission.

use super::*;
use std::os::unix::fs::symlink;

fn file(dir: &Path, host: u8) -> SlotFile {
    SlotFile::new(dir, [host; 16]).expect("memory")
}

fn record(host: u8, sequence: u64) -> [u8; SLOT] {
    let record = Record {
        host: [host; 16],
        incarnation: 1,
        sequence,
        tick_ms: 100,
        ..Record::default()
    };
    record.encode()
}

fn at_ms(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn sequence_in(read: &[Slot], slot: u16) -> Option<u64> {
    let (_, bytes) = read.iter().find(|(number, _)| *number == slot)?;
    Record::decode(bytes).ok().map(|record| record.sequence)
}

fn tempdir() -> tempfile::TempDir {
    tempfile::TempDir::with_prefix("tidegate-slots-").expect("a directory")
}

#[test]
fn hosts_claim_different_slots_and_read_each_other() {
    let dir = tempdir();
    let (mut a, mut b) = (file(dir.path(), 1), file(dir.path(), 2));
    assert_eq!(a.claim(Time::ZERO, None).expect("a slot"), 1);
    assert_eq!(b.claim(Time::ZERO, None).expect("a slot"), 2);
    a.write(&record(1, 7)).expect("written");
    b.write(&record(2, 9)).expect("written");
    let read = a.read(at_ms(1)).expect("read");
    assert_eq!(
        (sequence_in(&read, 1), sequence_in(&read, 2)),
        (Some(7), Some(9))
    );
    // A restarted host finds its slot again; a host that left has none.
    let mut restarted = file(dir.path(), 2);
    assert_eq!(restarted.claim(Time::ZERO, None).expect("a slot"), 2);
    restarted.leave();
    assert!(!dir.path().join(".tidegate/owners/2").exists());
    let len = fs::metadata(dir.path().join(".tidegate/hosts.v1")).expect("it exists");
    assert_eq!(len.len(), 256 * 4096);
}

#[test]
fn a_new_host_is_seen_although_few_slots_are_read() {
    let dir = tempdir();
    let mut a = file(dir.path(), 1);
    a.claim(Time::ZERO, None).expect("a slot");
    a.write(&record(1, 1)).expect("written");
    a.read(at_ms(1)).expect("read");
    assert!(a.read(at_ms(2)).expect("read").len() < 16);
    for host in 2..20 {
        let mut other = file(dir.path(), host);
        let slot = other.claim(Time::ZERO, None).expect("a slot");
        other.write(&record(host, 5)).expect("written");
        assert_eq!(sequence_in(&a.read(at_ms(3)).expect("read"), slot), Some(5));
    }
}

#[test]
fn a_host_in_any_slot_is_seen_within_eight_seconds_at_every_pace() {
    // Slot 31 alone, and slot 200 with so many hosts that only heads are read.
    for (hosts, alone) in [(1, 31), (40, 200)] {
        for pace in [100, 4_000, 8_000] {
            let dir = tempdir();
            let mut files: Vec<SlotFile> = (1..=hosts).map(|host| file(dir.path(), host)).collect();
            for (host, file) in (1..).zip(&mut files) {
                file.claim(Time::ZERO, None).expect("a slot");
                file.write(&record(host, 1)).expect("written");
            }
            let reader = &mut files[0];
            reader.read(at_ms(1)).expect("read");
            let store = File::options()
                .write(true)
                .open(dir.path().join(".tidegate/hosts.v1"));
            let store = store.expect("it exists");
            store
                .write_all_at(&record(99, 7), at(alone))
                .expect("written");
            let seen = (1..=8_000 / pace).find(|round| {
                let read = reader.read(at_ms(1 + round * pace)).expect("read");
                sequence_in(&read, alone) == Some(7)
            });
            assert!(seen.is_some(), "slot {alone}, a read each {pace} ms");
        }
    }
}

#[test]
fn of_many_hosts_only_changed_slots_are_read_whole() {
    let dir = tempdir();
    let mut files: Vec<SlotFile> = (1..=40).map(|host| file(dir.path(), host)).collect();
    for (host, file) in (1..).zip(&mut files) {
        file.claim(Time::ZERO, None).expect("a slot");
        file.write(&record(host, 1)).expect("written");
    }
    let mut reader = files.remove(0);
    assert!(reader.read(at_ms(1)).expect("read").len() > 40);
    // The file system may not support reading heads alone; then everything is read, which is also correct.
    files[10].write(&record(12, 2)).expect("written");
    let read = reader.read(at_ms(2)).expect("read");
    assert_eq!(sequence_in(&read, 12), Some(2));
    if reader.file.as_ref().is_some_and(|open| open.heads) {
        let slots: Vec<u16> = read.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(slots, [0, 12]);
    }
}

#[test]
fn a_slot_is_taken_over_only_when_all_are_owned_and_one_was_silent_for_a_lease() {
    let dir = tempdir();
    let mut first = file(dir.path(), 1);
    first.claim(Time::ZERO, None).expect("a slot");
    for slot in 2..SLOTS {
        let path = dir.path().join(format!(".tidegate/owners/{slot}"));
        fs::write(path, "somebody\n").expect("written");
    }
    let mut late = file(dir.path(), 9);
    late.read(at_ms(0)).expect("read");
    first.write(&record(1, 1)).expect("written");
    late.read(at_ms(100)).expect("read");
    assert!(late.claim(at_ms(1_000), None).is_err());
    // Slot 1 is silent for longer than its lease of 2 s; the others were never written, and may just have been claimed.
    late.read(at_ms(2_500)).expect("read");
    assert_eq!(late.claim(at_ms(2_500), None).expect("a slot"), 1);
    let owner = fs::read_to_string(dir.path().join(".tidegate/owners/1")).expect("an owner");
    assert_eq!(owner, owner_text([9; 16]));
}

#[test]
fn a_displaced_host_takes_another_slot() {
    let dir = tempdir();
    let mut a = file(dir.path(), 1);
    assert_eq!(a.claim(Time::ZERO, None).expect("a slot"), 1);
    assert_eq!(a.claim(Time::ZERO, Some(1)).expect("a slot"), 2);
    a.write(&record(1, 3)).expect("written");
    assert_eq!(sequence_in(&a.read(at_ms(1)).expect("read"), 2), Some(3));
}

#[test]
fn a_host_with_a_new_identity_leaves_its_slot_to_the_old_identity() {
    let dir = tempdir();
    let (mut one, mut copy) = (file(dir.path(), 1), file(dir.path(), 1));
    assert_eq!(one.claim(Time::ZERO, None).expect("a slot"), 1);
    assert_eq!(copy.claim(Time::ZERO, None).expect("a slot"), 1);
    assert!(!copy.rename([1; 16]) && copy.own() == Some(1));
    assert!(copy.rename([3; 16]) && copy.own().is_none());
    assert_eq!(copy.claim(Time::ZERO, Some(1)).expect("a slot"), 2);
    for (slot, host) in [(1, 1), (2, 3)] {
        let owner = dir.path().join(format!(".tidegate/owners/{slot}"));
        assert_eq!(
            fs::read_to_string(owner).expect("an owner"),
            owner_text([host; 16])
        );
    }
    one.write(&record(1, 5)).expect("written");
    copy.write(&record(3, 6)).expect("written");
    let read = one.read(at_ms(1)).expect("read");
    assert_eq!(
        (sequence_in(&read, 1), sequence_in(&read, 2)),
        (Some(5), Some(6))
    );
}

#[test]
fn short_and_foreign_files_are_errors_or_empty_slots() {
    let dir = tempdir();
    let folder = dir.path().join(".tidegate");
    fs::create_dir_all(&folder).expect("made");
    fs::write(folder.join("hosts.v1"), [0x5a; 5_000]).expect("written");
    let mut a = file(dir.path(), 1);
    let read = a.read(at_ms(1)).expect("read");
    assert!(
        read.iter()
            .all(|(slot, _)| sequence_in(&read, *slot).is_none())
    );
    fs::remove_file(folder.join("hosts.v1")).expect("removed");
    fs::create_dir(folder.join("hosts.v1")).expect("made");
    let mut b = file(dir.path(), 2);
    assert!(b.read(at_ms(1)).is_err() && b.claim(at_ms(1), None).is_err());
    // The file exists again, and so does our claim.
    fs::remove_dir(folder.join("hosts.v1")).expect("removed");
    assert!(b.claim(at_ms(2), None).is_ok() && b.write(&record(2, 1)).is_ok());
}

#[test]
fn a_fifo_a_huge_file_or_a_link_as_owner_file_neither_blocks_nor_costs_memory() {
    let dir = tempdir();
    let owners = dir.path().join(".tidegate/owners");
    fs::create_dir_all(&owners).expect("made");
    let made = std::process::Command::new("mkfifo")
        .arg(owners.join("1"))
        .status();
    assert!(made.expect("it runs").success());
    let huge = File::create(owners.join("2")).expect("made");
    huge.set_len(4 << 30).expect("a sparse file");
    let outside = dir.path().join("outside");
    fs::write(&outside, owner_text([1; 16])).expect("written");
    symlink(&outside, owners.join("3")).expect("a link");
    let mut a = file(dir.path(), 1);
    // None of them is ours, and each has an owner.
    assert_eq!(a.claim(Time::ZERO, None).expect("a slot"), 4);
    assert!(a.write(&record(1, 1)).is_ok());
}

#[test]
fn no_link_leads_a_host_to_write_outside_the_datastore() {
    for name in [
        ".tidegate",
        ".tidegate/owners",
        ".tidegate/hosts.v1",
        ".tidegate/common.lock",
    ] {
        let (dir, outside) = (tempdir(), tempdir());
        let link = dir.path().join(name);
        fs::create_dir_all(link.parent().expect("a parent")).expect("made");
        // To an existing directory, or to a missing file.
        let is_folder = name == ".tidegate" || name.ends_with("owners");
        let target = match is_folder {
            true => outside.path().into(),
            false => outside.path().join("file"),
        };
        symlink(target, &link).expect("a link");
        let mut a = file(dir.path(), 1);
        let changed = a.change_common(|_| Some(Common::default()));
        assert!(changed.is_err(), "{name}");
        let claimed = a.claim(Time::ZERO, None);
        assert_eq!(claimed.is_ok(), name.ends_with("common.lock"), "{name}");
        let made = fs::read_dir(outside.path()).expect("it exists").count();
        assert_eq!(made, 0, "{name}");
    }
}

#[test]
fn an_earlier_owners_record_does_not_count_as_a_host() {
    let dir = tempdir();
    let mut a = file(dir.path(), 1);
    a.claim(Time::ZERO, None).expect("a slot");
    a.write(&record(1, 7)).expect("written");
    a.leave();
    let mut b = file(dir.path(), 2);
    assert_eq!(b.claim(Time::ZERO, None).expect("a slot"), 1);
    assert_eq!(sequence_in(&b.read(at_ms(1)).expect("read"), 1), None);
    // Nor is what an earlier run of this host left.
    b.write(&record(2, 8)).expect("written");
    let mut restarted = file(dir.path(), 2);
    assert_eq!(restarted.claim(Time::ZERO, None).expect("a slot"), 1);
    assert_eq!(
        sequence_in(&restarted.read(at_ms(1)).expect("read"), 1),
        None
    );
}

#[test]
fn a_file_that_was_moved_away_is_not_written() {
    let dir = tempdir();
    let (mut a, mut b) = (file(dir.path(), 1), file(dir.path(), 2));
    a.claim(Time::ZERO, None).expect("a slot");
    b.claim(Time::ZERO, None).expect("a slot");
    let (folder, aside) = (dir.path().join(".tidegate"), dir.path().join("aside"));
    fs::rename(&folder, &aside).expect("moved");
    // The datastore is unchanged: both create the file again, and neither has a slot in it yet.
    assert!(b.write(&record(2, 1)).is_err() && b.own().is_none());
    assert_eq!(b.claim(at_ms(1), None).expect("a slot"), 1);
    b.write(&record(2, 2)).expect("written");
    let read = a.read(at_ms(2)).expect("read");
    assert_eq!(sequence_in(&read, 1), Some(2));
    assert_eq!(a.own(), None);
    let old = fs::read(aside.join("hosts.v1")).expect("it exists");
    assert!(old.iter().all(|byte| *byte == 0));
}

#[test]
fn nothing_is_created_in_place_of_an_unmounted_datastore() {
    let dir = tempdir();
    let (store, away) = (dir.path().join("store"), dir.path().join("away"));
    fs::create_dir(&store).expect("made");
    let mut a = file(&store, 1);
    a.claim(Time::ZERO, None).expect("a slot");
    a.write(&record(1, 1)).expect("written");
    fs::rename(&store, &away).expect("moved");
    assert!(a.read(at_ms(1)).is_err());
    // The empty directory below a mount, after an unmount.
    fs::create_dir(&store).expect("made");
    let error = a.read(at_ms(2)).expect_err("the datastore is gone");
    assert!(
        error.to_string().contains("is the datastore mounted"),
        "{error}"
    );
    assert!(a.write(&record(1, 2)).is_err() && a.claim(at_ms(2), None).is_err());
    assert_eq!(fs::read_dir(&store).expect("a directory").count(), 0);
    fs::remove_dir(&store).expect("removed");
    fs::rename(&away, &store).expect("moved back");
    assert_eq!(sequence_in(&a.read(at_ms(3)).expect("read"), 1), Some(1));
    assert_eq!(a.own(), Some(1));
    a.write(&record(1, 2)).expect("written");
}

#[test]
fn the_slot_file_of_a_directory_with_another_mark_is_not_used() {
    let dir = tempdir();
    let (store, away) = (dir.path().join("store"), dir.path().join("away"));
    let mark = |text: &str| {
        let folder = store.join(FOLDER);
        fs::create_dir_all(&folder).expect("a directory");
        fs::write(folder.join(MARK), text).expect("a mark");
    };
    mark("one");
    let mut a = file(&store, 1);
    a.claim(Time::ZERO, None).expect("a slot");
    a.write(&record(1, 1)).expect("written");
    fs::rename(&store, &away).expect("moved away");
    // The directory below its mount point, with a slot file of its own.
    for below in [None, Some("two")] {
        fs::create_dir(&store).expect("a directory");
        file(&store, 2).claim(Time::ZERO, None).expect("a slot");
        if let Some(text) = below {
            mark(text);
        }
        let error = a.read(at_ms(1)).expect_err("it is another datastore");
        assert!(
            error.to_string().contains("is the datastore mounted"),
            "{error}"
        );
        assert!(a.write(&record(1, 2)).is_err() && a.claim(at_ms(2), None).is_err());
        fs::remove_dir_all(&store).expect("removed");
    }
    fs::rename(&away, &store).expect("moved back");
    assert_eq!(sequence_in(&a.read(at_ms(3)).expect("read"), 1), Some(1));
    a.write(&record(1, 2)).expect("written");
}

#[test]
fn foreign_bytes_are_distinguished_from_a_half_written_record() {
    let dir = tempdir();
    let mut a = file(dir.path(), 1);
    a.claim(Time::ZERO, None).expect("a slot");
    a.write(&record(1, 1)).expect("written");
    let path = dir.path().join(".tidegate/hosts.v1");
    let put = |slot: u16, bytes: &[u8]| {
        let file = File::options().write(true).open(&path).expect("open");
        file.write_all_at(bytes, at(slot)).expect("written");
    };
    let torn = |sequence| {
        let mut bytes = record(3, sequence);
        bytes[200] ^= 1;
        bytes
    };
    put(2, b"nothing of ours");
    for round in 0..4_u64 {
        put(3, &torn(round));
        a.read(at_ms(round * 1_500)).expect("read");
    }
    // Slot 3 is torn at each write: a host is writing it.
    assert_eq!(a.foreign(at_ms(4_500)), [2]);
    put(0, b"nothing of ours either");
    a.read(at_ms(6_000)).expect("read");
    put(2, &[0; 20]);
    a.read(at_ms(9_000)).expect("read");
    assert_eq!(a.foreign(at_ms(9_000)), [0, 3]);
    put(0, &Common::default().encode());
    put(3, &record(3, 9));
    a.read(at_ms(9_001)).expect("read");
    assert_eq!(a.foreign(at_ms(20_000)), [0_u16; 0]);
}

#[test]
fn no_concurrent_change_of_slot_0_is_lost() {
    const EACH: u64 = 200;
    let dir = tempdir();
    std::thread::scope(|scope| {
        for host in 1..=3 {
            let mut file = file(dir.path(), host);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let more = |store: Option<Common>| {
                        let store = store.unwrap_or_default();
                        let generation = store.generation + 1;
                        Some(Common {
                            generation,
                            ..store
                        })
                    };
                    file.change_common(more).expect("it is changed");
                }
            });
        }
    });
    let mut file = file(dir.path(), 4);
    file.change_common(|store| {
        assert_eq!(store.map(|store| store.generation), Some(3 * EACH));
        None
    })
    .expect("read");
}

#[test]
fn an_implausible_generation_is_overwritten_by_the_next_change() {
    let dir = tempdir();
    let mut a = file(dir.path(), 1);
    let with = |generation| Common {
        generation,
        ..Common::default()
    };
    a.change_common(|_| Some(with(u64::MAX))).expect("written");
    a.change_common(|store| {
        assert_eq!(store, None, "it is not plausible");
        Some(with(3))
    })
    .expect("written");
    let (_, store) = a.read_one(0).expect("read");
    assert_eq!(Common::decode(&store).map(|store| store.generation), Ok(3));
}
