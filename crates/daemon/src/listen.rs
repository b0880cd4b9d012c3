//! How clients connect: Unix and TCP sockets, TLS, NBD and vhost-user listeners, and their limits.

pub(crate) mod accept;
pub(crate) mod api_listener;
pub(crate) mod nbd_listener;
pub(crate) mod refusals;
pub(crate) mod sockets;
pub(crate) mod tls;
pub(crate) mod vhost_listener;
