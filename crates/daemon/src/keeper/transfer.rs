//! Orders that take a disk in from an image file, or out to one; both answer with a job.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::sync::Arc;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::disk::{Allocation, DiskAttach};
use tidegate_api::job::{DiskExport, DiskImport, Job};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::change::{Purpose, attached, new_uuid};
use super::{Claim, Keeper};
use crate::copy::RawFile;
use crate::store::Found;
use crate::trouble::{self, Outcome};
use crate::{export, import};

impl Keeper {
    /// Makes a disk of an image file.
    pub(crate) fn import(self: &Arc<Self>, order: DiskImport) -> Outcome<Job> {
        let what = format!("import {} as disk {}", order.file.display(), order.name);
        let claim = self.claim(&order.name, format!("cannot {what}"))?;
        if !order.file.is_absolute() {
            return Err(relative(&what));
        }
        let (datastore, settings) = self.choose_datastore(order.datastore.as_ref())?;
        only_files(&settings, &what)?;
        self.must_be_new(&order.name, &format!("cannot {what}"))?;
        let image = import::open(&order.file, order.format)?;
        let mut descriptor = Descriptor::new(new_uuid()?, 0);
        // A guest sees whole blocks; what an odd image lacks reads as zeroes.
        descriptor.size.0 = image.size().next_multiple_of(descriptor.block_size.into());
        let keeper = Arc::clone(self);
        let name = order.name.clone();
        Ok(self.jobs.start(what, name.clone(), move |progress| {
            keeper.store.create_disk(
                &datastore,
                &settings,
                &name,
                &descriptor,
                Allocation::Thin,
                |path| image.copy_to(path, progress),
            )?;
            if order.attach {
                keeper.attach_imported(&claim)?;
            }
            Ok(())
        }))
    }

    /// Attaches a disk that was imported just now. It stays, if that fails.
    fn attach_imported(&self, claim: &Claim) -> Outcome<()> {
        let attached = self.attach_claimed(claim, DiskAttach::default());
        attached.map(drop).map_err(|problem| {
            let name = claim.name();
            problem.within(format!("disk {name} is imported, but not attached"))
        })
    }

    /// Writes a detached disk to an image file.
    pub(crate) fn export(self: &Arc<Self>, name: &Name, order: DiskExport) -> Outcome<Job> {
        let what = format!("export disk {name} to {}", order.file.display());
        let claim = self.claim(name, format!("cannot {what}"))?;
        if !order.file.is_absolute() {
            return Err(relative(&what));
        }
        let found = self.find(name)?;
        only_files(&found.settings, &what)?;
        if self.live.get(name).is_some() {
            let remedy = match self.nbd_uri(name) {
                Some(uri) => {
                    format!("detach it first, or copy it as it is now: nbdcopy '{uri}' FILE")
                }
                None => "detach it first".to_owned(),
            };
            let why = "a copy of a disk in use is of no one moment";
            return Err(attached(format!("cannot {what}"), why).remedy(remedy));
        }
        let cannot = format!("cannot {what}");
        self.must_be_no_image(&order.file)
            .map_err(|e| e.within(&cannot))?;
        let held = self
            .hold(&found, Purpose::Read)
            .map_err(|e| e.within(&cannot))?;
        let source = found.open_image(File::options().read(true)).map_err(|e| {
            let image = found.image();
            trouble::io(format!("cannot open {}", image.display()), &e).within(&cannot)
        })?;
        whole(&source, &found).map_err(|problem| problem.within(&cannot))?;
        let source = RawFile::new(source, found.descriptor.size.0);
        let format = order
            .format
            .unwrap_or_else(|| export::format_of(&order.file));
        Ok(self.jobs.start(what, name.clone(), move |progress| {
            let _until_done = (claim, held);
            export::write(&source, &order.file, format, order.existing, progress)
        }))
    }
}

/// Refuses an image that is shorter than its disk, as attaching it does: a copy would have zeroes where data is missing.
fn whole(mut image: &File, disk: &Found) -> Outcome<()> {
    let size = disk.descriptor.size.0;
    let has = image.seek(SeekFrom::End(0)).map_err(|e| {
        let path = disk.image();
        trouble::io(format!("cannot ask {} for its size", path.display()), &e)
    })?;
    if has >= size {
        return Ok(());
    }
    Err(trouble::invalid(format!("disk {} is not whole", disk.name))
        .because(format!(
            "it is to have {size} bytes, but its image has only {has}: was the image cut?"
        ))
        .remedy("restore the image, or shrink the disk with `tidegate disk resize`"))
}

fn relative(what: &str) -> Problem {
    trouble::invalid(format!("cannot {what}"))
        .because("the file's path is not absolute, and the daemon has another working directory than you")
        .remedy("give an absolute path")
}

fn only_files(settings: &DatastoreSettings, what: &str) -> Outcome<()> {
    match settings {
        DatastoreSettings::Dir { .. } => Ok(()),
        other => Err(
            Problem::new(ProblemCode::Unsupported, format!("cannot {what}"))
                .because(format!(
                    "the datastore is of kind {} and keeps no image files",
                    other.kind()
                ))
                .remedy("attach the disk and copy through NBD: nbdcopy FILE URI"),
        ),
    }
}
