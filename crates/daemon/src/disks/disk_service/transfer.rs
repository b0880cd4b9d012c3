//! Commands that import a disk from an image file, or export one to it; both return a job.

use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::disk::{Allocation, DiskAttach};
use tidegate_api::job::{DiskExport, DiskImport, Existing, Job};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::snapshot::SnapshotName;

use super::change::{Purpose, attached};
use super::flash::must_be_saved;
use super::{Claim, DiskService};
use crate::disks::copy::device::{self, DeviceSink};
use crate::disks::copy::{Progress, RawFile};
use crate::disks::export;
use crate::disks::import;
use crate::host;
use crate::os_error::{self, Outcome};
use crate::store::{Found, Identity};
use crate::text::new_uuid;

impl DiskService {
    /// Creates a disk from an image file.
    pub(crate) fn import(self: &Arc<Self>, order: DiskImport) -> Outcome<Job> {
        must_be_bounded(&order.file, &format!("import disk {}", order.name))?;
        if let Some(device) = &order.device {
            must_be_bounded(device, &format!("import disk {}", order.name))?;
        }
        let what = format!("import {} as disk {}", order.file.display(), order.name);
        let claim = self.claim(&order.name, format!("cannot {what}"))?;
        if !order.file.is_absolute() {
            return Err(relative(&what));
        }
        let (datastore, settings) = self.choose_datastore(order.datastore.as_ref())?;
        only_files(&settings, &what)?;
        self.must_be_new(&order.name, &format!("cannot {what}"))?;
        let on = Target::of(&order, &what)?;
        if let Some(device) = on.device() {
            self.must_be_no_image(&device)
                .map_err(|e| e.within(format!("cannot {what}")))?;
        }
        let mut descriptor = Descriptor::new(new_uuid()?, 0);
        descriptor.device = on.device();
        let disk_service = Arc::clone(self);
        let cannot = format!("cannot {what}");
        let mut feed = import::begin(&order, move |there| {
            disk_service.must_not_be_attached(there, &cannot)
        })?;
        let disk_service = Arc::clone(self);
        let name = order.name.clone();
        Ok(self.jobs.start(what, name.clone(), move |progress| {
            // A guest sees whole blocks; the missing part of the last block reads as zeroes.
            let size = feed.size(progress)?;
            if size == 0 {
                return Err(os_error::invalid("the image is empty")
                    .remedy("name a file that contains the image"));
            }
            descriptor.size.0 = size.next_multiple_of(descriptor.block_size.into());
            let target = on.open(descriptor.size.0, |there| {
                disk_service.must_not_be_attached(there, "cannot import to it")
            })?;
            let (store, thin) = (&disk_service.store, Allocation::Thin);
            store.create_disk(
                &datastore,
                &settings,
                &name,
                &descriptor,
                thin,
                |path| match target {
                    None => feed.copy_to(path, progress),
                    Some(mut device) => device.fill(|sink| feed.pour(sink, progress)),
                },
            )?;
            disk_service.agree(&disk_service.store.read_disk(&datastore, &settings, &name)?)?;
            if order.attach {
                disk_service.attach_imported(&claim)?;
            }
            Ok(())
        }))
    }

    /// Attaches a disk that was just imported. If that fails, the disk stays.
    fn attach_imported(&self, claim: &Claim) -> Outcome<()> {
        let attached = self.attach_claimed(claim, DiskAttach::default());
        attached.map(drop).map_err(|problem| {
            let name = claim.name();
            let then = format!("attach it: tidegate disk attach {name}");
            let remedy = match &problem.remedy {
                Some(remedy) => format!("{remedy}; then {then}"),
                None => then,
            };
            problem
                .within(format!("disk {name} is imported, but not attached"))
                .remedy(remedy)
        })
    }

