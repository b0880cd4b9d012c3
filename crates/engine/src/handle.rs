//! The engine's interface to the daemon: I/O threads, and a handle for each attached disk.
//!
//! Everything here runs on the caller's thread and may block for as long as the I/O thread (or a datastore that must
//! drain) takes to answer. No request passes through.
//!
//! # Always true
//! - a disk lives on one I/O thread, its home, from attach to detach
//! - rings of one front end at a time run on a disk; those of the next start when everything of the last has ended

use crate::control::{self, Accounts, Control, GovernedThread, Reins};
use crate::datastore::OpenedImage;
use crate::datastore::condition::Condition;
use crate::disk_spec::DiskSpec;
use crate::error::{Error, Kind, Result};
use crate::sys::os;
use crate::thread::commands::{Attach, Command, Inbox, Question, ThreadPulse, ThreadReport};
use crate::thread::{IoThread, ThreadConfig};
use crate::vhost::VhostDevice;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_core::effect::ControlId;
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::trace::format::TracedDisk;
use tidegate_core::filter::{FilterSpec, MAX_FILTERS};
use tidegate_core::iocontrol::shared::{Groups, GroupsHandle};
use tidegate_core::iocontrol::{GroupId, GroupPolicy, Policy};
use tidegate_core::request::DiskId;
use tidegate_core::stack::Stack;
use tidegate_core::units::Span;

mod disk;
mod side_file;

/// Disks on one engine: their numbers must fit a tag.
const MOST_DISKS: usize = 1 << 20;
/// Groups of disks on one engine: far more than a host has customers, and 100 bytes each.
const MOST_GROUPS: usize = 4096;

/// How the I/O threads are to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many; at least one.
    pub threads: usize,
    /// How long an idle thread may look for work before it sleeps; zero: not at all.
    pub poll: Span,
    /// Look for work that long whenever idle, rather than only when requests come fast enough for it to pay.
    pub always_poll: bool,
    /// CPUs to stay on, one a thread, in turn; empty: wherever the system puts them.
    pub cpus: Vec<usize>,
}

/// The I/O threads of a host.
pub struct Engine {
    threads: Vec<Thread>,
    /// Disk numbers in use.
    disks: Arc<Mutex<Vec<bool>>>,
    /// Numbers of controls in use.
    controls: Arc<Mutex<Vec<bool>>>,
    reins: Mutex<Vec<Reins>>,
    groups: GroupsHandle,
    /// What disks that are away had used of their limits.
    accounts: Arc<Accounts>,
}

struct Thread {
    inbox: Arc<Inbox>,
    join: Option<JoinHandle<()>>,
    load: Arc<AtomicUsize>,
}

/// An attached disk. Clones name the same one.
#[derive(Clone)]
pub struct Disk {
    pub(crate) core: Arc<DiskCore>,
}

/// Answers that I/O threads were asked for: whoever waits for them need not hold the engine meanwhile.
#[must_use]
pub struct Answers<T>(Vec<Receiver<T>>);

impl<T> Answers<T> {
    /// Waits for all of them; one for each I/O thread, in their order.
    ///
    /// # Errors
    /// When one has ended.
    pub fn wait(self) -> Result<Vec<T>> {
        self.0.iter().map(answer).collect()
    }
}

/// What the handles of a disk share.
pub(crate) struct DiskCore {
    /// What front ends see of it.
    pub(crate) device: Arc<VhostDevice>,
    /// Which I/O thread serves it.
    thread: usize,
    condition: Arc<Condition>,
    controlled: bool,
    filters: Mutex<Filters>,
    numbers: Arc<Mutex<Vec<bool>>>,
    load: Arc<AtomicUsize>,
}

struct Filters {
    specs: Vec<(FilterKey, FilterSpec)>,
    next_key: u32,
}

