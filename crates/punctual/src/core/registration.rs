//! Registrations: what a running worker says of itself, as a document of the store.
//!
//! ```text
//! worker ──at its start, then every 15 s──► document "worker/ID" ──► lists of workers
//!    ▲                                           ▲
//!    └── its next write conflicts, and returns ──┴── the order of an operator: quiet, resume, stop
//! ```

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::core::{
    error::{Error, ErrorKind, Result},
    limits::DOC_BYTES_MAX,
    time::Timestamp,
};

/// The prefix of the keys of their documents.
pub(crate) const PREFIX: &str = "worker/";
/// Most kinds of a registration. Further ones are counted.
pub(crate) const KINDS_MAX: usize = 50;
/// How often a worker writes its registration. Up to a tenth is added, so that workers do not write all at once.
pub(crate) const WRITE_EVERY: Duration = Duration::from_secs(15);
/// A worker that has not written for this long is missing.
pub(crate) const MISSING_AFTER: Duration = Duration::from_mins(1);
/// A registration that is this old is removed.
pub(crate) const FORGOTTEN_AFTER: Duration = Duration::from_hours(24);
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 16;

/// A running worker, as it registered itself.
///
/// A worker registers itself at its start, writes anew every 15 s, and removes its registration when it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// Its id: 16 hexadecimal digits, drawn anew each time that a worker starts.
    pub id: String,
    /// Its name. Jobs that it runs have it as their `worker`.
    pub name: String,
    /// The name of its machine.
    pub host: String,
    /// The id of its process.
    pub pid: u32,
    /// The version of punctual.
    pub version: String,
    /// When it started.
    #[serde(rename = "since_ms")]
    pub since: Timestamp,
    /// When it last wrote its registration.
    #[serde(rename = "seen_ms")]
    pub seen: Timestamp,
    /// Its state. `Missing` is that of a worker that has not written for 60 s.
    pub state: WorkerState,
    /// The queues that it serves, in its order.
    pub queues: Vec<ServedQueue>,
    /// The kinds that it has handlers for, sorted: the first 50. `*` means all other kinds.
    pub kinds: Vec<String>,
    /// How many more kinds it has handlers for.
    pub more_kinds: usize,
    /// How many jobs it runs at once at most.
    pub slots: usize,
    /// How many jobs it ran when it last wrote.
    pub busy: usize,
    /// What it forwards jobs to, if it is a forwarder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwards: Option<Forwarding>,
    /// An order that it has not found yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<WorkerOrder>,
}

/// A queue that a worker serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServedQueue {
    /// The name.
    pub name: String,
    /// Its weight; `None` if each queue is served before those after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

impl ServedQueue {
    pub(crate) const fn new(name: String, weight: Option<u32>) -> Self {
        Self { name, weight }
    }
}

/// What a forwarder did since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Forwarding {
    /// The address of the receiver, without its secrets.
    pub to: String,
    /// Messages that the receiver confirmed.
    pub sent: u64,
    /// Attempts that the receiver refused, or whose message could not be sent.
    pub failed: u64,
    /// The last error, until a message is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum WorkerState {
    /// It reserves jobs and runs them.
    #[default]
    Working,
    /// It was ordered to reserve no jobs. Its runs go on.
    Quiet,
    /// It shuts down: it reserves no jobs, and its runs end within its grace period.
    Stopping,
    /// It has not been seen for 60 s: it was killed, or it cannot reach the store.
    Missing,
}

impl WorkerState {
    /// Returns the name, as documents and command lines write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Quiet => "quiet",
            Self::Stopping => "stopping",
            Self::Missing => "missing",
        }
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What an operator can order a worker to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum WorkerOrder {
    /// Reserve no further jobs. Runs go on.
    Quiet,
    /// Reserve jobs again.
    Resume,
    /// Shut down as after SIGTERM: runs can end within the grace period.
    Stop,
}

impl WorkerOrder {
    /// Returns the name, as documents and command lines write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Resume => "resume",
            Self::Stop => "stop",
        }
    }
}

