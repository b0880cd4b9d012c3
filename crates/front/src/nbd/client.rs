//! The NBD client: for disks on another NBD server, and for measurements.
//!
//! An [`Uri`](uri::Uri) names a server and an export. A [`Handshake`](handshake::Handshake) negotiates the connection.
//! [`requests`] then turns requests into messages and replies into steps. Like the server side, it works on slices and
//! uses no sockets.

pub mod handshake;
pub mod requests;
pub mod uri;
