//! Events: congestion, missed reservations, other hosts, expiring certificates.
//!
//! The daemon numbers events in order of arrival, logs each once, stores the latest, and streams them.
//!
//! # Always true
//! - Numbers grow by one. They start again when the daemon starts.
//!
//! # Units
//! Every key ends in its unit.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cache::CacheTarget;
use crate::dense::DenseConditions;
use crate::name::Name;
use crate::pool::PoolLevel;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The datastore; none when it concerns the whole host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<Name>,
    /// The kind of event, with its fields.
    #[serde(flatten)]
    pub happening: Happening,
    /// The same as a sentence.
    pub text: String,
}

/// The kinds of events. New ones may be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Happening {
    /// The datastore is congested. Shares and windows apply from now on.
    Engaged {
        /// Its latency.
        latency_us: f64,
        /// The threshold that it exceeded.
        threshold_us: f64,
    },
    /// It is no longer congested.
    Disengaged,
    /// A disk had I/O waiting for a whole second and got less than its reservation.
    ReservationUnmet {
        /// The disk; none if it has been detached since.
        #[serde(default)]
        disk: Option<Name>,
    },
    /// All reservations together exceed the datastore's capability. Each is met in proportion.
    ReservationsShrunk {
        /// The percentage of them that is met.
        percent: u32,
    },
    /// A disk's burst is almost or completely used up.
    BurstLow {
        /// The disk; none if it has been detached since.
        #[serde(default)]
        disk: Option<Name>,
        /// The most that is left of it: 20 or 0 percent.
        percent: u64,
    },
    /// Another host uses this datastore.
    HostSeen {
        /// Its identity.
        host: String,
        /// Its name, if it reports one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A host no longer uses this datastore.
    HostLost {
        /// Its identity.
        host: String,
        /// Its name, if it reports one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Whether it announced this. Otherwise it stopped reporting.
        left: bool,
    },
    /// Load from outside our hosts has appeared or disappeared.
    ExternalLoad {
        /// Whether it is present.
        on: bool,
    },
    /// This host cannot read the other hosts' slots, or can again.
    Alone {
        /// Whether it cannot.
        on: bool,
    },
    /// The other hosts cannot read this host's slot, or can again.
    Mute {
        /// Whether they cannot.
        on: bool,
    },
    /// The automatic threshold has changed by a tenth or more.
    ThresholdMoved {
        /// Its new value.
        threshold_us: f64,
    },
    /// The settings for the whole datastore have an impossible generation and are ignored.
    GenerationRefused {
        /// The generation.
        generation: u64,
    },
    /// Another host uses this host's slot. This host takes another slot.
    Displaced,
    /// This daemon was paused for so long that the other hosts counted it as dead. It joins again.
    Paused {
        /// How long.
        for_s: f64,
    },
    /// The slot file cannot be used.
    Trouble {
        /// Why.
        why: String,
    },
    /// The slot file can be used again.
    TroubleOver,
    /// A TLS listener's certificate has expired, expires soon, or is not valid yet.
    Certificate {
        /// The listener that uses it.
        listener: String,
        /// The file that it was read from.
        file: String,
        /// Its state.
        state: CertificateState,
        /// Whole days until its end, rounded down: negative once it has expired.
        days_left: i64,
    },
    /// A disk no longer uses a member: it failed, or was ordered away.
    MemberDropped {
        /// The disk.
        disk: Name,
        /// The member's number.
        member: u8,
        /// Why.
        why: String,
    },
    /// A member lacks writes, and is being rebuilt.
    MemberRebuilding {
        /// The disk.
        disk: Name,
        /// The member's number.
        member: u8,
        /// Bytes to copy.
        total_bytes: u64,
    },
    /// A member has all bytes again.
    MemberRebuilt {
        /// The disk.
        disk: Name,
        /// The member's number.
        member: u8,
    },
    /// The rebuild of a member has failed. It is tried again later.
    MemberRebuildFailed {
        /// The disk.
        disk: Name,
        /// The member's number.
        member: u8,
        /// Why.
        why: String,
    },
    /// A disk was attached without a member that was given up. What only that member had is lost.
    MemberGivenUp {
        /// The disk.
        disk: Name,
        /// The member's number.
        member: u8,
    },
    /// An open image of a member was removed or renamed, or its file system is not mounted any more.
    MemberImageMissing {
        /// The disk.
        disk: Name,
        /// The member's number.
        member: u8,
        /// What happened to the image.
        why: String,
    },
    /// A disk has lost all members that had its bytes.
    MembersLost {
        /// The disk.
        disk: Name,
    },
    /// A mirror has lost all members that had its bytes, and its guests' I/O waits for one of them.
    IoWaiting {
        /// The disk.
        disk: Name,
    },
    /// Guests' I/O of a mirror goes on: a member that has all bytes is back.
    IoResumed {
        /// The disk.
        disk: Name,
    },
    /// A comparison of a disk's members has ended.
    Scrubbed {
        /// The disk.
        disk: Name,
        /// Bytes of the disk that were compared.
        compared_bytes: u64,
        /// Pieces of 64 KiB in which members differed.
        different: u64,
        /// Of these, the pieces that were made equal.
        repaired: u64,
        /// Pieces that a member could not read.
        unreadable: u64,
    },
    /// A disk was moved from one datastore to another.
    DiskMoved {
        /// The disk.
        disk: Name,
        /// The datastore that it was on.
        from: Name,
    },
    /// A snapshot of a disk was taken.
    SnapshotTaken {
        /// The disk.
        disk: Name,
        /// The snapshot's name.
        snapshot: Name,
        /// How long the disk's writes waited, with those of all disks of the set.
        held_us: u64,
    },
    /// A snapshot of a disk was deleted.
    SnapshotDeleted {
        /// The disk.
        disk: Name,
        /// The snapshot's name.
        snapshot: Name,
    },
    /// A disk has the content of one of its snapshots again.
    DiskRolledBack {
        /// The disk.
        disk: Name,
        /// The snapshot's name.
        snapshot: Name,
    },
    /// A disk was made of a snapshot.
    DiskCloned {
        /// The new disk.
        disk: Name,
        /// The snapshot, such as `vm1@before`.
        of: String,
    },
    /// The devices of a disk's flash cache have failed.
    CacheLost {
        /// The disk.
        disk: Name,
        /// The cache.
        cache: Name,
        /// Bytes that only the cache had, at most. If there are any, the disk has stopped; otherwise it goes on without the
        /// cache.
        lost_bytes: u64,
    },
    /// A device of a disk's flash cache has failed. The disk goes on with the other one.
    CacheDeviceLost {
        /// The disk.
        disk: Name,
        /// The cache.
        cache: Name,
        /// The device's number.
        device: u8,
        /// Why.
        why: String,
    },
    /// What only a disk's flash cache has is not as it was written.
    CacheCorrupt {
        /// The disk.
        disk: Name,
        /// The cache.
        cache: Name,
        /// Where it is on the disk.
        offset_bytes: u64,
    },
    /// A disk was attached without what only its flash cache had, by command.
    CacheDiscarded {
        /// The disk.
        disk: Name,
        /// The cache.
        cache: Name,
    },
    /// What the policy of a disk's flash cache had learned cannot be used: it begins anew. This costs hits for a while.
    CachePolicyForgotten {
        /// The disk.
        disk: Name,
        /// The cache.
        cache: Name,
        /// Why.
        why: String,
    },
    /// The write budget of a flash cache is used up: nothing enters the cache until an hour's budget has come.
    CacheBudgetSpent {
        /// The cache.
        cache: Name,
        /// Bytes that may be written to each device in a day.
        budget_bytes_per_day: u64,
    },
    /// A flash cache has some of its write budget again.
    CacheBudgetBack {
        /// The cache.
        cache: Name,
    },
    /// The path of a flash cache's device does not lead to it any more: it was renamed or removed, or another one is there.
    CacheDeviceAstray {
        /// The cache.
        cache: Name,
        /// The device's number.
        device: u8,
        /// Its path.
        path: String,
        /// What happened to it.
        why: String,
    },
    /// A flash cache's device is at its path again.
    CacheDeviceInPlace {
        /// The cache.
        cache: Name,
        /// The device's number.
        device: u8,
        /// Its path.
        path: String,
    },
    /// A flash cache has got a device by command. It is filled now.
    CacheDeviceAdded {
        /// The cache.
        cache: Name,
        /// The device's number.
        device: u8,
        /// Where it is.
        path: String,
    },
    /// A device of a flash cache that was added or replaced has everything.
    CacheDeviceFilled {
        /// The cache.
        cache: Name,
        /// The device's number.
        device: u8,
    },
    /// A device was taken from a flash cache by command.
    CacheDeviceRemoved {
        /// The cache.
        cache: Name,
        /// The device's number.
        device: u8,
        /// Where it is.
        path: String,
    },
    /// A pool is fuller than before, or less full: it has passed 70, 85 or 95 % of its space.
    PoolLevel {
        /// The pool.
        pool: Name,
        /// How full it is.
        level: PoolLevel,
        /// Bytes that disks have or have reserved.
        used_bytes: u64,
        /// Bytes that disks can use.
        size_bytes: u64,
    },
    /// A pool has no space for a disk, whose writes to new space fail until there is some.
    PoolFull {
        /// The pool.
        pool: Name,
        /// The disk.
        disk: Name,
    },
    /// A disk's part of a flash cache is to change: hits by its curve and shares are worth more elsewhere, or here.
    CacheTarget {
        /// The disk.
        disk: Name,
        /// The cache.
        cache: Name,
        /// The part that the disk has, in bytes.
        part_bytes: u64,
        /// The part that it is to have, and what that comes from.
        target: CacheTarget,
    },
    /// Dense mode was turned on or off.
    DenseMode {
        /// Whether it is on now.
        on: bool,
        /// The conditions that decided it; absent if an administrator did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conditions: Option<DenseConditions>,
    },
    /// The policy of I/O threads decided something, or an administrator changed them.
    IoThreads {
        /// What is done.
        action: IoThreadAction,
        /// Who decided it.
        #[serde(default)]
        by: IoThreadActor,
        /// The disk that moves, if one does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<Name>,
        /// The I/O thread that gets it, or that is activated, locked or parked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        thread: Option<u32>,
        /// Why, with the measured values.
        why: String,
        /// Why it could not be carried out, if it could not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
        /// How often the same, or something else about the same thread, was found since the last such event.
        #[serde(default, skip_serializing_if = "is_zero")]
        repeats: u64,
    },
    /// Events were lost because the queue was full.
    Missed {
        /// The number of lost events.
        count: u64,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Who changes I/O threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IoThreadActor {
    /// The policy.
    #[default]
    Policy,
    /// An administrator, by a command, REST, or the control tree.
    Administrator,
}

/// What is done with I/O threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IoThreadAction {
    /// A disk moves to another thread.
    Move,
    /// A thread takes disks from now on.
    Activate,
    /// A thread takes no more disks.
    Lock,
    /// A locked thread takes disks again.
    Unlock,
    /// A thread without disks sleeps until it is needed.
    Park,
    /// Idle threads may poll.
    PollOn,
    /// Idle threads do not poll.
    PollOff,
    /// Nothing: this is what was found.
    Stay,
}

/// Why a certificate needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateState {
    /// It will expire soon.
    Expiring,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
}

