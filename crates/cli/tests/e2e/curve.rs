//! The miss-ratio curve of a disk that is read in a known pattern, through REST, the command line and metrics.

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::nbdsh_on;

const MIB: f64 = 1_048_576.0;

/// Reads one block of each of 1,024 pages, which are 64 MiB, in order, again and again.
fn read_rounds(uri: &str, rounds: u32) {
    let script = format!(
        "
import nbd
for page in range({rounds} * 1024):
    while h.aio_in_flight() >= 16:
        h.poll(-1)
    h.aio_pread(nbd.Buffer(4096), page % 1024 * 65536, completion=lambda error: 1)
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
    read_rounds(&uri, 2);
    let early = daemon.run(&["disk", "curve", "web1", "-o", "json"]);
    assert!(early.contains("few-accesses"), "{early}");
    read_rounds(&uri, 20);

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
