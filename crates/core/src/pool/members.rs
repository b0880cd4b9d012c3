//! The members of a pool that can be used, decided from the superblocks that were found on them.
//!
//! The daemon reads both superblocks of each path that its record names, and calls [`judge`]. The newest superblock says
//! which members have the current catalog. All of these must be there: a member that is missing may have a newer one.
//!
//! # Always true
//! - a catalog is used only if no member can have a newer one
//! - the same input gives the same answer, whatever the order of the paths
//! - a member without a superblock is used only if it was being added
//!
//! # Picture
//! ```text
//!   newest superblock: generation 8, members 0 current, 1 behind, 2 current
//!     0: generation 8 or 7 ── its catalog counts        2: missing ── refused
//!     1: generation 6      ── gets the catalog of 0
//! ```

use super::superblock::{MemberState, Place, Superblock};
use crate::block::Unreadable;
use alloc::vec::Vec;

/// What was found at one path: its two superblocks. `None`: it could not be opened or read.
pub type Found = Option<[Result<Superblock, Unreadable>; 2]>;

/// A pool that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The newest generation.
    pub generation: u64,
    /// Bytes of the catalog's region.
    pub catalog: u64,
    /// Bytes of it that are in use.
    pub length: u64,
    /// Where grant 0 is on each member.
    pub data_at: u64,
    /// All members, by number.
    pub members: Vec<Seat>,
    /// Paths that are not used, and why, if they are not merely empty: what is there is no member that counts.
    pub unused: Vec<(usize, Option<Why>)>,
}

/// A member, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// What the newest superblock says of it.
    pub place: Place,
    /// Its path, by number of the input. `None`: it is missing, which only members behind, and those given up, may be.
    pub path: Option<usize>,
    /// Bytes of it that are used, if it has a superblock.
    pub size: Option<u64>,
}

/// Why a pool cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The path it is about, by number of the input.
    pub path: Option<usize>,
    /// What is wrong.
    pub why: Why,
}

/// What is wrong with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is no superblock on any path.
    NoPool,
    /// Something else was written over a superblock.
    Foreign,
    /// Both superblocks are damaged.
    Damaged,
    /// A newer version of this program wrote it: this is its format.
    Newer(u16),
    /// It belongs to another pool.
    OtherPool([u8; 16]),
    /// Two paths lead to this member, or one is a copy of the other.
    Twice(u16),
    /// This member is not there, and may have the newest catalog.
    Missing(u16),
    /// Two members contradict each other about the pool.
    Contradiction,
    /// No member has the current catalog.
    NoneCurrent,
}

/// Decides which members can be used, if the pool can be.
///
/// # Errors
/// A member is missing, damaged, or not one of this pool.
pub fn judge(pool: [u8; 16], found: &[Found]) -> Result<Standing, Refusal> {
    judge_without(pool, found, &[])
}

/// The same if the administrator gives these members up: they may be missing, whatever they have. A newer catalog that only
/// they had is lost.
///
/// # Errors
/// Another member is missing, damaged, or not one of this pool.
pub fn judge_without(
    pool: [u8; 16],
    found: &[Found],
    given_up: &[u16],
) -> Result<Standing, Refusal> {
    let mut read = Vec::with_capacity(found.len());
    let mut unused = Vec::new();
    for (path, found) in found.iter().enumerate() {
        let Some(places) = found else {
            continue;
        };
        match best(pool, places) {
            Ok(Some(one)) => read.push((path, one)),
            Ok(None) => unused.push((path, None)),
            Err(why @ Why::Newer(_)) => {
                return Err(Refusal {
                    path: Some(path),
                    why,
                });
            }
            Err(why) => unused.push((path, Some(why))),
        }
    }
    // What is wrong with a path explains why a member is missing.
    let without = |why| {
        let damaged = unused.iter().find_map(|(path, why)| Some((*path, (*why)?)));
        let (path, why) = damaged.map_or((None, why), |(path, why)| (Some(path), why));
        Refusal { path, why }
    };
    let newest = read.iter().max_by_key(|(_, one)| one.generation);
    let Some((_, newest)) = newest.cloned() else {
        return Err(without(Why::NoPool));
    };
    let mut seats: Vec<Seat> = newest
        .members
        .iter()
        .map(|place| Seat {
            place: *place,
            path: None,
            size: None,
        })
        .collect();
    let mut unknown = Vec::new();
    for (path, one) in &read {
        let refuse = |why| {
            Err(Refusal {
                path: Some(*path),
                why,
            })
        };
        let says = |of: &Superblock| (of.members.clone(), of.length);
        if one.generation == newest.generation && says(one) != says(&newest)
            || (one.catalog, one.data_at) != (newest.catalog, newest.data_at)
        {
            return refuse(Why::Contradiction);
        }
        match seats.get_mut(usize::from(one.member)) {
            None => unknown.push((*path, None)),
            Some(Seat { path: Some(_), .. }) => return refuse(Why::Twice(one.member)),
            Some(seat) => (seat.path, seat.size) = (Some(*path), Some(one.size)),
        }
    }
    let is_current = |seat: &&Seat| seat.place.state == MemberState::Current;
    for (number, seat) in (0..).zip(&seats) {
        if is_current(&seat) && seat.path.is_none() && !given_up.contains(&number) {
            return Err(without(Why::Missing(number)));
        }
    }
    if !seats
        .iter()
        .any(|seat| is_current(&seat) && seat.path.is_some())
    {
        return Err(Refusal {
            path: None,
            why: Why::NoneCurrent,
        });
    }
    unused.extend(unknown);
    Ok(Standing {
        generation: newest.generation,
        catalog: newest.catalog,
        length: newest.length,
        data_at: newest.data_at,
        members: seats,
        unused,
    })
}

/// The newer superblock of one path. `None`: there is nothing.
fn best(
    pool: [u8; 16],
    places: &[Result<Superblock, Unreadable>; 2],
) -> Result<Option<Superblock>, Why> {
    let mut newest: Option<&Superblock> = None;
    let (mut torn, mut foreign) = (false, false);
    for place in places {
        match place {
            Ok(one) if one.pool != pool => return Err(Why::OtherPool(one.pool)),
            Ok(one) if newest.is_none_or(|other| other.generation < one.generation) => {
                newest = Some(one);
            }
            Ok(_) | Err(Unreadable::Empty) => {}
            Err(Unreadable::Newer(version)) => return Err(Why::Newer(*version)),
            Err(Unreadable::Torn | Unreadable::Short) => torn = true,
            Err(Unreadable::Foreign) => foreign = true,
        }
    }
    match newest {
        // A crash leaves part of a superblock, but nothing else.
        _ if foreign => Err(Why::Foreign),
        Some(one) => Ok(Some(one.clone())),
        None if torn => Err(Why::Damaged),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
