//! Properties of the division of a pool's space among disks, against a list of who has what.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_core::layout::pool::Grant;
use tidegate_core::pool::Tier;
use tidegate_core::pool::broker::{Broker, DiskUuid, GroupUse, NewColumn, NoGrant};

/// A call, as numbers that are taken modulo what there is.
#[derive(Clone, Debug)]
enum Call {
    Add { disk: u8, wants: u8, reserves: u64 },
    Remove { disk: u8 },
    Grant { disk: u8 },
    GiveBack { which: prop::sample::Index },
    Use { group: u16, use_of: u8 },
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        1 => (0..4_u8, 0..3_u8, prop_oneof![Just(0), 1..12_u64])
            .prop_map(|(disk, wants, reserves)| Call::Add { disk, wants, reserves }),
        1 => (0..4_u8).prop_map(|disk| Call::Remove { disk }),
        8 => (0..4_u8).prop_map(|disk| Call::Grant { disk }),
        3 => any::<prop::sample::Index>().prop_map(|which| Call::GiveBack { which }),
        1 => (0..3_u16, 0..3_u8).prop_map(|(group, use_of)| Call::Use { group, use_of }),
    ]
}

fn uuid(disk: u8) -> DiskUuid {
    [disk + 1; 16]
}

fn tier(number: u8) -> Option<Tier> {
    [None, Some(Tier::Fast), Some(Tier::Slow)][usize::from(number)]
}

/// What the broker should know.
#[derive(Default)]
struct Model {
    owners: BTreeMap<(u16, u32), DiskUuid>,
    lives: BTreeSet<u64>,
    reserved: BTreeMap<DiskUuid, u64>,
    closed: BTreeSet<u16>,
}

struct World {
    broker: Broker,
    model: Model,
    columns: Vec<NewColumn>,
    minimum: u64,
    log: Vec<Result<Grant, NoGrant>>,
}

impl World {
    fn new(columns: &[NewColumn], minimum: u64) -> World {
        let mut broker = Broker::new(minimum, 1);
        columns.iter().for_each(|column| broker.add_column(*column));
        World {
            broker,
            model: Model::default(),
            columns: columns.to_vec(),
            minimum,
            log: Vec::new(),
        }
    }

    /// Free grants of groups that give space.
    fn open(&self) -> u64 {
        let used = |number: u16| {
            let owners = self.model.owners.keys();
            owners.filter(|(column, _)| *column == number).count()
        };
        let columns = (0..).zip(&self.columns);
        let open = columns.filter(|(_, column)| !self.model.closed.contains(&column.group));
        open.map(|(number, column)| u64::from(column.grants) - used(number) as u64)
            .sum()
    }

    fn available(&self) -> u64 {
        let reserved: u64 = self.model.reserved.values().sum();
        self.open().saturating_sub(reserved + self.minimum)
    }

    fn run(&mut self, call: &Call) {
        match call {
            Call::Add {
                disk,
                wants,
                reserves,
            } => {
                let disk = uuid(*disk);
                if self.model.reserved.contains_key(&disk) {
                    return;
                }
                let fits = *reserves <= self.available();
                let added = self.broker.add_disk(disk, tier(*wants), *reserves);
                assert_eq!(added.is_ok(), fits);
                if fits {
                    self.model.reserved.insert(disk, *reserves);
                }
            }
            Call::Remove { disk } => {
                self.broker.remove_disk(uuid(*disk));
                self.model.reserved.remove(&uuid(*disk));
                self.model.owners.retain(|_, owner| *owner != uuid(*disk));
            }
            Call::Grant { disk } => self.grant(uuid(*disk)),
            Call::GiveBack { which } => {
                if self.model.owners.is_empty() {
                    return;
                }
                let places: Vec<_> = self
                    .model
                    .owners
                    .iter()
                    .map(|(at, of)| (*at, *of))
                    .collect();
                let ((column, number), disk) = *which.get(&places);
                assert_eq!(self.broker.give_back(disk, column, number), Ok(()));
                self.model.owners.remove(&(column, number));
            }
            Call::Use { group, use_of } => {
                let uses = [GroupUse::Open, GroupUse::Draining, GroupUse::Away];
                let use_of = uses[usize::from(*use_of)];
                self.broker.set_use(*group, use_of);
                match use_of {
                    GroupUse::Open => self.model.closed.remove(group),
                    _ => self.model.closed.insert(*group),
                };
            }
        }
        let space = self.broker.space();
        assert_eq!(space.used, self.model.owners.len() as u64);
        assert_eq!(space.available, self.available());
        assert_eq!(space.reserved, self.model.reserved.values().sum::<u64>());
    }

    fn grant(&mut self, disk: DiskUuid) {
        let answer = self.broker.grant(disk);
        self.log.push(answer);
        let Some(reserved) = self.model.reserved.get(&disk).copied() else {
            assert_eq!(answer, Err(NoGrant::Unknown));
            return;
        };
        let may = self.open() > 0 && (reserved > 0 || self.available() > 0);
        assert_eq!(answer.is_ok(), may, "{answer:?}");
        let Ok(grant) = answer else {
            return;
        };
        let column = self.columns[usize::from(grant.column)];
        assert!(grant.number < column.grants);
        assert!(!self.model.closed.contains(&column.group));
        let before = self.model.owners.insert((grant.column, grant.number), disk);
        assert_eq!(before, None, "a grant has one owner");
        assert!(self.model.lives.insert(grant.life), "a life is given once");
        self.model.reserved.insert(disk, reserved.saturating_sub(1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_grant_has_one_owner_and_the_same_calls_give_the_same_grants(
        sizes in prop::collection::vec((0..3_u16, any::<bool>(), 0..9_u32), 1..6),
        minimum in 0..4_u64,
        calls in prop::collection::vec(call(), 0..120),
    ) {
        let columns: Vec<NewColumn> = sizes
            .iter()
            .map(|(group, fast, grants)| NewColumn {
                group: *group,
                tier: if *fast { Tier::Fast } else { Tier::Slow },
                grants: *grants,
            })
            .collect();
        let [mut one, mut other] = [(); 2].map(|()| World::new(&columns, minimum));
        for call in &calls {
            one.run(call);
            other.run(call);
        }
        prop_assert_eq!(one.log, other.log);
    }

    #[test]
    fn thick_disks_always_get_what_they_have_reserved(
        grants in prop::collection::vec(0..9_u32, 1..5),
        reserves in 0..20_u64,
        thin in 0..40_usize,
    ) {
        let columns: Vec<NewColumn> = grants
            .iter()
            .map(|grants| NewColumn { group: 0, tier: Tier::Slow, grants: *grants })
            .collect();
        let mut world = World::new(&columns, 0);
        world.run(&Call::Add { disk: 0, wants: 0, reserves });
        world.run(&Call::Add { disk: 1, wants: 0, reserves: 0 });
        (0..thin).for_each(|_| world.run(&Call::Grant { disk: 1 }));
        let reserved = world.model.reserved.get(&uuid(0)).copied().unwrap_or(0);
        for _ in 0..reserved {
            prop_assert!(world.broker.grant(uuid(0)).is_ok());
        }
    }
}
