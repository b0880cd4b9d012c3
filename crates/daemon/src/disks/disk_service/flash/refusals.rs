//! Refusals of commands on disks with a flash cache, with what to do then.

use tidegate_api::cache::{FlashMode, FlashUse};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::units::Size;

use crate::caches::chunks::FEWEST;
use crate::caches::{Devices, Record};
use crate::disks::attached::Attached;
use crate::os_error::{self, Outcome};
use crate::store::Found;

/// Fails if only the cache of a disk has some of its writes.
pub(in super::super) fn must_be_saved(found: &Found) -> Outcome<()> {
    match found
        .descriptor
        .flash
        .as_ref()
        .filter(|flash| flash.has_dirty)
    {
        None => Ok(()),
        Some(flash) => Err(at_stake(
            &found.name,
            flash,
            format!(
                "attach the disk on host {0}, and bring the writes to it: tidegate cache flush {1} {2}; then: tidegate disk detach {2}",
                flash.host_name, flash.cache, found.name
            ),
        )),
    }
}

/// Fails if a cache can never give a disk its part.
pub(super) fn must_fit(record: &Record, flash: &FlashUse) -> Outcome<()> {
    let least = Size(record.chunk.0 * FEWEST as u64);
    let size = Size(record.size.0 - record.chunk.0);
    if flash.max.is_some_and(|max| max < least) {
        return Err(os_error::invalid(format!(
            "a disk's part of cache {} is at least {least}",
            flash.cache
        ))
        .remedy(format!("give --cache-max {least} or more")));
    }
    if let (Some(min), Some(max)) = (flash.min, flash.max)
        && min > max
    {
        return Err(os_error::invalid("the least part is above the largest")
            .remedy("give a smaller --cache-min, or a larger --cache-max"));
    }
    match flash.min {
        Some(min) if min > size => Err(os_error::invalid(format!(
            "cache {} has {size} only",
            flash.cache
        ))
        .remedy("give a smaller --cache-min")),
        _ => Ok(()),
    }
}

/// Fails if what only the cache of a disk has would be lost, or stay where the disk is not used.
pub(super) fn must_be_saved_first(
    found: &Found,
    live: Option<&Attached>,
    before: Option<&FlashUse>,
    after: Option<&FlashUse>,
) -> Outcome<()> {
    let Some(before) = before.filter(|before| before.has_dirty && live.is_none()) else {
        return Ok(());
    };
    let stays = after.is_some_and(|after| after.id == before.id && after.mode != FlashMode::Off);
    match stays {
        true => Ok(()),
        false => Err(at_stake(
            &found.name,
            before,
            format!(
                "attach the disk on host {}, and repeat the command there",
                before.host_name
            ),
        )),
    }
}

/// The problem of a disk some of whose writes only its cache has.
pub(super) fn at_stake(disk: &Name, flash: &FlashUse, remedy: impl Into<String>) -> Problem {
    let bytes = flash
        .part
        .map_or_else(String::new, |part| format!(" (up to {part})"));
    Problem::new(
        ProblemCode::Locked,
        format!("disk {disk} cannot be used without its flash cache"),
    )
    .because(format!(
        "only cache {} on host {} has some of its writes{bytes}",
        flash.cache, flash.host_name
    ))
    .remedy(remedy)
}

pub(super) fn corrupt(disk: &Name, left: u64) -> Problem {
    Problem::new(
        ProblemCode::Corrupt,
        format!("{left} pages of 64 KiB of disk {disk} cannot be brought to its datastore"),
    )
    .because("only the cache has them, and its flash does not return what was written")
    .remedy(format!(
        "reads of them fail; write them again, or restore a copy, and repeat the command; to lose them: tidegate disk detach {disk} \
         --keep-dirty, then tidegate disk attach {disk} --discard-cache"
    ))
}

