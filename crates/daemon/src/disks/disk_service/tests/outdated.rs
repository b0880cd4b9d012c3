//! Disks whose first member was replaced while its datastore was away or full.

use tidegate_api::layout::MemberState;

use super::layouts::{files, mirrored, order, two};
use super::*;

/// A file system in memory, mounted until it is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn at(path: PathBuf, size: &str) -> Tmpfs {
        fs::create_dir(&path).unwrap();
        let mut mount = std::process::Command::new("mount");
        let options = format!("size={size}");
        mount
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&path);
        assert!(mount.status().unwrap().success(), "mount needs root");
        Tmpfs(path)
    }

    fn fill(&self) {
        let file = File::create(self.0.join("fill")).unwrap();
        for piece in [65_536, 4096] {
            let bytes = vec![1; piece];
            while std::io::Write::write_all(&mut &file, &bytes).is_ok() {}
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let mut umount = std::process::Command::new("umount");
        let _ = umount.arg("--lazy").arg(&self.0).status();
    }
}

/// A mirror whose home was lost, replaced by `shared`, and is back.
fn replaced(stage: &Stage) -> [PathBuf; 2] {
    let [one, two] = mirrored(stage);
    stage.fail(0);
    let aside = stage.place.path().join("aside");
    fs::rename(&one, &aside).unwrap();
    let on = "shared".parse().unwrap();
    stage.over(|service| service.replace_member(&name("a"), 0, on));
    fs::rename(&aside, &one).unwrap();
    [one, two]
}

/// The listed disks: datastores and problems.
fn listed(stage: &Stage) -> Vec<(String, Option<String>)> {
    let listed = stage.disk_service.disks(None).unwrap().into_iter();
    let told = |problem: Problem| format!("{problem}; {}", problem.remedy.as_deref().unwrap_or(""));
    listed
        .map(|disk| (disk.datastore.to_string(), disk.problem.map(told)))
        .collect()
}

#[test]
fn a_lost_home_that_was_replaced_and_returns_is_listed_as_outdated_and_deleted_with_its_disk() {
    let stage = stage();
    let [one, two] = replaced(&stage);
    for attached in [true, false] {
        let listed = listed(&stage);
        let [(on, outdated), (home, None)] = listed.as_slice() else {
            panic!("{listed:?}");
        };
        assert_eq!((on.as_str(), home.as_str()), ("one", "shared"));
        let text = outdated.as_deref().unwrap_or("");
        assert!(
            text.contains("outdated") && text.contains("one/a"),
            "{text}"
        );
        assert!(text.contains("on datastore shared now"), "{text}");
        let disk = stage.disk_service.disk(&name("a")).unwrap();
        assert_eq!(disk.datastore.as_str(), "shared");
        if attached {
            stage.detach("a");
        }
    }
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.states(), [MemberState::InSync; 2]);
    stage.detach("a");
    // It is found without what the daemon remembers, too.
    stage.detach("a");
    stage.disk_service.delete(&name("a")).unwrap();
    for path in [&one, &two, &stage.shared] {
        assert!(!path.join("a").exists(), "{}", path.display());
    }
    assert_eq!(listed(&stage), []);
}

#[test]
fn an_outdated_home_is_not_used_while_the_new_one_is_away() {
    let stage = stage();
    replaced(&stage);
    stage.detach("a");
    fs::rename(&stage.shared, stage.place.path().join("away")).unwrap();
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(disk.datastore.as_str(), "shared");
    let refused = stage.attach("a", Outside::Agreed).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Datastore, "{refused}");
    assert!(
        refused.to_string().contains("member 0 on shared"),
        "{refused}"
    );
    let refused = stage.disk_service.delete(&name("a")).unwrap_err();
    assert!(
        refused.to_string().contains("datastore shared"),
        "{refused}"
    );
}

#[test]
fn a_crash_after_the_commit_leaves_the_disk_at_its_new_home() {
    let stage = stage();
    mirrored(&stage);
    let before = stage.disk_service.find(&name("a")).unwrap();
    stage.fail(0);
    let on = "shared".parse().unwrap();
    let (disk, _) = stage.disk_service.create_home(&before, on).unwrap();
    let restart = |home: &str| {
        stage.disk_service.detach_all();
        let found = stage.disk_service.find(&name("a")).unwrap();
        assert_eq!(found.datastore.as_str(), home);
        assert_eq!(stage.attach_remembered(), 1);
        stage.disk_service.return_those_away();
        stage.becomes(&[MemberState::InSync; 2]);
    };
    // The daemon dies just before the commit, and just after it.
    let remembered = |disks: &mut BTreeMap<Name, Name>| {
        disks.insert(name("a"), disk.datastore.clone());
    };
    stage.disk_service.remember(remembered).unwrap();
    restart("one");
    stage.fail(0);
    let committed = stage.disk_service.commit_home(&name("one"), &disk);
    assert_eq!(committed.unwrap().descriptor.moved_from, None);
    restart("shared");
    stage.detach("a");
}

#[test]
fn the_copy_beside_a_new_member_counts_only_once_the_disk_has_it() {
    let stage = stage();
    // It is found before the other copy.
    stage.datastore("early");
    let [one, _] = mirrored(&stage);
    let before = stage.disk_service.find(&name("a")).unwrap();
    let mut disk = before.clone();
    disk.descriptor.members[1] = "early".parse().unwrap();
    stage
        .disk_service
        .create_new_member(&before, &disk, 1)
        .unwrap();
    // The daemon dies here, and the home is lost.
    stage.fail(0);
    stage.detach("a");
    fs::rename(&one, stage.place.path().join("lost")).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.states(), [MemberState::Away, MemberState::InSync]);
    stage.detach("a");
}

#[test]
fn a_plain_disk_has_no_member_to_replace() {
    let stage = stage();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let service = &stage.disk_service;
    for nth in [0, 1] {
        let refused = service.replace_member(&name("a"), nth, "shared".parse().unwrap());
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("no such member"), "{refused}");
        let refused = service.remove_member(&name("a"), nth).unwrap_err();
        assert!(refused.to_string().contains("no such member"), "{refused}");
    }
}

#[test]
fn the_first_member_on_a_full_datastore_is_replaced_and_nothing_else_is_left() {
    let stage = stage();
    let home = Tmpfs::at(stage.place.path().join("home"), "4M");
    let settings = DatastoreSettings::Dir {
        path: home.0.clone(),
        io: Default::default(),
    };
    stage
        .disk_service
        .add_datastore(&name("home"), settings)
        .unwrap();
    let [one, _] = two(&stage);
    stage
        .create(&order("a", "mirror", &["home", "one"]))
        .unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    home.fill();
    // The list of members cannot be stored there.
    let refused = stage
        .disk_service
        .replace_member(&name("a"), 1, "two".parse().unwrap())
        .unwrap_err();
    assert_eq!(refused.code, ProblemCode::Full, "{refused}");
    assert_eq!(files(&home.0.join("a")), ["disk.toml", "image"]);
    assert!(!stage.place.path().join("two/a").exists());
    stage.disk_service.return_those_away();
    stage.becomes(&[MemberState::InSync; 2]);
    // A new home has room for it.
    stage.over(|service| service.replace_member(&name("a"), 0, "shared".parse().unwrap()));
    assert!(!home.0.join("a").exists());
    assert_eq!(files(&stage.shared.join("a")), ["disk.toml", "image"]);
    let copy = fs::read_to_string(one.join("a/member.toml")).unwrap();
    assert_eq!(
        copy,
        fs::read_to_string(stage.shared.join("a/disk.toml")).unwrap()
    );
    stage.detach("a");
}
