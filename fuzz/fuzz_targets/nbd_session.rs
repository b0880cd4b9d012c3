//! Fuzzes what `bodies/nbd_session.rs` describes.

#![no_main]

#[path = "../bodies/nbd_session.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
