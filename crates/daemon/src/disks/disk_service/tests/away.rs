//! Disks of which a datastore is away or removed, in lists and counts.

use tidegate_api::layout::MemberState;

use super::layouts::{mirrored, order, two};
use super::*;

#[test]
fn a_detached_mirror_whose_home_is_away_is_listed_by_its_copy() {
    let stage = stage();
    let [one, _] = two(&stage);
    stage
        .create(&order("a", "mirror", &["one", "two"]))
        .unwrap();
    stage
        .create(&order("b", "mirror", &["two", "one"]))
        .unwrap();
    let service = &stage.disk_service;
    let aside = stage.place.path().join("aside");
    fs::rename(&one, &aside).unwrap();
    let names = |only: Option<&str>| {
        let only = only.map(name);
        let disks = service.disks(only.as_ref()).unwrap();
        let listed = disks.into_iter();
        listed
            .map(|disk| {
                (
                    disk.name.to_string(),
                    disk.problem.map(|problem| problem.what),
                )
            })
            .collect::<Vec<_>>()
    };
    let lost = (
        "a".to_owned(),
        Some("the first datastore of disk a, one, is away".to_owned()),
    );
    let there = ("b".to_owned(), None);
    assert_eq!(names(None), [lost.clone(), there.clone()]);
    assert_eq!(names(Some("one")), std::slice::from_ref(&lost));
    assert_eq!(names(Some("two")), std::slice::from_ref(&there));
    let shown = service.disk(&name("a")).unwrap().problem.unwrap();
    assert_eq!(Some(shown.what), lost.1);
    assert!(shown.remedy.unwrap().contains("attach a --without 0"));
    fs::rename(&aside, &one).unwrap();
    assert_eq!(names(None), [("a".to_owned(), None), there]);
}

#[test]
fn a_datastore_counts_the_disks_that_have_only_a_later_member_there() {
    let stage = stage();
    mirrored(&stage);
    let service = &stage.disk_service;
    let counts = || {
        let two = service.datastore(&name("two")).unwrap();
        let listed = service.datastores().unwrap().into_iter();
        let glance = service.datastores_at_a_glance().unwrap().into_iter();
        for other in listed.chain(glance).filter(|other| other.name == two.name) {
            assert_eq!((other.disks, other.attached), (two.disks, two.attached));
        }
        let (_, all) = service.glance().unwrap();
        assert_eq!(all.len(), 1, "one disk, though two datastores have it");
        (two.disks, two.attached)
    };
    assert_eq!(counts(), (1, 1));
    service.detach(&name("a"), Clients::Keep).unwrap();
    assert_eq!(counts(), (1, 0));
}

#[test]
fn a_datastore_with_a_later_member_of_a_disk_that_is_to_be_attached_is_not_removed() {
    let stage = stage();
    mirrored(&stage);
    let service = &stage.disk_service;
    // As after a start at which the disk could not be attached.
    let live = service.live.get(&name("a")).unwrap();
    let wanted = service.store.attached().unwrap();
    drop(live);
    service.detach(&name("a"), Clients::Keep).unwrap();
    service.store.set_attached(wanted).unwrap();
    let refused = service.remove_datastore(&name("two")).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
    assert!(refused.remedy.unwrap().contains("disk detach a"));
    service.store.set_attached(BTreeMap::new()).unwrap();
    service.remove_datastore(&name("two")).unwrap();
}

#[test]
fn a_disk_attached_without_its_lost_home_has_its_states_and_its_used_space() {
    let stage = stage();
    let [one, _] = mirrored(&stage);
    let service = &stage.disk_service;
    service.detach(&name("a"), Clients::Keep).unwrap();
    fs::rename(&one, stage.place.path().join("aside")).unwrap();
    let context = stage.runtime.enter();
    let order = DiskAttach {
        without: vec![0],
        ..Default::default()
    };
    service.attach(&name("a"), order).unwrap();
    drop(context);
    let mut listed = service.disks(None).unwrap();
    let disk = listed.pop().unwrap();
    let states = disk.members.iter().map(|member| member.state);
    assert_eq!(
        states.collect::<Vec<_>>(),
        [MemberState::Away, MemberState::InSync]
    );
    assert!(disk.allocated_bytes.is_some());
    assert_eq!(listed, []);
}

#[test]
fn a_mirror_that_was_never_attached_is_created_again_after_the_loss_of_a_member() {
    for lost in [0, 1] {
        let stage = stage();
        let paths = two(&stage);
        let service = &stage.disk_service;
        stage
            .create(&order("a", "mirror", &["one", "two"]))
            .unwrap();
        fs::rename(&paths[lost], stage.place.path().join("aside")).unwrap();
        let without = DiskAttach {
            without: vec![u8::try_from(lost).unwrap()],
            ..Default::default()
        };
        let context = stage.runtime.enter();
        let refused = service.attach(&name("a"), without).unwrap_err();
        drop(context);
        assert!(refused.to_string().contains("never attached"), "{refused}");
        let remedy = refused.remedy.unwrap();
        assert!(!remedy.contains("--without"), "{remedy}");
        assert!(remedy.ends_with("then create the disk again"), "{remedy}");
        // What it says works.
        let left = match lost {
            0 => {
                assert!(remedy.contains("directory a from two by hand"), "{remedy}");
                fs::remove_dir_all(paths[1].join("a")).unwrap();
                "two"
            }
            _ => {
                assert!(remedy.contains("datastore remove two and"), "{remedy}");
                service.remove_datastore(&name("two")).unwrap();
                service.delete(&name("a")).unwrap();
                "one"
            }
        };
        stage
            .create(&order("a", "mirror", &[left, "shared"]))
            .unwrap();
    }
}
