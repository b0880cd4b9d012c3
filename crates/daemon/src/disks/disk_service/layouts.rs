//! Commands that create, resize and delete disks with a layout.
//!
//! # Always true
//! - No two members are in one place, and no two members with the same bytes are on one datastore's files.
//! - A disk is created with all of its members, or not at all.
//! - A resize changes all members, or the descriptor stays as it is.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk as api;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{DATA_AT, LayoutSpec};

use super::DiskService;
use super::change::{Held, Purpose, describe_new, must_be_a_device, must_be_free, must_have_room};
use super::claims::Claim;
use super::members::{not_there, share_a_lease};
use crate::config::plan::{self, ImagePlan, layout};
use crate::host;
use crate::os_error::{self, Outcome};
use crate::store::disks;
use crate::store::{Found, Identity};

/// Bytes at the begin of a member that must be zero when a disk is created: the layout's label and states.
const BLANK: usize = 3 * 4096;

impl DiskService {
    /// Creates a disk whose command names a layout or members. Its name is claimed and new.
    pub(super) fn create_with_layout(
        &self,
        order: &api::DiskCreate,
        what: &str,
    ) -> Outcome<api::Disk> {
        let spec = layout_of(order).map_err(|e| e.within(what))?;
        let (disk, members) = self.describe_layout(order, spec, what)?;
        let numbered: Vec<_> = members.iter().cloned().enumerate().collect();
        must_be_apart(spec, &numbered).map_err(|e| e.within(what))?;
        let is_plain = spec.is_plain();
        self.must_be_usable(&members, is_plain, what)?;
        let traced = plan::filters::traced(&disk.descriptor);
        plan::filters::stack(&disk.descriptor.filters, order.name.as_str(), traced)?;
        self.must_say_where(&disk.descriptor, &[], &order.name)?;
        match spec {
            LayoutSpec::Plain => {
                let (on, of) = (&disk.datastore, &disk.settings);
                let (name, descriptor) = (&disk.name, &disk.descriptor);
                self.store
                    .create_disk(on, of, name, descriptor, order.allocation, |_| Ok(()))?;
            }
            _ => self
                .store
                .create_with_members(&disk, &members, order.allocation)
                .map_err(|e| e.within(what))?,
        }
        self.agree(&disk)?;
        let (layout, size) = (disk.descriptor.layout.as_deref(), disk.descriptor.size);
        tracing::info!(disk = %order.name, layout, %size, "created");
        self.disk(&order.name)
    }

    /// The new disk, and its members as plain disks.
    fn describe_layout(
        &self,
        order: &api::DiskCreate,
        spec: LayoutSpec,
        what: &str,
    ) -> Outcome<(Found, Vec<Found>)> {
        let home = &order.members[0].datastore;
        let settings = self.store.datastore(home).map_err(|e| e.within(what))?;
        let mut disk = Found {
            name: order.name.clone(),
            datastore: home.clone(),
            folder: Default::default(),
            // The size is not known yet.
            descriptor: describe_new(&without_places(order, 4096), &settings, what)?,
            settings,
            is_copy: false,
        };
        disk.descriptor.members.clone_from(&order.members);
        let member = |nth, size| {
            let place = &order.members[nth];
            self.store
                .member(&disk, nth, size)
                .map_err(|e| not_there(&order.name, nth, place, e).within(what))
        };
        let count = order.members.len();
        let members: Vec<_> = (0..count)
            .map(|nth| member(nth, 0))
            .collect::<Outcome<_>>()?;
        let size = size_of(order, spec, &members).map_err(|e| e.within(what))?;
        let member_size = spec.member_size(size, count);
        let members = (0..count)
            .map(|nth| member(nth, member_size))
            .collect::<Outcome<_>>()?;
        disk.descriptor = describe_new(&without_places(order, size), &disk.settings, what)?;
        match spec {
            LayoutSpec::Plain => {
                disk.descriptor.device.clone_from(&order.members[0].device);
                disk.descriptor.export.clone_from(&order.members[0].export);
            }
            _ => {
                disk.descriptor.layout = Some(spec.to_string());
                disk.descriptor.members.clone_from(&order.members);
            }
        }
        Ok((disk, members))
    }

