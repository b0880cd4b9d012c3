//! The I/O threads' part of the plan: how many at the start, between which numbers the policy chooses, and on which CPUs.

use std::time::Duration;

use tidegate_api::config::{Config, ThreadPolicy, Threads};
use tidegate_api::units::Span;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::monitor::{Kind, Limits};
use tidegate_engine::monitor;

use super::{Machine, bad};
use crate::os_error::Outcome;

/// Longest time that an I/O thread polls for work before it sleeps. It exceeds the time from a guest's completion to
/// its next request, including the guest's wake-up. The thread measures whether this or a quarter of it is better.
const POLL: Duration = Duration::from_micros(200);

/// The most I/O threads by default: one thread serves many disks, and the CPUs are for the guests.
const MOST_THREADS_UNASKED: usize = 4;

/// The most I/O threads at all. A higher number is a mistake.
const MOST_THREADS: u16 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadsPlan {
    /// Threads that take disks at the start.
    pub(crate) count: usize,
    /// Threads that exist. Those beyond `count` sleep until they are needed.
    pub(crate) most: usize,
    /// How disks and threads change by themselves.
    pub(crate) monitor: monitor::Settings,
    pub(crate) poll: Duration,
    /// One CPU for each thread, or none at all.
    pub(crate) cpus: Vec<usize>,
    /// Whether disks' miss-ratio curves are estimated.
    pub(crate) curves: bool,
    /// How completions are coalesced, of disks that do not say it.
    pub(crate) coalesce: Coalesce,
}

impl ThreadsPlan {
    /// So many threads, which stay as they are and do not poll.
    pub(crate) fn fixed(count: u16) -> ThreadsPlan {
        ThreadsPlan {
            count: usize::from(count),
            most: usize::from(count),
            monitor: monitor::Settings {
                policy: Kind::None,
                limits: Limits {
                    min: count,
                    max: count,
                },
            },
            poll: Duration::ZERO,
            cpus: Vec::new(),
            curves: true,
            coalesce: Coalesce::default(),
        }
    }
}

/// Plans the I/O threads.
pub(super) fn plan(config: &Config, machine: &Machine) -> Outcome<ThreadsPlan> {
    let cpus: Vec<usize> = config
        .io
        .cpus
        .iter()
        .map(|cpu| usize::try_from(*cpu).map_err(|_| bad("io.cpus", "a CPU's number is too large")))
        .collect::<Outcome<_>>()?;
    if cpus.len() > usize::from(MOST_THREADS) {
        return Err(bad(
            "io.cpus",
            format!(
                "it names {} CPUs, and there are at most {MOST_THREADS} I/O threads",
                cpus.len()
            ),
        )
        .remedy(format!("name at most {MOST_THREADS} CPUs, or none")));
    }
    let (count, limits) = thread_counts(config, machine, cpus.len())?;
    if !cpus.is_empty() && cpus.len() != usize::from(limits.max) {
        return Err(bad(
            "io.cpus",
            format!(
                "it names {} CPUs for {} I/O threads",
                cpus.len(),
                limits.max
            ),
        )
        .remedy("name one CPU for each I/O thread, or none"));
    }
    let poll = config.io.poll.map_or(POLL, Span::to_duration);
    if poll > Duration::from_secs(1) {
        return Err(bad("io.poll", "it is more than a second")
            .remedy("use microseconds, such as \"50us\"; \"0\" sleeps at once"));
    }
    // Administrators may use more threads than the policy does, if no CPUs were chosen for them.
    let spare = match cpus.is_empty() {
        true => machine.cpus.min(usize::from(MOST_THREADS)),
        false => cpus.len(),
    };
    Ok(ThreadsPlan {
        count: usize::from(count),
        most: spare.max(usize::from(limits.max)),
        monitor: monitor::Settings {
            policy: match config.io.policy.unwrap_or_default() {
                ThreadPolicy::None => Kind::None,
                ThreadPolicy::Auto => Kind::Auto,
                ThreadPolicy::Iocm => Kind::Iocm,
                ThreadPolicy::Spdk => Kind::Spdk,
            },
            limits,
        },
        poll,
        cpus,
        curves: config.io.curves.unwrap_or(true),
        coalesce: config
            .io
            .coalesce
            .map_or_else(Coalesce::default, super::io::coalesce),
    })
}

