//! Replays the corpus of the fuzzers of layouts' blocks, and adds mutations.

use proptest::prelude::*;
use std::path::PathBuf;
use tidegate_core::layout::cache::blocks::{Header, Journalled};
use tidegate_core::layout::cache::label::{DeviceLabel, SeenRecord};
use tidegate_core::layout::pool;
use tidegate_core::pool::superblock::Superblock;

#[path = "../../../fuzz/bodies/cache_blocks.rs"]
mod cache_blocks;
#[path = "../../../fuzz/bodies/member_label.rs"]
mod member_label;
#[path = "../../../fuzz/bodies/mirror_state.rs"]
mod mirror_state;
#[path = "../../../fuzz/bodies/pool_blocks.rs"]
mod pool_blocks;
#[path = "../../../fuzz/bodies/pool_superblock.rs"]
mod pool_superblock;
#[path = "../../../fuzz/bodies/sealed.rs"]
mod sealed;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder is read").path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of {target} is missing");
    let read = |file| std::fs::read(file).expect("a seed is read");
    files.into_iter().map(read).collect()
}

#[test]
fn damaged_and_foreign_labels_are_handled() {
    corpus("member_label")
        .iter()
        .for_each(|input| member_label::run(input));
}

#[test]
fn damaged_and_contradictory_blocks_of_a_cache_are_handled() {
    corpus("cache_blocks")
        .iter()
        .for_each(|input| cache_blocks::run(input));
}

#[test]
fn the_corpus_of_a_cache_has_each_kind_of_block() {
    let read = |is_one: fn(&[u8]) -> bool| {
        let corpus = corpus("cache_blocks");
        assert!(corpus.iter().any(|input| is_one(input)));
    };
    read(|input| DeviceLabel::decode(input).is_ok());
    read(|input| SeenRecord::decode(input).is_ok());
    read(|input| Header::decode(input).is_ok());
    read(|input| Journalled::decode(input).is_ok_and(|block| block.records.len() > 60));
}

#[test]
fn damaged_and_contradictory_states_are_handled() {
    corpus("mirror_state")
        .iter()
        .for_each(|input| mirror_state::run(input));
}

#[test]
fn damaged_and_contradictory_headers_and_roots_of_a_pool_are_handled() {
    let corpus = corpus("pool_blocks");
    corpus.iter().for_each(|input| pool_blocks::run(input));
    let is_read = |is_one: fn(&[u8]) -> bool| corpus.iter().any(|input| is_one(input));
    assert!(is_read(|input| {
        pool::Header::decode(input).is_ok_and(|header| header.marks.len() > 100)
    }));
    assert!(is_read(|input| {
        pool::Root::decode(input).is_ok_and(|root| root.generations.len() > 100)
    }));
}

#[test]
fn damaged_and_contradictory_superblocks_of_a_pool_are_handled() {
    let corpus = corpus("pool_superblock");
    corpus.iter().for_each(|input| pool_superblock::run(input));
    let read = corpus.iter().flat_map(|input| Superblock::decode(input));
    assert_eq!(read.map(|one| one.members.len()).max(), Some(3));
}

/// An input with one byte changed, within the fields.
fn changed(inputs: &[Vec<u8>], which: prop::sample::Index, at: usize, byte: u8) -> Vec<u8> {
    let mut input = which.get(inputs).clone();
    if let Some(place) = input.get_mut(at) {
        *place = byte;
    }
    input
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn changed_blocks_are_handled(which: prop::sample::Index, at in 0..200_usize, byte: u8) {
        member_label::run(&changed(&corpus("member_label"), which, at, byte));
        mirror_state::run(&changed(&corpus("mirror_state"), which, at, byte));
        cache_blocks::run(&changed(&corpus("cache_blocks"), which, at, byte));
        pool_blocks::run(&changed(&corpus("pool_blocks"), which, at, byte));
        pool_superblock::run(&changed(&corpus("pool_superblock"), which, at, byte));
    }
}
