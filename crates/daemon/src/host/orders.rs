//! Orders to the layout of an attached disk, and what the layout reports.

use std::time::Duration;

use tidegate_core::layout::{LayoutOrder, LayoutReport, Target};
use tidegate_engine::Kind;

use super::joined::Described;
use super::{Disk, Opened, problem};
use crate::os_error::Outcome;
use tidegate_api::problem::{Problem, ProblemCode};

/// How long the I/O in flight of a disk may take to end when what lies below its filters is exchanged.
pub(super) const EXCHANGING: Duration = Duration::from_secs(30);

/// How long the I/O in flight of a disk may take to end when the disk is paused: its other requests wait meanwhile.
pub(super) const PAUSING: Duration = Duration::from_secs(10);

/// The image that a member had, until the engine has closed it.
pub(crate) struct OldMember(tidegate_engine::OldImage);

impl OldMember {
    pub(super) fn new(image: tidegate_engine::OldImage) -> OldMember {
        OldMember(image)
    }

    /// Waits until it is closed, which takes as long as its datastore hangs. Returns whether it is.
    pub(crate) fn is_closed_within(&self, patience: Duration) -> bool {
        self.0.wait(patience).is_ok()
    }
}

/// The image that a disk has after a move.
pub(crate) enum Keep {
    /// The one that it had.
    Old,
    /// The new one.
    New(Described),
}

impl Disk {
    /// The state of its layout, or of its move. None: it is one image, or it is being detached.
    pub(crate) fn layout(&self) -> Option<LayoutReport> {
        self.disk.layout().ok().flatten()
    }

    /// Gives its layout an order.
    pub(crate) fn order(&self, order: LayoutOrder) -> Outcome<()> {
        let ordered = self.disk.order_layout(order);
        ordered.map_err(|e| self.refused(&e))
    }

    /// Gives its layout an order that it answers at once, and waits for that so long.
    pub(crate) fn order_within(&self, order: LayoutOrder, patience: Duration) -> Outcome<()> {
        let ordered = self.disk.order_layout_within(order, patience);
        ordered.map_err(|e| self.refused(&e))
    }

    /// Gives a disk on a pool one more column.
    pub(crate) fn add_column(&self, opened: Option<Opened>) -> Outcome<()> {
        let described = opened.as_ref().map(Described::of);
        let image = opened.map(|opened| opened.image);
        let added = self.disk.add_member(image, EXCHANGING);
        added.map_err(|e| self.refused(&e))?;
        self.seen.add(described);
        Ok(())
    }

    /// Gives a member another image, or none. The layout has been told that it lacks all writes.
    pub(crate) fn set_member(&self, member: usize, opened: Option<Opened>) -> Outcome<OldMember> {
        let name = self.disk.name();
        let described = opened.as_ref().map(Described::of);
        let image = opened.map(|opened| opened.image);
        let old = self.disk.set_member(target(member), image).map_err(|e| {
            problem(&e).within(format!("cannot exchange member {member} of disk {name}"))
        })?;
        self.seen.exchange(member, described);
        Ok(OldMember(old))
    }

    /// Gives a mirror one more member, which lacks all bytes.
    pub(crate) fn add_member(&self, opened: Opened) -> Outcome<()> {
        let described = Described::of(&opened);
        let added = self.disk.add_member(Some(opened.image), EXCHANGING);
        added.map_err(|e| self.refused(&e))?;
        self.seen.add(Some(described));
        Ok(())
    }

    /// Begins to move it to another image: each write goes to both from now on.
    pub(crate) fn begin_transfer(&self, to: Opened) -> Outcome<Described> {
        let described = Described::of(&to);
        let begun = self.disk.begin_transfer(to.image, EXCHANGING);
        begun.map(|()| described).map_err(|e| self.refused(&e))
    }

    /// Holds the requests of a disk that moves, until the move ends. Fails unless the new image has every byte.
    pub(crate) fn pause_transfer(&self) -> Outcome<()> {
        let paused = self.disk.pause_transfer(EXCHANGING);
        match paused.map_err(|e| self.refused(&e))? {
            true => Ok(()),
            false => Err(
                Problem::new(ProblemCode::Datastore, "the new image has failed")
                    .because("it does not have all bytes of the disk")
                    .remedy("check the datastore that the disk was to move to, and try again"),
            ),
        }
    }

    /// Ends a move: the disk has only the image that it had, or only the new one.
    pub(crate) fn end_transfer(&self, keep: &Keep) -> Outcome<OldMember> {
        let (kept, described) = match keep {
            Keep::Old => (0, None),
            Keep::New(described) => (1, Some(described)),
        };
        let ended = self.disk.end_transfer(target(kept), EXCHANGING);
        let old = ended.map(OldMember).map_err(|e| self.refused(&e))?;
        if let Some(described) = described {
            self.seen.exchange(0, Some(described.clone()));
        }
        Ok(old)
    }

    /// Holds its requests, once those in flight have ended.
    pub(crate) fn pause(&self) -> Outcome<()> {
        self.disk.pause(PAUSING).map_err(|e| self.refused(&e))
    }

    /// Lets its requests go on.
    pub(crate) fn resume(&self) -> Outcome<()> {
        self.disk.resume().map_err(|e| self.refused(&e))
    }

    pub(super) fn refused(&self, error: &tidegate_engine::Error) -> Problem {
        let name = self.disk.name();
        let now = match error.kind() {
            // Waiting does not help.
            Kind::Unsupported => "",
            _ => " now",
        };
        let told = problem(error).within(format!("disk {name} cannot do that{now}"));
        match error.kind() {
            Kind::Busy | Kind::Exists => told.remedy(format!(
                "see its state: tidegate disk show {name}; and `tidegate job list`"
            )),
            Kind::Unsupported => {
                told.remedy(format!("see the disk's layout: tidegate disk show {name}"))
            }
            _ => told,
        }
    }
}

fn target(member: usize) -> Target {
    Target(u8::try_from(member).unwrap_or(u8::MAX))
}
