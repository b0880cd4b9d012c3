//! Settings of a disk on its I/O thread, as an administrator sees them: class, weight, and coalescing of completions.
//!
//! What a setting does is judged by counts of a guest that sleeps until it is called, not by how fast it is.

use std::fs;

use serde_json::{Value, json};
use tidegate_testing::load::{Load, Source};
use tidegate_testing::tally::Until;
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use crate::support::daemon::Daemon;
use crate::support::place::Place;

const DEPTH: u16 = 32;
const REQUESTS: u64 = 3_200;

fn settings(daemon: &Daemon, disk: &str) -> Value {
    let shown = daemon.json(&["disk", "show", disk]);
    let of = |key: &str| shown[key].clone();
    json!([of("io_class"), of("io_weight"), of("coalesce"), of("vcpus")])
}

/// Reads with all requests in flight at once, and returns the calls for each completion.
fn calls_per_completion(driver: &mut GuestDriver) -> f64 {
    let vm = &driver.vms()[0];
    vm.take_calls().expect("the calls are counted");
    let mut sources = [Source::new(Load::random_reads(DEPTH, vm.config().size))];
    let tallies = driver
        .run(&mut sources, Until::Count(REQUESTS), &mut |_| {})
        .expect("the guest is served");
    assert_eq!((tallies[0].completed, tallies[0].errors), (REQUESTS, 0));
    let calls = driver.vms()[0].take_calls();
    calls.expect("the calls are counted") as f64 / REQUESTS as f64
}

#[test]
fn a_disks_class_weight_and_coalescing_are_shown_stored_and_taken_away() {
    let place = Place::new();
    let mut daemon = Daemon::start_with(&place, "root", &["--threads", "1"]);
    daemon.run(&["datastore", "add", "ram", "--kind", "memory"]);
    let create = ["disk", "create", "a", "-d", "local", "--size", "8M"];
    let said = ["--io-class", "latency", "--io-weight", "20", "--vcpus", "6"];
    let coalesce = ["--coalesce", "static:16,64us", "--attach"];
    daemon.run(&[&create[..], &said, &coalesce].concat());
    let set = json!(["latency", 20, "static:16,64us", 6]);
    assert_eq!(settings(&daemon, "a"), set);
    let table = daemon.run(&["disk", "show", "a"]);
    for word in ["latency", "static:16,64us"] {
        assert!(table.contains(word), "{table}");
    }
    daemon.crash_and_restart();
    assert_eq!(settings(&daemon, "a"), set);

    // In use, and without a new connection.
    let change = ["--io-class", "normal", "--io-weight", "default"];
    daemon.run(&[&["disk", "set", "a", "--coalesce", "off"][..], &change].concat());
    let off = json!(["normal", 10, "off", 6]);
    assert_eq!(settings(&daemon, "a"), off);
    let defaults = ["--coalesce", "default", "--vcpus", "default"];
    daemon.run(&[&["disk", "set", "a"][..], &defaults].concat());
    let default = json!(["normal", 10, "default", "default"]);
    assert_eq!(settings(&daemon, "a"), default);
    let found = place.join("root");
    let mut descriptors = Vec::new();
    files_named(&found, "disk.toml", &mut descriptors);
    let text = descriptors
        .iter()
        .map(|path| fs::read_to_string(path).expect("a descriptor"));
    let text: Vec<_> = text.filter(|text| text.contains("8MiB")).collect();
    assert_eq!(text.len(), 1);
    for key in ["io_class", "io_weight", "coalesce", "vcpus"] {
        assert!(
            !text[0].contains(key),
            "a default is not written: {}",
            text[0]
        );
    }

    for wrong in [
        ["--io-weight", "0"],
        ["--io-weight", "101"],
        ["--coalesce", "static:0,8us"],
        ["--coalesce", "static:16,10001us"],
        ["--io-class", "first"],
        ["--vcpus", "0"],
        ["--vcpus", "4097"],
        ["--coalesce", "none"],
    ] {
        let output = daemon.attempt(&[&["disk", "set", "a"][..], &wrong].concat());
        assert!(!output.status.success(), "{wrong:?}");
        assert_eq!(settings(&daemon, "a"), default);
    }
}

fn files_named(folder: &std::path::Path, name: &str, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files_named(&path, name, found);
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
}

#[test]
fn coalescing_changes_while_a_guest_is_connected_and_the_configuration_sets_the_default() {
    let place = Place::new();
    let root = place.join("root");
    fs::create_dir_all(&root).expect("a directory");
    let config = "[io]\nthreads = 1\npoll = \"0\"\ncoalesce = \"static:1024,10000us\"\n";
    fs::write(root.join("tidegate.toml"), config).expect("a file");
    let daemon = Daemon::start(&place);
    daemon.run(&[
        "datastore",
        "add",
        "array",
        "--kind",
        "emulated",
        "--model",
        "ssd",
    ]);
    let create = ["disk", "create", "b", "-d", "array", "--size", "8M"];
    daemon.run(&[&create[..], &["--attach"]].concat());
    let mut options = VmOptions::new(&daemon.vhost_user("b"), DEPTH);
    options.reconnect = None;
    let vm = Vm::connect(options).expect("a guest connects");
    let mut driver = GuestDriver::new(vec![vm], Wait::Sleep);

    // Every completion of the 32 is waited for: the last one of the queue ends the wait.
    let default = calls_per_completion(&mut driver);
    assert!(default <= 1.5 / f64::from(DEPTH), "{default}");
    daemon.run(&["disk", "set", "b", "--coalesce", "off"]);
    let off = calls_per_completion(&mut driver);
    assert!(off >= 2.0 * default, "{off} and {default}");
    daemon.run(&["disk", "set", "b", "--coalesce", "static:8,10000us"]);
    let eight = calls_per_completion(&mut driver);
    assert!(eight <= 1.5 / 8.0, "{eight}");
    daemon.run(&["disk", "set", "b", "--coalesce", "default"]);
    let again = calls_per_completion(&mut driver);
    assert!(again <= 1.5 / f64::from(DEPTH), "{again}");
}
