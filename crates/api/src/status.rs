//! The state of the daemon, as `tidegate status` shows it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::config::ThreadPolicy;
use crate::dense::DenseStatus;
use crate::events::IoThreadAction;
use crate::problem::Problem;

/// The daemon's current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Its lifecycle state.
    pub state: State,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// How long it has been running.
    pub uptime_s: u64,
    /// The directory of configuration, state and sockets.
    #[schema(value_type = String)]
    pub root: PathBuf,
    /// The configuration file that it read, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub config: Option<PathBuf>,
    /// The socket of this API.
    #[schema(value_type = String)]
    pub api_socket: PathBuf,
    /// Its NBD listeners.
    pub nbd_listeners: Vec<NbdListener>,
    /// The certificates of its TLS listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_certificates: Vec<TlsCertificate>,
    /// The dashboard's address, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dashboard: Option<String>,
    /// Number of I/O threads that take disks.
    pub threads: u32,
    /// What decides on their number and their disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_policy: Option<ThreadPolicyStatus>,
    /// Dense mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<DenseStatus>,
    /// Number of datastores.
    pub datastores: u64,
    /// Number of disks.
    pub disks: u64,
    /// Number of attached disks.
    pub attached: u64,
    /// Number of connected vhost-user guests and NBD clients.
    pub clients: u64,
    /// Current problems of disks (wanted but not attached, degraded, damaged image), datastores (full, unreachable) and
    /// certificates (expired, or soon to expire).
    #[serde(default)]
    pub problems: Vec<Problem>,
}

/// The policy of I/O threads: its settings, and what it has done since the daemon's start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThreadPolicyStatus {
    /// The policy.
    pub policy: ThreadPolicy,
    /// At least so many threads take disks.
    pub min: u32,
    /// At most so many threads take disks.
    pub max: u32,
    /// Whether it rests because no I/O thread works.
    pub resting: bool,
    /// Whether idle threads may poll.
    pub may_poll: bool,
    /// The last decision that changed the number of threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<ThreadChange>,
    /// Disks moved.
    pub moves: u64,
    /// Threads activated.
    pub activated: u64,
    /// Threads parked.
    pub parked: u64,
    /// Changes that did good and were kept.
    pub kept: u64,
    /// Changes that did no good and were undone.
    pub undone: u64,
    /// Changes without a verdict, because the load changed meanwhile.
    pub void: u64,
    /// Decisions that could not be carried out.
    pub failed: u64,
    /// How often requests were found to wait for a thread that could not be relieved.
    pub findings: u64,
    /// How often it has looked at the threads.
    pub ticks: u64,
    /// CPU time that it has used, in microseconds.
    pub cpu_us: u64,
}

/// A change of the number of I/O threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThreadChange {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What was done.
    pub action: IoThreadAction,
    /// The thread.
    pub thread: u32,
    /// Why, with the measured values.
    pub why: String,
}

/// The daemon's lifecycle states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is attaching the wanted disks.
    Starting,
    /// It is serving.
    Serving,
    /// It completes the I/O in flight and stops.
    Stopping,
}

/// An NBD listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NbdListener {
    /// A socket's path, or an address and port.
    pub address: String,
    /// How it is protected.
    pub security: NbdSecurity,
}

/// The certificate of a TLS listener; of a chain, the one that expires first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TlsCertificate {
    /// The listener that uses it: `nbd` or `dashboard`, and the address.
    pub listener: String,
    /// The file that it was read from.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Its subject.
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
    /// By TLS; the server presents its certificate.
    Tls,
    /// By TLS; client and server present their certificates.
    MutualTls,
    /// Not protected: loopback only.
    Plaintext,
}
