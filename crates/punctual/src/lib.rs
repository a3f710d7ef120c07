#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// ── core: no async, no I/O, no clock ──
mod core;
// ── store: I/O, knows nothing of handlers ──
pub mod store;
// ── runtime: tokio, knows stores only as `dyn Store` ──
mod runtime;

#[doc(inline)]
pub use self::core::limits;
pub use self::core::{
    backoff::Backoff,
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::{Job, JobOptions, JobRecord, NewJob, OnConflict, Payload, Priority, State, Unique},
    outcome::Outcome,
    time::{Timestamp, When},
};
#[cfg(feature = "testing")]
#[doc(inline)]
pub use self::runtime::testing;
pub use self::runtime::{client::Client, handler::Ctx, worker::Worker};
/// Implements the trait `Job` for a type: `#[derive(Job)]`.
#[cfg(feature = "derive")]
pub use punctual_macros::Job;
/// Stops workers and asks runs to stop.
///
/// This is the type of tokio-util, so child tokens, drop guards and the tokens that a program already has work with
/// it.
pub use tokio_util::sync::CancellationToken;

/// The parts of a job, and filters that select jobs.
///
/// [`JobOptions`] and [`NewJob`] say how a job runs, a [`JobRecord`] says what became of it. This module has the types
/// of their fields, and [`Filter`](job::Filter), the language of `punctual ls`:
///
/// ```
/// # use punctual::{Client, job::Filter, store::List};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = Client::connect("memory:").await?;
/// let filter = Filter::parse("state:dead kind:email.* error:timeout")?;
/// let page = client.list(&List { filter, after: None, limit: 100 }).await?;
/// assert!(page.jobs.is_empty());
/// # Ok(()) }
/// ```
pub mod job {
    pub use crate::core::{
        backoff::Growth,
        duration::parse_duration,
        filter::Filter,
        fingerprint::Fingerprint,
        id::IdMaker,
        job::{Concurrency, Failure, IdempotencyKey, Running, Scope, Status},
        notes::{LogLine, Notes, Progress},
    };
    #[doc(hidden)]
    pub use crate::core::{size::parse_size, suggest::did_you_mean};
}

/// What the calls of a [`Client`] return: builders, handles and reports.
///
/// You rarely name these types. [`Client::enqueue`] returns an [`Enqueue`](client::Enqueue), which collects options and
/// enqueues when it is awaited:
///
/// ```
/// # use punctual::{Client, Job, client::Cancelled};
/// # #[derive(Job, serde::Serialize, serde::Deserialize)] #[job(kind = "remind")] struct Remind { user: u32 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = Client::connect("memory:").await?;
/// let enqueued = client.enqueue(Remind { user: 7 }).delay(std::time::Duration::from_secs(3600)).await?;
/// let id = enqueued.id().expect("the queue has no cap");
/// assert_eq!(client.cancel(id).await?, Cancelled::Done);
/// # Ok(()) }
/// ```
pub mod client {
    pub use crate::runtime::{
        client::{
            ActProgress, AuditReport, Cancelled, Enqueue, EnqueueMany, Merge, QueueHandle, Spec, WorkerPage,
        },
        metrics::{Counted, Durations, KindCounted, Metrics, QueueCounted},
    };
}

/// Handlers, middleware, and what a [`Worker`] reports.
///
/// A handler is an `async fn(job: J, ctx: Ctx<S>)`. Middleware wraps every run of a worker:
///
/// ```
/// # use punctual::{Client, Outcome, Worker, worker::{Call, Middleware, Next}};
/// struct Timed;
///
/// impl Middleware for Timed {
///     async fn around(&self, call: Call, next: Next) -> Outcome {
///         let begin = std::time::Instant::now();
///         let kind = call.record().kind.clone();
///         let outcome = next.run(call).await;
///         println!("{kind} took {:?}", begin.elapsed());
///         outcome
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = Client::connect("memory:").await?;
/// let worker = Worker::new(&client).queue("mail").with(Timed);
/// # Ok(()) }
/// ```
pub mod worker {
    pub use crate::{
        core::{
            outcome::IntoOutcome,
            registration::{Forwarding, ServedQueue, WorkerInfo, WorkerOrder, WorkerState},
        },
        runtime::{
            handler::{Call, Handler, Stop},
            middleware::{Middleware, Next},
            worker::{
                Health, HealthReport, Lateness, LiveReport, Reporting, Shutdown, UnknownKinds, WorkReport,
            },
        },
    };
}

