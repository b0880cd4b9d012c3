//! Attached disks as their users see them: listeners, statistics and metrics.
//!
//! The disk_service attaches and detaches disks; all other code finds them by name. A detached disk lives until its
//! last user drops it, but serves no new clients.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tidegate_api::descriptor::{Descriptor, PolicyText};
use tidegate_api::disk::{Client, ClientKind, RingCounts, RingFault, UpstreamCounts};
use tidegate_api::iocontrol::Admission;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::iocontrol::Policy;
use tidegate_core::layout::{CacheReport, LayoutOrder, LayoutReport};
use tidegate_core::units::Time;
use tidegate_engine::datastore::OpenedImage;
use tidegate_engine::datastore::condition::Harm;
use tidegate_engine::{DiskCurves, IoSettings};
use tokio::sync::Notify;

use crate::clock;
use crate::config::plan::filters::Stack;
use crate::control::InUse;
use crate::files::Stamp;
use crate::host::{self, nbd};
use crate::pools::grants::{DiskOnPool, InPool, SpaceOf};
use crate::pools::reported::Reported;
use crate::store::Identity;
use part_plan::PartPlan;
use vhost_listener::VhostListener;

pub(crate) mod part_plan;
pub(crate) mod vhost_listener;
use crate::disks::counters::{ClientCounts, DiskCounters};
use crate::disks::views::Views;
use crate::os_error::{self, Outcome};

/// One attached disk.
pub(crate) struct Attached {
    name: Name,
    /// The datastore that it was attached on.
    datastore: Name,
    /// The datastores that it was moved to since.
    moves: OnceLock<Box<Moved>>,
    disk: host::Disk,
    attached: Time,
    listener: Mutex<Option<VhostListener>>,
    clients: Arc<Mutex<Clients>>,
    standing: Mutex<Option<Standing>>,
    settling: Mutex<()>,
    cache: Mutex<Option<CacheInUse>>,
    /// Why it is used without its flash cache.
    cache_problem: Mutex<Option<Problem>>,
    /// How large its part of the cache is to be.
    part: PartPlan,
}

/// The flash cache that an attached disk uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheInUse {
    pub(crate) cache: Name,
    /// This use of the disk.
    pub(crate) attachment: u64,
    /// The disk's part of the cache, in bytes.
    pub(crate) part: u64,
    /// Whether the disk goes on without it, because its devices have failed.
    pub(crate) is_given_up: bool,
}

/// What an open member uses. Dropping it may take as long as the other hosts need to be told.
pub(crate) struct MemberUse {
    pub(crate) member: usize,
    /// Its datastore's control.
    pub(crate) in_use: InUse,
}

/// A move of an attached disk, and the next one. A list, so that names stay valid for those who read them.
struct Moved {
    to: Name,
    next: OnceLock<Box<Moved>>,
}

/// The settings and state of a disk now. A disk that is served without a root has none.
pub(crate) struct Standing {
    /// Its descriptor, and the path of that. None: it is in a pool's catalog.
    pub(crate) descriptor: Descriptor,
    pub(crate) path: Option<PathBuf>,
    /// The version of the descriptor that was read last.
    pub(crate) stamp: Option<Stamp>,
    /// The admission result of its reservation.
    pub(crate) admission: Option<Admission>,
    /// The images that it has open, if they are files or devices: one for each member that is there.
    pub(crate) images: Vec<OpenImage>,
    /// The faults at the paths of its images, by member.
    pub(crate) astray: Vec<(usize, Astray)>,
    /// Marks its datastore as in use until the disk is detached.
    pub(crate) in_use: Option<InUse>,
    /// What its open members use until then.
    pub(crate) uses: Vec<MemberUse>,
    /// Its pool's space, until then.
    pub(crate) pooled: Option<InPool>,
}

/// A file or device that a disk has open.
#[derive(Clone, Debug)]
pub(crate) struct OpenImage {
    /// The number of the member.
    pub(crate) member: usize,
    pub(crate) datastore: Name,
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
}

/// Fault at the path of an open image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Astray {
    /// Nothing is there.
    Gone,
    /// Another file is there.
    Replaced,
    /// The datastore's file system is not mounted there.
    Unmounted,
}

