//! Configuration: the root directory, the configuration file and the checked plan.

pub(crate) mod plan;
pub(crate) mod root;
