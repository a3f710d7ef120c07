//! A loud group beside quiet ones: in which order their jobs start, against the bound of S16; and what a reserve costs per job with
//! few and many groups, of which all may start something, or none. Figures are told, only the order is judged.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use punctual::{
    JobId, NewJob, Payload,
    limits::BATCH_MAX,
    store::{
        CallId, GroupLimits, QueueOp, QueueRequest, QueueSettings, Reserve, Reserved, Settlement, Store,
        Verdict, url::connect,
    },
};

use crate::{drill::Outcome, place::Place, profile::Profile};

const QUIET: u64 = 99;
const QUIET_JOBS: u64 = 10;
/// Jobs of one reserve while the order is watched.
const BATCH: usize = 20;
/// The same while time is taken, and how many such reserves there are.
const MEASURED_BATCH: usize = 100;
const MEASURED: usize = 50;
/// Reserves that find all groups blocked.
const BLOCKED: usize = 500;
/// Long enough that nothing is reclaimed.
const LEASE: Duration = Duration::from_hours(1);

/// Runs it; answers whether the order was as promised.
pub(crate) fn run(profile: &Profile) -> Outcome<bool> {
    let scratch = tempfile::tempdir()?;
    let place = Place::make(&profile.place, scratch.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut drill = Drill { store: connect(&place.url).await?, made: 0, calls: 0 };
        let is_fair = drill.order(profile.jobs.into()).await?;
        let many = u64::from(profile.jobs) / 10;
        let mut costs = Vec::new();
        for groups in [1, many / 100, many] {
            let (coming, all) = drill.cost(groups, many).await?;
            costs.push(Cost { groups, coming, all, blocked: drill.cost_of_none(groups).await? });
        }
        tell(&costs);
        Ok(is_fair)
    })
}

/// What reserves cost with so many groups.
struct Cost {
    groups: u64,
    /// Per job, while groups come that were not runnable before; each reserve lets in some of them.
    coming: Duration,
    /// Per job, when all groups are active.
    all: Duration,
    /// Of a reserve that finds all of them blocked.
    blocked: Duration,
}

fn tell(costs: &[Cost]) {
    let one = &costs[0];
    let times = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    for Cost { groups, coming, all, blocked } in costs {
        eprintln!(
            "{groups} groups: a reserve costs {all:?} per job (×{:.2}), {coming:?} while they come (×{:.2}); {blocked:?} where all \
             are blocked (×{:.2})",
            times(*all, one.all),
            times(*coming, one.coming),
            times(*blocked, one.blocked),
        );
    }
    let costs: Vec<_> = costs
        .iter()
        .map(|Cost { groups, coming, all, blocked }| {
            serde_json::json!({
                "groups": groups,
                "job_us": micros(*all),
                "coming_us": micros(*coming),
                "blocked_us": micros(*blocked),
            })
        })
        .collect();
    println!("{}", serde_json::json!({ "costs": costs }));
}

fn micros(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}

struct Drill {
    store: Arc<dyn Store>,
    made: u64,
    calls: u64,
}

impl Drill {
    /// The quiet groups come while the loud one has a backlog.
    async fn order(&mut self, loud: u64) -> Outcome<bool> {
        const QUEUE: &str = "order";
        self.fill(QUEUE, loud, |_| "loud".to_owned()).await?;
        // The loud one has been at it for a while.
        let first = self.reserve(QUEUE, BATCH).await?;
        self.settle(&first).await?;
        self.fill(QUEUE, QUIET * QUIET_JOBS, |n| format!("quiet {}", n % QUIET)).await?;
        let (begin, mut started) = (Instant::now(), Vec::new());
        let mut left = QUIET * QUIET_JOBS;
        while 0 < left {
            let batch = self.reserve(QUEUE, BATCH).await?;
            if batch.is_empty() {
                return Err("nothing was due, though jobs wait".into());
            }
            self.settle(&batch).await?;
            for job in &batch {
                let group = job.job.group.clone().ok_or("a job of no group")?;
                left -= u64::from(group != "loud");
                started.push(group);
            }
        }
        let most = (QUIET as usize + 1) * 2 + BATCH;
        let first = first_starts(&started).into_values().max().unwrap_or_default();
        let between = most_between(&started);
        eprintln!(
            "{QUIET} groups of {QUIET_JOBS} jobs beside one of {loud}: all of them started among the first {} in {:?}; the first job of \
             each among the first {} (at most {most}), and between two starts of one no other had more than {between} (at most 2)",
            started.len(),
            begin.elapsed(),
            first + 1,
        );
        println!(
            "{}",
            serde_json::json!({
                "loud": loud, "started": started.len(), "ms": begin.elapsed().as_millis() as u64,
                "last_first_start": first + 1, "bound": most, "most_between": between,
            })
        );
        Ok(first < most && between <= 2)
    }

