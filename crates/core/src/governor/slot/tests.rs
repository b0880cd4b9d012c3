//! Slots that are valid, damaged, torn or foreign.

use super::*;
use crate::block::seal;
use proptest::prelude::*;

fn entry() -> impl Strategy<Value = Entry> {
    (
        any::<u64>(),
        100..=10_000_u32,
        any::<u32>(),
        any::<u32>(),
        0..=16_384_u16,
        1..=65_535_u16,
        any::<bool>(),
    )
        .prop_map(
            |(key, shares, reservation, limit, demand, unit_cost, served)| Entry {
                key,
                shares,
                reservation,
                limit,
                // Values that a slot can store; it rounds demands up by a step.
                demand: f64::from(demand) / DEMAND_STEPS,
                unit_cost: f64::from(unit_cost) / UNIT_STEPS,
                served,
                merged: false,
            },
        )
}

fn record() -> impl Strategy<Value = Record> {
    let numbers = prop::array::uniform14(0.0..1_000.0_f64);
    let disks = prop::collection::vec(entry(), 0..=DISKS);
    (
        any::<[u8; 16]>(),
        (any::<(u64, u64, u32)>(), any::<[u8; 64]>()),
        50..=60_000_u32,
        numbers,
        disks,
    )
        .prop_map(
            |(host, ((incarnation, sequence, flags), name), tick_ms, n, disks)| Record {
                host,
                incarnation,
                sequence,
                tick_ms,
                flags: Flags(flags),
                cluster: n[0] + 1.0,
                window: n[1],
                ios: n[2],
                latency: n[3],
                p99: n[4],
                in_flight: n[5],
                rate: n[6],
                peak: n[7],
                threshold: n[8],
                pressure: n[9] / 16.0,
                costs: [n[10] / 16.0, n[11] / 16.0, n[12] / 16.0, n[13] / 16.0],
                name: Name(name),
                disks,
            },
        )
}

#[test]
fn empty_short_and_foreign_slots_are_distinguished() {
    assert_eq!(Record::decode(&[0; SLOT]), Err(Unreadable::Empty));
    assert_eq!(Record::decode(&[0; 100]), Err(Unreadable::Short));
    assert_eq!(Record::decode(&[9; SLOT]), Err(Unreadable::Foreign));
    assert_eq!(
        Record::decode(&Common::default().encode()),
        Err(Unreadable::Foreign)
    );
}

#[test]
fn a_slot_of_a_newer_version_is_not_an_error() {
    let mut bytes = Record::default().encode();
    bytes[8] = 2;
    seal(&mut bytes);
    assert_eq!(Record::decode(&bytes), Err(Unreadable::Newer(2)));
}

#[test]
fn a_slot_with_different_sequence_numbers_is_torn() {
    let whole = Record {
        sequence: 7,
        ..Record::default()
    };
    let mut bytes = whole.encode();
    bytes[TAIL_AT] = 6;
    seal(&mut bytes);
    assert_eq!(Record::decode(&bytes), Err(Unreadable::Torn));
}

#[test]
fn a_slot_of_an_older_version_is_read_without_a_name() {
    let named = Record {
        sequence: 7,
        name: Name::new("pve1"),
        ..Record::default()
    };
    let mut bytes = named.encode();
    bytes[NAME_AT..ENTRIES_AT].fill(0);
    seal(&mut bytes);
    let read = Record::decode(&bytes).unwrap();
    assert_eq!((read.sequence, read.name), (7, Name::default()));
    assert_eq!(Record::decode(&named.encode()).unwrap().name, named.name);
}

#[test]
fn the_common_slot_round_trips_and_is_clamped() {
    let common = Common {
        generation: 7,
        mode: 2,
        threshold_mode: 1,
        threshold: 12_000_000,
        io_unit: 32 << 10,
        backend: [4; 16],
    };
    assert_eq!(Common::decode(&common.encode()), Ok(common));
    let wild = Common {
        mode: 9,
        threshold_mode: 200,
        threshold: u64::MAX,
        io_unit: 0,
        ..common
    };
    let read = Common::decode(&wild.encode()).unwrap();
    assert_eq!(
        (read.mode, read.threshold_mode, read.threshold, read.io_unit),
        (2, 2, 100_000_000, 4 << 10)
    );
}

