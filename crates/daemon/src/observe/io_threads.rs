//! The decisions of the I/O threads' policy, in the API's words: events, `status`, and notes of `explain`.
//!
//! The engine's monitor decides and acts. This module only reports: it maps numbers of disks to names.

use tidegate_api::config::ThreadPolicy;
use tidegate_api::events::{Happening, IoThreadAction, IoThreadActor};
use tidegate_api::name::Name;
use tidegate_api::status::{ThreadChange, ThreadPolicyStatus};
use tidegate_core::monitor::{Action, Decision, Kind, Why};
use tidegate_core::request::DiskId;
use tidegate_core::units::Time;
use tidegate_engine::monitor::{Event, Status};

/// A decision as an event. `name_of` maps disks to names.
pub(crate) fn happening(event: &Event, name_of: impl Fn(DiskId) -> Option<Name>) -> Happening {
    let (disk, thread) = match event.decision.action {
        Action::Move { disk, to } => (name_of(disk), Some(to.into())),
        Action::Activate { thread } | Action::Lock { thread } | Action::Park { thread } => {
            (None, Some(thread.into()))
        }
        Action::Spin { .. } => (None, None),
        // What was found concerns a thread and possibly a disk.
        Action::Stay => match event.decision.why {
            Why::OneDisk { thread, disk, .. } => (name_of(disk), Some(thread.into())),
            why => (None, why.congested().map(u32::from)),
        },
    };
    Happening::IoThreads {
        action: action(event.decision.action),
        by: IoThreadActor::Policy,
        disk,
        thread,
        why: event.decision.why.to_string(),
        failed: event.failed.clone(),
        repeats: event.repeats,
    }
}

const fn action(action: Action) -> IoThreadAction {
    match action {
        Action::Move { .. } => IoThreadAction::Move,
        Action::Activate { .. } => IoThreadAction::Activate,
        Action::Lock { .. } => IoThreadAction::Lock,
        Action::Park { .. } => IoThreadAction::Park,
        Action::Spin { on: true } => IoThreadAction::PollOn,
        Action::Spin { on: false } => IoThreadAction::PollOff,
        Action::Stay => IoThreadAction::Stay,
    }
}

/// An event of I/O threads as a sentence.
pub(crate) struct Sentence<'a> {
    pub(crate) action: IoThreadAction,
    pub(crate) disk: Option<&'a Name>,
    pub(crate) thread: Option<u32>,
    pub(crate) why: &'a str,
    pub(crate) failed: Option<&'a str>,
    pub(crate) repeats: u64,
}

impl Sentence<'_> {
    pub(crate) fn text(&self) -> String {
        let thread = self.thread;
        let thread =
            thread.map_or_else(|| "an I/O thread".to_owned(), |n| format!("I/O thread {n}"));
        let disk = self.disk.map_or_else(
            || "a detached disk".to_owned(),
            |name| format!("disk {name}"),
        );
        let done = match self.action {
            IoThreadAction::Move => format!("{disk} moves to {thread}"),
            IoThreadAction::Activate => format!("{thread} takes disks from now on"),
            IoThreadAction::Lock => format!("{thread} takes no more disks"),
            IoThreadAction::Unlock => format!("{thread} takes disks again"),
            IoThreadAction::Park => format!("{thread} is parked"),
            IoThreadAction::PollOn => "idle I/O threads may poll".to_owned(),
            IoThreadAction::PollOff => "idle I/O threads do not poll".to_owned(),
            IoThreadAction::Stay if self.disk.is_some() => format!("{disk} stays on {thread}"),
            IoThreadAction::Stay => "I/O threads stay as they are".to_owned(),
        };
        let mut text = format!("{done}: {}", self.why);
        if let Some(failed) = self.failed {
            text += &format!("; it could not be done: {failed}");
        }
        match self.repeats {
            0 => {}
            1 => text += "; once more since the last such event",
            repeats => text += &format!("; {repeats} times more since the last such event"),
        }
        text
    }
}

