//! The errors of the engine: a kind to match on, context, and the source.

use std::fmt;
use std::io;
use tidegate_core::layout::Refusal;

/// The kind of an error, for callers that must act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is no such file, disk or server.
    NotFound,
    /// It is in use by another.
    Busy,
    /// It exists already.
    Exists,
    /// The request makes no sense.
    Invalid,
    /// The system denies it.
    Denied,
    /// The kernel or the datastore does not support it.
    Unsupported,
    /// It took too long.
    TimedOut,
    /// The engine is stopping, or the disk is detached.
    Gone,
    /// The system or the datastore failed.
    Io,
}

/// An error of the engine.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    what: String,
    source: Option<io::Error>,
    refusal: Option<Refusal>,
}

/// The result type of most of the engine.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// `what` states the failure and the remedy, as a sentence without a full stop.
    pub fn new(kind: Kind, what: impl Into<String>) -> Error {
        Error {
            kind,
            what: what.into(),
            source: None,
            refusal: None,
        }
    }

    /// An error with the OS error that caused it, whose kind does not follow from that.
    pub(crate) fn caused(kind: Kind, what: impl Into<String>, source: io::Error) -> Error {
        Error {
            kind,
            what: what.into(),
            source: Some(source),
            refusal: None,
        }
    }

    /// An error with the OS error that caused it; the kind follows from that.
    pub fn io(what: impl Into<String>, source: io::Error) -> Error {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            io::ErrorKind::WouldBlock => Kind::Busy,
            io::ErrorKind::AlreadyExists | io::ErrorKind::AddrInUse => Kind::Exists,
            io::ErrorKind::InvalidInput => Kind::Invalid,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Kind::Denied,
            io::ErrorKind::Unsupported => Kind::Unsupported,
            io::ErrorKind::TimedOut => Kind::TimedOut,
            _ => Kind::Io,
        };
        Error::caused(kind, what, source)
    }

    /// A disk's layout refuses to open.
    pub(crate) fn refused(kind: Kind, what: impl Into<String>, refusal: Refusal) -> Error {
        Error {
            refusal: Some(refusal),
            ..Error::new(kind, what)
        }
    }

    /// Why a disk's layout refuses to open, for a caller that knows its members by name.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// The kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_ref()
            .map(|e| e as &(dyn std::error::Error + 'static))
    }
}
