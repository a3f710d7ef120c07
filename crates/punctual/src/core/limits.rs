//! Every limit and default of a job, named with its unit.
//!
//! Limits are checked once, on entry, by [`NewJob::check`](crate::NewJob::check); the error names the field, the limit and
//! the value. Nothing behind that check meets an oversized value again.

use std::time::Duration;

/// Largest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// Longest kind, queue, group, concurrency key, unique key, tag or content type, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 1024;
/// Most tags on one job.
pub const TAGS_MAX: usize = 16;
/// All header names and values of one job together, in bytes.
pub const HEADERS_BYTES_MAX: usize = 8 * 1024;
/// Longest kept error or reason, in bytes; longer ones are cut at a character.
pub const ERROR_BYTES_MAX: usize = 1024;
/// Failed attempts kept with a job; older ones are forgotten.
pub const FAILURES_MAX: usize = 8;
/// Largest result of a job, in bytes.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;
/// Text that a job's runs may tell of themselves, in bytes: the lines that are kept, and the message of the progress.
pub const NOTES_BYTES_MAX: usize = 4 * 1024;
/// Lines of its runs that are kept with a job.
pub const LOG_LINES_MAX: usize = 64;
/// Most items in one call.
pub const BATCH_MAX: usize = 1_000;
/// Bytes of payloads, results or notes in one call; a job that is larger travels alone.
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Longest text of a filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;
/// Most terms of a filter.
pub const FILTER_TERMS_MAX: usize = 64;
/// Most steps of a filter into a payload.
pub const FILTER_STEPS_MAX: usize = 16;
/// Longest list of queues in one reserve.
pub const QUEUES_PER_RESERVE_MAX: usize = 64;

/// Last instant a job may name: the end of the year 9999, in Unix milliseconds.
pub const INSTANT_MAX_MS: u64 = 253_402_300_799_999;
/// Longest delay, in milliseconds (about 6,300 years, so that now plus a delay stays an instant until the year 3660).
pub const DELAY_MAX_MS: u64 = 200_000_000_000_000;

/// Shortest lease.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// Longest lease.
pub const LEASE_MAX: Duration = Duration::from_hours(24);
/// Lease where nobody chose one.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(15);
/// Interval of the heartbeat that belongs to the default lease: lease/3. Also how long nothing is taken back after the
/// store's clock jumped forward (S14).
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(5);
/// Longest limit of one run.
pub const TIMEOUT_MAX: Duration = Duration::from_hours(7 * 24);
/// Limit of one run where nobody chose one.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_mins(5);
/// Attempts where nobody chose a number.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 20;
/// A job that a newer version wrote, with options that this one does not know, is looked at again after this.
pub const HELD_FOR: Duration = Duration::from_mins(1);
/// Most attempts a job may ask for.
pub const MAX_ATTEMPTS_MAX: u32 = 10_000;
/// Most jobs of one concurrency key or group that a limit may let run at once.
pub const CONCURRENCY_MAX: u32 = 10_000;
/// Most jobs of one queue that a limit may let run at once.
pub const QUEUE_CONCURRENCY_MAX: u32 = 1_000_000;
/// Highest weight of a group; the lowest is 1.
pub const GROUP_WEIGHT_MAX: u32 = 100;
/// Most groups of one queue that have limits of their own.
pub const GROUP_LIMITS_MAX: usize = 1_000;
/// Groups that one reserve or take lets in beyond the jobs that it wants (S16).
pub const GROUPS_EXTRA: usize = 32;
/// Turns of groups after which a store may end a reserve, with fewer jobs than were asked for and `more` (S16): others wait for it.
pub const GROUP_TURNS_MAX: usize = 64;
/// Groups in each place that are looked at again when settings change or the store's clock goes back.
pub const REGROUP_MAX: usize = 300;
/// Longest that one run may close the gate of its queue or group for.
pub const GATE_MAX: Duration = Duration::from_hours(24);
/// Leases taken back in a row after which a job is dead, reason `crashes` (S9).
pub const POISON_LIMIT: u32 = 3;
/// Crashes in a row are counted up to here: those that had company end no job.
pub const CRASHES_MAX: u32 = 255;
/// Snoozes in a row after which a job is dead, reason `snoozes` (S10).
pub const SNOOZES_MAX: u32 = 10_000;
/// Shortest snooze (S10); shorter ones are lengthened to it.
pub const SNOOZE_MIN: Duration = Duration::from_millis(100);

