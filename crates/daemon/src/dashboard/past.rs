//! The last five minutes, for a page that is opened now: what the lookout has kept of a disk, or of a datastore.
//!
//! Nobody is asked and nothing is looked at. Where a disk rested there is one long stretch instead of many short ones.

use serde::Serialize;
use tidegate_api::name::Name;

use super::beat::{Did, now_ms, us};
use crate::explain::Facts;
use crate::explain::course::{Beat, Course, Stretch};
use crate::host;
use crate::live::Live;
use crate::serve::Daemon;
use crate::trouble::Outcome;

/// What stands where in a row of `did`.
pub(crate) const PAST: [&str; 3] = ["at", "covers_s", "did"];

/// What stands where in a row of `level`.
pub(crate) const LEVEL: [&str; 4] = ["at", "engaged", "latency_us", "threshold_us"];

/// The past of a disk or a datastore, oldest first.
#[derive(Default, Serialize)]
pub(crate) struct Past {
    did: Vec<DidRow>,
    level: Vec<LevelRow>,
}

#[derive(Serialize)]
struct DidRow(u64, f64, Did);

#[derive(Serialize)]
struct LevelRow(u64, bool, f64, Option<f64>);

impl Daemon {
    /// What a disk did.
    pub(crate) fn past_of_disk(&self, name: &Name) -> Outcome<Past> {
        let live = self.keeper.must_be_attached(name)?;
        Ok(self
            .course(&live)
            .map_or_else(Past::default, |course| Past {
                did: did(&course),
                level: levels(&course),
            }))
    }

    /// How a datastore was: each of its disks has kept that, and the one that has looked longest knows most.
    pub(crate) fn past_of_datastore(&self, name: &Name) -> Past {
        let live = self.keeper.live().all();
        let here = live.iter().filter(|live| live.datastore() == name);
        let courses = here.filter_map(|live| self.course(live));
        let longest = courses.max_by_key(|course| course.beats().len());
        Past {
            did: Vec::new(),
            level: longest.map_or_else(Vec::new, |course| levels(&course)),
        }
    }

    fn course(&self, live: &Live) -> Option<Course> {
        self.lookout.course(live)
    }
}

fn did(course: &Course) -> Vec<DidRow> {
    let beats: Vec<Beat> = course.beats().copied().collect();
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

fn levels(course: &Course) -> Vec<LevelRow> {
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
    course.beats().filter_map(row).collect()
}

fn at_ms(beat: &Beat) -> u64 {
    let ago = host::now().since(beat.at);
    now_ms().saturating_sub(ago.as_nanos() / 1_000_000)
}
