//! Reports about the members of attached disks: jobs, events and problems.

use tidegate_api::events::Happening;
use tidegate_api::job::JobState;
use tidegate_api::layout::MemberState;
use tidegate_core::layout::LayoutOrder;

use super::layouts::mirrored;
use super::*;
use crate::disks::disk_service::orders::NotBegun;
use crate::disks::notices::Notice;
use crate::disks::watch::watch_every;

impl Stage {
    /// The events of members that have not been recorded yet.
    fn events(&self) -> Vec<(String, Happening)> {
        let notices = self.disk_service.notices.take().into_iter();
        let of_member = |(_, notice)| match notice {
            Notice::Member { on, happening } => Some((on.unwrap().to_string(), happening)),
            _ => None,
        };
        notices.filter_map(of_member).collect()
    }
}

#[test]
fn a_rebuild_is_not_cancelled_with_its_job_but_by_the_removal_of_its_member() {
    let stage = stage();
    mirrored(&stage);
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    live.order(LayoutOrder::Rate(4096)).unwrap();
    let _context = stage.runtime.enter();
    let on = "shared".parse().unwrap();
    let job = stage
        .disk_service
        .replace_member(&name("a"), 1, on)
        .unwrap();
    assert!(!job.cancellable);
    let refused = stage.disk_service.jobs.cancel(job.id).unwrap_err();
    let remedy = refused.remedy.unwrap();
    assert!(
        remedy.contains("tidegate disk member remove a 1"),
        "{remedy}"
    );
    let told = stage.disk_service.degraded().remove(0);
    assert!(
        told.to_string()
            .contains("member 1 on shared is being rebuilt"),
        "{told}"
    );
    stage.disk_service.remove_member(&name("a"), 1).unwrap();
    let job = || stage.disk_service.jobs.job(job.id).unwrap();
    while !job().state.is_over() {
        std::thread::yield_now();
    }
    assert_eq!((job().state, job().problem), (JobState::Cancelled, None));
    assert_eq!(stage.states(), [MemberState::InSync, MemberState::Removed]);
}

#[test]
fn a_rebuild_that_ends_before_its_job_looks_has_done_all_bytes() {
    let stage = stage();
    mirrored(&stage);
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    let disk = stage.disk_service.store.find(&name("a")).unwrap();
    let job = stage.over(|service| Ok(service.follow_new_member(live, &disk, 1)));
    assert_eq!((job.done_bytes, job.total_bytes), (SIZE, SIZE));
}

#[test]
fn a_degraded_disk_is_a_problem_with_what_to_do() {
    let stage = stage();
    mirrored(&stage);
    assert_eq!(stage.disk_service.degraded(), []);
    stage.fail(1);
    let told = stage.disk_service.degraded().remove(0);
    assert!(
        told.to_string()
            .contains("disk a is degraded: member 1 on two lacks writes"),
        "{told}"
    );
    assert!(
        told.remedy
            .unwrap()
            .contains("tidegate disk member replace a 1")
    );
    stage.disk_service.remove_member(&name("a"), 1).unwrap();
    let told = stage.disk_service.degraded().remove(0);
    assert!(told.remedy.unwrap().contains("tidegate disk member add a"));
    let on = "two".parse().unwrap();
    let job = stage.over(|service| service.add_member(&name("a"), on));
    assert_eq!(job.state, JobState::Done);
    assert!(
        job.done_bytes > 0 && job.done_bytes == job.total_bytes,
        "{job:?}"
    );
    assert_eq!(stage.disk_service.degraded(), []);
}

#[test]
fn the_missing_image_of_a_later_member_is_noticed_at_once_and_marks_the_member() {
    let stage = stage();
    let [_, two] = mirrored(&stage);
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    let never = Duration::from_secs(3600);
    let watching = watch_every(Arc::clone(&stage.disk_service), never);
    let watching = stage.runtime.spawn(watching);
    // The watch's first look has registered the directories.
    while live.followed().is_some_and(|(_, stamp)| stamp.is_none()) {
        std::thread::yield_now();
    }
    fs::remove_file(two.join("a/image")).unwrap();
    while live.misplaced_member(1).is_none() {
        std::thread::yield_now();
    }
    watching.abort();
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(disk.members[0].problem, None);
    for problem in [
        disk.problem.unwrap(),
        disk.members[1].problem.clone().unwrap(),
    ] {
        assert!(
            problem
                .to_string()
                .contains("the image of member 1 of disk a is missing"),
            "{problem}"
        );
        assert!(
            problem
                .remedy
                .unwrap()
                .contains("tidegate disk member replace a 1")
        );
    }
    let events = stage.events();
    let [(on, Happening::MemberImageMissing { member: 1, .. })] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(on, "two");
    // As the remedy says.
    let on = "shared".parse().unwrap();
    stage.over(|service| service.replace_member(&name("a"), 1, on));
    assert_eq!(stage.disk_service.disk(&name("a")).unwrap().problem, None);
    stage.detach("a");
}

