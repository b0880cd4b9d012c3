//! Fuzzes what `bodies/member_label.rs` describes.

#![no_main]

#[path = "../bodies/member_label.rs"]
mod body;
#[path = "../bodies/sealed.rs"]
mod sealed;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
