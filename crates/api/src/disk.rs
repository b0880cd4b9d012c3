//! Disks in REST: their description, and the orders on them.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::descriptor::CacheMode;
use crate::iocontrol::Admission;
use crate::name::Name;
use crate::problem::Problem;

/// A disk, as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Its name; also its NBD export name.
    pub name: Name,
    /// The datastore that it lies on.
    pub datastore: Name,
    /// Its identity.
    pub uuid: String,
    /// Bytes that a guest sees.
    pub size_bytes: u64,
    /// Bytes that its image takes on the datastore, where that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Bytes of the blocks that a guest is told.
    pub block_size_bytes: u32,
    /// What a guest is told about its writes.
    pub cache: CacheMode,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The serial number that a guest sees.
    pub serial: String,
    /// How many queues a vhost-user guest may use.
    pub queues: u16,
    /// Data segments of one request that a vhost-user guest is told it may use.
    #[serde(default = "usual_seg_max")]
    pub seg_max: u16,
    /// Its stack, top (the guest's end) first.
    pub filters: Vec<String>,
    /// How I/O control treats it.
    pub policy: Policy,
    /// Whether its reservation is promised, while it is attached and has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// The block device that is its image, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub device: Option<PathBuf>,
    /// Paths outside its datastore that its descriptor names: its device, files that its filters write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub outside_paths: Vec<PathBuf>,
    /// Whether it should be attached: so it is at every start of the daemon.
    pub wanted: bool,
    /// Whether it is attached: guests and clients can reach it now.
    pub attached: bool,
    /// Whether it is being detached: nobody can reach it any more, and its I/O in flight has not ended. Until it has, the
    /// disk cannot be attached again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detaching: bool,
    /// The I/O thread that serves it, while it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// How its image is opened while it is attached: `direct`, `buffered (why)`, `memory`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<String>,
    /// Where NBD clients reach it while it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd_uri: Option<String>,
    /// The socket where a virtual machine reaches it while it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub vhost_user_socket: Option<PathBuf>,
    /// Who is connected to it.
    #[serde(default)]
    pub clients: Vec<Client>,
    /// What its guests' rings got wrong, while it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rings: Option<RingCounts>,
    /// The last things that its guests' rings got wrong, newest first, while it is attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ring_faults: Vec<RingFault>,
    /// How its upstream holds, while it is attached and has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<UpstreamCounts>,
    /// What is wrong with it, if something is: a broken descriptor, or why it is wanted but not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// How I/O control treats a disk.
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
    /// IOPS ceiling while a burst lasts; null: no bursts.
    #[serde(default)]
    pub burst_iops: Option<u64>,
    /// How long a full burst lasts at its ceiling; null: 30, if there are bursts.
    #[serde(default)]
    pub burst_seconds: Option<u32>,
    /// Bandwidth ceiling; null: unlimited.
    #[serde(default)]
    pub limit_bytes_per_s: Option<u64>,
    /// The latency that its I/Os should keep; null: none. It may go before others for it, but gets no more.
    #[serde(default)]
    pub latency_target_us: Option<u64>,
    /// Its group, whose limits hold over all the group's disks on this host; null: none.
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

fn usual_seg_max() -> u16 {
    crate::descriptor::MAX_SEG_MAX
}

fn normal_shares() -> u32 {
    crate::units::Shares::NORMAL.get()
}

/// What guests' rings got wrong since a disk was attached. Anything but zeroes is a fault of a guest's driver or of its
/// front end, and hurts that guest only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingCounts {
    /// Requests that made no sense; each was answered with an error.
    pub nonsense_total: u64,
    /// Queues that were stopped because their ring made no sense.
    pub broken_total: u64,
}

/// Something that a guest's ring got wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingFault {
    /// The queue's number on the guest's device.
    pub queue: u16,
    /// What was wrong, as a clause: `the chain of descriptors loops`.
    pub what: String,
    /// Whether it stopped the queue; else one request was answered with an error.
    pub stopped: bool,
    /// How long ago that was, in seconds.
    pub age_s: u64,
}

