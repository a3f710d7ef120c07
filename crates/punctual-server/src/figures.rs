//! The figures of the overview: of the first queues of a store, and of the last hour. The dashboard and the API show the same.

use futures_util::{future::try_join_all, try_join};
use punctual::{Client, Result, Timestamp, store::QueueInfo, toolkit::LastHour};

/// The most queues that are shown. Each costs one call to the store.
pub(crate) const QUEUES_SHOWN: usize = 100;

/// The figures of a store, besides its counters.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) now: Timestamp,
    /// First those that ran most in the last hour, then by name.
    pub(crate) queues: Vec<QueueInfo>,
    /// How many names of queues were found. One call returns up to 1,000.
    pub(crate) names: usize,
    /// The first 100 of each sort.
    pub(crate) hour: LastHour,
}

impl Figures {
    /// Reads the figures. Makes at most 106 calls to the store, however many queues there are: one for each queue that is
    /// shown (100), four for the last hour, and one each for the time and the names of queues.
    pub(crate) async fn read(client: &Client) -> Result<Self> {
        let store = client.store();
        let (now, names, hour) = try_join!(store.now(), store.queues(None), client.last_hour(QUEUES_SHOWN))?;
        let queues = queues(client, &shown(&names, &hour)).await?;
        Ok(Self { now, queues, names: names.len(), hour })
    }
}

/// Reads queues by name. Makes one call for each.
pub(crate) async fn queues(client: &Client, names: &[&str]) -> Result<Vec<QueueInfo>> {
    let shown = try_join_all(names.iter().map(|name| async { client.queue(*name).show().await })).await?;
    // A queue that has gone since is left out.
    Ok(shown.into_iter().flatten().collect())
}

/// Returns the queues that are shown: first those that ran most in the last hour, then by name.
fn shown<'a>(names: &'a [String], hour: &'a LastHour) -> Vec<&'a str> {
    let mut shown: Vec<&str> = hour.queues.iter().map(|ran| ran.name.as_str()).collect();
    let others =
        names.iter().map(String::as_str).filter(|name| !hour.queues.iter().any(|ran| ran.name == *name));
    shown.extend(others);
    shown.truncate(QUEUES_SHOWN);
    shown
}
