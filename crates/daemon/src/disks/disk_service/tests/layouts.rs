//! Disks with a layout: creation, deletion and resize, with datastores that are there and that are not.

use tidegate_api::descriptor::MemberPlace;
use tidegate_api::job::Job;
use tidegate_api::layout::MemberState;
use tidegate_core::layout::DATA_AT;

use super::*;

pub(super) fn order(disk: &str, layout: &str, on: &[&str]) -> DiskCreate {
    let mut order = DiskCreate::new(name(disk), SIZE);
    order.layout = Some(layout.to_owned());
    order.members = on.iter().map(|text| text.parse().unwrap()).collect();
    order
}

/// Two more datastores, `one` and `two`.
pub(super) fn two(stage: &Stage) -> [PathBuf; 2] {
    ["one", "two"].map(|datastore| stage.datastore(datastore))
}

impl Stage {
    pub(super) fn create(&self, order: &DiskCreate) -> Outcome<api::Disk> {
        self.disk_service.create(order)
    }

    /// The error of a creation that leaves nothing.
    fn refused(&self, order: &DiskCreate) -> String {
        let problem = self.create(order).unwrap_err();
        let datastores = self.disk_service.store.datastores().unwrap();
        for (on, settings) in datastores {
            let path = match settings.unwrap() {
                DatastoreSettings::Dir { path, .. } => path,
                _ => continue,
            };
            let left = path.join(order.name.as_str());
            assert!(!left.exists(), "{} on {on} is left", left.display());
        }
        format!("{problem}; {}", problem.remedy.as_deref().unwrap_or(""))
    }
}

/// Names of the files in a disk's directory.
pub(super) fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_mirror_has_an_image_of_member_size_on_each_datastore_and_is_one_disk() {
    let stage = stage();
    let [one, two] = two(&stage);
    let disk = stage
        .create(&order("a", "mirror", &["one", "two"]))
        .unwrap();
    assert_eq!((disk.layout.as_str(), disk.size_bytes), ("mirror", SIZE));
    assert_eq!(disk.datastore.as_str(), "one");
    let told: Vec<_> = disk
        .members
        .iter()
        .map(|member| (member.datastore.as_str(), member.state, member.size_bytes))
        .collect();
    let size = DATA_AT + SIZE;
    assert_eq!(
        told,
        [
            ("one", MemberState::Present, size),
            ("two", MemberState::Present, size)
        ]
    );
    assert_eq!(files(&one.join("a")), ["disk.toml", "image"]);
    assert_eq!(files(&two.join("a")), ["image", "member.toml"]);
    for path in [&one, &two] {
        assert_eq!(fs::metadata(path.join("a/image")).unwrap().len(), size);
    }
    let listed = stage.disk_service.disks(None).unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(stage.disk_service.disks(Some(&name("two"))).unwrap(), []);
    // Its name is taken on both datastores.
    for on in ["one", "two"] {
        let mut plain = DiskCreate::new(name("a"), SIZE);
        plain.datastore = Some(name(on));
        assert_eq!(stage.create(&plain).unwrap_err().code, ProblemCode::Exists);
    }
    stage.disk_service.delete(&name("a")).unwrap();
    assert!(!one.join("a").exists() && !two.join("a").exists());
}

#[test]
fn a_size_is_rounded_up_to_whole_rows() {
    let stage = stage();
    two(&stage);
    let mut order = order("a", "stripe:chunk=64K", &["one", "two", "shared"]);
    order.size_bytes = Some(SIZE);
    let disk = stage.create(&order).unwrap();
    assert_eq!(disk.layout, "stripe:chunk=64KiB");
    assert_eq!(disk.size_bytes, 6 * 3 * 65_536);
    let grown = DiskResize {
        size_bytes: 2 * SIZE,
        data: ResizeData::Keep,
    };
    let disk = stage.disk_service.resize(&name("a"), grown).unwrap();
    assert_eq!(disk.size_bytes, 11 * 3 * 65_536);
    let image = fs::metadata(stage.shared.join("a/image")).unwrap();
    assert_eq!(image.len(), DATA_AT + 11 * 65_536);
    let copy = fs::read_to_string(stage.shared.join("a/member.toml")).unwrap();
    let home = fs::read_to_string(stage.place.path().join("one/a/disk.toml")).unwrap();
    assert_eq!(copy, home);
    let smaller = DiskResize {
        size_bytes: SIZE,
        data: ResizeData::MayCutOff,
    };
    let refused = stage.disk_service.resize(&name("a"), smaller).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Unsupported, "{refused}");
}

