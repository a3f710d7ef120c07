//! Recent activity: what workers ran in the last hour.
//!
//! Workers count it on leaderboards (`runtime/worker/stats.rs`). This file names these boards and reads them.

use serde::Serialize;

use super::unexpected;
use crate::{
    core::error::Result,
    runtime::client::Client,
    store::{BoardAct, BoardOp, BoardReply, BoardWindow, Bucket, Standing, Store, ToolOp, ToolReply},
};

/// Most members of each board. If there are more, the lowest are removed.
pub(crate) const MEMBERS_MAX: u32 = 1_000;
/// The name for runs whose names a worker had no room for between two flushes.
pub(crate) const OTHERS: &str = "(others)";
/// Separates a queue from its group. No name of a queue contains it.
pub(crate) const GROUP_OF: char = '\u{1f}';
/// The current minute and the 59 before it.
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
    /// All views, by their numbers.
    pub(crate) const ALL: [Self; 4] = [Self::Kinds, Self::Queues, Self::Groups, Self::Errors];

    /// Returns the step on its board. Boards whose names begin with `$` are reserved.
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

/// What workers ran in the last hour, most runs first.
///
/// It covers the current minute of the store's clock and the 59 before it.
///
/// Each worker process adds up its runs and sends the sums at most once a second. So the counts can be one second
/// old. They miss the last second of a worker that was killed, and sums that the store did not accept. A worker sends
/// up to 256 names of each sort at a time; further ones are counted as `(others)`. Up to 1,000 names of each sort are
/// kept; those with the fewest runs are removed. Use the counts to look at, not to decide by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LastHour {
    /// Kinds, by the number of settled runs of their jobs.
    pub kinds: Vec<Ran>,
    /// Queues, by the number of settled runs of their jobs.
    pub queues: Vec<Ran>,
    /// Groups, each of one queue. Only jobs with a group count.
    pub groups: Vec<Ran>,
    /// Errors of failed runs, whether their jobs are retried or not, by their [`Fingerprint`](crate::job::Fingerprint).
    pub errors: Vec<Ran>,
}

/// The number of runs of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Ran {
    /// The kind, queue, group or error.
    pub name: String,
    /// The queue of the group, for groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The number of runs.
    pub runs: u64,
}

impl Client {
    /// Returns what workers ran in the last hour: the first `n` of each sort.
    ///
    /// `n` is 1 to 1,000. Costs four reads.
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
    /// assert_eq!(hour.errors[0].name, "# try later"); // what differs from run to run is replaced
    /// # Ok::<(), punctual::Error>(()) }).unwrap();
    /// ```
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// `Invalid` if `n` is out of range; otherwise any error of the store.
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