    /// Writes a detached disk to an image file.
    pub(crate) fn export(self: &Arc<Self>, name: &Name, order: DiskExport) -> Outcome<Job> {
        must_be_bounded(&order.file, &format!("export disk {name}"))?;
        if let Some(snapshot) = order.snapshot.clone() {
            let of = SnapshotName {
                disk: name.clone(),
                snapshot,
            };
            return self.export_snapshot(&of, order);
        }
        let what = format!("export disk {name} to {}", order.file.display());
        let claim = self.claim(name, format!("cannot {what}"))?;
        if !order.file.is_absolute() {
            return Err(relative(&what));
        }
        let format = export::format_of(&order, &format!("cannot {what}"))?;
        let found = self.find(name)?;
        only_files(&found.settings, &what)?;
        self.only_plain(&found, &what)?;
        must_be_saved(&found).map_err(|e| e.within(format!("cannot {what}")))?;
        if self.live.get(name).is_some() {
            return Err(self.in_use(name, format!("cannot {what}")));
        }
        let cannot = format!("cannot {what}");
        self.must_be_no_image(&order.file)
            .and_then(|()| export::must_be_free(&order.file, order.existing))
            .map_err(|e| e.within(&cannot))?;
        let held = self
            .hold(&found, Purpose::Read)
            .map_err(|e| e.within(&cannot))?;
        let source = found.open_image(File::options().read(true)).map_err(|e| {
            let image = found.image();
            os_error::io(format!("cannot open {}", image.display()), &e).within(&cannot)
        })?;
        whole(&source, &found).map_err(|problem| problem.within(&cannot))?;
        let source = RawFile::new(source, found.descriptor.size.0);
        let disk_service = Arc::clone(self);
        let draft = match device::is_there(&order.file) {
            true => None,
            false => Some(export::draft(&order.file).map_err(|e| e.within(&cannot))?),
        };
        let noted = draft.clone();
        let work = move |progress: &Progress| {
            let _until_done = (claim, held);
            let DiskExport { file, existing, .. } = order;
            if let Some(draft) = draft {
                return export::write(&source, &draft, &file, format, existing, progress);
            }
            let admit = |there: &Metadata| disk_service.must_not_be_attached(there, &cannot);
            export::write_device(&source, &file, existing, admit, progress)
        };
        Ok(self.jobs.start_writing(what, name.clone(), noted, work))
    }
}

impl DiskService {
    /// Writes a snapshot of a disk to an image file, whether the disk is attached or not.
    fn export_snapshot(self: &Arc<Self>, of: &SnapshotName, order: DiskExport) -> Outcome<Job> {
        let what = format!("export {of} to {}", order.file.display());
        let cannot = format!("cannot {what}");
        if !order.file.is_absolute() {
            return Err(relative(&what));
        }
        let format = export::format_of(&order, &cannot)?;
        self.must_be_no_image(&order.file)
            .and_then(|()| export::must_be_free(&order.file, order.existing))
            .map_err(|e| e.within(&cannot))?;
        let source = self.snapshot_source(of).map_err(|e| e.within(&cannot))?;
        let draft = match device::is_there(&order.file) {
            true => None,
            false => Some(export::draft(&order.file).map_err(|e| e.within(&cannot))?),
        };
        let (noted, disk_service) = (draft.clone(), Arc::clone(self));
        let work = move |progress: &Progress| {
            let DiskExport { file, existing, .. } = order;
            if let Some(draft) = draft {
                return export::write(&*source, &draft, &file, format, existing, progress);
            }
            let admit = |there: &Metadata| disk_service.must_not_be_attached(there, &cannot);
            export::write_device(&*source, &file, existing, admit, progress)
        };
        Ok(self.jobs.start_writing(what, of.disk.clone(), noted, work))
    }

    /// Fails for a disk whose bytes lie on several members.
    fn only_plain(&self, found: &Found, what: &str) -> Outcome<()> {
        let Some(layout) = &found.descriptor.layout else {
            return Ok(());
        };
        let name = &found.name;
        let uri = self.nbd_uri(name).unwrap_or_default();
        Err(
            Problem::new(ProblemCode::Unsupported, format!("cannot {what}"))
                .because(format!("its layout is {layout}: none of its images has all of its bytes in order"))
                .remedy(format!(
                    "attach it, and copy it over NBD: tidegate disk attach {name} && nbdcopy '{uri}' FILE"
                )),
        )
    }

