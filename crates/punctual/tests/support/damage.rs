//! What happens to a store that something else damaged: calls go on, every other job runs once, none in another queue, no worker spins, and
//! two repairs of an audit lead to a store in which an audit finds nothing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use punctual::{
    Client, ErrorKind, JobId, JobRecord, NewJob, Payload, Priority, State, Unique, When,
    job::{Concurrency, Filter},
    store::{
        Action, CallId, List, QueueOp, QueueRequest, Reserve, Settlement, Store, Take, Upcoming, Verdict,
        clock::ManualClock,
    },
};

/// So many calls run all jobs, with much to spare.
const CALLS_MAX: u64 = 120;
/// The length of a page: more than there are jobs.
const LISTED_MAX: usize = 100;
const QUEUE: &str = "mail";
const OTHER: &str = "bulk";
/// A queue that is made after the damage.
const NEW: &str = "new";

/// Returns which of `all` entries are damaged: all, or `some` of them, if only a sample is wanted.
pub(crate) fn sample(all: usize, some: usize) -> impl Iterator<Item = usize> {
    let is_all = std::env::var("PUNCTUAL_DAMAGE").is_ok_and(|size| size == "all");
    (0..all).step_by(if is_all { 1 } else { all / some })
}

/// What was damaged, as far as it decides what may be missing.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Of {
    /// The order of entries, or all entries of a kind: until the repair, jobs can wait.
    Order,
    /// A queue itself: until the repair its calls may be refused, with the cause, and its jobs may wait.
    Queue,
    /// The record of a job, which may be lost. If it is not gone, something of it stays.
    Record { is_gone: bool },
    /// An entry that stands for so many jobs.
    Jobs(usize),
}

/// A store with jobs in each place, and what was noted of it.
pub(crate) struct Damaged {
    clock: ManualClock,
    store: Arc<dyn Store>,
    client: Client,
    /// The jobs that have not ended, of which two run.
    ids: Vec<JobId>,
    /// The jobs that are done before the damage.
    done: Vec<JobId>,
    /// The queue of each job.
    own: BTreeMap<JobId, &'static str>,
    /// The queues that a worker serves: after a repair all that there are, because the name of one can be lost.
    queues: Vec<String>,
    calls: u64,
    /// How often each job was reserved after the damage.
    runs: BTreeMap<JobId, u32>,
    of: Of,
    is_mended: bool,
    wrong: Vec<String>,
}

impl Damaged {
    /// Makes jobs of each kind, in each place: waiting, blocked, running, done.
    pub(crate) async fn fill(store: Arc<dyn Store>, clock: ManualClock) -> Self {
        let client = Client::new(Arc::clone(&store));
        let mut it = Self {
            clock,
            store,
            client,
            ids: Vec::new(),
            done: Vec::new(),
            own: BTreeMap::new(),
            queues: [QUEUE, OTHER, NEW].map(str::to_owned).to_vec(),
            calls: 0,
            runs: BTreeMap::new(),
            of: Of::Jobs(1),
            is_mended: false,
            wrong: Vec::new(),
        };
        it.jobs().await;
        it
    }

    async fn jobs(&mut self) {
        let job = |queue: &str| NewJob::new(self.client.make_id(), "k", queue, Payload::json("1"));
        let mut all: Vec<NewJob> = (0..16).map(|_| job(QUEUE)).collect();
        for (at, new) in all.iter_mut().enumerate() {
            match at {
                0..3 => {}
                3..6 => new.group = Some(format!("g{}", at % 2)),
                6..9 => new.concurrency = Some(Concurrency { key: "c".into(), limit: 1 }),
                9 => new.expires_at = Some(When::In(Duration::from_hours(1))),
                10 => new.unique = Some(Unique::key("u")),
                11 => new.unique = Some(Unique::key("w").window(Duration::from_mins(10))),
                12 => new.options.priority = Some(Priority::High),
                13 => new.payload = Payload::json(vec![b'1'; 3_000]),
                _ => new.run_at = When::In(Duration::from_secs(30)),
            }
        }
        let others: Vec<_> = (0..3).map(|_| job(OTHER)).collect();
        all.extend(others);
        // Some are done, and some run, before the rest comes.
        let first: Vec<NewJob> = (0..4).map(|_| job(QUEUE)).collect();
        for new in first {
            self.push(new).await;
        }
        let mut jobs = Vec::new();
        // Of several shards, each call may ask one.
        while jobs.len() < 4 {
            let request = self.wants(4 - jobs.len());
            jobs.extend(self.store.reserve(&request).await.unwrap().jobs);
        }
        let (ended, run) = jobs.split_at(2);
        self.done = ended.iter().map(|run| run.job.id).collect();
        self.ids = run.iter().map(|run| run.job.id).collect();
        let acks: Vec<_> =
            ended.iter().map(|run| Settlement { lease: run.lease, verdict: Verdict::Ack }).collect();
        self.store.settle(&acks, None).await.unwrap();
        for new in all {
            let id = self.push(new).await;
            self.ids.push(id);
        }
    }

