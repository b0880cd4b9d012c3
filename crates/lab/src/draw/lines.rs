//! Line charts over time with phases, over percentiles, or over measured points.

use super::scale::{Scale, label, log_ticks, ticks};
use super::{HEIGHT, LEFT, Panel, STYLES, WIDTH, at, width};

/// A line with a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The label at its end.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// The horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Across {
    /// Time from zero until then, in this unit.
    Time(f64, &'static str),
    /// Parts of all, up to so many nines: the half, nine of ten, 99 of a hundred.
    Percentiles(u8),
    /// Points side by side, from zero on, by their names; and what they are.
    Places(Vec<String>, &'static str),
}

/// The vertical axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Up {
    /// From zero to here.
    To(f64),
    /// Powers, from one value above zero to another.
    Powers(f64, f64),
}

/// A panel of lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// What it shows.
    pub name: String,
    /// The vertical axis, with its unit.
    pub unit: String,
    /// The horizontal axis.
    pub across: Across,
    /// Its range.
    pub up: Up,
    /// The lines; each has the style of its place.
    pub lines: Vec<Line>,
    /// The name, begin and end of each phase, if there are several.
    pub phases: Vec<(String, f64, f64)>,
    /// A value that lines are compared with, and its name.
    pub level: Option<(String, f64)>,
}

const BOTTOM: f64 = HEIGHT - 36.0;
/// Names at lines' ends stand at least so far apart.
const APART: f64 = 13.0;
/// A line has about so many marks.
const MARKS: usize = 6;
/// The labels of an axis of percentiles, by their nines.
const PERCENTILES: [(f64, &str); 6] = [
    (0.0, "0"),
    (std::f64::consts::LOG10_2, "50"),
    (1.0, "90"),
    (2.0, "99"),
    (3.0, "99.9"),
    (4.0, "99.99"),
];

/// A panel with its axes.
struct Paper {
    panel: Panel,
    across: Scale,
    up: Scale,
    /// A vertical axis of powers begins here.
    powers: Option<f64>,
    top: f64,
    right: f64,
}

impl Paper {
    fn y(&self, value: f64) -> f64 {
        let value = self.powers.map_or(value, |from| value.max(from).log10());
        self.up.place(value)
    }
}

impl Lines {
    /// The panel.
    #[must_use]
    pub fn svg(&self) -> String {
        let names = self.lines.iter().map(|line| width(&line.name, 11.0));
        let right = WIDTH - (names.fold(0.0, f64::max) + 18.0).min(150.0);
        let top = if self.phases.is_empty() { 42.0 } else { 54.0 };
        let (from, to) = match &self.across {
            Across::Time(to, _) => (0.0, *to),
            Across::Percentiles(nines) => (0.0, f64::from(*nines)),
            // A little room beside the first and the last, whose marks would lie on the axes.
            Across::Places(names, _) => (-0.25, names.len() as f64 - 0.75),
        };
        let (low, high, powers) = match self.up {
            Up::To(most) => (0.0, most, None),
            Up::Powers(from, to) => (from.log10(), to.log10(), Some(from)),
        };
        let mut paper = Paper {
            panel: Panel::new(&self.name, &self.unit),
            across: Scale::new(from, to, LEFT, right),
            up: Scale::new(low, high, BOTTOM, top),
            powers,
            top,
            right,
        };
        self.phases(&mut paper);
        self.axes(&mut paper);
        self.lines(&mut paper);
        // Last, with a rim: a line at a level lies on it.
        if let Some((name, value)) = &self.level {
            let y = paper.y(*value);
            paper.panel.rule("level", y, right);
            let place = (LEFT + 4.0, y - 4.0);
            paper.panel.text("end rim", "start", place, name);
        }
        paper.panel.svg()
    }

    fn phases(&self, paper: &mut Paper) {
        let across = paper.across;
        let fits = self.phases.iter().all(|(name, from, to)| {
            width(name, 11.0) < across.place(*to) - across.place(*from) - 2.0
        });
        for (place, (name, from, to)) in self.phases.iter().enumerate() {
            let (from, to) = (across.place(*from), across.place(*to));
            let top = paper.top;
            if !place.is_multiple_of(2) {
                let size = (to - from, BOTTOM - top);
                paper.panel.rect("band", (from, top), size);
            }
            // Names that have no room are numbers, which the caption explains.
            let name = match fits {
                true => name.clone(),
                false => (place + 1).to_string(),
            };
            let middle = (f64::midpoint(from, to), top - 6.0);
            paper.panel.text("phase", "middle", middle, &name);
            if place > 0 {
                let d = format!("M{} {}V{BOTTOM}", at(from), at(top));
                paper.panel.path("part", &d);
            }
        }
    }

    fn axes(&self, paper: &mut Paper) {
        let values = match self.up {
            Up::To(most) => ticks(0.0, most, 5.0),
            Up::Powers(from, to) => log_ticks(from, to),
        };
        let heights: Vec<f64> = values.iter().map(|value| paper.y(*value)).collect();
        let right = paper.right;
        paper.panel.upwards(&values, &heights, (BOTTOM, right));
        let (labels, unit): (Vec<(f64, String)>, _) = match &self.across {
            Across::Time(to, unit) => {
                let ticks = ticks(0.0, *to, 6.0).into_iter();
                (ticks.map(|tick| (tick, label(tick))).collect(), *unit)
            }
            Across::Places(names, what) => {
                let names = names.iter().enumerate();
                let labels = names.map(|(place, name)| (place as f64, name.clone()));
                (labels.collect(), *what)
            }
            Across::Percentiles(nines) => {
                let here = PERCENTILES.into_iter();
                let here = here.filter(|(at, _)| *at <= f64::from(*nines));
                let labels = here.map(|(at, name)| (at, name.to_owned()));
                (labels.collect(), "percent of I/Os are at or below")
            }
        };
        for (value, name) in labels {
            let x = paper.across.place(value);
            paper.panel.path("axis", &format!("M{} {BOTTOM}v4", at(x)));
            paper
                .panel
                .text("tick", "middle", (x, BOTTOM + 16.0), &name);
        }
        let middle = (f64::midpoint(LEFT, right), HEIGHT - 4.0);
        paper.panel.text("unit", "middle", middle, unit);
    }

