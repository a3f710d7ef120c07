//! What is the same whoever takes the jobs over: the jobs, the processes, and a list of faults with when each began, ended and
//! was made up for.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use punctual::{
    Backoff, Client, JobId, JobOptions, NewJob, Payload, Timestamp, When,
    limits::BATCH_MAX,
    store::{Keep, QueueOp, QueueSettings, url::connect},
};

use super::{LOCAL, QUEUE, arrivals::Arrivals, wall_us};
use crate::{crew::Crew, drill::Outcome, place::Place, profile::Profile};

/// Before the first job is due: for the enqueuing.
const AHEAD: Duration = Duration::from_secs(4);
/// The same for each 1,000 jobs.
const AHEAD_PER_BATCH: Duration = Duration::from_millis(400);
/// Jobs on their way at once.
pub(super) const SLOTS: usize = 256;
const LEASE: Duration = Duration::from_secs(5);
/// So many jobs of the queue beside are due each second.
const LOCAL_PER_SECOND: u64 = 50;
/// The longest that anything may take to come to rest.
const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(20);
/// As many jobs as may be due, or running, where all is well.
const FEW: u64 = 40;

/// The name of that fault.
pub(super) const KILLED: &str = "a forwarder killed";

/// Something that went wrong on purpose; times in microseconds by the system's clock.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) name: String,
    pub(super) begin: u64,
    pub(super) end: u64,
    /// When no job waited longer than it should.
    pub(super) recovered: u64,
    /// How many jobs may arrive twice by it; 0: none.
    pub(super) twice_max: u64,
}

/// Jobs that can't be handed over.
#[derive(Clone, Debug)]
pub(super) struct Bad {
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) bytes: usize,
    /// What the reason of each begins with.
    pub(super) words: &'static str,
    pub(super) count: u32,
}

pub(super) struct Scene {
    pub(super) client: Client,
    pub(super) arrivals: Arc<Arrivals>,
    pub(super) faults: Vec<Fault>,
    /// The reason that each job that can't be handed over must be dead for.
    pub(super) bad: BTreeMap<JobId, &'static str>,
    pub(super) jobs: u32,
    dir: PathBuf,
    forwarders: Option<Crew>,
    local: Option<Crew>,
    begin_us: u64,
    // Dropped last: a server outlives those who use it.
    place: Place,
}

impl Scene {
    pub(super) async fn set(profile: &Profile, dir: PathBuf) -> Outcome<Self> {
        let place = Place::make(&profile.place, &dir);
        let client = Client::new(connect(&place.url).await?);
        // Everything is kept to the end, so that the judge sees where each job stands.
        let keep = Keep { age_ms: 24 * 3_600_000, count: u64::MAX >> 1, bytes: u64::MAX >> 1 };
        let settings = QueueSettings { done: keep, dead: keep, cancelled: keep, ..QueueSettings::default() };
        client.store().queue(QUEUE, &QueueOp::Set(Box::new(settings))).await?;
        Ok(Self {
            client,
            arrivals: Arc::default(),
            faults: Vec::new(),
            bad: BTreeMap::new(),
            jobs: profile.jobs,
            dir,
            forwarders: None,
            local: None,
            begin_us: 0,
            place,
        })
    }

