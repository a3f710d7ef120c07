//! What runs beside a job that is blocked, for `why`.

use super::Client;
use crate::{
    core::{
        error::Result,
        filter::Filter,
        job::{JobRecord, State},
        limits::BATCH_MAX,
    },
    store::{List, QueueInfo, why::Beside},
};

/// Counts the running jobs of a blocked job's group and concurrency key, if one of them has a limit: until both are reached, and in
/// so many pages of a listing at most.
///
/// Dropping the future changes nothing.
///
/// # Errors
/// Those of the store.
pub async fn beside(
    client: &Client,
    job: &JobRecord,
    queue: Option<&QueueInfo>,
    pages_max: usize,
) -> Result<Beside> {
    let mut beside = Beside::default();
    let of_group =
        queue.zip(job.group.as_deref()).and_then(|(of, group)| of.settings.of_group(group).concurrency);
    let of_key = job.concurrency.as_ref().map(|of| of.limit);
    if !job.blocked || of_group.is_none() && of_key.is_none() {
        return Ok(beside);
    }
    let key = |job: &JobRecord| job.concurrency.as_ref().map(|of| of.key.clone());
    let filter = Filter::all().queue(&job.queue).state([State::Running]);
    let mut list = List { filter, after: None, limit: BATCH_MAX };
    for _ in 0..pages_max {
        let page = client.list(&list).await?;
        for other in page.jobs.iter().filter(|other| other.group == job.group) {
            beside.of_group += 1;
            beside.of_key += u32::from(key(other).is_some() && key(other) == key(job));
        }
        let is_full = |limit: Option<u32>, n: u32| limit.is_none_or(|limit| limit <= n);
        match page.next.filter(|_| !is_full(of_group, beside.of_group) || !is_full(of_key, beside.of_key)) {
            Some(next) => list.after = Some(next),
            None => return Ok(beside),
        }
    }
    Ok(Beside { is_part: true, ..beside })
}
