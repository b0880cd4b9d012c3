//! `tidegate filter`: the filters of a disk's stack, one at a time.
//!
//! The daemon takes a whole stack at once; these verbs read it, change it and send it back. Two people who change the
//! same disk at the same moment may therefore undo each other: `disk set --filter ...` says it all in one order.

use clap::{Args, Subcommand};
use serde::Serialize;
use tidegate_api::disk::{Disk, DiskSet};
use tidegate_api::name::Name;
use tidegate_api::routes;

use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::{complete, table};

/// Change the filters of a disk, also while it is in use
#[derive(Debug, Subcommand)]
pub(crate) enum Filter {
    List(List),
    Add(Add),
    Remove(Remove),
    Move(Move),
}

impl Filter {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Filter::List(verb) => verb.run(session),
            Filter::Add(verb) => {
                change(session, verb.disk, |stack| add(stack, verb.filter, verb.at))
            }
            Filter::Remove(verb) => change(session, verb.disk, |stack| remove(stack, &verb.filter)),
            Filter::Move(verb) => change(session, verb.disk, |stack| {
                shift(stack, &verb.filter, verb.to)
            }),
        }
    }
}

/// List a disk's filters, top (the guest's end) first
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "Example:\n  tidegate filter list web1"
)]
pub(crate) struct List {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,
}

/// Add a filter to a disk
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate filter add web1 null
  tidegate filter add web1 trace:path=/var/tmp/web1.trace --at 1

A filter is NAME or NAME:key=value,...; docs/filters describes each filter.")]
pub(crate) struct Add {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The filter, as NAME or NAME:key=value,...
    filter: String,

    /// The filter's place; 1 is the top; default: the bottom, next to the datastore
    #[arg(long, value_name = "PLACE")]
    at: Option<usize>,
}

/// Remove a filter from a disk
#[derive(Debug, Args)]
#[command(
    visible_alias = "rm",
    after_help = "\
Examples:
  tidegate filter remove web1 trace
  tidegate filter remove web1 2"
)]
pub(crate) struct Remove {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The filter: its name, its whole text, or its place from the top
    filter: String,
}

/// Move a filter within a disk's stack
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate filter move web1 stats --to 1")]
pub(crate) struct Move {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The filter: its name, its whole text, or its place from the top
    filter: String,

    /// The filter's new place; 1 is the top
    #[arg(long, value_name = "PLACE")]
    to: usize,
}

/// A disk's filters, for every form of output.
#[derive(Serialize)]
struct Stack {
    disk: Name,
    filters: Vec<String>,
}

impl Stack {
    fn of(disk: Disk) -> Stack {
        Stack {
            disk: disk.name,
            filters: disk.filters,
        }
    }
}

impl Shown for Stack {
    fn names(&self) -> Vec<String> {
        self.filters.clone()
    }

    fn table(&self, _: Detail) -> String {
        let row = |(nth, filter): (usize, &String)| vec![(nth + 1).to_string(), filter.clone()];
        let rows: Vec<_> = self.filters.iter().enumerate().map(row).collect();
        table::columns(&["PLACE", "FILTER"], &rows)
    }
}

impl List {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let disk = session
            .client()?
            .look(routes::DISK, &[self.disk.as_str()])?;
        session.console.show(&Stack::of(disk))
    }
}

