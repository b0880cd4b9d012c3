//! The naming rule: names that were replaced by standard terms must not come back.
//!
//! A type or function is looked for as a word of the code, a module as a file's name. Each entry holds in one folder: the
//! same word may be right elsewhere.

use super::language::{code, words};
use super::{Finding, Tree, finding};

/// Folder, old identifier, standard term.
const IDENTIFIERS: &[(&str, &str, &str)] = &[
    ("crates/core/src", "Lot", "IoSampler"),
    ("crates/core/src", "Door", "Gate"),
    ("crates/core/src", "Turns", "Schedulers"),
    ("crates/core/src", "Toll", "QosState"),
    ("crates/core/src", "stir", "mark_ready"),
    ("crates/core/src", "let_go_of", "dispatch"),
    ("crates/core/src", "turn_away", "hold_or_reject"),
    ("crates/core/src", "Want", "Command or Demand"),
    ("crates/core/src", "Aside", "Diverted"),
    ("crates/core/src", "Walk", "StackCx"),
    ("crates/core/src", "Edge", "StackExit"),
    ("crates/engine/src", "Desk", "ThreadCx"),
    ("crates/engine/src", "Habits", "ThreadConfig"),
    ("crates/engine/src", "Lane", "ImageCx"),
    ("crates/engine/src", "obey", "handle"),
    ("crates/engine/src", "letters", "messages"),
    ("crates/engine/src", "Errand", "BlockingJob"),
    ("crates/engine/src", "Patience", "AdaptivePoll"),
    ("crates/engine/src", "Uncalled", "PendingInterrupts"),
    ("crates/engine/src", "Tender", "Renewer"),
    ("crates/engine/src", "Carrier", "SlotIo"),
    ("crates/engine/src", "Ledger", "Accounts"),
    ("crates/engine/src", "Haul", "ChunkedCopy"),
    ("crates/engine/src", "Tripwire", "TruncationGuard"),
    ("crates/sim/src", "Safety", "Invariants"),
    ("crates/daemon/src", "Keeper", "DiskService"),
    ("crates/daemon/src", "Lookout", "Monitor"),
    ("crates/daemon/src", "CloseUp", "DiskSample"),
    ("crates/daemon/src", "Past", "History"),
    ("crates/daemon/src", "Course", "Timeline"),
    ("crates/daemon/src", "Moment", "Counters"),
    ("crates/daemon/src", "Hall", "ConnectionLimits"),
    ("crates/daemon/src", "keeper", "disk_service"),
    ("crates/daemon/src", "lookout", "monitor"),
    ("crates/testing/src", "Station", "GuestDriver"),
    ("crates/lab/src", "Rival", "Variant"),
    ("crates/lab/src", "Racer", "Work"),
    ("crates/lab/src", "Kept", "StoredRun"),
    ("crates/lab/src", "About", "Summary"),
    ("crates/lab/src", "Contest", "AbTest"),
    ("crates/lab/src", "Contested", "AbResults"),
    ("crates/lab/src", "Door", "Target"),
];

/// Folder, old file name without its ending, standard term.
const FILES: &[(&str, &str, &str)] = &[
    ("crates/core/src", "lot", "sampler"),
    ("crates/core/src", "door", "gate"),
    ("crates/core/src", "turns", "dispatch"),
    ("crates/engine/src", "deeds", "effects"),
    ("crates/engine/src", "orders", "commands"),
    ("crates/engine/src", "errand", "blocking"),
    ("crates/engine/src", "patience", "adaptive_poll"),
    ("crates/engine/src", "rest", "sleep"),
    ("crates/engine/src", "uncalled", "pending_interrupts"),
    ("crates/engine/src", "calls", "interrupt_moderation"),
    ("crates/engine/src", "tender", "renewer"),
    ("crates/engine/src", "rounds", "governor_thread"),
    ("crates/engine/src", "carrier", "slot_io"),
    ("crates/engine/src", "ledger", "accounts"),
    ("crates/engine/src", "feed", "batch_smoothing"),
    ("crates/engine/src", "haul", "chunked_copy"),
    ("crates/engine/src", "tripwire", "truncation_guard"),
    ("crates/engine/src", "alarm", "syscall_timeout"),
    ("crates/engine/src", "line", "connection"),
    ("crates/sim/src", "way", "io_path"),
    ("crates/sim/src", "safety", "invariants"),
    ("crates/daemon/src", "keeper", "disk_service"),
    ("crates/daemon/src", "lookout", "monitor"),
    ("crates/daemon/src", "again", "attach_retry"),
    ("crates/daemon/src", "looks", "timed_scan"),
    ("crates/daemon/src", "agreed", "path_allowlist"),
    ("crates/daemon/src", "follow", "remote_changes"),
    ("crates/daemon/src", "beat", "host_sample"),
    ("crates/daemon/src", "close_up", "disk_sample"),
    ("crates/daemon/src", "past", "history"),
    ("crates/daemon/src", "moment", "counters"),
    ("crates/daemon/src", "door", "listener"),
    ("crates/daemon/src", "hall", "connection_limits"),
    ("crates/daemon/src", "owner", "peer_uid"),
    ("crates/daemon/src", "live", "attached"),
    ("crates/daemon/src", "trouble", "os_error"),
    ("crates/daemon/src", "course", "timeline"),
    ("crates/testing/src", "station", "guest_driver"),
    ("crates/lab/src", "closely", "interleaved"),
    ("crates/lab/src", "lanes", "variant"),
    ("crates/lab/src", "stillness", "machine"),
    ("crates/lab/src", "distance", "machine"),
    ("crates/lab/src", "spoiled", "machine"),
    ("crates/lab/src", "noise", "machine"),
    ("crates/lab/src", "contest", "ab_test"),
    ("crates/lab/src", "told", "describe"),
    ("crates/lab/src", "kept", "store"),
    ("crates/lab/src", "course", "runner"),
    ("crates/lab/src", "about", "summary"),
    ("crates/testing/src", "line", "async_connection"),
];

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.texts(".rs") {
        found.extend(file(path));
        found.extend(identifiers(path, text));
    }
    found
}

fn within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

fn file(path: &str) -> Option<Finding> {
    let name = path.rsplit('/').next()?.strip_suffix(".rs")?;
    let old = |(folder, old, _): &&(&str, &str, &str)| within(path, folder) && *old == name;
    let (_, _, new) = FILES.iter().find(old)?;
    Some(finding(
        path,
        0,
        format!("the standard term for `{name}` is `{new}`"),
    ))
}

fn identifiers(path: &str, text: &str) -> Vec<Finding> {
    let here: Vec<_> = IDENTIFIERS
        .iter()
        .filter(|(folder, ..)| within(path, folder))
        .collect();
    if here.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (n, line) in code(text).lines().enumerate() {
        for word in words(line) {
            if let Some((_, old, new)) = here.iter().find(|(_, old, _)| *old == word) {
                found.push(finding(
                    path,
                    n + 1,
                    format!("the standard term for `{old}` is `{new}`"),
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_is_found_in_its_folder_and_nowhere_else() {
        let text = "//! Lot.\nstruct Lot;\n";
        let found = findings(&Tree::of(&[
            ("crates/core/src/iocontrol/sampler.rs", text),
            ("crates/core/src/lot.rs", "//! x\n"),
            ("crates/sim/src/lot.rs", text),
        ]));
        let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "crates/core/src/iocontrol/sampler.rs:2: the standard term for `Lot` is `IoSampler`",
                "crates/core/src/lot.rs: the standard term for `lot` is `sampler`",
            ]
        );
    }
}
