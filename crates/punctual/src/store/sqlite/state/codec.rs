//! Reads and writes the columns of a job's record. An invalid column never stops a read: the field gets its default
//! and the job is flagged `corrupt`, so that it is quarantined instead of run.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use rusqlite::{Connection, OptionalExtension, Row, params, types::ValueRef};
use serde::{Deserialize, Serialize};

use crate::{
    core::{
        backoff::Backoff,
        id::JobId,
        job::{
            Concurrency, Failure, JobOptions, JobRecord, NewJob, Payload, Priority, Running, Scope, State,
            Unique,
        },
        limits::TIMEOUT_DEFAULT,
        notes::Notes,
        time::{Timestamp, ceil_ms},
    },
    store::{
        sqlite::{
            engine::{
                fault::Step,
                sql::named,
                tx::{Tx, instant, int, ms},
            },
            state::places::{LeaseRow, Place},
        },
        version_defaults::defaults,
    },
};

const FILE: &str = include_str!("../sql/codec.sql");
const BY_ID: &str = named(FILE, "by_id");
pub(crate) const INSERT: &str = named(FILE, "insert");
const SET_RUN_AT: &str = named(FILE, "set_run_at");
const PAYLOAD_BYTES: &str = named(FILE, "payload_bytes");
const SET_ASKED: &str = named(FILE, "set_asked");
const DELETE: &str = named(FILE, "delete");
const PUT_HISTORY: &str = named(FILE, "put_history");
const DELETE_HISTORY: &str = named(FILE, "delete_history");

/// More runs than any limit allows. Values that are read are cut to it.
const RUNS_MAX: u32 = 1 << 24;

/// Options that are rarely chosen; stored as JSON, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Opts {
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<Backoff>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<Concurrency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique: Option<Unique>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
}

impl Opts {
    /// Takes the options of `new`, else the queue's defaults, except the lease, which each reservation chooses.
    pub(crate) fn of(new: &NewJob, defaults: &JobOptions) -> Self {
        let asked = &new.options;
        let json = new.payload.content_type == Payload::JSON;
        Self {
            content_type: (!json).then(|| new.payload.content_type.to_string()),
            max_attempts: asked.max_attempts.or(defaults.max_attempts),
            backoff: asked.backoff.or(defaults.backoff),
            timeout_ms: asked.timeout.or(defaults.timeout).map(ceil_ms),
            lease_ms: asked.lease.map(ceil_ms),
            group: new.group.clone(),
            concurrency: new.concurrency.clone(),
            unique: new.unique.clone(),
            tags: new.tags.clone(),
            headers: new.headers.clone(),
        }
    }

    /// Returns the part of a newer version's options that this version knows.
    fn known_of(mut all: serde_json::Map<String, serde_json::Value>) -> Self {
        fn field<T: for<'de> Deserialize<'de>>(value: Option<serde_json::Value>) -> Option<T> {
            value.and_then(|value| serde_json::from_value(value).ok())
        }
        Self {
            content_type: field(all.remove("content_type")),
            group: field(all.remove("group")),
            concurrency: field(all.remove("concurrency")),
            unique: field(all.remove("unique")),
            ..Self::default()
        }
    }

    /// Returns the stored text; `None` if nothing was chosen.
    pub(crate) fn text(&self) -> Option<String> {
        (*self != Self::default()).then(|| {
            serde_json::to_string(self).expect("invariant: options are plain data, which JSON can hold")
        })
    }

    /// Returns these options with the group, concurrency key and unique key of `other`.
    pub(crate) fn with_scope_of(self, other: Self) -> Self {
        Self { group: other.group, concurrency: other.concurrency, unique: other.unique, ..self }
    }

    pub(crate) fn set_content_type(&mut self, content_type: &str) {
        self.content_type = (content_type != Payload::JSON).then(|| content_type.to_owned());
    }

    pub(crate) fn lease(&self) -> Option<Duration> {
        self.lease_ms.map(Duration::from_millis)
    }

    pub(crate) fn max_attempts(&self) -> u32 {
        self.max_attempts.unwrap_or_else(|| defaults().max_attempts)
    }
}

