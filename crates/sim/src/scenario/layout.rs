//! The layouts of a scenario's disks, and what happens to their members.
//!
//! A layout is written as `tidegate disk create --layout` takes it. Its members are on the arrays of the datastore.

use super::raw::{RawDisk, RawPhase};
use super::{Disk, MemberChange, Scenario, ScenarioError, named, wrong};
use tidegate_core::layout::LayoutSpec;

/// A disk's layout, and the array of each member.
pub(super) fn layout(
    raw: &RawDisk,
    arrays: usize,
) -> Result<(LayoutSpec, Vec<usize>), ScenarioError> {
    let name = &raw.name;
    let layout: LayoutSpec = match &raw.layout {
        None => LayoutSpec::Plain,
        Some(text) => match text.parse() {
            Ok(layout) => layout,
            Err(error) => return wrong(format!("disk `{name}`: {error}")),
        },
    };
    let members: Vec<usize> = match (&raw.on, layout.is_plain()) {
        (Some(on), _) => on.iter().map(|array| *array as usize).collect(),
        (None, true) => vec![0],
        (None, false) => (0..arrays).collect(),
    };
    layout
        .check(members.len())
        .or_else(|error| wrong(format!("disk `{name}`: {error}")))?;
    if let Some(array) = members.iter().find(|array| **array >= arrays) {
        return wrong(format!(
            "disk `{name}` is on array {array}: there are {arrays}, counted from 0"
        ));
    }
    Ok((layout, members))
}

/// The members that mirrors lose and get at the beginning of a phase.
pub(super) fn changes(raw: &RawPhase, disks: &[Disk]) -> Result<Vec<MemberChange>, ScenarioError> {
    let removed = raw.remove.iter().map(|member| (member, true));
    let added = raw.add.iter().map(|member| (member, false));
    let mut changes = Vec::new();
    for (member, removes) in removed.chain(added) {
        let names = [member.disk.clone()];
        for place in named(&names, disks.iter().map(|disk| &disk.name), "disk")? {
            let disk = &disks[place];
            let number = u8::try_from(member.member).unwrap_or(u8::MAX);
            if !disk.layout.is_redundant() || usize::from(number) >= disk.members.len() {
                return wrong(format!(
                    "disk `{}` has no member {} that it can do without",
                    disk.name, member.member
                ));
            }
            changes.push(MemberChange {
                disk: place,
                member: number,
                removes,
            });
        }
    }
    Ok(changes)
}

/// Refuses what the world of disks with layouts does not have.
pub(super) fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    if !scenario.has_layouts() {
        return Ok(());
    }
    if !scenario.faults.is_empty() {
        return wrong("there are no faults beside layouts, or beside several arrays");
    }
    if scenario
        .phases
        .first()
        .is_some_and(|phase| !phase.members.is_empty())
    {
        return wrong("disks have all members in its first phase");
    }
    let set = scenario.phases.iter().flat_map(|phase| &phase.set);
    let later = set.map(|(_, settings)| settings);
    let mut all = scenario.disks.iter().map(|disk| &disk.policy).chain(later);
    let limited = all.any(|settings| settings.limit.is_some() || settings.bandwidth.is_some());
    if limited || !scenario.groups.is_empty() {
        return wrong("limits are not checked beside layouts, or beside several arrays");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIRROR: &str = r#"
        name = "mirror"
        title = "A mirror"
        [datastore]
        array = "ssd"
        arrays = 2
        [[host]]
        name = "h"
        [[disk]]
        name = "d"
        host = "h"
        size = "64MiB"
        layout = "mirror"
        workload = { kind = "access", outstanding = 1 }
        [[phase]]
        name = "whole"
        lasts = "1s"
        [[phase]]
        name = "lost"
        lasts = "1s"
        remove = [{ disk = "d", member = 1 }]
    "#;

    #[test]
    fn a_member_is_on_each_array_unless_the_file_says_otherwise() {
        let scenario = Scenario::read(MIRROR).unwrap();
        assert_eq!(scenario.disks[0].members, [0, 1]);
        let change = MemberChange {
            disk: 0,
            member: 1,
            removes: true,
        };
        assert_eq!(scenario.phases[1].members, [change]);
        let on_one = MIRROR.replace("layout = \"mirror\"", "layout = \"mirror\"\non = [1, 0]");
        let scenario = Scenario::read(&on_one).unwrap();
        assert_eq!(scenario.disks[0].members, [1, 0]);
    }

    #[test]
    fn what_this_world_does_not_have_is_refused() {
        for (from, to, message) in [
            (
                "\"mirror\"\n        work",
                "\"raid6\"\n        work",
                "raid6",
            ),
            ("arrays = 2", "arrays = 1", "needs 2 to 4 members"),
            (
                "size =",
                "on = [0, 2]\nsize =",
                "is on array 2: there are 2",
            ),
            (
                "member = 1",
                "member = 2",
                "no member 2 that it can do without",
            ),
            ("layout = \"mirror\"", "layout = \"stripe\"", "no member 1"),
            ("size =", "limit = 100\nsize =", "limits are not checked"),
            (
                "[[host]]",
                "[[fault]]\nkind = \"mute\"\nat = \"1s\"\n[[host]]",
                "no faults beside layouts",
            ),
            (
                "name = \"whole\"",
                "name = \"whole\"\nadd = [{ disk = \"d\", member = 1 }]",
                "its first phase",
            ),
        ] {
            let error = Scenario::read(&MIRROR.replace(from, to)).expect_err(message);
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
