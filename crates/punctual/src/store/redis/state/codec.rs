//! The stored form of a job: the record that an enqueue writes once, the history that its runs leave, and the lease
//! of its current run. The scripts in `lua/` describe the layouts and read their heads. Only callers read the JSON in
//! them.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    core::{
        backoff::Backoff,
        digest as texts,
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::{
            Concurrency, Failure, JobOptions, JobRecord, NewJob, OnConflict, Payload, Priority, Running,
            Scope, State, Unique, placement_key,
        },
        limits::TIMEOUT_DEFAULT,
        time::{Timestamp, When, ceil_ms},
    },
    store::{
        UniqueKey,
        redis::scripts::{
            bytes::{Bytes, Put},
            reply::Reply,
        },
        version_defaults::defaults,
    },
};

/// The flag: `run_at` differs from `created_at`.
const RUN_AT: u8 = 1;
const EXPIRES: u8 = 2;
const LEASE: u8 = 4;
const MAX_ATTEMPTS: u8 = 8;
const UNIQUE: u8 = 16;
const CONCURRENCY: u8 = 32;
const GROUP: u8 = 64;
/// The payload is stored apart.
const APART: u8 = 128;

/// A record as scripts answer it, and its payload if that is stored apart.
pub(crate) struct Record {
    head: Vec<u8>,
    payload: Option<Vec<u8>>,
}

impl Record {
    /// Reads the next record of an answer: one element, or two.
    pub(crate) fn read(reply: &mut Reply) -> Result<Self> {
        let head = reply.bytes()?;
        let is_apart = head.first().is_some_and(|flags| flags & APART != 0);
        Ok(Self { payload: if is_apart { Some(reply.bytes()?) } else { None }, head })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payload.as_ref().map_or(0, Vec::len)
    }
}

/// The codes of scopes; 0 means until done.
pub(crate) const UNTIL_START: u8 = 1;
pub(crate) const WINDOW: u8 = 2;

/// The longest window that scripts can represent to the millisecond. It is longer than all of time.
const WINDOW_MAX_MS: u64 = 1 << 52;

/// Rarely chosen options that a replacement changes.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Chosen {
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<Backoff>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
}

/// The scope of a job's keys, which no replacement changes.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Within {
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<Concurrency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<Unique>,
}

/// Appends JSON, or nothing if the value is the default.
fn put_json<T: Default + PartialEq + Serialize>(out: &mut Vec<u8>, value: &T) {
    if *value != T::default() {
        serde_json::to_writer(out, value).expect("invariant: plain data, which JSON can hold");
    }
}

/// Parses JSON; also returns whether that is everything, because a newer version may have stored more.
fn json<T: Default + for<'de> Deserialize<'de>>(bytes: Bytes<'_>) -> Result<(T, bool)> {
    if bytes.is_empty() {
        return Ok((T::default(), true));
    }
    serde_json::from_slice(bytes.0)
        .map(|all| (all, true))
        .or_else(|_| known_of(bytes.0).map(|known| (known, false)))
        .map_err(|e| Error::new(ErrorKind::Corrupt, "read the options of a job").with_source(e))
}

/// Returns what this version knows of an object that contains more.
fn known_of<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> serde_json::Result<T> {
    let mut fields: serde_json::Map<String, Value> = serde_json::from_slice(bytes)?;
    fields.retain(|name, value| {
        T::deserialize(Value::Object([(name.clone(), value.clone())].into_iter().collect())).is_ok()
    });
    T::deserialize(Value::Object(fields))
}

/// Returns the digest of a unique key with its scope.
pub(crate) fn digest_of(key: &UniqueKey) -> [u8; 16] {
    let UniqueKey { kind, queue, group, concurrency_key, key } = key;
    texts::digest(&[kind.as_deref(), Some(queue), group.as_deref(), concurrency_key.as_deref(), Some(key)])
}

/// Returns the digest of a concurrency key with its scope.
pub(crate) fn lock_digest(queue: &str, group: Option<&str>, key: &str) -> [u8; 16] {
    texts::digest(&[Some(queue), group, Some(key)])
}

/// Returns the state with this code.
pub(crate) fn state(code: u8) -> Result<State> {
    Ok(match code {
        0 => State::Waiting,
        1 => State::Done,
        2 => State::Cancelled,
        3 => State::Dead,
        4 => State::Running,
        _ => return Err(Error::new(ErrorKind::Corrupt, format!("read {code} where a state stands"))),
    })
}

