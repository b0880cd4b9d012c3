//! The flash caches of a scenario's hosts, on files that stand for its flash devices.
//!
//! Each host with cached disks has one cache on two files with the same bytes. All cached disks write back, and have equal parts
//! from the beginning. The daemon divides them again as often as the scenario says. Caches stay as they are from phase to
//! phase.
//!
//! # Always true
//! - A hit or a miss is a page of a read, as the daemon counts them. Writes count as neither.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tidegate_sim::Scenario;
use tidegate_sim::results::CacheDid;
use tidegate_sim::scenario::FlashCache;

use super::hosts::Hosts;

/// The cache, by its name on each host.
const NAME: &str = "flash";
/// The smallest cache of a host.
const LEAST: u64 = 64 << 20;
/// A cache begins with a chunk that no disk gets.
const LABEL: u64 = 1 << 20;

/// See the module.
pub(super) struct Caches {
    /// Cached disks, by host and name.
    disks: BTreeMap<(usize, String), usize>,
    /// What each had done when it was looked at last.
    seen: BTreeMap<usize, CacheDid>,
}

/// Whether disks have the flash in turn: one that has a cache rests in a later phase.
pub(crate) fn frees_flash(scenario: &Scenario) -> bool {
    if scenario.configurations.is_empty() {
        return false;
    }
    let cached = (0..scenario.disks.len()).filter(|disk| scenario.disks[*disk].cached);
    let rests = |disk: usize| {
        let mut pairs = scenario.phases.windows(2);
        pairs.any(|pair| pair[0].active[disk] && !pair[1].active[disk])
    };
    cached.into_iter().any(rests)
}

/// What a host's configuration says for a cache.
pub(super) fn config(cache: Option<&FlashCache>) -> String {
    let every = cache.map(|cache| cache.broker.map_or(0, |span| span.as_micros()));
    every.map_or_else(String::new, |us| format!("[caches]\ndivide = \"{us}us\"\n"))
}

impl Caches {
    /// Gives the cached disks their caches, if there are any.
    pub(super) fn new(
        hosts: &Hosts,
        scenario: &Scenario,
        cache: Option<&FlashCache>,
    ) -> Result<Caches> {
        let mut made = Caches {
            disks: BTreeMap::new(),
            seen: BTreeMap::new(),
        };
        let Some(cache) = cache else {
            return Ok(made);
        };
        for (place, disk) in scenario.disks.iter().enumerate() {
            if disk.cached && !disk.unmanaged {
                made.disks.insert((disk.host, disk.name.clone()), place);
            }
        }
        let all = made.disks.len() as u64;
        for host in 0..scenario.hosts.len() {
            let own = made.disks.keys().filter(|(on, _)| *on == host);
            let own: Vec<&String> = own.map(|(_, name)| name).collect();
            if own.is_empty() {
                continue;
            }
            let size = cache.size * own.len() as u64 / all;
            if size < LEAST {
                bail!("a host has {size} bytes of flash, and a cache needs {LEAST}");
            }
            let size = (size + LABEL).next_multiple_of(LABEL).to_string();
            let device = |nth| hosts.scratch().join(format!("flash{host}.{nth}"));
            let devices = [0, 1].map(|nth| device(nth).display().to_string());
            let [first, second] = &devices;
            hosts.order(
                host,
                &[
                    "cache", "create", NAME, "--device", first, "--mirror", second, "--size", &size,
                ],
            )?;
            for name in own {
                let words = ["disk", "set", name, "--cache", NAME];
                let mode = ["--cache-mode", "write-back"];
                hosts.order(host, &[&words[..], &mode].concat())?;
            }
        }
        Ok(made)
    }

    /// What the caches of disks did since this was last asked, by disk.
    pub(super) fn did(&mut self, hosts: &Hosts) -> Result<Vec<(usize, CacheDid)>> {
        let mut did = Vec::new();
        let mut on: Vec<usize> = self.disks.keys().map(|(host, _)| *host).collect();
        on.dedup();
        for host in on {
            let shown = hosts.hosts()[host].get(&format!("/v1/caches/{NAME}"))?;
            let devices = shown["devices"].as_array().map_or(1, Vec::len).max(1) as u64;
            let disks = shown["disks"].as_array().context("a cache has no disks")?;
            for disk in disks {
                let name = disk["disk"].as_str().unwrap_or_default().to_owned();
                let Some(&place) = self.disks.get(&(host, name)) else {
                    continue;
                };
                let now = counted(&disk["at_work"], devices)
                    .with_context(|| format!("disk {} does not use its cache", disk["disk"]))?;
                let before = self.seen.insert(place, now).unwrap_or_default();
                let since = CacheDid {
                    hits: now.hits.saturating_sub(before.hits),
                    misses: now.misses.saturating_sub(before.misses),
                    flash_bytes: now.flash_bytes.saturating_sub(before.flash_bytes),
                };
                did.push((place, since));
            }
        }
        Ok(did)
    }
}

/// What a disk's cache has done, as REST shows it.
fn counted(at_work: &Value, devices: u64) -> Option<CacheDid> {
    Some(CacheDid {
        hits: at_work["hits_total"].as_u64()?,
        misses: at_work["misses_total"].as_u64()?,
        flash_bytes: at_work["flash_written_bytes_total"].as_u64()? / devices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fixtures::scenario;
    use serde_json::json;

    #[test]
    fn disks_that_have_the_flash_in_turn_are_the_simulators() {
        for (name, frees) in [
            ("flash-cache", false),
            ("engine-flash-cache", false),
            ("flash-cache-scan", true),
            ("sioc-1", false),
        ] {
            assert_eq!(frees_flash(&scenario(name, 100).scenario), frees, "{name}");
        }
    }

    #[test]
    fn a_host_divides_its_cache_as_often_as_the_scenario_says() {
        assert_eq!(config(None), "");
        let scenario = scenario("flash-cache", 100).scenario;
        let caches = scenario.configurations.iter();
        let caches: Vec<_> = caches.filter_map(|it| it.cache.as_ref()).collect();
        assert_eq!(config(Some(caches[0])), "[caches]\ndivide = \"500000us\"\n");
        let never = FlashCache {
            broker: None,
            ..caches[0].clone()
        };
        assert_eq!(config(Some(&never)), "[caches]\ndivide = \"0us\"\n");
    }

    #[test]
    fn flash_writes_count_on_one_device() {
        let shown = json!({"hits_total": 3, "misses_total": 4, "flash_written_bytes_total": 200});
        let did = counted(&shown, 2).expect("all is there");
        assert_eq!((did.hits, did.misses, did.flash_bytes), (3, 4, 100));
        assert_eq!(counted(&Value::Null, 2), None);
    }
}
