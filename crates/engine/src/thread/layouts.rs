//! The layouts of this thread's disks: how they are built, how they open, and how a member is replaced.
//!
//! The shard has the layouts and decides. This file builds them when a disk is attached, passes the result of their
//! opening to the handle, and exchanges the images below them.

use super::close::ClosedImage;
use super::{AttachedDisk, IoThread, Reply};
use crate::control::{DiskControl, UnderControl};
use crate::datastore::{OpenedImage, bytes};
use crate::disk_spec::{NoticeSink, PoolDisk};
use crate::error::{Error, Kind, Result};
use crate::sys::buffers::NO_DISK;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tidegate_core::layout::cache::CacheSetup;
use tidegate_core::layout::{
    CacheChange, LayoutNotice, LayoutOrder, LayoutSpec, Members, OrderRefusal, Refusal, SLOT,
    Target, Tree,
};
use tidegate_core::request::{Data, DiskId};
use tidegate_core::shard::Event;
use tidegate_core::units::Span;

/// Buffers of an I/O thread for layouts' own bytes: 8 MiB, which take memory when they are first used. Origin: chosen; one
/// mirrored disk has at most 26 of them at once.
const ARENA: usize = 128;
/// The most buffers that are added in the place of those that hung members keep: 8 MiB. Origin: chosen.
const ARENA_SPARE: usize = 128;

/// Told when a disk takes requests, or why it does not.
pub(crate) type Opened = Sender<Result<std::result::Result<(), Refusal>>>;

/// What a layout is built of.
#[derive(Clone, Debug)]
pub(crate) struct LayoutParts {
    pub(crate) spec: LayoutSpec,
    pub(crate) members: Members,
    /// The flash cache above it, if there is one. Its devices follow the members.
    pub(crate) cache: Option<CacheSetup>,
    /// The disk in its pool, if it is in one: the pool's layout takes the place of `spec`.
    pub(crate) pool: Option<Arc<PoolDisk>>,
}

impl LayoutParts {
    /// The layouts of these parts; `None` for a disk of one image.
    pub(super) fn build(self) -> Option<Tree> {
        if let Some(pool) = self.pool {
            return Some(Tree::pool(pool.setup.clone(), pool.view));
        }
        match self.cache {
            Some(cache) => Some(Tree::cached(self.spec, self.members, cache)),
            None => Tree::build(self.spec, self.members),
        }
    }
}

/// A change of what lies below a disk's filters, while nothing is in flight.
pub(crate) enum Relay {
    /// The disk begins to move to this image: it becomes target 1. The disk has this size, in bytes.
    Begin { image: Box<OpenedImage>, size: u64 },
    /// The mirror below a flash cache gets one more member.
    Grow { image: Box<OpenedImage> },
    /// The disk gets a flash cache with these devices. The timeout is for a disk of one image.
    Cache {
        devices: Vec<OpenedImage>,
        cache: Box<CacheSetup>,
        timeout: Span,
    },
    /// The disk has no flash cache any more: only the images of its members are left, of which there are so many.
    Uncache {
        members: usize,
        /// Told when the images of the devices are closed.
        closed: Reply,
    },
    /// The disk's requests wait until the move ends, or the disk resumes.
    Pause,
    /// The disk has one image again, that of this target.
    End {
        keep: Target,
        /// Told when the other image is closed.
        closed: Reply,
    },
}

/// What a disk's images are below after a change.
enum Relaid {
    /// These layouts; `None` for one image.
    Tree(Option<Box<Tree>>),
    /// The same layouts, but for the flash cache.
    Cache(CacheChange),
}

/// Gives a target another image.
pub(crate) struct Replace {
    pub(crate) target: Target,
    pub(crate) image: OpenedImage,
    /// Whether the image is none, so that all I/O on it fails.
    pub(crate) is_away: bool,
    /// Which device of the flash cache it is, from 0, if it is one.
    pub(crate) flash: Option<u8>,
    /// Told when the old image is closed.
    pub(crate) closed: Reply,
}

