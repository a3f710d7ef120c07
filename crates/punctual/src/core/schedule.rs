//! Schedules as documents: when they tick, and the job of each tick.
//!
//! The steps on stores are in `runtime/client/schedule.rs`, and those of a run in `runtime/worker/tick.rs`.
//!
//! ```text
//! set ──► document "schedule/NAME", whose version is the generation
//!           │ enqueue                                      reserve           ┌─ enqueues the next tick ─► run
//!           └──────► waiting: the next tick, an ordinary job ──────► tick ───┤
//!                    id from (name, generation, tick)                        └─ another generation, or missed: cancelled
//!                    unique key of the schedule, until its start: one tick waits
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::core::{
    cron::Cron,
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::{Concurrency, JobOptions, JobRecord, NewJob, Payload, SCHEDULE, Scope, Unique, check_name},
    limits::{DOC_BYTES_MAX, SCHEDULE_NAME_BYTES_MAX},
    pause::Pause,
    time::{Timestamp, When},
    unique_key::UniqueKey,
};

/// The prefix of the keys of their documents, and of the unique keys of their ticks.
pub(crate) const PREFIX: &str = "schedule/";
/// The header with the generation by which a tick was enqueued.
pub(crate) const GENERATION: &str = "schedule_generation";
/// The header with the time of a tick, in Unix milliseconds.
pub(crate) const SCHEDULED_FOR: &str = "scheduled_for";

/// A schedule: when it ticks, and the job that each tick enqueues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// When it ticks.
    #[serde(rename = "ticks")]
    pub cron: Cron,
    /// The job of each tick.
    pub job: ScheduledJob,
    /// The pause, if it is paused. Nothing is enqueued meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
}

/// The job of a schedule. It is the same for each tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduledJob {
    /// The name that selects the handler.
    pub kind: String,
    /// The queue of the ticks.
    pub queue: String,
    /// The payload, which must be text.
    pub payload: String,
    /// The media type of the payload.
    pub content_type: String,
    /// The options of the job.
    #[serde(default)]
    pub options: JobOptions,
    /// The group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The concurrency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// Tags, for people and filters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The headers, in addition to those of each tick.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl Schedule {
    /// Makes a schedule that enqueues a job like `job` at each tick of `cron`.
    ///
    /// # Errors
    /// `Invalid` for a job that breaks a limit, or whose payload is not text. Also for a job with a time, an expiry
    /// or a unique key: the schedule sets these for each tick.
    pub fn new(cron: Cron, job: NewJob) -> Result<Self> {
        job.check()?;
        let not = |what: &str, instead: &str| {
            Err(Error::invalid(format!("the job of a schedule has no {what} of its own")).with_hint(instead))
        };
        if job.run_at != When::Now {
            return not("time", "the schedule says when it is due");
        }
        if job.expires_at.is_some() {
            return not("expiry", "say by the rule for missed ticks what becomes of late ones");
        }
        if job.unique.is_some() {
            return not(
                "unique key",
                "one tick waits at most; a concurrency key keeps runs from overlapping",
            );
        }
        for header in [SCHEDULE, GENERATION, SCHEDULED_FOR] {
            if job.headers.contains_key(header) {
                return not(&format!("header {header}"), "its ticks have it");
            }
        }
        let payload = String::from_utf8(job.payload.bytes)
            .map_err(|e| Error::invalid("the payload of a schedule is not UTF-8").with_source(e))?;
        let job = ScheduledJob {
            kind: job.kind,
            queue: job.queue,
            payload,
            content_type: job.payload.content_type.into_owned(),
            options: job.options,
            group: job.group,
            concurrency: job.concurrency,
            tags: job.tags,
            headers: job.headers,
        };
        Ok(Self { cron, job, paused: None })
    }

    /// Checks that its ticks break no limit, and that it fits into a document.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        check_schedule(name)?;
        self.tick(name, u64::MAX, Timestamp::MAX, u32::MAX).check()?;
        let bytes = self.write()?.len();
        if bytes <= DOC_BYTES_MAX {
            return Ok(());
        }
        let text = format!("schedule of {bytes} bytes is over the limit of {DOC_BYTES_MAX}");
        Err(Error::new(ErrorKind::TooLarge, text)
            .with_hint("store large data elsewhere and schedule its address"))
    }

    /// Parses a document.
    pub(crate) fn read(name: &str, value: &[u8]) -> Result<Self> {
        serde_json::from_slice(value).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("could not read the schedule {name:?}"))
                .with_source(e)
                .with_hint("set the schedule again, or use the newer punctual that set it")
        })
    }

    /// Formats the document.
    pub(crate) fn write(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::invalid("could not write the schedule").with_source(e))
    }

    /// Returns the job of a tick, for this generation. `round` is above 0 if the tick before made room for earlier
    /// ones.
    pub(crate) fn tick(&self, name: &str, generation: u64, at: Timestamp, round: u32) -> NewJob {
        let mut job = self.job(name);
        job.run_at = When::At(at);
        job.unique = Some(Unique::key(key(name)).until_start().across_kinds());
        job.headers.insert(GENERATION.to_owned(), generation.to_string());
        job.headers.insert(SCHEDULED_FOR.to_owned(), at.as_ms().to_string());
        let round = if 0 < round { format!("/{round}") } else { String::new() };
        let key = format!("{}/{generation}/{}{round}", key(name), at.as_ms());
        job.derive_id(key, true);
        job
    }

    /// Returns the job without a tick, due now. The caller sets its id.
    pub(crate) fn job(&self, name: &str) -> NewJob {
        let of = self.job.clone();
        let payload = Payload { bytes: of.payload.into_bytes(), content_type: of.content_type.into() };
        // A placeholder that both callers replace.
        let id = JobId::derived(&of.queue, None, name);
        let mut job = NewJob::new(id, of.kind, of.queue, payload);
        (job.options, job.group, job.concurrency) = (of.options, of.group, of.concurrency);
        (job.tags, job.headers) = (of.tags, of.headers);
        job.headers.insert(SCHEDULE.to_owned(), name.to_owned());
        job
    }

    /// Returns the unique key that the waiting tick holds.
    pub(crate) fn unique_key(&self, name: &str) -> UniqueKey {
        UniqueKey {
            kind: None,
            queue: self.job.queue.clone(),
            group: self.job.group.clone(),
            concurrency_key: self.job.concurrency.as_ref().map(|concurrency| concurrency.key.clone()),
            key: key(name),
        }
    }
}

