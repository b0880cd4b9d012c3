//! The parts that listeners share: sockets, TLS, and the log of refusals.

pub(crate) mod refusals;
pub(crate) mod sockets;
pub(crate) mod tls;
