//! The checked plan: the one place where configuration is turned into decisions.
//!
//! `serve` reads a [`Config`], and `disk_service` a [`Descriptor`]. The plans made here have no text to be parsed, no
//! option that means "default", and no number without a unit. Invalid settings are refused here, with their key.
//!
//! # Always true
//! - A plan can be carried out, as far as this can be known without touching anything.
//! - TCP without TLS is planned only on loopback addresses, and only if the configuration requests it explicitly.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_api::config::{Config, DashboardConfig, LogFormat, NbdTcp, TlsConfig};
use tidegate_api::datastore::{DatastoreSettings, IoMode};
use tidegate_api::dense::DenseMode;
use tidegate_api::descriptor::{CacheMode, Descriptor};
use tidegate_api::problem::Problem;
use tidegate_core::dense::Dense;
use tidegate_core::governor::name::LONGEST;
use tidegate_core::layout::LayoutSpec;
use tidegate_engine::{IoSettings, LayoutOptions};

use crate::config::root::Root;
use crate::os_error::{self, Outcome};
use crate::store::Found;
pub(crate) use threads::ThreadsPlan;

pub(crate) mod filters;
pub(crate) mod io;
pub(crate) mod layout;
pub(crate) mod policy;
pub(crate) mod threads;

/// How often caches are divided. Origin: a curve changes in minutes, and a turn reads each curve once.
const DIVIDE: Duration = Duration::from_secs(60);

/// NBD clients at a time, by default: twice the disks of a full host.
const CONNECTIONS: usize = 1024;

/// Default address of the dashboard: TIDE on a telephone's keys.
const DASHBOARD: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8433);

