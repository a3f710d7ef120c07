//! Bugs that can be planted between a process and the store, to see that the simulation finds them.

use std::{
    collections::BTreeMap,
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use punctual::{
    JobId, NewJob, Result, State, When,
    store::{
        Acted, Action, Batch, Call, CallId, Enqueued, Heartbeat, Lease, LeaseStatus, Reply, Reserve,
        Selector, Settled, Settlement, Store, Target, Verdict,
    },
};

use crate::fleet::Scene;

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident = $name:literal,)+) => {
        /// What can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $($(#[doc = $doc])+ $bug),+ }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug),+];

            /// Returns its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$bug => $name),+ }
            }
        }
    };
}

bugs! {
    /// One enqueue in ten is answered, and stores nothing.
    EnqueueForgotten = "enqueue-forgotten",
    /// One ack in ten is answered, and changes nothing.
    AckForgotten = "ack-forgotten",
    /// A settle with any lease ends the current one.
    FenceIgnored = "fence-ignored",
    /// Heartbeats are answered, and extend nothing.
    HeartbeatForgotten = "heartbeat-forgotten",
    /// No notification arrives.
    NotificationsLost = "notifications-lost",
    /// A repeated reserve is taken for a new one.
    ReserveNotRepeated = "reserve-not-repeated",
    /// A delayed job is due 50 ms early: the judge allows for clocks that are slewed by 0.1 %.
    Early = "early-by-50-ms",
    /// A retry is due at once.
    RetryAtOnce = "retry-at-once",
    /// A release counts as a failure.
    ReleaseCounts = "release-counts",
    /// Leases last half as long as they say.
    LeaseHalved = "lease-halved",
    /// A suspect is never to blame, so poison goes on.
    PoisonNeverDies = "poison-never-dies",
    /// Unique keys are not compared.
    UniqueIgnored = "unique-ignored",
    /// Concurrency keys are not compared.
    ConcurrencyIgnored = "concurrency-ignored",
    /// Groups have no limit.
    GroupLimitIgnored = "group-limit-ignored",
    /// A cancel is answered, and changes nothing.
    CancelForgotten = "cancel-forgotten",
    /// A cancel of a running job is never reported to its worker.
    CancelNotReported = "cancel-not-reported",
    /// One reserve in ten hands out jobs, and answers none.
    BatchForgotten = "batch-forgotten",
    /// One enqueue in ten is stored once more under other ids.
    EnqueuedTwice = "enqueued-twice",
    /// Jobs never expire.
    ExpiryIgnored = "expiry-ignored",
    /// Jobs have attempts without end.
    AttemptsWithoutEnd = "attempts-without-end",
    /// A failure doesn't count.
    FailureForgotten = "failure-forgotten",
    /// A job that asks to run later is due at once.
    SnoozeAtOnce = "snooze-at-once",
    /// A job that was given up is taken for done.
    DeadIsDone = "dead-is-done",
    /// Runs have no timeout.
    TimeoutIgnored = "timeout-ignored",
    /// A reschedule is answered, and changes nothing.
    RescheduleForgotten = "reschedule-forgotten",
    /// A subscription is answered, and the queue gets no jobs.
    SubscriptionForgotten = "subscription-forgotten",
    /// A reserve that arrives after it was given up is taken for a new one, unless it came with settlements.
    LateReserveIsNew = "late-reserve-is-new",
}

/// What stands for no end, of attempts.
const ATTEMPTS: u32 = 1_000;
/// What stands for no timeout: far longer than a run of the simulation.
const TIMEOUT: Duration = Duration::from_hours(24);

impl FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.iter().find(|bug| bug.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|bug| bug.name()).collect();
            format!("there is no bug {name:?}; there are {}", names.join(", "))
        })
    }
}

/// What one process passes on to the store, with the bug of the run.
pub(crate) struct Planted {
    bug: Option<Bug>,
    /// Draws what befalls a call.
    calls: AtomicU64,
    salt: u64,
    /// The newest fence of each job that any process reserved.
    fences: Arc<Mutex<BTreeMap<JobId, u64>>>,
}

