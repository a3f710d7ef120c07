//! The bounds of everything, with their units, and the defaults of jobs. Default retention is `Keep` in `store/settings.rs`.
//!
//! The limits of a job are checked once, on entry, by [`NewJob::check`](crate::NewJob::check). The error names the
//! field, the limit and the value. Code after that check never sees an oversized value.

use std::time::Duration;

/// The largest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// The longest kind, queue, group, concurrency key, unique key, tag or content type, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 1024;
/// The most tags of one job.
pub const TAGS_MAX: usize = 16;
/// The longest header names and values of one job together, in bytes.
pub const HEADERS_BYTES_MAX: usize = 8 * 1024;
/// The longest error or reason that is kept, in bytes. Longer ones are cut between two characters.
pub const ERROR_BYTES_MAX: usize = 1024;
/// The failed attempts that are kept with a job. Older ones are dropped.
pub const FAILURES_MAX: usize = 8;
/// The largest result of a job, in bytes.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;
/// The longest notes of a job, in bytes: its log lines, and the message of its progress.
pub const NOTES_BYTES_MAX: usize = 4 * 1024;
/// The log lines that are kept with a job.
pub const LOG_LINES_MAX: usize = 64;
/// The most items in one call.
pub const BATCH_MAX: usize = 1_000;
/// The most bytes of payloads, results or notes in one call. A larger job is sent alone.
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// The longest text of a filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;
/// The most terms of a filter.
pub const FILTER_TERMS_MAX: usize = 64;
/// The most values with a star in a filter. Each of them can read the whole of a text.
pub const FILTER_STARS_MAX: usize = 64;
/// The most steps of a filter into a payload.
pub const FILTER_STEPS_MAX: usize = 16;
/// The most shards of a store on Redis, and the number of buckets that derived ids name.
pub const SHARDS_MAX: u16 = 1_024;
/// The most queues in one reserve.
pub const QUEUES_PER_RESERVE_MAX: usize = 64;

/// The last instant that a job can name: the end of the year 9999, in Unix milliseconds.
pub const INSTANT_MAX_MS: u64 = 253_402_300_799_999;
/// The longest delay, in milliseconds: about 6,300 years. Now plus a delay stays a valid instant until the year 3660.
pub const DELAY_MAX_MS: u64 = 200_000_000_000_000;

/// The shortest lease.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_hours(24);
/// The lease of a job (default).
pub const LEASE_DEFAULT: Duration = Duration::from_secs(15);
/// The shortest time after a silence in which a lease that ended in it is not reclaimed (S14). For leases over 5 s it is two fifths
/// of the lease.
pub const SILENCE_PAUSE_MIN: Duration = Duration::from_secs(2);
/// The most silences that a store remembers.
pub const SILENCES_MAX: usize = 64;
/// How many leases of a queue a call looks at to return when the next call is needed: those that end first.
pub const WATCHED_MAX: usize = 8;
/// The longest timeout of a run.
pub const TIMEOUT_MAX: Duration = Duration::from_hours(7 * 24);
/// The timeout of a run (default).
pub const TIMEOUT_DEFAULT: Duration = Duration::from_mins(5);
/// The longest pause of a backoff, in milliseconds (30 days).
pub const BACKOFF_MAX_MS: u64 = 30 * 24 * 3600 * 1000;
/// The number of attempts (default).
pub const MAX_ATTEMPTS_DEFAULT: u32 = 20;
/// How long a job is held that a newer version wrote with options that this one does not know.
pub const HELD_FOR: Duration = Duration::from_mins(1);
/// The most attempts of a job.
pub const MAX_ATTEMPTS_MAX: u32 = 10_000;
/// The highest concurrency limit of a concurrency key or group.
pub const CONCURRENCY_MAX: u32 = 10_000;
/// The highest concurrency limit of a queue.
pub const QUEUE_CONCURRENCY_MAX: u32 = 1_000_000;
/// The highest weight of a group; the lowest is 1.
pub const GROUP_WEIGHT_MAX: u32 = 100;
/// The most groups of one queue with limits of their own.
pub const GROUP_LIMITS_MAX: usize = 1_000;
/// The groups that one reserve or take activates in addition to the number of jobs requested (S16).
pub const GROUPS_EXTRA: usize = 32;
/// The services of groups after which a store can end a reserve with fewer jobs and `more`, because other callers
/// wait (S16).
pub const GROUP_SERVICES_MAX: usize = 64;
/// The groups in each place that are checked again when settings change or the store's clock goes back.
pub const REGROUP_MAX: usize = 300;
/// The longest pause of a queue or group that one run can request.
pub const PAUSE_MAX: Duration = Duration::from_hours(24);
/// The expired leases in a row from which on a job is dead, reason `crashes` (S9).
pub const POISON_LIMIT: u32 = 3;
/// The highest count of expired leases in a row. Those that had company do not end the job.
pub const EXPIRED_LEASES_MAX: u32 = 255;
/// The snoozes in a row after which a job is dead, reason `snoozes` (S10).
pub const SNOOZES_MAX: u32 = 10_000;
/// The shortest snooze; shorter ones are lengthened to it (S10).
pub const SNOOZE_MIN: Duration = Duration::from_millis(100);

/// The most calls that an instance has made since one that arrives late. A stored number that is further ahead of a call is damage, and counts as none.
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) const CALLS_AHEAD_MAX: u64 = 1 << 19;

