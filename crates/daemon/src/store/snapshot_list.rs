//! The list of a disk's snapshots, as the file `snapshots.toml` beside the disk's image has it.
//!
//! Only the list decides which snapshots there are. Others may write the file, so the reader trusts nothing.
//!
//! # Always true
//! - A parent comes before its children, so the list is a tree.
//! - Names are unique, and there are at most [`MOST`].

use serde::{Deserialize, Serialize};
use tidegate_api::descriptor::{MAX_SIZE, Uuid};
use tidegate_api::name::Name;
use tidegate_api::units::Size;

/// The most snapshots of a disk. Origin: chosen; each is a file, and a block that many files share is slower to change.
pub(crate) const MOST: usize = 256;

/// The version that this program writes, and the only one that it reads.
pub(super) const VERSION: u32 = 1;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListedSnapshots {
    pub(super) version: u32,
    /// The snapshot that was taken last of what the disk has now, or that it was rolled back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latest: Option<Name>,
    /// The oldest first.
    #[serde(default, rename = "snapshot", skip_serializing_if = "Vec::is_empty")]
    pub(crate) snapshots: Vec<ListedSnapshot>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListedSnapshot {
    pub(crate) name: Name,
    /// What `latest` was when it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<Name>,
    /// In seconds since 1970.
    pub(crate) taken_at: u64,
    /// Size of the disk at that time.
    pub(crate) size: Size,
    /// Snapshots that were taken together have the same set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) set: Option<Uuid>,
}

impl Default for ListedSnapshots {
    fn default() -> ListedSnapshots {
        ListedSnapshots {
            version: VERSION,
            latest: None,
            snapshots: Vec::new(),
        }
    }
}

impl ListedSnapshots {
    /// The snapshot of that name.
    pub(crate) fn get(&self, name: &Name) -> Option<&ListedSnapshot> {
        self.snapshots.iter().find(|it| it.name == *name)
    }

    /// Adds a snapshot of what the disk has now.
    pub(crate) fn add(&mut self, name: &Name, taken_at: u64, size: u64, set: Option<Uuid>) {
        self.snapshots.push(ListedSnapshot {
            name: name.clone(),
            parent: self.latest.take(),
            taken_at,
            size: Size(size),
            set,
        });
        self.latest = Some(name.clone());
    }

    /// Removes a snapshot. Its children get its parent.
    pub(crate) fn remove(&mut self, name: &Name) {
        let Some(gone) = self.get(name).cloned() else {
            return;
        };
        self.snapshots.retain(|it| it.name != *name);
        let of_children = self.snapshots.iter_mut().map(|it| &mut it.parent);
        let of_disk = std::iter::once(&mut self.latest);
        for parent in of_children.chain(of_disk) {
            if parent.as_ref() == Some(name) {
                parent.clone_from(&gone.parent);
            }
        }
    }

    /// Fails, in words, if it contradicts itself.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.snapshots.len() > MOST {
            let count = self.snapshots.len();
            return Err(format!(
                "it lists {count} snapshots, and a disk has at most {MOST}"
            ));
        }
        for (nth, snapshot) in self.snapshots.iter().enumerate() {
            let name = &snapshot.name;
            let is_before = |of: &Name| self.snapshots[..nth].iter().any(|it| it.name == *of);
            if is_before(name) {
                return Err(format!("it lists snapshot {name} twice"));
            }
            if let Some(parent) = snapshot.parent.as_ref().filter(|parent| !is_before(parent)) {
                return Err(format!(
                    "the parent {parent} of snapshot {name} is not before it"
                ));
            }
            if snapshot.size.0 == 0 || snapshot.size.0 > MAX_SIZE {
                return Err(format!("snapshot {name} has {} bytes", snapshot.size.0));
            }
        }
        match &self.latest {
            Some(latest) if self.get(latest).is_none() => {
                Err(format!("its latest snapshot {latest} is not listed"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// a ─ b ─ d
    ///   └ c
    fn tree() -> ListedSnapshots {
        let mut list = ListedSnapshots::default();
        for (new, after) in [
            ("a", None),
            ("b", Some("a")),
            ("c", Some("a")),
            ("d", Some("b")),
        ] {
            list.latest = after.map(name);
            list.add(&name(new), 7, 512, None);
        }
        list.check().unwrap();
        list
    }

    fn parents(list: &ListedSnapshots) -> Vec<(String, Option<String>)> {
        let text = |name: &Name| name.to_string();
        let pair = |it: &ListedSnapshot| (text(&it.name), it.parent.as_ref().map(text));
        list.snapshots.iter().map(pair).collect()
    }

    #[test]
    fn the_children_of_a_removed_snapshot_get_its_parent() {
        let mut list = tree();
        list.remove(&name("b"));
        list.check().unwrap();
        let of = |name: &str, parent: Option<&str>| (name.to_owned(), parent.map(str::to_owned));
        assert_eq!(
            parents(&list),
            [of("a", None), of("c", Some("a")), of("d", Some("a"))]
        );
        list.remove(&name("d"));
        assert_eq!(list.latest, Some(name("a")));
        list.remove(&name("a"));
        list.check().unwrap();
        assert_eq!(list.latest, None);
        assert_eq!(parents(&list), [of("c", None)]);
        let before = list.clone();
        list.remove(&name("nobody"));
        assert_eq!(list, before);
    }

    #[test]
    fn a_list_that_contradicts_itself_is_refused() {
        let mut orphan = tree();
        orphan.snapshots.swap(0, 1);
        let mut twice = tree();
        twice.snapshots.push(twice.snapshots[0].clone());
        let mut lost = tree();
        lost.latest = Some(name("e"));
        let mut own = tree();
        own.snapshots[0].parent = Some(name("a"));
        let mut empty = tree();
        empty.snapshots[1].size = Size(0);
        let mut many = ListedSnapshots::default();
        (0..=MOST).for_each(|nth| many.add(&name(&format!("s{nth}")), 7, 512, None));
        for (list, why) in [
            (orphan, "not before it"),
            (twice, "twice"),
            (lost, "not listed"),
            (own, "not before it"),
            (empty, "has 0 bytes"),
            (many, "at most"),
        ] {
            let refused = list.check().unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn it_reads_back_as_it_was_written() {
        let mut list = tree();
        list.snapshots[3].set = Some(Uuid([7; 16]));
        let text = toml::to_string(&list).unwrap();
        assert_eq!(toml::from_str::<ListedSnapshots>(&text).unwrap(), list);
        assert!(text.len() < 1 << 10, "{text}");
    }
}