impl Happening {
    /// Its name on the wire.
    pub const fn word(&self) -> &'static str {
        match self {
            Happening::Engaged { .. } => "engaged",
            Happening::Disengaged => "disengaged",
            Happening::ReservationUnmet { .. } => "reservation-unmet",
            Happening::ReservationsShrunk { .. } => "reservations-shrunk",
            Happening::BurstLow { .. } => "burst-low",
            Happening::HostSeen { .. } => "host-seen",
            Happening::HostLost { .. } => "host-lost",
            Happening::ExternalLoad { .. } => "external-load",
            Happening::Alone { .. } => "alone",
            Happening::Mute { .. } => "mute",
            Happening::ThresholdMoved { .. } => "threshold-moved",
            Happening::GenerationRefused { .. } => "generation-refused",
            Happening::Displaced => "displaced",
            Happening::Paused { .. } => "paused",
            Happening::Trouble { .. } => "trouble",
            Happening::TroubleOver => "trouble-over",
            Happening::Certificate { .. } => "certificate",
            Happening::MemberDropped { .. } => "member-dropped",
            Happening::MemberRebuilding { .. } => "member-rebuilding",
            Happening::MemberRebuilt { .. } => "member-rebuilt",
            Happening::MemberRebuildFailed { .. } => "member-rebuild-failed",
            Happening::MemberGivenUp { .. } => "member-given-up",
            Happening::MemberImageMissing { .. } => "member-image-missing",
            Happening::MembersLost { .. } => "members-lost",
            Happening::IoWaiting { .. } => "io-waiting",
            Happening::IoResumed { .. } => "io-resumed",
            Happening::Scrubbed { .. } => "scrubbed",
            Happening::DiskMoved { .. } => "disk-moved",
            Happening::SnapshotTaken { .. } => "snapshot-taken",
            Happening::SnapshotDeleted { .. } => "snapshot-deleted",
            Happening::DiskRolledBack { .. } => "disk-rolled-back",
            Happening::DiskCloned { .. } => "disk-cloned",
            Happening::CacheLost { .. } => "cache-lost",
            Happening::CacheDeviceLost { .. } => "cache-device-lost",
            Happening::CacheCorrupt { .. } => "cache-corrupt",
            Happening::CacheDiscarded { .. } => "cache-discarded",
            Happening::CachePolicyForgotten { .. } => "cache-policy-forgotten",
            Happening::CacheBudgetSpent { .. } => "cache-budget-spent",
            Happening::CacheBudgetBack { .. } => "cache-budget-back",
            Happening::CacheDeviceAstray { .. } => "cache-device-astray",
            Happening::CacheDeviceInPlace { .. } => "cache-device-in-place",
            Happening::CacheDeviceAdded { .. } => "cache-device-added",
            Happening::CacheDeviceFilled { .. } => "cache-device-filled",
            Happening::CacheDeviceRemoved { .. } => "cache-device-removed",
            Happening::PoolLevel { .. } => "pool-level",
            Happening::PoolFull { .. } => "pool-full",
            Happening::CacheTarget { .. } => "cache-target",
            Happening::DenseMode { .. } => "dense-mode",
            Happening::IoThreads { .. } => "io-threads",
            Happening::Missed { .. } => "missed",
        }
    }
}

