//! Mirrors that get more members than they were created with, and their settings for the loss of members.

use tidegate_api::descriptor::OnLoss;
use tidegate_api::layout::MemberState;
use tidegate_api::or_default::OrDefault;

use super::layouts::{files, mirrored, order, two};
use super::*;

#[test]
fn a_mirror_grows_to_four_members_while_it_is_attached() {
    use MemberState::InSync;
    let stage = stage();
    let [one, _] = mirrored(&stage);
    let four = stage.datastore("four");
    for (count, on) in [(3, "shared"), (4, "four")] {
        let job = stage.over(|service| service.add_member(&name("a"), on.parse().unwrap()));
        assert_eq!(job.done_bytes, job.total_bytes);
        assert_eq!(stage.states(), vec![InSync; count]);
    }
    let descriptor = fs::read_to_string(one.join("a/disk.toml")).unwrap();
    for path in [&stage.shared, &four] {
        assert_eq!(files(&path.join("a")), ["image", "member.toml"]);
        assert_eq!(
            fs::read_to_string(path.join("a/member.toml")).unwrap(),
            descriptor
        );
    }
    let bytes = |path: &Path| fs::read(path.join("a/image")).unwrap()[1 << 20..].to_vec();
    stage.detach("a");
    assert!(bytes(&one) == bytes(&stage.shared) && bytes(&one) == bytes(&four));
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.states(), [InSync; 4]);
    stage.datastore("five");
    let more = stage
        .disk_service
        .add_member(&name("a"), "five".parse().unwrap());
    let more = more.unwrap_err();
    assert!(more.to_string().contains("2 to 4 members"), "{more}");
    assert!(
        more.remedy
            .unwrap()
            .contains("tidegate disk member replace a")
    );
    // A removed one leaves its place, which is filled first.
    stage.disk_service.remove_member(&name("a"), 2).unwrap();
    stage.over(|service| service.add_member(&name("a"), "five".parse().unwrap()));
    assert_eq!(stage.states(), [InSync; 4]);
    stage.detach("a");
    stage.disk_service.delete(&name("a")).unwrap();
    assert!(!four.join("a").exists());
}

#[test]
fn a_mirror_whose_growth_a_crash_interrupted_is_attached_and_rebuilt() {
    use MemberState::{InSync, Stale};
    let stage = stage();
    mirrored(&stage);
    stage.detach("a");
    // The descriptor names the new member, and its image is blank.
    let mut disk = stage.disk_service.store.find(&name("a")).unwrap();
    disk.descriptor.members.push("shared".parse().unwrap());
    let new = stage.disk_service.new_member(&disk, 2).unwrap();
    stage.disk_service.store.create_member(&disk, &new).unwrap();
    stage.disk_service.store.write_descriptor(&disk).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.states(), [InSync, InSync, Stale]);
    assert!(stage.disk_service.return_those_away());
    stage.becomes(&[InSync; 3]);
    stage.detach("a");
}

#[test]
fn a_disk_that_cannot_get_one_more_member_is_left_as_it_was() {
    let stage = stage();
    two(&stage);
    let add = |disk: &str, on: &str| {
        let added = stage
            .disk_service
            .add_member(&name(disk), on.parse().unwrap());
        let refused = added.unwrap_err();
        assert!(!stage.shared.join(disk).exists());
        (refused.to_string(), refused.remedy.unwrap())
    };
    stage
        .create(&order("s", "stripe", &["one", "two"]))
        .unwrap();
    stage.attach("s", Outside::Agreed).unwrap();
    let (why, _) = add("s", "shared");
    assert!(why.contains("number of its members is fixed"), "{why}");
    stage.disk_on("one", "p");
    let (why, remedy) = add("p", "shared");
    assert!(why.contains("it is plain"), "{why}");
    assert!(
        remedy.contains("--layout mirror --on one --on shared"),
        "{remedy}"
    );
    stage
        .create(&order("m", "mirror", &["one", "two"]))
        .unwrap();
    let (why, remedy) = add("m", "shared");
    assert!(why.contains("not attached"), "{why}");
    assert!(remedy.contains("tidegate disk attach m"), "{remedy}");
    stage.attach("m", Outside::Agreed).unwrap();
    let (why, _) = add("m", "two");
    assert!(why.contains("protect nothing"), "{why}");
    let disk = stage.disk_service.disk(&name("m")).unwrap();
    assert_eq!(disk.members.len(), 2);
}

#[test]
fn a_mirrors_settings_for_the_loss_of_members_change_while_it_is_attached_and_stay() {
    let stage = stage();
    let [one, two] = mirrored(&stage);
    let settings = || {
        let disk = stage.disk_service.disk(&name("a")).unwrap();
        (disk.member_timeout_ms, disk.on_loss)
    };
    assert_eq!(settings(), (Some(10_000), Some(OnLoss::Fail)));
    let set = |timeout, on_loss| {
        let order = DiskSet {
            member_timeout_ms: Some(OrDefault::from(timeout)),
            on_loss: Some(on_loss),
            ..Default::default()
        };
        stage.disk_service.set(&name("a"), &order)
    };
    set(Some(30_000), OnLoss::Wait).unwrap();
    assert_eq!(settings(), (Some(30_000), Some(OnLoss::Wait)));
    let written = fs::read_to_string(one.join("a/disk.toml")).unwrap();
    assert!(
        written.contains("member_timeout = \"30s\"") && written.contains("on_loss = \"wait\""),
        "{written}"
    );
    assert_eq!(
        written,
        fs::read_to_string(two.join("a/member.toml")).unwrap()
    );
    stage.detach("a");
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(settings(), (Some(30_000), Some(OnLoss::Wait)));
    for timeout in [0, 999, 3_600_001, u64::MAX] {
        let refused = set(Some(timeout), OnLoss::Wait).unwrap_err();
        assert!(refused.to_string().contains("from 1s to 1h"), "{refused}");
    }
    set(None, OnLoss::Fail).unwrap();
    assert_eq!(settings(), (Some(10_000), Some(OnLoss::Fail)));
    // Another host changes them.
    stage.elsewhere("a", |found| found.descriptor.on_loss = OnLoss::Wait);
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    stage.disk_service.follow(&live);
    assert_eq!(live.descriptor().unwrap().on_loss, OnLoss::Wait);
    stage.disk_on("one", "p");
    let order = DiskSet {
        on_loss: Some(OnLoss::Wait),
        ..Default::default()
    };
    let refused = stage.disk_service.set(&name("p"), &order).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Unsupported, "{refused}");
}
