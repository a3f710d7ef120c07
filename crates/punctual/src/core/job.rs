//! Jobs and their parts.
//!
//! Users define a [`Job`]. The client sends a [`NewJob`] to the store, and the store returns a [`JobRecord`].
//!
//! ```text
//!             enqueue                reserve (run_at ≤ store now)
//!                │        ┌───────────────────────────────────────────┐
//!                ▼        │                                           ▼
//!             waiting ────┘                                        running ── ack ───────────────► done
//!              ▲  │ └── cancel, or expires_at ──► cancelled ◄── any end but │ ── dead, or the last ► dead
//!              │  │              ack, if cancel was requested               │    attempt, or poison
//!              │  └─ reschedule, reprioritise, edit payload                 │
//!              └── retry(backoff) · snooze(after) · release · reclaimed ────┘
//!    dead / cancelled / done ── operator's retry ──► waiting
//! ```

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::core::{
    backoff::Backoff,
    error::{Error, ErrorKind, Result},
    id::JobId,
    json::opt_ms,
    limits::{
        CONCURRENCY_MAX, DELAY_MAX_MS, HEADERS_BYTES_MAX, LEASE_MAX, LEASE_MIN, MAX_ATTEMPTS_MAX,
        NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, TAGS_MAX, TIMEOUT_MAX,
    },
    notes::Notes,
    time::{Timestamp, When, ceil_ms},
    topic::{TOPIC, TOPICS_QUEUE, check_publication},
};

/// The header that names the schedule of a job.
pub(crate) const SCHEDULE: &str = "schedule";

/// A type of job: its payload, and the stable name that selects its handler.
///
/// Derive it (feature `derive`, on by default), or write the impl by hand. Only `KIND` is required:
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
    /// The stored name of this type, at most 255 bytes.
    const KIND: &'static str;
    /// The queue of its jobs, unless the call names another (default: `default`).
    const QUEUE: &'static str = "default";

    /// Returns the options of this type of job.
    ///
    /// They override the queue's; options of the call override them.
    fn options() -> JobOptions {
        JobOptions::default()
    }

    /// Returns the unique key of this job (default: none). The call can choose another.
    fn unique(&self) -> Option<Unique> {
        None
    }

    /// Encodes the payload for the store (default: as JSON).
    ///
    /// # Errors
    /// `Invalid` if the value cannot be written as JSON.
    fn encode(&self) -> Result<Payload> {
        let bytes = serde_json::to_vec(self).map_err(|e| {
            Error::invalid(format!("could not encode a job of kind {:?}", Self::KIND)).with_source(e)
        })?;
        Ok(Payload::json(bytes))
    }

    /// Decodes a payload that [`Job::encode`] wrote.
    ///
    /// # Errors
    /// `Invalid`, with the message of the decoder. The job is then marked dead with this message.
    fn decode(payload: &Payload) -> Result<Self> {
        serde_json::from_slice(&payload.bytes).map_err(|e| {
            Error::invalid(format!("could not decode the payload as {:?}: {e}", Self::KIND)).with_source(e)
        })
    }
}

/// The opaque bytes of a job and their media type. No store looks inside.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// At most [`PAYLOAD_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// The media type (default: `application/json`).
    pub content_type: Cow<'static, str>,
}

impl Payload {
    /// The media type of JSON.
    pub const JSON: &'static str = "application/json";

    /// Makes a payload of JSON text.
    pub fn json(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), content_type: Cow::Borrowed(Self::JSON) }
    }

    /// Returns whether its media type is that of JSON, or of a format in JSON such as `application/vnd.api+json`.
    pub fn is_json(&self) -> bool {
        is_json(&self.content_type)
    }
}

/// Returns whether a media type is that of JSON, or of a format in JSON.
pub(crate) fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case(Payload::JSON) || media.to_ascii_lowercase().ends_with("+json")
}

impl fmt::Debug for Payload {
    /// Prints sizes only, because payloads can hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes, {})", self.bytes.len(), self.content_type)
    }
}

