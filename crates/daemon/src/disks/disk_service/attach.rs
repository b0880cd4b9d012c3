//! Attaches and detaches disks.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tidegate_api::cache::Dirty;
use tidegate_api::disk as api;
use tidegate_api::events::Happening;
use tidegate_api::iocontrol::{Admission, Promise};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::{LayoutOptions, UnderControl};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::claims::{self, Claim};
use super::flash::Using;
use super::members::{OpenMembers, Opening};
use super::policy;
use super::{DiskService, locked, unreadable};
use crate::config::plan;
use crate::disks::attached::vhost_listener::VhostListener;
use crate::disks::attached::{Attached, Standing};
use crate::os_error::limits;
use crate::os_error::{self, Outcome};
use crate::store::Found;

/// How long a detach waits for the disk's I/O in flight: longer than a working datastore needs for a full queue of
/// I/Os.
pub(crate) const PARTING: Duration = Duration::from_secs(10);

/// How often a disk may change while it is being opened: more often than any administrator changes it.
const OPENINGS: usize = 5;

impl DiskService {
    /// Attaches a disk, and stores that it is to be attached at every start.
    pub(crate) fn attach(&self, name: &Name, order: api::DiskAttach) -> Outcome<api::Disk> {
        let claim = self.claim(name, format!("cannot attach disk {name}"))?;
        self.attach_claimed(&claim, order)
    }

    /// Attaches a disk that the command has already claimed.
    pub(super) fn attach_claimed(
        &self,
        claim: &Claim,
        order: api::DiskAttach,
    ) -> Outcome<api::Disk> {
        let name = claim.name();
        let mut found = self.find(name)?;
        // Until the disk's datastore is stored, only this shows that the datastore is in use.
        claim.keep(&found.datastore);
        let live = self.live.get(name);
        let brought_up = live.is_none();
        if let Some(live) = live {
            must_be_accessed_so(&live, &found, order.access)?;
        } else {
            found = self
                .bring_up(found, &order, claim)
                .map_err(|problem| problem.within(format!("cannot attach disk {name}")))?;
        }
        let remembered = self.remember(|disks| {
            disks.insert(name.clone(), found.datastore.clone());
        });
        // The disk is served now. If it would not be attached after a restart, that is an error, but no reason to
        // detach it.
        remembered?;
        if brought_up {
            self.remember_access(name, order.access)?;
        }
        locked(&self.troubles).remove(name);
        if let Some(live) = self.live.get(name).filter(|_| brought_up) {
            self.sweep_generations(&found, &live);
        }
        self.count_snapshots(&found);
        Ok(self.describe(&found, true))
    }

    /// Attaches the disks that are wanted at every start. If one cannot be attached, its problem is recorded.
    pub(crate) fn attach_remembered(&self) -> Outcome<usize> {
        let mut by_datastore: BTreeMap<Name, Vec<Name>> = BTreeMap::new();
        for (name, on) in self.store.attached()? {
            by_datastore.entry(on).or_default().push(name);
        }
        let runtime = Handle::current();
        let attach = |names: &[Name]| {
            // Their sockets are registered with this runtime.
            let _context = runtime.enter();
            let attached = names.iter().filter(|name| self.attach_again(name));
            attached.count()
        };
        // In parallel: a datastore that does not respond must not use up the others' time.
        Ok(std::thread::scope(|scope| {
            let coming: Vec<_> = by_datastore
                .values()
                .map(|names| scope.spawn(|| attach(names)))
                .collect();
            let attached = coming.into_iter().map(|those| those.join());
            attached
                .map(|those| those.unwrap_or_else(|panic| resume_unwind(panic)))
                .sum()
        }))
    }

    /// Attaches a wanted disk. Returns whether it is attached now.
    fn attach_again(&self, name: &Name) -> bool {
        match self.attach(name, self.remembered_order(name)) {
            Ok(_) => true,
            Err(problem) => {
                tracing::error!(disk = %name, %problem, "a disk could not be attached");
                locked(&self.troubles).insert(name.clone(), problem);
                false
            }
        }
    }

