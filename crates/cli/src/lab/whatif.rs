//! `tidegate lab what-if`: the last minutes of a datastore under another policy, in the simulator.
//!
//! Here the daemon's accounts are gathered, or a results directory named; what is made of them is `tidegate_lab`'s to say.
//! Nothing of the datastore is changed by it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::bail;
use clap::{ArgGroup, Args, ValueHint};
use tidegate_api::disk::{Disk, Policy};
use tidegate_api::explain::{Cause, Explanation};
use tidegate_api::iocontrol::{CongestionThreshold, DatastoreControl, DiskControl, IoControlMode};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::stats::DiskStats;
use tidegate_api::units::{self, Iops, Limit, Rate, Shares};
use tidegate_lab::experiment::Directory;
use tidegate_lab::whatif::accounts::{
    Accounts, DiskAccount, Group, HostAccount, LoadAccount, Settings,
};
use tidegate_lab::whatif::{
    self, Case, Ceiling, Changes, Mode, Prediction, Row, Setting, Span, Threshold, steady,
};

use super::failed;
use super::progress::Course;
use crate::client::Client;
use crate::explain::last;
use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::{complete, figures, table};

/// Predict the effect of a policy on a datastore
///
/// The command models the datastore's last minutes from the daemon's samples: guests and an array in the simulator, with the
/// schedulers and governors that hosts run. It simulates them without and with the changes of --set, and shows both beside the
/// measurement. If the simulation without changes is close to the measurement, the prediction is good; the command says how
/// close it is. Nothing is changed.
///
/// The command lists its assumptions. The most important one: guests keep as much I/O outstanding as they do now. With
/// --from, guests and array come from an experiment of `tidegate lab run`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("past").required(true).args(["datastore", "from"]),
    after_help = "\
Examples:
  tidegate lab what-if fast --set vm4.shares=4000
  tidegate lab what-if fast --set vm4.limit=500iops --set vm1.reservation=200iops --last 5min
  tidegate lab what-if fast --set threshold=5ms
  tidegate lab what-if --from results/sioc-3 --phase all --set vm1.shares=4000
  tidegate lab what-if fast --set vm4.shares=high -o json | jq '.disks[] | {disk, iops_change_percent}'

Settings of a disk are shares, reservation, limit and limit-bandwidth, with the values of `tidegate disk set`."
)]
pub(crate) struct WhatIf {
    /// The datastore
    #[arg(value_parser = datastore, add = complete::datastores())]
    datastore: Option<Name>,

    /// A change: DISK.shares=N, DISK.reservation=N, DISK.limit=N, DISK.limit-bandwidth=RATE, threshold=TIME
    #[arg(long, value_name = "WHAT=VALUE", required = true)]
    set: Vec<Set>,

    /// The time span of the samples, from 5s to 5min
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = enough, conflicts_with = "from")]
    last: units::Span,

    /// Use the results of an experiment instead, from `tidegate lab run`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    from: Option<PathBuf>,

    /// The phase of the experiment; default: its last
    #[arg(long, value_name = "NAME", requires = "from")]
    phase: Option<String>,
}

/// One thing that is to be otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Set {
    /// Of a disk.
    Disk(Name, Setting),
    /// Where the datastore counts as congested.
    Threshold(Threshold),
}

impl FromStr for Set {
    type Err = String;
    fn from_str(text: &str) -> Result<Set, String> {
        const HOW: &str = "write DISK.shares=4000, DISK.limit=500iops or threshold=5ms";
        let Some((what, value)) = text.split_once('=') else {
            return Err(HOW.to_owned());
        };
        if what == "threshold" {
            let threshold: CongestionThreshold = value.parse()?;
            return Ok(Set::Threshold(match threshold {
                CongestionThreshold::Auto => Threshold::Auto,
                CongestionThreshold::Off => Threshold::Off,
                CongestionThreshold::At(at) => Threshold::Fixed(Span::from_nanos(at.0)),
            }));
        }
        // A disk's name may have dots in it, a setting has none.
        let Some((disk, setting)) = what.rsplit_once('.') else {
            return Err(HOW.to_owned());
        };
        let disk: Name = disk.parse().map_err(|error| format!("{error}"))?;
        let said = |error: units::UnitError| error.to_string();
        let setting = match setting {
            "shares" => {
                let shares: Shares = value.parse().map_err(said)?;
                Setting::Shares(shares.get())
            }
            "reservation" => {
                let Iops(floor) = value.parse().map_err(said)?;
                let floor = u32::try_from(floor).map_err(|_| "that is too much".to_owned())?;
                Setting::Reservation(floor)
            }
            "limit" => {
                let limit: Limit<Iops> = value.parse().map_err(said)?;
                Setting::Limit(limit.to_option().map(|Iops(iops)| iops))
            }
            "limit-bandwidth" | "limit-bw" => {
                let limit: Limit<Rate> = value.parse().map_err(said)?;
                Setting::Bandwidth(limit.to_option().map(|Rate(rate)| rate))
            }
            other => {
                return Err(format!(
                    "a disk has no `{other}` that can be set here: shares, reservation, limit or limit-bandwidth"
                ));
            }
        };
        Ok(Set::Disk(disk, setting))
    }
}

