//! The atomics that [`super::shared`] uses, in one place, so that its loom test can put loom's in theirs.

pub(super) use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
