//! One step of a history: a call to a store, or something that happens around it. Plain data, so that a failing history
//! can be cut down and printed.

use std::time::Duration;

use punctual::{
    JobId, NewJob,
    job::Notes,
    store::{Action, CallId, DocOp, QueueOp, Reserve, Take, Target, ToolOp, UniqueKey, Verdict},
};

/// A step, and which of the store's handles makes it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) handle: usize,
    pub(crate) op: Op,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Enqueue(CallId, Vec<NewJob>),
    Reserve(Reserve),
    Extend(Vec<(Pick, Option<Notes>)>),
    Settle(Vec<(Pick, Verdict)>, Option<Reserve>),
    Take(Take),
    Act(Vec<Target>, Action),
    Queue(String, QueueOp),
    Doc(DocOp),
    Tool(ToolOp),
    Sweep(usize),
    /// The clock moves by so many milliseconds, back as well as forth.
    Clock(i64),
    /// The handle is closed and opened again.
    Reopen,
    /// Everything that can be read is read.
    Look(Look),
}

/// Which lease: the n-th newest of all that were ever handed out, stale ones included. Means something whatever was cut
/// away before it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pick {
    Newest(usize),
    /// A right that nobody ever had.
    Forged(JobId, u64),
}

/// How to read everything.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// Jobs per page.
    pub(crate) page: usize,
    /// Width and number of the histogram's buckets.
    pub(crate) bucket: Duration,
    pub(crate) buckets: usize,
    pub(crate) ids: Vec<JobId>,
    pub(crate) keys: Vec<UniqueKey>,
    pub(crate) queues: Vec<String>,
    pub(crate) filters: [&'static str; 2],
}

impl Op {
    /// The same with one of its items left out, in every way there is.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        fn without<T: Clone>(items: &[T]) -> impl Iterator<Item = Vec<T>> {
            (0..items.len()).filter(|_| 1 < items.len()).map(|i| {
                let mut rest = items.to_vec();
                rest.remove(i);
                rest
            })
        }
        match self {
            Self::Enqueue(call, jobs) => without(jobs).map(|jobs| Self::Enqueue(*call, jobs)).collect(),
            Self::Extend(leases) => without(leases).map(Self::Extend).collect(),
            Self::Settle(runs, then) => {
                let plain = then.is_some().then(|| Self::Settle(runs.clone(), None));
                without(runs).map(|runs| Self::Settle(runs, then.clone())).chain(plain).collect()
            }
            Self::Act(targets, action) => {
                without(targets).map(|targets| Self::Act(targets, action.clone())).collect()
            }
            Self::Reserve(want) => without(&want.queues)
                .map(|queues| Self::Reserve(Reserve { queues, ..want.clone() }))
                .collect(),
            _ => Vec::new(),
        }
    }
}
