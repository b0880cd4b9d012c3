//! Charts of an A/B test: figures across a sweep, with a line for each contestant.
//!
//! Kinds of work, which are no numbers, are bars.

use super::Picture;
use crate::draw::{Across as Axis, Bars, Fill, Group, Line, Lines, Up, round_up};
use crate::experiment::ab_test::{Across, Sweep};
use crate::experiment::findings::ab_test::{AbResults, Measured};
use crate::experiment::series::highest;
use crate::statistics::Spread;

/// A figure of a row.
type Figure = fn(&Measured) -> Option<Spread>;

/// The charts of an A/B test.
pub(super) fn of(results: &AbResults, rows: &[Measured]) -> Vec<Picture> {
    let cpu: (&str, Figure) = match results.ab_test.clients_differ() {
        true => (
            "server and client: percent of one per 1,000 I/Os a second",
            |row| row.cpu_of_both_percent_per_kiops,
        ),
        false => (
            "the server's: percent of one per 1,000 I/Os a second",
            |row| row.cpu_percent_per_kiops,
        ),
    };
    let sweeps = results.ab_test.sweeps.iter();
    let drawn = sweeps.filter_map(|sweep| {
        let rows = rows.iter().filter(|row| row.sweep == sweep.title);
        let rows: Vec<&Measured> = rows.collect();
        let any = rows.iter().any(|row| row.iops.is_some());
        any.then(|| picture(sweep, &rows, cpu))
    });
    drawn.collect()
}

fn picture(sweep: &Sweep, rows: &[&Measured], (cpu_unit, cpu): (&str, Figure)) -> Picture {
    let mut figures: Vec<(&str, &str, Figure)> = Vec::new();
    if sweep.across == Across::Size {
        figures.push(("Bandwidth", "MB a second", |row| row.mb_per_s));
    }
    figures.push(("Throughput", "I/Os a second", |row| row.iops));
    figures.push(("Latency", "microseconds, median", |row| row.p50_us));
    figures.push(("Processor time", cpu_unit, cpu));
    let panels = figures.into_iter().map(|(name, unit, figure)| {
        let contestants = sweep.contestants.iter();
        let columns = contestants.map(|one| (one, own(sweep, rows, one, figure)));
        match sweep.across {
            Across::Work => bars(sweep, columns.collect(), name, unit),
            _ => lines(sweep, columns.collect(), name, unit),
        }
    });
    let mut caption = String::from(
        "A contestant's median over the blocks in which the machine was quiet; over all blocks if none was.",
    );
    if sweep.across != Across::Work && sweep.points.len() > 1 {
        caption += " The axis below has the measured points at equal distances.";
    }
    Picture {
        name: sweep.title.clone(),
        caption,
        panels: panels.collect(),
    }
}

/// A contestant's figures, by points.
fn own(sweep: &Sweep, rows: &[&Measured], contestant: &str, figure: Figure) -> Vec<Option<f64>> {
    let points = sweep.points.iter().map(|point| {
        let point = sweep.words(&point.name);
        let mut rows = rows.iter();
        let row = rows.find(|row| row.contestant == contestant && row.point == point);
        row.and_then(|row| figure(row)).map(|spread| spread.median)
    });
    points.collect()
}

fn lines(sweep: &Sweep, own: Vec<(&String, Vec<Option<f64>>)>, name: &str, unit: &str) -> String {
    let lines = own.into_iter().map(|(name, values)| {
        let points = (0_u32..).zip(values);
        let points = points.filter_map(|(place, value)| Some((f64::from(place), value?)));
        Line {
            name: name.clone(),
            points: points.collect(),
        }
    });
    let lines: Vec<Line> = lines.collect();
    let points = sweep.points.iter().map(|point| point.name.clone());
    let panel = Lines {
        name: name.to_owned(),
        unit: unit.to_owned(),
        across: Axis::Places(points.collect(), sweep.across.words()),
        up: Up::To(round_up(highest(lines.iter().map(|line| &line.points)))),
        lines,
        phases: Vec::new(),
        level: None,
    };
    panel.svg()
}

fn bars(sweep: &Sweep, own: Vec<(&String, Vec<Option<f64>>)>, name: &str, unit: &str) -> String {
    const FILLS: [Fill; 4] = [Fill::Outline, Fill::Light, Fill::Solid, Fill::Light];
    let groups = sweep.points.iter().enumerate().map(|(place, point)| Group {
        name: point.name.clone(),
        bars: own.iter().map(|(_, values)| values[place]).collect(),
    });
    let rows = own.iter().zip(FILLS.into_iter().cycle()).enumerate();
    let panel = Bars {
        name: name.to_owned(),
        unit: unit.to_owned(),
        groups: groups.collect(),
        rows: rows
            .map(|(style, ((name, _), fill))| ((*name).clone(), fill, style))
            .collect(),
    };
    panel.svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fixtures::ab_results;

    #[test]
    fn every_contestant_has_a_line_in_every_panel_and_every_point_a_name() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let results = ab_results(scratch.path(), "million-iops", &[1.0, 0.8, 0.4]);
        let pictures = of(&results, &results.findings().measured);
        let panels = pictures.iter().map(|picture| picture.panels.len());
        assert_eq!(panels.collect::<Vec<_>>(), [3, 4]);
        let names = ["tidegate", "qemu-storage-daemon"];
        for panel in pictures.iter().flat_map(|picture| &picture.panels) {
            assert!(
                names
                    .iter()
                    .all(|name| panel.contains(&format!(">{name}</text>")))
            );
        }
        for text in ["1", "8", "32", "VMs"] {
            assert!(pictures[0].panels[0].contains(&format!(">{text}</text>")));
        }
    }

    #[test]
    fn kinds_of_work_are_bars_and_what_was_not_measured_is_none() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut results = ab_results(scratch.path(), "compare-scenarios", &[1.0, 0.9, 1.0, 0.1]);
        for block in &mut results.blocks {
            block.trials.retain(|trial| trial.contestant != "guest");
        }
        let pictures = of(&results, &results.findings().measured);
        let panel = &pictures[0].panels[0];
        // One for each kind of work, and one in the legend; of the guest the legend's alone.
        assert_eq!(panel.matches("s1\"").count(), 4 + 1);
        assert_eq!(panel.matches("s3\"").count(), 1);
        let mut panels = pictures.iter().flat_map(|picture| &picture.panels);
        assert!(panels.all(|panel| !panel.contains("NaN")));
    }
}