/// What happened to the connection to a disk's upstream since the disk was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpstreamCounts {
    /// How often it was lost.
    pub lost_total: u64,
    /// Those of them where the upstream broke the protocol.
    pub violations_total: u64,
    /// Those of them where the upstream was silent for too long.
    pub silent_total: u64,
    /// Attempts to come back that succeeded.
    pub returned_total: u64,
    /// Attempts to come back that came to nothing.
    pub refused_total: u64,
}

/// Somebody connected to a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Client {
    /// By which door.
    pub kind: ClientKind,
    /// Who: an address, or the process at the other end of a Unix socket (`pid 4242 uid 1000`).
    pub peer: String,
    /// How long it has been connected.
    pub connected_s: u64,
}

/// The doors to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// A virtual machine.
    VhostUser,
    /// An NBD client on a Unix socket, or on TCP in the clear on loopback.
    Nbd,
    /// An NBD client behind TLS.
    NbdTls,
}

/// All disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskList {
    /// In the order of their names.
    pub disks: Vec<Disk>,
}

/// Whether a new image's space is taken at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// As it is written.
    #[default]
    Thin,
    /// Now.
    Thick,
}

/// An order to create a disk. It is not attached by this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskCreate {
    /// Its name, unique on this host.
    pub name: Name,
    /// Where; null: the only datastore there is, or `local`.
    #[serde(default)]
    pub datastore: Option<Name>,
    /// Bytes that a guest sees. May be null only where the image tells: a device, or an upstream's export.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Bytes of the blocks that a guest is told; null: 512.
    #[serde(default)]
    pub block_size_bytes: Option<u32>,
    /// What a guest is told about its writes.
    #[serde(default)]
    pub cache: CacheMode,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Serial number; null: made from the uuid.
    #[serde(default)]
    pub serial: Option<String>,
    /// How many queues a vhost-user guest may use; null: 16.
    #[serde(default)]
    pub queues: Option<u16>,
    /// Data segments of one request that a vhost-user guest is told it may use, 1 to 126; null: 126.
    #[serde(default)]
    pub seg_max: Option<u16>,
    /// Its stack, top first; null: `["stats"]`.
    #[serde(default)]
    pub filters: Option<Vec<String>>,
    /// How I/O control treats it.
    #[serde(default)]
    pub policy: Policy,
    /// What becomes of a reservation that cannot be promised.
    #[serde(default)]
    pub unpromised: Unpromised,
    /// Whether its space is taken now.
    #[serde(default)]
    pub allocation: Allocation,
    /// A block device that is to be its image.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub device: Option<PathBuf>,
    /// The upstream's export name, where it is not the disk's own.
    #[serde(default)]
    pub export: Option<String>,
}

impl DiskCreate {
    /// A disk with everything but its name and size left as it is by default.
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
            policy: Policy::default(),
            unpromised: Unpromised::Refuse,
            allocation: Allocation::Thin,
            device: None,
            export: None,
        }
    }
}

/// Changes to a disk; what is absent stays. Filters and policy take effect at once, on attached disks too; the others
/// need a detached disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskSet {
    /// What a guest is told about its writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheMode>,
    /// Whether writes are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Serial number; empty: made from the uuid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// How many queues a vhost-user guest may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// Data segments of one request that a vhost-user guest is told it may use, 1 to 126.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seg_max: Option<u16>,
    /// The whole stack, top first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<String>>,
    /// Changes to its policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicySet>,
    /// What becomes of a reservation that cannot be promised.
    #[serde(default, skip_serializing_if = "Unpromised::is_refuse")]
    pub unpromised: Unpromised,
}

