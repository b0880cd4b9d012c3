//! Tests of hosts that share a directory and divide a window.

use super::{BACKLOG, SIZE, Workload, attach, limited, settings, shares, slow, used};
use crate::rig::{PATIENCE, engine, eventually, tempdir};
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_core::governor::slot::{Record, SLOT};
use tidegate_core::governor::{GovernorEvent, Threshold};
use tidegate_core::units::Span;
use tidegate_engine::control::{Event, Settings};
use tidegate_engine::datastore::memory;

fn in_directory(host: u8, threshold: Threshold, directory: &Path) -> Settings {
    Settings {
        directory: Some(directory.into()),
        ..settings(host, threshold)
    }
}

#[test]
fn two_hosts_in_a_directory_divide_the_window_by_shares() {
    let dir = tempdir();
    let threshold = Threshold::Fixed(Span::from_millis(40));
    let hosts: Vec<_> = [(1_u8, 2_000), (2, 1_000)]
        .map(|(host, weight)| {
            let engine = engine(1);
            let control = engine
                .control(in_directory(host, threshold, dir.path()))
                .unwrap();
            let disk = attach(&engine, &control, host.into(), shares(weight), slow());
            let workload = Workload::on(&disk, BACKLOG);
            (workload, disk, control, engine)
        })
        .into();
    let reports = || {
        hosts
            .iter()
            .map(|(_, _, control, _)| control.report().unwrap())
    };
    eventually("each host knows the other", || {
        reports().all(|report| report.governor.hosts.len() == 2)
    });
    let slots: Vec<_> = reports().map(|report| report.slot).collect();
    assert!(slots.contains(&Some(1)) && slots.contains(&Some(2)));
    eventually("both engage", || {
        reports().all(|report| report.governor.engaged)
    });
    // A host's view of the whole window is sampled whenever its own window changes; the first samples are from before
    // they agreed.
    for ((_, _, control, _), part) in hosts.iter().zip([2.0 / 3.0, 1.0 / 3.0]) {
        let (mut sums, mut samples, mut last) = ([0.0; 2], 0, 0);
        eventually("windows are divided often enough", || {
            let report = control.report().unwrap().governor;
            if report.window != last {
                last = report.window;
                samples += 1;
                if samples > 5 {
                    sums[0] += report.window as f64;
                    sums[1] += report.cluster as f64;
                }
            }
            samples == 20
        });
        let got = sums[0] / sums[1];
        assert!(
            (got / part - 1.0).abs() < 0.1,
            "{got} of the window, not {part}"
        );
    }
    // One host leaves: the other does not wait for its lease to expire.
    let slot = hosts[1].2.report().unwrap().slot.unwrap();
    hosts[1].2.leave(PATIENCE).unwrap();
    eventually("the host is reported as gone", || {
        let lost = |event: &Event| {
            let GovernorEvent::HostLost { left, .. } = (match event {
                Event::Governor(event) => *event,
                _ => return false,
            }) else {
                return false;
            };
            left
        };
        let events = hosts[0].2.events().told;
        events.iter().any(|(_, event)| lost(event))
    });
    assert!(!dir.path().join(format!(".tidegate/owners/{slot}")).exists());
}

#[test]
fn garbage_in_the_slot_file_is_tolerated_and_counted() {
    let dir = tempdir();
    let folder = dir.path().join(".tidegate");
    std::fs::create_dir_all(&folder).unwrap();
    let mut bytes = b"nothing of ours ".repeat(20 * SLOT / 16);
    // One valid record of another host, and one that is torn.
    let record = |host| Record {
        host: [host; 16],
        incarnation: 5,
        sequence: 9,
        tick_ms: 4_000,
        ..Record::default()
    };
    bytes[3 * SLOT..4 * SLOT].copy_from_slice(&record(8).encode());
    bytes[4 * SLOT..5 * SLOT].copy_from_slice(&record(9).encode());
    bytes[4 * SLOT + 60] ^= 1;
    std::fs::write(folder.join("hosts.v1"), &bytes).unwrap();
    let engine = engine(1);
    let control = engine
        .control(in_directory(1, Threshold::Auto, dir.path()))
        .unwrap();
    let disk = attach(
        &engine,
        &control,
        1,
        shares(100),
        memory::open(SIZE).unwrap(),
    );
    let workload = Workload::on(&disk, 4);
    eventually("the host has a slot, and knows the one real host", || {
        let report = control.report().unwrap();
        let hosts = &report.governor.hosts;
        report.slot == Some(1)
            && report.governor.unreadable > 0
            && hosts.len() == 2
            && hosts[1].host == [8; 16]
    });
    eventually("its own slot can be read", || {
        let bytes = std::fs::read(folder.join("hosts.v1")).unwrap();
        Record::decode(&bytes[SLOT..2 * SLOT]).is_ok_and(|record| record.host == [1; 16])
    });
    drop(workload);
}

