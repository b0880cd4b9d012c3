//! Policies of the engine, made from the I/O control settings of configuration and REST.
//!
//! # Units
//! Limits and reservations count units of I/O a second, one for each `io_unit` bytes of a request; bandwidth counts
//! bytes a second.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::{BURST_SECONDS, PolicyText, Uuid};
use tidegate_api::group::GroupLimits;
use tidegate_api::iocontrol::{
    CongestionThreshold, IO_UNIT_MAX, IO_UNIT_MIN, IoControl, IoControlMode,
};
use tidegate_core::governor::{self, Kind, Threshold};
use tidegate_core::iocontrol::policy::{SHARES_MAX, SHARES_MIN};
use tidegate_core::iocontrol::{DiskKey, GroupId, GroupPolicy, Limit, Mode, Policy};
use tidegate_core::units::Span;

/// The widest window of one host: the most I/O that it may queue at a datastore before control engages.
const WINDOW_MOST: u32 = 256;

/// The policy of a disk; `group` is the host's number of its group.
pub(crate) fn policy(text: &PolicyText, group: Option<GroupId>) -> Policy {
    let limit = text.limit.map(|limit| match text.burst {
        Some(burst) => {
            let seconds = text.burst_seconds.unwrap_or(BURST_SECONDS);
            Limit::bursting(limit.0, burst.0, seconds.into())
        }
        None => Limit::steady(limit.0),
    });
    Policy {
        // Old descriptors may contain weights that commands can no longer set.
        shares: text.shares.get().clamp(SHARES_MIN, SHARES_MAX),
        reservation: u32::try_from(text.reservation.0).unwrap_or(u32::MAX),
        limit,
        bandwidth: text.limit_bandwidth.map(|rate| Limit::steady(rate.0)),
        latency_target: text.latency_target.map(|target| Span::from_nanos(target.0)),
        group,
    }
}

/// The joint limits of a group's disks.
pub(crate) fn group(limits: &GroupLimits) -> GroupPolicy {
    GroupPolicy {
        limit: limits.limit_iops.map(Limit::steady),
        bandwidth: limits.limit_bytes_per_s.map(Limit::steady),
    }
}

/// A disk's identity among hosts: FNV-1a over its UUID, so that it is the same on every host.
pub(crate) fn key(uuid: Uuid) -> DiskKey {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let hash = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(PRIME);
    DiskKey(uuid.0.iter().fold(BASIS, hash))
}

/// The mode of control.
pub(crate) fn mode(mode: IoControlMode) -> Mode {
    match mode {
        IoControlMode::On => Mode::On,
        IoControlMode::Observe => Mode::Observe,
        IoControlMode::Off => Mode::Off,
    }
}

/// The congestion threshold.
pub(crate) fn threshold(threshold: CongestionThreshold) -> Threshold {
    match threshold {
        CongestionThreshold::Auto => Threshold::Auto,
        CongestionThreshold::At(at) => Threshold::Fixed(Span::from_nanos(at.0)),
        CongestionThreshold::Off => Threshold::Off,
    }
}

/// The directory by which a datastore's hosts find each other, if there is one.
pub(crate) fn directory(settings: &DatastoreSettings, control: &IoControl) -> Option<PathBuf> {
    match settings {
        DatastoreSettings::Dir { path, .. } => Some(path.clone()),
        _ => control.coordination.clone(),
    }
}

/// The settings of a datastore's governor. `host`: this host; `incarnation`: this start of its control.
pub(crate) fn governor(
    settings: &DatastoreSettings,
    control: &IoControl,
    host: [u8; 16],
    incarnation: u64,
) -> governor::Settings {
    governor::Settings {
        host,
        incarnation,
        mode: mode(control.mode),
        threshold: threshold(control.congestion_threshold),
        io_unit: control.io_unit_bytes.clamp(IO_UNIT_MIN, IO_UNIT_MAX),
        kind: kind(settings),
        window_most: WINDOW_MOST,
        // The cost of writes is not learned correctly yet (docs/simulator.md).
        learn: false,
    }
}

