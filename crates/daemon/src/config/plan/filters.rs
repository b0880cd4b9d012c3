//! The stack of a disk: parses its words into the settings of its filters.
//!
//! The filters parse their own options. This module makes one stack of them and checks the paths of the files that
//! some of them write.

use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_api::descriptor::Descriptor;
use tidegate_api::problem::Problem;
use tidegate_core::filter::trace::format::TracedDisk;
use tidegate_core::filter::{FilterSpec, MAX_FILTERS};

use crate::clock;
use crate::os_error::{self, Outcome};
use crate::text::shell;

/// The filters of a disk, top (the guest's end) first.
pub(crate) type Stack = Vec<FilterSpec>;

/// Parses these words into a stack.
pub(crate) fn stack(words: &[String], disk: &str, traced: TracedDisk) -> Outcome<Stack> {
    if words.len() > MAX_FILTERS {
        return Err(bad(disk)
            .because(format!("it has {} filters", words.len()))
            .remedy(format!("leave some out: a stack has at most {MAX_FILTERS}")));
    }
    words
        .iter()
        .map(|text| {
            let mut spec: FilterSpec = text.trim().parse().map_err(|e| bad(disk).because_of(&e))?;
            if let FilterSpec::Trace(trace) = &mut spec {
                if !Path::new(&trace.path).is_absolute() {
                    return Err(bad(disk)
                        .because(format!(
                            "the trace file {} is not an absolute path",
                            trace.path
                        ))
                        .remedy("give an absolute path: trace:path=/var/tmp/NAME.trace"));
                }
                trace.disk = traced;
            }
            Ok(spec)
        })
        .collect()
}

/// The file that a filter writes, if it writes one.
pub(crate) fn file_of(words: &str) -> Option<PathBuf> {
    match words.trim().parse() {
        Ok(FilterSpec::Trace(trace)) => Some(trace.path.into()),
        _ => None,
    }
}

/// Whether a filter writes a file whose path contains `..`. Such a path does not determine where the file is, so it
/// cannot be checked against the allowlist.
pub(crate) fn has_parent(words: &str) -> bool {
    file_of(words).is_some_and(|file| file.components().any(|part| part == Component::ParentDir))
}

/// Refuses filters that a command adds, if their paths contain `..`.
pub(crate) fn must_say_where(words: &[String], before: &[String], disk: &str) -> Outcome<()> {
    let new = words.iter().filter(|words| !before.contains(words));
    match new.into_iter().find(|words| has_parent(words)) {
        Some(words) => Err(parent_in(words, disk).remedy("write the path without `..`")),
        None => Ok(()),
    }
}

/// The problem of a filter whose path contains `..`.
pub(crate) fn parent_in(words: &str, disk: &str) -> Problem {
    let file = file_of(words).unwrap_or_default();
    bad(disk)
        .because(format!(
            "the path of the trace file {} has `..` in it",
            file.display()
        ))
        .remedy(without_parent(words, disk))
}

/// The commands that rewrite such a filter, with the path that it seems to mean.
pub(crate) fn without_parent(words: &str, disk: &str) -> String {
    let file = file_of(words).unwrap_or_default();
    let mut plain = PathBuf::new();
    for part in file.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    let (file, plain) = (file.display().to_string(), plain.display().to_string());
    let (old, new) = (shell(words), shell(&words.replace(&file, &plain)));
    format!("replace it: tidegate filter remove {disk} {old}; tidegate filter add {disk} {new}")
}

/// The description of a disk in its trace.
pub(crate) fn traced(descriptor: &Descriptor) -> TracedDisk {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    let wall = u64::try_from(wall).unwrap_or(0);
    TracedDisk {
        uuid: descriptor.uuid.0,
        size: descriptor.size.0,
        unix_origin: wall.saturating_sub(clock::now().as_nanos()),
    }
}

fn bad(disk: &str) -> Problem {
    os_error::invalid(format!("the filters of disk {disk} are invalid")).remedy(
        "write each as NAME or NAME:key=value,... (see docs/filters, or `tidegate filter add --help`)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_stack_keeps_its_order() {
        let stack = stack(
            &words(&["stats", " null ", "null"]),
            "a",
            TracedDisk::default(),
        )
        .unwrap();
        assert_eq!(
            stack,
            [FilterSpec::Stats, FilterSpec::Null, FilterSpec::Null]
        );
    }

    #[test]
    fn a_filter_that_does_not_exist_is_refused_by_the_disks_name() {
        let text = stack(&words(&["stast"]), "db1", TracedDisk::default())
            .unwrap_err()
            .to_string();
        assert!(text.contains("db1") && text.contains("stast"), "{text}");
    }

    #[test]
    fn a_stack_too_tall_and_a_trace_without_a_place_are_refused() {
        assert!(
            stack(
                &vec!["null".to_owned(); MAX_FILTERS + 1],
                "a",
                TracedDisk::default()
            )
            .is_err()
        );
        assert!(
            stack(
                &words(&["trace:path=here.trace"]),
                "a",
                TracedDisk::default()
            )
            .is_err()
        );
        for path in ["/var/tmp/../a.trace", "/..", "/var/.."] {
            let words = words(&[&format!("trace:path={path}")]);
            let refused = must_say_where(&words, &[], "a").unwrap_err();
            assert!(refused.to_string().contains("has `..` in it"), "{refused}");
            // An older version accepted it, so a command that does not change it must not fail.
            must_say_where(&words, &words, "a").unwrap();
            stack(&words, "a", TracedDisk::default()).unwrap();
        }
        assert!(
            stack(
                &words(&["trace:path=/var/tmp/a.trace"]),
                "a",
                TracedDisk::default()
            )
            .is_ok()
        );
    }

    #[test]
    fn a_filter_with_a_path_that_leads_up_is_written_anew_by_two_commands() {
        assert_eq!(
            without_parent("trace:path=/var/tmp/../a b.trace", "a"),
            "replace it: tidegate filter remove a 'trace:path=/var/tmp/../a b.trace'; \
             tidegate filter add a 'trace:path=/var/a b.trace'"
        );
    }
}
