//! Executes commands on disks and datastores: stored state and attached disks change together, and only here.
//!
//! REST and the daemon's start call it, on threads that may block. The store reads and writes the stored state, the
//! host manages the attached disks; the disk_service makes both agree.
//!
//! # Always true
//! - At most one command at a time works on a disk; another is refused and does not wait ([`claims`]).
//! - The name of a detached disk stays taken until the engine has closed the disk.
//! - If a wanted disk cannot be attached, the reason is stored until it is attached or no longer wanted.
//! - When a command fails, its partial changes are undone, and the error says if that failed too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk as api;
use tidegate_api::io::IO_WEIGHT;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use crate::caches::Caches;
use crate::config::plan;
use crate::config::root::Root;
use crate::control::Controls;
use crate::disks::attached::{Attached, AttachedDisks};
use crate::disks::counters::{AttachedMoment, SnapshotCounts};
use crate::disks::jobs::Jobs;
use crate::disks::notices::Notices;
use crate::disks::snippet;
use crate::disks::upstream_exports::UpstreamExports;
use crate::files;
use crate::host::Host;
use crate::os_error::Outcome;
use crate::pools::Pools;
use crate::pools::grants::Grants;
use crate::store::{self, Catalogs, Found, Store};
use claims::{Claim, Claims};
use queue::OneAtATime;

mod attach;
mod attach_retry;
mod away;
mod backups;
pub(crate) mod caches;
mod change;
mod claims;
mod datastore_paths;
mod datastores;
mod degraded;
mod displaced;
mod flash;
mod groups;
mod grow;
mod images;
mod layouts;
mod leases;
mod member_return;
mod members;
mod orders;
mod outdated;
mod path_allowlist;
mod policy;
mod pooled;
mod pools;
mod queue;
mod relocate;
mod remote_changes;
mod replace_home;
mod restore;
mod snapshots;
mod threads;
mod timed_scan;
mod transfer;
mod views;

pub(crate) use attach::PARTING;
pub(crate) use attach_retry::attach_missing;
pub(crate) use caches::mind_caches;
pub(crate) use flash::{divide_caches, keep_budgets, look_for_flash, store_policies};
pub(crate) use member_return::return_members;

/// See the module.
pub(crate) struct DiskService {
    root: Root,
    store: Store,
    host: Host,
    live: Arc<AttachedDisks>,
    /// The governors of datastores.
    controls: Controls,
    leases: leases::DiskLeases,
    caches: Caches,
    pools: Arc<Pools>,
    /// What gives disks on pools their space.
    grants: Grants,
    /// Caches with free chunks for a disk that could not have them when they came free.
    spread_later: Mutex<BTreeSet<Name>>,
    group_numbers: Mutex<groups::Numbers>,
    jobs: Arc<Jobs>,
    /// Scans of all disks of a datastore.
    surveys: timed_scan::TimedScan,
    /// Lookups of a single disk, which do not wait for a scan of all disks.
    looks: timed_scan::TimedScan,
    /// The Unix socket of the NBD server, for URIs, if it has one.
    nbd_socket: Option<PathBuf>,
    /// The exports of NBD servers that attached disks use.
    exports: UpstreamExports,
    claims: Arc<Claims>,
    notices: Arc<Notices>,
    /// When absent members may be tried again.
    returns: Mutex<member_return::Returns>,
    /// How long a detach waits before it gives up: [`PARTING`], except in tests.
    parting: Duration,
    /// The reasons why wanted disks are not attached.
    troubles: Mutex<BTreeMap<Name, Problem>>,
    /// The snapshots of disks, for callers that do not wait for a datastore.
    snapshot_counts: Mutex<BTreeMap<Name, SnapshotCounts>>,
    /// Datastores whose missing disks are being retried.
    tried: Mutex<BTreeSet<Name>>,
    /// Serialises changes of the list of attached disks, which is one file.
    attached_file: Mutex<()>,
    /// The same for the list of allowed paths.
    agreed_file: Mutex<()>,
    /// Serialises the adding of datastores.
    adding: OneAtATime,
}

