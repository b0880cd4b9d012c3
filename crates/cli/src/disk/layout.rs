//! A disk's layout as it is shown: a tree of its members.

use tidegate_api::disk::{Disk, Member, MemberState};

use crate::failure::sentences;

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
    let place = match (&member.path, &member.export) {
        (Some(path), _) => format!(" {}", path.display()),
        (None, Some(export)) => format!(" export {export}"),
        (None, None) => String::new(),
    };
    let number = member.member;
    format!(
        "member {number} on {}{place}: {}",
        member.datastore,
        state(member.state)
    )
}

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
