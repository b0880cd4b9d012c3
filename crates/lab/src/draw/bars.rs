//! Bar charts: groups of bars side by side, such as target, result, and result without control.

use super::scale::{Scale, label, round_up, ticks};
use super::{HEIGHT, LEFT, Panel, STYLES, WIDTH, width};

/// How a bar is filled, so that it differs from its neighbours on grey paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Only its outline: the target.
    Outline,
    /// Full.
    Solid,
    /// Faint.
    Light,
}

/// Bars side by side, one for each row; none if it was not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The label below.
    pub name: String,
    /// Their heights.
    pub bars: Vec<Option<f64>>,
}

/// A panel of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// What it shows.
    pub name: String,
    /// The vertical axis, with its unit.
    pub unit: String,
    /// The name, fill and style of each bar of a group.
    pub rows: Vec<(String, Fill, usize)>,
    /// The groups.
    pub groups: Vec<Group>,
}

const TOP: f64 = 50.0;
const BOTTOM: f64 = HEIGHT - 44.0;
const RIGHT: f64 = WIDTH - 6.0;

impl Bars {
    /// The panel.
    #[must_use]
    pub fn svg(&self) -> String {
        let values = self.groups.iter().flat_map(|group| &group.bars).flatten();
        let finite = values.copied().filter(|value| value.is_finite());
        let most = round_up(finite.fold(0.0, f64::max));
        let up = Scale::new(0.0, most, BOTTOM, TOP);
        let mut panel = Panel::new(&self.name, &self.unit);
        let values = ticks(0.0, most, 5.0);
        let heights: Vec<f64> = values.iter().map(|value| up.place(*value)).collect();
        panel.upwards(&values, &heights, (BOTTOM, RIGHT));
        let room = (RIGHT - LEFT) / self.groups.len().max(1) as f64;
        for (place, group) in self.groups.iter().enumerate() {
            self.group(group, LEFT + place as f64 * room, room, &up, &mut panel);
        }
        let (mut x, y) = (LEFT, HEIGHT - 8.0);
        for (name, fill, style) in &self.rows {
            panel.rect(&class(*fill, *style), (x, y - 9.0), (11.0, 9.0));
            panel.text("end", "start", (x + 16.0, y), name);
            x += 16.0 + width(name, 11.0) + 14.0;
        }
        panel.svg()
    }

    fn group(&self, group: &Group, from: f64, room: f64, up: &Scale, panel: &mut Panel) {
        let gap = (room * 0.12).clamp(2.0, 14.0);
        let wide = ((room - 2.0 * gap) / self.rows.len().max(1) as f64).min(34.0);
        let begin = from + (room - wide * self.rows.len() as f64) / 2.0;
        for (place, (bar, (_, fill, style))) in group.bars.iter().zip(&self.rows).enumerate() {
            let Some(value) = bar.filter(|value| value.is_finite()) else {
                continue;
            };
            let (x, y) = (begin + place as f64 * wide, up.place(value));
            let size = ((wide - 2.0).max(1.0), BOTTOM - y);
            panel.rect(&class(*fill, *style), (x + 1.0, y), size);
            let text = label(value);
            if width(&text, 9.5) < wide + 2.0 {
                panel.text("worth", "middle", (x + wide / 2.0, y - 4.0), &text);
            }
        }
        let mut name = group.name.clone();
        while width(&name, 11.0) > room && name.chars().count() > 2 {
            name.pop();
            if width(&name, 11.0) + 6.0 <= room {
                name.push('\u{2026}');
                break;
            }
        }
        panel.text("tick", "middle", (from + room / 2.0, BOTTOM + 15.0), &name);
    }
}

fn class(fill: Fill, style: usize) -> String {
    let fill = match fill {
        Fill::Outline => "outline",
        Fill::Solid => "solid",
        Fill::Light => "light",
    };
    format!("bar {fill} s{}", style % STYLES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_for_each_value_and_none_for_what_was_not_measured() {
        let group = |name: &str, bars: [Option<f64>; 2]| Group {
            name: name.into(),
            bars: bars.into(),
        };
        let bars = Bars {
            name: "Parts".into(),
            unit: "percent".into(),
            rows: vec![
                ("by shares".into(), Fill::Outline, 0),
                ("had".into(), Fill::Solid, 0),
            ],
            groups: vec![
                group("vm1", [Some(20.0), Some(20.1)]),
                group("vm4", [Some(40.0), None]),
            ],
        };
        let svg = bars.svg();
        // One of each in the legend.
        assert_eq!(svg.matches("bar outline").count(), 3);
        assert_eq!(svg.matches("bar solid").count(), 2);
        for text in ["vm1", "vm4", "by shares", "had", "20.1"] {
            assert!(svg.contains(&format!(">{text}</text>")), "{text}");
        }
    }
}
