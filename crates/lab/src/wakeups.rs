//! How soon idle CPUs wake up while something is measured.
//!
//! A request over a ring or a socket has a wake-up on each side. An idle CPU of a host that is tuned for latency wakes
//! within a few microseconds; one that a power state, or a hypervisor's hypervisor, has put to sleep takes tens of them,
//! many times what server and client do: then the machine is measured and not the program. So the kernel is asked to keep
//! idle CPUs awake (PM QoS), for all contestants alike, as tuned's `latency-performance` profile does.
//!
//! # Units
//! - Microseconds.
//! # Source
//! The kernel's Documentation/power/pm_qos_interface.rst.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

const PATH: &str = "/dev/cpu_dma_latency";

/// What idle CPUs do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleCpus {
    /// They wake within so many microseconds; 0: they stay awake.
    Within(u16),
    /// What they do by themselves.
    AsTheyAre,
}

impl FromStr for IdleCpus {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        match (word, word.parse()) {
            ("any", _) => Ok(Self::AsTheyAre),
            (_, Ok(us)) => Ok(Self::Within(us)),
            _ => bail!("say so many microseconds, such as 0, or `any`"),
        }
    }
}

/// Idle CPUs wake soon for as long as this lives.
#[derive(Debug)]
pub struct Held(
    #[expect(dead_code, reason = "the kernel forgets the wish when it is closed")] File,
);

impl IdleCpus {
    /// Asks the kernel for it; nothing where nothing is to be asked.
    ///
    /// # Errors
    /// The kernel takes no such wishes, or not from this user.
    pub fn hold(self) -> Result<Option<Held>> {
        let Self::Within(us) = self else {
            return Ok(None);
        };
        let open = OpenOptions::new().write(true).open(PATH);
        let mut file = open.with_context(|| format!("cannot write to {PATH}"))?;
        file.write_all(&i32::from(us).to_ne_bytes())
            .with_context(|| format!("{PATH} takes no {us}"))?;
        Ok(Some(Held(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_so_many_microseconds_or_any() {
        let read = |word: &str| word.parse::<IdleCpus>().ok();
        assert_eq!(read("0"), Some(IdleCpus::Within(0)));
        assert_eq!(read("25"), Some(IdleCpus::Within(25)));
        assert_eq!(read("any"), Some(IdleCpus::AsTheyAre));
        assert_eq!((read("-1"), read("none")), (None, None));
    }

    /// What the kernel holds to, of all that it was asked for.
    fn heeded() -> Option<i32> {
        let told = std::fs::read(PATH).ok()?;
        Some(i32::from_ne_bytes(told.try_into().ok()?))
    }

    #[test]
    fn the_kernel_heeds_it_for_as_long_as_it_is_held() {
        // Elsewhere whoever holds it could not ask, and says so.
        let Ok(held) = IdleCpus::Within(7).hold() else {
            return;
        };
        assert!(heeded().is_some_and(|us| us <= 7), "{:?}", heeded());
        let sooner = IdleCpus::Within(0).hold().expect("it could be asked for");
        assert_eq!(heeded(), Some(0));
        // Others may hold something meanwhile, but not this.
        drop((held, sooner));
        assert_ne!(heeded(), Some(7));
    }

    #[test]
    fn as_they_are_asks_for_nothing() {
        assert!(
            IdleCpus::AsTheyAre
                .hold()
                .expect("nothing to ask")
                .is_none()
        );
    }
}
