//! Events of layouts: what a disk's layout reports, as an event of a member's datastore.

use tidegate_api::descriptor::MemberPlace;
use tidegate_api::disk::DiskInPool;
use tidegate_api::events::Happening;
use tidegate_api::explain::{Part, PartName};
use tidegate_api::name::Name;
use tidegate_api::problem::Problem;
use tidegate_core::layout::cache::{Admission, PAGE};
use tidegate_core::layout::{
    CacheReport, DropCause, LayoutNotice, LayoutReport, MemberState, Target,
};
use tidegate_core::request::Fault;

use crate::disks::attached::Attached;
use crate::observe::explain::time;
use crate::observe::sample::ratio;

/// I/Os in flight below which a member does not count as slow: fewer come and go by chance.
const WAITS: u32 = 4;

/// The event of a notice, and the datastore that it concerns. A failed read that another member answered is only counted.
pub(crate) fn happening(
    disk: &Name,
    live: Option<&Attached>,
    notice: LayoutNotice,
) -> Option<(Name, Happening)> {
    if let Some(cached) = live.and_then(|live| of_cache(disk, live, notice)) {
        return cached;
    }
    // A disk that was detached meanwhile causes no further events.
    let live = live.filter(|live| live.descriptor().is_some_and(|d| d.has_layout()))?;
    let (place, disk) = (|member| datastore_of(live, member), disk.clone());
    let home = || live.datastore().clone();
    Some(match notice {
        LayoutNotice::Dropped { member, cause } => (
            place(member),
            Happening::MemberDropped {
                disk,
                member: member.0,
                why: reason(cause).to_owned(),
            },
        ),
        LayoutNotice::Rebuilding { member, bytes } => (
            place(member),
            Happening::MemberRebuilding {
                disk,
                member: member.0,
                total_bytes: bytes,
            },
        ),
        LayoutNotice::Rebuilt { member } => (
            place(member),
            Happening::MemberRebuilt {
                disk,
                member: member.0,
            },
        ),
        LayoutNotice::RebuildFailed { member, fault } => (
            place(member),
            Happening::MemberRebuildFailed {
                disk,
                member: member.0,
                why: words(fault).to_owned(),
            },
        ),
        LayoutNotice::Lost => (home(), Happening::MembersLost { disk }),
        LayoutNotice::Waiting => (home(), Happening::IoWaiting { disk }),
        LayoutNotice::Resumed => (home(), Happening::IoResumed { disk }),
        LayoutNotice::Scrubbed(scrub) => (
            home(),
            Happening::Scrubbed {
                disk,
                compared_bytes: scrub.compared,
                different: scrub.different,
                repaired: scrub.repaired,
                unreadable: scrub.unreadable,
            },
        ),
        LayoutNotice::ReadFailed { .. }
        | LayoutNotice::CacheCleaned { .. }
        | LayoutNotice::CacheCorrupt { .. }
        | LayoutNotice::CacheShrunk { .. }
        | LayoutNotice::CachePolicy(_)
        | LayoutNotice::CacheStateDue
        | LayoutNotice::CacheLost { .. }
        | LayoutNotice::GrantWanted { .. }
        | LayoutNotice::GrantEmpty { .. }
        | LayoutNotice::Generation(_)
        | LayoutNotice::GenerationGone(_)
        | LayoutNotice::Behind { .. }
        | LayoutNotice::Vacated
        | LayoutNotice::HomeMoved { .. } => return None,
    })
}

