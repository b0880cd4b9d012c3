//! Reports of an I/O thread whose turns the test drives.

use super::*;
use crate::datastore::null;
use crate::thread::ThreadConfig;
use crate::thread::commands::{Attach, Change, Command, Inbox, What};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::FilterSpec;
use tidegate_core::stack::Stack;

const CONFIG: ThreadConfig = ThreadConfig {
    poll: Span::ZERO,
    always_poll: false,
    cpu: None,
};

/// With so many disks, each with such filters.
fn thread(disks: u32, filters: &[FilterSpec]) -> IoThread {
    let inbox = Arc::new(Inbox::new().expect("a descriptor"));
    let mut thread =
        IoThread::new("tidegate-test".into(), [inbox].into(), 0, CONFIG).expect("a ring");
    for disk in 0..disks {
        thread.handle(attach(DiskId(disk), filters));
    }
    thread
}

fn attach(disk: DiskId, filters: &[FilterSpec]) -> Command {
    let keys = (0..).map(FilterKey);
    let built = filters.iter().map(FilterSpec::build);
    let (reply, _) = channel();
    Command::Attach(Box::new(Attach {
        disk,
        size: 1 << 20,
        read_only: false,
        stack: Stack::new(keys.zip(built).collect()),
        sides: Vec::new(),
        image: null::open(1 << 20).image,
        lease: None,
        control: None,
        reply,
    }))
}

fn ask<T>(thread: &IoThread, question: impl FnOnce(Sender<T>) -> Question) -> Receiver<T> {
    let (reply, answer) = channel();
    thread.inbox.send_always(Command::Ask(question(reply)));
    answer
}

/// The answer, and in which turn from here it comes.
fn turns_until<T>(thread: &mut IoThread, answer: &Receiver<T>) -> (T, usize) {
    for turn in 1..=1_000 {
        assert!(thread.turn(), "it does not rest before all is told");
        if let Ok(told) = answer.try_recv() {
            return (told, turn);
        }
    }
    panic!("a thousand turns told nothing");
}

/// How many disks' histograms were copied for those who still wait.
fn copied(thread: &IoThread) -> usize {
    let surveys = thread.questions.iter().map(|question| match question {
        Question::Report(survey) => survey.told.as_ref().map_or(0, |told| told.disks.len()),
        Question::Disk(..) | Question::Pulse(_) => 0,
    });
    surveys.sum()
}

fn numbers(disks: impl IntoIterator<Item = DiskId>) -> Vec<u32> {
    disks.into_iter().map(|disk| disk.0).collect()
}

#[test]
fn a_turn_copies_the_histograms_of_one_disk() {
    let mut thread = thread(40, &[FilterSpec::Null, FilterSpec::Stats]);
    let answer = ask(&thread, Question::report);
    for turn in 1..40 {
        assert!(thread.turn());
        assert_eq!(copied(&thread), turn);
        assert!(answer.try_recv().is_err());
    }
    let (report, turn) = turns_until(&mut thread, &answer);
    assert_eq!(turn, 1, "what is left needs no turn of its own");
    let told = report.disks.iter().map(|reading| reading.disk);
    assert_eq!(numbers(told), Vec::from_iter(0..40));
    assert!(report.disks.is_sorted_by_key(|reading| reading.now));
    for DiskReading { report, .. } in &report.disks {
        assert!(matches!(report.filters[1].2, FilterReport::Stats(_)));
    }
    assert!(!thread.turn(), "all is told: it may rest");
}

#[test]
fn a_turn_tells_no_more_because_more_ask_and_each_has_a_part_of_it() {
    const DISKS: usize = 10;
    let mut thread = thread(10, &[FilterSpec::Stats]);
    let surveys = [(); 3].map(|()| ask(&thread, Question::report));
    let one = ask(&thread, |reply| Question::Disk(DiskId(7), reply));
    let (reading, turn) = turns_until(&mut thread, &one);
    assert_eq!(reading.map(|reading| reading.disk), Some(DiskId(7)));
    assert_eq!(turn, 4, "three came before it, and each had its turn");
    assert_eq!(copied(&thread), 3);
    let (_, turn) = turns_until(&mut thread, &surveys[0]);
    assert_eq!(turn, 3 * (DISKS - 1) - 2);
    for survey in &surveys[1..] {
        let (report, turn) = turns_until(&mut thread, survey);
        assert_eq!((report.disks.len(), turn), (DISKS, 1));
    }
}

