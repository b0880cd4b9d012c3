//! Converts a disk's policy from REST to the engine, and admits its reservation.

use tidegate_api::descriptor::{Descriptor, PolicyText};
use tidegate_api::disk as api;
use tidegate_api::iocontrol::{Admission, Promise};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::units::{Iops, Rate, Shares, Span};
use tidegate_core::governor;
use tidegate_core::iocontrol::policy::{SHARES_MAX, SHARES_MIN};
use tidegate_core::iocontrol::{DiskKey, Policy};
use tidegate_engine::control::Control;

use super::DiskService;
use crate::config::plan::policy as plan;
use crate::disks::attached::Attached;
use crate::os_error::{self, Outcome};

impl DiskService {
    /// A disk's policy in the engine's form.
    pub(super) fn policy(&self, descriptor: &Descriptor) -> Outcome<Policy> {
        let text = &descriptor.policy;
        let policy = plan::policy(text, self.group_number(text.group.as_ref())?);
        // The text was validated in REST terms; this is the engine's own check.
        match policy.check() {
            Ok(()) => Ok(policy),
            Err(fault) => Err(os_error::invalid("the disk's I/O control is invalid")
                .because_of(&fault)
                .remedy("correct it: tidegate disk set NAME (see its --help)")),
        }
    }

    /// Whether a disk's reservation can be guaranteed on each of these datastores, as far as this host knows. None if there
    /// is no reservation; a problem if it must be guaranteed and cannot be.
    pub(super) fn admit(
        &self,
        datastores: &[Name],
        key: DiskKey,
        policy: &Policy,
        unpromised: api::Unpromised,
    ) -> Outcome<Option<Admission>> {
        let mut admission = None;
        for datastore in datastores {
            if let Some(running) = self.controls.running(datastore) {
                admission = weaker(admission, judge(&running.control, key, policy)?);
            }
        }
        match admission {
            Some(Admission {
                promise: Promise::BestEffort,
                why,
            }) if unpromised == api::Unpromised::Refuse => Err(Problem::new(
                ProblemCode::Full,
                format!(
                    "a reservation of {} IOPS cannot be guaranteed",
                    policy.reservation
                ),
            )
            .because(why)
            .remedy("reserve less, or lower other disks' reservations (see `tidegate datastore show`), or add \
                 --best-effort to accept that it may not be met")),
            admission => Ok(admission),
        }
    }
}

impl DiskService {
    /// The effective policy after another host changed an attached disk's descriptor, and the admission result of its
    /// reservation.
    pub(super) fn admit_from_elsewhere(
        &self,
        live: &Attached,
        before: &PolicyText,
        now: &Descriptor,
    ) -> Outcome<(PolicyText, Option<Admission>)> {
        let (key, policy) = (plan::key(now.uuid), self.policy(now)?);
        let admission = self.admit(
            &live.datastores(),
            key,
            &policy,
            api::Unpromised::BestEffort,
        )?;
        let counted = counted(before, &now.policy, admission.as_ref());
        if counted.reservation != now.policy.reservation {
            let name = live.name();
            let why = admission.as_ref().map(|admission| &*admission.why);
            tracing::warn!(
                disk = %name,
                why,
                "another host raised the disk's reservation, which cannot be guaranteed here and has no effect; to \
                 accept it nevertheless: tidegate disk set {name} --reservation {} --best-effort",
                now.policy.reservation.0
            );
        }
        Ok((counted, admission))
    }
}

/// A policy that was changed elsewhere. If its higher reservation cannot be guaranteed, it has the old reservation: the
/// other disks have their guarantees.
pub(super) fn counted(
    before: &PolicyText,
    now: &PolicyText,
    admission: Option<&Admission>,
) -> PolicyText {
    let refused = admission.is_some_and(|admission| admission.promise == Promise::BestEffort);
    let mut counted = now.clone();
    if refused {
        counted.reservation = now.reservation.min(before.reservation);
    }
    counted
}

/// The admission result of a disk's reservation on a datastore; none if it has no reservation.
pub(super) fn judge(
    control: &Control,
    key: DiskKey,
    policy: &Policy,
) -> Outcome<Option<Admission>> {
    if policy.reservation == 0 {
        return Ok(None);
    }
    let answer = control
        .admit(Some(key), policy)
        .map_err(|error| crate::host::problem(&error))?;
    let (promise, why) = match answer {
        governor::Admission::Verified => (
            Promise::Verified,
            "the highest throughput seen from the datastore is more than all reservations together"
                .to_owned(),
        ),
        governor::Admission::Unverified => (
            Promise::Unverified,
            "the datastore's maximum throughput is not known yet".to_owned(),
        ),
        governor::Admission::Refused { reserved, capacity } => (
            Promise::BestEffort,
            format!(
                "all reservations would need {reserved} reference I/Os a second, and {capacity} of the datastore's \
                 throughput can be guaranteed"
            ),
        ),
    };
    Ok(Some(Admission { promise, why }))
}

/// The weaker of two admission results, of different datastores.
pub(super) fn weaker(one: Option<Admission>, other: Option<Admission>) -> Option<Admission> {
    let rank = |admission: &Option<Admission>| match admission {
        Some(admission) => match admission.promise {
            Promise::BestEffort => 0,
            Promise::Unverified => 1,
            Promise::Verified => 2,
        },
        None => 3,
    };
    match rank(&other) < rank(&one) {
        true => other,
        false => one,
    }
}