/// The number of threads at the start, and between which numbers the policy may choose. `pinned`: CPUs that are named.
fn thread_counts(config: &Config, machine: &Machine, pinned: usize) -> Outcome<(u16, Limits)> {
    let number = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let io = &config.io;
    for (key, value) in [("io.min", io.min), ("io.max", io.max)] {
        if value.is_some_and(|value| !(1..=MOST_THREADS).contains(&value)) {
            return Err(bad(key, format!("it is not from 1 to {MOST_THREADS}"))
                .remedy("write threads = \"auto\", min = 1, max = 4, or leave them out"));
        }
    }
    let (count, min, max) = match io.threads {
        Some(Threads::Count(count)) if (1..=MOST_THREADS).contains(&count) => (count, count, count),
        Some(Threads::Count(_)) => {
            return Err(
                bad("io.threads", format!("it is not from 1 to {MOST_THREADS}"))
                    .remedy("write threads = 2, or leave it out"),
            );
        }
        Some(Threads::Auto) => {
            let min = io.min.unwrap_or(1);
            let all = if pinned > 0 { pinned } else { machine.cpus };
            (min, min, number(all).clamp(min, MOST_THREADS))
        }
        None if pinned > 0 => (number(pinned), number(pinned), number(pinned)),
        None => {
            let count = number((machine.cpus / 2).clamp(1, MOST_THREADS_UNASKED));
            (count, count, count)
        }
    };
    let (min, max) = (io.min.unwrap_or(min), io.max.unwrap_or(max));
    if !(min..=max).contains(&count) {
        let key = if count < min { "io.min" } else { "io.max" };
        let why = format!("{count} threads at the start are not from {min} to {max}");
        return Err(bad(key, why).remedy("leave out min and max, or write threads = \"auto\""));
    }
    Ok((count, Limits { min, max }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Outcome<ThreadsPlan> {
        let machine = Machine {
            cpus: 8,
            journal: false,
            name: "bee".into(),
        };
        super::plan(&Config::read(text).unwrap(), &machine)
    }

    #[test]
    fn nothing_said_is_a_whole_plan() {
        assert_eq!(
            plan("").unwrap(),
            ThreadsPlan {
                count: 4,
                most: 8,
                monitor: monitor::Settings {
                    policy: Kind::Auto,
                    limits: Limits { min: 4, max: 4 },
                },
                poll: POLL,
                cpus: vec![],
                curves: true,
                coalesce: Coalesce::Adaptive,
            }
        );
    }

    #[test]
    fn cpus_decide_the_threads_and_must_agree_with_them() {
        assert_eq!(plan("[io]\ncpus = [2, 3]").unwrap().count, 2);
        let text = plan("[io]\nthreads = 3\ncpus = [2, 3]")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("io.cpus") && text.contains("2 CPUs for 3"),
            "{text}"
        );
    }

    #[test]
    fn more_cpus_than_threads_are_possible_are_refused() {
        let with = |cpus: usize, more: &str| {
            let cpus: Vec<usize> = (0..cpus).collect();
            plan(&format!("[io]\ncpus = {cpus:?}\n{more}"))
        };
        assert_eq!(with(64, "").unwrap().most, 64);
        for more in ["", "threads = \"auto\"", "threads = 64"] {
            let error = with(65, more).unwrap_err().to_string();
            assert!(
                error.contains("io.cpus") && error.contains("at most 64 I/O threads"),
                "{error}"
            );
        }
    }

    #[test]
    fn auto_threads_begin_with_the_fewest_and_end_at_the_cpus() {
        let of = |text: &str| {
            let threads = plan(&format!("[io]\n{text}")).unwrap();
            let Limits { min, max } = threads.monitor.limits;
            (threads.count, min, max, threads.most)
        };
        assert_eq!(of("threads = \"auto\""), (1, 1, 8, 8));
        assert_eq!(of("threads = \"auto\"\nmin = 2\nmax = 3"), (2, 2, 3, 8));
        assert_eq!(of("threads = \"auto\"\ncpus = [4, 5, 6]"), (1, 1, 3, 3));
        assert_eq!(of("threads = 2"), (2, 2, 2, 8));
        assert_eq!(of("threads = 2\nmin = 1\nmax = 20"), (2, 1, 20, 20));
        assert_eq!(
            plan("[io]\npolicy = \"none\"").unwrap().monitor.policy,
            Kind::None
        );
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_by_their_key() {
        for (text, key) in [
            ("[io]\nthreads = 0", "io.threads"),
            ("[io]\nthreads = 65", "io.threads"),
            ("[io]\nmin = 0", "io.min"),
            ("[io]\nmax = 65", "io.max"),
            ("[io]\nthreads = 2\nmin = 3", "io.min"),
            ("[io]\nthreads = 4\nmax = 3", "io.max"),
            ("[io]\nthreads = \"auto\"\nmin = 4\nmax = 3", "io.max"),
            (
                "[io]\nthreads = \"auto\"\ncpus = [1, 2]\nmax = 3",
                "io.cpus",
            ),
            ("[io]\npoll = '2s'", "io.poll"),
        ] {
            let error = plan(text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
