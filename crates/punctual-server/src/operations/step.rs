//! A step of an operation: it acts on the next jobs that match, up to a bound.

use std::time::Duration;

use punctual::{
    Client, Error, ErrorKind, JobRecord, Result, Timestamp,
    store::{List, ListCursor, Target},
};
use tokio::time::Instant;

use super::{Operation, order::Order, outcomes::Outcomes, picked::Picked};

/// The most jobs of one step. Small, because the records are read with their payloads.
pub(crate) const STEP_JOBS: usize = 250;
/// The most listings of one step. Each reads up to 1,000 jobs that do not match.
const CALLS_MAX: usize = 40;
/// After this time, no further listing begins.
const TIME_MAX: Duration = Duration::from_secs(1);

/// What a step did.
#[derive(Debug)]
pub(super) struct Step {
    /// The time of the last listing, by the clock of the store.
    pub(super) now: Timestamp,
    /// Where the listing continues; `None` at its end.
    pub(super) next: Option<String>,
    pub(super) outcomes: Outcomes,
}

impl Step {
    /// Takes one step. Nothing is changed after `until`, when another server may take the step.
    ///
    /// A step can be repeated: a job that it acted on does not match any more, or is the same after a second time.
    pub(super) async fn take(client: &Client, of: &Operation, until: Instant) -> Result<Self> {
        let began = Instant::now();
        let order = Order::new(of.action, &of.filter, &of.reason)?;
        let mut step =
            Self { now: Timestamp::default(), next: of.cursor.clone(), outcomes: Outcomes::default() };
        let (mut jobs, mut room): (Vec<Picked>, usize) = (Vec::new(), STEP_JOBS);
        for _ in 0..CALLS_MAX {
            let after = step.next.take().map(ListCursor::from);
            let page = client.list(&List { filter: order.filter.clone(), after, limit: room }).await?;
            room = room.saturating_sub(page.jobs.len());
            jobs.extend(page.jobs.iter().filter(|job| was_counted(job, of.confirmed_ms)).map(Picked::from));
            (step.now, step.next) = (page.now, page.next.map(|next| next.to_string()));
            if step.next.is_none() || room == 0 || TIME_MAX < began.elapsed() {
                break;
            }
        }
        if jobs.is_empty() {
            return Ok(step);
        }
        if until <= Instant::now() {
            return Err(Error::new(ErrorKind::Unavailable, "the step took longer than its lease"));
        }
        // Each job must still be what this step's listing showed.
        let targets: Vec<Target> = jobs.iter().map(Picked::target).collect();
        let action = order.action();
        let acted = client.act(&targets, &action).await?;
        step.outcomes = Outcomes::of(&jobs, &acted, &action);
        Ok(step)
    }
}

/// Returns whether a job was there, and had ended if it has, when the jobs were counted.
fn was_counted(job: &JobRecord, confirmed: Timestamp) -> bool {
    job.created_at <= confirmed && job.finished_at.is_none_or(|at| at <= confirmed)
}
