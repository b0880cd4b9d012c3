//! Charts of a scenario, in the shape of the published figures.
//!
//! Panels of one figure have one height, so that ways can be compared by eye.

use tidegate_core::units::Time;
use tidegate_sim::scenario::{Phase, Scenario, Threshold, Workload};
use tidegate_sim::{Policy, Run, Variant};

use super::Picture;
use crate::draw::{Across, Bars, Fill, Group, Line, Lines, STYLES, Up, round_up};
use crate::experiment::findings::agreement::Row;
use crate::experiment::findings::{Findings, Loaded, asks};
use crate::experiment::series::{Band, Grid, Slice, bands, by_nines, highest, mean_ms};
use crate::experiment::summary::{length, seconds};
use crate::experiment::{On, way_words};
use crate::statistics::spread;

/// No latency is drawn beyond so many nines.
const NINES: u8 = 4;
/// Parts are drawn of so many phases at most.
const PARTS: usize = 4;

/// The charts of a scenario's runs, with the place if there are several.
pub(super) fn of(loaded: &Loaded, findings: &Findings) -> Vec<Picture> {
    let places: Vec<On> = loaded.places().collect();
    let mut pictures = Vec::new();
    for drawn in places.iter().filter_map(|on| Drawn::of(loaded, *on)) {
        let figures = [
            Some(drawn.throughput()),
            drawn.parts(),
            Some(drawn.datastore()),
            drawn.latencies(),
            drawn.orders(),
        ];
        pictures.extend(
            figures
                .into_iter()
                .flatten()
                .map(|picture| match places.len() {
                    1 => picture,
                    _ => Picture {
                        name: format!("{}, {}", picture.name, drawn.on.title()),
                        ..picture
                    },
                }),
        );
    }
    pictures.extend(agreement(findings));
    pictures
}

/// The runs of one place, ready to be drawn.
struct Drawn<'a> {
    on: On,
    scenario: &'a Scenario,
    bands: Vec<Band>,
    grid: Grid,
    /// A second's, or a minute's, part of the time axis.
    scale: f64,
    across: Across,
    ways: Vec<(&'a Variant, Vec<&'a Run>)>,
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    spread(&values.collect::<Vec<_>>()).map(|spread| spread.median)
}

/// The number of disks that are active in a phase.
fn active(phase: &Phase) -> usize {
    phase.active.iter().filter(|active| **active).count()
}

/// How the bars of a way are named and filled.
fn bar(way: &Variant) -> (String, Fill, usize) {
    let (name, fill, style) = match (way.policy, &way.alone) {
        (_, Some(_)) => ("alone", Fill::Outline, 5),
        (Policy::Ours, None) => ("with I/O control", Fill::Solid, 0),
        (Policy::None, None) => ("without", Fill::Light, 1),
        (Policy::Parda, None) => ("PARDA", Fill::Light, 2),
    };
    (name.to_owned(), fill, style)
}

fn bars(name: &str, unit: &str, rows: &[(String, Fill, usize)], groups: Vec<Group>) -> String {
    let panel = Bars {
        name: name.to_owned(),
        unit: unit.to_owned(),
        rows: rows.to_vec(),
        groups,
    };
    panel.svg()
}

impl<'a> Drawn<'a> {
    fn of(loaded: &'a Loaded, on: On) -> Option<Drawn<'a>> {
        let scenario = &loaded.experiment.scenario;
        let ways = loaded.runs.get(&on)?.iter();
        let ways = ways.map(|(way, runs)| (way, runs.values().collect::<Vec<_>>()));
        let ways: Vec<_> = ways.filter(|(_, runs)| !runs.is_empty()).collect();
        let length = seconds(scenario.ends().since(Time::ZERO));
        let (scale, unit) = match length > 200.0 {
            true => (60.0, "minutes"),
            false => (1.0, "seconds"),
        };
        (!ways.is_empty()).then(|| Drawn {
            on,
            scenario,
            bands: bands(scenario),
            grid: Grid::of(scenario),
            scale,
            across: Across::Time(length / scale, unit),
            ways,
        })
    }

    /// The runs of a policy, if there are any.
    fn runs(&self, policy: Policy) -> Option<&[&'a Run]> {
        let way = Variant::of(policy);
        let found = self.ways.iter().find(|(other, _)| **other == way);
        found.map(|(_, runs)| runs.as_slice())
    }

    /// A line over time.
    fn line(&self, name: &str, points: Vec<(f64, f64)>) -> Line {
        let points = points.into_iter();
        Line {
            name: name.to_owned(),
            points: points.map(|(at, value)| (at / self.scale, value)).collect(),
        }
    }

    /// A panel over time, with the phases.
    fn over_time(&self, name: &str, unit: &str, most: f64, lines: Vec<Line>) -> Lines {
        let at = |time: Time| seconds(time.since(Time::ZERO)) / self.scale;
        let phases = self.phases();
        let phases = phases.map(|phase| (phase.name.clone(), at(phase.begins), at(phase.ends)));
        Lines {
            name: capital(name),
            unit: unit.to_owned(),
            across: self.across.clone(),
            up: Up::To(round_up(most)),
            lines,
            phases: phases.collect(),
            level: None,
        }
    }

    /// The phases, if there are several.
    fn phases(&self) -> impl Iterator<Item = &'a Phase> {
        let phases = self.scenario.phases.iter();
        phases.filter(|_| self.scenario.phases.len() > 1)
    }

