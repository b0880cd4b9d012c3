//! A client's load: the pattern of its requests, and their verification.
//!
//! One [`Source`] per queue or connection generates requests and verifies their results. The clients only transport
//! them. A source knows nothing of rings or sockets.
//!
//! # Always true
//! - With verification no two requests in flight touch the same block.
//! # Units
//! - Offsets, lengths and block sizes in bytes.

use crate::stamp::{self, Ledger, Mismatch, mix};

/// The order in which blocks are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Uniformly random.
    Random,
    /// One after another, starting again at the end.
    Sequential,
}

/// A load.
#[derive(Clone, Debug)]
pub struct Load {
    /// The order of blocks.
    pub pattern: Pattern,
    /// Percentage of reads.
    pub read_percent: u8,
    /// Bytes per request; a multiple of 512.
    pub block: u32,
    /// Requests in flight per queue.
    pub depth: u16,
    /// First byte of the region on the disk.
    pub start: u64,
    /// Length of the region in bytes.
    pub length: u64,
    /// Number of writes between flushes; 0 for no flushes.
    pub flush_every: u32,
    /// Whether writes are stamped and reads are checked.
    pub verify: bool,
    /// The seed. The same seed gives the same requests.
    pub seed: u64,
}

impl Load {
    /// 4 KiB random reads over the first `length` bytes, `depth` in flight: the bench's usual load.
    #[must_use]
    pub fn random_reads(depth: u16, length: u64) -> Self {
        Self {
            pattern: Pattern::Random,
            read_percent: 100,
            block: 4096,
            depth,
            start: 0,
            length,
            flush_every: 0,
            verify: false,
            seed: 1,
        }
    }

    /// An equal number of stamped writes and checked reads, with flushes: the usual load of correctness tests.
    #[must_use]
    pub fn verified(depth: u16, length: u64) -> Self {
        Self {
            read_percent: 50,
            flush_every: 64,
            verify: true,
            ..Self::random_reads(depth, length)
        }
    }

    fn blocks(&self) -> u64 {
        (self.length / u64::from(self.block)).max(1)
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read data.
    Read,
    /// Write data.
    Write,
    /// Make completed writes durable.
    Flush,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Its kind.
    pub kind: Kind,
    /// First byte on the disk.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
    /// The number of a verified write, or the expected number of a verified read (0: any).
    pub sequence: u64,
}

impl Operation {
    /// A flush.
    pub const FLUSH: Self = Self {
        kind: Kind::Flush,
        offset: 0,
        length: 0,
        sequence: 0,
    };
}

/// Generates requests and verifies results.
#[derive(Clone, Debug)]
pub struct Source {
    load: Load,
    blocks: u64,
    state: u64,
    cursor: u64,
    unflushed: u32,
    ledger: Option<Ledger>,
    sweep: bool,
}

impl Source {
    /// A new source, which has written nothing yet.
    #[must_use]
    pub fn new(load: Load) -> Self {
        let blocks = load.blocks();
        let ledger = load.verify.then(|| {
            Ledger::new(
                usize::try_from(blocks).expect("a verified region's block count fits memory"),
            )
        });
        let state = mix(load.seed.wrapping_add(0x9E37_79B9_7F4A_7C15));
        Self {
            load,
            blocks,
            state,
            cursor: 0,
            unflushed: 0,
            ledger,
            sweep: false,
        }
    }

    /// Its load.
    #[must_use]
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// The record of written blocks, if it verifies.
    #[must_use]
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// From now on, reads every written block once, in order, and then ends.
    pub fn start_sweep(&mut self) {
        self.sweep = true;
        self.cursor = 0;
    }

    /// Continues the load after a sweep.
    pub fn end_sweep(&mut self) {
        self.sweep = false;
        self.cursor = 0;
    }

    /// The next request. None when a sweep has ended, or when every block of a verified region is in flight.
    #[inline]
    pub fn next_operation(&mut self) -> Option<Operation> {
        if self.ledger.is_some() {
            return if self.sweep {
                self.next_swept()
            } else {
                self.next_verified()
            };
        }
        if self.flush_is_due() {
            return Some(Operation::FLUSH);
        }
        let block = self.pick();
        let kind = self.pick_kind();
        Some(self.operation(kind, block, 0))
    }

    fn next_verified(&mut self) -> Option<Operation> {
        if self.flush_is_due() {
            return Some(Operation::FLUSH);
        }
        // A few tries find a free block unless almost all are in flight. Then the caller waits for completions.
        for _ in 0..64 {
            let block = self.pick();
            let index = index_of(block);
            let ledger = self.ledger.as_mut()?;
            if !ledger.take(index) {
                continue;
            }
            let kind = self.pick_kind();
            let ledger = self.ledger.as_mut()?;
            let sequence = match kind {
                Kind::Write => ledger.next_sequence(),
                _ => ledger.expected(index).unwrap_or(0),
            };
            return Some(self.operation(kind, block, sequence));
        }
        None
    }

    fn next_swept(&mut self) -> Option<Operation> {
        while self.cursor < self.blocks {
            let block = self.cursor;
            self.cursor += 1;
            let ledger = self.ledger.as_mut()?;
            if let Some(sequence) = ledger.expected(index_of(block)) {
                assert!(
                    ledger.take(index_of(block)),
                    "a sweep must start with nothing in flight"
                );
                return Some(self.operation(Kind::Read, block, sequence));
            }
        }
        None
    }

