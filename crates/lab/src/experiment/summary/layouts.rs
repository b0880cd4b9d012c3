//! Disks with layouts in words: where their members are, and what happens to them.

use super::bytes;
use tidegate_sim::Scenario;
use tidegate_sim::scenario::{Disk, MemberChange, Phase};

/// Where a disk lies, with the space behind it; empty for one image of the only array.
pub(super) fn place(scenario: &Scenario, disk: &Disk) -> String {
    let arrays: Vec<String> = disk.members.iter().map(usize::to_string).collect();
    match (scenario.has_layouts(), arrays.as_slice()) {
        (false, _) => String::new(),
        (true, [array]) => format!("on array {array}: "),
        (true, arrays) => format!("{} on arrays {}: ", disk.layout, arrays.join(", ")),
    }
}

/// How a guest uses its disk, beside its workload: its working set, a scan, a cache.
pub(super) fn use_of(disk: &Disk) -> String {
    let set = disk.working_set.map(bytes);
    let set = set.map(|set| format!(", in a working set of {set}"));
    let scan = disk.scan.map(bytes);
    let scan = scan.map(|size| format!(", beside a scan by {size}"));
    let cached = if disk.cached { "; cached" } else { "" };
    let fresh = if disk.fresh {
        "; a pool has none of it at first"
    } else {
        ""
    };
    format!(
        "{}{}{cached}{fresh}",
        set.unwrap_or_default(),
        scan.unwrap_or_default()
    )
}

/// How many datastores there are, if several.
pub(super) fn arrays(scenario: &Scenario, each: &str) -> String {
    match scenario.datastore.arrays {
        1 => each.to_owned(),
        arrays => format!("{arrays} datastores, each on {each}"),
    }
}

/// What happens to members at the beginning of a phase.
pub(super) fn changes(scenario: &Scenario, phase: &Phase) -> impl Iterator<Item = String> {
    phase.members.iter().map(|change| {
        let MemberChange {
            disk,
            member,
            removes,
        } = *change;
        let disk = &scenario.disks[disk].name;
        match removes {
            true => format!("member {member} of {disk} is removed"),
            false => format!("member {member} of {disk} is added and rebuilt"),
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::experiment::fixtures::entry;
    use crate::experiment::summary::SetUp;

    #[test]
    fn an_experiment_says_which_disks_are_cached_and_what_they_use() {
        let summary = entry("flash-cache-scan", 100).summary();
        let why = summary.only_simulated.expect("daemons do not play it");
        assert!(why.contains("in turn"), "{why}");
        assert_eq!(entry("flash-cache", 100).summary().only_simulated, None);
        for name in ["pools", "vsan-scaling"] {
            let why = entry(name, 100).summary().only_simulated;
            assert!(why.is_some_and(|why| why.contains("pools")), "{name}");
        }
        assert_eq!(summary.ways, ["with a cache", "with no cache"]);
        let SetUp::Scenario(set_up) = &summary.set_up else {
            panic!("it is a scenario");
        };
        let ends = "in a working set of 231 MiB, beside a scan by 256 KiB; cached";
        let workload = &set_up.disks[1].workload;
        assert!(workload.ends_with(ends), "{workload}");
    }

    #[test]
    fn an_experiment_says_where_members_are_and_what_happens_to_them() {
        let summary = entry("mirror-rebuild", 100).summary();
        assert_eq!(summary.only_simulated, None);
        let SetUp::Scenario(set_up) = &summary.set_up else {
            panic!("it is a scenario");
        };
        let begins = "2 datastores, each on a modelled array";
        assert!(set_up.datastore.starts_with(begins), "{set_up:?}");
        let disk = &set_up.disks[0];
        let begins = "mirror on arrays 0, 1: 1 outstanding";
        assert!(disk.workload.starts_with(begins), "{disk:?}");
        let lost = &set_up.phases[1].changes;
        assert_eq!(*lost, ["member 1 of db1 is removed"]);
        let rebuild = &set_up.phases[2].changes;
        assert_eq!(*rebuild, ["member 1 of db1 is added and rebuilt"]);
    }
}