impl WorkerInfo {
    /// Reads the document of a worker, for programs that offer the documents of a store to others.
    ///
    /// # Errors
    /// `Invalid` if the key is not that of a worker; `Corrupt` for a value that cannot be read.
    pub fn read(key: &str, value: &[u8]) -> Result<Self> {
        let id = id_of(key)
            .ok_or_else(|| Error::invalid(format!("{key:?} is not the key of the document of a worker")))?;
        let info: Self = serde_json::from_slice(value).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("could not read the registration of worker {id}"))
                .with_source(e)
                .with_hint("use the newer punctual that wrote it")
        })?;
        Ok(Self { id: id.to_owned(), ..info })
    }

    /// Formats the document.
    pub(crate) fn write(&self) -> Result<Vec<u8>> {
        checked(serde_json::to_vec(self))
    }

    /// Returns it as it is at `now`, which decides whether it is missing.
    pub(crate) fn at(self, now: Timestamp) -> Self {
        let is_missing = MISSING_AFTER <= now.since(self.seen);
        Self { state: if is_missing { WorkerState::Missing } else { self.state }, ..self }
    }

    /// Returns whether it has been missing for so long that it can be removed.
    pub(crate) fn is_forgotten(&self, now: Timestamp) -> bool {
        FORGOTTEN_AFTER <= now.since(self.seen)
    }
}

/// Returns whether a document is of a worker that has been missing for so long that it can be removed. What cannot be read is old,
/// unless it says when its worker was seen.
pub(crate) fn is_forgotten(value: &[u8], now: Timestamp) -> bool {
    #[derive(Deserialize)]
    struct Seen {
        #[serde(rename = "seen_ms")]
        seen: Timestamp,
    }
    let seen = serde_json::from_slice::<Seen>(value).map(|of| of.seen).unwrap_or_default();
    FORGOTTEN_AFTER <= now.since(seen)
}

/// Adds an order to a document. Fields of later versions are kept.
///
/// # Errors
/// `Corrupt` for a value that cannot be read.
pub(crate) fn ordered(key: &str, value: &[u8], order: WorkerOrder) -> Result<Vec<u8>> {
    WorkerInfo::read(key, value)?;
    let mut fields: Map<String, Value> = serde_json::from_slice(value)
        .map_err(|e| Error::new(ErrorKind::Corrupt, "a registration is no object").with_source(e))?;
    fields.insert("order".to_owned(), Value::from(order.name()));
    checked(serde_json::to_vec(&fields))
}

fn checked(value: serde_json::Result<Vec<u8>>) -> Result<Vec<u8>> {
    let value = value.map_err(|e| Error::invalid("could not write the registration").with_source(e))?;
    if value.len() <= DOC_BYTES_MAX {
        return Ok(value);
    }
    let n = value.len();
    Err(Error::new(
        ErrorKind::TooLarge,
        format!("registration of {n} bytes is over the limit of {DOC_BYTES_MAX}"),
    ))
}

/// Returns the key of the document of a worker.
pub(crate) fn key(id: &str) -> String {
    format!("{PREFIX}{id}")
}

/// Returns the id of the worker of a document.
pub(crate) fn id_of(key: &str) -> Option<&str> {
    key.strip_prefix(PREFIX).filter(|id| is_id(id))
}

/// Returns whether a text is the id of a worker.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "worker/00000000c0ffee00";

    #[test]
    fn an_order_keeps_the_fields_of_later_versions() {
        let value = br#"{"name":"a","seen_ms":5,"later":[1]}"#;
        let value = ordered(KEY, value, WorkerOrder::Stop).unwrap();
        assert!(std::str::from_utf8(&value).unwrap().contains(r#""later":[1]"#));
        let info = WorkerInfo::read(KEY, &value).unwrap();
        assert_eq!((&*info.id, &*info.name, info.order), ("00000000c0ffee00", "a", Some(WorkerOrder::Stop)));
    }

    #[test]
    fn a_worker_that_was_not_seen_is_missing_and_then_forgotten() {
        let seen = Timestamp::saturating_from_ms(1_000);
        let info = WorkerInfo { seen, state: WorkerState::Quiet, ..WorkerInfo::default() };
        let just_before = seen.after(MISSING_AFTER.checked_sub(Duration::from_millis(1)).unwrap());
        assert_eq!(info.clone().at(just_before).state, WorkerState::Quiet);
        assert_eq!(info.clone().at(seen.after(MISSING_AFTER)).state, WorkerState::Missing);
        assert!(!info.is_forgotten(just_before) && info.is_forgotten(seen.after(FORGOTTEN_AFTER)));
    }

    #[test]
    fn only_keys_of_workers_are_read() {
        for key in ["worker/", "worker/00000000C0FFEE00", "worker/00000000c0ffee000", "token/00c0ffee"] {
            assert_eq!(WorkerInfo::read(key, b"{}").unwrap_err().kind(), ErrorKind::Invalid, "{key}");
        }
        assert_eq!(WorkerInfo::read(KEY, b"[").unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