/// The history of a job's earlier runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) attempt: u32,
    pub(crate) expired_leases: u32,
    pub(crate) snoozes: u32,
    /// Whether it was ever reserved. Kept only for jobs whose unique key needs it.
    pub(crate) started: bool,
    pub(crate) reason: Option<String>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) notes: Notes,
    /// The result of a done job.
    pub(crate) result: Option<Payload>,
    /// Whether a caller waits for the end.
    pub(crate) watched: bool,
}

impl Default for History {
    fn default() -> Self {
        Self {
            attempt: 1,
            expired_leases: 0,
            snoozes: 0,
            started: false,
            reason: None,
            failures: Vec::new(),
            notes: Notes::default(),
            result: None,
            watched: false,
        }
    }
}

/// A record.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    slot: i64,
    pub(crate) id: JobId,
    pub(crate) qid: i64,
    pub(crate) kind: String,
    pub(crate) priority: Priority,
    pub(crate) run_at: Timestamp,
    pub(crate) created_at: Timestamp,
    pub(crate) version: u64,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) opts: Opts,
    pub(crate) payload: Vec<u8>,
    pub(crate) history: History,
    /// Whether it has a row in `punctual_past`.
    pub(crate) has_history: bool,
    /// Whether some column is invalid.
    pub(crate) corrupt: bool,
    /// Whether its options are of a newer version, which may run it.
    pub(crate) held: bool,
}

/// Brings a number into a range in which sums of a few do not overflow.
pub(crate) fn countable(n: i64) -> i64 {
    const FAR: i64 = 1 << 48;
    n.clamp(-FAR, FAR)
}

/// Reads columns, and notes whether one of them was invalid.
pub(crate) struct Columns<'a, 'r> {
    row: &'a Row<'r>,
    pub(crate) corrupt: bool,
}

impl<'a, 'r> Columns<'a, 'r> {
    pub(crate) const fn new(row: &'a Row<'r>) -> Self {
        Self { row, corrupt: false }
    }

    fn value(&self, at: usize) -> ValueRef<'a> {
        self.row.get_ref(at).unwrap_or(ValueRef::Null)
    }

    fn noted<T>(&mut self, read: Option<T>) -> Option<T> {
        self.corrupt |= read.is_none();
        read
    }

    pub(crate) fn int(&mut self, at: usize) -> i64 {
        let read = if let ValueRef::Integer(n) = self.value(at) { Some(n) } else { None };
        self.noted(read).unwrap_or_default()
    }

    /// Reads a number of things.
    pub(crate) fn count(&mut self, at: usize) -> i64 {
        countable(self.int(at))
    }

    /// Reads an integer that is not negative.
    pub(crate) fn number<T: TryFrom<i64> + Default>(&mut self, at: usize) -> T {
        let n = T::try_from(self.int(at)).ok();
        self.noted(n).unwrap_or_default()
    }

    pub(crate) fn time(&mut self, at: usize) -> Timestamp {
        let n = self.int(at);
        let read = u64::try_from(n).ok().and_then(|n| Timestamp::from_ms(n).ok());
        self.noted(read).unwrap_or_else(|| instant(n))
    }

    pub(crate) fn text(&mut self, at: usize) -> String {
        let read = self.value(at).as_str().ok().map(str::to_owned);
        self.noted(read).unwrap_or_default()
    }

    pub(crate) fn bytes(&mut self, at: usize) -> Vec<u8> {
        let read = match self.value(at) {
            ValueRef::Blob(bytes) => Some(bytes.to_vec()),
            _ => None,
        };
        self.noted(read).unwrap_or_default()
    }

    /// Reads the id, if it is valid.
    pub(crate) fn id(&self, at: usize) -> Option<JobId> {
        match self.value(at) {
            ValueRef::Blob(bytes) => JobId::from_bytes(bytes.try_into().ok()?).ok(),
            _ => None,
        }
    }

    pub(crate) fn is_null(&self, at: usize) -> bool {
        matches!(self.value(at), ValueRef::Null)
    }

    pub(crate) fn optional<T>(&mut self, at: usize, read: impl FnOnce(&mut Self, usize) -> T) -> Option<T> {
        (!self.is_null(at)).then(|| read(self, at))
    }

    /// Reads the notes of runs, or none if they are invalid. That is no reason not to run a job.
    fn words(&self, at: usize) -> Notes {
        self.value(at).as_str().ok().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Reads options. Sets `held` if they are well-formed but contain more than this version knows.
    fn opts(&mut self, at: usize, held: &mut bool) -> Opts {
        if self.is_null(at) {
            return Opts::default();
        }
        let text = self.value(at).as_str().ok();
        if let Some(opts) = text.and_then(|text| serde_json::from_str(text).ok()) {
            return opts;
        }
        let known = text.and_then(|text| serde_json::from_str(text).ok()).map(Opts::known_of);
        *held = known.is_some();
        self.noted(known).unwrap_or_default()
    }

    pub(crate) fn json<T: for<'de> Deserialize<'de> + Default>(&mut self, at: usize) -> T {
        if self.is_null(at) {
            return T::default();
        }
        let read = self.value(at).as_str().ok().and_then(|text| serde_json::from_str(text).ok());
        self.noted(read).unwrap_or_default()
    }
}

