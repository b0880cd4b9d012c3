//! Fuzzes what `bodies/mirror_state.rs` describes.

#![no_main]

#[path = "../bodies/mirror_state.rs"]
mod body;
#[path = "../bodies/sealed.rs"]
mod sealed;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
