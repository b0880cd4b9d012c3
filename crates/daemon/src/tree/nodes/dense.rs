//! The files of dense mode in the control tree.

use tidegate_api::dense::{DenseCondition, DenseMode};

use super::{File, Node};
use crate::os_error::Outcome;
use crate::tree::controlled::Controlled;
use crate::tree::senseless;

/// Its files, in the order of listings.
pub(super) const NODES: &[Node] = &[
    Node {
        path: "/dense/mode",
        about: "`off`, `on`, or `auto`: on while all three conditions hold. The change lasts until the daemon ends",
        file: File::Host {
            read: Some(|on| Ok(on.dense().mode.word().to_owned())),
            write: Some(set_dense),
        },
    },
    Node {
        path: "/dense/on",
        about: "1 while dense mode is on, else 0",
        file: File::Host {
            read: Some(|on| Ok(u8::from(on.dense().on).to_string())),
            write: None,
        },
    },
    Node {
        path: "/dense/conditions",
        about: "the conditions at the last sample, one a line: name, value, threshold, and 1 if it holds. Empty in the first minute",
        file: File::Host {
            read: Some(conditions),
            write: None,
        },
    },
];

fn set_dense(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let modes = [DenseMode::Off, DenseMode::Auto, DenseMode::On];
    let mode = modes.into_iter().find(|mode| mode.word() == value);
    on.set_dense(mode.ok_or_else(|| senseless(value, "write off, auto or on"))?)?;
    Ok(String::new())
}

fn conditions(on: &dyn Controlled) -> Outcome<String> {
    let Some(conditions) = on.dense().conditions else {
        return Ok(String::new());
    };
    let line = |(name, it): (&str, DenseCondition)| {
        let holds = u8::from(it.holds);
        format!("{name} {:.1} {:.1} {holds}\n", it.value, it.threshold)
    };
    Ok(conditions.named().into_iter().map(line).collect())
}
