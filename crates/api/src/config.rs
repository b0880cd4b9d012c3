//! The configuration file `tidegate.toml`.
//!
//! These are raw words. The daemon's plan checks them and turns them into decisions; until then an absent value only
//! means that nobody said anything.
//!
//! # Always true
//! - An unknown key is an error, never a silent typo; a key given twice is an error.
//! - Every field may be left out: the empty file is a configuration, and the one most hosts should have.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Span;

/// The version of the format that this program reads.
pub const VERSION: u32 = 1;

/// The whole file. Paths that are not absolute are taken from the root directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The format's version: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// This host, as others know it.
    pub host: HostConfig,
    /// I/O threads.
    pub io: IoConfig,
    /// The REST interface.
    pub api: ApiConfig,
    /// The NBD server.
    pub nbd: NbdConfig,
    /// The dashboard, for browsers.
    pub dashboard: DashboardConfig,
    /// Logging.
    pub log: LogConfig,
}

/// What is told of this host to those that share its datastores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostConfig {
    /// What it is called in reports, events and errors, here and elsewhere; up to 64 printable ASCII characters. Names are for
    /// people: hosts know each other by identities that are drawn. Default: the machine's host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The threads that serve all disks' I/O.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoConfig {
    /// How many I/O threads. Default: half the CPUs, at least 1 and at most 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u16>,
    /// How long an idle I/O thread looks for more work before it sleeps, at most; whether that or a quarter of it is
    /// better is learnt. `0` sleeps at once. Default: `200us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<Span>,
    /// CPUs to pin the I/O threads to, one each, in order. Default: not pinned.
    pub cpus: Vec<u32>,
}

/// The REST interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// Its Unix socket. Default: `run/tidegate.sock`.
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
    /// Its Unix sockets. Default: `["run/nbd.sock"]`; `[]` is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Vec<PathBuf>>,
    /// TCP addresses to listen on as well. Default: none.
    pub tcp: Vec<NbdTcp>,
    /// The most clients at a time on Unix sockets, and as many again on TCP. Half of them may be of one disk, or of one
    /// process or address. Default: 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
}

/// The dashboard, for browsers: on this address, and on the REST interface's socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DashboardConfig {
    /// Address and port, or `off`. Default: `127.0.0.1:8433`, or any free port there if that one is taken. An address that others
    /// can reach needs `token_file` and `tls`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// A file with the token by which browsers log in; 16 characters or more, and not for others to read. Default: no
    /// login on loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A file with a token for Prometheus, of the same form: who sends it (`Authorization: Bearer`) reads `/metrics` and
    /// nothing else. Default: with `token_file`, nobody does who has not logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_token_file: Option<PathBuf>,
    /// Certificates: serve by HTTPS. Default: HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
}

/// One TCP address of the NBD server: with `tls`, or with `plaintext = true` on a loopback address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NbdTcp {
    /// Address and port: `"0.0.0.0:10809"`, `"[::1]:10809"`.
    pub listen: String,
    /// Certificates. Clients that do not speak TLS are turned away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Serve without TLS. Only on loopback.
    #[serde(default)]
    pub plaintext: bool,
}

/// Certificates of a TLS listener, PEM files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The server's certificate, and any between it and the root.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// The authorities whose clients are let in. Default: any client is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// Logging.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// What is logged, as `RUST_LOG` has it: `info`, `tidegate_daemon=debug`. Default: `info`; `RUST_LOG` goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// In which form. Default: `journald` under systemd, else `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
}

/// Forms of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for people, on standard error.
    Text,
    /// One JSON object a line, on standard error.
    Json,
    /// Records with fields, to the systemd journal.
    Journald,
}

/// Why a configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, or a key that is unknown, given twice or of the wrong type.
    // It is the parser's message, so the parser's error is no reason below it.
    #[error("{}", crate::toml_error::message(.0))]
    Syntax(toml::de::Error),
    /// Written for a program that knows more than this one.
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
    fn what_is_wrong_with_a_configuration_is_told_once() {
        let error = Config::read("[io]\nthread = 2").unwrap_err();
        let problem = Problem::new(ProblemCode::Invalid, "cannot read it").because_of(&error);
        assert_eq!(problem.why, [error.to_string()]);
    }
}
