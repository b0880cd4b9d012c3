//! The flash cache: a layout that keeps a disk's working set on flash.

pub mod policy;
