//! Tests of which disk gets space where.

use super::*;

const A: DiskUuid = [1; 16];
const B: DiskUuid = [2; 16];

/// A pool of columns of group 0, slow ones, and of group 1, fast ones.
fn pool(slow: &[u32], fast: &[u32], minimum: u64) -> Broker {
    let mut broker = Broker::new(minimum, 1);
    for (group, tier, columns) in [(0, Tier::Slow, slow), (1, Tier::Fast, fast)] {
        for grants in columns {
            broker.add_column(NewColumn {
                group,
                tier,
                grants: *grants,
            });
        }
    }
    broker
}

fn columns(broker: &mut Broker, disk: DiskUuid, count: usize) -> Vec<u16> {
    let grants = (0..count).map(|_| broker.grant(disk).unwrap().column);
    grants.collect()
}

#[test]
fn the_grants_of_a_disk_go_round_the_columns_and_begin_where_most_is_free() {
    let mut broker = pool(&[4, 6, 5], &[], 0);
    broker.add_disk(A, None, 0).unwrap();
    broker.add_disk(B, None, 0).unwrap();
    assert_eq!(columns(&mut broker, A, 4), [1, 2, 0, 1]);
    // Each disk has a round of its own.
    assert_eq!(columns(&mut broker, B, 3), [1, 2, 0]);
    assert_eq!(columns(&mut broker, A, 2), [2, 0]);
}

#[test]
fn a_disk_gets_the_tier_that_it_wants_until_that_is_full() {
    let mut broker = pool(&[8], &[2, 2], 0);
    broker.add_disk(A, Some(Tier::Fast), 0).unwrap();
    broker.add_disk(B, Some(Tier::Slow), 0).unwrap();
    assert_eq!(columns(&mut broker, A, 5), [1, 2, 1, 2, 0]);
    assert_eq!(columns(&mut broker, B, 2), [0, 0]);
}

#[test]
fn no_two_grants_have_the_same_place_or_the_same_life() {
    let mut broker = pool(&[3], &[], 0);
    broker.add_disk(A, None, 0).unwrap();
    let numbers: Vec<_> = (0..3).map(|_| broker.grant(A).unwrap()).collect();
    let places = numbers.iter().map(|grant| (grant.number, grant.life));
    assert_eq!(places.collect::<Vec<_>>(), [(0, 1), (1, 2), (2, 3)]);
    assert_eq!(broker.grant(A), Err(NoGrant::NoSpace));
    broker.give_back(A, 0, 1).unwrap();
    let again = broker.grant(A).unwrap();
    assert_eq!((again.number, again.life), (1, 4));
}

#[test]
fn a_thin_disk_leaves_what_is_reserved_and_the_minimum() {
    let mut broker = pool(&[10], &[], 2);
    broker.add_disk(A, None, 0).unwrap();
    broker.add_disk(B, None, 5).unwrap();
    assert_eq!(columns(&mut broker, A, 3).len(), 3);
    assert_eq!(broker.grant(A), Err(NoGrant::NoSpace));
    // The thick disk takes all that it has reserved, and no more.
    assert_eq!(columns(&mut broker, B, 5).len(), 5);
    assert_eq!(broker.grant(B), Err(NoGrant::NoSpace));
    assert_eq!(broker.space().used, 8);
}

#[test]
fn a_reservation_that_does_not_fit_is_refused_and_leaves_nothing() {
    let mut broker = pool(&[10], &[], 2);
    broker.add_disk(A, None, 6).unwrap();
    assert_eq!(broker.add_disk(B, None, 3), Err(NoGrant::NoSpace));
    assert_eq!(broker.disk(&B), None);
    broker.add_disk(B, None, 2).unwrap();
    assert_eq!(broker.space().available, 0);
    broker.remove_disk(A);
    assert_eq!(broker.space().available, 6);
}

#[test]
fn a_group_that_is_drained_or_away_gives_nothing() {
    let mut broker = pool(&[4], &[4], 0);
    broker.add_disk(A, Some(Tier::Fast), 0).unwrap();
    assert_eq!(columns(&mut broker, A, 1), [1]);
    for use_of in [GroupUse::Draining, GroupUse::Away] {
        broker.set_use(1, use_of);
        assert_eq!(columns(&mut broker, A, 1), [0]);
    }
    assert_eq!(broker.space().available, 2);
    broker.set_use(1, GroupUse::Open);
    assert_eq!(columns(&mut broker, A, 1), [1]);
}

