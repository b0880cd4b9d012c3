//! With which flash cache a disk is attached, or why it is attached without one, or not at all.

use std::sync::Arc;

use tidegate_api::cache::{FlashMode, FlashUse};
use tidegate_api::disk as api;
use tidegate_api::events::Happening;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::units::Size;
use tidegate_core::layout::cache::PAGE;
use tidegate_engine::Flash;

use super::refusals::{at_stake, unusable};
use super::{DiskService, discards, new_attachment};
use crate::caches::Devices;
use crate::disks::attached::{Attached, CacheInUse};
use crate::host::OpenFlash;
use crate::os_error::Outcome;
use crate::store::Found;

/// The cache with which a disk is attached.
pub(crate) struct Using {
    pub(crate) open: OpenFlash,
    /// What the descriptor says once the cache has opened.
    after: FlashUse,
    devices: Arc<Devices>,
    part: u64,
}

impl DiskService {
    /// The cache with which a disk is to be attached. Its images are open and locked, so nobody else uses it. None: it is
    /// attached without one, and the problem says why, if it has one.
    pub(crate) fn plan_flash(
        &self,
        found: &mut Found,
        order: &api::DiskAttach,
    ) -> Outcome<(Option<Using>, Option<Problem>)> {
        let Some(mut flash) = found.descriptor.flash.clone() else {
            return Ok((None, None));
        };
        if flash.has_dirty && discards(order) {
            self.discard_dirty(found, &mut flash)?;
        }
        if found.descriptor.read_only {
            return match flash.has_dirty {
                true => Err(at_stake(
                    &found.name,
                    &flash,
                    format!(
                        "attach it writable on host {}, or bring the writes to the disk there first: tidegate cache flush {} {}",
                        flash.host_name, flash.cache, found.name
                    ),
                )),
                false => Ok((None, None)),
            };
        }
        if found.is_copy {
            // Nothing can be recorded, so what flash has could be older than the disk the next time.
            return Err(Problem::new(
                ProblemCode::Datastore,
                "a disk with a flash cache needs its first member's datastore",
            )
            .because(format!("datastore {} is away", found.datastore))
            .remedy("make that datastore available"));
        }
        let usable = match flash.mode {
            FlashMode::Off => return Ok((None, None)),
            _ => self.open_flash(found, order, &flash),
        };
        match usable {
            Ok(using) => Ok((Some(using), None)),
            Err(problem) if flash.has_dirty => {
                let remedy = problem.remedy.clone().unwrap_or_default();
                let discard = format!("tidegate disk attach {} --discard-cache", found.name);
                Err(at_stake(
                    &found.name,
                    &flash,
                    format!("{remedy}; to lose these writes: {discard}"),
                )
                .because_problem(&problem))
            }
            Err(problem) => {
                // What flash has is void from now on: the disk is written without it.
                flash.attachment = new_attachment()?;
                self.commit_flash(found, None, |now| *now = Some(flash.clone()))?;
                found.descriptor.flash = Some(flash);
                tracing::warn!(disk = %found.name, %problem, "a disk is attached without its flash cache");
                Ok((None, Some(problem)))
            }
        }
    }

    /// Gives up what only the cache has.
    fn discard_dirty(&self, found: &mut Found, flash: &mut FlashUse) -> Outcome<()> {
        (flash.has_dirty, flash.attachment) = (false, new_attachment()?);
        self.commit_flash(found, None, |now| *now = Some(flash.clone()))?;
        found.descriptor.flash = Some(flash.clone());
        let (disk, cache) = (found.name.clone(), flash.cache.clone());
        tracing::warn!(%disk, %cache, "what only the flash cache had was given up by command");
        let given_up = Happening::CacheDiscarded { disk, cache };
        self.notices
            .add_member(&found.name, &found.datastore, given_up);
        Ok(())
    }

    fn open_flash(
        &self,
        found: &Found,
        order: &api::DiskAttach,
        flash: &FlashUse,
    ) -> Outcome<Using> {
        let (name, uuid) = (&found.name, found.descriptor.uuid);
        if flash.host.0 != self.controls.host().id {
            return Err(Problem::new(
                ProblemCode::Locked,
                format!(
                    "the flash cache of disk {name} is on host {}",
                    flash.host_name
                ),
            )
            .remedy(match flash.has_dirty {
                true => format!(
                    "attach it there, and bring the writes to it: tidegate cache flush {} {name}; then: tidegate disk detach {name}",
                    flash.cache
                ),
                false => format!(
                    "attach it there, or give it a cache here: tidegate disk set {name} --cache NAME"
                ),
            }));
        }
        let record = self.caches.record(&flash.cache)?;
        if record.uuid != flash.id {
            return Err(Problem::new(
                ProblemCode::NotFound,
                format!(
                    "cache {} is another one than that of disk {name}",
                    flash.cache
                ),
            )
            .remedy(format!(
                "give it the new one: tidegate disk set {name} --cache {}",
                flash.cache
            )));
        }
        let devices = self.caches.devices(&flash.cache, &record);
        if devices.are_all_away() {
            return Err(unusable(&flash.cache, &devices));
        }
        let has_part = record.parts.iter().any(|part| part.uuid == uuid);
        if flash.has_dirty && !has_part {
            return Err(Problem::new(
                ProblemCode::Corrupt,
                format!("disk {name} has no part of cache {} any more", flash.cache),
            )
            .remedy("restore the record of the cache in the state directory of this host"));
        }
        let shares = found.descriptor.policy.shares.get();
        let area = self.area(flash, &record, found, shares)?;
        // Since it has its part, its devices change only with its claim.
        let record = self.caches.record(&flash.cache)?;
        let devices = self.caches.devices(&flash.cache, &record);
        let part = u64::from(area.slots()) * PAGE;
        // A new part has nothing, whatever an earlier use has left there.
        let last_use = match has_part {
            true => flash.attachment,
            false => new_attachment()?,
        };
        let mut after = flash.clone();
        (after.attachment, after.part) = (new_attachment()?, Some(Size(part)));
        let open = OpenFlash {
            cache: flash.cache.clone(),
            flash: Flash {
                devices: devices.images(),
                cache: record.uuid.0,
                area,
                attachments: [last_use, after.attachment],
                has_dirty: flash.has_dirty,
                without: order
                    .without_flash
                    .iter()
                    .filter(|nth| **nth < 2)
                    .fold(devices.empty(), |all, nth| all | 1 << nth),
                policy_state: self.learned(found, &flash.cache, &record),
            },
        };
        Ok(Using {
            open,
            after,
            devices,
            part,
        })
    }

    /// A disk was attached with its cache: this use of it begins.
    pub(crate) fn begin_planned(
        &self,
        found: &Found,
        live: &Attached,
        using: Begun,
    ) -> Outcome<()> {
        live.set_cache(Some(CacheInUse {
            cache: using.after.cache.clone(),
            attachment: using.after.attachment,
            part: using.part,
            is_given_up: false,
        }));
        let problem = using.devices.problems().into_iter().flatten().next();
        live.set_cache_problem(problem);
        self.begin_use(found, live, using.after, &using.devices)
    }
}

/// What is left of [`Using`] once the engine has its devices.
pub(crate) struct Begun {
    after: FlashUse,
    devices: Arc<Devices>,
    part: u64,
}

impl Using {
    /// What the engine gets, and the rest.
    pub(crate) fn split(self) -> (OpenFlash, Begun) {
        let Using {
            open,
            after,
            devices,
            part,
        } = self;
        let begun = Begun {
            after,
            devices,
            part,
        };
        (open, begun)
    }
}
