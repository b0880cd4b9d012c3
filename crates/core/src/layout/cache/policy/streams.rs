//! Detection of sequential runs: requests that begin where another ended.
//!
//! The detector follows [`STREAMS`] streams at a time. Each is known by the offset at which its next request begins. A request
//! that continues none begins a new stream, in place of the one that was continued least recently.
//!
//! # Always true
//! - a stream is in the chain that its next offset's hash names, and once in the order of use
//! - nothing is allocated after [`Streams::new`]

use alloc::boxed::Box;
use alloc::vec;

/// Streams that are followed.
pub const STREAMS: usize = 128;

/// A run is sequential from this length on, in bytes.
pub const SEQUENTIAL: u64 = 1 << 20;

/// The chains, by the hash of the next offset.
const CHAINS: usize = 256;
/// Ends a chain.
const NONE: u8 = u8::MAX;

/// See the module.
#[derive(Clone, Debug)]
pub struct Streams {
    streams: Box<[Stream]>,
    /// The first stream of each chain.
    chains: Box<[u8]>,
    newest: u8,
    oldest: u8,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    next: u64,
    run: u64,
    chain: u8,
    newer: u8,
    older: u8,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams::new()
    }
}

impl Streams {
    /// A detector that has seen nothing.
    pub fn new() -> Streams {
        let last = u8::try_from(STREAMS - 1).expect("few");
        let streams = (0..=last).map(|n| Stream {
            // No request ends there.
            next: u64::MAX,
            run: 0,
            chain: if n < last { n + 1 } else { NONE },
            newer: n.checked_sub(1).unwrap_or(NONE),
            older: if n < last { n + 1 } else { NONE },
        });
        let mut chains = vec![NONE; CHAINS].into_boxed_slice();
        chains[chain(u64::MAX)] = 0;
        Streams {
            streams: streams.collect(),
            chains,
            newest: 0,
            oldest: last,
        }
    }

    /// Takes a request, and says whether it belongs to a sequential run.
    pub fn access(&mut self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        let (stream, run) = match self.find(offset) {
            Some(stream) => (stream, self.streams[usize::from(stream)].run + len),
            None => (self.oldest, len),
        };
        self.unchain(stream);
        let place = &mut self.streams[usize::from(stream)];
        (place.next, place.run) = (end, run);
        place.chain = self.chains[chain(end)];
        self.chains[chain(end)] = stream;
        self.renew(stream);
        run >= SEQUENTIAL
    }

    /// Bytes that it takes, with all that it allocated.
    pub fn memory(&self) -> usize {
        size_of::<Streams>() + size_of_val(&*self.streams) + size_of_val(&*self.chains)
    }

    fn find(&self, offset: u64) -> Option<u8> {
        let mut at = self.chains[chain(offset)];
        while at != NONE {
            let stream = &self.streams[usize::from(at)];
            if stream.next == offset && stream.run > 0 {
                return Some(at);
            }
            at = stream.chain;
        }
        None
    }

    /// Takes a stream out of its chain.
    fn unchain(&mut self, stream: u8) {
        let Stream {
            next, chain: rest, ..
        } = self.streams[usize::from(stream)];
        let head = &mut self.chains[chain(next)];
        if *head == stream {
            *head = rest;
            return;
        }
        let mut at = *head;
        while at != NONE {
            let before = &mut self.streams[usize::from(at)];
            if before.chain == stream {
                before.chain = rest;
                return;
            }
            at = before.chain;
        }
    }

    /// Makes a stream the newest.
    fn renew(&mut self, stream: u8) {
        if self.newest == stream {
            return;
        }
        let Stream { newer, older, .. } = self.streams[usize::from(stream)];
        self.streams[usize::from(newer)].older = older;
        match older {
            NONE => self.oldest = newer,
            older => self.streams[usize::from(older)].newer = newer,
        }
        self.streams[usize::from(self.newest)].newer = stream;
        let place = &mut self.streams[usize::from(stream)];
        (place.newer, place.older) = (NONE, self.newest);
        self.newest = stream;
    }
}

fn chain(offset: u64) -> usize {
    let hash = (offset >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    usize::try_from(hash).expect("eight bits")
}