/// The event of a notice of a disk's flash cache, if there is one. None: the notice is of something else.
#[expect(clippy::option_option, reason = "a notice of a cache may be no event")]
fn of_cache(
    disk: &Name,
    live: &Attached,
    notice: LayoutNotice,
) -> Option<Option<(Name, Happening)>> {
    let cache = live.cache().map(|cache| cache.cache);
    let (disk, on) = (disk.clone(), live.datastore().clone());
    let members = live.members().len();
    match notice {
        LayoutNotice::CacheCleaned { .. } | LayoutNotice::CacheLost { dirty: 0, .. } => Some(None),
        LayoutNotice::CacheLost { dirty, .. } => Some(cache.map(|cache| {
            let lost_bytes = dirty * PAGE;
            let happening = Happening::CacheLost {
                disk,
                cache,
                lost_bytes,
            };
            (on, happening)
        })),
        LayoutNotice::CacheCorrupt { offset } => Some(cache.map(|cache| {
            let happening = Happening::CacheCorrupt {
                disk,
                cache,
                offset_bytes: offset,
            };
            (on, happening)
        })),
        // The command on the cache has an event of its own.
        LayoutNotice::Dropped {
            member,
            cause: DropCause::Ordered,
        } if usize::from(member.0) >= members => Some(None),
        LayoutNotice::Dropped { member, cause } if usize::from(member.0) >= members => {
            let device = usize::from(member.0) - members;
            Some(cache.map(|cache| {
                let happening = Happening::CacheDeviceLost {
                    disk,
                    cache,
                    device: u8::try_from(device).unwrap_or(u8::MAX),
                    why: reason(cause).to_owned(),
                };
                (on, happening)
            }))
        }
        LayoutNotice::CacheShrunk { .. }
        | LayoutNotice::CachePolicy(_)
        | LayoutNotice::CacheStateDue => Some(None),
        // Of a device of the cache.
        LayoutNotice::Rebuilding { member, .. }
        | LayoutNotice::Rebuilt { member }
        | LayoutNotice::RebuildFailed { member, .. }
            if usize::from(member.0) >= members =>
        {
            Some(None)
        }
        _ => None,
    }
}

/// Notes on the space of a disk on a pool.
pub(crate) fn space_notes(pool: &Name, of: &DiskInPool) -> Vec<String> {
    let mut notes = Vec::new();
    if of.refused {
        notes.push(format!(
            "pool {pool} has no space for it: its writes to new space fail. Add a group (tidegate pool add-group {pool} PATH) or \
             delete disks"
        ));
    }
    if of.waiting > 0 {
        notes.push(format!(
            "{} of its writes wait for space of pool {pool}: it was asked for, and its catalog has not answered yet",
            of.waiting
        ));
    }
    if let Some(problem) = &of.problem {
        notes.push(format!("it gets no space of pool {pool}: {problem}"));
    }
    notes
}

/// What is worth knowing of a disk's members when its speed is explained: which of them are missing, and which one is slow.
pub(crate) fn notes(places: &[MemberPlace], report: &LayoutReport) -> Vec<String> {
    let mut notes = Vec::new();
    let members = || report.members.iter().zip(places).enumerate();
    for (nth, (member, place)) in members() {
        let on = &place.datastore;
        match member.state {
            _ if place.removed => notes.push(format!(
                "it is degraded: member {nth} was removed from datastore {on}, and its place is empty"
            )),
            MemberState::InSync => {}
            MemberState::OutOfSync => notes.push(format!(
                "it is degraded: member {nth} on datastore {on} lacks writes and is not used"
            )),
            MemberState::Rebuilding => notes.push(format!(
                "member {nth} on datastore {on} is being rebuilt: {} of {} MiB copied",
                member.copied >> 20,
                member.to_copy >> 20
            )),
        }
    }
    let mut used: Vec<_> = members()
        .filter(|(_, (member, _))| member.state == MemberState::InSync)
        .map(|(nth, (member, place))| (member.in_flight, nth, place))
        .collect();
    used.sort_by_key(|(in_flight, ..)| *in_flight);
    if let [.., (second, ..), (most, nth, place)] = used.as_slice()
        && *most >= WAITS
        && *most > 2 * second
    {
        notes.push(format!(
            "member {nth} on datastore {} is the slowest: it has {most} I/Os in flight, the others at most {second}",
            place.datastore
        ));
    }
    notes
}

