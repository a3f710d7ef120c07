//! The store of an exploration: the model, or the model with one deliberate bug.

use std::time::Duration;

use punctual::{
    JobId, NewJob, State, Timestamp,
    store::{
        Acted, Action, Batch, CallId, Counts, Enqueued, Heartbeat, Lease, LeaseStatus, Order, QueueOp,
        QueueRequest, QueueSettings, Reserve, Reserved, Settled, Settlement, Target, UniqueKey, Verdict,
        model::Model,
    },
};

use crate::{
    broken::Broken,
    scope::{BACKOFF, LEASE, QUEUE},
};

/// The instance of calls that a bug makes.
const BUG: u64 = u64::MAX;

/// What every call of a scope keeps: the limits of the contract.
const KEPT: &str = "invariant: the calls of a scope keep all limits";

/// The shortest step of the clock.
const MS: Duration = Duration::from_millis(1);

/// A model and its bug.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) model: Model,
    broken: Option<Broken>,
    /// The jobs, since a model finds them only by id.
    ids: Vec<JobId>,
    /// The leases of workers that crashed.
    crashed: Vec<Lease>,
    /// The concurrency keys that a bug keeps from the model, with their limits.
    keys: Vec<(JobId, String, u32)>,
    /// The calls that a bug made.
    calls: u64,
}

