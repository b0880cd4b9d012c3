//! Disks whose images are on several datastores under control.

use super::{BACKLOG, Workload, attach, limited, settings, shares, slow, used};
use crate::rig::{PATIENCE, client, engine, eventually, spec};
use tidegate_core::governor::Threshold;
use tidegate_core::iocontrol::{DiskKey, Hold, Policy};
use tidegate_core::layout::{LayoutSpec, MemberState, Target};
use tidegate_core::units::Span;
use tidegate_engine::control::{Control, Settings, UnderControl};
use tidegate_engine::datastore::{OpenedImage, memory};
use tidegate_engine::{Disk, DiskSpec, Engine};

const STRIPE: LayoutSpec = LayoutSpec::Stripe { chunk: 16 << 10 };
const SIZE: u64 = 96 << 20;
const KEY: u64 = 1;

fn controls(engine: &Engine, threshold: Threshold) -> [Control; 2] {
    ["a", "b"].map(|name| {
        let settings = Settings {
            name: name.into(),
            ..settings(1, threshold)
        };
        engine.control(settings).expect("the control starts")
    })
}

fn under(control: &Control, policy: &Policy) -> UnderControl {
    UnderControl {
        control: control.clone(),
        key: DiskKey(KEY),
        policy: policy.clone(),
    }
}

/// A disk striped over these images.
fn striped(engine: &Engine, images: Vec<OpenedImage>) -> Disk {
    let spec = DiskSpec {
        layout: STRIPE,
        ..spec("disk", SIZE)
    };
    let images = images.into_iter().map(Some).collect();
    let attached = engine.attach_members(spec, images, PATIENCE);
    attached.expect("the disk attaches")
}

fn small() -> OpenedImage {
    let size = STRIPE.member_size(SIZE, 2);
    memory::open(size).expect("memory")
}

#[test]
fn each_datastore_counts_its_part_and_the_limit_counts_once() {
    let engine = engine(1);
    let [a, b] = controls(&engine, Threshold::Off);
    // Enough for forty requests; the next one would wait for a second.
    let policy = limited(1, 40);
    let images = [&a, &b].map(|control| small().under_control(under(control, &policy)));
    let disk = striped(&engine, images.into());
    let mut guest = client(&disk);
    for nth in 0..40 {
        // Two chunks, one on each datastore.
        assert!(guest.write(nth << 15, &[7; 32 << 10]).is_ok());
    }
    let reports = || [&a, &b].map(|control| control.report().expect("a report").disks);
    eventually("both have counted", || {
        reports().iter().all(|disks| {
            let disk = disks.iter().find(|disk| disk.key == DiskKey(KEY));
            disk.is_some_and(|disk| (disk.ios, disk.bytes) == (40, 40 << 14))
        })
    });
    for disks in reports() {
        assert_eq!(disks[0].held_ns[Hold::Limit.index()], 0, "{disks:?}");
    }
    disk.set_policy(&Policy::default())
        .expect("it is under control");
    drop(guest);
    disk.detach(PATIENCE).expect("it detaches");
}

#[test]
fn a_striped_disk_gets_its_shares_on_each_datastore() {
    let engine = engine(1);
    let controls = controls(&engine, Threshold::Fixed(Span::from_millis(40)));
    let heavy = shares(2_000);
    let images = controls
        .each_ref()
        .map(|control| slow().under_control(under(control, &heavy)));
    let heavy = striped(&engine, images.into());
    let light = controls
        .each_ref()
        .map(|control| attach(&engine, control, 2, shares(1_000), slow()));
    let workloads = [&heavy, &light[0], &light[1]].map(|disk| {
        let depth = if disk.members() == 2 { 2 } else { 1 };
        Workload::on(disk, depth * BACKLOG)
    });
    let costs = || {
        controls.each_ref().map(|control| {
            let report = control.report().expect("a report");
            [used(&report, KEY).1, used(&report, 2).1]
        })
    };
    let engaged = |control: &Control| control.report().expect("a report").governor.engaged;
    eventually("control engages", || controls.iter().all(engaged));
    let after = |begin: [[u64; 2]; 2], ios: u64| {
        eventually("enough I/O was done", || {
            let now = costs();
            (0..2).all(|on| now[on][1] > begin[on][1] + 256 * ios)
        });
        costs()
    };
    let settled = after(costs(), 100);
    let end = after(settled, 300);
    for on in 0..2 {
        let [heavy, light] = [0, 1].map(|disk| (end[on][disk] - settled[on][disk]) as f64);
        let ratio = heavy / light;
        assert!((1.7..=2.3).contains(&ratio), "2 to 1 came out as {ratio}");
    }
    drop(workloads);
}

#[test]
fn a_moved_disk_is_under_its_new_datastore_alone() {
    let engine = engine(1);
    let [a, b] = controls(&engine, Threshold::Off);
    let policy = shares(700);
    let disk = attach(
        &engine,
        &a,
        KEY,
        policy.clone(),
        memory::open(SIZE).expect("memory"),
    );
    let new = memory::open(SIZE).expect("memory");
    disk.begin_transfer(new.under_control(under(&b, &policy)), PATIENCE)
        .expect("the move begins");
    eventually("all bytes are there", || {
        let report = disk.layout().expect("it is attached");
        report.is_some_and(|report| {
            let mut members = report.members.iter();
            members.all(|member| member.state == MemberState::InSync)
        })
    });
    assert!(disk.pause_transfer(PATIENCE).expect("it pauses"));
    let old = disk.end_transfer(Target(1), PATIENCE);
    old.expect("the move ends")
        .wait(PATIENCE)
        .expect("the old image is closed");
    let shares = |control: &Control| {
        control.recount();
        let report = control.report().expect("a report");
        let mut shares = report.disks.iter();
        shares.any(|disk| disk.key == DiskKey(KEY))
    };
    eventually("the new datastore has it", || shares(&b));
    assert!(client(&disk).write(0, &[1; 4096]).is_ok());
    // Nothing of the disk is left there.
    drop(a);
    let [c, _] = controls(&engine, Threshold::Off);
    let other = attach(
        &engine,
        &c,
        3,
        Policy::default(),
        memory::open(SIZE).expect("memory"),
    );
    assert!(client(&other).write(0, &[1; 4096]).is_ok());
    for disk in [disk, other] {
        disk.detach(PATIENCE).expect("it detaches");
    }
}
