//! The atomics of [`super::shared`], in one place so that the loom test can replace them.

pub(super) use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
