//! The I/O control flags that `disk create` and `disk set` share.

use std::str::FromStr;

use clap::Args;
use tidegate_api::disk::{Policy, PolicySet, Unpromised};
use tidegate_api::name::Name;
use tidegate_api::problem::ProblemCode;
use tidegate_api::routes;
use tidegate_api::units::{Iops, Limit, Rate, Shares, Span};

use crate::client::Client;
use crate::complete;
use crate::failure::Failure;
use crate::session::Session;

/// Flags on shares, reservation and limits.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "I/O control")]
pub(super) struct PolicyFlags {
    /// Relative weight while the datastore is congested: low (500), normal (1000), high (2000) or 100 to 10000
    #[arg(long)]
    shares: Option<Shares>,

    /// IOPS floor, such as 500iops; refused if the datastore cannot guarantee all reservations together
    #[arg(long, value_name = "IOPS")]
    reservation: Option<Iops>,

    /// Accept a reservation that cannot be guaranteed: it is met as far as possible
    #[arg(long)]
    best_effort: bool,

    /// IOPS ceiling, such as 2000iops; `unlimited` removes it
    #[arg(long, value_name = "IOPS", allow_negative_numbers = true)]
    limit: Option<Limit<Iops>>,

    /// IOPS ceiling while a burst lasts, above --limit; `none` removes it
    ///
    /// A disk can use the unused part of its limit later, for up to --burst-seconds at this rate.
    #[arg(long, value_name = "IOPS")]
    burst_iops: Option<OrNone<Iops>>,

    /// How long a full burst lasts at --burst-iops; default: 30
    #[arg(long, value_name = "SECONDS")]
    burst_seconds: Option<u32>,

    /// Bandwidth ceiling, such as 200MiB/s; `unlimited` removes it
    #[arg(
        long,
        visible_alias = "limit-bw",
        value_name = "RATE",
        allow_negative_numbers = true
    )]
    limit_bandwidth: Option<Limit<Rate>>,

    /// A latency that the disk should stay below, such as 5ms; `none` removes it
    ///
    /// The disk's I/Os may start before those of other disks, but the disk gets no more than its shares.
    #[arg(long, value_name = "TIME")]
    latency_target: Option<OrNone<Span>>,

    /// The disk's group, with limits for all its disks on a host together; `none` removes the disk from it (see `tidegate
    /// group`)
    #[arg(long, value_name = "NAME", add = complete::groups())]
    group: Option<OrNone<Name>>,
}

/// A value, or the word `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrNone<T>(pub(super) Option<T>);

impl<T: FromStr> FromStr for OrNone<T> {
    type Err = T::Err;
    fn from_str(text: &str) -> Result<OrNone<T>, T::Err> {
        match text.trim() {
            "none" => Ok(OrNone(None)),
            value => value.parse().map(|value| OrNone(Some(value))),
        }
    }
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
            burst_iops: self.burst_iops.and_then(burst),
            burst_seconds: self.burst_seconds,
            limit_bytes_per_s: self.limit_bandwidth.and_then(rate),
            latency_target_us: self.latency_target.and_then(micros),
            group: self.group.and_then(|OrNone(group)| group),
        }
    }

    /// The changes to a disk's policy; none if no flag was given.
    pub(super) fn changes(self) -> Option<PolicySet> {
        let changes = PolicySet {
            shares: self.shares.map(Shares::get),
            reservation_iops: self.reservation.map(|Iops(iops)| iops),
            limit_iops: self.limit.map(iops),
            burst_iops: self.burst_iops.map(burst),
            burst_seconds: self.burst_seconds.map(Some),
            limit_bytes_per_s: self.limit_bandwidth.map(rate),
            latency_target_us: self.latency_target.map(micros),
            group: self.group.map(|OrNone(group)| group),
        };
        (changes != PolicySet::default()).then_some(changes)
    }

    /// What becomes of a reservation that cannot be promised.
    pub(super) fn unpromised(&self) -> Unpromised {
        if self.best_effort {
            Unpromised::BestEffort
        } else {
            Unpromised::Refuse
        }
    }
}

/// Tells the user of a disk's group that does not exist: it limits nothing.
pub(super) fn notice_of_group(session: &Session, client: &Client, group: &Name) {
    let found = client.look(routes::GROUP, &[group.as_str()]);
    if let Some(notice) = missing_group(group, found.as_ref().err()) {
        session.console.say(&notice);
    }
}

fn missing_group(group: &Name, failure: Option<&Failure>) -> Option<String> {
    let problem = failure.and_then(Failure::problem)?;
    (problem.code == ProblemCode::NotFound).then(|| {
        format!(
            "group {group} does not exist yet: no limit applies until `tidegate group set {group} --limit 20000iops` creates it"
        )
    })
}

fn iops(limit: Limit<Iops>) -> Option<u64> {
    limit.to_option().map(|Iops(iops)| iops)
}

fn rate(limit: Limit<Rate>) -> Option<u64> {
    limit.to_option().map(|Rate(rate)| rate)
}

fn burst(burst: OrNone<Iops>) -> Option<u64> {
    burst.0.map(|Iops(iops)| iops)
}

/// A target that is not a whole number of microseconds is rounded up.
fn micros(target: OrNone<Span>) -> Option<u64> {
    target.0.map(|Span(nanos)| nanos.div_ceil(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::problem::Problem;

    #[test]
    fn of_a_group_that_is_not_there_it_is_said_that_nothing_limits_yet() {
        let group = "godl".parse().unwrap();
        let failed = |code| Failure::Failed(Problem::new(code, "x"));
        let notice = missing_group(&group, Some(&failed(ProblemCode::NotFound))).unwrap();
        assert!(notice.starts_with("group godl does not exist yet: no limit applies"));
        assert!(notice.contains("`tidegate group set godl"));
        assert_eq!(missing_group(&group, None), None);
        let busy = failed(ProblemCode::Busy);
        assert_eq!(missing_group(&group, Some(&busy)), None);
    }
}
