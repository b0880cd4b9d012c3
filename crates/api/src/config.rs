//! The configuration file `tidegate.toml`.
//!
//! These types hold the file's values as written. The daemon's plan checks them and fills in defaults. An absent value
//! means only that the file does not set it.
//!
//! # Always true
//! - An unknown key is an error. So is a key given twice.
//! - Every field is optional. An empty file is valid, and most hosts need nothing more.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dense::DenseMode;
use crate::io::Coalesce;
use crate::units::Span;

/// The format version that this program reads.
pub const VERSION: u32 = 1;

/// The whole file. Relative paths start at the root directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The format version: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// How this host appears to other hosts.
    pub host: HostConfig,
    /// I/O threads.
    pub io: IoConfig,
    /// Dense mode.
    pub dense: DenseConfig,
    /// Flash caches.
    pub caches: CachesConfig,
    /// The REST interface.
    pub api: ApiConfig,
    /// The NBD server.
    pub nbd: NbdConfig,
    /// The dashboard, for browsers.
    pub dashboard: DashboardConfig,
    /// Logging.
    pub log: LogConfig,
}

/// What this host reports about itself to hosts that share its datastores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostConfig {
    /// The host's name in reports, events and errors, here and on other hosts; up to 64 printable ASCII characters. The name
    /// is for people only: hosts identify each other by random identities. Default: the machine's host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The threads that serve all disks' I/O.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoConfig {
    /// The number of I/O threads at the start. `"auto"`: `min`, and then as many as the load needs. Default: half the CPUs,
    /// at least 1 and at most 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<Threads>,
    /// The policy takes no thread away below this number. Default: `threads`; with `"auto"`, 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u16>,
    /// The policy adds no thread beyond this number. Default: `threads`; with `"auto"`, the number of CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u16>,
    /// What moves disks between I/O threads, and adds and removes threads between `min` and `max`. Default: `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<ThreadPolicy>,
    /// The longest time that an idle I/O thread polls before it sleeps. The thread learns whether this time or a quarter of
    /// it is better. `0` sleeps at once. Default: `200us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<Span>,
    /// The CPUs of the I/O threads, one for each of the most threads, in order. Default: threads are not pinned.
    pub cpus: Vec<u32>,
    /// Whether each disk's miss-ratio curve is estimated, which takes 2 % of the instructions of a request and 60 KiB for
    /// each disk in use. Default: `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curves: Option<bool>,
    /// How completions are coalesced, of disks that do not say it themselves: `off` interrupts a guest each time completions
    /// are there, `static:16,64us` after 16 of them or 64 us, `adaptive` as long as that pays. Default: `adaptive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coalesce: Option<Coalesce>,
}

/// Dense mode: on a full host, I/O threads and guests are woken less often, and small I/Os take up to 2 ms longer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DenseConfig {
    /// When it is on. Default: `auto`, which decides once a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<DenseMode>,
    /// By so many points of utilisation the CPUs' use may fall below 50 % before `auto` turns it off, from 0 to 20. Default:
    /// `0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<u8>,
    /// Whether the last interrupt of a queue also waits, up to a millisecond. That saves interrupts of guests with one request at
    /// a time, and delays each of their requests. Default: `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_last: Option<bool>,
}

/// A number of I/O threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// As many as the load needs.
    Auto,
    /// So many at the start.
    Count(u16),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number or \"auto\"")]
enum RawThreads {
    Count(u16),
    Word(String),
}

impl std::str::FromStr for Threads {
    type Err = String;
    fn from_str(text: &str) -> Result<Threads, String> {
        match text {
            "auto" => Ok(Threads::Auto),
            _ => match text.parse() {
                Ok(count) => Ok(Threads::Count(count)),
                Err(_) => Err(format!("'{text}' is neither a number nor auto")),
            },
        }
    }
}

impl Serialize for Threads {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Threads::Auto => s.serialize_str("auto"),
            Threads::Count(count) => s.serialize_u16(*count),
        }
    }
}

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Threads, D::Error> {
        match RawThreads::deserialize(d)? {
            RawThreads::Count(count) => Ok(Threads::Count(count)),
            RawThreads::Word(word) if word == "auto" => Ok(Threads::Auto),
            RawThreads::Word(_) => {
                Err(serde::de::Error::custom("a number or \"auto\" is expected"))
            }
        }
    }
}

impl JsonSchema for Threads {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Threads".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": ["string", "integer"],
            "pattern": "^auto$",
            "examples": ["auto"],
        })
    }
}

/// What places disks on I/O threads.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadPolicy {
    /// Administrators: nothing changes by itself.
    None,
    /// Queueing delay: each change is tried, and undone if it does no good.
    #[default]
    Auto,
    /// Idle time, as IOcm: for comparison.
    Iocm,
    /// Busy shares, as SPDK's dynamic scheduler: for comparison.
    Spdk,
}

/// Flash caches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CachesConfig {
    /// How often caches are divided among disks by miss-ratio curves and shares. `0` leaves the parts as they are. Default:
    /// `60s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divide: Option<Span>,
}

