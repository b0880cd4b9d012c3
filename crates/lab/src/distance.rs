//! How far apart two CPUs are: how long a word takes from one to the other and back.
//!
//! A hypervisor moves a machine's virtual CPUs about: for some seconds or minutes two of them share a core or a cache, then
//! they do not. What passes between a server on one and its guest on the other takes 0.1 us or 0.4, and a request that is alone
//! takes twice as long. Trials are compared only where both found the CPUs equally far apart.
//!
//! # Units
//! - Nanoseconds for both ways together.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::server;

/// So many words are sent in a row, so often; the median of the rows is told.
const WORDS: u32 = 100;
const ROWS: usize = 31;
/// Before them, for the other thread to get there.
const WARM: u32 = 1000;

/// CPUs between which a word takes no longer, there and back, share a cache: some 100 ns, where others take 400.
pub const NEAR_NS: f64 = 200.0;
/// It is looked so often whether they do by now.
const LOOKS_APART: Duration = Duration::from_millis(500);

/// A word that has a cache line, and the one beside it, to itself.
#[repr(align(128))]
struct Word(AtomicU32);

/// How far apart the calling thread's CPU is from `other`, in nanoseconds. Both should be idle.
///
/// # Errors
/// There is no such CPU, or no thread can be made.
pub fn to(other: usize) -> Result<f64> {
    let words = Arc::new((Word(AtomicU32::new(0)), Word(AtomicU32::new(0))));
    let (ours, theirs) = (Arc::clone(&words), words);
    let echo = std::thread::Builder::new()
        .name("echo".into())
        .spawn(move || echo(other, &theirs.0.0, &theirs.1.0))
        .context("cannot start a thread")?;
    let mut last = 0;
    let mut send = |count: u32| {
        for _ in 0..count {
            last += 1;
            ours.0.0.store(last, Ordering::Release);
            while ours.1.0.load(Ordering::Acquire) != last {
                if echo.is_finished() {
                    return false;
                }
                std::hint::spin_loop();
            }
        }
        true
    };
    let mut rows = Vec::with_capacity(ROWS);
    let mut answered = send(WARM);
    while answered && rows.len() < ROWS {
        let begun = Instant::now();
        answered = send(WORDS);
        rows.push(begun.elapsed().as_secs_f64() * 1e9 / f64::from(WORDS));
    }
    echo.join()
        .map_err(|_| anyhow::anyhow!("the thread that echoes has panicked"))??;
    let middle = crate::statistics::spread(&rows).context("nothing was sent")?;
    Ok(middle.median)
}

/// Sends back what comes, on the CPU `cpu`, until all has come.
fn echo(cpu: usize, from: &AtomicU32, back: &AtomicU32) -> Result<()> {
    server::pin(cpu)?;
    let rows = u32::try_from(ROWS).context("a few rows")?;
    for word in 1..=WARM + rows * WORDS {
        while from.load(Ordering::Acquire) != word {
            std::hint::spin_loop();
        }
        back.store(word, Ordering::Release);
    }
    Ok(())
}

/// How much farther the farthest of these is than the nearest: 1 where all are alike.
#[must_use]
pub fn spread(distances: impl Iterator<Item = f64>) -> f64 {
    let ends = distances.fold(None, |ends: Option<(f64, f64)>, one| {
        let (least, most) = ends.unwrap_or((one, one));
        Some((least.min(one), most.max(one)))
    });
    ends.map_or(1.0, |(least, most)| most / least.max(1e-9))
}

/// Waits for two CPUs to be near each other, up to so long in all.
#[derive(Debug)]
pub struct Patience {
    left: Cell<Duration>,
    /// Whether they were, once.
    found: Cell<bool>,
}

impl Patience {
    /// Of so long.
    #[must_use]
    pub fn new(left: Duration) -> Self {
        Self {
            left: Cell::new(left),
            found: Cell::new(false),
        }
    }

    /// Returns when they are near, by what `apart` finds, or when patience is at its end.
    ///
    /// # Errors
    /// Those of `apart`.
    pub fn wait(&self, apart: impl Fn() -> Result<f64>) -> Result<()> {
        while !self.left.get().is_zero() {
            let begun = Instant::now();
            if apart()? <= NEAR_NS {
                self.found.set(true);
                return Ok(());
            }
            std::thread::sleep(LOOKS_APART.min(self.left.get()));
            self.left
                .set(self.left.get().saturating_sub(begun.elapsed()));
        }
        Ok(())
    }

    /// Whether a trial counts that found them so far apart: a near one, or any once it is clear that none comes.
    #[must_use]
    pub fn is_near_enough(&self, apart_ns: f64) -> bool {
        apart_ns <= NEAR_NS || self.was_in_vain()
    }

    /// Whether it is at its end, and they were never near.
    #[must_use]
    pub fn was_in_vain(&self) -> bool {
        self.left.get().is_zero() && !self.found.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_trials_count_only_where_the_cpus_were_never_near() {
        let far = || Ok(400.0);
        let never = Patience::new(Duration::from_millis(5));
        assert!(!never.is_near_enough(400.0), "there is still patience");
        never.wait(far).expect("no failure");
        assert!(never.is_near_enough(400.0));

        let once = Patience::new(Duration::from_millis(5));
        once.wait(|| Ok(100.0)).expect("no failure");
        once.wait(far).expect("no failure");
        assert!(once.is_near_enough(110.0) && !once.is_near_enough(400.0));
    }

    #[test]
    fn a_word_takes_its_time_from_cpu_to_cpu_and_back() {
        let told = std::thread::spawn(|| {
            // Whichever it runs on, the other of the first two is another one, where there are two.
            server::pin(0).and_then(|()| to(1))
        });
        let Ok(apart) = told.join().expect("no panic") else {
            return;
        };
        assert!(apart > 1.0, "{apart} ns");
    }

    #[test]
    fn a_cpu_that_there_is_not_is_an_error_and_no_wait_for_ever() {
        let told = std::thread::spawn(|| to(4096)).join().expect("no panic");
        assert!(told.is_err());
    }

    #[test]
    fn the_farthest_is_so_much_farther_than_the_nearest() {
        assert_eq!(spread([250.0, 700.0, 350.0].into_iter()), 2.8);
        assert_eq!(spread([250.0].into_iter()), 1.0);
        assert_eq!(spread(std::iter::empty()), 1.0);
    }
}
