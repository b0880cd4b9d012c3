//! Changes of I/O threads by an administrator: each is an event that says so.

use tidegate_api::events::{Happening, IoThreadAction, IoThreadActor};

use super::*;

impl Stage {
    /// What was done with I/O threads since the last call: action, thread, disk.
    fn of_threads(&self) -> Vec<(IoThreadAction, u32, Option<String>)> {
        let happenings = self.disk_service.notices.take_of_threads().into_iter();
        let told = happenings.map(|happening| {
            let Happening::IoThreads {
                action,
                by,
                disk,
                thread,
                why,
                ..
            } = happening
            else {
                panic!("{happening:?}")
            };
            assert_eq!(by, IoThreadActor::Administrator);
            assert!(why.starts_with("an administrator ordered it"), "{why}");
            (action, thread.unwrap(), disk.map(|disk| disk.to_string()))
        });
        told.collect()
    }
}

#[test]
fn what_an_administrator_does_with_threads_is_an_event_and_a_refusal_is_none() {
    use IoThreadAction::{Activate, Lock, Move, Park, Unlock};
    let two = ThreadsPlan {
        most: 2,
        ..ThreadsPlan::fixed(1)
    };
    let stage = stage_with(&two, [1; 16], "one");
    let service = &stage.disk_service;
    stage.disk("a");
    stage.attach("a", Outside::default()).unwrap();
    service.move_to_thread(&name("a"), 1).unwrap_err();
    service.lock_thread(0).unwrap_err();
    assert_eq!(stage.of_threads(), []);
    assert_eq!(service.create_thread().unwrap(), 1);
    service.move_to_thread(&name("a"), 1).unwrap();
    // It is there already.
    service.move_to_thread(&name("a"), 1).unwrap();
    service.lock_thread(0).unwrap();
    service.lock_thread(0).unwrap();
    service.unlock_thread(0).unwrap();
    service.lock_thread(0).unwrap();
    service.remove_thread(0).unwrap();
    assert_eq!(
        stage.of_threads(),
        [
            (Activate, 1, None),
            (Move, 1, Some("a".to_owned())),
            (Lock, 0, None),
            (Unlock, 0, None),
            (Lock, 0, None),
            (Park, 0, None),
        ]
    );
}
