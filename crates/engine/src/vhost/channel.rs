//! The backend channel of vhost-user: it notifies a front end of a changed configuration.
//!
//! The crate `vhost` takes this channel's descriptor and offers only some of the messages that go through it; "the
//! configuration has changed" is not among them. So the descriptor is copied from the socket before the crate reads the
//! message that carries it, and the one message that is needed is written here.
//!
//! # Always true
//! - Nobody waits for a front end that does not read: it may hold the same socket, and decide how long a write waits.
//!
//! # Source
//! The vhost-user protocol: `VHOST_USER_SET_BACKEND_REQ_FD`, `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.

use crate::sys::os;
use std::io;
use std::os::unix::net::UnixStream;

/// Bytes of a message's header: request, flags, size, each 32 bits.
const HEADER: usize = 12;
/// The front end's message that carries the channel.
const SET_BACKEND_REQ_FD: u32 = 21;
/// Our message.
const CONFIG_CHANGE: u32 = 2;
/// Version 1 of the protocol, no reply wanted: a front end that is stopped must not hold up who tells it.
const FLAGS: u32 = 1;

/// The channel to one front end.
pub(crate) struct Channel(UnixStream);

impl Channel {
    /// Waits for the next message on `socket` and leaves it there; a copy of the channel, if it is the one that brings it.
    ///
    /// # Errors
    /// What the socket says.
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

    /// The channel that is this socket.
    pub(crate) fn over(socket: UnixStream) -> Channel {
        Channel(socket)
    }

    /// Tells the front end to read the configuration again.
    ///
    /// # Errors
    /// What the socket says: that it is full, if the front end does not read.
    pub(crate) fn config_changed(&self) -> io::Result<()> {
        let mut message = [0; HEADER];
        message[..4].copy_from_slice(&CONFIG_CHANGE.to_ne_bytes());
        message[4..8].copy_from_slice(&FLAGS.to_ne_bytes());
        // A socket takes so little whole or not at all.
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
    fn any_other_message_is_left_alone() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        theirs
            .write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
            .expect("written");
        assert!(Channel::peek(&ours).expect("peeked").is_none());
        let mut message = [0; HEADER];
        (&ours).read_exact(&mut message).expect("still there");
        assert_eq!(message[0], 1);
    }

    #[test]
    fn a_front_end_that_does_not_read_and_has_writes_wait_for_ever_holds_nobody_up() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(false).expect("an option");
        ours.set_write_timeout(None).expect("an option");
        let channel = Channel::over(ours);
        let refused = (0..1_000_000).find_map(|_| channel.config_changed().err());
        assert_eq!(
            refused.expect("it is full").kind(),
            io::ErrorKind::WouldBlock
        );
        drop(theirs);
        let refused = channel.config_changed().expect_err("nobody is there");
        assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_front_end_that_is_gone_brings_no_channel() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        drop(theirs);
        assert!(Channel::peek(&ours).expect("peeked").is_none());
    }
}
