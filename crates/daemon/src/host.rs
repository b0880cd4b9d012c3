//! The daemon's interface to the engine: opened images, attached disks, I/O threads, and engine errors as problems.
//!
//! Only this file calls the engine, except that `control` queries a datastore's governor. It carries out what the plan
//! decided and decides nothing itself.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tidegate_api::datastore::IoMode;
use tidegate_api::disk::{RingCounts, RingFault, UpstreamCounts};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::curve::Curve;
use tidegate_core::filter::FilterReport;
use tidegate_core::filter::stats::StatsReport;
use tidegate_core::iocontrol::{GroupId, GroupPolicy, Policy};
use tidegate_core::layout::pool::Generation;
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};
use tidegate_engine::datastore::condition::Harm;
use tidegate_engine::datastore::dir::SharedFile;
use tidegate_engine::datastore::{OpenedImage, dir, emulated, memory, nbd as upstream, null};
use tidegate_engine::lease::{Lease, Watch};
use tidegate_engine::nbd::bitmap::Bitmap;
use tidegate_engine::{
    Control, DenseSettings, DiskCurves, DiskReading, DiskSpec, Engine, IoSettings, Kind, Settings,
    UnderControl, control,
};

use crate::clock;
use crate::config::plan::filters::Stack;
use crate::config::plan::{DiskPlan, ImagePlan, NamedBy, ThreadsPlan};
use crate::os_error::limits;
use crate::os_error::{self, Outcome};

mod flash;
mod joined;
mod monitor;
mod orders;
mod refusals;
mod threads;

pub(crate) use flash::OpenFlash;
use joined::Joined;
pub(crate) use joined::{Described, MemberIo};
pub(crate) use orders::{Keep, OldMember};

/// The NBD protocol types of the engine.
pub(crate) mod nbd {
    pub(crate) use tidegate_engine::nbd::handshake::{
        BlockSizes, ExportInfo, Handshake, Negotiated, Refusal, Step, Tls,
    };
    pub(crate) use tidegate_engine::nbd::wire::Abilities;
}

/// How long a change of filters may wait for I/O in flight: longer than any I/O of a datastore that works.
const CHANGING: Duration = Duration::from_secs(30);

/// How long a layout may take to open: longer than its members need to tell their states, and to make equal what a crash
/// left unequal.
const OPENING: Duration = Duration::from_secs(60);

/// The engine's identifier of a disk.
pub(crate) type Key = DiskId;

/// Completions of guests' requests, and interrupts for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) completions: u64,
    pub(crate) interrupts: u64,
}

/// The I/O threads of this host.
pub(crate) struct Host {
    /// None once they are stopped.
    engine: RwLock<Option<Engine>>,
    cpus: Vec<u32>,
}

/// An image that is open and locked, but not attached.
pub(crate) struct Opened {
    image: OpenedImage,
    io: String,
    upstream: Option<Arc<upstream::Counts>>,
    watch: Option<Watch>,
}

/// An attached disk.
pub(crate) struct Disk {
    disk: tidegate_engine::Disk,
    read_only: bool,
    seen: Joined,
}

/// State of a disk's lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// This host has the lease, or the disk needs only a lock.
    #[default]
    Held,
    /// The lease was not renewed in time. All I/O waits until it is clear that no other host has taken the disk.
    Waits,
    /// Another host has it.
    Lost,
}

/// An I/O thread's counters.
pub(crate) struct Thread {
    pub(crate) thread: u32,
    pub(crate) cpu: Option<u32>,
    pub(crate) strays: u64,
    /// Its disks.
    pub(crate) disks: Vec<(Key, Counted)>,
}

/// Counters of a disk's topmost `stats` filter, if it has one, and when they were read.
pub(crate) struct Counted {
    pub(crate) now: Time,
    pub(crate) stats: Option<Box<StatsReport>>,
    /// Its miss-ratio curve.
    pub(crate) curve: Curve,
}

