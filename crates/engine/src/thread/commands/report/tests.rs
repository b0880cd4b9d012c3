//! Tests of an I/O thread's reports; the test runs the turns.

use super::*;
use crate::counters::Statistics;
use crate::datastore::null;
use crate::thread::ThreadConfig;
use crate::thread::commands::{Attach, Change, Command, What};
use crate::thread::peers::Peers;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::FilterSpec;
use tidegate_core::stack::Stack;

fn config() -> ThreadConfig {
    ThreadConfig {
        coalesce: tidegate_core::coalesce::Coalesce::Adaptive,
        poll: Span::ZERO,
        always_poll: false,
        cpu: None,
        signals: Arc::default(),
    }
}

/// A thread with this many disks, each with these filters.
fn thread(disks: u32, filters: &[FilterSpec]) -> IoThread {
    let peers = Arc::new(Peers::new(1).expect("a descriptor"));
    let page = Statistics::default().add_thread();
    let thread = IoThread::new("tidegate-test".into(), peers, 0, config(), page);
    let mut thread = thread.expect("a ring");
    for disk in 0..disks {
        thread.handle(attach(DiskId(disk), filters));
    }
    thread
}

fn attach(disk: DiskId, filters: &[FilterSpec]) -> Command {
    let keys = (0..).map(FilterKey);
    let built = filters.iter().map(FilterSpec::build);
    let (opened, _) = channel();
    Command::Attach(Box::new(Attach {
        io: crate::IoSettings::default(),
        disk,
        size: 1 << 20,
        read_only: false,
        stack: Stack::new(keys.zip(built).collect()),
        sides: Vec::new(),
        images: vec![null::open(1 << 20)],
        layout: None,
        notices: None,
        control: None,
        opened,
    }))
}

fn query<T>(thread: &IoThread, make: impl FnOnce(Sender<T>) -> Query) -> Receiver<T> {
    let (reply, answer) = channel();
    thread.inbox.send_always(Command::Query(make(reply)));
    answer
}

/// The answer, and the number of turns until it arrived.
fn turns_until<T>(thread: &mut IoThread, answer: &Receiver<T>) -> (T, usize) {
    for turn in 1..=1_000 {
        assert!(
            thread.turn(),
            "the thread has work until the answer is complete"
        );
        if let Ok(report) = answer.try_recv() {
            return (report, turn);
        }
    }
    panic!("no answer in a thousand turns");
}

/// How many disks' histograms were copied for unfinished queries.
fn copied(thread: &IoThread) -> usize {
    let surveys = thread.queries.iter().map(|query| match query {
        Query::Report(survey) => survey
            .partial
            .as_ref()
            .map_or(0, |report| report.disks.len()),
        _ => 0,
    });
    surveys.sum()
}

fn numbers(disks: impl IntoIterator<Item = DiskId>) -> Vec<u32> {
    disks.into_iter().map(|disk| disk.0).collect()
}

#[test]
fn a_turn_copies_the_histograms_of_one_disk() {
    let mut thread = thread(40, &[FilterSpec::Null, FilterSpec::Stats]);
    let answer = query(&thread, Query::report);
    for turn in 1..40 {
        assert!(thread.turn());
        assert_eq!(copied(&thread), turn);
        assert!(answer.try_recv().is_err());
    }
    let (report, turn) = turns_until(&mut thread, &answer);
    assert_eq!(turn, 1, "the rest needs no turn of its own");
    let disks = report.disks.iter().map(|reading| reading.disk);
    assert_eq!(numbers(disks), Vec::from_iter(0..40));
    assert!(report.disks.is_sorted_by_key(|reading| reading.now));
    for DiskReading { report, .. } in &report.disks {
        assert!(matches!(report.filters[1].2, FilterReport::Stats(_)));
    }
    assert!(!thread.turn(), "no work is left");
}

#[test]
fn several_queries_share_the_work_of_a_turn() {
    const DISKS: usize = 10;
    let mut thread = thread(10, &[FilterSpec::Stats]);
    let surveys = [(); 3].map(|()| query(&thread, Query::report));
    let one = query(&thread, |reply| Query::Disk(DiskId(7), reply));
    let (reading, turn) = turns_until(&mut thread, &one);
    assert_eq!(reading.map(|reading| reading.disk), Some(DiskId(7)));
    assert_eq!(turn, 4, "three queries came first, and each took a turn");
    assert_eq!(copied(&thread), 3);
    let (_, turn) = turns_until(&mut thread, &surveys[0]);
    assert_eq!(turn, 3 * (DISKS - 1) - 2);
    for survey in &surveys[1..] {
        let (report, turn) = turns_until(&mut thread, survey);
        assert_eq!((report.disks.len(), turn), (DISKS, 1));
    }
}

