//! Truncation of an image's file: detection, and which results are still valid.
//!
//! A disk's file is as long as the disk from its creation on, so no write of ours makes it longer. If somebody cuts it,
//! one does: the file is long again, and what lay between is a hole that reads as zeroes. So before each write, and
//! before each answer, the image asks here; that costs the load of a word ([`TruncationGuard`]), and for what touches the
//! file's last page the length besides.
//!
//! # Always true
//! - once a cut is noticed it stays noticed, and nothing more is written
//! - what was written after a cut, being under way then, is not acknowledged; and as nobody knows where it has put a
//!   hole, nothing is read any more
//!
//! # Picture
//! ```text
//!            cut, nothing being written
//!   Whole ──────────────────────────────> Cut     what is left can be read; behind its end there is an error
//!     │ cut, and grown again                │ grown again
//!     │ or perhaps to be                    v
//!     └─────────────────────────────────> Torn    any of it may be a hole: nothing can be read
//! ```

use crate::datastore::condition::{Condition, Harm};
use crate::sys::os;
use crate::sys::truncation_guard::TruncationGuard;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_core::request::{DiskId, Op};

/// See the module.
pub(super) struct Reach {
    file: Arc<OwnedFd>,
    /// None where nothing is written, where nothing can be cut, and where files cannot be mapped: there a cut is noticed
    /// only by the reads that meet it.
    wire: Option<TruncationGuard>,
    found: Found,
    condition: Arc<Condition>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Whole,
    /// As it was noticed, the file ended there.
    Cut {
        end: u64,
    },
    Torn,
}

impl Reach {
    /// Of a file that has `end` bytes, if it can be cut and is written here.
    pub(super) fn new(file: &Arc<OwnedFd>, end: Option<u64>, condition: Arc<Condition>) -> Reach {
        Reach {
            file: Arc::clone(file),
            wire: end.and_then(|end| armed(file, end)),
            found: Found::Whole,
            condition,
        }
    }

    /// The disk ends there from now on; its file is as long.
    pub(super) fn moved(&mut self, end: u64) {
        // A wire that has fallen is not put up again.
        if self.wire.is_some() && self.is_whole() {
            self.wire = armed(&self.file, end);
        }
    }

    /// Whether nothing speaks for a cut.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.found == Found::Whole && self.wire.as_ref().is_none_or(TruncationGuard::is_intact)
    }

    /// Whether something may be written up to `end`, as far as is known.
    #[inline]
    pub(super) fn admits(&self, end: u64) -> bool {
        self.is_whole()
            && self
                .wire
                .as_ref()
                .is_none_or(|wire| reaches(wire, end, &self.file))
    }

    /// Whether what an operation has done can be believed, now that there was a cut.
    pub(super) fn believes(&self, op: Op) -> bool {
        match self.found {
            Found::Whole => true,
            Found::Cut { .. } => !op.modifies(),
            Found::Torn => false,
        }
    }

    /// The file was cut, and may have grown since that was noticed. `writing`: something that changes it is under way,
    /// and may have made it long again.
    #[cold]
    pub(super) fn notice(&mut self, disk: DiskId, writing: bool) {
        let end = os::length_now(&self.file).unwrap_or(0);
        let grown = match self.found {
            Found::Whole => self.wire.as_ref().is_some_and(|wire| wire.end() <= end),
            Found::Cut { end: before } if before < end => true,
            Found::Cut { .. } | Found::Torn => return,
        };
        let left = if writing || grown {
            self.found = Found::Torn;
            self.condition.note(Harm::Torn);
            "and may have holes where data was: nothing is read from it either"
        } else {
            self.found = Found::Cut { end };
            self.condition.note(Harm::Cut);
            "what is left of it can be read"
        };
        tracing::error!(
            disk = disk.0,
            end,
            "an image was cut behind our back: no more is written to it, {left}; detach the disk, restore the image, attach it again"
        );
    }
}

/// Whether the file, of which the wire stands, reaches as far. Only within its last page it might not.
#[inline]
fn reaches(wire: &TruncationGuard, end: u64, file: &OwnedFd) -> bool {
    end <= wire.start() || os::length_now(file).is_ok_and(|len| len >= wire.end())
}

fn armed(file: &OwnedFd, end: u64) -> Option<TruncationGuard> {
    let armed = TruncationGuard::arm(file, end);
    armed
        .inspect_err(|error| {
            tracing::info!(%error, "an image cannot be mapped: if it is cut behind our back, only reads will notice");
        })
        .ok()
}
