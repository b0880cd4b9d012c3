//! What listeners share: Unix and TCP sockets, TLS, and how refusals are logged.

pub(crate) mod refusals;
pub(crate) mod sockets;
pub(crate) mod tls;
