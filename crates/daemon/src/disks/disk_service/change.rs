//! Commands that create, change and delete disks.

use std::io;
use std::path::Path;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::disk as api;
use tidegate_api::name::Name;
use tidegate_api::or_default::OrDefault;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::snapshot::Snapshots;
use tidegate_api::units::Span;
use tidegate_core::layout::LayoutOrder;
use tidegate_core::units as core;
use tidegate_engine::lease::Lease;

use super::leases::DiskLeases;
use super::policy;
use super::pooled::must_not_be_pooled;
use super::{DiskService, locked, must_be_home};
use crate::config::plan::{self, ImagePlan, layout};
use crate::disks::attached::Attached;
use crate::disks::copy::device;
use crate::host;
use crate::os_error::{self, Outcome};
use crate::store::Found;
use crate::store::disks;
use crate::text::new_uuid;

/// The purpose for which a command needs a disk to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To copy it.
    Read,
    /// To resize or delete it, whether it is read-only or not.
    Change,
    /// To delete its records. Its image is not touched.
    Forget,
}

/// A reserved disk: its open and locked image, and its lease, which is released after the image is closed.
pub(super) type Held = (Option<host::Opened>, Option<Lease>);

impl DiskService {
    /// Creates a disk.
    pub(crate) fn create(&self, order: &api::DiskCreate) -> Outcome<api::Disk> {
        let name = &order.name;
        let what = format!("cannot create disk {name}");
        let _claim = self.claim(name, &what)?;
        self.must_be_new(name, &what)?;
        if order.layout.is_some() || !order.members.is_empty() {
            return self.create_with_layout(order, &what);
        }
        let (datastore, settings) = self.choose_datastore(order.datastore.as_ref())?;
        let descriptor = describe_new(order, &settings, &what)?;
        if let Some(device) = &order.device {
            self.must_be_no_disks_device(device)
                .and_then(|()| must_be_free(device))
                .map_err(|problem| problem.within(&what))?;
        }
        let traced = plan::filters::traced(&descriptor);
        plan::filters::stack(&descriptor.filters, name.as_str(), traced)?;
        self.must_say_where(&descriptor, &[], name)?;
        self.store.create_disk(
            &datastore,
            &settings,
            name,
            &descriptor,
            order.allocation,
            |_| Ok(()),
        )?;
        self.agree(&self.store.read_disk(&datastore, &settings, name)?)?;
        tracing::info!(disk = %name, %datastore, size = %descriptor.size, "created");
        self.disk(name)
    }

