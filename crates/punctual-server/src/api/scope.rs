//! What a caller may do, where that depends on the body of a call.

use std::{collections::BTreeSet, convert::Infallible};

use axum::{extract::FromRequestParts, http::request::Parts};
use punctual::{
    JobId, JobRecord, NewJob, Payload,
    job::Filter,
    store::{BoardAct, DocOp, DocReply, Lease, LockOp, QueueOp, Reserve, ToolOp},
    topic::TOPICS_QUEUE,
    worker::WorkerInfo,
};
use serde::Deserialize;

use super::{Api, Problem};
use crate::{
    activity::{Actor, Entry, Via},
    gate::{Caller, Refusal, Right},
    operations, reserved,
};

/// The documents of schedules.
const SCHEDULES: &str = "schedule/";

/// The caller of a request; without a gate in front of the router, anybody.
#[derive(Clone, Debug)]
pub(super) struct Scope(Option<Caller>);

impl<S: Sync> FromRequestParts<S> for Scope {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get().cloned()))
    }
}

impl From<Caller> for Scope {
    fn from(caller: Caller) -> Self {
        Self(Some(caller))
    }
}

impl Scope {
    fn may(&self, right: Right, queue: Option<&str>) -> Result<(), Problem> {
        match &self.0 {
            Some(caller) => Ok(caller.may(right, queue)?),
            None => Ok(()),
        }
    }

    /// The name of the caller, for people.
    pub(super) fn name(&self) -> &str {
        self.0.as_ref().map_or("api", |caller| caller.name.as_str())
    }

    /// The caller, if a gate has let it in.
    pub(super) fn caller(&self) -> Option<&Caller> {
        self.0.as_ref()
    }

    /// The caller, for records of who did what.
    pub(super) fn actor(&self) -> Actor {
        Actor::of(self.caller(), "api")
    }

    /// Begins an entry of the activity log.
    pub(super) fn entry(&self, action: &str) -> Entry {
        Entry::new(self.actor(), Via::Api, action)
    }

    /// Checks the right in each of these queues, or in the whole store (`None`).
    pub(super) fn in_all(&self, right: Right, queues: Option<&[String]>) -> Result<(), Problem> {
        match self.caller() {
            Some(caller) => Ok(operations::may(caller, right, queues)?),
            None => Ok(()),
        }
    }

    /// Checks the right in the whole store.
    pub(super) fn in_store(&self, right: Right) -> Result<(), Problem> {
        self.may(right, None)
    }

    /// Checks the right in each of these queues.
    pub(super) fn in_queues<'a>(
        &self,
        right: Right,
        queues: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Problem> {
        queues.into_iter().try_for_each(|queue| self.may(right, Some(queue)))
    }

    /// Whether the caller may use some queues only.
    pub(super) fn is_narrow(&self) -> bool {
        self.0.as_ref().is_some_and(|caller| caller.queues.is_some())
    }

    /// Leaves out of a reserve what a caller for some queues must not have: every worker asks for publications, too.
    pub(super) fn narrow(&self, want: &mut Reserve) {
        if self.is_narrow() {
            want.queues.retain(|request| request.queue != TOPICS_QUEUE);
        }
    }

    /// Checks that leases are of jobs in queues of the caller. It reads the jobs if the caller is for some queues only.
    pub(super) async fn of_leases(&self, api: &Api, leases: Vec<Lease>) -> Result<(), Problem> {
        if !self.is_narrow() {
            return Ok(());
        }
        let jobs: BTreeSet<JobId> = leases.iter().map(|lease| lease.job).collect();
        for id in jobs {
            if let Some(job) = api.client.get(id).await? {
                self.unnamed(Right::Operate, &job.queue, "a lease is of a job in a queue")?;
            }
        }
        Ok(())
    }

    /// Checks the right in a queue that the request does not name, so that the refusal must not name it either.
    fn unnamed(&self, right: Right, queue: &str, what: &str) -> Result<(), Problem> {
        let Some(caller) = &self.0 else { return Ok(()) };
        caller.has(right)?;
        if caller.may(right, Some(queue)).is_err() {
            return Err(Refusal::elsewhere(what).into());
        }
        Ok(())
    }

    /// Checks the right to enqueue a job.
    ///
    /// A derived id belongs to the queue that it is derived from, and does not show which that is. So a caller for some queues must give the key,
    /// from which the server has derived the id itself. Otherwise a job in its own queue could stand for one that another queue expects.
    pub(super) fn new_job(&self, job: &NewJob) -> Result<(), Problem> {
        self.may(Right::Operate, Some(&job.queue))?;
        if self.is_narrow() && job.id.is_derived() && job.proven_key().is_none() {
            return Err(Refusal::underived().into());
        }
        Ok(())
    }

    /// Checks the right to read a job, and hides from it what the caller must not see. The job of another queue is not there.
    pub(super) fn job(&self, job: Option<JobRecord>) -> Option<JobRecord> {
        job.filter(|job| self.may(Right::Read, Some(&job.queue)).is_ok()).map(|job| self.shown(job))
    }