/// The priority of a job: one of three levels. Jobs of a higher level run first.
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
    /// All levels, in the order in which their jobs run.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// Returns the name of the level.
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

    /// Parses a name or a number: `high` or 0, `normal` or 1, `low` or 2.
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

/// The stored state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Due now or later.
    Waiting,
    /// Held by a worker under a lease.
    Running,
    /// Completed with success.
    Done,
    /// Given up on, and kept for people.
    Dead,
    /// Cancelled, or expired before it started.
    Cancelled,
}

impl State {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// Returns the name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns whether the job has ended: done, dead or cancelled.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The status of a job as listings show it.
///
/// It divides [`State::Waiting`] into four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waiting for its next attempt.
    Retrying,
    /// Waiting for its due time.
    Scheduled,
    /// Due, but held back by a limit or by the pause of a run (`RetryAfter`).
    ///
    /// The limit is that of its concurrency key, its queue or its group. A pause by an operator alone does not count.
    Blocked,
    /// Due, and free to start.
    Ready,
    /// Held by a worker under a lease.
    Running,
    /// Completed with success.
    Done,
    /// Given up on.
    Dead,
    /// Cancelled or expired.
    Cancelled,
}

impl Status {
    /// Returns the name of the status.
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

/// Options that a call, a type of job or a queue can choose.
///
/// `None` leaves the choice to the next of these: call, type of job, queue, default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobOptions {
    /// The priority (default: normal).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// How often the job can run, 1 to 10,000 (default: 20). With 1, it is never retried after a failure or an
    /// expired lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The wait between attempts (default: exponential, 5 s to 6 h, with jitter).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    /// The longest time of one run, at most 7 days (default: 5 min).
    #[serde(skip_serializing_if = "Option::is_none", with = "opt_ms", rename = "timeout_ms")]
    pub timeout: Option<Duration>,
    /// The lease of one reservation, 1 s to 24 h. If `None`, the worker's lease applies, else the queue's, else 15 s.
    #[serde(skip_serializing_if = "Option::is_none", with = "opt_ms", rename = "lease_ms")]
    pub lease: Option<Duration>,
}

impl JobOptions {
    /// Fills each option that is `None` from `weaker`.
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

    /// Checks each option against its limits.
    ///
    /// # Errors
    /// `Invalid`, with the field, the limit and the value.
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
            check_lease("lease_ms", lease)?;
        }
        Ok(())
    }
}

/// Checks that a lease is within [`LEASE_MIN`] and [`LEASE_MAX`]. `field` is what its caller calls it.
pub(crate) fn check_lease(field: &str, lease: Duration) -> Result<()> {
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        Ok(())
    } else {
        let (min, max) = (ceil_ms(LEASE_MIN), ceil_ms(LEASE_MAX));
        Err(Error::invalid(format!("{field} {} is not within {min} to {max}", ceil_ms(lease))))
    }
}

/// A key of which at most `limit` jobs run at once (S15).
///
/// It counts jobs with the same key in the same queue and group.
/// A job that cannot start waits until others of its key have ended. The key is part of the placement key and of the
/// scope of the job's unique key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// The key, at most 255 bytes.
    pub key: String,
    /// The limit, 1 to 10,000 (usually 1). The job may start while fewer jobs of its key run.
    ///
    /// If jobs of one key have different limits, the first blocked job also blocks the jobs after it.
    pub limit: u32,
}

/// A key that at most one live job holds (S4).
///
/// It is compared within the kind, queue, group and concurrency key of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unique {
    /// The key, at most 255 bytes.
    pub key: String,
    /// How long the key is held.
    #[serde(default)]
    pub scope: Scope,
    /// What an enqueue does if another job holds the key.
    #[serde(default)]
    pub on_conflict: OnConflict,
    /// For [`OnConflict::Replace`]: replaces the waiting holder only if it still has this version. Otherwise the
    /// answer is `Duplicate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Compares the key across kinds: with all jobs that also hold theirs across kinds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub across_kinds: bool,
}

