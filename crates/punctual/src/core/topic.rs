//! Topics as documents, publications that wait in `$topics`, and the jobs that they become.
//!
//! The steps on stores are in `runtime/client/topic.rs`. Publications are distributed in `runtime/worker/publication.rs`.
//!
//! ```text
//! subscribe ──► document "topic/NAME": the subscribed queues
//!                                               ▲ read when it is due
//! publish ──► publication, waits in $topics ──► distributed: a job in each of them ──► acked
//!                                               ids from (queue, publication): a repetition duplicates none
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::core::{
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::{
        JobOptions, JobRecord, NewJob, OnConflict, Priority, Unique, check_name, check_new_kind,
        check_new_queue, check_queue,
    },
    limits::{
        DOC_BYTES_MAX, PUBLICATION_ATTEMPTS, PUBLICATION_TIMEOUT, SUBSCRIPTIONS_MAX, TOPIC_NAME_BYTES_MAX,
    },
    time::{Timestamp, When},
};

/// The queue in which publications wait. Each worker serves it in addition to its own queues.
pub const TOPICS_QUEUE: &str = "$topics";

/// The prefix of the keys of their documents, and of the keys from which the ids of their jobs are derived.
pub(crate) const PREFIX: &str = "topic/";
/// The header that names the topic, on a publication and on each of its jobs.
pub(crate) const TOPIC: &str = "topic";
/// The header with the publication that a job belongs to.
pub(crate) const PUBLICATION: &str = "publication";
/// The header of a publication with the values of its jobs that differ from its own.
pub(crate) const EACH: &str = "topic_job";

/// A topic's document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// Unknown fields are kept, so that a change by this version does not lose what a later one added.
#[serde(deny_unknown_fields)]
pub(crate) struct Subscriptions {
    /// The queues, sorted, without duplicates.
    pub(crate) queues: Vec<String>,
}

impl Subscriptions {
    /// Adds a queue; returns whether it is new.
    ///
    /// # Errors
    /// `Invalid` for an invalid queue name, or if the topic has as many queues as it can have.
    pub(crate) fn add(&mut self, queue: &str) -> Result<bool> {
        check_queue(queue)?;
        let Err(at) = self.place(queue) else { return Ok(false) };
        check_new_queue(queue)?;
        if SUBSCRIPTIONS_MAX <= self.queues.len() {
            return Err(Error::invalid(format!(
                "the topic has {SUBSCRIPTIONS_MAX} subscriptions, which is its limit"
            ))
            .with_hint("let a handler of one queue publish to another topic"));
        }
        self.queues.insert(at, queue.to_owned());
        Ok(true)
    }

    /// Removes a queue; returns whether it was there.
    pub(crate) fn take_out(&mut self, queue: &str) -> bool {
        self.place(queue).map(|at| self.queues.remove(at)).is_ok()
    }

    fn place(&self, queue: &str) -> std::result::Result<usize, usize> {
        self.queues.binary_search_by(|known| known.as_str().cmp(queue))
    }

    /// Parses a document.
    pub(crate) fn read(name: &str, value: &[u8]) -> Result<Self> {
        serde_json::from_slice(value).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("could not read the topic {name:?}"))
                .with_source(e)
                .with_hint("remove the topic and subscribe again, or use the newer punctual that changed it")
        })
    }

    /// Formats the document.
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

/// Returns the key of a topic's document.
pub(crate) fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Checks a name of a topic: 1 to 200 bytes without control characters.
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

/// Checks that a job in `$topics` is a publication.
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

/// The values of a publication's jobs that differ from its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Each {
    /// The options as they were chosen, so that open ones are filled from the queue of each job.
    #[serde(skip_serializing_if = "is_default")]
    options: JobOptions,
    /// The unique key that each job holds in its own queue.
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

/// Makes the publication of a job, where `job` describes what each subscription gets. Its queue is ignored.
///
/// # Errors
/// `Invalid` or `TooLarge` for a job that breaks a limit, or that has a header reserved for publications.
pub(crate) fn publication(topic: &str, mut job: NewJob) -> Result<NewJob> {
    check_topic(topic)?;
    check_new_kind(&job.kind)?;
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
    // A placeholder of the same length.
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

/// Returns the id that an idempotency key stands for in a topic, among publications of one kind or of all.
///
/// Names of topics have no control characters, so no two pairs share an id.
pub(crate) fn derived_id(topic: &str, kind: Option<&str>, placement_key: Option<&str>, key: &str) -> JobId {
    let name = format!("{topic}\n{key}");
    JobId::derived_within(kind, TOPICS_QUEUE, placement_key, &name)
}

/// A due publication.
#[derive(Debug)]
pub(crate) struct Publication<'a> {
    record: &'a JobRecord,
    pub(crate) topic: &'a str,
    each: Each,
}

impl<'a> Publication<'a> {
    /// Parses a job of `$topics`.
    pub(crate) fn of(record: &'a JobRecord) -> Result<Self> {
        check_publication(&record.headers)?;
        let topic = record.headers.get(TOPIC).map_or("", String::as_str);
        Ok(Self { record, topic, each: Each::of(&record.headers)? })
    }

    /// Returns the job that a subscribed queue gets. Its id is the same in each call.
    pub(crate) fn job(&self, queue: &str) -> NewJob {
        let of = self.record;
        // A placeholder: the id depends on the placement key.
        let mut job = NewJob::new(of.id, of.kind.clone(), queue, of.payload.clone());
        job.run_at = When::At(of.run_at);
        job.expires_at = of.expires_at.map(When::At);
        job.options = self.each.options.clone();
        // An operator can have changed the priority of the publication since.
        if job.options.priority.is_some() || of.priority != Priority::default() {
            job.options.priority = Some(of.priority);
        }
        (job.group, job.concurrency) = (of.group.clone(), of.concurrency.clone());
        (job.unique, job.tags, job.headers) = (self.each.unique.clone(), of.tags.clone(), of.headers.clone());
        job.headers.remove(EACH);
        job.headers.insert(PUBLICATION.to_owned(), of.id.to_string());
        // Includes the time at which it was made: a publication with a forgotten idempotency key has the same id
        // again.
        let key = format!("{PREFIX}{}/{}", of.id, of.created_at.as_ms());
        job.id = JobId::derived(queue, job.placement_key(), &key);
        job
    }

    /// Returns when its distribution started, as far as known; `None` if it has not.
    pub(crate) fn begun_at(&self) -> Option<Timestamp> {
        if self.record.attempt == 1 {
            // An operator that retries a dead publication accepts the consequences.
            return None;
        }
        // Only of these attempts: failures from before an operator's retry can be left.
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
