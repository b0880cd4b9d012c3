//! The promise rule: docs/promises.md names tests that exist.
//!
//! A test is named in a code span: `core::slab::tests::a_name` for one at the end of `crates/core/src/slab.rs`, or
//! `crates/front/tests/nbd.rs::a_name` by its file. A promise that no test holds says "not yet held".

use super::language::code;
use super::{Finding, Tree, finding};

const PROMISES: &str = "docs/promises.md";

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let Some(promises) = tree.text(PROMISES) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (n, line) in promises.lines().enumerate() {
        let spans = line.split('`').skip(1).step_by(2);
        for test in spans.filter(|span| span.contains("::") && !span.contains(char::is_whitespace))
        {
            if let Err(says) = exists(tree, test) {
                found.push(finding(PROMISES, n + 1, says));
            }
        }
    }
    found
}

fn exists(tree: &Tree, test: &str) -> Result<(), String> {
    let (place, name) = test.rsplit_once("::").unwrap_or(("", test));
    let files = files(place);
    let Some(text) = files.iter().find_map(|file| tree.text(file)) else {
        return Err(format!(
            "names {test}, but there is no {}",
            files.join(" nor ")
        ));
    };
    let code = code(text);
    let declares = |line: &str| {
        line.split_once("fn ").is_some_and(|(_, rest)| {
            rest.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['(', '<']))
        })
    };
    match code.lines().any(declares) {
        true => Ok(()),
        false => Err(format!(
            "names {test}, but {} has no such test",
            files.join(" or ")
        )),
    }
}

/// Where a test's module may lie.
fn files(place: &str) -> Vec<String> {
    if place.ends_with(".rs") {
        return vec![place.to_owned()];
    }
    let mut parts: Vec<&str> = place.split("::").collect();
    let own = parts.remove(0);
    let own = own
        .trim_start_matches("tidegate_")
        .trim_start_matches("tidegate-");
    let folder = match own {
        "xtask" => "xtask/src".to_owned(),
        "tidegate" => "crates/cli/src".to_owned(),
        own => format!("crates/{own}/src"),
    };
    // Tests lie at the end of the file they test, or in a file of their own.
    let whole = parts.join("/");
    if parts.last() == Some(&"tests") {
        parts.pop();
    }
    match parts.as_slice() {
        [] => vec![format!("{folder}/lib.rs"), format!("{folder}/main.rs")],
        parts if whole.ends_with("tests") => {
            vec![
                format!("{folder}/{whole}.rs"),
                format!("{folder}/{}.rs", parts.join("/")),
            ]
        }
        parts => vec![format!("{folder}/{}.rs", parts.join("/"))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(promises: &str) -> Vec<String> {
        let tree = Tree::of(&[
            (PROMISES, promises),
            (
                "crates/core/src/slab.rs",
                "//! S.\n#[test]\nfn a_slot_is_used_again() {}\n// fn a_comment()\n",
            ),
            ("crates/core/src/lib.rs", "//! L.\nfn whole() {}\n"),
            ("crates/core/src/stack/tests.rs", "//! T.\nfn apart() {}\n"),
            (
                "crates/cli/tests/e2e/guest.rs",
                "//! G.\nfn a_guest_boots() {}\n",
            ),
        ]);
        findings(&tree).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn tests_that_exist_pass_in_every_way_of_naming_them() {
        let promises = "`core::slab::tests::a_slot_is_used_again` `core::slab::a_slot_is_used_again` `core::whole`\n\
            `tidegate_core::stack::tests::apart` `crates/cli/tests/e2e/guest.rs::a_guest_boots` `a word`\n";
        assert!(says(promises).is_empty(), "{:?}", says(promises));
    }

    #[test]
    fn a_test_that_is_gone_is_found() {
        assert_eq!(says("a\n`core::slab::tests::a_slot`\n").len(), 1);
        assert_eq!(says("`core::slab::tests::a_comment`").len(), 1);
        assert!(says("`core::gone::name`")[0].contains("there is no crates/core/src/gone.rs"));
        assert_eq!(says("`crates/cli/tests/e2e/guest.rs::another`").len(), 1);
    }
}
