//! Fuzzes the reader of `disk.toml`: other hosts and accidents write there too.

#![no_main]

#[path = "../../crates/api/tests/disk_toml/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::exercise(bytes));
