//! The guests of a host: the processes whose virtual machines use disks, their vCPUs, and the CPU time of these.
//!
//! A front end's process is known from its socket. Its vCPUs are the threads that it names so: QEMU (with
//! `-name debug-threads=on`, as libvirt starts it), Cloud Hypervisor, crosvm and Firecracker do. The times are those of the
//! kernel's scheduler. Monitors read all this; no I/O thread does.
//!
//! # Always true
//! - reading takes at most a five-hundredth of the time, however many guests there are; until then the last reading
//!   counts
//!
//! # Units
//! Times are CPU time, added up over the vCPUs of a guest since it was first read.

use crate::counters::Schedstat;
use crate::sys::os;
use std::collections::BTreeMap;
use std::fs::File;
use tidegate_core::units::{Span, Time};

/// vCPUs come and go with hot-plug, and a new process names its threads only when it starts them.
const RESCAN: Span = Span::from_secs(10);
/// The pause after a reading, in times of its length.
const PAUSE: u64 = 500;

/// What a guest is and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestActivity {
    /// Its process.
    pub process: u32,
    /// Its vCPUs; one if they are not known.
    pub vcpus: u32,
    /// Its threads have no names of vCPUs: their number is assumed, and their times are not known.
    pub assumed: bool,
    /// CPU time that its vCPUs got.
    pub run: Span,
    /// Time in which its vCPUs could run and waited for a CPU.
    pub run_delay: Span,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Guests {
    known: BTreeMap<u32, Known>,
    last: Vec<GuestActivity>,
    /// No reading before.
    next: Time,
}

#[derive(Debug, Default)]
struct Known {
    vcpus: Vec<Vcpu>,
    scanned: Option<Time>,
    /// Times of vCPUs that are gone.
    gone: Schedstat,
}

#[derive(Debug)]
struct Vcpu {
    thread: u32,
    file: File,
    last: Schedstat,
}

impl Guests {
    /// Reads the guests of these processes at `now`. Soon after another reading it returns that one's.
    pub fn read(&mut self, processes: &[u32], now: Time) -> &[GuestActivity] {
        let is_same = self.last.iter().map(|guest| &guest.process).eq(processes);
        if now >= self.next || !is_same {
            self.known.retain(|process, _| processes.contains(process));
            let known = &mut self.known;
            let read = processes.iter().map(|&process| {
                let guest = known.entry(process).or_default();
                guest.read(process, now)
            });
            self.last = read.collect();
            let long = os::now().since(now);
            self.next = now + Span::from_nanos(long.as_nanos().saturating_mul(PAUSE));
        }
        &self.last
    }
}

impl Known {
    fn read(&mut self, process: u32, now: Time) -> GuestActivity {
        if self.scanned.is_none_or(|at| now.since(at) >= RESCAN) {
            self.scanned = Some(now);
            self.scan(process);
        }
        for vcpu in &mut self.vcpus {
            // Of a thread that has ended the last times stay.
            vcpu.last = Schedstat::read(&vcpu.file).unwrap_or(vcpu.last);
        }
        let all = self.vcpus.iter().map(|vcpu| vcpu.last);
        let sum = all.fold(self.gone, plus);
        GuestActivity {
            process,
            vcpus: u32::try_from(self.vcpus.len()).unwrap_or(u32::MAX).max(1),
            assumed: self.vcpus.is_empty(),
            run: sum.run,
            run_delay: sum.run_delay,
        }
    }

    /// Finds the threads of the process that are vCPUs.
    fn scan(&mut self, process: u32) {
        let named = vcpu_threads(process);
        let known = std::mem::take(&mut self.vcpus);
        let (kept, gone): (Vec<Vcpu>, Vec<Vcpu>) = known
            .into_iter()
            .partition(|vcpu| named.contains(&vcpu.thread));
        self.gone = gone.iter().map(|vcpu| vcpu.last).fold(self.gone, plus);
        self.vcpus = kept;
        for thread in named {
            if self.vcpus.iter().any(|vcpu| vcpu.thread == thread) {
                continue;
            }
            if let Ok(file) = Schedstat::open(process, thread) {
                let last = Schedstat::default();
                self.vcpus.push(Vcpu { thread, file, last });
            }
        }
    }
}

fn plus(sum: Schedstat, more: Schedstat) -> Schedstat {
    Schedstat {
        run: sum.run + more.run,
        run_delay: sum.run_delay + more.run_delay,
    }
}

