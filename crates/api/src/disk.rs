//! Disks in REST: their state, and requests on them.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::cache::{Dirty, DiskFlash};
use crate::descriptor::{CacheMode, MemberPlace, OnLoss};
use crate::io::{Coalesce, IO_WEIGHT, IoClass};
use crate::iocontrol::Admission;
use crate::layout::{Member, Scrub};
use crate::name::Name;
use crate::or_default::{NumberOrDefault, OrDefault};
use crate::problem::{Problem, ProblemCode};

/// A disk's current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Its name; also its NBD export name.
    pub name: Name,
    /// The datastore that it lies on.
    pub datastore: Name,
    /// Its identity.
    pub uuid: String,
    /// Disk size in bytes.
    pub size_bytes: u64,
    /// Bytes that its images occupy on their datastores, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Block size that the guest sees, in bytes.
    pub block_size_bytes: u32,
    /// Cache mode that the guest sees: when its writes are durable.
    pub cache: CacheMode,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// The serial number that the guest sees.
    pub serial: String,
    /// The most queues that a vhost-user guest may use.
    pub queues: u16,
    /// The most data segments that a vhost-user guest may use in one request.
    #[serde(default = "usual_seg_max")]
    pub seg_max: u16,
    /// How its bytes lie on its members: `plain` (one image), `mirror`, `stripe:chunk=256KiB`, ...
    #[serde(default = "plain")]
    pub layout: String,
    /// The members of its layout, in order. Empty: a plain disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// How long a member may leave I/O unanswered before the disk goes on without it, if it has members like that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_timeout_ms: Option<u64>,
    /// What its guests' I/O does after the loss of every member that has all bytes, if it is a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_loss: Option<OnLoss>,
    /// How soon its requests are taken where others compete for its I/O thread.
    #[serde(default)]
    pub io_class: IoClass,
    /// Its weight among the disks of its I/O thread, 1 to 100.
    #[serde(default = "usual_io_weight")]
    pub io_weight: u32,
    /// How its completions are coalesced: `off`, `static:16,64us`, `adaptive`, or `default`: as the daemon's configuration says.
    #[serde(default)]
    #[schema(value_type = String)]
    pub coalesce: OrDefault<Coalesce>,
    /// The vCPUs of the virtual machine that uses it, as declared; `default`: they are counted.
    #[serde(default)]
    #[schema(inline, value_type = NumberOrDefault)]
    pub vcpus: OrDefault<u32>,
    /// The comparison of its members that runs, or the last one since it was attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<Scrub>,
    /// Its flash cache, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash: Option<DiskFlash>,
    /// Its part of its pool, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<DiskInPool>,
    /// Its filter stack, guest side first.
    pub filters: Vec<String>,
    /// Its I/O control policy.
    pub policy: Policy,
    /// Whether its reservation can be met. Only while it is attached and has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// The block device that is its image, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub device: Option<PathBuf>,
    /// Paths outside its datastore that its descriptor names: its device, and files that its filters write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub outside_paths: Vec<PathBuf>,
    /// Whether it should be attached. The daemon attaches it at every start.
    pub wanted: bool,
    /// Whether it is attached: guests and clients can connect now.
    pub attached: bool,
    /// Whether it is detaching: no client can connect, and its I/O in flight has not completed. It can be attached
    /// again only after that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detaching: bool,
    /// The I/O thread that serves it, while it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// How its image is open while it is attached: `direct`, `buffered (why)`, `memory`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<String>,
    /// The address for NBD clients while it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd_uri: Option<String>,
    /// The vhost-user socket for a virtual machine while it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub vhost_user_socket: Option<PathBuf>,
    /// Its connected clients.
    #[serde(default)]
    pub clients: Vec<Client>,
    /// Errors in its guests' rings while it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rings: Option<RingCounts>,
    /// The latest errors in its guests' rings, newest first, while it is attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ring_faults: Vec<RingFault>,
    /// The connection to its upstream, while it is attached and has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<UpstreamCounts>,
    /// What is wrong with it, if anything: a broken descriptor, or why it is wanted but not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

impl Disk {
    /// Whether it is what is left of a disk that is elsewhere now.
    pub fn is_outdated(&self) -> bool {
        let code = self.problem.as_ref().map(|problem| problem.code);
        code == Some(ProblemCode::Exists) && !self.attached
    }
}

