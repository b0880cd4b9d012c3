//! Choices: what decides each step of a run.
//!
//! A run requests for a number below a bound wherever more than one thing may happen. [`AllChoices`] counts through all
//! answers, [`RandomChoices`] draws them, [`RecordedChoices`] repeats recorded ones.

/// Decides what happens next.
pub trait Choose {
    /// A number below `of`, which is at least 1.
    fn choose(&mut self, of: u32) -> u32;

    /// Whether something happens that ends a run: one way of two, but seldom where choices are drawn.
    fn seldom(&mut self) -> bool {
        self.choose(2) == 1
    }

    /// Whether a recorded run has come to its end.
    fn is_over(&self) -> bool {
        false
    }
}

/// Goes through all runs, in order: each run repeats the choices of the one before except the last that can still grow.
#[derive(Default)]
pub struct AllChoices {
    /// Each choice of this run, and how many answers it had.
    digits: Vec<(u32, u32)>,
    at: usize,
}

impl AllChoices {
    /// Prepares the next run; false after the last one.
    pub fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((digit, of)) = self.digits.pop() {
            if digit + 1 < of {
                self.digits.push((digit + 1, of));
                return true;
            }
        }
        false
    }

    /// The choices of this run so far.
    pub fn choices(&self) -> Vec<u32> {
        self.digits.iter().map(|(digit, _)| *digit).collect()
    }
}

impl Choose for AllChoices {
    fn choose(&mut self, of: u32) -> u32 {
        if self.at == self.digits.len() {
            self.digits.push((0, of));
        }
        let (digit, bound) = self.digits[self.at];
        assert_eq!(bound, of, "a run is decided by its choices alone");
        self.at += 1;
        digit
    }
}

/// Random choices from a seed, recorded.
///
/// # Source
/// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
pub struct RandomChoices {
    state: u64,
    /// All choices so far.
    pub record: Vec<u32>,
}

impl RandomChoices {
    /// From a seed.
    pub fn new(seed: u64) -> RandomChoices {
        RandomChoices {
            state: seed,
            record: Vec::new(),
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Choose for RandomChoices {
    fn choose(&mut self, of: u32) -> u32 {
        let below = self.next() % u64::from(of);
        let choice = u32::try_from(below).expect("it is below a 32-bit number");
        self.record.push(choice);
        choice
    }

    fn seldom(&mut self) -> bool {
        let choice = self.next().is_multiple_of(SELDOM);
        self.record.push(u32::from(choice));
        choice
    }
}

/// One in so many: about as many steps has a short workload.
const SELDOM: u64 = 24;

/// Recorded choices. A choice that does not fit is reduced to the bound, so that a shortened record is a run too.
pub struct RecordedChoices<'a> {
    choices: core::slice::Iter<'a, u32>,
}

impl<'a> RecordedChoices<'a> {
    /// Repeats these.
    pub fn new(choices: &'a [u32]) -> RecordedChoices<'a> {
        RecordedChoices {
            choices: choices.iter(),
        }
    }
}

impl Choose for RecordedChoices<'_> {
    fn choose(&mut self, of: u32) -> u32 {
        self.choices.next().map_or(0, |choice| choice % of)
    }

    fn is_over(&self) -> bool {
        self.choices.as_slice().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odometer_visits_every_run_once() {
        let mut all = AllChoices::default();
        let mut runs = Vec::new();
        loop {
            // A run whose second choice depends on the first.
            let first = all.choose(3);
            let second = (first != 1).then(|| all.choose(2));
            runs.push((first, second));
            if !all.advance() {
                break;
            }
        }
        let all = [
            (0, Some(0)),
            (0, Some(1)),
            (1, None),
            (2, Some(0)),
            (2, Some(1)),
        ];
        assert_eq!(runs, all);
    }
}