/// The events that the daemon has stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// In the order of their numbers.
    pub events: Vec<Event>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_flat_object_with_its_kind() {
        let event = Event {
            number: 7,
            at_ms: 1,
            datastore: Some("fast".parse().expect("a name")),
            happening: Happening::HostLost {
                host: "h".to_owned(),
                name: Some("pve1".to_owned()),
                left: false,
            },
            text: "lost".to_owned(),
        };
        let json = serde_json::to_value(&event).expect("plain data");
        assert_eq!(json["event"], event.happening.word());
        assert_eq!(json["left"], false);
        let back: Event = serde_json::from_value(json).expect("the same type");
        assert_eq!(back, event);
    }

    #[test]
    fn every_word_equals_its_name_on_the_wire() {
        let all = [
            Happening::Disengaged,
            Happening::Engaged {
                latency_us: 1.0,
                threshold_us: 1.0,
            },
            Happening::ReservationUnmet { disk: None },
            Happening::ReservationsShrunk { percent: 1 },
            Happening::BurstLow {
                disk: None,
                percent: 20,
            },
            Happening::HostSeen {
                host: String::new(),
                name: None,
            },
            Happening::ExternalLoad { on: true },
            Happening::Alone { on: true },
            Happening::Mute { on: true },
            Happening::ThresholdMoved { threshold_us: 1.0 },
            Happening::GenerationRefused { generation: 1 },
            Happening::Displaced,
            Happening::Paused { for_s: 1.0 },
            Happening::Trouble { why: String::new() },
            Happening::TroubleOver,
            Happening::Certificate {
                listener: String::new(),
                file: String::new(),
                state: CertificateState::Expired,
                days_left: -1,
            },
            Happening::DenseMode {
                on: true,
                conditions: None,
            },
            Happening::IoThreads {
                action: IoThreadAction::PollOn,
                disk: None,
                thread: None,
                why: String::new(),
                failed: None,
                by: IoThreadActor::Policy,
                repeats: 0,
            },
            Happening::Missed { count: 1 },
        ];
        for happening in all {
            let json = serde_json::to_value(&happening).expect("plain data");
            assert_eq!(json["event"], happening.word());
        }
    }
}
