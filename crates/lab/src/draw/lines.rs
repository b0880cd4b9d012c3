//! Line charts over time with phases, over percentiles, or over measured points.

use super::scale::{Scale, label, log_ticks, ticks};
use super::{HEIGHT, STYLES, WIDTH, at, escape, mark, open, width};

/// A line with a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Stands at its end.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// A stretch of time with a name: a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// Stands above it.
    pub name: String,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
}

/// A value that lines are to be held against.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Stands on it.
    pub name: String,
    /// The value.
    pub at: f64,
}

/// What lies across.
#[derive(Clone, Debug, PartialEq)]
pub enum Across {
    /// Time from zero until then, in this unit.
    Time(f64, &'static str),
    /// Parts of all, up to so many nines: the half, nine of ten, 99 of a hundred.
    Percentiles(u8),
    /// Points side by side, from zero on, by their names; and what they are.
    Places(Vec<String>, &'static str),
}

/// What goes up.
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
    /// What goes up, with its unit.
    pub unit: String,
    /// What lies across.
    pub across: Across,
    /// How high it is.
    pub up: Up,
    /// The lines; each has the style of its place.
    pub lines: Vec<Line>,
    /// Phases, where there are several.
    pub phases: Vec<Stretch>,
    /// What lines are held against.
    pub levels: Vec<Level>,
}

const LEFT: f64 = 44.0;
const BOTTOM: f64 = HEIGHT - 36.0;
/// Names at lines' ends stand at least so far apart.
const APART: f64 = 13.0;
/// A line has about so many marks.
const MARKS: usize = 6;

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
        let across = Scale::new(from, to, LEFT, right);
        let up = match self.up {
            Up::To(most) => Scale::new(0.0, most, BOTTOM, top),
            Up::Powers(from, to) => Scale::new(from.log10(), to.log10(), BOTTOM, top),
        };
        let paper = Paper {
            across,
            up,
            top,
            right,
        };
        let mut svg = String::new();
        open(&mut svg, &self.name, &self.unit);
        self.phases(&paper, &mut svg);
        self.upwards(&paper, &mut svg);
        self.sideways(&paper, &mut svg);
        self.lines(&paper, &mut svg);
        // Last, with a rim: what is held at a level lies on it.
        self.levels(&paper, &mut svg);
        svg.push_str("</svg>");
        svg
    }

    fn height(&self, value: f64) -> f64 {
        match self.up {
            Up::To(_) => value,
            Up::Powers(from, _) => value.max(from).log10(),
        }
    }

    fn phases(&self, paper: &Paper, svg: &mut String) {
        let fits = self.phases.iter().all(|phase| {
            let room = paper.across.place(phase.to) - paper.across.place(phase.from);
            width(&phase.name, 11.0) < room - 2.0
        });
        for (place, phase) in self.phases.iter().enumerate() {
            let (from, to) = (paper.across.place(phase.from), paper.across.place(phase.to));
            if !place.is_multiple_of(2) {
                svg.push_str(&format!(
                    "<rect class=\"band\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                    at(from),
                    at(paper.top),
                    at(to - from),
                    at(BOTTOM - paper.top)
                ));
            }
            // Names that have no room are numbers; the page says which is which.
            let name = if fits {
                escape(&phase.name)
            } else {
                (place + 1).to_string()
            };
            svg.push_str(&format!(
                "<text class=\"phase\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">{name}</text>",
                at(f64::midpoint(from, to)),
                at(paper.top - 6.0)
            ));
            if place > 0 {
                let (x, top) = (at(from), at(paper.top));
                svg.push_str(&format!("<path class=\"part\" d=\"M{x} {top}V{BOTTOM}\"/>"));
            }
        }
    }

    fn upwards(&self, paper: &Paper, svg: &mut String) {
        let values = match self.up {
            Up::To(most) => ticks(0.0, most, 5.0),
            Up::Powers(from, to) => log_ticks(from, to),
        };
        for value in values {
            let y = paper.up.place(self.height(value));
            let class = if y >= BOTTOM - 0.05 { "axis" } else { "grid" };
            svg.push_str(&format!(
                "<path class=\"{class}\" d=\"M{LEFT} {}H{}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{}\" \
                 y=\"{}\">{}</text>",
                at(y),
                at(paper.right),
                LEFT - 6.0,
                at(y + 4.0),
                label(value)
            ));
        }
        svg.push_str(&format!(
            "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{}\"/>",
            at(paper.right)
        ));
    }

    fn sideways(&self, paper: &Paper, svg: &mut String) {
        let (values, unit) = match &self.across {
            Across::Time(to, unit) => {
                let ticks = ticks(0.0, *to, 6.0).into_iter();
                let ticks: Vec<_> = ticks.map(|tick| (tick, label(tick))).collect();
                (ticks, *unit)
            }
            Across::Places(names, what) => {
                let ticks = names.iter().enumerate();
                let ticks = ticks.map(|(place, name)| (place as f64, escape(name)));
                (ticks.collect(), *what)
            }
            Across::Percentiles(nines) => {
                let named = [
                    (0.0, "0"),
                    (std::f64::consts::LOG10_2, "50"),
                    (1.0, "90"),
                    (2.0, "99"),
                    (3.0, "99.9"),
                    (4.0, "99.99"),
                ];
                let here = named.iter().filter(|(at, _)| *at <= f64::from(*nines));
                let ticks = here.map(|(at, name)| (*at, (*name).to_owned())).collect();
                (ticks, "percent of I/Os are at or below")
            }
        };
        for (value, name) in values {
            let x = at(paper.across.place(value));
            svg.push_str(&format!(
                "<path class=\"axis\" d=\"M{x} {BOTTOM}v4\"/><text class=\"tick\" text-anchor=\"middle\" x=\"{x}\" \
                 y=\"{}\">{name}</text>",
                BOTTOM + 16.0
            ));
        }
        svg.push_str(&format!(
            "<text class=\"unit\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">{unit}</text>",
            at(f64::midpoint(LEFT, paper.right)),
            HEIGHT - 4.0
        ));
    }

    fn levels(&self, paper: &Paper, svg: &mut String) {
        for level in &self.levels {
            let y = paper.up.place(self.height(level.at));
            svg.push_str(&format!(
                "<path class=\"level\" d=\"M{LEFT} {}H{}\"/><text class=\"end rim\" x=\"{}\" y=\"{}\">{}</text>",
                at(y),
                at(paper.right),
                LEFT + 4.0,
                at(y - 4.0),
                escape(&level.name)
            ));
        }
    }

    fn lines(&self, paper: &Paper, svg: &mut String) {
        let mut ends = Vec::new();
        for (style, line) in self.lines.iter().enumerate() {
            let points: Vec<(f64, f64)> = line
                .points
                .iter()
                .filter(|(x, y)| x.is_finite() && y.is_finite())
                .map(|&(x, y)| (paper.across.place(x), paper.up.place(self.height(y))))
                .collect();
            let Some(&(_, last)) = points.last() else {
                continue;
            };
            let mut d = String::new();
            for (place, (x, y)) in points.iter().enumerate() {
                d.push(if place == 0 { 'M' } else { 'L' });
                d.push_str(&format!("{} {}", at(*x), at(*y)));
            }
            svg.push_str(&format!(
                "<path class=\"line s{}\" d=\"{d}\"/>",
                style % STYLES
            ));
            // Each line's marks begin elsewhere, so that they do not cover each other where lines meet.
            let pace = (points.len() / MARKS).max(1);
            let begin = match self.across {
                Across::Places(..) => 0,
                _ => pace * (style % STYLES + 1) / (STYLES + 1),
            };
            for (x, y) in points.iter().skip(begin).step_by(pace) {
                svg.push_str(&mark(style, *x, *y));
            }
            ends.push((last, style));
        }
        for (y, style) in apart(ends, paper.top, BOTTOM) {
            let name = escape(&self.lines[style].name);
            svg.push_str(&mark(style, paper.right + 8.0, y));
            svg.push_str(&format!(
                "<text class=\"end\" x=\"{}\" y=\"{}\">{name}</text>",
                at(paper.right + 15.0),
                at(y + 4.0)
            ));
        }
    }
}

