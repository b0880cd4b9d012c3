//! The kinds of I/O that the model knows.

/// What an I/O does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Makes durable what was written; offset and length mean nothing.
    Flush,
}