/// A file system of its own, mounted read-only at first.
struct Mount(PathBuf);

impl Mount {
    fn read_only(at: PathBuf) -> Mount {
        std::fs::create_dir_all(&at).unwrap();
        mount(&["-t", "tmpfs", "-o", "ro,size=4m", "tidegate-test"], &at);
        Mount(at)
    }

    fn make_writable(&self) {
        mount(&["-o", "remount,rw"], &self.0);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(options: &[&str], at: &Path) {
    let done = Command::new("mount").args(options).arg(at).status();
    assert!(done.unwrap().success(), "this test mounts a tmpfs, as root");
}

#[test]
fn a_read_only_slot_directory_is_tolerated_and_reported_once() {
    let dir = tempdir();
    let mount = Mount::read_only(dir.path().join(".tidegate"));
    let engine = engine(1);
    let control = engine
        .control(in_directory(1, Threshold::Auto, dir.path()))
        .unwrap();
    let disk = attach(
        &engine,
        &control,
        1,
        limited(1_000_000, 1_000),
        memory::open(SIZE).unwrap(),
    );
    let workload = Workload::on(&disk, 4);
    eventually("the fault is reported", || {
        control.report().unwrap().trouble.is_some()
    });
    let before = used(&control.report().unwrap(), 1).0;
    eventually("I/O continues", || {
        used(&control.report().unwrap(), 1).0 > before + 1_000
    });
    mount.make_writable();
    eventually("the host claims its slot once it can", || {
        let report = control.report().unwrap();
        report.trouble.is_none() && report.slot == Some(1)
    });
    let events = control.events().told;
    let faults = events
        .iter()
        .filter(|(_, event)| matches!(event, Event::Trouble(_)));
    assert_eq!(faults.count(), 1);
    drop(workload);
}

#[test]
fn a_copied_root_makes_a_second_host_and_is_reported_once() {
    let dir = tempdir();
    let threshold = Threshold::Fixed(Span::from_millis(40));
    let hosts: Vec<_> = [(1_u64, 2_000), (2, 1_000)]
        .map(|(start, weight)| {
            let engine = engine(1);
            let mut settings = in_directory(1, threshold, dir.path());
            settings.governor.incarnation = start;
            let control = engine.control(settings).unwrap();
            let disk = attach(&engine, &control, start, shares(weight), slow());
            let workload = Workload::on(&disk, BACKLOG);
            (workload, disk, control, engine)
        })
        .into();
    let reports = || {
        hosts
            .iter()
            .map(|(_, _, control, _)| control.report().unwrap())
    };
    eventually("each host knows the other", || {
        reports().all(|report| report.governor.hosts.len() == 2)
    });
    let names: Vec<_> = reports().map(|r| r.governor.hosts[0].host).collect();
    assert_eq!(names[0], [1; 16], "the older host keeps its identity");
    assert_ne!(names[0], names[1]);
    let slots: Vec<_> = reports().map(|report| report.slot).collect();
    assert!(
        slots[0].is_some() && slots[1].is_some() && slots[0] != slots[1],
        "{slots:?}"
    );
    let events: Vec<usize> = hosts
        .iter()
        .map(|(_, _, control, _)| {
            let events = control.events().told.into_iter();
            let displaced = Event::Governor(GovernorEvent::Displaced);
            events.filter(|(_, event)| *event == displaced).count()
        })
        .collect();
    assert_eq!(events, [0, 1]);
}
