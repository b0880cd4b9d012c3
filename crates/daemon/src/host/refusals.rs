//! Problems of a disk whose layout refuses its members, with what to do.

use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{Refusal, Target};

use super::Opened;
use crate::config::plan::DiskPlan;

/// The problem of a disk whose layout does not open.
pub(super) fn told(plan: &DiskPlan, refusal: Refusal) -> Problem {
    let disk = &plan.name;
    let place = |member: Target| {
        let place = plan.members.get(usize::from(member.0));
        format!(
            "member {} on {}",
            member.0,
            place.map_or("an unknown datastore", |place| place)
        )
    };
    if let Refusal::Missing(member) = refusal
        && plan.layout_options.without >> member.0 & 1 == 1
    {
        return never_attached(plan, member, &place(member));
    }
    // A stripe cannot do without any member.
    let give_up = |member: Target| match plan.layout.is_redundant() {
        true => format!(
            "; or, if the other members have all data that you need: tidegate disk attach {disk} --without {}",
            member.0
        ),
        false => String::new(),
    };
    let move_away = |member: Target| match plan.layout.is_redundant() {
        true => format!(
            "; or, if the other members have all data that you need, move this image away or clear it, then: tidegate disk attach {disk} --without {}",
            member.0
        ),
        false => String::new(),
    };
    let (code, what, why, remedy) = match refusal {
        // The disk is attached by itself once the datastore is back: this code says so.
        Refusal::Missing(member) => (
            ProblemCode::Datastore,
            format!("disk {disk} needs its {}", place(member)),
            "that member's datastore or image is away, and it may have writes that the others lack".to_owned(),
            format!(
                "make its datastore and image available (see `tidegate disk show {disk}`), then: tidegate disk attach {disk}{}",
                give_up(member)
            ),
        ),
        Refusal::Foreign(member) => (
            ProblemCode::Corrupt,
            format!("{} is not this member of disk {disk}", place(member)),
            "it belongs to another disk, or is another member of this one".to_owned(),
            format!("nothing was changed; put the right image there{}", move_away(member)),
        ),
        Refusal::Unknown(member) => (
            ProblemCode::Corrupt,
            format!("{} is not this member of disk {disk}", place(member)),
            "it begins with data that no layout wrote".to_owned(),
            format!("nothing was changed; put the right image there{}", move_away(member)),
        ),
        Refusal::Blank(member) => (
            ProblemCode::Corrupt,
            format!("{} of disk {disk} is empty", place(member)),
            "the other members have data, so this image is not the one that the disk was created with".to_owned(),
            format!("nothing was changed; put the right image there{}", give_up(member)),
        ),
        Refusal::Damaged(member) => (
            ProblemCode::Corrupt,
            format!("cannot read what {} of disk {disk} says about itself", place(member)),
            "its label or its state is damaged".to_owned(),
            format!("nothing was changed; restore its image, or check its datastore{}", move_away(member)),
        ),
        Refusal::Split(member) => (
            ProblemCode::Corrupt,
            format!("the members of disk {disk} have gone different ways"),
            format!("{} was written without the others, and they without it", place(member)),
            "move the image that is not to be used out of the way, and try again; nothing was changed".to_owned(),
        ),
        Refusal::Newer(member) => (
            ProblemCode::Corrupt,
            format!("cannot understand {} of disk {disk}", place(member)),
            "a newer version of Tidegate wrote it".to_owned(),
            "use the version that wrote it".to_owned(),
        ),
        Refusal::Failed(member, fault) => (
            ProblemCode::Datastore,
            format!("{} of disk {disk} cannot be written", place(member)),
            format!("its datastore has failed ({fault:?})"),
            "check that datastore (see `tidegate datastore list`), then try again".to_owned(),
        ),
    };
    Problem::new(code, what).because(why).remedy(remedy)
}

/// The problem of a disk that is to be attached without this member, although the others have no data.
fn never_attached(plan: &DiskPlan, member: Target, place: &str) -> Problem {
    let disk = &plan.name;
    let on = |nth: usize| plan.members.get(nth).map_or("", String::as_str);
    let datastore = |nth: usize| on(nth).split(':').next().unwrap_or_default();
    let delete = match member.0 {
        // Without its descriptor it cannot be deleted by a command.
        0 => {
            let mut others: Vec<_> = (1..plan.members.len()).map(datastore).collect();
            others.dedup();
            format!(
                "remove its directory {disk} from {} by hand (see `tidegate datastore show {}`)",
                others.join(" and "),
                others.first().copied().unwrap_or_default()
            )
        }
        nth => format!(
            "delete it: tidegate datastore remove {} and tidegate disk delete {disk}",
            datastore(nth.into())
        ),
    };
    Problem::new(
        ProblemCode::Datastore,
        format!("disk {disk} cannot be attached without its {place}"),
    )
    .because("the other members have no data: the disk was never attached")
    .remedy(format!(
        "make that member's datastore and image available; if it is lost for good, {delete}, then create the disk again"
    ))
}

/// The problem of a disk that has a member whose image is shorter than it was created.
pub(super) fn cut(plan: &DiskPlan, opened: &[Option<Opened>]) -> Option<Problem> {
    if plan.layout.is_plain() {
        return None;
    }
    let needs = plan.layout.member_size(plan.size, plan.members.len());
    let sizes = opened.iter().map(|one| one.as_ref().map(Opened::size));
    let (nth, has) = sizes
        .enumerate()
        .find_map(|(nth, size)| Some((nth, size.filter(|has| *has < needs)?)))?;
    Some(shortened(plan, nth, has, needs))
}

fn shortened(plan: &DiskPlan, nth: usize, has: u64, needs: u64) -> Problem {
    let (disk, on) = (&plan.name, &plan.members[nth]);
    let give_up = match plan.layout.is_redundant() {
        true => format!(
            "; or, if the other members have all data that you need, move this image away, then: tidegate disk attach {disk} \
             --without {nth}"
        ),
        false => String::new(),
    };
    Problem::new(
        ProblemCode::Corrupt,
        format!("the image of member {nth} on {on} of disk {disk} was cut"),
    )
    .because(format!("it has {has} bytes, and needs {needs}"))
    .remedy(format!(
        "nothing was changed; put the whole image back{give_up}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::ImagePlan;
    use tidegate_core::layout::LayoutSpec;

    #[test]
    fn a_refusal_names_the_members_datastore() {
        let plan = DiskPlan {
            name: "a".to_owned(),
            uuid: [1; 16],
            size: 4096,
            block_size: 512,
            write_back: true,
            read_only: false,
            serial: String::new(),
            queues: 1,
            seg_max: 1,
            filters: Vec::new(),
            layout: LayoutSpec::Mirror,
            layout_options: Default::default(),
            io: tidegate_engine::IoSettings::default(),
            members: vec!["ssd1".to_owned(), "ssd2".to_owned()],
            image: ImagePlan::Null { size: 4096 },
        };
        for (refusal, code) in [
            (Refusal::Missing(Target(1)), ProblemCode::Datastore),
            (Refusal::Foreign(Target(1)), ProblemCode::Corrupt),
            (Refusal::Newer(Target(1)), ProblemCode::Corrupt),
        ] {
            let problem = told(&plan, refusal);
            assert!(problem.what.contains("member 1 on ssd2"), "{problem}");
            assert_eq!(problem.code, code);
        }
        let problem = shortened(&plan, 1, 4096, 8192);
        assert!(
            problem.to_string().contains("member 1 on ssd2"),
            "{problem}"
        );
        assert!(problem.remedy.unwrap().contains("attach a --without 1"));
    }
}