impl Host {
    /// Starts the I/O threads.
    pub(crate) fn start(plan: &ThreadsPlan) -> Outcome<Host> {
        let settings = Settings {
            threads: plan.count,
            max_threads: plan.most,
            poll: span(plan.poll),
            always_poll: false,
            cpus: plan.cpus.clone(),
            curves: plan.curves,
            monitor: plan.monitor,
            coalesce: plan.coalesce,
        };
        let engine = Engine::start(&settings).map_err(|e| unstarted(&e, plan.count))?;
        let number = |n: &usize| u32::try_from(*n).unwrap_or(u32::MAX);
        Ok(Host {
            engine: RwLock::new(Some(engine)),
            cpus: plan.cpus.iter().map(number).collect(),
        })
    }

    /// Starts the governor of a datastore.
    pub(crate) fn control(&self, settings: control::Settings) -> Outcome<Control> {
        self.with(|engine| engine.control(settings).map_err(|e| problem(&e)))
    }

    /// Sets the shared limits of a group of disks.
    pub(crate) fn set_group(&self, group: GroupId, policy: &GroupPolicy) -> Outcome<()> {
        self.with(|engine| engine.set_group(group, policy).map_err(|e| problem(&e)))
    }

    /// Attaches a plain disk, under its datastore's control if there is one.
    pub(crate) fn attach(
        &self,
        plan: &DiskPlan,
        opened: Opened,
        control: Option<UnderControl>,
    ) -> Outcome<Disk> {
        self.attach_members(plan, vec![Some(opened)], control, None)
    }

    /// Attaches a disk with its members in the layout's order, None: away; and with its flash cache, if it has one.
    pub(crate) fn attach_members(
        &self,
        plan: &DiskPlan,
        opened: Vec<Option<Opened>>,
        control: Option<UnderControl>,
        flash: Option<OpenFlash>,
    ) -> Outcome<Disk> {
        let spec = DiskSpec {
            name: plan.name.clone(),
            size: plan.size,
            block_size: plan.block_size,
            read_only: plan.read_only,
            write_back: plan.write_back,
            serial: plan.serial.clone(),
            uuid: plan.uuid,
            queues: plan.queues,
            seg_max: plan.seg_max,
            filters: plan.filters.clone(),
            io: plan.io,
            layout: plan.layout,
            layout_options: plan.layout_options.clone(),
            control,
        };
        let cut = refusals::cut(plan, &opened);
        let (images, seen) = joined::take_apart(plan, opened);
        let cache = flash.as_ref().map(|flash| flash.cache.clone());
        let attached = self.with(|engine| Ok(attach_images(engine, spec, images, flash)))?;
        let disk = attached.map_err(|e| match e.kind() {
            Kind::Invalid if seen.opened_size < plan.size && plan.is_one_image() => {
                problem(&e).remedy(mend_cut(&plan.name, seen.opened_size, plan.block_size))
            }
            Kind::Invalid if cut.is_some() => cut.unwrap_or_else(|| problem(&e)),
            _ => match e.refusal() {
                Some(refusal) => flash::refused(plan, cache.as_ref(), refusal)
                    .unwrap_or_else(|| refusals::told(plan, refusal)),
                None => problem(&e),
            },
        })?;
        Ok(Disk {
            disk,
            read_only: plan.read_only,
            seen,
        })
    }

    /// Begins or ends dense mode on every I/O thread.
    pub(crate) fn set_dense(&self, on: bool, hold_last: bool) -> Outcome<()> {
        let dense = on.then_some(DenseSettings { hold_last });
        self.with(|engine| engine.set_dense(dense).map_err(|e| problem(&e)))
    }

