//! Serves empty disks with the engine alone, to measure what I/O control costs while it is not engaged.
//!
//! The bench counts its instructions with and without control; no daemon is in between, so nothing else differs.
//!
//! # Always true
//! - It ends when its clients, one for each disk, have hung up.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tidegate_api::io as api;
use tidegate_core::coalesce::{Batch, Coalesce};
use tidegate_core::governor::{self, Kind, Threshold};
use tidegate_core::iocontrol::{DiskKey, Mode, Policy};
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::{LayoutOrder, LayoutSpec};
use tidegate_core::units::Span;
use tidegate_engine::control::{self, UnderControl};
use tidegate_engine::datastore::{OpenedImage, emulated, memory, null};
use tidegate_engine::{Disk, DiskSpec, Engine, Flash, IoSettings, LayoutOptions, Settings};
use tidegate_testing::peers;

/// How long what is in flight may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a disk in memory: a cache has all of it before the requests that are counted.
const MEMORY_SIZE: u64 = 32 << 20;

/// The most queues of a guest.
const MOST_QUEUES: u16 = 16;

/// How the disk stands under I/O control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Not at all.
    None,
    /// It is under control, and its datastore is never congested.
    NotEngaged,
}

/// Where a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Place {
    /// Nowhere: it reads as zeroes.
    Null,
    /// In memory.
    Memory,
    /// In memory, with a flash cache in memory that has room for all of it, and is of an ordinary size.
    Cached,
    /// The same in write-back mode.
    WriteBack,
    /// On a modelled SSD, whose completions come one by one.
    Ssd,
}

/// The engine's type of a setting.
fn coalescing(how: api::Coalesce) -> Result<Coalesce> {
    Ok(match how {
        api::Coalesce::Off => Coalesce::Off,
        api::Coalesce::Adaptive => Coalesce::Adaptive,
        api::Coalesce::Static(frames, micros) => {
            let batch = Batch::new(frames, Span::from_micros(micros.into()));
            Coalesce::Static(batch.context("a batch is out of range")?)
        }
    })
}

/// Serves an empty disk at each of `sockets`, all on one I/O thread that does not poll.
pub(crate) fn serve(
    sockets: &[PathBuf],
    place: Place,
    control: Control,
    coalesce: api::Coalesce,
) -> Result<()> {
    let size = match place {
        Place::Null => peers::NULL_SIZE,
        Place::Memory | Place::Cached | Place::WriteBack | Place::Ssd => MEMORY_SIZE,
    };
    let engine = Engine::start(&Settings {
        threads: 1,
        max_threads: 1,
        poll: Span::ZERO,
        always_poll: false,
        cpus: Vec::new(),
        curves: true,
        monitor: tidegate_engine::monitor::Settings::NONE,
        coalesce: coalescing(coalesce)?,
    })
    .context("cannot start the engine")?;
    let control = match control {
        Control::None => None,
        Control::NotEngaged => Some(never_engaged(&engine)?),
    };
    let mut disks = Vec::new();
    for (number, socket) in (1..).zip(sockets) {
        let spec = DiskSpec {
            name: format!("empty{number}"),
            size,
            block_size: 512,
            read_only: false,
            write_back: true,
            serial: String::new(),
            uuid: [number; 16],
            queues: MOST_QUEUES,
            seg_max: 126,
            filters: Vec::new(),
            layout: LayoutSpec::Plain,
            io: IoSettings::default(),
            layout_options: LayoutOptions::default(),
            control: control.as_ref().map(|control| UnderControl {
                control: control.clone(),
                key: DiskKey(number.into()),
                policy: Policy::default(),
            }),
        };
        let disk = match place {
            Place::Null => engine.attach(spec, null::open(size)),
            Place::Memory => engine.attach(spec, memory::open(size)?),
            Place::Ssd => engine.attach(spec, ssd(size)?),
            Place::Cached | Place::WriteBack => {
                let members = vec![Some(memory::open(size)?)];
                engine.attach_cached(spec, members, flash()?, PATIENCE)
            }
        };
        let disk = disk.context("cannot attach a disk")?;
        if place == Place::WriteBack {
            let order = LayoutOrder::CacheMode(CacheMode::WriteBack);
            disk.order_layout(order)
                .context("the cache does not change its mode")?;
        }
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("cannot make {}", socket.display()))?;
        disks.push((disk, listener));
    }
    std::thread::scope(|scope| {
        let guests = disks
            .iter()
            .map(|(disk, listener)| scope.spawn(|| one_guest(disk, listener)));
        let guests: Vec<_> = guests.collect();
        guests
            .into_iter()
            .try_for_each(|guest| guest.join().expect("serving a guest does not panic"))
    })?;
    for (disk, _) in disks {
        disk.detach(PATIENCE).context("a disk does not leave")?;
    }
    engine.stop();
    Ok(())
}

/// A disk on a modelled SSD.
fn ssd(size: u64) -> Result<OpenedImage> {
    let spec = emulated::Spec {
        array: "ssd".into(),
        size,
        seed: 1,
    };
    emulated::open(&spec).context("cannot open a modelled SSD")
}

/// A flash device in memory. What is not used of it takes no memory.
fn flash() -> Result<Flash> {
    let chunk = 64 << 20;
    let chunks = 128;
    let device = memory::open(u64::from(chunks) * chunk)?;
    Ok(Flash {
        devices: vec![Some(device)],
        cache: [1; 16],
        area: Area::new(chunk, (0..chunks).collect()).context("its chunks are too few")?,
        attachments: [0, 1],
        has_dirty: false,
        without: 0,
        policy_state: Vec::new(),
    })
}

fn one_guest(disk: &Disk, listener: &UnixListener) -> Result<()> {
    let (stream, _) = listener.accept().context("cannot accept a guest")?;
    disk.serve_vhost(stream).context("cannot serve a guest")
}

fn never_engaged(engine: &Engine) -> Result<control::Control> {
    let settings = control::Settings {
        name: "empty".into(),
        directory: None,
        host_name: "host".into(),
        governor: governor::Settings {
            host: [1; 16],
            incarnation: 1,
            mode: Mode::On,
            threshold: Threshold::Off,
            io_unit: 32 << 10,
            kind: Kind::Flash,
            window_most: 256,
            learn: true,
        },
    };
    engine
        .control(settings)
        .context("cannot put disks under control")
}
