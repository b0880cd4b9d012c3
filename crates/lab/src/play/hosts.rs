//! The hosts of a scenario: one daemon each, with its disks, all on the same emulated arrays.
//!
//! # Always true
//! - Daemons and files are gone once the value is dropped.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;
use tidegate_core::units::{Span, Time};
use tidegate_sim::Policy;
use tidegate_sim::results::HostBin;
use tidegate_sim::scenario::{
    self as sim, Ceiling, Control, Group, MemberChange, Scenario, Settings, Threshold,
};

use crate::host::{Host, HostOptions};
use crate::statistics::whole;

use super::arrays::{Arrays, SHARED, datastore};

/// The members of new mirrors are equal within so long, or something is wrong.
const FIRST_COPIES: Duration = Duration::from_secs(300);
/// How often to look whether they are.
const LOOK: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// Stopped before the arrays that they use.
    hosts: Vec<Host>,
    policy: Policy,
    arrays: Arrays,
    scratch: TempDir,
}

/// What the demonstration has and a scenario does not need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras<'a> {
    /// How the scratch directory's name begins.
    pub(crate) prefix: &'a str,
    /// More lines of each host's configuration.
    pub(crate) config: &'a str,
    /// Whether a terminal's signals must not reach the daemons.
    pub(crate) own_group: bool,
    /// Whether all hosts have their disks' descriptors in one directory, as those of a datastore of kind `dir` do: an order
    /// on one host then takes effect on the one that serves the disk.
    pub(crate) one_directory: bool,
}

impl Hosts {
    /// Sets up a scenario's hosts, disks and array.
    pub(crate) fn new(
        program: &Path,
        scenario: &Scenario,
        policy: Policy,
        threshold: Threshold,
        seed: u64,
        extras: Extras<'_>,
    ) -> Result<Hosts> {
        let scratch = tempfile::Builder::new().prefix(extras.prefix).tempdir();
        let scratch = scratch.context("cannot make a temporary directory")?;
        let arrays = Arrays::start(scenario, seed, scratch.path())?;
        let mut made = Hosts {
            hosts: Vec::new(),
            policy,
            arrays,
            scratch,
        };
        for place in 0..scenario.hosts.len() {
            let sim::Host { name, threads, .. } = &scenario.hosts[place];
            // Not the name: a scenario may put anything in it.
            let root = made.scratch().join(format!("host{place}"));
            if extras.one_directory {
                link_disks(&root, &made.scratch().join("disks"))?;
            }
            let more = extras.config;
            let config = format!("[host]\nname = {name:?}\n[io]\nthreads = {threads}\n{more}");
            made.hosts.push(Host::start(&HostOptions {
                program,
                name,
                root: &root,
                config: &config,
                cpu: None,
                own_group: extras.own_group,
            })?);
            for array in 0..scenario.datastore.arrays {
                made.share(place, array, scenario, threshold)?;
            }
            if made.is_controlled() {
                for group in &scenario.groups {
                    made.group(place, group)?;
                }
            }
        }
        for (place, disk) in scenario.disks.iter().enumerate() {
            if !disk.unmanaged {
                made.create(place, scenario)?;
            }
        }
        made.await_members(scenario)?;
        Ok(made)
    }

    fn share(
        &self,
        host: usize,
        array: usize,
        scenario: &Scenario,
        threshold: Threshold,
    ) -> Result<()> {
        let name = datastore(array);
        let coordination = self.scratch().join(format!("coordination{array}"));
        std::fs::create_dir_all(&coordination).context("cannot make a directory")?;
        let socket = self.arrays.socket(array).display();
        let uri = format!("nbd+unix:///?socket={socket}");
        self.order(
            host,
            &["datastore", "add", &name, "--kind", "nbd", "--uri", &uri],
        )?;
        let mode = match (self.policy, scenario.datastore.control) {
            (Policy::None, _) | (_, Control::Off) => "off",
            (_, Control::Observe) => "observe",
            (_, Control::On) => "on",
        };
        let threshold = match threshold {
            Threshold::Auto => "auto".to_owned(),
            Threshold::Off => "off".to_owned(),
            Threshold::Fixed(span) => format!("{}us", span.as_micros()),
        };
        self.order(
            host,
            &[
                "datastore",
                "set",
                &name,
                "--io-control",
                mode,
                "--congestion-threshold",
                &threshold,
                "--io-unit",
                &scenario.datastore.io_unit.to_string(),
                "--coordination",
                &coordination.display().to_string(),
            ],
        )?;
        Ok(())
    }

