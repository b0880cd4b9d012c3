//! Replays the fuzz corpus of `disk.toml` on stable, and random bytes and mutations of it besides.

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
fn every_file_of_the_corpus_is_read_or_refused() {
    let corpus = corpus();
    assert!(corpus.len() >= 8, "the corpus has gone missing");
    corpus.iter().for_each(|bytes| body::exercise(bytes));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        body::exercise(&bytes);
    }

    #[test]
    fn a_damaged_descriptor_is_read_or_refused(
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
