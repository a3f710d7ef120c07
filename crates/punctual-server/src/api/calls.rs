//! The calls: each is one verb of the store, with a body of `punctual::store::wire`.

use punctual::{
    ErrorKind, JobRecord, When,
    limits::BATCH_BYTES_MAX,
    store::{
        Acted, Action, Audit, Batch, DocOp, DocReply, Enqueued, Heartbeat, List, QueueOp, QueueReply,
        Reserve, Selector, Settlement, Target, ToolOp, Upcoming,
        wire::{
            self, ActBody, ActReply, ActionBody, BatchBody, CountBody, DoctorReply, EnqueueBody,
            EnqueueReply, ExtendBody, ExtendReply, GetBody, HolderBody, IdentityReply, JobReply, JobView,
            JobsReply, ListBody, Nothing, NowReply, PageBody, QueueCallBody, QueuesBody, QueuesReply,
            ReserveBody, SettleBody, SettleReply, SettlementBody, StoreReply, SweepBody, TakeBody, WAIT_MAX,
            WaitBody, WaitReply,
        },
    },
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Api, Problem, Scope, lanes::Lane, openapi, registrations};
use crate::{
    gate::Right,
    operations::{Outcomes, reason_of},
    trace::pass_on,
};

type Answer = Result<Vec<u8>, Problem>;

/// Answers a call; `None` if there is no such call.
///
/// Dropping the future ends a wait. Any other call may or may not have had its effect, as in the library.
pub(super) async fn answer(api: &Api, scope: &Scope, call: &str, body: &[u8]) -> Option<Answer> {
    // So that no call can be made that the document does not have.
    if !openapi::has(call) {
        return None;
    }
    Some(match call {
        "store" => store(api, body),
        "identity" => identity(api, body).await,
        "now" => now(api, body).await,
        "enqueue" => enqueue(api, scope, body).await,
        "reserve" => reserve(api, scope, body).await,
        "extend" => extend(api, scope, body).await,
        "settle" => settle(api, scope, body).await,
        "take" => take(api, scope, body).await,
        "wait" => wait(api, scope, body).await,
        "get" => get(api, scope, body).await,
        "holder" => holder(api, scope, body).await,
        "list" => list(api, scope, body).await,
        "count" => count(api, scope, body).await,
        "upcoming" => upcoming(api, body).await,
        "act" => act(api, scope, body).await,
        "queue" => queue(api, scope, body).await,
        "queues" => queues(api, body).await,
        "doc" => doc(api, scope, body).await,
        "tool" => tool(api, scope, body).await,
        "sweep" => sweep(api, body).await,
        "audit" => audit(api, scope, body).await,
        "doctor" => doctor(api, body).await,
        _ => return None,
    })
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    // As in curl without a body.
    let body: &[u8] = if body.is_empty() { b"{}" } else { body };
    // serde would accept a list, too, and read it by position.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(
            punctual::Error::invalid("the body does not fit the call: it is a list, not an object").into()
        );
    }
    serde_json::from_slice(body).map_err(|e| {
        let what = if e.is_data() { "the body does not fit the call" } else { "the body is not JSON" };
        let place = format!("line {} column {}", e.line(), e.column());
        punctual::Error::invalid(format!("{what}: {}, at {place}", wire::words(&e))).into()
    })
}

pub(super) fn write(reply: &impl Serialize) -> Answer {
    let mut text = serde_json::to_vec(reply).map_err(|e| {
        punctual::Error::new(ErrorKind::Corrupt, "could not encode the answer").with_source(e)
    })?;
    // A large answer can wait long for its client, and would take up to twice its size.
    text.shrink_to_fit();
    Ok(text)
}

fn store(api: &Api, body: &[u8]) -> Answer {
    let Nothing {} = read(body)?;
    let store = api.client.store();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    write(&StoreReply { durability: store.durability(), shard: store.shard(), version })
}

async fn identity(api: &Api, body: &[u8]) -> Answer {
    let Nothing {} = read(body)?;
    write(&IdentityReply { identity: api.client.store().identity().await? })
}

