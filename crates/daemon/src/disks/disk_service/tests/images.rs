//! Tests with images that another program overwrites, removes or moves.

use super::*;
use crate::disks::watch;

#[test]
fn an_export_writes_over_no_disks_image_by_whatever_path() {
    let stage = stage();
    let (a, b) = (stage.disk("a"), stage.disk("b"));
    stage.disk("c");
    stage.attach("a", Outside::Agreed).unwrap();
    let place = stage.place.path();
    std::os::unix::fs::symlink(&stage.shared, place.join("link")).unwrap();
    fs::hard_link(a.image(), place.join("hard")).unwrap();
    std::os::unix::fs::symlink(b.image(), place.join("soft")).unwrap();
    for (file, told) in [
        (a.image(), "disk's directory"),
        (place.join("link/a/image"), "disk's directory"),
        (place.join("hard"), "the image of disk a"),
        (place.join("soft"), "the image of disk b"),
    ] {
        let order = DiskExport {
            snapshot: None,
            file,
            format: None,
            existing: Existing::Replace,
        };
        let refused = stage.disk_service.export(&name("c"), order).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        assert!(refused.to_string().contains(told), "{refused}");
    }
    stage.detach("a");
}

#[test]
fn an_image_that_was_removed_replaced_or_put_aside_is_reported_until_it_is_back() {
    let stage = stage();
    let found = stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    let told = || {
        stage.disk_service.follow(&live);
        let problem = live.harmed();
        assert_eq!(
            stage.disk_service.attached_disks().unwrap()[0].has_problem,
            problem.is_some()
        );
        problem
            .map(|problem| problem.to_string())
            .unwrap_or_default()
    };
    assert_eq!(told(), "");
    let aside = found.folder.join("aside");
    fs::rename(found.image(), &aside).unwrap();
    assert!(told().contains("removed or renamed"), "{}", told());
    File::create(found.image()).unwrap().set_len(SIZE).unwrap();
    assert!(told().contains("another file"), "{}", told());
    // Otherwise the other file would grow.
    let larger = DiskResize {
        size_bytes: 2 * SIZE,
        data: ResizeData::Keep,
    };
    let refused = stage.disk_service.resize(&name("a"), larger).unwrap_err();
    assert!(refused.to_string().contains("another file"), "{refused}");
    assert_eq!(fs::metadata(found.image()).unwrap().len(), SIZE);
    fs::rename(&aside, found.image()).unwrap();
    assert_eq!(told(), "");
    fs::rename(&stage.shared, stage.place.path().join("aside")).unwrap();
    assert!(told().contains("not mounted"), "{}", told());
    fs::rename(stage.place.path().join("aside"), &stage.shared).unwrap();
    assert_eq!(told(), "");
    stage.detach("a");
}

#[test]
fn the_kernel_tells_of_an_image_that_is_removed() {
    let stage = stage();
    let found = stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    let (image, aside) = (found.image(), stage.place.path().join("aside"));
    let elsewhere = stage.place.path().join("elsewhere");
    stage.runtime.block_on(async {
        // The next timed check comes after the test: every change seen comes from a kernel notification.
        let never = Duration::from_secs(24 * 60 * 60);
        let watching = tokio::spawn(watch::watch_every(Arc::clone(&stage.disk_service), never));
        // The kernel watch is set up before the first check begins.
        while live.followed().unwrap().1.is_none() {
            tokio::task::yield_now().await;
        }
        let becomes = async |harmed: bool, what: &str| {
            let seen = async {
                while live.harmed().is_some() != harmed {
                    tokio::task::yield_now().await;
                }
            };
            let seen = tokio::time::timeout(Duration::from_secs(10), seen).await;
            assert!(seen.is_ok(), "{what}");
        };
        for (from, to, what) in [
            (&image, &aside, "the image is renamed"),
            (&found.folder, &elsewhere, "the directory is renamed"),
        ] {
            fs::rename(from, to).unwrap();
            becomes(true, what).await;
            fs::rename(to, from).unwrap();
            becomes(false, what).await;
        }
        fs::remove_file(&image).unwrap();
        becomes(true, "the image is removed").await;
        watching.abort();
    });
    stage.detach("a");
}

