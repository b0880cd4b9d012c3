//! Errors of an I/O thread's start: a CPU that does not exist, a ring that the kernel refuses.
//!
//! The daemon adds the remedy: it knows the limits of its process, and where a CPU was configured.

use crate::error::{Error, Kind};
use crate::sys::os;
use crate::sys::ring::LOCKED;
use std::io;

/// Bytes of locked memory (RLIMIT_MEMLOCK) that an I/O thread's ring needs where the kernel counts them.
pub const RING_LOCKED: u64 = LOCKED;

/// The thread cannot be pinned to this CPU.
pub(super) fn no_such_cpu(cpu: usize) -> Error {
    let text = format!(
        "cannot pin an I/O thread to CPU {cpu}: this process may use {}",
        list(&os::usable_cpus())
    );
    Error::new(Kind::Invalid, text)
}

/// The thread's ring cannot be created.
pub(super) fn no_ring(error: io::Error) -> Error {
    let what = "cannot make an I/O thread's io_uring";
    match error.raw_os_error() {
        // An unknown flag, or no such system call.
        Some(libc::EINVAL | libc::ENOSYS) => Error::caused(Kind::Unsupported, what, error),
        _ => Error::io(what, error),
    }
}

/// Formats a list of CPUs: `CPUs 0-3, 8`.
fn list(cpus: &[usize]) -> String {
    let ranges: Vec<String> = cpus
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [one] => one.to_string(),
            run => format!("{}-{}", run[0], run[run.len() - 1]),
        })
        .collect();
    let word = if cpus.len() == 1 { "CPU" } else { "CPUs" };
    format!("{word} {}", ranges.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Settings};
    use tidegate_core::units::Span;

    #[test]
    fn cpus_are_listed_as_ranges() {
        assert_eq!(list(&[0]), "CPU 0");
        assert_eq!(list(&[0, 1, 2, 3, 8, 10, 11]), "CPUs 0-3, 8, 10-11");
    }

    #[test]
    fn an_error_about_a_missing_cpu_names_it_and_the_existing_ones() {
        let last = *os::usable_cpus().last().expect("this test runs somewhere");
        for missing in [last + 1, 1023, 5000] {
            let settings = Settings {
                threads: 1,
                max_threads: 1,
                poll: Span::from_millis(0),
                curves: true,
                monitor: crate::monitor::Settings::NONE,
                coalesce: tidegate_core::coalesce::Coalesce::default(),
                always_poll: false,
                cpus: vec![missing],
            };
            let Err(error) = Engine::start(&settings) else {
                panic!("CPU {missing} exists")
            };
            assert_eq!(error.kind(), Kind::Invalid);
            let text = error.to_string();
            assert!(text.contains(&format!("to CPU {missing}:")), "{text}");
            assert!(!text.contains("io_uring"), "{text}");
            assert!(text.contains(&list(&os::usable_cpus())), "{text}");
        }
    }

    #[test]
    fn an_unsupported_ring_and_a_forbidden_ring_are_different_errors() {
        let kind = |number| no_ring(io::Error::from_raw_os_error(number)).kind();
        assert_eq!(kind(libc::EINVAL), Kind::Unsupported);
        assert_eq!(kind(libc::ENOSYS), Kind::Unsupported);
        assert_eq!(kind(libc::EPERM), Kind::Denied);
        assert_eq!(kind(libc::ENOMEM), Kind::Io);
    }
}
