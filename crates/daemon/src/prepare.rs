//! Checks and opens everything that a configuration names before the daemon serves, for `serve` and for `check-config`.
//!
//! [`prepare`] reads the configuration, plans it, and opens every file that it names. [`check_config`] also tries the
//! next steps of `serve` and undoes them. Nothing listens and nothing is written here.
//!
//! # Always true
//! - `serve` starts with the result of [`prepare`], so nothing in the configuration is refused later for what it is.
//! - What the running daemon of this root has open does not make a configuration fail: that daemon exits first.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tidegate_api::config::{Config, ConfigError, NbdTcp, Threads};
use tidegate_api::problem::Problem;
use tidegate_api::status::NbdSecurity;
use tracing_subscriber::filter::EnvFilter;

use crate::config::plan::{Machine, Plan, Security};
use crate::config::root::Root;
use crate::host::Host;
use crate::listen::sockets;
use crate::listen::tls;
use crate::listen::tls::expiry::Validity;
use crate::nbd_listener::EndpointSecurity;
use crate::observe::log;
use crate::os_error::limits;
use crate::os_error::{self, Outcome};
use crate::rest::dashboard::listener::Access;
use crate::store::Store;

/// The longest configuration that is read.
const LONGEST_CONFIG: u64 = 1 << 20;

/// Options for starting a daemon.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// The root directory; if none, `TIDEGATE_ROOT` or the default one.
    pub root: Option<PathBuf>,
    /// The socket of the REST interface; if none, the configured one.
    pub api_socket: Option<PathBuf>,
    /// The configuration file; if none, the root's file if it exists.
    pub config: Option<PathBuf>,
    /// I/O threads; if none, the configured ones.
    pub threads: Option<Threads>,
    /// TCP addresses for NBD clients, in addition to the configured ones.
    pub nbd_tcp: Vec<NbdTcp>,
}

/// Everything a daemon starts with.
pub(crate) struct Prepared {
    pub(crate) root: Root,
    pub(crate) plan: Plan,
    /// The configuration file, if there is one.
    pub(crate) from: Option<PathBuf>,
    pub(crate) filter: EnvFilter,
    pub(crate) tcp: Vec<TcpEndpoint>,
    /// The dashboard's access rules, if it has an address.
    pub(crate) dashboard: Option<Outcome<Access>>,
}

/// A TCP address for NBD clients, with everything needed to serve there.
pub(crate) struct TcpEndpoint {
    pub(crate) address: SocketAddr,
    pub(crate) security: EndpointSecurity,
    pub(crate) kind: NbdSecurity,
    /// Validity period of its certificate.
    pub(crate) validity: Option<Validity>,
}

/// Reads and opens what a configuration names.
pub(crate) fn prepare(options: &ServeOptions) -> anyhow::Result<Prepared> {
    let root = Root::find(options.root.clone())?;
    let (config, from) = read_config(&root, options)?;
    let prepared = (|| {
        let plan = Plan::new(&config, &root, machine())?;
        must_differ(&plan)?;
        Ok((
            log::filter(&plan.log)?,
            tcp_endpoints(&plan)?,
            dashboard(&plan)?,
            plan,
        ))
    })();
    let (filter, tcp, dashboard, plan) =
        prepared.map_err(|problem| in_file(problem, from.as_deref()))?;
    Ok(Prepared {
        root,
        plan,
        from,
        filter,
        tcp,
        dashboard,
    })
}

/// Finds what `serve` would refuse, without serving. Returns the path of the configuration that was read.
///
/// # Errors
/// The errors that `serve` has before it serves.
pub fn check_config(options: &ServeOptions) -> anyhow::Result<Option<PathBuf>> {
    let Prepared {
        root, plan, from, ..
    } = prepare(options)?;
    try_out(&root, &plan).map_err(|problem| in_file(problem, from.as_deref()))?;
    Ok(from)
}

