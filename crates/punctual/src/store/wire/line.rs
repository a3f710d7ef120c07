//! A new job as JSON. Each error names the field; no value is repaired or reinterpreted.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::view::{PayloadView, exact};
use crate::core::{
    backoff::Backoff,
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::{Concurrency, IdempotencyKey, JobOptions, NewJob, Payload, Priority, Unique, is_json},
    limits::{DELAY_MAX_MS, IDEMPOTENCY_KEY_BYTES_MAX, INSTANT_MAX_MS, PAYLOAD_BYTES_MAX},
    suggest::did_you_mean,
    time::{Timestamp, When, ceil_ms},
};

/// Longest line: a payload with every byte escaped, and room for the rest.
pub const LINE_BYTES_MAX: usize = 2 * PAYLOAD_BYTES_MAX + 64 * 1024;
/// Longest part of serde's message in an error, since it can quote a whole value.
const WORDS_CHARS_MAX: usize = 160;

/// Every field that a line may set.
const FIELDS: [&str; 23] = [
    "queue",
    "kind",
    "payload",
    "payload_base64",
    "content_type",
    "id",
    "idempotency_key",
    "across_kinds",
    "run_at_ms",
    "delay_ms",
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
    "expires_in_ms",
    "tags",
    "headers",
];

/// The fields of a line as raw text, so that an error can name the field, and a payload is kept as it was written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    queue: Option<&'a RawValue>,
    kind: Option<&'a RawValue>,
    payload: Option<&'a RawValue>,
    payload_base64: Option<&'a RawValue>,
    content_type: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    idempotency_key: Option<&'a RawValue>,
    across_kinds: Option<&'a RawValue>,
    run_at_ms: Option<&'a RawValue>,
    delay_ms: Option<&'a RawValue>,
    priority: Option<&'a RawValue>,
    group: Option<&'a RawValue>,
    concurrency_key: Option<&'a RawValue>,
    concurrency_limit: Option<&'a RawValue>,
    unique: Option<&'a RawValue>,
    max_attempts: Option<&'a RawValue>,
    backoff: Option<&'a RawValue>,
    timeout_ms: Option<&'a RawValue>,
    lease_ms: Option<&'a RawValue>,
    expires_at_ms: Option<&'a RawValue>,
    expires_in_ms: Option<&'a RawValue>,
    tags: Option<&'a RawValue>,
    headers: Option<&'a RawValue>,
    // The other fields that `ls` and `show` print: known and ignored.
    #[serde(rename = "status")]
    _status: IgnoredAny,
    #[serde(rename = "state")]
    _state: IgnoredAny,
    #[serde(rename = "attempt")]
    _attempt: IgnoredAny,
    #[serde(rename = "crashes")]
    _crashes: IgnoredAny,
    #[serde(rename = "snoozes")]
    _snoozes: IgnoredAny,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    #[serde(rename = "cancel_requested")]
    _cancel_requested: IgnoredAny,
    #[serde(rename = "created_at_ms")]
    _created_at_ms: IgnoredAny,
    #[serde(rename = "started_at_ms")]
    _started_at_ms: IgnoredAny,
    #[serde(rename = "finished_at_ms")]
    _finished_at_ms: IgnoredAny,
    #[serde(rename = "reason")]
    _reason: IgnoredAny,
    #[serde(rename = "last_error")]
    _last_error: IgnoredAny,
    #[serde(rename = "failures")]
    _failures: IgnoredAny,
    #[serde(rename = "worker")]
    _worker: IgnoredAny,
    #[serde(rename = "fence")]
    _fence: IgnoredAny,
    #[serde(rename = "lease_until_ms")]
    _lease_until_ms: IgnoredAny,
    #[serde(rename = "progress")]
    _progress: IgnoredAny,
    #[serde(rename = "log")]
    _log: IgnoredAny,
    #[serde(rename = "result")]
    _result: IgnoredAny,
    #[serde(rename = "result_base64")]
    _result_base64: IgnoredAny,
    #[serde(rename = "result_content_type")]
    _result_content_type: IgnoredAny,
}

