//! Charts of a scenario, in the shape of the published figures.
//!
//! Panels of one figure have one height, so that ways can be held against each other by eye.

use tidegate_sim::scenario::{Scenario, Threshold, Workload};
use tidegate_sim::{Policy, Run, Variant};

use super::Picture;
use crate::draw::{Across, Bars, Fill, Group, Level, Line, Lines, STYLES, Stretch, Up};
use crate::experiment::findings::{Findings, Loaded, asks};
use crate::experiment::series::{Band, Grid, Slice, bands, by_nines, highest, mean_ms};
use crate::experiment::summary::{length, seconds};
use crate::experiment::{On, way_words};
use crate::statistics::spread;

/// No latency is drawn beyond so many nines.
const NINES: u8 = 4;
/// So many phases' parts are drawn at most.
const PARTS: usize = 4;

/// What is drawn of the runs in one place.
pub(super) fn of(loaded: &Loaded, on: On) -> Vec<Picture> {
    let Some(drawn) = Drawn::of(loaded, on) else {
        return Vec::new();
    };
    let figures = [
        Some(drawn.throughput()),
        drawn.parts(),
        Some(drawn.datastore()),
        drawn.latencies(),
        drawn.orders(),
    ];
    figures.into_iter().flatten().collect()
}

/// The runs of one place, ready to be drawn.
struct Drawn<'a> {
    scenario: &'a Scenario,
    bands: Vec<Band>,
    grid: Grid,
    /// A second's, or a minute's, part of the time axis.
    scale: f64,
    across: Across,
    ways: Vec<(&'a Variant, Vec<&'a Run>)>,
}

impl<'a> Drawn<'a> {
    fn of(loaded: &'a Loaded, on: On) -> Option<Drawn<'a>> {
        let scenario = &loaded.experiment.scenario;
        let ways = loaded.runs.get(&on)?.iter();
        let ways = ways.map(|(way, runs)| (way, runs.values().collect::<Vec<_>>()));
        let ways: Vec<_> = ways.filter(|(_, runs)| !runs.is_empty()).collect();
        let whole = Slice::whole(scenario);
        let length = seconds(whole.to.since(whole.from));
        let (scale, unit) = if length > 200.0 {
            (60.0, "minutes")
        } else {
            (1.0, "seconds")
        };
        (!ways.is_empty()).then(|| Drawn {
            scenario,
            bands: bands(scenario),
            grid: Grid::of(scenario),
            scale,
            across: Across::Time(length / scale, unit),
            ways,
        })
    }

    /// The run that is drawn over time, of a way.
    fn first(&self, way: &Variant) -> Option<&'a Run> {
        let found = self.ways.iter().find(|(other, _)| *other == way);
        found.and_then(|(_, runs)| runs.first().copied())
    }

    fn timed(&self, points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
        points
            .into_iter()
            .map(|(at, value)| (at / self.scale, value))
            .collect()
    }

    fn phases(&self) -> Vec<Stretch> {
        if self.scenario.phases.len() < 2 {
            return Vec::new();
        }
        let at = |time: tidegate_core::units::Time| {
            seconds(time.since(tidegate_core::units::Time::ZERO)) / self.scale
        };
        let phases = self.scenario.phases.iter().map(|phase| Stretch {
            name: phase.name.clone(),
            from: at(phase.begins),
            to: at(phase.ends),
        });
        phases.collect()
    }

    /// What the numbers above phases stand for.
    fn key(&self) -> String {
        if self.scenario.phases.len() < 2 {
            return String::new();
        }
        let phases = self.scenario.phases.iter().enumerate();
        let named = phases.map(|(place, phase)| format!("{} {}", place + 1, phase.name));
        format!(" Phases: {}.", named.collect::<Vec<_>>().join(", "))
    }