    /// Reads the counters of every I/O thread. While they answer, other callers may use the engine.
    pub(crate) fn threads(&self) -> Outcome<Vec<Thread>> {
        let asked = self.with(|engine| engine.ask_threads().map_err(|e| unasked(&e)))?;
        let reports = asked.wait().map_err(|e| unasked(&e))?;
        let tell = |(nth, report): (usize, tidegate_engine::ThreadReport)| Thread {
            thread: threads::number(nth),
            cpu: self.thread_cpu(threads::number(nth)),
            strays: report.strays,
            disks: report
                .disks
                .into_iter()
                .map(|reading| (reading.disk, Counted::of(reading)))
                .collect(),
        };
        Ok(reports.into_iter().enumerate().map(tell).collect())
    }

    /// Reads only the totals of every I/O thread, in the order of thread numbers.
    pub(crate) fn pulses(&self) -> Outcome<Vec<tidegate_engine::ThreadPulse>> {
        let asked = self.with(|engine| engine.ask_pulses().map_err(|e| unasked(&e)))?;
        asked.wait().map_err(|e| unasked(&e))
    }

    /// Stops the I/O threads. Disks that are still attached are dropped without being detached.
    pub(crate) fn stop(&self) {
        let engine = self
            .engine
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(engine) = engine {
            engine.stop();
        }
    }

    fn with<T>(&self, use_it: impl FnOnce(&Engine) -> Outcome<T>) -> Outcome<T> {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        match engine.as_ref() {
            Some(engine) => use_it(engine),
            None => Err(
                Problem::new(ProblemCode::Stopping, "the daemon is stopping")
                    .remedy("start it again: tidegate serve"),
            ),
        }
    }
}

/// The problem of a pool's disk for a command that needs one image.
fn not_one_image() -> Problem {
    Problem::new(
        ProblemCode::Unsupported,
        "a disk on a pool has no image of its own",
    )
    .remedy("attach it, and copy over NBD, as `nbdcopy FROM TO`: its URI is in `tidegate disk show NAME`")
}

/// Attaches the images of a disk.
fn attach_images(
    engine: &Engine,
    spec: DiskSpec,
    mut images: Vec<Option<OpenedImage>>,
    flash: Option<OpenFlash>,
) -> Result<tidegate_engine::Disk, tidegate_engine::Error> {
    if let Some(OpenFlash { flash, .. }) = flash {
        return engine.attach_cached(spec, images, flash, OPENING);
    }
    match images.as_mut_slice() {
        [Some(_)] if spec.layout.is_plain() && spec.layout_options.pool.is_none() => {
            let image = images.pop().flatten().expect("it was just seen");
            engine.attach(spec, image)
        }
        _ => engine.attach_members(spec, images, OPENING),
    }
}

/// The remedy for a disk whose image is cut short: a disk has whole blocks, and at least one.
pub(crate) fn mend_cut(disk: &str, has: u64, block_size: u32) -> String {
    let block = u64::from(block_size.max(1));
    match has - has % block {
        0 => format!("put the whole image back, or delete the disk: tidegate disk delete {disk}"),
        size => format!(
            "put the whole image back, or shrink the disk to the size of its image: tidegate disk resize {disk} \
             {size} --yes"
        ),
    }
}

/// Opens an image and locks it against other daemons.
pub(crate) fn open(plan: &ImagePlan, read_only: bool) -> Outcome<Opened> {
    open_within(plan, read_only, dir::Options::default().patience)
}

/// Like `open`. If another program has the image, this logs once that it waits, and for what.
pub(crate) fn open_reporting(plan: &ImagePlan, read_only: bool) -> Outcome<Opened> {
    match open_within(plan, read_only, Duration::ZERO) {
        Err(problem) if problem.code == ProblemCode::Locked => {
            let patience = dir::Options::default().patience.as_secs();
            tracing::warn!("{}: waiting up to {patience} s for it", problem.what);
            open(plan, read_only)
        }
        opened => opened,
    }
}

