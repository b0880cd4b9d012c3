//! Charts as SVG text: lines over time, bars side by side, latencies by percentile.
//!
//! A report puts them into its page, with [`STYLE`] once for all of them. One chart is one panel. Two panels fit side by side
//! on a desktop screen, and one fits on a phone.
//!
//! # Always true
//! - Nothing is shown by colour alone: a line has its dashes, its marks and its name at its end; bars differ in their fill.
//! - Values that are not numbers are left out and move no axis.
//!
//! # Units
//! Units of the view box; one is about a pixel.

mod bars;
mod lines;
mod scale;

pub use bars::{Bars, Fill, Group};
pub use lines::{Across, Line, Lines, Up};
pub use scale::{fine, label, round_up};

/// The width of a panel.
pub const WIDTH: f64 = 440.0;
/// Its height.
pub const HEIGHT: f64 = 272.0;
/// So many lines can be distinguished.
pub const STYLES: usize = 6;

/// Panels that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// What it is about.
    pub name: String,
    /// What is to be seen, and how to read it.
    pub caption: String,
    /// Its panels.
    pub panels: Vec<String>,
}

/// What every chart is drawn with. Colours can be distinguished without seeing red or green, and have a contrast of
/// three and more on their ground, by day and by night; on paper the dashes and marks remain.
pub const STYLE: &str = include_str!("draw/style.css");

/// Text as it may stand in HTML and SVG, also between quotes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A coordinate: a tenth of a unit is finer than any screen.
fn at(place: f64) -> String {
    let text = format!("{place:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// About how wide a text is, of letters so high. Fonts differ; charts leave room.
fn width(text: &str, height: f64) -> f64 {
    text.chars().count() as f64 * height * 0.56
}

/// Where the vertical axis is.
const LEFT: f64 = 44.0;

/// A panel that is being drawn.
struct Panel(String);

impl Panel {
    /// A panel with its name and unit, which screen readers have too.
    fn new(name: &str, unit: &str) -> Panel {
        let (label, what) = (escape(name), escape(unit));
        let mut panel = Panel(format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}, {what}\">"
        ));
        panel.text("name", "start", (0.0, 13.0), name);
        panel.text("unit", "start", (0.0, 30.0), unit);
        panel
    }

    fn text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        let (x, y, text) = (at(x), at(y), escape(text));
        self.0 += &format!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x}\" y=\"{y}\">{text}</text>"
        );
    }

    fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let [x, y, width, height] = [x, y, width, height].map(at);
        self.0 += &format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
        );
    }

    fn path(&mut self, class: &str, d: &str) {
        self.0 += &format!("<path class=\"{class}\" d=\"{d}\"/>");
    }

    /// A line from the vertical axis to the right.
    fn rule(&mut self, class: &str, y: f64, right: f64) {
        self.path(class, &format!("M{} {}H{}", at(LEFT), at(y), at(right)));
    }

    /// The vertical axis: its labels, and a line at each.
    fn upwards(&mut self, values: &[f64], heights: &[f64], (bottom, right): (f64, f64)) {
        for (value, y) in values.iter().zip(heights) {
            self.rule("grid", *y, right);
            self.text("tick", "end", (LEFT - 6.0, y + 4.0), &label(*value));
        }
        self.rule("axis", bottom, right);
    }

    /// The mark of a style, about a point.
    fn mark(&mut self, style: usize, x: f64, y: f64) {
        let style = style % STYLES;
        let [left, right, top, bottom] = [x - 3.2, x + 3.2, y - 3.2, y + 3.2].map(at);
        let (x, y) = (at(x), at(y));
        let d = match style {
            0 => format!("M{left} {y}a3 3 0 1 0 6.4 0a3 3 0 1 0 -6.4 0Z"),
            1 => format!("M{left} {top}H{right}V{bottom}H{left}Z"),
            2 => format!("M{x} {top}L{right} {bottom}H{left}Z"),
            3 => format!("M{x} {top}L{right} {y}L{x} {bottom}L{left} {y}Z"),
            4 => format!("M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}"),
            _ => format!("M{x} {bottom}L{right} {top}H{left}Z"),
        };
        self.path(&format!("mark s{style}"), &d);
    }

    fn svg(self) -> String {
        self.0 + "</svg>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(
            escape("<a href=\"x\">&</a>"),
            "&lt;a href=&quot;x&quot;&gt;&amp;&lt;/a&gt;"
        );
    }

    #[test]
    fn each_style_has_a_mark_of_its_own() {
        let mark = |style| {
            let mut panel = Panel(String::new());
            panel.mark(style, 9.0, 9.0);
            panel.0
        };
        let marks: std::collections::BTreeSet<String> = (0..STYLES).map(mark).collect();
        assert_eq!(marks.len(), STYLES);
        assert_eq!(mark(STYLES), mark(0));
    }
}