#[test]
fn places_that_do_not_suit_a_layout_are_refused_and_nothing_is_left() {
    let stage = stage();
    two(&stage);
    let ram = DatastoreSettings::Memory {};
    stage.disk_service.add_datastore(&name("ram"), ram).unwrap();
    let cases: [(&str, &[&str], &str); 10] = [
        ("mirror", &["one"], "2 to 4 members, not 1"),
        (
            "mirror",
            &["one", "one"],
            "a mirror there would protect nothing",
        ),
        (
            "mirror",
            &["ram", "ram"],
            "a mirror there would protect nothing",
        ),
        (
            "stripe",
            &["one", "one"],
            "a stripe there would be no faster",
        ),
        (
            "mirror+stripe",
            &["one", "one", "two", "ram"],
            "members 0 and 1",
        ),
        (
            "mirror",
            &["one", "nowhere"],
            "there is no datastore nowhere",
        ),
        (
            "mirror",
            &["one", "two:device=/dev/null"],
            "/dev/null is not a block device",
        ),
        (
            "mirror",
            &["one", "ram:device=/dev/sda"],
            "only datastores of kind dir",
        ),
        (
            "mirror",
            &["one", "two:export=x"],
            "datastore two has no exports",
        ),
        (
            "plain",
            &["one", "two"],
            "a plain disk has one place, not 2",
        ),
    ];
    for (layout, on, says) in cases {
        let text = stage.refused(&order("a", layout, on));
        assert!(text.contains(says), "{layout} on {on:?}: {text}");
    }
    let mut both = order("a", "mirror", &["one", "two"]);
    both.datastore = Some(name("one"));
    assert!(stage.refused(&both).contains("--on DATASTORE"));
    let mut sizeless = order("a", "mirror", &["one", "two"]);
    sizeless.size_bytes = None;
    assert!(stage.refused(&sizeless).contains("it needs a size"));
    let mut huge = order("a", "mirror", &["one", "two"]);
    huge.size_bytes = Some(1 << 50);
    huge.allocation = api::Allocation::Thick;
    stage.refused(&huge);
}

#[test]
fn a_creation_that_fails_on_a_later_member_leaves_nothing_on_earlier_ones() {
    let stage = stage();
    let [one, two] = two(&stage);
    // The home is created last: what stands in its way comes after the other member.
    fs::create_dir(one.join("a")).unwrap();
    let refused = stage
        .create(&order("a", "mirror", &["one", "two"]))
        .unwrap_err();
    assert_eq!(refused.code, ProblemCode::Exists, "{refused}");
    assert!(refused.to_string().contains("one/a exists"), "{refused}");
    assert!(!two.join("a").exists());
    assert_eq!(files(&one.join("a")), Vec::<String>::new());
}

#[test]
fn one_place_and_no_layout_is_a_plain_disk() {
    let stage = stage();
    two(&stage);
    let mut order = DiskCreate::new(name("a"), SIZE);
    order.members = vec![MemberPlace::on(name("two"))];
    let disk = stage.create(&order).unwrap();
    assert_eq!(
        (disk.layout.as_str(), disk.datastore.as_str()),
        ("plain", "two")
    );
    assert_eq!(disk.members, []);
    let image = fs::metadata(stage.place.path().join("two/a/image")).unwrap();
    assert_eq!(image.len(), SIZE);
}

#[test]
fn a_disk_whose_member_is_away_is_not_deleted_before_its_datastore_is_removed() {
    let stage = stage();
    let [one, two] = two(&stage);
    stage
        .create(&order("a", "mirror", &["one", "two"]))
        .unwrap();
    let aside = stage.place.path().join("aside");
    fs::rename(&two, &aside).unwrap();
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(disk.members[1].state, MemberState::Away);
    assert!(disk.members[1].problem.is_some());
    let grown = DiskResize {
        size_bytes: 2 * SIZE,
        data: ResizeData::Keep,
    };
    let refused = stage.disk_service.resize(&name("a"), grown).unwrap_err();
    assert!(
        refused.to_string().contains("member 1 of disk a, on two"),
        "{refused}"
    );
    let refused = stage.disk_service.delete(&name("a")).unwrap_err();
    let remedy = refused.remedy.unwrap();
    assert!(remedy.contains("tidegate datastore remove two"), "{remedy}");
    assert!(one.join("a/image").exists());
    stage.disk_service.remove_datastore(&name("two")).unwrap();
    stage.disk_service.delete(&name("a")).unwrap();
    assert!(!one.join("a").exists() && aside.join("a/image").exists());
}