    /// Fills in a write's data. Without verification the buffer is left as it is.
    pub fn fill(&self, operation: &Operation, data: &mut [u8]) {
        stamp::fill(data, operation.offset, operation.sequence);
    }

    /// Processes a completed request of a verifying source. `data` is a read's data.
    ///
    /// # Errors
    /// The data differs from what was written there.
    pub fn answered(
        &mut self,
        operation: &Operation,
        ok: bool,
        data: &[u8],
    ) -> Result<(), Mismatch> {
        let Some(ledger) = self.ledger.as_mut() else {
            return Ok(());
        };
        if operation.kind == Kind::Flush {
            return Ok(());
        }
        let block = index_of((operation.offset - self.load.start) / u64::from(self.load.block));
        ledger.release(block);
        match operation.kind {
            Kind::Write if ok => ledger.acknowledge(block, operation.sequence),
            Kind::Read if ok && operation.sequence != 0 => {
                return stamp::check(data, operation.offset, operation.sequence);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether completions must be passed to [`Source::answered`].
    #[must_use]
    pub fn verifies(&self) -> bool {
        self.ledger.is_some()
    }

    fn operation(&mut self, kind: Kind, block: u64, sequence: u64) -> Operation {
        if kind == Kind::Write {
            self.unflushed += 1;
        }
        let offset = self.load.start + block * u64::from(self.load.block);
        Operation {
            kind,
            offset,
            length: self.load.block,
            sequence,
        }
    }

    #[inline]
    fn flush_is_due(&mut self) -> bool {
        let due = self.load.flush_every > 0 && self.unflushed >= self.load.flush_every;
        if due {
            self.unflushed = 0;
        }
        due
    }

    #[inline]
    fn pick(&mut self) -> u64 {
        match self.load.pattern {
            Pattern::Random => below(self.random(), self.blocks),
            Pattern::Sequential => {
                let block = self.cursor;
                self.cursor = (self.cursor + 1) % self.blocks;
                block
            }
        }
    }

    #[inline]
    fn pick_kind(&mut self) -> Kind {
        let share = self.load.read_percent;
        // A load of one kind needs no random number.
        if share == 100 || (share > 0 && below(self.random(), 100) < u64::from(share)) {
            Kind::Read
        } else {
            Kind::Write
        }
    }

    #[inline]
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }
}

/// Scales a random word to `0..limit` without a division.
#[inline]
fn below(word: u64, limit: u64) -> u64 {
    let scaled = (u128::from(word) * u128::from(limit)) >> 64;
    u64::try_from(scaled).expect("the upper half of the product has 64 bits")
}

fn index_of(block: u64) -> usize {
    usize::try_from(block).expect("the ledger has every block of the region")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_requests_stay_in_the_region_and_cover_it() {
        let mut load = Load::random_reads(1, 16 * 4096);
        load.start = 1 << 20;
        let mut source = Source::new(load);
        let mut seen = [false; 16];
        for _ in 0..1000 {
            let operation = source.next_operation().expect("an endless load");
            let block = (operation.offset - (1 << 20)) / 4096;
            seen[usize::try_from(block).expect("small")] = true;
        }
        assert!(seen.iter().all(|block| *block));
    }

    #[test]
    fn sequential_requests_wrap_around() {
        let mut load = Load::random_reads(1, 3 * 4096);
        load.pattern = Pattern::Sequential;
        let mut source = Source::new(load);
        let offsets: Vec<u64> = (0..4)
            .map(|_| source.next_operation().expect("endless").offset)
            .collect();
        assert_eq!(offsets, [0, 4096, 8192, 0]);
    }

    #[test]
    fn a_verified_block_has_one_request_at_a_time() {
        let mut source = Source::new(Load::verified(4, 2 * 4096));
        let one = source.next_operation().expect("a free block");
        let two = source.next_operation().expect("the other free block");
        assert_ne!(one.offset, two.offset);
        assert!(source.next_operation().is_none());
        source
            .answered(&one, false, &[])
            .expect("a failed request is not verified");
        assert_eq!(
            source.next_operation().expect("free again").offset,
            one.offset
        );
    }

    #[test]
    fn flushes_follow_a_fixed_number_of_writes() {
        let mut load = Load::random_reads(1, 1 << 20);
        (load.read_percent, load.flush_every) = (0, 3);
        let mut source = Source::new(load);
        let kinds: Vec<Kind> = (0..8)
            .map(|_| source.next_operation().expect("endless").kind)
            .collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Flush).count(), 2);
        assert_eq!((kinds[3], kinds[7]), (Kind::Flush, Kind::Flush));
    }

    #[test]
    fn a_sweep_reads_exactly_the_written_blocks() {
        let mut load = Load::verified(1, 8 * 4096);
        (load.read_percent, load.flush_every) = (0, 0);
        let mut source = Source::new(load);
        let write = source.next_operation().expect("a write");
        source
            .answered(&write, true, &[])
            .expect("a write has no data to verify");
        source.start_sweep();
        let read = source.next_operation().expect("the one block written");
        assert_eq!((read.offset, read.sequence), (write.offset, write.sequence));
        assert!(source.next_operation().is_none());
        let mut data = vec![0; 4096];
        source.fill(&write, &mut data);
        source
            .answered(&read, true, &data)
            .expect("the stamp that was written");
        source.start_sweep();
        let read = source.next_operation().expect("the block again");
        data[9] ^= 1;
        source
            .answered(&read, true, &data)
            .expect_err("a corrupted block");
    }
}