    /// What a reserve takes per job, with this many groups that all have jobs: while they come, and when all have come.
    async fn cost(&mut self, groups: u64, jobs: u64) -> Outcome<(Duration, Duration)> {
        let queue = format!("all {groups}");
        // Enough to be measured twice, with the first job of each group in between, in a small drill too.
        let measured = 2 * (MEASURED * MEASURED_BATCH) as u64;
        self.fill(&queue, jobs.max(measured + 3 * groups), |n| (n % groups).to_string()).await?;
        let coming = self.measure(&queue).await?;
        // Each lets in as many as it gives, and some more.
        let mut given = 0;
        while given < groups {
            let batch = self.reserve(&queue, BATCH_MAX).await?;
            if batch.is_empty() {
                return Err("nothing was due, though jobs wait".into());
            }
            given += batch.len() as u64;
            self.settle(&batch).await?;
        }
        let all = self.measure(&queue).await?;
        self.purge(&queue).await?;
        Ok((coming, all))
    }

    async fn measure(&mut self, queue: &str) -> Outcome<Duration> {
        let (mut took, mut started) = (Duration::ZERO, 0);
        for _ in 0..MEASURED {
            let begin = Instant::now();
            let batch = self.reserve(queue, MEASURED_BATCH).await?;
            took += begin.elapsed();
            started += batch.len() as u32;
            self.settle(&batch).await?;
        }
        Ok(took / started.max(1))
    }

    /// What a reserve takes that finds all groups blocked.
    async fn cost_of_none(&mut self, groups: u64) -> Outcome<Duration> {
        let queue = format!("none {groups}");
        let group = GroupLimits { concurrency: Some(1), ..GroupLimits::default() };
        let settings = QueueSettings { group, ..QueueSettings::default() };
        self.store.queue(&queue, &QueueOp::Set(Box::new(settings))).await?;
        self.fill(&queue, 2 * groups, |n| (n % groups).to_string()).await?;
        let mut runs = Vec::new();
        loop {
            let batch = self.reserve(&queue, BATCH_MAX).await?;
            if batch.is_empty() {
                break;
            }
            runs.extend(batch);
        }
        let begin = Instant::now();
        for _ in 0..BLOCKED {
            if !self.reserve(&queue, MEASURED_BATCH).await?.is_empty() {
                return Err("a job started, though its group was full".into());
            }
        }
        let took = begin.elapsed();
        self.purge(&queue).await?;
        for some in runs.chunks(BATCH_MAX) {
            self.settle(some).await?;
        }
        Ok(took / BLOCKED as u32)
    }

    /// Enqueues so many jobs, each for the group that its number gives.
    async fn fill(&mut self, queue: &str, jobs: u64, group: impl Fn(u64) -> String) -> Outcome<()> {
        for from in (0..jobs).step_by(BATCH_MAX) {
            let some: Vec<NewJob> = (from..jobs.min(from + BATCH_MAX as u64))
                .map(|n| {
                    self.made += 1;
                    let id = JobId::derived(queue, Some(&group(n)), &self.made.to_string());
                    let mut job = NewJob::new(id, "fair", queue, Payload::json("{}"));
                    job.group = Some(group(n));
                    job
                })
                .collect();
            let call = self.next_call();
            self.store.enqueue(call, &some).await?;
        }
        Ok(())
    }

    fn next_call(&mut self) -> CallId {
        self.calls += 1;
        CallId { instance: 1, number: self.calls }
    }

    async fn reserve(&mut self, queue: &str, n: usize) -> Outcome<Vec<Reserved>> {
        let queues = vec![QueueRequest { queue: queue.to_owned(), share: n, at_most: n }];
        let want = Reserve {
            call: self.next_call(),
            worker: "fair".into(),
            queues,
            n,
            lease: Some(LEASE),
            company: false,
        };
        Ok(self.store.reserve(&want).await?.jobs)
    }

    async fn settle(&self, jobs: &[Reserved]) -> Outcome<()> {
        let batch: Vec<_> =
            jobs.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
        self.store.settle(&batch, None).await?;
        Ok(())
    }

    async fn purge(&self, queue: &str) -> Outcome<()> {
        use punctual::store::QueueReply;
        while let QueueReply::Purged { more: true, .. } =
            self.store.queue(queue, &QueueOp::Purge(BATCH_MAX)).await?
        {}
        Ok(())
    }
}

/// Where each group had its first start.
fn first_starts(started: &[String]) -> BTreeMap<&str, usize> {
    let mut first = BTreeMap::new();
    for (at, group) in started.iter().enumerate() {
        first.entry(group.as_str()).or_insert(at);
    }
    first
}

/// The most starts that one group had between two of another, both of which had jobs all the while.
fn most_between(started: &[String]) -> usize {
    let mut most = 0;
    // Since the last start of each group: how many starts each other one had.
    let mut since: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for group in started {
        if let Some(had) = since.insert(group, BTreeMap::new()) {
            most = had.into_values().fold(most, usize::max);
        }
        for (other, had) in &mut since {
            if *other != group {
                *had.entry(group).or_default() += 1;
            }
        }
    }
    most
}
