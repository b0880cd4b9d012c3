//! The atomics and locks of the files that I/O threads race on: the standard library's, or loom's in `tests/loom_moves.rs`.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Arc, Mutex};
