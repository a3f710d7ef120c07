//! What a job is: the typed [`Job`] that users define, the [`NewJob`] that is handed to a store, the [`JobRecord`] that a
//! store hands back, and the small types they are made of.
//!
//! ```text
//!             enqueue                reserve (run_at ≤ store now)
//!                │        ┌───────────────────────────────────────────┐
//!                ▼        │                                           ▼
//!             waiting ────┘                                        running ── ack ───────────────► done
//!              ▲  │ └── cancel, or expires_at ──► cancelled ◄── any end but │ ── dead, or the last ► dead
//!              │  │                                ack, if cancel was asked │    attempt, or crashes
//!              │  └─ reschedule, reprioritise, edit payload                 │
//!              └── retry(backoff) · snooze(after) · release · taken back ───┘
//!    dead / cancelled / done ── operator's retry ──► waiting
//! ```

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::core::{
    backoff::Backoff,
    error::{Error, ErrorKind, Result},
    id::JobId,
    limits::{
        CONCURRENCY_MAX, DELAY_MAX_MS, HEADERS_BYTES_MAX, LEASE_MAX, LEASE_MIN, MAX_ATTEMPTS_MAX,
        NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, TAGS_MAX, TIMEOUT_MAX,
    },
    notes::Notes,
    time::{Timestamp, When, ceil_ms},
    topic::{TOPICS_QUEUE, check_publication},
};

/// A type of job: its payload, and the stable name that selects its handler.
///
/// Derive it (feature `derive`, on by default), or write the one required line:
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct SendEmail { to: String }
///
/// impl punctual::Job for SendEmail {
///     const KIND: &'static str = "email.send"; // renaming the Rust type never changes it
///     const QUEUE: &'static str = "mail";
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a punctual job",
    label = "not a job",
    note = "add `#[derive(punctual::Job, serde::Serialize, serde::Deserialize)]` and `#[job(kind = \"…\")]`"
)]
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name on the wire; at most 255 bytes.
    const KIND: &'static str;
    /// The queue it waits under unless the call says otherwise.
    const QUEUE: &'static str = "default";

    /// Options of this type of job; a call's own win over them, they win over the queue's.
    fn options() -> JobOptions {
        JobOptions::default()
    }

    /// The unique key of this job, unless the call says otherwise.
    fn unique(&self) -> Option<Unique> {
        None
    }

    /// The payload as stored; JSON unless overridden.
    ///
    /// # Errors
    /// `Invalid` when the value can't be written as JSON.
    fn encode(&self) -> Result<Payload> {
        let bytes = serde_json::to_vec(self).map_err(|e| {
            Error::invalid(format!("could not encode a job of kind {:?}", Self::KIND)).with_source(e)
        })?;
        Ok(Payload::json(bytes))
    }

    /// Reads what [`Job::encode`] wrote.
    ///
    /// # Errors
    /// `Invalid`, with the decoder's words: the job ends dead with them.
    fn decode(payload: &Payload) -> Result<Self> {
        serde_json::from_slice(&payload.bytes).map_err(|e| {
            Error::invalid(format!("could not decode the payload as {:?}: {e}", Self::KIND)).with_source(e)
        })
    }
}

/// Opaque bytes and what they are. No store looks inside.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// At most [`PAYLOAD_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// A media type; `application/json` unless said otherwise.
    pub content_type: Cow<'static, str>,
}

impl Payload {
    /// The content type of JSON.
    pub const JSON: &'static str = "application/json";

    /// JSON text.
    pub fn json(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), content_type: Cow::Borrowed(Self::JSON) }
    }
}

impl fmt::Debug for Payload {
    /// Sizes only: payloads may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes, {})", self.bytes.len(), self.content_type)
    }
}

/// Three fixed levels; a job of a higher one runs first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// 0: runs first.
    High,
    /// 1: the default.
    #[default]
    Normal,
    /// 2: runs last.
    Low,
}

impl Priority {
    /// All levels, in the order in which they run.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The name people see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Priority {
    type Err = Error;

    /// Reads a name, or its number: 0 `high`, 1 `normal`, 2 `low`.
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "high" | "0" => Ok(Self::High),
            "normal" | "1" => Ok(Self::Normal),
            "low" | "2" => Ok(Self::Low),
            _ => {
                Err(Error::invalid(format!("{:?} is not a priority", s.chars().take(32).collect::<String>()))
                    .with_hint("write high, normal or low (0, 1, 2)"))
            }
        }
    }
}

