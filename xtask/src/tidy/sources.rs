//! The source rules: a header, a place in the build, no leftovers, and `unsafe` in one folder only.
//!
//! A test file that cargo never builds looks as if it tested something: every file must be reachable from a
//! target by `mod`, `#[path]` or `include!`.

use super::language::{code, words};
use super::{Finding, Tree, finding};
use crate::workspace::Package;
use std::collections::BTreeSet;

/// The only place for `unsafe`.
const UNSAFE: &str = "crates/engine/src/sys";

/// What must not be left behind. In halves, so that this file does not contain them.
const LEFTOVERS: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
];

pub(super) fn findings(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.texts(".rs") {
        found.extend(header(path, text));
        found.extend(unsafety(path, text));
    }
    for ending in [".rs", ".toml", ".md", ".sh", ".yml"] {
        for (path, text) in tree.texts(ending) {
            found.extend(leftovers(path, text));
        }
    }
    found.extend(forgotten(tree, packages));
    found.extend(undocumented_filters(tree));
    found
}

fn header(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    if !text.starts_with("//!") {
        found.push(finding(
            path,
            1,
            "opens with no `//!` header: say in one sentence what it does, for whom",
        ));
    }
    found.extend(first_sentence(path, text));
    if path.ends_with("/mod.rs") {
        found.push(finding(
            path,
            0,
            "is a mod.rs: name it after its module, beside the folder",
        ));
    }
    found
}

/// The most words of a first sentence.
const FIRST_SENTENCE: usize = 25;

/// Words that make a riddle of a first sentence: it is to name its subject first.
const RIDDLES: &[&str] = &[
    "What", "Who", "Whose", "Whom", "Which", "How", "When", "Where", "Whether", "Why", "Of", "From",
];

/// The header's first sentence is short and names its subject first.
fn first_sentence(path: &str, text: &str) -> Option<Finding> {
    let header: Vec<&str> = text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .take_while(|line| !line.trim().is_empty())
        .collect();
    let header = header.join(" ");
    let end = header.find(". ").unwrap_or(header.len());
    let sentence: Vec<&str> = header[..end].split_whitespace().collect();
    let first = sentence.first()?;
    if RIDDLES.contains(first) {
        let says = format!("its first sentence begins with `{first}`: name the thing first");
        return Some(finding(path, 1, says));
    }
    let count = sentence.len();
    (count > FIRST_SENTENCE).then(|| {
        let says = format!("its first sentence has {count} words: at most {FIRST_SENTENCE}");
        finding(path, 1, says)
    })
}

fn unsafety(path: &str, text: &str) -> Vec<Finding> {
    if path.starts_with(&format!("{UNSAFE}/")) || path == format!("{UNSAFE}.rs") {
        return Vec::new();
    }
    let code = code(text);
    let lines = code.lines().enumerate();
    let guilty = lines.filter(|(_, line)| words(line).any(|word| word == "unsafe"));
    guilty
        .map(|(n, _)| finding(path, n + 1, format!("`unsafe` belongs in {UNSAFE}/ only")))
        .collect()
}

fn leftovers(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        for leftover in LEFTOVERS {
            let parted = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
            let mut hits = line.match_indices(leftover);
            if hits.any(|(at, hit)| {
                parted(line[..at].chars().next_back())
                    && parted(line[at + hit.len()..].chars().next())
                    || parted(line[..at].chars().next_back()) && hit.ends_with('!')
            }) {
                found.push(finding(
                    path,
                    n + 1,
                    format!("{leftover} is left over: do it, or open an issue"),
                ));
            }
        }
    }
    found
}