/// An order to a disk's layouts that is not answered yet.
pub(crate) struct PendingOrder {
    order: LayoutOrder,
    /// For a new member.
    image: Option<Box<OpenedImage>>,
    reply: Reply,
}

impl PendingOrder {
    pub(super) fn new(order: LayoutOrder, reply: Reply) -> PendingOrder {
        PendingOrder {
            order,
            image: None,
            reply,
        }
    }

    pub(super) fn with_image(self, image: Box<OpenedImage>) -> PendingOrder {
        let image = Some(image);
        PendingOrder { image, ..self }
    }

    /// The image of a member that was never added.
    pub(super) fn into_closed(self) -> Option<ClosedImage> {
        self.image.map(|image| ClosedImage::of(*image))
    }
}

impl Relay {
    /// The images of a change that never began.
    pub(super) fn into_closed(self) -> Vec<ClosedImage> {
        match self {
            Relay::Begin { image, .. } | Relay::Grow { image } => vec![ClosedImage::of(*image)],
            Relay::Cache { devices, .. } => devices.into_iter().map(ClosedImage::of).collect(),
            Relay::Pause | Relay::End { .. } | Relay::Uncache { .. } => Vec::new(),
        }
    }
}

impl IoThread {
    /// The layouts of a disk that is being attached.
    pub(super) fn build_layout(&mut self, parts: &LayoutParts) -> Result<Tree> {
        self.give_arena()?;
        let tree = parts.clone().build();
        Ok(tree.expect("a disk of one image has no layout to build"))
    }

    /// Gives the shard its arena. Disks that have left may have taken buffers of it.
    pub(super) fn give_arena(&mut self) -> Result<()> {
        let missing = ARENA.saturating_sub(self.cx.shard.arena_buffers());
        if missing == 0 {
            return Ok(());
        }
        let no_memory = |error| Error::io("no memory for the buffers of layouts", error);
        self.extend_arena(missing).map_err(no_memory)
    }