/// Where a job stands; what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Due now or later.
    Waiting,
    /// Held by a worker under a lease.
    Running,
    /// Finished well.
    Done,
    /// Given up on; kept for people.
    Dead,
    /// Called off, or expired before it started.
    Cancelled,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// The name people see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the job ended: done, dead or cancelled.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a job stands as people see it: waiting is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waiting for a later attempt.
    Retrying,
    /// Waiting for its time.
    Scheduled,
    /// Waiting and due, but held back: its concurrency key, queue or group is at its limit, or a run paused its queue or group
    /// (`RetryAfter`). A pause by an operator alone does not count.
    Blocked,
    /// Waiting and due.
    Ready,
    /// Held by a worker.
    Running,
    /// Finished well.
    Done,
    /// Given up on.
    Dead,
    /// Called off or expired.
    Cancelled,
}

impl Status {
    /// The name people see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::Scheduled => "scheduled",
            Self::Blocked => "blocked",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a call, a type of job or a queue may choose; `None` leaves it to the next of call > job type > queue > default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobOptions {
    /// Default normal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Default 20, 1 to 10,000. 1 means: never again after a failure or crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Default exponential, 5 s to 6 h, with jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// Hard limit of one run, default 5 min, at most 7 days.
    #[serde(skip_serializing_if = "Option::is_none", with = "opt_ms", rename = "timeout_ms")]
    pub timeout: Option<Duration>,
    /// The lease of one reservation, 1 s to 24 h. Without one the worker's applies, else the queue's, else 15 s.
    #[serde(skip_serializing_if = "Option::is_none", with = "opt_ms", rename = "lease_ms")]
    pub lease: Option<Duration>,
}

impl JobOptions {
    /// These options, and `weaker` ones where these are silent.
    #[must_use]
    pub fn or(self, weaker: &Self) -> Self {
        Self {
            priority: self.priority.or(weaker.priority),
            max_attempts: self.max_attempts.or(weaker.max_attempts),
            backoff: self.backoff.or(weaker.backoff),
            timeout: self.timeout.or(weaker.timeout),
            lease: self.lease.or(weaker.lease),
        }
    }

    /// Checks every limit.
    ///
    /// # Errors
    /// `Invalid`, naming the field, the limit and the value.
    pub fn check(&self) -> Result<()> {
        if let Some(n) = self.max_attempts
            && !(1..=MAX_ATTEMPTS_MAX).contains(&n)
        {
            return Err(Error::invalid(format!("max_attempts {n} is not within 1 to {MAX_ATTEMPTS_MAX}")));
        }
        if let Some(backoff) = &self.backoff {
            backoff.check()?;
        }
        if let Some(timeout) = self.timeout
            && (timeout.is_zero() || TIMEOUT_MAX < timeout)
        {
            return Err(Error::invalid(format!(
                "timeout_ms {} is not within 1 to {}",
                ceil_ms(timeout),
                ceil_ms(TIMEOUT_MAX)
            )));
        }
        if let Some(lease) = self.lease {
            check_lease(lease)?;
        }
        Ok(())
    }
}

/// Refuses a lease outside [`LEASE_MIN`] to [`LEASE_MAX`].
pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        Ok(())
    } else {
        let (min, max) = (ceil_ms(LEASE_MIN), ceil_ms(LEASE_MAX));
        Err(Error::invalid(format!("lease_ms {} is not within {min} to {max}", ceil_ms(lease))))
    }
}

/// Options as milliseconds.
mod opt_ms {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        match d {
            Some(d) => s.serialize_u64(crate::core::time::ceil_ms(*d)),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(d)?.map(Duration::from_millis))
    }
}

/// At most `limit` jobs of one key run at once within their queue and group (S15): what can't run now waits for its turn. Part
/// of the job's placement and of its unique key's scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// At most 255 bytes.
    pub key: String,
    /// From 1 to 10,000, usually 1. A job may start while fewer than its own limit run; where the jobs of a key differ in it, the
    /// first that was held back holds back those behind it.
    pub limit: u32,
}

/// At most one live job holds a key of its kind, queue, group and concurrency key (S4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unique {
    /// At most 255 bytes.
    pub key: String,
    /// How long the key is held.
    #[serde(default)]
    pub scope: Scope,
    /// What an enqueue does that meets a holder.
    #[serde(default)]
    pub on_conflict: OnConflict,
    /// With [`OnConflict::Replace`]: only if the waiting holder still has this version; otherwise `Duplicate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Jobs of other kinds count, too, where they hold the key across kinds as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub across_kinds: bool,
}

