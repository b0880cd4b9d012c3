//! A demonstration: two hosts, four virtual machines, and one congested array that they share.
//!
//! Two daemons of the given program, each with a root of its own in a temporary directory; behind both one emulated array
//! ([`crate::array`]), so slow that the machine is nearly idle; four guests in closed loops, whose I/Os and times are
//! counted where a guest sees them. Whoever shows it calls [`Demo::second`] once a second.
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

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;
use tidegate_model::spec::{Cost, MemberSpec, SsdSpec, Variation};

use crate::array::{ArrayServer, ArraySpec, Stretch};
use crate::host::{Host, HostOptions};

mod guest;
pub mod story;

use guest::{Guest, Tally};
pub use story::{Row, Second, Terms};

use story::Story;

/// The datastore that both hosts share, by its name on each of them.
pub const DATASTORE: &str = "shared";

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

/// How many I/Os the array works on at a time, and for how long on each: 666 a second. What a busy machine adds to an I/O
/// is small against that.
const CHANNELS: u32 = 8;
const SERVICE: Duration = Duration::from_millis(12);
/// Where it counts as congested: some forty of its I/Os, so that even the smallest part is several.
const THRESHOLD: &str = "60ms";
/// What each guest keeps outstanding: more than its disk's part of those at any shares that are suggested, so that it
/// always has something waiting.
const DEPTH: u16 = 32;
/// Each disk's size: thin air, so it costs nothing.
const SIZE: u64 = 1 << 30;

/// See the module.
#[derive(Debug)]
pub struct Demo {
    begun: Instant,
    story: Story,
    looked: Instant,
    /// By virtual machine; they end before the daemons do.
    guests: Vec<Guest>,
    hosts: Vec<Host>,
    _array: ArrayServer,
    scratch: TempDir,
}

impl Demo {
    /// Sets it up, and lets the guests begin.
    ///
    /// # Errors
    /// A directory or a socket cannot be made, a daemon does not start, or refuses a command.
    pub fn start(program: &Path) -> Result<Demo> {
        let scratch = tempfile::Builder::new().prefix("tidegate-demo-").tempdir();
        let scratch = scratch.context("cannot make a temporary directory")?;
        let array = array(scratch.path())?;
        let mut demo = Demo {
            begun: Instant::now(),
            story: Story::default(),
            looked: Instant::now(),
            guests: Vec::new(),
            hosts: Vec::new(),
            _array: array,
            scratch,
        };
        for folder in ["meeting", "disks"] {
            std::fs::create_dir(demo.path(folder)).context("cannot make a directory")?;
        }
        for name in HOSTS {
            let root = demo.path(name);
            link_disks(&root, &demo.path("disks"))?;
            let config = format!(
                "[host]\nname = \"{name}\"\n[io]\nthreads = 1\n[dashboard]\nlisten = \"127.0.0.1:0\"\n"
            );
            demo.hosts.push(Host::start(&HostOptions {
                program,
                name,
                root: &root,
                config: &config,
                cpu: None,
                own_group: true,
            })?);
        }
        demo.share()?;
        for (vm, seed) in VMS.iter().zip(1..) {
            let socket = demo.hosts[vm.host].root().join("run/nbd.sock");
            demo.guests
                .push(Guest::start(&socket, vm.name, SIZE, DEPTH, seed)?);
        }
        demo.begun = Instant::now();
        demo.looked = demo.begun;
        Ok(demo)
    }

    /// Its hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The temporary directory that all of it lies in.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Where a disk's page is: its policy can be changed there.
    #[must_use]
    pub fn page(&self, disk: &str) -> Option<String> {
        let vm = VMS.iter().find(|vm| vm.name == disk)?;
        let host = self.hosts.get(vm.host)?;
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
        self.hosts[vm.host].run(&["disk", "set", disk, "--shares", &shares])?;
        Ok(())
    }