    fn extend_arena(&mut self, count: usize) -> std::io::Result<()> {
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            match self.cx.buffers.claim_pool(NO_DISK, bytes(SLOT)) {
                Ok(buffer) => slots.push(Data { buffer, start: 0 }),
                Err(error) => {
                    slots
                        .iter()
                        .for_each(|slot| self.cx.buffers.release(slot.buffer));
                    return Err(error);
                }
            }
        }
        self.cx.shard.give_arena(slots);
        self.cx.use_given_arena();
        Ok(())
    }

    /// Adds buffers in the place of those that hung members keep.
    pub(super) fn replace_late_buffers(&mut self) {
        let wanted = self.cx.shard.late_buffers().min(ARENA_SPARE);
        let more = wanted.saturating_sub(self.spare_buffers);
        if more > 0 && self.extend_arena(more).is_ok() {
            self.spare_buffers += more;
        }
    }

    /// A disk's layouts have opened, or refuse to.
    pub(super) fn layout_opened(
        &mut self,
        disk: DiskId,
        outcome: std::result::Result<(), Refusal>,
    ) {
        let Some(place) = self.disks[disk.0 as usize].as_mut() else {
            return;
        };
        if let Some(opening) = place.opening.take() {
            let _ = opening.send(Ok(outcome));
            return;
        }
        let (reply, flash) = (place.changing.take(), place.new_flash.take());
        let text = match flash {
            Some(_) => "the flash cache cannot be used; the disk goes on without it",
            None => "the disk cannot be served by its new images; detach it, and attach it again",
        };
        if let (Err(_), Some(flash)) = (outcome, flash) {
            self.end_refused_cache(disk, flash);
        }
        if let Some(reply) = reply {
            let refused = |refusal| Error::refused(Kind::Io, text, refusal);
            let _ = reply.send(outcome.map_err(refused));
        }
    }

    /// A flash cache was refused that the disk was to get: it goes on as it was.
    fn end_refused_cache(&mut self, disk: DiskId, flash: Target) {
        let (ignored, _) = std::sync::mpsc::channel();
        let place = self.disks[disk.0 as usize].as_mut();
        let place = place.expect("the caller has found the disk");
        place.remove_flash(flash.0.into(), ignored);
        self.finish_relay(disk, Relaid::Cache(CacheChange::Remove));
    }

    /// Gives a disk's layouts an order, once those before it are answered.
    pub(super) fn order(&mut self, disk: DiskId, order: PendingOrder) {
        let place = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the caller has found the disk");
        place.orders.push_back(order);
        if place.orders.len() == 1 {
            self.next_order(disk);
        }
    }

    /// Begins with the first of the orders that wait.
    fn next_order(&mut self, disk: DiskId) {
        while let Some(place) = self.disks[disk.0 as usize].as_mut()
            && let Some(order) = place.orders.front_mut()
        {
            let event = Event::LayoutOrder {
                disk,
                order: order.order,
            };
            let Some(image) = order.image.take() else {
                return self.cx.handle(event);
            };
            match place.add_image(disk, *image) {
                Ok(()) => return self.cx.handle(event),
                Err(error) => {
                    let order = place.orders.pop_front().expect("it is the first");
                    let _ = order.reply.send(Err(error));
                }
            }
        }
    }

    /// The result of the first of a disk's orders.
    pub(super) fn layout_ordered(
        &mut self,
        disk: DiskId,
        outcome: std::result::Result<(), OrderRefusal>,
    ) {
        let place = self.disks[disk.0 as usize].as_mut();
        let Some(place) = place else { return };
        let Some(order) = place.orders.pop_front() else {
            return;
        };
        if order.order == LayoutOrder::AddMember {
            self.member_added(disk, outcome.is_ok());
        }
        let _ = order.reply.send(outcome.map_err(order_refused));
        self.next_order(disk);
    }

    /// The layouts have one more member, or refuse it: its image is the last one.
    fn member_added(&mut self, disk: DiskId, is_added: bool) {
        let place = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the caller has found the disk");
        let under = place.added.take();
        if is_added {
            let target = place.images.last();
            place.set_control(target, under);
            self.controls_changed(disk, false);
        } else if let Some(image) = place.images.remove_last() {
            let (ignored, _) = std::sync::mpsc::channel();
            self.send_close(disk, vec![image], Box::new(|| ()), ignored);
        }
        self.note_timed();
    }

    pub(super) fn layout_notice(&self, disk: DiskId, notice: LayoutNotice) {
        let place = self.attached_disk(disk);
        if let Some(NoticeSink(sink)) = place.and_then(|place| place.notices.as_ref()) {
            sink(notice);
        }
    }

    /// Nothing of a disk is in flight, and its requests wait: exchanges what lies below its filters.
    pub(super) fn held(&mut self, disk: DiskId) {
        let place = self.disks[disk.0 as usize].as_mut();
        let Some(place) = place else { return };
        let Some(relay) = place.relay.take() else {
            // It was given up after the disk was held, and before this was known: the disk goes on as it is.
            return self.finish_relay(disk, Relaid::Cache(CacheChange::Keep));
        };
        place.held = matches!(relay, Relay::Pause);
        if place.held {
            if let Some(reply) = place.changing.take() {
                let _ = reply.send(Ok(()));
            }
            return;
        }
        let relaid = self.relay(disk, relay).unwrap_or_else(|error| {
            let place = self.disks[disk.0 as usize].as_mut();
            if let Some(reply) = place.and_then(|place| place.changing.take()) {
                let _ = reply.send(Err(error));
            }
            Relaid::Cache(CacheChange::Keep)
        });
        self.finish_relay(disk, relaid);
    }

    /// The requests of a paused disk go on. A disk that is about to pause goes on at once.
    pub(super) fn resume(&mut self, disk: DiskId, reply: Reply) {
        let place = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the caller has found the disk");
        let pauses = matches!(place.relay, Some(Relay::Pause));
        if pauses {
            place.relay = None;
            place.changing = None;
        }
        let was_held = std::mem::take(&mut place.held);
        if !was_held {
            let _ = reply.send(Ok(()));
            if pauses {
                self.cx.handle(Event::Unhold { disk });
            }
            return;
        }
        place.changing = Some(reply);
        self.finish_relay(disk, Relaid::Cache(CacheChange::Keep));
    }

    /// The disk's images were exchanged: it goes on.
    fn finish_relay(&mut self, disk: DiskId, relaid: Relaid) {
        if let Some(place) = self.disks[disk.0 as usize].as_mut() {
            place.closes |= place.images.has_replaced();
        }
        self.note_timed();
        match relaid {
            Relaid::Tree(tree) => {
                self.controls_changed(disk, tree.is_none());
                self.cx.handle(Event::Relay { disk, tree });
            }
            Relaid::Cache(change) => {
                let report = self.cx.shard.layout_report(disk);
                let was_plain = report.is_none_or(|report| report.layout.is_plain());
                match change {
                    CacheChange::Add { .. }
                    | CacheChange::BeginMove
                    | CacheChange::EndMove
                    | CacheChange::AddMember => self.controls_changed(disk, false),
                    CacheChange::Remove => self.controls_changed(disk, was_plain),
                    CacheChange::Keep => {}
                }
                self.cx.handle(Event::ChangeCache { disk, change });
            }
        }
        self.close_if_unused(disk);
    }

    /// Exchanges a disk's images, and returns what is to be above them. After an error they are as before.
    fn relay(&mut self, disk: DiskId, relay: Relay) -> Result<Relaid> {
        if let Relay::Begin { .. } | Relay::Cache { .. } = relay {
            self.give_arena()?;
        }
        let report = self.cx.shard.layout_report(disk);
        let is_cached = report.as_ref().is_some_and(|report| report.cache.is_some());
        let layout = report.map_or(LayoutSpec::Plain, |report| report.layout);
        let place = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the caller has found the disk");
        Ok(match relay {
            Relay::Begin { image, size } => {
                place.insert_image(disk, *image)?;
                match is_cached {
                    true => Relaid::Cache(CacheChange::BeginMove),
                    false => Relaid::Tree(Some(Box::new(Tree::transfer(size)))),
                }
            }
            Relay::Grow { image } => {
                place.insert_image(disk, *image)?;
                Relaid::Cache(CacheChange::AddMember)
            }
            Relay::Cache {
                devices,
                cache,
                timeout,
            } => {
                place.add_flash_devices(disk, layout, devices)?;
                Relaid::Cache(CacheChange::Add { cache, timeout })
            }
            Relay::Uncache { members, closed } => {
                place.remove_flash(members, closed);
                Relaid::Cache(CacheChange::Remove)
            }
            Relay::Pause => Relaid::Cache(CacheChange::Keep),
            Relay::End { keep, closed } => {
                place.images.keep(keep, closed);
                if let Some(control) = &mut place.control {
                    control.keep(keep, 2);
                }
                match is_cached {
                    true => Relaid::Cache(CacheChange::EndMove),
                    false => Relaid::Tree(None),
                }
            }
        })
    }

    /// Tells the schedulers that images of a disk are on other datastores now.
    fn controls_changed(&mut self, disk: DiskId, is_plain: bool) {
        let control = self
            .attached_disk(disk)
            .and_then(|place| place.control.as_ref());
        let Some(control) = control else { return };
        let controlled = Some(control.controlled(is_plain));
        self.cx.handle(Event::Controls { disk, controlled });
        let (shard, place) = (&self.cx.shard, self.disks[disk.0 as usize].as_mut());
        if let Some(control) = place.and_then(|place| place.control.as_mut()) {
            control.forget(|control| shard.is_under(disk, control));
        }
        self.wake_all_governors();
    }

    /// The targets of a disk whose images have I/O in flight.
    pub(super) fn busy_targets(&self, disk: DiskId) -> Vec<Target> {
        let place = self.attached_disk(disk);
        let members = place
            .into_iter()
            .flat_map(|place| place.images.of_targets());
        let busy = (0..)
            .map(Target)
            .zip(members)
            .filter(|(_, member)| !member.image.is_idle());
        busy.map(|(target, _)| target).collect()
    }

    /// Whether a mirror takes this member's bytes for the disk's, or the flash cache those of this device.
    fn is_in_use(&self, disk: DiskId, target: Target, flash: Option<u8>) -> bool {
        let report = self.cx.shard.layout_report(disk);
        if let Some(nth) = flash {
            let cache = report.and_then(|report| report.cache);
            return cache.is_some_and(|cache| cache.in_use && cache.devices >> nth & 1 == 1);
        }
        let report = report.filter(|report| report.layout.is_redundant());
        let member = report.and_then(|report| report.members.get(usize::from(target.0)).copied());
        member.is_some_and(|member| member.is_relied_on())
    }

    /// Gives a target another image, unless a mirror takes the bytes of the old one for the disk's. The old one is closed
    /// once it has no I/O in flight.
    pub(super) fn replace_image(&mut self, disk: DiskId, replace: Replace, reply: Reply) {
        if !replace.is_away && self.is_in_use(disk, replace.target, replace.flash) {
            let text = format!(
                "target {} is in use: drop it before it gets another image",
                replace.target.0
            );
            let _ = reply.send(Err(Error::new(Kind::Busy, text)));
            return;
        }
        let place = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the caller has found the disk");
        let Replace {
            target,
            mut image,
            flash,
            closed,
            ..
        } = replace;
        let under = image.control.take();
        let replaced = place.images.replace(disk, target, image, closed);
        place.closes |= place.images.has_replaced();
        // Flash is under no control.
        if replaced.is_ok() && flash.is_none() {
            place.set_control(target, under);
            self.controls_changed(disk, false);
        }
        self.note_timed();
        let _ = reply.send(replaced);
        self.close_if_unused(disk);
    }

    /// Closes the images of a disk that were replaced and have no I/O in flight.
    pub(super) fn close_replaced(&mut self, disk: DiskId) {
        let Some(place) = self.attached_disk(disk) else {
            return;
        };
        let idle: Vec<_> = place.images.idle_replaced().collect();
        for id in idle {
            let mut closed = false;
            self.with_image(id, |image, cx| closed = image.close(cx));
            let place = self.disks[disk.0 as usize].as_mut();
            if closed
                && let Some(place) = place
                && let Some((member, reply)) = place.images.remove_replaced(id)
            {
                place.closes = place.images.has_replaced() || place.detaching.is_some();
                self.note_timed();
                let images = vec![member.into_closed()];
                self.send_close(disk, images, Box::new(|| ()), reply);
            }
        }
    }
}

