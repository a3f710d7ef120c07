//! Moving messages: to their dead-letter queue if they were received too often, and to their own queue before their job has no attempt
//! left.
//!
//! A move is an enqueue, and then the end of the message in its own queue. After a kill between the two, the message comes back and is
//! moved again: its new id is derived from the old one, so the second enqueue finds the first. The version of the job is part of it. It
//! rises when an operator lets the message wait again, so that the next death is another message.
//!
//! A job is dead after its last attempt, and a message must not die of that. So it becomes a new job of the same queue while it has some
//! attempts left, which are for moves that are cut off.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use punctual::{
    Error, ErrorKind, JobOptions, JobRecord, NewJob, Priority, When,
    limits::{HEADERS_BYTES_MAX, MAX_ATTEMPTS_MAX, SNOOZES_MAX},
    store::{Enqueued, Heartbeat, Reserved, Settlement, Verdict},
};
use tokio::time::{Instant, error::Elapsed, timeout_at};

use super::{
    Door,
    fault::{Code, Fault},
    message,
    queue::{self, Queue},
};

/// Attempts that are left when a job is moved to its own queue. Of a job with few attempts it is half of them.
const SPARE_ATTEMPTS: u32 = 100;
/// How long a message that could not be moved waits for the next attempt.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Where some messages of a queue are moved to.
#[derive(Debug)]
pub(super) struct Target {
    from: String,
    name: String,
    why: Why,
}

#[derive(Debug)]
enum Why {
    /// They were received more often than this, and move to a dead-letter queue.
    Receives(u32, Arc<Queue>),
    /// Their jobs have few attempts left.
    Attempts,
}

/// What became of messages that were to be moved.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// How those that were moved end.
    pub(super) ends: Vec<Settlement>,
    /// Those that were refused.
    pub(super) refused: Vec<Reserved>,
    /// Those of which nobody knows. They must not be delivered: their new jobs may be there, too.
    pub(super) unknown: Vec<Reserved>,
}

/// What became of a letter.
#[derive(Clone, Copy, Debug)]
enum Fate {
    There,
    Refused,
    Unknown,
}

