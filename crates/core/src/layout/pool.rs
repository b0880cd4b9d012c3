//! The pool layout: a disk's extents lie where there was room in a pool, and each belongs to the generation that wrote it.
//!
//! The disk owns grants of the pool's columns. A header of each grant says what is in its extents; a root says which
//! generations there are. Where the disk has nothing it reads as zeroes.

use super::{Layout, LayoutCx, LayoutIo, Map, MemberReport, MemberState};
use crate::request::{Op, Outcome};
use alloc::vec::Vec;
pub use records::{EXTENTS_MAX, GRANTS_MAX};
pub use setup::{
    Ancestor, Generation, GenerationReport, Geometry, Grant, PoolReport, PoolSetup, SUB_BLOCKS,
};

mod records;
mod setup;

/// See the module.
pub struct Pool {
    setup: PoolSetup,
    view: Option<Generation>,
}

impl Pool {
    /// A disk of a pool, or what one of its generations shows.
    ///
    /// # Panics
    /// Unless [`PoolSetup::check`] agrees.
    pub fn new(setup: PoolSetup, view: Option<Generation>) -> Pool {
        assert_eq!(setup.check(), Ok(()), "checked before");
        Pool { setup, view }
    }
}

impl Layout for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn open(&mut self, cx: &mut LayoutCx<'_>, _usable: u32, _fresh: bool) {
        cx.opened(Ok(()));
    }

    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        match io.op {
            Op::Read => {
                cx.zero(io.data, io.len);
                Map::Done(Ok(()))
            }
            Op::Flush | Op::Prefetch => Map::Done(Ok(())),
            _ => Map::Done(Err(crate::request::Fault::NoSpace)),
        }
    }

    fn done(&mut self, _cx: &mut LayoutCx<'_>, _tag: u64, _outcome: Outcome) {}

    fn report(&self, members: &mut Vec<MemberReport>) {
        let columns = self.setup.columns.iter();
        members.extend(columns.map(|_| MemberReport {
            state: MemberState::InSync,
            is_tried: false,
            in_flight: 0,
            faults: 0,
            copied: 0,
            to_copy: 0,
        }));
    }

    fn pooled(&self) -> Option<PoolReport> {
        Some(PoolReport {
            is_view: self.view.is_some(),
            ..PoolReport::default()
        })
    }
}