/// What the monitor has done, for `status`. `now` and `now_ms` are the same moment.
pub(crate) fn status(status: &Status, now: Time, now_ms: u64) -> ThreadPolicyStatus {
    let change = |decision: Decision| {
        let thread = match decision.action {
            Action::Activate { thread } | Action::Park { thread } => thread,
            _ => return None,
        };
        let ago_ms = now.since(decision.at).as_nanos() / 1_000_000;
        Some(ThreadChange {
            at_ms: now_ms.saturating_sub(ago_ms),
            action: action(decision.action),
            thread: thread.into(),
            why: decision.why.to_string(),
        })
    };
    ThreadPolicyStatus {
        policy: match status.settings.policy {
            Kind::None => ThreadPolicy::None,
            Kind::Auto => ThreadPolicy::Auto,
            Kind::Iocm => ThreadPolicy::Iocm,
            Kind::Spdk => ThreadPolicy::Spdk,
        },
        min: status.settings.limits.min.into(),
        max: status.settings.limits.max.into(),
        resting: status.resting,
        may_poll: status.may_spin,
        last_change: status.last_change.and_then(change),
        moves: status.moves,
        activated: status.activated,
        parked: status.parked,
        kept: status.kept,
        undone: status.undone,
        void: status.void,
        failed: status.failed,
        findings: status.findings,
        ticks: status.ticks,
        cpu_us: status.cpu.as_micros(),
    }
}

/// The last thing that the policy found or did about a thread, as a note of `explain`.
pub(crate) fn note<'a>(
    thread: u32,
    events: impl DoubleEndedIterator<Item = &'a tidegate_api::events::Event>,
) -> Option<String> {
    let about = format!("thread {thread} ");
    let last = events.rev().find(|event| match &event.happening {
        Happening::IoThreads { why, .. } => why.contains(&about),
        _ => false,
    })?;
    Some(format!("the policy of I/O threads: {}", last.text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::Span;

    fn congested(action: Action) -> Event {
        let decision = Decision {
            at: Time::ZERO + Span::from_secs(5),
            action,
            why: Why::Congested {
                thread: 0,
                busy: 970,
                delay: Span::from_micros(340),
                target: Span::from_micros(100),
                standing: false,
                threads: 1,
            },
        };
        Event {
            decision,
            failed: None,
            repeats: 0,
        }
    }

    fn text_of(happening: &Happening) -> String {
        let Happening::IoThreads {
            action,
            disk,
            thread,
            why,
            failed,
            repeats,
            by: _,
        } = happening
        else {
            panic!("it is an event of I/O threads")
        };
        let sentence = Sentence {
            action: *action,
            disk: disk.as_ref(),
            thread: *thread,
            why,
            failed: failed.as_deref(),
            repeats: *repeats,
        };
        sentence.text()
    }

    fn text(event: &Event) -> String {
        let name = |disk: DiskId| (disk == DiskId(7)).then(|| "web".parse().unwrap());
        text_of(&happening(event, name))
    }

    #[test]
    fn a_finding_names_the_disk_by_its_name_and_says_how_often_it_was_found() {
        let mut found = congested(Action::Stay);
        found.decision.why = Why::OneDisk {
            thread: 3,
            disk: DiskId(7),
            busy: 991,
            delay: Span::from_millis(2),
            queues: 1,
        };
        found.repeats = 17;
        assert_eq!(
            text(&found),
            "disk web stays on I/O thread 3: one disk is the whole load of thread 3 (busy=99.1% delay_p99=2.00ms queues=1); \
             17 times more since the last such event"
        );
    }

    #[test]
    fn a_decision_names_disk_thread_reason_and_values() {
        let disk = DiskId(7);
        assert_eq!(
            text(&congested(Action::Move { disk, to: 1 })),
            "disk web moves to I/O thread 1: requests wait for thread 0 (busy=97.0% delay_p99=340us target=100us \
             passed_over=no active_threads=1)"
        );
        let gone = text(&congested(Action::Move {
            disk: DiskId(1),
            to: 1,
        }));
        assert!(gone.starts_with("a detached disk moves"), "{gone}");
        let mut refused = congested(Action::Park { thread: 2 });
        refused.failed = Some("it has 3 disks".to_owned());
        let refused = text(&refused);
        assert!(refused.starts_with("I/O thread 2 is parked: "), "{refused}");
        assert!(
            refused.ends_with("; it could not be done: it has 3 disks"),
            "{refused}"
        );
    }

    #[test]
    fn explain_cites_the_last_decision_about_its_thread() {
        let event = |number, thread, action| tidegate_api::events::Event {
            number,
            at_ms: 0,
            datastore: None,
            text: format!("event {number}"),
            happening: Happening::IoThreads {
                action,
                disk: None,
                thread: Some(1),
                why: format!("requests wait for thread {thread} (busy=97.0%)"),
                failed: None,
                by: IoThreadActor::Policy,
                repeats: 0,
            },
        };
        let events = [
            event(1, 1, IoThreadAction::Move),
            event(2, 1, IoThreadAction::Activate),
            event(3, 12, IoThreadAction::Stay),
        ];
        let note_of = |thread| note(thread, events.iter());
        assert_eq!(
            note_of(1).as_deref(),
            Some("the policy of I/O threads: event 2")
        );
        assert_eq!(note_of(2), None);
    }
}
