//! What spoils a trial of the bench, which of it a case heeds, and how many trials were thrown away for what.
//!
//! A trial in which others had the CPU is nobody's. One whose CPUs were moved cannot be compared with another; but
//! where a trial is a round of turns, each had some before that and some after.
//!
//! # Units
//! - Percent of one core; times as far.

use std::fmt;

use serde::Serialize;

use crate::report::Figures;

/// What spoiled a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoiled {
    /// Other processes worked meanwhile.
    Others,
    /// The hypervisor gave the CPU to other machines.
    Steal,
    /// The CPUs were moved nearer to each other, or farther apart.
    Moved,
    /// The CPUs were far apart, where it was waited for near ones.
    Far,
}

/// What is heeded in a case, but for other processes, which spoil a trial of any.
#[derive(Clone, Copy, Debug)]
pub struct Heed {
    /// Not where a real disk is read: a hypervisor emulates it on the CPU time that it steals.
    pub steal: bool,
    /// Not where all have turns of some milliseconds in each trial: they are moved together.
    pub moved: bool,
}

/// More than this spoils a trial.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Percent of one core that others take.
    pub noise: f64,
    /// Times as far as before.
    pub moved: f64,
}

impl Heed {
    /// What spoiled a trial, if anything did.
    #[must_use]
    pub fn judge(self, figures: &Figures, most: Most) -> Option<Spoiled> {
        let noise = figures.noise;
        let found = [
            (noise.foreign_percent > most.noise, Spoiled::Others),
            (
                self.steal && noise.steal_percent > most.noise,
                Spoiled::Steal,
            ),
            (self.moved && figures.moved > most.moved, Spoiled::Moved),
        ];
        found.into_iter().find_map(|(is, what)| is.then_some(what))
    }
}

/// How many trials were thrown away for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Other processes worked.
    pub others: usize,
    /// The CPU was stolen.
    pub steal: usize,
    /// The CPUs were moved.
    pub moved: usize,
    /// They were far apart.
    pub far: usize,
}

impl Rejected {
    /// One more.
    pub fn add(&mut self, what: Spoiled) {
        let count = match what {
            Spoiled::Others => &mut self.others,
            Spoiled::Steal => &mut self.steal,
            Spoiled::Moved => &mut self.moved,
            Spoiled::Far => &mut self.far,
        };
        *count += 1;
    }

    /// All of them.
    #[must_use]
    pub fn total(self) -> usize {
        self.others + self.steal + self.moved + self.far
    }
}

impl std::ops::Add for Rejected {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            others: self.others + other.others,
            steal: self.steal + other.steal,
            moved: self.moved + other.moved,
            far: self.far + other.far,
        }
    }
}

/// `5 trials rejected: 2 for other processes, 3 for CPUs that were moved`.
impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trials = if self.total() == 1 { "trial" } else { "trials" };
        write!(f, "{} {trials} rejected", self.total())?;
        let parts = [
            (self.others, "for other processes"),
            (self.steal, "for stolen CPU time"),
            (self.moved, "for CPUs that were moved"),
            (self.far, "for CPUs that were far apart"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        for (place, (count, what)) in parts.enumerate() {
            let before = if place == 0 { ":" } else { "," };
            write!(f, "{before} {count} {what}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    const MOST: Most = Most {
        noise: 5.0,
        moved: 1.3,
    };

    fn trial(foreign_percent: f64, steal_percent: f64, moved: f64) -> Figures {
        Figures {
            noise: Noise {
                foreign_percent,
                steal_percent,
            },
            moved,
            ..Figures::default()
        }
    }

    #[test]
    fn a_case_heeds_what_it_says_and_other_processes_always() {
        for steal in [false, true] {
            for moved in [false, true] {
                let judge = |figures| Heed { steal, moved }.judge(&figures, MOST);
                assert_eq!(judge(trial(4.9, 4.9, 1.29)), None);
                assert_eq!(judge(trial(5.1, 9.0, 2.0)), Some(Spoiled::Others));
                assert_eq!(judge(trial(0.0, 5.1, 1.0)), steal.then_some(Spoiled::Steal));
                assert_eq!(
                    judge(trial(0.0, 0.0, 1.31)),
                    moved.then_some(Spoiled::Moved)
                );
            }
        }
    }

    #[test]
    fn it_is_told_how_many_were_thrown_away_for_what() {
        let mut rejected = Rejected::default();
        assert_eq!(rejected.to_string(), "0 trials rejected");
        rejected.add(Spoiled::Moved);
        assert_eq!(
            rejected.to_string(),
            "1 trial rejected: 1 for CPUs that were moved"
        );
        for what in [Spoiled::Others, Spoiled::Steal, Spoiled::Far] {
            rejected.add(what);
        }
        let twice = rejected + rejected;
        assert_eq!((rejected.total(), twice.total()), (4, 8));
        assert_eq!(
            twice.to_string(),
            "8 trials rejected: 2 for other processes, 2 for stolen CPU time, 2 for CPUs that were moved, \
             2 for CPUs that were far apart"
        );
    }
}