impl Astray {
    /// What happened to the image.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Astray::Gone => {
                "its image was removed or renamed: writes go to the unlinked file and are lost when the disk is detached"
            }
            Astray::Replaced => {
                "another file has replaced its image: writes go to the old file and are lost when the disk is detached"
            }
            Astray::Unmounted => {
                "its datastore is not mounted any more: the disk still uses the open image"
            }
        }
    }

    /// What to do, if no other member has the bytes.
    fn remedy(self) -> &'static str {
        match self {
            Astray::Gone => {
                "if it was renamed, rename it back; otherwise copy the disk over NBD (nbdcopy) before you detach it"
            }
            Astray::Replaced => {
                "if the old file was renamed, rename it back; otherwise copy the disk over NBD (nbdcopy) before you detach it"
            }
            Astray::Unmounted => "mount it again; if another file is there then, that is reported",
        }
    }
}

/// The clients that are connected to a disk.
#[derive(Default)]
struct Clients {
    last: u64,
    connected: BTreeMap<u64, (ClientKind, String, Instant)>,
}

/// A client's entry in the list, until dropped.
pub(crate) struct Presence {
    clients: Arc<Mutex<Clients>>,
    number: u64,
    /// An NBD client's connection slot within the configured limit, or a share of one.
    _seat: Option<Box<dyn Send>>,
}

/// A disk whose requests are held, until dropped.
pub(crate) struct Paused(Arc<Attached>);

impl Drop for Paused {
    fn drop(&mut self) {
        let Paused(live) = self;
        if let Err(problem) = live.disk.resume() {
            // It is being detached: then nothing waits.
            tracing::warn!(disk = %live.name, %problem, "a paused disk does not go on");
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        locked(&self.clients).connected.remove(&self.number);
    }
}

impl Attached {
    /// A disk that was just attached.
    pub(crate) fn new(name: Name, datastore: Name, disk: host::Disk) -> Arc<Attached> {
        Arc::new(Attached {
            name,
            datastore,
            moves: OnceLock::new(),
            disk,
            attached: clock::now(),
            listener: Mutex::default(),
            clients: Arc::default(),
            standing: Mutex::default(),
            settling: Mutex::default(),
            cache: Mutex::default(),
            cache_problem: Mutex::default(),
            part: PartPlan::default(),
        })
    }

    /// Locks the disk's settings: until the guard is dropped, no other thread changes them or puts a change into
    /// effect.
    pub(crate) fn settling(&self) -> MutexGuard<'_, ()> {
        locked(&self.settling)
    }

    /// Sets its settings and state.
    pub(crate) fn stand(&self, standing: Standing) {
        *locked(&self.standing) = Some(standing);
    }

    /// Its current descriptor.
    pub(crate) fn descriptor(&self) -> Option<Descriptor> {
        self.standing(|standing| standing.descriptor.clone())
    }

    /// Its current policy.
    pub(crate) fn policy(&self) -> Option<PolicyText> {
        self.standing(|standing| standing.descriptor.policy.clone())
    }

    /// The images that it has open, if they are files or devices.
    pub(crate) fn images(&self) -> Vec<OpenImage> {
        self.standing(|standing| standing.images.clone())
            .unwrap_or_default()
    }

    /// Whether a write to a file or device may change the content of one of its images.
    pub(crate) fn uses(&self, there: Identity) -> bool {
        let shares = |image: &OpenImage| image.identity.shares_bytes(there);
        self.standing(|standing| standing.images.iter().any(shares))
            .unwrap_or(false)
    }

    /// How its members are open, in the layout's order. None: away.
    pub(crate) fn members(&self) -> Vec<Option<host::MemberIo>> {
        self.disk.members()
    }

    /// The datastores that it uses: its own, that of its I/O control, and those of its open members.
    pub(crate) fn datastores(&self) -> Vec<Name> {
        let places = self.descriptor().map(|descriptor| descriptor.members);
        let members = places.into_iter().flatten().zip(self.members());
        let open = members.filter_map(|(place, io)| io.map(|_| place.datastore));
        let own = [self.datastore(), self.control_datastore()].map(Name::clone);
        own.into_iter().chain(open).collect()
    }