#[test]
fn what_a_shrinking_that_was_cut_short_left_is_not_seen_when_the_disk_grows() {
    use std::os::unix::fs::FileExt;
    let stage = stage();
    let found = stage.disk("a");
    let image = found.open_image(File::options().write(true)).unwrap();
    image.write_all_at(&[7; 4096], SIZE / 2 - 100).unwrap();
    // The descriptor was written, and then the daemon died.
    let half = |found: &mut Found| found.descriptor.size.0 = SIZE / 2;
    let grow = || {
        let larger = DiskResize {
            size_bytes: SIZE,
            data: ResizeData::Keep,
        };
        stage.disk_service.resize(&name("a"), larger).unwrap();
        let bytes = fs::read(found.image()).unwrap();
        assert_eq!(bytes.len() as u64, SIZE);
        let half = usize::try_from(SIZE / 2).unwrap();
        assert!(bytes[half - 100..half].iter().all(|byte| *byte == 7));
        assert!(bytes[half..].iter().all(|byte| *byte == 0));
    };
    stage.elsewhere("a", half);
    grow();
    // The same while a guest uses the disk.
    image.write_all_at(&[7; 4096], SIZE / 2 - 100).unwrap();
    stage.elsewhere("a", half);
    stage.attach("a", Outside::Agreed).unwrap();
    grow();
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    assert_eq!((live.size(), live.harmed()), (SIZE, None));
    drop(live);
    stage.detach("a");
}

/// A directory that is read-only until this is dropped.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn mount(path: &Path) -> ReadOnly {
        let mount = |arguments: &[&str]| {
            let mut mount = std::process::Command::new("mount");
            assert!(mount.args(arguments).arg(path).status().unwrap().success());
        };
        let itself = path.display().to_string();
        mount(&["--bind", &itself]);
        mount(&["-o", "remount,bind,ro"]);
        ReadOnly(path.into())
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_disk_that_can_only_be_read_is_exported_and_attached_read_only_over_a_restart() {
    let stage = stage();
    stage.disk("a");
    let mounted = ReadOnly::mount(&stage.shared);
    let order = DiskExport {
        snapshot: None,
        file: stage.place.path().join("out.img"),
        format: None,
        existing: Existing::Keep,
    };
    let context = stage.runtime.enter();
    stage
        .disk_service
        .export(&name("a"), order.clone())
        .unwrap();
    while fs::metadata(&order.file).is_err() {
        std::thread::yield_now();
    }
    drop(context);
    let attach = || {
        let refused = stage.attach("a", Outside::Agreed);
        if let Err(problem) = &refused
            && problem.to_string().contains("another request")
        {
            return None;
        }
        Some(refused)
    };
    let refused = std::iter::from_fn(|| Some(attach()))
        .flatten()
        .next()
        .unwrap();
    let refused = refused.unwrap_err();
    assert!(refused.to_string().contains("--read-only"), "{refused}");
    let attached = stage.attach_read_only("a").unwrap();
    assert!(attached.read_only && stage.disk_service.disk(&name("a")).unwrap().read_only);
    stage.disk_service.detach_all();
    assert_eq!(stage.attach_remembered(), 1);
    assert!(
        stage
            .disk_service
            .live
            .get(&name("a"))
            .unwrap()
            .is_read_only()
    );
    stage.detach("a");
    drop(mounted);
    // The next time, its own setting applies again.
    stage.attach("a", Outside::Agreed).unwrap();
    assert!(
        !stage
            .disk_service
            .live
            .get(&name("a"))
            .unwrap()
            .is_read_only()
    );
    stage.detach("a");
}