/// Jobs that are enqueued again and again: cron expressions and intervals.
///
/// A schedule is kept in the store, so no single process has to keep it running (feature `cron`).
///
/// ```
/// # use punctual::{Client, Job, schedule::{Cron, Misfire}};
/// # #[derive(Job, serde::Serialize, serde::Deserialize)] #[job(kind = "cleanup")] struct Cleanup { keep_days: u32 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = Client::connect("memory:").await?;
/// let nightly = Cron::new("0 2 * * *")?.in_tz("Europe/Berlin")?.on_misfire(Misfire::RunOnce)?;
/// client.schedule("nightly-cleanup").set(nightly, Cleanup { keep_days: 30 }).await?;
/// # Ok(()) }
/// ```
#[cfg(feature = "cron")]
pub mod schedule {
    pub use crate::{
        core::{
            cron::{Cron, Misfire, TickNote},
            schedule::{Schedule, ScheduledJob},
        },
        runtime::client::{NamedSchedule, ScheduleHandle, SchedulePage},
    };
}

/// Topics: one publication becomes one job in each subscribed queue.
///
/// ```
/// # use punctual::{Client, Job};
/// # #[derive(Job, serde::Serialize, serde::Deserialize)] #[job(kind = "order.paid")] struct OrderPaid { order: u32 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = Client::connect("memory:").await?;
/// let orders = client.topic("orders");
/// orders.subscribe("invoices").await?;
/// orders.subscribe("parcels").await?;
/// orders.publish(OrderPaid { order: 7 }).await?;
/// # Ok(()) }
/// ```
pub mod topic {
    pub use crate::{
        core::topic::TOPICS_QUEUE,
        runtime::client::{Publish, Topic, TopicHandle, TopicPage},
    };
}

/// Rate limiters, locks, leaderboards and recent activity, kept in the store.
///
/// ```
/// # use punctual::{Client, toolkit::Allowance};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// # let client = Client::connect("memory:").await?;
/// let replies = client.rate_limiter("reply", 5, std::time::Duration::from_secs(60));
/// assert_eq!(replies.check("user-17", 5).await?, Allowance::Allowed);
/// assert!(!replies.is_allowed("user-17").await?);
/// # Ok(()) }
/// ```
pub mod toolkit {
    pub use crate::{
        runtime::toolkit::{LastHour, Leaderboard, Lock, LockGuard, Ran, RateLimiter},
        store::toolkit::{Allowance, Bucket, Standing},
    };
}

/// Trace contexts in headers, for the server and the command line. Not part of the interface.
#[cfg(feature = "otel")]
#[doc(hidden)]
pub mod trace {
    pub use crate::runtime::trace::{headers, inject, parent};
}

/// Simulated fleets, for `punctual-sim`. Not part of the interface.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation {
    pub use crate::store::simulation::Simulation;
}

/// Why jobs do not run, for the server and the command line. Not part of the interface.
#[doc(hidden)]
pub mod why {
    pub use crate::{
        runtime::client::beside,
        store::why::{Beside, LAST_CHANCE, Reason, UNKNOWN_KIND, Words, reasons},
    };
}

/// How people read numbers and lengths of time, for the server and the command line. Not part of the interface.
#[doc(hidden)]
pub mod words {
    pub use crate::core::words::{counted, due, grouped, relative, span};
}

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
