//! Documents of workers, for callers that are no admins: a worker registers itself with the token that it works with.
//!
//! A caller that may operate all queues of a worker may change its document, and nobody else. The document is read before
//! for callers of some queues. A change has the version as its condition, so that what was read is what is changed.

use std::time::Duration;

use punctual::{
    Error, ErrorKind,
    limits::NAME_BYTES_MAX,
    store::{Doc, DocOp, DocReply, Precondition},
    worker::{WorkerInfo, WorkerState},
};

use super::{Api, Problem, Scope};
use crate::gate::Right;

/// The prefix of the keys of these documents.
const PREFIX: &str = "worker/";

/// The largest of them, in bytes. A worker with 64 queues and 50 kinds of long names has less.
const VALUE_BYTES_MAX: usize = 48 * 1024;
/// The largest of them of a caller for some queues, in bytes, and how many such workers its queues have at most: they must not fill the pages on
/// which others look for the workers of other queues.
const NARROW_BYTES_MAX: usize = 16 * 1024;
const NARROW_MAX: usize = 64;
/// How far a worker's view of the clock of the store can be ahead.
const AHEAD_MAX: Duration = Duration::from_mins(1);

/// Returns whether a step is on the document of one worker.
pub(super) fn is_one(op: &DocOp) -> bool {
    match op {
        DocOp::Get { key } | DocOp::Put { key, .. } | DocOp::Remove { key, .. } => key.starts_with(PREFIX),
        DocOp::List { .. } => false,
    }
}

/// Takes a step on the document of a worker, if the caller may.
pub(super) async fn step(api: &Api, scope: &Scope, op: &DocOp) -> Result<DocReply, Problem> {
    let (key, right) = match op {
        DocOp::Get { key } => (key, Right::Read),
        DocOp::Put { key, precondition, value } => {
            has_condition(*precondition)?;
            // What is written must be a worker that the caller could run.
            let info = WorkerInfo::read(key, value)
                .map_err(|e| Error::invalid("the document is not that of a worker").with_source(e))?;
            scope.of_worker(Right::Operate, &info)?;
            // One that is far ahead would never be missing, and nobody would remove it.
            let now = api.client.store().now().await?;
            let bytes_max = if scope.is_narrow() { NARROW_BYTES_MAX } else { VALUE_BYTES_MAX };
            let is_named =
                [&info.name, &info.host, &info.version].iter().all(|text| text.len() <= NAME_BYTES_MAX);
            if bytes_max < value.len() || !is_named || now.after(AHEAD_MAX) < info.seen {
                let detail = format!(
                    "a registration has up to {bytes_max} bytes, names of up to {NAME_BYTES_MAX}, and is not of the future"
                );
                return Err(Error::invalid(detail).into());
            }
            if scope.is_narrow() && *precondition == Precondition::IfAbsent {
                make_room(api, scope).await?;
            }
            (key, Right::Operate)
        }
        DocOp::Remove { key, precondition } => {
            has_condition(*precondition)?;
            (key, Right::Operate)
        }
        DocOp::List { .. } => unreachable!("invariant: `is_one` knows no lists"),
    };
    if scope.is_narrow() {
        // A condition on a version that was read before makes the change fail if it is another worker by then.
        match (is(api, key).await?, right) {
            (Some(doc), Right::Read) if !sees_all_of(scope, &doc) => return Ok(DocReply::Is(None)),
            (Some(doc), Right::Operate) => scope.of_worker(right, &WorkerInfo::read(key, &doc.value)?)?,
            _ => {}
        }
    } else {
        scope.in_store(right)?;
    }
    let made = api.client.store().doc(op).await;
    // A worker itself writes no order: who does is an operator.
    if let DocOp::Put { key, value, .. } = op
        && !matches!(made, Ok(DocReply::Conflict(_)))
        && let Some(order) = WorkerInfo::read(key, value).ok().and_then(|info| info.order)
    {
        api.activity.note(scope.entry(order.name()).document(key), &made);
    }
    Ok(match made? {
        DocReply::Conflict(Some(doc)) if !sees_all_of(scope, &doc) => DocReply::Conflict(None),
        reply => reply,
    })
}

fn sees_all_of(scope: &Scope, doc: &Doc) -> bool {
    !scope.is_narrow() || WorkerInfo::read(&doc.key, &doc.value).is_ok_and(|info| scope.sees_all_of(&info))
}

/// Makes room for one more worker of the caller's queues: the first of those that are missing is removed.
///
/// Two calls at the same time can exceed the limit by one each.
async fn make_room(api: &Api, scope: &Scope) -> Result<(), Problem> {
    let (mut after, mut own, mut missing) = (None, 0, None);
    loop {
        let page = api.client.workers(after.as_deref()).await?;
        for info in page.workers.into_iter().filter(|info| scope.of_worker(Right::Operate, info).is_ok()) {
            own += 1;
            let is_first = |first: &WorkerInfo| info.seen < first.seen;
            if info.state == WorkerState::Missing && missing.as_ref().is_none_or(is_first) {
                missing = Some(info);
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if own < NARROW_MAX {
        return Ok(());
    }
    let Some(info) = missing else {
        let detail = format!("the queues of the token have {NARROW_MAX} registered workers");
        return Err(Problem::from(Error::new(ErrorKind::Full, detail))
            .with_hint("stop some of them, or use a token for the whole store"));
    };
    let key = format!("{PREFIX}{}", info.id);
    let Some(doc) = is(api, &key).await? else { return Ok(()) };
    let remove = DocOp::Remove { key, precondition: Precondition::IfVersion(doc.version) };
    api.client.store().doc(&remove).await?;
    Ok(())
}

async fn is(api: &Api, key: &str) -> Result<Option<Doc>, Problem> {
    match api.client.store().doc(&DocOp::Get { key: key.to_owned() }).await? {
        DocReply::Is(doc) => Ok(doc),
        DocReply::Conflict(_) | DocReply::Page { .. } => {
            Err(Error::new(ErrorKind::Corrupt, "the store answered another question").into())
        }
    }
}

fn has_condition(precondition: Precondition) -> Result<(), Problem> {
    match precondition {
        Precondition::Always => {
            Err(Error::invalid("the document of a worker is changed with a condition on its version").into())
        }
        Precondition::IfAbsent | Precondition::IfVersion(_) => Ok(()),
    }
}