/// The policy of a descriptor in its REST form.
pub(super) fn tell(policy: &PolicyText) -> api::Policy {
    api::Policy {
        shares: policy.shares.get(),
        reservation_iops: policy.reservation.0,
        limit_iops: policy.limit.map(|limit| limit.0),
        burst_iops: policy.burst.map(|burst| burst.0),
        burst_seconds: policy.burst_seconds,
        limit_bytes_per_s: policy.limit_bandwidth.map(|limit| limit.0),
        latency_target_us: policy.latency_target.map(|target| target.0.div_ceil(1_000)),
        group: policy.group.clone(),
    }
}

/// A whole policy as a set of changes that states every field.
pub(super) fn all_of(policy: &api::Policy) -> api::PolicySet {
    api::PolicySet {
        shares: Some(policy.shares),
        reservation_iops: Some(policy.reservation_iops),
        limit_iops: Some(policy.limit_iops),
        burst_iops: Some(policy.burst_iops),
        burst_seconds: Some(policy.burst_seconds),
        limit_bytes_per_s: Some(policy.limit_bytes_per_s),
        latency_target_us: Some(policy.latency_target_us),
        group: Some(policy.group.clone()),
    }
}

/// Applies a command's changes to a policy. Removing a limit also removes the values that need one, such as a burst.
pub(super) fn apply(policy: &mut PolicyText, order: &api::PolicySet, what: &str) -> Outcome<()> {
    if let Some(shares) = order.shares {
        let known = Shares::new(shares).filter(|_| (SHARES_MIN..=SHARES_MAX).contains(&shares));
        policy.shares = known.ok_or_else(|| {
            os_error::invalid(what)
                .because(format!(
                    "{shares} shares are not from {SHARES_MIN} to {SHARES_MAX}"
                ))
                .remedy("use low (500), normal (1000), high (2000) or a number in that range")
        })?;
    }
    if let Some(reservation) = order.reservation_iops {
        policy.reservation = Iops(reservation);
    }
    if let Some(limit) = order.limit_iops {
        policy.limit = limit.map(Iops);
    }
    if let Some(burst) = order.burst_iops {
        policy.burst = burst.map(Iops);
    } else if policy.limit.is_none() {
        policy.burst = None;
    }
    if let Some(seconds) = order.burst_seconds {
        policy.burst_seconds = seconds;
    } else if policy.burst.is_none() {
        policy.burst_seconds = None;
    }
    if let Some(limit) = order.limit_bytes_per_s {
        policy.limit_bandwidth = limit.map(Rate);
    }
    if let Some(target) = order.latency_target_us {
        policy.latency_target = match target {
            None => None,
            Some(us) => Some(Span(us.checked_mul(1_000).ok_or_else(|| {
                os_error::invalid(what)
                    .because("the latency target is too long")
                    .remedy("give a shorter one, such as 5ms, or remove it: --latency-target none")
            })?)),
        };
    }
    if let Some(group) = &order.group {
        policy.group = group.clone();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(policy: &PolicyText, order: &str) -> PolicyText {
        let mut policy = policy.clone();
        apply(&mut policy, &serde_json::from_str(order).unwrap(), "x").unwrap();
        policy
    }

    #[test]
    fn a_policy_that_is_told_and_said_again_is_the_same() {
        let policy = changed(
            &PolicyText::default(),
            r#"{"shares": 2000, "reservation_iops": 500, "limit_iops": 5000, "burst_iops": 15000, "burst_seconds": 10,
                "limit_bytes_per_s": 1000000, "latency_target_us": 5000, "group": "shop"}"#,
        );
        let mut again = PolicyText::default();
        apply(&mut again, &all_of(&tell(&policy)), "x").unwrap();
        assert_eq!(again, policy);
        assert_eq!(again.check(), Ok(()));
    }

    #[test]
    fn a_reservation_from_elsewhere_that_cannot_be_promised_does_not_count() {
        let reserving = |iops| PolicyText {
            reservation: Iops(iops),
            ..PolicyText::default()
        };
        let admission = |promise| Admission {
            promise,
            why: String::new(),
        };
        let counts = |before, now, promise| {
            let admission = admission(promise);
            counted(&reserving(before), &reserving(now), Some(&admission)).reservation
        };
        assert_eq!(counts(100, 900, Promise::BestEffort), Iops(100));
        assert_eq!(counts(900, 100, Promise::BestEffort), Iops(100));
        assert_eq!(counts(100, 900, Promise::Verified), Iops(900));
        assert_eq!(counts(100, 900, Promise::Unverified), Iops(900));
    }

    #[test]
    fn a_burst_goes_with_its_limit() {
        let bursting = changed(
            &PolicyText::default(),
            r#"{"limit_iops": 100, "burst_iops": 300, "burst_seconds": 5}"#,
        );
        assert_eq!(
            changed(&bursting, r#"{"limit_iops": null}"#),
            PolicyText::default()
        );
        let steady = changed(&bursting, r#"{"burst_iops": null}"#);
        assert_eq!(
            (steady.limit, steady.burst_seconds),
            (Some(Iops(100)), None)
        );
    }

    #[test]
    fn shares_that_no_scheduler_takes_are_refused() {
        for shares in [0, 99, 10_001, 1_000_000] {
            let order = api::PolicySet {
                shares: Some(shares),
                ..api::PolicySet::default()
            };
            let refused = apply(&mut PolicyText::default(), &order, "x").unwrap_err();
            assert!(refused.to_string().contains("100 to 10000"), "{refused}");
        }
    }
}
