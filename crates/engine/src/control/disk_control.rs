//! The controls of one attached disk: one for each of its images.
//!
//! # Always true
//! - a control lives as long as the I/O thread's schedulers may name it for the disk

use super::{Control, UnderControl};
use tidegate_core::effect::ControlId;
use tidegate_core::iocontrol::{DiskKey, Policy, Spent};
use tidegate_core::layout::Target;
use tidegate_core::shard::Controlled;
use tidegate_core::units::Time;

/// See the module.
pub(crate) struct DiskControl {
    key: DiskKey,
    policy: Policy,
    /// Whose settings and reports the disk's limits belong to.
    home: Control,
    /// For images that name none.
    default: Option<Control>,
    /// By target.
    members: Vec<Option<Control>>,
    /// Those that are not used any more, except by I/O that is queued or in flight.
    left: Vec<Control>,
}

impl DiskControl {
    /// Of a disk whose images name these controls. `under` holds for those that name none, but for the last `free` ones.
    /// `None`: no control at all.
    pub(crate) fn new(
        under: Option<UnderControl>,
        named: Vec<Option<UnderControl>>,
        free: usize,
    ) -> Option<DiskControl> {
        let controlled = named.len() - free;
        let default = under.as_ref().map(|under| under.control.clone());
        let first = under.or_else(|| named.iter().flatten().next().cloned())?;
        let controls = named
            .into_iter()
            .map(|under| under.map(|under| under.control));
        let mut members: Vec<_> = controls
            .map(|own| own.or_else(|| default.clone()))
            .collect();
        members[controlled..].fill(None);
        let mut control = DiskControl {
            key: first.key,
            policy: first.policy,
            home: first.control,
            default,
            members,
            left: Vec::new(),
        };
        control.find_home();
        Some(control)
    }

    /// Has the disk's limits belong to a control that it uses.
    fn find_home(&mut self) {
        let mut members = self.members.iter().flatten();
        let is_used = members.any(|member| member.id() == self.home.id());
        if !is_used && let Some(first) = self.members.iter().flatten().next() {
            let old = std::mem::replace(&mut self.home, first.clone());
            self.left.push(old);
        }
    }

    /// The disk's settings for the schedulers of its thread.
    pub(crate) fn controlled(&self, is_plain: bool) -> Box<Controlled> {
        let id = |control: &Option<Control>| {
            let control = control.as_ref();
            control.map_or(ControlId::NONE, Control::id)
        };
        let members = match is_plain {
            true => Vec::new(),
            false => self.members.iter().map(id).collect(),
        };
        Box::new(Controlled {
            control: self.home.id(),
            members,
            key: self.key,
            policy: self.policy.clone(),
            spent: None,
        })
    }

    /// The same for a disk that is being attached: with what it had used of its limits.
    pub(crate) fn attached(&self, is_plain: bool) -> Box<Controlled> {
        let spent = self.home.accounts().take(self.key);
        let mut controlled = self.controlled(is_plain);
        controlled.spent = spent;
        controlled
    }

    /// Stores what a detached disk has used of its limits.
    pub(crate) fn note_spent(&self, now: Time, spent: Box<Spent>) {
        self.home.accounts().note(now, self.key, spent);
    }

    pub(crate) fn set_policy(&mut self, policy: &Policy) {
        self.policy = policy.clone();
    }

    /// A target has another image.
    pub(crate) fn replace(&mut self, target: Target, own: Option<UnderControl>) {
        let control = own.map(|under| under.control);
        let control = control.or_else(|| self.default.clone());
        let place = usize::from(target.0);
        if self.members.len() <= place {
            self.members.resize(place + 1, None);
        }
        let old = std::mem::replace(&mut self.members[place], control);
        self.left.extend(old);
        self.find_home();
    }

    /// There is one more target, here, and the later ones follow.
    pub(crate) fn insert(&mut self, target: Target, own: Option<UnderControl>) {
        let place = usize::from(target.0).min(self.members.len());
        self.members.insert(place, None);
        self.replace(target, own);
    }

    /// A target has another image, which is under no control.
    pub(crate) fn free(&mut self, target: Target) {
        let place = usize::from(target.0);
        if self.members.len() <= place {
            self.members.resize(place + 1, None);
        }
        let old = self.members[place].take();
        self.left.extend(old);
    }

    /// Only so many targets are left.
    pub(crate) fn truncate(&mut self, targets: usize) {
        let others = self.members.split_off(targets.min(self.members.len()));
        self.left.extend(others.into_iter().flatten());
    }

    /// Of the first so many targets only this one is left, as target 0.
    pub(crate) fn keep(&mut self, target: Target, members: usize) {
        let place = usize::from(target.0);
        let members = members.min(self.members.len());
        let mut others: Vec<_> = self.members.drain(..members).collect();
        if place < others.len() {
            self.members.insert(0, others.swap_remove(place));
        }
        self.left.extend(others.into_iter().flatten());
        // Its next image may be anywhere.
        self.left.extend(self.default.take());
        self.find_home();
    }

    /// Lets go of the controls that nothing here names any more.
    pub(crate) fn forget(&mut self, is_used: impl Fn(ControlId) -> bool) {
        self.left.retain(|control| is_used(control.id()));
    }

    /// Of a disk without control, one of whose images has some now.
    pub(crate) fn first(target: Target, images: usize, own: UnderControl) -> DiskControl {
        let mut members = vec![None; images];
        members[usize::from(target.0)] = Some(own.control.clone());
        DiskControl {
            key: own.key,
            policy: own.policy,
            home: own.control,
            default: None,
            members,
            left: Vec::new(),
        }
    }
}