/// What the vCPUs of a process are and did, read now; none if its threads have no names. The times are those of the vCPUs
/// that it has now, since each was started.
pub fn read_guest(process: u32) -> Option<GuestActivity> {
    let read = Known::default().read(process, os::now());
    (!read.assumed).then_some(read)
}

/// The number of vCPUs of a process, if its threads have names.
pub fn count_vcpus(process: u32) -> Option<u32> {
    let count = u32::try_from(vcpu_threads(process).len()).unwrap_or(u32::MAX);
    (count > 0).then_some(count)
}

/// The most vCPUs of a process that are counted and read, each through an open file. KVM has no more in one machine.
const MOST_VCPUS: usize = 1024;

/// The threads of a process that are vCPUs by their names. None if the process is gone or may not be read.
fn vcpu_threads(process: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    let named = tasks.flatten().filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let thread = task.file_name().to_str()?.parse().ok()?;
        is_vcpu(name.trim_end()).then_some(thread)
    });
    named.take(MOST_VCPUS).collect()
}

/// Whether a virtual machine monitor names its vCPUs so.
fn is_vcpu(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = name.strip_prefix("CPU ") {
        // QEMU: `CPU 3/KVM`, `CPU 0/TCG`.
        return rest
            .split_once('/')
            .is_some_and(|(number, _)| is_number(number));
    }
    // Cloud Hypervisor: `vcpu3`; crosvm: `crosvm_vcpu3`; Firecracker: `fc_vcpu 3`.
    let (_, number) = name.rsplit_once("vcpu").unwrap_or_default();
    is_number(number.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn vcpus_are_known_by_the_names_that_monitors_give_them() {
        for name in [
            "CPU 0/KVM",
            "CPU 127/KVM",
            "CPU 1/TCG",
            "vcpu0",
            "crosvm_vcpu12",
            "fc_vcpu 3",
        ] {
            assert!(is_vcpu(name), "{name}");
        }
        for name in [
            "",
            "qemu-system-x86",
            "CPU /KVM",
            "CPU 0",
            "vcpu",
            "vcpus",
            "IO mon_iothread",
            "vcpu1x",
            "vnc_worker",
        ] {
            assert!(!is_vcpu(name), "{name}");
        }
    }

    /// Threads of this process with these names, until the senders are dropped.
    fn threads(names: &[&str]) -> Vec<(std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>)> {
        let start = |name: &&str| {
            let (stop, stopped) = channel();
            let (ready, started) = channel();
            let builder = std::thread::Builder::new().name((*name).to_owned());
            let run = move || {
                let begin = os::thread_cpu();
                while os::thread_cpu().since(begin) < Span::from_millis(20) {}
                ready.send(()).expect("the test waits");
                let _ = stopped.recv();
            };
            let thread = builder.spawn(run).expect("a thread");
            started.recv().expect("it has run");
            (stop, thread)
        };
        names.iter().map(start).collect()
    }

    #[test]
    fn a_guest_has_the_times_of_its_vcpus_also_of_those_that_have_left() {
        let own = std::process::id();
        let mut guests = Guests::default();
        let at = |seconds| os::now() + Span::from_secs(seconds);
        let mut running = threads(&["CPU 900/KVM", "CPU 901/KVM", "worker"]);
        let first = guests.read(&[own], at(0))[0];
        assert_eq!((first.vcpus, first.assumed), (2, false));
        // The kernel may count the last slices later.
        assert!(first.run >= Span::from_millis(20), "{first:?}");
        let (stop, thread) = running.remove(0);
        drop(stop);
        thread.join().expect("it ends");
        let second = guests.read(&[own], at(100))[0];
        assert_eq!(second.vcpus, 1);
        assert!(second.run >= first.run, "{second:?} after {first:?}");
        let once = read_guest(own).expect("a vCPU has a name");
        assert_eq!((once.process, once.vcpus), (own, 1));
        assert!(once.run >= Span::from_millis(20), "{once:?}");
        drop(running);
    }

    #[test]
    fn a_guest_that_cannot_be_read_has_one_vcpu() {
        // No process has this number.
        let mut guests = Guests::default();
        let read = guests.read(&[u32::MAX], os::now());
        let expected = GuestActivity {
            process: u32::MAX,
            vcpus: 1,
            assumed: true,
            run: Span::ZERO,
            run_delay: Span::ZERO,
        };
        assert_eq!(read, [expected]);
        assert_eq!(count_vcpus(u32::MAX), None);
        assert_eq!(read_guest(u32::MAX), None);
    }
}
