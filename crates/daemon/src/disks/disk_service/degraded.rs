//! Attached disks that run without one of their members, as problems of the daemon's status.

use tidegate_api::descriptor::MemberPlace;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{MemberReport, MemberState};

use super::DiskService;
use crate::disks::attached::Attached;

impl DiskService {
    /// One problem for each degraded disk.
    pub(crate) fn degraded(&self) -> Vec<Problem> {
        let live = self.live.all().into_iter();
        live.filter_map(|live| degraded(&live)).collect()
    }
}

fn degraded(live: &Attached) -> Option<Problem> {
    let report = live.layout().filter(|it| it.layout.is_redundant())?;
    let places = live.descriptor()?.members;
    let members = report.members.iter().zip(&places).enumerate();
    let lacking: Vec<_> = members
        .filter(|(_, (member, _))| member.state != MemberState::InSync)
        .collect();
    let (nth, (member, place)) = lacking.first()?;
    let name = live.name();
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
            "repair datastore {on}, and the member is rebuilt by itself; or replace it: tidegate disk member replace {name} {nth} \
             --on DATASTORE"
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
