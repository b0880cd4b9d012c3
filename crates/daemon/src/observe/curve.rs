//! The miss-ratio curve of a disk, in the words of REST.

use tidegate_api::curve::{CurvePoint, CurveTrust, DiskCurve};
use tidegate_api::name::Name;
use tidegate_core::curve::{Curve, PAGE, Trust};
use tidegate_engine::DiskCurves;

use crate::os_error::Outcome;
use crate::services::Services;
use crate::text::float;

impl Services {
    /// The miss-ratio curve of an attached disk.
    pub(crate) fn disk_curve(&self, name: &Name) -> Outcome<DiskCurve> {
        let disk = self.disk_service.must_be_attached(name)?;
        let curves = disk.curves().map_err(|problem| {
            // The disk may have been detached between the two lookups.
            let detached = self.disk_service.must_be_attached(name).err();
            detached.unwrap_or(problem)
        })?;
        let cache = disk.cache_report().filter(|report| report.in_use);
        let cache = cache.map(|report| u64::from(report.pages) * PAGE);
        Ok(described(name, &curves, cache))
    }
}

fn described(disk: &Name, curves: &DiskCurves, cache: Option<u64>) -> DiskCurve {
    let all = &curves.all;
    let covers = all.since.map(|since| curves.now.since(since));
    DiskCurve {
        disk: disk.clone(),
        covers_s: covers.map(|covers| float(covers.as_nanos()) / 1e9),
        accesses_total: all.accesses,
        sampled: all.sampled,
        sampled_ratio: all.rate,
        touched_bytes: all.distinct_bytes,
        page_bytes: PAGE,
        trust: trust(all.trust),
        advice: advice(all),
        cache_bytes: cache,
        points: points(all),
        read_points: points(&curves.reads),
        write_points: points(&curves.writes),
    }
}

fn points(curve: &Curve) -> Vec<CurvePoint> {
    let points = curve.points.iter();
    let points = points.map(|&(cache_bytes, miss_ratio)| CurvePoint {
        cache_bytes,
        miss_ratio,
    });
    points.collect()
}

const fn trust(trust: Trust) -> CurveTrust {
    match trust {
        Trust::Enough => CurveTrust::Enough,
        Trust::Off => CurveTrust::Off,
        Trust::FewAccesses => CurveTrust::FewAccesses,
        Trust::MostlyFirst => CurveTrust::MostlyFirst,
    }
}

/// Whether to rely on a curve, as a sentence.
fn advice(curve: &Curve) -> String {
    match curve.trust {
        Trust::Enough => "the curve has seen enough accesses to be relied on".to_owned(),
        Trust::Off => {
            "curves are turned off: set curves = true under [io] and restart the daemon".to_owned()
        }
        Trust::FewAccesses if curve.since.is_none() => {
            "nothing was read or written since the disk was attached".to_owned()
        }
        Trust::FewAccesses => {
            "the curve has seen too few accesses to be relied on: wait for more".to_owned()
        }
        Trust::MostlyFirst => "more than half of the accesses were the first of their page: \
                               no cache hits them, or the curve has not seen the whole working set yet"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::{Span, Time};

    fn curves(all: Curve) -> DiskCurves {
        DiskCurves {
            now: Time::ZERO + Span::from_secs(90),
            all,
            reads: Curve::empty(),
            writes: Curve::empty(),
        }
    }

    #[test]
    fn a_curve_says_when_it_began_and_whether_it_can_be_relied_on() {
        let name: Name = "db1".parse().unwrap();
        let seen = described(
            &name,
            &curves(Curve {
                points: vec![(1 << 24, 0.5), (1 << 25, 0.25)],
                since: Some(Time::ZERO + Span::from_secs(30)),
                accesses: 10_000,
                sampled: 900,
                trust: Trust::Enough,
                ..Curve::empty()
            }),
            Some(3 << 24),
        );
        assert_eq!(seen.cache_bytes, Some(3 << 24));
        assert_eq!(seen.covers_s, Some(60.0));
        assert_eq!(seen.points[1].cache_bytes, 1 << 25);
        assert!(seen.trust.is_enough() && seen.advice.contains("relied on"));
        let nothing = described(&name, &curves(Curve::empty()), None);
        assert_eq!(nothing.trust, CurveTrust::FewAccesses);
        assert!(
            nothing.advice.starts_with("nothing was read"),
            "{nothing:?}"
        );
        let off = Curve {
            trust: Trust::Off,
            ..Curve::empty()
        };
        assert!(described(&name, &curves(off), None).advice.contains("[io]"));
    }
}