/// What is worth knowing of a disk's flash cache when its speed is explained.
pub(crate) fn cache_notes(report: &CacheReport, parts: &[Part]) -> Vec<String> {
    let mut notes = Vec::new();
    if !report.in_use {
        notes.push("its flash cache has failed, and is not used".to_owned());
        return notes;
    }
    if report.admission == Admission::Nothing {
        let text = "its flash cache has used up its write budget: nothing enters it, and writes go to the datastore";
        notes.push(text.to_owned());
    }
    let all = report.hits + report.misses;
    if all > 0 {
        notes.push(hit_note(report, all, parts));
    }
    // A disk that only writes has such data as well.
    if report.dirty > 0 {
        notes.push(dirty_note(report));
    }
    if report.unreadable > 0 {
        notes.push(format!(
            "{} pages of 64 KiB that only flash has cannot be read: reads of them fail until they are written again",
            report.unreadable
        ));
    }
    if report.corrupt_blocks > 0 {
        notes.push(format!(
            "{} blocks of 4 KiB that were read from its flash cache were not as they were written: its device may be failing",
            report.corrupt_blocks
        ));
    }
    notes
}

/// Why a disk is used without its flash cache.
pub(crate) fn unused_cache_note(disk: &Name, problem: &Problem) -> String {
    format!(
        "its flash cache is not used: {}; see `tidegate disk show {disk}`",
        problem.what
    )
}

/// How many reads flash answered, and how long the others wait.
fn hit_note(report: &CacheReport, all: u64, parts: &[Part]) -> String {
    let misses = ratio(report.misses, all);
    let percent = (1.0 - misses) * 100.0;
    let datastore = parts.iter().find(|part| part.part == PartName::Datastore);
    let wait = match datastore {
        // What flash answers takes a small part of the mean.
        Some(part) if misses >= 0.01 => {
            format!(
                "; a miss waits up to {} for the datastore",
                time(part.mean_us * 1e3 / misses)
            )
        }
        _ => String::new(),
    };
    format!("{percent:.0} % of page reads hit its flash cache since it was attached{wait}")
}

/// Where the writes are that the disk does not have durably.
fn dirty_note(report: &CacheReport) -> String {
    let bytes = report.dirty * PAGE;
    let dirty = match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    };
    match report.keeps_dirty {
        true => format!("up to {dirty} of its writes are only on flash"),
        // The disk has had each write before it was answered.
        false => format!("up to {dirty} of its writes are on the datastore, but not flushed there"),
    }
}

fn datastore_of(live: &Attached, member: Target) -> Name {
    let members = live.descriptor().map(|descriptor| descriptor.members);
    let place = members.and_then(|members| members.into_iter().nth(member.0.into()));
    place.map_or_else(|| live.datastore().clone(), |place| place.datastore)
}

/// Why a member was dropped, in words.
fn reason(cause: DropCause) -> &'static str {
    match cause {
        DropCause::Failed(fault) => words(fault),
        DropCause::Hung => "it completed no I/O within the member timeout",
        DropCause::Ordered => "it was removed or replaced by a command",
    }
}

