//! Sending messages. Each is a job; the client of the server stores those of concurrent requests together.

use std::{collections::BTreeMap, time::Duration};

use punctual::{
    NewJob, When,
    store::{Enqueued, Existing},
};
use serde::{Deserialize, Serialize};

use super::{
    Call, Reply,
    attributes::{DELAY_MAX_S, within},
    batch::{self, Outcome},
    fault::{Code, Fault},
    fifo, md5,
    message::{self, AttributeBody, BYTES_MAX, Message},
    queue::{self, Queue},
    write,
};
use crate::operations::cut;

/// The longest name of a sender that is kept, in bytes: that of a user whom a proxy names. A longer one is cut.
const SENDER_BYTES_MAX: usize = 64;

/// A message as a request has it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Body {
    #[serde(rename = "MessageBody", default)]
    text: String,
    delay_seconds: Option<i64>,
    #[serde(default)]
    message_attributes: Option<BTreeMap<String, AttributeBody>>,
    #[serde(default)]
    message_system_attributes: Option<BTreeMap<String, AttributeBody>>,
    message_deduplication_id: Option<String>,
    message_group_id: Option<String>,
}

/// `SendMessage`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Send {
    queue_url: String,
    #[serde(flatten)]
    body: Body,
}

/// `SendMessageBatch`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SendBatch {
    queue_url: String,
    #[serde(default)]
    entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    id: String,
    #[serde(flatten)]
    body: Body,
}

/// What a sender gets to check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Sent {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    message_id: String,
    #[serde(rename = "MD5OfMessageBody")]
    md5_of_body: String,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    md5_of_attributes: Option<String>,
    #[serde(rename = "MD5OfMessageSystemAttributes", skip_serializing_if = "Option::is_none")]
    md5_of_system_attributes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_number: Option<String>,
}

/// Makes the job of a message, and all of the answer but what the store says.
fn prepare(call: &Call, name: &str, queue: &Queue, body: Body) -> Result<(NewJob, Sent, usize), Fault> {
    let Body { message_attributes: attributes, message_system_attributes: system, .. } = body;
    let message = Message {
        body: body.text,
        attributes: message::attributes(attributes.unwrap_or_default())?,
        trace: message::trace(system.unwrap_or_default())?,
    };
    message.check(queue.attributes.size_bytes)?;
    let trace = message.trace.as_ref().map(|trace| ("AWSTraceHeader".to_owned(), trace));
    let sent = Sent {
        id: None,
        message_id: String::new(),
        md5_of_body: md5::of_body(&message.body),
        md5_of_attributes: md5::of_attributes(&message.attributes),
        md5_of_system_attributes: md5::of_attributes(trace.iter().map(|(name, trace)| (name, *trace))),
        sequence_number: None,
    };
    let is_fifo = queue::is_fifo(name);
    let delay = match body.delay_seconds {
        Some(given) if is_fifo && given != 0 => {
            return Err(Fault::value(format!(
                "Value {given} for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this \
                 queue type."
            )));
        }
        Some(given) if !is_fifo => within("DelaySeconds", given, 0..=DELAY_MAX_S)?,
        _ => queue.attributes.delay_s,
    };
    let (delay, bytes) = (Duration::from_secs(delay), message.bytes());
    let sender = call.caller.token.as_deref().unwrap_or_else(|| cut(&call.caller.name, SENDER_BYTES_MAX));
    let mut job = message.job(call.door.client.make_id(), name, queue.generation, sender);
    if !delay.is_zero() {
        job.run_at = When::In(delay);
    }
    let retention = Duration::from_secs(queue.attributes.retention_s);
    job.expires_at = Some(When::In(delay.saturating_add(retention)));
    fifo::place(&mut job, is_fifo, queue, body.message_group_id, body.message_deduplication_id)?;
    Ok((job, sent, bytes))
}

/// Says in the answer what the store said.
fn finish(name: &str, sent: Sent, answer: &Enqueued) -> Result<Sent, Fault> {
    let id = match *answer {
        Enqueued::Inserted { id, .. }
        // It was sent before, and will be received once.
        | Enqueued::Duplicate(Existing { id, .. })
        | Enqueued::Replaced { id, .. }
        | Enqueued::Rescheduled { id, .. } => id,
        Enqueued::Conflict { .. } => {
            return Err(Fault::new(Code::InternalFailure, "A job of another queue has the id of the message. Send it again."));
        }
        Enqueued::Full => {
            return Err(Fault::new(Code::OverLimit, "The queue has as many jobs as its settings max_jobs or max_bytes allow."));
        }
    };
    let sequence_number = queue::is_fifo(name).then(|| fifo::sequence(id));
    Ok(Sent { message_id: id.to_string(), sequence_number, ..sent })
}

/// Answers `SendMessage`.
pub(super) async fn send(call: &Call, request: Send) -> Reply {
    let (name, queue) = call.queue(&request.queue_url).await?;
    let (job, sent, _) = prepare(call, name, &queue, request.body)?;
    let answers = call.door.client.push(vec![job]).await?;
    let answer = answers.into_iter().next().ok_or_else(unanswered)?;
    write(&finish(name, sent, &answer)?)
}

/// Answers `SendMessageBatch`.
pub(super) async fn send_batch(call: &Call, request: SendBatch) -> Reply {
    let (name, queue) = call.queue(&request.queue_url).await?;
    batch::check(request.entries.iter().map(|entry| entry.id.as_str()))?;
    let (mut results, mut jobs, mut bytes) = (Vec::new(), Vec::new(), 0);
    for Entry { id, body } in request.entries {
        // The order of jobs is that of the entries.
        let prepared = prepare(call, name, &queue, body).map(|(job, sent, of_entry)| {
            bytes += of_entry;
            jobs.push(job);
            Sent { id: Some(id.clone()), ..sent }
        });
        results.push((id, prepared));
    }
    if BYTES_MAX < bytes {
        return Err(Fault::new(
            Code::BatchRequestTooLong,
            format!("Batch requests cannot be longer than {BYTES_MAX} bytes. You have sent {bytes} bytes."),
        ));
    }
    let answers = if jobs.is_empty() { Vec::new() } else { call.door.client.push(jobs).await? };
    let mut answers = answers.into_iter();
    let results = results.into_iter().map(|(id, prepared)| {
        let finished = prepared.and_then(|sent| finish(name, sent, &answers.next().ok_or_else(unanswered)?));
        (id, finished)
    });
    write(&Outcome::of(results))
}

fn unanswered() -> Fault {
    Fault::new(Code::InternalFailure, "The store did not say what became of the message.")
}
