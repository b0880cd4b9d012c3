//! Module cycles: at each level of a crate, no module uses a sibling that uses it, directly or through others.
//!
//! A module uses a sibling if any file of its subtree names it in a path, tests apart. A parent may use its children and
//! they may use it (`super::`): together they are one thing.

use super::language::code;
use super::{Finding, Tree, finding};
use std::collections::{BTreeMap, BTreeSet};

/// Edges among the children of one module: from, to, and the file that makes it.
type Edges<'a> = BTreeMap<String, BTreeMap<String, &'a str>>;

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for root in roots(tree) {
        for (level, edges) in levels(tree, &root) {
            for cycle in cycles(&edges) {
                found.push(describe(&root, &level, &cycle, &edges));
            }
        }
    }
    found
}

fn describe(root: &str, level: &str, cycle: &[String], edges: &Edges<'_>) -> Finding {
    let inside = |name: &String| cycle.contains(name);
    let mut arrows = Vec::new();
    for from in cycle {
        for (to, file) in edges.get(from).into_iter().flatten() {
            if inside(to) {
                arrows.push(format!("{from} uses {to} in {file}"));
            }
        }
    }
    let at = if level.is_empty() { "the top" } else { level };
    let says = format!(
        "modules at {at} use each other: {}; move what both need into a module below them",
        arrows.join(", ")
    );
    finding(root.trim_end_matches('/'), 0, says)
}

/// The folders of the trees of modules: those with a `lib.rs` or `main.rs`, of libraries and of programs.
fn roots(tree: &Tree) -> BTreeSet<String> {
    let root = |path: &str| {
        let root = path
            .strip_suffix("lib.rs")
            .or(path.strip_suffix("main.rs"))?;
        (root.contains("/src/") && !root.contains("/tests/")).then(|| root.to_owned())
    };
    tree.texts(".rs")
        .filter_map(|(path, _)| root(path))
        .collect()
}

/// The modules below a root, by their paths (`a::b`, the root is empty), with file and code.
fn modules<'a>(tree: &'a Tree, root: &str) -> BTreeMap<String, (&'a str, String)> {
    let mut modules = BTreeMap::new();
    for (path, text) in tree.texts(".rs") {
        let Some(rest) = path.strip_prefix(root) else {
            continue;
        };
        // Programs beside a library are trees of their own.
        if rest.starts_with("bin/") {
            continue;
        }
        let name = rest.trim_end_matches(".rs").replace('/', "::");
        let name = match name.as_str() {
            "lib" | "main" => String::new(),
            _ => name,
        };
        modules.insert(name, (path, without_tests(&code(text))));
    }
    modules
}

/// The code without the tests at a file's end.
fn without_tests(code: &str) -> String {
    let end = code.find("#[cfg(test)]\nmod tests").unwrap_or(code.len());
    code[..end].to_owned()
}

/// For each module with children: which of them use which.
fn levels<'a>(tree: &'a Tree, root: &str) -> BTreeMap<String, Edges<'a>> {
    let modules = modules(tree, root);
    let mut levels: BTreeMap<String, Edges<'a>> = BTreeMap::new();
    for (name, (path, code)) in &modules {
        if name.split("::").any(|part| part == "tests") {
            continue;
        }
        let here: Vec<&str> = name.split("::").filter(|part| !part.is_empty()).collect();
        for target in uses(code) {
            let Some(target) = resolve(&here, &target, &modules) else {
                continue;
            };
            let common = here
                .iter()
                .zip(&target)
                .take_while(|(a, b)| *a == *b)
                .count();
            if let (Some(from), Some(to)) = (here.get(common), target.get(common)) {
                let edges = levels.entry(here[..common].join("::")).or_default();
                let tos = edges.entry((*from).to_owned()).or_default();
                tos.entry(to.clone()).or_insert(path);
            }
        }
    }
    levels
}

/// The module that a path names, as its parts; `None` if it is not of this crate.
fn resolve(
    here: &[&str],
    path: &[String],
    modules: &BTreeMap<String, (&str, String)>,
) -> Option<Vec<String>> {
    let mut base: Vec<String> = here.iter().map(|part| (*part).to_owned()).collect();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        _ => {
            while rest.first().is_some_and(|part| part == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
    }
    for part in rest {
        base.push(part.clone());
        if !modules.contains_key(&base.join("::")) {
            base.pop();
            break;
        }
    }
    Some(base)
}

/// The paths in a text that begin with `crate`, `super` or `self`, groups taken apart.
fn uses(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':') {
                path(&code[at..], &mut Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Reads a path, or a group of them, at the begin of a text; returns what is left.
fn path<'a>(text: &'a str, begin: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let mut rest = text;
    let depth = begin.len();
    loop {
        rest = rest.trim_start();
        if let Some(group) = rest.strip_prefix('{') {
            rest = group;
            loop {
                rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
                if rest.is_empty() {
                    break;
                }
                if let Some(after) = rest.strip_prefix('}') {
                    rest = after;
                    break;
                }
                let left = path(rest, begin, found);
                // `as` and what else is no path.
                let skip = left.find([',', '}']).unwrap_or(left.len());
                rest = &left[skip..];
            }
            break;
        }
        let word: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if word.is_empty() {
            break;
        }
        rest = &rest[word.len()..];
        if word != "self" || begin.is_empty() {
            begin.push(word);
        }
        match rest.strip_prefix("::") {
            Some(after) => rest = after,
            None => {
                found.push(begin.clone());
                break;
            }
        }
    }
    begin.truncate(depth);
    rest
}

/// The sets of modules that reach each other.
fn cycles(edges: &Edges<'_>) -> Vec<Vec<String>> {
    let mut cycles: Vec<Vec<String>> = Vec::new();
    for from in edges.keys() {
        if cycles.iter().any(|cycle| cycle.contains(from)) {
            continue;
        }
        let there = reached(edges, from);
        let back = there.iter().filter(|to| reached(edges, to).contains(from));
        let mut cycle: Vec<String> = back.cloned().collect();
        if cycle.len() > 1 {
            cycle.sort();
            cycles.push(cycle);
        }
    }
    cycles
}

/// What can be reached from a module by one use or more.
fn reached(edges: &Edges<'_>, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(name) = open.pop() {
        for to in edges.get(&name).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> = files
            .iter()
            .map(|(name, text)| (format!("crates/made-up/src/{name}.rs"), *text))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), *t)).collect();
        findings(&Tree::of(&files))
            .into_iter()
            .map(|one| one.says)
            .collect()
    }

    #[test]
    fn modules_that_use_each_other_are_found_through_groups_and_others() {
        let found = cycles_of(&[
            ("lib", ""),
            ("a", "use crate::{b::{self, Thing}, d};"),
            ("b", "use super::c::Thing;"),
            ("c/deep", "fn f() { crate::a::g() }"),
            ("c", "mod deep;"),
            ("d", ""),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("a uses b in crates/made-up/src/a.rs"),
            "{found:?}"
        );
        assert!(
            found[0].contains("c uses a in crates/made-up/src/c/deep.rs"),
            "{found:?}"
        );
        assert!(!found[0].contains("uses d"), "{found:?}");
    }

    #[test]
    fn a_parent_and_its_children_are_one_and_tests_and_comments_do_not_count() {
        let found = cycles_of(&[
            (
                "a",
                "mod b;\nuse b::Thing;\n// crate::c::x\n#[cfg(test)]\nmod tests { use crate::c; }",
            ),
            ("a/b", "use super::Other;"),
            ("c", "use crate::a::Thing;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