/// Where things are on the panel.
struct Paper {
    across: Scale,
    up: Scale,
    top: f64,
    right: f64,
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
            levels: vec![Level {
                name: "threshold".into(),
                at: 50.0,
            }],
        }
    }

    #[test]
    fn every_line_has_its_dashes_its_marks_and_its_name() {
        let svg = panel().svg();
        for (style, name) in ["vm1", "vm2"].iter().enumerate() {
            assert_eq!(svg.matches(&format!("class=\"line s{style}\"")).count(), 1);
            assert!(svg.matches(&format!("class=\"mark s{style}\"")).count() > 3);
            assert!(svg.contains(&format!(">{name}</text>")), "{svg}");
        }
        assert!(svg.contains(">threshold</text>"));
        assert!(svg.contains("aria-label=\"Throughput, I/Os a second\""));
    }

    #[test]
    fn names_of_lines_that_meet_stand_apart() {
        let placed = apart(vec![(50.0, 0), (51.0, 1), (52.0, 2)], 0.0, 60.0);
        let places: Vec<f64> = placed.iter().map(|(y, _)| *y).collect();
        assert_eq!(places, [34.0, 47.0, 60.0]);
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let mut panel = panel();
        panel.lines[0].points = vec![(0.0, f64::NAN), (1.0, 2.0), (f64::INFINITY, 1.0)];
        panel.lines[1].points.clear();
        let svg = panel.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(
            !svg.contains(">vm2</text>"),
            "a line of nothing has no name"
        );
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
            assert!(svg.contains(&format!(">{text}</text>")), "{text}: {svg}");
        }
        // Few points have a mark each.
        assert_eq!(svg.matches("class=\"mark s0\"").count(), 3 + 1);
    }

    #[test]
    fn phases_whose_names_have_no_room_are_numbered() {
        let mut panel = panel();
        let phase = |name: &str, from: f64| Stretch {
            name: name.into(),
            from,
            to: from + 25.0,
        };
        panel.phases = vec![phase("all", 0.0), phase("idle", 25.0)];
        assert!(panel.svg().contains(">idle</text>"));
        panel.phases[1].name = "a name that is much too long to stand above its phase".into();
        let svg = panel.svg();
        assert!(svg.contains(">2</text>") && !svg.contains("much too long"));
    }
}
