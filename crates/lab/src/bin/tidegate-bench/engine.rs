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
use tidegate_core::governor::{self, Kind, Threshold};
use tidegate_core::iocontrol::{DiskKey, Mode, Policy};
use tidegate_core::layout::LayoutSpec;
use tidegate_core::units::Span;
use tidegate_engine::control::{self, UnderControl};
use tidegate_engine::datastore::null;
use tidegate_engine::{Disk, DiskSpec, Engine, LayoutOptions, Settings};

/// How long what is in flight may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the disk stands under I/O control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Not at all.
    None,
    /// It is under control, and its datastore is never congested.
    NotEngaged,
}

/// Serves an empty disk of `size` bytes at each of `sockets`, all on one I/O thread that does not poll.
pub(crate) fn serve(sockets: &[PathBuf], size: u64, control: Control) -> Result<()> {
    let engine = Engine::start(&Settings {
        threads: 1,
        poll: Span::ZERO,
        always_poll: false,
        cpus: Vec::new(),
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
            queues: 1,
            seg_max: 126,
            filters: Vec::new(),
            layout: LayoutSpec::Plain,
            layout_options: LayoutOptions::default(),
            control: control.as_ref().map(|control| UnderControl {
                control: control.clone(),
                key: DiskKey(number.into()),
                policy: Policy::default(),
            }),
        };
        let disk = engine
            .attach(spec, null::open(size))
            .context("cannot attach a disk")?;
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