impl AttachedDisk {
    /// Gives the target after the last one an image.
    fn add_image(&mut self, disk: DiskId, mut image: OpenedImage) -> Result<()> {
        self.added = image.control.take();
        let (ignored, _) = std::sync::mpsc::channel();
        let target = Target(self.images.last().0 + 1);
        self.images.replace(disk, target, image, ignored)
    }

    /// Adds the image of one more member. Flash devices have the targets that follow.
    fn insert_image(&mut self, disk: DiskId, mut image: OpenedImage) -> Result<()> {
        let under = image.control.take();
        let target = self.images.insert(disk, image)?;
        match (&mut self.control, under) {
            (Some(control), under) => control.insert(target, under),
            (None, under) => self.set_control(target, under),
        }
        Ok(())
    }

    /// Gives the targets after the last one the devices of a cache. After an error it has none of them.
    fn add_flash_devices(
        &mut self,
        disk: DiskId,
        layout: LayoutSpec,
        devices: Vec<OpenedImage>,
    ) -> Result<()> {
        let last = self.images.last();
        self.images.set_flash(usize::from(last.0) + 1, layout);
        for image in devices {
            if let Err(error) = self.add_flash(disk, image) {
                let (ignored, _) = std::sync::mpsc::channel();
                self.remove_flash(usize::from(last.0) + 1, ignored);
                return Err(error);
            }
        }
        self.new_flash = Some(Target(last.0 + 1));
        Ok(())
    }

