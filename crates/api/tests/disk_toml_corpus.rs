//! Replays the fuzz corpus of `disk.toml` on stable Rust, and adds random bytes and mutations.

#[path = "disk_toml/body.rs"]
mod body;

use std::path::Path;

use proptest::prelude::*;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/disk_toml");
    let files = std::fs::read_dir(&folder).expect("the corpus is in the repository");
    files
        .map(|file| std::fs::read(file.expect("an entry").path()).expect("a file"))
        .collect()
}

#[test]
fn every_corpus_file_is_parsed_or_rejected() {
    let corpus = corpus();
    assert!(corpus.len() >= 8, "the corpus is missing");
    corpus.iter().for_each(|bytes| body::exercise(bytes));
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_rejected(bytes: Vec<u8>) {
        body::exercise(&bytes);
    }

    #[test]
    fn a_damaged_descriptor_is_parsed_or_rejected(
        which: prop::sample::Index, cut: prop::sample::Index, at: prop::sample::Index, byte: u8,
    ) {
        let mut bytes = which.get(&corpus()).clone();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            body::exercise(&bytes);
            bytes.truncate(cut.index(bytes.len()));
        }
        body::exercise(&bytes);
    }
}
