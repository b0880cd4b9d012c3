//! The cost model: the device cost of a request, and its latency normalised to a small request.
//!
//! Shares and windows count device time, so a disk with large requests does not get more of the device than one with
//! small requests. The governor learns the numbers; schedulers only apply them.
//!
//! # Units
//! 1/256 of a 4 KiB random read. Byte costs are per MiB, because one byte costs far less. All values are rounded down,
//! but never to zero.

use super::Cost;
use super::policy::units;
use crate::request::Op;
use crate::units::Span;

/// From this length on, zeroing and discarding cost no more: a datastore frees the space and does not write it. Origin:
/// chosen; no measurement.
const METADATA_MAX: u64 = 1 << 20;

/// The longest request that is charged in full; a greater length would overflow.
const LEN_MAX: u64 = 1 << 32;

const MIB: u64 = 1 << 20;

/// The request size to which latencies are normalised.
const SMALL: u64 = 4_096;

/// The cost of requests on one datastore: `base + len * per byte`, by direction and by whether the request is
/// sequential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// The base of a random read.
    pub read_base: u64,
    /// The base of a sequential read.
    pub read_sequential: u64,
    /// The cost of each MiB read.
    pub read_per_mib: u64,
    /// The base of a random write.
    pub write_base: u64,
    /// The base of a sequential write.
    pub write_sequential: u64,
    /// The cost of each MiB written.
    pub write_per_mib: u64,
    /// Transfer time of a MiB read, in nanoseconds.
    pub read_ns_per_mib: u64,
    /// Transfer time of a MiB written, in nanoseconds.
    pub write_ns_per_mib: u64,
}

impl CostModel {
    /// The initial model of a device without moving parts: a random access costs as much as 64 KiB, a write half more.
    /// Origin: chosen; no measurement.
    pub const fn flash() -> CostModel {
        CostModel {
            read_base: 256,
            read_sequential: 256,
            read_per_mib: 16 * 256,
            write_base: 384,
            write_sequential: 384,
            write_per_mib: 16 * 256,
            read_ns_per_mib: 1_000_000,
            write_ns_per_mib: 1_000_000,
        }
    }

    /// The initial model of a device that seeks: a random access costs as much as 300 kB, a sequential one a fifth of
    /// that; 150 MiB/s. Origin of the 300 kB: mClock (OSDI 2010); the rest is chosen.
    pub const fn rotational() -> CostModel {
        CostModel {
            read_base: 256,
            read_sequential: 51,
            read_per_mib: 895,
            write_base: 256,
            write_sequential: 51,
            write_per_mib: 895,
            read_ns_per_mib: 6_666_667,
            write_ns_per_mib: 6_666_667,
        }
    }

    /// The initial model of a datastore of unknown kind: between the two others. Origin: chosen; no measurement.
    pub const fn unknown() -> CostModel {
        CostModel {
            read_base: 256,
            read_sequential: 128,
            read_per_mib: 8 * 256,
            write_base: 320,
            write_sequential: 160,
            write_per_mib: 8 * 256,
            read_ns_per_mib: 3_000_000,
            write_ns_per_mib: 3_000_000,
        }
    }

    /// The cost of this request. `sequential`: it begins where the disk's last one ended.
    #[inline]
    pub fn cost(&self, op: Op, len: u64, sequential: bool) -> Cost {
        let (base, near, per_mib, len) = match op {
            Op::Read | Op::Prefetch => (
                self.read_base,
                self.read_sequential,
                self.read_per_mib,
                len.min(LEN_MAX),
            ),
            Op::Write => (
                self.write_base,
                self.write_sequential,
                self.write_per_mib,
                len.min(LEN_MAX),
            ),
            Op::WriteZeroes => (
                self.write_base,
                self.write_sequential,
                self.write_per_mib,
                len.min(METADATA_MAX),
            ),
            Op::Discard | Op::Flush => (self.write_base, self.write_base, 0, 0),
            Op::Extents => (self.read_base, self.read_base, 0, 0),
        };
        let base = if sequential { near } else { base };
        Cost(
            base.saturating_add(len.saturating_mul(per_mib) / MIB)
                .clamp(1, u64::from(u32::MAX)),
        )
    }

    /// The latency minus the transfer time of the bytes beyond 4 KiB. Queueing does not grow with a request's own size, so
    /// a time is subtracted instead of a factor applied.
    #[inline]
    pub fn normalise(&self, op: Op, len: u64, latency: Span) -> Span {
        let per_mib = match op {
            Op::Read | Op::Prefetch => self.read_ns_per_mib,
            Op::Write => self.write_ns_per_mib,
            Op::WriteZeroes | Op::Discard | Op::Flush | Op::Extents => return latency,
        };
        let len = len.clamp(SMALL, LEN_MAX) - SMALL;
        let transfer = len.saturating_mul(per_mib) / MIB;
        Span::from_nanos(latency.as_nanos().saturating_sub(transfer))
    }
}