    /// The meaning of the numbers above phases.
    fn key(&self) -> String {
        let named = self.phases().zip(1..);
        let named = named.map(|(phase, number)| format!("{number} {}", phase.name));
        match named.collect::<Vec<_>>() {
            none if none.is_empty() => String::new(),
            named => format!(" Phases: {}.", named.join(", ")),
        }
    }

    fn throughput(&self) -> Picture {
        let ways = self.ways.iter().map(|(way, runs)| {
            let lines = self.bands.iter();
            let lines =
                lines.map(|band| self.line(&band.name, self.grid.iops(runs[0], &band.disks)));
            (way_words(self.scenario, way), lines.collect::<Vec<_>>())
        });
        let ways: Vec<(String, Vec<Line>)> = ways.collect();
        let lines = ways.iter().flat_map(|(_, lines)| lines);
        let most = highest(lines.map(|line| &line.points));
        let panels = ways.into_iter();
        let panels = panels.map(|(way, lines)| self.over_time(&way, "I/Os a second", most, lines));
        Picture {
            name: "Throughput of all disks over time".to_owned(),
            panels: panels.map(|panel| panel.svg()).collect(),
            caption: format!(
                "Each disk's throughput, by the experiment's phases.{}",
                self.key()
            ),
        }
    }

    /// A disk's shares in a phase.
    fn shares(&self, disk: usize, phase: usize) -> f64 {
        let until = &self.scenario.phases[..=phase];
        let set = until.iter().flat_map(|phase| &phase.set).rev();
        let set = set.into_iter().find(|(other, _)| *other == disk);
        let policy = set.map_or(&self.scenario.disks[disk].policy, |(_, new)| new);
        f64::from(policy.shares)
    }

    fn parts(&self) -> Option<Picture> {
        let all = &self.scenario.phases;
        let mut phases: Vec<usize> = Vec::new();
        for (place, phase) in all.iter().enumerate() {
            let alike = |other: &usize| {
                let other = &all[*other];
                other.active == phase.active && other.speed == phase.speed && phase.set.is_empty()
            };
            if active(phase) > 1 && !phases.iter().any(alike) {
                phases.push(place);
            }
        }
        // Those with most disks, in the order of time.
        phases.sort_by_key(|place| std::cmp::Reverse(active(&all[*place])));
        phases.truncate(PARTS);
        phases.sort_unstable();
        let panels: Vec<String> = phases
            .into_iter()
            .map(|place| self.parts_in(place))
            .collect();
        (!panels.is_empty()).then(|| Picture {
            name: "Shares against throughput".to_owned(),
            panels,
            caption: "The part of all I/Os that belongs to each disk's shares, and the measured part. A limit, a reservation \
                      or an idle guest moves a disk away from the part of its shares."
                .to_owned(),
        })
    }

