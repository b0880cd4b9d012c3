//! Fills a new disk with the bytes of a backup.
//!
//! On a datastore of kind `dir` the disk appears once its image is complete. On a pool it is there from the beginning, since
//! its layout writes it; it is deleted again if that fails.

use std::fs::File;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::disk::Allocation;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::{Claim, DiskService};
use crate::disks::copy::session::DiskSession;
use crate::disks::copy::{self, Progress, RawFile, Source};
use crate::files::{self, Location};
use crate::os_error::{self, Outcome};
use crate::text::new_uuid;

/// A disk that is about to be restored.
pub(super) struct Restored {
    datastore: Name,
    settings: DatastoreSettings,
    descriptor: Descriptor,
}

impl DiskService {
    /// Prepares a new disk of this size.
    pub(super) fn begin_restored(&self, datastore: Option<&Name>, size: u64) -> Outcome<Restored> {
        let (datastore, settings) = self.choose_datastore(datastore)?;
        match &settings {
            DatastoreSettings::Dir { .. } | DatastoreSettings::Pool {} => {}
            other => {
                let why = format!("the datastore is of kind {}", other.kind());
                return Err(Problem::new(
                    ProblemCode::Unsupported,
                    format!("cannot restore to datastore {datastore}"),
                )
                .because(why)
                .remedy(
                    "choose a pool or a datastore of kind dir, or restore to a file (--to-file)",
                ));
            }
        }
        let mut descriptor = Descriptor::new(new_uuid()?, 0);
        descriptor.size.0 = size.next_multiple_of(descriptor.block_size.into());
        Ok(Restored {
            datastore,
            settings,
            descriptor,
        })
    }

    /// Creates the disk, with these bytes.
    pub(super) fn fill_restored(
        &self,
        claim: &Claim,
        to: &Restored,
        image: &dyn Source,
        progress: &Progress,
    ) -> Outcome<()> {
        let name = claim.name();
        let Restored {
            datastore,
            settings,
            descriptor,
        } = to;
        let create = |fill: &dyn Fn(&std::path::Path) -> Outcome<()>| {
            let thin = Allocation::Thin;
            self.store
                .create_disk(datastore, settings, name, descriptor, thin, fill)
        };
        if *settings != (DatastoreSettings::Pool {}) {
            create(&|path| fill_file(path, descriptor.size.0, image, progress))?;
            return self.agree(&self.store.read_disk(datastore, settings, name)?);
        }
        create(&|_| Ok(()))?;
        self.fill_pooled(to, name, image, progress)
            .map_err(|problem| {
                let found = self.store.read_disk(datastore, settings, name);
                match found.and_then(|found| self.store.delete_disk(&found, ())) {
                    Ok(()) => problem,
                    Err(second) => {
                        problem.because(format!("and the incomplete disk is not deleted: {second}"))
                    }
                }
            })
    }

    fn fill_pooled(
        &self,
        to: &Restored,
        name: &Name,
        image: &dyn Source,
        progress: &Progress,
    ) -> Outcome<()> {
        let what = || format!("cannot write disk {name}");
        let found = self.store.read_disk(&to.datastore, &to.settings, name)?;
        let quiet = self.open_quietly(&found, None)?;
        let export = quiet.disk().export_info(name.as_str());
        let (socket, negotiated, mut session) =
            DiskSession::pair(export).map_err(|e| os_error::io(what(), &e))?;
        quiet.disk().serve_nbd(socket.into(), &negotiated, ())?;
        copy::copy(image, &mut session, progress)?;
        session.flush().map_err(|e| os_error::io(what(), &e))
    }
}

fn fill_file(
    path: &std::path::Path,
    size: u64,
    image: &dyn Source,
    progress: &Progress,
) -> Outcome<()> {
    let what = || format!("cannot write {}", path.display());
    let file = files::open(Location::in_disk(path), File::options().write(true))
        .map_err(|e| os_error::io(what(), &e))?;
    let mut sink = RawFile::new(file, size);
    copy::copy(image, &mut sink, progress)?;
    sink.sync().map_err(|e| os_error::io(what(), &e))
}