/// A disk's part of its pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskInPool {
    /// Bytes that it has reserved and not taken yet, if it is thick.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Bytes of the pool that it has.
    pub granted_bytes: u64,
    /// Bytes of these that have data, of the disk and its snapshots; null while it is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_bytes: Option<u64>,
    /// Writes that wait for space now.
    #[serde(default)]
    pub waiting: u32,
    /// Whether the pool has no space for it: its writes to new space fail.
    #[serde(default)]
    pub refused: bool,
    /// Why it gets no space, if the pool's catalog cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

fn plain() -> String {
    "plain".to_owned()
}

/// A disk's I/O control policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Relative weight.
    #[serde(default = "normal_shares")]
    pub shares: u32,
    /// IOPS floor.
    #[serde(default)]
    pub reservation_iops: u64,
    /// IOPS ceiling; null: unlimited.
    #[serde(default)]
    pub limit_iops: Option<u64>,
    /// IOPS ceiling during a burst; null: no bursts.
    #[serde(default)]
    pub burst_iops: Option<u64>,
    /// How long a full burst lasts at its ceiling; null: 30, if there are bursts.
    #[serde(default)]
    pub burst_seconds: Option<u32>,
    /// Bandwidth ceiling; null: unlimited.
    #[serde(default)]
    pub limit_bytes_per_s: Option<u64>,
    /// Target latency of its I/Os; null: none. The scheduler may order its I/Os first to meet it, but gives it no more
    /// I/Os.
    #[serde(default)]
    pub latency_target_us: Option<u64>,
    /// Its group; null: none. The group's limits apply to the sum of its disks on this host.
    #[serde(default)]
    pub group: Option<Name>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            shares: normal_shares(),
            reservation_iops: 0,
            limit_iops: None,
            burst_iops: None,
            burst_seconds: None,
            limit_bytes_per_s: None,
            latency_target_us: None,
            group: None,
        }
    }
}

fn usual_io_weight() -> u32 {
    IO_WEIGHT
}

fn usual_seg_max() -> u16 {
    crate::descriptor::MAX_SEG_MAX
}

fn normal_shares() -> u32 {
    crate::units::Shares::NORMAL.get()
}

/// Errors in guests' rings since a disk was attached. Any other value than zero is a fault of a guest's driver or front
/// end, and affects that guest only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingCounts {
    /// Malformed requests. Each was answered with an error.
    pub nonsense_total: u64,
    /// Queues that were stopped because their ring was malformed.
    pub broken_total: u64,
}

/// An error in a guest's ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingFault {
    /// The queue's number on the guest's device.
    pub queue: u16,
    /// What was wrong, as a clause: `the chain of descriptors loops`.
    pub what: String,
    /// Whether it stopped the queue. Otherwise one request was answered with an error.
    pub stopped: bool,
    /// Seconds since it happened.
    pub age_s: u64,
}

/// Connection failures of a disk's upstream since the disk was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpstreamCounts {
    /// Lost connections.
    pub lost_total: u64,
    /// Lost connections because the upstream broke the protocol.
    pub violations_total: u64,
    /// Lost connections because the upstream did not respond in time.
    pub silent_total: u64,
    /// Successful attempts to reconnect.
    pub returned_total: u64,
    /// Failed attempts to reconnect.
    pub refused_total: u64,
}

/// A client connected to a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Client {
    /// How it is connected.
    pub kind: ClientKind,
    /// Its address, or the process at the other end of a Unix socket (`pid 4242 uid 1000`).
    pub peer: String,
    /// Seconds since it connected.
    pub connected_s: u64,
}

/// The ways to connect to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// A virtual machine.
    VhostUser,
    /// An NBD client on a Unix socket, or on a loopback TCP address without TLS.
    Nbd,
    /// An NBD client over TLS.
    NbdTls,
}

/// All disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskList {
    /// In the order of their names.
    pub disks: Vec<Disk>,
}

/// When a new image's space is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// When it is written.
    #[default]
    Thin,
    /// When it is created.
    Thick,
}

