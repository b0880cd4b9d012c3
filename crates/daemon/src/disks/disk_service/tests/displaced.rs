//! Tests with attached disks whose directories are renamed or removed.

use super::*;

#[test]
fn an_attached_disk_whose_directory_was_renamed_is_listed_and_says_so() {
    let stage = stage();
    let (before, now) = (stage.shared.join("db1"), stage.shared.join("other"));
    stage.disk("db1");
    stage.attach("db1", Outside::default()).unwrap();
    fs::rename(&before, &now).unwrap();

    let disks = stage.disk_service.disks(None).unwrap();
    let names: Vec<_> = disks.iter().map(|disk| disk.name.as_str()).collect();
    assert_eq!(names, ["db1", "other"]);
    let [missing, other] = [0, 1].map(|nth| disks[nth].problem.clone().unwrap());
    assert!(disks[0].attached && !disks[1].attached);
    assert_eq!(
        missing.what,
        "disk db1 is attached, but its directory is missing"
    );
    let renamed = format!("{} was renamed to {}", before.display(), now.display());
    assert_eq!(missing.why[0], renamed);
    assert_eq!(other.what, "disk other is the attached disk db1");
    assert_eq!(stage.disk_service.disk(&name("db1")).unwrap(), disks[0]);
    assert_eq!(stage.disk_service.harms().unwrap(), [missing]);
    // It is served, so a query returns how to reach it.
    let snippet = stage
        .disk_service
        .snippet(&name("db1"), api::SnippetFor::Qemu);
    assert!(snippet.unwrap().text.contains("disks/db1.sock"));

    // No other daemon has it, so none is named in the error.
    let refused = stage.attach("other", Outside::default()).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy);
    assert!(
        refused.to_string().contains("is the attached disk"),
        "{refused}"
    );

    // As the hint says.
    fs::rename(&now, &before).unwrap();
    assert_eq!(stage.disk_service.displaced_disks().unwrap(), []);
    let disks = stage.disk_service.disks(None).unwrap();
    assert!(disks.len() == 1 && disks[0].problem.is_none());
}

#[test]
fn an_attached_disk_whose_directory_was_removed_is_listed_and_can_be_let_go_of() {
    let stage = stage();
    stage.disk("db1");
    stage.attach("db1", Outside::default()).unwrap();
    fs::remove_dir_all(stage.shared.join("db1")).unwrap();
    let disk = stage.disk_service.disk(&name("db1")).unwrap();
    assert!(disk.attached);
    let problem = disk.problem.unwrap();
    assert!(problem.why[0].ends_with("was removed or moved"));
    // Its image is missing as well: both are one problem.
    let live = stage.disk_service.live.get(&name("db1")).unwrap();
    stage.disk_service.look_after_image(&live);
    assert!(live.harmed().is_some());
    drop(live);
    let told = stage.disk_service.harms().unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].what.contains("its directory is missing"),
        "{told:?}"
    );
    let _context = stage.runtime.enter();
    stage
        .disk_service
        .detach(&name("db1"), Clients::Keep)
        .unwrap();
    assert!(stage.disk_service.disks(None).unwrap().is_empty());
    assert_eq!(stage.disk_service.displaced_disks().unwrap(), []);
}

#[test]
fn a_missing_directory_is_told_of_also_once_the_image_is_found_missing() {
    let stage = stage();
    let (before, now) = (stage.shared.join("db1"), stage.shared.join("other"));
    stage.disk("db1");
    stage.attach("db1", Outside::default()).unwrap();
    let live = stage.disk_service.live.get(&name("db1")).unwrap();
    let told = || {
        stage.disk_service.look_after_image(&live);
        assert!(live.misplaced().is_some());
        let disk = stage.disk_service.disk(&name("db1")).unwrap();
        assert_eq!(stage.disk_service.disks(None).unwrap()[0], disk);
        assert!(disk.attached && disk.size_bytes == SIZE);
        let problem = disk.problem.unwrap();
        assert_eq!(problem.code, ProblemCode::NotFound);
        problem.to_string()
    };
    fs::rename(&before, &now).unwrap();
    let renamed = told();
    assert!(renamed.contains(&format!("was renamed to {}", now.display())));
    fs::remove_dir_all(&now).unwrap();
    let removed = told();
    let (save, detach) = (removed.find("save the data"), removed.find("disk detach"));
    assert!(save.unwrap() < detach.unwrap(), "{removed}");
    // Other commands also do not advise detaching it before the data is saved.
    let refused = stage.disk_service.set(&name("db1"), &DiskSet::default());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("save the data"), "{refused}");
    drop(live);
    stage.detach("db1");
}

#[test]
fn an_attached_disk_whose_descriptor_makes_no_sense_any_more_is_shown_as_it_is_served() {
    let stage = stage();
    let descriptor = stage.disk("db1").descriptor_file();
    stage.attach("db1", Outside::default()).unwrap();
    let before = stage.disk_service.disk(&name("db1")).unwrap();
    fs::write(&descriptor, "nonsense").unwrap();
    let disk = stage.disk_service.disk(&name("db1")).unwrap();
    assert_eq!(
        stage.disk_service.disks(None).unwrap(),
        std::slice::from_ref(&disk)
    );
    assert!(disk.attached && disk.vhost_user_socket == before.vhost_user_socket);
    assert_eq!(disk.problem.unwrap().code, ProblemCode::Corrupt);
    stage.detach("db1");
}

#[test]
fn disks_of_one_datastore_are_listed_alone() {
    let stage = stage();
    stage.datastore("fast");
    stage.disk("db1");
    stage.disk_on("fast", "db2");
    let names = |only: Option<&Name>| -> Vec<String> {
        let disks = stage.disk_service.disks(only).unwrap();
        disks.iter().map(|disk| disk.name.to_string()).collect()
    };
    assert_eq!(names(None), ["db1", "db2"]);
    assert_eq!(names(Some(&name("fast"))), ["db2"]);
    let unknown = stage.disk_service.disks(Some(&name("none"))).unwrap_err();
    assert_eq!(unknown.code, ProblemCode::NotFound);
}
