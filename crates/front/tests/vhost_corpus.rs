//! The ring fuzzer's corpus and random rings, replayed on every run of the tests.

use proptest::prelude::*;
use std::path::PathBuf;

#[path = "../../../fuzz/bodies/vhost_queue.rs"]
mod queue;

#[test]
fn rings_full_of_nonsense_are_survived() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/vhost_queue");
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder is read").path())
        .collect();
    files.sort();
    assert!(
        files.len() >= 20,
        "the corpus of vhost_queue has gone missing"
    );
    for file in files {
        println!("{}", file.display());
        queue::run(&std::fs::read(&file).expect("a seed is read"));
    }
}

/// Bytes that are more often than not small numbers, flags and addresses.
fn plausible() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(0), 2 => 0..8_u8, 1 => any::<u8>(), 1 => prop_oneof![Just(16_u8), Just(0x20), Just(0xff)]]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_rings_are_survived(
        head in proptest::array::uniform4(any::<u8>()),
        bytes in proptest::collection::vec(plausible(), 0..600),
    ) {
        queue::run(&[&head[..], &bytes].concat());
    }
}