impl DiskService {
    /// Manages a root's disks on a host.
    pub(crate) fn new(
        root: Root,
        store: Store,
        host: Host,
        live: Arc<AttachedDisks>,
        controls: Controls,
        nbd_socket: Option<PathBuf>,
    ) -> DiskService {
        let jobs = Arc::new(Jobs::open(root.state().join("jobs.toml")));
        let caches = Caches::new(&root.state());
        let pools = Arc::new(Pools::new(&root.state(), controls.host().clone()));
        let notices = Arc::<Notices>::default();
        pools.on_alarm(pools::alarms(Arc::clone(&notices)));
        let catalogs: Arc<dyn Catalogs> = Arc::<Pools>::clone(&pools);
        let store = store.with_catalogs(catalogs);
        DiskService {
            root,
            store,
            host,
            live,
            leases: leases::DiskLeases::new(controls.host().clone()),
            caches,
            pools,
            grants: Grants::default(),
            spread_later: Mutex::default(),
            controls,
            group_numbers: Mutex::default(),
            jobs,
            surveys: timed_scan::TimedScan::default(),
            looks: timed_scan::TimedScan::default(),
            nbd_socket,
            exports: UpstreamExports::default(),
            claims: Arc::default(),
            notices,
            returns: Mutex::default(),
            parting: PARTING,
            troubles: Mutex::default(),
            snapshot_counts: Mutex::default(),
            tried: Mutex::default(),
            attached_file: Mutex::default(),
            agreed_file: Mutex::default(),
            adding: OneAtATime::default(),
        }
    }

    /// The root that it manages.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The attached disks.
    pub(crate) fn live(&self) -> &Arc<AttachedDisks> {
        &self.live
    }

    /// The governors that run now.
    pub(crate) fn controls(&self) -> &Controls {
        &self.controls
    }

    /// What the layouts of attached disks report.
    pub(crate) fn notices(&self) -> &Arc<Notices> {
        &self.notices
    }

    /// The jobs.
    pub(crate) fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// The daemon's interface to the engine.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Current problems: wanted disks that are not attached, and attached disks that another host has taken.
    pub(crate) fn troubles(&self) -> Vec<Problem> {
        let mut troubles: Vec<_> = locked(&self.troubles).values().cloned().collect();
        let live = self.live.all();
        troubles.extend(live.iter().filter_map(|live| leases::lost(live)));
        troubles.extend(live.iter().filter_map(|live| live.cache_problem()));
        troubles.extend(self.unreadable_pages());
        troubles.extend(self.caches.astray.all());
        troubles.extend(self.pools.troubles());
        troubles.extend(self.claims.all_overdue());
        troubles
    }

    /// Every disk of every datastore, or of one. A disk that cannot be read is listed with its problem and zeroes.
    pub(crate) fn disks(&self, only: Option<&Name>) -> Outcome<Vec<api::Disk>> {
        let wanted = self.store.attached()?;
        let mut datastores = self.store.datastores()?;
        if let Some(only) = only {
            // A missing or unreadable datastore is an error here.
            let settings = self.store.datastore(only)?;
            datastores = BTreeMap::from([(only.clone(), Ok(settings))]);
        }
        let mut disks = Vec::new();
        let mut away = BTreeMap::new();
        for (datastore, settings) in datastores {
            // Read first: a disk that is attached meanwhile is then in at least one of the two lists.
            let attached = self.attached_on(&datastore);
            match settings.and_then(|settings| self.disks_of(&datastore, settings, &wanted)) {
                Ok(listed) => disks.extend(listed),
                // An unreachable datastore has its own problem; of its disks, only those that the daemon knows or that
                // have a copy of their descriptor elsewhere are listed.
                Err(problem) => {
                    disks.extend(self.held_on(&datastore, &attached, &wanted, &problem));
                    away.insert(datastore, problem);
                }
            }
        }
        self.add_copies(&mut disks, &away);
        if let Some(problem) = only
            .filter(|_| disks.is_empty())
            .and_then(|on| away.remove(on))
        {
            return Err(problem);
        }
        disks.sort_by(|a, b| (&a.name, &a.datastore).cmp(&(&b.name, &b.datastore)));
        Ok(disks)
    }

