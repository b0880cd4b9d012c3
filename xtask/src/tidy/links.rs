//! The link rule: each relative link in the documents leads to a file.

use super::sources::resolve;
use super::{Finding, Tree, finding};

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.texts(".md") {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, target) in links(text) {
            let file = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if elsewhere || file.is_empty() || tree.has(&resolve(folder, file)) {
                continue;
            }
            found.push(finding(
                path,
                line,
                format!("links to {target}, which is not there"),
            ));
        }
    }
    found
}

/// The links of a document outside its code blocks, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (n, line) in prose(text) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else {
                break;
            };
            // A title may follow: [text](file "title").
            found.extend(target.split_whitespace().next().map(|target| (n, target)));
            rest = after;
        }
    }
    found
}

/// A document's lines outside its code blocks, counted from one.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(n, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((n + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let text = "[a](b.md) [c](../README.md#top)\n[d](gone.md) [e](https://example.org) [f](#g) [h](.)\n";
        let tree = Tree::of(&[("docs/a.md", text), ("docs/b.md", ""), ("README.md", "")]);
        let found: Vec<_> = findings(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["docs/a.md:2: links to gone.md, which is not there"]);
    }

    #[test]
    fn what_looks_like_a_link_in_a_code_block_is_none() {
        let tree = Tree::of(&[("docs/a.md", "```\n[a](gone.md)\n```\n")]);
        assert!(findings(&tree).is_empty());
    }
}
