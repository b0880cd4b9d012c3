//! On which CPU a disk's interrupts come.
//!
//! A disk with one queue has one interrupt, on one CPU. Whoever runs there meets it, whoever runs elsewhere has a second CPU
//! work for it: a program that is alone then has two, and one whose client has the second has not. So the bench runs what
//! it compares, the file's own reader too, on the CPU where the interrupts come.
//!
//! # Source
//! proc(5), `/proc/interrupts`; Linux' Documentation/core-api/irq/irq-affinity.rst.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The CPU that takes the interrupts of the disk under `place`; `None` where that is unknown, or each CPU takes its own.
#[must_use]
pub fn of_disk_under(place: &Path) -> Option<usize> {
    let device = std::fs::metadata(place).ok()?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let disk = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let disk = disk.canonicalize().ok()?;
    let numbers = disk.ancestors().find_map(|dir| {
        let listed = std::fs::read_dir(dir.join("msi_irqs")).ok()?;
        let names = listed.flatten().map(|entry| entry.file_name());
        let numbers: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        Some(numbers)
    })?;
    let table = std::fs::read_to_string("/proc/interrupts").ok()?;
    busy_cpu(&table, &numbers)
}

/// The one CPU on which those of these interrupts came that came at all.
fn busy_cpu(table: &str, numbers: &[String]) -> Option<usize> {
    let mut lines = table.lines();
    let cpus: Vec<usize> = lines
        .next()?
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("CPU")?.parse().ok())
        .collect();
    let mut came = vec![0_u64; cpus.len()];
    for line in lines {
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|word| word.strip_suffix(':'));
        if number.is_some_and(|number| numbers.iter().any(|one| one == number)) {
            let counts = words.map_while(|word| word.parse::<u64>().ok());
            came.iter_mut()
                .zip(counts)
                .for_each(|(sum, one)| *sum += one);
        }
    }
    let all: u64 = came.iter().sum();
    let (most, place) = came.iter().zip(0..).max()?;
    // A few may have come elsewhere before it was settled.
    (*most > 0 && most * 10 >= all * 9).then(|| cpus[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "           CPU0       CPU1       CPU3\n 35:          0          1          0  PCI-MSIX  0-edge  virtio1-config\n 36:          2          3    5702073  PCI-MSIX  1-edge  virtio1-req.0\n 37:       9000       9000       9000  PCI-MSIX  0-edge  virtio2-config\nNMI:          1          1          1  Non-maskable\n";

    fn of(numbers: &[&str]) -> Option<usize> {
        let numbers: Vec<String> = numbers.iter().map(|&number| number.into()).collect();
        busy_cpu(TABLE, &numbers)
    }

    #[test]
    fn the_cpu_where_nearly_all_came_is_told() {
        assert_eq!(of(&["35", "36"]), Some(3));
    }

    #[test]
    fn of_a_disk_whose_interrupts_come_everywhere_or_never_none_is() {
        assert_eq!(of(&["37"]), None);
        assert_eq!(of(&["99"]), None);
        assert_eq!(busy_cpu("", &["36".into()]), None);
    }

    #[test]
    fn where_there_is_no_disk_nothing_is_known() {
        assert_eq!(of_disk_under(Path::new("/proc")), None);
        assert_eq!(of_disk_under(Path::new("/nowhere")), None);
    }
}
