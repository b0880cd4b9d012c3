//! A pool's disk against a model, with random I/O, generations and crashes.
//!
//! The model has the bytes of each sector, and after a crash the versions since the last flush that a sector may have.

use super::*;
use crate::units::Span;
use alloc::collections::BTreeSet;
use alloc::vec;

const SECTOR: u64 = 512;
const EXTENTS: u64 = 10;
const SECTORS: u64 = EXTENTS * EXTENT / SECTOR;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// What each sector has: one byte, everywhere in it.
type Bytes = Vec<u8>;

struct Model {
    now: Bytes,
    /// Since the last flush, by sector.
    versions: Vec<BTreeSet<u8>>,
    snapshots: BTreeMap<Generation, Bytes>,
}

impl Model {
    fn set(&mut self, sector: u64, byte: u8) {
        let sector = usize::try_from(sector).unwrap();
        self.now[sector] = byte;
        self.versions[sector].insert(byte);
    }

    fn settle(&mut self) {
        for (versions, byte) in self.versions.iter_mut().zip(&self.now) {
            *versions = BTreeSet::from([*byte]);
        }
    }
}

fn sectors(world: &mut World) -> Bytes {
    let bytes = world.read(0, EXTENTS * EXTENT);
    let sectors = bytes.chunks(usize::try_from(SECTOR).unwrap());
    let one = |sector: &[u8]| {
        assert!(sector.iter().all(|it| *it == sector[0]), "a mixed sector");
        sector[0]
    };
    sectors.map(one).collect()
}

fn range(random: &mut Random) -> (u64, u64) {
    let len = match random.below(4) {
        0 => 1 + random.below(7),
        1 => 8,
        2 => EXTENT / SECTOR,
        _ => 1 + random.below(300),
    };
    let start = match random.below(3) {
        0 => random.below(EXTENTS) * EXTENT / SECTOR,
        1 => random.below(SECTORS / 8) * 8,
        _ => random.below(SECTORS),
    };
    (start, len.min(SECTORS - start))
}

