#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// ── pure: no async, no I/O, no clock ──
mod backoff;
#[cfg(feature = "cron")]
mod cron;
mod digest;
mod duration;
mod error;
mod fair;
mod filter;
mod id;
mod job;
mod lifecycle;
pub mod limits;
mod notes;
mod outcome;
mod rate;
#[cfg(feature = "cron")]
mod schedule;
mod suggest;
mod time;
mod topic;
// ── store: I/O, knows nothing of handlers ──
pub mod store;
// ── runtime: tokio, knows stores only as `dyn Store` ──
mod client;
mod handler;
mod middleware;
mod repeat;
#[cfg(feature = "testing")]
pub mod testing;
mod tool;
mod worker;

pub use backoff::{BACKOFF_MAX_MS, Backoff, Growth};
pub use client::{
    ActProgress, AuditReport, Cancelled, Client, Enqueue, EnqueueMany, Merge, Publish, QueueHandle, Spec,
    Topic, TopicHandle, TopicPage,
};
#[cfg(feature = "cron")]
pub use client::{NamedSchedule, ScheduleHandle, SchedulePage};
#[cfg(feature = "cron")]
pub use cron::{Cron, Misfire, TickNote};
pub use duration::parse_duration;
pub use error::{Error, ErrorKind, Result};
pub use filter::Filter;
pub use handler::{Call, Ctx, Handler, Stop};
pub use id::{IdMaker, JobId, SHARDS_MAX};
pub use job::{
    Concurrency, Failure, Job, JobOptions, JobRecord, NewJob, OnConflict, Payload, Priority, Running, Scope,
    State, Status, Unique,
};
pub use middleware::{Middleware, Next};
pub use notes::{LogLine, Notes, Progress};
pub use outcome::{IntoOutcome, Outcome};
/// `#[derive(Job)]`: makes a type a job.
#[cfg(feature = "derive")]
pub use punctual_macros::Job;
#[cfg(feature = "cron")]
pub use schedule::{Schedule, ScheduledJob};
pub use store::{Allowance, Bucket, Standing};
#[doc(hidden)]
pub use suggest::did_you_mean;
pub use time::{Timestamp, When};
/// Ends workers, and asks runs to stop. tokio-util's own, since a wrapper of it would know nothing of child tokens, drop guards and
/// tokens that a program has already.
pub use tokio_util::sync::CancellationToken;
pub use tool::{LastHour, Leaderboard, Lock, LockGuard, Ran, RateLimiter};
pub use topic::TOPICS_QUEUE;
pub use worker::{Health, Lateness, LiveReport, Reporting, Shutdown, UnknownKinds, WorkReport, Worker};

/// The guide's code runs with the tests.
#[cfg(all(doctest, feature = "sqlite", feature = "testing"))]
mod guide {
    #[doc = include_str!("../docs/guide/1-jobs.md")]
    struct Jobs;
    #[doc = include_str!("../docs/guide/2-workers.md")]
    struct Workers;
    #[doc = include_str!("../docs/guide/3-testing.md")]
    struct Testing;
    #[doc = include_str!("../docs/guide/4-transactions.md")]
    struct Transactions;
    #[doc = include_str!("../docs/guide/5-redis.md")]
    struct Redis;
    #[cfg(feature = "cron")]
    #[doc = include_str!("../docs/guide/6-schedules.md")]
    struct Schedules;
    #[doc = include_str!("../docs/guide/7-topics.md")]
    struct Topics;
    #[doc = include_str!("../docs/guide/8-toolkit.md")]
    struct Toolkit;
}