fn open_within(plan: &ImagePlan, read_only: bool, patience: Duration) -> Outcome<Opened> {
    let mut counts = None;
    let opened = match plan {
        ImagePlan::File { path, io, named_by } => {
            let options = dir::Options {
                read_only,
                buffered: *io == IoMode::Buffered,
                patience,
                place: match named_by {
                    NamedBy::Operator => dir::Place::Anywhere,
                    NamedBy::Datastore => dir::Place::Shared,
                    NamedBy::Descriptor => dir::Place::Device,
                },
            };
            let opened = dir::open(path, options).map_err(|e| match named_by {
                NamedBy::Descriptor => untaken(&e, path),
                NamedBy::Operator | NamedBy::Datastore => unopened(&e),
            })?;
            if *io == IoMode::Direct && opened.info.buffered {
                return Err(Problem::new(
                    ProblemCode::Unsupported,
                    format!("cannot open {} for direct I/O", path.display()),
                )
                .because(match &opened.info.remark {
                    Some(remark) => format!("the datastore is set to direct I/O only, but {remark}"),
                    None => "the datastore is set to direct I/O only".to_owned(),
                })
                .remedy(
                    "remove the datastore and add it again with --io auto or --io buffered; its disks are not \
                     deleted",
                ));
            }
            Ok(opened)
        }
        ImagePlan::Nbd { uri, block_size } => {
            let options = upstream::Options {
                block_size: *block_size,
                ..Default::default()
            };
            counts = Some(Arc::clone(&options.counts));
            upstream::open(uri, &options)
        }
        ImagePlan::Memory { size } => memory::open(*size),
        ImagePlan::Null { size } => Ok(null::open(*size)),
        ImagePlan::Emulated { model, size } => format!("{model},size={size}")
            .parse()
            .and_then(|spec| emulated::open(&spec)),
        ImagePlan::Pool => return Err(not_one_image()),
    };
    let image = opened.map_err(|e| match plan {
        ImagePlan::Nbd { uri, .. } => upstream_unopened(&e, uri),
        _ => unopened(&e),
    })?;
    let kind = match plan {
        ImagePlan::File { .. } if image.info.buffered => "buffered",
        ImagePlan::File { .. } => "direct",
        ImagePlan::Nbd { .. } => "nbd",
        ImagePlan::Memory { .. } => "memory",
        ImagePlan::Null { .. } => "null",
        ImagePlan::Emulated { .. } => "emulated",
        ImagePlan::Pool => "pool",
    };
    let io = match &image.info.remark {
        Some(remark) => format!("{kind} ({remark})"),
        None => kind.to_owned(),
    };
    Ok(Opened {
        image,
        io,
        upstream: counts,
        watch: None,
    })
}

/// An image for one disk of a file or device that several disks share. It is written while the lease is held that `watch`
/// observes, and keeps `held` until it is closed.
pub(crate) fn open_shared(
    file: &SharedFile,
    watch: Option<Watch>,
    held: impl Send + 'static,
) -> Outcome<Opened> {
    let image = file.image().map_err(|e| unopened(&e))?;
    let image = match &watch {
        Some(watch) => image.behind(watch),
        None => image,
    };
    let kind = match image.info.buffered {
        true => "buffered",
        false => "direct",
    };
    let io = match &image.info.remark {
        Some(remark) => format!("{kind} ({remark})"),
        None => kind.to_owned(),
    };
    Ok(Opened {
        image: image.holding(Box::new(held)),
        io,
        upstream: None,
        watch,
    })
}

impl Opened {
    /// Adds a lease, if there is one. It is released when the image is closed.
    pub(crate) fn under(self, lease: Option<Lease>) -> Opened {
        let watch = lease.as_ref().and_then(Lease::watch);
        let image = match lease {
            Some(lease) => self.image.under(lease),
            None => self.image,
        };
        Opened {
            image,
            watch,
            ..self
        }
    }

    /// Keeps the mark, if there is one, until the image is closed.
    pub(crate) fn holding(self, mark: Option<impl Send + 'static>) -> Opened {
        let image = match mark {
            Some(mark) => self.image.holding(Box::new(mark)),
            None => self.image,
        };
        Opened { image, ..self }
    }

