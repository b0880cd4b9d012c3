//! A what-if case from a daemon's accounts of its datastore.
//!
//! Guests are taken to keep as much outstanding as they did, with a pause after each I/O where that was no whole number;
//! the array to be as many servers behind one queue as do what was done in the time that it took. Pure: accounts go in, a
//! case comes out.
//!
//! # Always true
//! - What cannot be known is refused with the reason, or guessed and reported.
//!
//! # Picture: the array
//! ```text
//!   latency                      what was measured is one point (o). Above the knee, throughput is the array's most, and
//!      │            o /          latency grows with what is in flight: so the servers together are as fast as what was
//!      │            /            done. Where the knee is (k), one point does not say: it is taken to be at a quarter of what
//!      │──────────k              was in flight.
//!      └──────────────── in flight
//! ```
//! # Units
//! Rates of the array in reference I/Os (a random read of 4 KiB) a second; times in microseconds.

use anyhow::{Context, Result, bail};
use tidegate_core::iocontrol::CostModel;
use tidegate_core::layout::LayoutSpec;
use tidegate_core::units::{Span, Time};
use tidegate_model::ArraySpec;
use tidegate_model::spec::{Cost, MemberSpec, SsdSpec, Variation};
use tidegate_sim::scenario::{Control, Datastore, Disk, Host, Kind, Phase, Scenario};

use super::accounts::{Accounts, DiskAccount, LoadAccount, nanos};
use super::{Case, Known, mode_note};
use crate::statistics::whole;

/// The note that guests are guessed.
pub(super) const GUESSED: &str = "guests are taken to keep as much outstanding as they did";
/// The note that a disk's mix of I/Os is older than its rates: daemons do not remember it by time.
const MIXED: &str = "guests are taken to read, and to go on in sequence, as often as since their disks were attached";

/// Less than this was not long enough for windows to settle and rates to be rates.
const LEAST_S: f64 = 5.0;
/// A simulation has so many I/Os if that takes it neither less nor more virtual time than these.
const ENOUGH: f64 = 300_000.0;
const SHORTEST_S: f64 = 15.0;
const LONGEST_S: f64 = 60.0;
/// Governors find their windows meanwhile.
const SETTLING: Span = Span::from_secs(10);
/// The knee lies at this part of what was in flight, where one point is all that is known.
const KNEE: f64 = 1.0 / 4.0;
/// A datastore that was never seen at its most is taken to be able to do so much of what it did.
const UNSEEN: f64 = 2.0;
/// Disks lie side by side; how large they are does not matter to an array without arms.
const DISK: u64 = 64 << 30;

impl Accounts {
    /// The case that they make.
    ///
    /// # Errors
    /// There was no I/O, or it is not known for long enough.
    pub fn case(&self) -> Result<Case> {
        let asked: Vec<&DiskAccount> = self.disks.iter().filter(|disk| disk.asks()).collect();
        let here: Vec<LoadAccount> = asked.iter().filter_map(|disk| disk.load).collect();
        if here.is_empty() {
            bail!(
                "no disk of {} had any I/O on this host: there is nothing to go by",
                self.datastore
            );
        }
        let covers_s = here.iter().map(|load| load.covers_s);
        let covers_s = covers_s.fold(f64::INFINITY, f64::min);
        if covers_s < LEAST_S {
            bail!(
                "what its disks did is known for {covers_s:.0} s only, and {LEAST_S:.0} s are needed: ask again in a while"
            );
        }
        let model = self.cost_model(&asked);
        let mut notes = vec![GUESSED.to_owned(), MIXED.to_owned()];
        notes.extend(mode_note(self.mode));
        let array = self.array(&asked, &model.1, &mut notes)?;
        let iops: f64 = here.iter().map(|load| load.iops).sum();
        let lasts = (ENOUGH / iops.max(1.0)).clamp(SHORTEST_S, LONGEST_S);
        let ends = Time::ZERO + SETTLING + nanos(lasts * 1e9);
        let (hosts, home) = self.hosts(&asked)?;
        let disks = asked.iter().zip(home).map(|(disk, host)| Disk {
            name: disk.name.clone(),
            host,
            thread: 0,
            size: DISK,
            policy: disk.settings.clone(),
            unmanaged: false,
            layout: LayoutSpec::Plain,
            members: vec![0],
            cached: false,
            working_set: None,
            fresh: false,
            scan: None,
            workload: disk.workload(),
        });
        let disks: Vec<Disk> = disks.collect();
        self.more_notes(&asked, &mut notes);
        let scenario = Scenario {
            name: self.datastore.clone(),
            title: "The last minutes of a datastore".to_owned(),
            source: String::new(),
            datastore: Datastore {
                array,
                threshold: self.threshold,
                control: self.mode,
                kind: model.0,
                io_unit: self.io_unit,
                learn: false,
                coordination: None,
                arrays: 1,
            },
            hosts,
            groups: self.groups.clone(),
            phases: vec![Phase {
                name: "all".to_owned(),
                begins: Time::ZERO,
                ends,
                active: vec![true; disks.len()],
                speed: 1_000,
                set: Vec::new(),
                members: Vec::new(),
            }],
            disks,
            faults: Vec::new(),
            configurations: Vec::new(),
            quality: Vec::new(),
            expects: Vec::new(),
        };
        Ok(Case {
            of: self.datastore.clone(),
            scenario,
            phase: 0,
            skip: SETTLING,
            covers_s,
            measured: asked.iter().map(|disk| disk.did()).collect(),
            array: Known::Point {
                latency_us: self.latency_us,
            },
            notes,
        })
    }

