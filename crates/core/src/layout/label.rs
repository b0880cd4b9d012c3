//! The label of a layout's member: which disk it belongs to, and at which place.
//!
//! It is the first block of each member. A new disk's labels are written unsealed, then the layouts write what they need,
//! then the labels are sealed. A crash before that leaves a disk without data, which is formatted again.
//!
//! # Always true
//! - a label is read as it was written, or refused with the reason; bytes without a meaning are not read, and zero when written
//! - a sealed label exists only on a disk whose layouts had written everything that they need, durably
//!
//! # Picture
//! ```text
//!    0  magic "TIDEMEMB" 8, version 2
//!   16  disk 16, layout 1, sealed 1, member 1, members 1
//!   40  chunk 8, data at 8
//! 4092  CRC32C of all before it 4
//! ```
//!
//! # Units
//! Little-endian. `layout`: 1 stripe, 2 mirror, 3 mirror+stripe. Chunk and offset are bytes.

use super::LayoutSpec;
use crate::block::{BLOCK, Reader, Unreadable, Writer};
use alloc::boxed::Box;

const MAGIC: [u8; 8] = *b"TIDEMEMB";
const VERSION: u16 = 1;

/// What a label says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The disk.
    pub disk: [u8; 16],
    /// Its layout.
    pub layout: LayoutSpec,
    /// Where the disk's bytes begin on the member.
    pub data_at: u64,
    /// How many members the disk has.
    pub members: u8,
    /// Which of them this is.
    pub member: u8,
    /// Whether the disk was completely formatted.
    pub sealed: bool,
}

impl Label {
    /// The block.
    pub fn encode(&self) -> Box<[u8; BLOCK]> {
        let (layout, chunk) = match self.layout {
            LayoutSpec::Plain => (0, 0),
            LayoutSpec::Stripe { chunk } => (1, chunk),
            LayoutSpec::Mirror => (2, 0),
            LayoutSpec::MirrorStripe { chunk } => (3, chunk),
        };
        let mut out = Writer::new(MAGIC, VERSION);
        out.go_to(16);
        out.put(&self.disk);
        out.put(&[layout, u8::from(self.sealed), self.member, self.members]);
        out.go_to(40);
        out.put(&chunk.to_le_bytes());
        out.put(&self.data_at.to_le_bytes());
        Box::new(out.finish())
    }

    /// The label in a block.
    ///
    /// # Errors
    /// The bytes are no label of a version that is known, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Label, Unreadable> {
        let from = Reader::open(bytes, MAGIC, VERSION)?;
        Label::fields(from).ok_or(Unreadable::Torn)
    }

    fn fields(mut from: Reader<'_>) -> Option<Label> {
        from.go_to(16);
        let disk = from.take();
        let [layout, sealed, member, members] = from.take();
        from.go_to(40);
        let chunk = u64::from_le_bytes(from.take());
        let data_at = u64::from_le_bytes(from.take());
        let layout = match layout {
            1 => LayoutSpec::Stripe { chunk },
            2 => LayoutSpec::Mirror,
            3 => LayoutSpec::MirrorStripe { chunk },
            _ => return None,
        };
        (member < members && sealed < 2).then_some(Label {
            disk,
            layout,
            data_at,
            members,
            member,
            sealed: sealed == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let chunk = 64 << 10;
        for layout in [
            LayoutSpec::Stripe { chunk },
            LayoutSpec::Mirror,
            LayoutSpec::MirrorStripe { chunk },
        ] {
            let label = Label {
                disk: [9; 16],
                layout,
                data_at: 1 << 20,
                members: 4,
                member: 3,
                sealed: true,
            };
            let block = label.encode();
            assert_eq!(Label::decode(&block[..]), Ok(label));
            let mut torn = *block;
            torn[BLOCK - 1] ^= 1;
            assert_eq!(Label::decode(&torn), Err(Unreadable::Torn));
        }
    }

    #[test]
    fn what_is_no_label_is_refused() {
        assert_eq!(Label::decode(&[0; BLOCK]), Err(Unreadable::Empty));
        assert_eq!(Label::decode(&[7; BLOCK]), Err(Unreadable::Foreign));
        assert_eq!(Label::decode(&[0; 10]), Err(Unreadable::Short));
    }
}
