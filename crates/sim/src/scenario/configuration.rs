//! The arrays, caches and pools that a scenario compares.
//!
//! Each is a configuration with a name. The scenario is run once for each that an expectation names.

use super::raw::RawConfiguration;
use super::{Scenario, ScenarioError, Variant, datastore, within, wrong};
use tidegate_core::layout::MAX_TARGETS;
use tidegate_core::layout::cache::policy::Params;
use tidegate_core::units::Span;
use tidegate_model::ArraySpec;

/// An array with or without a cache in front of it, or with pools.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Its name.
    pub name: String,
    /// The array.
    pub array: ArraySpec,
    /// The cache.
    pub cache: Option<FlashCache>,
    /// The hosts' pools.
    pub pool: Option<PoolPlan>,
}

/// The pools of a configuration: one of each host, over its part of the arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    /// How much of its space disks have once all of them are full, in percent.
    pub allocated: u32,
    /// How many of the host's arrays it has; all, if there is no number.
    pub groups: Option<usize>,
}

/// The caches of all cached disks together. Each host has its part on two devices that have the same bytes.
#[derive(Clone, Debug)]
pub struct FlashCache {
    /// Bytes for all cached disks that are active. They have equal parts at first.
    pub size: u64,
    /// How often a host's disks get other parts.
    pub broker: Option<Span>,
    /// Each of a host's two devices.
    pub flash: ArraySpec,
    /// The policy that is always used; `None` for what the product uses.
    pub policy: Option<Params>,
}

/// The policies that can be named.
const POLICIES: [(&str, Option<Params>); 6] = [
    ("auto", None),
    ("fast", Some(Params::FAST)),
    ("lru", Some(Params::LRU)),
    ("s3-fifo", Some(Params::S3_FIFO)),
    ("clock2q+", Some(Params::CLOCK_2Q_PLUS)),
    ("fifo", Some(Params::FIFO)),
];

pub(super) fn configurations(
    raw: &[RawConfiguration],
    array: &ArraySpec,
) -> Result<Vec<Configuration>, ScenarioError> {
    let mut all: Vec<Configuration> = Vec::new();
    for raw in raw {
        if all.iter().any(|other| other.name == raw.name) {
            return wrong(format!("two configurations are called `{}`", raw.name));
        }
        let own = raw.array.as_ref().map(datastore::any_array).transpose()?;
        all.push(Configuration {
            name: raw.name.clone(),
            array: own.unwrap_or_else(|| array.clone()),
            cache: cache(raw)?,
            pool: pool(raw)?,
        });
    }
    Ok(all)
}

fn pool(raw: &RawConfiguration) -> Result<Option<PoolPlan>, ScenarioError> {
    let Some(allocated) = raw.pool else {
        return match raw.groups {
            None => Ok(None),
            Some(_) => wrong(format!("configuration `{}` needs `pool`", raw.name)),
        };
    };
    if raw.cache.is_some() {
        return wrong("a configuration has a pool or a cache, not both");
    }
    Ok(Some(PoolPlan {
        allocated: within("pool", allocated, 1, 100)?,
        groups: raw.groups.map(|groups| groups as usize),
    }))
}

/// Refuses pools that have no arrays, or disks with a layout.
pub(super) fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    let (arrays, hosts) = (scenario.datastore.arrays, scenario.hosts.len());
    for plan in scenario.configurations.iter().filter_map(|own| own.pool) {
        if !arrays.is_multiple_of(hosts) {
            return wrong(format!(
                "{arrays} arrays cannot be divided among {hosts} hosts"
            ));
        }
        let each = arrays / hosts;
        if each > MAX_TARGETS || plan.groups.is_some_and(|own| own == 0 || own > each) {
            return wrong(format!(
                "a pool has 1 to {MAX_TARGETS} groups, and its host {each} arrays"
            ));
        }
    }
    let has_pools = scenario.configurations.iter().any(|own| own.pool.is_some());
    let laid_out = scenario.disks.iter().find(|disk| !disk.layout.is_plain());
    match laid_out.filter(|_| has_pools) {
        Some(disk) => wrong(format!(
            "disk `{}` has a layout and cannot be in a pool",
            disk.name
        )),
        None => Ok(()),
    }
}

fn cache(raw: &RawConfiguration) -> Result<Option<FlashCache>, ScenarioError> {
    let word = raw.policy.as_deref().unwrap_or("auto");
    let Some((_, policy)) = POLICIES.iter().find(|(name, _)| *name == word) else {
        let names: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        return wrong(format!("a cache's policy is one of {names}, not `{word}`"));
    };
    let Some(size) = raw.cache else {
        return match (&raw.flash, &raw.policy, &raw.broker) {
            (None, None, None) => Ok(None),
            _ => wrong(format!("configuration `{}` needs `cache`", raw.name)),
        };
    };
    let flash = match &raw.flash {
        Some(raw) => datastore::any_array(raw)?,
        None => datastore::array_named("ssd")?,
    };
    Ok(Some(FlashCache {
        size: size.0,
        broker: raw.broker.map(|span| span.0),
        flash,
        policy: *policy,
    }))
}

impl Scenario {
    /// The array of a variant.
    pub fn array(&self, variant: &Variant) -> &ArraySpec {
        let own = self.configurations.get(variant.configuration);
        own.map_or(&self.datastore.array, |own| &own.array)
    }

    /// The pools of a variant.
    pub fn pool(&self, variant: &Variant) -> Option<PoolPlan> {
        self.configurations.get(variant.configuration)?.pool
    }

    /// The cache of a variant.
    pub fn cache(&self, variant: &Variant) -> Option<&FlashCache> {
        let own = self.configurations.get(variant.configuration);
        own.and_then(|own| own.cache.as_ref())
    }
}
