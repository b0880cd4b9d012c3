//! The exports of NBD servers that attached disks use: no kernel lock prevents two disks from using one export.
//!
//! # Always true
//! - An export that one disk writes to is used by no other disk, until the engine has closed it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::nbd::client::uri::{Endpoint, Uri};

use crate::config::plan::ImagePlan;
use crate::os_error::Outcome;

/// The exports in use, with the disks that use them.
#[derive(Debug, Default)]
pub(crate) struct UpstreamExports {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    exports: BTreeMap<u64, Export>,
}

#[derive(Debug)]
struct Export {
    disk: Name,
    uri: Uri,
    read_only: bool,
}

/// Marks an export as in use by a disk until dropped.
#[derive(Debug)]
pub(crate) struct ExportInUse {
    table: Arc<Mutex<Table>>,
    number: u64,
}

impl Drop for ExportInUse {
    fn drop(&mut self) {
        locked(&self.table).exports.remove(&self.number);
    }
}

impl UpstreamExports {
    /// Records that a member of a claimed disk uses its image, if that is an export.
    ///
    /// # Errors
    /// When another disk uses the same export, and one of the two writes.
    pub(crate) fn enter(
        &self,
        disk: &Name,
        image: &ImagePlan,
        read_only: bool,
    ) -> Outcome<Option<ExportInUse>> {
        let ImagePlan::Nbd { uri: text, .. } = image else {
            return Ok(None);
        };
        // An invalid URI is refused later, when it is opened.
        let Ok(uri) = text.parse().map(plain) else {
            return Ok(None);
        };
        let mut table = locked(&self.table);
        let mut others = table.exports.values();
        let other = others.find(|other| other.uri == uri && !(other.read_only && read_only));
        if let Some(Export { disk: other, .. }) = other {
            let what = format!("disk {disk} may not use {text}");
            if other == disk {
                return Err(Problem::new(ProblemCode::Busy, what)
                    .because(
                        "the disk uses it already, or has sent it requests that have not ended",
                    )
                    .remedy("try again when its server has answered them"));
            }
            return Err(Problem::new(ProblemCode::Busy, what)
                .because(format!("disk {other} is attached, and uses the same export"))
                .remedy(format!(
                    "detach disk {other} first: tidegate disk detach {other}; or create disk {disk} again with \
                     another --export"
                )));
        }
        table.last += 1;
        let number = table.last;
        let export = Export {
            disk: disk.clone(),
            uri,
            read_only,
        };
        table.exports.insert(number, export);
        Ok(Some(ExportInUse {
            table: Arc::clone(&self.table),
            number,
        }))
    }
}

impl UpstreamExports {
    /// Whether this disk uses an export, or has sent it requests that have not ended.
    pub(crate) fn is_used_by(&self, disk: &Name, image: &ImagePlan) -> bool {
        let ImagePlan::Nbd { uri, .. } = image else {
            return false;
        };
        let uri = uri.parse().map(plain).ok();
        let table = locked(&self.table);
        let mut exports = table.exports.values();
        exports.any(|export| export.disk == *disk && Some(&export.uri) == uri.as_ref())
    }
}

/// The canonical form of a URI: the same for all URIs of an export.
fn plain(mut uri: Uri) -> Uri {
    uri.tls = false;
    uri.endpoint = match uri.endpoint {
        Endpoint::Tcp(host, port) => Endpoint::Tcp(host.to_ascii_lowercase(), port),
        Endpoint::Unix(path) => Endpoint::Unix(path.canonicalize().unwrap_or(path)),
    };
    uri
}

fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_disks_share_an_export_only_to_read_it_however_it_is_written() {
        let exports = UpstreamExports::default();
        let enter = |disk: &str, uri: &str, read_only: bool| {
            let image = ImagePlan::Nbd {
                uri: uri.to_owned(),
                block_size: 512,
            };
            exports.enter(&disk.parse().unwrap(), &image, read_only)
        };
        let first = enter("a", "nbd://Host/x", false).unwrap();
        for (same, read_only) in [("nbd://host:10809/x", false), ("nbd://host/%78", true)] {
            let refused = enter("b", same, read_only).unwrap_err();
            assert_eq!(refused.code, ProblemCode::Busy);
            assert!(refused.to_string().contains("disk a is attached"));
            assert!(refused.remedy.unwrap().contains("tidegate disk detach a"));
        }
        let own = enter("a", "nbd://host/x", false).unwrap_err();
        assert!(own.to_string().contains("have not ended"), "{own}");
        let _other = enter("c", "nbd://host/y", false).unwrap();
        drop(first);
        let _reader = enter("a", "nbd://host/x", true).unwrap();
        let _second = enter("b", "nbd://host/x", true).unwrap();
        enter("d", "nbd://host/x", false).unwrap_err();
    }
}
