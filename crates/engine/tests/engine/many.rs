//! Tests with many disks at once, and with an idle engine.

use super::rig::{PATIENCE, attach, client, engine, filters, image, open_file, spec, tempdir};
use std::time::{Duration, Instant};
use tidegate_engine::datastore::{emulated, memory, null};
use tidegate_engine::{DenseSettings, Disk, DiskSpec, Engine};

#[test]
fn five_hundred_disks_live_on_two_threads() {
    let dir = tempdir();
    let engine = engine(2);
    let disks: Vec<_> = (0..500)
        .map(|index| {
            let path = image(dir.path(), &format!("image{index}"), 1 << 20);
            attach(&engine, open_file(&path))
        })
        .collect();
    let mut clients: Vec<_> = disks.iter().map(client).collect();
    for (client, byte) in clients.iter_mut().zip((0..=250).cycle()) {
        client.write(4096, &[byte; 4096]).unwrap();
    }
    for (client, byte) in clients.iter_mut().zip((0..=250).cycle()) {
        assert_eq!(client.read(4096, 4096), Ok(vec![byte; 4096]));
    }
    for report in engine.threads().unwrap() {
        assert_eq!(report.disks.len(), 250, "they are spread evenly");
    }
    for disk in disks {
        disk.detach(PATIENCE).unwrap();
    }
    assert!(
        engine
            .threads()
            .unwrap()
            .iter()
            .all(|report| report.disks.is_empty())
    );
}

/// A query over many disks must not delay any: no turn copies more than one disk's histograms.
#[test]
fn a_report_of_measured_disks_takes_a_turn_for_each_and_a_disk_knows_its_thread() {
    const DISKS: u64 = 64;
    let engine = engine(2);
    let attach = |_| {
        let filters = filters(&["stats"]);
        let spec = DiskSpec {
            filters,
            ..spec("disk", 1 << 20)
        };
        engine.attach(spec, null::open(1 << 20)).unwrap()
    };
    let disks: Vec<Disk> = (0..2 * DISKS).map(attach).collect();
    let before = engine.threads().unwrap();
    let after = engine.threads().unwrap();
    for (thread, (before, after)) in before.iter().zip(&after).enumerate() {
        let turns = after.turns - before.turns;
        assert!(turns >= DISKS, "{turns} turns for {DISKS} disks");
        let here = disks.iter().filter(|disk| disk.thread() == thread);
        let here: Vec<_> = here.map(Disk::id).collect();
        let reading: Vec<_> = after.disks.iter().map(|reading| reading.disk).collect();
        assert_eq!(reading, here);
        assert_eq!(reading.len() as u64, DISKS);
    }
}

/// Counts the wake-ups and turns of the thread, except for the queries', while something else takes time: an array of
/// another engine, which answers one read after the other, each after a seek.
#[test]
fn an_idle_engine_makes_no_wake_ups() {
    /// Some milliseconds each, so that any useful timer would have fired meanwhile.
    const SEEKS: u64 = 150;
    let dir = tempdir();
    let engine = engine(1);
    let mut disks = Vec::new();
    for index in 0..98 {
        let path = image(dir.path(), &format!("image{index}"), 1 << 20);
        disks.push(attach(&engine, open_file(&path)));
    }
    disks.push(attach(&engine, memory::open(1 << 20).unwrap()));
    let spec: emulated::Spec = "raid5-8x10k+cache,size=1M".parse().unwrap();
    disks.push(attach(&engine, emulated::open(&spec).unwrap()));
    let mut clients: Vec<_> = disks.iter().map(client).collect();
    for client in &mut clients {
        client.write(0, &[1; 4096]).unwrap();
    }
    let elsewhere = super::rig::engine(1);
    let spec: emulated::Spec = "raid5-8x10k,size=1G".parse().unwrap();
    let array = attach(&elsewhere, emulated::open(&spec).unwrap());
    let mut seeker = client(&array);

    let report = |engine: &Engine| engine.threads().unwrap().remove(0);
    // The work after the last answers is over when two queries in a row find nothing else.
    super::rig::eventually("the thread is idle", || {
        let before = report(&engine).turns;
        report(&engine).turns - before <= 2
    });
    let (before, seeks) = (report(&engine), report(&elsewhere).wakes);
    for seek in 0..SEEKS {
        seeker.read(seek * 49_999_872 % (1 << 30), 512).unwrap();
    }
    let (after, seeks) = (report(&engine), report(&elsewhere).wakes - seeks);
    assert!(
        seeks >= SEEKS,
        "an engine that waits for its array is woken, and counts it: {seeks} wakes"
    );
    assert!(
        after.wakes - before.wakes <= 1,
        "{} wakes, one by the query",
        after.wakes - before.wakes
    );
    assert!(
        after.turns - before.turns <= 2,
        "{} turns",
        after.turns - before.turns
    );
}

/// Counts the wake-ups of all threads by their counters, which are read without waking them.
#[test]
fn four_hundred_idle_disks_wake_no_thread_in_dense_mode_or_without() {
    const SPAN: Duration = Duration::from_millis(2500);
    let engine = engine(2);
    let disks: Vec<Disk> = (0..400)
        .map(|_| attach(&engine, null::open(1 << 20)))
        .collect();
    let mut clients: Vec<_> = disks.iter().step_by(8).map(client).collect();
    let statistics = engine.statistics();
    let wakes = || {
        let threads = statistics.threads().into_iter();
        threads.map(|thread| thread.wakes.sum()).sum::<u64>()
    };
    let dense = |hold_last| Some(DenseSettings { hold_last });
    for mode in [None, dense(false), dense(true)] {
        engine.set_dense(mode).unwrap();
        for client in &mut clients {
            client.write(0, &[1; 4096]).unwrap();
        }
        let begin = Instant::now();
        let mut before = wakes();
        let mut since = Instant::now();
        // The last work ends some time after the last answer.
        while since.elapsed() < SPAN {
            assert!(begin.elapsed() < PATIENCE, "idle threads wake: {mode:?}");
            std::thread::sleep(Duration::from_millis(100));
            let now = wakes();
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
    }
    assert!(wakes() > 0);
}
