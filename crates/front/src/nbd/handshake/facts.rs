//! The export information that a client requests during negotiation.
//!
//! The [`handshake`](super) uses it for INFO and GO, which differ only in what follows. Every client gets size and
//! abilities. Unknown information types are ignored.

use super::{BlockSizes, ExportInfo, answer, answer_head, clip};
use crate::nbd::wire::{Fields, info, reply};

/// The optional information that was requested.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    name: bool,
    description: bool,
    block_size: bool,
}

impl Facts {
    /// The export's name and the requested information. `None` if the option is malformed.
    pub(super) fn read(data: &[u8]) -> Option<(&str, Facts)> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let mut facts = Facts::default();
        for _ in 0..fields.u16()? {
            match fields.u16()? {
                info::NAME => facts.name = true,
                info::DESCRIPTION => facts.description = true,
                info::BLOCK_SIZE => facts.block_size = true,
                _ => {}
            }
        }
        fields.is_empty().then_some((name, facts))
    }

    /// Writes the complete answer to `option`.
    pub(super) fn answer(self, export: &ExportInfo, option: u32, out: &mut Vec<u8>) {
        let mut fact = |kind: u16, parts: &[&[u8]]| {
            let len = 2 + parts.iter().map(|part| part.len()).sum::<usize>();
            answer_head(out, option, reply::INFO, len);
            out.extend_from_slice(&kind.to_be_bytes());
            parts.iter().for_each(|part| out.extend_from_slice(part));
        };
        let abilities = export.abilities.bits().to_be_bytes();
        fact(info::EXPORT, &[&export.size.to_be_bytes(), &abilities]);
        if self.name {
            fact(info::NAME, &[clip(&export.name).as_bytes()]);
        }
        if self.description && !export.description.is_empty() {
            fact(info::DESCRIPTION, &[clip(&export.description).as_bytes()]);
        }
        if self.block_size {
            let BlockSizes {
                minimum,
                preferred,
                payload,
            } = export.block;
            let sizes = [minimum, preferred, payload].map(u32::to_be_bytes);
            fact(info::BLOCK_SIZE, &[sizes.as_flattened()]);
        }
        answer(out, option, reply::ACK, b"");
    }
}