/// Reads a new job from JSON; `make_id` makes its id if the text has none. All limits that need no store are checked.
///
/// The fields are those that `punctual push --batch` reads, documented in its help.
///
/// ```
/// # use punctual::{job::IdMaker, store::wire};
/// let text = r#"{"queue":"mail","kind":"email.send","payload":{"to":"ana"},"delay_ms":3600000}"#;
/// let job = wire::job(text, || IdMaker::default().make(1_795_192_330_000, 0, 7))?;
/// assert_eq!((job.kind.as_str(), job.queue.as_str()), ("email.send", "mail"));
/// # Ok::<(), punctual::Error>(())
/// ```
///
/// # Errors
/// `Invalid` or `TooLarge`, with the name of the field.
pub fn job(text: &str, make_id: impl FnOnce() -> JobId) -> Result<NewJob> {
    let job = unchecked(text, make_id)?;
    job.check()?;
    Ok(job)
}

/// Reads as [`job`] does, but leaves the check of limits to the store, which does not check the repetition of a call.
///
/// # Errors
/// `Invalid` for text that is no job, with the name of the field.
pub fn unchecked(text: &str, make_id: impl FnOnce() -> JobId) -> Result<NewJob> {
    // serde would accept a list, too, and read it by position.
    if text.trim_start().starts_with('[') {
        return Err(Error::invalid("a list is not a job").with_hint(r#"write {"kind":"…"}"#));
    }
    let line: Line<'_> = serde_json::from_str(text).map_err(|e| not_a_job(&e))?;
    let kind: String = read("kind", line.kind)?.ok_or_else(|| Error::invalid("kind is missing"))?;
    let queue = read("queue", line.queue)?.unwrap_or_else(|| "default".to_owned());
    // The id is derived from the placement key, so it is set last.
    let mut job = NewJob::new(make_id(), kind, queue, payload_of(&line)?);
    job.group = read("group", line.group)?;
    job.concurrency = concurrency_of(&line)?;
    job.unique = object::<Unique>("unique", line.unique, r#"{"key":"u"}"#)?;
    job.run_at = match (line.run_at_ms, line.delay_ms) {
        (Some(_), Some(_)) => return Err(Error::invalid("run_at_ms and delay_ms are both given")),
        (Some(at), None) => When::At(instant("run_at_ms", at)?),
        (None, Some(delay)) => When::In(Duration::from_millis(integer("delay_ms", delay, 0, DELAY_MAX_MS)?)),
        (None, None) => When::Now,
    };
    job.expires_at = match (line.expires_at_ms, line.expires_in_ms) {
        (Some(_), Some(_)) => return Err(Error::invalid("expires_at_ms and expires_in_ms are both given")),
        (Some(at), None) => Some(When::At(instant("expires_at_ms", at)?)),
        (None, Some(time)) => {
            let time = integer("expires_in_ms", time, 0, DELAY_MAX_MS)?;
            Some(When::In(Duration::from_millis(time)))
        }
        (None, None) => None,
    };
    let milliseconds = |field, raw: Option<&RawValue>| {
        raw.map(|raw| integer(field, raw, 0, u64::MAX).map(Duration::from_millis)).transpose()
    };
    job.options = JobOptions {
        priority: line.priority.map(priority).transpose()?,
        max_attempts: line.max_attempts.map(|raw| small("max_attempts", raw)).transpose()?,
        backoff: object::<Backoff>("backoff", line.backoff, r#"{"type":"fixed","base_ms":5000}"#)?,
        timeout: milliseconds("timeout_ms", line.timeout_ms)?,
        lease: milliseconds("lease_ms", line.lease_ms)?,
    };
    job.tags = read("tags", line.tags)?.unwrap_or_default();
    job.headers = read::<BTreeMap<String, String>>("headers", line.headers)?.unwrap_or_default();
    let across_kinds = read("across_kinds", line.across_kinds)?.unwrap_or(false);
    if let Some(unique) = job.unique.as_mut().filter(|_| across_kinds) {
        unique.across_kinds = true;
    }
    match (line.id, line.idempotency_key) {
        (Some(_), Some(_)) => return Err(Error::invalid("id and idempotency_key are both given")),
        (Some(raw), None) => job.id = read::<String>("id", Some(raw))?.unwrap_or_default().parse()?,
        (None, Some(raw)) => {
            let key: String = read("idempotency_key", Some(raw))?.unwrap_or_default();
            derive_id(&mut job, &key, across_kinds)?;
        }
        (None, None) => {}
    }
    Ok(job)
}

/// Makes a payload of bytes. JSON, the default type, is checked and kept as it was written.
///
/// # Errors
/// `Invalid` if the type is JSON and the bytes are not.
pub fn payload(mut bytes: Vec<u8>, content_type: Option<String>) -> Result<Payload> {
    let content_type = content_type.unwrap_or_else(|| Payload::JSON.to_owned());
    if is_json(&content_type) {
        let text: &RawValue = serde_json::from_slice(&bytes).map_err(|e| {
            Error::invalid(format!("payload is not JSON: {e}"))
                .with_hint("quote it for the shell: '{\"to\":\"ana\"}'; or name its type with --content-type")
        })?;
        bytes = text.get().as_bytes().to_vec();
    }
    Ok(Payload { bytes, content_type: content_type.into() })
}

fn payload_of(line: &Line<'_>) -> Result<Payload> {
    let content_type: Option<String> = read("content_type", line.content_type)?;
    match (line.payload, line.payload_base64) {
        (Some(_), Some(_)) => Err(Error::invalid("payload and payload_base64 are both given")),
        (None, Some(raw)) => {
            let text: String = read("payload_base64", Some(raw))?.unwrap_or_default();
            let bytes = BASE64
                .decode(&text)
                .map_err(|e| Error::invalid("payload_base64: not base64").with_source(e))?;
            let content_type = content_type.unwrap_or_else(|| "application/octet-stream".to_owned());
            Ok(Payload { bytes, content_type: content_type.into() })
        }
        (raw, None) => match content_type {
            Some(content_type) if !is_json(&content_type) => {
                let text: String = read("payload", raw)?.unwrap_or_default();
                Ok(Payload { bytes: text.into_bytes(), content_type: content_type.into() })
            }
            content_type => {
                let bytes = raw.map_or("null", RawValue::get).as_bytes().to_vec();
                let content_type = content_type.map_or(Payload::JSON.into(), Into::into);
                Ok(Payload { bytes, content_type })
            }
        },
    }
}

fn concurrency_of(line: &Line<'_>) -> Result<Option<Concurrency>> {
    let limit = line.concurrency_limit.map(|raw| small("concurrency_limit", raw)).transpose()?;
    match read("concurrency_key", line.concurrency_key)? {
        Some(key) => Ok(Some(Concurrency { key, limit: limit.unwrap_or(1) })),
        None if limit.is_some() => Err(Error::invalid("concurrency_limit needs a concurrency_key")),
        None => Ok(None),
    }
}

/// Derives the id of a job from an idempotency key, within the kind of the job or across kinds.
///
/// # Errors
/// `Invalid` if the key is empty or too long.
pub fn derive_id(job: &mut NewJob, key: &str, across_kinds: bool) -> Result<()> {
    if key.is_empty() {
        Err(Error::invalid("idempotency_key is empty"))
    } else if IDEMPOTENCY_KEY_BYTES_MAX < key.len() {
        let n = key.len();
        Err(Error::invalid(format!(
            "idempotency_key of {n} bytes is over the limit of {IDEMPOTENCY_KEY_BYTES_MAX}"
        )))
    } else {
        job.derive_id(key, across_kinds);
        Ok(())
    }
}

/// Reads one field, and names it in an error.
fn read<'a, T: Deserialize<'a>>(field: &str, raw: Option<&'a RawValue>) -> Result<Option<T>> {
    let Some(raw) = raw else { return Ok(None) };
    serde_json::from_str(raw.get()).map(Some).map_err(|e| Error::invalid(format!("{field}: {}", words(&e))))
}

/// As [`read`], of a value with names, such as `example`.
fn object<'a, T: Deserialize<'a>>(
    field: &str,
    raw: Option<&'a RawValue>,
    example: &str,
) -> Result<Option<T>> {
    match raw {
        Some(raw) if !raw.get().starts_with('{') => Err(Error::invalid(format!("{field}: not an object"))
            .with_hint(format!("write an object, such as {example}"))),
        raw => read(field, raw),
    }
}

/// Reads a whole number from `min` to `max`. 1e3 and 1.0 are refused.
fn integer(field: &str, raw: &RawValue, min: u64, max: u64) -> Result<u64> {
    let n = raw.get().parse().ok().filter(|n| (min..=max).contains(n));
    n.ok_or_else(|| {
        let shown: String = raw.get().chars().take(32).collect();
        Error::invalid(format!("{field} {shown} is not a whole number within {min} to {max}"))
    })
}

fn small(field: &str, raw: &RawValue) -> Result<u32> {
    integer(field, raw, 0, u64::from(u32::MAX)).map(|n| u32::try_from(n).expect("invariant: checked above"))
}

fn instant(field: &str, raw: &RawValue) -> Result<Timestamp> {
    integer(field, raw, 0, INSTANT_MAX_MS).and_then(Timestamp::from_ms)
}

/// Reads a name or a number.
fn priority(raw: &RawValue) -> Result<Priority> {
    let name = match raw.get().as_bytes().first() {
        Some(b'"') => read::<String>("priority", Some(raw))?.unwrap_or_default(),
        _ => raw.get().to_owned(),
    };
    name.parse().map_err(|e: Error| {
        let wrong = Error::invalid(format!("priority: {e}"));
        e.hint().map(str::to_owned).into_iter().fold(wrong, Error::with_hint)
    })
}

fn not_a_job(error: &serde_json::Error) -> Error {
    let text = error.to_string();
    if let Some(field) = text.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) {
        let field: String = field.chars().take(64).collect();
        let unknown = Error::invalid(format!("unknown field `{field}`"));
        return unknown.with_hint(match did_you_mean(&field, FIELDS) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the fields are {}", FIELDS.join(", ")),
        });
    }
    if error.is_data() {
        return Error::invalid(words(error));
    }
    let what = if error.is_eof() { "the line ends within the JSON" } else { "the line is not JSON" };
    Error::new(ErrorKind::Invalid, format!("{what}: {}", words(error)))
}

/// Returns serde's message without line and column, which would be wrong within a field.
pub fn words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rfind(" at line ").map_or(text.as_str(), |at| &text[..at]);
    text.chars().take(WORDS_CHARS_MAX).collect()
}

/// A new job as [`unchecked`] reads it, exactly.
#[derive(Debug, Serialize)]
pub struct NewJobView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    across_kinds: bool,
    kind: &'a str,
    queue: &'a str,
    #[serde(flatten)]
    payload: PayloadView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(flatten)]
    options: &'a JobOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<&'a Unique>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'a BTreeMap<String, String>,
}

