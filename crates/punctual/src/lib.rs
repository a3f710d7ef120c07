#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// ── core: no async, no I/O, no clock ──
mod core;
// ── store: I/O, knows nothing of handlers ──
pub mod store;
// ── runtime: tokio, knows stores only as `dyn Store` ──
mod runtime;

pub use self::core::backoff::{BACKOFF_MAX_MS, Backoff, Growth};
#[cfg(feature = "cron")]
pub use self::core::cron::{Cron, Misfire, TickNote};
pub use self::core::duration::parse_duration;
pub use self::core::error::{Error, ErrorKind, Result};
pub use self::core::filter::Filter;
pub use self::core::id::{IdMaker, JobId, SHARDS_MAX};
pub use self::core::job::{
    Concurrency, Failure, Job, JobOptions, JobRecord, NewJob, OnConflict, Payload, Priority, Running, Scope,
    State, Status, Unique,
};
#[doc(inline)]
pub use self::core::limits;
pub use self::core::notes::{LogLine, Notes, Progress};
pub use self::core::outcome::{IntoOutcome, Outcome};
#[cfg(feature = "cron")]
pub use self::core::schedule::{Schedule, ScheduledJob};
#[doc(hidden)]
pub use self::core::suggest::did_you_mean;
pub use self::core::time::{Timestamp, When};
pub use self::core::topic::TOPICS_QUEUE;
pub use self::runtime::client::{
    ActProgress, AuditReport, Cancelled, Client, Enqueue, EnqueueMany, Merge, Publish, QueueHandle, Spec,
    Topic, TopicHandle, TopicPage,
};
#[cfg(feature = "cron")]
pub use self::runtime::client::{NamedSchedule, ScheduleHandle, SchedulePage};
pub use self::runtime::handler::{Call, Ctx, Handler, Stop};
pub use self::runtime::middleware::{Middleware, Next};
#[cfg(feature = "testing")]
#[doc(inline)]
pub use self::runtime::testing;
pub use self::runtime::toolkit::{LastHour, Leaderboard, Lock, LockGuard, Ran, RateLimiter};
pub use self::runtime::worker::{
    Health, Lateness, LiveReport, Reporting, Shutdown, UnknownKinds, WorkReport, Worker,
};
/// Implements the trait `Job` for a type: `#[derive(Job)]`.
#[cfg(feature = "derive")]
pub use punctual_macros::Job;
pub use store::{Allowance, Bucket, Standing};
/// Stops workers and asks runs to stop.
///
/// This is the type of tokio-util, so child tokens, drop guards and the tokens that a program already has work with
/// it.
pub use tokio_util::sync::CancellationToken;

/// What the pages of docs/reference list. Not part of the interface.
#[doc(hidden)]
pub mod reference {
    pub use crate::core::{
        duration::UNITS,
        filter::fields::{FIELDS, Field, Takes, signs, states},
    };
    pub use crate::runtime::worker::{
        config::{Defaults, GRACE_MAX, defaults},
        queues::{SLOTS_MAX, WEIGHT_MAX},
    };
    #[cfg(feature = "redis")]
    pub use crate::store::redis::address::{
        Having, NODES_MAX, OPTIONS, PREFIX_BYTES_MAX, REPLICAS_MAX, SENTINEL_PORT,
    };
    #[cfg(feature = "sqlite")]
    pub use crate::store::{
        sqlite::CACHE_MIB_MAX,
        url::{SQLITE_OPTIONS, SqliteOption},
    };
}

/// Runs the code of the guide with the tests.
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