    /// Changes a disk's settings.
    pub(crate) fn set(&self, name: &Name, order: &api::DiskSet) -> Outcome<api::Disk> {
        let what = format!("cannot change disk {name}");
        let _claim = self.claim(name, &what)?;
        let (before, _turn) = self.find_to_change(name)?;
        let mut after = before.clone();
        apply(&mut after.descriptor, order, &what)?;
        let live = self.live.get(name);
        let settling = live.as_ref().map(|live| live.settling());
        let fixed = |d: &Descriptor| (d.cache, d.read_only, d.serial.clone(), d.queues, d.seg_max);
        if live.is_some() && fixed(&before.descriptor) != fixed(&after.descriptor) {
            return Err(Problem::new(ProblemCode::Busy, what)
                .because("it is attached, and a guest reads its cache mode, serial, queues, segments and read-only \
                     flag only when it connects")
                .remedy(format!("detach it first: tidegate disk detach {name}")));
        }
        if order.member_timeout_ms.is_some() || order.on_loss.is_some() {
            must_be_redundant(&after).map_err(|e| e.within(&what))?;
        }
        // Everything in a command must be valid, and the command itself allows the paths that it names.
        plan::disk(&after)?;
        if order.filters.is_some() {
            self.must_say_where(&after.descriptor, &before.descriptor.filters, name)?;
            self.agree_to_filters(&after)?;
        }
        let here = self.trusted(&after)?.found;
        let filters = plan::disk(&here)?.filters;
        let policy = self
            .policy(&after.descriptor)
            .map_err(|problem| problem.within(&what))?;
        let key = plan::policy::key(after.descriptor.uuid);
        // A reservation that was changed elsewhere may not be in effect in full.
        let standing = live.as_ref().and_then(|live| live.policy());
        let counts = standing.as_ref().unwrap_or(&before.descriptor.policy);
        let names_it = order
            .policy
            .as_ref()
            .is_some_and(|policy| policy.reservation_iops.is_some());
        let reserves = names_it && counts.reservation < after.descriptor.policy.reservation;
        let unpromised = match reserves {
            true => order.unpromised,
            // A command that does not raise the reservation is not refused if that cannot be guaranteed.
            false => api::Unpromised::BestEffort,
        };
        let members = after.descriptor.members.iter();
        let mut datastores: Vec<Name> = members.map(|place| place.datastore.clone()).collect();
        datastores.push(after.datastore.clone());
        let admission = self
            .admit(&datastores, key, &policy, unpromised)
            .map_err(|problem| problem.within(&what))?;
        let mut here = here;
        if !names_it {
            here.descriptor.policy =
                policy::counted(counts, &after.descriptor.policy, admission.as_ref());
        }
        let policy = self.policy(&here.descriptor)?;
        self.store.write_descriptor(&after)?;
        self.write_copies(&after);
        if let Some(live) = &live {
            // Not from the file: another host may have changed that just now.
            let standing = live
                .descriptor()
                .unwrap_or_else(|| before.descriptor.clone());
            let policed = match standing.policy == here.descriptor.policy {
                true => Ok(()),
                false => live.set_policy(&policy),
            };
            let lossy = |d: &Descriptor| (d.member_timeout, d.on_loss);
            let policed =
                policed.and_then(|()| match lossy(&standing) == lossy(&here.descriptor) {
                    true => Ok(()),
                    false => order_loss(live, &here.descriptor),
                });
            let policed = policed.and_then(|()| {
                match plan::io::of(&standing) == plan::io::of(&here.descriptor) {
                    true => Ok(()),
                    false => live.set_io(plan::io::of(&here.descriptor)),
                }
            });
            // Filters come last: if the disk's datastore hangs, they take effect when it resumes.
            let changed =
                policed.and_then(|()| match standing.filters == here.descriptor.filters {
                    true => Ok(()),
                    false => live.restack(&filters),
                });
            if let Err(problem) = changed {
                // The file is authoritative. The old policy is restored along with it, as far as possible.
                if let Ok(policy) = self.policy(&standing) {
                    let _ = live.set_policy(&policy);
                }
                if lossy(&standing) != lossy(&here.descriptor) {
                    let _ = order_loss(live, &standing);
                }
                let _ = live.set_io(plan::io::of(&standing));
                return Err(match self.store.write_descriptor(&before) {
                    Ok(()) => problem,
                    Err(second) => problem.because(second),
                });
            }
            live.set_descriptor(here.descriptor);
            live.set_admission(admission);
            live.note_stamp(None);
        }
        drop(settling);
        self.disk(name)
    }