    /// Fails if a new disk's member cannot be where it is to be.
    pub(super) fn must_be_usable(
        &self,
        members: &[Found],
        is_plain: bool,
        what: &str,
    ) -> Outcome<()> {
        for member in members {
            if !is_plain && member.is_pooled() {
                return Err(Problem::new(ProblemCode::Unsupported, what)
                    .because(format!("datastore {} is a pool: it has whole disks, and no members of others", member.datastore))
                    .remedy("name datastores of other kinds, or create a plain disk on the pool alone: --on POOL"));
            }
            let (store, on) = (self.store.clone(), member.datastore.clone());
            let settings = member.settings.clone();
            self.looks
                .at(&member.datastore, move || {
                    store.must_be_mounted(&on, &settings)
                })
                .map_err(|e| e.within(what))?;
            let Some(device) = &member.descriptor.device else {
                continue;
            };
            self.must_be_no_disks_device(device)
                .and_then(|()| must_be_free(device))
                .map_err(|e| e.within(what))?;
            if !is_plain {
                must_be_blank(device).map_err(|e| e.within(what))?;
            }
        }
        Ok(())
    }

    /// Changes the size of a disk with a layout, whose name is claimed.
    pub(super) fn resize_members(
        &self,
        mut disk: Found,
        order: api::DiskResize,
        claim: &Claim,
        what: &str,
    ) -> Outcome<api::Disk> {
        let spec = layout::of(&disk.descriptor)?;
        let count = disk.descriptor.members.len();
        let before = disk.descriptor.size.0;
        let after = spec.round_up(order.size_bytes, count);
        if after < before {
            return Err(Problem::new(ProblemCode::Unsupported, what)
                .because(format!(
                    "only plain disks can shrink, and its layout is {spec}: it has {before} bytes, and {after} are requested"
                ))
                .remedy(
                    "keep its size; or create a smaller disk and copy what you need in a guest that has both",
                ));
        }
        disk.descriptor.size.0 = after;
        let range = disk.descriptor.check();
        range.map_err(|e| os_error::out_of_range(what, &e))?;
        let live = self.live.get(&disk.name);
        if after > before {
            let members = self.all_parts(&disk).map_err(|e| e.within(what))?;
            let (had, size) = (
                spec.member_size(before, count),
                spec.member_size(after, count),
            );
            for (nth, member) in &members {
                let opened = match &live {
                    None => None,
                    Some(live) => match live.members().get(*nth).cloned().flatten() {
                        Some(io) => Some(io.size),
                        None => return Err(away(*nth, member).within(what)),
                    },
                };
                must_have_room(member, opened, size).map_err(|e| e.within(what))?;
            }
            if let Some(live) = &live {
                self.must_be_in_place(live).map_err(|e| e.within(what))?;
            }
            let _held = match live {
                None => {
                    let alone: Vec<_> = members.iter().map(|(_, one)| one.clone()).collect();
                    self.hold_members(&disk, &alone, what)?
                }
                Some(_) => Vec::new(),
            };
            // The images first: a crash in between leaves images longer than the recorded size, which is harmless.
            for (_, member) in &members {
                self.store.resize_image(member, had, size)?;
            }
            self.store.write_descriptor(&disk)?;
            self.write_copies(&disk);
        }
        if let Some(live) = live
            && live.size() < after
        {
            live.resize(after)?;
            self.has_grown(&live, claim);
        }
        tracing::info!(disk = %disk.name, before, after, "resized");
        self.disk(&disk.name)
    }

    /// Keeps other daemons from using the members of a detached disk, until the result is dropped.
    fn hold_members(&self, disk: &Found, members: &[Found], what: &str) -> Outcome<Vec<Held>> {
        let agreed = self.must_be_agreed(disk);
        let mut held: Vec<Held> = Vec::new();
        for (nth, member) in members.iter().enumerate() {
            let purpose = match agreed.is_ok() && member.has_sound_image() {
                true => Purpose::Change,
                false => Purpose::Forget,
            };
            let is_leased = members[..nth]
                .iter()
                .any(|before| share_a_lease(before, member));
            let one = match (is_leased, purpose) {
                (false, _) => self.hold_image(member, purpose),
                (true, Purpose::Forget) => continue,
                (true, _) => self.open_alone(member).map(|opened| (Some(opened), None)),
            };
            held.push(one.map_err(|e| e.within(what))?);
        }
        Ok(held)
    }

