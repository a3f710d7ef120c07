//! A store that writes the history of its calls: an `invoke` line before each call that may change something, its answer
//! after it, and not a word of its own in between.

use std::{sync::Arc, time::Duration};

use punctual::{
    Error, ErrorKind, JobId, JobRecord, NewJob, Result, Timestamp,
    limits::POISON_LIMIT,
    store::{
        Acted, Action, Audit, Audited, Batch, BoxFuture, CallId, Check, Counts, DocOp, DocReply, Durability,
        Enqueued, Heartbeat, Histogram, Identity, Lease, LeaseStatus, List, Page, QueueOp, QueueReply,
        Reserve, Selector, Settled, Settlement, Store, Swept, Take, Target, ToolOp, ToolReply, UniqueKey,
        Upcoming, Verdict,
    },
};

use crate::{
    event::{
        Accepted, Answer, Deed, Due, Effect, Ended, Expect, Hex, Key, LeaseId, Op, Reservation, Reservations,
        Said, Wanted,
    },
    recorder::Recorder,
};

/// A job with this tag must end done.
pub const TAG_DONE: &str = "expect:done";
/// A job with this tag must end done, or dead of three kills in a row that were not its own fault.
pub const TAG_DONE_OR_CRASHES: &str = "expect:done-or-crashes";
/// A job with this tag must end dead, reason `crashes`.
pub const TAG_CRASHES: &str = "expect:crashes";

/// Any store, recorded.
#[derive(Clone, Debug)]
pub struct RecordingStore {
    inner: Arc<dyn Store>,
    recorder: Arc<Recorder>,
}

impl RecordingStore {
    /// Records the calls to `inner`.
    pub fn new(inner: Arc<dyn Store>, recorder: Arc<Recorder>) -> Self {
        Self { inner, recorder }
    }

    /// Reads everything that the store holds, and its own audit, into the history. Call it when all came to rest.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn dump(&self) -> Result<()> {
        let mut list = List { filter: punctual::job::Filter::all(), after: None, limit: 1_000 };
        loop {
            let page = self.inner.list(&list).await?;
            self.recorder.note(crate::event::What::Dump {
                now: page.now.as_ms(),
                jobs: page.jobs.iter().map(Into::into).collect(),
                last: page.next.is_none(),
            });
            match page.next {
                Some(next) => list.after = Some(next),
                None => break,
            }
        }
        let mut audit = Audit::default();
        let mut findings = Vec::new();
        loop {
            let slice = self.inner.audit(audit.clone()).await?;
            findings.extend(slice.findings.iter().map(|f| format!("{}: {}", f.what, f.detail)));
            match slice.next {
                Some(next) => audit.from = next,
                None => break,
            }
        }
        self.recorder.note(crate::event::What::Audit { findings });
        Ok(())
    }

    /// Writes the call, makes it, writes its answer.
    async fn recorded<T>(
        &self,
        op: Op,
        call: BoxFuture<'_, Result<T>>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Result<T> {
        let n = self.recorder.invoke(op);
        let result = call.await;
        self.recorder.answered(n, result.as_ref().map(answer));
        result
    }
}

impl punctual::store::sealed::Sealed for RecordingStore {}

#[deny(clippy::missing_trait_methods)]
impl Store for RecordingStore {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn shard(&self) -> u16 {
        self.inner.shard()
    }

    /// None: what a transaction of the application's own does is not recorded.
    fn as_any(&self) -> Option<&dyn std::any::Any> {
        None
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity>> {
        self.inner.identity()
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp>> {
        self.inner.now()
    }

    fn enqueue<'a>(&'a self, call: CallId, jobs: &'a [NewJob]) -> BoxFuture<'a, Result<Vec<Enqueued>>> {
        Box::pin(async move {
            let op = Op::Enqueue { call: call.into(), jobs: jobs.iter().map(wanted).collect() };
            self.recorded(op, self.inner.enqueue(call, jobs), |answers| {
                Answer::Enqueue(accepted(jobs, answers))
            })
            .await
        })
    }

    fn enqueue_each<'a>(
        &'a self,
        call: CallId,
        jobs: &'a [NewJob],
    ) -> BoxFuture<'a, Result<Vec<Option<Enqueued>>>> {
        Box::pin(async move {
            let n = self
                .recorder
                .invoke(Op::Enqueue { call: call.into(), jobs: jobs.iter().map(wanted).collect() });
            let result = self.inner.enqueue_each(call, jobs).await;
            let all = |answers: &Vec<Option<Enqueued>>| answers.iter().cloned().collect::<Option<Vec<_>>>();
            match result.as_ref().map(all) {
                Ok(Some(answers)) => {
                    self.recorder.answered(n, Ok(Answer::Enqueue(accepted(jobs, &answers))));
                }
                // A call that a part of the store did not answer is repeated; then all of it is answered.
                Ok(None) => {
                    let away = Error::new(ErrorKind::UnknownOutcome, "a part of the store cannot be reached");
                    self.recorder.answered(n, Err(&away));
                }
                Err(error) => self.recorder.answered(n, Err(error)),
            }
            result
        })
    }