/// Tries the next steps of `serve` and undoes them at once.
fn try_out(root: &Root, plan: &Plan) -> Outcome<()> {
    root.check()?;
    Store::check(root.state())?;
    limits::raise_all();
    drop(Host::start(&plan.threads)?);
    let serving = root.daemon();
    let unix = std::iter::once(&plan.api.socket).chain(&plan.nbd.sockets);
    for path in unix.filter(|path| !root.makes_folder_of(path)) {
        sockets::check_unix(path, serving)?;
    }
    for tcp in &plan.nbd.tcp {
        sockets::check_tcp(tcp.address, serving)?;
    }
    match &plan.dashboard {
        // It uses another port, or runs without a dashboard.
        None => Ok(()),
        Some(dashboard) if dashboard.any_port => Ok(()),
        Some(dashboard) => sockets::check_tcp(dashboard.address, serving)
            .map_err(|problem| problem.within("cannot serve the dashboard")),
    }
}

fn tcp_endpoints(plan: &Plan) -> Outcome<Vec<TcpEndpoint>> {
    let open = |tcp: &crate::config::plan::TcpPlan| {
        let (security, kind, validity) = match &tcp.security {
            Security::Plaintext => (EndpointSecurity::Plain, NbdSecurity::Plaintext, None),
            Security::Tls(files) => {
                let server = tls::server(files)?;
                let kind = match server.asks_clients {
                    true => NbdSecurity::MutualTls,
                    false => NbdSecurity::Tls,
                };
                let security = EndpointSecurity::Tls(server.acceptor);
                (security, kind, Some(server.validity))
            }
        };
        Ok(TcpEndpoint {
            address: tcp.address,
            security,
            kind,
            validity,
        })
    };
    plan.nbd.tcp.iter().map(open).collect()
}

/// The dashboard's access rules. If the dashboard was not configured explicitly, a host that cannot have it still
/// serves.
fn dashboard(plan: &Plan) -> Outcome<Option<Outcome<Access>>> {
    match &plan.dashboard {
        None => Ok(None),
        Some(plan) if !plan.asked => Ok(Some(Access::of(plan))),
        Some(plan) => Access::of(plan).map(|access| Some(Ok(access))),
    }
}

/// Refuses a configuration that names one socket twice: the second bind would fail.
fn must_differ(plan: &Plan) -> Outcome<()> {
    let api = std::iter::once((&plan.api.socket, "api.socket"));
    let nbd = plan.nbd.sockets.iter().map(|path| (path, "nbd.sockets"));
    let unix: Vec<_> = api
        .chain(nbd)
        .map(|(path, key)| (real(path), key))
        .collect();
    let same = |a: &PathBuf, b: &PathBuf| a == b;
    twice(&unix, same, |path| path.display().to_string())?;
    let nbd = plan.nbd.tcp.iter().map(|tcp| (tcp.address, "nbd.tcp"));
    let dashboard = plan
        .dashboard
        .iter()
        .filter(|dashboard| !dashboard.any_port);
    let dashboard = dashboard.map(|dashboard| (dashboard.address, "dashboard.listen"));
    let tcp: Vec<_> = nbd.chain(dashboard).collect();
    twice(&tcp, overlap, SocketAddr::to_string)
}

fn twice<T>(
    all: &[(T, &str)],
    same: impl Fn(&T, &T) -> bool,
    show: impl Fn(&T) -> String,
) -> Outcome<()> {
    for (nth, (one, key)) in all.iter().enumerate() {
        let Some((other, before)) = all[..nth].iter().find(|(other, _)| same(one, other)) else {
            continue;
        };
        let what = match show(one) == show(other) {
            true => format!("the configuration names {} twice", show(one)),
            false => format!(
                "the configuration names {} and {}, which is the same port of the same address",
                show(other),
                show(one)
            ),
        };
        let why = match key == before {
            true => format!("both are in {key}"),
            false => format!("it is in {before} and in {key}"),
        };
        return Err(os_error::invalid(what)
            .because(why)
            .remedy("remove one of them, or change it"));
    }
    Ok(())
}

/// A socket's path with links and `..` resolved, if its directory exists.
fn real(path: &Path) -> PathBuf {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return path.to_owned();
    };
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    folder.join(name)
}