    /// The error for an attached disk, with another way to copy it.
    fn in_use(&self, name: &Name, what: String) -> Problem {
        let remedy = match self.nbd_uri(name) {
            Some(uri) => {
                format!(
                    "detach it first (tidegate disk detach {name}), or copy it while it is in use: nbdcopy '{uri}' \
                     FILE"
                )
            }
            None => format!("detach it first: tidegate disk detach {name}"),
        };
        let why = "a copy of a disk in use would be inconsistent";
        attached(name, what, why).remedy(remedy)
    }

    /// Fails if a file or device is the image of a disk that is attached here.
    pub(super) fn must_not_be_attached(&self, there: &Metadata, what: &str) -> Outcome<()> {
        let there = Identity::of(there);
        for live in self.live.all() {
            if live.uses(there) {
                let name = live.name();
                let why = format!("it is the image of disk {name}");
                return Err(self.in_use(name, what.to_owned()).because(why));
            }
        }
        Ok(())
    }
}

/// Where to store an imported disk.
enum Target {
    /// In a file on its datastore.
    File,
    /// On a block device, whose content is overwritten.
    Device(PathBuf),
}

impl Target {
    fn of(order: &DiskImport, what: &str) -> Outcome<Target> {
        let Some(device) = &order.device else {
            return Ok(Target::File);
        };
        let bad = |why: &str| os_error::invalid(format!("cannot {what}")).because(why);
        if !device.is_absolute() {
            return Err(bad("the device's path is not absolute").remedy("give an absolute path"));
        }
        if order.existing != Existing::Replace {
            return Err(bad("the device's data would be lost")
                .remedy("add --yes if it may be replaced (`existing: replace` over REST)"));
        }
        Ok(Target::Device(device.clone()))
    }

    fn device(&self) -> Option<PathBuf> {
        match self {
            Target::File => None,
            Target::Device(device) => Some(device.clone()),
        }
    }

    fn open(
        &self,
        size: u64,
        admit: impl FnOnce(&Metadata) -> Outcome<()>,
    ) -> Outcome<Option<DeviceSink>> {
        match self {
            Target::File => Ok(None),
            Target::Device(device) => DeviceSink::open(device, size, admit).map(Some),
        }
    }
}

/// Refuses an image that is shorter than its disk, as attaching does: a copy would have zeroes in place of missing
/// data.
fn whole(mut image: &File, disk: &Found) -> Outcome<()> {
    let size = disk.descriptor.size.0;
    let has = image.seek(SeekFrom::End(0)).map_err(|e| {
        let path = disk.image();
        os_error::io(format!("cannot read the size of {}", path.display()), &e)
    })?;
    if has >= size {
        return Ok(());
    }
    Err(
        os_error::invalid(format!("disk {} is incomplete", disk.name))
            .because(format!(
                "it should have {size} bytes, but its image has only {has}: it may be truncated"
            ))
            .remedy(host::mend_cut(
                disk.name.as_str(),
                has,
                disk.descriptor.block_size,
            )),
    )
}

/// The longest path that a command may name: the kernel accepts no longer one.
const MOST_PATH: usize = 4095;

/// Refuses a path that no file can have, before it is repeated in the job's description and the log.
pub(super) fn must_be_bounded(path: &Path, what: &str) -> Outcome<()> {
    match path.as_os_str().len() {
        0..=MOST_PATH => Ok(()),
        length => Err(os_error::invalid(format!("cannot {what}"))
            .because(format!("the path has {length} bytes"))
            .remedy(format!("use a path of at most {MOST_PATH} bytes"))),
    }
}

pub(super) fn relative(what: &str) -> Problem {
    os_error::invalid(format!("cannot {what}"))
        .because("the file's path is not absolute, and the daemon's working directory differs from yours")
        .remedy("give an absolute path")
}

fn only_files(settings: &DatastoreSettings, what: &str) -> Outcome<()> {
    match settings {
        DatastoreSettings::Dir { .. } => Ok(()),
        other => Err(
            Problem::new(ProblemCode::Unsupported, format!("cannot {what}"))
                .because(format!(
                    "the datastore is of kind {}, which has no image files",
                    other.kind()
                ))
                .remedy(
                    "attach the disk and copy through NBD, as `nbdcopy FROM TO`: its URI is in `tidegate disk show NAME`",
                ),
        ),
    }
}