#[test]
fn a_disk_is_found_by_the_copy_of_its_descriptor_while_its_home_is_away() {
    let stage = stage();
    let [one, _] = two(&stage);
    stage
        .create(&order("a", "mirror", &["one", "two"]))
        .unwrap();
    fs::rename(&one, stage.place.path().join("aside")).unwrap();
    let disk = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(disk.datastore.as_str(), "one");
    let states = disk.members.iter().map(|member| member.state);
    assert_eq!(
        states.collect::<Vec<_>>(),
        [MemberState::Away, MemberState::Present]
    );
    let refused = stage
        .disk_service
        .set(&name("a"), &DiskSet::default())
        .unwrap_err();
    assert!(refused.to_string().contains("datastore one"), "{refused}");
    assert!(stage.disk_service.delete(&name("a")).is_err());
}

#[test]
fn a_disk_with_a_layout_is_not_exported_from_one_of_its_images() {
    let stage = stage();
    two(&stage);
    stage
        .create(&order("a", "mirror", &["one", "two"]))
        .unwrap();
    let export = DiskExport {
        snapshot: None,
        file: stage.place.path().join("a.raw"),
        format: None,
        existing: Existing::Keep,
    };
    let refused = stage.disk_service.export(&name("a"), export).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Unsupported);
    assert!(refused.remedy.unwrap().contains("nbdcopy"));
}

#[test]
fn a_striped_disk_is_attached_with_all_of_its_members_and_not_without_one() {
    let stage = stage();
    let [_, two] = two(&stage);
    stage
        .create(&order("a", "stripe:chunk=64K", &["one", "two"]))
        .unwrap();
    let disk = stage.attach("a", Outside::Agreed).unwrap();
    let states = disk.members.iter().map(|member| member.state);
    assert_eq!(states.collect::<Vec<_>>(), [MemberState::InSync; 2]);
    let grown = DiskResize {
        size_bytes: 2 * SIZE,
        data: ResizeData::Keep,
    };
    let disk = stage.disk_service.resize(&name("a"), grown).unwrap();
    assert_eq!(disk.size_bytes, 2 * SIZE);
    assert_eq!(
        fs::metadata(two.join("a/image")).unwrap().len(),
        DATA_AT + SIZE
    );
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    let aside = stage.place.path().join("aside");
    fs::rename(&two, &aside).unwrap();
    let refused = stage.attach("a", Outside::Agreed).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Datastore, "{refused}");
    assert!(
        refused.to_string().contains("member 1 of disk a, on two"),
        "{refused}"
    );
    fs::rename(&aside, &two).unwrap();
    // An image that is gone is not taken for an empty one.
    fs::remove_file(two.join("a/image")).unwrap();
    let refused = stage.attach("a", Outside::Agreed).unwrap_err();
    assert_eq!(refused.code, ProblemCode::NotFound, "{refused}");
}

/// A mirror of two members, attached.
pub(super) fn mirrored(stage: &Stage) -> [PathBuf; 2] {
    let paths = two(stage);
    stage
        .create(&order("a", "mirror", &["one", "two"]))
        .unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    paths
}

impl Stage {
    pub(super) fn states(&self) -> Vec<MemberState> {
        let disk = self.disk_service.disk(&name("a")).unwrap();
        disk.members.iter().map(|member| member.state).collect()
    }

    /// Waits until a job is done.
    pub(super) fn over(&self, begin: impl FnOnce(&Arc<DiskService>) -> Outcome<Job>) -> Job {
        let _context = self.runtime.enter();
        let id = begin(&self.disk_service).unwrap().id;
        loop {
            let job = self.disk_service.jobs.job(id).unwrap();
            if job.state.is_over() {
                assert_eq!(job.problem, None);
                return job;
            }
            std::thread::yield_now();
        }
    }

