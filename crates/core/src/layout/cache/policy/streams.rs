//! Detection of sequential runs: requests that begin where another ended.
//!
//! The detector remembers the last [`REMEMBERED`] requests: where each ended, and how long the run is that it is the last one
//! of. A request that begins where one of them ended continues its run.
//!
//! # Always true
//! - a request is remembered in one place of a ring, and in the chain that the hash of its end names, from the newest one on
//! - a chain goes on as long as its requests are in the ring: nothing is ever taken out of one
//! - nothing is allocated after [`Streams::new`]

use alloc::boxed::Box;
use alloc::vec;

/// Requests that are remembered: so many streams can be followed at a time. Origin: chosen; a stream is lost among random
/// requests if it has less than one of so many.
pub const REMEMBERED: usize = 256;

/// A run is sequential from this length on, in bytes.
pub const SEQUENTIAL: u64 = 1 << 20;

/// Chains of requests with the same hash of their end.
const CHAINS: usize = 512;

/// See the module.
#[derive(Clone, Debug)]
pub struct Streams {
    ring: Box<[Remembered; REMEMBERED]>,
    /// The newest request of each chain, by its number.
    chains: Box<[u16; CHAINS]>,
    /// The number of the next request. It wraps.
    next: u16,
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    /// More of the hash of its end. One of four thousand million others is taken for it.
    end: u32,
    /// Bytes of its run; none if that was continued.
    run: u32,
    /// The one before in its chain.
    older: u16,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams::new()
    }
}

impl Streams {
    /// A detector that has seen nothing.
    pub fn new() -> Streams {
        let nothing = Remembered {
            end: 0,
            run: 0,
            older: 0,
        };
        Streams {
            ring: boxed(nothing),
            chains: boxed(0),
            // Number 0 is not remembered any more.
            next: MOST + 1,
        }
    }

    /// Takes a request, and says whether it belongs to a sequential run.
    #[inline(always)]
    pub fn access(&mut self, offset: u64, len: u64) -> bool {
        let bytes = u32::try_from(len).unwrap_or(u32::MAX);
        let run = self.take_run(offset).saturating_add(bytes);
        let (chain, end) = hash(offset.wrapping_add(len));
        let newest = &mut self.chains[chain];
        self.ring[usize::from(self.next) % REMEMBERED] = Remembered {
            end,
            run,
            older: *newest,
        };
        *newest = self.next;
        self.next = self.next.wrapping_add(1);
        u64::from(run) >= SEQUENTIAL
    }

    /// Bytes that it takes, with all that it allocated.
    pub fn memory(&self) -> usize {
        size_of::<Streams>() + size_of_val(&*self.ring) + size_of_val(&*self.chains)
    }

    /// The length of the run that ended here, which is continued now; nothing if there is none.
    #[inline]
    fn take_run(&mut self, offset: u64) -> u32 {
        let (chain, start) = hash(offset);
        let mut number = self.chains[chain];
        let mut age = self.next.wrapping_sub(number);
        // A number from before they wrapped may look young. Its place has another request then, in another chain perhaps:
        // ages increase, so the way has an end, and whatever ends where this request begins is a right answer.
        for _ in 0..LONGEST {
            if age > MOST {
                break;
            }
            let at = &mut self.ring[usize::from(number) % REMEMBERED];
            if at.end == start && at.run > 0 {
                return core::mem::take(&mut at.run);
            }
            number = at.older;
            let older = self.next.wrapping_sub(number);
            if older <= age {
                break;
            }
            age = older;
        }
        0
    }
}

/// So much of a chain is looked at: a guest that reads one place again and again makes it long.
const LONGEST: usize = 8;

/// [`REMEMBERED`], as an age.
const MOST: u16 = 256;

const _: () = assert!(MOST as usize == REMEMBERED, "the same number");

fn boxed<T: Clone, const N: usize>(value: T) -> Box<[T; N]> {
    let boxed = vec![value; N].into_boxed_slice();
    boxed.try_into().ok().expect("it has this length")
}

/// The chain of an offset, and 32 other bits of its hash.
fn hash(offset: u64) -> (usize, u32) {
    // Fibonacci hashing: Knuth, The Art of Computer Programming 3, 6.4.
    let hash = offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let rest = u32::try_from(hash >> 23 & u64::from(u32::MAX)).expect("32 bits");
    (usize::try_from(hash >> 55).expect("nine bits"), rest)
}
