//! Attached disks, as those see them who only want to use them: listeners, statistics, metrics.
//!
//! The disk_service puts disks in and takes them out; everybody else looks them up by name. A disk that was taken out lives
//! on until the last who holds it lets go, but serves nobody new.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::{Descriptor, PolicyText};
use tidegate_api::disk::{Client, ClientKind, RingCounts, RingFault, UpstreamCounts};
use tidegate_api::iocontrol::Admission;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::iocontrol::Policy;
use tidegate_core::units::Time;
use tidegate_engine::datastore::condition::Harm;
use tokio::sync::Notify;

use crate::clock;
use crate::config::plan::filters::Stack;
use crate::control::InUse;
use crate::files::Stamp;
use crate::host::{self, nbd};
use crate::store::Identity;
use crate::store::disks;
use vhost_listener::VhostListener;

pub(crate) mod vhost_listener;
use crate::disks::counters::{ClientCounts, DiskCounters};
use crate::disks::upstream_exports::ExportInUse;
use crate::os_error::{self, Outcome};

/// One attached disk.
pub(crate) struct Attached {
    name: Name,
    datastore: Name,
    disk: host::Disk,
    attached: Time,
    listener: Mutex<Option<VhostListener>>,
    clients: Arc<Mutex<Clients>>,
    standing: Mutex<Option<Standing>>,
    settling: Mutex<()>,
}

/// What was said of a disk, as far as it holds now. A disk that is served without a root has none.
pub(crate) struct Standing {
    /// Its descriptor, and where it lies.
    pub(crate) descriptor: Descriptor,
    pub(crate) path: PathBuf,
    /// Which writing of it was read last.
    pub(crate) stamp: Option<Stamp>,
    /// What became of its reservation.
    pub(crate) admission: Option<Admission>,
    /// The image that it has open, if that is a file or a device.
    pub(crate) image: Option<Identity>,
    /// What has become of that at its path.
    pub(crate) astray: Option<Astray>,
    /// Its datastore, until it is detached.
    pub(crate) in_use: Option<InUse>,
    /// Its export, if its datastore is an NBD server, until then.
    pub(crate) export: Option<ExportInUse>,
}

/// What has become of the path of an image that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Astray {
    /// Nothing is there.
    Gone,
    /// Another file is there.
    Replaced,
    /// The datastore's file system is not mounted there.
    Unmounted,
}

/// Who is connected to a disk.
#[derive(Default)]
struct Clients {
    last: u64,
    connected: BTreeMap<u64, (ClientKind, String, Instant)>,
}

/// A client's place in the list, until dropped.
pub(crate) struct Presence {
    clients: Arc<Mutex<Clients>>,
    number: u64,
    /// An NBD client's seat among those that the plan allows, or a part in it.
    _seat: Option<Box<dyn Send>>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        locked(&self.clients).connected.remove(&self.number);
    }
}

impl Attached {
    /// A disk that was attached just now.
    pub(crate) fn new(name: Name, datastore: Name, disk: host::Disk) -> Arc<Attached> {
        Arc::new(Attached {
            name,
            datastore,
            disk,
            attached: clock::now(),
            listener: Mutex::default(),
            clients: Arc::default(),
            standing: Mutex::default(),
            settling: Mutex::default(),
        })
    }