    /// The state of its layout. None: it is plain, or being detached.
    pub(crate) fn layout(&self) -> Option<LayoutReport> {
        self.disk.layout()
    }

    /// Gives its layout an order.
    pub(crate) fn order(&self, order: LayoutOrder) -> Outcome<()> {
        self.disk.order(order)
    }

    /// Gives a member another image, or none.
    pub(crate) fn set_member(
        &self,
        member: usize,
        opened: Option<host::Opened>,
        image: Option<OpenImage>,
        uses: Option<MemberUse>,
    ) -> Outcome<host::OldMember> {
        let old = self.disk.set_member(member, opened)?;
        let ended = self.standing(|standing| {
            standing.astray.retain(|(nth, _)| *nth != member);
            standing.images.retain(|image| image.member != member);
            standing.images.extend(image);
            let others = std::mem::take(&mut standing.uses);
            let (ended, kept): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|other| other.member == member);
            standing.uses = kept;
            standing.uses.extend(uses);
            ended
        });
        // Dropped outside the lock, as below.
        drop(ended);
        Ok(old)
    }

    /// Gives a mirror one more member.
    pub(crate) fn add_member(
        &self,
        opened: host::Opened,
        image: Option<OpenImage>,
        uses: Option<MemberUse>,
    ) -> Outcome<()> {
        self.disk.add_member(opened)?;
        self.standing(|standing| {
            standing.images.extend(image);
            standing.uses.extend(uses);
        });
        Ok(())
    }

    /// If it is on a pool, it gets space from now on.
    pub(crate) fn takes_space(self: &Arc<Attached>) {
        let disk: Arc<dyn DiskOnPool> = Arc::<Attached>::clone(self);
        self.standing(|standing| {
            if let Some(place) = &standing.pooled {
                place.opened(disk);
            }
        });
    }

    /// What its layout reports of its generations, if it is on a pool.
    pub(crate) fn reported(&self) -> Option<Arc<Reported>> {
        self.standing(|standing| Some(Arc::clone(standing.pooled.as_ref()?.reported())))?
    }

    /// The state of its space, if it is on a pool.
    pub(crate) fn space(&self) -> Option<SpaceOf> {
        self.standing(|standing| Some(standing.pooled.as_ref()?.space()))?
    }

    /// Whether it rejects all writes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.disk.is_read_only()
    }

    /// Records the faults at its images' paths. Returns those that were there before.
    pub(crate) fn goes_astray(&self, astray: Vec<(usize, Astray)>) -> Vec<(usize, Astray)> {
        let before = self.standing(|standing| std::mem::replace(&mut standing.astray, astray));
        before.unwrap_or_default()
    }

    /// The fault at the path of a member's image, as it was recorded last.
    pub(crate) fn astray(&self, member: usize) -> Option<Astray> {
        let astray = self.standing(|standing| standing.astray.clone())?;
        let mut faults = astray.into_iter().filter(|(nth, _)| *nth == member);
        faults.next().map(|(_, fault)| fault)
    }

    /// The problem at the path of a member's image, with a remedy.
    pub(crate) fn misplaced_member(&self, member: usize) -> Option<Problem> {
        let astray = self.astray(member)?;
        let name = &self.name;
        let problem = Problem::new(
            ProblemCode::Datastore,
            format!("the image of member {member} of disk {name} is missing"),
        )
        .because(astray.why());
        let is_redundant = self.layout().is_some_and(|it| it.layout.is_redundant());
        Some(problem.remedy(match (astray, is_redundant) {
            (Astray::Unmounted, _) | (_, false) => astray.remedy().to_owned(),
            (Astray::Gone | Astray::Replaced, true) => format!(
                "if it was renamed, rename it back; otherwise replace the member: tidegate disk member replace {name} {member} \
                 --on DATASTORE"
            ),
        }))
    }

    /// The problem at its image's path, with a remedy.
    pub(crate) fn misplaced(&self) -> Option<Problem> {
        let (member, astray) = self.standing(|standing| standing.astray.first().copied())??;
        if self.descriptor()?.has_layout() {
            return self.misplaced_member(member);
        }
        let name = &self.name;
        let what = format!("the image of disk {name} is missing");
        Some(
            Problem::new(ProblemCode::Datastore, what)
                .because(astray.why())
                .remedy(astray.remedy()),
        )
    }

    /// Replaces its descriptor.
    pub(crate) fn set_descriptor(&self, descriptor: Descriptor) {
        self.standing(|standing| standing.descriptor = descriptor);
    }

    /// The admission result of its reservation.
    pub(crate) fn admission(&self) -> Option<Admission> {
        self.standing(|standing| standing.admission.clone())
            .flatten()
    }

    /// Replaces the admission result of its reservation.
    pub(crate) fn set_admission(&self, admission: Option<Admission>) {
        self.standing(|standing| standing.admission = admission);
    }

    /// The path of its descriptor, and the version that was read last.
    pub(crate) fn followed(&self) -> Option<(PathBuf, Option<Stamp>)> {
        self.standing(|standing| Some((standing.path.clone()?, standing.stamp)))?
    }

    /// Records which version of its descriptor was read.
    pub(crate) fn note_stamp(&self, stamp: Option<Stamp>) {
        self.standing(|standing| standing.stamp = stamp);
    }

    /// Ends its use of its datastore, after it was detached.
    pub(crate) fn leave_datastore(&self) {
        let in_use = self.standing(|standing| {
            let uses = std::mem::take(&mut standing.uses);
            (standing.in_use.take(), uses, standing.pooled.take())
        });
        // Dropped outside the lock: the last user of a datastore signs off from the other hosts.
        drop(in_use);
    }

    fn standing<T>(&self, look: impl FnOnce(&mut Standing) -> T) -> Option<T> {
        locked(&self.standing).as_mut().map(look)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// The datastore that it is on.
    pub(crate) fn datastore(&self) -> &Name {
        let (mut on, mut moves) = (&self.datastore, &self.moves);
        while let Some(moved) = moves.get() {
            (on, moves) = (&moved.to, &moved.next);
        }
        on
    }

    /// The datastore whose I/O control reports its limits. Each of its images is under its own datastore's.
    pub(crate) fn control_datastore(&self) -> &Name {
        self.datastore()
    }

    /// Records that it is on another datastore now, with its descriptor and image there.
    pub(crate) fn has_moved(
        &self,
        to: &Name,
        descriptor: Descriptor,
        path: PathBuf,
        image: Option<OpenImage>,
        uses: Vec<MemberUse>,
    ) {
        let ended = self.standing(|standing| {
            standing.descriptor = descriptor;
            standing.path = Some(path);
            standing.stamp = None;
            standing.images = image.into_iter().collect();
            (
                standing.in_use.take(),
                std::mem::replace(&mut standing.uses, uses),
            )
        });
        drop(ended);
        self.add_move(to);
    }

    /// Records that its descriptor is on another datastore now.
    pub(crate) fn has_new_home(&self, to: &Name, descriptor: Descriptor, path: PathBuf) {
        self.standing(|standing| {
            standing.descriptor = descriptor;
            standing.path = Some(path);
            standing.stamp = None;
        });
        self.add_move(to);
    }

    fn add_move(&self, to: &Name) {
        let mut moves = &self.moves;
        while let Some(moved) = moves.get() {
            moves = &moved.next;
        }
        // Only the holder of the disk's claim moves it.
        let _ = moves.set(Box::new(Moved {
            to: to.clone(),
            next: OnceLock::new(),
        }));
    }

    /// Begins to move it to another image: each write goes to both from now on.
    pub(crate) fn begin_transfer(&self, to: host::Opened) -> Outcome<host::Described> {
        self.disk.begin_transfer(to)
    }

    /// Holds its requests until its move ends. Fails unless the new image has every byte.
    pub(crate) fn pause_transfer(&self) -> Outcome<()> {
        self.disk.pause_transfer()
    }

    /// Ends a move: the disk has only the image that it had, or only the new one.
    pub(crate) fn end_transfer(&self, keep: &host::Keep) -> Outcome<host::OldMember> {
        self.disk.end_transfer(keep)
    }

    /// Holds its requests once those in flight have ended, until the result is dropped.
    pub(crate) fn pause(self: &Arc<Attached>) -> Outcome<Paused> {
        self.disk.pause()?;
        Ok(Paused(Arc::clone(self)))
    }

    /// The flash cache that it uses.
    pub(crate) fn cache(&self) -> Option<CacheInUse> {
        locked(&self.cache).clone()
    }

    /// How large its part of its flash cache is to be.
    pub(crate) fn part(&self) -> &PartPlan {
        &self.part
    }

    /// Records which flash cache it uses.
    pub(crate) fn set_cache(&self, cache: Option<CacheInUse>) {
        self.part.forget();
        *locked(&self.cache) = cache;
    }

    /// Why it is used without its flash cache.
    pub(crate) fn cache_problem(&self) -> Option<Problem> {
        locked(&self.cache_problem).clone()
    }

    /// Records that.
    pub(crate) fn set_cache_problem(&self, problem: Option<Problem>) {
        *locked(&self.cache_problem) = problem;
    }

    /// What its flash cache has done, if it has one.
    pub(crate) fn cache_report(&self) -> Option<CacheReport> {
        self.cache()?;
        self.layout()?.cache
    }

    /// Gives it a flash cache, in write-through mode.
    pub(crate) fn begin_cache(&self, flash: host::OpenFlash) -> Outcome<()> {
        self.disk.begin_cache(flash)
    }

    /// Gives a place of its flash cache another device, or none.
    pub(crate) fn set_flash_device(
        &self,
        nth: u8,
        image: Option<OpenedImage>,
    ) -> Outcome<host::OldMember> {
        self.disk.set_flash_device(nth, image)
    }

    /// Takes its flash cache off, which has nothing that the disk does not.
    pub(crate) fn end_cache(&self) -> Outcome<host::OldMember> {
        self.disk.end_cache()
    }

    /// When it was attached.
    pub(crate) fn attached(&self) -> Time {
        self.attached
    }

    /// The engine's identifier of the disk.
    pub(crate) fn key(&self) -> host::Key {
        self.disk.key()
    }

    /// The I/O thread that serves it.
    pub(crate) fn thread(&self) -> u32 {
        self.disk.thread()
    }

    /// Moves it to another I/O thread.
    pub(crate) fn move_to_thread(&self, thread: u32) -> Outcome<tidegate_engine::Moved> {
        self.disk.move_to(thread)
    }

    /// Size in bytes that guests see.
    pub(crate) fn size(&self) -> u64 {
        self.disk.size()
    }

    /// Size of its image in bytes when it was opened.
    pub(crate) fn opened_size(&self) -> u64 {
        self.disk.opened_size()
    }

    /// Its size must be a multiple of this many bytes while it is attached.
    pub(crate) fn size_unit(&self) -> u64 {
        self.disk.size_unit()
    }

    /// Describes how its image is opened.
    pub(crate) fn io(&self) -> &str {
        self.disk.io()
    }

    /// Why it is no longer written to, if another host may have it.
    pub(crate) fn lost(&self) -> Option<String> {
        self.disk.lost()
    }

    /// The worst failure of its image so far, if any.
    pub(crate) fn harm(&self) -> Option<Harm> {
        self.disk.harm()
    }

    /// The worst failure of its image as a problem with a remedy, or else the fault at its image's path.
    pub(crate) fn harmed(&self) -> Option<Problem> {
        self.harmed_image().or_else(|| self.misplaced())
    }

    /// The worst failure of its image as a problem.
    pub(crate) fn harmed_image(&self) -> Option<Problem> {
        let harm = self.harm()?;
        let (what, because) = os_error::harm(harm);
        let name = self.name();
        let problem = Problem::new(ProblemCode::Datastore, format!("disk {name}: {what}"));
        Some(problem.because(because).remedy(format!(
            "check its datastore and detach it: tidegate disk detach {name} --disconnect; then check or restore its \
             data, and attach it again"
        )))
    }

    /// State of its lease.
    pub(crate) fn claim(&self) -> host::LeaseState {
        self.disk.claim()
    }

    /// Its counters now. No other disk is read.
    pub(crate) fn counters(&self) -> Outcome<DiskCounters> {
        Ok(self.counters_of(self.disk.counted()?))
    }

    /// Adds the rest of the disk's counters to these.
    pub(crate) fn counters_of(&self, counted: host::Counted) -> DiskCounters {
        DiskCounters {
            name: self.name.clone(),
            datastore: self.datastore.clone(),
            thread: self.thread(),
            attached: self.attached,
            now: counted.now,
            stats: counted.stats,
            cache: self
                .cache_report()
                .map(|report| [report.hits, report.misses]),
            curve: counted.curve,
        }
    }

    /// Its miss-ratio curves.
    pub(crate) fn curves(&self) -> Outcome<DiskCurves> {
        self.disk.curves()
    }

    /// What the policy of its flash cache has learned. None: it has no cache that is open.
    pub(crate) fn policy_state(&self) -> Outcome<Option<Vec<u8>>> {
        self.disk.policy_state()
    }

    /// Completions in its guests' rings, and interrupts for them.
    pub(crate) fn calls(&self) -> host::Calls {
        self.disk.calls()
    }

    /// Counts of errors in its guests' rings.
    pub(crate) fn rings(&self) -> RingCounts {
        self.disk.rings()
    }

    /// The last ring faults, newest first.
    pub(crate) fn ring_faults(&self) -> Vec<RingFault> {
        self.disk.ring_faults()
    }

    /// State of its upstream connection, if it has one.
    pub(crate) fn upstream(&self) -> Option<UpstreamCounts> {
        self.disk.upstream()
    }

    /// The export information that NBD clients receive.
    pub(crate) fn export_info(&self) -> nbd::ExportInfo {
        self.disk.export_info(self.name.as_str())
    }

    /// Whether an export name that was negotiated with a client is this disk's.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name.as_str() == name
    }

    /// The clients that are connected.
    pub(crate) fn clients(&self) -> Vec<Client> {
        let clients = locked(&self.clients);
        let told = clients
            .connected
            .values()
            .map(|(kind, peer, since)| Client {
                kind: *kind,
                peer: peer.clone(),
                connected_s: since.elapsed().as_secs(),
            });
        told.collect()
    }

    /// Number of connected clients.
    pub(crate) fn client_counts(&self) -> ClientCounts {
        let mut counts = ClientCounts::default();
        for (kind, ..) in locked(&self.clients).connected.values() {
            *match kind {
                ClientKind::VhostUser => &mut counts.vhost_user,
                ClientKind::Nbd => &mut counts.nbd,
                ClientKind::NbdTls => &mut counts.nbd_tls,
            } += 1;
        }
        counts
    }

    /// Passes an NBD client to the disk's I/O thread.
    pub(crate) fn serve_nbd(
        &self,
        socket: OwnedFd,
        negotiated: &nbd::Negotiated,
        kind: ClientKind,
        peer: &str,
        seat: Box<dyn Send>,
    ) -> Outcome<()> {
        let presence = self.enter(kind, peer, Some(seat));
        self.disk.serve_nbd(socket, negotiated, presence)
    }

    /// Serves a virtual machine over the vhost-user protocol. `refused` is called if the disk rejects it.
    pub(crate) fn serve_vhost(
        &self,
        socket: UnixStream,
        peer: &str,
        refused: impl FnOnce(&Problem) + Send + 'static,
    ) -> Outcome<()> {
        let presence = self.enter(ClientKind::VhostUser, peer, None);
        self.disk.serve_vhost(socket, presence, refused)
    }

    /// Accepts virtual machines through this listener.
    pub(crate) fn listen(&self, listener: VhostListener) {
        *locked(&self.listener) = Some(listener);
    }

    /// Stops accepting virtual machines.
    pub(crate) fn close(&self) {
        *locked(&self.listener) = None;
    }

    /// Replaces the filters without losing an I/O.
    pub(crate) fn restack(&self, filters: &Stack) -> Outcome<()> {
        self.disk.restack(filters)
    }

    /// Sets its limits, reservation and shares on its datastore.
    pub(crate) fn set_policy(&self, policy: &Policy) -> Outcome<()> {
        self.disk.set_policy(policy)
    }

    /// Sets how its I/O thread serves it.
    pub(crate) fn set_io(&self, io: IoSettings) -> Outcome<()> {
        self.disk.set_io(io)
    }

    /// Changes its size and notifies the guests.
    pub(crate) fn resize(&self, size: u64) -> Outcome<()> {
        self.disk.resize(size)
    }

    /// Waits for the I/O in flight, flushes, and closes the image. Without `at_most` there is no time limit.
    pub(crate) fn detach(&self, at_most: Option<Duration>) -> Outcome<()> {
        self.close();
        self.disk.detach(at_most)
    }

    fn enter(&self, kind: ClientKind, peer: &str, seat: Option<Box<dyn Send>>) -> Presence {
        let mut clients = locked(&self.clients);
        clients.last += 1;
        let number = clients.last;
        clients
            .connected
            .insert(number, (kind, peer.to_owned(), Instant::now()));
        Presence {
            clients: Arc::clone(&self.clients),
            number,
            _seat: seat,
        }
    }
}

