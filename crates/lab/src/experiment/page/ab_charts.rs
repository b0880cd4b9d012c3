//! Charts of an A/B test: figures across a sweep, with a line for each contestant.
//!
//! Kinds of work, which are no numbers, are bars.

use super::Picture;
use crate::draw::{Across as Axis, Bars, Fill, Group, Line, Lines, Up, round_up};
use crate::experiment::ab_test::{Across, Sweep};
use crate::experiment::findings::ab_test::{AbResults, Measured};
use crate::statistics::Spread;

/// What is drawn of an A/B test's blocks.
pub(in crate::experiment) fn of(results: &AbResults, rows: &[Measured]) -> Vec<Picture> {
    let sweeps = results.ab_test.sweeps.iter();
    let drawn = sweeps.filter_map(|sweep| {
        let rows = rows.iter().filter(|row| row.sweep == sweep.title);
        let rows: Vec<&Measured> = rows.collect();
        rows.iter()
            .any(|row| row.iops.is_some())
            .then(|| picture(results, sweep, &rows))
    });
    drawn.collect()
}

/// A figure of a row.
type Figure = fn(&Measured) -> Option<Spread>;

fn picture(results: &AbResults, sweep: &Sweep, rows: &[&Measured]) -> Picture {
    let mut figures: Vec<(&str, &str, Figure)> = Vec::new();
    if sweep.across == Across::Size {
        figures.push(("Bandwidth", "MB a second", |row| row.mb_per_s));
    }
    figures.push(("Throughput", "I/Os a second", |row| row.iops));
    figures.push(("Latency", "microseconds, median", |row| row.p50_us));
    if results.ab_test.clients_differ() {
        figures.push((
            "Processor time",
            "server and who asks: percent of one per 1,000 I/Os a second",
            |row| row.cpu_of_both_percent_per_kiops,
        ));
    } else {
        figures.push((
            "Processor time",
            "the server's: percent of one per 1,000 I/Os a second",
            |row| row.cpu_percent_per_kiops,
        ));
    }
    let panels = figures.into_iter().map(|(name, unit, figure)| {
        if sweep.across == Across::Work {
            bars(results, sweep, rows, name, unit, figure)
        } else {
            lines(results, sweep, rows, name, unit, figure)
        }
    });
    let mut caption = String::from(
        "A contestant's median over the blocks in which the machine was quiet; over all, if it never was.",
    );
    if sweep.across != Across::Work && sweep.points.len() > 1 {
        caption += " Below are the measured points, and not distances.";
    }
    Picture {
        name: sweep.title.clone(),
        caption,
        panels: panels.collect(),
    }
}

/// A contestant's rows, by the places of their points.
fn own<'a>(
    results: &'a AbResults,
    sweep: &'a Sweep,
    rows: &'a [&'a Measured],
    figure: Figure,
) -> Vec<(String, Vec<Option<f64>>)> {
    let points = || {
        let mut names: Vec<&str> = Vec::new();
        for row in rows {
            if !names.contains(&row.point.as_str()) {
                names.push(&row.point);
            }
        }
        names
    };
    let contestants = sweep.contestants.iter().map(|place| {
        let name = &results.ab_test.contestants[*place].name;
        let values = points().into_iter().map(|point| {
            let row = rows
                .iter()
                .find(|row| row.contestant == *name && row.point == point);
            row.and_then(|row| figure(row)).map(|spread| spread.median)
        });
        (name.clone(), values.collect())
    });
    contestants.collect()
}

fn lines(
    results: &AbResults,
    sweep: &Sweep,
    rows: &[&Measured],
    name: &str,
    unit: &str,
    figure: Figure,
) -> String {
    let lines = own(results, sweep, rows, figure)
        .into_iter()
        .map(|(name, values)| Line {
            name,
            points: (0_u32..)
                .zip(values)
                .filter_map(|(place, value)| Some((f64::from(place), value?)))
                .collect(),
        });
    let lines: Vec<Line> = lines.collect();
    let highest = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|(_, value)| *value)
        .filter(|value| value.is_finite())
        .fold(0.0, f64::max);
    let panel = Lines {
        name: name.to_owned(),
        unit: unit.to_owned(),
        across: Axis::Places(
            sweep
                .points
                .iter()
                .map(|point| point.name.clone())
                .collect(),
            sweep.across.words(),
        ),
        up: Up::To(round_up(highest)),
        lines,
        phases: Vec::new(),
        levels: Vec::new(),
    };
    panel.svg()
}

fn bars(
    results: &AbResults,
    sweep: &Sweep,
    rows: &[&Measured],
    name: &str,
    unit: &str,
    figure: Figure,
) -> String {
    const FILLS: [Fill; 4] = [Fill::Outline, Fill::Light, Fill::Solid, Fill::Light];
    let columns = own(results, sweep, rows, figure);
    let groups = sweep.points.iter().enumerate().map(|(place, point)| Group {
        name: point.name.clone(),
        bars: columns
            .iter()
            .map(|(_, values)| values.get(place).copied().flatten())
            .collect(),
    });
    let panel = Bars {
        name: name.to_owned(),
        unit: unit.to_owned(),
        groups: groups.collect(),
        rows: columns
            .iter()
            .enumerate()
            .map(|(place, (name, _))| (name.clone(), FILLS[place % FILLS.len()], place))
            .collect(),
    };
    panel.svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::findings::ab_test::tests::results;

    #[test]
    fn every_contestant_has_a_line_in_every_panel_and_every_point_a_name() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let results = results(scratch.path(), "million-iops", &[1.0, 0.8, 0.4]);
        let pictures = of(&results, &results.findings().measured);
        assert_eq!(pictures.len(), 2);
        assert_eq!((pictures[0].panels.len(), pictures[1].panels.len()), (3, 4));
        for panel in pictures.iter().flat_map(|picture| &picture.panels) {
            for name in ["tidegate", "qemu-storage-daemon"] {
                assert!(
                    panel.contains(&format!(">{name}</text>")),
                    "{name}: {panel}"
                );
            }
        }
        for point in ["1", "8", "32"] {
            assert!(pictures[0].panels[0].contains(&format!(">{point}</text>")));
        }
        assert!(pictures[0].panels[0].contains(">VMs</text>"));
    }

    #[test]
    fn kinds_of_work_are_bars_and_what_was_not_measured_is_none() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut results = results(scratch.path(), "compare-scenarios", &[1.0, 0.9, 1.0, 0.1]);
        for round in &mut results.rounds {
            round.trials.retain(|trial| trial.contestant != "guest");
        }
        let pictures = of(&results, &results.findings().measured);
        let panel = &pictures[0].panels[0];
        // One for each kind of work, and one in the legend; of the guest the legend's alone.
        assert_eq!(panel.matches("s1\"").count(), 4 + 1);
        assert_eq!(panel.matches("s3\"").count(), 1);
        assert!(
            pictures
                .iter()
                .flat_map(|p| &p.panels)
                .all(|panel| !panel.contains("NaN"))
        );
    }
}