/// Returns the code of a state.
pub(crate) const fn code(state: State) -> u8 {
    match state {
        State::Waiting => 0,
        State::Done => 1,
        State::Cancelled => 2,
        State::Dead => 3,
        State::Running => 4,
    }
}

/// Appends a time that scripts resolve: its kind, then seven bytes.
pub(crate) fn put_when(out: &mut Vec<u8>, when: When) {
    let (kind, ms) = match when {
        When::Now => (b'i', 0),
        When::In(d) => (b'i', ceil_ms(d).min(WINDOW_MAX_MS)),
        When::At(t) => (b'a', t.as_ms()),
    };
    out.push(kind);
    out.number(ms, 7);
}

/// Returns the spec and the rest of a new job, as `lua/verbs/enqueue.lua` takes them. `of`: the index of its queue in the
/// call.
pub(crate) fn encode(new: &NewJob, of: usize, defaults: &JobOptions) -> (Vec<u8>, Vec<u8>) {
    let own_lease = new.options.lease;
    let options = new.options.clone().or(defaults);
    let max_attempts = options.max_attempts;
    let scope = new.unique.as_ref().map(|unique| unique.scope);
    let mut flags = 0;
    for (flag, is_set) in [
        (LEASE, own_lease.is_some()),
        (MAX_ATTEMPTS, max_attempts.is_some()),
        (UNIQUE, scope.is_some()),
        (CONCURRENCY, new.concurrency.is_some()),
        (GROUP, new.group.is_some()),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    let (scope, window) = match scope {
        None | Some(Scope::UntilDone) => (0, 0),
        Some(Scope::UntilStart) => (UNTIL_START, 0),
        Some(Scope::Window { window_ms }) => (WINDOW, window_ms.min(WINDOW_MAX_MS)),
    };
    let (conflict, version) = match &new.unique {
        None => (b'k', None),
        Some(unique) => (
            match unique.on_conflict {
                OnConflict::Keep => b'k',
                OnConflict::Replace => b'p',
                OnConflict::Reschedule => b's',
            },
            unique.version,
        ),
    };
    let mut spec = Vec::with_capacity(28);
    spec.number(of as u64, 2);
    spec.push(flags);
    spec.push(options.priority.unwrap_or_default() as u8 + 16 * scope);
    put_when(&mut spec, new.run_at);
    if let Some(when) = new.expires_at {
        put_when(&mut spec, when);
    } else {
        spec.push(b'n');
        spec.number(0, 7);
    }
    spec.push(conflict);
    // Versions start with 1. A version that no job ever reaches stands for those that do not fit.
    spec.number(
        version
            .map_or(0, |version| if version == 0 { u32::MAX.into() } else { version.min(u32::MAX.into()) }),
        4,
    );

    let mut rest = Vec::with_capacity(new.payload.bytes.len() + 64);
    if let Some(lease) = own_lease {
        rest.number(ceil_ms(lease), 4);
    }
    if let Some(n) = max_attempts {
        rest.number(n.into(), 2);
    }
    if let Some(key) = UniqueKey::of_new(new) {
        rest.extend_from_slice(&digest_of(&key));
        rest.number(window, 7);
    }
    if let Some(Concurrency { key, limit }) = &new.concurrency {
        rest.extend_from_slice(&lock_digest(&new.queue, new.group.as_deref(), key));
        rest.number((*limit).into(), 4);
    }
    if let Some(group) = &new.group {
        rest.extend_from_slice(&texts::group_digest(group));
    }
    let mut asked = Vec::with_capacity(new.kind.len() + 2);
    asked.chunk(content_type(&new.payload));
    asked.chunk(new.kind.as_bytes());
    put_json(
        &mut asked,
        &Chosen {
            backoff: options.backoff,
            timeout_ms: options.timeout.map(ceil_ms),
            tags: new.tags.clone(),
            headers: new.headers.clone(),
        },
    );
    rest.chunk(&asked);
    let mut within = Vec::with_capacity(new.queue.len() + 1);
    within.chunk(new.queue.as_bytes());
    put_json(
        &mut within,
        &Within {
            group: new.group.clone(),
            concurrency: new.concurrency.clone(),
            unique: new.unique.clone(),
        },
    );
    rest.chunk(&within);
    spec.number(rest.len() as u64, 3);
    rest.extend_from_slice(&new.payload.bytes);
    (spec, rest)
}

/// Returns the stored content type; empty for JSON.
pub(crate) fn content_type(payload: &Payload) -> &[u8] {
    if payload.content_type == Payload::JSON { b"" } else { payload.content_type.as_bytes() }
}

/// Returns the content type of a stored one.
fn media_type(stored: String) -> Cow<'static, str> {
    if stored.is_empty() { Cow::Borrowed(Payload::JSON) } else { Cow::Owned(stored) }
}