impl DiskOnPool for Attached {
    fn order(&self, order: LayoutOrder, patience: Duration) -> Outcome<()> {
        self.disk.order_within(order, patience)
    }

    fn add_columns(&self, images: Vec<Option<host::Opened>>) -> Outcome<()> {
        images
            .into_iter()
            .try_for_each(|image| self.disk.add_column(image))
    }
}

/// Every attached disk, by name.
#[derive(Default)]
pub(crate) struct AttachedDisks {
    table: RwLock<BTreeMap<Name, Arc<Attached>>>,
    /// The disk for a client that names none. It is set only where a single disk is served without state, so the choice
    /// is clear.
    default: Option<Name>,
    refused: AtomicU64,
    come: Notify,
    /// Of snapshots, where there can be any.
    views: OnceLock<Arc<Views>>,
}

impl AttachedDisks {
    /// A table with a disk for clients that name none.
    pub(crate) fn with_default(name: Name) -> AttachedDisks {
        AttachedDisks {
            default: Some(name),
            ..AttachedDisks::default()
        }
    }

    /// The disk of that name.
    pub(crate) fn get(&self, name: &Name) -> Option<Arc<Attached>> {
        self.table().get(name).cloned()
    }

    /// The disk of that name, or an error if it is not attached.
    pub(crate) fn must_have(&self, name: &Name) -> Outcome<Arc<Attached>> {
        self.get(name).ok_or_else(|| not_attached(name))
    }

