//! Tests of filters as seen by a client: they change under load, and follow their rules.

use super::client::{Verifier, pattern};
use super::rig::{
    PATIENCE, attach, client, engine, eventually, filters, image, open_file, tempdir,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_core::filter::trace::format::{Entry, Reader};
use tidegate_core::request::{Fault, Flags, Op};
use tidegate_engine::datastore::memory;

/// Changes of filters under load.
const CHANGES: usize = 10_000;

#[test]
fn filters_change_under_a_verifying_client_without_an_error() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 4 << 20);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    let done = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&done);
    let mut verifier = Verifier::new(client(&disk), 0, 4 << 20, 512, 1);
    let load = std::thread::spawn(move || {
        let mut rounds = 0_u32;
        while !own.load(Ordering::Relaxed) {
            verifier.round();
            rounds += 1;
        }
        verifier.check_all();
        rounds
    });
    let trace = format!("trace:path={}", dir.path().join("trace").display());
    let stacks: [&[&str]; 6] = [
        &["stats"],
        &["null", "stats"],
        &["stats", "null", "null"],
        &[],
        &["fault:delay=50us,every=7", "stats"],
        &[&trace, "stats"],
    ];
    for change in 0..CHANGES {
        let stack = filters(stacks[change % stacks.len()]);
        disk.restack(&stack, PATIENCE).expect("the filters change");
    }
    done.store(true, Ordering::Relaxed);
    assert!(load.join().expect("the client found everything right") > 0);
    assert_eq!(engine.threads().unwrap()[0].strays, 0);
}

#[test]
fn a_client_sees_the_configured_faults() {
    let engine = engine(1);
    let disk = attach(&engine, memory::open(1 << 20).unwrap());
    let mut c = client(&disk);
    let give = |texts: &[&str]| {
        disk.restack(&filters(texts), PATIENCE)
            .expect("the filters change")
    };
    let old = pattern(0, 1, 8192);
    c.write(0, &old).unwrap();

    give(&["fault:error=enospc,op=write,range=4K-8K"]);
    assert_eq!(c.write(4096, &[1; 512]), Err(Fault::NoSpace));
    assert_eq!(c.write(8192, &[1; 512]), Ok(()));
    give(&["fault:error=eio,op=read,once"]);
    assert_eq!(c.read(0, 512), Err(Fault::Io));
    assert!(
        c.read(0, 8192).unwrap() == old,
        "a failed write changed nothing"
    );

    give(&["fault:lost"]);
    assert_eq!(c.write(0, &pattern(0, 2, 4096)), Ok(()));
    assert!(c.read(0, 8192).unwrap() == old);

    give(&["fault:torn=1024"]);
    assert_eq!(c.write(0, &pattern(0, 3, 4096)), Ok(()));
    let torn = c.read(0, 4096).unwrap();
    assert!(torn[..1024] == pattern(0, 3, 4096)[..1024] && torn[1024..] == old[1024..4096]);

    give(&["fault:delay=50ms,op=flush"]);
    let begin = Instant::now();
    c.flush().unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(50));
}

#[test]
fn a_removed_filter_releases_delayed_requests_at_once() {
    let engine = engine(1);
    let disk = attach(&engine, memory::open(1 << 20).unwrap());
    let mut c = client(&disk);
    c.write(0, &pattern(0, 1, 4096)).unwrap();
    disk.restack(&filters(&["stats", "fault:delay=3600s"]), PATIENCE)
        .unwrap();
    for _ in 0..64 {
        c.send(Op::Read, Flags::NONE, 0, 4096, &[]);
    }
    eventually("the requests are delayed", || {
        disk.report().unwrap().in_flight == 64
    });
    disk.restack(&filters(&["stats"]), PATIENCE)
        .expect("the change does not wait for an hour");
    for _ in 0..64 {
        let (_, answer) = c.next_answer().expect("the disk answers");
        assert!(answer.unwrap() == pattern(0, 1, 4096));
    }
    let report = &engine.threads().unwrap()[0];
    assert_eq!((report.in_flight, report.strays), (0, 0));
}

#[test]
fn a_trace_records_the_requests() {
    let dir = tempdir();
    let path = dir.path().join("trace");
    let engine = engine(1);
    let disk = attach(&engine, memory::open(1 << 20).unwrap());
    let trace = format!("trace:path={}", path.display());
    disk.restack(
        &filters(&[&trace, "fault:error=eio,op=read,range=64K-"]),
        PATIENCE,
    )
    .unwrap();
    let mut c = client(&disk);
    c.write_with(Flags::FUA, 4096, &[1; 1024]).unwrap();
    c.read(4096, 512).unwrap();
    assert_eq!(c.read(65_536, 512), Err(Fault::Io));
    c.flush().unwrap();
    disk.restack(&[], PATIENCE).unwrap();
    let records = |bytes: &[u8]| {
        let entries = Reader::new(bytes).map(|entry| entry.expect("the trace is valid"));
        entries
            .filter_map(|entry| match entry {
                Entry::Block(_) => None,
                Entry::Record(r) => Some((r.op, r.offset, r.len, r.flags, r.outcome)),
            })
            .collect::<Vec<_>>()
    };
    eventually("the trace is in its file", || {
        std::fs::read(&path).is_ok_and(|bytes| bytes.len() >= 2 * 64 + 4 * 40)
    });
    let wanted = [
        (Op::Write, 4096, 1024, Flags::FUA, Ok(())),
        (Op::Read, 4096, 512, Flags::NONE, Ok(())),
        (Op::Read, 65_536, 512, Flags::NONE, Err(Fault::Io)),
        (Op::Flush, 0, 0, Flags::NONE, Ok(())),
    ];
    assert_eq!(records(&std::fs::read(&path).unwrap()), wanted);
}