/// Whether two listeners conflict. An unspecified address covers all addresses; the IPv6 one covers IPv4 as well.
fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    if one.port() != other.port() || one.port() == 0 {
        return false;
    }
    let covers =
        |all: IpAddr, one: IpAddr| all.is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    let (one, other) = (one.ip(), other.ip());
    one == other || covers(one, other) || covers(other, one)
}

fn machine() -> Machine {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Machine {
        cpus,
        journal: log::to_journal(),
        name: name.trim().to_owned(),
    }
}

fn read_config(root: &Root, options: &ServeOptions) -> Outcome<(Config, Option<PathBuf>)> {
    let (path, must_exist) = match &options.config {
        Some(path) => (path.clone(), true),
        None => (root.config_file(), false),
    };
    let what = || format!("cannot read the configuration {}", path.display());
    let (mut config, from) = match read_config_file(&path) {
        Ok(text) => {
            let config = Config::read(&text).map_err(|e| {
                os_error::invalid(what())
                    .because_of(&e)
                    .remedy(unread(&e, &text))
            })?;
            (config, Some(path))
        }
        // Without a root there is no configuration in it; whether a root can be created is checked later.
        Err(error)
            if !must_exist
                && matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
        {
            (Config::default(), None)
        }
        Err(error) => {
            let problem = os_error::io(what(), &error);
            return Err(match error.kind() {
                io::ErrorKind::PermissionDenied => problem,
                _ => problem.remedy("give the path of a configuration file; see docs/config.md"),
            });
        }
    };
    if options.threads.is_some() {
        config.io.threads = options.threads;
    }
    if options.api_socket.is_some() {
        config.api.socket = options.api_socket.clone();
    }
    config.nbd.tcp.extend(options.nbd_tcp.iter().cloned());
    Ok((config, from))
}

/// The remedy for a configuration that cannot be read: in most cases a value has the wrong type or form.
fn unread(error: &ConfigError, text: &str) -> String {
    let ConfigError::Syntax(error) = error else {
        return "use the version of tidegate that it was written for".to_owned();
    };
    let says = error.message();
    let line = error.span().and_then(|span| {
        let before = text.get(..span.start)?.matches('\n').count();
        text.lines().nth(before)?.split_once('=')
    });
    let value = line.map(|(key, value)| (key.trim(), value.trim().trim_matches(['"', '\''])));
    match value {
        Some(("mode", mode)) if mode.bytes().all(|digit| digit.is_ascii_digit()) => {
            format!("write it in quotes: mode = \"{mode:0>4}\"")
        }
        Some((key, value)) if says.contains("expected a string") => {
            format!("write it in quotes: {key} = \"{value}\"")
        }
        Some((key, value)) if says.contains("expected a sequence") => {
            format!("write it as a list: {key} = [\"{value}\"]")
        }
        Some((key, value))
            if says.contains("invalid type: string") || says.contains("a number or \"auto\"") =>
        {
            match value.parse::<u64>().is_ok() || ["true", "false"].contains(&value) {
                true => format!("write it without quotes: {key} = {value}"),
                false => "give a value of that type; see docs/config.md".to_owned(),
            }
        }
        _ => "correct it; see docs/config.md".to_owned(),
    }
}

/// Reads the text of a configuration file. It does not wait for a pipe, and reads no more than the longest
/// configuration.
pub fn read_config_file(path: &Path) -> io::Result<String> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options()
        .read(true)
        .custom_flags(nonblock)
        .open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other("it is a pipe, not a plain file"));
    }
    let mut text = String::new();
    file.take(LONGEST_CONFIG + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST_CONFIG {
        return Err(io::Error::other(format!(
            "it is longer than {LONGEST_CONFIG} bytes"
        )));
    }
    Ok(text)
}

fn in_file(problem: Problem, file: Option<&Path>) -> Problem {
    match file {
        Some(file) => problem.because(format!("it was read from {}", file.display())),
        None => problem,
    }
}

#[cfg(test)]
mod tests;