    fn reserve<'a>(&'a self, want: &'a Reserve) -> BoxFuture<'a, Result<Batch>> {
        Box::pin(async move {
            let op = Op::Reserve { call: want.call.into() };
            self.recorded(op, self.inner.reserve(want), |batch| {
                Answer::Reserve(reservations(batch, want.company))
            })
            .await
        })
    }

    fn extend<'a>(&'a self, beats: &'a [Heartbeat]) -> BoxFuture<'a, Result<Vec<LeaseStatus>>> {
        Box::pin(async move {
            let company = beats.iter().filter(|beat| beat.company);
            let op = Op::Extend {
                leases: beats.iter().map(|beat| lease_id(&beat.lease)).collect(),
                company: company.map(|beat| lease_id(&beat.lease)).collect(),
            };
            self.recorded(op, self.inner.extend(beats), |answers| {
                let is_held = |status: &LeaseStatus| match status {
                    LeaseStatus::Held | LeaseStatus::CancelRequested => Some(true),
                    LeaseStatus::Lost => Some(false),
                    LeaseStatus::Away => None,
                };
                Answer::Extend(answers.iter().map(is_held).collect())
            })
            .await
        })
    }

    fn settle<'a>(
        &'a self,
        batch: &'a [Settlement],
        then: Option<&'a Reserve>,
    ) -> BoxFuture<'a, Result<(Vec<Settled>, Option<Batch>)>> {
        Box::pin(async move {
            let op = Op::Settle {
                runs: batch.iter().map(ended).collect(),
                then: then.map(|reserve| reserve.call.into()),
            };
            self.recorded(op, self.inner.settle(batch, then), |(answers, batch)| Answer::Settle {
                states: answers
                    .iter()
                    .map(|answer| match answer {
                        Settled::Settled(state, _) => Some(*state),
                        Settled::LeaseLost | Settled::Away { .. } => None,
                    })
                    .collect(),
                away: (0..answers.len()).filter(|at| matches!(answers[*at], Settled::Away { .. })).collect(),
                then: batch.as_ref().map(|batch| reservations(batch, then.is_some_and(|want| want.company))),
            })
            .await
        })
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<JobRecord>>> {
        Box::pin(async move {
            self.recorded(Op::Take, self.inner.take(take), |jobs| {
                Answer::Take(jobs.iter().map(|job| job.id).collect())
            })
            .await
        })
    }

    fn wait<'a>(&'a self, queues: &'a [String], at_most: Duration) -> BoxFuture<'a, Result<()>> {
        self.inner.wait(queues, at_most)
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobRecord>>> {
        self.inner.get(id)
    }

    fn holder<'a>(&'a self, key: &'a UniqueKey) -> BoxFuture<'a, Result<Option<JobRecord>>> {
        self.inner.holder(key)
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Page>> {
        self.inner.list(list)
    }

    fn count<'a>(&'a self, queue: Option<&'a str>) -> BoxFuture<'a, Result<Counts>> {
        self.inner.count(queue)
    }

    fn upcoming<'a>(&'a self, upcoming: &'a Upcoming) -> BoxFuture<'a, Result<Histogram>> {
        self.inner.upcoming(upcoming)
    }

    fn act<'a>(&'a self, targets: &'a [Target], action: &'a Action) -> BoxFuture<'a, Result<Vec<Acted>>> {
        Box::pin(async move {
            let op = Op::Act {
                deed: deed(action),
                targets: targets
                    .iter()
                    .map(|target| match target.selector {
                        Selector::Id(id) => Some(id),
                        Selector::Key(_) => None,
                    })
                    .collect(),
            };
            self.recorded(op, self.inner.act(targets, action), |answers| {
                Answer::Act(answers.iter().map(effect).collect())
            })
            .await
        })
    }

    fn queue<'a>(&'a self, name: &'a str, op: &'a QueueOp) -> BoxFuture<'a, Result<QueueReply>> {
        match op {
            QueueOp::Purge(_) => Box::pin(async move {
                let purge = Op::Purge { queue: name.to_owned() };
                self.recorded(purge, self.inner.queue(name, op), |_| Answer::Purge).await
            }),
            QueueOp::Show
            | QueueOp::Pause { .. }
            | QueueOp::Resume
            | QueueOp::Set(_)
            | QueueOp::Replace(_)
            | QueueOp::Open { .. } => self.inner.queue(name, op),
        }
    }

    fn queues<'a>(&'a self, after: Option<&'a str>) -> BoxFuture<'a, Result<Vec<String>>> {
        self.inner.queues(after)
    }

    fn doc<'a>(&'a self, op: &'a DocOp) -> BoxFuture<'a, Result<DocReply>> {
        self.inner.doc(op)
    }

    fn tool<'a>(&'a self, op: &'a ToolOp) -> BoxFuture<'a, Result<ToolReply>> {
        self.inner.tool(op)
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept>> {
        Box::pin(async move {
            self.recorded(Op::Sweep, self.inner.sweep(limit), |swept| Answer::Sweep(swept.reclaimed)).await
        })
    }

    fn audit(&self, audit: Audit) -> BoxFuture<'_, Result<Audited>> {
        self.inner.audit(audit)
    }

    fn doctor(&self) -> BoxFuture<'_, Result<Vec<Check>>> {
        self.inner.doctor()
    }
}