/// The REST interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// The Unix socket. Default: `run/tidegate.sock`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The socket's permissions, in octal, as text. Default: `"0660"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// The NBD server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NbdConfig {
    /// The Unix sockets. Default: `["run/nbd.sock"]`. `[]` means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Vec<PathBuf>>,
    /// TCP addresses of the NBD server. Default: none.
    pub tcp: Vec<NbdTcp>,
    /// The connection limit. TCP and Unix-socket clients have separate limits of this size. One disk, one process or one
    /// address can use at most half of a limit. Default: 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
}

/// The dashboard, for browsers: on this address, and on the REST interface's socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DashboardConfig {
    /// The address and port, or `off`. Default: `127.0.0.1:8433`, or another free port of `127.0.0.1` if that one is in use.
    /// An address that others can reach needs `token_file` and `tls`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// A file with the token for logging in from a browser. The token has 16 characters or more, and other users must not be
    /// able to read the file. Default: no login on loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A file of the same form with a token for Prometheus. A client that sends it (`Authorization: Bearer`) can read
    /// `/metrics` and nothing else. Default: if `token_file` is set, `/metrics` needs a login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_token_file: Option<PathBuf>,
    /// The certificates for HTTPS. Default: HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
}

/// One TCP address of the NBD server: with `tls`, or with `plaintext = true` on a loopback address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NbdTcp {
    /// The address and port: `"0.0.0.0:10809"`, `"[::1]:10809"`.
    pub listen: String,
    /// The certificates for TLS. Clients without TLS are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Whether to serve without TLS. Allowed on loopback only.
    #[serde(default)]
    pub plaintext: bool,
}

/// Certificates of a TLS listener, as PEM files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The server's certificate, followed by intermediate certificates (PEM).
    pub certificate: PathBuf,
    /// The server's private key (PEM).
    pub key: PathBuf,
    /// The certificate authorities (PEM) that must have issued a client's certificate. Default: clients need no certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// Logging.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// The log filter, in the syntax of `RUST_LOG`: `info`, `tidegate_daemon=debug`. `RUST_LOG` overrides it. Default: `info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The form of the log. Default: `journald` under systemd, else `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
}

/// Log formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines of text, on standard error.
    Text,
    /// One JSON object per line, on standard error.
    Json,
    /// Records with fields, to the systemd journal.
    Journald,
}

/// Why a configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, or a key that is unknown, given twice or of the wrong type.
    // The message is the parser's. The parser's error is therefore not repeated as a cause.
    #[error("{}", crate::toml_error::message(.0))]
    Syntax(toml::de::Error),
    /// Written by a newer program.
    #[error("its version is {0}, this program reads version {VERSION}")]
    Version(u32),
}

impl Config {
    /// Reads the text of a configuration file.
    pub fn read(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(ConfigError::Syntax)?;
        match config.version {
            None | Some(VERSION) => Ok(config),
            Some(other) => Err(ConfigError::Version(other)),
        }
    }

    /// The JSON Schema of the format: for editors, and for the reference.
    pub fn schema() -> schemars::Schema {
        schemars::schema_for!(Config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Problem, ProblemCode};

    #[test]
    fn the_empty_file_is_a_configuration() {
        assert_eq!(Config::read("").unwrap(), Config::default());
    }

    #[test]
    fn a_full_file_is_read_and_survives_being_written() {
        let text = r#"
            version = 1
            [io]
            threads = 2
            max = 4
            policy = "spdk"
            poll = "20us"
            cpus = [2, 3]
            [nbd]
            sockets = []
            [[nbd.tcp]]
            listen = "0.0.0.0:10809"
            tls = { certificate = "tls/cert.pem", key = "tls/key.pem", client_ca = "tls/ca.pem" }
            [[nbd.tcp]]
            listen = "127.0.0.1:10810"
            plaintext = true
            [log]
            format = "json"
        "#;
        let config = Config::read(text).unwrap();
        assert_eq!(config.io.poll, Some(Span(20_000)));
        assert_eq!(config.nbd.tcp.len(), 2);
        let again = toml::to_string(&config).unwrap();
        assert_eq!(Config::read(&again).unwrap(), config);
    }

    #[test]
    fn threads_are_a_number_or_auto() {
        let of = |text: &str| Config::read(&format!("[io]\nthreads = {text}"));
        assert_eq!(of("3").unwrap().io.threads, Some(Threads::Count(3)));
        let auto = of("\"auto\"").unwrap();
        assert_eq!(auto.io.threads, Some(Threads::Auto));
        assert_eq!(
            Config::read(&toml::to_string(&auto).unwrap()).unwrap(),
            auto
        );
        for bad in ["\"many\"", "-1", "1.5", "[]"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn typos_repetitions_and_newer_versions_are_errors() {
        for text in [
            "[io]\nthread = 2",
            "[io]\n[io]",
            "version = 2",
            "[io]\npoll = '20'",
        ] {
            assert!(Config::read(text).is_err(), "{text}");
        }
        let error = Config::read("[io]\nthread = 2").unwrap_err().to_string();
        assert!(
            error.contains("thread") && error.contains("line 2"),
            "{error}"
        );
    }

    #[test]
    fn a_configuration_error_is_reported_once() {
        let error = Config::read("[io]\nthread = 2").unwrap_err();
        let problem = Problem::new(ProblemCode::Invalid, "cannot read it").because_of(&error);
        assert_eq!(problem.why, [error.to_string()]);
    }
}