#[test]
fn a_turn_reads_the_sums_of_some_thirty_disks() {
    let mut thread = thread(100, &[FilterSpec::Stats]);
    let answer = query(&thread, Query::pulse);
    let (pulse, turn) = turns_until(&mut thread, &answer);
    assert_eq!(turn, 100_usize.div_ceil(32));
    let disks = pulse.disks.iter().map(|disk| disk.disk);
    assert_eq!(numbers(disks), Vec::from_iter(0..100));
    assert!(pulse.disks.iter().all(|disk| disk.sums.is_some()));
}

#[test]
fn disks_without_measurements_are_reported_at_once() {
    let mut thread = thread(200, &[FilterSpec::Null]);
    let answers = (
        query(&thread, Query::report),
        query(&thread, |reply| Query::Disk(DiskId(0), reply)),
        query(&thread, |reply| Query::Disk(DiskId(200), reply)),
    );
    assert!(thread.turn());
    assert_eq!(answers.0.try_recv().expect("answered").disks.len(), 200);
    assert!(answers.1.try_recv().expect("answered").is_some());
    assert!(answers.2.try_recv().expect("answered").is_none());
}

#[test]
fn a_disk_detached_during_a_report_is_left_out() {
    let mut thread = thread(6, &[FilterSpec::Stats]);
    let answer = query(&thread, Query::report);
    assert!(thread.turn() && thread.turn());
    for disk in [DiskId(0), DiskId(4)] {
        let (reply, _) = channel();
        let on_detached = Box::new(|| {});
        let what = What::Detach { on_detached };
        let change = Change { disk, what, reply };
        thread.inbox.send_always(Command::Change(Box::new(change)));
    }
    let (report, _) = turns_until(&mut thread, &answer);
    let disks = report.disks.iter().map(|reading| reading.disk);
    assert_eq!(
        numbers(disks),
        [0, 1, 2, 3, 5],
        "the first was read before it was detached"
    );
}

#[test]
fn a_query_to_a_stopping_thread_is_disconnected() {
    let mut thread = thread(3, &[FilterSpec::Stats]);
    let answer = query(&thread, Query::report);
    assert!(thread.turn());
    assert_eq!(answer.try_recv().err(), Some(TryRecvError::Empty));
    thread.inbox.send_always(Command::Stop);
    thread.run();
    // The thread object still exists, as it does when the kernel uses its buffers.
    assert_eq!(answer.try_recv().err(), Some(TryRecvError::Disconnected));
}

/// An image whose close waits for the test.
struct SlowToClose(Receiver<()>);

impl crate::datastore::Image for SlowToClose {
    fn start(
        &mut self,
        _cx: &mut crate::datastore::ImageCx<'_>,
        _job: crate::datastore::Job,
    ) -> crate::datastore::Progress {
        unreachable!("it gets no jobs")
    }

    fn is_idle(&self) -> bool {
        true
    }
}

impl Drop for SlowToClose {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

#[test]
fn a_long_close_delays_no_other_disk_and_the_detach_waits_for_it() {
    let mut thread = thread(1, &[FilterSpec::Null]);
    let (close, closing) = channel();
    let Command::Attach(mut slow) = attach(DiskId(1), &[]) else {
        unreachable!("it attaches")
    };
    slow.images[0].image = Box::new(SlowToClose(closing));
    thread.handle(Command::Attach(slow));
    let (reply, detached) = channel();
    thread.handle(Command::Change(Box::new(Change {
        disk: DiskId(1),
        what: What::Detach {
            on_detached: Box::new(|| {}),
        },
        reply,
    })));
    // On the I/O thread this would block forever.
    let answer = query(&thread, Query::report);
    let (report, _) = turns_until(&mut thread, &answer);
    assert_eq!(report.disks.len(), 1);
    assert!(matches!(detached.try_recv(), Err(TryRecvError::Empty)));
    close.send(()).expect("it is being closed");
    assert!(detached.recv().expect("an answer").is_ok());
}
