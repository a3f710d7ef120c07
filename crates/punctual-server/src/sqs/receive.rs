//! Receiving messages: a reserve, and what must be done with jobs that are not delivered.
//!
//! A received message is under a lease as long as its visibility timeout. When that ends, the store reclaims it, and it can be received
//! again. A store gives up on a job whose lease expires three times in a row; a message must not die of that. So a job that comes back by
//! an expired lease is released and reserved once more, which ends the row and counts nothing: no job of this protocol has two in a row.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use punctual::{
    Error, ErrorKind, JobRecord,
    store::{Batch, Heartbeat, LeaseStatus, QueueRequest, Reserve, Reserved, Settled, Settlement, Verdict},
};
use serde::{Deserialize, Serialize};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{
    Call, Door, Reply,
    attributes::{WAIT_MAX_S, arn, within},
    fault::{Code, Fault},
    fifo, md5,
    message::{self, AttributeBody},
    purge,
    queue::{self, Queue},
    receipt,
    redrive::{self, Target},
    write,
};

/// Most messages of one request.
const MESSAGES_MAX: u64 = 10;
/// Most rounds of one search: reserves whose jobs are not all delivered.
const ROUNDS_MAX: usize = 8;
/// How many jobs a search reserves after a round of nothing but dead letters.
const MOVED_MAX: usize = 50;
/// How long a search goes on with further rounds, and at most a quarter of the visibility timeout, which begins with the first one.
const SEARCH_MAX: Duration = Duration::from_secs(2);
/// How long moves can go on after that. Both end within half of the visibility timeout.
const MOVE_MAX: Duration = Duration::from_secs(2);
/// How often a reserve whose answer was lost is repeated, and after how long for the first time. Then this doubles.
const REPEATS_MAX: u32 = 4;
const REPEAT_AFTER: Duration = Duration::from_millis(50);
/// Most searches of one request without a wait between them.
const SEARCHES_MAX: usize = 4;
/// How long a request waits at least after so many searches.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a request waits after messages that could not be moved, and are due again at once.
const STUCK_PAUSE: Duration = Duration::from_secs(1);
/// How long ends of leases that could not be stored are repeated: of jobs whose receiver has gone away, for example.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);

