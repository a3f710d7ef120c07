//! A queue of the protocol: a queue of the store, and a document `sqs/NAME` with what SQS knows of it.
//!
//! A process believes a document for [`BELIEVED_FOR`]. So a queue that was deleted keeps its document as a mark until no process can
//! still send to it, and then its messages and the mark are removed (`sqs/purge.rs`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use punctual::{
    Client, Error, ErrorKind, JobRecord, Timestamp,
    store::{Doc, DocOp, DocReply, Precondition},
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    attributes::Attributes,
    fault::{Code, Fault},
    message,
};

/// The prefix of the keys of the documents.
pub(super) const PREFIX: &str = "sqs/";
/// How long a document is believed without a look at the store.
pub(super) const BELIEVED_FOR: Duration = Duration::from_secs(1);
/// Most queues that a process remembers.
const KNOWN_MAX: usize = 1_000;
/// Attempts at a change of a document that others change.
const ATTEMPTS: usize = 20;
/// How far the clocks of the parts of a store may differ, so that a purge finds all messages that were sent before it.
const CLOCKS_DIFFER: Duration = Duration::from_secs(10);
/// The longest name of a queue, in bytes.
const NAME_BYTES_MAX: usize = 80;
/// What names of FIFO queues end with.
const FIFO: &str = ".fifo";
/// The account of all queues.
pub(super) const ACCOUNT: &str = "000000000000";

/// A queue, as its document has it. A field that this version does not know can change what becomes of messages, so it makes the document
/// unreadable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Queue {
    pub(super) created_ms: u64,
    pub(super) modified_ms: u64,
    /// A number that each message gets. It rises by a purge, and when a deleted queue is made again. A queue that is made when nothing is
    /// known of an earlier one begins at the time, so that it is beyond those of earlier ones.
    pub(super) generation: u64,
    /// Messages of earlier generations are gone: by a purge that was asked at this time, or because an earlier queue of the name was
    /// deleted then. 0 if there was none.
    #[serde(default)]
    pub(super) gone_until_ms: u64,
    /// When it was deleted, if it was. For all but the removal of its messages, it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deleted_ms: Option<u64>,
    pub(super) attributes: Attributes,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) tags: BTreeMap<String, String>,
}

impl Queue {
    pub(super) fn read(doc: &Doc) -> Result<Self, Error> {
        serde_json::from_slice(&doc.value).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("could not read the document {:?}", doc.key))
                .with_hint("use the newer punctual that wrote it")
                .with_source(e)
        })
    }

    /// Returns the next generation.
    pub(super) fn next_generation(&self, now: Timestamp) -> u64 {
        self.generation.saturating_add(1).max(now.as_ms())
    }

    /// Returns whether a message is gone. What was sent to this generation never is, also if a clock went back. A job without a
    /// generation was enqueued by other means, and only its time says when. What an operator retried after the purge is not gone, either.
    pub(super) fn has_lost(&self, job: &JobRecord) -> bool {
        let gone_until = Timestamp::saturating_from_ms(self.gone_until_ms);
        // A retry raises the version, and lets the job be due from then on. What was changed before and is due later is kept, too: rather
        // that than to lose one.
        if 1 < job.version && gone_until < job.run_at {
            return false;
        }
        match message::generation_of(job) {
            // A copy that an operator pushed much later, with its headers, is new.
            Some(generation) => {
                generation < self.generation && job.created_at <= gone_until.after(CLOCKS_DIFFER)
            }
            None => job.created_at <= gone_until,
        }
    }

    /// Returns whether a message belongs to this queue, which was deleted, and not to a later one of its name.
    pub(super) fn takes_along(&self, job: &JobRecord) -> bool {
        let deleted_ms = self.deleted_ms.unwrap_or_default();
        match message::generation_of(job) {
            Some(generation) => generation <= self.generation,
            None => job.created_at.as_ms() <= deleted_ms,
        }
    }
}

/// Returns whether the queue of a name is a FIFO queue.
pub(super) fn is_fifo(name: &str) -> bool {
    name.ends_with(FIFO)
}

/// Checks the name of a queue.
pub(super) fn check_name(name: &str) -> Result<(), Fault> {
    let stem = name.strip_suffix(FIFO).unwrap_or(name);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if stem.is_empty() || NAME_BYTES_MAX < name.len() || !stem.bytes().all(is_plain) {
        return Err(Fault::value(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length; a FIFO queue ends with .fifo.",
        ));
    }
    Ok(())
}

/// Returns the name in the address of a queue: its last part.
pub(super) fn name_of(url: &str) -> Result<&str, Fault> {
    let name = url.rsplit('/').next().unwrap_or_default();
    // What has no such name has no queue.
    check_name(name).map_err(|_| Fault::no_queue())?;
    Ok(name)
}

