//! One side of the comparison: a store with one or more handles, the leases it handed out, and its replies with the fence
//! numbers made comparable.
//!
//! Stores number their reservations as they like, as long as the numbers rise. So each side keeps its own leases, and a
//! reply shows the how-many-th lease a number belongs to.

use std::{collections::HashMap, sync::Arc, time::Duration};

use punctual::{
    ErrorKind, JobId, JobRecord, State, Timestamp,
    job::{Filter, Notes},
    store::{
        Acted, Audit, Batch, Counts, DocReply, Enqueued, Finding, Heartbeat, Held, Histogram, Lease,
        LeaseStatus, List, LockReply, QueueOp, QueueReply, Settled, Settlement, Store, Swept, ToolReply,
        Upcoming,
    },
};

use crate::op::{Look, Op, Pick, Step};

/// Opens a handle; all handles of one opener share their jobs.
pub(crate) type Opener = Box<dyn Fn() -> Arc<dyn Store>>;

pub(crate) struct Side {
    open: Opener,
    handles: Vec<Option<Arc<dyn Store>>>,
    /// In the order in which they were first seen.
    leases: Vec<Lease>,
    nth: HashMap<Lease, u64>,
    /// The highest fence of each id.
    highest: HashMap<JobId, u64>,
    /// The fences of locks, in the order in which they were first seen.
    holdings: Vec<u64>,
    fell: Option<String>,
}

/// What a step answered.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply {
    Nothing,
    Enqueue(Result<Vec<Enqueued>, ErrorKind>),
    Reserve(Result<Batch, ErrorKind>),
    Extend(Result<Vec<LeaseStatus>, ErrorKind>),
    Settle(Result<(Vec<Settled>, Option<Batch>), ErrorKind>),
    Take(Result<Vec<JobRecord>, ErrorKind>),
    Act(Result<Vec<Acted>, ErrorKind>),
    Queue(Result<QueueReply, ErrorKind>),
    Doc(Result<DocReply, ErrorKind>),
    Tool(Result<ToolReply, ErrorKind>),
    Sweep(Result<Swept, ErrorKind>),
    Look(Vec<(String, Seen)>),
}

/// Something that was read.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Now(Timestamp),
    Job(Option<Box<JobRecord>>),
    Jobs(Vec<JobRecord>),
    Total(u64),
    Counts(Counts),
    Names(Vec<String>),
    Queue(QueueReply),
    Histogram(Histogram),
    Findings(Vec<Finding>),
}

impl Side {
    pub(crate) fn new(open: Opener, handles: usize) -> Self {
        let handles = (0..handles).map(|_| Some(open())).collect();
        Self {
            open,
            handles,
            leases: vec![],
            nth: HashMap::new(),
            highest: HashMap::new(),
            holdings: vec![],
            fell: None,
        }
    }

    fn handle(&self, i: usize) -> Arc<dyn Store> {
        Arc::clone(self.handles[i % self.handles.len()].as_ref().expect("a handle is open between steps"))
    }

