//! A disk with a flash cache, whose targets complete everything at once, or once a test lets them.

use std::collections::{BTreeMap, BTreeSet};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::cache::policy::Params;
use tidegate_core::layout::cache::{CacheMode, CacheSetup, PAGE};
use tidegate_core::layout::{CacheReport, LayoutNotice, LayoutSpec, Members, Refusal, Tree};
use tidegate_core::request::{Data, DiskId, Fault, Flags, Op, Outcome, Request, Token};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

pub(crate) const DISK: DiskId = DiskId(0);
/// Bytes of the disk.
pub(crate) const SIZE: u64 = 1 << 30;

/// A disk with a cache, whose targets complete everything at once. All checksums are the same.
pub(crate) struct World {
    pub(crate) shard: Shard,
    /// Another I/O thread: the disk changes to it before each event.
    other: Shard,
    pub(crate) out: Vec<Effect>,
    /// Why it does not open.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) blocks: BTreeMap<(u8, u64), Box<[u8; BLOCK]>>,
    pub(crate) token: u64,
    pub(crate) now: Time,
    /// Reads of the disk and of flash.
    pub(crate) reads: [u64; 2],
    /// Targets that were written.
    pub(crate) writes: BTreeSet<u8>,
    /// Whether the disk is held.
    pub(crate) held: bool,
    pub(crate) sum: u32,
    /// Whether flash fails what is read from it.
    pub(crate) flash_fails: bool,
    /// Which kinds of effects a test lets end later: reads of flash, everything, blocks of the cache's own.
    pub(crate) keeps: Keeps,
    /// The ends of these, in order, and what each was about.
    pub(crate) kept: Vec<Event>,
    /// Where flash was written: device and offset.
    pub(crate) flash_writes: Vec<(u8, u64)>,
    pub(crate) answers: Vec<Outcome>,
    pub(crate) corrupt: u32,
    /// How often the state of the policy was to be stored.
    pub(crate) due: u32,
    /// Chunks that the cache has given back.
    pub(crate) shrunk: u32,
    /// Whether requests may fail.
    pub(crate) may_fail: bool,
    /// The operation that was begun last.
    pub(crate) last: Option<Op>,
}

fn setup(chunks: u32, policy: Option<Params>, mode: CacheMode, devices: u8) -> CacheSetup {
    CacheSetup {
        cache: [9; 16],
        disk: [7; 16],
        size: SIZE,
        devices,
        area: Area::new(16 * PAGE, (0..chunks).collect()).expect("enough"),
        mode,
        attachments: [0, 1],
        has_dirty: false,
        without: 0,
        policy,
        policy_state: Vec::new(),
    }
}

/// What ends later.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    Nothing,
    FlashReads,
    All,
    Blocks,
}

impl World {
    pub(crate) fn new(chunks: u32, policy: Option<Params>) -> World {
        World::of_mode(chunks, policy, CacheMode::WriteThrough)
    }

    pub(crate) fn of_mode(chunks: u32, policy: Option<Params>, mode: CacheMode) -> World {
        World::of_devices(chunks, policy, mode, 1)
    }

    pub(crate) fn of_devices(
        chunks: u32,
        policy: Option<Params>,
        mode: CacheMode,
        devices: u8,
    ) -> World {
        World::built(setup(chunks, policy, mode, devices))
    }

    /// A disk whose cache goes on from what its policy has learned.
    pub(crate) fn resumed(chunks: u32, policy_state: &[u8]) -> World {
        World::built(CacheSetup {
            policy_state: policy_state.to_vec(),
            ..setup(chunks, None, CacheMode::WriteThrough, 1)
        })
    }

    /// A disk whose cache finds these blocks on its device, of the last use that its descriptor names.
    pub(crate) fn over(blocks: BTreeMap<(u8, u64), Box<[u8; BLOCK]>>, has_dirty: bool) -> World {
        let cache = CacheSetup {
            attachments: [1, 2],
            has_dirty,
            ..setup(4, None, CacheMode::WriteThrough, 1)
        };
        World::finding(blocks, cache)
    }

    fn built(cache: CacheSetup) -> World {
        World::finding(BTreeMap::new(), cache)
    }

    fn finding(blocks: BTreeMap<(u8, u64), Box<[u8; BLOCK]>>, cache: CacheSetup) -> World {
        let [shard, other] = [1000, 2000].map(|first| {
            let mut shard = Shard::new(64);
            let arena = (first..first + 64).map(|buffer| Data { buffer, start: 0 });
            shard.give_arena(arena.collect());
            shard
        });
        let members = Members::new([7; 16], SIZE, 1);
        let stack = Stack::new(Vec::new()).over(Tree::cached(LayoutSpec::Plain, members, cache));
        let mut world = World {
            shard,
            other,
            out: Vec::new(),
            blocks,
            refusal: None,
            token: 0,
            now: Time::ZERO,
            reads: [0; 2],
            writes: BTreeSet::new(),
            held: false,
            sum: 0,
            flash_fails: false,
            keeps: Keeps::Nothing,
            kept: Vec::new(),
            flash_writes: Vec::new(),
            answers: Vec::new(),
            corrupt: 0,
            due: 0,
            shrunk: 0,
            may_fail: false,
            last: None,
        };
        world.handle(Event::Attach {
            disk: DISK,
            size: SIZE,
            read_only: false,
            stack,
            control: None,
        });
        world
    }