    fn disks_of(
        &self,
        datastore: &Name,
        settings: DatastoreSettings,
        wanted: &BTreeMap<Name, Name>,
    ) -> Outcome<Vec<api::Disk>> {
        let attached = self.attached_on(datastore);
        let (store, on, of) = (self.store.clone(), datastore.clone(), settings.clone());
        let listed = self.surveys.at(datastore, move || {
            let listed = store.disks(&on, &of)?.into_iter();
            let weigh = |found: Found| (found.allocated(), found);
            let weighed = listed.map(|(name, found)| (name, found.map(weigh)));
            Ok(weighed.collect::<Vec<_>>())
        })?;
        let describe = |(name, found): (Name, Outcome<(Option<u64>, Found)>)| {
            let wanted = wanted.contains_key(&name);
            match found {
                // It is listed where it was moved to.
                Ok((_, found)) if found.descriptor.moved_to.is_some() => None,
                Ok((allocated, found)) => {
                    let outdated = self.outdated(&found);
                    Some(
                        outdated
                            .unwrap_or_else(|| self.describe_weighed(&found, allocated, wanted)),
                    )
                }
                Err(problem) => {
                    let live = attached.iter().find(|live| *live.name() == name);
                    let held = live.and_then(|live| self.held(live, &problem));
                    Some(held.unwrap_or_else(|| unreadable(&name, datastore, wanted, problem)))
                }
            }
        };
        let mut disks = listed.into_iter().filter_map(describe).collect();
        self.add_displaced(&mut disks, &settings, &attached);
        Ok(disks)
    }

    /// The current state of the attached disks, for callers that poll every few seconds. No descriptor is read, and
    /// only the data that they need is produced.
    pub(crate) fn attached_disks(&self) -> Outcome<Vec<AttachedMoment>> {
        let datastores = self.store.datastores()?;
        let mut disks = Vec::new();
        let mut images: BTreeMap<Name, Vec<(usize, PathBuf)>> = BTreeMap::new();
        for live in self.live.all() {
            // Skips a disk that is just being detached, and one whose datastore's record cannot be read.
            let settings = datastores.get(live.datastore());
            let (Some(Ok(_)), Some(disk)) = (settings, self.moment_of(&live)) else {
                continue;
            };
            for image in live.images() {
                let others = images.entry(image.datastore).or_default();
                others.push((disks.len(), image.path));
            }
            disks.push(disk);
        }
        for (datastore, images) in images {
            let weigh = move || {
                let weighed = images.into_iter();
                Ok(weighed
                    .map(|(nth, image)| (nth, store::disks::allocated(&image)))
                    .collect())
            };
            // If a datastore does not respond, its sizes are unknown, but its disks are still listed.
            let weighed: Outcome<Vec<_>> = self.surveys.at(&datastore, weigh);
            for (nth, bytes) in weighed.unwrap_or_default() {
                let disk: &mut AttachedMoment = &mut disks[nth];
                let others = disk.allocated_bytes;
                disk.allocated_bytes = bytes
                    .map(|bytes: u64| bytes + others.unwrap_or(0))
                    .or(others);
            }
        }
        Ok(disks)
    }

    /// Everything that is known about a disk without access to its datastore.
    fn moment_of(&self, live: &Attached) -> Option<AttachedMoment> {
        let policy = live.policy()?;
        let has_problem = live.lost().is_some()
            || live.harm().is_some()
            || live.misplaced().is_some()
            || locked(&self.troubles).contains_key(live.name());
        Some(AttachedMoment {
            name: live.name().clone(),
            datastore: live.datastore().clone(),
            size_bytes: live.size(),
            allocated_bytes: None,
            snapshots: locked(&self.snapshot_counts).get(live.name()).copied(),
            shares: policy.shares.get(),
            reservation_iops: policy.reservation.0,
            limit_iops: policy.limit.map(|limit| limit.0),
            limit_bytes_per_s: policy.limit_bandwidth.map(|rate| rate.0),
            clients: live.client_counts(),
            has_problem,
            rings: live.rings(),
            calls: live.calls(),
            upstream: live.upstream(),
            members: members::moments(live),
            cache: caches::moment(live),
            pool: pooled::moment(live),
        })
    }

