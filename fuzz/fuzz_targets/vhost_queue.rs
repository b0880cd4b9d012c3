//! Fuzzes what `bodies/vhost_queue.rs` describes.

#![no_main]

#[path = "../bodies/vhost_queue.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
