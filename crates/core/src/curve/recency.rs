//! The order in which followed pages were last accessed, in fixed memory.
//!
//! Each page has the number of its last access. A bitmap has one bit for each number that is some page's last. The pages
//! accessed since are the bits beyond. When the numbers run out, pages are numbered anew in the same order.
//!
//! # Always true
//! - as many bits are set as there are pages
//! - a page lies at its home place in the table or beyond, without a gap in between (linear probing)
//!
//! # Picture
//! ```text
//!   table   | page 7 @ 3 |  | page 9 @ 1 | page 2 @ 5 |  |
//!   bitmap  0 1 0 1 0 1 | 0 0 ...          page 7 was accessed, then one other page
//!             9   7   2   ^ next number
//! ```

use alloc::boxed::Box;
use alloc::vec;

/// Places of the table.
const PLACES: usize = 4096;
/// The most pages: three quarters of the table, so that probes stay short. Origin: with twice as many, the mean errors of made-up
/// workloads were 0.001 to 0.004 smaller, and twice as many accesses of large disks cost the instructions of a followed one.
pub(super) const MOST: u16 = 3072;
/// Numbers of accesses before pages are numbered anew.
const NUMBERS: usize = 8192;
/// Bits of a word of the bitmap, and words of a group whose bits are counted together.
const WORD: usize = 64;
const GROUP: usize = 4;
const WORDS: usize = NUMBERS / WORD;
const GROUPS: usize = WORDS / GROUP;
/// Groups whose bits are counted together once more.
const WIDE: usize = 8;
/// Marks an empty place.
const NONE: u16 = u16::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Recency {
    pages: Box<[u32; PLACES]>,
    /// The number of the page's last access, or [`NONE`].
    numbers: Box<[u16; PLACES]>,
    bits: Box<[u64; WORDS]>,
    /// Bits set in each group of words.
    groups: Box<[u16; GROUPS]>,
    /// Bits set in each [`WIDE`] groups.
    wide: [u16; GROUPS / WIDE],
    next: u16,
    /// The first number after the last [`Recency::forget_stale`].
    mark: u16,
    len: u16,
}

impl Recency {
    pub(super) fn new() -> Recency {
        Recency {
            pages: array(0),
            numbers: array(NONE),
            bits: array(0),
            groups: array(0),
            wide: [0; GROUPS / WIDE],
            next: 0,
            mark: 0,
            len: 0,
        }
    }

    /// Notes an access. Returns how many other pages were accessed since the page's last one, if it had one.
    pub(super) fn access(&mut self, page: u32, home: usize) -> Option<u32> {
        let place = self.find(page, home);
        let number = self.numbers[place];
        let between = (number != NONE).then(|| {
            let between = self.after(usize::from(number));
            self.clear(usize::from(number));
            between
        });
        if between.is_none() {
            self.pages[place] = page;
            self.len += 1;
        }
        self.numbers[place] = self.next;
        self.set(usize::from(self.next));
        self.next += 1;
        if usize::from(self.next) == NUMBERS {
            self.renumber();
        }
        between
    }

    /// Whether pages must go before the next access.
    pub(super) fn is_full(&self) -> bool {
        self.len >= MOST
    }

    pub(super) fn len(&self) -> u16 {
        self.len
    }

    /// Forgets the pages that were not accessed since the last call.
    pub(super) fn forget_stale(&mut self) {
        let mark = self.mark;
        self.retain_by(|_, number| number >= mark);
        self.mark = self.next;
    }

    /// Forgets the pages for which `stays` is false.
    pub(super) fn retain(&mut self, stays: impl Fn(u32) -> bool) {
        self.retain_by(|page, _| stays(page));
    }

    fn retain_by(&mut self, stays: impl Fn(u32, u16) -> bool) {
        let mut place = 0;
        while place < PLACES {
            let number = self.numbers[place];
            if number == NONE || stays(self.pages[place], number) {
                place += 1;
            } else {
                // Another page may have come into this place: it is looked at next.
                self.remove(place);
            }
        }
    }

