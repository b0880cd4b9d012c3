//! A demonstration: two hosts, four virtual machines, and one congested array that they share.
//!
//! Two daemons of the given program, each with a root of its own in a temporary directory; behind both one emulated array
//! ([`crate::array`]), so slow that the machine is nearly idle; four guests in closed loops, whose I/Os and times are
//! counted where a guest sees them. The caller shows it, and calls [`Demo::second`] once a second.
//!
//! # Always true
//! - Daemons, guests and files are gone once the value is dropped, however that comes.
//! - The hosts keep their disks' descriptors in one directory, as those of a datastore of kind `dir` do: what is ordered on
//!   one of them holds on the one that serves the disk.
//!
//! # Picture
//! ```text
//!   vm1 (500)  ── NBD ──> daemon of host1 ── NBD ──┐
//!   vm2 (1000) ── NBD ──>        "                 ├──> emulated array, 666 I/Os a second
//!   vm3 (1000) ── NBD ──> daemon of host2 ── NBD ──┘
//!   vm4 (2000) ── NBD ──>        "
//! ```

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tidegate_sim::{Policy, Scenario};

use crate::host::Host;
use crate::play::arrays::SHARED;
use crate::play::hosts::{Extras, Hosts};

mod guest;
pub mod story;

use guest::{Guest, Tally};
pub use story::{Row, Second, Terms};

use story::Story;

/// The datastore that both hosts share, by its name on each of them.
pub const DATASTORE: &str = SHARED;

/// A virtual machine; its disk has its name.
#[derive(Clone, Copy, Debug)]
struct Vm {
    name: &'static str,
    /// The host that it runs on.
    host: usize,
    shares: u32,
}

const HOSTS: [&str; 2] = ["host1", "host2"];

const VMS: [Vm; 4] = [
    vm("vm1", 0, 500),
    vm("vm2", 0, 1000),
    vm("vm3", 1, 1000),
    vm("vm4", 1, 2000),
];

const fn vm(name: &'static str, host: usize, shares: u32) -> Vm {
    Vm { name, host, shares }
}

/// The disk whose shares are to be changed, and the host that serves it.
pub const CHANGED: (&str, &str) = ("vm4", HOSTS[1]);
/// What its shares are to become.
pub const RAISED: u32 = 4000;

/// The array works on eight I/Os at a time: 666 a second. What a busy machine adds to an I/O is small against 12 ms. It
/// counts as congested at some forty I/Os, so that even the smallest part is several.
const ARRAY: &str = r#"
name = "demo"
title = "Two hosts share a congested array"
lasts = "1s"
[datastore]
array = { servers = 8, read = "12ms" }
threshold = "60ms"
"#;
/// What each guest keeps outstanding: more than its disk's part of those at any shares that are suggested, so that it
/// always has something waiting.
const DEPTH: u16 = 32;

/// The scenario that it shows.
fn scenario() -> Result<Scenario> {
    let mut text = ARRAY.to_owned();
    for name in HOSTS {
        text += &format!("[[host]]\nname = \"{name}\"\n");
    }
    for Vm { name, host, shares } in VMS {
        let host = HOSTS[host];
        text += &format!(
            "[[disk]]\nname = \"{name}\"\nhost = \"{host}\"\nsize = \"1GiB\"\nshares = {shares}\n\
             workload = {{ kind = \"access\", outstanding = {DEPTH} }}\n"
        );
    }
    Scenario::read(&text).context("the demonstration is no scenario")
}

/// See the module.
#[derive(Debug)]
pub struct Demo {
    begun: Instant,
    story: Story,
    looked: Instant,
    /// By virtual machine; they end before the daemons do.
    guests: Vec<Guest>,
    hosts: Hosts,
}

impl Demo {
    /// Sets it up, and lets the guests begin.
    ///
    /// # Errors
    /// A directory or a socket cannot be made, a daemon does not start, or refuses a command.
    pub fn start(program: &Path) -> Result<Demo> {
        let scenario = scenario()?;
        let extras = Extras {
            prefix: "tidegate-demo-",
            config: "[dashboard]\nlisten = \"127.0.0.1:0\"\n",
            own_group: true,
            one_directory: true,
        };
        let hosts = Hosts::new(
            program,
            &scenario,
            Policy::Ours,
            scenario.datastore.threshold,
            1,
            extras,
        )?;
        let mut guests = Vec::new();
        for (place, disk) in scenario.disks.iter().enumerate() {
            let socket = hosts.socket(place, &scenario);
            guests.push(Guest::start(&socket, disk, place as u64 + 1)?);
        }
        let begun = Instant::now();
        Ok(Demo {
            begun,
            story: Story::default(),
            looked: begun,
            guests,
            hosts,
        })
    }

    /// Its hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        self.hosts.hosts()
    }

    /// The temporary directory that all of it lies in.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.hosts.scratch()
    }

    /// Where a disk's page is: its policy can be changed there.
    #[must_use]
    pub fn page(&self, disk: &str) -> Option<String> {
        let vm = VMS.iter().find(|vm| vm.name == disk)?;
        let host = self.hosts().get(vm.host)?;
        Some(format!("{}#/disk/{disk}", host.dashboard()))
    }

    /// Gives a disk other shares, as an administrator would.
    ///
    /// # Errors
    /// There is no such disk, or its host refuses.
    pub fn set_shares(&self, disk: &str, shares: u32) -> Result<()> {
        let Some(vm) = VMS.iter().find(|vm| vm.name == disk) else {
            bail!("there is no disk {disk} in the demonstration");
        };
        let shares = shares.to_string();
        self.hosts()[vm.host].run(&["disk", "set", disk, "--shares", &shares])?;
        Ok(())
    }

    /// What was done since this was last asked.
    ///
    /// # Errors
    /// A daemon has ended, or does not answer.
    pub fn second(&mut self) -> Result<Second> {
        self.hosts.check_alive()?;
        let now = Instant::now();
        let covers = now.duration_since(self.looked);
        self.looked = now;
        let tallies: Vec<Tally> = self.guests.iter().map(Guest::take).collect();
        let hosts = 0..HOSTS.len();
        let reports: Vec<Value> = hosts
            .map(|host| self.hosts.control(host))
            .collect::<Result<_>>()?;
        let rows = VMS.iter().zip(&tallies).map(|(vm, tally)| {
            let known = share(&reports[vm.host], vm.name);
            story::row(vm.name, HOSTS[vm.host], known, tally, covers)
        });
        let rows = rows.collect();
        let at = now.duration_since(self.begun);
        let mut second = Second::new(at, &reports[0], rows);
        second.said = self.story.hear(&second);
        Ok(second)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Guests first: to them a daemon that stops would be an error. Then both daemons at the same time.
        self.guests.clear();
        self.hosts.stop();
    }
}

/// What a host reports of a disk that it serves itself.
fn share<'a>(control: &'a Value, disk: &str) -> Option<&'a Value> {
    let shares = control["shares"].as_array()?;
    shares
        .iter()
        .find(|share| share["disk"] == disk && share["got_iops"].is_number())
}
