//! What a call takes to the threads that write and read: checked, owned, and with its cost. `verbs/` does the rest there.

use std::sync::{Arc, Mutex};

use super::{
    SqliteStore,
    engine::{schema, tx::Tx, writer::Cost},
    held, verbs,
};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::{JobRecord, NewJob},
        notes::Notes,
        time::Timestamp,
    },
    store::{
        Acted, Action, Batch, CallId, DocOp, DocReply, Durability, Enqueued, Heartbeat, Histogram, Identity,
        LeaseStatus, List, Page, QueueOp, QueueReply, Reserve, Settled, Settlement, Swept, Take, Target,
        Upcoming, check_act, check_batch, check_extend, check_limit, check_queue_op, check_settle,
        check_upcoming,
    },
};

pub(super) async fn identity(store: &SqliteStore) -> Result<Identity> {
    if let Some(identity) = store.identity.get() {
        return Ok(*identity);
    }
    let identity = match store.read_identity().await? {
        Some(identity) => identity,
        // The disk was full when the file was opened.
        None if store.writer.is_some() => {
            store.write(1, 0, true, |tx| Ok(schema::make_identity(tx.conn)?)).await?
        }
        None => {
            let path = store.database.path().display();
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{path} has no identity yet, and nothing was written"),
            )
            .with_hint("open it once without mode=ro, as a user who may write it"));
        }
    };
    Ok(*store.identity.get_or_init(|| identity))
}

pub(super) fn now(store: &SqliteStore) -> Result<Timestamp> {
    // Who asks for the time may only want to know whether the store is there.
    store.database.check_in_place()?;
    Ok(store.options.clock.now())
}

pub(super) async fn enqueue(store: &SqliteStore, call: CallId, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    check_batch("jobs", jobs.len())?;
    let bytes = jobs.iter().map(|job| job.payload.bytes.len()).sum();
    let (jobs, max) = (jobs.to_vec(), store.options.payload_bytes_max);
    let Some(writer) = &store.writer else { return Err(store.database.only_looked_at()) };
    let cost = Cost { items: jobs.len(), bytes, synced: true, grows: true };
    writer.write(cost, move |tx| verbs::enqueue::enqueue(tx, call, &jobs, max)).await
}

pub(super) async fn reserve(store: &SqliteStore, request: &Reserve) -> Result<Batch> {
    request.check()?;
    let request = request.clone();
    let queues = request.queues.clone();
    let mut batch = store.write(request.n, 0, false, move |tx| verbs::reserve::reserve(tx, &request)).await?;
    store.leave_to_others(&mut batch, &queues);
    Ok(batch)
}

pub(super) async fn extend(store: &SqliteStore, beats: &[Heartbeat]) -> Result<Vec<LeaseStatus>> {
    check_extend(beats)?;
    let beats = beats.to_vec();
    let bytes = beats.iter().filter_map(|beat| beat.notes.as_ref()).map(Notes::bytes).sum();
    let cost = Cost { items: beats.len(), bytes, synced: false, grows: false };
    let Some(writer) = &store.heartbeats else { return Err(store.database.only_looked_at()) };
    writer.write(cost, move |tx| verbs::extend::extend(tx, &beats)).await
}

pub(super) async fn settle(
    store: &SqliteStore,
    batch: &[Settlement],
    then: Option<&Reserve>,
) -> Result<(Vec<Settled>, Option<Batch>)> {
    check_settle(batch)?;
    then.map_or(Ok(()), Reserve::check)?;
    let (batch, then, items) = (batch.to_vec(), then.cloned(), batch.len());
    let bytes = batch.iter().filter_map(Settlement::result).map(|result| result.bytes.len()).sum();
    let queues = then.as_ref().map(|request| request.queues.clone()).unwrap_or_default();
    let (reserved, does_reserve) = (Arc::<Mutex<Vec<Heartbeat>>>::default(), then.is_some());
    let leases = Arc::clone(&reserved);
    let work = move |tx: &mut Tx<'_>| {
        let answer = verbs::settle::settle(tx, &batch, then.as_ref())?;
        let jobs = answer.1.iter().flat_map(|batch| &batch.jobs);
        *held(&leases) = jobs.map(|reserved| reserved.lease.into()).collect();
        Ok(answer)
    };
    let answer = store.write(items, bytes, true, work);
    let mut answer = if does_reserve && store.options.durability == Durability::Full {
        tokio::select! {
            biased;
            answer = answer => answer?,
            never = store.keep(&reserved) => match never {},
        }
    } else {
        answer.await?
    };
    if let Some(batch) = &mut answer.1 {
        store.leave_to_others(batch, &queues);
    }
    Ok(answer)
}

pub(super) async fn take(store: &SqliteStore, take: &Take) -> Result<Vec<JobRecord>> {
    take.check()?;
    let take = take.clone();
    store.write(take.n, 0, true, move |tx| verbs::take::take(tx, &take)).await
}

pub(super) async fn list(store: &SqliteStore, list: &List) -> Result<Page> {
    check_limit("list", list.limit)?;
    let list = list.clone();
    store.reader.search(move |tx| verbs::read::list(tx, &list)).await
}

pub(super) async fn upcoming(store: &SqliteStore, upcoming: &Upcoming) -> Result<Histogram> {
    check_upcoming(upcoming)?;
    let upcoming = upcoming.clone();
    store.reader.search(move |tx| verbs::read::upcoming(tx, &upcoming)).await
}

pub(super) async fn act(store: &SqliteStore, targets: &[Target], action: &Action) -> Result<Vec<Acted>> {
    check_act(targets, action, store.options.payload_bytes_max)?;
    let bytes = match action {
        Action::EditPayload(payload) => payload.bytes.len() * targets.len(),
        _ => 0,
    };
    let (targets, action) = (targets.to_vec(), action.clone());
    store.write(targets.len(), bytes, true, move |tx| verbs::act::act(tx, &targets, &action)).await
}

pub(super) async fn queue(store: &SqliteStore, name: &str, op: &QueueOp) -> Result<QueueReply> {
    check_queue_op(name, op)?;
    let (name, op) = (name.to_owned(), op.clone());
    let items = match op {
        QueueOp::Show => return store.reader.read(move |tx| verbs::queue::show(tx, &name)).await,
        QueueOp::Purge(limit) => limit,
        QueueOp::Pause { .. }
        | QueueOp::Resume
        | QueueOp::Set(_)
        | QueueOp::Replace(_)
        | QueueOp::Open { .. } => 1,
    };
    store.write(items, 0, true, move |tx| verbs::queue::change(tx, &name, &op)).await
}

pub(super) async fn doc(store: &SqliteStore, op: &DocOp) -> Result<DocReply> {
    op.check()?;
    let op = op.clone();
    match &op {
        DocOp::Get { .. } | DocOp::List { .. } => store.reader.read(move |tx| verbs::doc::doc(tx, &op)).await,
        DocOp::Remove { .. } => store.write(1, 0, true, move |tx| verbs::doc::doc(tx, &op)).await,
        DocOp::Put { value, .. } => {
            store.write(1, value.len(), true, move |tx| verbs::doc::doc(tx, &op)).await
        }
    }
}

pub(super) async fn sweep(store: &SqliteStore, limit: usize) -> Result<Swept> {
    check_limit("sweep", limit)?;
    let after = store.sweep_from().take();
    let work = move |tx: &mut Tx<'_>| verbs::sweep::sweep(tx, limit, after.as_deref());
    let (swept, next) = store.write(limit, 0, false, work).await?;
    *store.sweep_from() = next;
    Ok(swept)
}