fn forgotten(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let mut reached = BTreeSet::new();
    let mut found = Vec::new();
    for target in packages.iter().flat_map(|package| &package.targets) {
        reach(tree, &target.path, true, &mut reached);
    }
    for (path, _) in tree.texts(".rs") {
        let ours = path.starts_with("crates/") || path.starts_with("xtask/");
        if ours && !reached.contains(path) {
            found.push(finding(
                path,
                0,
                "is never built: declare it as a module or a target, or delete it",
            ));
        }
        if let Some(name) = path.strip_prefix("fuzz/")
            && name.starts_with("fuzz_targets/")
            && !tree
                .text("fuzz/Cargo.toml")
                .is_some_and(|manifest| manifest.contains(name))
        {
            found.push(finding(
                path,
                0,
                "is no target of fuzz/Cargo.toml: nobody fuzzes it",
            ));
        }
    }
    found
}

/// Marks `path` and what it declares; `root` if it is a target's first file, whose modules lie beside it.
fn reach(tree: &Tree, path: &str, root: bool, reached: &mut BTreeSet<String>) {
    let Some(text) = tree.text(path) else { return };
    if !reached.insert(path.to_owned()) {
        return;
    }
    let beside = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let below = if root {
        beside.to_owned()
    } else {
        path.trim_end_matches(".rs").to_owned()
    };
    let code = code(text);
    let mut named = None;
    for (line, raw) in code.lines().zip(text.lines()) {
        if line.trim_start().starts_with("#[path") {
            named = raw.split('"').nth(1).map(|file| resolve(beside, file));
        }
        if line.contains("include!(")
            && let Some(file) = raw.split('"').nth(1)
        {
            reach(tree, &resolve(beside, file), false, reached);
        }
        let Some(module) = declared(line) else {
            continue;
        };
        let file = named
            .take()
            .unwrap_or_else(|| format!("{below}/{module}.rs"));
        reach(tree, &file, false, reached);
    }
}

/// The module that a line of code declares without its body.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim();
    let line = line.rsplit_once("mod ").filter(|(before, _)| {
        before.is_empty()
            || before.ends_with("pub ")
            || before.ends_with(") ")
            || before.ends_with("] ")
    })?;
    line.1.strip_suffix(';').map(str::trim)
}

