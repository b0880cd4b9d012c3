//! Metadata contexts in negotiation. The only context is `base:allocation`.
//!
//! The [`handshake`](super) uses it for LIST_META_CONTEXT and SET_META_CONTEXT, which have the same format: an export's
//! name and a list of queries. It does not know whether the export exists.

use super::answer_head;
use crate::nbd::wire::{BASE_ALLOCATION, Fields, option, reply};

/// A decoded query.
pub(super) struct MetaQuery<'a> {
    pub(super) export: &'a str,
    /// Whether a query matches `base:allocation`.
    pub(super) matched: bool,
}

impl<'a> MetaQuery<'a> {
    /// `None` if it is malformed. A query without a namespace, or of an unknown one, is valid and matches nothing.
    pub(super) fn read(option: u32, data: &'a [u8]) -> Option<MetaQuery<'a>> {
        let listing = option == option::LIST_META_CONTEXT;
        let mut fields = Fields(data);
        let export = fields.string()?;
        let queries = fields.u32()?;
        // Listing without a query lists all contexts. Selecting without one selects none.
        let mut matched = listing && queries == 0;
        for _ in 0..queries {
            let query = fields.string()?;
            matched |= query == BASE_ALLOCATION || (listing && query == "base:");
        }
        fields.is_empty().then_some(MetaQuery { export, matched })
    }
}

/// Writes the answer to either option, for an existing export.
pub(super) fn answer(option: u32, context: u32, matched: bool, out: &mut Vec<u8>) {
    if matched {
        // A listed context has no id.
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