    /// Changes a disk's size. Guests see growth at once; shrinking needs a detached disk.
    pub(crate) fn resize(&self, name: &Name, order: api::DiskResize) -> Outcome<api::Disk> {
        let what = format!("cannot resize disk {name}");
        let claim = self.claim(name, &what)?;
        let (mut found, _turn) = self.find_to_change(name)?;
        self.must_be_resizable(&mut found)
            .map_err(|e| e.within(&what))?;
        if found.descriptor.has_layout() {
            return self.resize_members(found, order, &claim, &what);
        }
        let before = found.descriptor.size.0;
        let after = order.size_bytes;
        found.descriptor.size.0 = after;
        found
            .descriptor
            .check()
            .map_err(|e| os_error::out_of_range(&what, &e))?;
        let live = self.live.get(name);
        if after < before {
            must_not_be_pooled(&found, "keep its size: disks on pools only grow")
                .map_err(|e| e.within(&what))?;
            if order.data == api::ResizeData::Keep {
                return Err(os_error::invalid(what)
                    .because(format!(
                        "it has {before} bytes now: data beyond {after} would be lost"
                    ))
                    .remedy("add --yes if that is what you want (`data: may-cut-off` over REST)"));
            }
            if live.is_some() {
                return Err(attached(
                    name,
                    what,
                    "guests do not support a disk that shrinks",
                ));
            }
            let _held = self
                .hold(&found, Purpose::Change)
                .map_err(|e| e.within(&what))?;
            // The descriptor first: a crash in between leaves an image longer than the recorded size. The excess is
            // cleared before the disk grows again.
            self.store.write_descriptor(&found)?;
            self.store.resize_image(&found, before, after)?;
        } else {
            if after > before {
                can_follow(&found, live.as_deref(), after).map_err(|e| e.within(&what))?;
                if let Some(live) = &live {
                    self.must_be_in_place(live).map_err(|e| e.within(&what))?;
                }
                let _held = match live {
                    None => Some(
                        self.hold(&found, Purpose::Change)
                            .map_err(|e| e.within(&what))?,
                    ),
                    Some(_) => None,
                };
                // The image first: a crash in between leaves an image longer than the recorded size, which is harmless.
                // The full size of an attached disk belongs to its guests, whatever the descriptor says.
                let had = live.as_ref().map_or(before, |live| before.max(live.size()));
                self.store.resize_image(&found, had, after)?;
                self.store.write_descriptor(&found)?;
            }
            // An I/O thread that was busy with another change may have refused an earlier resize, after the descriptor
            // had grown. A repeated command then notifies the guests.
            if let Some(live) = live
                && live.size() < after
            {
                live.resize(after)?;
                self.has_grown(&live, &claim);
            }
        }
        tracing::info!(disk = %name, before, after, "resized");
        self.disk(name)
    }

    /// Deletes a disk without snapshots, and its data.
    pub(crate) fn delete(&self, name: &Name) -> Outcome<()> {
        self.delete_with(name, Snapshots::Keep)
    }

    /// Deletes a disk and its data.
    pub(crate) fn delete_with(&self, name: &Name, snapshots: Snapshots) -> Outcome<()> {
        let what = format!("cannot delete disk {name}");
        let claim = self.claim(name, &what)?;
        let found = self.find(name)?;
        if self.live.get(name).is_some() {
            return Err(attached(name, what, "its guests would lose their data"));
        }
        must_be_home(&found).map_err(|e| e.within(&what))?;
        if snapshots == Snapshots::Keep {
            self.must_have_no_snapshots(&found, "they would be lost")
                .map_err(|e| e.within(&what))?;
        }
        let deletion = self.grants.begin_deletion(found.descriptor.uuid);
        if deletion.is_none() {
            return Err(Problem::new(ProblemCode::Busy, what)
                .because("one of its snapshots is being read")
                .remedy("end the programs that read its snapshots (NBD clients, backups), and try again"));
        }
        if found.descriptor.has_layout() {
            self.delete_members(&found, &what)?;
        } else {
            self.delete_plain(&found, &what)?;
        }
        if found.is_pooled() {
            self.grants.space_came(&found.datastore);
        }
        if let Some(flash) = &found.descriptor.flash {
            self.give_back(flash, found.descriptor.uuid)?;
            self.spread(&flash.cache, Some(&claim));
        }
        self.delete_outdated(&found);
        self.forget_agreed(&found)?;
        // A wanted disk that could not be attached is no longer wanted.
        self.remember(|disks| {
            disks.remove(name);
        })?;
        locked(&self.troubles).remove(name);
        locked(&self.snapshot_counts).remove(name);
        tracing::info!(disk = %name, "deleted");
        Ok(())
    }

    fn delete_plain(&self, found: &Found, what: &str) -> Outcome<()> {
        let purpose = self.purpose_of_deletion(found);
        let held = self.hold(found, purpose).map_err(|e| e.within(what))?;
        self.store.delete_disk(found, held)
    }