    /// Detaches a disk, and no longer attaches it at the next start.
    pub(crate) fn detach(
        &self,
        name: &Name,
        order: impl Into<api::DiskDetach>,
    ) -> Outcome<api::Disk> {
        let order = order.into();
        let what = format!("cannot detach disk {name}");
        let was_on = self.claims.wait_for_detach(name, self.parting)?;
        let claim = self.claim(name, &what)?;
        let live = self.live.get(name);
        let on = match &live {
            Some(live) => Some(live.datastore().clone()),
            None => self.store.attached()?.remove(name).or(was_on),
        };
        let Some(on) = on else {
            // There is nothing to do, provided that the disk exists.
            let found = self.search(name)?;
            locked(&self.troubles).remove(name);
            return Ok(self.describe(&found, false));
        };
        let mut ended = Ok(());
        if let Some(live) = live {
            let connected = live.clients();
            if order.clients == api::Clients::Keep && !connected.is_empty() {
                let who: Vec<_> = connected.iter().map(|client| client.peer.clone()).collect();
                return Err(Problem::new(ProblemCode::Busy, what)
                    .because(format!("it is in use by {}", who.join(", ")))
                    .remedy(format!(
                        "disconnect them first (unplug it in the guest), or add --disconnect: tidegate disk detach {name} --disconnect"
                    )));
            }
            if order.dirty != Dirty::Keep && live.cache().is_some() {
                let found = self.find(name).map_err(|e| e.within(&what))?;
                self.save_dirty(&found, &live)
                    .map_err(|e| e.within(&what))?;
            }
            ended = self.take_down(&live, Some(claim.clone()));
        }
        // Also if the detach is still in progress: the command is valid, and the next start must not attach the disk.
        self.remember(|disks| {
            disks.remove(name);
        })?;
        locked(&self.troubles).remove(name);
        ended?;
        // Read last: a disk is detached even if it is missing, unreadable, or on a datastore that hangs.
        Ok(match self.find_from(name, &on) {
            Ok(found) => self.describe(&found, false),
            Err(problem) => unreadable(name, &on, false, problem),
        })
    }

    /// Detaches all disks and stops the engine, when the daemon ends. Reports how many disks did not detach cleanly.
    pub(crate) fn end(self: &Arc<DiskService>) -> Outcome<oneshot::Receiver<usize>> {
        let (tell, told) = oneshot::channel();
        let disk_service = Arc::clone(self);
        let end = move || {
            let hasty = disk_service.detach_all();
            disk_service.host.stop();
            disk_service.leases.end();
            disk_service.grants.end();
            disk_service.pools.end();
            // The receiver may have given up and exited.
            let _ = tell.send(hasty);
        };
        // A separate thread: all threads for blocking commands may hang on a datastore by now.
        std::thread::Builder::new()
            .name("ending".to_owned())
            .spawn(end)
            .map_err(|e| os_error::io("cannot detach a disk at the end", &e))?;
        Ok(told)
    }

    /// Detaches every disk. They are attached again at the next start. Returns how many did not detach cleanly.
    pub(super) fn detach_all(&self) -> usize {
        let until = Instant::now() + self.parting;
        // In parallel: a datastore that hangs must not use up the others' time.
        let live = self.live.all();
        let end = |live: &Arc<Attached>| {
            // A disk is detached even if another command works on it.
            let claim = self.claim(live.name(), "").ok();
            let held = claim.is_some();
            match self.take_down(live, claim) {
                Ok(()) => 0,
                Err(problem) => {
                    tracing::error!(disk = %live.name(), %problem, "a disk did not detach cleanly");
                    // A disk that is still claimed is counted below.
                    usize::from(!held)
                }
            }
        };
        let hasty: usize = std::thread::scope(|scope| {
            let ending: Vec<_> = live
                .iter()
                .map(|live| scope.spawn(move || end(live)))
                .collect();
            ending.into_iter().map(|end| end.join().unwrap_or(1)).sum()
        });
        hasty + self.claims.wait_for_all_detaches(until)
    }

