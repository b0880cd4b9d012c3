//! Tests of datastores whose directory would be inside a disk, another datastore or the daemon's state.

use tidegate_api::datastore::DatastoreSet;

use super::*;

fn add(stage: &Stage, path: PathBuf) -> Outcome<()> {
    fs::create_dir_all(&path).unwrap();
    let settings = DatastoreSettings::Dir {
        path,
        io: Default::default(),
    };
    let added = stage.disk_service.add_datastore(&name("new"), settings);
    added.map(|_| stage.disk_service.remove_datastore(&name("new")).unwrap())
}

#[test]
fn a_datastore_lies_in_no_other_one_no_disk_and_no_state_and_around_none() {
    let stage = stage();
    let outer = stage.disk("outer");
    let place = stage.place.path();
    std::os::unix::fs::symlink(&outer.folder, place.join("link")).unwrap();
    let elsewhere = place.join("elsewhere/disk");
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(elsewhere.join("disk.toml"), "").unwrap();
    let root = place.join("root");
    for (path, told) in [
        (outer.folder.clone(), "is a disk's directory"),
        (
            outer.folder.join("in/deep"),
            "would be deleted with that disk",
        ),
        (place.join("link"), "is a disk's directory"),
        (stage.shared.join("beside"), "lies in datastore shared"),
        (place.to_owned(), "contains"),
        (root.clone(), "contains the daemon's state directory"),
        (root.join("state"), "is the daemon's state directory"),
        (
            root.join("state/disks"),
            "lies in the daemon's state directory",
        ),
        (elsewhere, "is a disk's directory"),
    ] {
        let refused = add(&stage, path.clone()).expect_err(&path.display().to_string());
        assert!(refused.to_string().contains(told), "{refused}");
        assert!(refused.remedy.unwrap().contains("separate directory"));
    }
    add(&stage, root.join("local")).unwrap();
    add(&stage, place.join("shared-too")).unwrap();
}

#[test]
fn hosts_coordinate_in_no_disks_directory() {
    let stage = stage();
    let outer = stage.disk("outer");
    let far = name("far");
    stage
        .disk_service
        .add_datastore(&far, DatastoreSettings::Null {})
        .unwrap();
    let mut order = DatastoreSet::default();
    order.io_control.coordination = Some(Some(outer.folder.clone()));
    let refused = stage.disk_service.set_datastore(&far, &order).unwrap_err();
    assert!(
        refused.to_string().contains("a disk's directory"),
        "{refused}"
    );
}

#[test]
fn a_disk_whose_directory_holds_other_disks_is_not_deleted() {
    let stage = stage();
    let outer = stage.disk("outer");
    let inner = outer.folder.join("prec");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("image"), "precious").unwrap();
    let refused = stage.disk_service.delete(&name("outer")).unwrap_err();
    assert!(
        refused.to_string().contains("it contains prec"),
        "{refused}"
    );
    assert_eq!(fs::read(inner.join("image")).unwrap(), b"precious");
    fs::remove_dir_all(&inner).unwrap();
    stage.disk_service.delete(&name("outer")).unwrap();
}