    /// By which costs the hosts reckon: the one of those that are known by which this host got through what it says.
    fn cost_model(&self, asked: &[&DiskAccount]) -> (Kind, CostModel) {
        let here = self.hosts.iter().find(|host| host.here);
        let says = here.map_or(0.0, |host| host.cost_per_s);
        let models = [
            (Kind::Unknown, CostModel::unknown()),
            (Kind::Flash, CostModel::flash()),
            (Kind::Rotational, CostModel::rotational()),
        ];
        let off = |model: &CostModel| {
            let each = asked.iter().filter_map(|disk| disk.load);
            let sum: f64 = each
                .map(|load| load.iops * load.cost(model, load.sequential))
                .sum();
            (sum / says).ln().abs()
        };
        let known = models.into_iter().filter(|_| says > 0.0);
        let nearest = known.min_by(|a, b| off(&a.1).total_cmp(&off(&b.1)));
        nearest.unwrap_or((Kind::Unknown, CostModel::unknown()))
    }

    /// Servers behind one queue that do what was done.
    fn array(
        &self,
        asked: &[&DiskAccount],
        model: &CostModel,
        notes: &mut Vec<String>,
    ) -> Result<ArraySpec> {
        let here = asked.iter().filter_map(|disk| disk.load);
        let here: f64 = here.map(|load| load.iops * load.cost(model, 0.0)).sum();
        let others = self.hosts.iter().filter(|host| !host.here);
        let others: f64 = others.map(|host| host.cost_per_s).sum();
        let done = here + others;
        if self.latency_us <= 0.0 {
            bail!(
                "the latency of {} is not known: nothing of it was measured",
                self.datastore
            );
        }
        let in_flight = done * self.latency_us / 1e6;
        // How many servers there are, and a server's time for one reference I/O.
        let (servers, reference_ns) = if self.engaged || self.saturated {
            let servers = (in_flight * KNEE).round().max(1.0);
            (servers, servers / done * 1e9)
        } else {
            let seen = self.peak_per_s > 1.05 * done;
            let rate = match seen {
                true => self.peak_per_s,
                false => UNSEEN * done,
            };
            if !seen {
                notes.push(format!(
                    "the datastore was never seen to do more than it does: it is taken to be able to do {UNSEEN} times as \
                     much"
                ));
            }
            let servers = (rate * self.latency_us / 1e6).round().max(1.0);
            (servers, self.latency_us * 1e3)
        };
        let servers = whole(servers).min(4_096);
        let rate = servers as f64 / reference_ns * 1e9;
        let time = |base: u64, per_mib: u64| Cost {
            base: whole(base as f64 / 256.0 * reference_ns).max(1),
            bytes_per_second: match per_mib {
                0 => 1 << 50,
                _ => whole(f64::from(1 << 20) * 1e9 / (per_mib as f64 / 256.0 * reference_ns))
                    .clamp(1_000, 1 << 50),
            },
        };
        notes.push(format!(
            "the array is taken to be {servers} servers behind one queue that do {rate:.0} reference I/Os a second; how \
             its latency falls when less is in flight was not measured"
        ));
        let spec = ArraySpec::single(MemberSpec::Ssd(SsdSpec {
            capacity: 1 << 50,
            channels: u32::try_from(servers).unwrap_or(1),
            page: 1 << 30,
            read: time(model.read_base, model.read_per_mib),
            write: time(model.write_base, model.write_per_mib),
            flush: 1_000,
            variation: Variation::Exponential,
        }));
        spec.validate()
            .context("an array that does what was done cannot be modelled")?;
        Ok(spec)
    }