    /// Drops a member, as the layout does when it fails.
    pub(super) fn fail(&self, member: u8) {
        let live = self.disk_service.live.get(&name("a")).unwrap();
        let target = tidegate_core::layout::Target(member);
        live.order(tidegate_core::layout::LayoutOrder::Drop(target))
            .unwrap();
    }

    /// Waits until the members have these states.
    pub(super) fn becomes(&self, states: &[MemberState]) {
        while self.states() != states {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_dropped_member_is_used_again_and_a_comparison_finds_all_equal() {
    use MemberState::{InSync, Stale};
    let stage = stage();
    let [one, two] = mirrored(&stage);
    assert_eq!(stage.states(), [InSync, InSync]);
    let removed = stage
        .disk_service
        .remove_datastore(&name("two"))
        .unwrap_err();
    assert!(
        removed.to_string().contains("disks on it are attached"),
        "{removed}"
    );
    stage.fail(1);
    assert_eq!(stage.states(), [InSync, Stale]);
    assert!(stage.disk_service.return_those_away());
    stage.becomes(&[InSync, InSync]);
    assert!(!stage.disk_service.return_those_away());
    stage.over(|service| service.scrub(&name("a"), Default::default()));
    let scrub = stage.disk_service.disk(&name("a")).unwrap().scrub.unwrap();
    assert_eq!((scrub.compared_bytes, scrub.different), (SIZE, 0));
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    // A difference behind the layout's back is found, and repaired if ordered.
    let image = File::options()
        .write(true)
        .open(two.join("a/image"))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"x", DATA_AT + 70_000).unwrap();
    drop(image);
    stage.attach("a", Outside::Agreed).unwrap();
    let repair = tidegate_api::layout::DiskScrub {
        differences: tidegate_api::layout::Differences::Repair,
    };
    stage.over(|service| service.scrub(&name("a"), repair));
    let scrub = stage.disk_service.disk(&name("a")).unwrap().scrub.unwrap();
    assert_eq!((scrub.different, scrub.repaired), (1, 1));
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    let bytes = |path: &Path| {
        fs::read(path.join("a/image")).unwrap()[usize::try_from(DATA_AT).unwrap()..].to_vec()
    };
    assert!(bytes(&one) == bytes(&two));
}

#[test]
fn a_replaced_member_is_rebuilt_elsewhere_and_its_old_data_is_deleted() {
    use MemberState::{InSync, Removed};
    let stage = stage();
    let [one, two] = mirrored(&stage);
    let on = |text: &str| text.parse::<MemberPlace>().unwrap();
    stage.over(|service| service.replace_member(&name("a"), 1, on("shared")));
    assert_eq!(stage.states(), [InSync, InSync]);
    assert!(!two.join("a").exists());
    let copy = fs::read_to_string(stage.shared.join("a/member.toml")).unwrap();
    assert_eq!(copy, fs::read_to_string(one.join("a/disk.toml")).unwrap());
    assert!(copy.contains("datastore = \"shared\""), "{copy}");
    stage.disk_service.remove_member(&name("a"), 1).unwrap();
    assert_eq!(stage.states(), [InSync, Removed]);
    assert!(!stage.shared.join("a").exists());
    // It is attached without the removed member at the next start.
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.states(), [InSync, Removed]);
    assert!(!stage.disk_service.return_those_away());
    stage.over(|service| service.add_member(&name("a"), on("two")));
    assert_eq!(stage.states(), [InSync, InSync]);
    let listed = stage.disk_service.disk_members(&name("a")).unwrap();
    assert_eq!(listed.members[1].datastore.as_str(), "two");
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    stage.disk_service.delete(&name("a")).unwrap();
    assert!(!one.join("a").exists() && !two.join("a").exists());
}

#[test]
fn a_member_is_not_replaced_where_that_protects_nothing_and_nothing_is_left() {
    let stage = stage();
    mirrored(&stage);
    let replace = |nth, on: &str| {
        let place = on.parse().unwrap();
        let refused = stage.disk_service.replace_member(&name("a"), nth, place);
        refused.unwrap_err().to_string()
    };
    assert!(replace(1, "one").contains("protect nothing"));
    assert!(replace(7, "shared").contains("no such member"));
    for (nth, on) in [(0, "one"), (1, "two")] {
        assert!(replace(nth, on).contains(&format!("it is on {on} already")));
    }
    let removed = stage.disk_service.remove_member(&name("a"), 0).unwrap_err();
    assert!(
        removed.to_string().contains("descriptor is with it"),
        "{removed}"
    );
    fs::create_dir(stage.shared.join("a")).unwrap();
    let in_the_way = replace(1, "shared");
    assert!(in_the_way.contains("shared/a exists"), "{in_the_way}");
    assert_eq!(files(&stage.shared.join("a")), Vec::<String>::new());
    assert_eq!(stage.states(), [MemberState::InSync; 2]);
}

#[test]
fn a_mirror_without_a_member_is_attached_only_if_that_member_is_given_up() {
    use MemberState::{Away, InSync};
    let stage = stage();
    let [_, two] = mirrored(&stage);
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    let aside = stage.place.path().join("aside");
    fs::rename(&two, &aside).unwrap();
    let refused = stage.attach("a", Outside::Agreed).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Datastore, "{refused}");
    assert!(refused.to_string().contains("member 1 on two"), "{refused}");
    let _context = stage.runtime.enter();
    let order = |without: u8| DiskAttach {
        without: vec![without],
        ..Default::default()
    };
    let refused = stage.disk_service.attach(&name("a"), order(2)).unwrap_err();
    assert!(refused.to_string().contains("no member 2"), "{refused}");
    stage.disk_service.attach(&name("a"), order(1)).unwrap();
    assert_eq!(stage.states(), [InSync, Away]);
    // Its datastore is back.
    fs::rename(&aside, &two).unwrap();
    assert!(stage.disk_service.return_those_away());
    stage.becomes(&[InSync, InSync]);
}

