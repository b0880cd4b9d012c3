//! `tidegate serve`, `serve-one` and `check-config`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use tidegate_api::config::{NbdTcp, Threads as Count, TlsConfig};
use tidegate_api::job::ImageFormat;
use tidegate_api::name::Name;
use tidegate_api::units::Span;

use crate::daemon::{self, OneOptions, ServeOptions};
use crate::failure::Failure;
use crate::session::Session;

/// Serve disks: the daemon, in the foreground
///
/// The first run creates the root directory, a datastore `local` in it and an attached disk `disk0` of 1 GiB. It prints
/// how QEMU, libvirt, qemu-img, nbdinfo and fio use the disk. SIGTERM and SIGINT stop the daemon in order. Under systemd
/// the daemon reports when it is ready (Type=notify).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate serve
  tidegate serve --root /tmp/try
  tidegate serve --nbd-tcp 127.0.0.1:10809 --plaintext
  TIDEGATE_ROOT=/tmp/try tidegate status --wait 20s

Files below the root:
  tidegate.toml       the configuration, optional; `tidegate check-config` checks it
  state/              datastores, disks of some kinds, and which disks are attached
  run/tidegate.sock   the REST interface
  run/nbd.sock        NBD
  run/disks/          vhost-user sockets, one for each attached disk")]
pub(crate) struct Serve {
    /// The configuration file; default: the root's, if there is one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// The number of I/O threads at the start, or auto: as many as the load needs; default: as configured
    #[arg(long, value_name = "N")]
    threads: Option<Count>,

    #[command(flatten)]
    tcp: Tcp,
}

/// A TCP address for NBD clients, besides the configured ones.
#[derive(Debug, Args)]
#[command(next_help_heading = "NBD over TCP")]
struct Tcp {
    /// Serve NBD on this address and port too, such as 0.0.0.0:10809; needs --tls-certificate or --plaintext
    #[arg(long, value_name = "ADDRESS")]
    nbd_tcp: Option<String>,

    /// Serve without TLS; only on a loopback address
    #[arg(long, requires = "nbd_tcp", conflicts_with = "tls_certificate")]
    plaintext: bool,

    /// The server's certificate, followed by intermediate certificates; a PEM file
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tcp", "tls_key"], value_hint = ValueHint::FilePath)]
    tls_certificate: Option<PathBuf>,

    /// The server's private key, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_certificate", value_hint = ValueHint::FilePath)]
    tls_key: Option<PathBuf>,

    /// The authorities that must have issued a client's certificate, a PEM file; default: clients need no certificate
    #[arg(long, value_name = "FILE", requires = "tls_certificate", value_hint = ValueHint::FilePath)]
    tls_client_ca: Option<PathBuf>,
}

impl Serve {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        daemon::serve(self.options(session)?)
    }

    fn options(self, session: &Session) -> Result<ServeOptions, Failure> {
        Ok(ServeOptions {
            root: session.root.clone(),
            api_socket: session.socket.as_deref().map(absolute).transpose()?,
            config: self.config,
            threads: self.threads,
            nbd_tcp: self.tcp.listener()?.into_iter().collect(),
        })
    }
}

/// A daemon begun elsewhere by systemd reads the same files: absolute they mean the same everywhere.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
}

impl Tcp {
    /// The requested listener, if there is one. A listener without TLS needs --plaintext.
    fn listener(self) -> Result<Option<NbdTcp>, Failure> {
        let Some(listen) = self.nbd_tcp else {
            return Ok(None);
        };
        let tls = match (self.tls_certificate, self.tls_key) {
            (Some(certificate), Some(key)) => Some(TlsConfig {
                certificate: absolute(&certificate)?,
                key: absolute(&key)?,
                client_ca: self.tls_client_ca.as_deref().map(absolute).transpose()?,
            }),
            _ if self.plaintext => None,
            _ => {
                return Err(Failure::usage(
                    format!("NBD on {listen} would be open to every client that can reach it"),
                    "add --tls-certificate FILE --tls-key FILE, or on a loopback address --plaintext",
                ));
            }
        };
        Ok(Some(NbdTcp {
            listen,
            tls,
            plaintext: self.plaintext,
        }))
    }
}