/// Reads the disk's stack, changes it by `change` and sends it back.
fn change(
    session: &Session,
    disk: Name,
    change: impl FnOnce(&mut Vec<String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let client = session.client()?;
    let mut filters = client.look(routes::DISK, &[disk.as_str()])?.filters;
    change(&mut filters)?;
    let set = DiskSet {
        filters: Some(filters),
        ..DiskSet::default()
    };
    let disk = client.order(routes::DISK_SET, &[disk.as_str()], &set)?;
    let stack = match disk.filters.as_slice() {
        [] => "none".to_owned(),
        filters => filters.join(" "),
    };
    let message = format!("disk {} now has filters: {stack}", disk.name);
    session.console.done(&Stack::of(disk), &message)
}

fn add(stack: &mut Vec<String>, filter: String, at: Option<usize>) -> Result<(), Failure> {
    let place = match at {
        None => stack.len(),
        Some(at) => index(at, stack.len() + 1)?,
    };
    stack.insert(place, filter);
    Ok(())
}

fn remove(stack: &mut Vec<String>, filter: &str) -> Result<(), Failure> {
    let place = find(stack, filter)?;
    stack.remove(place);
    Ok(())
}

fn shift(stack: &mut Vec<String>, filter: &str, to: usize) -> Result<(), Failure> {
    let to = index(to, stack.len())?;
    let filter = stack.remove(find(stack, filter)?);
    stack.insert(to, filter);
    Ok(())
}

/// The index of a place that people count from 1.
fn index(place: usize, places: usize) -> Result<usize, Failure> {
    if (1..=places).contains(&place) {
        return Ok(place - 1);
    }
    Err(Failure::usage(
        format!("there is no place {place} in this stack"),
        format!("use 1 (the top) to {places}"),
    ))
}

/// Where in the stack a filter is that was given by its place, its whole text or its name.
fn find(stack: &[String], wanted: &str) -> Result<usize, Failure> {
    if let Ok(place) = wanted.parse() {
        return index(place, stack.len());
    }
    let name = |filter: &str| filter.split(':').next().unwrap_or_default() == wanted;
    let fits =
        |(place, filter): (usize, &String)| (filter == wanted || name(filter)).then_some(place);
    let found: Vec<usize> = stack.iter().enumerate().filter_map(fits).collect();
    let has = || match stack {
        [] => "it has none".to_owned(),
        stack => format!("its filters are {}", stack.join(" ")),
    };
    match found[..] {
        [place] => Ok(place),
        [] => Err(Failure::usage(
            format!("there is no filter '{wanted}' on this disk"),
            has(),
        )),
        [..] => Err(Failure::usage(
            format!("there are {} filters '{wanted}' on this disk", found.len()),
            "say which by its place, as `tidegate filter list` counts them",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(words: &str) -> Vec<String> {
        words.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_filter_is_added_at_the_bottom_or_where_it_is_told() {
        let mut filters = stack("stats null");
        add(&mut filters, "trace:path=/x".to_owned(), None).unwrap();
        add(&mut filters, "null".to_owned(), Some(1)).unwrap();
        assert_eq!(filters, stack("null stats null trace:path=/x"));
        assert!(add(&mut filters, "null".to_owned(), Some(6)).is_err());
        assert!(add(&mut filters, "null".to_owned(), Some(0)).is_err());
    }

    #[test]
    fn a_filter_is_found_by_name_text_or_place() {
        for wanted in ["trace", "trace:path=/x", "2"] {
            let mut filters = stack("stats trace:path=/x null");
            remove(&mut filters, wanted).unwrap();
            assert_eq!(filters, stack("stats null"), "{wanted}");
        }
    }

    #[test]
    fn moving_keeps_the_others_in_order() {
        let mut filters = stack("a b c d");
        shift(&mut filters, "a", 3).unwrap();
        assert_eq!(filters, stack("b c a d"));
        shift(&mut filters, "4", 1).unwrap();
        assert_eq!(filters, stack("d b c a"));
    }

    #[test]
    fn what_is_not_there_or_not_clear_is_refused_with_what_there_is() {
        let says = |wanted: &str| match find(&stack("stats null null"), wanted) {
            Err(Failure::Usage(problem)) => problem.to_string(),
            other => panic!("{wanted}: {other:?}"),
        };
        assert!(says("fault").contains("stats null null"));
        assert!(says("null").contains("filter list"));
        assert!(says("4").contains("1 (the top) to 3"));
    }
}
