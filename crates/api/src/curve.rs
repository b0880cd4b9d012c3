//! The miss-ratio curve of a disk: the part of its accesses that a flash cache of each size would miss.
//!
//! The daemon estimates it from a sample of the disk's reads and writes, whether the disk has a cache or not.
//! `tidegate disk curve` and the dashboard show it.
//!
//! # Units
//! Every key ends in its unit; a ratio is from 0 to 1. An access is one request on one page of `page_bytes`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;

/// The miss-ratio curve of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskCurve {
    /// The disk.
    pub disk: Name,
    /// Seconds since its first access after it was attached; absent before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covers_s: Option<f64>,
    /// Accesses in that time. Old ones count less and less.
    pub accesses_total: u64,
    /// Sampled accesses that the curve is made of.
    pub sampled: u64,
    /// The part of accesses that is sampled now.
    pub sampled_ratio: f64,
    /// Bytes of the pages in use, estimated. Pages without an access for long do not count.
    pub touched_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Whether the curve has seen enough.
    pub trust: CurveTrust,
    /// The same as a sentence.
    pub advice: String,
    /// The size of the disk's flash cache; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// Reads and writes: sizes of a cache, rising from 16 MiB to that of all pages in use.
    pub points: Vec<CurvePoint>,
    /// Reads only.
    pub read_points: Vec<CurvePoint>,
    /// Writes only.
    pub write_points: Vec<CurvePoint>,
}

/// One size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// The part of accesses that it would miss.
    pub miss_ratio: f64,
}

/// Whether a curve has seen enough to be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CurveTrust {
    /// It has.
    Enough,
    /// Curves are turned off in the daemon's configuration.
    Off,
    /// Too few accesses were sampled.
    FewAccesses,
    /// More than half of the accesses were the first of their page. The curve may still fall.
    MostlyFirst,
}

impl CurveTrust {
    /// Whether the curve can be relied on.
    pub const fn is_enough(self) -> bool {
        matches!(self, CurveTrust::Enough)
    }
}

/// The smallest size in a curve that misses at most this part of the accesses.
pub fn size_for(points: &[CurvePoint], miss_ratio: f64) -> Option<u64> {
    let point = points.iter().find(|point| point.miss_ratio <= miss_ratio)?;
    Some(point.cache_bytes)
}

/// The part of accesses that a cache of so many bytes misses: that of the next smaller size in the curve.
pub fn miss_at(points: &[CurvePoint], cache_bytes: u64) -> Option<f64> {
    let below = points.partition_point(|point| point.cache_bytes <= cache_bytes);
    let point = points.get(below.checked_sub(1)?)?;
    Some(point.miss_ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_read_in_both_directions() {
        let points =
            [(16, 0.5), (32, 0.2), (64, 0.05)].map(|(cache_bytes, miss_ratio)| CurvePoint {
                cache_bytes,
                miss_ratio,
            });
        assert_eq!(size_for(&points, 0.2), Some(32));
        assert_eq!(size_for(&points, 0.1), Some(64));
        assert_eq!(size_for(&points, 0.01), None);
        assert_eq!(miss_at(&points, 15), None);
        assert_eq!(miss_at(&points, 63), Some(0.2));
        assert_eq!(miss_at(&points, 1 << 40), Some(0.05));
    }
}