    fn lines(&self, paper: &mut Paper) {
        let mut ends = Vec::new();
        for (style, line) in self.lines.iter().enumerate() {
            let points = line.points.iter();
            let points = points.filter(|(x, y)| x.is_finite() && y.is_finite());
            let points = points.map(|(x, y)| (paper.across.place(*x), paper.y(*y)));
            let points: Vec<(f64, f64)> = points.collect();
            let Some(&(_, last)) = points.last() else {
                continue;
            };
            let d = points.iter().map(|(x, y)| format!("{} {}", at(*x), at(*y)));
            let d = format!("M{}", d.collect::<Vec<_>>().join("L"));
            paper.panel.path(&format!("line s{}", style % STYLES), &d);
            // Each line's marks begin elsewhere, so that they do not cover each other where lines meet.
            let pace = (points.len() / MARKS).max(1);
            let begin = match self.across {
                Across::Places(..) => 0,
                _ => pace * (style % STYLES + 1) / (STYLES + 1),
            };
            for (x, y) in points.iter().skip(begin).step_by(pace) {
                paper.panel.mark(style, *x, *y);
            }
            ends.push((last, style));
        }
        let right = paper.right;
        for (y, style) in apart(ends, paper.top, BOTTOM) {
            paper.panel.mark(style, right + 8.0, y);
            let name = &self.lines[style].name;
            paper
                .panel
                .text("end", "start", (right + 15.0, y + 4.0), name);
        }
    }
}

/// Moves names away from each other, as little as need be.
fn apart(mut ends: Vec<(f64, usize)>, top: f64, bottom: f64) -> Vec<(f64, usize)> {
    ends.sort_by(|one, two| one.0.total_cmp(&two.0));
    let mut least = top;
    for (y, _) in &mut ends {
        *y = y.max(least);
        least = *y + APART;
    }
    let mut most = bottom;
    for (y, _) in ends.iter_mut().rev() {
        *y = y.min(most);
        most = *y - APART;
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Lines {
        let line = |name: &str, high: f64| Line {
            name: name.into(),
            points: (0..50).map(|x| (f64::from(x), high)).collect(),
        };
        Lines {
            name: "Throughput".into(),
            unit: "I/Os a second".into(),
            across: Across::Time(50.0, "seconds"),
            up: Up::To(100.0),
            lines: vec![line("vm1", 40.0), line("vm2", 41.0)],
            phases: Vec::new(),
            level: Some(("threshold".into(), 50.0)),
        }
    }

    fn has(svg: &str, text: &str) -> bool {
        svg.contains(&format!(">{text}</text>"))
    }

    #[test]
    fn every_line_has_its_dashes_its_marks_and_its_name() {
        let svg = panel().svg();
        for (style, name) in ["vm1", "vm2"].iter().enumerate() {
            assert_eq!(svg.matches(&format!("class=\"line s{style}\"")).count(), 1);
            assert!(svg.matches(&format!("class=\"mark s{style}\"")).count() > 3);
            assert!(has(&svg, name), "{svg}");
        }
        assert!(has(&svg, "threshold"));
        assert!(svg.contains("aria-label=\"Throughput, I/Os a second\""));
    }

    #[test]
    fn names_of_lines_that_meet_stand_apart() {
        let placed = apart(vec![(50.0, 0), (51.0, 1), (52.0, 2)], 0.0, 60.0);
        assert_eq!(placed, [(34.0, 0), (47.0, 1), (60.0, 2)]);
    }

    #[test]
    fn values_that_are_not_numbers_are_left_out() {
        let mut panel = panel();
        panel.lines[0].points = vec![(0.0, f64::NAN), (1.0, 2.0), (f64::INFINITY, 1.0)];
        panel.lines[1].points.clear();
        let svg = panel.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!has(&svg, "vm2"), "a line without points has no name");
    }

    #[test]
    fn measured_points_stand_side_by_side_with_their_names() {
        let mut panel = panel();
        panel.across = Across::Places(vec!["1".into(), "16".into(), "256".into()], "VMs");
        for line in &mut panel.lines {
            line.points.truncate(3);
        }
        let svg = panel.svg();
        for text in ["1", "16", "256", "VMs"] {
            assert!(has(&svg, text), "{text}: {svg}");
        }
        // Few points have a mark each.
        assert_eq!(svg.matches("class=\"mark s0\"").count(), 3 + 1);
    }

    #[test]
    fn phases_whose_names_have_no_room_are_numbered() {
        let mut panel = panel();
        panel.phases = vec![("all".into(), 0.0, 25.0), ("idle".into(), 25.0, 50.0)];
        assert!(has(&panel.svg(), "idle"));
        panel.phases[1].0 = "a name that is much too long to stand above its phase".into();
        let svg = panel.svg();
        assert!(has(&svg, "2") && !svg.contains("much too long"));
    }
}
