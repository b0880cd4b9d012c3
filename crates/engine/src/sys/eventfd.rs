//! Event counters (eventfd): kicks, interrupts and wake-ups.

use super::syscall_timeout;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// A write to a full counter blocked until it was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked;

/// An eventfd; non-blocking if this process created it.
pub(crate) struct EventFd(File);

impl EventFd {
    /// A new one, at zero.
    ///
    /// # Errors
    /// If the system call fails, usually for too many open files.
    pub(crate) fn new() -> io::Result<EventFd> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(EventFd(unsafe { File::from_raw_fd(fd) }))
    }

    /// One that was received over a socket.
    pub(crate) fn from_file(file: File) -> EventFd {
        EventFd(file)
    }

    /// Another descriptor of it, as if received over a socket.
    #[cfg(test)]
    pub(crate) fn to_file(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    /// One whose counter is at its maximum, and that blocks writers.
    #[cfg(test)]
    pub(crate) fn blocking_and_full() -> io::Result<EventFd> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let full = EventFd(unsafe { File::from_raw_fd(fd) });
        (&full.0).write_all(&(u64::MAX - 1).to_ne_bytes())?;
        Ok(full)
    }

    /// Adds one to a counter of this process. A full counter means that the reader has many pending events: nothing is
    /// lost.
    pub(crate) fn signal(&self) {
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Adds one to a counter that a front end shares, like [`EventFd::signal`].
    ///
    /// # Errors
    /// If it is in blocking mode and full: nothing was added, and some milliseconds were lost
    /// ([`super::syscall_timeout`]).
    pub(crate) fn call(&self) -> Result<(), Blocked> {
        match syscall_timeout::guarded(|| (&self.0).write(&1u64.to_ne_bytes())) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(Blocked),
            _ => Ok(()),
        }
    }

    /// Sets it to zero; returns the old value.
    pub(crate) fn drain(&self) -> u64 {
        let mut count = [0; 8];
        match (&self.0).read(&mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