async fn now(api: &Api, body: &[u8]) -> Answer {
    let Nothing {} = read(body)?;
    write(&NowReply { now_ms: api.client.store().now().await? })
}

/// Enqueues through the client, which merges concurrent calls, unless the caller numbers its calls.
async fn enqueue(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: EnqueueBody<&RawValue> = read(body)?;
    let (client, store, number) = (&api.client, api.client.store(), body.number()?);
    let jobs = body.jobs.iter().enumerate().map(|(i, job)| {
        let id = client.make_id();
        let job = wire::unchecked(job.get(), || id).and_then(|job| {
            if number.is_some() && job.id == id {
                // A repetition would make another one, and answer with an id that no job has.
                return Err(punctual::Error::invalid("a call with a number needs the id of each job")
                    .with_hint("give each job an idempotency_key, or an id of your own"));
            }
            Ok(job)
        });
        job.map_err(|e| {
            let error = punctual::Error::new(e.kind(), format!("jobs[{i}]: {e}"));
            e.hint().map(str::to_owned).into_iter().fold(error, punctual::Error::with_hint)
        })
    });
    let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
    jobs.iter().try_for_each(|job| scope.new_job(job))?;
    let bytes = jobs.iter().map(|job| job.payload.bytes.len()).sum::<usize>();
    if number.is_none() && 1 < jobs.len() && BATCH_BYTES_MAX < bytes {
        // The client would make several calls of it, and one could be refused after another was stored.
        let what = format!("{bytes} bytes of payloads are over the limit of a call");
        let most = format!("send at most {BATCH_BYTES_MAX} bytes of payloads at once");
        return Err(punctual::Error::new(ErrorKind::TooLarge, what).with_hint(most).into());
    }
    let results: Vec<Option<Enqueued>> = match number {
        None => client.push(jobs).await?.into_iter().map(Some).collect(),
        Some(call) if body.partial => store.enqueue_each(call, &pass_on(jobs)).await?,
        Some(call) => store.enqueue(call, &pass_on(jobs)).await?.into_iter().map(Some).collect(),
    };
    write(&EnqueueReply { results, shard: store.shard() })
}

async fn reserve(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: ReserveBody = read(body)?;
    let (want, _lane) = numbered(api, scope, body).await?;
    write(&BatchBody::from(&shown(scope, api.client.store().reserve(&want).await?)))
}

/// Numbers a reserve whose caller did not. The lane must be held until the call has ended.
async fn numbered<'a>(
    api: &'a Api,
    scope: &Scope,
    body: ReserveBody,
) -> Result<(Reserve, Option<Lane<'a>>), Problem> {
    let (mut want, lane) = if let Some(call) = body.number()? {
        (body.reserve(call), None)
    } else {
        let mut lane = api.lanes.free().await;
        lane.number += 1;
        (body.reserve(*lane), Some(lane))
    };
    scope.narrow(&mut want);
    scope.in_queues(Right::Operate, want.queues.iter().map(|request| request.queue.as_str()))?;
    Ok((want, lane))
}

/// Hides the jobs of other queues, and of the others what the caller must not see.
fn shown(scope: &Scope, mut batch: Batch) -> Batch {
    // The repetition of a call returns its jobs, whatever queues it names now.
    batch.jobs.retain(|reserved| scope.in_queues(Right::Operate, [reserved.job.queue.as_str()]).is_ok());
    if scope.hides_payloads() {
        for reserved in &mut batch.jobs {
            reserved.job = scope.shown(reserved.job.clone());
        }
    }
    batch
}

async fn extend(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: ExtendBody<Heartbeat> = read(body)?;
    scope.of_leases(api, body.leases.iter().map(|beat| beat.lease).collect()).await?;
    write(&ExtendReply { results: api.client.store().extend(&body.leases).await? })
}