impl Job {
    /// Reads the columns of `by_id`; `None` if even the id cannot be read.
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Option<Self>> {
        let mut c = Columns::new(row);
        let Some(id) = c.id(1) else { return Ok(None) };
        let level: usize = c.number(4);
        let priority = Priority::ALL.get(level).copied();
        let has_history = !c.is_null(11);
        let mut held = false;
        let history = if has_history {
            History {
                attempt: c.number::<u32>(12).clamp(1, RUNS_MAX),
                expired_leases: c.number::<u32>(13).min(RUNS_MAX),
                snoozes: c.number::<u32>(14).min(RUNS_MAX),
                started: c.int(15) != 0,
                reason: c.optional(16, Columns::text),
                failures: c.json(17),
                notes: c.words(18),
                result: c.optional(19, Columns::bytes).map(|bytes| Payload {
                    bytes,
                    content_type: c.optional(20, Columns::text).map_or(Payload::JSON.into(), Cow::Owned),
                }),
                watched: c.optional(21, Columns::int).is_some(),
            }
        } else {
            History::default()
        };
        Ok(Some(Self {
            slot: row.get(0)?,
            id,
            qid: c.int(2),
            kind: c.text(3),
            priority: priority.unwrap_or_default(),
            run_at: c.time(5),
            created_at: c.time(6),
            version: c.number(7),
            expires_at: c.optional(8, Columns::time),
            opts: c.opts(9, &mut held),
            payload: c.bytes(10),
            history,
            has_history,
            held,
            corrupt: c.corrupt || priority.is_none(),
        }))
    }

    /// Returns the payload bytes as they are counted.
    pub(crate) fn bytes(&self) -> i64 {
        int(self.payload.len())
    }

    /// Returns the bytes that count for the queue's retention.
    pub(crate) fn kept_bytes(&self) -> i64 {
        self.bytes() + self.history.result.as_ref().map_or(0, |result| int(result.bytes.len()))
    }

    /// Returns whether its unique key, if any, is held until the job ends.
    pub(crate) fn holds_until_done(&self) -> bool {
        self.opts.unique.as_ref().is_some_and(|unique| unique.scope == Scope::UntilDone)
    }

    /// Stores a new `run_at`.
    pub(crate) fn put_run_at(&mut self, conn: &Connection, run_at: Timestamp) -> rusqlite::Result<()> {
        self.run_at = run_at;
        conn.prepare_cached(SET_RUN_AT)?.execute(params![self.slot, ms(run_at)])?;
        Ok(())
    }

    /// Stores what a caller changed.
    pub(crate) fn put_asked(&self, conn: &Connection) -> rusqlite::Result<()> {
        conn.prepare_cached(SET_ASKED)?.execute(params![
            self.slot,
            self.kind,
            self.priority as i64,
            ms(self.run_at),
            self.version.cast_signed(),
            self.expires_at.map(ms),
            self.opts.text(),
            self.payload,
        ])?;
        Ok(())
    }