    /// Puts it under its datastore's control.
    pub(crate) fn under_control(self, under: UnderControl) -> Opened {
        Opened {
            image: self.image.under_control(under),
            ..self
        }
    }

    /// Size of the image in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.image.info.size
    }

    /// Alignment that its requests need: an upstream sets its own, anything else accepts any.
    fn unit(&self) -> u32 {
        match self.upstream {
            Some(_) => self.image.info.block_size,
            None => 1,
        }
    }

    /// The unit of the disk's size: an image written with direct I/O must be aligned to its end.
    fn size_unit(&self) -> u64 {
        match self.image.info.buffered {
            true => 1,
            false => self.image.info.block_size.max(1).into(),
        }
    }
}

impl Disk {
    /// The engine's identifier of the disk.
    pub(crate) fn key(&self) -> Key {
        self.disk.id()
    }

    /// The I/O thread that serves it.
    pub(crate) fn thread(&self) -> u32 {
        threads::number(self.disk.thread())
    }

    /// Size of its image in bytes when it was opened.
    pub(crate) fn opened_size(&self) -> u64 {
        self.seen.opened_size
    }

    /// Its size must be a multiple of this many bytes while it is attached.
    pub(crate) fn size_unit(&self) -> u64 {
        self.seen.size_unit
    }

    /// Size in bytes that guests see.
    pub(crate) fn size(&self) -> u64 {
        self.disk.size()
    }

    /// Describes how its image is opened.
    pub(crate) fn io(&self) -> &str {
        &self.seen.io
    }

    /// Whether it rejects all writes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Why it is no longer written to, if another host may have it.
    pub(crate) fn lost(&self) -> Option<String> {
        let watches = self.seen.watches();
        let mut lost = watches.iter().map(Watch::lost);
        match self.seen.is_redundant {
            // While a member is left, the layout writes to that.
            true if lost.clone().any(|lost| lost.is_none()) => None,
            _ => lost.find_map(|lost| lost).map(str::to_owned),
        }
    }

    /// How its members are open, in the layout's order. None: away.
    pub(crate) fn members(&self) -> Vec<Option<MemberIo>> {
        self.seen.members()
    }

    /// The worst failure of its image so far, if any.
    pub(crate) fn harm(&self) -> Option<Harm> {
        self.disk.harm()
    }

    /// State of its lease.
    pub(crate) fn claim(&self) -> LeaseState {
        match self.lost() {
            Some(_) => LeaseState::Lost,
            None if self.seen.watches().iter().any(Watch::is_waiting) => LeaseState::Waits,
            None => LeaseState::Held,
        }
    }

    /// All counters of its topmost `stats` filter, if it has one.
    pub(crate) fn counted(&self) -> Outcome<Counted> {
        let reading = self.disk.read();
        reading
            .map(Counted::of)
            .map_err(|e| problem(&e).within(format!("cannot query disk {}", self.disk.name())))
    }

    /// Its miss-ratio curves.
    pub(crate) fn curves(&self) -> Outcome<DiskCurves> {
        let curves = self.disk.curves();
        curves.map_err(|e| problem(&e).within(format!("cannot query disk {}", self.disk.name())))
    }

    /// Counts of errors in its guests' rings.
    pub(crate) fn rings(&self) -> RingCounts {
        let report = self.disk.device_report();
        RingCounts {
            nonsense_total: report.nonsense,
            broken_total: report.broken_queues,
        }
    }

    /// Completions in its guests' rings, and interrupts for them.
    pub(crate) fn calls(&self) -> Calls {
        let report = self.disk.device_report();
        Calls {
            completions: report.answered,
            interrupts: report.interrupts,
        }
    }

    /// The last ring faults, newest first.
    pub(crate) fn ring_faults(&self) -> Vec<RingFault> {
        let now = clock::now();
        let faults = self.disk.ring_faults().into_iter();
        faults
            .map(|fault| RingFault {
                queue: fault.queue,
                what: fault.what(),
                stopped: fault.stops_queue(),
                age_s: now.since(fault.at).as_nanos() / 1_000_000_000,
            })
            .collect()
    }

