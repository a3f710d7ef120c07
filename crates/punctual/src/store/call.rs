//! A call of a verb as a value, and its reply.
//!
//! A store answers [`Call`]s; the typed methods of [`Store`](super::Store) make one each and take its [`Reply`] apart. So what wraps a
//! store (metrics, faults, a recording) says only what it does to all calls, and to those verbs that it treats in a way of their own.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::TryFutureExt as _;

use super::{
    Acted, Action, Audit, Audited, Batch, BoxFuture, CallId, Check, Counts, DocOp, DocReply, Enqueued,
    Heartbeat, Histogram, Identity, LeaseStatus, List, Page, QueueOp, QueueReply, Reserve, Settled,
    Settlement, Swept, Take, Target, ToolOp, ToolReply, UniqueKey, Upcoming,
};
use crate::core::{
    error::Result,
    id::JobId,
    job::{JobRecord, NewJob},
    time::Timestamp,
};

/// A verb, and what it is given. The typed method of the same name says what it does.
///
/// ```
/// use punctual::store::{Call, Reply, Store as _, clock::Clock, memory::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// let store = MemoryStore::new(Clock::System);
/// let call = Call::Count(None);
/// assert_eq!(call.name(), "count");
/// assert!(matches!(store.call(call).await?, Reply::Counts(counts) if counts.total() == 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a variant is a method of `Store`, and its fields are what that takes")]
pub enum Call<'a> {
    Identity,
    Now,
    /// Both enqueues. If not `partial`, the store answers for each job, or fails.
    Enqueue {
        call: CallId,
        jobs: &'a [NewJob],
        partial: bool,
    },
    Reserve(&'a Reserve),
    Extend(&'a [Heartbeat]),
    Settle {
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    },
    Take(&'a Take),
    Wait {
        queues: &'a [String],
        at_most: Duration,
    },
    Get(JobId),
    Holder(&'a UniqueKey),
    List(&'a List),
    Count(Option<&'a str>),
    Upcoming(&'a Upcoming),
    Act {
        targets: &'a [Target],
        action: &'a Action,
    },
    Queue {
        name: &'a str,
        op: &'a QueueOp,
    },
    Queues(Option<&'a str>),
    Doc(&'a DocOp),
    Tool(&'a ToolOp),
    Sweep(usize),
    Audit(Audit),
    Doctor,
}

impl Call<'_> {
    /// Returns the name of the verb, as in metrics and in the HTTP API.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Now => "now",
            Self::Enqueue { .. } => "enqueue",
            Self::Reserve(_) => "reserve",
            Self::Extend(_) => "extend",
            Self::Settle { .. } => "settle",
            Self::Take(_) => "take",
            Self::Wait { .. } => "wait",
            Self::Get(_) => "get",
            Self::Holder(_) => "holder",
            Self::List(_) => "list",
            Self::Count(_) => "count",
            Self::Upcoming(_) => "upcoming",
            Self::Act { .. } => "act",
            Self::Queue { .. } => "queue",
            Self::Queues(_) => "queues",
            Self::Doc(_) => "doc",
            Self::Tool(_) => "tool",
            Self::Sweep(_) => "sweep",
            Self::Audit(_) => "audit",
            Self::Doctor => "doctor",
        }
    }
}

/// Makes [`Reply`], and the ways into each of its variants and back.
macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident($type:ty),)*) => {
        /// The answer to a [`Call`].
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Reply {
            $($(#[$doc])* $name($type),)*
        }

        $(
            impl From<$type> for Reply {
                fn from(answer: $type) -> Self {
                    Self::$name(answer)
                }
            }

            impl Replied for $type {
                fn of(reply: Reply) -> Option<Self> {
                    match reply {
                        Reply::$name(answer) => Some(answer),
                        _ => None,
                    }
                }
            }
        )*
    };
}

replies! {
    /// To `identity`.
    Identity(Identity),
    /// To `now`.
    Now(Timestamp),
    /// To `enqueue`: `None` for a job whose part of the store is unavailable, if the call was partial.
    Enqueued(Vec<Option<Enqueued>>),
    /// To `reserve`.
    Batch(Batch),
    /// To `extend`.
    Extended(Vec<LeaseStatus>),
    /// To `settle`.
    Settled((Vec<Settled>, Option<Batch>)),
    /// To `take`.
    Taken(Vec<JobRecord>),
    /// To `wait`.
    Woken(()),
    /// To `get` and `holder`.
    Found(Option<Box<JobRecord>>),
    /// To `list`.
    Page(Page),
    /// To `count`.
    Counts(Counts),
    /// To `upcoming`.
    Histogram(Histogram),
    /// To `act`.
    Acted(Vec<Acted>),
    /// To `queue`.
    Queue(QueueReply),
    /// To `queues`.
    Queues(Vec<String>),
    /// To `doc`.
    Doc(DocReply),
    /// To `tool`.
    Tool(ToolReply),
    /// To `sweep`.
    Swept(Swept),
    /// To `audit`.
    Audited(Audited),
    /// To `doctor`.
    Checks(Vec<Check>),
}

/// What a typed method takes out of a reply.
pub(crate) trait Replied: Sized {
    /// Returns `None` for the reply to another verb, and if a job has no answer that must have one.
    fn of(reply: Reply) -> Option<Self>;
}

impl From<Option<JobRecord>> for Reply {
    fn from(job: Option<JobRecord>) -> Self {
        Self::Found(job.map(Box::new))
    }
}

impl Replied for Option<JobRecord> {
    fn of(reply: Reply) -> Option<Self> {
        Option::<Box<JobRecord>>::of(reply).map(|job| job.map(|job| *job))
    }
}

impl Replied for Vec<Enqueued> {
    fn of(reply: Reply) -> Option<Self> {
        Vec::<Option<Enqueued>>::of(reply)?.into_iter().collect()
    }
}

/// The answer that a typed method of a store waits for.
///
/// It is boxed by the store, once. If it is dropped before its end, the call may or may not have its effect.
#[must_use = "a call is made when its answer is awaited"]
pub struct Answer<'a, T> {
    reply: BoxFuture<'a, Result<Reply>>,
    of: PhantomData<fn() -> T>,
}

impl<'a, T> Answer<'a, T> {
    /// Waits for the reply to a call of a verb that answers with `T`.
    pub(crate) fn of(reply: BoxFuture<'a, Result<Reply>>) -> Self {
        Self { reply, of: PhantomData }
    }
}

impl<T> fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl<T: Replied> Future for Answer<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.reply.as_mut().poll(cx).map(|reply| {
            reply.map(|reply| {
                T::of(reply).expect("invariant: a store answers a call with the reply to its verb")
            })
        })
    }
}

/// Boxes what a store does for a call.
pub(crate) fn reply<'a, T: Into<Reply> + 'a>(
    answer: impl Future<Output = Result<T>> + Send + 'a,
) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(answer.map_ok(Into::into))
}

/// Says of each job of an enqueue that it was answered.
pub(crate) fn all_answered(answers: Vec<Enqueued>) -> Vec<Option<Enqueued>> {
    answers.into_iter().map(Some).collect()
}