#[test]
fn all_shares_and_reservations_of_four_hundred_disks_count() {
    let disks: Vec<Entry> = (0..400)
        .map(|key| Entry {
            key,
            shares: [500, 1_000, 2_000][usize::try_from(key).unwrap() % 3],
            reservation: 10,
            demand: 1.0,
            unit_cost: 1.0,
            served: true,
            ..Entry::default()
        })
        .collect();
    let sum = |disks: &[Entry]| -> (u32, u32) {
        (
            disks.iter().map(|disk| disk.shares).sum(),
            disks.iter().map(|disk| disk.reservation).sum(),
        )
    };
    let record = Record {
        disks: disks.clone(),
        ..Record::default()
    };
    let read = Record::decode(&record.encode()).unwrap();
    assert!(read.disks.len() <= DISKS);
    assert_eq!(sum(&read.disks), sum(&disks));
    let different: Vec<Entry> = disks
        .iter()
        .zip(100..)
        .map(|(&disk, shares)| Entry { shares, ..disk })
        .collect();
    let record = Record {
        disks: different.clone(),
        ..Record::default()
    };
    let read = Record::decode(&record.encode()).unwrap();
    assert_eq!(sum(&read.disks), sum(&different));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_record_round_trips(record in record()) {
        let mut read = Record::decode(&record.encode()).unwrap();
        prop_assert_eq!(Record::peek(&record.encode()), Some((record.host, record.incarnation, record.sequence)));
        for (read, wrote) in read.disks.iter_mut().zip(&record.disks) {
            let rounded = read.demand - wrote.demand;
            prop_assert!((0.0..=1.0 / DEMAND_STEPS).contains(&rounded));
            read.demand = wrote.demand;
        }
        prop_assert_eq!(read, record);
    }

    #[test]
    fn a_flipped_bit_or_torn_write_is_detected(
        record in record(), flip in 0..SLOT * 8, cut in 1..SLOT,
    ) {
        let mut bytes = record.encode();
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert!(Record::decode(&bytes).is_err());
        let mut bytes = record.encode();
        let sequence = record.sequence.wrapping_add(1);
        let next = Record { sequence, ..record.clone() }.encode();
        bytes[..cut].copy_from_slice(&next[..cut]);
        prop_assert!(bytes == record.encode() || bytes == next || Record::decode(&bytes).is_err());
    }

    #[test]
    fn any_bytes_decode_within_bounds(noise in prop::collection::vec(any::<u8>(), SLOT - 10)) {
        let mut bytes = [0; SLOT];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = 1;
        bytes[10..].copy_from_slice(&noise);
        let sequence: [u8; 8] = bytes[40..48].try_into().unwrap();
        bytes[TAIL_AT..TAIL_AT + 8].copy_from_slice(&sequence);
        seal(&mut bytes);
        let record = Record::decode(&bytes).unwrap();
        prop_assert!((1.0..=WINDOW_MOST).contains(&record.cluster));
        prop_assert!((0.0..=DEMAND_MOST).contains(&record.window));
        prop_assert!((0.0..=RATE_MOST).contains(&record.ios) && (0.0..=RATE_MOST).contains(&record.rate));
        prop_assert!((0.0..=LATENCY_MOST).contains(&record.latency));
        prop_assert!((0.0..=DEMAND_MOST).contains(&record.in_flight));
        prop_assert!((50..=60_000).contains(&record.tick_ms) && record.disks.len() <= DISKS);
        for disk in &record.disks {
            let most = if disk.merged { 0xff_ffff } else { 10_000 };
            prop_assert!((100..=most).contains(&disk.shares));
            prop_assert!((0.0..=DEMAND_MOST).contains(&disk.demand) && disk.unit_cost > 0.0);
        }
    }

    #[test]
    fn any_bytes_of_any_length_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..2 * SLOT)) {
        let _ = (Record::decode(&bytes), Common::decode(&bytes), Record::peek(&bytes));
    }
}