    fn throughput(&self) -> Picture {
        let ways = self.ways.iter().map(|(way, runs)| {
            let lines = self.bands.iter().map(|band| Line {
                name: band.name.clone(),
                points: self.timed(self.grid.iops(runs[0], &band.disks)),
            });
            (way_words(self.scenario, way), lines.collect::<Vec<_>>())
        });
        let ways: Vec<(String, Vec<Line>)> = ways.collect();
        let lines = ways.iter().flat_map(|(_, lines)| lines);
        let most = crate::draw::round_up(highest(lines.map(|line| &line.points)));
        let panels = ways.into_iter().map(|(name, lines)| {
            let panel = Lines {
                name: capital(&name),
                unit: "I/Os a second".to_owned(),
                across: self.across.clone(),
                up: Up::To(most),
                lines,
                phases: self.phases(),
                levels: Vec::new(),
            };
            panel.svg()
        });
        Picture {
            name: "Throughput of all disks over time".to_owned(),
            panels: panels.collect(),
            caption: format!(
                "What each disk had, by the phases of the experiment.{}",
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
        let active = |phase: usize| {
            self.scenario.phases[phase]
                .active
                .iter()
                .filter(|a| **a)
                .count()
        };
        let mut phases: Vec<usize> = Vec::new();
        for (place, phase) in self.scenario.phases.iter().enumerate() {
            let alike = |other: &usize| {
                let other = &self.scenario.phases[*other];
                other.active == phase.active && other.speed == phase.speed && phase.set.is_empty()
            };
            if active(place) > 1 && !phases.iter().any(alike) {
                phases.push(place);
            }
        }
        // The fullest are the most telling; what is left stands in the order of time.
        phases.sort_by_key(|place| std::cmp::Reverse(active(*place)));
        phases.truncate(PARTS);
        phases.sort_unstable();
        let kinds = [
            (Policy::Ours, "with I/O control", Fill::Solid, 0),
            (Policy::None, "without", Fill::Light, 1),
        ];
        let kinds: Vec<_> = kinds
            .into_iter()
            .filter_map(|(policy, name, fill, style)| {
                let way = Variant::of(policy);
                let runs = self.ways.iter().find(|(other, _)| **other == way)?;
                Some((name, fill, style, &runs.1))
            })
            .collect();
        let panels = phases.into_iter().map(|place| {
            let phase = &self.scenario.phases[place];
            let way = Variant::of(Policy::Ours);
            let here = self
                .bands
                .iter()
                .filter(|band| asks(band, &way, &phase.active));
            let all = (0..self.scenario.disks.len()).filter(|disk| phase.active[*disk]);
            let all: f64 = all.map(|disk| self.shares(disk, place)).sum();
            let groups = here.map(|band| {
                let own = band.disks.iter().filter(|disk| phase.active[**disk]);
                let own: f64 = own.map(|disk| self.shares(*disk, place)).sum();
                let had = kinds.iter().map(|(_, _, _, runs)| {
                    let slice = Slice::settled(self.scenario, place);
                    let values: Vec<f64> = runs
                        .iter()
                        .map(|run| slice.share(run, &band.disks))
                        .collect();
                    spread(&values).map(|spread| spread.median)
                });
                Group {
                    name: band.name.clone(),
                    bars: [Some(own / all * 100.0)].into_iter().chain(had).collect(),
                }
            });
            let rows = kinds
                .iter()
                .map(|(name, fill, style, _)| ((*name).to_owned(), *fill, *style));
            let panel = Bars {
                name: match self.scenario.phases.len() {
                    1 => "Parts of all I/Os".to_owned(),
                    _ => format!("Parts of all I/Os in \u{201c}{}\u{201d}", phase.name),
                },
                unit: "percent".to_owned(),
                groups: groups.collect(),
                rows: [("by shares".to_owned(), Fill::Outline, 5)]
                    .into_iter()
                    .chain(rows)
                    .collect(),
            };
            panel.svg()
        });
        let panels: Vec<String> = panels.collect();
        (!panels.is_empty()).then(|| Picture {
            name: "Shares against throughput".to_owned(),
            panels,
            caption: "The part of all I/Os that each disk's shares stand for, and the part that it had. A limit, a \
                      reservation or a guest that asks for less moves a disk away from its shares' part."
                .to_owned(),
        })
    }

    fn datastore(&self) -> Picture {
        let ours = Variant::of(Policy::Ours);
        let mut lines = Vec::new();
        for (policy, name) in [
            (Policy::Ours, "with"),
            (Policy::None, "without"),
            (Policy::Parda, "PARDA"),
        ] {
            if let Some(run) = self.first(&Variant::of(policy)) {
                lines.push(Line {
                    name: name.to_owned(),
                    points: self.timed(self.grid.latency(run)),
                });
            }
        }
        let mut levels = Vec::new();
        match self.scenario.datastore.threshold {
            Threshold::Fixed(span) => levels.push(Level {
                name: format!("threshold {}", length(span)),
                at: seconds(span) * 1e3,
            }),
            Threshold::Auto => lines.extend(self.first(&ours).map(|run| Line {
                name: "threshold".to_owned(),
                points: self.timed(self.grid.threshold(run)),
            })),
            Threshold::Off => {}
        }
        let levelled = levels.iter().map(|level| level.at).fold(0.0, f64::max);
        let most = highest(lines.iter().map(|line| &line.points)).max(levelled * 1.1);
        let panel = |name: &str, unit: &str, most: f64, lines, levels| Lines {
            name: name.to_owned(),
            unit: unit.to_owned(),
            across: self.across.clone(),
            up: Up::To(crate::draw::round_up(most)),
            lines,
            phases: self.phases(),
            levels,
        };
        let mut panels = Vec::new();
        panels.push(
            panel(
                "The datastore's latency",
                "milliseconds",
                most,
                lines,
                levels,
            )
            .svg(),
        );
        if let Some(run) = self.first(&ours) {
            let hosts = self.scenario.hosts.iter().enumerate().take(STYLES);
            let lines = hosts.map(|(place, host)| Line {
                name: host.name.clone(),
                points: self.timed(self.grid.window(run, place)),
            });
            let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
            let most = highest(lines.iter().map(|line| &line.points));
            if !lines.is_empty() {
                let unit = "I/Os that a host may have in flight";
                panels.push(
                    panel(
                        "Hosts' windows, with I/O control",
                        unit,
                        most,
                        lines,
                        Vec::new(),
                    )
                    .svg(),
                );
            }
        }
        Picture {
            name: "Latency against the threshold, and hosts' windows".to_owned(),
            panels,
            caption: format!(
                "Control holds the datastore's latency at the threshold by how much each host may have in flight; windows \
                 are as the shares of the disks that ask. They are drawn while control is engaged.{}",
                self.key()
            ),
        }
    }

    fn latencies(&self) -> Option<Picture> {
        let slice = Slice::whole(self.scenario);
        let mut ways = Vec::new();
        for (way, runs) in &self.ways {
            let lines = self.bands.iter().map(|band| {
                let each = runs
                    .iter()
                    .flat_map(|run| slice.latencies(run, &band.disks));
                let mut all: Vec<u32> = each.collect();
                all.sort_unstable();
                Line {
                    name: band.name.clone(),
                    points: by_nines(&all, NINES),
                }
            });
            let lines: Vec<Line> = lines.filter(|line| line.points.len() > 1).collect();
            ways.push((way_words(self.scenario, way), lines));
        }
        let lines = || {
            ways.iter()
                .flat_map(|(_, lines)| lines)
                .map(|line| &line.points)
        };
        let most = highest(lines());
        let least = lines()
            .flatten()
            .map(|(_, ms)| *ms)
            .fold(f64::INFINITY, f64::min);
        if !(most > 0.0 && least.is_finite()) {
            return None;
        }
        // What a cache or an idle array answers at once is not what the picture is about.
        let least = least.max(most / 500.0).max(1e-3);
        let panels = ways
            .iter()
            .filter(|(_, lines)| !lines.is_empty())
            .map(|(name, lines)| {
                let panel = Lines {
                    name: capital(name),
                    unit: "milliseconds, in powers".to_owned(),
                    across: Across::Percentiles(NINES),
                    up: Up::Powers(least, most.max(least * 1.5)),
                    lines: lines.clone(),
                    phases: Vec::new(),
                    levels: Vec::new(),
                };
                panel.svg()
            });
        Some(Picture {
            name: "Latency as guests see it".to_owned(),
            panels: panels.collect(),
            caption: "From a guest's request to its answer, over the whole run. To the right are the few that take \
                      longest; a line ends where there are no more I/Os to tell of."
                .to_owned(),
        })
    }

    /// What a shop's users see.
    fn orders(&self) -> Option<Picture> {
        let shop = |band: &&Band| {
            let mut disks = band
                .disks
                .iter()
                .map(|disk| &self.scenario.disks[*disk].workload);
            disks.any(|workload| matches!(workload, Workload::Shop { .. }))
        };
        let shops: Vec<&Band> = self.bands.iter().filter(shop).collect();
        let phase = (0..self.scenario.phases.len()).max_by_key(|place| {
            let active = self.scenario.phases[*place].active.iter().filter(|a| **a);
            (active.count(), std::cmp::Reverse(*place))
        })?;
        if shops.is_empty() {
            return None;
        }
        let slice = Slice::settled(self.scenario, phase);
        let ways: Vec<_> = self
            .ways
            .iter()
            .filter(|(way, _)| way.threshold.is_none())
            .collect();
        let rows: Vec<_> = ways
            .iter()
            .map(|(way, _)| match (way.policy, &way.alone) {
                (_, Some(_)) => ("alone".to_owned(), Fill::Outline, 5),
                (Policy::Ours, None) => ("with I/O control".to_owned(), Fill::Solid, 0),
                (Policy::None, None) => ("without".to_owned(), Fill::Light, 1),
                (Policy::Parda, None) => ("PARDA".to_owned(), Fill::Light, 2),
            })
            .collect();
        let panel = |name: &str, unit: &str, of: &dyn Fn(&[u32]) -> Option<f64>| {
            let groups = shops.iter().map(|band| {
                let bars = ways.iter().map(|(way, runs)| {
                    let there = asks(band, way, &self.scenario.phases[phase].active);
                    let values = runs.iter().filter(|_| there);
                    let values = values.filter_map(|run| of(&slice.orders(run, &band.disks)));
                    spread(&values.collect::<Vec<_>>()).map(|spread| spread.median)
                });
                Group {
                    name: band.name.clone(),
                    bars: bars.collect(),
                }
            });
            let panel = Bars {
                name: name.to_owned(),
                unit: unit.to_owned(),
                rows: rows.clone(),
                groups: groups.collect(),
            };
            panel.svg()
        };
        let some = |orders: &[u32]| (!orders.is_empty()).then(|| slice.rate(orders.len()));
        let when = match self.scenario.phases.len() {
            1 => String::new(),
            _ => format!(" In \u{201c}{}\u{201d}.", self.scenario.phases[phase].name),
        };
        Some(Picture {
            name: "Orders of the shops".to_owned(),
            panels: vec![
                panel("Orders", "a second", &some),
                panel("Time of an order", "milliseconds, mean", &mean_ms),
            ],
            caption: format!("What users get of it.{when}"),
        })
    }
}

/// Real daemons beside the simulator: parts and latencies, by way, in the phase in which most disks ask.
pub(super) fn agreement(findings: &Findings) -> Vec<String> {
    let Some(agreement) = &findings.agreement else {
        return Vec::new();
    };
    let mut panels = Vec::new();
    let mut ways: Vec<&str> = agreement.rows.iter().map(|row| row.way.as_str()).collect();
    ways.dedup();
    for way in ways {
        let rows = || agreement.rows.iter().filter(|row| row.way == way);
        let mut phases: Vec<&str> = rows().map(|row| row.phase.as_str()).collect();
        phases.dedup();
        let count = |phase: &str| rows().filter(|row| row.phase == phase).count();
        let fullest = phases.iter().map(|phase| count(phase)).max().unwrap_or(0);
        let Some(phase) = phases.iter().find(|phase| count(phase) == fullest) else {
            continue;
        };
        if fullest < 2 {
            continue;
        }
        let panel = |name: &str,
                     unit: &str,
                     of: &dyn Fn(
            &crate::experiment::findings::agreement::Row,
        ) -> [Option<f64>; 2]| {
            let groups = rows().filter(|row| row.phase == *phase).map(|row| Group {
                name: row.disk.clone(),
                bars: of(row).to_vec(),
            });
            let panel = Bars {
                name: format!("{name}, {way}"),
                unit: unit.to_owned(),
                rows: vec![
                    (On::Engine.title().to_owned(), Fill::Solid, 0),
                    (On::Sim.title().to_owned(), Fill::Light, 2),
                ],
                groups: groups.collect(),
            };
            panel.svg()
        };
        panels.push(panel("Parts of all I/Os", "percent", &|row| {
            [row.share_engine, row.share_sim].map(Some)
        }));
        panels.push(panel("Mean latency", "milliseconds", &|row| {
            [row.latency_engine_ms, row.latency_sim_ms]
        }));
    }
    panels
}

/// With a capital letter.
fn capital(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
