//! The state of the daemon, as `tidegate status` shows it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;

/// The daemon, as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// What it is doing with its life.
    pub state: State,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// How long it has been running.
    pub uptime_s: u64,
    /// Where configuration, state and sockets are.
    #[schema(value_type = String)]
    pub root: PathBuf,
    /// The configuration file that it read, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub config: Option<PathBuf>,
    /// The socket of this API.
    #[schema(value_type = String)]
    pub api_socket: PathBuf,
    /// Where it listens for NBD clients.
    pub nbd_listeners: Vec<NbdListener>,
    /// The certificates that its TLS listeners show.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_certificates: Vec<TlsCertificate>,
    /// Where browsers find the dashboard, if it has an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dashboard: Option<String>,
    /// How many I/O threads it has.
    pub threads: u32,
    /// How many datastores it knows.
    pub datastores: u64,
    /// How many disks it knows.
    pub disks: u64,
    /// How many of them are attached.
    pub attached: u64,
    /// How many vhost-user guests and NBD clients are connected.
    pub clients: u64,
    /// What went wrong and still is: disks that are wanted and could not be attached or whose images are harmed,
    /// datastores that are full or out of reach, certificates that have expired or soon will.
    #[serde(default)]
    pub problems: Vec<Problem>,
}

/// The daemon's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It attaches the disks that are remembered.
    Starting,
    /// It serves.
    Serving,
    /// It finishes what is in flight and stops.
    Stopping,
}

/// Where NBD clients can knock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NbdListener {
    /// A socket's path, or an address and port.
    pub address: String,
    /// How it is protected.
    pub security: NbdSecurity,
}

/// The certificate of a TLS listener; of a chain the one that ends first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TlsCertificate {
    /// Where it is shown: `nbd` or `dashboard`, and the address.
    pub listener: String,
    /// The file that it was read from.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Whose it is.
    pub subject: String,
    /// When it expires, in milliseconds since 1970.
    pub expires_at_ms: i64,
    /// Whole days until then, rounded down: negative once it has expired.
    pub days_left: i64,
}

/// How an NBD listener is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NbdSecurity {
    /// By the permissions of its socket file.
    Unix,
    /// By TLS; the server shows its certificate.
    Tls,
    /// By TLS; client and server show their certificates.
    MutualTls,
    /// Not at all: loopback only.
    Plaintext,
}