#[test]
fn sums_of_some_thirty_disks_are_told_in_a_turn() {
    let mut thread = thread(100, &[FilterSpec::Stats]);
    let answer = ask(&thread, Question::pulse);
    let (pulse, turn) = turns_until(&mut thread, &answer);
    assert_eq!(turn, 100_usize.div_ceil(32));
    let told = pulse.disks.iter().map(|disk| disk.disk);
    assert_eq!(numbers(told), Vec::from_iter(0..100));
    assert!(pulse.disks.iter().all(|disk| disk.sums.is_some()));
}

#[test]
fn disks_that_nobody_measures_are_told_of_at_once() {
    let mut thread = thread(200, &[FilterSpec::Null]);
    let answers = (
        ask(&thread, Question::report),
        ask(&thread, |reply| Question::Disk(DiskId(0), reply)),
        ask(&thread, |reply| Question::Disk(DiskId(200), reply)),
    );
    assert!(thread.turn());
    assert_eq!(answers.0.try_recv().expect("told").disks.len(), 200);
    assert!(answers.1.try_recv().expect("told").is_some());
    assert!(answers.2.try_recv().expect("told").is_none());
}

#[test]
fn a_disk_that_goes_while_the_others_are_told_of_is_left_out() {
    let mut thread = thread(6, &[FilterSpec::Stats]);
    let answer = ask(&thread, Question::report);
    assert!(thread.turn() && thread.turn());
    for disk in [DiskId(0), DiskId(4)] {
        let (reply, _) = channel();
        let on_detached = Box::new(|| {});
        let what = What::Detach { on_detached };
        let change = Change { disk, what, reply };
        thread.inbox.send_always(Command::Change(Box::new(change)));
    }
    let (report, _) = turns_until(&mut thread, &answer);
    let told = report.disks.iter().map(|reading| reading.disk);
    assert_eq!(
        numbers(told),
        [0, 1, 2, 3, 5],
        "the first was told of before"
    );
}

#[test]
fn who_asks_a_thread_that_stops_hears_that_no_answer_comes() {
    let mut thread = thread(3, &[FilterSpec::Stats]);
    let answer = ask(&thread, Question::report);
    assert!(thread.turn());
    assert_eq!(answer.try_recv().err(), Some(TryRecvError::Empty));
    thread.inbox.send_always(Command::Stop);
    thread.run();
    // The thread itself is here still, as it is where a datastore keeps some of its memory.
    assert_eq!(answer.try_recv().err(), Some(TryRecvError::Disconnected));
}

/// An image whose close takes until the test lets it.
struct SlowToClose(Receiver<()>);

impl crate::datastore::Image for SlowToClose {
    fn start(
        &mut self,
        _cx: &mut crate::datastore::ImageCx<'_>,
        _job: crate::datastore::Job,
    ) -> crate::datastore::Progress {
        unreachable!("nobody asks it for anything")
    }
}

impl Drop for SlowToClose {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

#[test]
fn a_close_that_takes_long_holds_up_no_other_disk_and_the_detach_waits_for_it() {
    let mut thread = thread(1, &[FilterSpec::Null]);
    let (close, closing) = channel();
    let Command::Attach(mut slow) = attach(DiskId(1), &[]) else {
        unreachable!("it attaches")
    };
    slow.image = Box::new(SlowToClose(closing));
    thread.handle(Command::Attach(slow));
    let (reply, detached) = channel();
    thread.handle(Command::Change(Box::new(Change {
        disk: DiskId(1),
        what: What::Detach {
            on_detached: Box::new(|| {}),
        },
        reply,
    })));
    // On this very thread: it would wait for ever.
    let answer = ask(&thread, Question::report);
    let (told, _) = turns_until(&mut thread, &answer);
    assert_eq!(told.disks.len(), 1);
    assert!(matches!(detached.try_recv(), Err(TryRecvError::Empty)));
    close.send(()).expect("it is being closed");
    assert!(detached.recv().expect("an answer").is_ok());
}
