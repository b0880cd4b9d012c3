//! The backend channel of vhost-user: it notifies a front end of a changed configuration.
//!
//! The crate `vhost` receives this channel's descriptor, but cannot send a configuration change through it. So
//! `Channel::peek` copies the descriptor from the socket before the crate reads the message. This file then sends the
//! one message that is needed.
//!
//! # Always true
//! - sending never blocks, even if the front end does not read, or makes the shared socket blocking
//!
//! # Source
//! The vhost-user protocol: `VHOST_USER_SET_BACKEND_REQ_FD`, `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.

use crate::sys::os;
use std::io;
use std::os::unix::net::UnixStream;

/// Size of a message's header: request, flags, size, each 32 bits.
const HEADER: usize = 12;
/// The front end's message that contains the channel.
const SET_BACKEND_REQ_FD: u32 = 21;
/// The message sent here.
const CONFIG_CHANGE: u32 = 2;
/// Version 1 of the protocol, no reply requested: a stopped front end must not block the sender.
const FLAGS: u32 = 1;

/// The channel to one front end.
pub(crate) struct Channel(UnixStream);

impl Channel {
    /// Waits for the next message on `socket` without consuming it. Returns a copy of the channel if the message
    /// contains it.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) fn peek(socket: &UnixStream) -> io::Result<Option<Channel>> {
        let mut header = [0; HEADER];
        if os::peek(socket, &mut header)? < HEADER {
            return Ok(None);
        }
        let [r0, r1, r2, r3, ..] = header;
        if u32::from_ne_bytes([r0, r1, r2, r3]) != SET_BACKEND_REQ_FD {
            return Ok(None);
        }
        let Some(descriptor) = os::peek_descriptor(socket)? else {
            return Ok(None);
        };
        Ok(Some(Channel::over(UnixStream::from(descriptor))))
    }

    /// A channel over this socket.
    pub(crate) fn over(socket: UnixStream) -> Channel {
        Channel(socket)
    }

    /// Asks the front end to read the configuration again.
    ///
    /// # Errors
    /// If the socket fails, or is full because the front end does not read.
    pub(crate) fn config_changed(&self) -> io::Result<()> {
        let mut message = [0; HEADER];
        message[..4].copy_from_slice(&CONFIG_CHANGE.to_ne_bytes());
        message[4..8].copy_from_slice(&FLAGS.to_ne_bytes());
        // A message this small is sent completely or not at all.
        match os::send_now(&self.0, &message)? {
            HEADER => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn other_messages_stay_unread() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        theirs
            .write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
            .expect("written");
        assert!(Channel::peek(&ours).expect("peeked").is_none());
        let mut message = [0; HEADER];
        (&ours)
            .read_exact(&mut message)
            .expect("the message is still unread");
        assert_eq!(message[0], 1);
    }

    #[test]
    fn a_front_end_that_does_not_read_blocks_no_thread() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(false).expect("an option");
        ours.set_write_timeout(None).expect("an option");
        let channel = Channel::over(ours);
        let refused = (0..1_000_000).find_map(|_| channel.config_changed().err());
        assert_eq!(
            refused.expect("the socket fills up").kind(),
            io::ErrorKind::WouldBlock
        );
        drop(theirs);
        let refused = channel
            .config_changed()
            .expect_err("the other end is closed");
        assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_disconnected_front_end_sends_no_channel() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        drop(theirs);
        assert!(Channel::peek(&ours).expect("peeked").is_none());
    }
}
