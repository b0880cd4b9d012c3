//! Tests of datastores whose directory was replaced, and of directories that cannot be a datastore.

use std::os::unix::fs::symlink;

use super::*;

/// Shows what an unmounted datastore's path shows: the empty directory of the mount point.
fn unmount(path: &Path) -> PathBuf {
    let aside = path.with_extension("aside");
    fs::rename(path, &aside).unwrap();
    fs::create_dir(path).unwrap();
    aside
}

fn mount(aside: &Path, path: &Path) {
    fs::remove_dir_all(path).unwrap();
    fs::rename(aside, path).unwrap();
}

fn is_not_mounted<T>(refused: Outcome<T>) -> bool {
    let told = refused.err().map(|problem| problem.to_string());
    told.is_some_and(|told| told.contains("datastore shared is not mounted"))
}

fn dir(path: &Path) -> DatastoreSettings {
    DatastoreSettings::Dir {
        path: path.into(),
        io: Default::default(),
    }
}

#[test]
fn nothing_is_made_or_read_in_the_place_of_a_datastore_that_is_not_mounted() {
    let stage = stage();
    stage.disk("a");
    let aside = unmount(&stage.shared);
    let mut order = DiskCreate::new(name("b"), SIZE);
    order.datastore = Some(name("shared"));
    assert!(is_not_mounted(stage.disk_service.create(&order)));
    assert!(is_not_mounted(stage.disk_service.delete(&name("a"))));
    let change = serde_json::from_str(r#"{"io_control": {"io_unit_bytes": 8192}}"#).unwrap();
    assert!(is_not_mounted(
        stage.disk_service.set_datastore(&name("shared"), &change)
    ));
    let told = stage.disk_service.datastore(&name("shared")).unwrap();
    assert!(told.problem.is_some());
    assert_eq!((told.disks, told.capacity_bytes), (0, None));
    assert_eq!(fs::read_dir(&stage.shared).unwrap().count(), 0);

    mount(&aside, &stage.shared);
    assert_eq!(
        stage
            .disk_service
            .datastore(&name("shared"))
            .unwrap()
            .problem,
        None
    );
    stage.disk_service.create(&order).unwrap();
    stage.disk_service.delete(&name("a")).unwrap();
}

#[test]
fn disks_of_a_datastore_that_is_not_mounted_wait_and_come_by_themselves() {
    let stage = stage();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.disk_service.detach_all();
    let aside = unmount(&stage.shared);
    assert_eq!(stage.attach_remembered(), 0);
    assert!(stage.disk_service.misses_any());
    stage.try_missing();
    assert!(!stage.is_attached("a"));
    mount(&aside, &stage.shared);
    stage.try_missing();
    assert!(stage.is_attached("a"));
    stage.detach("a");
}

#[test]
fn disks_of_a_datastore_that_is_not_mounted_any_more_are_listed_and_shown_from_memory() {
    let stage = stage();
    for disk in ["a", "b", "c"] {
        stage.disk(disk);
    }
    for disk in ["a", "b"] {
        stage.attach(disk, Outside::Agreed).unwrap();
    }
    let before = stage.disk_service.disk(&name("a")).unwrap();
    // A wanted disk that is not attached.
    let mut wanted = stage.disk_service.store.attached().unwrap();
    wanted.insert(name("c"), name("shared"));
    stage.disk_service.store.set_attached(wanted).unwrap();
    let aside = unmount(&stage.shared);
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    for looked_after in [false, true] {
        for only in [None, Some(name("shared"))] {
            let disks = stage.disk_service.disks(only.as_ref()).unwrap();
            let names: Vec<_> = disks.iter().map(|disk| disk.name.as_str()).collect();
            assert_eq!(names, ["a", "b", "c"]);
            assert_eq!(
                [0, 1, 2].map(|nth| disks[nth].attached),
                [true, true, false]
            );
            assert!(disks[2].wanted && disks[2].problem.is_some());
            assert_eq!(stage.disk_service.disk(&name("a")).unwrap(), disks[0]);
        }
        let shown = stage.disk_service.disk(&name("a")).unwrap();
        assert_eq!(
            (&shown.uuid, shown.size_bytes, &shown.vhost_user_socket),
            (&before.uuid, SIZE, &before.vhost_user_socket)
        );
        let problem = shown.problem.unwrap();
        // The client recognises it by this text.
        assert_eq!(
            problem.what, "disk a is attached, but datastore shared is not mounted",
            "looked after: {looked_after}"
        );
        assert!(problem.remedy.unwrap().contains("do not detach"));
        stage.disk_service.look_after_image(&live);
    }
    assert_eq!(stage.disk_service.displaced_disks().unwrap(), []);
    assert!(is_not_mounted(stage.disk_service.disk(&name("c"))));

    mount(&aside, &stage.shared);
    stage.disk_service.look_after_image(&live);
    assert_eq!(stage.disk_service.disk(&name("a")).unwrap(), before);
    drop(live);
    stage.disk_service.detach_all();
}

#[test]
fn another_marked_directory_is_not_taken_for_a_datastores_own() {
    let stage = stage();
    let aside = unmount(&stage.shared);
    let other = stage.datastore("other");
    fs::remove_dir(&stage.shared).unwrap();
    symlink(&other, &stage.shared).unwrap();
    assert!(is_not_mounted(stage.disk_service.disk(&name("a"))));
    fs::remove_file(&stage.shared).unwrap();
    // The same directory reached through a link is still the same.
    symlink(&aside, &stage.shared).unwrap();
    stage.disk("a");
}

#[test]
fn a_mark_that_was_removed_comes_back_where_the_file_system_is_known_to_be_the_same() {
    let stage = stage();
    let mark = stage.shared.join(".tidegate/datastore-id");
    let before = fs::read(&mark).unwrap();
    let known =
        fs::read_to_string(stage.disk_service.root.state().join("homes/shared.toml")).unwrap();
    fs::remove_dir_all(stage.shared.join(".tidegate")).unwrap();
    let made = stage.disk_service.datastore(&name("shared")).unwrap();
    // Without a UUID, an administrator can restore the mark.
    if !known.contains("uuid") {
        assert!(
            made.problem
                .unwrap()
                .to_string()
                .contains("is missing there")
        );
        fs::create_dir(stage.shared.join(".tidegate")).unwrap();
        fs::write(&mark, &before).unwrap();
    }
    stage.disk("a");
    assert_eq!(fs::read(&mark).unwrap(), before);
}

#[test]
fn a_datastore_of_an_earlier_version_is_remembered_once_it_is_there() {
    let stage = stage();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.disk_service.detach_all();
    let homes = stage.disk_service.root.state().join("homes");
    fs::remove_dir_all(&homes).unwrap();
    let aside = unmount(&stage.shared);
    assert_eq!(stage.attach_remembered(), 0);
    assert!(is_not_mounted(stage.disk_service.disk(&name("a"))));
    assert!(!homes.exists());
    mount(&aside, &stage.shared);
    assert_eq!(stage.attach_remembered(), 1);
    assert!(homes.join("shared.toml").exists());
    stage.detach("a");
}

#[test]
fn one_directory_is_one_datastore_whatever_path_leads_there() {
    let stage = stage();
    let link = stage.place.path().join("link");
    symlink(&stage.shared, &link).unwrap();
    for path in [&stage.shared, &link, &link.join("../shared")] {
        let refused = stage.disk_service.add_datastore(&name("again"), dir(path));
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, ProblemCode::Exists, "{refused}");
        assert!(
            refused.to_string().contains("datastore shared"),
            "{refused}"
        );
    }
    // A copy of it has the same mark, until that is removed.
    let copy = stage.place.path().join("copy");
    fs::create_dir_all(copy.join(".tidegate")).unwrap();
    let mark = Path::new(".tidegate/datastore-id");
    fs::copy(stage.shared.join(mark), copy.join(mark)).unwrap();
    let refused = stage.disk_service.add_datastore(&name("copy"), dir(&copy));
    assert_eq!(refused.unwrap_err().code, ProblemCode::Exists);
    fs::remove_file(copy.join(mark)).unwrap();
    stage
        .disk_service
        .add_datastore(&name("copy"), dir(&copy))
        .unwrap();
}

