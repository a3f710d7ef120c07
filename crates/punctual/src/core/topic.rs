//! Topics as documents, and publications: the job that waits for its time in `$topics`, and the jobs that come of it. The steps
//! on stores are the client's (`client/topic.rs`), and handing out the worker's (`worker/publication.rs`).
//!
//! ```text
//! subscribe ──► document "topic/NAME": the queues that are subscribed
//!                                               ▲ read when it is due
//! publish ──► publication, waits in $topics ──► handed out: a job in each of them ──► acked
//!                                               ids from (queue, publication): a repetition makes none twice
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::{JobOptions, JobRecord, NewJob, OnConflict, Priority, Unique, check_name, check_queue},
    limits::{
        DOC_BYTES_MAX, PUBLICATION_ATTEMPTS, PUBLICATION_TIMEOUT, SUBSCRIPTIONS_MAX, TOPIC_NAME_BYTES_MAX,
    },
    time::{Timestamp, When},
};

/// The queue where publications wait. Every worker serves it, beside its own queues.
pub const TOPICS_QUEUE: &str = "$topics";

/// How the keys of their documents begin, and those that the ids of their jobs are derived from.
pub(crate) const PREFIX: &str = "topic/";
/// The header that names the topic: of a publication, and of each job that came of it.
pub(crate) const TOPIC: &str = "topic";
/// The header with the publication that a job came of.
pub(crate) const PUBLICATION: &str = "publication";
/// The header of a publication with what its jobs have otherwise than itself.
pub(crate) const EACH: &str = "topic_job";

/// A topic's document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// What a later punctual adds must not be lost by a change that this one makes.
#[serde(deny_unknown_fields)]
pub(crate) struct Subscriptions {
    /// The queues, in their order, each once.
    pub(crate) queues: Vec<String>,
}

impl Subscriptions {
    /// Adds a queue; answers whether it is new.
    ///
    /// # Errors
    /// `Invalid` for what is no queue, and for one more than a topic may have.
    pub(crate) fn add(&mut self, queue: &str) -> Result<bool> {
        check_queue(queue)?;
        let Err(at) = self.place(queue) else { return Ok(false) };
        if SUBSCRIPTIONS_MAX <= self.queues.len() {
            return Err(Error::invalid(format!(
                "the topic has {SUBSCRIPTIONS_MAX} subscriptions, which is its limit"
            ))
            .with_hint("let a handler of one queue publish to another topic"));
        }
        self.queues.insert(at, queue.to_owned());
        Ok(true)
    }

    /// Takes a queue out; answers whether it was there.
    pub(crate) fn take_out(&mut self, queue: &str) -> bool {
        self.place(queue).map(|at| self.queues.remove(at)).is_ok()
    }

    fn place(&self, queue: &str) -> std::result::Result<usize, usize> {
        self.queues.binary_search_by(|known| known.as_str().cmp(queue))
    }

    /// Reads a document.
    pub(crate) fn read(name: &str, value: &[u8]) -> Result<Self> {
        serde_json::from_slice(value).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("could not read the topic {name:?}"))
                .with_source(e)
                .with_hint("remove the topic and subscribe again, or use the newer punctual that changed it")
        })
    }

    /// As a document.
    pub(crate) fn write(&self) -> Result<Vec<u8>> {
        let value = serde_json::to_vec(self)
            .map_err(|e| Error::invalid("could not write the topic").with_source(e))?;
        if value.len() <= DOC_BYTES_MAX {
            return Ok(value);
        }
        let text = format!("topic of {} bytes is over the limit of {DOC_BYTES_MAX}", value.len());
        Err(Error::new(ErrorKind::TooLarge, text).with_hint("give its queues shorter names"))
    }
}

/// The key of a topic's document.
pub(crate) fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Refuses what is no name of a topic: 1 to 200 bytes without control characters.
pub(crate) fn check_topic(name: &str) -> Result<()> {
    check_name("topic", name)?;
    if TOPIC_NAME_BYTES_MAX < name.len() {
        let n = name.len();
        return Err(Error::invalid(format!(
            "topic of {n} bytes is over the limit of {TOPIC_NAME_BYTES_MAX}"
        )));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid("topic contains a control character"));
    }
    Ok(())
}