#[test]
fn only_paths_that_were_accepted_are_agreed_to() {
    let stage = stage();
    stage.disk("a");
    let file = |name: &str| stage.place.path().join(name);
    let trace = |name: &str| vec![format!("trace:path={}", file(name).display())];
    let attach = |accepted: &str| {
        let _context = stage.runtime.enter();
        let order = DiskAttach {
            outside: Outside::Accept,
            accepted_paths: Some(vec![file(accepted)]),
            ..Default::default()
        };
        stage.disk_service.attach(&name("a"), order)
    };
    stage.elsewhere("a", |found| found.descriptor.filters = trace("seen"));
    assert_eq!(
        stage.disk_service.disk(&name("a")).unwrap().outside_paths,
        [file("seen")]
    );
    // In between, another host changes it.
    stage.elsewhere("a", |found| found.descriptor.filters = trace("other"));
    let refused = attach("seen").unwrap_err();
    assert!(
        refused.to_string().contains("which was not accepted"),
        "{refused}"
    );
    assert!(stage.disk_service.store.agreed().unwrap().is_empty());
    attach("other").unwrap();
    assert_eq!(stage.filters("a"), trace("other"));
    stage.detach("a");
}

#[test]
fn a_reservation_that_was_written_elsewhere_is_admitted_before_it_counts() {
    let stage = stage();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    assert_eq!(live.admission(), None);
    stage.elsewhere("a", |found| found.descriptor.policy.reservation.0 = 500);
    stage.disk_service.follow(&live);
    // The datastore's capacity was never measured under full load.
    let promise = live.admission().map(|admission| admission.promise);
    assert_eq!(promise, Some(tidegate_api::iocontrol::Promise::Unverified));
    assert_eq!(live.policy().unwrap().reservation.0, 500);
    drop(live);
    stage.detach("a");
}

#[test]
fn an_attached_disk_is_not_attached_for_writing_and_read_only_at_once() {
    let stage = stage();
    stage.disk("a");
    let refused = |refused: Outcome<api::Disk>, told: &str, remedy: &str| {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        assert!(refused.to_string().contains(told), "{refused}");
        assert_eq!(refused.remedy.unwrap(), remedy);
    };
    stage.attach("a", Outside::Agreed).unwrap();
    refused(
        stage.attach_read_only("a"),
        "disk a is attached for writing",
        "detach it first, then attach it with --read-only",
    );
    stage.attach("a", Outside::Agreed).unwrap();
    stage.detach("a");
    stage.attach_read_only("a").unwrap();
    stage.attach_read_only("a").unwrap();
    refused(
        stage.attach("a", Outside::Agreed),
        "disk a is attached read-only",
        "detach it first, then attach it without --read-only",
    );
    stage.detach("a");
    // A disk that is set to read-only needs no option.
    stage.elsewhere("a", |found| found.descriptor.read_only = true);
    stage.attach("a", Outside::Agreed).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    stage.attach_read_only("a").unwrap();
    stage.detach("a");
}

#[test]
fn a_device_that_is_another_disks_is_refused_by_whatever_node_or_link() {
    let stage = stage();
    let place = stage.place.path();
    // The nodes are never opened, so device numbers without a device are sufficient.
    let node = |node: &str, minor: &str| {
        let path = place.join(node);
        let mut mknod = std::process::Command::new("mknod");
        let made = mknod.arg(&path).args(["b", "7", minor]).status().unwrap();
        assert!(made.success());
        path
    };
    let (first, again) = (node("first", "1048001"), node("again", "1048001"));
    let second = node("second", "1048002");
    let link = place.join("link");
    std::os::unix::fs::symlink(&first, &link).unwrap();
    let create = |disk: &str, device: &Path| {
        let mut order = DiskCreate::new(name(disk), SIZE);
        order.datastore = Some(name("shared"));
        order.device = Some(device.to_owned());
        stage.disk_service.create(&order)
    };
    create("a", &first).unwrap();
    for device in [&first, &again, &link] {
        let refused = create("b", device).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        let told = refused.to_string();
        assert!(told.contains("the device of disk a"), "{told}");
        assert!(stage.disk_service.store.find(&name("b")).is_err());
    }
    create("b", &second).unwrap();
}

/// A loop device on a file, until dropped.
struct Loop(PathBuf);