    /// Whether anything is said of who gets what. Without control nothing is, limits included, as in the simulator: daemons
    /// would hold them also where I/O control is off.
    fn is_controlled(&self) -> bool {
        self.policy != Policy::None
    }

    fn group(&self, host: usize, group: &Group) -> Result<()> {
        let mut words = vec!["group".to_owned(), "set".to_owned()];
        words.extend(ceiling("--limit", "iops", group.limit));
        words.extend(ceiling("--limit-bandwidth", "B/s", group.bandwidth));
        words.push(group.name.clone());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.order(host, &words)?;
        Ok(())
    }

    /// Creates a disk, and attaches it if its host is there from the beginning: a host joins by its first disk.
    fn create(&self, place: usize, scenario: &Scenario) -> Result<()> {
        let disk = &scenario.disks[place];
        let size = disk.size.to_string();
        let mut words = vec![
            "disk",
            "create",
            &disk.name,
            "--size",
            &size,
            "--best-effort",
        ];
        let layout = disk.layout.to_string();
        let datastores = disk.members.iter().map(|array| datastore(*array));
        let datastores: Vec<String> = datastores.collect();
        if disk.layout.is_plain() {
            words.extend(["--datastore", &datastores[0]]);
        } else {
            words.extend(["--layout", &layout]);
            words.extend(datastores.iter().flat_map(|name| ["--on", name]));
        }
        if scenario.hosts[disk.host].joins == Time::ZERO {
            words.push("--attach");
        }
        let policy = flags(&disk.policy, scenario);
        if self.is_controlled() {
            words.extend(policy.iter().map(String::as_str));
        }
        self.order(disk.host, &words)?;
        Ok(())
    }

    /// Runs a command of a host.
    pub(super) fn order(&self, host: usize, words: &[&str]) -> Result<String> {
        self.hosts[host].run(words)
    }

    /// Attaches the disks of a host that was not there from the beginning: from now on the others see it.
    pub(super) fn join(&self, host: usize, scenario: &Scenario) -> Result<()> {
        let disks = scenario.disks.iter();
        for disk in disks.filter(|disk| disk.host == host && !disk.unmanaged) {
            self.order(host, &["disk", "attach", &disk.name])?;
        }
        Ok(())
    }

    /// Gives a disk other settings.
    pub(super) fn set(&self, place: usize, scenario: &Scenario, settings: &Settings) -> Result<()> {
        if !self.is_controlled() {
            return Ok(());
        }
        let disk = &scenario.disks[place];
        let mut words = vec!["disk", "set", &disk.name, "--best-effort"];
        let policy = flags(settings, scenario);
        words.extend(policy.iter().map(String::as_str));
        if settings.limit.is_none() {
            words.extend(["--limit", "unlimited"]);
        }
        self.order(disk.host, &words)?;
        Ok(())
    }

    /// Removes a member of a disk, or adds it again.
    pub(super) fn change_member(&self, change: &MemberChange, scenario: &Scenario) -> Result<()> {
        let disk = &scenario.disks[change.disk];
        let number = change.member.to_string();
        if change.removes {
            let words = ["disk", "member", "remove", &disk.name, &number, "--yes"];
            self.order(disk.host, &words)?;
        } else {
            let on = datastore(disk.members[usize::from(change.member)]);
            let words = ["disk", "member", "add", &disk.name, "--on", &on];
            self.order(disk.host, &[&words[..], &["--no-wait"]].concat())?;
        }
        Ok(())
    }

    /// Whether all members of a disk have all bytes.
    pub(super) fn is_in_sync(&self, place: usize, scenario: &Scenario) -> Result<bool> {
        let disk = &scenario.disks[place];
        let shown = self.hosts[disk.host].get(&format!("/v1/disks/{}/members", disk.name))?;
        let members = shown["members"].as_array();
        let mut members = members.context("a disk has no members")?.iter();
        Ok(members.all(|member| member["state"] == "in-sync"))
    }

