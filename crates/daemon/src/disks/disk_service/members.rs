//! The members of disks with a layout: where they are, whether they can be reached, and how their images are opened.
//!
//! Each member is treated like a plain disk in the same place, so what holds for plain disks holds for members: the same
//! locks, leases, allowed paths and checks. A plain disk is its own single member.
//!
//! # Always true
//! - A redundant disk is opened without a member only if that member's datastore or image cannot be reached. If another
//!   host or program has the member, the disk is not opened.
//! - Each datastore of kind `dir` with a member has a lease of the disk, so that two hosts cannot use different members.

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::MemberPlace;
use tidegate_api::disk as api;
use tidegate_api::layout::{Member, MemberState, Rebuild, Scrub};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{self as engine, LayoutReport};
use tidegate_engine::UnderControl;

use super::DiskService;
use super::pooled::OpenInPool;
use crate::config::plan::{self, layout};
use crate::disks::attached::{Attached, MemberUse, OpenImage};
use crate::disks::counters::MemberMoment;
use crate::host::{self, Opened};
use crate::os_error::Outcome;
use crate::store::{Found, Identity};

/// A member of a disk's layout.
pub(super) struct Part {
    pub(super) nth: usize,
    pub(super) place: MemberPlace,
    /// The member as a plain disk, or why its datastore cannot be used.
    pub(super) found: Outcome<Found>,
}

/// The open images of a disk.
#[derive(Default)]
pub(super) struct OpenMembers {
    /// In the layout's order. None: away.
    pub(super) opened: Vec<Option<Opened>>,
    pub(super) uses: Vec<MemberUse>,
    /// The members that are open, by number, as plain disks.
    pub(super) found: Vec<(usize, Found)>,
    /// For a disk on a pool.
    pub(super) pooled: Option<OpenInPool>,
}

/// What holds for all members of a disk that is being opened.
pub(super) struct Opening<'a> {
    pub(super) order: &'a api::DiskAttach,
    /// Whether the disk is read-only for this attachment only.
    pub(super) is_borrowed: bool,
}

impl OpenMembers {
    /// The images that are files or devices.
    pub(super) fn images(&self) -> Vec<OpenImage> {
        let files = self
            .found
            .iter()
            .filter(|(_, member)| matches!(member.settings, DatastoreSettings::Dir { .. }));
        let open = |(nth, member): &(usize, Found)| {
            let path = member.image();
            Some(OpenImage {
                member: *nth,
                datastore: member.datastore.clone(),
                identity: Identity::at(&path).ok()?,
                path,
            })
        };
        files.filter_map(open).collect()
    }
}

impl DiskService {
    /// The members of a disk, each with the state of its datastore.
    pub(super) fn parts(&self, disk: &Found) -> Outcome<Vec<Part>> {
        let spec = layout::of(&disk.descriptor)?;
        let size = layout::member_size(spec, &disk.descriptor);
        let places = disk.descriptor.members.iter().cloned().enumerate();
        let part = |(nth, place): (usize, MemberPlace)| Part {
            nth,
            found: match place.removed {
                false => self.reach(disk, nth, size),
                true => Err(removed(&disk.name, nth)),
            },
            place,
        };
        Ok(places.map(part).collect())
    }

    /// A member as a plain disk, if its datastore responds and is mounted.
    fn reach(&self, disk: &Found, nth: usize, size: u64) -> Outcome<Found> {
        let member = self.store.member(disk, nth, size)?;
        let (store, on) = (self.store.clone(), member.datastore.clone());
        let settings = member.settings.clone();
        self.looks.at(&member.datastore, move || {
            store.must_be_mounted(&on, &settings)
        })?;
        Ok(member)
    }

    /// All members of a disk, for a change that needs each of them.
    pub(super) fn all_parts(&self, disk: &Found) -> Outcome<Vec<(usize, Found)>> {
        let parts = self.parts(disk)?.into_iter();
        let parts = parts.filter(|part| !part.place.removed);
        parts
            .map(|part| match part.found {
                Ok(member) => Ok((part.nth, member)),
                Err(e) => Err(not_there(&disk.name, part.nth, &part.place, e)),
            })
            .collect()
    }

