//! A job as a line of JSON. Fields may be added, but not removed or renamed. A field without a value is left out.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::core::{
    backoff::Backoff,
    id::JobId,
    job::{Failure, JobRecord, Payload, Priority, State, Status, Unique, is_json},
    notes::{LogLine, Progress},
    time::Timestamp,
};

/// The fields of a job that are printed: first those that `push` reads, then those that it ignores.
#[derive(Debug, Serialize)]
pub struct JobView<'a> {
    id: JobId,
    kind: &'a str,
    queue: &'a str,
    #[serde(flatten)]
    payload: PayloadView<'a>,
    run_at_ms: u64,
    priority: Priority,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<&'a Unique>,
    max_attempts: u32,
    backoff: Backoff,
    timeout_ms: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'a BTreeMap<String, String>,
    status: Status,
    state: State,
    attempt: u32,
    #[serde(rename = "crashes")]
    expired_leases: u32,
    snoozes: u32,
    version: u64,
    cancel_requested: bool,
    created_at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<&'a [Failure]>,
    #[serde(skip_serializing_if = "<[LogLine]>::is_empty")]
    log: &'a [LogLine],
    #[serde(flatten)]
    result: ResultView<'a>,
}

impl<'a> JobView<'a> {
    /// All fields, in the order of the struct.
    pub const FIELDS: [&'static str; 40] = [
        "id",
        "kind",
        "queue",
        "payload",
        "payload_base64",
        "content_type",
        "run_at_ms",
        "priority",
        "group",
        "concurrency_key",
        "concurrency_limit",
        "unique",
        "max_attempts",
        "backoff",
        "timeout_ms",
        "lease_ms",
        "expires_at_ms",
        "tags",
        "headers",
        "status",
        "state",
        "attempt",
        "crashes",
        "snoozes",
        "version",
        "cancel_requested",
        "created_at_ms",
        "started_at_ms",
        "finished_at_ms",
        "reason",
        "last_error",
        "worker",
        "fence",
        "lease_until_ms",
        "progress",
        "failures",
        "log",
        "result",
        "result_base64",
        "result_content_type",
    ];

    /// Makes the view of a job at `now`, the store's time, with its last error but without attempts, log and result.
    pub fn new(job: &'a JobRecord, now: Timestamp) -> Self {
        let running = job.running.as_ref();
        Self {
            id: job.id,
            kind: &job.kind,
            queue: &job.queue,
            payload: on_one_line(&job.payload),
            run_at_ms: job.run_at.as_ms(),
            priority: job.priority,
            group: job.group.as_deref(),
            concurrency_key: job.concurrency.as_ref().map(|c| c.key.as_str()),
            concurrency_limit: job.concurrency.as_ref().map(|c| c.limit),
            unique: job.unique.as_ref(),
            max_attempts: job.max_attempts,
            backoff: job.backoff,
            timeout_ms: job.timeout.as_millis(),
            lease_ms: job.lease.map(|lease| lease.as_millis()),
            expires_at_ms: job.expires_at.map(Timestamp::as_ms),
            tags: &job.tags,
            headers: &job.headers,
            status: job.status(now),
            state: job.state,
            attempt: job.attempt,
            expired_leases: job.expired_leases,
            snoozes: job.snoozes,
            version: job.version,
            cancel_requested: job.cancel_requested,
            created_at_ms: job.created_at.as_ms(),
            started_at_ms: job.started_at.map(Timestamp::as_ms),
            finished_at_ms: job.finished_at.map(Timestamp::as_ms),
            reason: job.reason.as_deref(),
            last_error: job.failures.last().map(|failure| failure.error.as_str()),
            worker: running.map(|running| running.worker.as_str()),
            fence: running.map(|running| running.fence),
            lease_until_ms: running.map(|running| running.until.as_ms()),
            progress: job.notes.progress.as_ref(),
            failures: None,
            log: &[],
            result: ResultView::default(),
        }
    }

    /// Adds its last failed attempts, its log and its result.
    #[must_use]
    pub fn with_details(mut self, job: &'a JobRecord) -> Self {
        self.failures = Some(&job.failures);
        self.log = &job.notes.log;
        self.result = job.result.as_ref().map(|result| on_one_line(result).into()).unwrap_or_default();
        self
    }

    /// Makes the view of a job with all details, from which the same job is read again.
    pub fn exact(job: &'a JobRecord, now: Timestamp) -> Self {
        let mut view = Self::new(job, now).with_details(job);
        view.payload = exact(&job.payload);
        view.result = job.result.as_ref().map(|result| exact(result).into()).unwrap_or_default();
        view
    }
}

/// A payload in the fields `payload` (JSON or text) or `payload_base64`, and `content_type` unless it is plain JSON.
#[derive(Debug, Default, Serialize)]
pub(super) struct PayloadView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
}

/// As [`PayloadView`], of a result.
#[derive(Debug, Default, Serialize)]
pub(super) struct ResultView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_content_type: Option<&'a str>,
}

impl<'a> From<PayloadView<'a>> for ResultView<'a> {
    fn from(view: PayloadView<'a>) -> Self {
        Self {
            result: view.payload,
            result_base64: view.payload_base64,
            result_content_type: view.content_type,
        }
    }
}

/// Makes the view of a payload on one line: line breaks between values of JSON become spaces.
fn on_one_line(payload: &Payload) -> PayloadView<'_> {
    view(payload, |text| {
        if text.contains(['\n', '\r']) {
            RawValue::from_string(text.trim().replace(['\n', '\r'], " ")).ok().map(Cow::Owned)
        } else {
            serde_json::from_str::<&RawValue>(text).ok().map(Cow::Borrowed)
        }
    })
}

/// Makes the view of a payload from which the same bytes are read again. JSON with white space around it becomes base64.
pub(super) fn exact(payload: &Payload) -> PayloadView<'_> {
    view(payload, |text| {
        let json = serde_json::from_str::<&RawValue>(text).ok();
        json.filter(|json| json.get().len() == text.len()).map(Cow::Borrowed)
    })
}

fn view<'a>(payload: &'a Payload, json: impl Fn(&'a str) -> Option<Cow<'a, RawValue>>) -> PayloadView<'a> {
    let is_json = is_json(&payload.content_type);
    let text = std::str::from_utf8(&payload.bytes).ok();
    let shown =
        text.and_then(|text| if is_json { json(text) } else { to_raw_value(text).ok().map(Cow::Owned) });
    let payload_base64 = shown.is_none().then(|| BASE64.encode(&payload.bytes));
    let is_plain_json = shown.is_some() && payload.content_type == Payload::JSON;
    let content_type = (!is_plain_json).then_some(&*payload.content_type);
    PayloadView { payload: shown, payload_base64, content_type }
}
