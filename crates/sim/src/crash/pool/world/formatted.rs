//! The beginning of a run: a pool on stores that others have used before.
//!
//! # Always true
//! - Each sector has bytes of an earlier tenant, which no disk may show.
//! - Headers and roots of an earlier pool are left, of disks with the same identities in the same grants.

use super::{VIEWS, World};
use crate::crash::choice::RecordedChoices;
use crate::crash::pool::catalog::Catalog;
use crate::crash::pool::oracle::{Disk, Oracle};
use crate::crash::pool::{COLUMNS_MAX, EXTENT, GEOMETRY, SUB_BLOCK, Setup};
use crate::crash::store::Store;
use crate::crash::world::GuestRequest;
use crate::crash::{SECTOR, fill};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidegate_core::request::{Flags, Op};
use tidegate_core::shard::Shard;
use tidegate_core::units::Time;

/// The write that the bytes are of which were there before everybody.
const FOREIGN: u64 = 0xbad;

/// What is there before a run.
#[derive(Clone)]
struct Left {
    stores: Vec<Store>,
    catalog: Catalog,
    /// The last stamp of a write.
    stamp: u64,
}

/// A pool whose disks have opened once, from which runs begin.
pub struct Formatted {
    setup: Setup,
    left: Left,
}

impl Formatted {
    /// Makes a pool and its disks.
    ///
    /// # Panics
    /// If a new pool does not open.
    pub fn new(setup: &Setup) -> Formatted {
        let mut world = World::new(setup);
        world.finish();
        assert_eq!(world.breach(), None, "a new pool opens");
        Formatted {
            setup: setup.clone(),
            left: world.left(),
        }
    }

    /// A world that begins with it.
    pub fn world(&self) -> World {
        World::over(&self.setup, self.left.clone())
    }
}

impl Left {
    /// Stores with another tenant's bytes, and a pool that never was.
    fn new(setup: &Setup) -> Left {
        let data = u64::from(setup.grants) * u64::from(GEOMETRY.extents) * EXTENT;
        let sectors = GEOMETRY.data_at / SECTOR as u64 + data;
        let store = || {
            let mut store = Store::new(sectors);
            let bytes: Vec<u8> = (0..sectors)
                .flat_map(|at| fill(FOREIGN + at, FOREIGN))
                .collect();
            store.write(0, &bytes, true);
            store
        };
        let mut catalog = Catalog::new(setup);
        for _ in 0..setup.disks {
            catalog.create(setup.sectors, None);
        }
        Left {
            stores: (0..COLUMNS_MAX * setup.mirrors).map(|_| store()).collect(),
            catalog,
            stamp: 0,
        }
    }
}

impl World {
    /// A new pool on stores that were used before.
    ///
    /// # Panics
    /// If the earlier pool breaks a promise.
    pub fn new(setup: &Setup) -> World {
        let mut left = Left::new(setup);
        if setup.is_used {
            let mut earlier = World::over(setup, left);
            earlier.use_all();
            assert_eq!(earlier.breach(), None, "the earlier pool works");
            left = earlier.left();
            left.catalog.forget_disks();
            for _ in 0..setup.disks {
                left.catalog.create(setup.sectors, None);
            }
        }
        World::over(setup, left)
    }

    fn over(setup: &Setup, left: Left) -> World {
        let Left {
            stores,
            catalog,
            stamp,
        } = left;
        let mut oracle = Oracle::default();
        for disk in catalog.disks() {
            oracle.create(disk, setup.sectors, None);
        }
        let mut world = World {
            shard: Shard::new(16),
            stores,
            catalog,
            oracle,
            deeds: VecDeque::new(),
            seats: BTreeMap::new(),
            next_view: VIEWS,
            effects: VecDeque::new(),
            in_flight: Vec::new(),
            memory: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_token: 0,
            next_stamp: stamp,
            current: BTreeMap::new(),
            own: BTreeMap::new(),
            failed: BTreeSet::new(),
            shown: BTreeMap::new(),
            failing: None,
            has_fault: false,
            gone: 0,
            faulted: 0,
            syncing: None,
            rebuilt: BTreeSet::new(),
            joined: 0,
            now: Time::ZERO,
            out: Vec::new(),
            completed: 0,
            breach: None,
            trace: None,
        };
        world.start();
        world
    }

    fn left(self) -> Left {
        Left {
            stores: self.stores,
            catalog: self.catalog,
            stamp: self.next_stamp,
        }
    }

    /// All disks of an earlier pool write everywhere, and have generations of each kind.
    fn use_all(&mut self) {
        self.finish();
        let disks = self.disks();
        for generation in 0..3 {
            for disk in &disks {
                let sectors = self.sectors(*disk) - generation * SUB_BLOCK;
                self.use_one(*disk, Op::Write, sectors);
                self.snapshot(*disk);
                self.finish();
            }
        }
        for disk in disks {
            if let Some(oldest) = self.snapshots(disk).first() {
                self.roll_back(disk, *oldest);
                self.finish();
            }
            self.use_one(disk, Op::Discard, SUB_BLOCK);
            self.use_one(disk, Op::Flush, 0);
        }
        // Everything that is left is on the stores.
        self.crash(&mut RecordedChoices::new(&[]));
        self.finish();
    }

    fn use_one(&mut self, disk: Disk, op: Op, sectors: u64) {
        self.submit(
            disk,
            GuestRequest {
                op,
                flags: Flags::NONE,
                sector: 0,
                sectors,
            },
        );
        self.finish();
    }
}
