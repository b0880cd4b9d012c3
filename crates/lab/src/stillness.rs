//! For how much of a measurement the machine stood still.
//!
//! A hypervisor may give a virtual machine so much CPU time and no more, and count what it emulates the disk with: what needs
//! both CPUs and the disk has then spent it after three quarters of a period, and everything stands still for the rest, some
//! 25 of 100 ms (as by the bandwidth control of Linux' scheduler). One who needs a single CPU and the same disk never notices. The
//! kernel's count of stolen time misses most of it, since it counts only CPUs that had something to do.
//!
//! A thread on each CPU sleeps for some milliseconds again and again, and notes by how much it slept too long.
//!
//! # Units
//! - Percent of the time, of the CPU that stood still for longer.
//! # Source
//! The kernel's Documentation/scheduler/sched-bwc.rst.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::report::Series;
use crate::server;

/// So seldom that who is measured does not notice.
const NAP: Duration = Duration::from_millis(5);
/// What a busy CPU may let a thread wait: a scheduler's slice and a tick.
const USUAL: Duration = Duration::from_millis(8);

/// Of more stillness than so many percent the report tells.
const WORTH_TELLING: f64 = 1.0;

/// Threads that look for it.
pub struct Watch {
    done: Arc<AtomicBool>,
    naps: Vec<JoinHandle<Result<f64>>>,
}

impl Watch {
    /// Begins to watch these CPUs.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(cpus: impl IntoIterator<Item = usize>) -> Result<Self> {
        let done = Arc::new(AtomicBool::new(false));
        let start = |cpu| {
            let done = Arc::clone(&done);
            let nap = move || {
                server::pin(cpu)?;
                Ok(stood(&done, || std::thread::sleep(NAP)))
            };
            std::thread::Builder::new()
                .name(format!("still-{cpu}"))
                .spawn(nap)
                .context("cannot start a thread that watches a CPU")
        };
        let naps = cpus.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        Ok(Self { done, naps })
    }

    /// Ends; for how many percent of the time the machine stood still.
    ///
    /// # Errors
    /// A CPU was not there.
    pub fn end(mut self) -> Result<f64> {
        self.done.store(true, Ordering::Relaxed);
        let mut most: f64 = 0.0;
        for nap in self.naps.drain(..) {
            most = most.max(nap.join().expect("it only sleeps")?);
        }
        Ok(most)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Naps until that is over; for how many percent of the time a nap had already ended.
fn stood(done: &AtomicBool, nap: impl Fn()) -> f64 {
    let begin = Instant::now();
    let mut still = Duration::ZERO;
    let mut last = begin;
    while !done.load(Ordering::Relaxed) {
        nap();
        let now = Instant::now();
        let too_long = (now - last).saturating_sub(NAP);
        if too_long >= USUAL {
            // It began somewhere within the nap: in its middle, on average.
            still += too_long + NAP / 2;
        }
        last = now;
    }
    100.0 * still.as_secs_f64() / (last - begin).as_secs_f64().max(1e-9)
}

/// Tells for how much of whose time the machine stood still, if it did.
#[must_use]
pub fn told(series: &[Series]) -> Option<String> {
    let first = series.first()?;
    let stood = series.iter().filter_map(|each| {
        let stood = each.spread(|figures| figures.stood_percent)?;
        Some((each.contestant.as_str(), stood.median))
    });
    let stood: Vec<_> = stood.collect();
    if stood.iter().all(|(_, percent)| *percent <= WORTH_TELLING) {
        return None;
    }
    let each: Vec<String> = stood
        .iter()
        .map(|(name, percent)| format!("{percent:.0} % of {name}'s time"))
        .collect();
    Some(format!(
        "{}, {}: the machine stood still for {}, as where a hypervisor gives it no more than so much CPU time, its \
         disk's share included: who needs fewer CPUs is at an advantage there",
        first.scenario,
        first.case,
        each.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Figures;
    use crate::spoiled::Rejected;
    use std::cell::Cell;

    #[test]
    fn naps_that_last_far_too_long_are_stillness_and_those_a_little_too_long_are_not() {
        let done = AtomicBool::new(false);
        let count = Cell::new(0_u32);
        let nap = |often: u32, long: u64| -> f64 {
            count.set(0);
            done.store(false, Ordering::Relaxed);
            stood(&done, || {
                count.set(count.get() + 1);
                let last = count.get() == 10;
                let millis = if count.get().is_multiple_of(often) {
                    long
                } else {
                    6
                };
                std::thread::sleep(Duration::from_millis(millis));
                done.store(last, Ordering::Relaxed);
            })
        };
        // Half of the time and more, as the machine may stand still by itself.
        let still = nap(5, 60);
        assert!((50.0..100.0).contains(&still), "{still}");
        // Nothing, unless the machine stood still.
        let tries = (0..20).map(|_| nap(5, 7));
        assert!(tries.into_iter().any(|still| still == 0.0));
    }

    #[test]
    fn of_whose_time_the_machine_stood_still_is_told_if_it_did() {
        let series = |name: &str, stood: [f64; 3]| Series {
            scenario: "vhost file".into(),
            case: "QD 32".into(),
            contestant: name.into(),
            trials: stood
                .map(|stood_percent| Figures {
                    stood_percent,
                    ..Figures::default()
                })
                .to_vec(),
            wanted: 3,
            rejected: Rejected::default(),
        };
        let fio = series("fio", [0.0, 0.4, 30.0]);
        assert_eq!(told(std::slice::from_ref(&fio)), None);
        let words = told(&[series("tidegate", [19.6, 24.0, 21.2]), fio]);
        let words = words.expect("it stood still");
        let all = "vhost file, QD 32: the machine stood still for 21 % of tidegate's time, 0 % of fio's time,";
        assert!(words.starts_with(all), "{words}");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_told() {
        let watch = Watch::start([1000]).expect("threads");
        assert!(watch.end().is_err());
    }
}