    /// State of its upstream connection, if it has one.
    pub(crate) fn upstream(&self) -> Option<UpstreamCounts> {
        let upstreams = self.seen.upstreams();
        let counts = upstreams.iter();
        let sum = |which: fn(&upstream::Counts) -> u64| counts.clone().map(|c| which(c)).sum();
        (!upstreams.is_empty()).then(|| UpstreamCounts {
            lost_total: sum(|c| c.lost.load(Relaxed)),
            violations_total: sum(|c| c.violations.load(Relaxed)),
            silent_total: sum(|c| c.silent.load(Relaxed)),
            returned_total: sum(|c| c.returned.load(Relaxed)),
            refused_total: sum(|c| c.refused.load(Relaxed)),
        })
    }

    /// The export information that NBD clients receive.
    pub(crate) fn export_info(&self, name: &str) -> nbd::ExportInfo {
        use nbd::Abilities;
        let common = [
            Abilities::HAS_FLAGS,
            Abilities::FLUSH,
            Abilities::FUA,
            Abilities::MULTI_CONN,
            Abilities::CACHE,
        ];
        let rest: &[Abilities] = match self.read_only {
            true => &[Abilities::READ_ONLY],
            false => &[
                Abilities::TRIM,
                Abilities::WRITE_ZEROES,
                Abilities::FAST_ZERO,
            ],
        };
        let abilities = common
            .iter()
            .chain(rest)
            .fold(Abilities::NONE, |all, one| all.with(*one));
        let usual = nbd::BlockSizes::default();
        nbd::ExportInfo {
            bitmaps: Vec::new(),
            name: name.to_owned(),
            description: String::new(),
            size: self.disk.size(),
            abilities,
            block: nbd::BlockSizes {
                minimum: self.seen.unit,
                preferred: usual.preferred.max(self.seen.unit),
                ..usual
            },
        }
    }

    /// Passes an NBD client to the engine after its handshake. `presence` lasts as long as the client is connected.
    pub(crate) fn serve_nbd(
        &self,
        socket: OwnedFd,
        negotiated: &nbd::Negotiated,
        presence: impl Send + 'static,
    ) -> Outcome<()> {
        let served =
            self.disk
                .serve_nbd_present(socket, negotiated, Vec::new(), Box::new(presence));
        served.map_err(|e| problem(&e).within(format!("cannot serve disk {}", self.disk.name())))
    }

    /// As [`Disk::serve_nbd`], with the bitmaps that the client selected, by the ids of their contexts.
    pub(crate) fn serve_nbd_bitmaps(
        &self,
        socket: OwnedFd,
        negotiated: &nbd::Negotiated,
        bitmaps: Vec<(u32, Bitmap)>,
        presence: impl Send + 'static,
    ) -> Outcome<()> {
        let (early, presence) = (Vec::new(), Box::new(presence));
        let served = self
            .disk
            .serve_nbd_bitmaps(socket, negotiated, early, bitmaps, presence);
        served.map_err(|e| problem(&e).within(format!("cannot serve disk {}", self.disk.name())))
    }

    /// Which parts of a pool's disk may differ between two of its generations, in bytes, ascending. None: there is no such
    /// generation.
    pub(crate) fn changed(
        &self,
        from: Generation,
        to: Generation,
    ) -> Outcome<Option<Vec<Range<u64>>>> {
        let changed = self.disk.changed(from, to);
        changed.map_err(|e| problem(&e).within(format!("cannot query disk {}", self.disk.name())))
    }

