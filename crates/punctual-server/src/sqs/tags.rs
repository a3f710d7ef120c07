//! Tags of queues: words for people, which change nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Call, Reply, fault::Fault, nothing, queue::Queue, queues::Named, write};

/// Most tags of a queue.
const TAGS_MAX: usize = 50;
/// The longest key and the longest value of a tag, in characters.
const KEY_MAX: usize = 128;
const VALUE_MAX: usize = 256;

/// `TagQueue`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Add {
    queue_url: String,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

/// `UntagQueue`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Remove {
    queue_url: String,
    #[serde(default)]
    tag_keys: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Tags<'a> {
    tags: &'a BTreeMap<String, String>,
}

/// Checks tags of a queue.
pub(super) fn check(tags: &BTreeMap<String, String>) -> Result<(), Fault> {
    let is_right = |(key, value): (&String, &String)| {
        (1..=KEY_MAX).contains(&key.chars().count()) && value.chars().count() <= VALUE_MAX
    };
    if TAGS_MAX < tags.len() || !tags.iter().all(is_right) {
        return Err(Fault::value(format!(
            "A queue has up to {TAGS_MAX} tags, with keys of 1 to {KEY_MAX} characters and values of up to {VALUE_MAX}."
        )));
    }
    Ok(())
}

/// Answers `ListQueueTags`.
pub(super) async fn list(call: &Call, request: Named) -> Reply {
    let (_, queue) = call.queue(&request.queue_url).await?;
    write(&Tags { tags: &queue.tags })
}

/// Answers `TagQueue`.
pub(super) async fn add(call: &Call, request: Add) -> Reply {
    change(call, &request.queue_url, |tags| tags.extend(request.tags.clone())).await
}

/// Answers `UntagQueue`.
pub(super) async fn remove(call: &Call, request: Remove) -> Reply {
    change(call, &request.queue_url, |tags| tags.retain(|key, _| !request.tag_keys.contains(key))).await
}

async fn change(call: &Call, url: &str, change: impl Fn(&mut BTreeMap<String, String>)) -> Reply {
    let (name, _) = call.queue(url).await?;
    let changed = call.door.queues.change(name, |seen| {
        let queue = seen.filter(|queue| queue.deleted_ms.is_none()).ok_or_else(Fault::no_queue)?;
        let mut tags = queue.tags.clone();
        change(&mut tags);
        check(&tags)?;
        Ok((Some(Queue { tags, ..queue.clone() }), ()))
    });
    changed.await?;
    Ok(nothing())
}