    /// Makes one step.
    pub(crate) async fn step(&mut self, step: &Step) -> Reply {
        let store = self.handle(step.handle);
        match &step.op {
            Op::Enqueue(call, jobs) => Reply::Enqueue(store.enqueue(*call, jobs).await.map_err(|e| e.kind())),
            Op::Reserve(want) => {
                let batch = store.reserve(want).await.map_err(|e| e.kind());
                Reply::Reserve(batch.map(|batch| self.batch(batch)))
            }
            Op::Extend(picks) => {
                let beat = |(pick, notes): &(Pick, Option<Notes>)| Heartbeat {
                    lease: self.lease(*pick),
                    notes: notes.clone(),
                    company: notes.as_ref().is_some_and(|notes| notes.progress.is_none()),
                    lasts: lasts_of(*pick),
                };
                let beats: Vec<Heartbeat> = picks.iter().map(beat).collect();
                Reply::Extend(store.extend(&beats).await.map_err(|e| e.kind()))
            }
            Op::Settle(picks, then) => {
                let batch: Vec<Settlement> = picks
                    .iter()
                    .map(|(pick, verdict)| Settlement { lease: self.lease(*pick), verdict: verdict.clone() })
                    .collect();
                let reply = store.settle(&batch, then.as_ref()).await.map_err(|e| e.kind());
                Reply::Settle(reply.map(|(answers, batch)| (answers, batch.map(|batch| self.batch(batch)))))
            }
            Op::Take(take) => {
                Reply::Take(store.take(take).await.map_err(|e| e.kind()).map(|jobs| self.jobs(jobs)))
            }
            Op::Act(targets, action) => Reply::Act(store.act(targets, action).await.map_err(|e| e.kind())),
            Op::Queue(name, op) => Reply::Queue(store.queue(name, op).await.map_err(|e| e.kind())),
            Op::Doc(op) => Reply::Doc(store.doc(op).await.map_err(|e| e.kind())),
            Op::Tool(op) => {
                let reply = store.tool(op).await.map_err(|e| e.kind());
                Reply::Tool(reply.map(|reply| self.tool(reply)))
            }
            Op::Sweep(limit) => {
                // A sweep that reached its limit has not looked at all queues.
                let known = |mut swept: Swept| {
                    swept.next_reclaim_ms = swept.next_reclaim_ms.filter(|_| !swept.more);
                    swept
                };
                Reply::Sweep(store.sweep(*limit).await.map(known).map_err(|e| e.kind()))
            }
            Op::Clock(_) => Reply::Nothing,
            Op::Reopen => {
                let i = step.handle % self.handles.len();
                drop(store);
                self.handles[i] = None;
                self.handles[i] = Some((self.open)());
                Reply::Nothing
            }
            Op::Look(look) => Reply::Look(self.look(&*store, look).await),
        }
    }

    /// What went wrong with the fences, if something did.
    pub(crate) fn fell(&self) -> Option<&str> {
        self.fell.as_deref()
    }

    fn lease(&self, pick: Pick) -> Lease {
        match pick {
            Pick::Newest(n) if !self.leases.is_empty() => {
                self.leases[self.leases.len() - 1 - n % self.leases.len()]
            }
            Pick::Newest(_) => Lease { job: punctual::JobId::derived("none", None, "none"), fence: 1 },
            Pick::Forged(job, fence) => Lease { job, fence },
        }
    }

    fn batch(&mut self, mut batch: Batch) -> Batch {
        for reserved in &mut batch.jobs {
            let Lease { job, fence } = reserved.lease;
            if !self.nth.contains_key(&reserved.lease) {
                let highest = self.highest.entry(job).or_insert(0);
                if fence <= *highest {
                    self.fell = Some(format!("fence {fence} of {job} is not above {highest}"));
                }
                *highest = fence;
                self.leases.push(reserved.lease);
                self.nth.insert(reserved.lease, self.leases.len() as u64);
            }
        }
        for reserved in &mut batch.jobs {
            reserved.lease = self.blank(reserved.lease);
            self.blank_job(&mut reserved.job);
        }
        for back in &mut batch.reclaimed {
            back.lease = self.blank(back.lease);
        }
        batch
    }

    /// Shows the how-many-th holding a fence of a lock belongs to.
    fn tool(&mut self, mut reply: ToolReply) -> ToolReply {
        let held = match &mut reply {
            ToolReply::Lock(LockReply::Yours(held) | LockReply::Taken(held)) => std::slice::from_mut(held),
            ToolReply::Lock(LockReply::Listed { locks, .. }) => locks,
            _ => return reply,
        };
        for Held { fence, .. } in held {
            if !self.holdings.contains(fence) {
                let highest = self.holdings.last().copied().unwrap_or_default();
                if *fence <= highest {
                    self.fell = Some(format!("fence {fence} of a lock is not above {highest}"));
                }
                self.holdings.push(*fence);
            }
            *fence = self.holdings.iter().position(|seen| seen == fence).unwrap_or_default() as u64;
        }
        reply
    }

    fn blank(&self, lease: Lease) -> Lease {
        Lease { job: lease.job, fence: self.nth.get(&lease).copied().unwrap_or(u64::MAX) }
    }

    fn blank_job(&self, job: &mut JobRecord) {
        if let Some(running) = &mut job.running {
            running.fence = self.blank(Lease { job: job.id, fence: running.fence }).fence;
        }
    }

