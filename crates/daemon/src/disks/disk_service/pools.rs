//! Commands on pools, and what REST says of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidegate_api::descriptor::Uuid;
use tidegate_api::events::Happening;
use tidegate_api::name::Name;
use tidegate_api::pool::{
    Pool, PoolCheck, PoolCreate, PoolDestroy, PoolDestroyed, PoolGiveUp, PoolGroup, PoolGroupAdd,
    PoolLayout, PoolLevel, PoolMember, PoolTier, PoolUse,
};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::pool::level::Level;
use tidegate_core::pool::superblock::MemberState;
use tidegate_core::pool::{GRANT, Tier};

use super::DiskService;
use crate::disks::notices::Notices;
use crate::os_error::Outcome;
use crate::pools::{Alarm, OpenPool, Pools};

impl DiskService {
    /// All pools. One that cannot be used has its problem, and zeroes.
    pub(crate) fn pools(&self) -> Outcome<Vec<Pool>> {
        let names = self.pools.names()?;
        let pool = |name: Name| match self.pool(&name) {
            Ok(pool) => pool,
            Err(problem) => unusable(&self.pools, name, problem),
        };
        Ok(names.into_iter().map(pool).collect())
    }

    /// All pools that can be looked at within the usual time, for callers that poll.
    pub(crate) fn pools_at_a_glance(&self) -> Vec<Pool> {
        let names = self.pools.names().unwrap_or_default().into_iter();
        let look = |name: Name| {
            let (pools, of) = (Arc::clone(&self.pools), name.clone());
            let seen = self
                .surveys
                .at(&name, move || pools.with(&of, |pool| describe(&of, pool)));
            seen.unwrap_or_else(|problem| unusable(&self.pools, name, problem))
        };
        names.map(look).collect()
    }

    /// One pool.
    pub(crate) fn pool(&self, name: &Name) -> Outcome<Pool> {
        let record = self.pools.record(name)?;
        let described = self.pools.with(name, |pool| describe(name, pool));
        described.map(|pool| Pool {
            uuid: record.uuid.to_string(),
            ..pool
        })
    }

    /// Creates a pool.
    pub(crate) fn create_pool(&self, order: &PoolCreate) -> Outcome<Pool> {
        let name = &order.name;
        let what = format!("cannot create pool {name}");
        if !self.pools.has(name) && self.store.datastores()?.contains_key(name) {
            return Err(Problem::new(ProblemCode::Exists, what)
                .because(format!(
                    "there is a datastore {name}, and disks name either by its name"
                ))
                .remedy("choose another name"));
        }
        self.pools
            .create(order, |path| self.must_be_unused(path))
            .map_err(|e| e.within(&what))?;
        tracing::info!(pool = %name, "created");
        self.pool(name)
    }

    /// Gives a pool another group.
    pub(crate) fn add_pool_group(&self, name: &Name, order: &PoolGroupAdd) -> Outcome<Pool> {
        self.pools
            .add_group(name, order, |path| self.must_be_unused(path))
            .map_err(|e| e.within(format!("cannot add a group to pool {name}")))?;
        tracing::info!(pool = %name, "has another group");
        self.grants.space_came(name);
        self.pool(name)
    }

    /// Uses a pool without a member that is lost.
    pub(crate) fn give_up_member(&self, name: &Name, order: &PoolGiveUp) -> Outcome<Pool> {
        self.pools.give_up(name, order.member).map_err(|e| {
            e.within(format!(
                "cannot give up member {} of pool {name}",
                order.member
            ))
        })?;
        tracing::warn!(pool = %name, member = order.member, "a member of a pool was given up");
        self.pool(name)
    }

    /// Checks a pool's catalog.
    pub(crate) fn check_pool(&self, name: &Name) -> Outcome<PoolCheck> {
        self.pools.with(name, |pool| {
            let catalog = &pool.catalog;
            Ok(PoolCheck {
                name: name.clone(),
                findings: catalog.check()?,
                disks: catalog.disks()?.len() as u64,
                snapshots: catalog.snapshots()?.len() as u64,
                grants: catalog.grants()?.len() as u64,
            })
        })
    }

    /// Destroys a pool without disks.
    pub(crate) fn destroy_pool(&self, name: &Name, order: &PoolDestroy) -> Outcome<PoolDestroyed> {
        self.pools
            .destroy(name, order)
            .map_err(|e| e.within(format!("cannot destroy pool {name}")))?;
        self.grants.forget(name);
        self.store.forget_pool(name)?;
        tracing::info!(pool = %name, "destroyed");
        Ok(PoolDestroyed { name: name.clone() })
    }

