//! Moving messages that were received too often to their dead-letter queue.
//!
//! A move is an enqueue, and then the end of the message in its own queue. After a kill between the two, the message comes back and is
//! moved again: its new id is derived from the old one, so the second enqueue finds the first. The version of the job is part of it. It
//! rises when an operator lets the message wait again, so that the next death is another message.

use std::sync::Arc;

use punctual::{
    JobOptions, JobRecord, NewJob, When,
    limits::{HEADERS_BYTES_MAX, MAX_ATTEMPTS_MAX},
    store::{Reserved, Settlement, Verdict},
};

use super::{
    Door,
    fault::{Code, Fault},
    message,
    queue::Queue,
};

/// A dead-letter queue that is there, and the queue whose messages go to it.
#[derive(Debug)]
pub(super) struct Target {
    from: String,
    name: String,
    queue: Arc<Queue>,
    /// How often a message may be received before.
    receives: u32,
}

impl Target {
    /// Returns where dead letters of a queue go; `None` if it has no redrive policy, or that queue is gone.
    pub(super) async fn of(door: &Door, from: &str, queue: &Queue) -> Result<Option<Self>, Fault> {
        let Some(redrive) = &queue.attributes.redrive else { return Ok(None) };
        match door.queues.get(&redrive.queue).await {
            Ok(queue) => Ok(Some(Self {
                from: from.to_owned(),
                name: redrive.queue.clone(),
                queue,
                receives: redrive.receives,
            })),
            Err(fault) if fault.code == Code::QueueDoesNotExist => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Returns whether a job that was just reserved is a dead letter.
    pub(super) fn takes(&self, job: &JobRecord) -> bool {
        self.receives < job.attempt
    }

    /// Makes the dead letter of a job.
    fn letter(&self, door: &Door, job: &JobRecord) -> NewJob {
        let mut letter = NewJob::new(door.client.make_id(), &job.kind, &self.name, job.payload.clone());
        letter.options = JobOptions {
            priority: Some(job.priority),
            max_attempts: Some(MAX_ATTEMPTS_MAX),
            ..JobOptions::default()
        };
        letter.group.clone_from(&job.group);
        letter.concurrency.clone_from(&job.concurrency);
        letter.tags.clone_from(&job.tags);
        letter.headers.clone_from(&job.headers);
        let sent = job.created_at.as_ms().to_string();
        // A job that was enqueued by other means can have as many headers as fit.
        let mut room =
            HEADERS_BYTES_MAX.saturating_sub(job.headers.iter().map(|(k, v)| k.len() + v.len()).sum());
        for (name, value, is_kept) in [
            (message::ID, job.id.to_string(), true),
            (message::SENT, sent, true),
            (message::FROM, self.from.clone(), false),
            (message::GENERATION, self.queue.generation.to_string(), false),
        ] {
            let old = letter.headers.get(name).map_or(0, |old| name.len() + old.len());
            if (is_kept && 0 < old) || room + old < name.len() + value.len() {
                continue;
            }
            room = room + old - name.len() - value.len();
            letter.headers.insert(name.to_owned(), value);
        }
        letter.expires_at = Some(When::In(std::time::Duration::from_secs(self.queue.attributes.retention_s)));
        letter.id = letter.derived_id(&format!("{}/{}/{}", self.from, job.id, job.version));
        letter
    }
}

/// Moves jobs, and returns how those that were moved end. The others come back when their leases end, and are tried again.
pub(super) async fn moved(door: &Door, target: &Target, dead: Vec<Reserved>) -> Vec<Settlement> {
    let letters = dead.iter().map(|reserved| target.letter(door, &reserved.job)).collect();
    let answers = match door.client.push(letters).await {
        Ok(answers) => answers,
        Err(error) => {
            tracing::warn!(target: "punctual", %error, queue = target.from, "messages could not be moved to their dead-letter queue");
            return Vec::new();
        }
    };
    let reason = format!("received more than {} times: moved to {}", target.receives, target.name);
    dead.into_iter()
        .zip(answers)
        // A duplicate was moved before, by a process that did not come to its end.
        .filter(|(_, answer)| answer.id().is_some())
        .map(|(reserved, _)| {
            let verdict = Verdict::Cancel { reason: Some(reason.clone()) };
            Settlement { lease: reserved.lease, verdict }
        })
        .collect()
}