/// A time that the daemon remembers, and that is long enough to go by.
fn enough(text: &str) -> Result<units::Span, String> {
    match last(text) {
        Ok(span) if span.0 >= 5_000_000_000 => Ok(span),
        _ => Err("it must be from 5s to 5min".to_owned()),
    }
}

/// A datastore's name. Results in a directory, which look like one, are to be named otherwise.
fn datastore(text: &str) -> Result<Name, String> {
    text.parse::<Name>().map_err(|error| match results(text) {
        true => format!("that is a directory of results: write --from {text}"),
        false => error.to_string(),
    })
}

fn results(place: &str) -> bool {
    matches!(Directory::open(Path::new(place)), Ok(Some(_)))
}

/// Why no datastore of this name can be gone by: where nobody knows one of that name, and there are results of that name, these
/// were meant.
fn or_results(name: &Name, failure: Failure) -> Failure {
    let unknown = match &failure {
        Failure::Unreachable(_) => true,
        Failure::Failed(problem) => problem.code == ProblemCode::NotFound,
        Failure::Usage(_) | Failure::NobodyReads => false,
    };
    if !unknown || !results(name.as_str()) {
        return failure;
    }
    Failure::usage(
        format!("{name} is a directory of results here, and not a datastore"),
        format!("write --from {name}"),
    )
}

impl WhatIf {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let (case, what) = match (&self.from, &self.datastore) {
            (Some(dir), _) => {
                let what = format!("cannot use the results in {}", dir.display());
                let case = whatif::store::case(dir, self.phase.as_deref());
                (case.map_err(|error| failed(&what, &error))?, what)
            }
            (None, Some(name)) => {
                let what = format!("cannot predict datastore {name}");
                let case = self.of_datastore(session, name, &what);
                (case.map_err(|failure| or_results(name, failure))?, what)
            }
            (None, None) => {
                return Err(Failure::usage(
                    "neither a datastore nor results are given",
                    "name a datastore, or use --from DIR",
                ));
            }
        };
        let mut changes = Changes::default();
        for set in self.set {
            match set {
                Set::Disk(disk, setting) => changes.disks.push((disk.to_string(), setting)),
                Set::Threshold(threshold) => changes.threshold = Some(threshold),
            }
        }
        let mut course = Course::new(&session.console)?;
        let predicted = whatif::predict(&case, &changes, &mut || {
            course.goes(0, 1, "simulating twice, without and with the changes");
            match course.interrupted() {
                true => bail!("interrupted"),
                false => Ok(()),
            }
        });
        course.end();
        let predicted = predicted.map_err(|error| failed(&what, &error))?;
        session.console.show(&predicted)
    }

    /// What the daemon knows of a datastore.
    fn of_datastore(&self, session: &Session, name: &Name, what: &str) -> Result<Case, Failure> {
        let client = session.client()?;
        let datastore = client.look(routes::DATASTORE, &[name.as_str()])?;
        let Some(control) = datastore.control else {
            let problem = Problem::new(ProblemCode::Invalid, what)
                .because("no disk of it is attached on this host, so the daemon has no samples")
                .remedy("run it on a host that serves disks of the datastore, while they have I/O");
            return Err(Failure::Failed(problem));
        };
        let disks = client.look(routes::DISKS, &[])?.disks.into_iter();
        let here: Vec<Disk> = disks
            .filter(|disk| disk.attached && disk.datastore == *name)
            .collect();
        let groups = groups(&client, &here)?;
        let accounts = Accounts {
            datastore: name.to_string(),
            mode: mode(control.mode),
            threshold: threshold(&control),
            io_unit: control.io_unit_bytes,
            engaged: control.engaged,
            saturated: control.saturated,
            external: control.external_load,
            latency_us: control.latency_us,
            peak_per_s: control.peak_cost_per_s,
            hosts: hosts(&control),
            disks: self.disks(&client, &control, &here, &groups)?,
            groups,
        };
        accounts.case().map_err(|error| failed(what, &error))
    }

    /// The disks of all hosts.
    fn disks(
        &self,
        client: &Client,
        control: &DatastoreControl,
        here: &[Disk],
        groups: &[Group],
    ) -> Result<Vec<DiskAccount>, Failure> {
        let own = control.hosts.iter().find(|host| host.here);
        let own = own.map_or_else(String::new, |host| host.host.clone());
        let mut disks = Vec::new();
        for disk in here {
            let name = disk.name.as_str();
            let query = format!("last={}", self.last);
            let explained = client.look_by(routes::DISK_EXPLAIN, &[name], &query)?;
            let stats = client.look(routes::DISK_STATS, &[name])?;
            let told = |told: &&DiskControl| told.disk.as_ref() == Some(&disk.name);
            let told = control.shares.iter().find(told);
            disks.push(DiskAccount {
                name: disk.name.to_string(),
                host: own.clone(),
                settings: settings(&disk.policy, groups),
                load: Some(load(&explained, &stats)),
                demand: told.map_or(0.0, |told| told.demand),
            });
        }
        let others = control.shares.iter().filter(|told| told.host != own);
        disks.extend(others.map(|told| DiskAccount {
            name: match &told.disk {
                Some(name) => name.to_string(),
                None if told.merged => format!("several-{}", told.key),
                None => told.key.clone(),
            },
            host: told.host.clone(),
            settings: Settings {
                reservation: small(told.reservation_iops),
                limit: told.limit_iops.map(steady),
                ..Settings::of_shares(told.shares)
            },
            load: None,
            demand: told.demand,
        }));
        Ok(disks)
    }
}