/// Serve one disk without a daemon, a root or any state
///
/// For scripts, test suites and packagers. Listening sockets can be inherited (LISTEN_FDS). The one named vhost-user
/// (LISTEN_FDNAMES) is for a virtual machine, the others are for NBD clients. With --single, standard input is a connected
/// socket, as with nbdkit and inetd.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate serve-one disk.img --nbd /tmp/nbd.sock
  tidegate serve-one memory:1G --vhost-user /tmp/vm.sock --exit-with-parent
  tidegate serve-one null:10G --cpu 3 --nbd /tmp/nbd.sock --filter stats --filter null
  tidegate serve-one nbd+unix:///export?socket=/tmp/upstream.sock --nbd /tmp/nbd.sock --read-only
  qemu-img info nbd+unix:///?socket=/tmp/nbd.sock
  nbdinfo [ tidegate serve-one disk.img ]   # LISTEN_FDS
  nbdsh -c \"h.connect_command(['tidegate', 'serve-one', 'disk.img', '--single'])\"")]
pub(crate) struct ServeOne {
    /// The disk's source: a file or block device, null:SIZE, memory:SIZE,
    /// emulated:MODEL,size=SIZE, nbd://... or nbd+unix://...
    #[arg(value_name = "SOURCE", value_hint = ValueHint::FilePath)]
    source: String,

    /// raw: serve a file byte for byte; default: a file that begins like another format is refused
    ///
    /// Use raw for a raw image that a guest could have written. Its first bytes may look like another format.
    #[arg(long)]
    format: Option<ImageFormat>,

    /// The socket for a virtual machine (vhost-user-blk)
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    vhost_user: Option<PathBuf>,

    /// The socket for NBD clients
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    nbd: Option<PathBuf>,

    /// Serve one NBD client on standard input, a connected socket, and end when it leaves (like nbdkit -s)
    #[arg(short, long, conflicts_with_all = ["nbd", "vhost_user"])]
    single: bool,

    /// A filter of the disk's stack, top first; can be given several times; default: none
    #[arg(short, long = "filter", value_name = "FILTER")]
    filters: Vec<String>,

    /// Refuse writes
    #[arg(long)]
    read_only: bool,

    /// Stop when the process that started this one ends
    #[arg(long)]
    exit_with_parent: bool,

    #[command(flatten)]
    tls: OneTls,

    #[command(flatten)]
    device: Device,

    #[command(flatten)]
    threads: Threads,
}

/// Certificates for NBD clients, whichever socket they come by.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS")]
struct OneTls {
    /// The server's certificate, a PEM file; NBD clients must then use TLS
    #[arg(long, value_name = "FILE", requires = "tls_key", value_hint = ValueHint::FilePath)]
    tls_certificate: Option<PathBuf>,

    /// The server's private key, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_certificate", value_hint = ValueHint::FilePath)]
    tls_key: Option<PathBuf>,

    /// The authorities that must have issued a client's certificate, a PEM file; default: clients need no certificate
    #[arg(long, value_name = "FILE", requires = "tls_certificate", value_hint = ValueHint::FilePath)]
    tls_client_ca: Option<PathBuf>,
}

/// How the disk appears.
#[derive(Debug, Args)]
#[command(next_help_heading = "The disk")]
struct Device {
    /// The disk's name, also its NBD export name (as is the empty name); default: disk
    #[arg(long)]
    name: Option<Name>,

    /// The serial number that a guest sees
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,

    /// The number of queues that a vhost-user guest can use; default: 16
    #[arg(long, value_name = "N")]
    queues: Option<u16>,

    /// The number of data segments in one request of a vhost-user guest, 1 to 126; default: 126
    #[arg(long, value_name = "N")]
    seg_max: Option<u16>,

    /// The block size that a guest sees: 512 or 4096 bytes
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,

    /// Make each write durable before it is answered
    #[arg(long)]
    write_through: bool,

    /// Use the page cache
    #[arg(long)]
    buffered: bool,
}