/// A path that is told from a folder.
pub(super) fn resolve(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Each filter has a manual page.
fn undocumented_filters(tree: &Tree) -> Vec<Finding> {
    const FILTERS: &str = "crates/core/src/filter/";
    let mut found = Vec::new();
    for (path, text) in tree.texts(".rs") {
        let Some(name) = path
            .strip_prefix(FILTERS)
            .map(|file| file.trim_end_matches(".rs"))
        else {
            continue;
        };
        let shipped = code(text);
        let shipped = shipped.split("#[cfg(test)]").next().unwrap_or_default();
        if name.contains('/') || !shipped.contains("Filter for ") {
            continue;
        }
        let manual = format!("docs/filters/{}.md", name.replace('_', "-"));
        if !tree.has(&manual) {
            found.push(finding(
                path,
                0,
                format!("is a filter without a manual page: write {manual}"),
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Target;

    fn says(files: &[(&str, &str)]) -> Vec<String> {
        let roots = [
            "crates/a/src/lib.rs",
            "crates/a/tests/whole.rs",
            "crates/a/tests/e2e/main.rs",
        ];
        let targets = roots.map(|path| Target {
            name: String::new(),
            kind: String::new(),
            path: path.to_owned(),
        });
        let package = Package {
            targets: targets.into(),
            ..Package::default()
        };
        findings(&Tree::of(files), &[package])
            .into_iter()
            .map(|f| f.to_string())
            .collect()
    }

    #[test]
    fn a_first_sentence_is_short_and_names_its_subject_first() {
        let of = |header: &str| first_sentence("crates/a/src/b.rs", header).map(|f| f.says);
        assert_eq!(of("//! The gate of a disk. What follows is free.\n"), None);
        assert!(of("//! What a gate is.\n").is_some_and(|says| says.contains("`What`")));
        let long = format!("//! The {}end.\n", "long ".repeat(24));
        assert!(of(&long).is_some_and(|says| says.contains("26 words")));
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert!(says(&[("crates/a/src/lib.rs", "//! Does.\n")]).is_empty());
        assert!(
            says(&[("crates/a/src/lib.rs", "fn f() {}\n")])[0]
                .starts_with("crates/a/src/lib.rs:1:")
        );
    }

    #[test]
    fn a_mod_rs_is_found() {
        let found = says(&[
            (
                "crates/a/src/lib.rs",
                "//! A.\n#[path = \"b/mod.rs\"]\nmod b;\n",
            ),
            ("crates/a/src/b/mod.rs", "//! B.\n"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("is a mod.rs"));
    }

    #[test]
    fn unsafe_code_is_found_outside_its_folder_but_not_in_words_about_it() {
        let guilty = "//! A.\n// unsafe\nfn f() { g(\"unsafe\"); unsafe { h() } }\n#![forbid(unsafe_code)]\n";
        let found = says(&[("crates/a/src/lib.rs", guilty)]);
        assert_eq!(
            found,
            ["crates/a/src/lib.rs:3: `unsafe` belongs in crates/engine/src/sys/ only"]
        );
        assert!(unsafety("crates/engine/src/sys/ring.rs", guilty).is_empty());
        assert!(!unsafety("crates/engine/src/system.rs", guilty).is_empty());
    }

    #[test]
    fn leftovers_are_found_in_code_and_documents() {
        for leftover in LEFTOVERS {
            let text = format!("//! A.\n// {leftover} later\n");
            assert_eq!(
                says(&[("crates/a/src/lib.rs", &text)]).len(),
                1,
                "{leftover}"
            );
            assert_eq!(says(&[("docs/a.md", &text)]).len(), 1, "{leftover}");
        }
        assert!(says(&[("docs/a.md", concat!("mktemp XX", "XXXX"))]).is_empty());
    }

    #[test]
    fn a_module_that_nobody_declares_is_found() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "//! A.\npub mod b;\n#[cfg(test)] pub(crate) mod c;\n// mod d;\n",
            ),
            ("crates/a/src/b.rs", "//! B.\nmod e;\n"),
            ("crates/a/src/b/e.rs", "//! E.\n"),
            ("crates/a/src/c.rs", "//! C.\n"),
            ("crates/a/src/d.rs", "//! D.\n"),
        ];
        let found = says(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/a/src/d.rs: is never built"));
    }

    #[test]
    fn a_test_file_that_cargo_does_not_build_is_found() {
        let files = [
            (
                "crates/a/tests/whole.rs",
                "//! A.\n#[path = \"../shared/body.rs\"]\nmod body;\n",
            ),
            ("crates/a/shared/body.rs", "//! B.\n"),
            ("crates/a/tests/e2e/main.rs", "//! A.\nmod guest;\n"),
            ("crates/a/tests/e2e/guest.rs", "//! G.\n"),
            ("crates/a/tests/e2e/forgotten.rs", "//! F.\n"),
        ];
        let found = says(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/a/tests/e2e/forgotten.rs: is never built"));
    }

    #[test]
    fn a_fuzz_target_that_the_manifest_forgets_is_found() {
        let manifest = ("fuzz/Cargo.toml", "path = \"fuzz_targets/ring.rs\"\n");
        let target = ("fuzz/fuzz_targets/ring.rs", "//! Ring.\n");
        assert!(says(&[manifest, target]).is_empty());
        let other = ("fuzz/fuzz_targets/other.rs", "//! Other.\n");
        assert_eq!(says(&[manifest, target, other]).len(), 1);
    }

    #[test]
    fn a_filter_without_a_manual_page_is_found() {
        let filter = "//! F.\nimpl Filter for Fault {}\n";
        let tree = Tree::of(&[("crates/core/src/filter/fault.rs", filter)]);
        assert_eq!(undocumented_filters(&tree).len(), 1);
        let tree = Tree::of(&[
            ("crates/core/src/filter/fault.rs", filter),
            ("docs/filters/fault.md", "# fault\n"),
            ("crates/core/src/filter/options.rs", "//! O.\n"),
        ]);
        assert!(undocumented_filters(&tree).is_empty());
    }
}
