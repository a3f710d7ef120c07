//! `act`: operator's actions on single jobs.

use crate::{
    core::{
        digest::group_digest,
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::{JobRecord, cut_error},
        limits::PAYLOAD_BYTES_MAX,
        time::{When, ceil_ms},
    },
    store::{
        Acted, Action, Selector, Target, check_act,
        redis::{
            scripts::{
                SCRIPTS,
                bytes::{Bytes, Put},
                reply,
            },
            sharded::shard::{Shard, digits},
            state::codec,
        },
    },
};

pub(crate) fn check(targets: &[Target], action: &Action) -> Result<()> {
    check_act(targets, action, PAYLOAD_BYTES_MAX)
}

pub(crate) async fn act(shard: &Shard, targets: &[Target], action: &Action) -> Result<Vec<Acted>> {
    let mut all = Vec::with_capacity(targets.len());
    // After a mebibyte of records, a script leaves the rest to the next one. Targets with an answer are not sent
    // again.
    while all.len() < targets.len() {
        let some = act_on_first(shard, &targets[all.len()..], action).await;
        all.extend(some.map_err(|error| if all.is_empty() { error } else { error.in_part() })?);
    }
    Ok(all)
}

/// Finds a job of the same group, or else of the same concurrency key, that waits or runs in a shard; `None` if the
/// job itself is there.
pub(crate) async fn live(shard: &Shard, job: &JobRecord) -> Result<Option<JobId>> {
    let (group, key) = (job.group.as_deref(), job.concurrency.as_ref().map(|concurrency| &*concurrency.key));
    let key = key.map_or_else(Vec::new, |key| codec::lock_digest(&job.queue, group, key).to_vec());
    let group = group.map_or_else(Vec::new, |group| group_digest(group).to_vec());
    let args = vec![job.queue.clone().into_bytes(), job.id.as_bytes().to_vec(), key, group];
    let answer = reply::bytes(shard.call(&SCRIPTS.live, &[], args).await?)?;
    if answer.is_empty() { Ok(None) } else { Bytes(&answer).id().map(Some) }
}

/// Returns answers for the first of them, at least one.
async fn act_on_first(shard: &Shard, targets: &[Target], action: &Action) -> Result<Vec<Acted>> {
    let (name, a, b) = arguments(action);
    let mut args = vec![name.as_bytes().to_vec(), a, b];
    for Target { selector, guard } in targets {
        let (id, digest) = match selector {
            Selector::Id(id) => (id.as_bytes().to_vec(), Vec::new()),
            Selector::Key(key) => (Vec::new(), codec::digest_of(key).to_vec()),
        };
        let guard = guard.as_ref().map_or_else(Vec::new, |guard| {
            // 0 for any version, else the version plus 1. A version above the largest one matches none.
            let version = guard
                .version
                .map_or(0, |version| u32::try_from(version.saturating_add(1)).unwrap_or(u32::MAX));
            [&[codec::code(guard.state)][..], &version.to_be_bytes(), guard.queue.as_bytes()].concat()
        });
        args.extend([id, digest, guard]);
    }
    let mut reply = shard.ask(&SCRIPTS.act, &[], args).await?;
    shard.notify(&reply.bytes()?)?;
    let answers = reply.bytes()?;
    let mut answers = Bytes(&answers);
    let mut all = vec![acted(&mut answers)?];
    while !answers.is_empty() {
        all.push(acted(&mut answers)?);
    }
    Ok(all)
}

fn acted(answers: &mut Bytes<'_>) -> Result<Acted> {
    let tag = answers.byte()?;
    if tag == b'N' {
        answers.take(17)?;
        return Ok(Acted::NotFound);
    }
    let id = answers.id()?;
    let state = codec::state(answers.byte()?)?;
    Ok(match tag {
        b'D' => Acted::Done(id, state),
        b'R' => Acted::Requested(id),
        b'W' => Acted::WrongState(id, state),
        b'U' => Acted::UniqueConflict(id),
        _ => return Err(Error::new(ErrorKind::Corrupt, "the script act answered what it never should")),
    })
}

/// Returns an action in the form that `lua/verbs/act.lua` takes.
fn arguments(action: &Action) -> (&'static str, Vec<u8>, Vec<u8>) {
    let one = |name, a| (name, a, Vec::new());
    match action {
        Action::Cancel { reason } => {
            one("cancel", cut_error(reason.as_deref().unwrap_or("cancelled")).as_bytes().to_vec())
        }
        Action::Reschedule(When::At(t)) => one("at", digits(t.as_ms())),
        Action::Reschedule(When::In(d)) => one("in", digits(ceil_ms(*d))),
        Action::Reschedule(When::Now) | Action::RunNow => one("now", Vec::new()),
        // Beyond this, the time is cut in any case.
        Action::RescheduleBy(ms) => one("by", ms.clamp(&-(1 << 52), &(1 << 52)).to_string().into_bytes()),
        Action::Reprioritise(priority) => one("level", digits(*priority as u64)),
        Action::EditPayload(payload) => {
            let mut content_type = Vec::new();
            content_type.chunk(codec::content_type(payload));
            ("edit", content_type, payload.bytes.clone())
        }
        Action::Retry => one("retry", Vec::new()),
        Action::Delete => one("delete", Vec::new()),
    }
}
