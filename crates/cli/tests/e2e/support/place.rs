//! A directory of a test's own, short enough for socket names, gone when the test is over.
//!
//! # Always true
//! - Two tests never share a place, within one run or between two runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Mebibytes, for sizes of images.
pub(crate) const MIB: u64 = 1 << 20;

/// A temporary directory.
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    /// A new one. Not under `target/`, whose name may be too long for a Unix socket (107 bytes).
    pub(crate) fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tg-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).expect("a test can make a temporary directory");
        Place { dir }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// A name in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// An empty sparse image in it.
    pub(crate) fn image(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.join(name);
        let file = fs::File::create(&path).expect("an image can be made in the test's place");
        file.set_len(bytes)
            .expect("a sparse file can be of any size");
        path
    }

    /// A file of bytes that differ everywhere and are the same in each run.
    pub(crate) fn noise(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.join(name);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = usize::try_from(bytes / 8).expect("noise fits in memory");
        let mut content = Vec::with_capacity(words * 8);
        for _ in 0..words {
            // xorshift64: enough to be neither compressible nor periodic within a file.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            content.extend_from_slice(&state.to_le_bytes());
        }
        fs::write(&path, content).expect("noise can be written in the test's place");
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is still mounted below must not be deleted through its mount point.
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} stays behind: {error}", self.dir.display());
        }
    }
}

/// Bytes that a file takes on its file system.
pub(crate) fn allocated(path: &Path) -> u64 {
    let metadata = fs::metadata(path)
        .unwrap_or_else(|error| panic!("{} cannot be looked at: {error}", path.display()));
    metadata.blocks() * 512
}