    /// Stores the history of its runs, if there is any.
    pub(crate) fn put_history(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        if self.history == History::default() {
            if self.has_history {
                conn.prepare_cached(DELETE_HISTORY)?.execute([self.id.as_bytes()])?;
            }
            self.has_history = false;
            return Ok(());
        }
        let history = &self.history;
        let failures = (!history.failures.is_empty()).then(|| {
            serde_json::to_string(&history.failures)
                .expect("invariant: failures are plain data, which JSON can hold")
        });
        conn.prepare_cached(PUT_HISTORY)?.execute(params![
            self.id.as_bytes(),
            history.attempt,
            history.expired_leases,
            history.snoozes,
            history.started,
            history.reason,
            failures,
            (!history.notes.is_empty()).then(|| history.notes.text()),
            history.result.as_ref().map(|result| &result.bytes),
            history.result.as_ref().map(|it| &it.content_type).filter(|it| *it != Payload::JSON),
            history.watched.then_some(1),
        ])?;
        self.has_history = true;
        Ok(())
    }

    /// Returns the record for callers.
    pub(crate) fn into_record(self, queue: &str, place: &Place) -> JobRecord {
        let Opts { content_type, max_attempts, backoff, timeout_ms, lease_ms, .. } = self.opts;
        let History { attempt, expired_leases, snoozes, reason, failures, notes, result, .. } = self.history;
        let (state, finished_at, ended_for) = match place {
            Place::Waiting => (State::Waiting, None, reason),
            Place::Running(_) => (State::Running, None, reason),
            Place::Ended(ended) => (ended.state, Some(ended.at), ended.reason.clone()),
            // What `audit` would make of it.
            Place::Nowhere => (State::Dead, None, Some("orphan".to_owned())),
        };
        let lease: Option<&LeaseRow> = match place {
            Place::Running(lease) => Some(lease),
            _ => None,
        };
        JobRecord {
            id: self.id,
            kind: self.kind,
            queue: queue.to_owned(),
            payload: Payload {
                bytes: self.payload,
                content_type: content_type.map_or(Cow::Borrowed(Payload::JSON), Cow::Owned),
            },
            priority: self.priority,
            run_at: self.run_at,
            created_at: self.created_at,
            max_attempts: max_attempts.unwrap_or_else(|| defaults().max_attempts),
            backoff: backoff.unwrap_or_default(),
            timeout: timeout_ms.map_or(TIMEOUT_DEFAULT, Duration::from_millis),
            lease: lease_ms.map(Duration::from_millis),
            group: self.opts.group,
            concurrency: self.opts.concurrency,
            unique: self.opts.unique,
            expires_at: self.expires_at,
            tags: self.opts.tags,
            headers: self.opts.headers,
            state,
            attempt,
            expired_leases,
            snoozes,
            version: self.version,
            cancel_requested: lease.is_some_and(LeaseRow::cancel_requested),
            started_at: lease.map(|lease| lease.started_at),
            finished_at,
            reason: ended_for,
            failures,
            notes,
            result: result.filter(|_| state == State::Done),
            running: lease.map(|lease| Running {
                fence: lease.fence.cast_unsigned(),
                worker: lease.worker.clone(),
                until: lease.until,
            }),
            blocked: false,
        }
    }
}

impl Tx<'_> {
    /// Returns the record with this id.
    pub(crate) fn job(&mut self, id: JobId) -> Step<Option<Job>> {
        let (first, last) = self.slots(id)?;
        let mut stmt = self.conn.prepare_cached(BY_ID)?;
        Ok(stmt.query_row(params![first, last, id.as_bytes()], Job::read).optional()?.flatten())
    }

    /// Returns the size of a payload even if its record is damaged; `None` if there is no record.
    pub(crate) fn payload_bytes(&mut self, id: JobId) -> Step<Option<i64>> {
        let (first, last) = self.slots(id)?;
        let mut stmt = self.conn.prepare_cached(PAYLOAD_BYTES)?;
        let read: Option<Option<i64>> =
            stmt.query_row(params![first, last, id.as_bytes()], |row| row.get(0)).optional()?;
        Ok(read.map(Option::unwrap_or_default))
    }

    /// Deletes a record, and its history if it may have one.
    pub(crate) fn delete_job(&mut self, id: JobId, has_history: bool) -> Step<()> {
        let (first, last) = self.slots(id)?;
        self.conn.prepare_cached(DELETE)?.execute(params![first, last, id.as_bytes()])?;
        if has_history {
            self.conn.prepare_cached(DELETE_HISTORY)?.execute([id.as_bytes()])?;
        }
        Ok(())
    }
}
