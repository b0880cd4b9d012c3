//! Metadata contexts in negotiation: `base:allocation`, and `qemu:dirty-bitmap:NAME` for each bitmap of the export.
//!
//! The [`handshake`](super) uses it for LIST_META_CONTEXT and SET_META_CONTEXT, which have the same format: an export's
//! name and a list of queries. What the queries match is known once the export is.
//!
//! # Always true
//! - A session has at most [`BITMAPS_MAX`] bitmaps, whatever a client selects.
//! - Only a listing has wildcards: an empty list, `base:`, `qemu:` and `qemu:dirty-bitmap:`.
//!
//! # Source
//! The NBD protocol document, "Metadata querying"; QEMU's `docs/interop/nbd.rst`.

use super::{ExportInfo, answer_head};
use crate::nbd::wire::{
    BASE_ALLOCATION, BASE_NAMESPACE, DIRTY_BITMAP, Fields, QEMU_NAMESPACE, option, reply,
};

/// The most bitmaps of a session. Origin: chosen; a backup program needs one.
pub const BITMAPS_MAX: usize = 16;
/// The id of `base:allocation`. Bitmaps have the following ones, in the order of the export's list.
const ALLOCATION: u32 = 1;
const FIRST_BITMAP: u32 = 2;

/// A decoded option.
pub(super) struct MetaQuery<'a> {
    pub(super) export: &'a str,
    pub(super) wanted: Wanted,
}

/// What the queries of an option name.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    allocation: bool,
    all_bitmaps: bool,
    bitmaps: Vec<String>,
}

/// The contexts that were selected.
#[derive(Clone, Debug, Default)]
pub(super) struct Selected {
    pub(super) allocation: Option<u32>,
    pub(super) bitmaps: Vec<(u32, String)>,
}

impl<'a> MetaQuery<'a> {
    /// `None` if it is malformed. A query without a namespace, or of an unknown one, is valid and matches nothing.
    pub(super) fn read(option: u32, data: &'a [u8]) -> Option<MetaQuery<'a>> {
        let listing = option == option::LIST_META_CONTEXT;
        let mut fields = Fields(data);
        let export = fields.string()?;
        let queries = fields.u32()?;
        // Listing without a query lists all contexts. Selecting without one selects none.
        let all = listing && queries == 0;
        let mut wanted = Wanted {
            allocation: all,
            all_bitmaps: all,
            bitmaps: Vec::new(),
        };
        for _ in 0..queries {
            let query = fields.string()?;
            wanted.allocation |= query == BASE_ALLOCATION || (listing && query == BASE_NAMESPACE);
            wanted.all_bitmaps |= listing && (query == QEMU_NAMESPACE || query == DIRTY_BITMAP);
            if let Some(name) = query.strip_prefix(DIRTY_BITMAP) {
                wanted.bitmaps.push(name.to_owned());
            }
        }
        let is_whole = fields.is_empty();
        is_whole.then_some(MetaQuery { export, wanted })
    }
}

impl Wanted {
    /// The contexts of an export that it names.
    fn of(&self, export: &ExportInfo) -> Selected {
        let is_wanted = |name: &String| self.all_bitmaps || self.bitmaps.contains(name);
        let numbered = (FIRST_BITMAP..).zip(&export.bitmaps);
        let wanted = numbered.filter(|(_, name)| is_wanted(name));
        Selected {
            allocation: self.allocation.then_some(ALLOCATION),
            bitmaps: wanted.map(|(id, name)| (id, name.clone())).collect(),
        }
    }
}

/// Writes the answer to either option, for an existing export. Returns what was selected.
pub(super) fn answer(
    option: u32,
    wanted: &Wanted,
    export: &ExportInfo,
    out: &mut Vec<u8>,
) -> Selected {
    let named = wanted.of(export);
    let selects = option == option::SET_META_CONTEXT;
    if selects && named.bitmaps.len() > BITMAPS_MAX {
        let why = b"too many bitmaps at once: select at most 16";
        super::answer(out, option, reply::ERR_TOO_BIG, why);
        return Selected::default();
    }
    // A listed context has no id.
    let mut context = |id: u32, parts: [&str; 2]| {
        let id = if selects { id } else { 0 };
        let len = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
        answer_head(out, option, reply::META_CONTEXT, len);
        out.extend_from_slice(&id.to_be_bytes());
        parts
            .iter()
            .for_each(|part| out.extend_from_slice(part.as_bytes()));
    };
    if let Some(id) = named.allocation {
        context(id, [BASE_ALLOCATION, ""]);
    }
    for (id, name) in &named.bitmaps {
        context(*id, [DIRTY_BITMAP, name]);
    }
    super::answer(out, option, reply::ACK, b"");
    named
}
