//! Numbers for people: sizes, rates, counts and times, rounded.
//!
//! Tables and `top` show these. They are not exact and do not parse back: programs read JSON, where numbers are whole.
//!
//! # Units
//! Bytes in, `1.5GiB` out; microseconds in, `1.25ms` out; a rate is `MB/s` of 1,000,000 bytes.

const BINARY: [(f64, &str); 7] = [
    (1.0, "B"),
    (1024.0, "KiB"),
    (1_048_576.0, "MiB"),
    (1_073_741_824.0, "GiB"),
    (1_099_511_627_776.0, "TiB"),
    (1_125_899_906_842_624.0, "PiB"),
    (1_152_921_504_606_846_976.0, "EiB"),
];

const COUNTS: [(f64, &str); 4] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")];

/// Bytes as `10GiB`, `1.5GiB`, `0B`.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(to_f64(bytes), &BINARY, 1024.0)
}

/// Bytes that may be unknown.
pub(crate) fn bytes_or_dash(known: Option<u64>) -> String {
    known.map_or_else(dash, bytes)
}

/// Bytes a second as a bare number of MB/s: the column's head says the unit.
pub(crate) fn megabytes(bytes_per_s: f64) -> String {
    three_digits(bytes_per_s / 1e6)
}

/// A count or a rate: `17`, `9350`, `444k`, `1.11M`.
pub(crate) fn count(value: f64) -> String {
    // Below a hundred thousand people read digits faster than a unit.
    if value < 99_999.5 {
        if value > 0.0 && value < 9.95 && value.fract() != 0.0 {
            return format!("{value:.1}");
        }
        return format!("{value:.0}");
    }
    scaled(value, &COUNTS, 1000.0)
}

/// A time given in microseconds: `85us`, `1.25ms`, `2.1s`; nothing measured is `-`.
pub(crate) fn micros(us: f64) -> String {
    if us <= 0.0 {
        dash()
    } else if us < 999.5 {
        format!("{}us", three_digits(us))
    } else if us < 999_500.0 {
        format!("{}ms", three_digits(us / 1e3))
    } else {
        format!("{}s", three_digits(us / 1e6))
    }
}

/// A share from 0 to 1, as per cent.
pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.0}%", ratio * 100.0)
}

/// Seconds as `12s`, `3min 5s`, `4h 2min`, `3d 4h`.
pub(crate) fn seconds(seconds: u64) -> String {
    let pair = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit} {small}{small_unit}"),
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => pair(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => pair(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// What stands where there is nothing to tell.
pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// `yes` or `no`.
pub(crate) fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// As a floating point number, for ratios and for show; exact up to 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "figures are rounded to three digits anyway"
)]
pub(crate) fn to_f64(value: u64) -> f64 {
    value as f64
}

fn scaled(value: f64, units: &[(f64, &str)], step: f64) -> String {
    let fits = units.iter().rev().find(|(scale, _)| value >= *scale);
    let (mut scale, mut unit) = fits.copied().unwrap_or(units[0]);
    // 1023.9MiB is shown as 1GiB, not as 1024MiB.
    if value / scale >= step - 0.5
        && let Some(next) = units.iter().find(|(next, _)| *next > scale)
    {
        (scale, unit) = *next;
    }
    format!("{}{unit}", three_digits(value / scale))
}

/// Three digits that matter, without noughts behind the point.
fn three_digits(value: f64) -> String {
    let text = match value {
        v if v >= 99.95 => return format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        assert_eq!(bytes(0), "0B");
        assert_eq!(bytes(512), "512B");
        assert_eq!(bytes(10 << 30), "10GiB");
        assert_eq!(bytes(3 << 29), "1.5GiB");
        assert_eq!(bytes((1 << 30) - 1), "1GiB");
        assert_eq!(bytes(1000 << 20), "1000MiB");
        assert_eq!(bytes(u64::MAX), "16EiB");
    }

    #[test]
    fn counts_stay_digits_until_they_are_long() {
        assert_eq!(count(0.0), "0");
        assert_eq!(count(0.25), "0.2");
        assert_eq!(count(99_999.0), "99999");
        assert_eq!(count(444_321.0), "444k");
        assert_eq!(count(1_110_000.0), "1.11M");
    }

    #[test]
    fn times_change_their_unit_where_three_digits_end() {
        assert_eq!(micros(0.0), "-");
        assert_eq!(micros(0.5), "0.5us");
        assert_eq!(micros(85.2), "85.2us");
        assert_eq!(micros(999.4), "999us");
        assert_eq!(micros(999.6), "1ms");
        assert_eq!(micros(1250.0), "1.25ms");
        assert_eq!(micros(2_100_000.0), "2.1s");
    }

    #[test]
    fn long_times_have_two_units_at_most() {
        assert_eq!(seconds(12), "12s");
        assert_eq!(seconds(185), "3min 5s");
        assert_eq!(seconds(7200), "2h");
        assert_eq!(seconds(3 * 86_400 + 4 * 3600 + 59), "3d 4h");
    }

    #[test]
    fn rates_are_in_millions_of_bytes() {
        assert_eq!(megabytes(0.0), "0");
        assert_eq!(megabytes(1_500_000.0), "1.5");
        assert_eq!(megabytes(12_345_678.0), "12.3");
        assert_eq!(percent(0.256), "26%");
    }
}