impl Unique {
    /// Holds `key` until the job ended; a second enqueue answers `Duplicate`.
    pub fn key(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            scope: Scope::UntilDone,
            on_conflict: OnConflict::Keep,
            version: None,
            across_kinds: false,
        }
    }

    /// Holds the key while the job waits or runs (the default).
    #[must_use]
    pub fn until_done(mut self) -> Self {
        self.scope = Scope::UntilDone;
        self
    }

    /// Holds the key from the enqueue to the first reservation, and never again.
    #[must_use]
    pub fn until_start(mut self) -> Self {
        self.scope = Scope::UntilStart;
        self
    }

    /// Holds the key for `window` from the enqueue, whatever becomes of the job; only a cancel or delete before the
    /// start frees it.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.scope = Scope::Window { window_ms: ceil_ms(window) };
        self
    }

    /// Chooses what an enqueue does that meets a holder.
    #[must_use]
    pub fn on_conflict(mut self, rule: OnConflict) -> Self {
        self.on_conflict = rule;
        self
    }

    /// Replaces only a holder of this version.
    #[must_use]
    pub fn if_version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// Compares the key with those of jobs of all kinds that hold theirs across kinds, too. It is not compared with keys within a
    /// kind.
    #[must_use]
    pub fn across_kinds(mut self) -> Self {
        self.across_kinds = true;
        self
    }

    /// The kind that the key of a job is compared within; `None`: it is compared across kinds.
    pub(crate) fn kind_of<'a>(&self, kind: &'a str) -> Option<&'a str> {
        if self.across_kinds { None } else { Some(kind) }
    }
}

/// How long a unique key is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// While waiting or running, also while a cancel is requested.
    #[default]
    UntilDone,
    /// From the enqueue to the first reservation, never again, not after a retry either.
    UntilStart,
    /// For this long from the enqueue, whatever becomes of the job.
    #[serde(untagged)]
    Window {
        /// Milliseconds.
        window_ms: u64,
    },
}

/// What an enqueue does that meets the holder of its unique key. `Replace` and `Reschedule` act on a waiting holder
/// only; otherwise the answer is `Duplicate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Leave the holder as it is.
    #[default]
    Keep,
    /// Give the holder the new payload, options and time; id, fence and attempt stay.
    Replace,
    /// Give the holder the new time only.
    Reschedule,
}

/// A job as it is handed to [`Store::enqueue`](crate::store::Store::enqueue).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Made by the caller.
    pub id: JobId,
    /// Selects the handler; 1 to 255 bytes.
    pub kind: String,
    /// 1 to 255 bytes, without control characters; names that start with `$` are reserved, but for publications in `$topics`.
    pub queue: String,
    /// At most 1 MiB unless configured otherwise.
    pub payload: Payload,
    /// When it is due.
    pub run_at: When,
    /// What the call or its job type chose.
    pub options: JobOptions,
    /// Recorded, and part of the placement key and the unique key's scope; at most 255 bytes.
    pub group: Option<String>,
    /// Recorded, and part of the placement key and the unique key's scope.
    pub concurrency: Option<Concurrency>,
    /// At most one job holds the key within its kind, queue, group and concurrency key; see [`Unique`].
    pub unique: Option<Unique>,
    /// Never start at or after it; later than `run_at`.
    pub expires_at: Option<When>,
    /// At most 16, each at most 255 bytes.
    pub tags: Vec<String>,
    /// At most 8 KiB in all.
    pub headers: BTreeMap<String, String>,
}

impl NewJob {
    /// A job that is due now, with nothing else chosen.
    pub fn new(id: JobId, kind: impl Into<String>, queue: impl Into<String>, payload: Payload) -> Self {
        Self {
            id,
            kind: kind.into(),
            queue: queue.into(),
            payload,
            run_at: When::Now,
            options: JobOptions::default(),
            group: None,
            concurrency: None,
            unique: None,
            expires_at: None,
            tags: Vec::new(),
            headers: BTreeMap::new(),
        }
    }

    /// Group, else concurrency key, else unique key, else none: decides the shard of derived ids.
    pub fn placement_key(&self) -> Option<&str> {
        placement_key(self.group.as_deref(), self.concurrency.as_ref(), self.unique.as_ref())
    }

    /// The id that an idempotency key stands for: of this kind, queue and placement key.
    pub fn derived_id(&self, key: &str) -> JobId {
        JobId::derived_of_kind(&self.kind, &self.queue, self.placement_key(), key)
    }