fn mode(mode: IoControlMode) -> Mode {
    match mode {
        IoControlMode::On => Mode::On,
        IoControlMode::Observe => Mode::Observe,
        IoControlMode::Off => Mode::Off,
    }
}

/// As it is now: one that is found while serving stays where it was found.
fn threshold(control: &DatastoreControl) -> Threshold {
    match control.congestion_threshold {
        CongestionThreshold::Off => Threshold::Off,
        CongestionThreshold::Auto | CongestionThreshold::At(_) => {
            let at = std::time::Duration::try_from_secs_f64(control.threshold_us / 1e6);
            let at = at.unwrap_or_default().as_nanos();
            Threshold::Fixed(Span::from_nanos(u64::try_from(at).unwrap_or(u64::MAX)))
        }
    }
}

fn hosts(control: &DatastoreControl) -> Vec<HostAccount> {
    let named = |name: &Option<String>| {
        let same = control.hosts.iter().filter(|host| host.name == *name);
        same.count() == 1
    };
    let hosts = control.hosts.iter().map(|host| {
        let short: String = host.host.chars().take(8).collect();
        HostAccount {
            id: host.host.clone(),
            name: match &host.name {
                Some(name) if named(&host.name) => name.clone(),
                Some(name) => format!("{name}-{short}"),
                None => short,
            },
            here: host.here,
            cost_per_s: host.cost_per_s,
        }
    });
    hosts.collect()
}

fn groups(client: &Client, disks: &[Disk]) -> Result<Vec<Group>, Failure> {
    let named = |name: &Name| {
        disks
            .iter()
            .any(|disk| disk.policy.group.as_ref() == Some(name))
    };
    let all = client.look(routes::GROUPS, &[])?.groups.into_iter();
    let used = all.filter(|group| named(&group.name));
    let accounts = used.map(|group| Group {
        name: group.name.to_string(),
        limit: group.limits.limit_iops.map(steady),
        bandwidth: group.limits.limit_bytes_per_s.map(steady),
    });
    Ok(accounts.collect())
}

/// The length of a burst if the policy has none.
const BURST_SECONDS: u32 = 30;

fn settings(policy: &Policy, groups: &[Group]) -> Settings {
    let limit = policy.limit_iops.map(|sustained| match policy.burst_iops {
        Some(peak) if peak > sustained => {
            let seconds = policy.burst_seconds.unwrap_or(BURST_SECONDS);
            Ceiling {
                sustained,
                peak,
                burst: (peak - sustained) * u64::from(seconds),
            }
        }
        Some(_) | None => steady(sustained),
    });
    let named = |name: &Name| {
        let mut groups = groups.iter();
        groups.position(|group| group.name == name.as_str())
    };
    Settings {
        shares: policy.shares,
        reservation: small(policy.reservation_iops),
        limit,
        bandwidth: policy.limit_bytes_per_s.map(steady),
        latency_target: policy.latency_target_us.map(Span::from_micros),
        group: policy.group.as_ref().and_then(named),
    }
}

