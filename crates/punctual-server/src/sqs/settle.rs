//! Ends of received messages: deleting them, and changing how long they are hidden.
//!
//! A message that was received is a job under a lease. Deleting it is an ack. A handle whose lease has ended deletes nothing, and that is
//! no fault: the message was received again, or deleted.

use std::time::Duration;

use futures_util::future::try_join_all;
use punctual::{
    When,
    store::{Heartbeat, Lease, LeaseStatus, Settled, Settlement, Verdict},
};
use serde::Deserialize;

use super::{
    Call, Reply,
    attributes::{VISIBILITY_MAX_S, within},
    batch::{self, Done, Outcome},
    fault::{Code, Fault},
    nothing, queue, receipt, write,
};

/// The shortest lease: how long a message of a FIFO queue is still hidden after its timeout was set to 0. It must come back by the end of
/// its lease, which alone keeps its place before later messages of its group.
const SHORTEST: Duration = Duration::from_secs(1);

/// `DeleteMessage`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Delete {
    queue_url: String,
    receipt_handle: String,
}

/// `DeleteMessageBatch`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DeleteBatch {
    queue_url: String,
    #[serde(default)]
    entries: Vec<DeleteEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteEntry {
    id: String,
    receipt_handle: String,
}

/// `ChangeMessageVisibility`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Change {
    queue_url: String,
    receipt_handle: String,
    visibility_timeout: i64,
}

/// `ChangeMessageVisibilityBatch`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ChangeBatch {
    queue_url: String,
    #[serde(default)]
    entries: Vec<ChangeEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ChangeEntry {
    id: String,
    receipt_handle: String,
    visibility_timeout: Option<i64>,
}

/// Reads handles. For a caller of some queues the jobs are looked up, since a handle can be made up: without this check one could end
/// leases of other queues.
async fn leases(call: &Call, name: &str, handles: Vec<&str>) -> Result<Vec<Result<Lease, Fault>>, Fault> {
    let read: Vec<Result<Lease, Fault>> =
        handles.into_iter().map(|handle| receipt::read(handle, name)).collect();
    if call.caller.queues.is_none() {
        return Ok(read);
    }
    let checked = read.into_iter().map(|lease| async move {
        let lease = match lease {
            Ok(lease) => lease,
            Err(fault) => return Ok(Err(fault)),
        };
        let job = call.door.client.get(lease.job).await?;
        Ok::<_, Fault>(match job {
            Some(job) if job.queue != name => Err(receipt::invalid()),
            // The lease of a job that is gone has ended.
            Some(_) | None => Ok(lease),
        })
    });
    try_join_all(checked).await
}

/// Answers `DeleteMessage`.
pub(super) async fn delete(call: &Call, request: Delete) -> Reply {
    let (name, _) = call.queue(&request.queue_url).await?;
    let leases = leases(call, name, vec![&request.receipt_handle]).await?;
    let deleted = ack(call, leases).await?;
    deleted.into_iter().try_for_each(|deleted| deleted)?;
    Ok(nothing())
}

/// Answers `DeleteMessageBatch`.
pub(super) async fn delete_batch(call: &Call, request: DeleteBatch) -> Reply {
    let (name, _) = call.queue(&request.queue_url).await?;
    batch::check(request.entries.iter().map(|entry| entry.id.as_str()))?;
    let handles = request.entries.iter().map(|entry| entry.receipt_handle.as_str()).collect();
    let deleted = ack(call, leases(call, name, handles).await?).await?;
    write(&outcome(request.entries.into_iter().map(|entry| entry.id), deleted))
}

/// Answers for entries that have nothing to say.
fn outcome(ids: impl Iterator<Item = String>, results: Vec<Result<(), Fault>>) -> Outcome<Done> {
    Outcome::of(ids.zip(results).map(|(id, result)| (id.clone(), result.map(|()| Done { id }))))
}

/// Acks leases. One that has ended is deleted as far as its holder may say so.
async fn ack(call: &Call, leases: Vec<Result<Lease, Fault>>) -> Result<Vec<Result<(), Fault>>, Fault> {
    let ends = leases.iter().flatten().map(|lease| Settlement { lease: *lease, verdict: Verdict::Ack });
    let ends: Vec<Settlement> = ends.collect();
    let mut settled = settle(call, &ends).await?.into_iter();
    Ok(leases
        .into_iter()
        .map(|lease| match (lease?, settled.next()) {
            (_, Some(Settled::Away { .. }) | None) => Err(away()),
            (_, Some(Settled::Settled(..) | Settled::LeaseLost)) => Ok(()),
        })
        .collect())
}