/// A request to create a disk. It does not attach the disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskCreate {
    /// Its name, unique on this host.
    pub name: Name,
    /// Its datastore; null: the only datastore, or `local`.
    #[serde(default)]
    pub datastore: Option<Name>,
    /// Disk size in bytes. May be null only if the image has a size already: a device, or an upstream's export.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Block size that the guest sees, in bytes; null: 512.
    #[serde(default)]
    pub block_size_bytes: Option<u32>,
    /// Cache mode that the guest sees: when its writes are durable.
    #[serde(default)]
    pub cache: CacheMode,
    /// Whether writes are rejected.
    #[serde(default)]
    pub read_only: bool,
    /// Serial number; null: derived from the uuid.
    #[serde(default)]
    pub serial: Option<String>,
    /// The most queues that a vhost-user guest may use; null: 16.
    #[serde(default)]
    pub queues: Option<u16>,
    /// The most data segments that a vhost-user guest may use in one request, 1 to 126; null: 126.
    #[serde(default)]
    pub seg_max: Option<u16>,
    /// Its filter stack, guest side first; null: `["stats"]`.
    #[serde(default)]
    pub filters: Option<Vec<String>>,
    /// How soon its requests are taken where others compete for its I/O thread.
    #[serde(default)]
    pub io_class: IoClass,
    /// Its weight among the disks of its I/O thread, 1 to 100, or `default`: 10.
    #[serde(default)]
    #[schema(inline, value_type = NumberOrDefault)]
    pub io_weight: OrDefault<u32>,
    /// How its completions are coalesced: `off`, `static:16,64us`, `adaptive`, or `default`: as the daemon's configuration says.
    #[serde(default)]
    #[schema(value_type = String)]
    pub coalesce: OrDefault<Coalesce>,
    /// The vCPUs of the virtual machine that uses it, 1 to 4096, or `default`: they are counted.
    #[serde(default)]
    #[schema(inline, value_type = NumberOrDefault)]
    pub vcpus: OrDefault<u32>,
    /// Its I/O control policy.
    #[serde(default)]
    pub policy: Policy,
    /// What to do if its reservation cannot be met.
    #[serde(default)]
    pub unpromised: Unpromised,
    /// Whether to allocate its space now.
    #[serde(default)]
    pub allocation: Allocation,
    /// A block device to use as its image.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub device: Option<PathBuf>,
    /// The upstream's export name, if it differs from the disk's name.
    #[serde(default)]
    pub export: Option<String>,
    /// How its bytes lie on its members: `mirror`, `stripe:chunk=256KiB`, `mirror+stripe`; null: `plain`, one image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Where the members of its layout are, in order. A layout that is not `plain` needs them, instead of `datastore`,
    /// `device` and `export`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberPlace>,
}

impl DiskCreate {
    /// A disk of that name and size with default settings.
    pub fn new(name: Name, size_bytes: u64) -> DiskCreate {
        DiskCreate {
            name,
            datastore: None,
            size_bytes: Some(size_bytes),
            block_size_bytes: None,
            cache: CacheMode::default(),
            read_only: false,
            serial: None,
            queues: None,
            seg_max: None,
            filters: None,
            io_class: IoClass::Normal,
            io_weight: OrDefault::Default,
            coalesce: OrDefault::Default,
            vcpus: OrDefault::Default,
            policy: Policy::default(),
            unpromised: Unpromised::Refuse,
            allocation: Allocation::Thin,
            device: None,
            export: None,
            layout: None,
            members: Vec::new(),
        }
    }
}

/// Changes to a disk. An absent field stays as it is. Filters, policy, and how its I/O thread serves it take effect at once,
/// on attached disks too.
/// The other fields need a detached disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskSet {
    /// Cache mode that the guest sees: when its writes are durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheMode>,
    /// Whether writes are rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Serial number; empty: derived from the uuid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The most queues that a vhost-user guest may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// The most data segments that a vhost-user guest may use in one request, 1 to 126.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seg_max: Option<u16>,
    /// The whole filter stack, guest side first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<String>>,
    /// How long a member of a mirror may leave I/O unanswered before the mirror goes on without it, or `default`: 10 seconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_refused"
    )]
    #[schema(inline, value_type = Option<NumberOrDefault>)]
    pub member_timeout_ms: Option<OrDefault<u64>>,
    /// What a mirror does with guests' I/O after the loss of every member that has all bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_loss: Option<OnLoss>,
    /// How soon its requests are taken where others compete for its I/O thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_class: Option<IoClass>,
    /// Its weight among the disks of its I/O thread, 1 to 100, or `default`: 10.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_refused"
    )]
    #[schema(inline, value_type = Option<NumberOrDefault>)]
    pub io_weight: Option<OrDefault<u32>>,
    /// How its completions are coalesced: `off`, `static:16,64us`, `adaptive`, or `default`: as the daemon's configuration says.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_refused"
    )]
    #[schema(value_type = Option<String>)]
    pub coalesce: Option<OrDefault<Coalesce>>,
    /// The vCPUs of the virtual machine that uses it, 1 to 4096, or `default`: they are counted. Dense mode counts with them.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_refused"
    )]
    #[schema(inline, value_type = Option<NumberOrDefault>)]
    pub vcpus: Option<OrDefault<u32>>,
    /// Changes to its policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicySet>,
    /// What to do if its reservation cannot be met.
    #[serde(default, skip_serializing_if = "Unpromised::is_refuse")]
    pub unpromised: Unpromised,
}

