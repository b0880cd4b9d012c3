//! Commands on groups of disks: shared limits of all disks in a group on this host.
//!
//! A disk names its group in its descriptor, which other hosts read too. The group's limits are stored on this host. A
//! group without stored limits does not limit its disks.

use std::collections::BTreeMap;

use tidegate_api::group::{Group, GroupLimits, GroupSet};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::iocontrol::GroupId;

use super::{DiskService, locked};
use crate::config::plan::policy;
use crate::os_error::{self, Outcome};

/// The engine's numbers for groups, by name. A number is fixed for as long as the daemon runs.
pub(super) type Numbers = BTreeMap<Name, GroupId>;

impl DiskService {
    /// Every group with limits.
    pub(crate) fn groups(&self) -> Outcome<Vec<Group>> {
        let groups = self.store.groups()?;
        let described = groups
            .into_iter()
            .map(|(name, limits)| self.describe_group(name, limits));
        Ok(described.collect())
    }

    /// One group.
    pub(crate) fn group(&self, name: &Name) -> Outcome<Group> {
        match self.store.groups()?.remove(name) {
            Some(limits) => Ok(self.describe_group(name.clone(), limits)),
            None => Err(no_group(name)),
        }
    }

    /// Changes a group's limits with immediate effect, and creates the group if it does not exist.
    pub(crate) fn set_group(&self, name: &Name, order: &GroupSet) -> Outcome<Group> {
        let what = format!("cannot change group {name}");
        // One change of the groups' file at a time.
        let mut numbers = locked(&self.group_numbers);
        let mut groups = self.store.groups()?;
        let limits = groups.entry(name.clone()).or_default();
        if let Some(limit) = order.limit_iops {
            limits.limit_iops = limit;
        }
        if let Some(limit) = order.limit_bytes_per_s {
            limits.limit_bytes_per_s = limit;
        }
        let limits = limits.clone();
        policy::group(&limits).check().map_err(|fault| {
            os_error::invalid(&what)
                .because_of(&fault)
                .remedy("give at least 1, or `unlimited` to remove the limit")
        })?;
        self.store
            .set_groups(&groups)
            .map_err(|problem| problem.within(&what))?;
        self.number(&mut numbers, name, &limits)
            .map_err(|problem| problem.within(&what))?;
        drop(numbers);
        tracing::info!(group = %name, limit_iops = limits.limit_iops, limit_bytes_per_s = limits.limit_bytes_per_s, "set");
        Ok(self.describe_group(name.clone(), limits))
    }

    /// Removes a group that has no attached disk.
    pub(crate) fn remove_group(&self, name: &Name) -> Outcome<()> {
        let what = format!("cannot remove group {name}");
        let mut numbers = locked(&self.group_numbers);
        let mut groups = self.store.groups()?;
        if groups.remove(name).is_none() {
            return Err(no_group(name));
        }
        let members = self.members(name);
        if let Some(first) = members.first() {
            return Err(Problem::new(ProblemCode::Busy, what)
                .because(format!(
                    "{} attached disks are in it (such as {first}), and would lose their common limit",
                    members.len()
                ))
                .remedy("remove them from the group first (tidegate disk set NAME --group none), or set its limits \
                     to unlimited"));
        }
        self.store
            .set_groups(&groups)
            .map_err(|problem| problem.within(&what))?;
        self.number(&mut numbers, name, &GroupLimits::default())?;
        tracing::info!(group = %name, "removed");
        Ok(())
    }

    /// The engine's number for a disk's group. Its limits apply from now on.
    pub(super) fn group_number(&self, name: Option<&Name>) -> Outcome<Option<GroupId>> {
        let Some(name) = name else { return Ok(None) };
        let mut numbers = locked(&self.group_numbers);
        if let Some(number) = numbers.get(name) {
            return Ok(Some(*number));
        }
        let limits = self.store.groups()?.remove(name);
        if limits.is_none() {
            tracing::warn!(group = %name, "a disk is in a group that has no limits on this host (tidegate group set)");
        }
        self.number(&mut numbers, name, &limits.unwrap_or_default())
            .map(Some)
    }

    /// Sets a group's limits in the engine.
    fn number(&self, numbers: &mut Numbers, name: &Name, limits: &GroupLimits) -> Outcome<GroupId> {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let number = numbers.get(name).copied().unwrap_or(GroupId(next));
        self.host.set_group(number, &policy::group(limits))?;
        numbers.insert(name.clone(), number);
        Ok(number)
    }

    fn describe_group(&self, name: Name, limits: GroupLimits) -> Group {
        Group {
            disks: self.members(&name),
            name,
            limits,
        }
    }

    /// The attached disks of a group.
    fn members(&self, group: &Name) -> Vec<Name> {
        let live = self.live.all();
        let of = live.iter().filter(|live| {
            live.policy()
                .is_some_and(|p| p.group.as_ref() == Some(group))
        });
        of.map(|live| live.name().clone()).collect()
    }
}

fn no_group(name: &Name) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is no group {name}")).remedy(
        "see `tidegate group list`; to create one: tidegate group set NAME --limit 20000iops",
    )
}