impl Planted {
    pub(crate) fn new(scene: &Scene, salt: u64) -> Self {
        Self { bug: scene.bug, calls: AtomicU64::new(0), salt, fences: Arc::clone(&scene.fences) }
    }

    /// Whether a call in ten is this one.
    fn is_one_in_ten(&self) -> bool {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        (number.wrapping_mul(7) + self.salt) % 10 == 3
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(crate) fn is_deaf(&self) -> bool {
        self.is(Bug::NotificationsLost)
    }

    /// Makes a call, with what the bug does to it.
    pub(crate) async fn call(&self, store: &dyn Store, call: Call<'_>) -> Result<Reply> {
        Ok(match call {
            Call::Enqueue { call, jobs, .. } => self.enqueue(store, call, jobs).await?.into(),
            Call::Reserve(request) => self.reserve(store, request).await?.into(),
            Call::Extend(beats) => self.extend(store, beats).await?.into(),
            Call::Settle { batch, then } => self.settle(store, batch, then).await?.into(),
            Call::Act { targets, action } => self.act(store, targets, action).await?.into(),
            call => return store.call(call).await,
        })
    }

    async fn enqueue(
        &self,
        store: &dyn Store,
        call: CallId,
        asked: &[NewJob],
    ) -> Result<Vec<Option<Enqueued>>> {
        let mut jobs = asked.to_vec();
        if self.is(Bug::EnqueueForgotten) && self.is_one_in_ten() {
            let now = store.now().await?;
            let inserted = |job: &NewJob| Enqueued::Inserted { id: job.id, run_at: job.run_at.resolve(now) };
            return Ok(jobs.iter().map(inserted).map(Some).collect());
        }
        for job in &mut jobs {
            match (self.bug, &mut job.run_at) {
                (Some(Bug::Early), When::In(delay)) => {
                    *delay = delay.saturating_sub(Duration::from_millis(50));
                }
                (Some(Bug::UniqueIgnored), _) => job.unique = None,
                (Some(Bug::ExpiryIgnored), _) => job.expires_at = None,
                (Some(Bug::AttemptsWithoutEnd), _) => job.options.max_attempts = Some(ATTEMPTS),
                (Some(Bug::TimeoutIgnored), _) => job.options.timeout = Some(TIMEOUT),
                (Some(Bug::ConcurrencyIgnored), _) => job.concurrency = None,
                _ => {}
            }
        }
        if self.is(Bug::EnqueuedTwice) && self.is_one_in_ten() {
            for at in 0..jobs.len() {
                let mut bytes = *jobs[at].id.as_bytes();
                bytes[15] ^= 1;
                jobs.push(NewJob { id: JobId::from_bytes(bytes)?, ..jobs[at].clone() });
            }
        }
        let answers = store.enqueue(call, &jobs).await?;
        Ok(answers.into_iter().take(asked.len()).map(Some).collect())
    }

    async fn reserve(&self, store: &dyn Store, request: &Reserve) -> Result<Batch> {
        if self.bug.is_none() {
            return store.reserve(request).await;
        }
        let altered = self.altered(request);
        Ok(self.told(store.reserve(&altered).await?))
    }

    /// Returns a reserve as it arrives after it was given up.
    pub(crate) fn late(&self, request: &Reserve) -> Reserve {
        let mut request = request.clone();
        if self.is(Bug::LateReserveIsNew) {
            request.call.instance = !request.call.instance;
        }
        request
    }

    fn altered(&self, request: &Reserve) -> Reserve {
        let mut request = request.clone();
        match self.bug {
            Some(Bug::ReserveNotRepeated) => {
                request.call.number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            }
            Some(Bug::PoisonNeverDies) => request.company = true,
            Some(Bug::LeaseHalved) => {
                request.lease = request.lease.map(|lease| (lease / 2).max(Duration::from_secs(1)));
            }
            _ => {}
        }
        request
    }

    /// Notes what was reserved, and answers.
    fn told(&self, mut batch: Batch) -> Batch {
        if self.is(Bug::BatchForgotten) && !batch.jobs.is_empty() && self.is_one_in_ten() {
            batch.jobs.clear();
        }
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        for reserved in &mut batch.jobs {
            fences.insert(reserved.lease.job, reserved.lease.fence);
            if self.is(Bug::LeaseHalved) {
                reserved.until = reserved.until.after(reserved.lasts);
                reserved.lasts *= 2;
            }
        }
        batch
    }

    async fn extend(&self, store: &dyn Store, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
        if self.is(Bug::HeartbeatForgotten) {
            return Ok(vec![LeaseStatus::Held; beats.len()]);
        }
        let mut answers = store.extend(beats).await?;
        if self.is(Bug::CancelNotReported) {
            for answer in answers.iter_mut().filter(|answer| **answer == LeaseStatus::CancelRequested) {
                *answer = LeaseStatus::Held;
            }
        }
        Ok(answers)
    }

    async fn settle(
        &self,
        store: &dyn Store,
        batch: &[Settlement],
        then: Option<&Reserve>,
    ) -> Result<(Vec<Settled>, Option<Batch>)> {
        if self.bug.is_none() {
            return store.settle(batch, then).await;
        }
        let then = then.map(|request| self.altered(request));
        let is_ack = |settlement: &Settlement| matches!(settlement.verdict, Verdict::Ack);
        if self.is(Bug::AckForgotten) && batch.iter().all(is_ack) && self.is_one_in_ten() {
            let (_, batch_then) = store.settle(&[], then.as_ref()).await?;
            let settled = vec![Settled::Settled(State::Done, None); batch.len()];
            return Ok((settled, batch_then.map(|batch| self.told(batch))));
        }
        let mut batch = batch.to_vec();
        for settlement in &mut batch {
            self.alter(settlement);
        }
        let (settled, reserved) = store.settle(&batch, then.as_ref()).await?;
        Ok((settled, reserved.map(|batch| self.told(batch))))
    }

    fn alter(&self, Settlement { lease, verdict }: &mut Settlement) {
        match (self.bug, &mut *verdict) {
            (Some(Bug::FenceIgnored), _) => {
                let fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
                let fence = fences.get(&lease.job).copied().unwrap_or(lease.fence);
                *lease = Lease { fence, ..*lease };
            }
            (Some(Bug::RetryAtOnce), Verdict::Retry { at, .. }) => *at = When::Now,
            (
                Some(Bug::FailureForgotten),
                Verdict::Retry { at: When::In(after), .. } | Verdict::RetryAfter { at: When::In(after), .. },
            ) => {
                *verdict = Verdict::Snooze { after: *after, reason: None };
            }
            (Some(Bug::SnoozeAtOnce), Verdict::Snooze { after, .. }) => *after = Duration::ZERO,
            (Some(Bug::DeadIsDone), Verdict::Dead { .. }) => *verdict = Verdict::Ack,
            (Some(Bug::ReleaseCounts), Verdict::Release) => {
                *verdict = Verdict::Retry { at: When::Now, error: "released".to_owned() };
            }
            _ => {}
        }
    }

    async fn act(&self, store: &dyn Store, targets: &[Target], action: &Action) -> Result<Vec<Acted>> {
        let is_forgotten = match action {
            Action::Cancel { .. } => self.is(Bug::CancelForgotten),
            Action::Reschedule(_) => self.is(Bug::RescheduleForgotten),
            _ => false,
        };
        if is_forgotten {
            let mut answers = Vec::new();
            for target in targets {
                let job = match &target.selector {
                    Selector::Id(id) => store.get(*id).await?,
                    Selector::Key(key) => store.holder(key).await?,
                };
                let is_cancel = matches!(action, Action::Cancel { .. });
                answers.push(match job.map(|job| (job.id, job.state)) {
                    Some((id, State::Waiting)) if is_cancel => Acted::Done(id, State::Cancelled),
                    Some((id, State::Waiting)) => Acted::Done(id, State::Waiting),
                    Some((id, State::Running)) if is_cancel => Acted::Requested(id),
                    Some((id, state)) => Acted::WrongState(id, state),
                    None => Acted::NotFound,
                });
            }
            return Ok(answers);
        }
        store.act(targets, action).await
    }
}
