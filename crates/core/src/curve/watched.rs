//! The watched pages, each with the time when it was drawn, in fixed memory.
//!
//! [`MayWatch`] has the begin of a chain of watched pages for each hash. It answers in a few instructions for most pages that
//! they are not watched. [`Watched`] has the pages themselves.
//!
//! # Always true
//! - a watched page is in the chain of its hash, once
//! - an entry is in one chain or in that of the free ones

use alloc::boxed::Box;
use alloc::vec;

/// The most pages. Origin: with their chains they take 56 KiB, and the space in use is known to some percent.
pub(super) const MOST: usize = 2048;
/// Chains. Origin: at most one page in eight that is not watched is looked for in a chain.
const CHAINS: usize = 8 * MOST;
/// The end of a chain. Other numbers are that of an entry and one.
const END: u16 = 0;
/// Marks a free entry. It is no page: it lies beyond the end of any disk.
const NONE: u32 = u32::MAX;

/// Which pages may be watched: the first entry of each chain. Nothing before the first access.
#[derive(Debug)]
pub(super) struct MayWatch(Option<Box<[u16; CHAINS]>>);

/// See the module.
#[derive(Debug)]
pub(super) struct Watched {
    entries: Box<[Entry; MOST]>,
    /// The chain of free entries.
    free: u16,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    page: u32,
    /// When the page was drawn.
    time: u32,
    next: u16,
    /// The binary logarithm of the accesses that it stands for.
    weight: u8,
}

impl MayWatch {
    /// Before the first access.
    pub(super) fn none() -> MayWatch {
        MayWatch(None)
    }

    pub(super) fn begin(&mut self) {
        self.0 = Some(array(END));
    }

    #[inline(always)]
    pub(super) fn has(&self, page: u32) -> bool {
        let chains = self.0.as_ref();
        chains.is_some_and(|chains| chains[chain(page)] != END)
    }

    pub(super) fn allocated(&self) -> usize {
        self.0.as_ref().map_or(0, |chains| size_of_val(&**chains))
    }
}

impl Watched {
    pub(super) fn new() -> Watched {
        let empty = Entry {
            page: NONE,
            time: 0,
            next: END,
            weight: 0,
        };
        let mut entries: Box<[Entry; MOST]> = array(empty);
        for (next, entry) in (2..).zip(entries.iter_mut()) {
            entry.next = next;
        }
        entries[MOST - 1].next = END;
        Watched {
            entries,
            free: 1,
            len: 0,
        }
    }

    /// Watches a page that is not watched from this time on, unless all entries are used.
    #[inline]
    pub(super) fn insert(&mut self, may_watch: &mut MayWatch, page: u32, time: u32, weight: u8) {
        let Some(chains) = &mut may_watch.0 else {
            return;
        };
        let begin = &mut chains[chain(page)];
        let number = self.free;
        let Some(entry) = self.entries.get_mut(index(number)) else {
            return;
        };
        self.free = entry.next;
        *entry = Entry {
            page,
            time,
            next: *begin,
            weight,
        };
        *begin = number;
        self.len += 1;
    }

    /// Whether a page is watched.
    #[inline(always)]
    pub(super) fn has(&self, may_watch: &MayWatch, page: u32) -> bool {
        let chains = may_watch.0.as_ref();
        let mut number = chains.map_or(END, |chains| chains[chain(page)]);
        while let Some(entry) = self.entries.get(index(number)) {
            if entry.page == page {
                return true;
            }
            number = entry.next;
        }
        false
    }

    /// Ends watching a page. Returns when it was drawn, and its weight, if it was watched.
    #[inline]
    pub(super) fn take(&mut self, may_watch: &mut MayWatch, page: u32) -> Option<(u32, u8)> {
        let begin = &mut may_watch.0.as_mut()?[chain(page)];
        let mut number = *begin;
        let mut before = END;
        loop {
            let entry = *self.entries.get(index(number))?;
            if entry.page == page {
                match self.entries.get_mut(index(before)) {
                    None => *begin = entry.next,
                    Some(before) => before.next = entry.next,
                }
                let freed = &mut self.entries[index(number)];
                (freed.page, freed.next) = (NONE, self.free);
                self.free = number;
                self.len -= 1;
                return Some((entry.time, entry.weight));
            }
            (before, number) = (number, entry.next);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The accesses that all watched pages stand for.
    pub(super) fn weight(&self) -> u64 {
        let used = self.entries.iter().filter(|entry| entry.page != NONE);
        used.map(|entry| 1 << entry.weight).sum()
    }

    /// Ends watching those pages for which `stays` is false, given page and time.
    pub(super) fn retain(
        &mut self,
        may_watch: &mut MayWatch,
        mut stays: impl FnMut(u32, u32) -> bool,
    ) {
        for nth in 0..MOST {
            let Entry { page, time, .. } = self.entries[nth];
            if page != NONE && !stays(page, time) {
                self.take(may_watch, page);
            }
        }
    }

    /// Each page stands for twice as many accesses.
    pub(super) fn double_weights(&mut self) {
        for entry in self.entries.iter_mut() {
            entry.weight += 1;
        }
    }

    pub(super) fn allocated(&self) -> usize {
        size_of_val(&*self.entries)
    }
}

/// Where an entry with this number is. Nowhere at the end of a chain.
#[inline(always)]
fn index(number: u16) -> usize {
    usize::from(number.wrapping_sub(1))
}

/// The chain of a page. Pages that follow each other, or with the same lower bits, are in chains that look random.
#[inline(always)]
fn chain(page: u32) -> usize {
    page.wrapping_mul(0x9e37_79b1) as usize / (1 << 18)
}

/// An array on the heap. Its length is known, so that no bounds are checked at run time.
fn array<T: Clone, const N: usize>(value: T) -> Box<[T; N]> {
    let array = vec![value; N].into_boxed_slice().try_into();
    array.unwrap_or_else(|_| unreachable!("it has that length"))
}