async fn settle(call: &Call, ends: &[Settlement]) -> Result<Vec<Settled>, Fault> {
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    Ok(call.door.client.store().settle(ends, None).await?.0)
}

/// Answers `ChangeMessageVisibility`.
pub(super) async fn change(call: &Call, request: Change) -> Reply {
    let (name, _) = call.queue(&request.queue_url).await?;
    let seconds = within("VisibilityTimeout", request.visibility_timeout, 0..=VISIBILITY_MAX_S)?;
    let leases = leases(call, name, vec![&request.receipt_handle]).await?;
    let changes = leases.into_iter().map(|lease| lease.map(|lease| (lease, seconds))).collect();
    hide(call, name, changes).await?.into_iter().try_for_each(|changed| changed)?;
    Ok(nothing())
}

/// Answers `ChangeMessageVisibilityBatch`.
pub(super) async fn change_batch(call: &Call, request: ChangeBatch) -> Reply {
    let (name, queue) = call.queue(&request.queue_url).await?;
    batch::check(request.entries.iter().map(|entry| entry.id.as_str()))?;
    let handles = request.entries.iter().map(|entry| entry.receipt_handle.as_str()).collect();
    let leases = leases(call, name, handles).await?;
    let changes = leases.into_iter().zip(&request.entries).map(|(lease, entry)| {
        let seconds = match entry.visibility_timeout {
            Some(given) => within("VisibilityTimeout", given, 0..=VISIBILITY_MAX_S)?,
            None => queue.attributes.visibility_s,
        };
        Ok((lease?, seconds))
    });
    let changed = hide(call, name, changes.collect()).await?;
    write(&outcome(request.entries.into_iter().map(|entry| entry.id), changed))
}

/// Hides messages for so many seconds from now on.
async fn hide(
    call: &Call,
    name: &str,
    changes: Vec<Result<(Lease, u64), Fault>>,
) -> Result<Vec<Result<(), Fault>>, Fault> {
    let is_ended = |seconds: u64| seconds == 0 && !queue::is_fifo(name);
    let (mut ends, mut beats) = (Vec::new(), Vec::new());
    for (lease, seconds) in changes.iter().flatten() {
        if is_ended(*seconds) {
            // A retry counts as received, unlike a release.
            let error = "the receiver set its visibility timeout to 0".to_owned();
            ends.push(Settlement { lease: *lease, verdict: Verdict::Retry { at: When::Now, error } });
        } else {
            let lasts = Duration::from_secs(*seconds).max(SHORTEST);
            beats.push(Heartbeat { lasts: Some(lasts), ..Heartbeat::from(*lease) });
        }
    }
    let mut ended = settle(call, &ends).await?.into_iter();
    let store = call.door.client.store();
    let beaten = if beats.is_empty() { Ok(Vec::new()) } else { store.extend(&beats).await };
    // Others have ended by now, so this is no fault of the whole batch.
    let (mut beaten, fault) = match beaten {
        Ok(beaten) => (beaten.into_iter(), None),
        Err(error) => (Vec::new().into_iter(), Some(Fault::from(error))),
    };
    let lost = || {
        Fault::new(
            Code::MessageNotInflight,
            "The message referred to isn't in flight: its visibility timeout has ended, or it was deleted.",
        )
    };
    Ok(changes
        .into_iter()
        .map(|change| {
            let (_, seconds) = change?;
            if is_ended(seconds) {
                return match ended.next() {
                    Some(Settled::Settled(..)) => Ok(()),
                    Some(Settled::LeaseLost) => Err(lost()),
                    Some(Settled::Away { .. }) | None => Err(away()),
                };
            }
            match beaten.next() {
                Some(LeaseStatus::Held | LeaseStatus::CancelRequested) => Ok(()),
                Some(LeaseStatus::Lost) => Err(lost()),
                Some(LeaseStatus::Away) | None => Err(fault.clone().unwrap_or_else(away)),
            }
        })
        .collect())
}

fn away() -> Fault {
    Fault::new(Code::ServiceUnavailable, "The part of the store with the message is unavailable. Try again.")
}