    fn parts_in(&self, place: usize) -> String {
        let (phase, slice) = (
            &self.scenario.phases[place],
            Slice::settled(self.scenario, place),
        );
        let kinds = [Policy::Ours, Policy::None];
        let kinds = kinds.map(|policy| Some((bar(&Variant::of(policy)), self.runs(policy)?)));
        let kinds: Vec<_> = kinds.into_iter().flatten().collect();
        let shares = |disks: &mut dyn Iterator<Item = usize>| -> f64 {
            let active = disks.filter(|disk| phase.active[*disk]);
            active.map(|disk| self.shares(disk, place)).sum()
        };
        let all = shares(&mut (0..self.scenario.disks.len()));
        let ours = Variant::of(Policy::Ours);
        let here = self
            .bands
            .iter()
            .filter(|band| asks(band, &ours, &phase.active));
        let groups = here.map(|band| {
            let own = shares(&mut band.disks.iter().copied()) / all * 100.0;
            let had = kinds
                .iter()
                .map(|(_, runs)| median(runs.iter().map(|run| slice.share(run, &band.disks))));
            Group {
                name: band.name.clone(),
                bars: std::iter::once(Some(own)).chain(had).collect(),
            }
        });
        let mut rows = vec![("by shares".to_owned(), Fill::Outline, 5)];
        rows.extend(kinds.iter().map(|(row, _)| row.clone()));
        let name = match self.scenario.phases.len() {
            1 => "Parts of all I/Os".to_owned(),
            _ => format!("Parts of all I/Os in \u{201c}{}\u{201d}", phase.name),
        };
        bars(&name, "percent", &rows, groups.collect())
    }

    fn datastore(&self) -> Picture {
        let mut lines = Vec::new();
        for (policy, name) in [
            (Policy::Ours, "with"),
            (Policy::None, "without"),
            (Policy::Parda, "PARDA"),
        ] {
            let runs = self.runs(policy);
            lines.extend(runs.map(|runs| self.line(name, self.grid.latency(runs[0]))));
        }
        let ours = self.runs(Policy::Ours).map(|runs| runs[0]);
        let level = match self.scenario.datastore.threshold {
            Threshold::Fixed(span) => {
                Some((format!("threshold {}", length(span)), seconds(span) * 1e3))
            }
            Threshold::Auto => {
                lines.extend(ours.map(|run| self.line("threshold", self.grid.threshold(run))));
                None
            }
            Threshold::Off => None,
        };
        let most = highest(lines.iter().map(|line| &line.points));
        let most = level
            .as_ref()
            .map_or(most, |(_, value)| most.max(value * 1.1));
        let latency = Lines {
            level,
            ..self.over_time("The datastore's latency", "milliseconds", most, lines)
        };
        let mut panels = vec![latency.svg()];
        if let Some(run) = ours {
            let hosts = self.scenario.hosts.iter().enumerate().take(STYLES);
            let lines =
                hosts.map(|(place, host)| self.line(&host.name, self.grid.window(run, place)));
            let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
            let most = highest(lines.iter().map(|line| &line.points));
            if !lines.is_empty() {
                let (name, unit) = (
                    "Hosts' windows, with I/O control",
                    "I/Os that a host may have in flight",
                );
                panels.push(self.over_time(name, unit, most, lines).svg());
            }
        }
        Picture {
            name: "Latency against the threshold, and hosts' windows".to_owned(),
            panels,
            caption: format!(
                "I/O control keeps the datastore's latency at the threshold. It limits the I/Os that each host has in flight, \
                 by the shares of its active disks. Windows are drawn while control is engaged.{}",
                self.key()
            ),
        }
    }

    fn latencies(&self) -> Option<Picture> {
        let slice = Slice::whole(self.scenario);
        let ways = self.ways.iter().map(|(way, runs)| {
            let lines = self.bands.iter().map(|band| {
                let each = runs.iter();
                let each = each.flat_map(|run| slice.latencies(run, &band.disks));
                let mut all: Vec<u32> = each.collect();
                all.sort_unstable();
                Line {
                    name: band.name.clone(),
                    points: by_nines(&all, NINES),
                }
            });
            let lines: Vec<Line> = lines.filter(|line| line.points.len() > 1).collect();
            (way_words(self.scenario, way), lines)
        });
        let ways: Vec<(String, Vec<Line>)> = ways.filter(|(_, lines)| !lines.is_empty()).collect();
        let points = || {
            ways.iter()
                .flat_map(|(_, lines)| lines)
                .map(|line| &line.points)
        };
        let most = highest(points());
        let all = points().flatten().map(|(_, ms)| *ms);
        let least = all.fold(f64::INFINITY, f64::min);
        if !(most > 0.0 && least.is_finite()) {
            return None;
        }
        // I/Os that a cache or an idle array answers at once are not the subject.
        let least = least.max(most / 500.0).max(1e-3);
        let panels = ways.into_iter().map(|(name, lines)| {
            let panel = Lines {
                name: capital(&name),
                unit: "milliseconds, in powers".to_owned(),
                across: Across::Percentiles(NINES),
                up: Up::Powers(least, most.max(least * 1.5)),
                lines,
                phases: Vec::new(),
                level: None,
            };
            panel.svg()
        });
        Some(Picture {
            name: "Latency as guests see it".to_owned(),
            panels: panels.collect(),
            caption: "From a guest's request to its answer, over the whole run. The slowest I/Os are on the right. A line ends \
                      where there are no more I/Os."
                .to_owned(),
        })
    }

