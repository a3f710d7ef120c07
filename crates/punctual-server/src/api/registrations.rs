//! Documents of workers, for callers that are no admins: a worker registers itself with the token that it works with.
//!
//! A caller that may operate all queues of a worker may change its document, and nobody else. The document is read before
//! for callers of some queues. A change has the version as its condition, so that what was read is what is changed.

use punctual::{
    Error,
    store::{Doc, DocOp, DocReply, Precondition},
    worker::WorkerInfo,
};

use super::{Api, Problem, Scope};
use crate::gate::Right;

/// The prefix of the keys of these documents.
const PREFIX: &str = "worker/";

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
            (Some(doc), Right::Read) if !sees(scope, &doc) => return Ok(DocReply::Is(None)),
            (Some(doc), Right::Operate) => scope.of_worker(right, &WorkerInfo::read(key, &doc.value)?)?,
            _ => {}
        }
    } else {
        scope.in_store(right)?;
    }
    Ok(match api.client.store().doc(op).await? {
        DocReply::Conflict(Some(doc)) if scope.is_narrow() && !sees(scope, &doc) => DocReply::Conflict(None),
        reply => reply,
    })
}

fn sees(scope: &Scope, doc: &Doc) -> bool {
    WorkerInfo::read(&doc.key, &doc.value).is_ok_and(|info| scope.sees(&info))
}

async fn is(api: &Api, key: &str) -> Result<Option<Doc>, Problem> {
    match api.client.store().doc(&DocOp::Get { key: key.to_owned() }).await? {
        DocReply::Is(doc) => Ok(doc),
        DocReply::Conflict(_) | DocReply::Page { .. } => {
            Err(Error::new(punctual::ErrorKind::Corrupt, "the store answered another question").into())
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
