//! The allowed dependencies between crates.
//!
//! A crate's tests are held to the same arrows, so that what a crate needs to be tested is no more than it needs.

use super::{Finding, finding};
use crate::workspace::Package;

/// Each of our crates, and those of ours that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("tidegate-api", &[]),
    ("tidegate-core", &[]),
    ("tidegate-model", &[]),
    ("tidegate-testing", &[]),
    ("tidegate-front", &["tidegate-core"]),
    (
        "tidegate-engine",
        &["tidegate-core", "tidegate-front", "tidegate-model"],
    ),
    ("tidegate-sim", &["tidegate-core", "tidegate-model"]),
    (
        "tidegate-lab",
        &[
            "tidegate-api",
            "tidegate-core",
            "tidegate-model",
            "tidegate-sim",
            "tidegate-engine",
            "tidegate-testing",
        ],
    ),
    (
        "tidegate-daemon",
        &["tidegate-api", "tidegate-core", "tidegate-engine"],
    ),
    (
        "tidegate",
        &[
            "tidegate-api",
            "tidegate-daemon",
            "tidegate-lab",
            "tidegate-testing",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that must build with nothing of anybody's.
const ALONE: &[&str] = &["tidegate-core"];

/// Crates of others that only some of ours may build with.
const KEPT_TO: &[(&str, &[&str])] = &[("tokio", &["tidegate-daemon", "tidegate"])];

pub(super) fn findings(packages: &[Package]) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in packages {
        let name = package.name.as_str();
        let Some((_, allowed)) = ARROWS.iter().find(|(ours, _)| *ours == name) else {
            let says = "a new crate: write a decision record, then add its arrows to xtask/src/tidy/arrows.rs";
            found.push(finding(name, 0, says));
            continue;
        };
        for need in package.needs.iter().chain(&package.dev) {
            let ours = ARROWS.iter().any(|(ours, _)| ours == need);
            // A crate may name itself among its tests' needs, to switch a feature on.
            if ours && need != name && !allowed.contains(&need.as_str()) {
                found.push(finding(
                    name,
                    0,
                    format!("must not depend on {need}: arrows point one way"),
                ));
            }
        }
        for need in &package.needs {
            if ALONE.contains(&name) {
                found.push(finding(
                    name,
                    0,
                    format!("depends on {need}, but is to depend on nothing"),
                ));
            }
            let kept = KEPT_TO.iter().find(|(theirs, _)| theirs == need);
            if kept.is_some_and(|(_, to)| !to.contains(&name)) {
                found.push(finding(
                    name,
                    0,
                    format!("depends on {need}, which is kept to the daemon"),
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, needs: &[&str], dev: &[&str]) -> Package {
        let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Package {
            name: name.to_owned(),
            needs: own(needs),
            dev: own(dev),
            targets: Vec::new(),
        }
    }

    fn says(package: Package) -> Vec<String> {
        findings(&[package])
            .into_iter()
            .map(|f| f.to_string())
            .collect()
    }

    #[test]
    fn an_arrow_that_is_drawn_passes() {
        assert!(
            says(package(
                "tidegate-engine",
                &["tidegate-core", "libc"],
                &["tempfile"]
            ))
            .is_empty()
        );
    }

    #[test]
    fn an_arrow_that_points_back_is_found_among_tests_too() {
        let back = ["tidegate-front: must not depend on tidegate-engine: arrows point one way"];
        assert_eq!(
            says(package("tidegate-front", &["tidegate-engine"], &[])),
            back
        );
        assert_eq!(
            says(package("tidegate-front", &[], &["tidegate-engine"])),
            back
        );
    }

    #[test]
    fn the_words_outside_and_the_decisions_do_not_know_each_other() {
        assert_eq!(
            says(package("tidegate-api", &["tidegate-core"], &[])).len(),
            1
        );
    }

    #[test]
    fn a_new_crate_is_found() {
        assert!(says(package("tidegate-extra", &[], &[]))[0].contains("decision record"));
    }

    #[test]
    fn core_builds_with_nothing_but_may_be_tested_with_others() {
        assert_eq!(
            says(package("tidegate-core", &["log"], &["proptest"])).len(),
            1
        );
    }

    #[test]
    fn tokio_outside_the_daemon_is_found() {
        assert_eq!(says(package("tidegate-engine", &["tokio"], &[])).len(), 1);
        assert!(says(package("tidegate-daemon", &["tokio"], &[])).is_empty());
    }
}