#[test]
fn a_file_system_that_the_kernel_makes_up_is_no_datastore() {
    let stage = stage();
    for path in ["/proc", "/sys", "/proc/self"] {
        let refused = stage
            .disk_service
            .add_datastore(&name("p"), dir(Path::new(path)));
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, ProblemCode::Invalid, "{refused}");
        assert!(
            refused.to_string().contains("cannot hold disks"),
            "{refused}"
        );
    }
}

#[test]
fn an_order_on_a_datastore_that_is_not_mounted_is_refused_and_saves_nothing() {
    let stage = stage();
    let shared = name("shared");
    let before = stage.disk_service.store.record(&shared).unwrap().io_control;
    let aside = unmount(&stage.shared);
    let change = serde_json::from_str(r#"{"io_control": {"io_unit_bytes": 8192}}"#).unwrap();
    assert!(is_not_mounted(
        stage.disk_service.set_datastore(&shared, &change)
    ));
    let kept = || stage.disk_service.store.record(&shared).unwrap().io_control;
    assert_eq!(kept(), before);
    mount(&aside, &stage.shared);
    stage.disk_service.set_datastore(&shared, &change).unwrap();
    assert_eq!(kept().io_unit_bytes, 8192);
}

#[test]
fn a_datastore_whose_name_is_taken_is_refused_for_that_whatever_its_path() {
    let stage = stage();
    let other = stage.place.path().join("other");
    fs::create_dir(&other).unwrap();
    for path in [&other, &stage.shared, &stage.place.path().join("missing")] {
        let refused = stage.disk_service.add_datastore(&name("shared"), dir(path));
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, ProblemCode::Exists, "{refused}");
        let told = format!(
            "there is a datastore shared already, at {}",
            stage.shared.display()
        );
        assert!(refused.to_string().contains(&told), "{refused}");
        let remedy = refused.remedy.unwrap();
        let expected =
            "choose another name, or remove that one first: tidegate datastore remove shared";
        assert_eq!(remedy, expected);
    }
}

