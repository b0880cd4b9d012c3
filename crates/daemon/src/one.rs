//! The server of one disk without stored state, for scripts, test suites and packagers.
//!
//! # Always true
//! - It writes nothing but the named sockets (and the file itself). The sockets are removed when it ends.
//! - With `exit_with_parent` it ends when its parent process ends, for whatever reason.
//! - A signal stops it at any time: in order once the image is open, at once while it is being opened.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tidegate_api::config::TlsConfig;
use tidegate_api::datastore::IoMode;
use tidegate_api::descriptor::{Descriptor, MAX_QUEUES, MAX_SEG_MAX};
use tidegate_api::name::Name;
use tidegate_api::units::{Size, Span};
use tidegate_core::filter::trace::format::TracedDisk;
use tidegate_core::layout::LayoutSpec;

use crate::config::plan::filters;
use crate::config::plan::{DiskPlan, ImagePlan, LogPlan, NamedBy, ThreadsPlan, TlsFiles};
use crate::disks::attached::vhost_listener::VhostListener;
use crate::disks::attached::{Attached, AttachedDisks};
use crate::disks::disk_service::PARTING;
use crate::disks::formats;
use crate::disks::image_file;
use crate::disks::snippet;
use crate::host::{self, Host, Opened};
use crate::listen::sockets::{self, Inherited, Listening};
use crate::listen::tls;
use crate::nbd_listener::{self, ConnectionLimits, Endpoint, EndpointSecurity, Gone};
use crate::notify;
use crate::observe::log;
use crate::os_error::limits;
use crate::os_error::{self, Outcome};
use crate::serve::Signals;

/// NBD clients at a time: a script has few.
const CONNECTIONS: usize = 256;

/// Mode of the sockets: only the user who serves the disk has access.
const MODE: u32 = 0o600;

/// The disk to serve, and its options.
#[derive(Clone, Debug)]
pub struct OneOptions {
    /// `FILE`, `null:SIZE`, `memory:SIZE`, `emulated:MODEL,size=SIZE[,seed=N]` or an NBD URI.
    pub source: String,
    /// Whether a file is served even if its first bytes look like another format.
    pub raw: bool,
    /// The vhost-user socket for virtual machines.
    pub vhost_user: Option<PathBuf>,
    /// The Unix socket for NBD clients.
    pub nbd: Option<PathBuf>,
    /// Whether to serve one NBD client on a connected socket that is standard input.
    pub single: bool,
    /// The certificates for NBD clients; `None`: no TLS.
    pub tls: Option<TlsConfig>,
    /// The filters, top first.
    pub filters: Vec<String>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether each write is durable before its completion.
    pub write_through: bool,
    /// Whether the page cache is used.
    pub buffered: bool,
    /// Whether to end when the parent process ends.
    pub exit_with_parent: bool,
    /// Longest time that an idle I/O thread polls before it sleeps.
    pub poll: Span,
    /// Number of I/O threads.
    pub threads: u16,
    /// CPUs to pin the threads to, one each; empty: no pinning.
    pub cpus: Vec<usize>,
    /// Number of queues that a virtual machine may use.
    pub queues: u16,
    /// Data segments of one request that are advertised to a virtual machine.
    pub seg_max: u16,
    /// Block size that is advertised to a guest, in bytes.
    pub block_size: u32,
    /// The disk's name, which is also its NBD export name (as is the empty one).
    pub name: Name,
    /// Serial number that a guest sees; empty: made from the disk's identity.
    pub serial: String,
}

impl OneOptions {
    /// Options to serve `source` with default values and no socket yet.
    ///
    /// # Panics
    /// Never: the default name is a name.
    pub fn new(source: impl Into<String>) -> OneOptions {
        OneOptions {
            source: source.into(),
            raw: false,
            vhost_user: None,
            nbd: None,
            single: false,
            tls: None,
            filters: Vec::new(),
            read_only: false,
            write_through: false,
            buffered: false,
            exit_with_parent: false,
            poll: Span(200_000),
            threads: 1,
            cpus: Vec::new(),
            queues: 16,
            seg_max: MAX_SEG_MAX,
            block_size: 512,
            name: "disk".parse().expect("the constant is a valid name"),
            serial: String::new(),
        }
    }
}