/// The problem of a disk some of whose writes only its cache has, which cannot be read from it, if there are any.
pub(in super::super) fn unreadable_pages(disk: &Name, cache: &Name, pages: u64) -> Option<Problem> {
    let pages = match pages {
        0 => return None,
        1 => "1 page of 64 KiB".to_owned(),
        pages => format!("{pages} pages of 64 KiB"),
    };
    let problem = Problem::new(
        ProblemCode::Corrupt,
        format!("{pages} of disk {disk} cannot be read from cache {cache}"),
    )
    .because("the datastore does not have these writes, and flash does not return what was written")
    .remedy(format!(
        "they are lost unless the guest writes these pages again: restore a copy over them; bring the other dirty pages to the \
         datastore with `tidegate cache flush {cache} {disk}`; to go on without them: tidegate disk detach {disk} \
         --keep-dirty, then tidegate disk attach {disk} --discard-cache"
    ));
    Some(problem)
}

pub(super) fn not_yet(live: &Attached) -> Problem {
    let name = live.name();
    let cache = live
        .cache()
        .map_or_else(String::new, |using| using.cache.to_string());
    Problem::new(
        ProblemCode::Busy,
        "its cache has writes that the disk does not have yet",
    )
    .remedy(format!(
        "bring them to the disk first: tidegate cache flush {cache} {name}; or leave them on flash: tidegate disk detach {name} \
         --keep-dirty"
    ))
}

pub(super) fn lost_dirty(disk: &Name) -> Problem {
    Problem::new(
        ProblemCode::Datastore,
        "the cache has failed, and had writes that the disk does not have",
    )
    .remedy(format!(
        "leave them, in case the device comes back: tidegate disk detach {disk} --keep-dirty"
    ))
}

/// The problem of a disk that writes back on a cache of one device, and is not to any more.
pub(super) fn depends_on_one(disk: &Name, cache: &Name) -> Problem {
    Problem::new(
        ProblemCode::Unsupported,
        format!("disk {disk} writes back, and cache {cache} has one device"),
    )
    .because("without --single-device-ok that is not allowed")
    .remedy(format!(
        "choose another mode as well: tidegate disk set {disk} --cache-mode write-through --no-single-device-ok"
    ))
}

/// The problem of a cache that cannot begin to write back.
pub(super) fn not_whole(cache: &Name) -> Problem {
    Problem::new(
        ProblemCode::Datastore,
        format!("a device of cache {cache} does not have everything"),
    )
    .because("if the other one failed, the writes that only it has would be lost")
    .remedy(format!(
        "see `tidegate cache show {cache}`, or add --single-device-ok"
    ))
}

/// The problem of a cache none of whose devices can be used.
pub(super) fn unusable(cache: &Name, devices: &Devices) -> Problem {
    let problem = Problem::new(
        ProblemCode::Datastore,
        format!("no device of cache {cache} can be used"),
    );
    let mut problems = devices.problems().into_iter().flatten();
    match problems.next() {
        Some(first) => {
            let remedy = first.remedy.clone().unwrap_or_default();
            problem.because_problem(&first).remedy(remedy)
        }
        None => problem.remedy(format!("see `tidegate cache show {cache}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_cannot_be_read_are_a_problem_with_what_to_do() {
        let problem = |pages| {
            let [disk, cache] = ["db1", "fast"].map(|name| name.parse().unwrap());
            unreadable_pages(&disk, &cache, pages)
        };
        assert_eq!(problem(0), None);
        let one = problem(1).unwrap();
        assert!(
            one.what.starts_with("1 page of 64 KiB of disk db1"),
            "{one}"
        );
        let many = problem(480).unwrap();
        assert!(many.what.starts_with("480 pages of 64 KiB"), "{many}");
        let remedy = many.remedy.unwrap();
        assert!(!remedy.contains("  "), "{remedy}");
        for part in [
            "writes these pages again",
            "tidegate cache flush fast db1",
            "tidegate disk detach db1 --keep-dirty",
            "tidegate disk attach db1 --discard-cache",
        ] {
            assert!(remedy.contains(part), "{part}: {remedy}");
        }
    }
}