/// `ReceiveMessage`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Receive {
    queue_url: String,
    max_number_of_messages: Option<i64>,
    visibility_timeout: Option<i64>,
    wait_time_seconds: Option<i64>,
    #[serde(default)]
    attribute_names: Option<Vec<String>>,
    #[serde(default)]
    message_system_attribute_names: Option<Vec<String>>,
    #[serde(default)]
    message_attribute_names: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Received {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<Message>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Message {
    #[serde(rename = "MessageId")]
    id: String,
    receipt_handle: String,
    #[serde(rename = "MD5OfBody")]
    md5_of_body: String,
    body: String,
    #[serde(rename = "Attributes", skip_serializing_if = "BTreeMap::is_empty")]
    system: BTreeMap<&'static str, String>,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    md5_of_attributes: Option<String>,
    #[serde(rename = "MessageAttributes", skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, AttributeBody>,
}

/// What a request searches for.
#[derive(Clone, Debug)]
struct Want {
    name: String,
    n: usize,
    /// How long the messages are hidden.
    lease: Duration,
    /// For people, who see which token has received a message.
    worker: String,
}

/// Reserved jobs on the way to their receiver. Those that do not arrive, because it has gone away, are given back.
#[derive(Debug)]
struct Held {
    door: Arc<Door>,
    jobs: Vec<Reserved>,
}

impl Held {
    fn delivered(mut self) -> Vec<Reserved> {
        mem::take(&mut self.jobs)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let leases = mem::take(&mut self.jobs).into_iter().map(|reserved| reserved.lease);
        let ends: Vec<Settlement> =
            leases.map(|lease| Settlement { lease, verdict: Verdict::Release }).collect();
        end_later(&self.door, ends);
    }
}

/// Ends leases in a task of its own, and repeats what fails for a while. What cannot be ended comes back when its lease ends.
fn end_later(door: &Arc<Door>, mut ends: Vec<Settlement>) {
    if !ends.is_empty()
        && let Ok(runtime) = Handle::try_current()
    {
        let door = Arc::clone(door);
        let repeated = async move {
            let mut pause = REPEAT_AFTER;
            loop {
                let ended = end_now(&door, &mut ends).await;
                if ends.is_empty() || ended.is_err_and(|error| !error.is_repeatable()) {
                    break;
                }
                sleep(pause).await;
                pause *= 2;
            }
        };
        runtime.spawn(async move { _ = timeout(GIVE_BACK_MAX, repeated).await });
    }
}

/// Ends leases, and leaves those that must be ended again: all if it fails, or those of parts of the store that are away.
async fn end_now(door: &Door, ends: &mut Vec<Settlement>) -> Result<(), Error> {
    if !ends.is_empty() {
        let (settled, _) = door.client.store().settle(ends, None).await?;
        *ends = away(ends, &settled);
    }
    Ok(())
}

fn away(ends: &[Settlement], settled: &[Settled]) -> Vec<Settlement> {
    let away = ends.iter().zip(settled).filter(|(_, settled)| matches!(settled, Settled::Away { .. }));
    away.map(|(end, _)| end.clone()).collect()
}

/// What a search has found.
#[derive(Debug)]
struct Found {
    held: Held,
    /// Whether to search again at once.
    more: bool,
    /// Whether there are messages that could not be moved, and are due again at once.
    is_stuck: bool,
    /// When there may be something.
    next_due: Option<Duration>,
}

/// Answers `ReceiveMessage`. It waits for messages if the request or the queue says so; a client that goes away ends the wait.
pub(super) async fn receive(call: &Call, request: Receive) -> Reply {
    let (name, queue) = call.queue(&request.queue_url).await?;
    if call.caller.payloads_hidden {
        return Err(Fault::new(
            Code::AccessDenied,
            "Payloads are hidden from this token, and messages have them.",
        ));
    }
    let n = within("MaxNumberOfMessages", request.max_number_of_messages.unwrap_or(1), 1..=MESSAGES_MAX)?;
    let wait = match request.wait_time_seconds {
        Some(given) => within("WaitTimeSeconds", given, 0..=WAIT_MAX_S)?,
        None => queue.attributes.wait_s,
    };
    let deadline = Instant::now() + Duration::from_secs(wait);
    let worker = format!("sqs/{}", call.caller.token.as_deref().unwrap_or("local"));
    let lease = queue.attributes.visibility(request.visibility_timeout)?;
    let want = Want { name: name.to_owned(), n: n as usize, lease, worker };
    let mut searches = 0;
    let jobs = loop {
        let found = search_to_the_end(&call.door, &want).await?;
        let left = deadline.saturating_duration_since(Instant::now());
        searches += 1;
        if !found.held.jobs.is_empty() {
            break found.held.delivered();
        }
        if found.more && !found.is_stuck && searches < SEARCHES_MAX {
            continue;
        }
        if left.is_zero() || call.door.stop.is_cancelled() {
            break Vec::new();
        }
        let at_most = if found.more { PAUSE } else { found.next_due.unwrap_or(left) };
        let queues = [want.name.clone()];
        let wait = async {
            if found.is_stuck {
                sleep(STUCK_PAUSE.min(left)).await;
                return Ok(());
            }
            call.door.client.store().wait(&queues, at_most.min(left)).await
        };
        tokio::select! {
            waited = wait => waited?,
            () = call.door.stop.cancelled() => {}
        }
        searches = 0;
        call.may_still(name).await?;
    };
    let systems = [request.attribute_names, request.message_system_attribute_names];
    let systems: Vec<String> = systems.into_iter().flatten().flatten().collect();
    let named = request.message_attribute_names.unwrap_or_default();
    let shown = jobs.iter().map(|reserved| shown(call, name, reserved, &systems, &named));
    write(&Received { messages: shown.collect() })
}

/// Makes the message of a job.
fn shown(call: &Call, name: &str, reserved: &Reserved, systems: &[String], named: &[String]) -> Message {
    let job = &reserved.job;
    let body = message::body(job);
    let attributes = message::attributes_of(job, named);
    let header = |name: &str| job.headers.get(name).cloned();
    Message {
        id: header(message::ID).unwrap_or_else(|| job.id.to_string()),
        receipt_handle: receipt::write(reserved.lease, name),
        md5_of_body: md5::of_body(&body),
        md5_of_attributes: md5::of_attributes(&attributes),
        attributes: attributes.iter().map(|(name, attribute)| (name.clone(), attribute.into())).collect(),
        body: body.into_owned(),
        system: system_attributes(call, name, job)
            .into_iter()
            .filter(|(name, _)| systems.iter().any(|wanted| wanted == "All" || wanted == name))
            .collect(),
    }
}

/// Returns what SQS says of a message.
fn system_attributes(call: &Call, name: &str, job: &JobRecord) -> BTreeMap<&'static str, String> {
    let sent = job.headers.get(message::SENT).cloned().unwrap_or_else(|| job.created_at.as_ms().to_string());
    let first = job.failures.first().map(|failure| failure.started_ms);
    let first = first.into_iter().chain(job.started_at.map(punctual::Timestamp::as_ms)).min();
    let mut texts = BTreeMap::from([
        ("ApproximateReceiveCount", message::receives(job).to_string()),
        ("ApproximateFirstReceiveTimestamp", first.unwrap_or_default().to_string()),
        ("SentTimestamp", sent),
        ("SenderId", job.headers.get(message::SENDER).cloned().unwrap_or_else(|| "punctual".to_owned())),
    ]);
    let is_fifo = queue::is_fifo(name);
    let line = job.concurrency.as_ref().filter(|_| is_fifo).map(|line| &line.key);
    if let Some(group) = line.or(job.group.as_ref()) {
        texts.insert("MessageGroupId", group.clone());
    }
    if is_fifo {
        texts.insert("SequenceNumber", fifo::sequence(job.id));
        let id = job.headers.get(message::DEDUPLICATION);
        // A job that was enqueued by other means has a key only.
        if let Some(id) = id.or(job.unique.as_ref().map(|unique| &unique.key)) {
            texts.insert("MessageDeduplicationId", id.clone());
        }
    }
    if let Some(trace) = job.headers.get(message::TRACE) {
        texts.insert("AWSTraceHeader", trace.clone());
    }
    if let Some(from) = job.headers.get(message::FROM) {
        texts.insert("DeadLetterQueueSourceArn", arn(&call.region, from));
    }
    texts
}

