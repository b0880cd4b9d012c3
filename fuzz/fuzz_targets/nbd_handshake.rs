//! Fuzzes what `bodies/nbd_handshake.rs` describes.

#![no_main]

#[path = "../bodies/nbd_handshake.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