    /// Returns the disk as it was when it was attached.
    fn bring_up(&self, found: Found, order: &api::DiskAttach, claim: &Claim) -> Outcome<Found> {
        limits::must_have_room(&format!("cannot attach disk {}", found.name))?;
        let (mut whole, members) = self.open_as_it_stands(found, order)?;
        let (flash, without) = self.plan_flash(&mut whole, order)?;
        let trusted = self.trusted(&whole)?;
        let found = &trusted.found;
        let mut plan = plan::disk(found)?;
        let images = members.images();
        let notices = self.notices.sink(&found.name);
        let (pool, pooled) = match members.pooled {
            Some(open) => (Some(open.disk), open.place),
            None => (None, None),
        };
        plan.layout_options = LayoutOptions {
            without: given_up(order, &plan)?,
            notices: Some(match &pooled {
                Some(place) => place.sink(notices),
                None => notices,
            }),
            pool,
            ..plan.layout_options
        };
        // Each member is under its datastore's control. The disk's limits are under that of its own datastore, or if that is
        // away, of the first member.
        let mut there = members.found.iter().map(|(_, member)| member);
        let own = there.clone().find(|m| m.datastore == found.datastore);
        let under = own.or(there.next()).unwrap_or(found);
        let record = self.store.record(&under.datastore)?;
        let in_use = self.controls.enter(
            &self.host,
            &under.datastore,
            &under.settings,
            &record.io_control,
        )?;
        let under = UnderControl {
            control: in_use.control().clone(),
            key: plan::policy::key(found.descriptor.uuid),
            policy: self.policy(&found.descriptor)?,
        };
        let mut admission = policy::judge(&under.control, under.key, &under.policy)?;
        for other in &members.uses {
            let there = policy::judge(other.in_use.control(), under.key, &under.policy)?;
            admission = policy::weaker(admission, there);
        }
        let (flash, begun) = flash.map(Using::split).unzip();
        let disk = self
            .host
            .attach_members(&plan, members.opened, Some(under), flash)?;
        in_use.has_come();
        for other in &members.uses {
            other.in_use.has_come();
        }
        let live = Attached::new(found.name.clone(), found.datastore.clone(), disk);
        if let Some(Admission {
            promise: Promise::BestEffort,
            why,
        }) = &admission
        {
            tracing::warn!(disk = %found.name, why, "its reservation is not guaranteed (best effort)");
        }
        live.stand(Standing {
            descriptor: found.descriptor.clone(),
            path: found.followed_file(),
            // The content may be outdated by now: the first check reads it again.
            stamp: None,
            admission,
            images,
            astray: Vec::new(),
            in_use: Some(in_use),
            uses: members.uses,
            pooled,
        });
        live.takes_space();
        live.set_cache_problem(without);
        if let Some(begun) = begun
            && let Err(problem) = self.begin_planned(&whole, &live, begun)
        {
            return Err(match self.let_go(&live, Some(claim.clone())) {
                Ok(()) => problem,
                Err(second) => problem.because(second),
            });
        }
        let socket = self.root.disk_socket(&found.name);
        match VhostListener::start(socket, &live) {
            Ok(listener) => live.listen(listener),
            Err(problem) => {
                return Err(match self.let_go(&live, Some(claim.clone())) {
                    Ok(()) => problem,
                    Err(second) => problem.because(second),
                });
            }
        }
        if let Err(problem) = self.finish_move(&whole) {
            tracing::warn!(disk = %whole.name, %problem, "what a finished move left is not deleted yet");
        }
        self.live.insert(Arc::clone(&live));
        self.fit_part(claim, &live);
        self.notices.note_degraded();
        self.notices.note_cache();
        self.tell_given_up(&whole, order);
        self.write_copies(&whole);
        tracing::info!(disk = %found.name, datastore = %found.datastore, io = live.io(), "attached");
        Ok(whole)
    }

    /// An event for each member without which the disk was attached by command.
    fn tell_given_up(&self, disk: &Found, order: &api::DiskAttach) {
        for member in &order.without {
            let places = &disk.descriptor.members;
            let on = places
                .get(usize::from(*member))
                .map(|place| &place.datastore);
            let given_up = Happening::MemberGivenUp {
                disk: disk.name.clone(),
                member: *member,
            };
            self.notices
                .add_member(&disk.name, on.unwrap_or(&disk.datastore), given_up);
        }
    }

    /// Opens a disk's images, exclusively or shared with other readers, as its descriptor says once the lock is granted.
    /// During the wait, the owner of the lock may change the disk.
    fn open_as_it_stands(
        &self,
        mut found: Found,
        order: &api::DiskAttach,
    ) -> Outcome<(Found, OpenMembers)> {
        if order.outside == api::Outside::Accept {
            self.accept(&found, order.accepted_paths.as_deref())?;
        }
        let only_read = order.access == api::Access::ReadOnly;
        for _ in 0..OPENINGS {
            self.must_be_itself(&found)?;
            let is_borrowed = only_read && !found.descriptor.read_only;
            found.descriptor.read_only |= only_read;
            self.must_be_agreed(&found)?;
            self.must_not_share_bytes(&found)?;
            let opening = Opening { order, is_borrowed };
            let members = self.open_members(&found, &opening)?;
            let mut now = self.store.reread(&found)?;
            now.descriptor.read_only |= is_borrowed;
            if now.descriptor == found.descriptor {
                return Ok((found, members));
            }
            found = now;
        }
        let what = format!("cannot open disk {}", found.name);
        Err(Problem::new(ProblemCode::Busy, what)
            .because("another program keeps changing it")
            .remedy("try again when that has ended"))
    }