    /// Keeps everybody else from changing, while it is held, what was said of the disk and what holds.
    pub(crate) fn settling(&self) -> MutexGuard<'_, ()> {
        locked(&self.settling)
    }

    /// Notes what was said of it.
    pub(crate) fn stand(&self, standing: Standing) {
        *locked(&self.standing) = Some(standing);
    }

    /// The descriptor that holds now.
    pub(crate) fn descriptor(&self) -> Option<Descriptor> {
        self.standing(|standing| standing.descriptor.clone())
    }

    /// Its policy that holds now.
    pub(crate) fn policy(&self) -> Option<PolicyText> {
        self.standing(|standing| standing.descriptor.policy.clone())
    }

    /// The file that holds its bytes, if there is one on a datastore with these settings.
    pub(crate) fn image_on(&self, settings: &DatastoreSettings) -> Option<PathBuf> {
        let DatastoreSettings::Dir { .. } = settings else {
            return None;
        };
        self.standing(|standing| {
            let folder = standing.path.parent().unwrap_or(&standing.path);
            disks::image_of(&standing.descriptor, folder)
        })
    }

    /// The image that it has open, if that is a file or a device.
    pub(crate) fn image(&self) -> Option<Identity> {
        self.standing(|standing| standing.image).flatten()
    }

    /// Whether nobody can write to it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.disk.is_read_only()
    }

    /// This has become of its image. Answers whether that is news.
    pub(crate) fn goes_astray(&self, astray: Option<Astray>) -> bool {
        let before = self.standing(|standing| std::mem::replace(&mut standing.astray, astray));
        before.is_some_and(|before| before != astray)
    }

    /// What is wrong with the place of its image, with what to do.
    pub(crate) fn misplaced(&self) -> Option<Problem> {
        let astray = self.standing(|standing| standing.astray).flatten()?;
        let name = &self.name;
        let (why, remedy) = match astray {
            Astray::Gone => (
                "its image was removed or renamed: writes go to the unlinked file and are lost when the disk is \
                 detached",
                "if it was renamed, rename it back; otherwise copy the disk over NBD (nbdcopy) before you detach it",
            ),
            Astray::Replaced => (
                "another file has replaced its image: writes go to the old file and are lost when the disk is \
                 detached",
                "if the old file was renamed, rename it back; otherwise copy the disk over NBD (nbdcopy) before you \
                 detach it",
            ),
            Astray::Unmounted => (
                "its datastore is not mounted any more: the disk still uses the open image",
                "mount it again; if another file is there then, that is reported",
            ),
        };
        let what = format!("the image of disk {name} is missing");
        Some(
            Problem::new(ProblemCode::Datastore, what)
                .because(why)
                .remedy(remedy),
        )
    }

    /// Another descriptor holds from now on.
    pub(crate) fn set_descriptor(&self, descriptor: Descriptor) {
        self.standing(|standing| standing.descriptor = descriptor);
    }

    /// What became of its reservation.
    pub(crate) fn admission(&self) -> Option<Admission> {
        self.standing(|standing| standing.admission.clone())
            .flatten()
    }

    /// Something else became of its reservation.
    pub(crate) fn set_admission(&self, admission: Option<Admission>) {
        self.standing(|standing| standing.admission = admission);
    }

    /// Its descriptor's file, and which writing of it was read last.
    pub(crate) fn followed(&self) -> Option<(PathBuf, Option<Stamp>)> {
        self.standing(|standing| (standing.path.clone(), standing.stamp))
    }

    /// This writing of its descriptor was read.
    pub(crate) fn note_stamp(&self, stamp: Option<Stamp>) {
        self.standing(|standing| standing.stamp = stamp);
    }

    /// It was detached: its datastore is not in use by it any more.
    pub(crate) fn leave_datastore(&self) {
        let in_use = self.standing(|standing| (standing.in_use.take(), standing.export.take()));
        // Outside the lock: the last one says farewell to other hosts.
        drop(in_use);
    }

    fn standing<T>(&self, look: impl FnOnce(&mut Standing) -> T) -> Option<T> {
        locked(&self.standing).as_mut().map(look)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// Where it lies.
    pub(crate) fn datastore(&self) -> &Name {
        &self.datastore
    }

    /// When it was attached.
    pub(crate) fn attached(&self) -> Time {
        self.attached
    }

    /// What the engine knows it by.
    pub(crate) fn key(&self) -> host::Key {
        self.disk.key()
    }

    /// The I/O thread that serves it.
    pub(crate) fn thread(&self) -> u32 {
        self.disk.thread()
    }

    /// Bytes that its guests are told.
    pub(crate) fn size(&self) -> u64 {
        self.disk.size()
    }

    /// Bytes that its image had when it was opened.
    pub(crate) fn opened_size(&self) -> u64 {
        self.disk.opened_size()
    }

    /// What its size has to be a multiple of while it is attached, in bytes.
    pub(crate) fn size_unit(&self) -> u64 {
        self.disk.size_unit()
    }

    /// How its image is opened, in words.
    pub(crate) fn io(&self) -> &str {
        self.disk.io()
    }

    /// Why it is not written to any more, if another host may have it.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.disk.lost()
    }

    /// The worst that has befallen its image, if anything has.
    pub(crate) fn harm(&self) -> Option<Harm> {
        self.disk.harm()
    }

    /// The same as a problem, with what to do; or what has become of its image.
    pub(crate) fn harmed(&self) -> Option<Problem> {
        self.harmed_image().or_else(|| self.misplaced())
    }

    /// The worst that has befallen its image, as a problem.
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

    /// How its lease stands.
    pub(crate) fn claim(&self) -> host::LeaseState {
        self.disk.claim()
    }

    /// Its counters at one moment. No other disk is asked for.
    pub(crate) fn counters(&self) -> Outcome<DiskCounters> {
        Ok(self.counters_of(self.disk.counted()?))
    }

    /// These counters of it, with all that belongs to them.
    pub(crate) fn counters_of(&self, counted: host::Counted) -> DiskCounters {
        DiskCounters {
            name: self.name.clone(),
            datastore: self.datastore.clone(),
            thread: self.thread(),
            attached: self.attached,
            now: counted.now,
            stats: counted.stats,
        }
    }

    /// What its guests' rings got wrong.
    pub(crate) fn rings(&self) -> RingCounts {
        self.disk.rings()
    }

    /// The last of it, newest first.
    pub(crate) fn ring_faults(&self) -> Vec<RingFault> {
        self.disk.ring_faults()
    }

    /// How its upstream holds, if it has one.
    pub(crate) fn upstream(&self) -> Option<UpstreamCounts> {
        self.disk.upstream()
    }

    /// What NBD clients are told of it.
    pub(crate) fn export_info(&self) -> nbd::ExportInfo {
        self.disk.export_info(self.name.as_str())
    }

    /// Whether a client that was told this name means this disk.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name.as_str() == name
    }

    /// Who is connected.
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

    /// How many are connected.
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

    /// Hands an NBD client over to the disk's I/O thread.
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

    /// Hands a virtual machine over to the vhost-user protocol.
    /// `refused` is called if it is not taken.
    pub(crate) fn serve_vhost(
        &self,
        socket: UnixStream,
        peer: &str,
        refused: impl FnOnce(&Problem) + Send + 'static,
    ) -> Outcome<()> {
        let presence = self.enter(ClientKind::VhostUser, peer, None);
        self.disk.serve_vhost(socket, presence, refused)
    }

    /// Lets virtual machines in through this listener.
    pub(crate) fn listen(&self, listener: VhostListener) {
        *locked(&self.listener) = Some(listener);
    }

    /// Lets no virtual machine in any more.
    pub(crate) fn close(&self) {
        *locked(&self.listener) = None;
    }

    /// Puts other filters in place, without an I/O lost.
    pub(crate) fn restack(&self, filters: &Stack) -> Outcome<()> {
        self.disk.restack(filters)
    }

    /// What it may and shall get of its datastore from now on.
    pub(crate) fn set_policy(&self, policy: &Policy) -> Outcome<()> {
        self.disk.set_policy(policy)
    }

    /// Gives it another size, which guests are told.
    pub(crate) fn resize(&self, size: u64) -> Outcome<()> {
        self.disk.resize(size)
    }

    /// Ends what is in flight, flushes, and lets the image go. Without `at_most` it waits for as long as that takes.
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