    /// Checks every limit that needs no clock.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge`, naming the field, the limit and the value.
    pub fn check(&self) -> Result<()> {
        self.check_with(PAYLOAD_BYTES_MAX)
    }

    /// Checks as [`NewJob::check`] does, with a payload limit of the store's own.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge`, naming the field, the limit and the value.
    pub fn check_with(&self, payload_bytes_max: usize) -> Result<()> {
        check_name("kind", &self.kind)?;
        if self.queue == TOPICS_QUEUE {
            check_publication(&self.headers)?;
        } else {
            check_queue(&self.queue)?;
        }
        check_payload(&self.payload, payload_bytes_max)?;
        self.run_at.check("delay_ms")?;
        if let Some(expires_at) = self.expires_at {
            expires_at.check("expires_at")?;
        }
        self.options.check()?;
        if let Some(group) = &self.group {
            check_name("group", group)?;
        }
        if let Some(Concurrency { key, limit }) = &self.concurrency {
            check_name("concurrency_key", key)?;
            if !(1..=CONCURRENCY_MAX).contains(limit) {
                return Err(Error::invalid(format!(
                    "concurrency_limit {limit} is not within 1 to {CONCURRENCY_MAX}"
                )));
            }
        }
        if let Some(unique) = &self.unique {
            check_name("unique key", &unique.key)?;
            if let Scope::Window { window_ms } = unique.scope
                && !(1..=DELAY_MAX_MS).contains(&window_ms)
            {
                return Err(Error::invalid(format!(
                    "unique window_ms {window_ms} is not within 1 to {DELAY_MAX_MS}"
                )));
            }
            if unique.version.is_some() && unique.on_conflict != OnConflict::Replace {
                return Err(Error::invalid("a unique version works only with on_conflict replace"));
            }
        }
        if TAGS_MAX < self.tags.len() {
            return Err(Error::invalid(format!("{} tags are over the limit of {TAGS_MAX}", self.tags.len())));
        }
        for tag in &self.tags {
            check_name("tag", tag)?;
        }
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        if HEADERS_BYTES_MAX < headers {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("headers of {headers} bytes are over the limit of {HEADERS_BYTES_MAX}"),
            ));
        }
        Ok(())
    }
}

/// Group, else concurrency key, else unique key, else none.
pub(crate) fn placement_key<'a>(
    group: Option<&'a str>,
    concurrency: Option<&'a Concurrency>,
    unique: Option<&'a Unique>,
) -> Option<&'a str> {
    group.or(concurrency.map(|c| c.key.as_str())).or(unique.map(|u| u.key.as_str()))
}

/// Refuses a payload over `bytes_max`, and a content type that is no name.
pub(crate) fn check_payload(payload: &Payload, bytes_max: usize) -> Result<()> {
    if bytes_max < payload.bytes.len() {
        let size = payload.bytes.len();
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("payload of {size} bytes is over the limit of {bytes_max}"),
        )
        .with_hint("store large data elsewhere and enqueue its address"));
    }
    check_name("content_type", &payload.content_type)
}

/// Refuses an empty name, one over 255 bytes, and one with NUL.
pub(crate) fn check_name(field: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        Err(Error::invalid(format!("{field} is empty")))
    } else if NAME_BYTES_MAX < name.len() {
        Err(Error::invalid(format!("{field} of {} bytes is over the limit of {NAME_BYTES_MAX}", name.len())))
    } else if name.contains('\0') {
        Err(Error::invalid(format!("{field} contains NUL")))
    } else {
        Ok(())
    }
}

/// Refuses what is no queue name: as [`check_name`], and control characters, and the reserved `$…`.
pub(crate) fn check_queue(name: &str) -> Result<()> {
    check_name("queue", name)?;
    if name.chars().any(char::is_control) {
        Err(Error::invalid("queue contains a control character"))
    } else if name.starts_with('$') {
        Err(Error::invalid(format!("queue {name:?} is reserved: names that start with $ are punctual's own")))
    } else {
        Ok(())
    }
}