    /// Why a disk is reserved before it is deleted.
    pub(super) fn purpose_of_deletion(&self, found: &Found) -> Purpose {
        // A device that may not be opened here is left as it is, and its disk must be deletable.
        match found.has_sound_image() && self.must_be_agreed(found).is_ok() {
            true => Purpose::Change,
            false => Purpose::Forget,
        }
    }

    /// Keeps other daemons on all hosts from using a detached plain disk, until the result is dropped.
    pub(super) fn hold(&self, found: &Found, purpose: Purpose) -> Outcome<Held> {
        if !has_image_file(found) {
            return Ok((None, None));
        }
        if purpose != Purpose::Forget {
            self.must_be_agreed(found)?;
        }
        self.hold_image(found, purpose)
    }

    /// The same for an image that may be opened here: of a plain disk, or of a member.
    pub(super) fn hold_image(&self, found: &Found, purpose: Purpose) -> Outcome<Held> {
        if !has_image_file(found) {
            return Ok((None, None));
        }
        let opened = match purpose {
            Purpose::Forget => None,
            Purpose::Change => Some(self.open_alone(found)?),
            Purpose::Read => {
                let (opened, writable) = self.open_to_read(found)?;
                if !writable && !found.descriptor.read_only {
                    // Without write access, no lease can be taken.
                    self.leases.nobody_else(found, None)?;
                    return Ok((Some(opened), None));
                }
                Some(opened)
            }
        };
        let take = match purpose {
            Purpose::Read => DiskLeases::take,
            Purpose::Change | Purpose::Forget => DiskLeases::take_alone,
        };
        let lease = take(&self.leases, found, None, api::Takeover::Guarded)?;
        Ok((opened, lease))
    }

    /// Opens and locks a disk's image to copy it, shared with other readers. Also returns whether it is open for
    /// writing, which is impossible if, for example, its file system is read-only.
    fn open_to_read(&self, found: &Found) -> Outcome<(host::Opened, bool)> {
        if found.descriptor.read_only {
            return Ok((self.open_locked(found, true)?, false));
        }
        match self.open_locked(found, false) {
            Err(problem) if problem.code == ProblemCode::Datastore => {
                let opened = self.open_locked(found, true).map_err(|_| problem)?;
                Ok((opened, false))
            }
            opened => Ok((opened?, true)),
        }
    }

    /// Opens and locks a disk's image exclusively.
    pub(super) fn open_alone(&self, found: &Found) -> Outcome<host::Opened> {
        match self.open_locked(found, false) {
            // A device that cannot be written to: its disk must be deletable.
            Err(problem)
                if problem.code == ProblemCode::Datastore
                    && found.descriptor.read_only
                    && found.descriptor.device.is_some() =>
            {
                self.open_locked(found, true)
            }
            opened => opened,
        }
    }

    fn open_locked(&self, found: &Found, read_only: bool) -> Outcome<host::Opened> {
        self.must_be_itself(found)?;
        host::open(&plan::image(found), read_only)
            .map_err(|problem| self.leases.locked_by(found, problem))
    }

    /// Fails if a disk of that name exists, readable or not.
    pub(super) fn must_be_new(&self, name: &Name, what: &str) -> Outcome<()> {
        match self.search(name) {
            Err(problem) if problem.code == ProblemCode::NotFound => Ok(()),
            _ => Err(Problem::new(ProblemCode::Exists, what)
                .because("a disk of that name exists")
                .remedy(format!(
                    "choose another name, or delete that one first: tidegate disk delete {name}"
                ))),
        }
    }
}

/// Fails unless a disk can go on without a member.
fn must_be_redundant(disk: &Found) -> Outcome<()> {
    let spec = layout::of(&disk.descriptor)?;
    match spec.is_redundant() {
        true => Ok(()),
        false => Err(Problem::new(
            ProblemCode::Unsupported,
            "--member-timeout and --on-loss are for mirrors",
        )
        .because(format!(
            "its layout is {spec}: it cannot go on without a member"
        ))
        .remedy("leave them out")),
    }
}