    /// Waits until the members of new mirrors have been made equal: exports are not known to be zeroes.
    fn await_members(&self, scenario: &Scenario) -> Result<()> {
        let begun = Instant::now();
        for (place, disk) in scenario.disks.iter().enumerate() {
            let attached = scenario.hosts[disk.host].joins == Time::ZERO;
            if disk.unmanaged || !attached || !disk.layout.is_redundant() {
                continue;
            }
            while !self.is_in_sync(place, scenario)? {
                if begun.elapsed() > FIRST_COPIES {
                    bail!("the members of disk {} do not become equal", disk.name);
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Where a disk is asked.
    pub(crate) fn socket(&self, place: usize, scenario: &Scenario) -> PathBuf {
        let disk = &scenario.disks[place];
        if disk.unmanaged {
            self.arrays.socket(disk.members[0]).to_owned()
        } else {
            self.hosts[disk.host].root().join("run/nbd.sock")
        }
    }

    /// The hosts, in the scenario's order.
    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The temporary directory that all of it lies in.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Fails if a daemon has ended.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        self.hosts.iter_mut().try_for_each(Host::check_alive)
    }

    /// Stops all daemons at the same time, and waits a while for their end.
    pub(crate) fn stop(&mut self) {
        self.hosts.iter().for_each(Host::terminate);
        self.hosts.drain(..).for_each(Host::wait);
    }

    /// The arrays.
    pub(super) fn arrays(&self) -> &Arrays {
        &self.arrays
    }

    /// How a host stands.
    pub(super) fn standing(&self, host: usize) -> Result<HostBin> {
        let control = self.control(host)?;
        let number = |field: &str| control[field].as_f64().unwrap_or(0.0);
        let micros = |field: &str| Span::from_nanos(whole(number(field) * 1e3)).as_micros();
        Ok(HostBin {
            window: number("window"),
            in_flight: whole(number("in_flight")),
            latency_us: micros("latency_us"),
            threshold_us: micros("threshold_us"),
            engaged: control["engaged"] == true,
        })
    }

    /// A host's report of the datastore under I/O control.
    pub(crate) fn control(&self, host: usize) -> Result<Value> {
        let mut shown = self.hosts[host].get(&format!("/v1/datastores/{SHARED}"))?;
        Ok(shown["control"].take())
    }
}

/// Makes a root in which the shared datastore's descriptors lie in `disks`.
fn link_disks(root: &Path, disks: &Path) -> Result<()> {
    let known = root.join("state/disks");
    std::fs::create_dir_all(&known)
        .and_then(|()| std::fs::create_dir_all(disks))
        .and_then(|()| std::os::unix::fs::symlink(disks, known.join(SHARED)))
        .with_context(|| format!("cannot make a link in {}", known.display()))
}

/// Settings as the command line takes them.
fn flags(settings: &Settings, scenario: &Scenario) -> Vec<String> {
    let mut words = vec![
        "--shares".to_owned(),
        settings.shares.to_string(),
        "--reservation".to_owned(),
        format!("{}iops", settings.reservation),
    ];
    words.extend(ceiling("--limit", "iops", settings.limit));
    if let Some(Ceiling {
        sustained,
        peak,
        burst,
    }) = settings.limit
        && peak > sustained
    {
        words.extend(["--burst-iops".to_owned(), format!("{peak}iops")]);
        let seconds = burst / (peak - sustained);
        words.extend(["--burst-seconds".to_owned(), seconds.to_string()]);
    }
    words.extend(ceiling("--limit-bandwidth", "B/s", settings.bandwidth));
    if let Some(group) = settings.group {
        words.extend(["--group".to_owned(), scenario.groups[group].name.clone()]);
    }
    if let Some(target) = settings.latency_target {
        let target = format!("{}us", target.as_micros());
        words.extend(["--latency-target".to_owned(), target]);
    }
    words
}

/// A steady limit as the command line takes it.
fn ceiling(flag: &str, unit: &str, limit: Option<Ceiling>) -> Vec<String> {
    let sustained = limit.map(|limit| format!("{}{unit}", limit.sustained));
    let words = sustained.map(|sustained| vec![flag.to_owned(), sustained]);
    words.unwrap_or_default()
}
