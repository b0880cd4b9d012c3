//! An I/O thread's messages to and from governors and other I/O threads.

use super::{Command, Inbox};
use crate::control::{Govern, GovernedThread, Word};
use crate::thread::IoThread;
use tidegate_core::effect::ControlId;
use tidegate_core::shard::Event;

impl GovernedThread for Inbox {
    fn govern(&self, control: ControlId, govern: Govern) {
        self.send_always(Command::Govern(control, Box::new(govern)));
    }
}

impl IoThread {
    /// Carries out what a control sent.
    pub(super) fn govern(&mut self, control: ControlId, govern: Govern) {
        let at = control.0 as usize;
        match govern {
            Govern::Begin { scheduler, words } => {
                if self.governed.len() <= at {
                    self.governed.resize_with(at + 1, || None);
                }
                self.governed[at] = Some(words);
                self.resting.push(control);
                self.cx.handle(Event::Control { control, scheduler });
            }
            Govern::End => {
                self.governed[at] = None;
                self.resting.retain(|resting| *resting != control);
                self.cx.handle(Event::Release { control });
            }
            Govern::Steer(orders) => self.cx.handle(Event::Steer { control, orders }),
            Govern::Count => self.count(control),
        }
    }

    /// Tells a governor what its datastore's disks used here.
    fn count(&mut self, control: ControlId) {
        let Some(words) = self
            .governed
            .get(control.0 as usize)
            .and_then(Option::as_ref)
        else {
            return;
        };
        let (mut usage, mut bins) = (Vec::new(), Vec::new());
        self.cx.shard.usage(control, self.cx.now, &mut usage);
        self.cx.shard.bins(control, &mut bins);
        let rests = !usage.iter().any(|usage| usage.active);
        if rests && !self.resting.contains(&control) {
            self.resting.push(control);
        }
        // A governor that has ended wants no counts.
        let _ = words.send(Word::Counted {
            thread: self.number,
            usage,
            bins,
        });
    }

    /// Tells governors that believe a datastore to be idle that it is not.
    pub(in crate::thread) fn wake_governors(&mut self) {
        let (governed, shard) = (&self.governed, &self.cx.shard);
        self.resting.retain(|control| {
            let active = shard.is_active(*control);
            if active && let Some(Some(words)) = governed.get(control.0 as usize) {
                let _ = words.send(Word::Active);
            }
            !active
        });
    }

    /// Tells every governor that something has changed here.
    pub(super) fn wake_all_governors(&self) {
        for words in self.governed.iter().flatten() {
            let _ = words.send(Word::Active);
        }
    }

    /// It is another thread's turn at a datastore.
    pub(in crate::thread) fn wake_peer(&self, control: ControlId, thread: usize) {
        if let Some(inbox) = self.threads.get(thread) {
            // One word for each time that a thread goes to sleep in want of room: bounded.
            inbox.send_always(Command::Woken(control));
        }
    }
}
