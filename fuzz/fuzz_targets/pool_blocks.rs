//! Fuzzes what `bodies/pool_blocks.rs` describes.

#![no_main]

#[path = "../bodies/pool_blocks.rs"]
mod body;
#[path = "../bodies/sealed.rs"]
mod sealed;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