/// The plan of a daemon.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// The name that people use for this host.
    pub(crate) host_name: String,
    pub(crate) threads: ThreadsPlan,
    pub(crate) dense: DensePlan,
    /// How often flash caches are divided among disks. `None`: never.
    pub(crate) divide: Option<Duration>,
    pub(crate) api: ApiPlan,
    pub(crate) nbd: NbdPlan,
    /// `None`: no dashboard.
    pub(crate) dashboard: Option<DashboardPlan>,
    pub(crate) log: LogPlan,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DensePlan {
    pub(crate) mode: DenseMode,
    /// By how much the utilisation may fall before the mode ends, in thousandths.
    pub(crate) margin: u32,
    /// Whether the call for the last completion waits, too.
    pub(crate) hold_last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiPlan {
    pub(crate) socket: PathBuf,
    pub(crate) mode: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NbdPlan {
    pub(crate) sockets: Vec<PathBuf>,
    pub(crate) tcp: Vec<TcpPlan>,
    pub(crate) connections: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpPlan {
    pub(crate) address: SocketAddr,
    pub(crate) security: Security,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    Tls(TlsFiles),
    /// Loopback only.
    Plaintext,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The authority whose clients are admitted; `None`: all clients.
    pub(crate) client_ca: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DashboardPlan {
    pub(crate) address: SocketAddr,
    /// Whether another port of the same address may be used, because the configuration names none.
    pub(crate) any_port: bool,
    /// Whether the configuration mentions the dashboard. If not, a host that cannot open it serves anyway.
    pub(crate) asked: bool,
    pub(crate) token: Option<PathBuf>,
    /// The token that allows reading metrics, and nothing else.
    pub(crate) metrics_token: Option<PathBuf>,
    pub(crate) tls: Option<TlsFiles>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogPlan {
    pub(crate) filter: String,
    pub(crate) format: LogFormat,
}

/// The facts about the machine when a plan is made.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    /// Whether standard error is the systemd journal.
    pub(crate) journal: bool,
    /// Its host name.
    pub(crate) name: String,
}

impl Plan {
    /// Makes the plan of a configuration.
    pub(crate) fn new(config: &Config, root: &Root, machine: Machine) -> Outcome<Plan> {
        Ok(Plan {
            host_name: host_name(config, &machine)?,
            threads: threads::plan(config, &machine)?,
            dense: dense(config)?,
            divide: divide(config),
            api: api(config, root)?,
            nbd: nbd(config, root)?,
            dashboard: dashboard(config, root)?,
            log: LogPlan {
                filter: config
                    .log
                    .filter
                    .clone()
                    .unwrap_or_else(|| "info".to_owned()),
                format: config.log.format.unwrap_or(if machine.journal {
                    LogFormat::Journald
                } else {
                    LogFormat::Text
                }),
            },
        })
    }
}

fn host_name(config: &Config, machine: &Machine) -> Outcome<String> {
    let Some(name) = &config.host.name else {
        return Ok(machine.name.clone());
    };
    let printable = name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if name.trim().is_empty() || name.len() > LONGEST || !printable {
        let why = format!("a host's name is 1 to {LONGEST} printable ASCII characters");
        return Err(bad("host.name", why).remedy("leave it out: the machine's host name is used"));
    }
    Ok(name.clone())
}

fn dense(config: &Config) -> Outcome<DensePlan> {
    let margin = 10 * u32::from(config.dense.margin.unwrap_or(0));
    if margin > Dense::MOST_MARGIN {
        return Err(bad("dense.margin", "it is more than 20 points")
            .remedy("write margin = 10, or leave it out"));
    }
    Ok(DensePlan {
        mode: config.dense.mode.unwrap_or_default(),
        margin,
        hold_last: config.dense.hold_last.unwrap_or(false),
    })
}

fn divide(config: &Config) -> Option<Duration> {
    let every = config
        .caches
        .divide
        .map_or(DIVIDE, |every| every.to_duration());
    (!every.is_zero()).then_some(every)
}

fn api(config: &Config, root: &Root) -> Outcome<ApiPlan> {
    let mode = config.api.mode.as_deref().unwrap_or("0660");
    let mode = u32::from_str_radix(mode, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| {
            bad("api.mode", "it is no octal number such as \"0660\"")
                .remedy("write it in quotes: mode = \"0660\"")
        })?;
    let socket = config
        .api
        .socket
        .as_ref()
        .map(|path| root.path().join(path));
    Ok(ApiPlan {
        socket: socket.unwrap_or_else(|| root.api_socket()),
        mode,
    })
}

fn nbd(config: &Config, root: &Root) -> Outcome<NbdPlan> {
    let sockets = match &config.nbd.sockets {
        Some(sockets) => sockets.iter().map(|path| root.path().join(path)).collect(),
        None => vec![root.nbd_socket()],
    };
    let tcp: Vec<_> = config
        .nbd
        .tcp
        .iter()
        .map(|tcp| tcp_plan(tcp, root))
        .collect::<Outcome<_>>()?;
    let connections = match config.nbd.max_connections {
        None => CONNECTIONS,
        Some(0) => {
            return Err(bad("nbd.max_connections", "with 0 no client can connect")
                .remedy("give at least 1; to take no NBD clients: sockets = []"));
        }
        Some(most) => usize::try_from(most).unwrap_or(usize::MAX),
    };
    Ok(NbdPlan {
        sockets,
        tcp,
        connections,
    })
}

/// One TCP listener of the NBD server.
pub(crate) fn tcp_plan(tcp: &NbdTcp, root: &Root) -> Outcome<TcpPlan> {
    let key = "nbd.tcp";
    let address: SocketAddr = tcp.listen.parse().map_err(|_| {
        bad(
            key,
            format!("'{}' is not an address with a port", tcp.listen),
        )
        .remedy("write it as \"192.0.2.1:10809\" or \"[::1]:10809\"")
    })?;
    let security = match (&tcp.tls, tcp.plaintext) {
        (Some(tls), false) => Security::Tls(tls_files(tls, root)),
        (None, true) if address.ip().is_loopback() => Security::Plaintext,
        (None, true) => {
            return Err(bad(
                key,
                format!(
                    "plaintext is only allowed on loopback, and {address} is not a loopback address"
                ),
            )
            .remedy("give it tls = { certificate, key }, or listen on 127.0.0.1 or [::1]"));
        }
        (Some(_), true) => {
            return Err(bad(key, "it has tls and plaintext").remedy("choose one"));
        }
        (None, false) => {
            return Err(bad(key, format!("{address} has no tls"))
                .remedy("give it tls = { certificate, key }, or on loopback plaintext = true"));
        }
    };
    Ok(TcpPlan { address, security })
}

/// The dashboard's plan. An address that is not loopback needs a login and encryption.
fn dashboard(config: &Config, root: &Root) -> Outcome<Option<DashboardPlan>> {
    let config = &config.dashboard;
    let (address, any_port) = match config.listen.as_deref() {
        None => (DASHBOARD, true),
        Some("off") => return Ok(None),
        Some(listen) => {
            let address = listen.parse().map_err(|_| {
                bad(
                    "dashboard.listen",
                    format!("'{listen}' is not an address with a port"),
                )
                .remedy("write it as \"127.0.0.1:8433\" or \"[::1]:8433\", or \"off\"")
            })?;
            (address, false)
        }
    };
    if !address.ip().is_loopback() && (config.token_file.is_none() || config.tls.is_none()) {
        return Err(bad(
            "dashboard.listen",
            format!("others can reach {address}, and it has no token_file or no tls"),
        )
        .remedy("give it token_file and tls = { certificate, key }, or listen on 127.0.0.1 and reach it by `ssh -L`"));
    }
    let at = |path: &PathBuf| root.path().join(path);
    Ok(Some(DashboardPlan {
        address,
        any_port,
        asked: *config != DashboardConfig::default(),
        token: config.token_file.as_ref().map(at),
        metrics_token: config.metrics_token_file.as_ref().map(at),
        tls: config.tls.as_ref().map(|tls| tls_files(tls, root)),
    }))
}

fn tls_files(tls: &TlsConfig, root: &Root) -> TlsFiles {
    let at = |path: &Path| root.path().join(path);
    TlsFiles {
        certificate: at(&tls.certificate),
        key: at(&tls.key),
        client_ca: tls.client_ca.as_deref().map(at),
    }
}

fn bad(key: &str, why: impl std::fmt::Display) -> Problem {
    os_error::invalid(format!("the configuration's {key} is invalid"))
        .because(why)
        .remedy("correct it; see docs/config.md")
}

/// The origin of an image's path, which determines what kinds of file it may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedBy {
    /// An operator of this host: a file or a block device.
    Operator,
    /// No path was named: the image is in the same directory as its descriptor. A file.
    Datastore,
    /// A descriptor, which others may write. A block device.
    Descriptor,
}

/// The storage of a disk's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImagePlan {
    /// A file or a block device.
    File {
        path: PathBuf,
        io: IoMode,
        named_by: NamedBy,
    },
    /// An upstream's export.
    Nbd { uri: String, block_size: u32 },
    /// Memory.
    Memory { size: u64 },
    /// The null backend.
    Null { size: u64 },
    /// A modelled array.
    Emulated { model: String, size: u64 },
    /// A part of a pool, which only the pool opens.
    Pool,
}

/// The settings of an attached disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskPlan {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) size: u64,
    pub(crate) block_size: u32,
    pub(crate) write_back: bool,
    pub(crate) read_only: bool,
    pub(crate) serial: String,
    pub(crate) queues: u16,
    pub(crate) seg_max: u16,
    pub(crate) filters: filters::Stack,
    /// How its bytes lie on its members.
    pub(crate) layout: LayoutSpec,
    pub(crate) layout_options: LayoutOptions,
    /// How its I/O thread serves it.
    pub(crate) io: IoSettings,
    /// Where its members are, in words. A plain disk has one.
    pub(crate) members: Vec<String>,
    /// The image of a plain disk.
    pub(crate) image: ImagePlan,
}

impl DiskPlan {
    /// Whether its bytes are those of one image.
    pub(crate) fn is_one_image(&self) -> bool {
        self.layout.is_plain() && self.layout_options.pool.is_none()
    }
}

/// The plan of a disk on a datastore.
pub(crate) fn disk(found: &Found) -> Outcome<DiskPlan> {
    let Descriptor {
        uuid,
        size,
        block_size,
        cache,
        read_only,
        queues,
        seg_max,
        ..
    } = found.descriptor;
    Ok(DiskPlan {
        name: found.name.to_string(),
        uuid: uuid.0,
        size: size.0,
        block_size,
        write_back: cache == CacheMode::WriteBack,
        read_only,
        serial: found.descriptor.effective_serial(),
        queues,
        seg_max,
        filters: filters::stack(
            &found.descriptor.filters,
            found.name.as_str(),
            filters::traced(&found.descriptor),
        )?,
        layout: layout::of(&found.descriptor)?,
        layout_options: layout::options(&found.descriptor),
        io: io::of(&found.descriptor),
        members: match found.descriptor.members.as_slice() {
            [] => vec![found.datastore.to_string()],
            members => members.iter().map(ToString::to_string).collect(),
        },
        image: image(found),
    })
}

/// The storage of the bytes of a disk on a datastore.
pub(crate) fn image(found: &Found) -> ImagePlan {
    let size = found.descriptor.size.0;
    match &found.settings {
        DatastoreSettings::Dir { io, .. } => ImagePlan::File {
            path: found.image(),
            io: *io,
            named_by: match found.descriptor.device {
                Some(_) => NamedBy::Descriptor,
                None => NamedBy::Datastore,
            },
        },
        DatastoreSettings::Nbd { uri } => {
            let export = found
                .descriptor
                .export
                .as_deref()
                .unwrap_or(found.name.as_str());
            ImagePlan::Nbd {
                uri: export_uri(uri, export),
                block_size: found.descriptor.block_size,
            }
        }
        DatastoreSettings::Memory {} => ImagePlan::Memory { size },
        DatastoreSettings::Null {} => ImagePlan::Null { size },
        DatastoreSettings::Pool {} => ImagePlan::Pool,
        DatastoreSettings::Emulated { model } => ImagePlan::Emulated {
            model: model.clone(),
            size,
        },
    }
}

/// Adds an export's name to a server's URI: `nbd://host` becomes `nbd://host/name`.
pub(crate) fn export_uri(server: &str, export: &str) -> String {
    let (base, query) = match server.split_once('?') {
        Some((base, query)) => (base, format!("?{query}")),
        None => (server, String::new()),
    };
    let after_scheme = base.find("://").map_or(0, |at| at + 3);
    // An existing path is dropped: it names an export already, or is just the root.
    let base = match base[after_scheme..].find('/') {
        Some(slash) => &base[..after_scheme + slash],
        None => base,
    };
    format!("{base}/{}{query}", tidegate_api::routes::encode(export))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            cpus: 8,
            journal: false,
            name: "bee".into(),
        }
    }

    fn plan(text: &str) -> Outcome<Plan> {
        let root = Root::find(Some("/srv/tide".into())).unwrap();
        Plan::new(&Config::read(text).unwrap(), &root, machine())
    }

    #[test]
    fn nothing_said_is_a_whole_plan() {
        let plan = plan("").unwrap();
        assert_eq!(plan.divide, Some(DIVIDE));
        assert_eq!(plan.api.socket, Path::new("/srv/tide/run/tidegate.sock"));
        assert_eq!(plan.nbd.sockets, [Path::new("/srv/tide/run/nbd.sock")]);
        assert!(plan.nbd.tcp.is_empty());
    }

    #[test]
    fn a_host_is_called_as_its_machine_is_or_as_somebody_says() {
        assert_eq!(plan("").unwrap().host_name, "bee");
        let said = plan("[host]\nname = \"rack 3, left\"").unwrap();
        assert_eq!(said.host_name, "rack 3, left");
        let long = format!("[host]\nname = \"{}\"", "x".repeat(LONGEST + 1));
        for bad in ["[host]\nname = \" \"", "[host]\nname = \"h\u{e4}\"", &long] {
            let text = plan(bad).unwrap_err().to_string();
            assert!(text.contains("host.name"), "{text}");
        }
    }

    #[test]
    fn tcp_is_private_or_on_loopback_by_name() {
        let tls = r#"tls = { certificate = "c.pem", key = "/k.pem" }"#;
        let tcp = |rest: &str, address: &str| {
            plan(&format!("[[nbd.tcp]]\nlisten = \"{address}\"\n{rest}")).map(|p| p.nbd.tcp)
        };
        let planned = tcp(tls, "0.0.0.0:10809").unwrap();
        let Security::Tls(files) = &planned[0].security else {
            panic!("TLS was asked for")
        };
        assert_eq!(files.certificate, Path::new("/srv/tide/c.pem"));
        assert_eq!(files.key, Path::new("/k.pem"));
        assert_eq!(
            tcp("plaintext = true", "127.0.0.1:1").unwrap()[0].security,
            Security::Plaintext
        );
        assert_eq!(
            tcp("plaintext = true", "[::1]:1").unwrap()[0].security,
            Security::Plaintext
        );
        for refused in [
            tcp("plaintext = true", "0.0.0.0:10809"),
            tcp("plaintext = true", "[::]:10809"),
            tcp("", "127.0.0.1:10809"),
            tcp(&format!("{tls}\nplaintext = true"), "127.0.0.1:1"),
            tcp(tls, "localhost"),
        ] {
            assert!(refused.unwrap_err().remedy.is_some());
        }
    }

    #[test]
    fn a_dashboard_that_others_can_reach_has_a_token_and_tls() {
        let planned = |rest: &str| plan(&format!("[dashboard]\n{rest}")).map(|p| p.dashboard);
        let usual = planned("").unwrap().unwrap();
        assert!(usual.address.ip().is_loopback() && usual.any_port && !usual.asked);
        assert_eq!(planned("listen = 'off'").unwrap(), None);
        let asked = planned("listen = '[::1]:0'").unwrap().unwrap();
        assert!(!asked.any_port && asked.token.is_none());
        let tls = "tls = { certificate = 'c.pem', key = 'k.pem' }";
        let token = "token_file = 'token'";
        let public = "listen = '0.0.0.0:8433'";
        let whole = planned(&format!("{public}\n{token}\n{tls}"))
            .unwrap()
            .unwrap();
        assert_eq!(whole.token.as_deref(), Some(Path::new("/srv/tide/token")));
        for refused in [
            planned(public),
            planned(&format!("{public}\n{token}")),
            planned(&format!("{public}\n{tls}")),
            planned("listen = 'localhost'"),
        ] {
            let refused = refused.unwrap_err();
            assert!(refused.remedy.is_some(), "{refused}");
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_by_their_key() {
        for (text, key) in [
            ("[api]\nmode = '999'", "api.mode"),
            ("[nbd]\nmax_connections = 0", "nbd.max_connections"),
        ] {
            let error = plan(text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn an_export_takes_its_place_in_its_servers_uri() {
        assert_eq!(export_uri("nbd://host", "a"), "nbd://host/a");
        assert_eq!(
            export_uri("nbd://host:10809/", "a b"),
            "nbd://host:10809/a%20b"
        );
        assert_eq!(
            export_uri("nbd+unix://?socket=/s", "a"),
            "nbd+unix:///a?socket=/s"
        );
        assert_eq!(
            export_uri("nbd+unix:///old?socket=/s", "a"),
            "nbd+unix:///a?socket=/s"
        );
    }
}
