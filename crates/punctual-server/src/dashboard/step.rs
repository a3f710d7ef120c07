//! A step of an order: it acts on the next jobs that match, up to a bound.

use std::time::Duration;

use punctual::{
    JobRecord, Timestamp,
    store::{List, ListCursor, Target},
};
use tokio::time::Instant;

use super::{Board, act, fault::Fault, fields::Fields, flash::Outcomes, order::Order, picked::Picked};

/// The most jobs of one step.
pub(super) const STEP_JOBS: usize = 1_000;
/// Jobs listed at once. Small, because the records are read with their payloads.
const JOBS_READ: usize = 250;
/// The most listings of one step. Each reads up to 1,000 jobs that do not match.
const CALLS_MAX: usize = 40;
/// After this time, no further listing begins.
const TIME_MAX: Duration = Duration::from_secs(3);
/// How long a confirmation is valid.
const CONFIRMED_FOR: Duration = Duration::from_hours(1);

/// How far an order has come: what each form of it hands to the next one. Nothing in it gives a right.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// When the jobs were counted. Jobs that arrived or ended later are not touched.
    pub(super) confirmed: Timestamp,
    /// The number of jobs that were counted.
    pub(super) planned: u64,
    /// Whether there may have been more.
    pub(super) is_least: bool,
    /// Where the listing continues; empty at its beginning.
    cursor: String,
    pub(super) outcomes: Outcomes,
}

impl Course {
    pub(super) fn begin(confirmed: Timestamp, planned: u64, is_least: bool) -> Self {
        Self { confirmed, planned, is_least, ..Self::default() }
    }

    pub(super) fn of(fields: &Fields) -> Self {
        Self {
            confirmed: Timestamp::saturating_from_ms(fields.number("confirmed")),
            planned: fields.number("planned"),
            is_least: fields.number("least") == 1,
            cursor: fields.get("cursor").to_owned(),
            outcomes: Outcomes::of(fields),
        }
    }

    /// The fields of the next form.
    pub(super) fn pairs(&self, order: &Order) -> Vec<(&'static str, String)> {
        let mut pairs = vec![
            ("action", order.action.name().to_owned()),
            ("filter", order.text.clone()),
            ("confirmed", self.confirmed.as_ms().to_string()),
            ("planned", self.planned.to_string()),
            ("least", u8::from(self.is_least).to_string()),
            ("cursor", self.cursor.clone()),
        ];
        pairs.extend(self.outcomes.pairs(order.action.name()));
        pairs
    }

    /// Returns the number of counted jobs that no step has handled.
    pub(super) fn left(&self) -> u64 {
        let Outcomes { done, requested, .. } = self.outcomes;
        let handled = done.saturating_add(requested).saturating_add(self.outcomes.skipped());
        self.planned.saturating_sub(handled)
    }

    /// Takes one step. Returns whether the order has come to its end.
    ///
    /// A step can be repeated: a job that it acted on does not match any more, or is the same after a second time.
    pub(super) async fn step(&mut self, order: &Order, board: &Board) -> Result<bool, Fault> {
        let began = Instant::now();
        let mut room = STEP_JOBS;
        for _ in 0..CALLS_MAX {
            let after = (!self.cursor.is_empty()).then(|| ListCursor::from(self.cursor.clone()));
            let limit = room.min(JOBS_READ);
            let page = board.client.list(&List { filter: order.filter.clone(), after, limit }).await?;
            if page.now < self.confirmed || CONFIRMED_FOR < page.now.since(self.confirmed) {
                return Err(Fault::Form(
                    "The confirmation is older than an hour. Nothing was changed in this step.".to_owned(),
                    "Open the list of jobs, and choose the action again.".to_owned(),
                ));
            }
            room = room.saturating_sub(page.jobs.len());
            let jobs: Vec<Picked> =
                page.jobs.iter().filter(|job| self.was_counted(job)).map(Picked::from).collect();
            if !jobs.is_empty() {
                // Each job must still be what this listing showed.
                let targets: Vec<Target> = jobs.iter().map(Picked::target).collect();
                let acted = board.client.act(&targets, &order.action).await?;
                self.outcomes.add(&act::outcomes(&jobs, &acted, &order.action));
            }
            let Some(next) = page.next else { return Ok(true) };
            self.cursor = next.to_string();
            if room == 0 || TIME_MAX < began.elapsed() {
                break;
            }
        }
        Ok(false)
    }

    /// Returns whether a job was there, and had ended if it has, when the jobs were counted.
    fn was_counted(&self, job: &JobRecord) -> bool {
        job.created_at <= self.confirmed && job.finished_at.is_none_or(|at| at <= self.confirmed)
    }
}
