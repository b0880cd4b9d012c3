//! The times that the kernel's scheduler counts for a thread.
//!
//! Any thread may read them, so a counted thread does nothing for them.
//!
//! # Source
//! `Documentation/scheduler/sched-stats.rst`: `/proc/PID/task/TID/schedstat` has the time on a CPU, the time of waiting
//! for one, both in nanoseconds, and the number of times that the thread ran.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use tidegate_core::units::Span;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedstat {
    /// Time on a CPU.
    pub run: Span,
    /// Time in which the thread could run and waited for a CPU.
    pub run_delay: Span,
}

impl Schedstat {
    /// Opens the file of a thread of a process.
    ///
    /// # Errors
    /// If there is no such thread, or the kernel does not count (CONFIG_SCHED_INFO).
    pub fn open(process: u32, thread: u32) -> io::Result<File> {
        File::open(format!("/proc/{process}/task/{thread}/schedstat"))
    }

    /// Reads an open file.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn read(file: &File) -> io::Result<Schedstat> {
        let mut text = [0; 80];
        let len = file.read_at(&mut text, 0)?;
        Schedstat::parse(&text[..len])
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a schedstat file"))
    }

    fn parse(text: &[u8]) -> Option<Schedstat> {
        let mut numbers = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
        let mut next = || numbers.next()?.parse().ok().map(Span::from_nanos);
        Some(Schedstat {
            run: next()?,
            run_delay: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_format_is_read() {
        let read = Schedstat::parse(b"393102 45028 2\n").expect("two times");
        assert_eq!(read.run, Span::from_nanos(393_102));
        assert_eq!(read.run_delay, Span::from_nanos(45_028));
        for nonsense in [&b""[..], b"12", b"a b c", b"-1 2 3", &[0xff; 8]] {
            assert_eq!(Schedstat::parse(nonsense), None);
        }
    }

    #[test]
    fn time_on_a_cpu_is_counted() {
        let own = crate::sys::os::thread_id();
        let file = Schedstat::open(std::process::id(), own).expect("this thread");
        let before = Schedstat::read(&file).expect("its times");
        let cpu = crate::sys::os::thread_cpu();
        while crate::sys::os::thread_cpu().since(cpu) < Span::from_millis(30) {}
        let after = Schedstat::read(&file).expect("its times");
        // The kernel may count the current slice only at its next tick.
        let ran = after.run.as_nanos() - before.run.as_nanos();
        assert!(ran > 10_000_000, "{ran} ns");
    }
}