/// Counts of a disk's vhost-user device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceReport {
    /// Chains that made no sense, each answered with an error.
    pub nonsense: u64,
    /// Queues stopped because their rings made no sense.
    pub broken_queues: u64,
    /// Whether a front end is connected.
    pub connected: bool,
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere while one of these is held leaves plain values that are still true.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts the I/O threads.
    ///
    /// # Errors
    /// When the kernel has no io_uring of the needed age or forbids it, or a CPU does not exist.
    pub fn start(settings: &Settings) -> Result<Engine> {
        if settings.threads == 0 {
            return Err(Error::new(
                Kind::Invalid,
                "at least one I/O thread is needed",
            ));
        }
        let failed = |error| Error::io("cannot start an I/O thread", error);
        let inboxes = (0..settings.threads).map(|_| Inbox::new().map(Arc::new));
        let inboxes: Arc<[Arc<Inbox>]> = inboxes.collect::<io::Result<_>>().map_err(failed)?;
        let mut threads = Vec::new();
        for index in 0..settings.threads {
            let cpu =
                (!settings.cpus.is_empty()).then(|| settings.cpus[index % settings.cpus.len()]);
            let config = ThreadConfig {
                poll: settings.poll,
                always_poll: settings.always_poll,
                cpu,
            };
            let join = IoThread::start(Arc::clone(&inboxes), index, config)?;
            threads.push(Thread {
                inbox: Arc::clone(&inboxes[index]),
                join: Some(join),
                load: Arc::default(),
            });
        }
        Ok(Engine {
            threads,
            disks: Arc::default(),
            controls: Arc::default(),
            reins: Mutex::default(),
            groups: Groups::new(MOST_GROUPS),
            accounts: Arc::default(),
        })
    }

    /// Attaches a disk to the I/O thread that has the fewest.
    ///
    /// # Errors
    /// When the disk's settings make no sense together with its image, or a filter's file cannot be opened.
    pub fn attach(&self, mut spec: DiskSpec, mut opened: OpenedImage) -> Result<Disk> {
        check(&spec, &opened)?;
        let control = spec.control.take().map(Box::new);
        if let Some(under) = &control
            && !under.control.belongs_to(&self.accounts)
        {
            let text = format!("disk {}: its control is another engine's", spec.name);
            return Err(Error::new(Kind::Invalid, text));
        }
        let keys = (0..).map(FilterKey);
        let known = spec.filters.iter().map(|filter| introduce(filter, &spec));
        let specs: Vec<(FilterKey, FilterSpec)> = keys.zip(known).collect();
        let sides = side_file::open_all(&specs)?;
        if spec.size != opened.info.size {
            opened.image.resized(spec.size);
        }
        let id = self.number()?;
        let (at, thread) = self
            .threads
            .iter()
            .enumerate()
            .min_by_key(|(_, t)| t.load.load(Ordering::Relaxed))
            .expect("there are threads");
        thread.load.fetch_add(1, Ordering::Relaxed);
        let stack = Stack::new(
            specs
                .iter()
                .map(|(key, spec)| (*key, spec.build()))
                .collect(),
        );
        let (size, read_only) = (spec.size, spec.read_only);
        let core = Arc::new(DiskCore {
            device: Arc::new(VhostDevice::new(id, spec, Arc::clone(&thread.inbox))),
            thread: at,
            condition: Arc::clone(&opened.condition),
            controlled: control.is_some(),
            filters: Mutex::new(Filters {
                next_key: u32::try_from(specs.len()).unwrap_or(u32::MAX),
                specs,
            }),
            numbers: Arc::clone(&self.disks),
            load: Arc::clone(&thread.load),
        });
        let (reply, answer) = channel();
        let attach = Attach {
            disk: id,
            size,
            read_only,
            stack,
            sides,
            image: opened.image,
            lease: opened.lease,
            control,
            reply,
        };
        core.order(Command::Attach(Box::new(attach)))?;
        wait(&answer, None)?;
        Ok(Disk { core })
    }

    /// Begins to control a datastore: its disks are then attached with the handle.
    ///
    /// # Errors
    /// When the threads of it cannot be started. A slot file that cannot be used is not an error: see
    /// [`control::Report::trouble`].
    pub fn control(&self, settings: control::Settings) -> Result<Control> {
        let id = ControlId(take_number(&self.controls, MOST_DISKS, "datastores")?);
        let threads = self.threads.iter();
        let threads = threads.map(|thread| Arc::clone(&thread.inbox) as Arc<dyn GovernedThread>);
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
        let mut reins = guard(&self.reins);
        reins.retain(|reins| !reins.is_slack());
        reins.push(control.reins());
        Ok(control)
    }

    /// Sets the limits of a group of disks, on all datastores of this host together.
    ///
    /// # Errors
    /// When they make no sense, or the number is none of a group.
    pub fn set_group(&self, group: GroupId, policy: &GroupPolicy) -> Result<()> {
        check_group(group)?;
        policy
            .check()
            .map_err(|fault| Error::new(Kind::Invalid, fault.to_string()))?;
        self.groups.set(os::now(), group, policy);
        Ok(())
    }

    /// A disk number that is not in use.
    fn number(&self) -> Result<DiskId> {
        take_number(&self.disks, MOST_DISKS, "disks").map(DiskId)
    }

    /// What each I/O thread tells of itself and its disks.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn threads(&self) -> Result<Vec<ThreadReport>> {
        self.ask_threads()?.wait()
    }

    /// Asks for that. A thread takes a turn for each disk that has a `stats` filter: guests come between.
    ///
    /// # Errors
    /// When one does not take the question.
    pub fn ask_threads(&self) -> Result<Answers<ThreadReport>> {
        self.ask(Question::report)
    }

    /// Asks for the sums of what each I/O thread and its disks have done.
    ///
    /// # Errors
    /// When one does not take the question.
    pub fn ask_pulses(&self) -> Result<Answers<ThreadPulse>> {
        self.ask(Question::pulse)
    }

    fn ask<T>(&self, question: impl Fn(Sender<T>) -> Question) -> Result<Answers<T>> {
        let threads = self.threads.iter();
        let asked = threads.map(|thread| ask(&thread.inbox, &question));
        asked.collect::<Result<_>>().map(Answers)
    }

    /// Ends the I/O threads. Disks still attached are dropped as they are: detach them before.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        for reins in guard(&self.reins).drain(..) {
            reins.stop();
        }
        for thread in &mut self.threads {
            if let Some(join) = thread.join.take() {
                // A thread that refuses orders has stopped already.
                thread.inbox.send_always(Command::Stop);
                let _ = join.join();
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

/// The lowest number that is not in use; it is from now on.
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

/// Asks an I/O thread something.
fn ask<T>(inbox: &Inbox, question: impl FnOnce(Sender<T>) -> Question) -> Result<Receiver<T>> {
    let (reply, answer) = channel();
    let asked = inbox.send(Command::Ask(question(reply)));
    asked.map_err(|_| Error::new(Kind::Gone, "an I/O thread does not take orders any more"))?;
    Ok(answer)
}

/// Waits for what it answers.
fn answer<T>(answer: &Receiver<T>) -> Result<T> {
    answer
        .recv()
        .map_err(|_| Error::new(Kind::Gone, "an I/O thread has ended"))
}

/// Refuses what cannot work, before anything is attached.
fn check(spec: &DiskSpec, opened: &OpenedImage) -> Result<()> {
    if spec.size > opened.info.size {
        let text = format!(
            "disk {} is to have {} bytes, but its image has only {}: was the image cut?",
            spec.name, spec.size, opened.info.size
        );
        return Err(Error::new(Kind::Invalid, text));
    }
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
    if let Some(under) = &spec.control {
        check_policy(&under.policy)?;
    }
    check_filters(&spec.filters)
}

/// Refuses a policy whose values lie out of range or contradict each other.
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

/// Tells a filter whose I/O it will see, where it notes that.
fn introduce(filter: &FilterSpec, disk: &DiskSpec) -> FilterSpec {
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

/// What the wall clock said at the monotonic clock's zero, in nanoseconds since 1970; asked once, so that it stays
/// the same for all disks.
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

/// Waits for an I/O thread's answer.
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