/// The costs of ordinary requests, precomputed for each I/O of an uncongested datastore.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    by_op: [Price; Op::ALL.len()],
}

/// The cost of an ordinary request of one operation. No value can make a cost overflow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Price {
    /// Shorter requests are ordinary: they count one unit, and their cost needs no bounds check.
    below: u64,
    base: u64,
    near: u64,
    per_mib: u64,
}

impl Prices {
    /// The costs of a model and a unit size. Only reads and writes can be ordinary.
    pub(super) fn of(model: &CostModel, io_unit: u32) -> Prices {
        let mut by_op = [Price::default(); Op::ALL.len()];
        let below = u64::from(io_unit).min(MIB) + 1;
        let most = 1 << 30;
        by_op[Op::Read.index()] = Price {
            below,
            base: model.read_base.clamp(1, most),
            near: model.read_sequential.clamp(1, most),
            per_mib: model.read_per_mib.min(most),
        };
        by_op[Op::Write.index()] = Price {
            below,
            base: model.write_base.clamp(1, most),
            near: model.write_sequential.clamp(1, most),
            per_mib: model.write_per_mib.min(most),
        };
        debug_assert!(units(below - 1, io_unit) == 1);
        Prices { by_op }
    }

    /// The cost of the request, if it is an ordinary one.
    #[inline]
    pub(super) fn ordinary(&self, op: Op, len: u64) -> Option<&Price> {
        let price = &self.by_op[op.index()];
        (len < price.below).then_some(price)
    }
}

impl Price {
    /// The cost of an ordinary request of this length.
    #[inline]
    pub(super) fn cost(&self, len: u64, sequential: bool) -> u64 {
        let base = if sequential { self.near } else { self.base };
        base + ((len * self.per_mib) >> 20)
    }
}

/// The bytes that a request counts against bandwidth limits and in units. Zeroing is cheap for its length, so it counts
/// as one MiB at most.
#[inline]
pub(super) fn counted_len(op: Op, len: u64) -> u64 {
    match op {
        Op::WriteZeroes => len.min(METADATA_MAX),
        _ => len.min(LEN_MAX),
    }
}

/// Whether a request is never queued. A queued flush would delay every write after it; the other operations are cheap.
/// The request is charged nevertheless.
#[inline]
pub(super) const fn never_held(op: Op) -> bool {
    matches!(op, Op::Flush | Op::Discard | Op::Extents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_read_costs_its_place_and_its_bytes() {
        let flash = CostModel::flash();
        assert_eq!(flash.cost(Op::Read, 64 << 10, false), Cost(512));
        assert_eq!(flash.cost(Op::Write, 64 << 10, false), Cost(384 + 256));
        let disk = CostModel::rotational();
        assert!(disk.cost(Op::Read, 4_096, true) < disk.cost(Op::Read, 4_096, false));
    }

    #[test]
    fn no_length_overflows_and_nothing_is_free() {
        for model in [
            CostModel::flash(),
            CostModel::rotational(),
            CostModel::unknown(),
        ] {
            for op in Op::ALL {
                assert!(model.cost(op, u64::MAX, false).0 >= 1);
                assert!(model.cost(op, 0, true).0 >= 1);
            }
        }
        let zero = CostModel {
            read_base: 0,
            read_per_mib: u64::MAX,
            ..CostModel::flash()
        };
        assert_eq!(zero.cost(Op::Read, 0, false), Cost(1));
        assert!(zero.cost(Op::Read, u64::MAX, false).0 >= 1);
    }

    #[test]
    fn an_ordinary_request_costs_what_the_model_says() {
        for model in [
            CostModel::flash(),
            CostModel::rotational(),
            CostModel::unknown(),
        ] {
            let prices = Prices::of(&model, 32_768);
            for op in Op::ALL {
                for len in [0, 512, 4_096, 32_767, 32_768, 32_769, 1 << 20, u64::MAX] {
                    let price = prices.ordinary(op, len);
                    let ordinary = matches!(op, Op::Read | Op::Write) && len <= 32_768;
                    assert_eq!(price.is_some(), ordinary, "{op:?} {len}");
                    for sequential in [false, true] {
                        let cost = price.map(|price| Cost(price.cost(len, sequential)));
                        assert!(cost.is_none_or(|cost| cost == model.cost(op, len, sequential)));
                    }
                }
            }
        }
    }

    #[test]
    fn normalising_subtracts_at_most_the_whole_latency() {
        let flash = CostModel::flash();
        let latency = Span::from_millis(3);
        assert_eq!(flash.normalise(Op::Read, 4_096, latency), latency);
        let large = flash.normalise(Op::Read, (1 << 20) + 4_096, latency);
        assert_eq!(large, Span::from_millis(2));
        assert_eq!(
            flash.normalise(Op::Write, 1 << 30, Span::from_micros(1)),
            Span::ZERO
        );
        assert_eq!(flash.normalise(Op::Flush, 1 << 30, latency), latency);
    }
}