    /// Deletes a detached disk with a layout.
    pub(super) fn delete_members(&self, disk: &Found, what: &str) -> Outcome<()> {
        let mut members = Vec::new();
        for part in self.parts(disk)? {
            match part.found {
                Ok(member) => members.push(member),
                Err(_) if part.place.removed => {}
                // Its datastore was removed from this host: its image stays there.
                Err(problem) if problem.code == ProblemCode::NotFound => {
                    let (nth, on) = (part.nth, &part.place.datastore);
                    tracing::warn!(disk = %disk.name, member = nth, datastore = %on, "a deleted disk's member stays on \
                         a datastore that this host does not have");
                }
                Err(problem) => {
                    let on = &part.place.datastore;
                    return Err(not_there(&disk.name, part.nth, &part.place, problem)
                        .within(what)
                        .remedy(format!(
                            "mount or repair datastore {on}; or, to leave its image there: tidegate datastore remove {on}"
                        )));
                }
            }
        }
        let held = self.hold_members(disk, &members, what)?;
        self.store.delete_with_members(disk, &members, held)
    }
}

/// The layout of a new disk, with its number of members checked.
fn layout_of(order: &api::DiskCreate) -> Outcome<LayoutSpec> {
    let spec = match &order.layout {
        Some(text) => layout::read(text)?,
        None => LayoutSpec::Plain,
    };
    if order.members.is_empty() && spec.is_plain() {
        return Err(os_error::invalid("it is not clear where the disk is to be")
            .remedy("name its datastore: --on DATASTORE"));
    }
    layout::must_suit(spec, order.members.len())?;
    let more = [
        ("datastore", order.datastore.is_some()),
        ("device", order.device.is_some()),
        ("export", order.export.is_some()),
    ];
    match more.into_iter().find(|(_, is_there)| *is_there) {
        None => Ok(spec),
        Some((key, _)) => Err(os_error::invalid(format!("both members and a {key} are named"))
            .remedy("say it of the member: --on DATASTORE, --on DATASTORE:device=PATH or --on DATASTORE:export=NAME")),
    }
}

/// The same command for a plain disk of that size in its datastore's usual place.
fn without_places(order: &api::DiskCreate, size: u64) -> api::DiskCreate {
    api::DiskCreate {
        size_bytes: Some(size),
        device: None,
        export: None,
        layout: None,
        members: Vec::new(),
        ..order.clone()
    }
}

/// The size of a new disk: what was requested, rounded up to a whole row, or as much as the smallest member holds.
fn size_of(order: &api::DiskCreate, spec: LayoutSpec, members: &[Found]) -> Outcome<u64> {
    let count = members.len();
    let mut smallest: Option<(u64, usize)> = None;
    for (nth, member) in members.iter().enumerate() {
        if let Some(has) = capacity(member)? {
            smallest = smallest.min(Some((has, nth))).or(Some((has, nth)));
        }
    }
    let Some(asked) = order.size_bytes else {
        let Some((has, nth)) = smallest else {
            return Err(os_error::invalid("it needs a size").remedy("give one, such as --size 10G"));
        };
        return match spec.size_for(has, count) {
            0 => Err(too_small(
                nth,
                &members[nth],
                has,
                DATA_AT + spec.row(count),
            )),
            size => Ok(size),
        };
    };
    let size = spec.round_up(asked, count);
    match smallest {
        Some((has, nth)) if has < spec.member_size(size, count) => {
            let needs = spec.member_size(size, count);
            let problem = too_small(nth, &members[nth], has, needs);
            Err(match spec.size_for(has, count) {
                0 => problem,
                most => problem.remedy(format!(
                    "request at most --size {most}, or name a larger one"
                )),
            })
        }
        _ => Ok(size),
    }
}

/// Fails if a new member's place has a size already, and that is too small.
pub(super) fn must_hold(nth: usize, member: &Found) -> Outcome<()> {
    let needs = member.descriptor.size.0;
    match capacity(member)? {
        Some(has) if has < needs => Err(too_small(nth, member, has, needs)),
        _ => Ok(()),
    }
}

fn too_small(nth: usize, member: &Found, has: u64, needs: u64) -> Problem {
    let on = &member.datastore;
    os_error::invalid(format!("member {nth} on {on} is too small"))
        .because(format!("it has {has} bytes, and needs {needs}"))
        .remedy("name a larger one")
}

/// Bytes of a member's place, if it has a size already.
fn capacity(member: &Found) -> Outcome<Option<u64>> {
    if let Some(device) = &member.descriptor.device {
        if !matches!(member.settings, DatastoreSettings::Dir { .. }) {
            return Err(os_error::invalid(format!(
                "{} cannot be on datastore {}",
                device.display(),
                member.datastore
            ))
            .because("only datastores of kind dir have disks on devices")
            .remedy("name one of them (see `tidegate datastore list`)"));
        }
        must_be_a_device(device, &format!("cannot use {}", device.display()))?;
        let size = disks::device_size(device);
        return size.map(Some).map_err(|e| {
            os_error::io(format!("cannot read the size of {}", device.display()), &e)
        });
    }
    match plan::image(member) {
        image @ ImagePlan::Nbd { .. } => Ok(Some(host::open(&image, true)?.size())),
        _ if member.descriptor.export.is_some() => Err(os_error::invalid(format!(
            "datastore {} has no exports",
            member.datastore
        ))
        .remedy("name a datastore of kind nbd, or leave the export out")),
        _ => Ok(None),
    }
}

