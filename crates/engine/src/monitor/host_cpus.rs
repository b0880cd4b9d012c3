//! Idle and stolen time of the host's CPUs, from `/proc/stat`.
//!
//! # Units
//! The kernel counts in hundredths of a second, on every Linux.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use tidegate_core::units::Span;

const TICK: u64 = 10_000_000;

/// Times of all CPUs since the start of the host, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTimes {
    /// Idle, also while waiting for I/O.
    pub(crate) idle: Span,
    /// Taken by a hypervisor below.
    pub(crate) steal: Span,
}

/// The open file.
pub(crate) struct HostCpus(File);

impl HostCpus {
    pub(crate) fn open() -> io::Result<HostCpus> {
        File::open("/proc/stat").map(HostCpus)
    }

    /// The times so far; `None` if the kernel's words are not understood.
    pub(crate) fn read(&self) -> Option<CpuTimes> {
        let mut text = [0; 256];
        let length = self.0.read_at(&mut text, 0).ok()?;
        parse(&text[..length])
    }
}

fn parse(text: &[u8]) -> Option<CpuTimes> {
    let line = text.split(|&byte| byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    let mut ticks = [0_u64; 8];
    for tick in &mut ticks {
        *tick = words.next()?.parse().ok()?;
    }
    let [_user, _nice, _system, idle, iowait, _irq, _softirq, steal] = ticks;
    let span = |ticks: u64| Span::from_nanos(ticks.saturating_mul(TICK));
    Some(CpuTimes {
        idle: span(idle.saturating_add(iowait)),
        steal: span(steal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_sum_of_all_cpus() {
        let text = b"cpu  10 20 30 400 50 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        let times = parse(text).expect("as Linux writes it");
        assert_eq!(times.idle, Span::from_millis(4_500));
        assert_eq!(times.steal, Span::from_millis(80));
        for other in [
            &b""[..],
            b"cpu 1 2",
            b"cpu0 1 2 3 4 5 6 7 8",
            b"cpu a b c d e f g h",
        ] {
            assert_eq!(parse(other), None);
        }
    }

    #[test]
    fn this_machines_file_is_understood() {
        let times = HostCpus::open().expect("every Linux has it").read();
        assert!(times.is_some_and(|times| times.idle > Span::ZERO));
    }
}
