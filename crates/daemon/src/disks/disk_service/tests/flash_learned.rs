//! The states of the policies of flash caches, from one attach to the next.

use tidegate_api::cache::FlashMode;
use tidegate_api::events::Happening;

use super::*;
use crate::caches::policies::Owner;
use crate::disks::notices::Notice;

/// Where the parameters in use are in a state, and where the candidates begin: docs of core's `policy/state.rs`.
const IN_USE: std::ops::Range<usize> = 1..20;
const CANDIDATES: usize = 29;
const CANDIDATE: usize = 43;

impl Stage {
    /// Calls this with the place of what disk `a` has learned.
    fn with_owner<T>(&self, then: impl FnOnce(Owner<'_>) -> T) -> T {
        let fast = name("fast");
        let record = self.disk_service.caches.record(&fast).unwrap();
        then(Owner {
            name: &fast,
            cache: record.uuid,
            disk: self
                .disk_service
                .store
                .find(&name("a"))
                .unwrap()
                .descriptor
                .uuid,
        })
    }

    fn learned_file(&self) -> PathBuf {
        let file = self.with_owner(|owner| format!("{}.{}.policy", owner.name, owner.disk));
        self.disk_service.root.state().join("caches").join(file)
    }

    fn chosen(&self) -> Option<usize> {
        let live = self.disk_service.live.get(&name("a")).unwrap();
        live.cache_report().unwrap().policy
    }

    /// Why the policy of disk `a` began anew, since this was asked last.
    fn forgotten(&self) -> Vec<String> {
        let notices = self.disk_service.notices.take().into_iter();
        let why = notices.filter_map(|(_, notice)| match notice {
            Notice::Member {
                happening: Happening::CachePolicyForgotten { why, .. },
                ..
            } => Some(why),
            _ => None,
        });
        why.collect()
    }

    /// A stage whose disk `a` has used a cache, and is detached.
    fn has_learned() -> Stage {
        let stage = stage();
        stage.cache("fast", &["f0", "f1"]);
        stage.disk("a");
        stage.attach("a", Outside::Agreed).unwrap();
        stage
            .give("a", Some("fast"), FlashMode::WriteThrough)
            .unwrap();
        assert_eq!(stage.chosen(), Some(0));
        stage.detach("a");
        stage
    }
}

#[test]
fn the_policy_that_was_chosen_is_in_use_after_the_next_attach() {
    let stage = Stage::has_learned();
    let policies = &stage.disk_service.caches.policies;
    stage.with_owner(|owner| {
        let mut state = policies.load(owner).unwrap();
        let fifth = CANDIDATES + 5 * CANDIDATE;
        state.copy_within(fifth..fifth + IN_USE.len(), IN_USE.start);
        policies.store(owner, &state).unwrap();
    });
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.chosen(), Some(5));
    // It is stored again whenever it is due, and so a crash keeps it.
    fs::remove_file(stage.learned_file()).unwrap();
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    stage.disk_service.store_policy(&live);
    assert!(stage.learned_file().exists());
    drop(live);
    stage.detach("a");
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.chosen(), Some(5));
    assert_eq!(stage.forgotten(), [""; 0]);
    stage.give("a", None, FlashMode::Off).unwrap();
    let folder = stage.disk_service.root.state().join("caches");
    let left = fs::read_dir(folder).unwrap().flatten();
    let left = left.filter(|it| it.path().extension() == Some("policy".as_ref()));
    assert_eq!(left.count(), 0, "it leaves with the cache");
    stage.detach("a");
}

#[test]
fn a_damaged_file_is_reported_once_and_refuses_no_disk() {
    let stage = Stage::has_learned();
    let mut bytes = fs::read(stage.learned_file()).unwrap();
    bytes[80] ^= 1;
    fs::write(stage.learned_file(), bytes).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.chosen(), Some(0));
    let why = stage.forgotten();
    assert!(why.len() == 1 && why[0].contains("is damaged"), "{why:?}");
    let shown = stage.disk_service.disk(&name("a")).unwrap().flash.unwrap();
    assert!(shown.problem.is_none() && shown.at_work.unwrap().in_use);
    stage.detach("a");
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.forgotten(), [""; 0]);
    stage.detach("a");
    // What is there cannot be read at all.
    fs::remove_file(stage.learned_file()).unwrap();
    fs::create_dir(stage.learned_file()).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    let why = stage.forgotten();
    assert!(
        why.len() == 1 && why[0].contains("cannot be read"),
        "{why:?}"
    );
    stage.detach("a");
}
