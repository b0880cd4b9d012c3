//! Observation: statistics, metrics, events, explanations, the log and the dashboard.

pub(crate) mod counters;
pub(crate) mod curve;
pub(crate) mod dashboard;
pub(crate) mod dense;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod io_threads;
pub(crate) mod layouts;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod monitor;
pub(crate) mod sample;
