//! Tests of commands on other datastores, scans, start and stop while a datastore hangs.

use super::*;

/// Makes scans of a datastore hang until the returned value is dropped. Callers do not wait for such a scan.
pub(super) fn hang(
    looks: &mut timed_scan::TimedScan,
    datastore: &str,
) -> std::sync::mpsc::Sender<()> {
    let (let_go, hangs) = std::sync::mpsc::channel();
    looks.patience = Duration::ZERO;
    let hung = looks.at(&name(datastore), move || Ok(hangs.recv()));
    assert!(hung.is_err());
    let_go
}

#[test]
fn the_remembered_disks_of_one_datastore_wait_for_no_other_datastore() {
    let stage = stage();
    stage.datastore("unhindered");
    let image = stage.disk("a").image();
    stage.disk_on("unhindered", "b");
    for disk in ["a", "b"] {
        stage.attach(disk, Outside::Agreed).unwrap();
    }
    stage.disk_service.detach_all();
    let held = dir::open(&image, dir::Options::default()).unwrap();
    let attached = std::thread::scope(|scope| {
        let attaching = scope.spawn(|| stage.attach_remembered());
        while stage.disk_service.live.get(&name("b")).is_none() {
            assert!(!attaching.is_finished(), "it is in nobody's way");
            std::thread::yield_now();
        }
        drop(held);
        attaching.join().unwrap()
    });
    assert_eq!(attached, 2, "{:?}", stage.disk_service.troubles());
    stage.disk_service.detach_all();
}

#[test]
fn who_looks_at_all_datastores_is_told_of_one_that_hangs_and_waits_for_none() {
    let mut stage = stage();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    let let_go = hang(&mut disk_service.surveys, "shared");
    let told = |datastores: Vec<tidegate_api::datastore::Datastore>| {
        let problem = datastores[0].problem.as_ref().expect("it hangs");
        assert!(
            problem.to_string().contains("does not respond"),
            "{problem}"
        );
    };
    told(stage.disk_service.datastores_at_a_glance().unwrap());
    told(stage.disk_service.datastores().unwrap());
    // Disks that are attached there are still listed.
    let disks = stage.disk_service.disks(None).unwrap();
    assert!(disks.len() == 1 && disks[0].attached);
    let problem = disks[0].problem.as_ref().expect("it hangs").to_string();
    assert!(problem.contains("does not respond"), "{problem}");
    // What is known without a scan is reported.
    let attached = stage.disk_service.attached_disks().unwrap();
    assert_eq!((attached.len(), attached[0].allocated_bytes), (1, None));
    drop(let_go);
    stage.detach("a");
}

#[test]
fn orders_on_disks_elsewhere_are_carried_out_while_a_datastore_hangs_and_a_disk_on_it_is_let_go_of()
{
    let mut stage = stage();
    stage.datastore("unhindered");
    for disk in ["a", "d"] {
        stage.disk(disk);
        stage.attach(disk, Outside::Agreed).unwrap();
    }
    stage.disk_on("unhindered", "b");
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    let let_go = hang(&mut disk_service.looks, "shared");
    // Other datastores respond sooner. Once this time is over, no caller waits for this one again.
    disk_service.looks.patience = Duration::from_secs(3);
    let shown = stage.disk_service.disk(&name("a")).unwrap();
    let refused = stage.disk_service.disk(&name("nonesuch")).unwrap_err();
    for told in [shown.problem.unwrap(), refused] {
        let told = told.to_string();
        assert!(told.contains("shared does not respond"), "{told}");
    }
    stage.attach("b", Outside::Agreed).unwrap();
    stage.detach("b");
    stage.disk_service.delete(&name("b")).unwrap();
    stage.disk_on("unhindered", "c");
    stage.detach("a");
    assert!(stage.disk_service.live.get(&name("a")).is_none());
    // A start continues without them, and reports each by name.
    stage.disk_service.detach_all();
    assert_eq!(stage.attach_remembered(), 0);
    let told = stage.disk_service.troubles().remove(0).to_string();
    assert!(told.contains("cannot look for disk d"), "{told}");
    stage.detach("d");
    assert!(stage.disk_service.store.attached().unwrap().is_empty());
    drop(let_go);
}

#[test]
fn everything_ends_though_all_threads_that_may_block_are_taken() {
    let stage = stage();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build();
    let hasty = runtime.unwrap().block_on(async {
        let (let_go, hangs) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || hangs.recv());
        let ended = tokio::time::timeout(Duration::from_secs(20), async {
            stage.disk_service.end().unwrap().await
        });
        let hasty = ended.await;
        drop(let_go);
        hasty
    });
    assert_eq!(hasty.expect("it is not kept waiting"), Ok(0));
    assert!(stage.disk_service.live.names().is_empty());
}

#[test]
fn the_images_of_a_disk_are_looked_after_while_the_datastore_of_another_member_hangs() {
    let mut stage = stage();
    let [one, two] = layouts::mirrored(&stage);
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    let let_go = hang(&mut disk_service.looks, "two");
    for path in [one, two] {
        fs::remove_file(path.join("a/image")).unwrap();
    }
    stage.disk_service.look_after_image(&live);
    assert!(live.misplaced_member(0).is_some());
    assert!(live.misplaced_member(1).is_none(), "nobody knows");
    drop(let_go);
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    disk_service.looks.patience = Duration::from_secs(10);
    stage.disk_service.look_after_image(&live);
    assert!(live.misplaced_member(1).is_some());
}