/// Puts a disk's settings for the loss of members into effect.
pub(super) fn order_loss(live: &Attached, descriptor: &Descriptor) -> Outcome<()> {
    let timeout = core::Span::from_nanos(layout::timeout(descriptor).0);
    live.order(LayoutOrder::Timeout(timeout))?;
    live.order(LayoutOrder::OnLoss(layout::on_loss(descriptor)))
}

/// Whether a disk has an image that can be locked. A missing one needs no lock, and its disk must be deletable.
fn has_image_file(found: &Found) -> bool {
    matches!(found.settings, DatastoreSettings::Dir { .. }) && found.image().exists()
}

pub(super) fn attached(name: &Name, what: impl Into<String>, why: &str) -> Problem {
    Problem::new(ProblemCode::Busy, what)
        .because(format!("it is attached: {why}"))
        .remedy(format!("detach it first: tidegate disk detach {name}"))
}

/// Fails if a disk's image could not grow to the disk's new size. Nothing is changed yet.
fn can_follow(found: &Found, live: Option<&Attached>, size: u64) -> Outcome<()> {
    must_have_room(found, live.map(Attached::opened_size), size)?;
    match live {
        Some(live)
            if matches!(found.settings, DatastoreSettings::Dir { .. })
                && !size.is_multiple_of(live.size_unit()) =>
        {
            let unit = live.size_unit();
            let nearest = size.next_multiple_of(unit);
            Err(os_error::invalid(format!(
                "it is attached, and its image is written in units of {unit} bytes"
            ))
            .remedy(format!("request {nearest} bytes, or detach it first")))
        }
        _ => Ok(()),
    }
}

/// Fails if an image cannot have that size. `opened` is its size when the disk was attached, if it is.
pub(super) fn must_have_room(found: &Found, opened: Option<u64>, size: u64) -> Outcome<()> {
    match (&found.settings, opened) {
        (DatastoreSettings::Memory {} | DatastoreSettings::Emulated { .. }, Some(_)) => {
            Err(Problem::new(
                ProblemCode::Unsupported,
                "its memory has the size that the disk had when it was attached",
            )
            .remedy("detach it (its data is lost), resize it and attach it again"))
        }
        (DatastoreSettings::Nbd { .. }, opened) => {
            let (has, remedy) = match opened {
                Some(opened) => (
                    opened,
                    "enlarge the export; if that is done, detach the disk first, so that the daemon reads the new \
                     size",
                ),
                None => (
                    host::open(&plan::image(found), true)?.size(),
                    "enlarge the export first",
                ),
            };
            if size <= has {
                return Ok(());
            }
            Err(os_error::invalid(format!(
                "its export has {has} bytes, but {size} are requested"
            ))
            .remedy(remedy))
        }
        _ => Ok(()),
    }
}

pub(super) fn describe_new(
    order: &api::DiskCreate,
    settings: &DatastoreSettings,
    what: &str,
) -> Outcome<Descriptor> {
    let bad = |why: &str, remedy: &str| Err(os_error::invalid(what).because(why).remedy(remedy));
    if let Some(device) = &order.device {
        if !matches!(settings, DatastoreSettings::Dir { .. }) {
            return bad(
                "only datastores of kind dir have disks on devices",
                "name one of them with --datastore (see `tidegate datastore list`)",
            );
        }
        must_be_a_device(device, what)?;
    }
    let size = match (order.size_bytes, &order.device, settings) {
        (Some(size), _, _) => size,
        (None, Some(device), _) => disks::device_size(device).map_err(|e| {
            os_error::io(format!("cannot read the size of {}", device.display()), &e).within(what)
        })?,
        (None, None, DatastoreSettings::Nbd { uri }) => {
            let export = order.export.as_deref().unwrap_or(order.name.as_str());
            let image = ImagePlan::Nbd {
                uri: plan::export_uri(uri, export),
                block_size: order.block_size_bytes.unwrap_or(512),
            };
            let opened = host::open(&image, true).map_err(|e| e.within(what))?;
            opened.size()
        }
        (None, None, _) => return bad("it needs a size", "give one, such as --size 10G"),
    };
    let mut descriptor = Descriptor::new(new_uuid()?, size);
    let settable = api::DiskSet {
        cache: Some(order.cache),
        read_only: Some(order.read_only),
        serial: order.serial.clone(),
        queues: order.queues,
        seg_max: order.seg_max,
        filters: order.filters.clone(),
        member_timeout_ms: None,
        on_loss: None,
        io_class: Some(order.io_class),
        io_weight: Some(order.io_weight),
        coalesce: Some(order.coalesce),
        vcpus: Some(order.vcpus),
        policy: Some(policy::all_of(&order.policy)),
        unpromised: order.unpromised,
    };
    if let Some(block_size) = order.block_size_bytes {
        descriptor.block_size = block_size;
    }
    descriptor.device = order.device.clone();
    descriptor.export = order.export.clone();
    apply(&mut descriptor, &settable, what)?;
    Ok(descriptor)
}

