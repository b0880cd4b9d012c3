//! The engine's interface to the daemon: I/O threads, and a handle for each attached disk.
//!
//! All calls run on the caller's thread. They may block until the I/O thread answers, which may wait for a datastore to
//! drain. No request passes through here.
//!
//! # Always true
//! - a disk lives on one I/O thread at a time, its home
//! - the rings of one front end at a time run on a disk; those of the next start when everything of the last has ended

use crate::control::{
    self, Accounts, Control, DiskControl, GovernedThread, UnderControl, WeakControl,
};
use crate::counters::Statistics;
use crate::datastore::OpenedImage;
use crate::datastore::condition::Condition;
use crate::disk_spec::{DenseSettings, DiskSpec, Flash};
use crate::error::{Error, Kind, Result};
use crate::monitor::{self, Monitor, Signals};
use crate::sys::os;
use crate::tag;
use crate::thread::commands::{Attach, Command, Inbox, Query, ThreadPulse, ThreadReport};
use crate::thread::peers::Peers;
use crate::thread::{IoThread, ThreadConfig};
use crate::vhost::VhostDevice;
use members::Attaching;
pub use members::OldImage;
use monitored::{Known, Monitored};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use threads::Placement;
pub use threads::ThreadState;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::effect::ControlId;
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::trace::format::TracedDisk;
use tidegate_core::filter::{FilterSpec, MAX_FILTERS};
use tidegate_core::iocontrol::shared::{Groups, GroupsHandle};
use tidegate_core::iocontrol::{GroupId, GroupPolicy, Policy};
use tidegate_core::request::DiskId;
use tidegate_core::stack::Stack;
use tidegate_core::units::Span;

mod caches;
mod disk;
mod members;
mod monitored;
mod pause;
mod side_file;
mod threads;

/// Maximum number of disks: their numbers must fit a tag.
const MOST_DISKS: usize = 1 << tag::DISK_BITS;
/// Maximum number of I/O threads: far more than serve a host well.
const MOST_THREADS: usize = 64;
/// Maximum number of groups: far more than a host needs, at 100 bytes each.
const MOST_GROUPS: usize = 4096;

/// The configuration of the I/O threads.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many threads take disks at the start; at least one.
    pub threads: usize,
    /// How many there may be at most. Those beyond `threads` sleep until they are needed. Fewer than `threads`: as many.
    pub max_threads: usize,
    /// How long an idle thread may poll before it sleeps; zero: not at all.
    pub poll: Span,
    /// Poll that long whenever idle, not only when requests arrive fast enough.
    pub always_poll: bool,
    /// CPUs to pin them to, one per thread, round robin; empty: unpinned.
    pub cpus: Vec<usize>,
    /// Whether the miss-ratio curve of each disk is estimated.
    pub curves: bool,
    /// How completions are coalesced, of disks that have no setting of their own.
    pub coalesce: Coalesce,
    /// How disks and threads change by themselves.
    pub monitor: monitor::Settings,
}

/// The I/O threads of a host.
pub struct Engine {
    /// Ends before the threads that it watches.
    monitor: Option<Monitor>,
    /// Which threads take disks, and how to reach them.
    placement: Arc<Placement>,
    joins: Vec<JoinHandle<()>>,
    /// Disk numbers in use.
    disks: Arc<Mutex<Vec<bool>>>,
    /// Numbers of controls in use.
    controls: Arc<Mutex<Vec<bool>>>,
    weak_controls: Mutex<Vec<WeakControl>>,
    groups: GroupsHandle,
    /// Used-up limits of detached disks.
    accounts: Arc<Accounts>,
    /// Whether the miss-ratio curve of each disk is estimated.
    curves: bool,
    statistics: Statistics,
    /// The attached disks, for the monitor.
    known: Known,
    signals: Arc<Signals>,
}

/// An attached disk. Clones name the same one.
#[derive(Clone)]
pub struct Disk {
    pub(crate) core: Arc<DiskCore>,
}

/// Pending answers of I/O threads: waiting for them does not need the engine.
#[must_use]
pub struct Answers<T>(Vec<Receiver<T>>);