/// What becomes of a reservation that the datastore cannot keep beside all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unpromised {
    /// The order is refused.
    #[default]
    Refuse,
    /// It is kept as far as it goes: all reservations shrink in proportion while they cannot be met.
    BestEffort,
}

impl Unpromised {
    fn is_refuse(&self) -> bool {
        *self == Unpromised::Refuse
    }
}

/// Changes to a policy. Absent: as it is. For a limit, null: unlimited.
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
    /// IOPS ceiling while a burst lasts.
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
    /// The latency that its I/Os should keep; null: none.
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

/// Tells an absent key (`None`, by default) from a null one (`Some(None)`), as JSON merge patch (RFC 7396) does.
pub(crate) fn null_is_a_value<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(d).map(Some)
}

/// An order to attach a disk: to open it and let guests and clients in. Remembered over restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskAttach {
    /// What to do about a host that had it open and fell silent.
    #[serde(default)]
    pub takeover: Takeover,
    /// What to do about devices and files outside its datastore that its descriptor names.
    #[serde(default)]
    pub outside: Outside,
    /// With `outside` = `accept`: the paths that are agreed to. If the descriptor names another one by then, the order is
    /// refused. Absent: all that it names then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub accepted_paths: Option<Vec<PathBuf>>,
    /// Whether it may be written to, as long as it is attached.
    #[serde(default, skip_serializing_if = "Access::is_as_set")]
    pub access: Access,
}

/// Whether an attached disk may be written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// As the disk's settings say.
    #[default]
    AsSet,
    /// Nobody may write to it, whatever its settings say: for a disk whose file system can only be read.
    ReadOnly,
}

impl Access {
    fn is_as_set(&self) -> bool {
        *self == Access::AsSet
    }
}

/// What to do about paths outside a disk's datastore that its descriptor names: the block device that is its image, files
/// that its filters write. Whoever can write to the datastore can write them there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outside {
    /// Use those that an administrator of this host has named or agreed to. Another device is an error; filters that write
    /// other files are left out.
    #[default]
    Agreed,
    /// Agree to what the descriptor names: to the accepted paths, or, without those, to all that it names now.
    Accept,
}

/// What to do about a host that had a disk open and fell silent without giving it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Takeover {
    /// Take the disk over if the datastore keeps that host from writing; refuse otherwise.
    #[default]
    Guarded,
    /// Take it over: somebody has made sure that the host is dead or cut off. One that is seen alive keeps its disk.
    Fenced,
}

/// An order to detach a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskDetach {
    /// What to do about those who are connected.
    #[serde(default)]
    pub clients: Clients,
}

/// What becomes of a disk's clients when it is detached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
    /// If there are any, the disk stays attached.
    #[default]
    Keep,
    /// They are disconnected.
    Disconnect,
}

/// An order to change a disk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskResize {
    /// The new size.
    pub size_bytes: u64,
    /// What may be lost: below its present size a disk's end is cut off.
    #[serde(default)]
    pub data: ResizeData,
}

/// Whether a resize may throw data away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ResizeData {
    /// Refuse to shrink.
    #[default]
    Keep,
    /// Shrink, if that is what is asked.
    MayCutOff,
}

/// How to reach an attached disk from some program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snippet {
    /// For whom.
    pub r#for: SnippetFor,
    /// Ready to paste.
    pub text: String,
}

/// The programs that we know how to configure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SnippetFor {
    /// QEMU's command line.
    Qemu,
    /// A piece of libvirt's domain XML.
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

    /// The word for it.
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
    fn a_policy_change_tells_null_from_absent() {
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
    fn the_least_order_to_create_needs_a_name_only() {
        let create: DiskCreate =
            serde_json::from_str(r#"{"name": "a", "size_bytes": 512}"#).unwrap();
        assert_eq!(create, DiskCreate::new("a".parse().unwrap(), 512));
        assert!(serde_json::from_str::<DiskCreate>(r#"{"name": "../a"}"#).is_err());
    }
}