/// Returns the name in the ARN of a queue.
pub(super) fn name_of_arn(arn: &str) -> Option<&str> {
    let ["arn", _, "sqs", _, _, name] = arn.split(':').collect::<Vec<_>>()[..] else { return None };
    check_name(name).ok().map(|()| name)
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// The queues of a store, as this process knows them.
#[derive(Debug)]
pub(super) struct Queues {
    client: Client,
    known: Mutex<HashMap<String, (Instant, Arc<Queue>)>>,
}

impl Queues {
    pub(super) fn new(client: &Client) -> Self {
        Self { client: client.clone(), known: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, (Instant, Arc<Queue>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a queue that is there.
    pub(super) async fn get(&self, name: &str) -> Result<Arc<Queue>, Fault> {
        if let Some((at, queue)) = self.table().get(name)
            && at.elapsed() < BELIEVED_FOR
        {
            return Ok(Arc::clone(queue));
        }
        // Before the read: what is read is believed from the time at which it was right.
        let at = Instant::now();
        match self.look(name).await? {
            Some((queue, _)) if queue.deleted_ms.is_none() => {
                let queue = Arc::new(queue);
                self.remember(name, at, &queue);
                Ok(queue)
            }
            _ => {
                self.forget(name);
                Err(Fault::no_queue())
            }
        }
    }

    /// Reads a document, with its version, whether it is a mark or not.
    pub(super) async fn look(&self, name: &str) -> Result<Option<(Queue, u64)>, Error> {
        match self.client.store().doc(&DocOp::Get { key: key(name) }).await? {
            DocReply::Is(Some(doc)) => Ok(Some((Queue::read(&doc)?, doc.version))),
            DocReply::Is(None) => Ok(None),
            DocReply::Conflict(_) | DocReply::Page { .. } => Err(unexpected()),
        }
    }

    /// Changes a document to what `change` makes of it, which gets `None` if there is none, and a mark as it is. Returns what `change`
    /// returns.
    pub(super) async fn change<T>(
        &self,
        name: &str,
        mut change: impl FnMut(Option<&Queue>) -> Result<(Option<Queue>, T), Fault>,
    ) -> Result<T, Fault> {
        for _ in 0..ATTEMPTS {
            let seen = self.look(name).await?;
            let (next, reply) = change(seen.as_ref().map(|(queue, _)| queue))?;
            let precondition = match &seen {
                Some((_, version)) => Precondition::IfVersion(*version),
                None => Precondition::IfAbsent,
            };
            let Some(next) = next else { return Ok(reply) };
            let value = serde_json::to_vec(&next)
                .map_err(|e| Error::invalid("could not write the queue").with_source(e))?;
            let put = DocOp::Put { key: key(name), precondition, value };
            match self.client.store().doc(&put).await? {
                DocReply::Is(_) => {
                    // The next look reads it.
                    self.forget(name);
                    return Ok(reply);
                }
                DocReply::Conflict(_) => {}
                DocReply::Page { .. } => return Err(unexpected().into()),
            }
        }
        Err(Fault::new(
            Code::ServiceUnavailable,
            "The queue was changed by others at each attempt. Try again.",
        ))
    }

    /// Removes a mark, if it is still of this version.
    pub(super) async fn remove(&self, name: &str, version: u64) -> Result<(), Error> {
        let remove = DocOp::Remove { key: key(name), precondition: Precondition::IfVersion(version) };
        self.client.store().doc(&remove).await.map(drop)
    }

    /// Returns names of queues that are there, after `after`, and whether there may be more. A page can be empty.
    pub(super) async fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<String>, Option<String>), Error> {
        let list = DocOp::List { prefix: key(prefix), after: after.map(key), limit };
        let (docs, more) = match self.client.store().doc(&list).await? {
            DocReply::Page { docs, more } => (docs, more),
            DocReply::Is(_) | DocReply::Conflict(_) => return Err(unexpected()),
        };
        let name = |doc: &Doc| doc.key.strip_prefix(PREFIX).unwrap_or_default().to_owned();
        let next = docs.last().filter(|_| more).map(name);
        let is_there = |doc: &&Doc| Queue::read(doc).is_ok_and(|queue| queue.deleted_ms.is_none());
        Ok((docs.iter().filter(is_there).map(name).collect(), next))
    }

    fn remember(&self, name: &str, at: Instant, queue: &Arc<Queue>) {
        let mut table = self.table();
        if KNOWN_MAX <= table.len() && !table.contains_key(name) {
            let oldest = table.iter().min_by_key(|(_, (at, _))| *at).map(|(name, _)| name.clone());
            oldest.map(|oldest| table.remove(&oldest));
        }
        table.insert(name.to_owned(), (at, Arc::clone(queue)));
    }

    fn forget(&self, name: &str) {
        self.table().remove(name);
    }
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a document")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_sqs() {
        for name in ["a", "A-b_9", "a.fifo", &"x".repeat(80)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".fifo", "a.b", "a.fifo.fifo", "$topics", "ä", "a b", &"x".repeat(81)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn addresses_and_arns_name_a_queue() {
        assert_eq!(name_of("http://localhost:7890/000000000000/mail").unwrap(), "mail");
        assert_eq!(name_of("mail.fifo").unwrap(), "mail.fifo");
        assert_eq!(name_of("http://x/").unwrap_err().code, Code::QueueDoesNotExist);
        assert_eq!(name_of_arn("arn:aws:sqs:us-east-1:000000000000:mail"), Some("mail"));
        for arn in [
            "mail",
            "arn:aws:sns:r:1:mail",
            "arn:aws:sqs:r:1:$topics",
            "arn:aws:sqs:r:1:a:b",
            "arn:aws:sqs:r:1:",
        ] {
            assert_eq!(name_of_arn(arn), None, "{arn}");
        }
    }
}
