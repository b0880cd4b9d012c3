//! The flags that say how I/O control treats a disk: the same words for `create` and `set`.

use clap::Args;
use tidegate_api::disk::{Policy, PolicySet};
use tidegate_api::units::{Iops, Limit, Rate, Shares};

/// Flags on shares, reservation and limits.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "I/O control")]
pub(super) struct PolicyFlags {
    /// Relative weight: low (500), normal (1000), high (2000) or a number
    #[arg(long)]
    shares: Option<Shares>,

    /// IOPS floor, such as 500iops
    #[arg(long, value_name = "IOPS")]
    reservation: Option<Iops>,

    /// IOPS ceiling, such as 2000iops; `unlimited` takes it away
    #[arg(long, value_name = "IOPS", allow_negative_numbers = true)]
    limit: Option<Limit<Iops>>,

    /// Bandwidth ceiling, such as 200MiB/s; `unlimited` takes it away
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    limit_bandwidth: Option<Limit<Rate>>,
}

impl PolicyFlags {
    /// The policy of a new disk.
    pub(super) fn whole(self) -> Policy {
        let default = Policy::default();
        Policy {
            shares: self.shares.map_or(default.shares, Shares::get),
            reservation_iops: self
                .reservation
                .map_or(default.reservation_iops, |Iops(iops)| iops),
            limit_iops: self.limit.and_then(iops),
            limit_bytes_per_s: self.limit_bandwidth.and_then(rate),
        }
    }

    /// The changes to a disk's policy; none if no flag was given.
    pub(super) fn changes(self) -> Option<PolicySet> {
        let changes = PolicySet {
            shares: self.shares.map(Shares::get),
            reservation_iops: self.reservation.map(|Iops(iops)| iops),
            limit_iops: self.limit.map(iops),
            limit_bytes_per_s: self.limit_bandwidth.map(rate),
        };
        (changes != PolicySet::default()).then_some(changes)
    }
}

fn iops(limit: Limit<Iops>) -> Option<u64> {
    limit.to_option().map(|Iops(iops)| iops)
}

fn rate(limit: Limit<Rate>) -> Option<u64> {
    limit.to_option().map(|Rate(rate)| rate)
}
