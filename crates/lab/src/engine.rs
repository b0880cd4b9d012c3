//! An empty disk that the engine serves with nothing around it: what I/O control costs where it holds nobody back.
//!
//! The bench counts its instructions with and without control; no daemon is in between, so nothing else differs.
//!
//! # Always true
//! - It ends when its one client hangs up.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tidegate_core::governor::{self, Kind, Threshold};
use tidegate_core::iocontrol::{DiskKey, Mode, Policy};
use tidegate_core::units::Span;
use tidegate_engine::control::{self, UnderControl};
use tidegate_engine::datastore::null;
use tidegate_engine::{DiskSpec, Engine, Settings};

/// How long what is in flight may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the disk stands under I/O control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Not at all.
    None,
    /// It is under control, and its datastore is never congested.
    NotEngaged,
}

/// Serves an empty disk of `size` bytes at `socket` on one I/O thread that does not poll.
///
/// # Errors
/// The engine does not start, or the socket cannot be made.
pub fn serve(socket: &Path, size: u64, control: Control) -> Result<()> {
    let engine = Engine::start(&Settings {
        threads: 1,
        poll: Span::ZERO,
        always_poll: false,
        cpus: Vec::new(),
    })
    .context("cannot start the engine")?;
    let spec = DiskSpec {
        name: "empty".into(),
        size,
        block_size: 512,
        read_only: false,
        write_back: true,
        serial: String::new(),
        uuid: [1; 16],
        queues: 1,
        filters: Vec::new(),
        control: match control {
            Control::None => None,
            Control::NotEngaged => Some(never_engaged(&engine)?),
        },
    };
    let disk = engine
        .attach(spec, null::open(size))
        .context("cannot attach the disk")?;
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot make {}", socket.display()))?;
    let (stream, _) = listener.accept().context("cannot accept the guest")?;
    disk.serve_vhost(stream).context("cannot serve the guest")?;
    disk.detach(PATIENCE).context("the disk does not leave")?;
    engine.stop();
    Ok(())
}

fn never_engaged(engine: &Engine) -> Result<UnderControl> {
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
    let control = engine
        .control(settings)
        .context("cannot put the disk under control")?;
    Ok(UnderControl {
        control,
        key: DiskKey(1),
        policy: Policy::default(),
    })
}