/// Searches in a task of its own: a search that was cut off in the middle would leave jobs that nobody knows of.
async fn search_to_the_end(door: &Arc<Door>, want: &Want) -> Result<Found, Fault> {
    let (done, found) = oneshot::channel();
    let (door, want) = (Arc::clone(door), want.clone());
    // If nobody waits any more, what was found is dropped.
    tokio::spawn(async move { done.send(search(&door, &want).await) });
    found.await.map_err(|_| Fault::new(Code::InternalFailure, "The search for messages ended early."))?
}

/// Reserves jobs until `n` can be delivered, nothing is left, or the search has taken long enough.
async fn search(door: &Arc<Door>, want: &Want) -> Result<Found, Fault> {
    let (same, begin) = (Target::same(&want.name), Instant::now());
    let rounds_until = begin + SEARCH_MAX.min(want.lease / 4);
    let until = begin + (SEARCH_MAX + MOVE_MAX).min(want.lease / 2);
    let held = Held { door: Arc::clone(door), jobs: Vec::new() };
    let mut found = Found { held, more: false, is_stuck: false, next_due: None };
    // What was not moved is put off at the end, so that it is not found again.
    let (mut ends, mut stuck, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
    let mut ask = want.n;
    for round in 1..=ROUNDS_MAX {
        let Round { queue, target, batch } = match next_round(door, want, &ends, ask).await {
            Ok(next) => next,
            // What is reserved already is not to wait for its lease to end.
            Err(fault)
                if !(found.held.jobs.is_empty()
                    && ends.is_empty()
                    && stuck.is_empty()
                    && hidden.is_empty()) =>
            {
                tracing::warn!(target: "punctual", error = fault.message, "a search for messages ended early");
                break;
            }
            Err(fault) => return Err(fault),
        };
        ends.clear();
        (found.more, found.next_due) = (batch.more, batch.next_due);
        let is_last = round == ROUNDS_MAX || rounds_until < Instant::now();
        let (mut dead, mut worn, mut is_all_dead) = (Vec::new(), Vec::new(), !batch.jobs.is_empty());
        for reserved in batch.jobs {
            let end = |verdict| Settlement { lease: reserved.lease, verdict };
            if queue.has_lost(&reserved.job) {
                ends.push(end(Verdict::Cancel { reason: Some("purged".to_owned()) }));
                purge::start_if_idle(door, &want.name);
                continue;
            } else if target.as_ref().is_some_and(|target| target.takes(&reserved.job)) {
                dead.push(reserved);
                continue;
            } else if same.takes(&reserved.job) {
                worn.push(reserved);
            } else if want.n <= found.held.jobs.len() || (0 < reserved.job.expired_leases && !is_last) {
                ends.push(end(Verdict::Release));
            } else {
                found.held.jobs.push(reserved);
            }
            is_all_dead = false;
        }
        let mut is_done = dead.is_empty() && worn.is_empty();
        if let Some(target) = target.as_ref().filter(|_| !dead.is_empty()) {
            let moved = redrive::moved(door, target, dead, until).await;
            ends.extend(moved.ends);
            for reserved in moved.refused.iter().chain(&moved.unknown) {
                match redrive::hidden(reserved) {
                    Some(beat) => hidden.push(beat),
                    None => stuck.push(redrive::put_off(reserved)),
                }
            }
        }
        if !worn.is_empty() {
            let moved = redrive::moved(door, &same, worn, until).await;
            ends.extend(moved.ends);
            stuck.extend(moved.unknown.iter().map(redrive::put_off));
            for reserved in moved.refused {
                // It has attempts left. Without the last one, it would be dead when its timeout ends.
                if reserved.job.attempt < reserved.job.max_attempts && found.held.jobs.len() < want.n {
                    found.held.jobs.push(reserved);
                } else {
                    stuck.push(redrive::put_off(&reserved));
                }
            }
        }
        is_done &= ends.is_empty();
        if is_done && stuck.is_empty() && hidden.is_empty() {
            return Ok(found);
        }
        if is_done || is_last {
            break;
        }
        ask = if is_all_dead { MOVED_MAX } else { want.n - found.held.jobs.len() };
    }
    // What ends here may leave others that can start.
    found.more = true;
    found.is_stuck = stuck.iter().any(|end| end.verdict == Verdict::Release);
    ends.extend(stuck);
    ends.extend(hide(door, &hidden).await);
    let ended = end_now(door, &mut ends).await;
    end_later(door, ends);
    match ended {
        Err(error) if found.held.jobs.is_empty() => Err(error.into()),
        _ => Ok(found),
    }
}

/// Gives leases another length. Returns ends of those that may not have got it.
async fn hide(door: &Door, beats: &[Heartbeat]) -> Vec<Settlement> {
    if beats.is_empty() {
        return Vec::new();
    }
    let statuses = door.client.store().extend(beats).await.unwrap_or_else(|error| {
        tracing::warn!(target: "punctual", %error, "messages could not be hidden");
        vec![LeaseStatus::Away; beats.len()]
    });
    let away = beats.iter().zip(statuses).filter(|(_, status)| *status == LeaseStatus::Away);
    away.map(|(beat, _)| Settlement { lease: beat.lease, verdict: Verdict::Release }).collect()
}

/// What a round begins with.
#[derive(Debug)]
struct Round {
    queue: Arc<Queue>,
    /// Where its dead letters go.
    target: Option<Target>,
    batch: Batch,
}

/// Begins a round. It looks at the queues anew: one of them may have got other settings meanwhile, or be purged or deleted.
async fn next_round(door: &Arc<Door>, want: &Want, ends: &[Settlement], ask: usize) -> Result<Round, Fault> {
    let queue = door.queues.get(&want.name).await?;
    let target = Target::of(door, &want.name, &queue).await?;
    let batch = settle_and_reserve(door, want, ends, ask).await?;
    Ok(Round { queue, target, batch })
}

/// Ends leases, and reserves jobs, in one step.
///
/// Without an answer it is repeated with the same number, and returns the same jobs. Otherwise these would be hidden, and nobody would
/// know of them.
async fn settle_and_reserve(
    door: &Arc<Door>,
    want: &Want,
    ends: &[Settlement],
    n: usize,
) -> Result<Batch, Error> {
    let mut lane = door.lanes.free().await;
    lane.number += 1;
    let request = QueueRequest { queue: want.name.clone(), share: n, at_most: n };
    let reserve = Reserve {
        call: *lane,
        worker: want.worker.clone(),
        queues: vec![request],
        n,
        lease: Some(want.lease),
        // No message is a suspect of anything.
        company: true,
    };
    let store = door.client.store();
    let (mut ends, mut is_unknown, mut pause) = (ends, false, REPEAT_AFTER);
    for repeats in 0.. {
        let answer = if ends.is_empty() {
            store.reserve(&reserve).await.map(Some)
        } else {
            store.settle(ends, Some(&reserve)).await.map(|(settled, batch)| {
                end_later(door, away(ends, &settled));
                batch
            })
        };
        match answer {
            Ok(Some(batch)) => return Ok(batch),
            // Only the leases have ended.
            Ok(None) if repeats == REPEATS_MAX => return Ok(Batch { more: true, ..Batch::default() }),
            Ok(None) => (ends, is_unknown) = (&[], true),
            Err(error) => {
                is_unknown |= error.kind() == ErrorKind::UnknownOutcome;
                if !is_unknown || !error.is_repeatable() || repeats == REPEATS_MAX {
                    return Err(error);
                }
            }
        }
        sleep(pause).await;
        pause *= 2;
    }
    unreachable!("invariant: the last repeat returns")
}