/// Fails unless an absolute path leads to a block device.
pub(super) fn must_be_a_device(device: &Path, what: &str) -> Outcome<()> {
    let bad = |why: &str, remedy: &str| Err(os_error::invalid(what).because(why).remedy(remedy));
    if !device.is_absolute() {
        return bad(
            "the device's path is not absolute",
            "give an absolute path, such as /dev/sdb",
        );
    }
    if let Err(error) = device.metadata() {
        let problem = os_error::io(format!("{} cannot be used", device.display()), &error);
        return Err(match error.kind() {
            io::ErrorKind::NotFound => problem.remedy(device::FIND),
            _ => problem,
        }
        .within(what));
    }
    if !disks::is_device(device) {
        return bad(
            &format!("{} is not a block device", device.display()),
            "give a block device (see `lsblk -p`), or import the file: `tidegate disk import`",
        );
    }
    Ok(())
}

/// Fails if a device is mounted, or in use by the kernel in another way: a disk on it could not be attached, nor deleted.
pub(super) fn must_be_free(device: &Path) -> Outcome<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let mut options = std::fs::File::options();
    match options.read(true).custom_flags(exclusive).open(device) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            let shown = device.display();
            Err(
                Problem::new(ProblemCode::Busy, format!("{shown} cannot be used"))
                    .because(
                        "it is mounted, or used for swap, by LVM, by an array or by another program",
                    )
                    .remedy(format!(
                        "end that use (see `lsblk {shown}`), or give another device"
                    )),
            )
        }
        // What else is wrong with it is reported when it is opened.
        _ => Ok(()),
    }
}

/// Applies a command's changes to a descriptor, whose values stay in range.
fn apply(descriptor: &mut Descriptor, order: &api::DiskSet, what: &str) -> Outcome<()> {
    let api::DiskSet {
        cache,
        read_only,
        serial,
        queues,
        seg_max,
        filters,
        member_timeout_ms,
        on_loss,
        io_class,
        io_weight,
        coalesce,
        vcpus,
        policy: changes,
        unpromised: _,
    } = order.clone();
    let d = descriptor;
    d.cache = cache.unwrap_or(d.cache);
    d.read_only = read_only.unwrap_or(d.read_only);
    d.serial = serial.unwrap_or_else(|| d.serial.clone());
    d.queues = queues.unwrap_or(d.queues);
    d.seg_max = seg_max.unwrap_or(d.seg_max);
    d.filters = filters.unwrap_or_else(|| d.filters.clone());
    d.on_loss = on_loss.unwrap_or(d.on_loss);
    d.io_class = io_class.unwrap_or(d.io_class);
    d.io_weight = io_weight.map_or(d.io_weight, OrDefault::value);
    d.coalesce = coalesce.map_or(d.coalesce, OrDefault::value);
    d.vcpus = vcpus.map_or(d.vcpus, OrDefault::value);
    if let Some(timeout) = member_timeout_ms {
        // What is too long is out of range below.
        d.member_timeout = timeout.value().map(|ms| Span(ms.saturating_mul(1_000_000)));
    }
    if let Some(changes) = changes {
        policy::apply(&mut d.policy, &changes, what)?;
    }
    d.check().map_err(|e| os_error::out_of_range(what, &e))
}