    pub(crate) fn handle(&mut self, event: Event) {
        self.take(event);
        while !self.out.is_empty() {
            for effect in std::mem::take(&mut self.out) {
                if let Some(event) = self.perform(effect) {
                    self.take(event);
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        let mut out = std::mem::take(&mut self.out);
        self.hop(&mut out);
        self.out = out;
        let Event::Finished { disk, io, outcome } = event else {
            return self.shard.handle(self.now, event, &mut self.out);
        };
        let sum = self.sum;
        self.shard.ended(self.now, disk, io, outcome, |_, _| sum);
        self.shard.flow(self.now, &mut self.out);
    }

    /// The disk goes to the other I/O thread, with everything that is under way.
    fn hop(&mut self, out: &mut Vec<Effect>) {
        if let Some(moving) = self.shard.take_out(self.now, DISK, out) {
            std::mem::swap(&mut self.shard, &mut self.other);
            let given = self.shard.take_in(self.now, DISK, moving, out);
            self.other.give_arena(given);
        }
    }

    pub(crate) fn perform(&mut self, effect: Effect) -> Option<Event> {
        let disk = DISK;
        let outcome = Ok(());
        Some(match effect {
            Effect::Start {
                io,
                target,
                op,
                offset,
                ..
            } => {
                self.last = Some(op);
                if op == Op::Write && target.0 > 0 {
                    self.flash_writes.push((target.0, offset));
                }
                if op == Op::Read {
                    self.reads[usize::from(target.0 > 0)] += 1;
                } else if op == Op::Write {
                    self.writes.insert(target.0);
                }
                let fails = self.flash_fails && op == Op::Read && target.0 > 0;
                let outcome = if fails { Err(Fault::Io) } else { outcome };
                let event = Event::Finished { disk, io, outcome };
                let reads_flash = op == Op::Read && target.0 > 0;
                let is_kept =
                    self.keeps == Keeps::All || self.keeps == Keeps::FlashReads && reads_flash;
                if is_kept {
                    self.kept.push(event);
                    return None;
                }
                event
            }
            Effect::Sum { io, .. } => {
                let sum = self.sum;
                Event::Summed { disk, io, sum }
            }
            Effect::ReadBlock {
                io, target, offset, ..
            } => {
                let block = self.blocks.get(&(target.0, offset)).cloned();
                let block = block.unwrap_or_else(|| Box::new([0; BLOCK]));
                let outcome = Ok(Some(block));
                Event::BlockDone { disk, io, outcome }
            }
            Effect::WriteBlock {
                io,
                target,
                offset,
                block,
                ..
            } => {
                self.blocks.insert((target.0, offset), block);
                let outcome = Ok(None);
                let event = Event::BlockDone { disk, io, outcome };
                if self.keeps == Keeps::Blocks {
                    self.kept.push(event);
                    return None;
                }
                event
            }
            Effect::LayoutNotice { notice, .. } => {
                self.corrupt += u32::from(matches!(*notice, LayoutNotice::CacheCorrupt { .. }));
                self.due += u32::from(*notice == LayoutNotice::CacheStateDue);
                if let LayoutNotice::CacheShrunk { chunks } = *notice {
                    self.shrunk += chunks;
                }
                return None;
            }
            Effect::Opened { outcome, .. } => {
                self.refusal = outcome.err();
                return None;
            }
            Effect::Held { .. } => {
                self.held = true;
                return None;
            }
            Effect::Answer { outcome, .. } => {
                assert!(self.may_fail || outcome == Ok(()));
                self.answers.push(outcome);
                return None;
            }
            _ => return None,
        })
    }

    pub(crate) fn read(&mut self, offset: u64, len: u64) {
        self.request(Op::Read, offset, len);
    }

    pub(crate) fn write(&mut self, offset: u64, len: u64) {
        self.request(Op::Write, offset, len);
    }

    pub(crate) fn request(&mut self, op: Op, offset: u64, len: u64) {
        self.token += 1;
        self.handle(Event::Submitted {
            disk: DISK,
            token: Token(self.token),
            request: Request {
                op,
                flags: Flags::NONE,
                offset,
                len,
                data: Data {
                    buffer: 0,
                    start: 0,
                },
                arrived: self.now,
            },
        });
    }

    pub(crate) fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        while self.shard.deadline().is_some_and(|(at, _)| at <= self.now) {
            self.handle(Event::Ticked);
        }
    }

    pub(crate) fn cache(&self) -> CacheReport {
        let report = self.shard.layout_report(DISK);
        report.and_then(|report| report.cache).expect("a cache")
    }
}