/// The expired leases that one reserve or take reclaims (S9).
pub const RECLAIM_MAX: usize = 32;
/// How long after a lease could be reclaimed a sweep or an operator's action reclaims it: nobody serves its queue, or its workers would have
/// reclaimed it, and reported the job that ended by it (S9).
pub const ORPHANED_AFTER: Duration = Duration::from_mins(1);
/// The due candidates that one reserve or take checks beyond the number requested (S9).
pub const CANDIDATES_EXTRA: usize = 256;
/// The blocked jobs that one event of a concurrency key returns, if they are not due any more because the clock went back (S15).
pub const RECHECK_MAX: usize = 32;
/// The items of upkeep that a reserve does, and a settle in addition to its own batch (S17).
pub const SWEEP_RIDE_MAX: usize = 100;
/// The divisor of a retention bound that gives its slack, a sixteenth. Upkeep as a part of another call waits until the bound is exceeded by
/// more, so that not each end of a job has to remove another one (S17).
pub const KEEP_SLACK_DIVISOR: u64 = 16;
/// The most slack, in jobs.
pub const KEEP_SLACK_JOBS_MAX: u64 = 64;
/// The most slack, in bytes.
pub const KEEP_SLACK_BYTES_MAX: u64 = 256 << 10;
/// The most bytes of a page: it ends with the job that brings the payloads and results read so far to this size.
pub const LIST_BYTES_MAX: u64 = 4 << 20;
/// The most work of a page, in bytes of payloads and texts that its filter reads and compares: the page ends with the
/// job that brings the sum to this. That takes about 50 ms.
pub const LIST_STEPS_MAX: u64 = 32 << 20;
/// The number up to which due jobs are counted.
pub const DUE_COUNT_MAX: u64 = 100_000;
/// The blocked jobs that a look at a queue reads, to find the oldest: the first of each concurrency key and priority.
pub const BLOCKED_SEARCH_MAX: usize = 256;
/// The most buckets of one `upcoming`.
pub const BUCKETS_MAX: usize = 1_000;
/// The most jobs that one `upcoming` reads.
pub const UPCOMING_SEARCH_MAX: u64 = 1_000_000;

/// The largest document, in bytes.
pub const DOC_BYTES_MAX: usize = 64 * 1024;
/// The most documents of a store.
pub const DOCS_MAX: u64 = 100_000;

/// The most calls per period of a rate limiter that keeps a log.
pub const LOG_MAX: u32 = 10_000;
/// The most calls per period, or at once, of a rate limiter that keeps no log.
pub const RATE_MAX: u32 = 1_000_000;
/// The shortest period of a rate limiter.
pub const RATE_PERIOD_MIN: Duration = Duration::from_millis(1);
/// The longest period of a rate limiter.
pub const RATE_PERIOD_MAX: Duration = Duration::from_hours(30 * 24);

/// The shortest lease of a lock.
pub const LOCK_LEASE_MIN: Duration = Duration::from_millis(100);
/// The longest lease of a lock.
pub const LOCK_LEASE_MAX: Duration = Duration::from_hours(24);
/// The lease of a lock (default).
pub const LOCK_LEASE_DEFAULT: Duration = Duration::from_secs(30);

/// The most members of a leaderboard.
pub const BOARD_MEMBERS_MAX: u32 = 1_000_000;
/// The most members to which one call adds.
pub const BOARD_ADD_MAX: usize = 100;
/// The most entries that one call removes, in addition to those of as many members as it adds. A member has one entry
/// in each bucket.
pub(crate) const BOARD_CUT_ENTRIES: usize = 1_000;
/// The most minutes, hours or days that a leaderboard covers: a week of hours.
pub const BUCKETS_OF_BOARD_MAX: u16 = 168;
/// The highest score, 2^53 − 1; the lowest is its negative.
///
/// The score in one of several buckets is bounded by this, divided by their number.
pub const SCORE_MAX: i64 = (1 << 53) - 1;
/// The most members returned above, and below, a member of a leaderboard.
pub const AROUND_MAX: usize = 100;

/// The longest cron expression, in bytes.
pub const CRON_BYTES_MAX: usize = 255;
/// The shortest interval of a schedule.
pub const EVERY_MIN: Duration = Duration::from_secs(1);
/// The longest interval of a schedule.
pub const EVERY_MAX: Duration = Duration::from_hours(366 * 24);
/// The most missed ticks of a schedule that run.
pub const MISSED_MAX: u32 = 1_000;
/// The longest name of a schedule, in bytes.
pub const SCHEDULE_NAME_BYTES_MAX: usize = 200;

/// The longest name of a topic, in bytes.
pub const TOPIC_NAME_BYTES_MAX: usize = 200;
/// The most subscriptions of one topic.
pub const SUBSCRIPTIONS_MAX: usize = 1_000;
/// The attempts to distribute a publication.
///
/// All of them are kept with it, so that its record shows when the first one was.
pub const PUBLICATION_ATTEMPTS: u32 = FAILURES_MAX as u32 + 1;
/// The timeout of one attempt to distribute a publication: enough for a thousand large jobs over a slow network.
pub const PUBLICATION_TIMEOUT: Duration = Duration::from_hours(1);

/// How long the id of an ended job is remembered, from its end, also without its record (S17).
pub const ID_MEMORY: Duration = Duration::from_hours(24);
/// The most remembered ids per queue. The oldest are forgotten first (S17).
pub const ID_MEMORY_MAX: u64 = 1_000_000;
/// How long the last call of an idle producer or worker is kept for repetition (S3).
pub const CALL_MEMORY: Duration = Duration::from_hours(1);