impl Target {
    /// Returns where dead letters of a queue go; `None` if it has no redrive policy, or that queue is gone.
    pub(super) async fn of(door: &Door, from: &str, queue: &Queue) -> Result<Option<Self>, Fault> {
        let Some(redrive) = &queue.attributes.redrive else { return Ok(None) };
        match door.queues.get(&redrive.queue).await {
            Ok(queue) => Ok(Some(Self {
                from: from.to_owned(),
                name: redrive.queue.clone(),
                why: Why::Receives(redrive.receives, queue),
            })),
            Err(fault) if fault.code == Code::QueueDoesNotExist => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Returns the queue itself, for jobs that have few attempts left.
    pub(super) fn same(queue: &str) -> Self {
        Self { from: queue.to_owned(), name: queue.to_owned(), why: Why::Attempts }
    }

    /// Returns whether a job that was just reserved is to be moved.
    pub(super) fn takes(&self, job: &JobRecord) -> bool {
        match self.why {
            Why::Receives(receives, _) => receives < message::receives(job),
            Why::Attempts => job.max_attempts - SPARE_ATTEMPTS.min(job.max_attempts / 2) <= job.attempt,
        }
    }

    /// Makes what a job is moved as.
    fn letter(&self, door: &Door, job: &JobRecord) -> NewJob {
        let mut letter = NewJob::new(door.client.make_id(), &job.kind, &self.name, job.payload.clone());
        letter.group.clone_from(&job.group);
        letter.concurrency.clone_from(&job.concurrency);
        letter.tags.clone_from(&job.tags);
        letter.headers.clone_from(&job.headers);
        let mut priority = job.priority;
        let sent = job.created_at.as_ms().to_string();
        let mut own = vec![(message::ID, job.id.to_string(), true), (message::SENT, sent, true)];
        let key = match &self.why {
            Why::Receives(_, queue) => {
                // It is received for the first time there.
                letter.headers.remove(message::RECEIVES);
                letter.headers.remove(message::GENERATION);
                if queue::is_fifo(&self.from) && job.headers.contains_key(message::RECEIVES) {
                    // It was raised to keep a place that the message does not have there.
                    priority = Priority::Normal;
                }
                own.push((message::GENERATION, queue.generation.to_string(), false));
                own.push((message::FROM, self.from.clone(), false));
                letter.expires_at = Some(When::In(Duration::from_secs(queue.attributes.retention_s)));
                &self.from
            }
            Why::Attempts => {
                let before = message::receives(job).saturating_sub(1);
                own.push((message::RECEIVES, before.to_string(), false));
                letter.expires_at = job.expires_at.map(When::At);
                if queue::is_fifo(&self.name) {
                    // It is due later than others of its message group, and must stay before them.
                    priority = Priority::High;
                }
                "again"
            }
        };
        letter.options = JobOptions {
            priority: Some(priority),
            max_attempts: Some(MAX_ATTEMPTS_MAX),
            ..JobOptions::default()
        };
        // A job that was enqueued by other means can have as many headers as fit.
        let bytes = letter.headers.iter().map(|(name, value)| name.len() + value.len());
        let mut room = HEADERS_BYTES_MAX.saturating_sub(bytes.sum());
        for (name, value, is_kept) in own {
            let old = letter.headers.get(name).map_or(0, |old| name.len() + old.len());
            if (is_kept && 0 < old) || room + old < name.len() + value.len() {
                continue;
            }
            room = room + old - name.len() - value.len();
            letter.headers.insert(name.to_owned(), value);
        }
        letter.id = letter.derived_id(&format!("{key}/{}/{}", job.id, job.version));
        letter
    }

    fn reason(&self) -> String {
        match self.why {
            Why::Receives(receives, _) => {
                format!("received more than {receives} times: moved to {}", self.name)
            }
            Why::Attempts => "few attempts were left: moved to a new job".to_owned(),
        }
    }
}

/// Moves jobs until `until` at the latest. A repeat of a move that was cut off by then finds its letter.
pub(super) async fn moved(door: &Door, target: &Target, jobs: Vec<Reserved>, until: Instant) -> Moved {
    let letters: Vec<NewJob> = jobs.iter().map(|reserved| target.letter(door, &reserved.job)).collect();
    let fates = push(door, target, letters, until).await;
    let mut moved = Moved::default();
    for (reserved, fate) in jobs.into_iter().zip(fates) {
        match fate {
            Fate::There => {
                let verdict = Verdict::Cancel { reason: Some(target.reason()) };
                moved.ends.push(Settlement { lease: reserved.lease, verdict });
            }
            Fate::Refused => moved.refused.push(reserved),
            Fate::Unknown => moved.unknown.push(reserved),
        }
    }
    moved
}

/// Enqueues letters. Each is a call of its own, so that none waits for one that is refused, or whose part of the store is away. The client
/// sends them together.
async fn push(door: &Door, target: &Target, letters: Vec<NewJob>, until: Instant) -> Vec<Fate> {
    let calls = letters.into_iter().map(|letter| timeout_at(until, door.client.push(vec![letter])));
    let answers = join_all(calls).await;
    let failed = answers.iter().filter_map(|answer| match answer {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the store did not answer in time".to_owned()),
    });
    let failed: Vec<String> = failed.collect();
    if let Some(error) = failed.first() {
        let (n, from, to) = (failed.len(), &target.from, &target.name);
        tracing::warn!(target: "punctual", %error, n, from, to, "messages could not be moved");
    }
    answers.iter().map(fate).collect()
}

fn fate(answer: &Result<Result<Vec<Enqueued>, Error>, Elapsed>) -> Fate {
    match answer {
        // A duplicate was moved before, by a process that did not come to its end.
        Ok(Ok(answers)) if answers.iter().any(|answer| answer.id().is_some()) => Fate::There,
        // What is sent is stored, though nobody waits for the answer.
        Err(_) => Fate::Unknown,
        Ok(Err(error)) if matches!(error.kind(), ErrorKind::UnknownOutcome | ErrorKind::Closed) => {
            Fate::Unknown
        }
        Ok(_) => Fate::Refused,
    }
}

/// Returns how a dead letter of a FIFO queue waits that could not be moved: hidden by its lease. It keeps its place, and the next search
/// finds messages of other groups. `None` if the end of that lease could make it dead: on its last attempt, and after another such end.
pub(super) fn hidden(reserved: &Reserved) -> Option<Heartbeat> {
    let job = &reserved.job;
    let can_hide = queue::is_fifo(&job.queue) && job.expired_leases == 0 && job.attempt < job.max_attempts;
    can_hide.then(|| Heartbeat { lasts: Some(AGAIN_AFTER), ..Heartbeat::from(reserved.lease) })
}

/// Returns how a job waits that could not be moved: soon after, whatever visibility timeout its receiver asked for, and without a count.
/// In a FIFO queue it keeps its place, so there it is due at once.
pub(super) fn put_off(reserved: &Reserved) -> Settlement {
    let job = &reserved.job;
    // After too many in a row a job is dead. A release ends the row.
    let verdict = if queue::is_fifo(&job.queue) || SNOOZES_MAX / 2 <= job.snoozes {
        Verdict::Release
    } else {
        Verdict::Snooze { after: AGAIN_AFTER, reason: Some("it could not be moved".to_owned()) }
    };
    Settlement { lease: reserved.lease, verdict }
}