    /// Speaks vhost-user with a virtual machine, on a separate thread. `presence` lasts as long as it is connected.
    /// `refused` is called on that thread if the disk rejects it.
    pub(crate) fn serve_vhost(
        &self,
        socket: UnixStream,
        presence: impl Send + 'static,
        refused: impl FnOnce(&Problem) + Send + 'static,
    ) -> Outcome<()> {
        let disk = self.disk.clone();
        let serve = move || {
            let _while_connected = presence;
            if let Err(error) = disk.serve_vhost(socket) {
                refused(&problem(&error));
            }
        };
        let thread = std::thread::Builder::new().name("vhost-user".to_owned());
        let name = self.disk.name();
        thread
            .spawn(serve)
            .map(drop)
            .map_err(|e| os_error::io(format!("cannot serve a virtual machine on disk {name}"), &e))
    }

    /// Replaces the filters without losing an I/O.
    pub(crate) fn restack(&self, filters: &Stack) -> Outcome<()> {
        let name = self.disk.name();
        match self.disk.restack(filters, CHANGING) {
            // The change is accepted and needs only the I/O in flight to end. The disk's settings must describe the new
            // filters.
            Err(error) if error.kind() == Kind::TimedOut => {
                tracing::warn!(disk = name, %error, "the new filters take effect when the I/O in flight has ended");
                Ok(())
            }
            changed => changed.map_err(|e| {
                problem(&e).within(format!("cannot change the filters of disk {name}"))
            }),
        }
    }

    /// Sets how its I/O thread serves it.
    pub(crate) fn set_io(&self, io: IoSettings) -> Outcome<()> {
        let set = self.disk.set_io(io);
        set.map_err(|e| {
            problem(&e).within(format!(
                "cannot change how the I/O thread of disk {} serves it",
                self.disk.name()
            ))
        })
    }

    /// Sets its limits, reservation and shares on its datastore.
    pub(crate) fn set_policy(&self, policy: &Policy) -> Outcome<()> {
        let set = self.disk.set_policy(policy);
        set.map_err(|e| {
            problem(&e).within(format!(
                "cannot change the I/O control of disk {}",
                self.disk.name()
            ))
        })
    }

    /// Changes its size and notifies the guests.
    pub(crate) fn resize(&self, size: u64) -> Outcome<()> {
        let resized = self.disk.resize(size);
        resized.map_err(|e| problem(&e).within(format!("cannot resize disk {}", self.disk.name())))
    }

    /// Waits for the I/O in flight, flushes, and closes the image. Without `at_most` there is no time limit.
    pub(crate) fn detach(&self, at_most: Option<Duration>) -> Outcome<()> {
        let detached = match at_most {
            Some(at_most) => self.disk.detach(at_most),
            None => self.disk.detach_fully(),
        };
        detached.map_err(|e| problem(&e).within(format!("cannot detach disk {}", self.disk.name())))
    }
}

impl Counted {
    /// The counters of a disk's topmost `stats` filter, which sees the same I/O as the guest.
    fn of(reading: DiskReading) -> Counted {
        let mut filters = reading.report.filters.into_iter();
        let stats = filters.find_map(|(_, _, report)| match report {
            FilterReport::Stats(stats) => Some(stats),
            _ => None,
        });
        let now = reading.now;
        let curve = reading.report.curve;
        Counted { now, stats, curve }
    }
}

fn unasked(error: &tidegate_engine::Error) -> Problem {
    problem(error).within("cannot ask the I/O threads")
}