    /// The throughput and latency of a shop's orders.
    fn orders(&self) -> Option<Picture> {
        let disks = &self.scenario.disks;
        let shop = |disk: &usize| matches!(disks[*disk].workload, Workload::Shop { .. });
        let shops = self.bands.iter();
        let shops: Vec<&Band> = shops.filter(|band| band.disks.iter().any(shop)).collect();
        let phases = self.scenario.phases.iter().enumerate();
        let (place, phase) =
            phases.max_by_key(|(place, phase)| (active(phase), std::cmp::Reverse(*place)))?;
        if shops.is_empty() {
            return None;
        }
        let slice = Slice::settled(self.scenario, place);
        let ways = self.ways.iter().filter(|(way, _)| way.threshold.is_none());
        let ways: Vec<_> = ways.collect();
        let rows: Vec<_> = ways.iter().map(|(way, _)| bar(way)).collect();
        let panel = |name: &str, unit: &str, of: &dyn Fn(&[u32]) -> Option<f64>| {
            let groups = shops.iter().map(|band| {
                let bars = ways.iter().map(|(way, runs)| {
                    let there = asks(band, way, &phase.active);
                    let runs = runs.iter().filter(|_| there);
                    median(runs.filter_map(|run| of(&slice.orders(run, &band.disks))))
                });
                Group {
                    name: band.name.clone(),
                    bars: bars.collect(),
                }
            });
            bars(name, unit, &rows, groups.collect())
        };
        let rate = |orders: &[u32]| (!orders.is_empty()).then(|| slice.rate(orders.len()));
        let when = match self.scenario.phases.len() {
            1 => String::new(),
            _ => format!(" In \u{201c}{}\u{201d}.", phase.name),
        };
        Some(Picture {
            name: "Orders of the shops".to_owned(),
            panels: vec![
                panel("Orders", "a second", &rate),
                panel("Time of an order", "milliseconds, mean", &mean_ms),
            ],
            caption: format!("The result for the shops' users.{when}"),
        })
    }
}

/// Real daemons beside the simulator: parts and latencies, by way, in the phase with most active disks.
fn agreement(findings: &Findings) -> Option<Picture> {
    let rows = findings
        .agreement
        .iter()
        .flat_map(|agreement| &agreement.rows);
    let rows: Vec<&Row> = rows.collect();
    let places = [
        (On::Engine.title().to_owned(), Fill::Solid, 0),
        (On::Sim.title().to_owned(), Fill::Light, 2),
    ];
    let mut panels = Vec::new();
    for rows in rows.chunk_by(|one, other| one.way == other.way) {
        let phases: Vec<_> = rows
            .chunk_by(|one, other| one.phase == other.phase)
            .collect();
        let fullest = phases.iter().map(|rows| rows.len()).max().unwrap_or(0);
        let Some(rows) = phases.into_iter().find(|rows| rows.len() == fullest) else {
            continue;
        };
        if fullest < 2 {
            continue;
        }
        let panel = |name: &str, unit: &str, of: fn(&Row) -> [Option<f64>; 2]| {
            let groups = rows.iter().map(|row| Group {
                name: row.disk.clone(),
                bars: of(row).to_vec(),
            });
            let name = format!("{name}, {}", rows[0].way);
            bars(&name, unit, &places, groups.collect())
        };
        panels.push(panel("Parts of all I/Os", "percent", |row| {
            [row.share_engine, row.share_sim].map(Some)
        }));
        panels.push(panel("Mean latency", "milliseconds", |row| {
            [row.latency_engine_ms, row.latency_sim_ms]
        }));
    }
    (!panels.is_empty()).then(|| Picture {
        name: "Real daemons beside the simulator".to_owned(),
        panels,
        caption: "One scenario in both places, in the phase with most active disks.".to_owned(),
    })
}

/// With a capital letter.
fn capital(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
