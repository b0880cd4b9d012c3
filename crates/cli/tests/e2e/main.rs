//! The real binary with real clients: a QEMU guest on vhost-user-blk, and the NBD clients that people use.
//!
//! Each test makes a place of its own (a temporary directory), starts a server and its clients in it, and takes
//! everything down again, also when it fails; then it prints what the server, the guest and the clients said.
//! Nothing here knows how `tidegate` works inside. `TIDEGATE_E2E_PEER=1` runs the tests that need nothing but a
//! disk against `qemu-storage-daemon` (what fails there too is the test's own fault, not ours); those that ask for our
//! own verbs run `tidegate` all the same.
//!
//! `cargo xtask test` installs what these tests need: Debian packages, and a Debian kernel for the guest.

mod bad_luck;
mod changes;
mod control_tree;
mod crash;
mod curve;
mod dashboard;
mod dashboard_caches;
mod dashboard_form;
mod dashboard_hosts;
mod dashboard_live;
mod dashboard_threads;
mod dense;
mod detaching;
mod explained;
mod first_minute;
mod flash;
mod flash_learned;
mod foretold;
mod guest_disk;
mod guest_flash;
mod guest_mirror;
mod guest_moves;
mod guest_resize;
mod hints;
mod hosts;
mod io_control;
mod layouts;
mod leases;
mod limits;
mod migration;
mod nbd_clients;
mod nbd_database;
mod overlap;
mod pools;
mod quiet;
mod soak;
mod support;
mod thread_moves;
mod thread_share;
mod tls;
mod traces;
mod vanishing;
