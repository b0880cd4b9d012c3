//! Memory and descriptors stay constant while disks are attached and detached. This is a process of its own, because
//! nothing else may allocate here.

#[path = "engine/client.rs"]
#[expect(dead_code, reason = "shared with the engine's other tests")]
mod client;
#[path = "engine/rig.rs"]
#[expect(dead_code, reason = "shared with the engine's other tests")]
mod rig;

use rig::{PATIENCE, attach, engine, filters, image, open_file, tempdir};
use std::path::Path;
use tidegate_core::request::Flags;
use tidegate_engine::Engine;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("proc");
    let pages: usize = text
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    pages * 4096
}

fn cycle(engine: &Engine, path: &Path) {
    let disk = attach(engine, open_file(path));
    disk.restack(&filters(&["stats", "null"]), PATIENCE)
        .expect("filters change");
    let mut client = rig::client(&disk);
    client
        .write_with(Flags::FUA, 512, &[1; 70_000])
        .expect("a write");
    client.read(0, 262_144).expect("a read");
    drop(client);
    disk.detach(PATIENCE).expect("the disk is detached");
}

#[test]
fn memory_and_descriptors_are_flat_after_a_thousand_attaches() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let engine = engine(2);
    for _ in 0..200 {
        cycle(&engine, &path);
    }
    rig::eventually("the last connections are dropped", || {
        engine
            .threads()
            .expect("reports")
            .iter()
            .all(|t| t.connections == 0)
    });
    let before = (descriptors(), resident());
    for _ in 0..1000 {
        cycle(&engine, &path);
    }
    rig::eventually("the last connections are dropped", || {
        engine
            .threads()
            .expect("reports")
            .iter()
            .all(|t| t.connections == 0)
    });
    let after = (descriptors(), resident());
    assert_eq!(after.0, before.0, "descriptors");
    // A kilobyte lost in each cycle would add up to one mebibyte.
    assert!(after.1 < before.1 + (1 << 20), "{before:?} -> {after:?}");
}