impl<'a> NewJobView<'a> {
    /// Makes the view of a new job. If the key of its id is known, the key stands for the id: a server lets a token of some queues give
    /// no derived id that it cannot derive itself.
    pub fn new(job: &'a NewJob) -> Self {
        // The field `across_kinds` of a line is that of both keys.
        let is_said = |key: &&IdempotencyKey| {
            !key.across_kinds || job.unique.as_ref().is_none_or(|unique| unique.across_kinds)
        };
        let key = job.proven_key().filter(is_said);
        let (expires_in_ms, expires_at_ms) = match job.expires_at {
            None => (None, None),
            Some(When::Now) => (Some(0), None),
            Some(when) => split(when),
        };
        let (delay_ms, run_at_ms) = split(job.run_at);
        Self {
            id: Some(job.id).filter(|_| key.is_none()),
            idempotency_key: key.map(|key| key.key.as_str()),
            across_kinds: key.is_some_and(|key| key.across_kinds),
            kind: &job.kind,
            queue: &job.queue,
            payload: exact(&job.payload),
            run_at_ms,
            delay_ms,
            options: &job.options,
            group: job.group.as_deref(),
            concurrency_key: job.concurrency.as_ref().map(|c| c.key.as_str()),
            concurrency_limit: job.concurrency.as_ref().map(|c| c.limit),
            unique: job.unique.as_ref(),
            expires_at_ms,
            expires_in_ms,
            tags: &job.tags,
            headers: &job.headers,
        }
    }

