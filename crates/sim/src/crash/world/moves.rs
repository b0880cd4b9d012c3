//! Moves of a simulated disk between two stores, as the daemon does them.
//!
//! Requests are held, a layout copies to the other store, requests are held again, and the descriptor is changed to name
//! the other store. The descriptor is durable: it survives a crash, and says which store the disk is.

use super::{DISK, World};
use crate::crash::SECTOR;
use crate::crash::shape::Shape;
use tidegate_core::layout::{LayoutNotice, MemberState, Target, Tree};
use tidegate_core::shard::Event;

/// How far a move of the disk to its other store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    None,
    /// Requests are to be held before the copies, or after them.
    Holding {
        ends: bool,
    },
    Held {
        ends: bool,
    },
    Copying,
    Copied,
    /// The other store has failed.
    Failed,
    /// The descriptor names the other store.
    Committed,
}

impl World {
    /// The store that a target is.
    pub(super) fn store_of(&self, target: Target) -> usize {
        usize::from(target.0) ^ self.home
    }

    pub(super) fn noticed(&mut self, notice: LayoutNotice) {
        self.note(|| format!("notice: {notice:?}"));
        self.lost_since_start |= matches!(
            notice,
            LayoutNotice::Lost | LayoutNotice::CacheLost { dirty: 1.., .. }
        );
        self.notices.push(notice);
        match notice {
            LayoutNotice::CacheLost { dirty: 0, .. } => {
                // Nothing waits for the order of an administrator then.
                self.cache_lost |= self.detaching;
                self.give_up_cache();
            }
            LayoutNotice::CacheLost { .. } => self.cache_lost = true,
            LayoutNotice::CacheCorrupt { .. } => self.decayed |= self.setup.shape.flash(),
            LayoutNotice::CacheCleaned { left: 0 } => self.cache_cleaned(),
            LayoutNotice::CacheShrunk { chunks } => self.cache_shrunk(chunks),
            LayoutNotice::Dropped { member, .. } => self.dropped_as_new(member),
            _ => {}
        }
        self.moving = match (self.moving, notice) {
            (Move::Copying, LayoutNotice::Rebuilt { .. }) => Move::Copied,
            (
                Move::Copying | Move::Copied,
                LayoutNotice::Dropped { .. } | LayoutNotice::RebuildFailed { .. },
            ) => Move::Failed,
            (moving, _) => moving,
        };
    }

    /// Whether a move is under way.
    pub fn is_moving(&self) -> bool {
        self.moving != Move::None
    }

    /// Whether a move has a next step that can be taken now.
    pub fn can_advance_move(&self) -> bool {
        let waits = matches!(self.moving, Move::Holding { .. } | Move::Copying);
        let movable = self.setup.shape == Shape::Movable && !self.detached;
        movable && !waits && self.opened == Some(Ok(()))
    }

    /// Takes the next step of a move, or begins one. Returns whether there was such a step.
    pub fn advance_move(&mut self) -> bool {
        if !self.can_advance_move() || self.effects() > 0 {
            return false;
        }
        let moving = self.moving;
        self.note(|| format!("move: after {moving:?}"));
        match moving {
            Move::None => self.hold(false),
            Move::Copied | Move::Failed => self.hold(true),
            Move::Held { ends: false } => {
                let size = self.setup.sectors * SECTOR as u64;
                self.moving = Move::Copying;
                self.relay(Some(Box::new(Tree::transfer(size))));
            }
            Move::Held { ends: true } => {
                let members = self.members();
                if members.iter().all(|state| *state == MemberState::InSync) {
                    self.moving = Move::Committed;
                    self.home = 1 - self.home;
                } else {
                    self.moving = Move::None;
                    self.relay(None);
                }
            }
            Move::Committed => {
                self.moving = Move::None;
                self.relay(None);
            }
            Move::Holding { .. } | Move::Copying => return false,
        }
        true
    }

    pub(super) fn hold(&mut self, ends: bool) {
        self.moving = Move::Holding { ends };
        self.handle(Event::Hold { disk: DISK });
    }

    pub(super) fn relay(&mut self, tree: Option<Box<Tree>>) {
        self.opened = None;
        self.handle(Event::Relay { disk: DISK, tree });
    }
}
