//! Tests of what import and export commands refuse before anything is read or written.

use super::*;
use tidegate_api::job::{DiskImport, ImageFormat, Job, JobState};

fn import(file: &Path, disk: &str) -> DiskImport {
    DiskImport {
        file: file.to_owned(),
        format: None,
        name: name(disk),
        datastore: Some(name("shared")),
        attach: false,
        device: None,
        existing: Existing::Keep,
    }
}

fn export(file: PathBuf, format: Option<ImageFormat>) -> DiskExport {
    DiskExport {
        snapshot: None,
        file,
        format,
        existing: Existing::Keep,
    }
}

impl Stage {
    fn import(&self, order: DiskImport) -> Outcome<Job> {
        let _context = self.runtime.enter();
        self.disk_service.import(order)
    }

    /// The final state of a job.
    fn ended(&self, job: &Job) -> JobState {
        loop {
            let job = self.disk_service.jobs.job(job.id).unwrap();
            if job.state.is_over() {
                return job.state;
            }
            std::thread::yield_now();
        }
    }
}

#[test]
fn an_order_on_a_disk_that_a_job_works_on_names_the_job_that_can_be_cancelled() {
    let stage = stage();
    stage.disk("a");
    let claim = stage.disk_service.claim(&name("a"), "").unwrap();
    let context = stage.runtime.enter();
    let what = "export disk a".to_owned();
    let job = stage
        .disk_service
        .jobs
        .start(what, name("a"), move |progress| {
            let _until_done = claim;
            loop {
                progress.check()?;
                std::thread::yield_now();
            }
        });
    drop(context);
    let detach = || stage.disk_service.detach(&name("a"), Clients::Keep);
    let refused = detach();
    // As the hint says. The job is cancelled before the check, because a running job would keep a failed test from
    // ending.
    stage.disk_service.jobs.cancel(job.id).unwrap();
    assert_eq!(stage.ended(&job), JobState::Cancelled);
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
    let hint = format!("tidegate job cancel {}", job.id);
    assert!(refused.remedy.unwrap().contains(&hint));
    detach().unwrap();
}

#[test]
fn an_empty_file_is_no_image() {
    let stage = stage();
    let empty = stage.place.path().join("empty");
    File::create(&empty).unwrap();
    let job = stage.import(import(&empty, "new")).unwrap();
    assert_eq!(stage.ended(&job), JobState::Failed);
    let problem = stage
        .disk_service
        .jobs
        .job(job.id)
        .unwrap()
        .problem
        .unwrap();
    assert!(
        problem.to_string().contains("the image is empty"),
        "{problem}"
    );
}

#[test]
fn an_export_onto_what_is_there_is_refused_before_it_is_a_job() {
    let stage = stage();
    stage.disk("a");
    let path = stage.place.path().join("out.img");
    fs::write(&path, "precious").unwrap();
    let _context = stage.runtime.enter();
    let order = export(path.clone(), None);
    let refused = stage
        .disk_service
        .export(&name("a"), order.clone())
        .unwrap_err();
    assert_eq!(refused.code, ProblemCode::Exists, "{refused}");
    assert!(refused.remedy.unwrap().contains("--replace"));
    assert!(stage.disk_service.jobs.list().is_empty());
    let existing = Existing::Replace;
    let job = stage
        .disk_service
        .export(&name("a"), DiskExport { existing, ..order });
    assert_eq!(stage.ended(&job.unwrap()), JobState::Done);
}

#[test]
fn the_image_of_an_attached_disk_is_not_imported_by_whatever_name() {
    let stage = stage();
    let image = stage.disk("a").image();
    let link = stage.place.path().join("link");
    std::os::unix::fs::symlink(&image, &link).unwrap();
    let hard = stage.place.path().join("hard");
    fs::hard_link(&image, &hard).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    for path in [&image, &link, &hard] {
        let refused = stage.import(import(path, "copy")).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains("of disk a") && text.contains("detach it first"),
            "{text}"
        );
    }
    stage.detach("a");
    let job = stage.import(import(&link, "copy")).unwrap();
    assert_eq!(stage.ended(&job), JobState::Done);
    stage.disk_service.store.find(&name("copy")).unwrap();
}