/// What to do with a reservation that the datastore cannot meet together with all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unpromised {
    /// Reject the request.
    #[default]
    Refuse,
    /// Accept it. All reservations shrink in proportion while they cannot be met.
    BestEffort,
}

impl Unpromised {
    fn is_refuse(&self) -> bool {
        *self == Unpromised::Refuse
    }
}

/// Changes to a policy. An absent field stays as it is. For a limit, null: unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySet {
    /// Relative weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<u32>,
    /// IOPS floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_iops: Option<u64>,
    /// IOPS ceiling.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_a_value"
    )]
    #[schema(value_type = Option<u64>)]
    pub limit_iops: Option<Option<u64>>,
    /// Bandwidth ceiling.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_a_value"
    )]
    #[schema(value_type = Option<u64>)]
    pub limit_bytes_per_s: Option<Option<u64>>,
    /// IOPS ceiling during a burst.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_a_value"
    )]
    #[schema(value_type = Option<u64>)]
    pub burst_iops: Option<Option<u64>>,
    /// How long a full burst lasts at its ceiling; null: 30.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_a_value"
    )]
    #[schema(value_type = Option<u32>)]
    pub burst_seconds: Option<Option<u32>>,
    /// Target latency of its I/Os; null: none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_a_value"
    )]
    #[schema(value_type = Option<u64>)]
    pub latency_target_us: Option<Option<u64>>,
    /// Its group; null: none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_is_a_value"
    )]
    #[schema(value_type = Option<String>)]
    pub group: Option<Option<Name>>,
}

/// Distinguishes an absent key (`None`, by default) from a null one (`Some(None)`), like JSON merge patch (RFC 7396).
pub(crate) fn null_is_a_value<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(d).map(Some)
}

/// Reads a value that is there; `null` is none.
fn null_is_refused<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(d).map(Some)
}

/// A request to attach a disk: to open it and accept guests and clients. The daemon attaches it again after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskAttach {
    /// What to do about a silent host that had it open.
    #[serde(default)]
    pub takeover: Takeover,
    /// What to do about devices and files outside its datastore that its descriptor names.
    #[serde(default)]
    pub outside: Outside,
    /// With `outside` = `accept`: the accepted paths. The request fails if the descriptor names another path. Absent:
    /// all paths that it names at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub accepted_paths: Option<Vec<PathBuf>>,
    /// Whether it may be written to while it is attached.
    #[serde(default, skip_serializing_if = "Access::is_as_set")]
    pub access: Access,
    /// Members to give up: what only they have is lost. For a mirror that is refused because these members are away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<u8>,
    /// Devices of its flash cache to give up, from 0: what only they have is lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_flash: Vec<u8>,
    /// What to do about what only its flash cache has: `save` or `discard`.
    #[serde(default, skip_serializing_if = "Dirty::is_save")]
    pub dirty: Dirty,
}

/// Whether an attached disk may be written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// As the disk's settings say.
    #[default]
    AsSet,
    /// It is read-only whatever its settings say. For a disk on a read-only file system.
    ReadOnly,
}

impl Access {
    fn is_as_set(&self) -> bool {
        *self == Access::AsSet
    }
}

/// What to do about paths outside a disk's datastore that its descriptor names.
/// They are the block device that is its image, and files that its filters write. Every program that can write to the
/// datastore can put paths there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outside {
    /// Use the paths that an administrator of this host has named or accepted. Any other device is an error. Filters
    /// that write other files are left out.
    #[default]
    Agreed,
    /// Accept the paths that the descriptor names: the given ones, or all that it names now.
    Accept,
}

