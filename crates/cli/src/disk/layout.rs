//! A disk's layout as it is shown: a tree of its members.

use tidegate_api::disk::Disk;
use tidegate_api::layout::{Member, MemberState, Scrub};

use crate::failure::sentences;
use crate::figures;

/// Whether a redundant disk runs without one of its members.
pub(super) fn is_degraded(disk: &Disk) -> bool {
    let is_whole = |member: &Member| member.state == MemberState::InSync;
    !disk.members.iter().all(is_whole)
}

/// The datastores of a disk: its own, or those of its members.
pub(super) fn datastores(disk: &Disk) -> String {
    match disk.members.as_slice() {
        [] => disk.datastore.to_string(),
        members => {
            let names = members.iter().map(|member| member.datastore.as_str());
            names.collect::<Vec<_>>().join(",")
        }
    }
}

/// The layout of a disk, with a line for each member.
pub(super) fn tree(disk: &Disk) -> String {
    let mut lines = vec![disk.layout.clone()];
    let members = disk.members.as_slice();
    let mirrors: Vec<_> = members.chunk_by(|a, b| a.mirror == b.mirror).collect();
    for (nth, mirror) in mirrors.iter().enumerate() {
        let Some(number) = mirror[0].mirror else {
            branch(&mut lines, mirror, "");
            continue;
        };
        let is_last = nth + 1 == mirrors.len();
        let (joint, below) = if is_last {
            ("└─", "   ")
        } else {
            ("├─", "│  ")
        };
        lines.push(format!("{joint} mirror {number}"));
        branch(&mut lines, mirror, below);
    }
    lines.join("\n")
}

fn branch(lines: &mut Vec<String>, members: &[Member], indent: &str) {
    for (nth, member) in members.iter().enumerate() {
        let is_last = nth + 1 == members.len();
        let (joint, below) = if is_last {
            ("└─", "   ")
        } else {
            ("├─", "│  ")
        };
        lines.push(format!("{indent}{joint} {}", line(member)));
        if let Some(problem) = &member.problem {
            let said = sentences(problem);
            lines.extend(said.lines().map(|line| format!("{indent}{below} {line}")));
        }
    }
}

fn line(member: &Member) -> String {
    let number = member.member;
    let place = place(member).map_or_else(String::new, |place| format!(" {place}"));
    let rebuilt = rebuilt(member).map_or_else(String::new, |rebuilt| format!(", {rebuilt}"));
    let state = state_of(member);
    format!(
        "member {number} on {}{place}: {state}{rebuilt}",
        member.datastore
    )
}

/// Where a member is on its datastore.
pub(super) fn place(member: &Member) -> Option<String> {
    match (&member.path, &member.export) {
        (Some(path), _) => Some(path.display().to_string()),
        (None, Some(export)) => Some(format!("export {export}")),
        (None, None) => None,
    }
}

/// How far a member's rebuild is.
pub(super) fn rebuilt(member: &Member) -> Option<String> {
    let rebuild = member.rebuild?;
    let percent = match rebuild.total_bytes {
        0 => 100,
        total => u128::from(rebuild.copied_bytes) * 100 / u128::from(total),
    };
    let total = figures::bytes(rebuild.total_bytes);
    Some(format!("{percent} % of {total}"))
}

/// The result of a scrub, or how far it is.
pub(super) fn scrub(scrub: &Scrub) -> String {
    let of = figures::bytes(scrub.total_bytes);
    let mut parts = vec![match scrub.running {
        true => format!(
            "comparing, {} of {of} done",
            figures::bytes(scrub.compared_bytes)
        ),
        false => format!("{} of {of} compared", figures::bytes(scrub.compared_bytes)),
    }];
    parts.push(match (scrub.different, scrub.first_difference_bytes) {
        (0, _) => "no differences".to_owned(),
        (different, None) => format!("{different} pieces of 64 KiB differed"),
        (different, Some(at)) => {
            format!("{different} pieces of 64 KiB differed, the first at byte {at}")
        }
    });
    if scrub.different > 0 {
        parts.push(format!("{} were repaired", scrub.repaired));
    }
    if scrub.unreadable > 0 {
        parts.push(format!("{} pieces could not be read", scrub.unreadable));
    }
    parts.join(", ")
}

/// A member's state in words, with a mark if something is wrong although it is used.
pub(super) fn state_of(member: &Member) -> String {
    match (&member.problem, member.state) {
        (Some(_), MemberState::InSync) => "in sync, image missing".to_owned(),
        (_, other) => state(other).to_owned(),
    }
}

/// A member's state in words.
fn state(state: MemberState) -> &'static str {
    match state {
        MemberState::InSync => "in sync",
        other => other.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn member(number: u8, on: &str, mirror: Option<u8>, state: MemberState) -> Member {
        Member {
            member: number,
            datastore: on.parse().unwrap(),
            device: None,
            export: None,
            path: Some(format!("/{on}/a/image").into()),
            mirror,
            size_bytes: 1,
            allocated_bytes: None,
            state,
            rebuild: None,
            in_flight: None,
            faults_total: None,
            io: None,
            problem: None,
        }
    }

    fn disk(layout: &str, members: Vec<Member>) -> Disk {
        let mut disk: Disk = serde_json::from_value(json!({
            "name": "a", "datastore": "a", "uuid": "", "size_bytes": 1 << 20, "block_size_bytes": 512,
            "cache": "write-back", "read_only": false, "serial": "", "queues": 1, "filters": [],
            "policy": {"shares": 1000, "reservation_iops": 0},
            "wanted": true, "attached": true, "clients": [],
        }))
        .unwrap();
        disk.layout = layout.to_owned();
        disk.members = members;
        disk
    }

    #[test]
    fn a_mirror_is_shown_with_each_members_place_and_state() {
        let members = vec![
            member(0, "a", None, MemberState::InSync),
            member(1, "b", None, MemberState::Away),
        ];
        let disk = disk("mirror", members);
        let expected = "mirror\n\
                        ├─ member 0 on a /a/a/image: in sync\n\
                        └─ member 1 on b /b/a/image: away";
        assert_eq!(tree(&disk), expected);
        assert!(is_degraded(&disk));
        assert_eq!(datastores(&disk), "a,b");
    }

    #[test]
    fn a_stripe_over_mirrors_is_shown_mirror_by_mirror() {
        let sync = MemberState::InSync;
        let members = vec![
            member(0, "a", Some(0), sync),
            member(1, "b", Some(0), sync),
            member(2, "c", Some(1), sync),
            member(3, "d", Some(1), sync),
        ];
        let text = tree(&disk("mirror+stripe:chunk=256KiB", members));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "├─ mirror 0");
        assert_eq!(lines[3], "│  └─ member 1 on b /b/a/image: in sync");
        assert_eq!(lines[4], "└─ mirror 1");
        assert_eq!(lines[6], "   └─ member 3 on d /d/a/image: in sync");
    }
}
