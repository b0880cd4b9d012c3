//! Memory and opening of a pool's disk: what it takes is counted by an allocator, for the whole disk.
//!
//! The headers of its grants are made up as they are read, so the members need no bytes.

use cap::Cap;
use std::alloc::System;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::pool::{
    EXTENTS_MAX, Entry, Generation, Geometry, Grant, Header, Owner, PoolSetup,
};
use tidegate_core::layout::{Target, Tree};
use tidegate_core::request::{DiskId, Op};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::Time;

/// Counts the bytes that are allocated, and limits nothing.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// One test at a time, so that the other's memory is not counted.
static ALONE: Mutex<()> = Mutex::new(());

const POOL: [u8; 16] = [9; 16];
const DISK: [u8; 16] = [7; 16];
/// Far apart, as a guest's files are.
const STRIDE: u32 = 97;
const TIB: u64 = 1 << 40;

fn grant(index: u32) -> Grant {
    Grant {
        column: u16::from(index % 2 == 1),
        number: index / 2,
        life: u64::from(index) + 1,
    }
}

/// The header of a grant of which every extent has a part of the disk.
fn header(index: u32) -> Header {
    let entry = |nth: u32| match nth == 0 && Geometry::default().has_headers(index) {
        true => Entry::default(),
        false => Entry {
            extent: (index * EXTENTS_MAX + nth) * STRIDE,
            generation: Generation::FIRST,
            sub_blocks: u16::MAX,
        },
    };
    Header {
        owner: Owner {
            pool: POOL,
            disk: DISK,
            life: grant(index).life,
        },
        sequence: 1,
        index,
        column: grant(index).column,
        number: grant(index).number,
        extents: (0..EXTENTS_MAX).map(entry).collect(),
        marks: Vec::new(),
    }
}

/// The block of a member at this offset: a header at the first of its two places, otherwise nothing.
fn block(target: Target, offset: u64) -> Box<[u8; BLOCK]> {
    let geometry = Geometry::default();
    let bytes = u64::from(geometry.extents) * geometry.extent();
    let of = offset - geometry.data_at;
    let with =
        u32::try_from(of / bytes).expect("offsets of a small pool") * 2 + u32::from(target.0);
    let nth = u32::try_from(of % bytes / BLOCK as u64).expect("offsets of a small pool");
    let first =
        u32::try_from(geometry.header_at(0, 0) / BLOCK as u64).expect("offsets of a small pool");
    match nth.checked_sub(first) {
        Some(nth) if nth % 2 == 0 => header(with + nth / 2).encode(),
        _ => Box::new([0; BLOCK]),
    }
}

/// How long this thread has been on a CPU, as the kernel counts it: other programs take no part in it.
fn on_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says so");
    let nanos = text.split(' ').next().expect("three numbers");
    Duration::from_nanos(nanos.parse().expect("a number"))
}

/// A disk that is open, and what opening it has taken.
struct Opened {
    _shard: Shard,
    /// Extents that have data.
    extents: usize,
    /// Bytes for each of them: in the end, and the most while it was opened.
    live: f64,
    most: f64,
    /// Blocks that were read, and the most at once.
    blocks: usize,
    at_once: usize,
    /// Time on a CPU, without what the test takes to make blocks up.
    took: Duration,
}

fn open(size: u64, grants: u32) -> Opened {
    let mut shard = Shard::new(64);
    let before = MEMORY.allocated();
    let mut most = before;
    let setup = PoolSetup {
        pool: POOL,
        disk: DISK,
        size,
        geometry: Geometry::default(),
        columns: vec![Target(0), Target(1)],
        members: Vec::new(),
        grants: (0..grants).map(grant).map(Some).collect(),
        ancestors: Vec::new(),
        thick: false,
    };
    let disk = DiskId(0);
    let (mut blocks, mut at_once) = (0, 0);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let mut took = Duration::ZERO;
    let begun = on_cpu();
    let attach = Event::Attach {
        disk,
        size,
        read_only: false,
        stack: Stack::new(Vec::new()).over(Tree::pool(setup, None)),
        control: None,
    };
    shard.handle(Time::ZERO, attach, &mut out);
    took += on_cpu().saturating_sub(begun);
    let mut is_open = false;
    while !out.is_empty() {
        at_once = at_once.max(out.len());
        most = most.max(MEMORY.allocated());
        for effect in out.drain(..) {
            match effect {
                Effect::ReadBlock {
                    target, io, offset, ..
                } => {
                    let outcome = Ok(Some(block(target, offset)));
                    events.push(Event::BlockDone { disk, io, outcome });
                }
                Effect::Opened { outcome, .. } => {
                    assert_eq!(outcome, Ok(()));
                    is_open = true;
                }
                // Space is zeroed ahead, and a full disk asks for more.
                Effect::Start { op, .. } => assert_eq!(op, Op::WriteZeroes),
                Effect::LayoutNotice { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        blocks += events.len();
        let begun = on_cpu();
        for event in events.drain(..) {
            shard.handle(Time::ZERO, event, &mut out);
        }
        took += on_cpu().saturating_sub(begun);
    }
    assert!(is_open);
    drop((out, events));
    let report = shard.layout_report(disk).expect("attached").pool;
    let mapped = report.expect("of a pool").mapped;
    let headers = grants.div_ceil(Geometry::default().headers);
    let extents = (grants * EXTENTS_MAX - headers) as usize;
    assert_eq!(mapped, extents as u64);
    let each = |bytes: usize| (bytes - before) as f64 / extents as f64;
    Opened {
        extents,
        live: each(MEMORY.allocated()),
        most: each(most),
        blocks,
        at_once,
        took,
        _shard: shard,
    }
}

#[test]
fn a_mapped_extent_takes_32_bytes_at_most_for_the_whole_disk() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // The tables grow in steps: many sizes.
    for grants in [1_000, 1_270, 1_600, 2_000, 2_600, 3_300] {
        let opened = open(TIB * 64, grants);
        assert!(
            opened.live <= 32.0,
            "{grants} grants: {} bytes",
            opened.live
        );
        assert!(
            opened.most <= 48.0,
            "{grants} grants: {} bytes",
            opened.most
        );
    }
}

#[test]
fn a_thin_disk_of_64_tib_takes_its_mapped_part_and_opens_fast() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // One percent is mapped.
    let grants = 10_570;
    let opened = open(TIB * 64, grants);
    let whole = TIB * 64 / Geometry::default().extent();
    assert!(opened.extents as u64 * 100 >= whole, "{}", opened.extents);
    // Two places of the root and of each header, and nothing that the size of the disk drives.
    assert_eq!(opened.blocks, 2 + 2 * grants as usize);
    assert!(opened.at_once <= 128, "{}", opened.at_once);
    assert!(opened.live <= 32.0, "{} bytes", opened.live);
    if !cfg!(debug_assertions) {
        println!("opened in {:?}", opened.took);
        assert!(opened.took < Duration::from_secs(1), "{:?}", opened.took);
    }
}