fn small(iops: u64) -> u32 {
    u32::try_from(iops).unwrap_or(u32::MAX)
}

/// What a disk did: rates by the last minutes, and what kind of I/O it was since it was attached.
fn load(explained: &Explanation, stats: &DiskStats) -> LoadAccount {
    let of = |kind: &str| {
        let ops = stats.ops.iter().filter(|op| op.op == kind);
        ops.map(|op| op.ops_total).sum::<u64>()
    };
    let (reads, writes) = (of("read"), of("write"));
    let load = &explained.load;
    LoadAccount {
        covers_s: explained.covers_s,
        iops: load.iops,
        bytes_per_s: load.bytes_per_s,
        outstanding: load.outstanding_mean,
        latency_us: load.latency_mean_us,
        reads: match reads + writes {
            0 => 1.0,
            both => figures::to_f64(reads) / figures::to_f64(both),
        },
        sequential: stats.all.sequential_ratio,
        thread_full: explained.cause == Cause::IoThread,
    }
}

impl Shown for Prediction {
    fn names(&self) -> Vec<String> {
        self.disks.iter().map(|row| row.disk.clone()).collect()
    }

    fn table(&self, detail: Detail) -> String {
        let mut head = vec![
            "DISK",
            "IOPS NOW",
            "AS IS",
            "CHANGED",
            "",
            "LATENCY NOW",
            "AS IS",
            "CHANGED",
            "",
        ];
        if detail == Detail::Wide {
            head.extend(["HOST", "POLICY", "WOULD BE"]);
        }
        let rows = self.disks.iter().chain([&self.all]);
        let rows: Vec<_> = rows.map(|row| cells(row, detail)).collect();
        let mut text = format!("{}\n", self.changes.join("\n"));
        text += "\n";
        text += &table::columns(&head, &rows);
        text += "\nNow: measured. As is, changed: simulated.\n";
        text += &format!("Match: {}.\n", self.agreement.says);
        text += "Assumptions:\n";
        for note in &self.notes {
            text += &format!("- {note}\n");
        }
        text
    }
}

fn cells(row: &Row, detail: Detail) -> Vec<String> {
    let measured = row.measured.as_ref();
    let mut cells = vec![
        row.disk.clone(),
        measured.map_or_else(figures::dash, |did| figures::count(did.iops)),
        figures::count(row.as_is.iops),
        figures::count(row.changed.iops),
        format!("{:+.1} %", row.iops_change_percent),
        measured.map_or_else(figures::dash, |did| figures::micros(did.latency_us)),
        figures::micros(row.as_is.latency_us),
        figures::micros(row.changed.latency_us),
        format!("{:+.1} %", row.latency_change_percent),
    ];
    if detail == Detail::Wide {
        cells.push(row.host.clone());
        cells.push(row.policy.clone());
        cells.push(row.policy_changed.clone().unwrap_or_else(figures::dash));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_a_disks_setting_or_the_threshold() {
        let disk = |name: &str, setting| Set::Disk(name.parse().unwrap(), setting);
        for (text, is) in [
            ("vm4.shares=4000", disk("vm4", Setting::Shares(4_000))),
            ("a.b.shares=high", disk("a.b", Setting::Shares(2_000))),
            ("vm4.limit=500iops", disk("vm4", Setting::Limit(Some(500)))),
            ("vm4.limit=unlimited", disk("vm4", Setting::Limit(None))),
            (
                "vm4.reservation=200",
                disk("vm4", Setting::Reservation(200)),
            ),
            (
                "vm4.limit-bandwidth=1MiB/s",
                disk("vm4", Setting::Bandwidth(Some(1 << 20))),
            ),
            ("threshold=auto", Set::Threshold(Threshold::Auto)),
            (
                "threshold=5ms",
                Set::Threshold(Threshold::Fixed(Span::from_millis(5))),
            ),
        ] {
            assert_eq!(text.parse(), Ok(is), "{text}");
        }
        for (text, says) in [
            ("vm4.shares", "write DISK.shares=4000"),
            ("shares=4000", "write DISK.shares=4000"),
            ("vm4.speed=3", "no `speed`"),
            ("vm4.shares=many", "many"),
            ("threshold=5", "auto"),
        ] {
            let error = text.parse::<Set>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
