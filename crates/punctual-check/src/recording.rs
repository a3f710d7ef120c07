//! A store that writes the history of its calls: an `invoke` line before each call that may change something, its answer
//! after it, and not a word of its own in between.

use std::sync::Arc;

use punctual::{
    Error, ErrorKind, NewJob, Result,
    limits::POISON_LIMIT,
    store::{
        Acted, Action, Audit, Batch, BoxFuture, Call, Durability, Enqueued, Lease, LeaseStatus, List,
        QueueOp, Reply, Selector, Settled, Settlement, Store, UniqueKey, Verdict,
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
}

impl punctual::store::sealed::Sealed for RecordingStore {}

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

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        let Some(op) = op(&call) else { return self.inner.call(call) };
        Box::pin(async move {
            let n = self.recorder.invoke(op);
            let reply = self.inner.call(call.clone()).await;
            match reply.as_ref().map(|reply| answer(&call, reply)) {
                Ok(Some(answer)) => self.recorder.answered(n, Ok(answer)),
                // A call that a part of the store did not answer is repeated; then all of it is answered.
                Ok(None) => {
                    let away = Error::new(ErrorKind::UnknownOutcome, "a part of the store cannot be reached");
                    self.recorder.answered(n, Err(&away));
                }
                Err(error) => self.recorder.answered(n, Err(error)),
            }
            reply
        })
    }
}

/// Returns what is recorded of a call; `None` for one that changes no job.
fn op(call: &Call<'_>) -> Option<Op> {
    Some(match call {
        Call::Enqueue { call, jobs, .. } => {
            Op::Enqueue { call: (*call).into(), jobs: jobs.iter().map(wanted).collect() }
        }
        Call::Reserve(want) => Op::Reserve { call: want.call.into() },
        Call::Extend(beats) => {
            let company = beats.iter().filter(|beat| beat.company);
            Op::Extend {
                leases: beats.iter().map(|beat| lease_id(&beat.lease)).collect(),
                company: company.map(|beat| lease_id(&beat.lease)).collect(),
            }
        }
        Call::Settle { batch, then } => Op::Settle {
            runs: batch.iter().map(ended).collect(),
            then: then.map(|reserve| reserve.call.into()),
        },
        Call::Take(_) => Op::Take,
        Call::Act { targets, action } => Op::Act {
            deed: deed(action),
            targets: targets
                .iter()
                .map(|target| match target.selector {
                    Selector::Id(id) => Some(id),
                    Selector::Key(_) => None,
                })
                .collect(),
        },
        Call::Queue { name, op: QueueOp::Purge(_) } => Op::Purge { queue: (*name).to_owned() },
        Call::Sweep(_) => Op::Sweep,
        _ => return None,
    })
}

/// Returns what is recorded of the answer to such a call; `None` if a part of it is missing.
fn answer(call: &Call<'_>, reply: &Reply) -> Option<Answer> {
    let has_company = match call {
        Call::Reserve(want) => want.company,
        Call::Settle { then, .. } => then.is_some_and(|want| want.company),
        _ => false,
    };
    Some(match (call, reply) {
        (Call::Enqueue { jobs, .. }, Reply::Enqueued(answers)) => {
            let answers = answers.iter().map(Option::as_ref).collect::<Option<Vec<_>>>()?;
            Answer::Enqueue(jobs.iter().zip(answers).map(|(job, answer)| accepted(job, answer)).collect())
        }
        (_, Reply::Batch(batch)) => Answer::Reserve(reservations(batch, has_company)),
        (_, Reply::Extended(answers)) => Answer::Extend(
            answers
                .iter()
                .map(|status| match status {
                    LeaseStatus::Held | LeaseStatus::CancelRequested => Some(true),
                    LeaseStatus::Lost => Some(false),
                    LeaseStatus::Away => None,
                })
                .collect(),
        ),
        (_, Reply::Settled((answers, batch))) => Answer::Settle {
            states: answers
                .iter()
                .map(|answer| match answer {
                    Settled::Settled(state, _) => Some(*state),
                    Settled::LeaseLost | Settled::Away { .. } => None,
                })
                .collect(),
            away: (0..answers.len()).filter(|at| matches!(answers[*at], Settled::Away { .. })).collect(),
            then: batch.as_ref().map(|batch| reservations(batch, has_company)),
        },
        (_, Reply::Taken(jobs)) => Answer::Take(jobs.iter().map(|job| job.id).collect()),
        (_, Reply::Acted(answers)) => Answer::Act(answers.iter().map(effect).collect()),
        (_, Reply::Queue(_)) => Answer::Purge,
        (_, Reply::Swept(swept)) => Answer::Sweep(swept.reclaimed),
        _ => unreachable!("invariant: a store answers {} with the reply to it", call.name()),
    })
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

fn accepted(job: &NewJob, answer: &Enqueued) -> Accepted {
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
