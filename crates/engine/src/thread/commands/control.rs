//! An I/O thread's messages to and from governors and other I/O threads.

use super::{Command, Inbox};
use crate::control::{Govern, GovernedThread, GovernorMessage};
use crate::thread::IoThread;
use tidegate_core::effect::ControlId;
use tidegate_core::shard::Event;

impl GovernedThread for Inbox {
    fn govern(&self, control: ControlId, govern: Govern) {
        self.send_always(Command::Govern(control, Box::new(govern)));
    }
}

impl IoThread {
    /// Performs a message of a governor.
    pub(super) fn govern(&mut self, control: ControlId, govern: Govern) {
        let at = control.0 as usize;
        match govern {
            Govern::Begin {
                scheduler,
                messages,
            } => {
                if self.governors.len() <= at {
                    self.governors.resize_with(at + 1, || None);
                }
                self.governors[at] = Some(messages);
                self.idle_controls.push(control);
                self.cx.handle(Event::Control { control, scheduler });
            }
            Govern::End => {
                self.governors[at] = None;
                self.idle_controls.retain(|idle| *idle != control);
                self.cx.handle(Event::Release { control });
            }
            Govern::Steer(orders) => self.cx.handle(Event::Steer { control, orders }),
            Govern::Count => self.count(control),
        }
    }

    /// Reports to a governor what its datastore's disks have used here.
    fn count(&mut self, control: ControlId) {
        let Some(messages) = self
            .governors
            .get(control.0 as usize)
            .and_then(Option::as_ref)
        else {
            return;
        };
        let (mut usage, mut bins) = (Vec::new(), Vec::new());
        self.cx.shard.usage(control, self.cx.now, &mut usage);
        self.cx.shard.bins(control, &mut bins);
        let idle = !usage.iter().any(|usage| usage.active);
        if idle && !self.idle_controls.contains(&control) {
            self.idle_controls.push(control);
        }
        // The governor may have ended.
        let _ = messages.send(GovernorMessage::Counted {
            thread: self.number,
            usage,
            bins,
        });
    }

    /// Notifies governors that assume an idle datastore of its activity.
    pub(in crate::thread) fn wake_governors(&mut self) {
        let (governors, shard) = (&self.governors, &self.cx.shard);
        self.idle_controls.retain(|control| {
            let active = shard.is_active(*control);
            if active && let Some(Some(messages)) = governors.get(control.0 as usize) {
                let _ = messages.send(GovernorMessage::Active);
            }
            !active
        });
    }

    /// Notifies every governor of a change here.
    pub(in crate::thread) fn wake_all_governors(&self) {
        for messages in self.governors.iter().flatten() {
            let _ = messages.send(GovernorMessage::Active);
        }
    }

    /// Wakes another thread that waits for room in a datastore's window.
    pub(in crate::thread) fn wake_peer(&self, control: ControlId, thread: usize) {
        // One message for each time that a thread waits for room: bounded.
        self.peers
            .inbox(thread)
            .send_always(Command::Woken(control));
    }
}
