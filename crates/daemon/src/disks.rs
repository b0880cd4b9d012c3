//! Disks: their descriptors and images on datastores, the REST commands that change them, and the attached disks.

pub(crate) mod attached;
pub(crate) mod backups;
pub(crate) mod cache_signals;
pub(crate) mod copy;
pub(crate) mod counters;
pub(crate) mod disk_service;
pub(crate) mod export;
pub(crate) mod formats;
pub(crate) mod image_file;
pub(crate) mod import;
pub(crate) mod jobs;
pub(crate) mod notices;
pub(crate) mod snippet;
pub(crate) mod upstream_exports;
pub(crate) mod views;
pub(crate) mod watch;
