//! The pure layer: values, rules and arithmetic. No async, no I/O and no clock: times, ids and random numbers are arguments.

pub(crate) mod backoff;
#[cfg(feature = "cron")]
pub(crate) mod cron;
pub(crate) mod digest;
pub(crate) mod duration;
pub(crate) mod error;
pub(crate) mod fair;
pub(crate) mod filter;
pub(crate) mod fingerprint;
pub(crate) mod id;
pub(crate) mod job;
pub(crate) mod json;
pub(crate) mod lifecycle;
pub mod limits;
pub(crate) mod notes;
pub(crate) mod outcome;
pub(crate) mod rate;
pub(crate) mod registration;
#[cfg(feature = "cron")]
pub(crate) mod schedule;
pub(crate) mod silence;
pub(crate) mod size;
pub(crate) mod steady;
pub(crate) mod suggest;
pub(crate) mod time;
pub(crate) mod topic;