/// Refuses what is no publication, of a job in `$topics`: nobody else's business is there.
pub(crate) fn check_publication(headers: &BTreeMap<String, String>) -> Result<()> {
    let Some(topic) = headers.get(TOPIC) else {
        return Err(Error::invalid(format!(
            "queue {TOPICS_QUEUE:?} is reserved: publications wait there until they are due"
        ))
        .with_hint("publish to a topic instead"));
    };
    check_topic(topic)?;
    Each::of(headers).map(drop)
}

/// What the jobs of a publication have otherwise than itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Each {
    /// As they were chosen, so that what was left open comes from each one's own queue.
    #[serde(skip_serializing_if = "is_default")]
    options: JobOptions,
    /// A key that each holds in its own queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<Unique>,
}

fn is_default(options: &JobOptions) -> bool {
    *options == JobOptions::default()
}

impl Each {
    fn of(headers: &BTreeMap<String, String>) -> Result<Self> {
        let Some(text) = headers.get(EACH) else { return Ok(Self::default()) };
        serde_json::from_str(text)
            .map_err(|e| Error::invalid(format!("could not read the header {EACH}: {e}")).with_source(e))
    }
}

/// A job as the publication that it comes of, where `job` says what each subscription gets. Its queue is that of nobody.
///
/// # Errors
/// `Invalid` or `TooLarge` for a job that breaks a limit, or has one of the headers that are a publication's.
pub(crate) fn publication(topic: &str, mut job: NewJob) -> Result<NewJob> {
    check_topic(topic)?;
    for header in [TOPIC, PUBLICATION, EACH] {
        if job.headers.contains_key(header) {
            let text = format!("a job that is published has no header {header} of its own");
            return Err(Error::invalid(text).with_hint("the header names the publication of a job"));
        }
    }
    let is_kept = job.unique.as_ref().is_none_or(|unique| unique.on_conflict == OnConflict::Keep);
    if !is_kept {
        let text = "a job that is published can not replace or reschedule others";
        return Err(Error::invalid(text)
            .with_hint("a publication may be handed out twice, and would change them again; keep them"));
    }
    let each = Each { options: std::mem::take(&mut job.options), unique: job.unique.take() };
    // As long as what it will be replaced by.
    job.headers.insert(PUBLICATION.to_owned(), job.id.to_string());
    job.headers.insert(TOPIC.to_owned(), topic.to_owned());
    let longest = NewJob {
        queue: "default".to_owned(),
        options: each.options.clone(),
        unique: each.unique.clone(),
        ..job.clone()
    };
    longest.check()?;
    job.headers.remove(PUBLICATION);
    if each != Each::default() {
        let text = serde_json::to_string(&each)
            .map_err(|e| Error::invalid("could not write the options of its jobs").with_source(e))?;
        job.headers.insert(EACH.to_owned(), text);
    }
    TOPICS_QUEUE.clone_into(&mut job.queue);
    job.options.priority = each.options.priority;
    job.options.max_attempts = Some(PUBLICATION_ATTEMPTS);
    job.options.timeout = Some(PUBLICATION_TIMEOUT);
    job.check()?;
    Ok(job)
}

/// The id that an idempotency key stands for within a topic, among publications of a kind or of all. Names of topics have no control
/// character: no two pairs share one.
pub(crate) fn derived_id(topic: &str, kind: Option<&str>, placement_key: Option<&str>, key: &str) -> JobId {
    let name = format!("{topic}\n{key}");
    JobId::derived_within(kind, TOPICS_QUEUE, placement_key, &name)
}

/// A publication that is due.
#[derive(Debug)]
pub(crate) struct Publication<'a> {
    record: &'a JobRecord,
    pub(crate) topic: &'a str,
    each: Each,
}

impl<'a> Publication<'a> {
    /// Reads a job of `$topics`.
    pub(crate) fn of(record: &'a JobRecord) -> Result<Self> {
        check_publication(&record.headers)?;
        let topic = record.headers.get(TOPIC).map_or("", String::as_str);
        Ok(Self { record, topic, each: Each::of(&record.headers)? })
    }