impl Unique {
    /// Makes a key that is held until the job has ended.
    ///
    /// A second enqueue returns `Duplicate`.
    pub fn key(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            scope: Scope::UntilDone,
            on_conflict: OnConflict::Keep,
            version: None,
            across_kinds: false,
        }
    }

    /// Holds the key while the job is waiting or running (the default).
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

    /// Holds the key for `window` from the enqueue, whatever becomes of the job.
    ///
    /// Only a cancel or delete before the start frees it earlier.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.scope = Scope::Window { window_ms: ceil_ms(window) };
        self
    }

    /// Sets what an enqueue does if another job holds the key.
    #[must_use]
    pub fn on_conflict(mut self, rule: OnConflict) -> Self {
        self.on_conflict = rule;
        self
    }

    /// Replaces a holder only if it has this version.
    #[must_use]
    pub fn if_version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// Compares the key across kinds: with all jobs that also hold theirs across kinds.
    ///
    /// It is not compared with keys that are held within one kind.
    #[must_use]
    pub fn across_kinds(mut self) -> Self {
        self.across_kinds = true;
        self
    }

    /// Returns the kind within which the key is compared, or `None` if it is compared across kinds.
    pub(crate) fn kind_of<'a>(&self, kind: &'a str) -> Option<&'a str> {
        if self.across_kinds { None } else { Some(kind) }
    }
}

/// How long a unique key is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "snake_case",
    expecting = r#"the scope is none of "until_done", "until_start" and {"window_ms":N}"#
)]
pub enum Scope {
    /// While the job is waiting or running, also after a cancel was requested.
    #[default]
    UntilDone,
    /// From the enqueue to the first reservation, and never again, not even after a retry.
    UntilStart,
    /// For a fixed time from the enqueue, whatever becomes of the job.
    #[serde(untagged)]
    Window {
        /// The time in milliseconds.
        window_ms: u64,
    },
}

/// What an enqueue does if another job holds its unique key.
///
/// `Replace` and `Reschedule` change a waiting holder only. Otherwise the answer is `Duplicate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Leaves the holder as it is.
    #[default]
    Keep,
    /// Gives the holder the new payload, options and due time. Its id, fence and attempt stay.
    Replace,
    /// Gives the holder the new due time only.
    Reschedule,
}

/// A job to be enqueued by [`Store::enqueue`](crate::store::Store::enqueue).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// The id, made by the caller.
    pub id: JobId,
    /// The key that the id is derived from, if it is known. [`NewJob::derive_id`] sets both.
    ///
    /// A store looks at the id only. Over HTTP the key is sent instead, so that the server derives the id itself.
    pub idempotency_key: Option<IdempotencyKey>,
    /// The name that selects the handler: 1 to 255 bytes without control characters and without white space at its ends.
    pub kind: String,
    /// The queue: a name like that of a kind, but not `.` or `..`. Names that start with `$` are reserved, except
    /// `$topics` for publications.
    pub queue: String,
    /// The payload, at most 1 MiB unless the store has another limit.
    pub payload: Payload,
    /// When it is due.
    pub run_at: When,
    /// The options that the call or the type of job chose.
    pub options: JobOptions,
    /// The group, at most 255 bytes. It is part of the placement key and of the scope of the unique key.
    pub group: Option<String>,
    /// The concurrency key. It is part of the placement key and of the scope of the unique key.
    pub concurrency: Option<Concurrency>,
    /// The unique key. At most one job holds it in its kind, queue, group and concurrency key; see [`Unique`].
    pub unique: Option<Unique>,
    /// The time from which the job must not start. Must be later than `run_at`.
    pub expires_at: Option<When>,
    /// Tags: at most 16, each at most 255 bytes.
    pub tags: Vec<String>,
    /// Headers: at most 8 KiB in all.
    pub headers: BTreeMap<String, String>,
}

/// The text that a derived id is made from, and the scope within which it is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    /// The text, 1 byte to 1 KiB.
    pub key: String,
    /// Whether it is compared across kinds (default: within the kind).
    pub across_kinds: bool,
}

