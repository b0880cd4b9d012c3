//! Fuzzes what `bodies/nbd_client.rs` describes.

#![no_main]

#[path = "../bodies/nbd_client.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
