//! `audit`: checks all places for records, all records for places, then everything kept beside them, in slices.

use super::scripts::{DOC_KEYS, SCRIPTS};
use crate::{
    core::{error::Result, id::JobId, limits::BATCH_MAX},
    store::{
        Audit, AuditCursor, Audited, Finding, QueueSettings,
        redis::{
            scripts::bytes::Bytes,
            sharded::{
                layout::Layout,
                shard::{Shard, digits},
            },
            state::settings::{self, Share},
        },
    },
};

/// The queue of jobs that say none.
const STRAYS: &str = "found";
/// The keys that are walked, in order. Queues come first, because without its settings nothing of one can be checked. Places come before records, because the queue of a partially written record
/// may be known only from its place. Counters come last, because they follow from the others.
const WALKS: [&str; 21] =
    ["i", "q", "t", "l", "e", "j", "b", "x", "r", "o", "u", "v", "m", "k", "p", "d", "f", "g", "y", "h", "c"];

/// Checks a slice of one shard; also returns the jobs whose records were read.
pub(super) async fn audit(shard: &Shard, layout: &Layout, audit: Audit) -> Result<(Audited, Vec<JobId>)> {
    let (walk, from) =
        audit.from.0.split_first().map_or((0, &[][..]), |(walk, from)| (usize::from(*walk), from));
    let Some(what) = WALKS.get(walk) else { return Ok(Default::default()) };
    let args = vec![
        what.as_bytes().to_vec(),
        from.to_vec(),
        digits(BATCH_MAX as u64),
        digits(u64::from(audit.repair)),
        settings::encode("", &QueueSettings::unreadable(), 1, Share::of(layout, "", shard.number)),
        settings::encode(STRAYS, &QueueSettings::default(), 1, Share::of(layout, STRAYS, shard.number)),
    ];
    let mut reply = shard.ask(&SCRIPTS.audit, &DOC_KEYS.map(|key| shard.key(key)), args).await?;
    let next = reply.bytes()?;
    let mut audited = Audited { checked: reply.number()?, ..Audited::default() };
    shard.notify(&reply.bytes()?)?;
    let ids = reply.bytes()?;
    let ids = ids.as_chunks().0.iter().filter_map(|id| JobId::from_bytes(*id).ok()).collect();
    while !reply.is_over() {
        let (id, q, what, detail) = (reply.bytes()?, reply.bytes()?, reply.bytes()?, reply.bytes()?);
        let queue = if q.is_empty() { None } else { Bytes(&q).chunk()?.text().ok() };
        audited.findings.push(Finding {
            id: id.try_into().ok().and_then(|id| JobId::from_bytes(id).ok()),
            queue,
            what: word(&what).into(),
            detail: Bytes(&detail).text()?,
            repaired: reply.number()? == 1,
        });
    }
    let (walk, from) = if next.is_empty() { (walk + 1, Vec::new()) } else { (walk, next) };
    if walk < WALKS.len() {
        let mut cursor = vec![walk as u8];
        cursor.extend(from);
        audited.next = Some(AuditCursor(cursor));
    }
    Ok((audited, ids))
}

fn word(what: &[u8]) -> &'static str {
    match what {
        b"no_record" => "no_record",
        b"two_places" => "two_places",
        b"corrupt" => "corrupt",
        b"stale_key" => "stale_key",
        b"counter" => "counter",
        _ => "orphan",
    }
}