/// A lease as it is stored.
pub(crate) struct Run {
    pub(crate) fence: u64,
    pub(crate) until: Timestamp,
    pub(crate) started: Timestamp,
    /// How long an extension lasts.
    pub(crate) lasts: Duration,
    pub(crate) cancel_requested: bool,
    pub(crate) has_history: bool,
    pub(crate) worker: String,
}

/// The least number of bytes that the name of a worker takes in a run.
const WORKER_BYTES: usize = 64;

/// Returns the stored form of a worker's name.
pub(crate) fn worker(name: &str) -> Vec<u8> {
    let mut out = vec![name.len() as u8];
    out.extend_from_slice(name.as_bytes());
    out.resize(out.len().max(WORKER_BYTES), 0);
    out
}

impl Run {
    pub(crate) fn decode(mut row: Bytes<'_>) -> Result<Self> {
        let fence = row.number(8)?;
        row.take(3)?;
        let until = row.time()?;
        let flags = row.byte()?;
        row.take(4)?;
        let (started, lasts) = (row.time()?, Duration::from_millis(row.number(4)?));
        row.take(if flags & 4 == 0 { 0 } else { 16 })?;
        row.take(if flags & 8 == 0 { 0 } else { 16 })?;
        row.take(if flags & 16 == 0 { 0 } else { 16 })?;
        let length = row.byte()?;
        let worker = Bytes(row.take(length.into())?).words();
        let (cancel_requested, has_history) = (flags & 1 != 0, flags & 2 != 0);
        Ok(Self { fence, until, started, lasts, cancel_requested, has_history, worker })
    }
}

/// Returns what places a job: its queue and its placement key. `None` if a newer version stored more than this one
/// knows.
pub(crate) fn placed_by(within: &[u8]) -> Result<Option<(String, Option<String>)>> {
    let mut within = Bytes(within).chunk()?;
    let queue = within.chunk()?.text()?;
    let (Within { group, concurrency, unique }, knows_all) = json(within)?;
    let key = placement_key(group.as_deref(), concurrency.as_ref(), unique.as_ref());
    Ok(knows_all.then(|| (queue, key.map(str::to_owned))))
}

/// Decodes the job of a record, its history and its run; both can be empty.
pub(crate) fn decode(id: JobId, rec: &Record, history: &[u8], run: &[u8]) -> Result<JobRecord> {
    let run = if run.is_empty() { None } else { Some(Run::decode(Bytes(run))?) };
    decode_with(id, rec, history, run).map(|(job, _)| job)
}