    /// Opens all images of a disk.
    pub(super) fn open_members(&self, disk: &Found, opening: &Opening<'_>) -> Outcome<OpenMembers> {
        let spec = layout::of(&disk.descriptor)?;
        let mut open = OpenMembers::default();
        if disk.is_pooled() {
            let mut pooled = self.open_pooled(disk, None)?;
            open.opened = std::mem::take(&mut pooled.images);
            open.found.push((0, disk.clone()));
            open.pooled = Some(pooled);
            return Ok(open);
        }
        if spec.is_plain() {
            self.open_member(disk, 0, opening, &mut open)?;
            return Ok(open);
        }
        let mut away = None;
        for part in self.parts(disk)? {
            let opened = part
                .found
                .clone()
                .and_then(|member| self.open_member(&member, part.nth, opening, &mut open))
                .map_err(|e| not_there(&disk.name, part.nth, &part.place, e));
            match opened {
                Ok(()) => {}
                Err(problem)
                    if spec.is_redundant()
                        && (is_away(&problem) || self.has_requests_there(disk, &part)) =>
                {
                    if !part.place.removed {
                        tracing::warn!(disk = %disk.name, %problem, "a member is away");
                    }
                    open.opened.push(None);
                    away = away.or(Some(problem));
                }
                Err(problem) => return Err(problem),
            }
        }
        match away {
            Some(problem) if open.found.is_empty() => Err(problem),
            _ => Ok(open),
        }
    }

    /// Whether requests of an earlier use of the disk have not ended on this member's export.
    fn has_requests_there(&self, disk: &Found, part: &Part) -> bool {
        let member = part.found.as_ref();
        member.is_ok_and(|member| self.exports.is_used_by(&disk.name, &plan::image(member)))
    }

    pub(super) fn open_member(
        &self,
        member: &Found,
        nth: usize,
        opening: &Opening<'_>,
        open: &mut OpenMembers,
    ) -> Outcome<()> {
        let image = plan::image(member);
        let read_only = member.descriptor.read_only;
        let export = self.exports.enter(&member.name, &image, read_only)?;
        let opened = host::open(&image, read_only)
            .map_err(|problem| self.leases.locked_by(member, problem))?;
        let record = self.store.record(&member.datastore)?;
        let coordination = record.io_control.coordination.clone();
        if opening.is_borrowed {
            // On a datastore without usable locks, the host that has it may write to it meanwhile.
            self.leases.nobody_else(member, coordination.clone())?;
        }
        let is_leased = open
            .found
            .iter()
            .any(|(_, before)| share_a_lease(before, member));
        let lease = match is_leased {
            true => None,
            false => self
                .leases
                .take(member, coordination, opening.order.takeover)?,
        };
        let in_use = self.controls.enter(
            &self.host,
            &member.datastore,
            &member.settings,
            &record.io_control,
        )?;
        let under = UnderControl {
            control: in_use.control().clone(),
            key: plan::policy::key(member.descriptor.uuid),
            policy: self.policy(&member.descriptor)?,
        };
        let opened = opened.under(lease).under_control(under).holding(export);
        open.opened.push(Some(opened));
        open.uses.push(MemberUse {
            member: nth,
            in_use,
        });
        open.found.push((nth, member.clone()));
        Ok(())
    }

    /// Brings the copies of a disk's descriptor up to date. A copy that cannot be written is older, and used only while
    /// the disk's home is away.
    pub(super) fn write_copies(&self, disk: &Found) {
        if disk.is_copy || !disk.descriptor.has_layout() {
            return;
        }
        for part in self.parts(disk).unwrap_or_default() {
            let Ok(member) = part.found else { continue };
            let (store, disk) = (self.store.clone(), disk.clone());
            let (on, name) = (member.datastore.clone(), disk.name.clone());
            let written = self.looks.at(&on, move || store.write_copy(&disk, &member));
            if let Err(problem) = written {
                tracing::warn!(disk = %name, datastore = %on, %problem, "the copy of the disk's descriptor there is not \
                     up to date");
            }
        }
    }

