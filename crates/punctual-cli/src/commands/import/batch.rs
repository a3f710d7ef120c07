//! Enqueues a batch of jobs, and reports for each whether it is durable.

use punctual::{
    Client, Error, ErrorKind, NewJob,
    store::{Enqueued, Existing},
};

use crate::errors::{Failure, Result};

/// What became of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is new.
    Taken,
    /// It was here already.
    Here,
    /// It was here, and ended or was deleted within the last day.
    Remembered,
    /// The store won't have it.
    Refused(String),
}

/// An answer for each job, in order: all that are not refused are durable then.
pub(super) async fn push(client: &Client, jobs: Vec<NewJob>) -> Result<Vec<Answer>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    // A refused call wrote nothing, and does not name the job at fault: so each job is pushed by itself.
    match client.push(jobs.clone()).await {
        Ok(answers) => answers.iter().map(read).collect(),
        Err(e) if is_about_a_job(&e) => {
            let mut answers = Vec::with_capacity(jobs.len());
            for job in jobs {
                match client.push(vec![job]).await {
                    Ok(told) => answers.extend(told.iter().map(read).collect::<Result<Vec<_>>>()?),
                    Err(e) if is_about_a_job(&e) => answers.push(Answer::Refused(e.to_string())),
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(answers)
        }
        Err(e) => Err(e.into()),
    }
}

fn is_about_a_job(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge)
}

fn read(answer: &Enqueued) -> Result<Answer> {
    match answer {
        Enqueued::Inserted { .. } => Ok(Answer::Taken),
        Enqueued::Full => Err(Failure::store_full("a queue is full")
            .why("max_jobs or max_bytes of the queue is reached; imported jobs stay in the store, the rest stays at --from")
            .hint("punctual queue ls    lists the queues; run the same command again when jobs have ended")),
        Enqueued::Conflict { id } => Ok(Answer::Refused(format!("a job of another queue has the id {id}"))),
        Enqueued::Duplicate(Existing { state: None, .. }) => Ok(Answer::Remembered),
        _ => Ok(Answer::Here),
    }
}