    /// Hides payload, result and headers from a caller that must not see them.
    pub(super) fn shown(&self, mut job: JobRecord) -> JobRecord {
        if self.hides_payloads() {
            job.payload = Payload::json("null");
            job.result = None;
            job.headers.clear();
        }
        job
    }

    /// Whether payloads must be hidden from the caller.
    pub(super) fn hides_payloads(&self) -> bool {
        self.0.as_ref().is_some_and(|caller| caller.payloads_hidden)
    }

    /// Checks that a filter does not look into payloads that are hidden from the caller.
    pub(super) fn filter(&self, filter: &Filter) -> Result<(), Problem> {
        if self.hides_payloads() && filter.reads_payloads() {
            return Err(
                Refusal::hidden("the filter looks into payloads, which are hidden from this token").into()
            );
        }
        Ok(())
    }

    /// Checks a step on a queue.
    pub(super) fn queue(&self, name: &str, op: &QueueOp) -> Result<(), Problem> {
        let right = match op {
            QueueOp::Show => Right::Read,
            QueueOp::Pause { .. } | QueueOp::Resume | QueueOp::Open { .. } => Right::Operate,
            QueueOp::Set(_) | QueueOp::Replace(_) | QueueOp::Purge(_) => Right::Admin,
        };
        self.may(right, Some(name))
    }

    /// Checks a step on documents. Those of tokens, operations and the activity log are for admins. A schedule can be read by a caller for the queue of its job
    /// ([`Scope::schedule`]): the run of a tick enqueues the next one.
    pub(super) fn doc(&self, op: &DocOp) -> Result<(), Problem> {
        if self.hides_payloads() {
            return Err(
                Refusal::hidden("documents can have payloads, which are hidden from this token").into()
            );
        }
        if matches!(op, DocOp::Get { key } if key.starts_with(SCHEDULES)) {
            return Ok(());
        }
        let right = match op {
            DocOp::Get { .. } | DocOp::List { .. } if !reserved::is_reserved(op) => Right::Read,
            _ => Right::Admin,
        };
        self.may(right, None)
    }

    /// Hides from a caller for some queues the document of a schedule whose job goes to another queue, and of one that cannot be read.
    pub(super) fn schedule(&self, reply: DocReply) -> DocReply {
        #[derive(Deserialize)]
        struct Schedule {
            job: Job,
        }
        #[derive(Deserialize)]
        struct Job {
            queue: String,
        }
        match reply {
            DocReply::Is(Some(doc)) if self.is_narrow() && doc.key.starts_with(SCHEDULES) => {
                let queue = serde_json::from_slice::<Schedule>(&doc.value).map(|schedule| schedule.job.queue);
                let is_seen = queue.is_ok_and(|queue| self.may(Right::Read, Some(&queue)).is_ok());
                DocReply::Is(Some(doc).filter(|_| is_seen))
            }
            reply => reply,
        }
    }

    /// Whether the caller can see a worker: it serves a queue that the caller may read.
    pub(super) fn sees(&self, info: &WorkerInfo) -> bool {
        !self.is_narrow() || info.queues.iter().any(|queue| self.may(Right::Read, Some(&queue.name)).is_ok())
    }

    /// Whether the caller can see all queues of a worker, and so everything that it says of itself.
    pub(super) fn sees_all_of(&self, info: &WorkerInfo) -> bool {
        let is_seen = |name: &str| self.may(Right::Read, Some(name)).is_ok();
        !self.is_narrow() || !info.queues.is_empty() && info.queues.iter().all(|queue| is_seen(&queue.name))
    }

    /// Returns a worker as the caller may see it. Of one that also serves other queues, it sees neither these nor its machine, process, kinds or receiver.
    pub(super) fn worker(&self, mut info: WorkerInfo) -> WorkerInfo {
        if self.sees_all_of(&info) {
            return info;
        }
        info.queues.retain(|queue| self.may(Right::Read, Some(&queue.name)).is_ok());
        (info.name, info.host, info.pid) = (info.id.clone(), String::new(), 0);
        (info.kinds, info.more_kinds, info.forwards) = (Vec::new(), 0, None);
        info
    }

    /// Checks the right in all queues of a worker.
    pub(super) fn of_worker(&self, right: Right, info: &WorkerInfo) -> Result<(), Problem> {
        if info.queues.is_empty() {
            return self.in_store(right);
        }
        info.queues
            .iter()
            .try_for_each(|queue| self.unnamed(right, &queue.name, "the worker also serves a queue"))
    }

    /// Checks a step on a tool.
    pub(super) fn tool(&self, op: &ToolOp) -> Result<(), Problem> {
        let looks = match op {
            ToolOp::Limit(_) => false,
            ToolOp::Lock(op) => matches!(op, LockOp::Show { .. } | LockOp::List { .. }),
            ToolOp::Board(op) => matches!(
                op.act,
                BoardAct::Rank { .. } | BoardAct::Top { .. } | BoardAct::Around { .. } | BoardAct::Size
            ),
        };
        self.may(if looks { Right::Read } else { Right::Operate }, None)
    }
}
