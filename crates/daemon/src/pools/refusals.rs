//! Refusals of pools and groups that cannot be made, before anything is written.

use tidegate_api::pool::{PoolGroupSpec, PoolLayout};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::pool::GRANT;
use tidegate_core::pool::superblock::{MOST_MEMBERS, Superblock};

use super::opening::Locked;
use crate::os_error::{self, Outcome};

/// Bytes of a catalog for each grant, without room to grow. Origin: a grant takes some 64 bytes, twice that while it is
/// changed, and the database doubles.
pub(super) const ENTRY: u64 = 256;

/// Fails for groups that cannot be made.
pub(super) fn must_be_built(group: &PoolGroupSpec) -> Outcome<()> {
    match (group.layout, group.devices.len()) {
        (PoolLayout::Mirror | PoolLayout::MirrorStripe, _) => Err(Problem::new(
            ProblemCode::Unsupported,
            format!("groups of layout {} are not built yet", group.layout),
        )
        .remedy("use stripe:PATH,PATH or a path alone, on devices that have redundancy of their own, such as md")),
        (PoolLayout::Single, 1) => Ok(()),
        (PoolLayout::Single, _) => Err(os_error::invalid("a group of several members needs a layout")
            .remedy("write stripe:PATH,PATH, or name each path as a group of its own")),
        (PoolLayout::Stripe, 0 | 1) => Err(os_error::invalid("a stripe has two members at least")
            .remedy("name more paths, separated by commas, or one path without stripe:")),
        (PoolLayout::Stripe, _) => Ok(()),
    }
}

pub(super) fn must_be_few(members: usize) -> Outcome<()> {
    if members <= MOST_MEMBERS {
        return Ok(());
    }
    Err(os_error::invalid(format!(
        "a pool has {MOST_MEMBERS} members at most, and would have {members}"
    ))
    .remedy("join devices below the pool, such as by md or LVM"))
}

pub(super) fn must_have_space(member: &Locked, data_at: u64) -> Outcome<()> {
    if Superblock::grants(member.file.size(), data_at) > 0 {
        return Ok(());
    }
    let least = data_at + GRANT;
    Err(
        os_error::invalid(format!("{} is too small", member.path.display()))
            .because(format!(
                "it has {} bytes, and a member of this pool needs {least}",
                member.file.size()
            ))
            .remedy("name a larger file or device"),
    )
}

/// Fails if a catalog of this size could not list so many grants.
pub(super) fn must_have_entries(grants: u64, catalog: u64) -> Outcome<()> {
    if grants.saturating_mul(ENTRY) <= catalog {
        return Ok(());
    }
    Err(
        os_error::invalid("the pool would be too large for its catalog")
            .because(format!(
                "its region on each member has {catalog} bytes, enough for {} TiB",
                (catalog / ENTRY * GRANT) >> 40
            ))
            .remedy("create another pool"),
    )
}
