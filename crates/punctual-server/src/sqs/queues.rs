//! The actions on queues themselves.

use std::collections::{BTreeMap, BTreeSet};

use punctual::limits::DUE_COUNT_MAX;
use serde::{Deserialize, Serialize};

use super::{
    Call, Reply,
    attributes::{self, Attributes, arn, within},
    fault::{Code, Fault},
    nothing, purge as cleaning,
    queue::{self, Queue},
    tags, write,
};
use crate::gate::Right;

/// Most names of one listing.
const NAMES_MAX: u32 = 1_000;
/// Most pages of documents that one listing reads.
const PAGES_MAX: usize = 10;

/// `CreateQueue`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Create {
    queue_name: String,
    #[serde(default)]
    attributes: Option<BTreeMap<String, String>>,
    #[serde(default, alias = "tags")]
    tags: Option<BTreeMap<String, String>>,
}

/// A request with nothing but a queue.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Named {
    pub(super) queue_url: String,
}

/// `ListQueues`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct List {
    #[serde(default)]
    queue_name_prefix: Option<String>,
    max_results: Option<i64>,
    next_token: Option<String>,
}

/// `GetQueueUrl`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Url {
    queue_name: String,
}

/// `GetQueueAttributes`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Get {
    queue_url: String,
    #[serde(default)]
    attribute_names: Option<Vec<String>>,
}

