//! Attached disks that run without one of their members, as problems of the daemon's status.

use tidegate_api::descriptor::MemberPlace;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{LayoutReport, MemberReport, MemberState};

use super::DiskService;

impl DiskService {
    /// One problem for each degraded disk.
    pub(crate) fn degraded(&self) -> Vec<Problem> {
        let live = self.live.all().into_iter();
        let told = live.filter_map(|live| {
            let report = live.layout().filter(|it| it.layout.is_redundant())?;
            degraded(live.name(), &report, &live.descriptor()?.members)
        });
        told.collect()
    }
}

fn degraded(name: &Name, report: &LayoutReport, places: &[MemberPlace]) -> Option<Problem> {
    if report.waiting {
        let what = format!("the I/O of disk {name} waits");
        return Some(
            Problem::new(ProblemCode::Datastore, what)
                .because("all members that have its bytes are lost")
                .remedy(format!(
                    "repair their datastores, and the I/O goes on by itself (see `tidegate disk member list {name}`); or detach \
                     the disk, and the I/O fails"
                )),
        );
    }
    let members = report.members.iter().zip(places).enumerate();
    let lacking: Vec<_> = members
        .filter(|(_, (member, _))| member.state != MemberState::InSync)
        .collect();
    let (nth, (member, place)) = lacking.first()?;
    let mut problem = Problem::new(ProblemCode::Datastore, format!("disk {name} is degraded"));
    for (nth, (member, place)) in &lacking {
        problem = problem.because(why(*nth, member, place));
    }
    let on = &place.datastore;
    Some(problem.remedy(match member.state {
        _ if place.removed => {
            format!("add a member: tidegate disk member add {name} --on DATASTORE")
        }
        MemberState::Rebuilding => {
            format!("wait until it is rebuilt: tidegate disk member list {name}")
        }
        _ => format!(
            "make its image on datastore {on} available, and it is rebuilt by itself; or replace it: tidegate disk member \
             replace {name} {nth} --on DATASTORE"
        ),
    }))
}

fn why(nth: usize, member: &MemberReport, place: &MemberPlace) -> String {
    match member.state {
        _ if place.removed => format!("member {nth} was removed"),
        MemberState::Rebuilding => {
            let (copied, total) = (u128::from(member.copied), u128::from(member.to_copy));
            let percent = (copied * 100).checked_div(total).unwrap_or(100);
            format!("member {nth} on {place} is being rebuilt: {percent} % done")
        }
        _ => format!("member {nth} on {place} lacks writes, and is not used"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::layout::LayoutSpec;

    #[test]
    fn a_disk_whose_io_waits_is_a_problem_although_its_members_are_in_sync() {
        let member = MemberReport {
            state: MemberState::InSync,
            is_tried: false,
            in_flight: 0,
            faults: 0,
            copied: 0,
            to_copy: 0,
        };
        let mut report = LayoutReport {
            layout: LayoutSpec::Mirror,
            members: vec![member; 2],
            scrub: None,
            cache: None,
            pool: None,
            waiting: true,
        };
        let places = ["a", "b"].map(|on| MemberPlace::on(on.parse().unwrap()));
        let name = "d".parse().unwrap();
        let told = degraded(&name, &report, &places).unwrap();
        assert!(told.to_string().contains("I/O of disk d waits"), "{told}");
        report.waiting = false;
        assert_eq!(degraded(&name, &report, &places), None);
    }
}