/// What to do about a host that had a disk open and stopped renewing its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Takeover {
    /// Take the disk over if the datastore can fence that host. Otherwise fail.
    #[default]
    Guarded,
    /// Take it over: an administrator has made sure that the host is dead or fenced. A host that is seen alive stays
    /// the owner.
    Fenced,
}

/// A request to detach a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskDetach {
    /// What to do about connected clients.
    #[serde(default)]
    pub clients: Clients,
    /// What to do about what only its flash cache has: `save` or `keep`.
    #[serde(default, skip_serializing_if = "Dirty::is_save")]
    pub dirty: Dirty,
}

impl From<Clients> for DiskDetach {
    fn from(clients: Clients) -> DiskDetach {
        DiskDetach {
            clients,
            dirty: Dirty::Save,
        }
    }
}

/// What to do about a disk's clients when it is detached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
    /// If there are any, the request fails and the disk stays attached.
    #[default]
    Keep,
    /// Disconnect them.
    Disconnect,
}

/// A request to change a disk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskResize {
    /// The new size.
    pub size_bytes: u64,
    /// Whether data may be lost. A smaller size cuts off the disk's end.
    #[serde(default)]
    pub data: ResizeData,
}

/// Whether a resize may discard data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ResizeData {
    /// Never shrink.
    #[default]
    Keep,
    /// Shrink if the new size is smaller.
    MayCutOff,
}

/// The text that connects a program to an attached disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snippet {
    /// The program.
    pub r#for: SnippetFor,
    /// Ready to paste.
    pub text: String,
}

/// The supported programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SnippetFor {
    /// QEMU's command line.
    Qemu,
    /// An element of libvirt's domain XML.
    Libvirt,
    /// Cloud Hypervisor's command line.
    CloudHypervisor,
    /// The NBD tools: qemu-img, nbdinfo, nbdcopy.
    Nbd,
    /// A fio command.
    Fio,
}

impl SnippetFor {
    /// All of them.
    pub const ALL: [SnippetFor; 5] = [
        SnippetFor::Qemu,
        SnippetFor::Libvirt,
        SnippetFor::CloudHypervisor,
        SnippetFor::Nbd,
        SnippetFor::Fio,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            SnippetFor::Qemu => "qemu",
            SnippetFor::Libvirt => "libvirt",
            SnippetFor::CloudHypervisor => "cloud-hypervisor",
            SnippetFor::Nbd => "nbd",
            SnippetFor::Fio => "fio",
        }
    }
}

impl std::str::FromStr for SnippetFor {
    type Err = String;
    fn from_str(text: &str) -> Result<SnippetFor, String> {
        SnippetFor::ALL
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| {
                let known: Vec<_> = SnippetFor::ALL.iter().map(|k| k.as_str()).collect();
                format!(
                    "there is no snippet for '{text}': use one of {}",
                    known.join(", ")
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_change_distinguishes_null_from_absent() {
        let set: PolicySet =
            serde_json::from_str(r#"{"limit_iops": null, "shares": 2000}"#).unwrap();
        assert_eq!(set.limit_iops, Some(None));
        assert_eq!(set.limit_bytes_per_s, None);
        assert_eq!(
            serde_json::to_string(&set).unwrap(),
            r#"{"shares":2000,"limit_iops":null}"#
        );
    }

    #[test]
    fn null_is_not_taken_for_a_setting_that_stays() {
        for key in ["io_weight", "coalesce", "vcpus", "member_timeout_ms"] {
            let set =
                |value: &str| serde_json::from_str::<DiskSet>(&format!("{{\"{key}\": {value}}}"));
            let error = set("null").unwrap_err().to_string();
            assert!(error.contains("\"default\""), "{key}: {error}");
            assert_ne!(set("\"default\"").unwrap(), DiskSet::default());
        }
        assert_eq!(
            serde_json::from_str::<DiskSet>("{}").unwrap(),
            DiskSet::default()
        );
    }

    #[test]
    fn a_create_request_needs_a_name_only() {
        let create: DiskCreate =
            serde_json::from_str(r#"{"name": "a", "size_bytes": 512}"#).unwrap();
        assert_eq!(create, DiskCreate::new("a".parse().unwrap(), 512));
        assert!(serde_json::from_str::<DiskCreate>(r#"{"name": "../a"}"#).is_err());
    }
}