    pub(super) fn allocated(&self) -> usize {
        size_of_val(&*self.pages)
            + size_of_val(&*self.numbers)
            + size_of_val(&*self.bits)
            + size_of_val(&*self.groups)
    }

    /// The page's place, or the empty one that it would get.
    fn find(&self, page: u32, home: usize) -> usize {
        let mut place = home % PLACES;
        while self.numbers[place] != NONE && self.pages[place] != page {
            place = (place + 1) % PLACES;
        }
        place
    }

    /// Empties a place, and moves pages of the same run back so that no gap lies before them.
    fn remove(&mut self, place: usize) {
        self.clear(usize::from(self.numbers[place]));
        self.len -= 1;
        let (mut hole, mut at) = (place, place);
        loop {
            at = (at + 1) % PLACES;
            if self.numbers[at] == NONE {
                break;
            }
            let home = super::table_bits(super::hash(u64::from(self.pages[at]))) % PLACES;
            let from_home = (at + PLACES - home) % PLACES;
            let from_hole = (at + PLACES - hole) % PLACES;
            if from_home >= from_hole {
                self.pages[hole] = self.pages[at];
                self.numbers[hole] = self.numbers[at];
                hole = at;
            }
        }
        self.numbers[hole] = NONE;
    }

    /// Gives the pages the numbers from zero, in the same order. Takes some tens of microseconds.
    #[cold]
    fn renumber(&mut self) {
        let mut before = [0_u16; NUMBERS / WORD];
        let mut sum = 0;
        for (before, word) in before.iter_mut().zip(self.bits.iter()) {
            *before = sum;
            sum += ones(*word);
        }
        let rank = |number: u16| {
            let (word, bit) = (usize::from(number) / WORD, usize::from(number) % WORD);
            before[word] + ones(self.bits[word] & ((1 << bit) - 1))
        };
        for number in self.numbers.iter_mut().filter(|number| **number != NONE) {
            *number = rank(*number);
        }
        self.mark = rank(self.mark);
        self.next = self.len;
        self.bits.fill(0);
        self.groups.fill(0);
        self.wide.fill(0);
        for number in 0..usize::from(self.len) {
            self.set(number);
        }
    }

    /// Bits set beyond `number`.
    fn after(&self, number: usize) -> u32 {
        let (word, bit) = (number / WORD, number % WORD);
        let group = word / GROUP;
        // Two shifts, as one by all 64 bits is undefined.
        let mut sum = (self.bits[word] >> bit >> 1).count_ones();
        for word in &self.bits[word + 1..(group + 1) * GROUP] {
            sum += word.count_ones();
        }
        let wide = group / WIDE;
        for count in &self.groups[group + 1..(wide + 1) * WIDE] {
            sum += u32::from(*count);
        }
        for count in &self.wide[wide + 1..] {
            sum += u32::from(*count);
        }
        sum
    }

    fn set(&mut self, number: usize) {
        self.bits[number / WORD] |= 1 << (number % WORD);
        self.groups[number / WORD / GROUP] += 1;
        self.wide[number / WORD / GROUP / WIDE] += 1;
    }

    fn clear(&mut self, number: usize) {
        self.bits[number / WORD] &= !(1 << (number % WORD));
        self.groups[number / WORD / GROUP] -= 1;
        self.wide[number / WORD / GROUP / WIDE] -= 1;
    }
}

/// Bits set in a word.
fn ones(word: u64) -> u16 {
    u16::try_from(word.count_ones()).expect("a word has 64 bits")
}

/// An array on the heap. Its length is known, so that no bounds are checked at run time.
fn array<T: Clone, const N: usize>(value: T) -> Box<[T; N]> {
    let array = vec![value; N].into_boxed_slice().try_into();
    array.unwrap_or_else(|_| unreachable!("it has that length"))
}
