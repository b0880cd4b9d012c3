//! Metrics of pools, and of disks' parts of them.

use std::fmt::Display;

use tidegate_api::disk::DiskInPool;
use tidegate_api::pool::{Pool, PoolGroup};

use super::families::{
    DISK_POOL_GRANTED, DISK_POOL_MAPPED, DISK_POOL_REFUSED, DISK_POOL_WAITING, Family,
    POOL_AVAILABLE, POOL_BYTES, POOL_DISKS, POOL_GROUP_BYTES, POOL_GROUP_USED, POOL_MEMBER_CURRENT,
    POOL_RESERVED, POOL_USED,
};
use super::{AttachedMoment, Page};

/// The pools of this host.
pub(super) fn of_host(page: &mut Page, pools: &[Pool]) {
    let mut each = |family: &Family, value: fn(&Pool) -> u64| {
        let mut page = page.family(family);
        for pool in usable(pools) {
            page.value(&[("pool", &pool.name)], value(pool));
        }
    };
    each(&POOL_BYTES, |pool| pool.size_bytes);
    each(&POOL_USED, |pool| pool.used_bytes);
    each(&POOL_RESERVED, |pool| pool.reserved_bytes);
    each(&POOL_AVAILABLE, |pool| pool.available_bytes);
    each(&POOL_DISKS, |pool| pool.disks);
    let mut groups = |family: &Family, value: fn(&PoolGroup) -> u64| {
        let mut page = page.family(family);
        for pool in usable(pools) {
            for group in &pool.groups {
                let labels: [(&str, &dyn Display); 3] = [
                    ("pool", &pool.name),
                    ("group", &group.group),
                    ("tier", &group.tier),
                ];
                page.value(&labels, value(group));
            }
        }
    };
    groups(&POOL_GROUP_BYTES, |group| group.size_bytes);
    groups(&POOL_GROUP_USED, |group| group.used_bytes);
    let mut current = page.family(&POOL_MEMBER_CURRENT);
    for pool in usable(pools) {
        for group in &pool.groups {
            for member in &group.members {
                let labels: [(&str, &dyn Display); 3] = [
                    ("pool", &pool.name),
                    ("group", &group.group),
                    ("member", &member.member),
                ];
                current.value(&labels, u64::from(member.is_current));
            }
        }
    }
}

/// Pools that cannot be used have no numbers.
fn usable(pools: &[Pool]) -> impl Iterator<Item = &Pool> {
    pools.iter().filter(|pool| pool.problem.is_none())
}

/// The attached disks on pools.
pub(super) fn families(page: &mut Page, disks: &[AttachedMoment]) {
    let mut each = |family: &Family, value: fn(&DiskInPool) -> Option<u64>| {
        let mut page = page.family(family);
        for disk in disks {
            if let Some(value) = disk.pool.as_ref().and_then(value) {
                let labels: [(&str, &dyn Display); 2] =
                    [("disk", &disk.name), ("datastore", &disk.datastore)];
                page.value(&labels, value);
            }
        }
    };
    each(&DISK_POOL_GRANTED, |of| Some(of.granted_bytes));
    each(&DISK_POOL_MAPPED, |of| of.mapped_bytes);
    each(&DISK_POOL_WAITING, |of| Some(of.waiting.into()));
    each(&DISK_POOL_REFUSED, |of| Some(of.refused.into()));
}
