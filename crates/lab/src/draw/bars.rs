//! Bar charts: groups of bars side by side, such as target, result, and result without control.

use super::scale::{Scale, label, round_up, ticks};
use super::{HEIGHT, STYLES, WIDTH, at, escape, open, width};

/// How a bar is filled, so that it differs from its neighbours on grey paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Only its outline: what was to be.
    Outline,
    /// Full.
    Solid,
    /// Faint.
    Light,
}

/// Bars that stand together, one for each row; what was not measured is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Stands below.
    pub name: String,
    /// Their heights.
    pub bars: Vec<Option<f64>>,
}

/// A panel of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// What it shows.
    pub name: String,
    /// What goes up, with its unit.
    pub unit: String,
    /// What each bar of a group is, its fill, and its style.
    pub rows: Vec<(String, Fill, usize)>,
    /// The groups.
    pub groups: Vec<Group>,
}

const LEFT: f64 = 44.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = HEIGHT - 44.0;
const RIGHT: f64 = WIDTH - 6.0;

impl Bars {
    /// The panel.
    #[must_use]
    pub fn svg(&self) -> String {
        let values = self.groups.iter().flat_map(|group| &group.bars).flatten();
        let most = round_up(
            values
                .copied()
                .filter(|v| v.is_finite())
                .fold(0.0, f64::max),
        );
        let up = Scale::new(0.0, most, BOTTOM, TOP);
        let mut svg = String::new();
        open(&mut svg, &self.name, &self.unit);
        for value in ticks(0.0, most, 5.0) {
            let y = up.place(value);
            svg.push_str(&format!(
                "<path class=\"grid\" d=\"M{LEFT} {}H{RIGHT}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{}\" \
                 y=\"{}\">{}</text>",
                at(y),
                LEFT - 6.0,
                at(y + 4.0),
                label(value)
            ));
        }
        let room = (RIGHT - LEFT) / self.groups.len().max(1) as f64;
        for (place, group) in self.groups.iter().enumerate() {
            self.group(group, LEFT + place as f64 * room, room, &up, &mut svg);
        }
        svg.push_str(&format!(
            "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>"
        ));
        self.legend(&mut svg);
        svg.push_str("</svg>");
        svg
    }

    fn group(&self, group: &Group, from: f64, room: f64, up: &Scale, svg: &mut String) {
        let gap = (room * 0.12).clamp(2.0, 14.0);
        let wide = ((room - 2.0 * gap) / self.rows.len().max(1) as f64).min(34.0);
        let begin = from + (room - wide * self.rows.len() as f64) / 2.0;
        for (place, (bar, (_, fill, style))) in group.bars.iter().zip(&self.rows).enumerate() {
            let Some(value) = bar.filter(|value| value.is_finite()) else {
                continue;
            };
            let fill = match fill {
                Fill::Outline => "outline",
                Fill::Solid => "solid",
                Fill::Light => "light",
            };
            let (x, y) = (begin + place as f64 * wide, up.place(value));
            svg.push_str(&format!(
                "<rect class=\"bar {fill} s{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                style % STYLES,
                at(x + 1.0),
                at(y),
                at((wide - 2.0).max(1.0)),
                at(BOTTOM - y)
            ));
            let text = label(value);
            if width(&text, 9.5) < wide + 2.0 {
                svg.push_str(&format!(
                    "<text class=\"worth\" x=\"{}\" y=\"{}\">{text}</text>",
                    at(x + wide / 2.0),
                    at(y - 4.0)
                ));
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
        svg.push_str(&format!(
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">{}</text>",
            at(from + room / 2.0),
            BOTTOM + 15.0,
            escape(&name)
        ));
    }

    fn legend(&self, svg: &mut String) {
        let mut x = LEFT;
        let y = HEIGHT - 8.0;
        for (name, fill, style) in &self.rows {
            let fill = match fill {
                Fill::Outline => "outline",
                Fill::Solid => "solid",
                Fill::Light => "light",
            };
            svg.push_str(&format!(
                "<rect class=\"bar {fill} s{}\" x=\"{}\" y=\"{}\" width=\"11\" height=\"9\"/>\
                 <text class=\"end\" x=\"{}\" y=\"{y}\">{}</text>",
                style % STYLES,
                at(x),
                y - 9.0,
                at(x + 16.0),
                escape(name)
            ));
            x += 16.0 + width(name, 11.0) + 14.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_for_each_value_and_none_for_what_was_not_measured() {
        let bars = Bars {
            name: "Parts".into(),
            unit: "percent".into(),
            rows: vec![
                ("by shares".into(), Fill::Outline, 0),
                ("had".into(), Fill::Solid, 0),
            ],
            groups: vec![
                Group {
                    name: "vm1".into(),
                    bars: vec![Some(20.0), Some(20.1)],
                },
                Group {
                    name: "vm4".into(),
                    bars: vec![Some(40.0), None],
                },
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