/// Returns the key of a schedule's document.
pub(crate) fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Checks a name of a schedule: 1 to 200 bytes without control characters.
pub(crate) fn check_schedule(name: &str) -> Result<()> {
    check_name("schedule", name)?;
    if SCHEDULE_NAME_BYTES_MAX < name.len() {
        let n = name.len();
        return Err(Error::invalid(format!(
            "schedule of {n} bytes is over the limit of {SCHEDULE_NAME_BYTES_MAX}"
        )));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid("schedule contains a control character"));
    }
    Ok(())
}

/// The schedule and time of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick<'a> {
    pub(crate) name: &'a str,
    pub(crate) generation: u64,
    pub(crate) at: Timestamp,
}

impl<'a> Tick<'a> {
    /// Returns the tick that a job is, or `None` if it is none.
    ///
    /// Headers alone are no proof, because they can be copied to any job. A tick also has a derived id and the unique
    /// key of its schedule.
    pub(crate) fn of(job: &'a JobRecord) -> Option<Self> {
        let name = job.headers.get(SCHEDULE)?;
        let generation = job.headers.get(GENERATION)?.parse().ok()?;
        let has_key = |unique: &Unique| unique.scope == Scope::UntilStart && unique.key == key(name);
        let is_tick = job.id.is_derived() && job.unique.as_ref().is_some_and(has_key);
        Some(Self { name, generation, at: scheduled_for(&job.headers)? }).filter(|_| is_tick)
    }
}

/// Returns the time of the tick that a job stands for.
pub(crate) fn scheduled_for(headers: &BTreeMap<String, String>) -> Option<Timestamp> {
    Timestamp::from_ms(headers.get(SCHEDULED_FOR)?.parse().ok()?).ok()
}