#[test]
fn an_export_whose_name_says_another_format_is_refused_and_nothing_is_written() {
    let stage = stage();
    stage.disk("a");
    for file in ["out.vmdk", "out.vhdx", "out.img.gz"] {
        let file = stage.place.path().join(file);
        let refused = stage
            .disk_service
            .export(&name("a"), export(file.clone(), None))
            .unwrap_err();
        assert_eq!(refused.code, ProblemCode::Unsupported, "{refused}");
        assert!(!file.exists());
    }
    let file = stage.place.path().join("out.vmdk");
    let job = {
        let _context = stage.runtime.enter();
        let order = export(file.clone(), Some(ImageFormat::Raw));
        stage.disk_service.export(&name("a"), order).unwrap()
    };
    assert_eq!(stage.ended(&job), JobState::Done);
    assert_eq!(fs::metadata(file).unwrap().len(), SIZE);
}

#[test]
fn an_import_goes_to_a_device_only_if_that_is_one_and_may_be_overwritten() {
    let stage = stage();
    let image = stage.place.path().join("image");
    let file = stage.place.path().join("precious");
    for path in [&image, &file] {
        fs::write(path, [1; 4096]).unwrap();
    }
    let mut order = import(&image, "a");
    order.device = Some(file.clone());
    let refused = stage.import(order.clone()).unwrap_err();
    assert!(refused.to_string().contains("--yes"), "{refused}");
    order.existing = Existing::Replace;
    let job = stage.import(order).unwrap();
    assert_eq!(stage.ended(&job), JobState::Failed);
    assert_eq!(fs::read(&file).unwrap(), [1; 4096]);
    assert!(stage.disk_service.store.find(&name("a")).is_err());
}

#[test]
fn an_export_writes_nothing_among_the_daemons_files_or_what_hosts_share() {
    let stage = stage();
    stage.disk("a");
    let root = stage.disk_service.root.clone();
    let link = stage.place.path().join("link");
    std::os::unix::fs::symlink(root.state(), &link).unwrap();
    fs::create_dir(stage.shared.join(".tidegate/owners")).unwrap();
    let remembered = root.state().join("attached.toml");
    fs::write(&remembered, "version = 1\n").unwrap();
    for (file, holds) in [
        (remembered.clone(), "own state"),
        (link.join("datastores/new.toml"), "own state"),
        (root.run().join("disks/a.sock"), "sockets"),
        (stage.shared.join(".tidegate/datastore-id"), "share"),
        (stage.shared.join(".tidegate/owners/1"), "share"),
    ] {
        let existing = Existing::Replace;
        let order = export(file.clone(), Some(ImageFormat::Raw));
        let order = DiskExport { existing, ..order };
        let _context = stage.runtime.enter();
        let refused = stage.disk_service.export(&name("a"), order).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        assert!(refused.to_string().contains(holds), "{refused}");
        // Nor can a filter write there.
        let order = api::DiskSet {
            filters: Some(vec![format!("trace:path={}", file.display())]),
            ..Default::default()
        };
        let refused = stage.disk_service.set(&name("a"), &order).unwrap_err();
        assert!(refused.to_string().contains(holds), "{refused}");
    }
    assert_eq!(fs::read(&remembered).unwrap(), b"version = 1\n");
}

#[test]
fn a_path_that_no_file_can_have_is_not_repeated() {
    let stage = stage();
    stage.disk("a");
    let long = PathBuf::from(format!("/{}", "x/".repeat(1 << 19)));
    let exported = stage
        .disk_service
        .export(&name("a"), export(long.clone(), None));
    let mut to_device = import(Path::new("/dev/null"), "b");
    to_device.device = Some(long.clone());
    for refused in [
        exported,
        stage.import(import(&long, "b")),
        stage.import(to_device),
    ] {
        let refused = refused.unwrap_err();
        let text = refused.to_string();
        assert!(text.len() < 300, "{} bytes", text.len());
        assert!(text.contains("bytes"), "{text}");
        assert!(refused.remedy.unwrap().contains("at most 4095 bytes"));
    }
}

#[test]
fn a_copy_of_a_truncated_image_names_a_size_that_the_disk_can_have() {
    let stage = stage();
    let found = stage.disk("a");
    let export = || {
        let order = export(stage.place.path().join("out.img"), None);
        stage.disk_service.export(&name("a"), order).unwrap_err()
    };
    let image = File::options().write(true).open(found.image()).unwrap();
    image.set_len(SIZE - 100).unwrap();
    let block = u64::from(found.descriptor.block_size);
    let hint = format!("tidegate disk resize a {} --yes", SIZE - block);
    assert!(export().remedy.unwrap().ends_with(&hint));
    image.set_len(block - 1).unwrap();
    let hint = "tidegate disk delete a";
    assert!(export().remedy.unwrap().ends_with(hint));
}
