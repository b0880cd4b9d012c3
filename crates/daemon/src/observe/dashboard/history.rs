//! The last five minutes of a disk or a datastore, from the monitor's timelines, for a page that is just being opened.
//!
//! It queries nothing. An idle time of a disk is one long stretch instead of many short ones.

use serde::Serialize;
use tidegate_api::name::Name;

use super::host_sample::{Did, now_ms, us};
use crate::clock;
use crate::observe::explain::Facts;
use crate::observe::explain::timeline::{Beat, Stretch, Timeline};
use crate::observe::monitor::Monitor;
use crate::os_error::Outcome;

/// The columns of a row of `did`.
pub(crate) const PAST: [&str; 3] = ["at", "covers_s", "did"];

/// The columns of a row of `level`.
pub(crate) const LEVEL: [&str; 4] = ["at", "engaged", "latency_us", "threshold_us"];

/// The history of a disk or a datastore, oldest first.
#[derive(Default, Serialize)]
pub(crate) struct History {
    did: Vec<DidRow>,
    level: Vec<LevelRow>,
}

#[derive(Serialize)]
struct DidRow(u64, f64, Did);

#[derive(Serialize)]
struct LevelRow(u64, bool, f64, Option<f64>);

impl Monitor {
    /// The activity of a disk.
    pub(crate) fn history_of_disk(&self, name: &Name) -> Outcome<History> {
        let live = self.services().disk_service.must_be_attached(name)?;
        Ok(self
            .timeline(&live)
            .map_or_else(History::default, |timeline| History {
                did: did(&timeline),
                level: levels(&timeline),
            }))
    }

    /// The state of a datastore. Each of its disks has recorded it; the longest timeline is used.
    pub(crate) fn history_of_datastore(&self, name: &Name) -> History {
        let live = self.services().disk_service.live().all();
        let here = live.iter().filter(|live| live.datastore() == name);
        let timelines = here.filter_map(|live| self.timeline(live));
        let longest = timelines.max_by_key(|timeline| timeline.beats().len());
        History {
            did: Vec::new(),
            level: longest.map_or_else(Vec::new, |timeline| levels(&timeline)),
        }
    }
}

fn did(timeline: &Timeline) -> Vec<DidRow> {
    let beats: Vec<Beat> = timeline.beats().copied().collect();
    let row = |pair: &[Beat]| {
        let (from, to) = (pair[0], pair[1]);
        let facts = Facts::of(&Stretch {
            from,
            to,
            engaged_ratio: 0.0,
        });
        let covers_s = us(facts.covers) / 1e6;
        DidRow(at_ms(&to), covers_s, Did::of(&facts))
    };
    beats.windows(2).map(row).collect()
}

fn levels(timeline: &Timeline) -> Vec<LevelRow> {
    let row = |beat: &Beat| {
        let level = beat.level?;
        let threshold = level.threshold.map(us);
        Some(LevelRow(
            at_ms(beat),
            level.engaged,
            us(level.latency),
            threshold,
        ))
    };
    timeline.beats().filter_map(row).collect()
}

fn at_ms(beat: &Beat) -> u64 {
    let ago = clock::now().since(beat.at);
    now_ms().saturating_sub(ago.as_nanos() / 1_000_000)
}