    /// Returns the id of the job: if there are several shards, what is compared with others gets another one.
    async fn push(&mut self, new: NewJob) -> JobId {
        let own = if new.queue == QUEUE { QUEUE } else { OTHER };
        let id = self.client.push(vec![new]).await.unwrap()[0].id().expect("it is stored");
        self.own.insert(id, own);
        id
    }

    fn wants(&mut self, n: usize) -> Reserve {
        self.calls += 1;
        let queue = |name: &str| QueueRequest { queue: name.into(), share: n, at_most: n };
        Reserve {
            call: CallId { instance: 1, number: self.calls },
            worker: "w".into(),
            queues: self.queues.iter().map(|name| queue(name)).collect(),
            n,
            lease: None,
            company: true,
        }
    }

    /// Notes an error, unless it is of a queue whose name or settings are damaged, and says so.
    fn heard<T>(&mut self, what: &str, answer: punctual::Result<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) if self.of == Of::Queue && !self.is_mended && error.kind() == ErrorKind::Corrupt => {
                None
            }
            Err(error) => {
                self.wrong.push(format!(
                    "{what}: {error} {:?}",
                    std::error::Error::source(&error).map(ToString::to_string)
                ));
                None
            }
        }
    }

    /// Runs what is due, until nothing is; a minute passes meanwhile. At first each queue is asked alone: none has jobs of another one.
    async fn drain(&mut self) {
        let (mut idle, mut alone) = (0, self.queues.clone());
        for round in 0..CALLS_MAX {
            let mut request = self.wants(4);
            let only = alone.pop();
            if let Some(name) = &only {
                request.queues.retain(|request| request.queue == *name);
            }
            let answer = self.store.reserve(&request).await;
            let Some(batch) = self.heard("reserve", answer) else { return };
            for run in &batch.jobs {
                *self.runs.entry(run.job.id).or_default() += 1;
                // What a job says of itself may be what was damaged.
                let name = only.as_ref().unwrap_or(&run.job.queue);
                if let Some(own) = self.strange(run.job.id, name) {
                    self.wrong.push(format!("a job of {own} runs in {name}"));
                }
            }
            let acks: Vec<_> =
                batch.jobs.iter().map(|run| Settlement { lease: run.lease, verdict: Verdict::Ack }).collect();
            if !acks.is_empty() {
                let answer = self.store.settle(&acks, None).await;
                self.heard("settle", answer);
            }
            idle = if batch.jobs.is_empty() { idle + 1 } else { 0 };
            let says_now = batch.more || batch.next_due.is_some_and(|due| due.is_zero());
            if batch.jobs.is_empty() && !says_now {
                self.clock.advance(Duration::from_secs(5));
                let answer = self.store.sweep(100).await;
                self.heard("sweep", answer);
            }
            if 20 <= idle {
                if says_now {
                    self.wrong.push(format!(
                        "a worker spins: work is said to be due now, and there is none ({round})"
                    ));
                }
                return;
            }
        }
        self.wrong.push("a worker finds no end".to_owned());
    }

    /// The other verbs: none of them fails.
    async fn look(&mut self) {
        let store = Arc::clone(&self.store);
        let answer = store.count(None).await;
        self.heard("count", answer);
        for states in [State::Waiting, State::Running, State::Done, State::Dead] {
            let list = List { filter: Filter::all().state([states]), after: None, limit: LISTED_MAX };
            let answer = store.list(&list).await;
            self.heard("list", answer);
        }
        let upcoming = Upcoming { queue: None, bucket: Duration::from_secs(10), buckets: 9 };
        let answer = store.upcoming(&upcoming).await;
        self.heard("upcoming", answer);
        let answer = store.queue(QUEUE, &QueueOp::Show).await;
        self.heard("queue", answer);
        let answer = store.sweep(100).await;
        self.heard("sweep", answer);
        let answer = store.act(&[self.ids[2].into()], &Action::RescheduleBy(0)).await;
        self.heard("act", answer);
        let answer = store.take(&Take { queue: "none".into(), n: 1, older_than: Duration::ZERO }).await;
        self.heard("take", answer);
        // The new one first, so that its job comes before one of another queue that has its number.
        for queue in [NEW, OTHER] {
            let new = NewJob::new(self.client.make_id(), "k", queue, Payload::json("1"));
            let id = new.id;
            self.calls += 1;
            let call = CallId { instance: 2, number: self.calls };
            let answer = store.enqueue(call, &[new]).await;
            if self.heard("enqueue", answer).is_some() {
                self.own.insert(id, queue);
            }
        }
    }

    /// Returns the queue of a job, if this is another one.
    fn strange(&self, id: JobId, queue: &str) -> Option<&'static str> {
        let own = self.own.get(&id).filter(|own| **own != queue && [QUEUE, OTHER, NEW].contains(&queue))?;
        (!matches!(self.of, Of::Record { .. })).then_some(own)
    }

    /// Runs what waits after a repair. What a repair has made dead is retried.
    async fn go_on(&mut self) {
        self.drain().await;
        for id in self.ids.clone() {
            let answer = self.store.get(id).await;
            if let Some(job) = self.heard("get", answer).flatten()
                && job.state == State::Dead
            {
                let answer = self.store.act(&[id.into()], &Action::Retry).await;
                self.heard("retry", answer);
            }
        }
        self.drain().await;
    }

    /// Looks at what became of each job.
    async fn compare(&mut self) {
        // What ended is known by its entry alone, so it can end again, or be taken for old.
        let (mut history, mut cancelled, mut lost) = (0, 0, 0);
        let is_of_record = matches!(self.of, Of::Record { .. });
        for (id, own) in self.own.clone() {
            let answer = self.store.get(id).await;
            match self.heard("get", answer).flatten() {
                Some(job) if job.state == State::Done => {
                    if self.strange(id, &job.queue).is_some() {
                        self.wrong.push(format!("a job of {own} is in {}", job.queue));
                    }
                }
                // What it says of itself was damaged.
                Some(_) if is_of_record => {}
                // What its lease says was damaged.
                Some(JobRecord { state: State::Cancelled, .. }) if self.ids[..2].contains(&id) => {
                    cancelled += 1;
                }
                None | Some(JobRecord { state: State::Dead, .. }) if self.done.contains(&id) => history += 1,
                None => lost += 1,
                Some(job) => {
                    self.wrong.push(format!("a job of {own} is {} after all: {:?}", job.state, job.reason));
                }
            }
        }
        // A queue whose tallies are damaged can be taken for one that keeps too much.
        let most = if let Of::Jobs(most) = self.of { most } else { self.done.len() };
        if most < history + cancelled {
            self.wrong.push(format!("{history} done jobs are lost or dead, {cancelled} are cancelled"));
        }
        let list = List { filter: Filter::all(), after: None, limit: LISTED_MAX };
        let answer = self.store.list(&list).await;
        let listed = self.heard("list", answer).map_or(0, |page| page.jobs.len()) + history;
        let gone = usize::from(self.of == Of::Record { is_gone: true });
        if usize::from(is_of_record) < lost || listed + gone < self.own.len() {
            self.wrong.push(format!("{lost} jobs are lost, {listed} of {} are there", self.own.len()));
        }
        let often = self.runs.iter().filter(|(id, n)| 1 < **n && self.own.contains_key(*id)).count();
        if 0 < often {
            self.wrong.push(format!("{often} jobs run more than once"));
        }
    }

    fn missing(&self) -> usize {
        self.ids.iter().filter(|id| !self.runs.contains_key(id)).count()
    }

    /// Returns what goes wrong after a damage. `looks_first`: other verbs meet it before a reserve does.
    pub(crate) async fn judge(mut self, of: Of, looks_first: bool) -> Vec<String> {
        self.of = of;
        if looks_first {
            self.look().await;
        }
        self.drain().await;
        if !looks_first {
            self.look().await;
            self.drain().await;
        }
        let missing = self.missing();
        if let Of::Jobs(most) = of
            && most < missing
        {
            self.wrong.push(format!("{missing} jobs did not run"));
        }
        for _ in 0..2 {
            let answer = self.client.audit(true, |_| ()).await;
            self.heard("audit --repair", answer);
        }
        self.is_mended = true;
        // A queue whose settings were damaged is paused, until somebody has looked at them.
        self.queues = self.store.queues(None).await.unwrap_or_default();
        for name in self.queues.clone() {
            let answer = self.store.queue(&name, &QueueOp::Resume).await;
            self.heard("resume", answer);
        }
        let answer = self.client.audit(false, |_| ()).await;
        if let Some(report) = self.heard("audit", answer)
            && let Some(finding) = report.findings.first()
        {
            let n = report.findings.len();
            self.wrong.push(format!("{n} findings after two repairs, such as {finding:?}"));
        }
        self.go_on().await;
        self.compare().await;
        self.wrong.dedup();
        self.wrong
    }
}