    /// Detaches a disk.
    pub(super) fn take_down(&self, live: &Arc<Attached>, claim: Option<Claim>) -> Outcome<()> {
        // First no new clients are accepted, then the existing ones are disconnected.
        if !self.live.remove(live.name()) {
            // Another command is detaching it.
            return Ok(());
        }
        self.count_use(live);
        self.store_policy(live);
        self.let_go(live, claim)
    }

    /// Tells the engine to close a disk, and waits for that. If this takes too long, it gives up waiting. Even then the
    /// disk's name stays taken, and its datastore in use, until the engine has closed the disk.
    fn let_go(&self, live: &Arc<Attached>, claim: Option<Claim>) -> Outcome<()> {
        live.close();
        if let Some(claim) = &claim {
            claim.keep(live.datastore());
            claim.detach_begins();
        }
        let (tell, told) = mpsc::channel();
        let (leaving, held) = (Arc::clone(live), claim.clone());
        let end = move || {
            let ended = detach(&leaving);
            drop(held);
            // The caller may have given up waiting.
            let _ = tell.send(ended);
        };
        let thread = format!("detach-{}", live.name());
        if std::thread::Builder::new().name(thread).spawn(end).is_err() {
            // The system has no thread left. Nothing has happened yet, so it is done here, however long it takes.
            return detach(live);
        }
        match told.recv_timeout(self.parting) {
            Ok(ended) => ended,
            // The thread always sends a result, unless it has died.
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(disk = %live.name(), datastore = %live.datastore(), "the disk is still being \
                     detached: I/O in flight has not ended");
                if let Some(claim) = &claim {
                    claim.detach_is_overdue();
                }
                Err(claims::overdue(live.name(), Some(live.datastore())))
            }
        }
    }

    /// The options with which a wanted disk is attached.
    pub(super) fn remembered_order(&self, name: &Name) -> api::DiskAttach {
        let read_only = self.store.attached_read_only().unwrap_or_default();
        let access = match read_only.contains(name) {
            true => api::Access::ReadOnly,
            false => api::Access::AsSet,
        };
        api::DiskAttach {
            access,
            ..Default::default()
        }
    }

    fn remember_access(&self, name: &Name, access: api::Access) -> Outcome<()> {
        let _one_at_a_time = locked(&self.attached_file);
        self.store
            .set_attached_read_only(name, access == api::Access::ReadOnly)
    }

    pub(super) fn remember(&self, change: impl FnOnce(&mut BTreeMap<Name, Name>)) -> Outcome<()> {
        let _one_at_a_time = locked(&self.attached_file);
        let before = self.store.attached()?;
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        self.store.set_attached(after)
    }
}

/// The members that a command gives up, one bit each.
fn given_up(order: &api::DiskAttach, disk: &plan::DiskPlan) -> Outcome<u32> {
    let (spec, members) = (disk.layout, disk.members.len());
    if !order.without.is_empty() && !spec.is_redundant() {
        return Err(Problem::new(
            ProblemCode::Unsupported,
            format!("its layout is {spec}: it cannot go on without a member"),
        )
        .remedy("leave --without out"));
    }
    let mut without: u32 = 0;
    for member in &order.without {
        if usize::from(*member) >= members {
            return Err(
                os_error::invalid(format!("there is no member {member} to give up"))
                    .because(format!("the disk has {members} members, from 0 on"))
                    .remedy("name another one (see `tidegate disk show`)"),
            );
        }
        without |= 1 << member;
    }
    if members > 0 && without.count_ones() as usize == members {
        return Err(os_error::invalid("no member would be left")
            .remedy("keep one that has the data that you need (see `tidegate disk show`)"));
    }
    Ok(without)
}

/// Fails if a disk is attached read-only and the command requests write access, or the reverse.
fn must_be_accessed_so(live: &Attached, found: &Found, access: api::Access) -> Outcome<()> {
    let only_read = access == api::Access::ReadOnly;
    let (how, remedy) = match (live.is_read_only(), only_read) {
        (false, true) => (
            "for writing",
            "detach it first, then attach it with --read-only",
        ),
        (true, false) if !found.descriptor.read_only => (
            "read-only",
            "detach it first, then attach it without --read-only",
        ),
        _ => return Ok(()),
    };
    let name = &found.name;
    Err(Problem::new(ProblemCode::Busy, format!("disk {name} is attached {how}")).remedy(remedy))
}

/// Waits until the engine has closed a disk, however long that takes, then ends its use of its datastore.
fn detach(live: &Attached) -> Outcome<()> {
    let ended = live.detach(None);
    live.leave_datastore();
    tracing::info!(disk = %live.name(), "detached");
    ended
}