/// Ends leases. For a retry without a time, it reads the job, whose backoff says when.
async fn settle(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: SettleBody<SettlementBody<'_>> = read(body)?;
    let store = api.client.store();
    let mut batch: Vec<Settlement> = Vec::with_capacity(body.settle.len());
    for settlement in body.settle {
        let pause = if settlement.follows_backoff() {
            let job = store.get(settlement.lease()?.job).await?;
            job.map(|job| When::In(job.backoff.delay(job.attempt, fastrand::f64())))
        } else {
            None
        };
        batch.push(settlement.settlement(pause)?);
    }
    scope.of_leases(api, batch.iter().map(|settlement| settlement.lease).collect()).await?;
    let then = match body.then {
        Some(then) => Some(numbered(api, scope, then).await?),
        None => None,
    };
    let (results, reserved) = store.settle(&batch, then.as_ref().map(|(want, _)| want)).await?;
    write(&SettleReply {
        results: results.into_iter().map(Into::into).collect(),
        batch: reserved.map(|batch| shown(scope, batch)).as_ref().map(BatchBody::from),
    })
}

async fn take(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: TakeBody = read(body)?;
    scope.in_queues(Right::Operate, [body.queue.as_str()])?;
    let jobs = api.client.store().take(&body.into()).await?;
    let jobs: Vec<JobRecord> = jobs.into_iter().map(|job| scope.shown(job)).collect();
    // They are done, whatever the time is.
    write(&JobsReply { jobs: jobs.iter().map(|job| JobView::exact(job, job.run_at)).collect() })
}

async fn wait(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: WaitBody = read(body)?;
    // Other names are of jobs, workers and locks, and say nothing but when to look.
    let queues = body.queues.iter().map(String::as_str).filter(|name| !name.starts_with('$'));
    scope.in_queues(Right::Read, queues)?;
    tokio::select! {
        ended = api.client.store().wait(&body.queues, body.at_most.min(WAIT_MAX)) => ended?,
        () = api.stop.cancelled() => {}
    }
    write(&WaitReply {})
}

async fn get(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: GetBody = read(body)?;
    job(api, scope.job(api.client.get(body.id).await?)).await
}

async fn holder(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: HolderBody = read(body)?;
    scope.in_queues(Right::Read, [body.key.queue.as_str()])?;
    job(api, scope.job(api.client.holder(&body.key).await?)).await
}

/// Writes a job with its status at the store's time.
async fn job(api: &Api, job: Option<JobRecord>) -> Answer {
    let now = if job.is_some() { api.client.store().now().await? } else { punctual::Timestamp::default() };
    write(&JobReply { job: job.as_ref().map(|job| JobView::exact(job, now)) })
}

async fn list(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    page(api, scope, &read::<ListBody>(body)?.into()).await
}

/// Writes a page of jobs.
pub(super) async fn page(api: &Api, scope: &Scope, list: &List) -> Answer {
    scope.filter(&list.filter)?;
    let page = api.client.list(list).await?;
    let jobs: Vec<JobRecord> = page.jobs.into_iter().map(|job| scope.shown(job)).collect();
    write(&PageBody {
        now_ms: page.now,
        jobs: jobs.iter().map(|job| JobView::exact(job, page.now)).collect(),
        next: page.next,
        searched: page.searched,
        total: page.total,
    })
}

async fn count(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: CountBody = read(body)?;
    match body.queue.as_deref() {
        Some(queue) => scope.in_queues(Right::Read, [queue])?,
        None => scope.in_store(Right::Read)?,
    }
    write(&api.client.store().count(body.queue.as_deref()).await?)
}

async fn upcoming(api: &Api, body: &[u8]) -> Answer {
    histogram(api, &read(body)?).await
}

/// Writes the number of waiting jobs by due time.
pub(super) async fn histogram(api: &Api, upcoming: &Upcoming) -> Answer {
    write(&api.client.store().upcoming(upcoming).await?)
}

async fn act(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: ActBody<ActionBody<'_>> = read(body)?;
    scope.in_store(Right::Operate)?;
    let action = body.action.action()?;
    let acted = api.client.store().act(&body.targets, &action).await;
    note_act(api, scope, &body.targets, &action, &acted);
    let acted = acted?;
    write(&ActReply { results: acted.into_iter().map(Into::into).collect() })
}