    /// Fails if a path is used by a disk or a cache of this host.
    fn must_be_unused(&self, path: &Path) -> Outcome<()> {
        self.must_be_no_image_of_ours(path)?;
        self.caches.must_be_of_no_cache(path, None)
    }
}

/// A pool that is open, without its uuid.
fn describe(name: &Name, pool: &OpenPool) -> Outcome<Pool> {
    let catalog = &pool.catalog;
    let space = catalog.space();
    let (catalog_bytes, catalog_used_bytes) = catalog.member_set().size();
    let members = catalog.member_set().members();
    let mut groups = BTreeMap::new();
    for (number, row) in catalog.groups()? {
        let group = PoolGroup {
            group: number,
            layout: layout_of(&row.layout),
            tier: match row.tier {
                Tier::Fast => PoolTier::Fast,
                Tier::Slow => PoolTier::Slow,
            },
            size_bytes: 0,
            used_bytes: 0,
            members: Vec::new(),
        };
        groups.insert(number, group);
    }
    for ((number, member), path) in (0..).zip(&members).zip(pool.paths()) {
        let Some(group) = groups.get_mut(&member.place.group) else {
            continue;
        };
        if let Some((free, all)) = catalog.broker().column(member.place.column) {
            group.size_bytes += u64::from(all) * GRANT;
            group.used_bytes += u64::from(all - free) * GRANT;
        }
        group.members.push(PoolMember {
            member: number,
            path,
            size_bytes: member.size,
            is_current: member.place.state == MemberState::Current && member.trouble.is_none(),
            trouble: member.trouble.clone(),
        });
    }
    let disks = catalog.disks()?.into_iter();
    let mut by_disk: Vec<PoolUse> = disks
        .map(|(uuid, row)| {
            let (granted_bytes, reserved_bytes) = pool.space_of(Uuid(uuid.to_be_bytes()));
            PoolUse {
                disk: row.name,
                granted_bytes,
                reserved_bytes,
            }
        })
        .collect();
    by_disk.sort_by_key(|of| std::cmp::Reverse(of.granted_bytes));
    Ok(Pool {
        name: name.clone(),
        uuid: String::new(),
        size_bytes: space.all * GRANT,
        used_bytes: space.used * GRANT,
        reserved_bytes: space.reserved * GRANT,
        available_bytes: space.available * GRANT,
        level: level_of(space.level),
        grant_bytes: GRANT,
        catalog_bytes,
        catalog_used_bytes,
        groups: groups.into_values().collect(),
        disks: by_disk.len() as u64,
        by_disk,
        problem: None,
    })
}

fn level_of(level: Level) -> PoolLevel {
    match level {
        Level::Ample => PoolLevel::Ample,
        Level::Filling => PoolLevel::Filling,
        Level::Low => PoolLevel::Low,
        Level::Critical => PoolLevel::Critical,
    }
}

/// Makes events of pools' alarms.
pub(super) fn alarms(notices: Arc<Notices>) -> impl Fn(&Name, Alarm) + Send + Sync {
    move |pool, alarm| {
        let happening = match alarm {
            Alarm::Level(space) => Happening::PoolLevel {
                pool: pool.clone(),
                level: level_of(space.level),
                used_bytes: (space.used + space.reserved) * GRANT,
                size_bytes: space.all * GRANT,
            },
            Alarm::Refused(disk) => Happening::PoolFull {
                pool: pool.clone(),
                disk,
            },
        };
        notices.add_of_pool(pool, happening);
    }
}

fn layout_of(text: &str) -> PoolLayout {
    let all = [
        PoolLayout::Single,
        PoolLayout::Stripe,
        PoolLayout::Mirror,
        PoolLayout::MirrorStripe,
    ];
    let named = all.into_iter().find(|layout| layout.as_str() == text);
    named.unwrap_or_default()
}

/// A pool that cannot be used.
fn unusable(pools: &Pools, name: Name, problem: Problem) -> Pool {
    let uuid = pools.record(&name).map(|record| record.uuid.to_string());
    Pool {
        name,
        uuid: uuid.unwrap_or_default(),
        size_bytes: 0,
        used_bytes: 0,
        reserved_bytes: 0,
        available_bytes: 0,
        level: PoolLevel::default(),
        grant_bytes: GRANT,
        catalog_bytes: 0,
        catalog_used_bytes: 0,
        groups: Vec::new(),
        disks: 0,
        by_disk: Vec::new(),
        problem: Some(problem),
    }
}