#[test]
fn an_event_says_which_member_was_given_up() {
    let stage = stage();
    let [_, two] = mirrored(&stage);
    stage.detach("a");
    fs::rename(&two, stage.place.path().join("aside")).unwrap();
    let _context = stage.runtime.enter();
    let order = DiskAttach {
        without: vec![1],
        ..Default::default()
    };
    stage.disk_service.attach(&name("a"), order).unwrap();
    let given_up = Happening::MemberGivenUp {
        disk: name("a"),
        member: 1,
    };
    assert_eq!(stage.events(), [("two".to_owned(), given_up)]);
}

#[test]
fn a_new_member_that_a_disk_has_is_not_deleted_when_its_rebuild_does_not_begin() {
    let problem = || Problem::new(ProblemCode::Busy, "cannot rebuild");
    let told = NotBegun::Committed(problem()).undone(|| panic!("it is the disk's"));
    assert!(told.to_string().contains("is tried again"), "{told}");
    let mut deleted = false;
    NotBegun::NotCommitted(problem()).undone(|| {
        deleted = true;
        Ok(())
    });
    assert!(deleted);
}

#[test]
fn a_plain_disk_has_no_member_to_replace_or_to_remove_and_can_be_moved() {
    let stage = stage();
    stage.datastore("other");
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let service = &stage.disk_service;
    let on = || "other".parse().unwrap();
    let refused = [
        service.replace_member(&name("a"), 0, on()).map(|_| ()),
        service.replace_member(&name("a"), 1, on()).map(|_| ()),
        service.remove_member(&name("a"), 0),
    ];
    for refused in refused {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("it is plain"), "{refused}");
        assert!(
            refused.contains("tidegate disk move a --to DATASTORE"),
            "{refused}"
        );
    }
}

#[test]
fn a_disk_uses_what_all_of_its_members_use() {
    let stage = stage();
    mirrored(&stage);
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    let each: Vec<_> = disk
        .members
        .iter()
        .map(|member| member.allocated_bytes.unwrap())
        .collect();
    assert!(each.iter().all(|bytes| *bytes > 0), "{each:?}");
    assert_eq!(disk.allocated_bytes, Some(each[0] + each[1]));
}

#[test]
fn a_change_of_a_mirror_whose_home_is_lost_is_refused_with_the_way_to_another_home() {
    let stage = stage();
    let [one, _] = mirrored(&stage);
    stage.fail(0);
    fs::rename(one, stage.place.path().join("lost")).unwrap();
    let on = "shared".parse().unwrap();
    let refused = stage.disk_service.add_member(&name("a"), on).unwrap_err();
    let remedy = refused.remedy.unwrap();
    assert!(
        remedy.contains("tidegate disk member replace a 0 --on DATASTORE"),
        "{remedy}"
    );
}

#[test]
fn a_datastore_knows_the_disks_that_have_only_a_later_member_there() {
    let stage = stage();
    mirrored(&stage);
    let two = stage.disk_service.datastore(&name("two")).unwrap();
    let shares = two.control.unwrap().shares;
    let disks: Vec<_> = shares.into_iter().map(|disk| disk.disk).collect();
    assert_eq!(disks, [Some(name("a"))]);
}

#[test]
fn only_a_mirror_is_attached_without_a_member_and_not_without_all() {
    for (layout, without, why) in [
        ("mirror", vec![0, 1], "no member would be left"),
        ("stripe", vec![1], "it cannot go on without a member"),
    ] {
        let stage = stage();
        layouts::two(&stage);
        let order = layouts::order("a", layout, &["one", "two"]);
        stage.create(&order).unwrap();
        let order = DiskAttach {
            without,
            ..Default::default()
        };
        let _context = stage.runtime.enter();
        let refused = stage.disk_service.attach(&name("a"), order).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(!refused.remedy.unwrap().contains("--without 0"));
    }
}

#[test]
fn a_member_whose_export_has_requests_in_flight_is_away() {
    let stage = stage();
    mirrored(&stage);
    stage.detach("a");
    let uri = "nbd://localhost:1".to_owned();
    let service = &stage.disk_service;
    service
        .add_datastore(&name("remote"), DatastoreSettings::Nbd { uri })
        .unwrap();
    stage.elsewhere("a", |found| {
        let place = &mut found.descriptor.members[1];
        (place.datastore, place.device) = (name("remote"), None);
    });
    let found = service.store.find(&name("a")).unwrap();
    let member = service.store.member(&found, 1, SIZE).unwrap();
    let image = plan::image(&member);
    let other = service.exports.enter(&name("b"), &image, false).unwrap();
    let refused = stage.attach("a", Outside::Agreed).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy, "another disk has it");
    drop(other);
    let before = service.exports.enter(&name("a"), &image, false).unwrap();
    let refused = stage.attach("a", Outside::Agreed).unwrap_err();
    let remedy = refused.remedy.unwrap();
    assert!(remedy.contains("disk attach a --without 1"), "{remedy}");
    let order = DiskAttach {
        without: vec![1],
        ..Default::default()
    };
    let context = stage.runtime.enter();
    service.attach(&name("a"), order).unwrap();
    drop(context);
    assert_eq!(stage.states(), [MemberState::InSync, MemberState::Away]);
    stage.detach("a");
    drop(before);
}