/// The threads that serve it.
#[derive(Debug, Args)]
#[command(next_help_heading = "I/O threads")]
struct Threads {
    /// The number of I/O threads; default: one for each --cpu, else 1
    #[arg(long, value_name = "N")]
    threads: Option<u16>,

    /// The CPU of an I/O thread; can be given several times, once for each thread
    #[arg(long = "cpu", value_name = "CPU")]
    cpus: Vec<usize>,

    /// The longest time that an idle I/O thread polls before it sleeps, in microseconds; 0: not at all; default: 200
    ///
    /// The thread learns whether this time or a quarter of it is better.
    #[arg(long, value_name = "US")]
    poll_us: Option<u32>,
}

impl ServeOne {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        if session.socket.is_some() {
            return Err(Failure::usage(
                "a disk without a daemon has no REST interface, so --socket means nothing here",
                "say --nbd SOCKET or --vhost-user SOCKET",
            ));
        }
        let inherits = std::env::var_os("LISTEN_FDS").is_some();
        let named = self.vhost_user.is_some() || self.nbd.is_some() || self.single;
        if !named && !inherits {
            return Err(Failure::usage(
                format!("no client could reach {}: it has no socket", self.source),
                "say --nbd SOCKET, --vhost-user SOCKET or both; or --single; or hand a listening socket over by LISTEN_FDS",
            ));
        }
        daemon::serve_one(self.options()?)
    }

    /// Whether a file is taken as raw unseen.
    fn raw(&self) -> Result<bool, Failure> {
        match self.format {
            None => Ok(false),
            Some(ImageFormat::Raw) => Ok(true),
            Some(format) => Err(Failure::usage(
                format!("serve-one serves raw images, and no {} ones", format.word()),
                format!(
                    "make a raw one: qemu-img convert -f {} -O raw FILE NEWFILE.img; or import it into a daemon: tidegate disk import FILE NAME",
                    format.word()
                ),
            )),
        }
    }

    fn options(self) -> Result<OneOptions, Failure> {
        let raw = self.raw()?;
        let Threads {
            threads,
            cpus,
            poll_us,
        } = self.threads;
        let tls = match (self.tls.tls_certificate, self.tls.tls_key) {
            (Some(certificate), Some(key)) => Some(TlsConfig {
                certificate,
                key,
                client_ca: self.tls.tls_client_ca,
            }),
            _ => None,
        };
        let default = OneOptions::new(self.source);
        let each = u16::try_from(cpus.len()).map_err(|_| {
            Failure::usage(
                format!("{} CPUs are too many", cpus.len()),
                "give one --cpu for each I/O thread",
            )
        })?;
        Ok(OneOptions {
            raw,
            vhost_user: self.vhost_user,
            nbd: self.nbd,
            single: self.single,
            tls,
            filters: self.filters,
            read_only: self.read_only,
            exit_with_parent: self.exit_with_parent,
            write_through: self.device.write_through,
            buffered: self.device.buffered,
            queues: self.device.queues.unwrap_or(default.queues),
            seg_max: self.device.seg_max.unwrap_or(default.seg_max),
            block_size: self.device.block_size.unwrap_or(default.block_size),
            serial: self.device.serial.unwrap_or_default(),
            name: self.device.name.unwrap_or_else(|| default.name.clone()),
            poll: poll_us.map_or(default.poll, |us| Span(u64::from(us) * 1000)),
            threads: threads.unwrap_or(each.max(1)),
            cpus,
            ..default
        })
    }
}

/// Check the configuration file without serving
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate check-config
  tidegate check-config ./tidegate.toml.new")]
