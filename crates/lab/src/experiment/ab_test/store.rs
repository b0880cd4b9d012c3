//! A stored block: each contestant's trial at one point of a sweep, as a file.
//!
//! # Units
//! As the names say; processor time in percent of one processor.

use serde::{Deserialize, Serialize};

use super::{Contestant, Measure};
use crate::experiment::store::{Busy, Head};

/// A block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// What every stored run begins with.
    #[serde(flatten)]
    pub head: Head,
    /// The sweep.
    pub sweep: String,
    /// The point.
    pub point: String,
    /// The trials of the contestants.
    pub trials: Vec<Trial>,
    /// Contestants that cannot take part on this machine.
    pub absent: Vec<Absent>,
    /// Contestants whose trial failed. A resumed run repeats the block.
    #[serde(default)]
    pub failed: Vec<Absent>,
}

/// A contestant's trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Of which contestant.
    pub contestant: String,
    /// Requests a second.
    pub iops: f64,
    /// Bytes of each.
    pub size: u32,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The server's processor time.
    pub server_percent: f64,
    /// The client's processor time; none where that was not measured.
    pub client_percent: Option<f64>,
    /// The fastest VM's IOPS by the slowest one's.
    pub unfairness: f64,
    /// The server's memory at the end.
    pub resident_bytes: u64,
    /// Whether a processor was emulated: the figures are of the emulation then.
    pub emulated: bool,
    /// Whether idle processors were kept awake meanwhile.
    #[serde(default)]
    pub awake: bool,
    /// What disturbed it.
    pub noise: Busy,
    /// Whether that is little enough to be judged.
    pub quiet: bool,
    /// What disturbed earlier attempts, which were discarded.
    pub rejected: Vec<Busy>,
}

/// A contestant that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// Its name.
    pub contestant: String,
    /// The reason.
    pub why: String,
}

impl Absent {
    /// Of a contestant.
    pub(in crate::experiment) fn of(contestant: &Contestant, why: String) -> Absent {
        Absent {
            contestant: contestant.name.clone(),
            why,
        }
    }
}

impl Trial {
    /// A figure of it.
    #[must_use]
    pub fn figure(&self, what: Measure) -> f64 {
        match what {
            Measure::Iops => self.iops,
            Measure::Bandwidth => self.iops * f64::from(self.size) / 1e6,
            Measure::Latency => self.p50_us,
            Measure::Cpu => self.per_kiops(self.server_percent),
        }
    }

    /// The server's and the client's processor time by I/O, where both were measured.
    #[must_use]
    pub fn cpu_of_both(&self) -> Option<f64> {
        let client = self.client_percent?;
        Some(self.per_kiops(self.server_percent + client))
    }

    fn per_kiops(&self, percent: f64) -> f64 {
        percent / (self.iops / 1_000.0)
    }
}

impl Block {
    /// A contestant's trial.
    #[must_use]
    pub fn trial(&self, contestant: &str) -> Option<&Trial> {
        let mut trials = self.trials.iter();
        trials.find(|trial| trial.contestant == contestant)
    }

    /// Trials that failed, and why; none where none did.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let failed = self.failed.iter();
        let each: Vec<String> = failed
            .map(|failed| format!("{}: {}", failed.contestant, failed.why))
            .collect();
        (!each.is_empty()).then(|| {
            let piece = &self.head.piece;
            let (on, words, number) = (piece.on, &piece.words, piece.repeat);
            format!("{on}, {words}, block {number}: {}", each.join("; "))
        })
    }

    /// The trials as a table, a line each.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "sweep,point,round,contestant,iops,mb_per_s,p50_us,p99_us,server_percent_per_kiops,server_percent,\
             client_percent,foreign_percent,steal_percent,quiet,rejected\n",
        );
        for trial in &self.trials {
            let client = trial
                .client_percent
                .map_or(String::new(), |client| format!("{client:.1}"));
            text += &format!(
                "{},{},{},{},{:.0},{:.2},{:.1},{:.1},{:.5},{:.1},{client},{:.1},{:.1},{},{}\n",
                quoted(&self.sweep),
                quoted(&self.point),
                self.head.piece.repeat,
                quoted(&trial.contestant),
                trial.iops,
                trial.figure(Measure::Bandwidth),
                trial.p50_us,
                trial.p99_us,
                trial.figure(Measure::Cpu),
                trial.server_percent,
                trial.noise.foreign_percent,
                trial.noise.steal_percent,
                trial.quiet,
                trial.rejected.len()
            );
        }
        text
    }
}

/// A cell that may have commas in it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_units_that_they_are_published_in() {
        let trial = Trial {
            iops: 50_000.0,
            size: 4096,
            server_percent: 25.0,
            client_percent: Some(75.0),
            ..Trial::default()
        };
        assert_eq!(trial.figure(Measure::Bandwidth), 204.8);
        assert_eq!(trial.figure(Measure::Cpu), 0.5);
        assert_eq!(trial.cpu_of_both(), Some(2.0));
    }

    #[test]
    fn a_cell_may_have_commas_and_quotes() {
        assert_eq!(quoted("reads, 8 \" 16"), "\"reads, 8 \"\" 16\"");
    }
}
