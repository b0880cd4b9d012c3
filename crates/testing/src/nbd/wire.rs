//! NBD messages of the test client: newstyle handshake, requests, simple replies.
//!
//! It only encodes and decodes. [`super::Connection`] decides what to send.
//!
//! # Source
//! doc/proto.md of the NetworkBlockDevice project.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::load::{Kind, Operation};
use crate::tally::SILENCE;

/// Bytes of a simple reply before its data.
pub const REPLY: usize = 16;
const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const OPTION_EXPORT_NAME: u32 = 1;

/// The server's description of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags as received.
    pub flags: u16,
}

impl Export {
    /// Whether writes are rejected.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.flags & 2 != 0
    }
}

/// A simple reply's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// 0, or an error number.
    pub error: u32,
    /// The request's handle.
    pub handle: u64,
}

/// Connects to `socket` and requests export `name`.
///
/// # Errors
/// There is no listener, the server is not newstyle, or the export does not exist (the server then closes the
/// connection).
pub fn connect(socket: &Path, name: &str) -> Result<(UnixStream, Export)> {
    let mut stream = UnixStream::connect(socket)
        .with_context(|| format!("cannot connect to {}", socket.display()))?;
    stream
        .set_read_timeout(Some(SILENCE))
        .context("cannot set a timeout")?;
    let export = handshake(&mut stream, name)
        .with_context(|| format!("{} does not offer export '{name}'", socket.display()))?;
    Ok((stream, export))
}

fn handshake(stream: &mut (impl Read + Write), name: &str) -> Result<Export> {
    let (magic, option, flags) = (take64(stream)?, take64(stream)?, take16(stream)?);
    if magic != MAGIC || option != OPTION_MAGIC || flags & FIXED_NEWSTYLE == 0 {
        bail!("not a fixed newstyle server");
    }
    let flags = flags & (FIXED_NEWSTYLE | NO_ZEROES);
    let mut hello = u32::from(flags).to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
    hello.extend(
        u32::try_from(name.len())
            .context("a name of at most 4 GiB")?
            .to_be_bytes(),
    );
    hello.extend(name.as_bytes());
    stream.write_all(&hello)?;
    let export = Export {
        size: take64(stream)?,
        flags: take16(stream)?,
    };
    if flags & NO_ZEROES == 0 {
        take::<124>(stream)?;
    }
    Ok(export)
}

fn take<const N: usize>(stream: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take16(stream: &mut impl Read) -> Result<u16> {
    Ok(u16::from_be_bytes(take(stream)?))
}

fn take64(stream: &mut impl Read) -> Result<u64> {
    Ok(u64::from_be_bytes(take(stream)?))
}

/// Appends a request's 28 bytes. The caller appends a write's data.
pub fn request(out: &mut Vec<u8>, operation: &Operation, handle: u64) {
    let command: u16 = match operation.kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Flush => 3,
    };
    let mut head = [0; 28];
    head[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    head[6..8].copy_from_slice(&command.to_be_bytes());
    head[8..16].copy_from_slice(&handle.to_be_bytes());
    head[16..24].copy_from_slice(&operation.offset.to_be_bytes());
    head[24..28].copy_from_slice(&operation.length.to_be_bytes());
    out.extend_from_slice(&head);
}

/// The reply at the start of `bytes`; none while it is incomplete.
///
/// # Errors
/// These bytes are not a simple reply.
pub fn reply(bytes: &[u8]) -> Result<Option<Reply>> {
    let Some(head) = bytes.first_chunk::<REPLY>() else {
        return Ok(None);
    };
    let [m0, m1, m2, m3, e0, e1, e2, e3, handle @ ..] = *head;
    let magic = u32::from_be_bytes([m0, m1, m2, m3]);
    if magic != REPLY_MAGIC {
        bail!("the server sent {magic:#010x} where a simple reply begins");
    }
    Ok(Some(Reply {
        error: u32::from_be_bytes([e0, e1, e2, e3]),
        handle: u64::from_be_bytes(handle),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_28_bytes() {
        let mut out = Vec::new();
        let operation = Operation {
            kind: Kind::Write,
            offset: 0x1000,
            length: 512,
            sequence: 0,
        };
        request(&mut out, &operation, 5);
        assert_eq!(out.len(), 28);
        assert_eq!(out[..8], [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1]);
        assert_eq!(out[15], 5);
        assert_eq!(out[22..], [0x10, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn a_reply_needs_sixteen_bytes_and_its_magic() {
        let mut bytes = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(reply(&bytes).expect("an incomplete reply"), None);
        bytes.push(9);
        assert_eq!(
            reply(&bytes).expect("whole"),
            Some(Reply {
                error: 5,
                handle: 9
            })
        );
        bytes[0] = 0;
        reply(&bytes).expect_err("not a reply");
    }
}
