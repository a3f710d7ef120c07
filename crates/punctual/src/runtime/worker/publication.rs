//! Distributes due publications: one job for each queue that is then subscribed to the topic.
//!
//! The publication is done when all of these jobs are stored. A worker that dies in between loses and duplicates
//! nothing: the publication runs again, and the jobs have the same ids.
//!
//! Each worker process has a second loop for this, with its own slots. So publications neither wait for a job's slot
//! nor take one.

use std::{sync::Arc, time::Duration};

use crate::{
    core::{
        error::Result,
        limits::{BATCH_BYTES_MAX, BATCH_MAX, ID_MEMORY},
        outcome::Outcome,
        topic::Publication,
    },
    runtime::{
        client::Client,
        handler::{Call, Erased, Stop},
    },
    store::Enqueued,
};

/// How many publications a worker distributes at once.
pub(super) const SLOTS: usize = 16;
/// The pause before a publication is tried again after an error, or after a queue was full. It is four times as long
/// after each attempt, up to the second value. So all attempts fall into the time for which ids are remembered.
const AGAIN_MIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_hours(6);

/// Why a publication is given up that could reach some queues twice.
const TOO_LATE: &str = "it was begun to be handed out a day ago, and who has had it may be forgotten; retried by hand, it may \
                        reach them again";

/// Returns the one handler of publications.
pub(super) fn handler() -> Erased {
    Arc::new(|call| Box::pin(hand_out(call)))
}

/// Distributes a publication. It is done when each subscribed queue has its job.
async fn hand_out(call: Call) -> Outcome {
    let publication = match Publication::of(call.record()) {
        Ok(publication) => publication,
        Err(error) => return Outcome::Dead(error.to_string()),
    };
    match try_to(&call, &publication).await {
        Ok(outcome) => outcome,
        Err(error) => again(&call, &error.to_string()),
    }
}

async fn try_to(call: &Call, publication: &Publication<'_>) -> Result<Outcome> {
    let (client, topic) = (call.client(), publication.topic);
    if let Some(begun) = publication.begun_at()
        && begun.after(ID_MEMORY) <= client.store().now().await?
    {
        return Ok(Outcome::Dead(TOO_LATE.to_owned()));
    }
    let queues = client.topic(topic).subscriptions().await?;
    if queues.is_empty() {
        tracing::info!(target: "punctual", id = %call.id(), topic, kind = call.kind(), "published, but no queue is subscribed");
    }
    let mut full = Vec::new();
    // Bounds the copies in memory to what fits into one call.
    let at_once = (BATCH_BYTES_MAX / call.record().payload.bytes.len().max(1)).clamp(1, BATCH_MAX);
    for queues in queues.chunks(at_once) {
        if matches!(call.stop_reason(), Some(Stop::Cancelled | Stop::LeaseLost)) {
            return Ok(Outcome::Cancel);
        }
        full.extend(enqueue(client, publication, queues).await?);
    }
    match full.first() {
        None => Ok(Outcome::Done),
        Some(first) => {
            let n = full.len();
            Ok(again(call, &format!("no room in {n} of the {} subscribed queues: {first:?}", queues.len())))
        }
    }
}

/// Enqueues the jobs of some subscriptions; returns the queues that took none: they were full, or the id was taken elsewhere.
async fn enqueue<'a>(
    client: &Client,
    publication: &Publication<'_>,
    queues: &'a [String],
) -> Result<Vec<&'a String>> {
    let answers = client.push(queues.iter().map(|queue| publication.job(queue)).collect()).await?;
    let is_refused = |answer: &Enqueued| matches!(answer, Enqueued::Full | Enqueued::Conflict { .. });
    let full = queues.iter().zip(answers).filter(|(_, answer)| is_refused(answer));
    Ok(full.map(|(queue, _)| queue).collect())
}

fn again(call: &Call, why: &str) -> Outcome {
    tracing::warn!(target: "punctual", id = %call.id(), kind = call.kind(), attempt = call.attempt(), why,
        "could not enqueue a publication in all queues, will try again");
    Outcome::Retry { after: Some(pause(call.attempt(), fastrand::f64())), error: why.to_owned() }
}

/// Returns the pause after an attempt (from 1): random between half and all of it, so that publications spread out.
fn pause(attempt: u32, random: f64) -> Duration {
    let grown = AGAIN_MIN.saturating_mul(4u32.saturating_pow(attempt.saturating_sub(1))).min(AGAIN_MAX);
    grown.mul_f64(random.mul_add(0.5, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::PUBLICATION_ATTEMPTS;

    #[test]
    fn all_attempts_fit_into_the_time_for_which_ids_are_remembered() {
        assert_eq!([1, 2, 3].map(|attempt| pause(attempt, 1.0).as_secs()), [5, 20, 80]);
        assert_eq!(pause(1, 0.0), AGAIN_MIN / 2);
        assert_eq!(pause(u32::MAX, 1.0), AGAIN_MAX);
        let all: Duration = (1..PUBLICATION_ATTEMPTS).map(|attempt| pause(attempt, 1.0)).sum();
        assert!(all < ID_MEMORY, "{all:?}");
    }
}