/// A fault in words.
fn words(fault: Fault) -> &'static str {
    match fault {
        Fault::Io => "an I/O error",
        Fault::NoSpace => "its datastore is full",
        Fault::Invalid => "it refused a request as invalid",
        Fault::ReadOnly => "it is read-only",
        Fault::Unsupported => "it does not support a request",
        Fault::Gone => "it is not available",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::problem::ProblemCode;
    use tidegate_core::layout::cache::CacheMode;
    use tidegate_core::layout::{LayoutSpec, MemberReport};

    fn report(members: &[(MemberState, u32)]) -> LayoutReport {
        let member = |&(state, in_flight): &(MemberState, u32)| MemberReport {
            state,
            is_tried: false,
            in_flight,
            faults: 0,
            copied: 1 << 20,
            to_copy: 4 << 20,
        };
        LayoutReport {
            layout: LayoutSpec::Mirror,
            members: members.iter().map(member).collect(),
            scrub: None,
            cache: None,
            pool: None,
            waiting: false,
        }
    }

    #[test]
    fn the_reason_of_a_drop_is_what_is_known_of_it() {
        let gone = reason(DropCause::Failed(Fault::Gone));
        assert_eq!(gone, "it is not available");
        assert!(reason(DropCause::Hung).contains("timeout"));
        assert!(reason(DropCause::Ordered).contains("by a command"));
    }

    #[test]
    fn missing_and_slow_members_are_named_by_their_datastores() {
        use MemberState::{InSync, OutOfSync, Rebuilding};
        let mut places = ["a", "b", "c"].map(|name| MemberPlace::on(name.parse().unwrap()));
        let text = |members: &[_]| notes(&places, &report(members)).join("; ");
        assert_eq!(text(&[(InSync, 9), (InSync, 8), (InSync, 7)]), "");
        assert_eq!(text(&[(InSync, 3), (InSync, 0)]), "");
        assert!(
            text(&[(InSync, 2), (InSync, 30), (InSync, 3)])
                .contains("member 1 on datastore b is the slowest")
        );
        let degraded = text(&[(InSync, 2), (OutOfSync, 0), (Rebuilding, 50)]);
        assert!(
            degraded.contains("degraded: member 1 on datastore b"),
            "{degraded}"
        );
        assert!(
            degraded.contains("member 2 on datastore c is being rebuilt: 1 of 4 MiB"),
            "{degraded}"
        );
        assert!(!degraded.contains("slowest"), "{degraded}");
        places[1].removed = true;
        let removed = notes(&places, &report(&[(InSync, 2), (OutOfSync, 0)])).join("; ");
        assert_eq!(
            removed,
            "it is degraded: member 1 was removed from datastore b, and its place is empty"
        );
    }

    #[test]
    fn a_disk_without_its_cache_is_explained_with_the_reason() {
        let problem = Problem::new(
            ProblemCode::Datastore,
            "no device of cache fast can be used",
        );
        let note = unused_cache_note(&"db1".parse().unwrap(), &problem);
        let expected = "its flash cache is not used: no device of cache fast can be used; see `tidegate disk show db1`";
        assert_eq!(note, expected);
    }

    #[test]
    fn unflushed_writes_of_write_through_are_not_called_only_on_flash() {
        let mut report = CacheReport {
            resynced: 0,
            mode: CacheMode::WriteThrough,
            admission: Admission::All,
            in_use: true,
            devices: 1,
            resyncing: false,
            policy: None,
            pages: 64,
            free: 0,
            dirty: 32,
            unreadable: 0,
            dirty_since: None,
            time_to_clean: None,
            keeps_dirty: false,
            losing: false,
            hits: 1,
            misses: 0,
            fills: 0,
            read_faults: 0,
            corrupt_blocks: 0,
            flash_bytes: 0,
            journal_bytes: 0,
        };
        let note = |report: &CacheReport| cache_notes(report, &[]).pop().expect("a note");
        let unflushed = "up to 2 MiB of its writes are on the datastore, but not flushed there";
        assert_eq!(note(&report), unflushed);
        // It wrote back until a moment ago, and is being cleaned.
        report.keeps_dirty = true;
        assert_eq!(note(&report), "up to 2 MiB of its writes are only on flash");
        // A disk that only writes has no hit ratio.
        report.hits = 0;
        let notes = cache_notes(&report, &[]);
        assert_eq!(notes.len(), 1, "{notes:?}");
        report.dirty = 3;
        let small = "up to 192 KiB of its writes are only on flash";
        assert_eq!(note(&report), small);
        report.corrupt_blocks = 3;
        let notes = cache_notes(&report, &[]);
        assert!(notes[1].contains("3 blocks of 4 KiB"), "{notes:?}");
        report.unreadable = 2;
        let notes = cache_notes(&report, &[]);
        assert!(
            notes[1].contains("2 pages of 64 KiB that only flash has"),
            "{notes:?}"
        );
    }
}