fn run(seed: u64, steps: u32) -> u64 {
    let mut random = Random(seed);
    let mut world = World::with(EXTENTS * EXTENT, 12);
    let mut model = Model {
        now: vec![0; usize::try_from(SECTORS).unwrap()],
        versions: vec![BTreeSet::from([0]); usize::try_from(SECTORS).unwrap()],
        snapshots: BTreeMap::new(),
    };
    let mut copies = 0;
    let mut moved = 0;
    assert_eq!(world.order(LayoutOrder::Readers(false)), Ok(()));
    for step in 0..steps {
        let what = random.below(112);
        let byte = u8::try_from(1 + random.below(200)).unwrap();
        match what {
            0..50 => {
                let (start, len) = range(&mut random);
                let flags = match random.below(8) {
                    0 => Flags::FUA,
                    _ => Flags::NONE,
                };
                let bytes = vec![byte; usize::try_from(len * SECTOR).unwrap()];
                let len_of = len * SECTOR;
                let outcome = world.io(Op::Write, flags, start * SECTOR, &bytes, len_of);
                assert_eq!(outcome, Ok(()));
                for sector in start..start + len {
                    model.set(sector, byte);
                    if flags == Flags::FUA {
                        let sector = usize::try_from(sector).unwrap();
                        model.versions[sector] = BTreeSet::from([byte]);
                    }
                }
            }
            50..62 => {
                let (start, len) = range(&mut random);
                let op = match random.below(2) {
                    0 => Op::Discard,
                    _ => Op::WriteZeroes,
                };
                let outcome = world.io(op, Flags::NONE, start * SECTOR, &[], len * SECTOR);
                assert_eq!(outcome, Ok(()));
                if op == Op::WriteZeroes {
                    (start..start + len).for_each(|sector| model.set(sector, 0));
                } else {
                    // A sub-block that is covered has anything, as its member says; here what is read now.
                    let found = sectors(&mut world);
                    for (sector, byte) in (0..).zip(found) {
                        let old = model.now[usize::try_from(sector).unwrap()];
                        let inside = (start..start + len).contains(&sector);
                        assert!(byte == old || inside, "step {step}: {sector}");
                        let allowed = [old, 0, 0xdc];
                        assert!(allowed.contains(&byte), "step {step}: {sector} has {byte}");
                        model.set(sector, byte);
                        if inside {
                            let sector = usize::try_from(sector).unwrap();
                            model.versions[sector].extend(allowed);
                        }
                    }
                }
            }
            62..72 => {
                assert_eq!(world.flush(), Ok(()));
                model.settle();
            }
            72..78 => {
                let taken = world.snapshot();
                model.settle();
                model.snapshots.insert(taken, model.now.clone());
            }
            78..81 if !model.snapshots.is_empty() => {
                let nth = usize::try_from(random.below(model.snapshots.len() as u64)).unwrap();
                let (to, bytes) = model.snapshots.iter().nth(nth).unwrap();
                assert_eq!(world.order(LayoutOrder::RollBack(*to)), Ok(()));
                model.now = bytes.clone();
                model.settle();
            }
            81..87 if !model.snapshots.is_empty() => {
                let nth = usize::try_from(random.below(model.snapshots.len() as u64)).unwrap();
                let gone = *model.snapshots.keys().nth(nth).unwrap();
                model.snapshots.remove(&gone);
                assert_eq!(world.order(LayoutOrder::DeleteGeneration(gone)), Ok(()));
            }
            100..112 => {
                let column = u32::try_from(random.below(3)).unwrap();
                let columns = if column < 2 { 1 << column } else { 0 };
                world.drained = columns;
                let order = match random.below(3) {
                    0 => LayoutOrder::Vacate { columns },
                    _ => LayoutOrder::Place {
                        extent: u32::try_from(random.below(EXTENTS)).unwrap(),
                        count: 3,
                        columns: 1 << random.below(2),
                    },
                };
                if let LayoutOrder::Place { .. } = order {
                    world.drained = 0;
                    assert_eq!(world.order(LayoutOrder::Vacate { columns: 0 }), Ok(()));
                }
                assert_eq!(world.order(order), Ok(()));
                // What follows comes while they move.
                for _ in 0..random.below(60) {
                    world.step();
                }
            }
            87..90 => {
                copies += world.report().copies;
                moved += world.report().moved;
                for _ in 0..random.below(6) {
                    world.step();
                }
                if random.below(2) == 0 {
                    world.keep_all();
                }
                world.crash();
                assert_eq!(world.order(LayoutOrder::Readers(false)), Ok(()));
                let found = sectors(&mut world);
                for (sector, byte) in found.iter().enumerate() {
                    let versions = &model.versions[sector];
                    assert!(
                        versions.contains(byte),
                        "step {step}: sector {sector} has {byte}, not one of {versions:?}"
                    );
                }
                model.now = found;
                // A read does not make it durable, but the crash left nothing that is not.
                model.settle();
            }
            90..93 => {
                copies += world.report().copies;
                world.hook(|pool, cx| pool.close(cx));
                world.run();
                world.open(None);
                world.run();
                assert_eq!(world.opened, Some(Ok(())));
                assert_eq!(world.order(LayoutOrder::Readers(false)), Ok(()));
            }
            93..97 => world.wait(Span::from_secs(2)),
            _ => {
                let shown = model.snapshots.iter().next_back();
                let shown = shown.map(|(taken, bytes)| (*taken, bytes.clone()));
                if let Some((taken, bytes)) = shown {
                    let mut view = World::with(EXTENTS * EXTENT, 12);
                    view.stores.clone_from(&world.stores);
                    view.grants.clone_from(&world.grants);
                    view.open(Some(taken));
                    view.run();
                    assert_eq!(view.opened, Some(Ok(())));
                    assert_eq!(sectors(&mut view), bytes, "step {step}: {taken:?}");
                }
            }
        }
        if step % 4 == 0 {
            let found = sectors(&mut world);
            let differs = found.iter().zip(&model.now).position(|(a, b)| a != b);
            let values = differs.map(|at| (at, found[at], model.now[at]));
            assert_eq!(values, None, "step {step}, which was {what}");
        }
    }
    assert!(moved + world.report().moved > 0, "seed {seed}");
    copies
}

#[test]
fn a_disk_has_what_a_model_has() {
    let mut copies = 0;
    for seed in 1..=6 {
        copies += run(seed, 250);
    }
    assert!(copies > 50, "{copies}: snapshots are written over");
}