/// `SetQueueAttributes`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Set {
    queue_url: String,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Address {
    queue_url: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue_urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Shown {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'static str, String>,
}

/// Checks that the caller may send to the dead-letter queue that attributes name, and that it is there. So nobody can have messages moved
/// to a queue of others.
async fn check_target(
    call: &Call,
    name: &str,
    given: &BTreeMap<String, String>,
    attributes: &Attributes,
) -> Result<(), Fault> {
    let Some(redrive) = attributes.redrive.as_ref().filter(|_| given.contains_key("RedrivePolicy")) else {
        return Ok(());
    };
    call.may(Right::Operate, &redrive.queue)?;
    let wrong = |why: &str| {
        let text = format!("Invalid value for the parameter RedrivePolicy: the dead-letter queue {why}.");
        Fault::new(Code::InvalidAttributeValue, text)
    };
    let target = call.door.queues.get(&redrive.queue).await.map_err(|fault| match fault.code {
        Code::QueueDoesNotExist => wrong("does not exist"),
        _ => fault,
    })?;
    if target.attributes.redrive.as_ref().is_some_and(|back| back.queue == name) {
        return Err(wrong("has a policy that leads back, so a message would never come to rest"));
    }
    Ok(())
}

/// Answers `CreateQueue`.
pub(super) async fn create(call: &Call, request: Create) -> Reply {
    let name = request.queue_name.as_str();
    queue::check_name(name)?;
    call.may(Right::Admin, name)?;
    let given = request.attributes.unwrap_or_default();
    let mut attributes = Attributes::default();
    attributes.set(name, &given)?;
    attributes::check_new(name, &given)?;
    check_target(call, name, &given, &attributes).await?;
    let own_tags = request.tags.unwrap_or_default();
    tags::check(&own_tags)?;
    let now = call.door.client.store().now().await?;
    let fresh = |generation, gone_until_ms| Queue {
        created_ms: now.as_ms(),
        modified_ms: now.as_ms(),
        generation,
        gone_until_ms,
        deleted_ms: None,
        attributes: attributes.clone(),
        tags: own_tags.clone(),
    };
    let changed = call.door.queues.change(name, |seen| match seen {
        None => Ok((Some(fresh(now.as_ms(), 0)), Changed::Made)),
        Some(mark) => {
            // What was sent to the queue before it was deleted does not come back with its name.
            if let Some(deleted_ms) = mark.deleted_ms {
                return Ok((Some(fresh(mark.next_generation(now), deleted_ms)), Changed::Again));
            }
            let queue = mark;
            let mut wanted = queue.attributes.clone();
            wanted.set(name, &given)?;
            if wanted == queue.attributes {
                // Another caller still waits until all have seen it.
                let young_ms = 2 * queue::BELIEVED_FOR.as_millis() as u64;
                let is_young =
                    0 < queue.gone_until_ms && now.as_ms() < queue.created_ms.saturating_add(young_ms);
                return Ok((None, if is_young { Changed::Just } else { Changed::Nothing }));
            }
            Err(Fault::new(
                Code::QueueNameExists,
                "A queue already exists with the same name and a different value for an attribute.",
            ))
        }
    });
    match changed.await? {
        Changed::Nothing => {}
        Changed::Just => cleaning::seen_by_all().await,
        Changed::Made => call.note("create", name),
        Changed::Again => {
            call.note("create", name);
            cleaning::start(&call.door, name);
            cleaning::seen_by_all().await;
        }
    }
    write(&Address { queue_url: call.url(name) })
}

/// What became of a queue that was to be made.
#[derive(Clone, Copy, Debug)]
enum Changed {
    Nothing,
    /// By another caller, just now.
    Just,
    Made,
    Again,
}

/// Answers `DeleteQueue`. Its messages are removed soon.
pub(super) async fn delete(call: &Call, request: Named) -> Reply {
    let name = queue::name_of(&request.queue_url)?;
    call.may(Right::Admin, name)?;
    let now = call.door.client.store().now().await?;
    let is_new = call.door.queues.change(name, |seen| match seen {
        None => Err(Fault::no_queue()),
        // A server that was killed may have left messages.
        Some(mark) if mark.deleted_ms.is_some() => Ok((None, false)),
        Some(queue) => Ok((Some(Queue { deleted_ms: Some(now.as_ms()), ..queue.clone() }), true)),
    });
    if is_new.await? {
        call.note("delete", name);
    }
    cleaning::start(&call.door, name);
    Ok(nothing())
}

/// Answers `PurgeQueue`. From now on no message that was sent before is received; those that are left are removed soon.
pub(super) async fn purge(call: &Call, request: Named) -> Reply {
    let (name, _) = call.queue(&request.queue_url).await?;
    let now = call.door.client.store().now().await?;
    let purged = call.door.queues.change(name, |seen| match seen {
        Some(queue) if queue.deleted_ms.is_none() => {
            let gone_until_ms = queue.gone_until_ms.max(now.as_ms());
            let generation = queue.next_generation(now);
            Ok((Some(Queue { generation, gone_until_ms, ..queue.clone() }), ()))
        }
        _ => Err(Fault::no_queue()),
    });
    purged.await?;
    call.note("purge", name);
    cleaning::start(&call.door, name);
    cleaning::seen_by_all().await;
    Ok(nothing())
}

/// Answers `ListQueues` with those that the caller may read.
pub(super) async fn list(call: &Call, request: List) -> Reply {
    let n = request.max_results.unwrap_or(NAMES_MAX.into());
    let n = within("MaxResults", n, 1..=NAMES_MAX.into())? as usize;
    let prefix = request.queue_name_prefix.unwrap_or_default();
    if let Some(own) = &call.caller.queues {
        let (names, next_token) = own_queues(call, own, &prefix, request.next_token.as_deref(), n).await?;
        return write(&Listed { queue_urls: names.iter().map(|name| call.url(name)).collect(), next_token });
    }
    let (mut names, mut after) = (Vec::new(), request.next_token);
    for _ in 0..PAGES_MAX {
        let (page, next) = call.door.queues.page(&prefix, after.as_deref(), n - names.len()).await?;
        names.extend(page);
        after = next;
        if after.is_none() || names.len() == n {
            break;
        }
    }
    write(&Listed { queue_urls: names.iter().map(|name| call.url(name)).collect(), next_token: after })
}

/// Returns names of the queues of a caller that are there, after `after`, and the last one if there may be more. It looks at no others,
/// so that a page cannot end with the name of a queue of others.
async fn own_queues(
    call: &Call,
    own: &[String],
    prefix: &str,
    after: Option<&str>,
    n: usize,
) -> Result<(Vec<String>, Option<String>), Fault> {
    let is_wanted =
        |name: &&String| name.starts_with(prefix) && after.is_none_or(|after| after < name.as_str());
    let wanted: BTreeSet<&String> = own.iter().filter(is_wanted).collect();
    let mut names = Vec::new();
    for name in wanted {
        if names.len() == n {
            let next = names.last().cloned();
            return Ok((names, next));
        }
        match call.door.queues.get(name).await {
            Ok(_) => names.push(name.clone()),
            Err(fault) if fault.code == Code::QueueDoesNotExist => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok((names, None))
}

/// Answers `GetQueueUrl`.
pub(super) async fn url(call: &Call, request: Url) -> Reply {
    let name = request.queue_name.as_str();
    queue::check_name(name)?;
    call.queue(name).await?;
    write(&Address { queue_url: call.url(name) })
}

/// Answers `GetQueueAttributes`.
pub(super) async fn attributes(call: &Call, request: Get) -> Reply {
    let (name, queue) = call.queue(&request.queue_url).await?;
    let mut all = queue.attributes.texts(name, &call.region);
    all.insert("CreatedTimestamp", (queue.created_ms / 1_000).to_string());
    all.insert("LastModifiedTimestamp", (queue.modified_ms / 1_000).to_string());
    all.insert("QueueArn", arn(&call.region, name));
    let counts = call.door.client.count(Some(name)).await?;
    // Due jobs are counted up to a bound.
    let due = if counts.due < DUE_COUNT_MAX { counts.due } else { counts.waiting };
    all.insert("ApproximateNumberOfMessages", due.to_string());
    all.insert("ApproximateNumberOfMessagesDelayed", counts.waiting.saturating_sub(due).to_string());
    all.insert("ApproximateNumberOfMessagesNotVisible", counts.running.to_string());
    let wanted = request.attribute_names.unwrap_or_default();
    // Of a queue that does not have them.
    let optional =
        ["RedrivePolicy", "Policy", "FifoQueue", "ContentBasedDeduplication", "DeduplicationScope"];
    let optional = |name: &str| {
        optional.contains(&name)
            || name.starts_with("Kms")
            || name == "FifoThroughputLimit"
            || name == "RedriveAllowPolicy"
    };
    let unknown =
        wanted.iter().find(|name| *name != "All" && !all.contains_key(name.as_str()) && !optional(name));
    if let Some(unknown) = unknown {
        return Err(Fault::new(Code::InvalidAttributeName, format!("Unknown Attribute {unknown}.")));
    }
    all.retain(|name, _| wanted.iter().any(|wanted| wanted == "All" || wanted == name));
    write(&Shown { attributes: all })
}

/// Answers `SetQueueAttributes`.
pub(super) async fn set(call: &Call, request: Set) -> Reply {
    let (name, _) = call.queue(&request.queue_url).await?;
    let mut probe = Attributes::default();
    probe.set(name, &request.attributes)?;
    check_target(call, name, &request.attributes, &probe).await?;
    let now = call.door.client.store().now().await?;
    let changed = call.door.queues.change(name, |seen| {
        let mut queue = seen.filter(|queue| queue.deleted_ms.is_none()).ok_or_else(Fault::no_queue)?.clone();
        queue.attributes.set(name, &request.attributes)?;
        queue.modified_ms = now.as_ms();
        Ok((Some(queue), ()))
    });
    changed.await?;
    call.note("settings", name);
    Ok(nothing())
}
