//! The generations of a pool's disk and of its ancestors, and which of them the disk sees.
//!
//! A generation has a parent, which it sees where it has nothing of its own. Of a clone's first one that is a generation of
//! another disk.
//!
//! # Always true
//! - a parent is nearer to the root than its child, by its rank
//! - the ranks are those of the path from what the disk shows to the root; others have rank 0

use super::blocks::{Branch, Root};
use super::setup::Generation;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// No generation.
pub(super) const NO_GENERATION: u16 = u16::MAX;

/// The most generations of a disk and its ancestors together.
pub(super) const FOREST_MAX: usize = 60_000;

/// See the module.
#[derive(Default)]
pub(super) struct Forest {
    all: Vec<Member>,
    by_number: BTreeMap<(u8, Generation), u16>,
    /// Numbers that are not used.
    free: Vec<u16>,
    /// The generation that the disk shows.
    shown: u16,
}

/// A generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// 0: the disk itself; otherwise an ancestor.
    pub(super) owner: u8,
    pub(super) number: Generation,
    pub(super) parent: u16,
    pub(super) is_going: bool,
    rank: u16,
    /// Extents of its own.
    pub(super) extents: u64,
}

impl Forest {
    /// Adds what the root of an owner says. Its first generations see `beyond`.
    pub(super) fn add(&mut self, owner: u8, root: &Root, beyond: u16) {
        for branch in &root.generations {
            let parent = branch.parent.and_then(|parent| self.find(owner, parent));
            self.put(owner, branch, parent.unwrap_or(beyond));
        }
    }

    fn put(&mut self, owner: u8, branch: &Branch, parent: u16) -> u16 {
        let member = Member {
            owner,
            number: branch.number,
            parent,
            is_going: branch.is_going,
            rank: 0,
            extents: 0,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.all[usize::from(place)] = member;
                place
            }
            None => {
                self.all.push(member);
                u16::try_from(self.all.len() - 1).expect("generations are bounded")
            }
        };
        self.by_number.insert((owner, branch.number), place);
        place
    }

    /// One more generation of the disk itself.
    pub(super) fn grow(&mut self, number: Generation, parent: u16) -> u16 {
        let branch = Branch {
            number,
            parent: None,
            is_going: false,
        };
        self.put(0, &branch, parent)
    }

    /// A generation of which nothing is left. Its children see what it saw.
    pub(super) fn remove(&mut self, place: u16) {
        let gone = *self.at(place);
        self.by_number.remove(&(gone.owner, gone.number));
        self.free.push(place);
        for member in &mut self.all {
            if member.parent == place {
                member.parent = gone.parent;
            }
        }
        self.all[usize::from(place)].number = Generation(0);
    }

    pub(super) fn find(&self, owner: u8, number: Generation) -> Option<u16> {
        self.by_number.get(&(owner, number)).copied()
    }

    pub(super) fn at(&self, place: u16) -> &Member {
        &self.all[usize::from(place)]
    }

    pub(super) fn at_mut(&mut self, place: u16) -> &mut Member {
        &mut self.all[usize::from(place)]
    }

    /// How near to what the disk shows: higher is nearer, 0 is not seen.
    pub(super) fn rank(&self, place: u16) -> u16 {
        self.all[usize::from(place)].rank
    }

    /// The disk shows this generation.
    pub(super) fn show(&mut self, shown: u16) {
        self.shown = shown;
        self.all.iter_mut().for_each(|member| member.rank = 0);
        let path: Vec<u16> = self.path(shown).collect();
        for (rank, place) in (1..).zip(path.iter().rev()) {
            self.all[usize::from(*place)].rank = rank;
        }
    }

    pub(super) fn shown(&self) -> u16 {
        self.shown
    }

    /// A generation, and what it sees, the nearest first.
    pub(super) fn path(&self, from: u16) -> impl Iterator<Item = u16> + '_ {
        let first = (from != NO_GENERATION).then_some(from);
        core::iter::successors(first, |place| {
            let parent = self.at(*place).parent;
            (parent != NO_GENERATION).then_some(parent)
        })
    }

    /// The generations of the disk itself, ascending.
    pub(super) fn own(&self) -> impl Iterator<Item = u16> + '_ {
        let of_disk = (0, Generation(0))..(1, Generation(0));
        self.by_number.range(of_disk).map(|(_, place)| *place)
    }

    /// The generations that have this one as their parent.
    pub(super) fn children(&self, of: u16) -> impl Iterator<Item = u16> + '_ {
        self.by_number
            .values()
            .copied()
            .filter(move |place| self.at(*place).parent == of)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// The generations of the disk, as its root says them.
    pub(super) fn branches(&self) -> Vec<Branch> {
        let branch = |place: u16| {
            let member = self.at(place);
            let parent = (member.parent != NO_GENERATION)
                .then(|| self.at(member.parent))
                .filter(|parent| parent.owner == 0);
            Branch {
                number: member.number,
                parent: parent.map(|parent| parent.number),
                is_going: member.is_going,
            }
        };
        self.own().map(branch).collect()
    }
}