/// Says in the activity log what became of jobs.
pub(super) fn note_act(
    api: &Api,
    scope: &Scope,
    targets: &[Target],
    action: &Action,
    acted: &Result<Vec<Acted>, punctual::Error>,
) {
    let jobs = targets.iter().filter_map(|target| match &target.selector {
        Selector::Id(id) => Some(*id),
        Selector::Key(_) => None,
    });
    let outcomes = acted.as_ref().map(|acted| Outcomes::of_all(acted)).unwrap_or_default();
    let entry = scope.entry(&action.name().replace('-', "_")).jobs(jobs, &outcomes).reason(reason_of(action));
    api.activity.note(entry, acted);
}

/// Takes a step on a queue. Says it in the activity log, if an operator took it.
pub(super) async fn step(api: &Api, scope: &Scope, name: &str, op: &QueueOp) -> Result<QueueReply, Problem> {
    scope.queue(name, op)?;
    let made = api.client.store().queue(name, op).await;
    let action = match op {
        // A run that asks for a pause of its queue takes such a step, too.
        QueueOp::Show | QueueOp::Open { .. } => return Ok(made?),
        QueueOp::Pause { .. } => "pause",
        QueueOp::Resume => "resume",
        QueueOp::Set(_) | QueueOp::Replace(_) => "settings",
        QueueOp::Purge(_) => "purge",
    };
    if matches!(made, Ok(QueueReply::Conflict(_) | QueueReply::Unknown)) {
        return Ok(made?);
    }
    let mut entry = scope.entry(action).queue(name);
    if let QueueOp::Pause { reason, .. } = op {
        entry = entry.reason(reason);
    }
    if let Ok(QueueReply::Purged { deleted, .. }) = &made {
        entry.done = *deleted;
    }
    api.activity.note(entry, &made);
    Ok(made?)
}

async fn queue(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let body: QueueCallBody = read(body)?;
    write(&step(api, scope, &body.name, &body.op).await?)
}

async fn queues(api: &Api, body: &[u8]) -> Answer {
    names(api, &read(body)?).await
}

/// Writes names of queues.
pub(super) async fn names(api: &Api, body: &QueuesBody) -> Answer {
    write(&QueuesReply { names: api.client.store().queues(body.after.as_deref()).await? })
}

async fn doc(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let op: DocOp = read(body)?;
    if registrations::is_one(&op) {
        return write(&registrations::step(api, scope, &op).await?);
    }
    scope.doc(&op)?;
    let made = api.client.store().doc(&op).await.map(|reply| scope.schedule(reply));
    let changed = match &op {
        DocOp::Get { .. } | DocOp::List { .. } => None,
        DocOp::Put { key, .. } => Some(("put", key)),
        DocOp::Remove { key, .. } => Some(("remove", key)),
    };
    // Other documents are of programs, and as little a matter of operators as jobs that are enqueued.
    let is_known = |key: &str| key.starts_with("schedule/") || key.starts_with("topic/");
    let is_noted = |key: &str| is_known(key) && !matches!(made, Ok(DocReply::Conflict(_)));
    if let Some((action, key)) = changed.filter(|(_, key)| is_noted(key)) {
        api.activity.note(scope.entry(action).document(key), &made);
    }
    write(&made?)
}

async fn tool(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let op: ToolOp = read(body)?;
    scope.tool(&op)?;
    write(&api.client.store().tool(&op).await?)
}

async fn sweep(api: &Api, body: &[u8]) -> Answer {
    let body: SweepBody = read(body)?;
    write(&api.client.store().sweep(body.limit).await?)
}

async fn audit(api: &Api, scope: &Scope, body: &[u8]) -> Answer {
    let audit: Audit = read(body)?;
    let is_repair = audit.repair;
    scope.in_store(if is_repair { Right::Admin } else { Right::Read })?;
    let made = api.client.store().audit(audit).await;
    if is_repair {
        api.activity.note(scope.entry("repair"), &made);
    }
    write(&made?)
}

async fn doctor(api: &Api, body: &[u8]) -> Answer {
    let Nothing {} = read(body)?;
    write(&DoctorReply { checks: api.client.store().doctor().await? })
}
