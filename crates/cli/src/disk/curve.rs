//! `tidegate disk curve`: how large a flash cache a disk needs.

use clap::Args;
use tidegate_api::curve::{CurvePoint, DiskCurve, miss_at, size_for};
use tidegate_api::name::Name;
use tidegate_api::routes;

use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::{complete, figures, table};

/// Show what a flash cache of each size would miss
///
/// The curve is estimated from a sample of the disk's reads and writes since it was attached, whether it has a cache or not.
/// It describes a cache that replaces the least recently used page.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk curve db1
  tidegate disk curve db1 -o wide
  tidegate disk curve db1 -o json | jq -r '.points[] | [.cache_bytes, .miss_ratio] | @tsv'")]
pub(crate) struct Curve {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,
}

/// Miss ratios whose smallest caches are shown.
const MARKS: [f64; 6] = [0.5, 0.3, 0.2, 0.1, 0.05, 0.02];

/// Rows of the chart; the wide form has all sizes.
const ROWS: usize = 16;

/// Characters of the chart's longest bar.
const BAR: f64 = 50.0;

impl Curve {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let disk = self.disk.as_str();
        let answer = session.client()?.look(routes::DISK_CURVE, &[disk])?;
        session.console.show(&answer)
    }
}

impl Shown for DiskCurve {
    fn names(&self) -> Vec<String> {
        vec![self.disk.to_string()]
    }

    fn table(&self, detail: Detail) -> String {
        let mut pairs = vec![("disk", self.disk.to_string())];
        if let Some(covers_s) = self.covers_s {
            pairs.push(("covers", figures::seconds(whole(covers_s))));
            let accesses = figures::count(self.accesses_total as f64);
            let sampled = figures::count(self.sampled as f64);
            pairs.push(("accesses", format!("{accesses}, {sampled} of them sampled")));
            pairs.push(("in use", figures::bytes(self.touched_bytes)));
        }
        if let Some(bytes) = self.cache_bytes {
            let miss = miss_at(&self.points, bytes);
            let miss = miss.map_or_else(figures::dash, figures::percent);
            pairs.push(("cache", format!("{}, misses {miss}", figures::bytes(bytes))));
        }
        pairs.push(("trust", self.advice.clone()));
        let mut text = table::pairs(&pairs);
        if self.points.is_empty() {
            return text;
        }
        let marks = MARKS.iter().filter_map(|miss| {
            let size = size_for(&self.points, *miss)?;
            Some(vec![figures::percent(*miss), figures::bytes(size)])
        });
        let marks: Vec<_> = marks.collect();
        if !marks.is_empty() {
            text.push('\n');
            text.push_str(&table::columns(&["MISSES", "CACHE"], &marks));
        }
        text.push('\n');
        text.push_str(&chart(&self.points, detail));
        text
    }
}

/// A bar for each size, or for some sizes at equal distances and the last.
fn chart(points: &[CurvePoint], detail: Detail) -> String {
    let every = match detail {
        Detail::Wide => 1,
        Detail::Usual => points.len().div_ceil(ROWS),
    };
    let last = points.len() - 1;
    let shown = points.iter().enumerate();
    let shown = shown.filter(|(nth, _)| (last - nth).is_multiple_of(every));
    let rows = shown.map(|(_, point)| {
        let bar = usize::try_from(whole((point.miss_ratio * BAR).round()));
        let bar = "#".repeat(bar.unwrap_or(0));
        let miss = format!("{:.1}%", point.miss_ratio * 100.0);
        vec![figures::bytes(point.cache_bytes), miss, bar]
    });
    table::columns(&["CACHE", "MISSES", ""], &rows.collect::<Vec<_>>())
}

/// A number without its fraction: seconds, or the characters of a short bar.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "far below 2^53, and not negative"
)]
fn whole(number: f64) -> u64 {
    number.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::curve::CurveTrust;

    fn curve(points: &[(u64, f64)]) -> DiskCurve {
        let points = points.iter().map(|&(cache_bytes, miss_ratio)| CurvePoint {
            cache_bytes,
            miss_ratio,
        });
        DiskCurve {
            disk: "db1".parse().expect("a name"),
            covers_s: Some(3_600.0),
            accesses_total: 250_000,
            sampled: 4_200,
            sampled_ratio: 1.0 / 64.0,
            touched_bytes: 1 << 30,
            page_bytes: 65_536,
            trust: CurveTrust::Enough,
            advice: "the curve has seen enough".to_owned(),
            cache_bytes: None,
            points: points.collect(),
            read_points: Vec::new(),
            write_points: Vec::new(),
        }
    }

    #[test]
    fn a_curve_shows_the_smallest_cache_for_each_mark_and_a_chart() {
        let curve = curve(&[(16 << 20, 0.9), (256 << 20, 0.25), (1 << 30, 0.04)]);
        let text = curve.table(Detail::Usual);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.contains(&"50%     256MiB"), "{text}");
        assert!(lines.contains(&"20%     1GiB"), "{text}");
        assert!(!lines.iter().any(|line| line.starts_with("2% ")), "{text}");
        let bar = format!("256MiB  25.0%   {}", "#".repeat(13));
        assert!(lines.contains(&bar.as_str()), "{text}");
    }

    #[test]
    fn a_long_curve_is_thinned_and_keeps_its_last_size() {
        let points: Vec<_> = (1..=60)
            .map(|n| (n << 20, 1.0 - n as f64 / 100.0))
            .collect();
        let curve = curve(&points);
        let table = curve.table(Detail::Usual);
        let rows = |text: &str| text.lines().filter(|line| line.contains('#')).count();
        assert!(rows(&table) <= ROWS + 1, "{table}");
        assert!(table.contains("60MiB  40.0%"), "{table}");
        assert_eq!(rows(&curve.table(Detail::Wide)), 60);
    }

    #[test]
    fn a_disk_without_accesses_has_no_chart() {
        let mut curve = curve(&[]);
        curve.covers_s = None;
        curve.advice = "it has seen no access".to_owned();
        assert_eq!(
            curve.table(Detail::Usual),
            "disk:  db1\ntrust: it has seen no access\n"
        );
    }
}
