//! The emulated arrays of a scenario: one for each of its datastores.
//!
//! # Always true
//! - Each member of a disk has a stretch of its own on the array of its datastore.

use std::path::Path;

use anyhow::Result;
use tidegate_sim::Scenario;

use crate::array::{ArrayServer, Did, Stretch};

/// See the module.
#[derive(Debug)]
pub(crate) struct Arrays(Vec<ArrayServer>);

/// The datastore that hosts share, by its name on each of them. Further ones have a number behind it.
pub(crate) const SHARED: &str = "shared";

/// The name of an array's datastore on each host.
pub(crate) fn datastore(array: usize) -> String {
    match array {
        0 => SHARED.to_owned(),
        _ => format!("{SHARED}{array}"),
    }
}

impl Arrays {
    /// Starts the arrays. Their sockets are in `scratch`.
    pub(super) fn start(scenario: &Scenario, seed: u64, scratch: &Path) -> Result<Arrays> {
        let count = scenario.datastore.arrays;
        let mut stretches: Vec<Vec<Stretch>> = vec![Vec::new(); count];
        for disk in &scenario.disks {
            let size = disk.layout.member_size(disk.size, disk.members.len());
            for array in &disk.members {
                let on = &mut stretches[*array];
                let begins = on.last().map_or(0, |last| last.begins + last.size);
                on.push(Stretch {
                    name: disk.name.clone(),
                    begins,
                    size,
                });
            }
        }
        let start = |(array, stretches): (usize, Vec<Stretch>)| {
            let socket = scratch.join(format!("array{array}.sock"));
            let seed = seed.wrapping_add(array as u64);
            ArrayServer::start(&scenario.datastore.array, seed, stretches, &socket)
        };
        let started = stretches.into_iter().enumerate().map(start);
        Ok(Arrays(started.collect::<Result<_>>()?))
    }

    /// Where an array listens.
    pub(super) fn socket(&self, array: usize) -> &Path {
        self.0[array].socket()
    }

    /// From now on all of them work at so many thousandths of their speed.
    pub(super) fn set_speed(&self, permille: u32) {
        self.0.iter().for_each(|array| array.set_speed(permille));
    }

    /// What they did together since this was last called.
    pub(super) fn did(&self) -> Did {
        let mut all = Did::default();
        for did in self.0.iter().map(ArrayServer::did) {
            all.ios += did.ios;
            all.latency_ns += did.latency_ns;
            all.outstanding += did.outstanding;
            all.late_ns += did.late_ns;
            all.latest_ns = all.latest_ns.max(did.latest_ns);
        }
        all
    }
}