/// A job as a store knows it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// Its identity.
    pub id: JobId,
    /// Selects the handler.
    pub kind: String,
    /// Where it waits.
    pub queue: String,
    /// The opaque bytes.
    pub payload: Payload,
    /// Which of three levels.
    pub priority: Priority,
    /// When it is, or was, due. Kept as it was when a lease is taken back for the first time in a row (S9).
    pub run_at: Timestamp,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// How long to wait between them.
    pub backoff: Backoff,
    /// Hard limit of one run.
    pub timeout: Duration,
    /// Its own lease; `None` leaves it to the worker.
    pub lease: Option<Duration>,
    /// Its group.
    pub group: Option<String>,
    /// Its concurrency key.
    pub concurrency: Option<Concurrency>,
    /// Its unique key, as it was asked for; kept after the key was freed.
    pub unique: Option<Unique>,
    /// Never start at or after it.
    pub expires_at: Option<Timestamp>,
    /// For people and filters.
    pub tags: Vec<String>,
    /// Trace context and the like.
    pub headers: BTreeMap<String, String>,
    /// Where it stands.
    pub state: State,
    /// The run that is going on or comes next, from 1; of an ended job, its last run.
    pub attempt: u32,
    /// Leases taken back in a row.
    pub crashes: u32,
    /// Snoozes in a row.
    pub snoozes: u32,
    /// Rises with every change by a caller (replace, reschedule, reprioritise, edit, retry), from 1.
    pub version: u64,
    /// A cancel was asked for while it runs; false again once that run ended.
    pub cancel_requested: bool,
    /// While running: when this run was reserved.
    pub started_at: Option<Timestamp>,
    /// Once ended: when.
    pub finished_at: Option<Timestamp>,
    /// Why it ended, or why it was snoozed: `expired`, `attempts`, `crashes`, `snoozes`, `orphan`, `corrupt`, or the
    /// words of whoever ended it.
    pub reason: Option<String>,
    /// The last eight attempts that failed, oldest first.
    pub failures: Vec<Failure>,
    /// What its runs told of themselves.
    pub notes: Notes,
    /// Of a done job: what its handler gave, if it did.
    pub result: Option<Payload>,
    /// While running: under which lease.
    pub running: Option<Running>,
    /// While waiting: it was due when it was read, and a limit or a pause of a run held it back ([`Status::Blocked`]).
    pub blocked: bool,
}

impl JobRecord {
    /// A waiting job of which nothing is known yet but its id.
    #[cfg(any(feature = "redis", feature = "testing"))]
    pub(crate) fn blank(id: JobId) -> Self {
        Self {
            id,
            kind: String::new(),
            queue: String::new(),
            payload: Payload::json(Vec::new()),
            priority: Priority::default(),
            run_at: Timestamp::default(),
            created_at: Timestamp::default(),
            max_attempts: crate::core::limits::MAX_ATTEMPTS_DEFAULT,
            backoff: Backoff::default(),
            timeout: crate::core::limits::TIMEOUT_DEFAULT,
            lease: None,
            group: None,
            concurrency: None,
            unique: None,
            expires_at: None,
            tags: Vec::new(),
            headers: BTreeMap::new(),
            state: State::Waiting,
            attempt: 1,
            crashes: 0,
            snoozes: 0,
            version: 1,
            cancel_requested: false,
            started_at: None,
            finished_at: None,
            reason: None,
            failures: Vec::new(),
            notes: Notes::default(),
            result: None,
            running: None,
            blocked: false,
        }
    }

    /// What it counts against its queue's retention: the bytes of payload and result.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let result = self.result.as_ref().map_or(0, |result| result.bytes.len());
        (self.payload.bytes.len() + result) as u64
    }

    /// Where it stands as people see it, when the store's clock shows `now`.
    pub fn status(&self, now: Timestamp) -> Status {
        match self.state {
            State::Waiting if self.blocked => Status::Blocked,
            State::Waiting if 1 < self.attempt => Status::Retrying,
            State::Waiting if now < self.run_at => Status::Scheduled,
            State::Waiting => Status::Ready,
            State::Running => Status::Running,
            State::Done => Status::Done,
            State::Dead => Status::Dead,
            State::Cancelled => Status::Cancelled,
        }
    }
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its number, from 1.
    pub attempt: u32,
    /// When it was reserved, Unix milliseconds.
    pub started_ms: u64,
    /// When it was settled or taken back, Unix milliseconds.
    pub ended_ms: u64,
    /// The worker's name.
    pub worker: String,
    /// The handler's words, at most 1 KiB; of a lease taken back: `lease taken back`.
    pub error: String,
}

/// The lease of a running job, as others may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The reservation's number.
    pub fence: u64,
    /// The holder's name.
    pub worker: String,
    /// Until when the lease may not be taken back.
    pub until: Timestamp,
}

/// Cuts a text for people at [`ERROR_BYTES_MAX`](crate::core::limits::ERROR_BYTES_MAX), between two characters.
pub(crate) fn cut_error(text: &str) -> &str {
    &text[..text.floor_char_boundary(crate::core::limits::ERROR_BYTES_MAX)]
}
