//! Failures: dead and retrying jobs, grouped by what their errors have in common. The dashboard and the API show the same.

use std::{cmp::Reverse, collections::BTreeMap};

use punctual::{
    Client, JobId, JobRecord, Result, State, Timestamp,
    job::{Filter, Fingerprint},
    store::List,
};

use crate::dashboard::exact;

/// The jobs that one call reads.
const JOBS_READ: usize = 500;
/// The most calls for the jobs of one state.
const CALLS_MAX: usize = 4;
/// The most groups that are shown, those with most jobs first.
const GROUPS_SHOWN: usize = 100;

/// Jobs of one kind whose errors have the same fingerprint.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) kind: String,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) dead: u64,
    pub(crate) retrying: u64,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// The job that failed last, and its error.
    pub(crate) sample: JobId,
    pub(crate) error: String,
}

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    pub(crate) now: Timestamp,
    /// At most 100, those with most jobs first.
    pub(crate) groups: Vec<Group>,
    /// The number of all groups.
    pub(crate) found: usize,
    /// The number of failed jobs.
    pub(crate) jobs: u64,
    pub(crate) searched: u64,
    pub(crate) total: u64,
    /// Whether there may be more jobs than those that were searched.
    pub(crate) is_part: bool,
}

impl Failures {
    /// Reads and groups failures. Makes at most eight calls to the store: four each for dead and retrying jobs, which
    /// read up to 2,000 matches each.
    pub(crate) async fn read(client: &Client) -> Result<Self> {
        let mut failures = Self::default();
        let mut jobs = failures.search(client, "state:dead").await?;
        jobs.extend(failures.search(client, "state:retrying").await?);
        let mut all = groups(&jobs);
        all.sort_by_key(|group| Reverse((group.dead + group.retrying, group.last)));
        (failures.found, failures.jobs) = (all.len(), jobs.len() as u64);
        all.truncate(GROUPS_SHOWN);
        failures.groups = all;
        Ok(failures)
    }

    async fn search(&mut self, client: &Client, filter: &str) -> Result<Vec<JobRecord>> {
        let mut list = List { filter: Filter::parse(filter)?, after: None, limit: JOBS_READ };
        let mut jobs = Vec::new();
        for _ in 0..CALLS_MAX {
            let page = client.list(&list).await?;
            self.searched += page.searched;
            (self.now, self.total) = (page.now, page.total);
            let failed = page.jobs.into_iter().filter(|job| !job.failures.is_empty() || job.reason.is_some());
            // Groups need no payloads, and thousands of them are too much to keep.
            jobs.extend(failed.map(|mut job| {
                job.payload.bytes = Vec::new();
                job.result = None;
                job
            }));
            list.after = page.next;
            if list.after.is_none() {
                return Ok(jobs);
            }
        }
        self.is_part = true;
        Ok(jobs)
    }
}

impl Group {
    /// Returns a filter for the jobs of the group. It can find others, too.
    pub(crate) fn filter(&self) -> String {
        // Each error of the group contains the literal part.
        let literal = &self.fingerprint.literal;
        let error = if literal.is_empty() { String::new() } else { exact("error", literal) };
        format!("state:dead,retrying {} {error}", exact("kind", &self.kind)).trim().to_owned()
    }
}

fn groups(jobs: &[JobRecord]) -> Vec<Group> {
    let mut groups: BTreeMap<(&str, Fingerprint), Group> = BTreeMap::new();
    for job in jobs {
        let failure = job.failures.last();
        let error =
            failure.map(|failure| failure.error.as_str()).or(job.reason.as_deref()).unwrap_or_default();
        let ended = failure.map(|failure| Timestamp::saturating_from_ms(failure.ended_ms));
        let at = ended.or(job.finished_at).unwrap_or(job.run_at);
        let fingerprint = Fingerprint::of(error);
        let group = groups.entry((&job.kind, fingerprint.clone())).or_insert_with(|| Group {
            kind: job.kind.clone(),
            fingerprint,
            dead: 0,
            retrying: 0,
            first: at,
            last: Timestamp::default(),
            sample: job.id,
            error: String::new(),
        });
        group.first = group.first.min(at);
        if group.last <= at {
            (group.last, group.sample) = (at, job.id);
            error.clone_into(&mut group.error);
        }
        if job.state == State::Dead { group.dead += 1 } else { group.retrying += 1 }
    }
    groups.into_values().collect()
}