    /// The members of a disk as they are now.
    pub(super) fn describe_members(
        &self,
        disk: &Found,
        live: Option<&Attached>,
        report: Option<&LayoutReport>,
    ) -> Vec<Member> {
        let Ok(spec) = layout::of(&disk.descriptor) else {
            return Vec::new();
        };
        let size_bytes = layout::member_size(spec, &disk.descriptor);
        let parts = self.parts(disk).unwrap_or_default().into_iter();
        let describe = |part: Part| {
            let io = live.and_then(|live| live.members().get(part.nth)?.clone());
            let image = part.found.as_ref().ok().map(Found::image);
            let is_file = matches!(
                &part.found,
                Ok(Found {
                    settings: DatastoreSettings::Dir { .. },
                    ..
                })
            );
            let path = image.filter(|_| is_file);
            let seen = report.and_then(|report| report.members.get(part.nth));
            let state = match seen {
                _ if part.place.removed => MemberState::Removed,
                Some(seen) => attached_state(seen.state, io.is_some()),
                None if live.is_some() && io.is_some() => MemberState::InSync,
                None if part.found.is_ok() && path.as_ref().is_none_or(|path| path.exists()) => {
                    MemberState::Present
                }
                None => MemberState::Away,
            };
            let rebuild = seen.filter(|seen| seen.state == engine::MemberState::Rebuilding);
            Member {
                member: u8::try_from(part.nth).unwrap_or(u8::MAX),
                datastore: part.place.datastore,
                device: part.place.device,
                export: part.place.export,
                mirror: layout::mirror_of(spec, part.nth),
                size_bytes,
                allocated_bytes: part.found.as_ref().ok().and_then(Found::allocated),
                path,
                state,
                rebuild: rebuild.map(|seen| Rebuild {
                    copied_bytes: seen.copied,
                    total_bytes: seen.to_copy,
                }),
                in_flight: seen.map(|seen| seen.in_flight),
                faults_total: seen.map(|seen| seen.faults),
                io: io.map(|io| io.io),
                problem: part
                    .found
                    .err()
                    .or_else(|| live.and_then(|live| live.misplaced_member(part.nth))),
            }
        };
        parts.map(describe).collect()
    }
}

/// What all images of a disk occupy, as far as that is known.
pub(super) fn allocated(members: &[Member]) -> Option<u64> {
    members
        .iter()
        .filter_map(|member| member.allocated_bytes)
        .reduce(|sum, bytes| sum.saturating_add(bytes))
}

/// Whether one lease is for both members: a disk has one on a datastore of kind `dir`.
pub(super) fn share_a_lease(one: &Found, other: &Found) -> bool {
    one.datastore == other.datastore && matches!(one.settings, DatastoreSettings::Dir { .. })
}

/// The current state of the members of an attached disk.
pub(super) fn moments(live: &Attached) -> Vec<MemberMoment> {
    let places = live.descriptor().map(|descriptor| descriptor.members);
    let places = places.unwrap_or_default();
    let report = match places.is_empty() {
        true => None,
        false => live.layout(),
    };
    let seen = report.map(|report| report.members).unwrap_or_default();
    let io = live.members();
    let moment = |(member, (place, seen)): (usize, (MemberPlace, engine::MemberReport))| {
        let is_open = io.get(member).is_some_and(Option::is_some);
        let state = match place.removed {
            true => MemberState::Removed,
            false => attached_state(seen.state, is_open),
        };
        MemberMoment {
            member,
            datastore: place.datastore,
            state,
            left_bytes: (state == MemberState::Rebuilding)
                .then(|| seen.to_copy.saturating_sub(seen.copied)),
        }
    };
    places
        .into_iter()
        .zip(seen)
        .enumerate()
        .map(moment)
        .collect()
}

/// The state of an attached disk's member.
fn attached_state(state: engine::MemberState, is_open: bool) -> MemberState {
    match (state, is_open) {
        (engine::MemberState::OutOfSync, false) => MemberState::Away,
        (engine::MemberState::OutOfSync, true) => MemberState::Stale,
        (engine::MemberState::Rebuilding, _) => MemberState::Rebuilding,
        (engine::MemberState::InSync, _) => MemberState::InSync,
    }
}

/// The comparison that a layout reports, if there was one.
pub(super) fn scrub(report: &LayoutReport) -> Option<Scrub> {
    let scrub = report.scrub?;
    Some(Scrub {
        running: scrub.running,
        compared_bytes: scrub.compared,
        total_bytes: scrub.to_compare,
        different: scrub.different,
        repaired: scrub.repaired,
        unreadable: scrub.unreadable,
        first_difference_bytes: scrub.first,
    })
}

/// The problem of a member that was removed.
fn removed(disk: &Name, nth: usize) -> Problem {
    Problem::new(
        ProblemCode::NotFound,
        format!("member {nth} of disk {disk} was removed"),
    )
    .remedy(format!(
        "add another one: tidegate disk member add {disk} --on DATASTORE"
    ))
}

/// Whether a member is not there, as opposed to being in use or damaged.
fn is_away(problem: &Problem) -> bool {
    matches!(problem.code, ProblemCode::Datastore | ProblemCode::NotFound)
}

/// The problem of a member that cannot be used.
pub(super) fn not_there(disk: &Name, nth: usize, place: &MemberPlace, problem: Problem) -> Problem {
    problem.within(format!(
        "member {nth} of disk {disk}, on {place}, cannot be used"
    ))
}