    /// Enqueues jobs that are due evenly over a time, those that can't be handed over at `bad_at` in it, and some beside them;
    /// starts their workers; comes back when the first is due. `headers`: those of jobs that can be handed over.
    pub(super) async fn begin(
        &mut self,
        to: &str,
        over: Duration,
        headers: &[(&'static str, String)],
        bad: &[Bad],
        bad_at: Duration,
    ) -> Outcome<()> {
        let batches = self.jobs.div_ceil(BATCH_MAX as u32);
        let begin_ms = wall_us() / 1_000 + (AHEAD + AHEAD_PER_BATCH * batches).as_millis() as u64;
        self.begin_us = begin_ms * 1_000;
        let at = |after: Duration| Timestamp::from_ms(begin_ms + after.as_millis() as u64).map(When::At);
        let mut all = Vec::new();
        for n in 0..self.jobs {
            let id = JobId::derived(QUEUE, None, &format!("job {n}"));
            let mut job = NewJob::new(id, "order.paid", QUEUE, payload(200));
            job.run_at = at(over.mul_f64(f64::from(n) / f64::from(self.jobs)))?;
            job.headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            job.options.backoff = Some(Backoff::fixed(Duration::from_millis(500)));
            all.push(job);
        }
        for (kind, bad) in bad.iter().enumerate() {
            for n in 0..bad.count {
                let id = JobId::derived(QUEUE, None, &format!("bad {kind} {n}"));
                let mut job = NewJob::new(id, "order.paid", QUEUE, payload(bad.bytes));
                job.run_at = at(bad_at + Duration::from_millis(10) * n)?;
                job.headers =
                    bad.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
                job.options = JobOptions {
                    max_attempts: Some(2),
                    backoff: Some(Backoff::fixed(Duration::from_millis(300)).jitter(false)),
                    ..JobOptions::default()
                };
                self.bad.insert(id, bad.words);
                all.push(job);
            }
        }
        let beside = (over.as_secs() * 2 + 1) * LOCAL_PER_SECOND;
        for n in 0..beside {
            let mut job = NewJob::new(self.client.make_id(), "beside", LOCAL, payload(16));
            job.run_at = at(Duration::from_millis(n * 1_000 / LOCAL_PER_SECOND))?;
            all.push(job);
        }
        while !all.is_empty() {
            let rest = all.split_off(all.len().min(BATCH_MAX));
            self.client.push(std::mem::replace(&mut all, rest)).await?;
        }
        let args = vec![to.to_owned(), SLOTS.to_string(), LEASE.as_millis().to_string()];
        self.forwarders = Some(Crew::start("forwarder", &self.place.url, self.dir.clone(), args, 1)?);
        let beside = self.dir.join("beside");
        std::fs::create_dir_all(&beside)?;
        self.local = Some(Crew::start("beside", &self.place.url, beside, Vec::new(), 1)?);
        if self.begin_us < wall_us() {
            return Err("enqueuing took longer than it may".into());
        }
        self.until(Duration::ZERO).await;
        Ok(())
    }

    /// Waits until so long after the first job was due.
    pub(super) async fn until(&self, after: Duration) {
        let left = (self.begin_us + after.as_micros() as u64).saturating_sub(wall_us());
        tokio::time::sleep(Duration::from_micros(left)).await;
    }

    /// How long after the first job was due.
    pub(super) fn second(&self, us: u64) -> f64 {
        us.saturating_sub(self.begin_us) as f64 / 1e6
    }

    /// Notes a fault that began then and ended just now, waits until it is made up for, and tells of it.
    pub(super) async fn ended(&mut self, name: &str, begin: u64, twice_max: u64) -> Outcome<()> {
        let end = wall_us();
        let patience = Instant::now();
        loop {
            let counts = self.client.count(Some(QUEUE)).await?;
            if counts.due + counts.retrying + counts.running < FEW {
                break;
            }
            if PATIENCE < patience.elapsed() {
                return Err(format!("{name} is not made up for: {counts:?}").into());
            }
            tokio::time::sleep(LOOK).await;
        }
        let fault = Fault { name: name.to_owned(), begin, end, recovered: wall_us(), twice_max };
        eprintln!(
            "{name}: from {:.1} s to {:.1} s, made up for {:.2} s later",
            self.second(begin),
            self.second(end),
            (fault.recovered - end) as f64 / 1e6
        );
        // What a forwarder had sent that was killed meanwhile may have waited for the end of this.
        for within in self.faults.iter_mut().filter(|other| begin <= other.begin) {
            within.recovered = within.recovered.max(fault.recovered);
        }
        self.faults.push(fault);
        Ok(())
    }

    /// Kills the forwarder, and starts another one.
    pub(super) fn kill(&mut self) -> Outcome<()> {
        let begin = wall_us();
        self.forwarders.as_mut().ok_or("nobody forwards")?.kill(0)?;
        // Part of a longer fault where there is one; its jobs come back when their leases end.
        let recovered = wall_us() + LEASE.as_micros() as u64 + 1_000_000;
        eprintln!("{KILLED} at {:.1} s, and started again", self.second(begin));
        self.faults.push(Fault {
            name: KILLED.to_owned(),
            begin,
            end: wall_us(),
            recovered,
            twice_max: SLOTS as u64,
        });
        Ok(())
    }

    /// Waits until nothing is left to do and all that is done arrived, as far as it does; ends the processes.
    pub(super) async fn rest(&mut self) -> Outcome<()> {
        let patience = Instant::now();
        loop {
            let (counts, beside) =
                (self.client.count(Some(QUEUE)).await?, self.client.count(Some(LOCAL)).await?);
            let left = counts.waiting + counts.running;
            let is_here = counts.done <= self.arrivals.count() as u64;
            if left == 0 && is_here && self.begin_us < wall_us() {
                break;
            }
            if PATIENCE < patience.elapsed() {
                eprintln!("BROKEN it does not come to rest: {counts:?}, beside {beside:?}");
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        // What comes a second time may be behind.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for crew in [&mut self.forwarders, &mut self.local].into_iter().flatten() {
            crew.stop()?;
        }
        Ok(())
    }

    /// How late the jobs beside were: when each was due, and by how much, in microseconds.
    pub(super) fn beside(&self) -> Vec<(u64, u64)> {
        let notes = self.local.as_ref().map(Crew::notes).unwrap_or_default();
        notes
            .iter()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(due, late)| Some((due.parse().ok()?, late.parse().ok()?)))
            .collect()
    }
}

/// JSON of so many bytes.
fn payload(bytes: usize) -> Payload {
    Payload::json(format!("\"{}\"", "x".repeat(bytes.saturating_sub(2))))
}
