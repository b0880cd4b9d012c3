//! Tables of policies, and their place in the manual.
//!
//! # Always true
//! - the manual's text outside the markers stays as it is

use super::evaluate::{AUTO, Accesses, POLICIES, SINGLE, each_block};
use super::requests::{Request, load};
use super::workloads;
use std::fmt::Write;
use std::path::Path;

/// The manual that has the tables.
pub const MANUAL: &str = "docs/flash-cache.md";

/// The recorded requests of the tables.
pub const RECORDED: &str = "scenarios/traces/cloudphysics.pack";

const BEGIN: &str = "<!-- begin of what `cargo xtask cache-policies` writes -->\n";
const END: &str = "<!-- end of what `cargo xtask cache-policies` writes -->";

/// Sizes of the cache, in percent of the touched blocks.
const SIZES: [u64; 5] = [1, 2, 4, 8, 16];

/// The size in the table of several workloads.
const SIZE: u64 = 8;

/// All tables of the manual.
///
/// # Errors
/// The recorded requests, looked for below `root`, cannot be read.
pub fn manual(root: &Path) -> Result<String, String> {
    let recorded = load(&root.join(RECORDED))?;
    let mut text = format!("\nRecorded requests of one VM:\n\n{}", by_size(&recorded)?);
    let made = made_up();
    let _ = write!(
        text,
        "\nParts of the recording, and other ways to count, cache of {SIZE} %:\n\n{}",
        parts(&recorded)?
    );
    let _ = write!(text, "\nMade-up requests, cache of {SIZE} %:\n\n| policy |");
    for workload in &made {
        let _ = write!(text, " {} |", workload.name);
    }
    text += &format!("\n|---|{}\n", "---|".repeat(made.len()));
    let accesses: Result<Vec<_>, _> = made.iter().map(|it| Accesses::of(&it.requests)).collect();
    let accesses = accesses?;
    for policy in POLICIES {
        let _ = write!(text, "| {} |", policy.name);
        for accesses in &accesses {
            let outcome = accesses.run(policy, accesses.slots(SIZE));
            let _ = write!(text, " {} |", cell(outcome.miss(), outcome.flash()));
        }
        text.push('\n');
    }
    Ok(text)
}

/// The workloads of the manual.
pub fn made_up() -> Vec<workloads::Workload> {
    vec![
        workloads::zipf(1 << 16, 1.0, 300_000),
        workloads::zipf_drift(1 << 16, 300_000),
        workloads::repeated(1 << 14, 200_000),
        workloads::zipf_scan(1 << 15, 300_000),
        workloads::write_heavy(1 << 15, 300_000),
    ]
}

/// Policies by size of the cache.
///
/// # Errors
/// A request lies beyond what a disk can have.
pub fn by_size(requests: &[Request]) -> Result<String, String> {
    let accesses = Accesses::of(requests)?;
    let mut text = String::from("| policy |");
    for size in SIZES {
        let _ = write!(text, " {size} % |");
    }
    text += &format!("\n|---|{}\n", "---|".repeat(SIZES.len()));
    for policy in POLICIES {
        let _ = write!(text, "| {} |", policy.name);
        for size in SIZES {
            let outcome = accesses.run(policy, accesses.slots(size));
            let _ = write!(text, " {} |", cell(outcome.miss(), outcome.flash()));
        }
        text.push('\n');
    }
    Ok(text)
}

/// Parts of the recording, and each block as a request, with the best of the single policies beside `auto`.
fn parts(requests: &[Request]) -> Result<String, String> {
    let (first, second) = requests.split_at(requests.len() / 2);
    let reads: Vec<Request> = requests.iter().filter(|it| !it.is_write).copied().collect();
    let blocks = each_block(requests);
    let parts = [
        ("all", requests),
        ("first half of the requests", first),
        ("second half", second),
        ("reads only", &reads),
        ("each block is a request of its own", &blocks),
    ];
    let mut text = String::from("| part | best single | FAST rule | auto |\n|---|---|---|---|\n");
    for (name, requests) in parts {
        let accesses = Accesses::of(requests)?;
        let slots = accesses.slots(SIZE);
        let single = POLICIES.iter().filter(|it| SINGLE.contains(&it.name));
        let single: Vec<_> = single
            .map(|it| (it.name, accesses.run(*it, slots)))
            .collect();
        let best = single
            .iter()
            .min_by(|a, b| a.1.miss().total_cmp(&b.1.miss()));
        let fast = single.iter().find(|(name, _)| *name == "FAST rule");
        let (Some((best_name, best)), Some((_, fast))) = (best, fast) else {
            continue;
        };
        let auto = accesses.run(AUTO, slots);
        let best = cell(best.miss(), best.flash());
        let fast = cell(fast.miss(), fast.flash());
        let auto = cell(auto.miss(), auto.flash());
        let _ = writeln!(text, "| {name} | {best} ({best_name}) | {fast} | {auto} |");
    }
    Ok(text)
}

fn cell(miss: f64, flash: f64) -> String {
    format!("{:.1} % / {flash:.2}", miss * 100.0)
}

/// The manual's text with other tables.
///
/// # Errors
/// It has no markers.
pub fn replaced(manual: &str, tables: &str) -> Result<String, String> {
    replaced_between(manual, BEGIN, END, tables)
}

/// The manual's text with another text between the marks of a command.
///
/// # Errors
/// The marks are missing.
pub fn between(manual: &str, command: &str, text: &str) -> Result<String, String> {
    let begin = format!("<!-- begin of what `{command}` writes -->\n\n");
    let end = format!("<!-- end of what `{command}` writes -->");
    replaced_between(manual, &begin, &end, text)
}

fn replaced_between(manual: &str, begin: &str, end: &str, text: &str) -> Result<String, String> {
    let missing = || format!("{MANUAL} has no place for the tables");
    let (before, rest) = manual.split_once(begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}{text}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let manual = format!("above\n{BEGIN}old{END}\nbelow\n");
        let expected = format!("above\n{BEGIN}new\n{END}\nbelow\n");
        assert_eq!(replaced(&manual, "new").as_ref(), Ok(&expected));
        assert_eq!(replaced(&expected, "new"), Ok(expected.clone()));
        assert!(replaced("nothing", "new").is_err());
    }
}