/// A separate file system mounted on a datastore's directory, until dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn at(path: PathBuf) -> Mounted {
        fs::create_dir(&path).unwrap();
        let mounted = Mounted(path);
        mounted.mount(&["-t", "tmpfs", "-o", "size=64m", "tidegate-test"]);
        mounted
    }

    fn mount(&self, arguments: &[&str]) {
        let mut mount = std::process::Command::new("mount");
        let done = mount.args(arguments).arg(&self.0).status().unwrap();
        assert!(done.success(), "mount needs root");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut umount = std::process::Command::new("umount");
        let _ = umount.arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_datastore_that_was_remounted_read_only_says_so_and_how_to_write_again() {
    let stage = stage();
    let (scratch, service) = (name("scratch"), &stage.disk_service);
    let mounted = Mounted::at(stage.place.path().join("a scratch"));
    service.add_datastore(&scratch, dir(&mounted.0)).unwrap();
    let looks = || {
        let mut glanced = service.datastores_at_a_glance().unwrap();
        glanced.retain(|datastore| datastore.name == scratch);
        glanced.push(service.datastore(&scratch).unwrap());
        glanced
    };
    for seen in looks() {
        assert_eq!((seen.read_only, seen.problem), (false, None));
    }
    mounted.mount(&["-o", "remount,ro"]);
    let mut remedies = Vec::new();
    for seen in looks() {
        assert!(seen.read_only && seen.capacity_bytes.is_some());
        let problem = seen.problem.expect("it is told");
        assert_eq!(problem.what, "datastore scratch is read-only");
        remedies.push(problem.remedy.unwrap());
    }
    let (_, command) = remedies[0].split_once("mount it writable: ").unwrap();
    let mut shell = std::process::Command::new("sh");
    assert!(shell.args(["-c", command]).status().unwrap().success());
    for seen in looks() {
        assert_eq!((seen.read_only, seen.problem), (false, None));
    }
}
