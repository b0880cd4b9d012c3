//! Tests of disks whose datastores were unusable at the start, and of their later state.

use super::*;

/// Moves a datastore's directory away, as if it were not mounted. Returns its path meanwhile.
fn unmount(path: &Path) -> PathBuf {
    let aside = path.with_extension("aside");
    fs::rename(path, &aside).unwrap();
    aside
}

impl Stage {
    /// Retries the missing disks once, and waits until that is done.
    pub(super) fn try_missing(&self) {
        let _context = self.runtime.enter();
        self.disk_service.try_missing().unwrap();
        while !locked(&self.disk_service.tried).is_empty() {
            std::thread::yield_now();
        }
    }

    pub(super) fn is_attached(&self, disk: &str) -> bool {
        self.disk_service.live.get(&name(disk)).is_some()
    }
}

#[test]
fn disks_whose_datastore_was_not_there_at_the_start_come_once_it_is() {
    let stage = stage();
    for disk in ["a", "b"] {
        stage.disk(disk);
        stage.attach(disk, Outside::Agreed).unwrap();
    }
    stage.disk_service.detach_all();
    let aside = unmount(&stage.shared);
    assert_eq!(stage.attach_remembered(), 0);
    stage.try_missing();
    assert_eq!(stage.disk_service.troubles().len(), 2);

    fs::rename(aside, &stage.shared).unwrap();
    stage.try_missing();
    assert!(stage.is_attached("a") && stage.is_attached("b"));
    assert_eq!(stage.disk_service.troubles(), []);
    assert!(
        !stage.disk_service.misses_any(),
        "nothing wakes up any more"
    );
    stage.disk_service.detach_all();
}

#[test]
fn a_missing_disk_that_is_let_go_of_does_not_come_by_itself() {
    let stage = stage();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.disk_service.detach_all();
    let aside = unmount(&stage.shared);
    assert_eq!(stage.attach_remembered(), 0);
    let missing = stage.disk_service.missing().unwrap();
    stage.detach("a");
    fs::rename(aside, &stage.shared).unwrap();
    stage.try_missing();
    assert!(!stage.is_attached("a"));
    // Nor if it was detached after it was found to be missing.
    assert_eq!(missing[&name("shared")], [name("a")]);
    let _context = stage.runtime.enter();
    stage
        .disk_service
        .attach_those_missing(&missing[&name("shared")]);
    assert!(!stage.is_attached("a"));
    assert!(stage.disk_service.store.attached().unwrap().is_empty());
    assert_eq!(stage.disk_service.troubles(), []);
}

#[test]
fn a_disk_that_another_host_has_or_that_makes_no_sense_is_left_to_its_operator() {
    let stage = stage();
    stage.disk("held");
    let descriptor = stage.disk("broken").descriptor_file();
    for disk in ["held", "broken"] {
        stage.attach(disk, Outside::Agreed).unwrap();
    }
    stage.disk_service.detach_all();
    let sound = fs::read(&descriptor).unwrap();
    fs::write(&descriptor, "nonsense").unwrap();
    assert_eq!(stage.attach_remembered(), 1);
    fs::write(&descriptor, sound).unwrap();
    // The result of a start for a disk that another host has, after the wait for its lock.
    stage.disk_service.detach_all();
    let locked_out = Problem::new(ProblemCode::Locked, "another daemon has it");
    locked(&stage.disk_service.troubles).insert(name("held"), locked_out);

    assert!(!stage.disk_service.misses_any());
    assert!(stage.disk_service.missing().unwrap().is_empty());
    stage.try_missing();
    assert!(!stage.is_attached("held") && !stage.is_attached("broken"));
    assert_eq!(stage.disk_service.troubles().len(), 2);
    // An explicit command attaches them.
    for disk in ["held", "broken"] {
        stage.attach(disk, Outside::Agreed).unwrap();
    }
    assert_eq!(stage.disk_service.troubles(), []);
    stage.disk_service.detach_all();
}

#[test]
fn while_a_datastore_hangs_others_disks_come_and_orders_on_its_own_go_on() {
    let mut stage = stage();
    let paths = ["solitary", "far"].map(|datastore| stage.datastore(datastore));
    stage.disk_on("solitary", "a");
    stage.disk_on("far", "b");
    for disk in ["a", "b"] {
        stage.attach(disk, Outside::Agreed).unwrap();
    }
    stage.disk_service.detach_all();
    let asides = [0, 1].map(|one| unmount(&paths[one]));
    assert_eq!(stage.attach_remembered(), 0);
    for (aside, path) in asides.iter().zip(&paths) {
        fs::rename(aside, path).unwrap();
    }
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    let let_go = super::hanging::hang(&mut disk_service.looks, "solitary");
    // Longer than anything here takes, except a scan of a datastore that hangs.
    disk_service.looks.patience = Duration::from_secs(5);
    for _ in 0..3 {
        let _context = stage.runtime.enter();
        stage.disk_service.try_missing().unwrap();
    }
    // By then only one retry is left besides this test, and it lasts no longer than a scan may take.
    let is_tried = |datastore| locked(&stage.disk_service.tried).contains(&name(datastore));
    while !stage.is_attached("b") || Arc::strong_count(&stage.disk_service) != 2 {
        assert!(is_tried("solitary"), "b comes, and there is one try");
        std::thread::yield_now();
    }
    // A retry that waits for a datastore does not claim the disk.
    stage.detach("a");
    drop(let_go);
    stage.try_missing();
    assert!(!stage.is_attached("a"));
    stage.disk_service.detach_all();
}