/// Decodes a job with a known run; also returns whether this version knows all its options and may run it.
pub(crate) fn decode_with(
    id: JobId,
    stored: &Record,
    history: &[u8],
    run: Option<Run>,
) -> Result<(JobRecord, bool)> {
    let mut rec = Bytes(&stored.head);
    let (flags, level) = (rec.byte()?, rec.byte()?);
    rec.take(3 + 3)?;
    let created_at = rec.time()?;
    let run_at = if flags & RUN_AT == 0 { created_at } else { rec.time()? };
    let expires_at = if flags & EXPIRES == 0 { None } else { Some(rec.time()?) };
    let apart = if flags & APART == 0 { None } else { Some(rec.number(4)?) };
    let lease = if flags & LEASE == 0 { None } else { Some(Duration::from_millis(rec.number(4)?)) };
    let max_attempts =
        if flags & MAX_ATTEMPTS == 0 { u64::from(defaults().max_attempts) } else { rec.number(2)? };
    if flags & UNIQUE != 0 {
        rec.take(16 + 7)?;
    }
    if flags & CONCURRENCY != 0 {
        rec.take(16 + 4)?;
    }
    if flags & GROUP != 0 {
        rec.take(16)?;
    }
    let (mut asked, mut within) = (rec.chunk()?, rec.chunk()?);
    let content_type = asked.chunk()?.text()?;
    let kind = asked.chunk()?.text()?;
    let (chosen, knows_chosen): (Chosen, _) = json(asked)?;
    let queue = within.chunk()?.text()?;
    let (Within { group, concurrency, unique }, knows_within) = json(within)?;
    let payload = match (&stored.payload, apart) {
        (Some(payload), Some(length)) if payload.len() as u64 == length => payload.clone(),
        (None, None) => rec.0.to_vec(),
        _ => return Err(Error::new(ErrorKind::Corrupt, "read a part of a payload")),
    };
    let mut job = JobRecord {
        kind,
        queue,
        payload: Payload { bytes: payload, content_type: media_type(content_type) },
        priority: priority(level & 15)?,
        run_at,
        created_at,
        max_attempts: max_attempts as u32,
        backoff: chosen.backoff.unwrap_or_default(),
        timeout: chosen.timeout_ms.map_or(TIMEOUT_DEFAULT, Duration::from_millis),
        lease,
        group,
        concurrency,
        unique,
        expires_at,
        tags: chosen.tags,
        headers: chosen.headers,
        ..JobRecord::blank(id)
    };
    remember(&mut job, Bytes(history))?;
    if let Some(run) = run {
        job.state = State::Running;
        job.cancel_requested = run.cancel_requested;
        job.started_at = Some(run.started);
        job.running = Some(Running { fence: run.fence, worker: run.worker, until: run.until });
    }
    Ok((job, knows_chosen && knows_within))
}

fn priority(level: u8) -> Result<Priority> {
    Priority::ALL
        .get(usize::from(level))
        .copied()
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("read {level} where a priority stands")))
}

/// Makes a tombstone for a job whose record cannot be read: its bytes, and what became of it.
pub(crate) fn husk(id: JobId, rec: &Record, history: &[u8]) -> JobRecord {
    let mut job = JobRecord::blank(id);
    let bytes = [&rec.head[..], rec.payload.as_deref().unwrap_or_default()].concat();
    job.payload = Payload { bytes, content_type: Cow::Borrowed("application/octet-stream") };
    // As much of it as can be read.
    let _ = remember(&mut job, Bytes(history));
    job
}

/// Adds the history to a record.
fn remember(job: &mut JobRecord, mut history: Bytes<'_>) -> Result<()> {
    if history.is_empty() {
        return Ok(());
    }
    let flags = history.byte()?;
    if flags & 2 != 0 {
        job.run_at = history.time()?;
        job.priority = priority(history.byte()?)?;
    }
    if flags & 4 != 0 {
        job.expires_at = None;
    }
    if flags & 8 != 0 {
        job.attempt = history.number(4)? as u32;
        job.expired_leases = history.byte()?.into();
        job.snoozes = history.number(2)? as u32;
    }
    if flags & 16 != 0 {
        job.version = history.number(4)?;
    }
    if flags & 32 != 0 {
        job.state = state(history.byte()?)?;
        job.finished_at = Some(history.time()?);
    }
    if flags & 64 != 0 {
        let length = history.number(2)? as usize;
        job.reason = Some(Bytes(history.take(length)?).words());
    }
    if flags & 128 != 0 {
        let mut result = history.chunk()?;
        if !result.is_empty() {
            let content_type = media_type(result.chunk()?.text()?);
            job.result = Some(Payload { bytes: result.0.to_vec(), content_type });
        }
        // Unreadable notes are no reason not to run a job.
        job.notes = json(history.chunk()?).map(|(notes, _)| notes).unwrap_or_default();
        history.chunk()?;
    }
    while !history.is_empty() {
        let length = history.number(2)? as usize;
        let mut failure = Bytes(history.take(length)?);
        let attempt = failure.number(4)? as u32;
        let (started_ms, ended_ms) = (failure.number(6)?, failure.number(6)?);
        let worker = failure.number(2)? as usize;
        let worker = Bytes(failure.take(worker)?).words();
        job.failures.push(Failure { attempt, started_ms, ended_ms, worker, error: failure.words() });
    }
    Ok(())
}