    /// The disk that an NBD client requests.
    pub(crate) fn export(&self, name: &str) -> Option<Arc<Attached>> {
        // The path of a URI begins with a slash, and some clients send it as part of the name. No disk's name has a
        // slash.
        let name = name.strip_prefix('/').unwrap_or(name);
        match (&self.default, name) {
            (Some(default), "") => self.get(default),
            _ => self.table().get(name).cloned(),
        }
    }

    /// The views of snapshots, where there can be any.
    pub(crate) fn views(&self) -> Option<Arc<Views>> {
        self.views.get().cloned()
    }

    /// Offers views of snapshots, once.
    pub(crate) fn offer(&self, views: Arc<Views>) {
        // A second offer would be of the same snapshots.
        let _ = self.views.set(views);
    }

    /// All names, in order.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.table().keys().cloned().collect()
    }

    /// All disks, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Arc<Attached>> {
        self.table().values().cloned().collect()
    }

    /// Adds a disk to the table.
    pub(crate) fn insert(&self, live: Arc<Attached>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(live.name().clone(), live);
        drop(table);
        self.come.notify_waiters();
    }

    /// Completes when another disk is attached after this call.
    pub(crate) fn another_comes(&self) -> impl Future<Output = ()> {
        self.come.notified()
    }

    /// Waits until a disk is attached.
    pub(crate) async fn one_is_attached(&self) {
        loop {
            // Requested first: a disk that is attached between the two checks is then noticed.
            let come = self.come.notified();
            if !self.table().is_empty() {
                return;
            }
            come.await;
        }
    }

    /// Removes a disk from the table. Returns whether it was there.
    pub(crate) fn remove(&self, name: &Name) -> bool {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(name).is_some()
    }

    /// Counts an NBD client that was refused, or that disconnected before it had a disk.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Number of refused NBD clients.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn table(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Name, Arc<Attached>>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for a disk that is not attached.
pub(crate) fn not_attached(name: &Name) -> Problem {
    Problem::new(
        ProblemCode::NotFound,
        format!("disk {name} is not attached"),
    )
    .remedy(format!("attach it: tidegate disk attach {name}"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change to a table is complete, so another thread's panic leaves no partial state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