/// The storage medium of a datastore, if known; it determines first estimates.
fn kind(settings: &DatastoreSettings) -> Kind {
    match settings {
        DatastoreSettings::Dir { path, .. } => kind_of_device(path).unwrap_or_default(),
        DatastoreSettings::Memory {} | DatastoreSettings::Null {} => Kind::Flash,
        DatastoreSettings::Emulated { model } => kind_of_model(model),
        DatastoreSettings::Nbd { .. } | DatastoreSettings::Pool {} => Kind::Unknown,
    }
}

/// A modelled array has the kind of its members: `raid5-8x10k+cache` spins.
fn kind_of_model(model: &str) -> Kind {
    let is_one_of = |members: &[&str]| members.iter().any(|member| model.contains(member));
    if is_one_of(&["ssd", "nvme"]) {
        Kind::Flash
    } else if is_one_of(&["7k", "10k", "15k"]) {
        Kind::Rotational
    } else {
        Kind::Unknown
    }
}

/// The medium of the block device under a directory, as the kernel reports it. A network file system has no such
/// device.
fn kind_of_device(path: &Path) -> Option<Kind> {
    let device = fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition shares its queue with the whole device.
    let rotational = ["queue/rotational", "../queue/rotational"]
        .iter()
        .find_map(|file| fs::read_to_string(device.join(file)).ok())?;
    match rotational.trim() {
        "0" => Some(Kind::Flash),
        "1" => Some(Kind::Rotational),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::units::{Iops, Rate, Shares};

    #[test]
    fn a_policys_words_become_limits_and_bursts() {
        let text = PolicyText {
            shares: Shares::HIGH,
            reservation: Iops(500),
            limit: Some(Iops(5_000)),
            burst: Some(Iops(15_000)),
            burst_seconds: None,
            limit_bandwidth: Some(Rate(200 << 20)),
            latency_target: Some(tidegate_api::units::Span(5_000_000)),
            group: None,
        };
        let plan = policy(&text, Some(GroupId(3)));
        assert_eq!(plan.check(), Ok(()));
        assert_eq!((plan.shares, plan.reservation), (2_000, 500));
        let limit = plan.limit.unwrap();
        assert_eq!((limit.sustained, limit.peak), (5_000, 15_000));
        assert_eq!(limit.burst, 10_000 * 30);
        assert_eq!(plan.bandwidth, Some(Limit::steady(200 << 20)));
        assert_eq!(plan.latency_target, Some(Span::from_millis(5)));
        assert_eq!(plan.group, Some(GroupId(3)));
    }

    #[test]
    fn weights_that_were_allowed_once_are_brought_into_range() {
        for (had, gets) in [(1, 100), (1_000_000, 10_000)] {
            let text = PolicyText {
                shares: Shares::new(had).unwrap(),
                ..PolicyText::default()
            };
            assert_eq!(policy(&text, None).shares, gets);
        }
    }

    #[test]
    fn a_disk_is_the_same_to_every_host_and_another_is_not() {
        let (one, other) = (Uuid([7; 16]), Uuid([8; 16]));
        assert_eq!(key(one), key(Uuid([7; 16])));
        assert_ne!(key(one), key(other));
    }

    #[test]
    fn a_modelled_array_is_of_its_members_kind() {
        for (model, kind) in [
            ("raid5-8x10k+cache", Kind::Rotational),
            ("7k", Kind::Rotational),
            ("nvme", Kind::Flash),
            ("raid10-4xssd", Kind::Flash),
            ("fifo", Kind::Unknown),
        ] {
            assert_eq!(kind_of_model(model), kind, "{model}");
        }
    }

    #[test]
    fn only_datastores_without_a_directory_take_another_one() {
        let control = IoControl {
            coordination: Some("/srv/meet".into()),
            ..IoControl::default()
        };
        let dir = DatastoreSettings::Dir {
            path: "/srv/disks".into(),
            io: Default::default(),
        };
        let nbd = DatastoreSettings::Nbd {
            uri: "nbd://host".into(),
        };
        assert_eq!(directory(&dir, &control), Some("/srv/disks".into()));
        assert_eq!(directory(&nbd, &control), Some("/srv/meet".into()));
        assert_eq!(directory(&nbd, &IoControl::default()), None);
    }
}