#[test]
fn a_mirror_is_attached_by_the_copy_of_its_descriptor_if_its_home_was_lost_while_it_ran() {
    use MemberState::{Away, InSync};
    let stage = stage();
    let [one, _] = mirrored(&stage);
    stage.fail(0);
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    let aside = stage.place.path().join("aside");
    fs::rename(&one, &aside).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.states(), [Away, InSync]);
    fs::rename(&aside, &one).unwrap();
    assert!(stage.disk_service.return_those_away());
    stage.becomes(&[InSync, InSync]);
}

#[test]
fn the_first_member_is_replaced_and_the_disk_is_at_home_there() {
    use MemberState::InSync;
    let stage = stage();
    let [one, two] = mirrored(&stage);
    let on = |text: &str| text.parse::<MemberPlace>().unwrap();
    stage.over(|service| service.replace_member(&name("a"), 0, on("shared")));
    assert_eq!(stage.states(), [InSync, InSync]);
    let at_home = |home: &Path, other: &Path| {
        assert_eq!(files(&home.join("a")), ["disk.toml", "image"]);
        let copy = fs::read_to_string(other.join("a/member.toml")).unwrap();
        assert_eq!(copy, fs::read_to_string(home.join("a/disk.toml")).unwrap());
        assert!(!copy.contains("moved"), "{copy}");
    };
    at_home(&stage.shared, &two);
    assert!(!one.join("a").exists());
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.states(), [InSync, InSync]);
    // Also if the home is lost.
    stage.fail(0);
    fs::rename(&stage.shared, stage.place.path().join("lost")).unwrap();
    stage.over(|service| service.replace_member(&name("a"), 0, on("one")));
    assert_eq!(stage.states(), [InSync, InSync]);
    at_home(&one, &two);
    stage
        .disk_service
        .detach(&name("a"), Clients::Keep)
        .unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.states(), [InSync, InSync]);
}

#[test]
fn a_striped_disk_is_under_the_control_of_each_members_datastore() {
    let stage = stage();
    two(&stage);
    stage
        .create(&order("a", "stripe", &["one", "two"]))
        .unwrap();
    let controls = || {
        let running = |on: &str| stage.disk_service.controls.running(&name(on));
        ["one", "two", "shared"].map(|on| running(on).is_some())
    };
    assert_eq!(controls(), [false; 3]);
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(controls(), [true, true, false]);
    for on in ["one", "two"] {
        let running = stage.disk_service.controls.running(&name(on)).unwrap();
        while running.control.report().unwrap().disks.len() != 1 {
            running.control.recount();
            std::thread::yield_now();
        }
    }
    stage.detach("a");
    assert_eq!(controls(), [false; 3]);
}
