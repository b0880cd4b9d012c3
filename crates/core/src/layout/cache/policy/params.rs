//! The parameters of the policy family, and the published policies that are members of it.

use crate::units::Span;

/// A member of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The small queue's part of the slots, in percent. Without one, pages enter the main queue.
    pub small_percent: u8,
    /// The ghost entries, in percent of the slots; at most 100.
    pub ghost_percent: u8,
    /// References do not count on the newest pages of the small queue: so many percent of its part.
    pub window_percent: u8,
    /// Accesses of a page within this time after one that counted do not count.
    pub correlated: Span,
    /// The access of a page that brings it into the cache: the first, the second and so on; at most [`Params::MOST_ADMIT`].
    pub admit: u8,
    /// The same if that access is a write.
    pub admit_write: u8,
    /// References that move a page from the small queue's tail to the main queue.
    pub promote: u8,
    /// References are counted up to this number; at most three. Each saves a page of the main queue once.
    pub most_refs: u8,
    /// A page that the small queue evicted enters the main queue when it returns.
    pub ghost_to_main: bool,
    /// A hit moves a page of the main queue to its head.
    pub reorder_on_hit: bool,
    /// If a request leaves a page in the cache with so many valid sub-blocks of sixteen, the rest is read, too. One stands
    /// for whole pages, [`Params::DEMANDED`] for nothing but what requests want.
    pub fill_from: u8,
    /// Sequential runs enter no page, and are no references.
    pub bypass: bool,
}

impl Params {
    /// The largest threshold of admission: ghosts count no further.
    pub const MOST_ADMIT: u8 = 6;

    /// The `fill_from` that reads no more than requests want.
    pub const DEMANDED: u8 = 17;

    /// The `fill_from` that reads whole pages.
    pub const WHOLE: u8 = 1;

    /// First in, first out.
    pub const FIFO: Params = Params {
        small_percent: 0,
        ghost_percent: 0,
        window_percent: 0,
        correlated: Span::ZERO,
        admit: 1,
        admit_write: 1,
        promote: 1,
        most_refs: 0,
        ghost_to_main: false,
        reorder_on_hit: false,
        fill_from: Params::DEMANDED,
        bypass: false,
    };

    /// Least recently used.
    pub const LRU: Params = Params {
        reorder_on_hit: true,
        ..Params::FIFO
    };

    /// The usual approximation of LRU: a referenced page is passed over once.
    pub const CLOCK: Params = Params {
        most_refs: 1,
        ..Params::FIFO
    };

    /// S3-FIFO as published (SOSP 2023).
    pub const S3_FIFO: Params = Params {
        small_percent: 10,
        ghost_percent: 90,
        promote: 2,
        most_refs: 3,
        ghost_to_main: true,
        ..Params::FIFO
    };

    /// Clock2Q+ as published (arXiv 2511.21958).
    pub const CLOCK_2Q_PLUS: Params = Params {
        window_percent: 50,
        promote: 1,
        most_refs: 1,
        ..Params::S3_FIFO
    };

    /// The rule of FAST Cache: the third access of a page brings it in whole; least recently used goes.
    pub const FAST: Params = Params {
        ghost_percent: 100,
        admit: 3,
        admit_write: 3,
        fill_from: Params::WHOLE,
        ..Params::LRU
    };

    /// The same with another threshold of admission for reads and writes.
    pub const fn admitting(self, nth: u8) -> Params {
        Params {
            admit: nth,
            admit_write: nth,
            ..self
        }
    }

    /// The same with another fill.
    pub const fn filling(self, fill_from: u8) -> Params {
        Params { fill_from, ..self }
    }

    /// The same, but sequential runs bypass the cache.
    pub const fn bypassing(self) -> Params {
        Params {
            bypass: true,
            ..self
        }
    }

    /// Bytes of [`Params::encode`].
    pub(super) const ENCODED: usize = 19;

    /// All of them as bytes, which differ from those of any others: places in a table of candidates do not last.
    pub(super) fn encode(&self) -> [u8; Params::ENCODED] {
        let [a, b, c, d, e, f, g, h] = self.correlated.as_nanos().to_le_bytes();
        [
            self.small_percent,
            self.ghost_percent,
            self.window_percent,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            self.admit,
            self.admit_write,
            self.promote,
            self.most_refs,
            self.ghost_to_main.into(),
            self.reorder_on_hit.into(),
            self.fill_from,
            self.bypass.into(),
        ]
    }
}