impl Store {
    pub(crate) fn new(
        now: Timestamp,
        settings: &QueueSettings,
        ids: Vec<JobId>,
        broken: Option<Broken>,
    ) -> Self {
        let mut model = Model::new();
        let mut settings = settings.clone();
        if broken == Some(Broken::ReverseOrder) {
            settings.order = Order::Lifo;
        }
        model.queue(now, QUEUE, &QueueOp::Set(Box::new(settings))).expect(KEPT);
        Self { model, broken, ids, crashed: Vec::new(), keys: Vec::new(), calls: 0 }
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    /// Returns the current lease of a job and its end.
    fn lease_of(&self, now: Timestamp, id: JobId) -> Option<(Lease, Timestamp)> {
        let run = self.model.get(now, id)?.running?;
        Some((Lease { job: id, fence: run.fence }, run.until))
    }

    fn leases(&self, now: Timestamp) -> Vec<(Lease, Timestamp)> {
        self.ids.iter().filter_map(|id| self.lease_of(now, *id)).collect()
    }

    /// Returns the current leases.
    pub(crate) fn current(&self, now: Timestamp) -> Vec<Lease> {
        if self.crashed.is_empty() {
            Vec::new()
        } else {
            self.leases(now).into_iter().map(|(lease, _)| lease).collect()
        }
    }

    fn settle_one(&mut self, now: Timestamp, lease: Lease, verdict: Verdict) -> Settled {
        let (settled, _) = self.model.settle(now, &[Settlement { lease, verdict }], None).expect(KEPT);
        settled[0]
    }

    /// Notes the leases that a worker takes with it.
    pub(crate) fn crash(&mut self, leases: impl Iterator<Item = Lease>) {
        if self.is(Broken::CrashKeepsLease) {
            self.crashed.extend(leases);
        }
    }

    /// Returns whether a bug treats a lease as that of a crashed worker.
    pub(crate) fn is_crashed(&self, lease: Lease) -> bool {
        self.crashed.contains(&lease)
    }

    pub(crate) fn enqueue(&mut self, now: Timestamp, call: CallId, job: &NewJob) -> Enqueued {
        let mut job = job.clone();
        if self.is(Broken::KeyPerWorker)
            && let Some(key) = job.concurrency.take()
        {
            self.keys.push((job.id, key.key, key.limit));
        }
        if self.is(Broken::RunningHolderUnseen)
            && let Some(unique) = &job.unique
        {
            let kind = (!unique.across_kinds).then(|| job.kind.clone());
            let key = UniqueKey {
                kind,
                queue: QUEUE.to_owned(),
                group: None,
                concurrency_key: None,
                key: unique.key.clone(),
            };
            let holder = self.model.holder(now, &key);
            if holder.is_some_and(|holder| holder.state == State::Running) {
                job.unique = None;
            }
        }
        let answers = self.model.enqueue(now, call, &[job]).expect(KEPT);
        answers.into_iter().next().expect("invariant: one job has one answer")
    }

    pub(crate) fn reserve(&mut self, now: Timestamp, request: &Reserve, is_repeated: bool) -> Batch {
        let early = self.act_before_reserve(now);
        let mut request = request.clone();
        if self.is(Broken::RepeatReservesAgain) && is_repeated {
            self.calls += 1;
            request.call = CallId { instance: BUG, number: self.calls };
        }
        let mut batch = self.model.reserve(now, &request).expect(KEPT);
        drop(batch.reclaimed.splice(0..0, early.reclaimed));
        self.act_after_reserve(now, &request, &mut batch);
        batch
    }

    /// Does what a bug does before a reserve.
    fn act_before_reserve(&mut self, now: Timestamp) -> Batch {
        match self.broken {
            Some(Broken::StartsEarly) => {
                for id in self.ids.clone() {
                    let is_next =
                        |job: punctual::JobRecord| job.state == State::Waiting && job.run_at == now.after(MS);
                    if self.model.get(now, id).is_some_and(is_next) {
                        self.model.act(now, &[Target::from(id)], &Action::RunNow).expect(KEPT);
                    }
                }
            }
            Some(Broken::CrashKeepsLease) => {
                for (lease, until) in self.leases(now) {
                    if until <= now && self.is_crashed(lease) {
                        self.model.extend(now, &[Heartbeat::from(lease)]).expect(KEPT);
                    }
                }
            }
            Some(Broken::ReclaimsEarly)
                if self.leases(now).iter().any(|(_, until)| *until == now.after(MS)) =>
            {
                self.calls += 1;
                let call = CallId { instance: BUG, number: self.calls };
                return self.model.reserve(now.after(MS), &request(call, 0, false)).expect(KEPT);
            }
            _ => {}
        }
        Batch::default()
    }

    /// Does what a bug does to the answer of a reserve.
    fn act_after_reserve(&mut self, now: Timestamp, request: &Reserve, batch: &mut Batch) {
        match self.broken {
            Some(Broken::KeyPerWorker) => {
                let mut kept = Vec::new();
                for reserved in std::mem::take(&mut batch.jobs) {
                    if self.is_full_for(now, &request.worker, reserved.lease.job) {
                        let _ = self.settle_one(now, reserved.lease, Verdict::Release);
                        batch.more = true;
                    } else {
                        kept.push(reserved);
                    }
                }
                batch.jobs = kept;
            }
            Some(Broken::AcksAtReserve) => {
                for reserved in &batch.jobs {
                    let _ = self.settle_one(now, reserved.lease, Verdict::Ack);
                }
            }
            Some(Broken::SleepsForEver) if batch.jobs.is_empty() && !batch.more => batch.next_due = None,
            Some(Broken::SharesRunningJob) if batch.jobs.is_empty() && 0 < request.n => {
                let running = self.leases(now).into_iter().next();
                batch.jobs.extend(running.and_then(|(lease, until)| {
                    Some(Reserved { lease, until, lasts: LEASE, job: self.model.get(now, lease.job)? })
                }));
            }
            Some(Broken::PassesOverRetries) => {
                for reserved in
                    batch.jobs.extract_if(.., |reserved| 1 < reserved.job.attempt).collect::<Vec<_>>()
                {
                    let _ = self.settle_one(now, reserved.lease, Verdict::Release);
                }
            }
            _ => {}
        }
    }

    /// Returns whether a worker runs too many jobs of a key, one of which was just reserved.
    fn is_full_for(&self, now: Timestamp, worker: &str, id: JobId) -> bool {
        let Some((_, key, limit)) = self.keys.iter().find(|(job, ..)| *job == id) else { return false };
        let runs_here = |job: JobId| {
            self.model.get(now, job).and_then(|job| job.running).is_some_and(|run| run.worker == worker)
        };
        let running = self.keys.iter().filter(|(job, other, _)| other == key && runs_here(*job));
        (*limit as usize) < running.count()
    }

    pub(crate) fn extend(&mut self, now: Timestamp, beat: &Heartbeat) -> LeaseStatus {
        self.model.extend(now, std::slice::from_ref(beat)).expect(KEPT)[0]
    }

    pub(crate) fn settle(
        &mut self,
        now: Timestamp,
        settlement: &Settlement,
        then: Option<&Reserve>,
        is_repeated: bool,
    ) -> (Settled, Option<Batch>) {
        let Settlement { mut lease, mut verdict } = settlement.clone();
        let retries = matches!(verdict, Verdict::Retry { .. });
        if self.is(Broken::SettleWithoutFence)
            && let Some((current, _)) = self.lease_of(now, lease.job)
        {
            lease = current;
        }
        if self.is(Broken::RetryUncounted) && retries {
            verdict = Verdict::Snooze { after: BACKOFF, reason: None };
        }
        let settled = self.settle_one(now, lease, verdict);
        let has_ended =
            |store: &Self| store.model.get(now, lease.job).is_some_and(|job| job.state.is_ended());
        if self.is(Broken::LateRetryRevives) && retries && settled == Settled::LeaseLost && has_ended(self) {
            self.model.act(now, &[Target::from(lease.job)], &Action::Retry).expect(KEPT);
        }
        (settled, then.map(|then| self.reserve(now, then, is_repeated)))
    }

    pub(crate) fn act(&mut self, now: Timestamp, id: JobId, action: &Action) -> Acted {
        let lease = self.lease_of(now, id);
        if let (true, Action::Cancel { reason }, Some((lease, _))) =
            (self.is(Broken::CancelEndsRun), action, lease)
        {
            let _ = self.settle_one(now, lease, Verdict::Cancel { reason: reason.clone() });
            return Acted::Requested(id);
        }
        let acted = self.model.act(now, &[Target::from(id)], action).expect(KEPT);
        acted.into_iter().next().expect("invariant: one target has one answer")
    }

    pub(crate) fn count(&self, now: Timestamp) -> Counts {
        let mut counts = self.model.count(now, Some(QUEUE));
        if self.is(Broken::CountsNoRetries) {
            counts.retrying = 0;
        }
        counts
    }
}

/// Makes a reserve of `n` jobs.
pub(crate) fn request(call: CallId, n: usize, company: bool) -> Reserve {
    let queue = QueueRequest { queue: QUEUE.to_owned(), share: n, at_most: n };
    Reserve { call, worker: String::new(), queues: vec![queue], n, lease: None, company }
}
