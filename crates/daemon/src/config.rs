//! Configuration: the root directory, the configuration file, the checked plan, and the process's limits.

pub(crate) mod limits;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod reference;
pub(crate) mod root;