    /// Leaves the id out, for a job of which others are made.
    #[must_use]
    pub fn without_id(self) -> Self {
        Self { id: None, idempotency_key: None, across_kinds: false, ..self }
    }
}

/// Returns a delay and an instant in milliseconds, of which at most one is there; none is now.
pub(super) fn split(when: When) -> (Option<u64>, Option<u64>) {
    match when {
        When::Now => (None, None),
        When::In(d) => (Some(ceil_ms(d)), None),
        When::At(t) => (None, Some(t.as_ms())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        id::IdMaker,
        job::{OnConflict, Scope},
    };

    fn line(text: &str) -> Result<NewJob> {
        job(text, || IdMaker::default().make(1_795_192_330_000, 0, 7))
    }

    #[test]
    fn every_field_arrives() {
        let job = line(
            r#"{"queue":"mail","kind":"email.send","payload":{"to": "ana",  "n":12345678901234567890},
                "idempotency_key":"welcome:42","delay_ms":3600000,"priority":"low","group":"acme",
                "concurrency_key":"box:ana","concurrency_limit":2,
                "unique":{"key":"k","scope":{"window_ms":5},"on_conflict":"replace"},"max_attempts":3,
                "backoff":{"type":"linear","base_ms":1,"max_ms":2,"jitter":false},"timeout_ms":30000,"lease_ms":2000,
                "expires_at_ms":1795192330001,"tags":["a","b"],"headers":{"x":"y"}}"#,
        )
        .unwrap();
        assert_eq!((job.queue.as_str(), job.kind.as_str()), ("mail", "email.send"));
        assert_eq!(
            job.payload.bytes, br#"{"to": "ana",  "n":12345678901234567890}"#,
            "kept as it was written"
        );
        assert_eq!(job.id, JobId::derived_of_kind(&job.kind, "mail", Some("acme"), "welcome:42"));
        assert_eq!(job.run_at, When::In(Duration::from_hours(1)));
        assert_eq!(job.concurrency, Some(Concurrency { key: "box:ana".into(), limit: 2 }));
        let unique = job.unique.unwrap();
        assert_eq!((unique.scope, unique.on_conflict), (Scope::Window { window_ms: 5 }, OnConflict::Replace));
        assert_eq!(job.options.priority, Some(Priority::Low));
        assert_eq!(job.options.timeout, Some(Duration::from_secs(30)));
        assert_eq!(job.options.backoff.unwrap().to_string(), "linear 1ms..2ms without jitter");
        assert_eq!((job.tags.len(), job.headers["x"].as_str()), (2, "y"));
    }

    #[test]
    fn a_kind_is_enough() {
        let job = line(r#"{"kind":"k"}"#).unwrap();
        assert_eq!(
            (job.queue.as_str(), &job.payload.bytes[..], job.run_at),
            ("default", &b"null"[..], When::Now)
        );
        assert_eq!(
            line(r#"{"kind":"k","priority":2,"group":null}"#).unwrap().options.priority,
            Some(Priority::Low)
        );
    }

    #[test]
    fn payloads_that_are_no_json_travel_as_text_or_base64() {
        let text = line(r#"{"kind":"k","payload":"a\nb","content_type":"text/plain"}"#).unwrap();
        assert_eq!((&text.payload.bytes[..], &*text.payload.content_type), (&b"a\nb"[..], "text/plain"));
        let bytes = line(r#"{"kind":"k","payload_base64":"/wA="}"#).unwrap();
        assert_eq!(
            (&bytes.payload.bytes[..], &*bytes.payload.content_type),
            (&[255, 0][..], "application/octet-stream")
        );
        assert!(line(r#"{"kind":"k","payload":{},"content_type":"text/plain"}"#).is_err());
    }

    #[test]
    fn mistakes_name_their_field() {
        let long = "q".repeat(300);
        for (text, message) in [
            (
                r#"{"kind":"k","run_at_ms":-1}"#,
                "run_at_ms -1 is not a whole number within 0 to 253402300799999",
            ),
            (r#"{"kind":"k","run_at_ms":9007199254740993}"#, "run_at_ms 9007199254740993 is not"),
            (r#"{"kind":"k","run_at_ms":253402300800000}"#, "run_at_ms 253402300800000 is not"),
            (r#"{"kind":"k","run_at_ms":9223372036854775807}"#, "run_at_ms 9223372036854775807 is not"),
            (r#"{"kind":"k","run_at_ms":"tomorrow"}"#, "run_at_ms \"tomorrow\" is not a whole number"),
            (r#"{"kind":"k","delay_ms":1e18}"#, "delay_ms 1e18 is not"),
            (r#"{"kind":"k","delay_ms":1000000000000000000}"#, "delay_ms 1000000000000000000 is not"),
            (r#"{"kind":"k","delay_ms":1,"run_at_ms":1}"#, "run_at_ms and delay_ms are both given"),
            (r#"{"kind":"k","priority":-1}"#, "priority: \"-1\" is not a priority"),
            (r#"{"kind":"k","max_attempts":0}"#, "max_attempts 0 is not within"),
            (r#"{"kind":"k","max_attempts":4294967296}"#, "max_attempts 4294967296 is not"),
            (
                r#"{"kind":"k","timeout_ms":9223372036854775807}"#,
                "timeout_ms 9223372036854775807 is not within",
            ),
            (r#"{"kind":"k","lease_ms":1}"#, "lease_ms 1 is not within"),
            (r#"{"kind":"k","backoff":{"type":"fixed","base_ms":1e30}}"#, "backoff: "),
            (
                r#"{"kind":"k","backoff":{"type":"fixed","base_ms":9000000000000}}"#,
                "backoff base_ms 9000000000000 ms is over",
            ),
            (r#"{"kind":"k","backoff":{"type":"often","base_ms":1}}"#, "backoff: unknown variant"),
            (r#"{"kind":"k","unique":{"key":"a","scope":"window:1d"}}"#, "unique: the scope is none of"),
            (r#"{"kind":5}"#, "kind: invalid type"),
            (r#"{"queue":"q"}"#, "kind is missing"),
            (r#"{"kind":""}"#, "kind is empty"),
            (r#"{"kind":"a\u0000b"}"#, "kind contains NUL"),
            (
                r#"{"kind":"k","id":"550e8400-e29b-41d4-a716-446655440000"}"#,
                "550e8400-e29b-41d4-a716-446655440000 is not a job id",
            ),
            (r#"{"kind":"k","payload":1,"payload_base64":""}"#, "payload and payload_base64 are both given"),
            (r#"{"kind":"k","payload_base64":"!"}"#, "payload_base64: not base64"),
            (r#"{"kind":"k","concurrency_limit":1}"#, "concurrency_limit needs a concurrency_key"),
            (r#"{"kind":"k","tags":"a"}"#, "tags: invalid type"),
            (r#"{"kind":"k","kind":"l"}"#, "duplicate field `kind`"),
            (r#"{"kind":"k""#, "the line ends within the JSON"),
            ("nonsense", "the line is not JSON"),
            ("[]", "a list is not a job"),
            (r#"{"kind":"k","unique":["k"]}"#, "unique: not an object"),
            ("5", "invalid type"),
            (&format!(r#"{{"kind":"k","queue":"{long}"}}"#), "queue of 300 bytes is over the limit of 255"),
        ] {
            let wrong = line(text).unwrap_err();
            assert!(wrong.to_string().starts_with(message), "{text}: {wrong}");
        }
        let wrong = line(r#"{"kimd":"k"}"#).unwrap_err();
        assert_eq!(
            (wrong.to_string().as_str(), wrong.hint()),
            ("unknown field `kimd`", Some("did you mean `kind`?"))
        );
        let huge = line(&format!(r#"{{"kind":"k","tags":"{}"}}"#, "x".repeat(1 << 20))).unwrap_err();
        assert!(huge.to_string().len() < 300, "an error doesn't repeat a megabyte");
    }
}
