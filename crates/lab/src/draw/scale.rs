//! The position of a value on an axis, and the values that an axis labels.

/// An axis from one value to another, between two places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    begin: f64,
    end: f64,
}

impl Scale {
    /// From `from` at `begin` to `to` at `end`. An axis without length is given some.
    pub(super) fn new(from: f64, to: f64, begin: f64, end: f64) -> Scale {
        let to = if to > from { to } else { from + 1.0 };
        Scale {
            from,
            to,
            begin,
            end,
        }
    }

    /// The place of a value; beyond the ends it is the end's.
    pub(super) fn place(&self, value: f64) -> f64 {
        let part = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        self.begin + part * (self.end - self.begin)
    }
}

/// Round values from `from` to `to`, about `most` of them.
pub(super) fn ticks(from: f64, to: f64, most: f64) -> Vec<f64> {
    let step = step(to - from, most);
    let mut ticks = Vec::new();
    let mut place = (from / step - 1e-9).ceil();
    while place * step <= to + step * 1e-6 {
        ticks.push(place * step);
        place += 1.0;
    }
    ticks
}

/// The next round value that is not below `most`, where an axis from zero may end.
#[must_use]
pub fn round_up(most: f64) -> f64 {
    if !most.is_finite() || most <= 0.0 {
        return 1.0;
    }
    let step = step(most, 4.0);
    (most / step - 1e-9).ceil() * step
}

/// The round step, of ones, twos and fives, with which a stretch has about so many.
fn step(length: f64, most: f64) -> f64 {
    let raw = (length / most).max(1e-9);
    let unit = 10f64.powf(raw.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|step| step * unit);
    let fits = steps.into_iter().find(|step| *step >= raw * 0.999);
    fits.unwrap_or(10.0 * unit)
}

/// The values that an axis of powers names: ones, twos and fives, or only ones where it is long.
pub(super) fn log_ticks(from: f64, to: f64) -> Vec<f64> {
    let many: &[f64] = if to / from > 1e3 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let mut ticks = Vec::new();
    let mut unit = 10f64.powf(from.log10().floor());
    while unit <= to {
        let here = many.iter().map(|step| step * unit);
        ticks.extend(here.filter(|tick| *tick >= from * 0.999 && *tick <= to * 1.001));
        unit *= 10.0;
    }
    ticks
}

/// A value as an axis or a table writes it: three digits that matter, thousands parted.
#[must_use]
pub fn label(value: f64) -> String {
    digits(value, 3)
}

/// The same with a digit more, where a bar is near.
#[must_use]
pub fn fine(value: f64) -> String {
    digits(value, 4)
}

/// So many digits that matter; of what is below one, so many behind the point less one.
fn digits(value: f64, many: usize) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    // Nought has no sign.
    let value = value + 0.0;
    let size = value.abs();
    let text = match size {
        _ if size >= 1000.0 => return thousands(value),
        _ if size >= 99.95 => format!("{value:.0$}", many - 3),
        _ if size >= 9.995 => format!("{value:.0$}", many - 2),
        _ if size >= 0.0995 || size == 0.0 => format!("{value:.0$}", many - 1),
        _ => format!("{value:.many$}"),
    };
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(ticks(0.0, 900.0, 5.0), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert_eq!(ticks(0.0, 1.0, 4.0).len(), 3);
        assert_eq!(log_ticks(3.0, 60.0), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(log_ticks(1.0, 1e5).len(), 6);
        for (most, end) in [
            (1_612.0, 2_000.0),
            (100.0, 100.0),
            (0.0, 1.0),
            (f64::NAN, 1.0),
        ] {
            assert_eq!(round_up(most), end);
        }
    }

    #[test]
    fn labels_have_three_digits_and_near_a_bar_four() {
        for (value, text, exact) in [
            (0.0, "0", "0"),
            (-0.0, "0", "0"),
            (0.0123, "0.012", "0.0123"),
            (0.8763, "0.88", "0.876"),
            (0.97, "0.97", "0.97"),
            (39.176, "39.2", "39.18"),
            (123.4, "123", "123.4"),
            (1_234_567.0, "1,234,567", "1,234,567"),
            (-2_000.0, "-2,000", "-2,000"),
            (f64::NAN, "-", "-"),
        ] {
            assert_eq!((label(value), fine(value)), (text.into(), exact.into()));
        }
    }

    #[test]
    fn values_beyond_an_axis_are_at_its_end() {
        let scale = Scale::new(0.0, 10.0, 100.0, 0.0);
        assert_eq!((scale.place(5.0), scale.place(20.0)), (50.0, 0.0));
        assert_eq!(Scale::new(3.0, 3.0, 0.0, 1.0).place(3.0), 0.0);
    }
}