/// Leases past their time that one reserve or take takes back (S9).
pub const TAKE_BACK_MAX: usize = 32;
/// Due candidates that one reserve or take looks at beyond the number asked for (S9).
pub const CANDIDATES_EXTRA: usize = 256;
/// Items of upkeep that ride on a reserve, and on a settle beside its own batch (S17).
pub const SWEEP_RIDE_MAX: usize = 100;
/// A page of jobs ends with the job that brings the payloads and results of those looked at to so many bytes.
pub const LIST_BYTES_MAX: u64 = 4 << 20;
/// `due` is counted up to this many jobs.
pub const DUE_COUNT_MAX: u64 = 100_000;
/// Most buckets of one `upcoming`.
pub const BUCKETS_MAX: usize = 1_000;
/// Jobs one `upcoming` looks at.
pub const UPCOMING_SEARCH_MAX: u64 = 1_000_000;

/// Largest document, in bytes.
pub const DOC_BYTES_MAX: usize = 64 * 1024;
/// Most documents of a store.
pub const DOCS_MAX: u64 = 100_000;

/// Most calls that a rate limiter's log lets pass in a period.
pub const LOG_MAX: u32 = 10_000;
/// Most calls that a rate limiter lets pass in a period, or at once, where it keeps no log of them.
pub const RATE_MAX: u32 = 1_000_000;
/// Shortest period of a rate limiter.
pub const RATE_PERIOD_MIN: Duration = Duration::from_millis(1);
/// Longest period of a rate limiter.
pub const RATE_PERIOD_MAX: Duration = Duration::from_hours(30 * 24);

/// Shortest lease of a lock.
pub const LOCK_LEASE_MIN: Duration = Duration::from_millis(100);
/// Longest lease of a lock.
pub const LOCK_LEASE_MAX: Duration = Duration::from_hours(24);
/// Lease of a lock where nobody chose one.
pub const LOCK_LEASE_DEFAULT: Duration = Duration::from_secs(30);

/// Most members of a leaderboard.
pub const BOARD_MEMBERS_MAX: u32 = 1_000_000;
/// Most members of a leaderboard that one step adds to.
pub const BOARD_ADD_MAX: usize = 100;
/// Entries of members that leave a leaderboard, which has a member's in each bucket, in one step besides those of as many as come.
pub(crate) const BOARD_CUT_ENTRIES: usize = 1_000;
/// Most minutes, hours or days that a leaderboard merges: a week of hours.
pub const BUCKETS_OF_BOARD_MAX: u16 = 168;
/// Highest score of a leaderboard, 2^53 − 1, and the lowest negated; what a member has in one of several buckets is bounded by the
/// same, divided by their number.
pub const SCORE_MAX: i64 = (1 << 53) - 1;
/// Most members that are told above, and below, one of a leaderboard.
pub const AROUND_MAX: usize = 100;

/// Longest cron expression, in bytes.
pub const CRON_BYTES_MAX: usize = 255;
/// Shortest interval of a schedule.
pub const EVERY_MIN: Duration = Duration::from_secs(1);
/// Longest interval of a schedule.
pub const EVERY_MAX: Duration = Duration::from_hours(366 * 24);
/// Most missed ticks of a schedule that run.
pub const MISSED_MAX: u32 = 1_000;
/// Longest name of a schedule, in bytes.
pub const SCHEDULE_NAME_BYTES_MAX: usize = 200;

/// Longest name of a topic, in bytes.
pub const TOPIC_NAME_BYTES_MAX: usize = 200;
/// Most queues that are subscribed to one topic.
pub const SUBSCRIPTIONS_MAX: usize = 1_000;
/// How often it is tried to hand a publication out to its subscriptions: all of these attempts are kept with it, so that it
/// tells when the first one was.
pub const PUBLICATION_ATTEMPTS: u32 = FAILURES_MAX as u32 + 1;
/// Longest that one attempt at handing a publication out may take: a thousand large jobs over a slow network.
pub const PUBLICATION_TIMEOUT: Duration = Duration::from_hours(1);

/// How long the id of an ended job is remembered, counted from the job's end, also when its record is gone (S17).
pub const ID_MEMORY: Duration = Duration::from_hours(24);
/// Remembered ids per queue; the oldest are forgotten first (S17).
pub const ID_MEMORY_MAX: u64 = 1_000_000;
/// How long an idle producer's or worker's last call is kept for repetition (S3).
pub const CALL_MEMORY: Duration = Duration::from_hours(1);