    /// The job that a subscribed queue gets: always of the same id, however often it is asked for.
    pub(crate) fn job(&self, queue: &str) -> NewJob {
        let of = self.record;
        // A placeholder: the id depends on what places the job.
        let mut job = NewJob::new(of.id, of.kind.clone(), queue, of.payload.clone());
        job.run_at = When::At(of.run_at);
        job.expires_at = of.expires_at.map(When::At);
        job.options = self.each.options.clone();
        // Somebody may have given the publication another one since.
        if job.options.priority.is_some() || of.priority != Priority::default() {
            job.options.priority = Some(of.priority);
        }
        (job.group, job.concurrency) = (of.group.clone(), of.concurrency.clone());
        (job.unique, job.tags, job.headers) = (self.each.unique.clone(), of.tags.clone(), of.headers.clone());
        job.headers.remove(EACH);
        job.headers.insert(PUBLICATION.to_owned(), of.id.to_string());
        // With the time of its making: a publication by an idempotency key that was forgotten has the same id again.
        let key = format!("{PREFIX}{}/{}", of.id, of.created_at.as_ms());
        job.id = JobId::derived(queue, job.placement_key(), &key);
        job
    }

    /// When it was begun to be handed out, as far as that is known; `None`: it was not.
    pub(crate) fn begun_at(&self) -> Option<Timestamp> {
        if self.record.attempt == 1 {
            // Whoever lets one that is dead begin again knows what may come of it.
            return None;
        }
        // Of these attempts: others may be left from before an operator's retry.
        let own = self.record.failures.iter().rev().take(self.record.attempt as usize - 1);
        let begun_ms = own.map(|failure| failure.started_ms).min();
        begun_ms.map(Timestamp::saturating_from_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::job::Payload;

    fn job() -> NewJob {
        NewJob::new(JobId::derived("q", None, "k"), "k", "q", Payload::json("1"))
    }

    #[test]
    fn a_queue_is_subscribed_once() {
        let mut subscriptions = Subscriptions::default();
        let added = ["b", "a", "b"].map(|queue| subscriptions.add(queue).unwrap());
        assert_eq!((added, subscriptions.queues.join(" ")), ([true, true, false], "a b".to_owned()));
        assert_eq!(["b", "b"].map(|queue| subscriptions.take_out(queue)), [true, false]);
        assert!(subscriptions.add("$topics").is_err());
    }

    #[test]
    fn a_topic_has_so_many_subscriptions_and_no_more() {
        let mut subscriptions = Subscriptions::default();
        for n in 0..SUBSCRIPTIONS_MAX {
            assert!(subscriptions.add(&format!("q{n:04}")).unwrap());
        }
        assert!(subscriptions.add("one more").is_err());
        assert!(!subscriptions.add("q0000").unwrap());
        assert!(subscriptions.write().is_ok());
        subscriptions.queues = (0..SUBSCRIPTIONS_MAX).map(|n| format!("{n:0>100}")).collect();
        assert_eq!(subscriptions.write().unwrap_err().kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn a_publication_keeps_what_its_jobs_shall_have() {
        let mut of = job();
        of.options.max_attempts = Some(1);
        of.unique = Some(Unique::key("u"));
        let publication = publication("t", of.clone()).unwrap();
        assert_eq!((publication.queue.as_str(), publication.unique.as_ref()), (TOPICS_QUEUE, None));
        assert_eq!(publication.options.max_attempts, Some(PUBLICATION_ATTEMPTS));
        let each = Each::of(&publication.headers).unwrap();
        assert_eq!((each.options, each.unique), (of.options, of.unique));
    }

    #[test]
    fn an_idempotency_key_is_one_of_its_topic() {
        let id = |topic, key| derived_id(topic, None, None, key);
        assert_ne!(id("a", "b"), id("b", "b"));
        assert_ne!(id("a", "b"), id("ab", ""));
        assert_ne!(derived_id("a", Some("k"), None, "b"), id("a", "b"));
    }
}
