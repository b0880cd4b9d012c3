//! The layout of a disk, checked: its text and its members become a [`LayoutSpec`].

use tidegate_api::descriptor::{self as api, Descriptor, MEMBER_TIMEOUT};
use tidegate_api::units::Span;
use tidegate_core::layout::{LayoutSpec, OnLoss};
use tidegate_engine::LayoutOptions;

use crate::os_error::{self, Outcome};

/// What to write for a layout.
const LAYOUTS: &str =
    "use plain, stripe:chunk=256K, mirror or mirror+stripe:chunk=256K (see docs/layouts.md)";

/// The layout that a text means.
pub(crate) fn read(text: &str) -> Outcome<LayoutSpec> {
    text.parse().map_err(|why: String| {
        os_error::invalid("there is no such layout")
            .because(why)
            .remedy(LAYOUTS)
    })
}

/// The layout of a disk.
pub(crate) fn of(descriptor: &Descriptor) -> Outcome<LayoutSpec> {
    let Some(text) = &descriptor.layout else {
        return Ok(LayoutSpec::Plain);
    };
    let spec = read(text)?;
    must_suit(spec, descriptor.members.len())?;
    let (size, row) = (descriptor.size.0, spec.row(descriptor.members.len()));
    if size.is_multiple_of(row) {
        return Ok(spec);
    }
    let nearest = spec.round_up(size, descriptor.members.len());
    Err(os_error::invalid(format!(
        "{size} bytes are no whole number of rows of {spec}"
    ))
    .because(format!("a row has {row} bytes"))
    .remedy(format!("use {nearest} bytes")))
}

/// What a disk's settings say about its layout.
pub(crate) fn options(descriptor: &Descriptor) -> LayoutOptions {
    LayoutOptions {
        member_timeout: timeout(descriptor).to_duration(),
        on_loss: on_loss(descriptor),
        ..LayoutOptions::default()
    }
}

/// How long a member may leave I/O unanswered.
pub(crate) fn timeout(descriptor: &Descriptor) -> Span {
    descriptor.member_timeout.unwrap_or(MEMBER_TIMEOUT)
}

/// What happens to guests' I/O after the loss of every member in sync.
pub(crate) fn on_loss(descriptor: &Descriptor) -> OnLoss {
    match descriptor.on_loss {
        api::OnLoss::Fail => OnLoss::Fail,
        api::OnLoss::Wait => OnLoss::Wait,
    }
}

/// Fails unless a layout works with so many members.
pub(crate) fn must_suit(spec: LayoutSpec, members: usize) -> Outcome<()> {
    spec.check(members).map_err(|why| {
        os_error::invalid("the number of members is wrong")
            .because(why)
            .remedy(match spec {
                LayoutSpec::Plain => "give one --datastore, or choose a layout of several members, such as --layout mirror",
                _ => "give one --on DATASTORE for each member",
            })
    })
}

/// The size of each member of a disk.
pub(crate) fn member_size(spec: LayoutSpec, descriptor: &Descriptor) -> u64 {
    spec.member_size(descriptor.size.0, descriptor.members.len())
}

/// The bytes of a disk that each of its members has.
pub(crate) fn member_data(spec: LayoutSpec, descriptor: &Descriptor) -> u64 {
    member_size(spec, descriptor) - spec.member_size(0, descriptor.members.len())
}

/// The mirror that a member belongs to, in a stripe over mirrors.
pub(crate) fn mirror_of(spec: LayoutSpec, member: usize) -> Option<u8> {
    match spec {
        LayoutSpec::MirrorStripe { .. } => u8::try_from(member / 2).ok(),
        _ => None,
    }
}

/// Whether two members have the same bytes.
pub(crate) fn are_twins(spec: LayoutSpec, one: usize, other: usize) -> bool {
    match spec {
        LayoutSpec::Mirror => true,
        LayoutSpec::MirrorStripe { .. } => mirror_of(spec, one) == mirror_of(spec, other),
        LayoutSpec::Plain | LayoutSpec::Stripe { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::descriptor::{MemberPlace, Uuid};

    fn disk(layout: &str, members: usize, size: u64) -> Descriptor {
        let mut disk = Descriptor::new(Uuid::from_random([1; 16]), size);
        disk.layout = Some(layout.to_owned());
        disk.members = vec![MemberPlace::on("a".parse().unwrap()); members];
        disk
    }

    #[test]
    fn a_descriptors_layout_must_suit_its_members_and_its_size() {
        assert_eq!(of(&disk("mirror", 2, 1 << 20)).unwrap(), LayoutSpec::Mirror);
        for (layout, members, size, says) in [
            ("raid5", 3, 1 << 20, "mirror+stripe"),
            ("mirror", 1, 1 << 20, "2 to 4 members, not 1"),
            ("stripe:chunk=64K", 2, 65_536, "use 131072 bytes"),
            ("mirror", 2, 512, "use 4096 bytes"),
            ("plain", 2, 512, "one place, not 2"),
        ] {
            let text = of(&disk(layout, members, size)).unwrap_err().to_string();
            assert!(text.contains(says), "{layout} of {members}: {text}");
        }
    }

    #[test]
    fn twins_of_a_stripe_over_mirrors_are_its_pairs() {
        let spec = LayoutSpec::MirrorStripe { chunk: 65_536 };
        assert!(are_twins(spec, 0, 1) && are_twins(spec, 2, 3) && !are_twins(spec, 1, 2));
        assert!(are_twins(LayoutSpec::Mirror, 0, 3));
        assert!(!are_twins(LayoutSpec::Stripe { chunk: 65_536 }, 0, 1));
    }
}
