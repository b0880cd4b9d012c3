//! Metadata contexts in negotiation; the only one is `base:allocation`.
//!
//! Called by the [`handshake`](super) for LIST_META_CONTEXT and SET_META_CONTEXT, which look alike: an export's
//! name and a list of queries. It does not know whether the export exists.

use super::answer_head;
use crate::nbd::wire::{BASE_ALLOCATION, Fields, option, reply};

/// What was asked.
pub(super) struct MetaQuery<'a> {
    pub(super) export: &'a str,
    /// Whether `base:allocation` is among what was asked for.
    pub(super) matched: bool,
}

impl<'a> MetaQuery<'a> {
    /// `None` if it is malformed. A query without a namespace is not: it matches nothing, as one of a stranger's
    /// namespace does.
    pub(super) fn read(option: u32, data: &'a [u8]) -> Option<MetaQuery<'a>> {
        let listing = option == option::LIST_META_CONTEXT;
        let mut fields = Fields(data);
        let export = fields.string()?;
        let queries = fields.u32()?;
        // Listing without a query asks for all there are; choosing without one chooses none.
        let mut matched = listing && queries == 0;
        for _ in 0..queries {
            let query = fields.string()?;
            matched |= query == BASE_ALLOCATION || (listing && query == "base:");
        }
        fields.is_empty().then_some(MetaQuery { export, matched })
    }
}

/// Answers either option, for an export that exists.
pub(super) fn answer(option: u32, context: u32, matched: bool, out: &mut Vec<u8>) {
    if matched {
        // A listed context has no number yet.
        let number = if option == option::SET_META_CONTEXT {
            context
        } else {
            0
        };
        answer_head(out, option, reply::META_CONTEXT, 4 + BASE_ALLOCATION.len());
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(BASE_ALLOCATION.as_bytes());
    }
    super::answer(out, option, reply::ACK, b"");
}
