//! What an order would act on: the number of jobs, counted up to a bound, and the first ones.

use std::time::Duration;

use punctual::{Client, JobRecord, Result, State, Timestamp, store::List};
use tokio::time::Instant;

use super::order::Order;

/// The most jobs that are counted. A larger number is shown as `10,000+`.
const COUNTED_MAX: usize = 10_000;
/// The most jobs that one call returns.
const JOBS_READ: usize = 1_000;
/// The most calls of one preview. Each reads up to 1,000 jobs that do not match.
const CALLS_MAX: usize = 60;
/// After this time, no further call begins.
const TIME_MAX: Duration = Duration::from_secs(3);
/// The most jobs that are shown.
const SHOWN_MAX: usize = 5;

/// The result of a preview.
#[derive(Debug, Default)]
pub(crate) struct Preview {
    /// When it began, by the clock of the store.
    pub(crate) now: Timestamp,
    pub(crate) n: u64,
    /// Whether there may be more jobs than were counted.
    pub(crate) is_least: bool,
    /// The number of jobs in each state of the order.
    pub(crate) by_state: Vec<(State, u64)>,
    /// The first jobs.
    pub(crate) first: Vec<JobRecord>,
}

impl Preview {
    /// Counts the jobs that an order is for. The records are dropped page by page.
    pub(crate) async fn of(order: &Order, client: &Client) -> Result<Self> {
        let began = Instant::now();
        let by_state = order.fit.iter().map(|state| (*state, 0)).collect();
        let mut preview = Self { by_state, is_least: true, ..Self::default() };
        let mut list = List { filter: order.filter.clone(), after: None, limit: JOBS_READ };
        let mut room = COUNTED_MAX;
        for call in 0..CALLS_MAX {
            list.limit = room.min(JOBS_READ);
            let page = client.list(&list).await?;
            if call == 0 {
                preview.now = page.now;
            }
            room = room.saturating_sub(page.jobs.len());
            preview.add(page.jobs);
            list.after = page.next;
            if list.after.is_none() {
                preview.is_least = false;
                break;
            }
            if room == 0 || TIME_MAX < began.elapsed() {
                break;
            }
        }
        Ok(preview)
    }

    fn add(&mut self, jobs: Vec<JobRecord>) {
        self.n += jobs.len() as u64;
        for job in jobs {
            if let Some((_, n)) = self.by_state.iter_mut().find(|(state, _)| *state == job.state) {
                *n += 1;
            }
            if self.first.len() < SHOWN_MAX {
                self.first.push(job);
            }
        }
    }
}
