//! Miss-ratio curves of disks that are read in a known pattern, and a cache that is divided by them.
//!
//! They are read through REST, the command line and metrics.

use std::fs;
use std::time::Instant;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, nbdsh_on};

const MIB: f64 = 1_048_576.0;

/// Reads one block of each of so many pages, in order, again and again.
fn read_pages(uri: &str, pages: u32, rounds: u32) {
    let script = format!(
        "
import nbd
for page in range({rounds} * {pages}):
    while h.aio_in_flight() >= 16:
        h.poll(-1)
    h.aio_pread(nbd.Buffer(4096), page % {pages} * 65536, completion=lambda error: 1)
while h.aio_in_flight() > 0:
    h.poll(-1)
"
    );
    nbdsh_on(uri, &script);
}

/// A number of a JSON object.
fn number(json: &str, field: &str) -> f64 {
    let (_, value) = json
        .split_once(&format!("\"{field}\":"))
        .unwrap_or_else(|| panic!("no {field} in:\n{json}"));
    let digits: String = value
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_digit() || ".e-".contains(*c))
        .collect();
    digits.parse().expect("a number")
}

/// Sizes of caches in MiB, and what they miss.
fn points(json: &str) -> Vec<(f64, f64)> {
    let (_, points) = json.split_once("\"points\":").expect("points");
    let (points, _) = points.split_once(']').expect("their end");
    let points = points.split('{').skip(1);
    let points = points.map(|p| (number(p, "cache_bytes") / MIB, number(p, "miss_ratio")));
    points.collect()
}

#[test]
fn the_knee_of_a_curve_lies_at_the_size_of_the_working_set() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    let mut rest = daemon.rest();
    let body = r#"{"name": "web1", "size_bytes": 268435456}"#;
    rest.ask("POST", "/v1/disks", body);
    rest.ask("POST", "/v1/disks/web1/attach", "{}");
    let uri = daemon.nbd_uri("web1");
    let early = daemon.run(&["disk", "curve", "web1"]);
    assert!(early.contains("nothing was read or written"), "{early}");
    // 64 MiB.
    read_pages(&uri, 1024, 2);
    let early = daemon.run(&["disk", "curve", "web1", "-o", "json"]);
    assert!(early.contains("few-accesses"), "{early}");
    read_pages(&uri, 1024, 20);

    let json = daemon.run(&["disk", "curve", "web1", "-o", "json"]);
    assert!(json.contains("\"enough\""), "{json}");
    assert_eq!(number(&json, "accesses_total"), 22.0 * 1024.0, "{json}");
    let touched = number(&json, "touched_bytes") / MIB;
    assert!((48.0..80.0).contains(&touched), "{json}");
    let points = points(&json);
    let below = points.iter().filter(|(size, _)| *size < 56.0);
    assert!(below.clone().count() > 4, "{json}");
    assert!(below.clone().all(|(_, miss)| *miss > 0.9), "{json}");
    let (size, miss) = points.iter().find(|(_, miss)| *miss < 0.1).expect("a knee");
    assert!((58.0..72.0).contains(size) && *miss < 0.1, "{json}");

    let text = daemon.run(&["disk", "curve", "web1"]);
    assert!(text.contains("enough accesses"), "{text}");
    assert!(text.contains("MISSES  CACHE"), "{text}");
    let metrics = rest.ask("GET", "/metrics", "");
    for name in ["touched_bytes", "cache_miss_ratio"] {
        let line = format!("tidegate_disk_{name}{{disk=\"web1\"");
        let is_there = metrics.lines().any(|text| text.starts_with(&line));
        // One in a hundred of 64 MiB and even 16 of them are less than the smallest size.
        assert_eq!(is_there, name == "touched_bytes", "{name}\n{metrics}");
    }
    assert!(daemon.stop("TERM").success());
}

#[test]
fn a_cache_goes_to_the_disk_that_hits_more_with_it() {
    let place = Place::new();
    let root = place.join("root");
    fs::create_dir_all(&root).expect("a root can be made");
    let config = "[caches]\ndivide = \"20ms\"\n";
    fs::write(root.join("tidegate.toml"), config).expect("a configuration can be written");
    let daemon = Daemon::start(&place);
    let device = place.join("flash").display().to_string();
    daemon.run(&[
        "cache", "create", "fast", "--device", &device, "--size", "64M",
    ]);
    for disk in ["loop", "scan"] {
        daemon.run(&["disk", "create", disk, "--size", "1G", "--attach"]);
        daemon.run(&["disk", "set", disk, "--cache", "fast"]);
    }
    let parts = || {
        let cache = daemon.json(&["cache", "show", "fast"]);
        let part = |nth: usize| cache["disks"][nth]["size_bytes"].as_u64().expect("a size") >> 20;
        (part(0), part(1), cache)
    };
    let (of_loop, of_scan, cache) = parts();
    assert!(of_loop < 40 && of_scan > 20, "equal shares: {cache}");
    read_pages(&daemon.nbd_uri("scan"), 16_384, 1);
    // 40 MiB.
    read_pages(&daemon.nbd_uri("loop"), 640, 30);
    let end = Instant::now() + PATIENCE;
    loop {
        let (of_loop, of_scan, cache) = parts();
        if (of_loop, of_scan) == (61, 2) {
            let target = &cache["disks"][0]["target"];
            let miss = target["target_miss_ratio"].as_f64().expect("a curve");
            assert!(miss < 0.1 && target["reason"] == "rest", "{cache}");
            assert_eq!(cache["disks"][1]["target"]["reason"], "minimum", "{cache}");
            break;
        }
        assert!(Instant::now() < end, "{cache}");
    }
    let shown = daemon.run(&["cache", "show", "fast"]);
    assert!(shown.contains("target 61MiB"), "{shown}");
    let events = daemon.run(&["events"]);
    let event = "the part of cache fast of disk loop is to grow";
    assert!(events.contains(event), "{events}");
    assert!(daemon.stop("TERM").success());
}