    /// One disk. An attached disk is described even if its descriptor cannot be read.
    pub(crate) fn disk(&self, name: &Name) -> Outcome<api::Disk> {
        let found = match self.find(name) {
            Ok(found) => found,
            Err(problem) => return self.held_disk(name, &problem).ok_or(problem),
        };
        let wanted = self.store.attached()?.contains_key(name);
        Ok(self.describe(&found, wanted))
    }

    /// An attached disk. For any other, the error says whether it is being detached, and whether it exists.
    pub(crate) fn must_be_attached(&self, name: &Name) -> Outcome<Arc<Attached>> {
        self.live.must_have(name).or_else(|problem| {
            if let Some(under_way) = self.claims.under_way(name) {
                return Err(under_way);
            }
            self.disk(name)?;
            Err(problem)
        })
    }

    /// Instructions for reaching a disk from a given program.
    pub(crate) fn snippet(&self, name: &Name, r#for: api::SnippetFor) -> Outcome<api::Snippet> {
        // A disk whose descriptor cannot be read is still served.
        let disk = self.disk(name)?;
        let vhost_user = self.root.disk_socket(name);
        let nbd_uri = self.nbd_uri(name).unwrap_or_default();
        let needs_nbd = matches!(r#for, api::SnippetFor::Nbd | api::SnippetFor::Fio);
        if needs_nbd && nbd_uri.is_empty() {
            return Err(Problem::new(
                ProblemCode::Unsupported,
                format!("disk {name} cannot be reached over NBD"),
            )
            .because("the configuration has no Unix socket for NBD clients")
            .remedy("add one to nbd.sockets in the configuration, and restart the daemon"));
        }
        let about = snippet::About {
            name: name.as_str(),
            vhost_user: &vhost_user,
            nbd_uri: &nbd_uri,
            queues: disk.queues,
        };
        Ok(api::Snippet {
            r#for,
            text: snippet::snippet(r#for, about),
        })
    }

    fn nbd_uri(&self, name: &Name) -> Option<String> {
        let socket = self.nbd_socket.as_ref()?;
        Some(snippet::nbd_unix_uri(socket, name.as_str()))
    }

    fn describe(&self, found: &Found, wanted: bool) -> api::Disk {
        self.describe_weighed(found, found.allocated(), wanted)
    }

    /// Like `describe`, for a disk whose allocated size was already read.
    fn describe_weighed(
        &self,
        found: &Found,
        allocated_bytes: Option<u64>,
        wanted: bool,
    ) -> api::Disk {
        let descriptor = &found.descriptor;
        let live = self.live.get(&found.name);
        let attached = live.is_some();
        // The filters in use: changes that others wrote to its descriptor may not all be in effect.
        let standing = live.as_ref().and_then(|live| live.descriptor());
        let filters = standing.map_or_else(|| descriptor.filters.clone(), |held| held.filters);
        let report = live.as_ref().and_then(|live| live.layout());
        let spec = plan::layout::of(descriptor).ok();
        let redundant = spec.filter(|spec| spec.is_redundant()).map(|_| descriptor);
        let lost = live.as_deref().and_then(leases::lost);
        let harmed = live.as_deref().and_then(Attached::harmed);
        let members = self.describe_members(found, live.as_deref(), report.as_ref());
        let pool = self.describe_in_pool(found, live.as_deref());
        api::Disk {
            name: found.name.clone(),
            datastore: found.datastore.clone(),
            uuid: descriptor.uuid.to_string(),
            size_bytes: descriptor.size.0,
            allocated_bytes: members::allocated(&members)
                .or(allocated_bytes)
                .or(pool.as_ref().map(|pool| pool.granted_bytes)),
            block_size_bytes: descriptor.block_size,
            cache: descriptor.cache,
            read_only: match &live {
                Some(live) => live.is_read_only(),
                None => descriptor.read_only,
            },
            serial: descriptor.effective_serial(),
            queues: descriptor.queues,
            seg_max: descriptor.seg_max,
            layout: descriptor
                .layout
                .clone()
                .unwrap_or_else(|| "plain".to_owned()),
            members,
            member_timeout_ms: redundant.map(|d| plan::layout::timeout(d).0 / 1_000_000),
            on_loss: redundant.map(|d| d.on_loss),
            io_class: descriptor.io_class,
            io_weight: descriptor.io_weight.unwrap_or(IO_WEIGHT),
            coalesce: descriptor.coalesce.into(),
            vcpus: descriptor.vcpus.into(),
            scrub: report.as_ref().and_then(members::scrub),
            flash: self.describe_flash(found, live.as_deref()),
            pool,
            filters,
            policy: policy::tell(&descriptor.policy),
            admission: live.as_ref().and_then(|live| live.admission()),
            device: descriptor.device.clone(),
            outside_paths: path_allowlist::paths_of(found),
            wanted,
            attached,
            detaching: self.claims.is_detaching(&found.name),
            thread: live.as_ref().map(|live| live.thread()),
            io: live.as_ref().map(|live| live.io().to_owned()),
            nbd_uri: self.nbd_uri(&found.name).filter(|_| attached),
            vhost_user_socket: attached.then(|| self.root.disk_socket(&found.name)),
            rings: live.as_ref().map(|live| live.rings()),
            ring_faults: live
                .as_ref()
                .map(|live| live.ring_faults())
                .unwrap_or_default(),
            upstream: live.as_ref().and_then(|live| live.upstream()),
            clients: live.map(|live| live.clients()).unwrap_or_default(),
            problem: lost
                .or(harmed)
                .or_else(|| self.claims.overdue(&found.name))
                .or_else(|| locked(&self.troubles).get(&found.name).cloned())
                .or_else(|| away::home_is_away(found).filter(|_| !attached)),
        }
    }

    /// Finds the disk of that name. If the disk is attached or wanted, its datastore is known, and only that is
    /// searched first. So another datastore that hangs does not delay commands on the disk.
    fn find(&self, name: &Name) -> Outcome<Found> {
        let found = match self.live.get(name) {
            Some(live) => {
                let on = live.datastore();
                self.read(name, on, self.store.datastore(on)?)
            }
            // If the list cannot be read, every datastore is searched.
            None => match self.store.attached().unwrap_or_default().get(name) {
                Some(on) => self.find_from(name, on),
                None => {
                    let found = self.search(name);
                    let found = found.or_else(|problem| self.find_copy(name, problem))?;
                    return self.after_move(found).map(|found| self.newest(found));
                }
            },
        };
        let found = match self.live.get(name) {
            None => {
                let found = found.or_else(|problem| self.find_copy(name, problem));
                let found = found.and_then(|found| self.after_move(found));
                found.map(|found| self.newest(found))
            }
            Some(_) => found.and_then(|found| self.after_move(found)),
        };
        found.map_err(|problem| match problem.code {
            ProblemCode::NotFound if self.live.get(name).is_some() => {
                problem.remedy(format!("put it back; {}", self.save_first(name)))
            }
            ProblemCode::NotFound => problem.remedy(format!(
                "restore it, or detach the disk: tidegate disk detach {name}"
            )),
            _ => problem,
        })
    }

    /// Finds a disk that was last known to be on this datastore. Others are searched only if it is no longer there.
    fn find_from(&self, name: &Name, on: &Name) -> Outcome<Found> {
        let Ok(settings) = self.store.datastore(on) else {
            return self.search(name);
        };
        let there = self.lies_on(name, on, &settings);
        match there.map_err(|e| e.within(format!("cannot look for disk {name}")))? {
            true => self.read(name, on, settings),
            false => self.search(name),
        }
    }

    /// Finds the disk of that name on any datastore. A datastore that does not respond counts as unreachable, and does
    /// not delay access to disks on others.
    fn search(&self, name: &Name) -> Outcome<Found> {
        let lies_on = |on: &Name, settings: &DatastoreSettings| self.lies_on(name, on, settings);
        let (on, settings) = self.store.place(name, lies_on)?;
        self.read(name, &on, settings)
    }

    /// What a look at a datastore finds, or false if that does not respond.
    pub(crate) fn within_time(
        &self,
        datastore: &Name,
        look: impl FnOnce() -> bool + Send + 'static,
    ) -> bool {
        self.looks
            .at(datastore, move || Ok(look()))
            .unwrap_or(false)
    }

    fn lies_on(&self, name: &Name, on: &Name, settings: &DatastoreSettings) -> Outcome<bool> {
        let store = self.store.clone();
        let (name, datastore, of) = (name.clone(), on.clone(), settings.clone());
        let look = move || store.has_disk(&datastore, &of, &name);
        self.looks.at(on, look)
    }

    fn read(&self, name: &Name, on: &Name, settings: DatastoreSettings) -> Outcome<Found> {
        let (store, name, datastore) = (self.store.clone(), name.clone(), on.clone());
        let look = move || store.read_disk(&datastore, &settings, &name);
        self.looks.at(on, look)
    }

    /// The disk of that name for a change: no other program on any host changes it while the turn lives.
    fn find_to_change(&self, name: &Name) -> Outcome<(Found, files::Turn)> {
        let found = self.find(name).map_err(|e| self.or_replace_home(name, e))?;
        must_be_home(&found)?;
        self.store.to_change(&found)
    }

    /// Takes the right to work on a disk.
    fn claim(&self, name: &Name, what: impl Into<String>) -> Outcome<Claim> {
        self.claims.claim(name, what).map_err(|problem| {
            let job = self.jobs.at_work_on(name);
            match job.filter(|_| !self.claims.is_detaching(name)) {
                None => problem,
                Some(job) => problem.because(format!("it is job {job}")).remedy(format!(
                    "wait for it (tidegate job watch {job}), or stop it: tidegate job cancel {job}"
                )),
            }
        })
    }
}

/// Fails if a disk was found by a copy of its descriptor, because its datastore is away.
fn must_be_home(found: &Found) -> Outcome<()> {
    let (name, home) = (&found.name, &found.datastore);
    match found.is_copy {
        false => Ok(()),
        true => Err(Problem::new(
            ProblemCode::Datastore,
            format!("disk {name} cannot be changed now"),
        )
        .because(format!(
            "its descriptor on datastore {home} cannot be used"
        ))
        .remedy(format!(
            "mount or repair datastore {home} first (see `tidegate datastore list`); if it is lost for good, attach the disk and \
             replace its first member: tidegate disk member replace {name} 0 --on DATASTORE"
        ))),
    }
}

fn unreadable(name: &Name, datastore: &Name, wanted: bool, problem: Problem) -> api::Disk {
    api::Disk {
        name: name.clone(),
        datastore: datastore.clone(),
        uuid: String::new(),
        size_bytes: 0,
        allocated_bytes: None,
        block_size_bytes: 0,
        cache: Default::default(),
        read_only: false,
        serial: String::new(),
        queues: 0,
        seg_max: 0,
        layout: String::new(),
        members: Vec::new(),
        member_timeout_ms: None,
        on_loss: None,
        io_class: Default::default(),
        io_weight: IO_WEIGHT,
        coalesce: Default::default(),
        vcpus: Default::default(),
        scrub: None,
        flash: None,
        pool: None,
        filters: Vec::new(),
        policy: api::Policy::default(),
        admission: None,
        device: None,
        outside_paths: Vec::new(),
        wanted,
        attached: false,
        detaching: false,
        thread: None,
        io: None,
        nbd_uri: None,
        vhost_user_socket: None,
        clients: Vec::new(),
        rings: None,
        ring_faults: Vec::new(),
        upstream: None,
        problem: Some(problem),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change to these tables is complete, so another thread's panic leaves no partial state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
