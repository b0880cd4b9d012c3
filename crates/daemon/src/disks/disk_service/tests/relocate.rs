//! Moves of attached disks, ended, cancelled and cut short.

use tidegate_api::job::{Job, JobState};
use tidegate_api::layout::DiskMove;

use super::*;

impl Stage {
    fn begin_move(&self, to: &str) -> Outcome<Job> {
        let _context = self.runtime.enter();
        let order = DiskMove {
            to: name(to),
            rate_bytes_per_s: None,
        };
        self.disk_service.relocate(&name("a"), &order)
    }

    /// Waits until a job is over.
    fn move_ended(&self, job: Job) -> Job {
        loop {
            let job = self.disk_service.jobs.job(job.id).unwrap();
            if job.state.is_over() {
                return job;
            }
            std::thread::yield_now();
        }
    }

    fn moves(&self, to: &str) {
        let job = self.move_ended(self.begin_move(to).unwrap());
        assert_eq!(job.problem, None);
        let size = self.disk_service.disk(&name("a")).unwrap().size_bytes;
        assert_eq!((job.done_bytes, job.copied_bytes), (size, size));
    }
}

/// Names in a datastore, without those that hosts share.
fn left(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != ".tidegate").collect()
}

#[test]
fn an_attached_disk_is_moved_to_and_fro_with_its_bytes_and_settings() {
    let stage = stage();
    let other = stage.datastore("other");
    let found = stage.disk("a");
    let image = found.open_image(File::options().write(true)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"content", 70_000).unwrap();
    drop(image);
    stage.attach("a", Outside::Agreed).unwrap();
    for (to, here, there) in [
        ("other", &other, &stage.shared),
        ("shared", &stage.shared, &other),
        ("other", &other, &stage.shared),
    ] {
        stage.moves(to);
        let disk = stage.disk_service.disk(&name("a")).unwrap();
        assert_eq!((disk.datastore.as_str(), disk.attached), (to, true));
        assert_eq!(left(there), Vec::<String>::new());
        let controlled = ["shared", "other"].map(name);
        let controlled = controlled.map(|on| stage.disk_service.controls.running(&on).is_some());
        assert_eq!(controlled, [to == "shared", to == "other"]);
        let bytes = fs::read(here.join("a/image")).unwrap();
        assert_eq!(&bytes[70_000..70_007], b"content");
        let descriptor = fs::read_to_string(here.join("a/disk.toml")).unwrap();
        assert!(!descriptor.contains("moved"), "{descriptor}");
        assert_eq!(
            stage.disk_service.store.attached().unwrap()[&name("a")],
            name(to)
        );
    }
    let change = DiskSet {
        queues: None,
        filters: Some(vec![]),
        ..DiskSet::default()
    };
    stage.disk_service.set(&name("a"), &change).unwrap();
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.disk_service.disks(None).unwrap().len(), 1);
}

#[test]
fn a_move_that_cannot_be_is_refused_with_a_reason_and_leaves_nothing() {
    let stage = stage();
    let other = stage.datastore("other");
    let ram = DatastoreSettings::Memory {};
    stage.disk_service.add_datastore(&name("ram"), ram).unwrap();
    stage.disk("a");
    assert!(
        stage
            .begin_move("other")
            .unwrap_err()
            .to_string()
            .contains("not attached")
    );
    stage.attach("a", Outside::Agreed).unwrap();
    for (to, says) in [
        ("shared", "on datastore shared already"),
        ("ram", "does not keep what is written"),
        ("nowhere", "no datastore nowhere"),
    ] {
        let refused = stage.begin_move(to).unwrap_err().to_string();
        assert!(refused.contains(says), "{to}: {refused}");
    }
    fs::create_dir(other.join("a")).unwrap();
    assert_eq!(
        stage.begin_move("other").unwrap_err().code,
        ProblemCode::Exists
    );
    assert_eq!(left(&other), ["a"]);
    assert!(stage.disk_service.disk(&name("a")).unwrap().attached);
}

#[test]
fn a_cancelled_move_leaves_the_disk_where_it_was() {
    let stage = stage();
    let other = stage.datastore("other");
    let mut order = DiskCreate::new(name("a"), 1 << 30);
    order.datastore = Some(name("shared"));
    stage.disk_service.create(&order).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    let context = stage.runtime.enter();
    let order = DiskMove {
        to: name("other"),
        rate_bytes_per_s: Some(1 << 20),
    };
    let job = stage.disk_service.relocate(&name("a"), &order).unwrap();
    stage.disk_service.jobs.cancel(job.id).unwrap();
    assert_eq!(stage.move_ended(job).state, JobState::Cancelled);
    drop(context);
    assert_eq!(left(&other), Vec::<String>::new());
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(disk.datastore.as_str(), "shared");
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
}

#[test]
fn after_a_crash_the_disk_is_where_the_sources_descriptor_says() {
    let stage = stage();
    let other = stage.datastore("other");
    let found = stage.disk("a");
    let source = found.descriptor_file();
    let there = other.join("a");
    fs::create_dir(&there).unwrap();
    fs::copy(found.image(), there.join("image")).unwrap();
    let mut descriptor = found.descriptor.clone();
    descriptor.moved_from = Some(name("shared"));
    fs::write(there.join("disk.toml"), descriptor.write()).unwrap();
    // Before the switch, the source is the disk.
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(disk.datastore.as_str(), "shared");
    // After it, the target is, and attaching deletes the source.
    let mut void = found.descriptor.clone();
    void.moved_to = Some(name("other"));
    fs::write(&source, void.write()).unwrap();
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(disk.datastore.as_str(), "other");
    assert_eq!(stage.disk_service.disks(None).unwrap().len(), 1);
    // The list of disks to attach may still name the source.
    let wanted = BTreeMap::from([(name("a"), name("shared"))]);
    stage.disk_service.store.set_attached(wanted).unwrap();
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(disk.datastore.as_str(), "other");
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(left(&stage.shared), Vec::<String>::new());
    let descriptor = fs::read_to_string(there.join("disk.toml")).unwrap();
    assert!(!descriptor.contains("moved"), "{descriptor}");
}

#[test]
fn a_disk_whose_move_may_have_ended_is_refused_while_its_source_is_away() {
    let stage = stage();
    let other = stage.datastore("other");
    let found = stage.disk("a");
    let mut descriptor = found.descriptor.clone();
    descriptor.moved_from = Some(name("shared"));
    fs::create_dir(other.join("a")).unwrap();
    fs::write(other.join("a/disk.toml"), descriptor.write()).unwrap();
    fs::rename(&stage.shared, stage.place.path().join("aside")).unwrap();
    let refused = stage.disk_service.disk(&name("a")).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Datastore, "{refused}");
    assert!(
        refused.to_string().contains("not known whether the move"),
        "{refused}"
    );
}

#[test]
fn a_layout_is_not_moved_and_the_hint_to_replace_members_is_for_mirrors_only() {
    for (layout, hint) in [
        ("mirror", "disk member replace a MEMBER --on other"),
        (
            "stripe",
            "cannot be replaced: create another disk, and copy over NBD",
        ),
    ] {
        let stage = stage();
        stage.datastore("other");
        layouts::two(&stage);
        let order = layouts::order("a", layout, &["one", "two"]);
        stage.create(&order).unwrap();
        stage.attach("a", Outside::Agreed).unwrap();
        let remedy = stage.begin_move("other").unwrap_err().remedy.unwrap();
        assert!(remedy.contains(hint), "{layout}: {remedy}");
    }
}
