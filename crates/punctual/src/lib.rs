#![doc = include_str!("../../../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// ── pure: no async, no I/O, no clock ──
mod backoff;
mod duration;
mod error;
mod filter;
mod id;
mod job;
mod lifecycle;
pub mod limits;
mod outcome;
mod suggest;
mod time;
// ── store: I/O, knows nothing of handlers ──
pub mod store;

pub use backoff::{BACKOFF_MAX_MS, Backoff, Growth};
pub use duration::parse_duration;
pub use error::{Error, ErrorKind, Result};
pub use filter::Filter;
pub use id::{IdMaker, JobId, SHARDS_MAX};
pub use job::{
    Concurrency, Failure, Job, JobOptions, JobRecord, NewJob, OnConflict, Payload, Priority, Running, Scope,
    State, Status, Unique,
};
pub use outcome::{IntoOutcome, Outcome};
#[doc(hidden)]
pub use suggest::did_you_mean;
pub use time::{Timestamp, When};