    fn jobs(&self, mut jobs: Vec<JobRecord>) -> Vec<JobRecord> {
        for job in &mut jobs {
            self.blank_job(job);
        }
        jobs
    }

    fn job(&self, job: Option<JobRecord>) -> Seen {
        Seen::Job(job.map(|mut job| {
            self.blank_job(&mut job);
            Box::new(job)
        }))
    }

    /// Reads everything. Reads may not fail: whatever happened, the store's state is whole.
    async fn look(&self, store: &dyn Store, look: &Look) -> Vec<(String, Seen)> {
        let mut seen = vec![("now".to_owned(), Seen::Now(store.now().await.expect("now")))];
        let asked = look.filters.map(|text| (text, Filter::parse(text).expect("a filter")));
        let waiting = Filter::all().queue("a").state([State::Waiting]);
        for (name, filter) in [("all", Filter::all()), ("waiting in a", waiting)].into_iter().chain(asked) {
            let mut list = List { filter, after: None, limit: look.page };
            let mut jobs = Vec::new();
            loop {
                let page = store.list(&list).await.expect("list");
                jobs.extend(page.jobs);
                list.after = page.next;
                if list.after.is_none() {
                    // In which order is the store's own business.
                    jobs.sort_unstable_by_key(|job: &JobRecord| std::cmp::Reverse(job.id));
                    seen.push((format!("jobs in the store, listing {name}"), Seen::Total(page.total)));
                    break;
                }
            }
            seen.push((format!("list {name}"), Seen::Jobs(self.jobs(jobs))));
        }
        seen.push(("count".to_owned(), Seen::Counts(store.count(None).await.expect("count"))));
        let upcoming = |queue| Upcoming { queue, bucket: look.bucket, buckets: look.buckets };
        let all = store.upcoming(&upcoming(None)).await.expect("upcoming");
        seen.push(("upcoming".to_owned(), Seen::Histogram(all)));
        for name in &look.queues {
            let counts = store.count(Some(name)).await.expect("count");
            seen.push((format!("count {name}"), Seen::Counts(counts)));
            let shown = store.queue(name, &QueueOp::Show).await.expect("show");
            seen.push((format!("queue {name}"), Seen::Queue(shown)));
            let histogram = store.upcoming(&upcoming(Some(name.clone()))).await.expect("upcoming");
            seen.push((format!("upcoming {name}"), Seen::Histogram(histogram)));
        }
        for after in [None, Some("a")] {
            let names = store.queues(after).await.expect("queues");
            seen.push((format!("queues after {after:?}"), Seen::Names(names)));
        }
        for id in &look.ids {
            seen.push((format!("get {id}"), self.job(store.get(*id).await.expect("get"))));
        }
        for key in &look.keys {
            seen.push((format!("holder of {key:?}"), self.job(store.holder(key).await.expect("holder"))));
        }
        let mut audit = Audit::default();
        let mut findings = Vec::new();
        loop {
            let slice = store.audit(audit.clone()).await.expect("audit");
            findings.extend(slice.findings);
            match slice.next {
                Some(next) => audit.from = next,
                None => break,
            }
        }
        seen.push(("audit".to_owned(), Seen::Findings(findings)));
        seen
    }
}

/// What differs, in words; `None`: nothing.
pub(crate) fn difference(model: &Reply, store: &Reply) -> Option<String> {
    match (model, store) {
        (Reply::Look(model), Reply::Look(store)) => model.iter().zip(store).find_map(|(model, store)| {
            (model != store)
                .then(|| format!("{}:\n  model {}\n  store {}", model.0, shown(&model.1), shown(&store.1)))
        }),
        _ if model == store => None,
        _ => Some(format!("\n  model {}\n  store {}", shown(model), shown(store))),
    }
}

/// Jobs print their payloads as sizes only; two that differ in nothing else print the same.
fn shown(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}")
}

/// Some heartbeats give their lease another length: a longer or a shorter one.
fn lasts_of(pick: Pick) -> Option<Duration> {
    match pick {
        Pick::Newest(n) if n % 3 == 1 => Some(Duration::from_secs(1 + 5 * n as u64)),
        Pick::Newest(_) | Pick::Forged(..) => None,
    }
}
