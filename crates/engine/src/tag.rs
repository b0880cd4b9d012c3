//! The kinds of operations on an I/O thread's ring: they lead a completion to its owner.

/// The inbox's eventfd.
pub(crate) const WAKEUP: u8 = 1;
/// A guest's kick; the owner is a queue.
pub(crate) const KICK: u8 = 2;
/// An image's operation; the owner is a disk.
pub(crate) const IMAGE: u8 = 3;
/// Bytes from an NBD client; the owner is a connection.
pub(crate) const RECEIVE: u8 = 4;
/// Bytes to an NBD client; the owner is a connection.
pub(crate) const SEND: u8 = 5;
/// A cancellation; its completion is ignored.
pub(crate) const NOTHING: u8 = 6;
/// The other end of an NBD client's socket was closed; the owner is a connection.
pub(crate) const HANG_UP: u8 = 7;