impl NewJob {
    /// Makes a job that is due now, with no options chosen.
    pub fn new(id: JobId, kind: impl Into<String>, queue: impl Into<String>, payload: Payload) -> Self {
        Self {
            id,
            idempotency_key: None,
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

    /// Returns the group, else the concurrency key, else the unique key.
    ///
    /// It decides the shard of derived ids.
    pub fn placement_key(&self) -> Option<&str> {
        placement_key(self.group.as_deref(), self.concurrency.as_ref(), self.unique.as_ref())
    }

    /// Returns the id that an idempotency key stands for.
    ///
    /// It depends on the kind, the queue and the placement key of the job.
    pub fn derived_id(&self, key: &str) -> JobId {
        JobId::derived_of_kind(&self.kind, &self.queue, self.placement_key(), key)
    }

    /// Derives the id from a key, and keeps the key.
    ///
    /// Call it last: the id also depends on the queue, the placement key, and the kind unless `across_kinds`. The length of the key
    /// is not checked.
    ///
    /// ```
    /// # use punctual::{JobId, NewJob, Payload, job::IdMaker};
    /// let id = IdMaker::default().make(1_795_192_330_000, 0, 7);
    /// let mut job = NewJob::new(id, "email.send", "mail", Payload::json("1"));
    /// job.derive_id("welcome:42", false);
    /// assert_eq!(job.id, JobId::derived_of_kind("email.send", "mail", None, "welcome:42"));
    /// ```
    pub fn derive_id(&mut self, key: impl Into<String>, across_kinds: bool) {
        let key = IdempotencyKey { key: key.into(), across_kinds };
        self.id = self.id_of(&key);
        self.idempotency_key = Some(key);
    }

    /// Returns the key that the id follows from, if the job has one from which it really does.
    pub fn proven_key(&self) -> Option<&IdempotencyKey> {
        self.idempotency_key.as_ref().filter(|key| self.id_of(key) == self.id)
    }

    fn id_of(&self, IdempotencyKey { key, across_kinds }: &IdempotencyKey) -> JobId {
        let kind = if *across_kinds { None } else { Some(&*self.kind) };
        JobId::derived_within(kind, &self.queue, self.placement_key(), key)
    }

    /// Checks all limits that need no clock.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge`, with the field, the limit and the value.
    pub fn check(&self) -> Result<()> {
        self.check_with(PAYLOAD_BYTES_MAX)
    }

    /// Checks as [`NewJob::check`] does, with the payload limit of a store in bytes.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge`, with the field, the limit and the value.
    pub fn check_with(&self, payload_bytes_max: usize) -> Result<()> {
        check_name("kind", &self.kind)?;
        if self.queue == TOPICS_QUEUE {
            check_publication(&self.headers)?;
        } else {
            check_queue(&self.queue)?;
        }
        // An older version may have set the schedule or the subscription of such a job, and it goes on.
        if ![SCHEDULE, TOPIC].iter().any(|of| self.headers.contains_key(*of)) {
            check_new_kind(&self.kind)?;
            check_new_queue(&self.queue)?;
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

/// Returns the group, else the concurrency key, else the unique key.
pub(crate) fn placement_key<'a>(
    group: Option<&'a str>,
    concurrency: Option<&'a Concurrency>,
    unique: Option<&'a Unique>,
) -> Option<&'a str> {
    group.or(concurrency.map(|c| c.key.as_str())).or(unique.map(|u| u.key.as_str()))
}

/// Checks that a payload has at most `bytes_max` bytes and a valid content type.
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

/// Checks that a name has 1 to 255 bytes and no NUL.
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

/// Checks a queue name as [`check_name`] does. Also refuses control characters and the reserved `$…`.
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

/// Checks the kind of a new job: control characters and white space at its ends are no part of a name that anybody means. Stored jobs
/// may have them.
pub(crate) fn check_new_kind(kind: &str) -> Result<()> {
    if kind.chars().any(char::is_control) {
        return Err(Error::invalid("kind contains a control character").with_hint(BLANK_HINT));
    }
    check_ends("kind", kind)
}

/// Checks the name of a queue that may be new, in addition to [`check_queue`]. Stored queues may have other names.
pub(crate) fn check_new_queue(name: &str) -> Result<()> {
    if matches!(name, "." | "..") {
        return Err(Error::invalid(format!("queue {name:?} has no address, since it means a folder there"))
            .with_hint("choose another name"));
    }
    check_ends("queue", name)
}

const BLANK_HINT: &str = "remove it; a line of a file or a variable may end with a line break";

fn check_ends(field: &str, name: &str) -> Result<()> {
    if name.trim() == name {
        Ok(())
    } else {
        Err(Error::invalid(format!("{field} {name:?} begins or ends with white space")).with_hint(BLANK_HINT))
    }
}

/// A job as the store has it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// The id.
    pub id: JobId,
    /// The name that selects the handler.
    pub kind: String,
    /// The queue.
    pub queue: String,
    /// The payload.
    pub payload: Payload,
    /// The priority.
    pub priority: Priority,
    /// When it is or was due. The first expired lease in a row does not change it (S9).
    pub run_at: Timestamp,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// How often it can run.
    pub max_attempts: u32,
    /// The wait between attempts.
    pub backoff: Backoff,
    /// The longest time of one run.
    pub timeout: Duration,
    /// The lease that was chosen for the job. If `None`, the worker's lease applies.
    pub lease: Option<Duration>,
    /// The group.
    pub group: Option<String>,
    /// The concurrency key.
    pub concurrency: Option<Concurrency>,
    /// The unique key as it was enqueued. It stays here after the key was freed.
    pub unique: Option<Unique>,
    /// The time from which the job must not start.
    pub expires_at: Option<Timestamp>,
    /// Tags, for people and filters.
    pub tags: Vec<String>,
    /// Headers, for example a trace context.
    pub headers: BTreeMap<String, String>,
    /// The state.
    pub state: State,
    /// The number of the current or next run, from 1. For an ended job, the number of its last run.
    pub attempt: u32,
    /// Expired leases in a row.
    pub expired_leases: u32,
    /// Snoozes in a row.
    pub snoozes: u32,
    /// The version, from 1. It rises with each change by a caller: replace, reschedule, reprioritise, edit, retry.
    pub version: u64,
    /// Whether a cancel was requested for the current run. False again after that run has ended.
    pub cancel_requested: bool,
    /// When the current run was reserved, if the job is running.
    pub started_at: Option<Timestamp>,
    /// When the job ended, if it has.
    pub finished_at: Option<Timestamp>,
    /// Why the job ended or was snoozed: `expired`, `attempts`, `crashes`, `snoozes`, `orphan` or `corrupt`, or a
    /// text from its caller or handler.
    pub reason: Option<String>,
    /// The last eight failed attempts, oldest first.
    pub failures: Vec<Failure>,
    /// What its runs reported.
    pub notes: Notes,
    /// The result of the handler, if the job is done and its handler returned one.
    pub result: Option<Payload>,
    /// The current lease, if the job is running.
    pub running: Option<Running>,
    /// Whether a limit or the pause of a run held the due job back when it was read ([`Status::Blocked`]).
    pub blocked: bool,
}

impl JobRecord {
    /// Makes a waiting job with nothing set but its id.
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
            expired_leases: 0,
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

    /// Returns the bytes that count for the queue's retention: payload and result.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let result = self.result.as_ref().map_or(0, |result| result.bytes.len());
        (self.payload.bytes.len() + result) as u64
    }

    /// Returns the status when the store's clock shows `now`.
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

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// When it was reserved, in Unix milliseconds.
    pub started_ms: u64,
    /// When it was settled or reclaimed, in Unix milliseconds.
    pub ended_ms: u64,
    /// The name of the worker.
    pub worker: String,
    /// The error of the handler, at most 1 KiB. For an expired lease: `lease expired`.
    pub error: String,
}

/// The lease of a running job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The fence of the lease.
    pub fence: u64,
    /// The name of the worker that holds it.
    pub worker: String,
    /// The time until which the lease is not reclaimed.
    pub until: Timestamp,
}

/// Cuts a text at [`ERROR_BYTES_MAX`](crate::core::limits::ERROR_BYTES_MAX), between two characters.
pub(crate) fn cut_error(text: &str) -> &str {
    &text[..text.floor_char_boundary(crate::core::limits::ERROR_BYTES_MAX)]
}