    /// Gives the target after the last one a flash device.
    fn add_flash(&mut self, disk: DiskId, image: OpenedImage) -> Result<()> {
        let (ignored, _) = std::sync::mpsc::channel();
        let target = Target(self.images.last().0 + 1);
        self.images.replace(disk, target, image, ignored)?;
        if let Some(control) = &mut self.control {
            control.free(target);
        }
        Ok(())
    }

    /// Leaves only the images of so many targets.
    fn remove_flash(&mut self, members: usize, closed: Reply) {
        self.images.truncate(members, &closed);
        if let Some(control) = &mut self.control {
            control.truncate(members);
        }
    }

    /// The image of this target has another control, if it names one.
    fn set_control(&mut self, target: Target, under: Option<UnderControl>) {
        match (&mut self.control, under) {
            (Some(control), under) => control.replace(target, under),
            (None, None) => {}
            (None, Some(under)) => {
                let images = self.images.of_targets().count();
                self.control = Some(DiskControl::first(target, images, under));
            }
        }
    }
}

/// An order that a disk's layouts refuse.
fn order_refused(refusal: OrderRefusal) -> Error {
    let (kind, why) = match refusal {
        OrderRefusal::NotRedundant => (
            Kind::Unsupported,
            "the disk has each byte once: only a mirror's members can be rebuilt, replaced, dropped or compared",
        ),
        OrderRefusal::NoMember => (
            Kind::NotFound,
            "the disk has no such member: list its members, and name one of them",
        ),
        OrderRefusal::InSync => (
            Kind::Exists,
            "the member is in sync; drop it first if its image is to be replaced",
        ),
        OrderRefusal::Busy => (
            Kind::Busy,
            "a member is being rebuilt, members are being compared, or fewer than two are in sync; try again when that has changed",
        ),
        OrderRefusal::Last => (
            Kind::Invalid,
            "it is the only member in sync, so the disk needs it; rebuild another one first",
        ),
        OrderRefusal::InFlight => (
            Kind::Busy,
            "the member still has writes in flight; try again when its datastore has answered them",
        ),
        OrderRefusal::NotOpen => (
            Kind::Busy,
            "the disk's members are being opened or labelled; try again",
        ),
        OrderRefusal::Unrecorded => (
            Kind::Io,
            "no member could record it; check the datastores of the members in sync, and try again",
        ),
        OrderRefusal::Fixed => (
            Kind::Unsupported,
            "the number of members cannot grow: only a plain mirror of fewer than four members can get another one, or a disk in a pool of fewer than 32 columns",
        ),
        OrderRefusal::NotPooled => (
            Kind::Unsupported,
            "the disk is not in a pool: only disks of pools have snapshots",
        ),
        OrderRefusal::ReadOnly => (
            Kind::Unsupported,
            "the disk only shows a snapshot, and cannot be changed",
        ),
        OrderRefusal::NoGeneration => (
            Kind::NotFound,
            "the disk has no such snapshot: list its snapshots, and name one of them",
        ),
        OrderRefusal::TooMany => (
            Kind::Unsupported,
            "the disk has as many snapshots as are possible: delete one first",
        ),
        OrderRefusal::BadGrant => (
            Kind::Invalid,
            "the pool's catalog gave the disk space that the disk cannot use: check the pool",
        ),
        OrderRefusal::NoColumn => (
            Kind::Invalid,
            "the disk would have no part of the pool left: name fewer groups",
        ),
    };
    Error::new(kind, why)
}