    /// What was done since this was last asked.
    ///
    /// # Errors
    /// A daemon has ended, or does not answer.
    pub fn second(&mut self) -> Result<Second> {
        for host in &mut self.hosts {
            host.check_alive()?;
        }
        let now = Instant::now();
        let covers = now.duration_since(self.looked);
        self.looked = now;
        let tallies: Vec<Tally> = self.guests.iter().map(Guest::take).collect();
        let told = self.hosts.iter().map(|host| {
            let told = host.get(&format!("/v1/datastores/{DATASTORE}"))?;
            Ok(told["control"].clone())
        });
        let told: Vec<Value> = told.collect::<Result<_>>()?;
        let rows = VMS.iter().zip(&tallies).map(|(vm, tally)| {
            let known = share(&told[vm.host], vm.name);
            story::row(vm.name, HOSTS[vm.host], known, tally, covers)
        });
        let rows = rows.collect();
        let at = now.duration_since(self.begun);
        let mut second = Second::new(at, &told[0], rows);
        second.said = self.story.hear(&second);
        Ok(second)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Adds the datastore and its disks on both hosts at the same time.
    fn share(&self) -> Result<()> {
        let uri = format!("nbd+unix:///?socket={}", self._array.socket().display());
        let meeting = self.path("meeting").display().to_string();
        std::thread::scope(|scope| {
            let mut under_way = Vec::new();
            for (number, host) in self.hosts.iter().enumerate() {
                let (uri, meeting) = (&uri, &meeting);
                under_way.push(scope.spawn(move || prepare(number, host, uri, meeting)));
            }
            for thread in under_way {
                match thread.join() {
                    Ok(prepared) => prepared?,
                    Err(_) => bail!("setting up a host panicked"),
                }
            }
            Ok(())
        })
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Guests first: to them a daemon that stops would be an error. Then both daemons at the same time.
        self.guests.clear();
        self.hosts.iter().for_each(Host::terminate);
        self.hosts.drain(..).for_each(Host::wait);
    }
}

/// Orders what a host needs.
fn prepare(number: usize, host: &Host, uri: &str, meeting: &str) -> Result<()> {
    host.run(&["datastore", "add", DATASTORE, "--kind", "nbd", "--uri", uri])?;
    let set = ["datastore", "set", DATASTORE, "--coordination", meeting];
    host.run(&[&set[..], &["--congestion-threshold", THRESHOLD]].concat())?;
    let size = SIZE.to_string();
    for vm in VMS.iter().filter(|vm| vm.host == number) {
        let shares = vm.shares.to_string();
        let create = ["disk", "create", vm.name, "--datastore", DATASTORE];
        let how = ["--size", &size, "--shares", &shares, "--attach"];
        host.run(&[&create[..], &how].concat())?;
    }
    Ok(())
}

/// Makes a root in which the shared datastore's descriptors lie in `disks`. No first disk is made in it.
fn link_disks(root: &Path, disks: &Path) -> Result<()> {
    let known = root.join("state/disks");
    std::fs::create_dir_all(&known).with_context(|| format!("cannot make {}", known.display()))?;
    std::os::unix::fs::symlink(disks, known.join(DATASTORE))
        .with_context(|| format!("cannot make a link in {}", known.display()))
}

/// The array, with a stretch for each disk.
fn array(scratch: &Path) -> Result<ArrayServer> {
    let cost = Cost {
        base: u64::try_from(SERVICE.as_nanos()).unwrap_or(u64::MAX),
        bytes_per_second: 1 << 50,
    };
    let spec = ArraySpec::single(MemberSpec::Ssd(SsdSpec {
        capacity: 4 << 40,
        channels: CHANNELS,
        page: 1 << 20,
        read: cost,
        write: cost,
        flush: 1_000,
        variation: Variation::Exponential,
    }));
    let stretches = VMS.iter().zip(0..).map(|(vm, nth)| Stretch {
        name: vm.name.to_owned(),
        begins: nth * SIZE,
        size: SIZE,
    });
    ArrayServer::start(&spec, 1, stretches.collect(), &scratch.join("array.sock"))
}

/// What a host tells of a disk that it serves itself.
fn share<'a>(control: &'a Value, disk: &str) -> Option<&'a Value> {
    let shares = control["shares"].as_array()?;
    shares
        .iter()
        .find(|share| share["disk"] == disk && share["got_iops"].is_number())
}
