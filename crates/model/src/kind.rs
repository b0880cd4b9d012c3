//! The kinds of I/O of the model.

/// The kind of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Makes completed writes durable. Offset and length are ignored.
    Flush,
}
