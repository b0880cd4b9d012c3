//! A pool's member as bytes: what the catalog and the superblocks are written to.

use std::fmt;
use std::io;
use std::sync::Arc;

use tidegate_engine::datastore::dir::SharedFile;
use tidegate_engine::lease::Watch;

/// Bytes that survive a crash once they are synced.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// Reads bytes.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;

    /// Writes bytes, which a crash may lose or tear until they are synced.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Makes everything durable that was written.
    fn sync(&self) -> io::Result<()>;
}

/// A member's file or device, which is written only under its lease.
pub(crate) struct MemberFile {
    pub(crate) file: Arc<SharedFile>,
    /// None: a lock of this kernel guards it.
    pub(crate) lease: Option<Watch>,
}

impl MemberFile {
    /// Fails if another host may have it.
    fn must_be_ours(&self) -> io::Result<()> {
        match &self.lease {
            Some(lease) if !lease.is_open() => Err(io::Error::other(
                lease
                    .lost()
                    .unwrap_or("its lease was not renewed in time")
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for MemberFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.path().display())
    }
}

impl Store for MemberFile {
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        // Another host may have had it before.
        self.file.read_fresh_at(bytes, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.must_be_ours()?;
        self.file.write_unsynced_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.must_be_ours()?;
        self.file.sync()
    }
}