fn wanted(job: &NewJob) -> Wanted {
    Wanted {
        id: job.id,
        queue: job.queue.clone(),
        sum: Hex::fingerprint(&job.payload.bytes),
        due: job.run_at.into(),
        unique: UniqueKey::of_new(job).zip(job.unique.as_ref()).map(|(key, unique)| Key::new(&key, unique)),
        group: job.group.clone(),
        concurrency: job.concurrency.clone(),
        expires: job.expires_at.map(Due::from),
        expect: job.tags.iter().find_map(|tag| match tag.as_str() {
            TAG_DONE => Some(Expect::Done),
            TAG_DONE_OR_CRASHES => Some(Expect::DoneOrCrashes),
            TAG_CRASHES => Some(Expect::Crashes),
            _ => None,
        }),
        is_tick: job.headers.contains_key("scheduled_for"),
    }
}

fn accepted(jobs: &[NewJob], answers: &[Enqueued]) -> Vec<Accepted> {
    jobs.iter().zip(answers).map(|(job, answer)| accepted_one(job, answer)).collect()
}

fn accepted_one(job: &NewJob, answer: &Enqueued) -> Accepted {
    match answer {
        Enqueued::Inserted { id, run_at, .. } => {
            Accepted::Inserted { run_at: run_at.as_ms(), id: (*id != job.id).then_some(*id) }
        }
        Enqueued::Duplicate(existing) if existing.state.is_some() => Accepted::Duplicate(existing.id),
        Enqueued::Duplicate(existing) => Accepted::Gone(existing.id),
        Enqueued::Replaced { id, .. } => Accepted::Replaced(*id),
        Enqueued::Rescheduled { id, .. } => Accepted::Rescheduled(*id),
        // Neither stored the job. Ids of drills meet none of another queue.
        Enqueued::Full | Enqueued::Conflict { .. } => Accepted::Full,
    }
}

fn lease_id(lease: &Lease) -> LeaseId {
    LeaseId(lease.job, lease.fence)
}

fn reservations(batch: &Batch, company: bool) -> Reservations {
    Reservations {
        now: batch.now.as_ms(),
        jobs: batch
            .jobs
            .iter()
            .map(|reserved| Reservation {
                id: reserved.lease.job,
                fence: reserved.lease.fence,
                attempt: reserved.job.attempt,
                expired_leases: reserved.job.expired_leases,
                company: company && POISON_LIMIT <= reserved.job.expired_leases + 1,
                max_attempts: reserved.job.max_attempts,
                run_at: reserved.job.run_at.as_ms(),
                created_at: reserved.job.created_at.as_ms(),
                until: reserved.until.as_ms(),
                lasts: u64::try_from(reserved.lasts.as_millis()).unwrap_or(u64::MAX),
                sum: Hex::fingerprint(&reserved.job.payload.bytes),
            })
            .collect(),
        reclaimed: batch.reclaimed.iter().map(|back| (lease_id(&back.lease), back.state)).collect(),
    }
}

fn ended(settlement: &Settlement) -> Ended {
    Ended {
        id: settlement.lease.job,
        fence: settlement.lease.fence,
        verdict: match &settlement.verdict {
            Verdict::Ack | Verdict::AckWith { .. } => Said::Ack,
            Verdict::Retry { at, .. } | Verdict::RetryAfter { at, .. } => Said::Retry((*at).into()),
            Verdict::Snooze { after, reason } => {
                let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                if reason.is_none() { Said::Snooze(ms) } else { Said::Hold(ms) }
            }
            Verdict::Release => Said::Release,
            Verdict::Cancel { .. } => Said::Cancel,
            Verdict::Dead { .. } => Said::Dead,
        },
    }
}

fn deed(action: &Action) -> Deed {
    match action {
        Action::Cancel { .. } => Deed::Cancel,
        Action::Reschedule(when) => Deed::Reschedule(Due::from(*when)),
        Action::RescheduleBy(_) | Action::RunNow => Deed::Move,
        Action::Reprioritise(_) => Deed::Reprioritise,
        Action::EditPayload(payload) => Deed::Edit(Hex::fingerprint(&payload.bytes)),
        Action::Retry => Deed::Retry,
        Action::Delete => Deed::Delete,
    }
}

fn effect(acted: &Acted) -> Effect {
    match acted {
        Acted::Done(id, _) => Effect::Done(*id),
        Acted::Requested(id) => Effect::Requested(*id),
        Acted::WrongState(id, state) => Effect::Refused(*id, *state),
        Acted::NotFound | Acted::UniqueConflict(_) | Acted::LimiterConflict(_) => Effect::Missed,
    }
}