/// Fails if two members are in one place, or if they have the same bytes and would be lost together.
pub(super) fn must_be_apart(spec: LayoutSpec, members: &[(usize, Found)]) -> Outcome<()> {
    for (place, (second, later)) in members.iter().enumerate() {
        for (first, member) in &members[..place] {
            let twins = layout::are_twins(spec, *first, *second);
            if let Some((why, remedy)) = clash(member, later, twins) {
                return Err(os_error::invalid(format!(
                    "members {first} and {second} cannot be in these places"
                ))
                .because(why)
                .remedy(remedy));
            }
        }
    }
    Ok(())
}

/// Why two members cannot be where they are, and what to do.
fn clash(one: &Found, other: &Found, twins: bool) -> Option<(String, String)> {
    let on = &one.datastore;
    let is_same = one.datastore == other.datastore;
    let protects_nothing = || {
        let why = format!("both are on datastore {on}: a mirror there would protect nothing");
        (
            why,
            "name another datastore for one of them (see `tidegate datastore list`)".to_owned(),
        )
    };
    match (&one.descriptor.device, &other.descriptor.device) {
        (Some(device), Some(same)) => {
            let (ours, theirs) = (Identity::at(device).ok()?, Identity::at(same).ok()?);
            let (device, same) = (device.display(), same.display());
            return ours.shares_bytes(theirs).then(|| {
                let why =
                    format!("{device} and {same} are one device, or one is a part of the other");
                (why, "name another device for one of them".to_owned())
            });
        }
        (Some(_), None) | (None, Some(_)) => return None,
        (None, None) => {}
    }
    match (&one.settings, plan::image(one), plan::image(other)) {
        (_, ImagePlan::Nbd { uri, .. }, ImagePlan::Nbd { uri: same, .. }) if uri == same => {
            let why = format!("both are the export {uri}");
            Some((
                why,
                format!("name another export for one of them: --on {on}:export=NAME"),
            ))
        }
        (DatastoreSettings::Dir { .. }, ..) if is_same && !twins => {
            let why =
                format!("both are files of datastore {on}: a stripe there would be no faster");
            Some((
                why,
                "name another datastore for one of them (see `tidegate datastore list`)".to_owned(),
            ))
        }
        _ if is_same && twins => Some(protects_nothing()),
        _ => None,
    }
}

/// Whether a member's image begins with zeroes, or its datastore forgets what was written there.
pub(super) fn is_blank(member: &Found) -> bool {
    match member.settings {
        DatastoreSettings::Dir { .. } => begins_with_zeroes(&member.image()).unwrap_or(false),
        DatastoreSettings::Nbd { .. } => false,
        DatastoreSettings::Memory {}
        | DatastoreSettings::Null {}
        | DatastoreSettings::Emulated { .. }
        | DatastoreSettings::Pool {} => true,
    }
}

/// Whether all that a file or device has in the place of a layout's own data is zero.
fn begins_with_zeroes(path: &Path) -> io::Result<bool> {
    let mut begin = vec![0; BLANK];
    match File::open(path).and_then(|mut file| file.read_exact(&mut begin)) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(begin.iter().all(|byte| *byte == 0)),
    }
}

/// Fails if a device begins with anything but zeroes: the layout writes its own data there.
fn must_be_blank(device: &Path) -> Outcome<()> {
    let shown = device.display();
    match begins_with_zeroes(device) {
        Err(error) => Err(os_error::io(format!("cannot read {shown}"), &error)),
        Ok(true) => Ok(()),
        Ok(false) => Err(Problem::new(ProblemCode::Busy, format!("{shown} is in use or was used"))
            .because("it does not begin with zeroes, and the layout's own data would overwrite what is there")
            .remedy(format!(
                "if nothing on it is needed, clear it: blkdiscard -z {shown}, or dd if=/dev/zero of={shown} bs=1M"
            ))),
    }
}

fn away(nth: usize, member: &Found) -> Problem {
    let on = &member.datastore;
    Problem::new(
        ProblemCode::Datastore,
        format!("member {nth} on {on} is away"),
    )
    .remedy(format!(
        "mount or repair datastore {on}, detach the disk and attach it again"
    ))
}