    /// The hosts of the disks, and each disk's place among them.
    fn hosts(&self, asked: &[&DiskAccount]) -> Result<(Vec<Host>, Vec<usize>)> {
        let mut ids: Vec<&str> = Vec::new();
        let mut home = Vec::new();
        for disk in asked {
            let place = ids.iter().position(|id| *id == disk.host);
            home.push(place.unwrap_or(ids.len()));
            if place.is_none() {
                ids.push(&disk.host);
            }
        }
        let made = ids.iter().map(|id| {
            let known = self.hosts.iter().find(|host| host.id == *id);
            let known = known.context("a disk is on a host that is not among the hosts")?;
            Ok(Host {
                name: known.name.clone(),
                threads: 1,
                joins: Time::ZERO,
            })
        });
        Ok((made.collect::<Result<_>>()?, home))
    }

    fn more_notes(&self, asked: &[&DiskAccount], notes: &mut Vec<String>) {
        let names = |which: &dyn Fn(&DiskAccount) -> bool| {
            let found = asked.iter().filter(|disk| which(disk));
            let names: Vec<&str> = found.map(|disk| disk.name.as_str()).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        if let Some(names) = names(&|disk| disk.load.is_none()) {
            notes.push(format!(
                "{names}: other hosts serve them and report only what they ask for; taken to be random reads of 4 KiB"
            ));
        }
        if let Some(names) = names(&|disk| disk.load.is_some_and(|load| load.thread_full)) {
            notes.push(format!(
                "{names}: the I/O thread has no time left, which the simulator's always has"
            ));
        }
        if let Some(names) = names(&|disk| disk.load.is_some_and(|load| load.sequential > 0.1)) {
            notes.push(format!(
                "{names}: what they ask for in sequence costs the simulated array as much as anything else"
            ));
        }
        match self.disks.len() - asked.len() {
            0 => {}
            1 => notes.push("a disk without I/O is left out".to_owned()),
            idle => notes.push(format!("{idle} disks without I/O are left out")),
        }
        if self.external {
            notes.push(
                "there is load on the datastore that no host of ours causes: it is taken to stay"
                    .to_owned(),
            );
        }
        if !self.engaged && self.mode == Control::On {
            notes.push(
                "the datastore is not congested: shares and reservations do not hold until it is"
                    .to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whatif::accounts::{HostAccount, Settings};
    use crate::whatif::{Changes, Setting, Worth, predict};
    use tidegate_sim::scenario::{Threshold, Workload};
    use tidegate_sim::{Policy, Variant, world};

    fn load(iops: f64, outstanding: f64, latency_us: f64) -> LoadAccount {
        LoadAccount {
            covers_s: 60.0,
            iops,
            bytes_per_s: iops * 4_096.0,
            outstanding,
            latency_us,
            reads: 1.0,
            sequential: 0.0,
            thread_full: false,
        }
    }

    fn disk(name: &str, shares: u32, load: Option<LoadAccount>, demand: f64) -> DiskAccount {
        DiskAccount {
            name: name.to_owned(),
            host: if load.is_some() { "01" } else { "02" }.to_owned(),
            settings: Settings::of_shares(shares),
            load,
            demand,
        }
    }

    /// Two disks of 32 outstanding at 1,000 I/Os a second, the second with twice the shares; the array at 20 ms.
    fn accounts() -> Accounts {
        let cost = 264.0 / 256.0;
        Accounts {
            datastore: "shared".to_owned(),
            mode: Control::On,
            threshold: Threshold::Fixed(Span::from_millis(20)),
            io_unit: 32 << 10,
            engaged: true,
            saturated: true,
            external: false,
            latency_us: 20e3,
            peak_per_s: 1_000.0 * cost,
            hosts: vec![
                HostAccount {
                    id: "01".to_owned(),
                    name: "here".to_owned(),
                    here: true,
                    cost_per_s: 1_000.0 * cost,
                },
                HostAccount {
                    id: "02".to_owned(),
                    name: "there".to_owned(),
                    here: false,
                    cost_per_s: 0.0,
                },
            ],
            disks: vec![
                disk("a", 1_000, Some(load(333.3, 32.0, 96e3)), 0.0),
                disk("b", 2_000, Some(load(666.7, 32.0, 48e3)), 0.0),
            ],
            groups: Vec::new(),
        }
    }

    #[test]
    fn what_was_measured_comes_out_again_and_a_change_is_foretold() {
        let case = accounts().case().expect("it is known");
        let changes = Changes {
            disks: vec![("a".to_owned(), Setting::Shares(4_000))],
            threshold: None,
        };
        let predicted = predict(&case, &changes, &mut || Ok(())).expect("it can be modelled");
        assert_eq!(predicted.agreement.worth, Worth::Good, "{predicted:#?}");
        let [a, b] = &predicted.disks[..] else {
            panic!("two disks")
        };
        assert!(
            (a.changed.iops / b.changed.iops - 2.0).abs() < 0.1,
            "{predicted:#?}"
        );
        assert!(
            predicted
                .notes
                .iter()
                .any(|note| note.starts_with("more for a"))
        );
        let mixed = |note: &String| note.contains("as often as since their disks were attached");
        assert!(
            predicted.notes.iter().any(mixed),
            "rates are of the last minutes, and what was read of all: {:?}",
            predicted.notes
        );
    }

    #[test]
    fn another_threshold_goes_to_a_point_that_was_not_measured() {
        let case = accounts().case().expect("it is known");
        let changes = Changes {
            disks: Vec::new(),
            threshold: Some(Threshold::Fixed(Span::from_millis(10))),
        };
        let predicted = predict(&case, &changes, &mut || Ok(())).expect("it can be modelled");
        assert_eq!(predicted.agreement.worth, Worth::Poor);
        let note = predicted.notes.last().expect("notes");
        assert!(note.contains("where the array's knee is"), "{note}");
        // A thousand a second at 20 ms are at 10 ms no less than half, and no more than all of it.
        let all = predicted.all.changed.iops;
        assert!((450.0..=1_050.0).contains(&all), "{predicted:#?}");
    }

    #[test]
    fn a_datastore_that_is_slower_than_the_simulated_one_makes_a_prediction_poor() {
        // Windows that are on their way to another threshold: the latency is not yet what it will be.
        let mut accounts = accounts();
        accounts.latency_us = 60e3;
        let case = accounts.case().expect("it is known");
        let changes = Changes {
            disks: vec![("a".to_owned(), Setting::Shares(4_000))],
            threshold: None,
        };
        let predicted = predict(&case, &changes, &mut || Ok(())).expect("it can be modelled");
        assert_eq!(predicted.agreement.worth, Worth::Poor, "{predicted:#?}");
    }

    #[test]
    fn a_guest_that_pauses_is_one_that_pauses() {
        // Half of the time it has nothing outstanding.
        let light = disk("a", 1_000, Some(load(50.0, 0.5, 10e3)), 0.0);
        let Workload::Access {
            outstanding, think, ..
        } = light.workload()
        else {
            panic!("an access specification")
        };
        assert_eq!((outstanding, think), (1, Span::from_millis(10)));
        let heavy = disk("a", 1_000, Some(load(500.0, 31.999, 64e3)), 0.0);
        let Workload::Access {
            outstanding, think, ..
        } = heavy.workload()
        else {
            panic!("an access specification")
        };
        assert_eq!(outstanding, 32);
        assert!(think < Span::from_micros(3), "{think}");
    }

    #[test]
    fn disks_of_other_hosts_are_what_they_ask_for() {
        let mut accounts = accounts();
        accounts.disks[1] = disk("b", 2_000, None, 40.0);
        accounts.hosts[0].cost_per_s = 343.75;
        accounts.hosts[1].cost_per_s = 687.5;
        let case = accounts.case().expect("it is known");
        assert_eq!(case.measured[1], None);
        assert_eq!(case.scenario.hosts.len(), 2);
        let run = world::run(&case.scenario, &Variant::of(Policy::Ours), 1).expect("a model");
        let did = case.figures(&run);
        assert!((did[1].iops / did[0].iops - 2.0).abs() < 0.2, "{did:?}");
        assert!(
            (did[0].iops + did[1].iops - 1_000.0).abs() < 60.0,
            "{did:?}"
        );
    }

    #[test]
    fn what_is_not_known_is_refused_with_the_reason() {
        let says = |change: fn(&mut Accounts)| {
            let mut accounts = accounts();
            change(&mut accounts);
            accounts.case().expect_err("it cannot be known").to_string()
        };
        let idle = says(|accounts| {
            for disk in &mut accounts.disks {
                disk.load = Some(LoadAccount::default());
            }
        });
        assert!(idle.contains("no disk of shared had any I/O"), "{idle}");
        let young = says(|accounts| {
            if let Some(load) = &mut accounts.disks[0].load {
                load.covers_s = 2.0;
            }
        });
        assert!(young.contains("known for 2 s only"), "{young}");
        let blind = says(|accounts| accounts.latency_us = 0.0);
        assert!(blind.contains("latency"), "{blind}");
    }

    #[test]
    fn a_datastore_that_is_not_congested_is_told_of_and_has_more_to_give() {
        let mut accounts = accounts();
        (accounts.engaged, accounts.saturated) = (false, false);
        accounts.latency_us = 2_000.0;
        accounts.disks = vec![disk("a", 1_000, Some(load(500.0, 1.0, 2_000.0)), 0.0)];
        let case = accounts.case().expect("it is known");
        assert!(case.notes.iter().any(|note| note.contains("not congested")));
        let run = world::run(&case.scenario, &Variant::of(Policy::Ours), 1).expect("a model");
        let did = case.figures(&run)[0];
        assert!((did.iops / 500.0 - 1.0).abs() < 0.1, "{did:?}");
    }
}
