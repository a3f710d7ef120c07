//! Reads a job from the JSON of [`JobView::exact`](super::JobView::exact).

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::value::RawValue;

use crate::core::{
    backoff::Backoff,
    error::{Error, Result},
    id::JobId,
    job::{Concurrency, Failure, JobRecord, Payload, Priority, Running, State, Status, Unique, is_json},
    notes::{LogLine, Notes, Progress},
    time::Timestamp,
};

/// The fields of a job. A newer server can send more.
#[derive(Deserialize)]
struct Fields<'a> {
    id: JobId,
    kind: String,
    queue: String,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
    content_type: Option<String>,
    run_at_ms: Timestamp,
    priority: Priority,
    group: Option<String>,
    concurrency_key: Option<String>,
    concurrency_limit: Option<u32>,
    unique: Option<Unique>,
    max_attempts: u32,
    backoff: Backoff,
    timeout_ms: u64,
    lease_ms: Option<u64>,
    expires_at_ms: Option<Timestamp>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    status: Status,
    state: State,
    attempt: u32,
    crashes: u32,
    snoozes: u32,
    version: u64,
    cancel_requested: bool,
    created_at_ms: Timestamp,
    started_at_ms: Option<Timestamp>,
    finished_at_ms: Option<Timestamp>,
    reason: Option<String>,
    worker: Option<String>,
    fence: Option<u64>,
    lease_until_ms: Option<Timestamp>,
    progress: Option<Progress>,
    #[serde(default)]
    failures: Vec<Failure>,
    #[serde(default)]
    log: Vec<LogLine>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    result_base64: Option<String>,
    result_content_type: Option<String>,
}

/// Reads the JSON that the HTTP API writes. It must be a whole text in memory, since payloads are kept as they are written.
impl<'de> Deserialize<'de> for JobRecord {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Fields::deserialize(d)?.record().map_err(D::Error::custom)
    }
}

impl Fields<'_> {
    fn record(self) -> Result<JobRecord> {
        let payload = payload(self.payload, self.payload_base64, self.content_type)?;
        let running = match (self.fence, self.worker, self.lease_until_ms) {
            (Some(fence), Some(worker), Some(until)) => Some(Running { fence, worker, until }),
            _ => None,
        };
        Ok(JobRecord {
            id: self.id,
            kind: self.kind,
            queue: self.queue,
            payload: payload.ok_or_else(|| Error::invalid("payload is missing"))?,
            priority: self.priority,
            run_at: self.run_at_ms,
            created_at: self.created_at_ms,
            max_attempts: self.max_attempts,
            backoff: self.backoff,
            timeout: Duration::from_millis(self.timeout_ms),
            lease: self.lease_ms.map(Duration::from_millis),
            group: self.group,
            concurrency: self
                .concurrency_key
                .map(|key| Concurrency { key, limit: self.concurrency_limit.unwrap_or(1) }),
            unique: self.unique,
            expires_at: self.expires_at_ms,
            tags: self.tags,
            headers: self.headers,
            state: self.state,
            attempt: self.attempt,
            expired_leases: self.crashes,
            snoozes: self.snoozes,
            version: self.version,
            cancel_requested: self.cancel_requested,
            started_at: self.started_at_ms,
            finished_at: self.finished_at_ms,
            reason: self.reason,
            failures: self.failures,
            notes: Notes { progress: self.progress, log: self.log },
            result: self::payload(self.result, self.result_base64, self.result_content_type)?,
            running,
            blocked: self.status == Status::Blocked,
        })
    }
}

/// Reads a value that is there. JSON's `null` is a payload, too.
pub(super) fn present<'de: 'a, 'a, D: Deserializer<'de>>(d: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

/// Reads a payload from its three fields; `None` if it is not there.
///
/// # Errors
/// `Invalid` if both forms are there, or for text of the wrong form.
pub(super) fn payload(
    shown: Option<&RawValue>,
    base64: Option<String>,
    content_type: Option<String>,
) -> Result<Option<Payload>> {
    let content_type = content_type.unwrap_or_else(|| Payload::JSON.to_owned());
    let bytes = match (shown, base64) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(Error::invalid("a payload is there as JSON and as base64")),
        (None, Some(text)) => {
            BASE64.decode(text).map_err(|e| Error::invalid("a payload is not base64").with_source(e))?
        }
        (Some(json), None) if is_json(&content_type) => json.get().as_bytes().to_vec(),
        (Some(text), None) => serde_json::from_str::<String>(text.get())
            .map_err(|e| Error::invalid("a payload is not text, as its content type says").with_source(e))?
            .into_bytes(),
    };
    Ok(Some(Payload { bytes, content_type: content_type.into() }))
}
