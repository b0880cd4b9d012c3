//! The NBD client: for disks on another NBD server, and for measurements.
//!
//! An [`Uri`](uri::Uri) says where and what; a [`Handshake`](handshake::Handshake) negotiates it;
//! [`requests`] then turns requests into messages and replies into steps. Like the server's half it takes and gives
//! slices, and knows no socket.

pub mod handshake;
pub mod requests;
pub mod uri;
