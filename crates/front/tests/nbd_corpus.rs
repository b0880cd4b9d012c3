//! The fuzzers' corpus, replayed on every run of the tests.

#![expect(
    clippy::unwrap_used,
    reason = "what fails in a test's helper fails the test"
)]

use std::path::PathBuf;

#[path = "../../../fuzz/bodies/nbd_client.rs"]
mod client;
#[path = "../../../fuzz/bodies/nbd_handshake.rs"]
mod handshake;
#[path = "../../../fuzz/bodies/nbd_session.rs"]
mod session;

/// Runs `body` on every file of a target's corpus, in the order of their names.
fn replay(target: &str, body: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of {target} has gone missing");
    for file in files {
        println!("{}", file.display());
        body(&std::fs::read(&file).unwrap());
    }
}

#[test]
fn clients_that_negotiate_nonsense_are_survived() {
    replay("nbd_handshake", handshake::run);
}

#[test]
fn clients_that_ask_nonsense_are_survived() {
    replay("nbd_session", session::run);
}

#[test]
fn servers_that_answer_nonsense_are_survived() {
    replay("nbd_client", client::run);
}