impl<T> Answers<T> {
    /// Waits for all of them; returns one for each I/O thread, in order.
    ///
    /// # Errors
    /// If a thread has ended.
    pub fn wait(self) -> Result<Vec<T>> {
        self.0.iter().map(answer).collect()
    }
}

/// What the handles of a disk share.
pub(crate) struct DiskCore {
    /// The disk as front ends see it.
    pub(crate) device: Arc<VhostDevice>,
    /// Which thread serves it.
    placement: Arc<Placement>,
    /// Held while it moves to another thread.
    moving: Mutex<()>,
    /// Of the images of its members, in order.
    conditions: Mutex<Vec<Arc<Condition>>>,
    /// Whether it has a flash cache, whose devices follow the members.
    is_cached: AtomicBool,
    /// Held while the images change, which may wait for I/O in flight.
    changing_images: Mutex<()>,
    /// Whether any of its images is under control.
    controlled: AtomicBool,
    accounts: Arc<Accounts>,
    filters: Mutex<Filters>,
    numbers: Arc<Mutex<Vec<bool>>>,
    statistics: Statistics,
}

struct Filters {
    specs: Vec<(FilterKey, FilterSpec)>,
    next_key: u32,
}

/// Counts of a disk's vhost-user device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceReport {
    /// Malformed chains, each answered with an error.
    pub nonsense: u64,
    /// Queues stopped because of malformed rings.
    pub broken_queues: u64,
    /// Requests of its queues that were answered.
    pub answered: u64,
    /// Interrupts that were sent to its guest for them.
    pub interrupts: u64,
    /// Whether a front end is connected.
    pub connected: bool,
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is valid even if a holder panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts the I/O threads.
    ///
    /// # Errors
    /// If the kernel is too old for the needed io_uring or denies it, or a CPU does not exist.
    pub fn start(settings: &Settings) -> Result<Engine> {
        if settings.threads == 0 {
            return Err(Error::new(
                Kind::Invalid,
                "at least one I/O thread is needed",
            ));
        }
        let failed = |error| Error::io("cannot start an I/O thread", error);
        let most = settings.threads.max(settings.max_threads);
        if most > MOST_THREADS {
            let text = format!("{most} I/O threads: at most {MOST_THREADS} are possible");
            return Err(Error::new(Kind::Invalid, text));
        }
        let peers = Arc::new(Peers::new(most).map_err(failed)?);
        let signals = Arc::new(Signals::default());
        let mut engine = Engine {
            monitor: None,
            known: Known::default(),
            signals: Arc::clone(&signals),
            placement: Arc::new(Placement::new(Arc::clone(&peers), settings.threads)),
            joins: Vec::new(),
            curves: settings.curves,
            disks: Arc::default(),
            controls: Arc::default(),
            weak_controls: Mutex::default(),
            groups: Groups::new(MOST_GROUPS),
            accounts: Arc::default(),
            statistics: Statistics::default(),
        };
        for index in 0..most {
            let cpu =
                (!settings.cpus.is_empty()).then(|| settings.cpus[index % settings.cpus.len()]);
            let config = ThreadConfig {
                poll: settings.poll,
                always_poll: settings.always_poll,
                cpu,
                coalesce: settings.coalesce,
                signals: Arc::clone(&signals),
            };
            // If a thread cannot be started, dropping the engine ends the others.
            let page = engine.statistics.add_thread();
            engine
                .joins
                .push(IoThread::start(Arc::clone(&peers), index, config, page)?);
        }
        let cpus = match settings.cpus.len() {
            0 => (os::usable_cpus().len(), false),
            some => (some, true),
        };
        let monitored = Monitored::new(
            engine.statistics.clone(),
            Arc::clone(&engine.placement),
            Arc::clone(&engine.known),
            Arc::clone(&signals),
            cpus,
        );
        engine.monitor = Some(Monitor::start(settings.monitor, signals, monitored)?);
        Ok(engine)
    }

    /// Attaches a disk of one image to the I/O thread with the fewest disks.
    ///
    /// # Errors
    /// If the disk's settings do not fit its image, or a filter's file cannot be opened.
    pub fn attach(&self, spec: DiskSpec, mut opened: OpenedImage) -> Result<Disk> {
        check_image(&spec, &opened)?;
        if spec.size != opened.info.size {
            opened.image.resized(spec.size);
        }
        self.begin_attach(spec, vec![opened], None)?.finish(None)
    }

    /// Sends a disk to the I/O thread with the fewest.
    fn begin_attach(
        &self,
        mut spec: DiskSpec,
        mut images: Vec<OpenedImage>,
        flash: Option<Flash>,
    ) -> Result<Attaching> {
        check(&spec)?;
        let members = images.len();
        let cache = flash.map(|flash| caches::setup(&spec, flash, &mut images));
        let free = images.len() - members;
        let under = spec.control.take();
        let named: Vec<_> = images
            .iter_mut()
            .map(|image| image.control.take())
            .collect();
        for under in under.iter().chain(named.iter().flatten()) {
            check_control(&self.accounts, &spec.name, under)?;
        }
        let control = DiskControl::new(under, named, free).map(Box::new);
        let keys = (0..).map(FilterKey);
        let known = spec
            .filters
            .iter()
            .map(|filter| with_disk_identity(filter, &spec));
        let specs: Vec<(FilterKey, FilterSpec)> = keys.zip(known).collect();
        let sides = side_file::open_all(&specs)?;
        let id = self.number()?;
        let peers = &self.placement.peers;
        self.placement.place(id);
        let stack = Stack::new(
            specs
                .iter()
                .map(|(key, spec)| (*key, spec.build()))
                .collect(),
        );
        let stack = match self.curves {
            true => stack,
            false => stack.without_curve(),
        };
        let (size, read_only, io) = (spec.size, spec.read_only, spec.io);
        let notices = spec.layout_options.notices.clone();
        let is_cached = AtomicBool::new(cache.is_some());
        let layout = members::parts(&spec, &images[..members], cache);
        let conditions = images[..members].iter();
        let conditions = conditions.map(|opened| Arc::clone(&opened.condition));
        let core = Arc::new(DiskCore {
            conditions: Mutex::new(conditions.collect()),
            is_cached,
            changing_images: Mutex::new(()),
            device: Arc::new(VhostDevice::new(id, spec, Arc::clone(peers))),
            placement: Arc::clone(&self.placement),
            moving: Mutex::new(()),
            controlled: AtomicBool::new(control.is_some()),
            accounts: Arc::clone(&self.accounts),
            filters: Mutex::new(Filters {
                next_key: u32::try_from(specs.len()).unwrap_or(u32::MAX),
                specs,
            }),
            numbers: Arc::clone(&self.disks),
            statistics: self.statistics.clone(),
        });
        guard(&self.known).insert(id, Arc::downgrade(&core));
        self.statistics.add_disk(id, &core.device.facts.counters);
        let (opened, answer) = channel();
        let attach = Attach {
            disk: id,
            size,
            read_only,
            stack,
            sides,
            images,
            layout,
            notices,
            io,
            control,
            opened,
        };
        if let Err(error) = core.order(Command::Attach(Box::new(attach))) {
            core.give_back()();
            return Err(error);
        }
        Ok(Attaching {
            disk: Disk { core },
            answer,
        })
    }

    /// Starts to control a datastore: its disks are then attached with the returned handle.
    ///
    /// # Errors
    /// If its threads cannot be started. A slot file that cannot be used is not an error: see
    /// [`control::Report::trouble`].
    pub fn control(&self, settings: control::Settings) -> Result<Control> {
        let id = ControlId(take_number(&self.controls, MOST_DISKS, "datastores")?);
        let threads = self.inboxes();
        let threads = threads.map(|inbox| Arc::clone(inbox) as Arc<dyn GovernedThread>);
        let numbers = Arc::clone(&self.controls);
        let accounts = Arc::clone(&self.accounts);
        let control = Control::begin(
            id,
            settings,
            threads.collect(),
            &self.groups,
            numbers,
            accounts,
        )?;
        let mut weak_controls = guard(&self.weak_controls);
        weak_controls.retain(|control| !control.is_ended());
        weak_controls.push(control.downgrade());
        Ok(control)
    }

    /// Sets the limits of a group of disks, on all datastores of this host together.
    ///
    /// # Errors
    /// If the policy is invalid, or the group does not exist.
    pub fn set_group(&self, group: GroupId, policy: &GroupPolicy) -> Result<()> {
        check_group(group)?;
        policy
            .check()
            .map_err(|fault| Error::new(Kind::Invalid, fault.to_string()))?;
        self.groups.set(os::now(), group, policy);
        Ok(())
    }

    /// Sets how completions are coalesced, of disks that have no setting of their own.
    ///
    /// # Errors
    /// If a thread does not accept the command.
    pub fn set_coalesce(&self, coalesce: Coalesce) -> Result<()> {
        for inbox in self.inboxes() {
            let sent = inbox.send(Command::DefaultCoalesce(coalesce));
            sent.map_err(|_| {
                Error::new(
                    Kind::Busy,
                    "an I/O thread has too many pending commands; try again",
                )
            })?;
        }
        Ok(())
    }

    /// Allocates a disk number.
    fn number(&self) -> Result<DiskId> {
        take_number(&self.disks, MOST_DISKS, "disks").map(DiskId)
    }

    /// Statistics of each I/O thread and its disks.
    ///
    /// # Errors
    /// If a thread does not answer.
    pub fn threads(&self) -> Result<Vec<ThreadReport>> {
        self.ask_threads()?.wait()
    }

    /// The counters of the I/O threads and their disks, which any thread reads without disturbing them.
    pub fn statistics(&self) -> Statistics {
        self.statistics.clone()
    }

    /// Begins dense mode with these details, or ends it. Each thread is woken once, if it sleeps.
    ///
    /// # Errors
    /// If a thread does not accept the command.
    pub fn set_dense(&self, dense: Option<DenseSettings>) -> Result<()> {
        self.signals.set_dense(dense.is_some());
        let send = |inbox: &Arc<Inbox>| inbox.send(Command::Dense(dense)).map_err(|_| gone());
        let sent = self.inboxes().map(send);
        sent.fold(Ok(()), Result::and)
    }

    /// What moves disks between the I/O threads, and changes their number.
    pub fn monitor(&self) -> Option<&Monitor> {
        self.monitor.as_ref()
    }

    /// Requests those statistics. A thread takes one turn for each disk with a `stats` filter, and serves guests
    /// between them.
    ///
    /// # Errors
    /// If a thread does not accept the query.
    pub fn ask_threads(&self) -> Result<Answers<ThreadReport>> {
        self.query_all(Query::report)
    }

    /// Requests the sums of each I/O thread and its disks.
    ///
    /// # Errors
    /// If a thread does not accept the query.
    pub fn ask_pulses(&self) -> Result<Answers<ThreadPulse>> {
        self.query_all(Query::pulse)
    }

    fn query_all<T>(&self, query: impl Fn(Sender<T>) -> Query) -> Result<Answers<T>> {
        let sent = self.inboxes().map(|inbox| send_query(inbox, &query));
        sent.collect::<Result<_>>().map(Answers)
    }

    /// The inboxes of the I/O threads, by number.
    fn inboxes(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        let peers = &self.placement.peers;
        (0..peers.count()).map(|thread| peers.inbox(thread))
    }

    /// Ends the I/O threads. Disks that are still attached are dropped: detach them before.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.monitor = None;
        for weak_controls in guard(&self.weak_controls).drain(..) {
            weak_controls.stop();
        }
        for (thread, join) in self.joins.drain(..).enumerate() {
            // A thread that refuses commands has stopped already.
            self.placement
                .peers
                .inbox(thread)
                .send_always(Command::Stop);
            let _ = join.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

/// Allocates the lowest free number.
fn take_number(numbers: &Mutex<Vec<bool>>, most: usize, of: &str) -> Result<u32> {
    let mut numbers = guard(numbers);
    let at = numbers.iter().position(|used| !used).unwrap_or_else(|| {
        numbers.push(false);
        numbers.len() - 1
    });
    if at >= most {
        return Err(Error::new(
            Kind::Invalid,
            format!("one host serves at most {most} {of}"),
        ));
    }
    numbers[at] = true;
    Ok(u32::try_from(at).expect("checked against the limit"))
}

/// Sends a query to an I/O thread.
fn send_query<T>(inbox: &Inbox, query: impl FnOnce(Sender<T>) -> Query) -> Result<Receiver<T>> {
    let (reply, answer) = channel();
    let sent = inbox.send(Command::Query(query(reply)));
    sent.map_err(|_| gone())?;
    Ok(answer)
}

fn gone() -> Error {
    let text = "an I/O thread does not accept commands any more";
    Error::new(Kind::Gone, text)
}

/// Waits for its answer.
fn answer<T>(answer: &Receiver<T>) -> Result<T> {
    answer
        .recv()
        .map_err(|_| Error::new(Kind::Gone, "an I/O thread has ended"))
}

/// Rejects an image that does not fit its disk, or belongs to a disk of several.
fn check_image(spec: &DiskSpec, opened: &OpenedImage) -> Result<()> {
    if !spec.is_one_image() {
        let text = format!(
            "disk {} is not one image: attach all its members",
            spec.name
        );
        return Err(Error::new(Kind::Invalid, text));
    }
    if spec.size > opened.info.size {
        let text = format!(
            "disk {} is to have {} bytes, but its image has only {}: was the image cut?",
            spec.name, spec.size, opened.info.size
        );
        return Err(Error::new(Kind::Invalid, text));
    }
    Ok(())
}

/// Rejects an invalid combination before anything is attached.
fn check(spec: &DiskSpec) -> Result<()> {
    if !matches!(spec.block_size, 512 | 4096) {
        let text = format!(
            "block size {}: only 512 and 4096 bytes exist",
            spec.block_size
        );
        return Err(Error::new(Kind::Invalid, text));
    }
    if spec.queues == 0 || spec.queues > 256 {
        return Err(Error::new(
            Kind::Invalid,
            format!("{} queues: 1 to 256 are possible", spec.queues),
        ));
    }
    check_filters(&spec.filters)
}

/// Rejects the control of another engine, and an invalid policy.
fn check_control(accounts: &Arc<Accounts>, disk: &str, under: &UnderControl) -> Result<()> {
    if under.control.belongs_to(accounts) {
        return check_policy(&under.policy);
    }
    let text = format!("disk {disk}: its I/O control belongs to another engine");
    Err(Error::new(Kind::Invalid, text))
}

/// Rejects a policy whose values are out of range or contradict each other.
fn check_policy(policy: &Policy) -> Result<()> {
    if let Some(group) = policy.group {
        check_group(group)?;
    }
    policy
        .check()
        .map_err(|fault| Error::new(Kind::Invalid, fault.to_string()))
}

fn check_group(group: GroupId) -> Result<()> {
    if group.0 as usize >= MOST_GROUPS {
        let text = format!(
            "group {}: one host has at most {MOST_GROUPS} groups",
            group.0
        );
        return Err(Error::new(Kind::Invalid, text));
    }
    Ok(())
}

fn check_filters(filters: &[FilterSpec]) -> Result<()> {
    if filters.len() > MAX_FILTERS {
        return Err(Error::new(
            Kind::Invalid,
            format!("a disk has at most {MAX_FILTERS} filters"),
        ));
    }
    Ok(())
}

/// Adds to a trace filter the identity of its disk.
fn with_disk_identity(filter: &FilterSpec, disk: &DiskSpec) -> FilterSpec {
    let mut filter = filter.clone();
    if let FilterSpec::Trace(trace) = &mut filter {
        trace.disk = TracedDisk {
            uuid: disk.uuid,
            size: disk.size,
            unix_origin: unix_origin(),
        };
    }
    filter
}

/// The wall clock time at the zero of the monotonic clock, in nanoseconds since 1970; read once, so that it is equal
/// for all disks.
fn unix_origin() -> u64 {
    static ORIGIN: OnceLock<u64> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let wall = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
        wall.saturating_sub(os::now().as_nanos())
    })
}

/// Waits for a command's result.
fn wait(answer: &Receiver<Result<()>>, patience: Option<Duration>) -> Result<()> {
    match patience {
        None => answer
            .recv()
            .unwrap_or_else(|_| Err(Error::new(Kind::Gone, "the disk's I/O thread has ended"))),
        Some(patience) => match answer.recv_timeout(patience) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                let text = format!(
                    "I/O in flight did not end within {patience:?}: is the datastore stuck?"
                );
                Err(Error::new(Kind::TimedOut, text))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::new(Kind::Gone, "the disk's I/O thread has ended"))
            }
        },
    }
}