#[test]
fn a_group_can_be_drained_if_what_it_has_fits_elsewhere() {
    let mut broker = pool(&[4], &[4], 0);
    broker.add_disk(A, Some(Tier::Fast), 0).unwrap();
    columns(&mut broker, A, 3);
    let drain = broker.drain(1);
    assert_eq!((drain.disks, drain.fits), (Vec::from([(A, 3)]), true));
    broker.add_disk(B, Some(Tier::Slow), 2).unwrap();
    assert!(!broker.drain(1).fits);
    let empty = broker.drain(0);
    assert_eq!((empty.disks.len(), empty.fits), (0, false));
}

#[test]
fn what_a_disk_does_not_have_it_cannot_give_back() {
    let mut broker = pool(&[4], &[], 0);
    broker.add_disk(A, None, 0).unwrap();
    broker.add_disk(B, None, 0).unwrap();
    let grant = broker.grant(A).unwrap();
    let back = |broker: &mut Broker, disk| broker.give_back(disk, grant.column, grant.number);
    assert_eq!(back(&mut broker, B), Err(Contradiction::Owner(A)));
    assert_eq!(broker.give_back(A, 0, 3), Err(Contradiction::Place));
    assert_eq!(broker.give_back(A, 9, 0), Err(Contradiction::Place));
    assert_eq!(back(&mut broker, [9; 16]), Err(Contradiction::Disk));
    assert_eq!(back(&mut broker, A), Ok(()));
    assert_eq!(back(&mut broker, A), Err(Contradiction::Place));
}

#[test]
fn a_broker_that_is_built_again_gives_the_same_grants() {
    let mut one = pool(&[8, 7], &[3], 1);
    one.add_disk(A, None, 0).unwrap();
    one.add_disk(B, Some(Tier::Fast), 4).unwrap();
    let grants: Vec<(DiskUuid, Grant)> = [A, B, B, A, B]
        .map(|disk| (disk, one.grant(disk).unwrap()))
        .into();
    let mut two = pool(&[8, 7], &[3], 1);
    two.life = one.life();
    two.restore_disk(A, None, 0);
    two.restore_disk(B, Some(Tier::Fast), 4);
    for (disk, grant) in &grants {
        two.restore_grant(*disk, *grant).unwrap();
    }
    assert_eq!(one.space(), two.space());
    for disk in [A, B, A, B, A] {
        assert_eq!(one.grant(disk), two.grant(disk));
    }
}

#[test]
fn a_catalog_that_contradicts_itself_is_not_believed() {
    let mut broker = pool(&[2], &[], 0);
    broker.life = 5;
    let grant = |number, life| Grant {
        column: 0,
        number,
        life,
    };
    let restored = broker.restore_grant(A, grant(0, 1));
    assert_eq!(restored, Err(Contradiction::Disk));
    broker.restore_disk(A, None, 0);
    assert_eq!(broker.restore_grant(A, grant(0, 1)), Ok(()));
    let twice = broker.restore_grant(A, grant(0, 2));
    assert_eq!(twice, Err(Contradiction::Owner(A)));
    let beyond = broker.restore_grant(A, grant(2, 2));
    assert_eq!(beyond, Err(Contradiction::Place));
    let future = broker.restore_grant(A, grant(1, 5));
    assert_eq!(future, Err(Contradiction::Life));
}

#[test]
fn a_disk_needs_grants_for_its_headers_as_well() {
    let mib = 1 << 20;
    assert_eq!(grants_for(0), 0);
    assert_eq!(grants_for(1), 1);
    assert_eq!(grants_for(63 * mib), 1);
    assert_eq!(grants_for(64 * mib), 2);
    let block = (64 * 126 - 1) * mib;
    assert_eq!(grants_for(block), 126);
    assert_eq!(grants_for(block + 1), 127);
    assert_eq!(grants_for(block + 63 * mib), 127);
    assert_eq!(grants_for(block + 64 * mib), 128);
}

#[test]
fn the_level_counts_what_is_reserved() {
    let mut broker = pool(&[100], &[], 0);
    broker.add_disk(A, None, 70).unwrap();
    assert_eq!(broker.space().level, Level::Filling);
    broker.remove_disk(A);
    assert_eq!(broker.space().level, Level::Ample);
}
