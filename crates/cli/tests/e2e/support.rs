//! The fixtures of the end-to-end tests: places, programs, servers and guests, each cleaned up on drop.

pub(crate) mod browser;
pub(crate) mod daemon;
pub(crate) mod devices;
pub(crate) mod guest;
pub(crate) mod initramfs;
pub(crate) mod journey;
pub(crate) mod place;
mod post_mortem;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod rest;
pub(crate) mod server;
pub(crate) mod transcript;