impl Loop {
    fn of(file: &Path) -> Loop {
        File::create(file).unwrap().set_len(SIZE).unwrap();
        let mut losetup = std::process::Command::new("losetup");
        let made = losetup.args(["--find", "--show"]).arg(file).output();
        let made = made.unwrap();
        assert!(made.status.success(), "losetup needs root: {made:?}");
        let device = String::from_utf8(made.stdout).unwrap();
        Loop(device.trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let mut losetup = std::process::Command::new("losetup");
        let _ = losetup.arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn no_disk_is_created_on_a_device_that_is_mounted_or_in_use_otherwise() {
    let stage = stage();
    let device = Loop::of(&stage.place.path().join("bytes"));
    // As a mounted file system has it.
    let mut options = File::options();
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, 0o200);
    let mounted = options.read(true).open(&device.0).unwrap();
    let mut order = DiskCreate::new(name("a"), SIZE);
    order.datastore = Some(name("shared"));
    order.device = Some(device.0.clone());
    let mut member = DiskCreate::new(name("a"), SIZE);
    member.members = vec![
        format!("shared:device={}", device.0.display())
            .parse()
            .unwrap(),
    ];
    for order in [&order, &member] {
        let refused = stage.disk_service.create(order).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        assert!(refused.to_string().contains("it is mounted"), "{refused}");
        assert!(!stage.shared.join("a").exists());
    }
    drop(mounted);
    stage.disk_service.create(&order).unwrap();
    stage.disk_service.delete(&name("a")).unwrap();
}

#[test]
fn a_disk_is_not_attached_while_another_one_writes_to_its_device() {
    let stage = stage();
    let device = Loop::of(&stage.place.path().join("bytes"));
    let link = stage.place.path().join("link");
    std::os::unix::fs::symlink(&device.0, &link).unwrap();
    for (disk, path) in [("a", &device.0), ("b", &link)] {
        // No command creates two disks on one device, but a host that does not know of the first may create a second.
        stage.disk(disk);
        stage.elsewhere(disk, |found| found.descriptor.device = Some(path.clone()));
    }
    stage.attach("a", Outside::Accept).unwrap();
    let refused = stage.attach("b", Outside::Accept).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
    let told = refused.to_string();
    assert!(
        told.contains("disk a is attached, and uses the same device"),
        "{told}"
    );
    assert_eq!(
        refused.remedy.as_deref(),
        Some("detach disk a first, or give disk b another device")
    );
    // One of the two still writes.
    let refused = stage.attach_read_only("b").unwrap_err();
    assert!(
        refused.to_string().contains("disk a is attached"),
        "{refused}"
    );
    stage.detach("a");
    stage.attach("b", Outside::Accept).unwrap();
    stage.detach("b");
}

#[test]
fn a_disk_whose_trace_path_leads_up_is_attached_without_that_filter() {
    let stage = stage();
    stage.disk("a");
    let place = stage.place.path().display();
    let up = vec![format!("trace:path={place}/x/../a.trace")];
    let set = |filters: &[String]| {
        let order = api::DiskSet {
            filters: Some(filters.to_vec()),
            ..Default::default()
        };
        stage.disk_service.set(&name("a"), &order)
    };
    let refused = set(&up).unwrap_err();
    assert!(refused.to_string().contains("has `..` in it"), "{refused}");
    // As an older version accepted it.
    stage.elsewhere("a", |found| {
        found.descriptor.filters = [&["stats".to_owned()], &up[..]].concat();
        stage.disk_service.agree(found).unwrap();
    });
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.filters("a"), ["stats"]);
    stage.detach("a");
    let refused = stage.attach("a", Outside::Accept).unwrap_err();
    let remedy = refused.remedy.unwrap();
    let commands = format!(
        "tidegate filter remove a {}; tidegate filter add a trace:path={place}/a.trace",
        up[0]
    );
    assert!(remedy.ends_with(&commands), "{remedy}");
    // As the two commands do.
    let plain = format!("trace:path={place}/a.trace");
    set(&["stats".to_owned()]).unwrap();
    set(&["stats".to_owned(), plain.clone()]).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.filters("a"), ["stats".to_owned(), plain]);
    stage.detach("a");
}