fn span(duration: Duration) -> Span {
    Span::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Converts an engine error to a problem, with its own text and its first cause.
pub(crate) fn problem(error: &tidegate_engine::Error) -> Problem {
    if let Some(remedy) = limits::remedy(error) {
        return Problem::of(ProblemCode::Exhausted, error).remedy(remedy);
    }
    let of = |code| Problem::of(code, error);
    match error.kind() {
        Kind::NotFound => of(ProblemCode::NotFound).remedy(by_cause(error, io::ErrorKind::NotFound)),
        Kind::Busy => of(ProblemCode::Busy).remedy(by_cause(error, io::ErrorKind::ResourceBusy)),
        Kind::Exists => of(ProblemCode::Exists).remedy(by_cause(error, io::ErrorKind::AlreadyExists)),
        Kind::Invalid => of(ProblemCode::Invalid).remedy("correct what the reason names, and try again"),
        Kind::Denied if is_read_only(error) => Problem::of(ProblemCode::Datastore, error).remedy(
            "mount its file system writable; until then the disk can be exported, or attached read-only (`tidegate disk attach \
             NAME --read-only`)",
        ),
        Kind::Denied => Problem::of(ProblemCode::Datastore, error).remedy(os_error::permit()),
        Kind::Unsupported => of(ProblemCode::Unsupported)
            .remedy("do as the reason says, or use another datastore"),
        Kind::TimedOut => of(ProblemCode::Datastore)
            .remedy("check whether the datastore responds (`tidegate datastore list`), then try again"),
        Kind::Io => of(ProblemCode::Datastore).remedy(by_cause(error, io::ErrorKind::Other)),
        Kind::Gone => of(ProblemCode::Stopping)
            .remedy("check whether the daemon runs (`tidegate status`), then try again"),
    }
}

/// The remedy for an engine error, chosen by its operating system error, or by `otherwise` if it has none.
fn by_cause(error: &tidegate_engine::Error, otherwise: io::ErrorKind) -> String {
    let source = std::error::Error::source(error);
    let cause = source.and_then(|cause| cause.downcast_ref::<io::Error>());
    os_error::remedy(cause.map_or(otherwise, io::Error::kind))
}

/// Whether the operating system reported a read-only file system or device.
fn is_read_only(error: &tidegate_engine::Error) -> bool {
    let source = std::error::Error::source(error);
    let cause = source.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
}

/// Why a device could not be opened. If it is busy, anything on this host may use it.
fn untaken(error: &tidegate_engine::Error, device: &Path) -> Problem {
    let problem = unopened(error);
    match problem.code {
        ProblemCode::Locked => problem.remedy(format!(
            "find out what uses it (lsblk {}); unmount, stop or detach that first",
            device.display()
        )),
        _ => problem,
    }
}

/// Why the I/O threads could not start.
fn unstarted(error: &tidegate_engine::Error, threads: usize) -> Problem {
    if let Some(remedy) = limits::locked_memory(error, threads) {
        let what = format!("cannot start {threads} I/O threads");
        return Problem::new(ProblemCode::Exhausted, what)
            .because("the limit of locked memory is too low for their io_urings")
            .because_of(error)
            .remedy(remedy);
    }
    let problem = problem(error);
    match error.kind() {
        // Only a CPU is requested by name.
        Kind::Invalid => problem.remedy(
            "name CPUs of those (io.cpus in the configuration, --cpu of serve-one), or leave it out",
        ),
        Kind::Unsupported => problem
            .remedy("use Linux 6.1 or newer, built with io_uring (see `uname -r`)"),
        Kind::Denied => problem.remedy(
            "allow io_uring: `sysctl kernel.io_uring_disabled=0`; in a container allow the calls io_uring_setup, \
             io_uring_enter and io_uring_register in its seccomp profile",
        ),
        _ => problem,
    }
}

/// Why an upstream's export could not be opened. A wrong host or export name has its own remedy.
fn upstream_unopened(error: &tidegate_engine::Error, uri: &str) -> Problem {
    let problem = unopened(error);
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        text.push_str(&source.to_string());
    }
    if text.contains("failed to lookup address") {
        return problem
            .remedy("correct the host in the datastore's URI (see `tidegate datastore list`)");
    }
    if text.contains("no such export") {
        let server = crate::config::plan::export_uri(uri, "");
        return problem.remedy(format!(
            "name an export of the server with --export: `nbdinfo --list '{server}'` lists them"
        ));
    }
    problem
}

fn unopened(error: &tidegate_engine::Error) -> Problem {
    match error.kind() {
        Kind::Busy => Problem::of(ProblemCode::Locked, error).remedy(
            "stop that daemon or detach the disk there; a killed daemon releases it at once",
        ),
        _ => problem(error),
    }
}

#[cfg(test)]
mod tests;
