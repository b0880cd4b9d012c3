//! Overlapping requests of different sizes, in flight together, from a client that people use (`qemu-io`).

use crate::support::devices::{FuseFile, Loop};
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find};
use crate::support::server::{Server, Serving};
use std::fs;
use std::time::{Duration, Instant};

/// How often the slow device is tried: `TIDEGATE_OVERLAP_TIMES` says more.
fn times(few: u32) -> u32 {
    let times = std::env::var("TIDEGATE_OVERLAP_TIMES").ok();
    times.map_or(few, |times| times.parse().expect("a number of times"))
}

/// Runs qemu-io's commands on an export; fails the test when one of them fails or finds other bytes than it should.
fn qemu_io(uri: &str, commands: &[String]) {
    let mut program = Program::new("qemu-io").args(["-f", "raw"]);
    for command in commands {
        program = program.args(["-c", command]);
    }
    let said = program.arg(uri).run();
    for trouble in ["rror", "failed", "discrepancy"] {
        assert!(!said.contains(trouble), "{said}");
    }
}

/// A server whose writes take 15 ms each.
fn slow_upstream(place: &Place) -> (Service, String) {
    let socket = place.join("slow.sock");
    let args = [
        "--foreground",
        "--filter=delay",
        "--unix",
        &socket.display().to_string(),
        "memory",
        "32M",
        "wdelay=15ms",
    ]
    .map(str::to_owned);
    let mut service = Service::start("nbdkit", find("nbdkit").as_os_str(), &args, &[]);
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        assert!(service.alive(), "nbdkit ended before it served");
        assert!(Instant::now() < deadline, "nbdkit never served");
        service.said.pause(Duration::from_millis(20));
    }
    (service, format!("nbd+unix:///?socket={}", socket.display()))
}

#[test]
fn a_small_write_into_a_large_one_on_a_slow_device_undoes_none_of_its_bytes() {
    let place = Place::new();
    let (_upstream, uri) = slow_upstream(&place);
    let file = FuseFile::mount(&place, &uri);
    for sector in ["512", "4096"] {
        let device = Loop::with(&file.file(), &["--direct-io=on", "--sector-size", sector]);
        let server = Server::start(&place, Serving::image(device.device.as_ref()));
        for round in 0..times(12) {
            let value = 1 + round % 200;
            let commands = [
                format!("aio_write -P {value} 0 8192"),
                format!("aio_write -P {value} 3584 512"),
                "aio_flush".to_owned(),
                "flush".to_owned(),
                format!("read -P {value} 0 8192"),
            ];
            qemu_io(&server.uri(), &commands);
        }
    }
}

#[test]
fn a_flush_succeeds_after_large_writes_that_overlap_by_all_but_a_sector() {
    let place = Place::new();
    let image = place.image("image", 16 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    for round in 0..times(4) {
        for at in [1, 5, 9].map(|mib| mib * MIB) {
            let value = 1 + round % 200;
            let commands = [
                format!("aio_write -P {value} {at} 1M"),
                format!("aio_write -P {value} {} 1M", at + 512),
                "aio_flush".to_owned(),
                "flush".to_owned(),
                format!("read -P {value} {at} {}", MIB + 512),
            ];
            qemu_io(&server.uri(), &commands);
        }
    }
    drop(server);
    let bytes = fs::read(&image).expect("the image is there");
    let at = |mib: u64| usize::try_from(mib * MIB).expect("small");
    assert!(bytes[at(1)..=at(2)].iter().all(|byte| *byte != 0));
}
