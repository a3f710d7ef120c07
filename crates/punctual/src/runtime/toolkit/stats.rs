//! What workers ran in the last hour, from leaderboards that they keep of it (`worker/views.rs`). Here is what these are called, and
//! how they are read; nothing is counted here.

use serde::Serialize;

use super::unexpected;
use crate::{
    core::error::Result,
    runtime::client::Client,
    store::{BoardAct, BoardOp, BoardReply, BoardWindow, Bucket, Standing, Store, ToolOp, ToolReply},
};

/// Most members of each of the boards: of more the lowest leave.
pub(crate) const MEMBERS_MAX: u32 = 1_000;
/// Whom all are counted under that a worker had no room for between two flushes.
pub(crate) const OTHERS: &str = "(others)";
/// Between a queue and its group; no name of a queue has it.
pub(crate) const GROUP_OF: char = '\u{1f}';
/// This minute and the 59 before it.
const WINDOW: BoardWindow = BoardWindow { bucket: Bucket::Minute, buckets: 60 };

/// What runs are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Kinds,
    Queues,
    Groups,
    Errors,
}

impl View {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 4] = [Self::Kinds, Self::Queues, Self::Groups, Self::Errors];

    /// The step on its board. Names that begin with `$` are no user's.
    pub(crate) fn step(self, act: BoardAct) -> ToolOp {
        let name = match self {
            Self::Kinds => "$kinds",
            Self::Queues => "$queues",
            Self::Groups => "$groups",
            Self::Errors => "$errors",
        };
        ToolOp::Board(BoardOp { name: name.to_owned(), window: Some(WINDOW), act })
    }
}

/// What workers ran in the last hour: in this minute of the store's clock and the 59 before it, most first.
///
/// Each worker process sums its runs up and adds them once a second at most: what is told is a second old, and a worker that
/// crashes takes its last second with it, as one whose store does not take an add takes these. A worker adds up to 256 names of
/// each sort at a time, and what is beyond them as `(others)`; up to 1,000 names of each sort are kept, of more the fewest runs
/// leave. So it is what people look at, and nothing to decide by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LastHour {
    /// Kinds, by the runs of their jobs that were settled.
    pub kinds: Vec<Ran>,
    /// Queues, in the same way.
    pub queues: Vec<Ran>,
    /// Groups, each of one queue; only of jobs that have one.
    pub groups: Vec<Ran>,
    /// Errors of runs that failed, whether their jobs run again or not: the first lines, up to 255 bytes of each.
    pub errors: Vec<Ran>,
}

/// So many runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Ran {
    /// Of this kind, queue or group, or with this error.
    pub name: String,
    /// The queue of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How many.
    pub runs: u64,
}

impl Client {
    /// What workers ran in the last hour: the first `n` of each sort, 1 to 1,000. Costs four reads.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use punctual::{Client, Ctx, Job, Worker, store::{clock::Clock, memory::MemoryStore}};
    ///
    /// #[derive(Job, serde::Serialize, serde::Deserialize)]
    /// #[job(kind = "email.send", queue = "mail", max_attempts = 1)]
    /// struct SendEmail { to: String }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let client = Client::new(Arc::new(MemoryStore::new(Clock::System)));
    /// client.enqueue(SendEmail { to: "ana@example.com".into() }).group("acme").await?;
    ///
    /// let stop = tokio_util::sync::CancellationToken::new();
    /// let seen = stop.clone();
    /// let worker = Worker::new(&client).queue("mail").handle(move |_: SendEmail, _: Ctx| {
    ///     seen.cancel(); // a worker that ends adds what it has not added yet
    ///     async { Err::<(), _>(std::io::Error::other("421 try later")) }
    /// });
    /// worker.run_until(stop).await?;
    ///
    /// let hour = client.last_hour(5).await?;
    /// assert_eq!((&*hour.kinds[0].name, hour.kinds[0].runs), ("email.send", 1));
    /// assert_eq!((hour.groups[0].queue.as_deref(), &*hour.groups[0].name), (Some("mail"), "acme"));
    /// assert_eq!(hour.errors[0].name, "421 try later");
    /// # Ok::<(), punctual::Error>(()) }).unwrap();
    /// ```
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// `Invalid` for another `n`; what the store says.
    pub async fn last_hour(&self, n: usize) -> Result<LastHour> {
        let top = |view| top(&**self.store(), view, n);
        let (kinds, queues, groups, errors) =
            tokio::try_join!(top(View::Kinds), top(View::Queues), top(View::Groups), top(View::Errors))?;
        Ok(LastHour { kinds, queues, groups, errors })
    }
}

async fn top(store: &dyn Store, view: View, n: usize) -> Result<Vec<Ran>> {
    match store.tool(&view.step(BoardAct::Top { n })).await? {
        ToolReply::Board(BoardReply::Standings(all)) => Ok(all.into_iter().map(|is| ran(view, is)).collect()),
        _ => Err(unexpected()),
    }
}

fn ran(view: View, Standing { member, score, .. }: Standing) -> Ran {
    let runs = u64::try_from(score).unwrap_or_default();
    let group = if view == View::Groups { member.split_once(GROUP_OF) } else { None };
    match group {
        Some((queue, group)) => Ran { name: group.to_owned(), queue: Some(queue.to_owned()), runs },
        None => Ran { name: member, queue: None, runs },
    }
}