/// Every attached disk, by name.
#[derive(Default)]
pub(crate) struct AttachedDisks {
    table: RwLock<BTreeMap<Name, Arc<Attached>>>,
    /// The disk that a client gets who names none: with one disk and no state there is no doubt.
    default: Option<Name>,
    refused: AtomicU64,
    come: Notify,
}

impl AttachedDisks {
    /// With a disk for clients that name none.
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

    /// The disk of that name, or a clear error.
    pub(crate) fn must_have(&self, name: &Name) -> Outcome<Arc<Attached>> {
        self.get(name).ok_or_else(|| not_attached(name))
    }

    /// The disk that an NBD client means.
    pub(crate) fn export(&self, name: &str) -> Option<Arc<Attached>> {
        // A URI's path begins with a slash, and some clients have it in the name. No disk's name has one.
        let name = name.strip_prefix('/').unwrap_or(name);
        match (&self.default, name) {
            (Some(default), "") => self.get(default),
            _ => self.table().get(name).cloned(),
        }
    }

    /// All names, in order.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.table().keys().cloned().collect()
    }

    /// All disks, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Arc<Attached>> {
        self.table().values().cloned().collect()
    }

    /// Lets a disk be found.
    pub(crate) fn insert(&self, live: Arc<Attached>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(live.name().clone(), live);
        drop(table);
        self.come.notify_waiters();
    }

    /// Ends when another disk is attached after this call.
    pub(crate) fn another_comes(&self) -> impl Future<Output = ()> {
        self.come.notified()
    }

    /// Waits until a disk is attached.
    pub(crate) async fn one_is_attached(&self) {
        loop {
            // Asked for first: one that comes between the two looks is heard of.
            let come = self.come.notified();
            if !self.table().is_empty() {
                return;
            }
            come.await;
        }
    }

    /// Lets it be found no more. Answers whether it was there.
    pub(crate) fn remove(&self, name: &Name) -> bool {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(name).is_some()
    }

    /// An NBD client was turned away, or went before it had a disk.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// How many were.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn table(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Name, Arc<Attached>>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// There is no such disk in service.
pub(crate) fn not_attached(name: &Name) -> Problem {
    Problem::new(
        ProblemCode::NotFound,
        format!("disk {name} is not attached"),
    )
    .remedy(format!("attach it: tidegate disk attach {name}"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each table is whole between any two lines that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