pub(crate) struct CheckConfig {
    /// The file; default: the root's own
    #[arg(value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// The same, as `serve` takes it
    #[arg(long, value_name = "FILE", conflicts_with = "file", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl CheckConfig {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let options = ServeOptions {
            root: session.root.clone(),
            api_socket: None,
            config: self.file.or(self.config),
            threads: None,
            nbd_tcp: Vec::new(),
        };
        match daemon::check_config(&options)? {
            Some(file) => session.console.say(&format!("{} is fine", file.display())),
            None => session
                .console
                .say("there is no configuration file: the defaults are used"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        tcp: Tcp,
    }

    #[derive(Parser)]
    struct OneLine {
        #[command(flatten)]
        one: ServeOne,
    }

    #[derive(Parser)]
    struct ServeLine {
        #[command(flatten)]
        serve: Serve,
    }

    #[test]
    fn a_daemon_listens_at_the_socket_that_is_named() {
        let options = |socket: Option<&str>| {
            let words = ["tidegate", "status"].into_iter();
            let words = words.chain(socket.iter().flat_map(|socket| ["--socket", socket]));
            let session = crate::cli::Cli::try_parse_from(words).unwrap().session();
            let line = ServeLine::try_parse_from(["serve"]).unwrap_or_else(|e| panic!("{e}"));
            line.serve.options(&session).unwrap().api_socket
        };
        assert_eq!(options(Some("/run/x.sock")), Some("/run/x.sock".into()));
        assert!(options(Some("x.sock")).unwrap().is_absolute());
        assert_eq!(options(None), None);
    }

    fn listener(words: &[&str]) -> Result<Option<NbdTcp>, String> {
        let line =
            Line::try_parse_from(["serve"].iter().chain(words)).map_err(|e| e.to_string())?;
        line.tcp
            .listener()
            .map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn nobody_gets_an_open_port_who_did_not_ask_for_one() {
        assert_eq!(listener(&[]), Ok(None));
        let open = listener(&["--nbd-tcp", "0.0.0.0:10809"]).unwrap_err();
        assert!(
            open.contains("Usage") && open.contains("--tls-certificate"),
            "{open}"
        );
        let plain = listener(&["--nbd-tcp", "127.0.0.1:10809", "--plaintext"])
            .unwrap()
            .unwrap();
        assert!(plain.plaintext && plain.tls.is_none());
    }

    #[test]
    fn a_certificate_needs_its_key_and_an_address() {
        let address = ["--nbd-tcp", "0.0.0.0:10809"];
        let certificate = ["--tls-certificate", "/c.pem"];
        let key = ["--tls-key", "/k.pem"];
        let all = [address, certificate, key].concat();
        let tls = listener(&all).unwrap().unwrap().tls.unwrap();
        assert_eq!(
            (tls.certificate, tls.key),
            ("/c.pem".into(), "/k.pem".into())
        );
        assert!(listener(&[address, certificate].concat()).is_err());
        assert!(listener(&[certificate, key].concat()).is_err());
        assert!(listener(&[&all[..], &["--plaintext"]].concat()).is_err());
    }

    #[test]
    fn one_disk_has_a_thread_for_each_cpu_that_is_named() {
        let options = |words: &[&str]| {
            let words = ["serve-one", "null:1G"].iter().chain(words);
            OneLine::try_parse_from(words)
                .unwrap_or_else(|e| panic!("{e}"))
                .one
                .options()
                .unwrap()
        };
        let plain = options(&[]);
        assert_eq!(
            (plain.threads, plain.cpus, plain.poll),
            (1, vec![], Span(200_000))
        );
        let pinned = options(&["--cpu", "2", "--cpu", "3", "--poll-us", "0"]);
        assert_eq!(
            (pinned.threads, pinned.cpus, pinned.poll),
            (2, vec![2, 3], Span(0))
        );
        assert_eq!(options(&["--threads", "4"]).threads, 4);
    }

    #[test]
    fn a_file_is_served_as_raw_unseen_only_where_that_is_said() {
        let options = |words: &[&str]| {
            let words = ["serve-one", "a.img", "--nbd", "s"].iter().chain(words);
            OneLine::try_parse_from(words).unwrap().one.options()
        };
        assert!(!options(&[]).unwrap().raw);
        assert!(options(&["--format", "raw"]).unwrap().raw);
        let refused = options(&["--format", "vhd"]).map(drop).unwrap_err();
        let told = format!("{refused:?}");
        assert!(told.contains("qemu-img convert -f vpc -O raw"), "{told}");
    }
}
