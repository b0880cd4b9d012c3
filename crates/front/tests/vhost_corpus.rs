//! Replays the ring fuzzer's corpus, and runs random rings.

use proptest::prelude::*;
use std::path::PathBuf;

#[path = "../../../fuzz/bodies/vhost_queue.rs"]
mod queue;

#[test]
fn malformed_rings_are_handled() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/vhost_queue");
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder is read").path())
        .collect();
    files.sort();
    assert!(files.len() >= 20, "the corpus of vhost_queue is missing");
    for file in files {
        println!("{}", file.display());
        queue::run(&std::fs::read(&file).expect("a seed is read"));
    }
}

/// Bytes that are often small numbers, flags or addresses.
fn plausible() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(0), 2 => 0..8_u8, 1 => any::<u8>(), 1 => prop_oneof![Just(16_u8), Just(0x20), Just(0xff)]]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_rings_are_handled(
        head in proptest::array::uniform4(any::<u8>()),
        bytes in proptest::collection::vec(plausible(), 0..600),
    ) {
        queue::run(&[&head[..], &bytes].concat());
    }
}