/// Serves one disk until a signal stops it.
///
/// # Errors
/// The disk cannot be opened, no socket was named or could be opened, or the disk was not detached cleanly.
pub fn serve_one(options: OneOptions) -> anyhow::Result<()> {
    if options.exit_with_parent {
        tie_to_parent()?;
    }
    let plan = LogPlan {
        filter: "warn".to_owned(),
        format: tidegate_api::config::LogFormat::Text,
    };
    log::start(log::filter(&plan)?, plan.format)?;
    limits::raise_all();
    let inherited = sockets::inherited()?;
    let single = match options.single {
        true => Some(sockets::standard_input()?),
        false => None,
    };
    let sockets = [&options.vhost_user, &options.nbd];
    if single.is_none() && inherited.is_empty() && sockets.iter().all(|named| named.is_none()) {
        bail!(
            "no client could connect to the disk: name a socket with --nbd or --vhost-user, pass a listening one by \
             LISTEN_FDS, or a connected one as standard input with --single"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .context("cannot start the control thread")?;
    let ended = runtime.block_on(live(options, inherited, single));
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(ended?)
}

async fn live(
    options: OneOptions,
    inherited: Vec<Inherited>,
    single: Option<OwnedFd>,
) -> Outcome<()> {
    let security = security(&options)?;
    let host = Host::start(&ThreadsPlan {
        poll: options.poll.to_duration(),
        cpus: options.cpus.clone(),
        ..ThreadsPlan::fixed(options.threads.max(1))
    })?;
    let disk = attach(&options, &host)?;
    // Not before: opening the image may take long, because of its lock or its file system. Until then a signal just
    // ends the process, since there is nothing to stop in order.
    let mut signals = Signals::new()?;
    let datastore = "none".parse().expect("the constant is a valid name");
    let live = Attached::new(options.name.clone(), datastore, disk);
    let disks = Arc::new(AttachedDisks::with_default(options.name.clone()));
    disks.insert(Arc::clone(&live));
    let doors = doors(&options, inherited, &live)?;
    let seats = if single.is_some() { 1 } else { CONNECTIONS };
    let limits = ConnectionLimits::new(Arc::clone(&disks), seats);
    let mut tasks = tokio::task::JoinSet::new();
    for socket in doors.nbd {
        let door = Endpoint {
            socket,
            security: security.clone(),
        };
        tasks.spawn(nbd_listener::attend(door, limits.clone()));
    }
    tell(&options);
    notify::ready("serving one disk");
    let served = tokio::select! {
        () = signals.next() => Ok(()),
        () = notify::watchdog() => Ok(()),
        served = serve_single(single, security, &limits) => served,
    };
    notify::stopping(PARTING);
    tasks.abort_all();
    disks.remove(&options.name);
    if let Some(socket) = &options.nbd {
        // It may be gone already, which does no harm.
        let _ = std::fs::remove_file(socket);
    }
    drop(doors.vhost);
    let ending = os_error::blocking(move || {
        let ended = live.detach(Some(PARTING));
        host.stop();
        ended
    });
    tokio::select! {
        ended = ending => served.and(ended),
        () = signals.next() => Err(os_error::invalid("stopped at once, by a second signal")),
    }
}

fn attach(options: &OneOptions, host: &Host) -> Outcome<host::Disk> {
    let plan = plan(options)?;
    let opened = open(&plan, options.raw)?;
    let plan = DiskPlan {
        size: if plan.size == 0 {
            opened.size()
        } else {
            plan.size
        },
        ..plan
    };
    host.attach(&plan, opened, None)
}

/// Opens the image. A file that is no image, or has a format other than raw, is refused.
fn open(plan: &DiskPlan, raw: bool) -> Outcome<Opened> {
    let ImagePlan::File { path, .. } = &plan.image else {
        return host::open_reporting(&plan.image, plan.read_only);
    };
    // A missing file is refused when it is opened.
    if let Ok(there) = std::fs::metadata(path) {
        let what = format!("cannot serve {}", path.display());
        let instead = "give a plain file or a block device";
        image_file::must_be_image(&there, path, &what, instead)?;
    }
    let opened = host::open_reporting(&plan.image, plan.read_only)?;
    if !raw {
        // Checked under the lock: its previous owner may have written to the file.
        formats::must_be_raw(path)?;
    }
    Ok(opened)
}

/// The security of all NBD sockets.
fn security(options: &OneOptions) -> Outcome<EndpointSecurity> {
    let Some(tls) = &options.tls else {
        return Ok(EndpointSecurity::Plain);
    };
    let files = TlsFiles {
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
        client_ca: tls.client_ca.clone(),
    };
    Ok(EndpointSecurity::Tls(tls::server(&files)?.acceptor))
}

/// Prints the disk's addresses. The process that started us may have closed its end; that is no reason to stop.
fn tell(options: &OneOptions) {
    if let Some(socket) = &options.nbd {
        let uri = snippet::nbd_unix_uri(socket, options.name.as_str());
        let uri = match &options.tls {
            Some(_) => uri.replacen("nbd+unix", "nbds+unix", 1),
            None => uri,
        };
        let _ = writeln!(io::stdout(), "{uri}");
    }
    if let Some(socket) = &options.vhost_user {
        let _ = writeln!(io::stdout(), "{}", socket.display());
    }
}

/// Serves the client on standard input until it has disconnected; for ever, if there is none.
async fn serve_single(
    socket: Option<OwnedFd>,
    security: EndpointSecurity,
    limits: &ConnectionLimits,
) -> Outcome<()> {
    let Some(socket) = socket else {
        return std::future::pending().await;
    };
    let served = nbd_listener::attend_one(socket, security, limits).await;
    let what = "the client on standard input did not get a disk";
    served.map_err(|gone| match gone {
        Gone::Refused(why) => os_error::invalid(what).because(why),
        Gone::Left(error) => os_error::io(what, &error),
    })
}

/// All sockets of the disk.
struct Sockets {
    nbd: Vec<Listening>,
    vhost: Vec<VhostListener>,
}

fn doors(
    options: &OneOptions,
    inherited: Vec<Inherited>,
    live: &Arc<Attached>,
) -> Outcome<Sockets> {
    let mut doors = Sockets {
        nbd: Vec::new(),
        vhost: Vec::new(),
    };
    for Inherited { name, socket } in inherited {
        match socket {
            Listening::Unix(socket) if name == "vhost-user" => {
                doors.vhost.push(VhostListener::on(socket, None, live)?);
            }
            // A TCP socket without TLS was passed on purpose; qemu-nbd and nbdkit accept it too.
            socket => doors.nbd.push(socket),
        }
    }
    if let Some(path) = &options.nbd {
        doors
            .nbd
            .push(Listening::Unix(sockets::listen_unix(path, MODE)?));
    }
    if let Some(path) = &options.vhost_user {
        doors.vhost.push(VhostListener::start(path.clone(), live)?);
    }
    Ok(doors)
}

fn plan(options: &OneOptions) -> Outcome<DiskPlan> {
    let image = image(&options.source, options)?;
    let size = match &image {
        ImagePlan::Memory { size }
        | ImagePlan::Null { size }
        | ImagePlan::Emulated { size, .. } => *size,
        // The size is that of the image.
        ImagePlan::File { .. } | ImagePlan::Nbd { .. } | ImagePlan::Pool => 0,
    };
    let uuid = crate::text::new_uuid()?;
    let mut descriptor = Descriptor::new(uuid, size);
    descriptor.serial = options.serial.clone();
    if options.queues == 0 || options.queues > MAX_QUEUES {
        let what = format!("{} queues are not from 1 to {MAX_QUEUES}", options.queues);
        return Err(os_error::invalid(what).remedy("give a number in that range with --queues"));
    }
    if options.seg_max == 0 || options.seg_max > MAX_SEG_MAX {
        let what = format!(
            "{} segments are not from 1 to {MAX_SEG_MAX}",
            options.seg_max
        );
        return Err(os_error::invalid(what).remedy("give a number in that range with --seg-max"));
    }
    let traced = TracedDisk {
        size,
        ..filters::traced(&descriptor)
    };
    Ok(DiskPlan {
        name: options.name.to_string(),
        uuid: uuid.0,
        size,
        block_size: options.block_size,
        write_back: !options.write_through,
        read_only: options.read_only,
        serial: descriptor.effective_serial(),
        queues: options.queues,
        seg_max: options.seg_max,
        filters: filters::stack(&options.filters, options.name.as_str(), traced)?,
        layout: LayoutSpec::Plain,
        layout_options: Default::default(),
        io: tidegate_engine::IoSettings::default(),
        members: vec!["here".to_owned()],
        image,
    })
}

/// Parses the disk's source.
fn image(source: &str, options: &OneOptions) -> Outcome<ImagePlan> {
    let size = |text: &str| -> Outcome<u64> {
        let size: Size = text.parse().map_err(|e| {
            os_error::invalid(format!("cannot serve {source}"))
                .because_of(&e)
                .remedy("write a size, such as 10G, after the colon (after size= for emulated)")
        })?;
        Ok(size.0)
    };
    if source.starts_with("nbd://") || source.starts_with("nbd+unix://") {
        return Ok(ImagePlan::Nbd {
            uri: source.to_owned(),
            block_size: options.block_size,
        });
    }
    if let Some(text) = source.strip_prefix("null:") {
        return Ok(ImagePlan::Null { size: size(text)? });
    }
    if let Some(text) = source.strip_prefix("memory:") {
        return Ok(ImagePlan::Memory { size: size(text)? });
    }
    if let Some(text) = source.strip_prefix("emulated:") {
        let (sizes, model): (Vec<&str>, Vec<&str>) =
            text.split(',').partition(|word| word.starts_with("size="));
        let [text] = sizes.as_slice() else {
            return Err(os_error::invalid(format!("cannot serve {source}"))
                .because("it has no size, or several")
                .remedy("write it as emulated:MODEL,size=SIZE, such as emulated:ssd,size=10G"));
        };
        let size = size(text.trim_start_matches("size="))?;
        return Ok(ImagePlan::Emulated {
            model: model.join(","),
            size,
        });
    }
    let io = if options.buffered {
        IoMode::Buffered
    } else {
        IoMode::Auto
    };
    Ok(ImagePlan::File {
        path: Path::new(source).to_owned(),
        io,
        named_by: NamedBy::Operator,
    })
}

/// Has the kernel end this process when its parent ends. Call it on a thread that lives as long as the process.
fn tie_to_parent() -> anyhow::Result<()> {
    let parent = std::os::unix::process::parent_id();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .context("cannot make this process end with its parent")?;
    if std::os::unix::process::parent_id() != parent {
        bail!("the parent process ended before the disk was served");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering::Relaxed;

    use tidegate_api::problem::Problem;

    use super::*;
    use crate::observe::log::captured::Lines;

    #[test]
    fn a_source_is_told_by_its_words() {
        let options = OneOptions::new("x");
        let image = |text: &str| image(text, &options);
        assert_eq!(image("null:1G").unwrap(), ImagePlan::Null { size: 1 << 30 });
        assert_eq!(
            image("memory:512MiB").unwrap(),
            ImagePlan::Memory { size: 512 << 20 }
        );
        let emulated = ImagePlan::Emulated {
            model: "raid5-8x10k,seed=1".to_owned(),
            size: 4096,
        };
        assert_eq!(
            image("emulated:raid5-8x10k,size=4k,seed=1").unwrap(),
            emulated
        );
        assert!(matches!(
            image("nbd+unix:///a?socket=/s").unwrap(),
            ImagePlan::Nbd { .. }
        ));
        assert!(matches!(
            image("/srv/a.img").unwrap(),
            ImagePlan::File { .. }
        ));
        assert!(image("null:lots").is_err());
        assert!(image("emulated:ssd").is_err());
    }

    #[test]
    fn segments_are_from_1_to_126_and_reach_the_disk() {
        let planned = |seg_max| {
            plan(&OneOptions {
                seg_max,
                ..OneOptions::new("null:1G")
            })
        };
        for seg_max in [1, 30, 126] {
            assert_eq!(planned(seg_max).unwrap().seg_max, seg_max);
        }
        for seg_max in [0, 127, u16::MAX] {
            let refused = planned(seg_max).unwrap_err().to_string();
            assert!(refused.contains("not from 1 to 126"), "{refused}");
        }
    }

    /// The error of `serve-one` for such a file, if it refuses it.
    fn refused(path: &Path, raw: bool) -> Option<Problem> {
        let options = OneOptions::new(path.to_str().unwrap());
        open(&plan(&options).unwrap(), raw).err()
    }

    #[test]
    fn only_raw_images_are_served_unless_raw_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let convert = |format| format!("qemu-img convert -f {format} -O raw ");
        let encrypted = [&b"QFI\xfb\0\0\0\x03"[..], &[0; 24], &[0, 0, 0, 2]].concat();
        for (at, magic, named, then) in [
            (
                0,
                &b"QFI\xfb\0\0\0\x03"[..],
                "a qcow2 image",
                convert("qcow2"),
            ),
            (0, b"KDMV", "a vmdk image", convert("vmdk")),
            (0x40, b"\x7f\x10\xda\xbe", "a vdi image", convert("vdi")),
            (0, b"vhdxfile", "a vhdx image", convert("vhdx")),
            (0, b"conectix", "a vpc image", convert("vpc")),
            (0, b"QED\0", "a qed image", convert("qed")),
            (0, b"\x1f\x8b\x08", "a gzip file", "gzip -dk".to_owned()),
            (0, b"\x28\xb5\x2f\xfd", "a zstd file", "zstd -dk".to_owned()),
            (0, b"LUKS\xba\xbe", "LUKS", "driver=luks".to_owned()),
            (
                0,
                &encrypted,
                "an encrypted qcow2 image",
                "-O raw".to_owned(),
            ),
        ] {
            let path = folder.path().join("image");
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            file.write_all_at(magic, at).unwrap();
            let problem = refused(&path, false).unwrap_or_else(|| panic!("{named} is served"));
            assert!(problem.why.join(": ").contains(named), "{problem}");
            let remedy = problem.remedy.unwrap_or_default();
            assert!(remedy.contains(&then), "{remedy}");
            assert!(remedy.contains("use --format raw"), "{remedy}");
            assert_eq!(refused(&path, true), None, "{named}");
        }
        let path = folder.path().join("raw");
        std::fs::write(&path, [7; 8192]).unwrap();
        assert_eq!(refused(&path, false), None);
    }

    #[test]
    fn what_holds_no_bytes_of_a_disk_is_not_served() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [
            pipe.as_path(),
            folder.path(),
            Path::new("/dev/null"),
            Path::new("/proc/self/mem"),
        ] {
            for raw in [false, true] {
                let problem = refused(path, raw).unwrap_or_else(|| panic!("{path:?} is served"));
                assert_eq!(problem.what, format!("cannot serve {}", path.display()));
                let remedy = problem.remedy.unwrap_or_default();
                assert!(
                    remedy.contains("a plain file or a block device"),
                    "{remedy}"
                );
            }
        }
    }

    #[test]
    fn an_image_in_use_is_waited_for_and_that_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, [7; 8192]).unwrap();
        let plan = plan(&OneOptions::new(path.to_str().unwrap())).unwrap();
        let held = host::open(&plan.image, false).unwrap();
        let lines = Lines::default();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !lines.text().contains("waiting up to 20 s") && !ended.load(Relaxed) {
                    std::thread::yield_now();
                }
                drop(held);
            });
            let opened = lines.while_logging(|| open(&plan, false));
            ended.store(true, Relaxed);
            assert!(opened.is_ok(), "{:?}", opened.err());
        });
        let text = lines.text();
        assert_eq!(text.matches("waiting").count(), 1, "{text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        assert!(text.contains("in use by another daemon"), "{text}");
    }
}
