//! Replays the fuzzers' corpus.

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
    assert!(files.len() >= 10, "the corpus of {target} is missing");
    for file in files {
        println!("{}", file.display());
        body(&std::fs::read(&file).unwrap());
    }
}

#[test]
fn malformed_client_negotiations_are_handled() {
    replay("nbd_handshake", handshake::run);
}

#[test]
fn malformed_client_requests_are_handled() {
    replay("nbd_session", session::run);
}

#[test]
fn malformed_server_replies_are_handled() {
    replay("nbd_client", client::run);
}
