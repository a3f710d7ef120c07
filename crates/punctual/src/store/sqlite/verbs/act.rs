//! `act`: operator's actions on single jobs.

use crate::{
    core::{
        job::{Scope, State, cut_error},
        notes::Notes,
        time::{Timestamp, When},
    },
    store::{
        Acted, Action, Selector, Target, UniqueKey, WORKER_NOTIFICATION,
        sqlite::{
            engine::{
                fault::Step,
                tx::{Q, Tx, int},
            },
            state::{
                codec::Job,
                keys,
                places::{Due, End, EndedRow, LeaseRow, Place},
            },
            verbs::reserve::reclaim_if_over,
        },
    },
};

/// Acts on jobs, in order.
pub(crate) fn act(tx: &mut Tx<'_>, targets: &[Target], action: &Action) -> Step<Vec<Acted>> {
    tx.mark()?;
    let answers = targets.iter().map(|target| act_one(tx, target, action)).collect();
    tx.hand_over()?;
    answers
}

/// Returns the job that holds a key, if it has a record.
pub(crate) fn by_key(tx: &mut Tx<'_>, key: &UniqueKey) -> Step<Option<Job>> {
    let UniqueKey { kind, queue, group, concurrency_key, key } = key;
    let Some(q) = tx.queue(queue)? else { return Ok(None) };
    let key = keys::encode(kind.as_deref(), group.as_deref(), concurrency_key.as_deref(), key);
    Ok(tx.holder(tx.at(q).qid, &key)?.and_then(|holder| holder.job))
}

fn act_one(tx: &mut Tx<'_>, target: &Target, action: &Action) -> Step<Acted> {
    let found = match &target.selector {
        Selector::Id(id) => tx.job(*id)?,
        Selector::Key(key) => by_key(tx, key)?,
    };
    let Some(mut job) = found else { return Ok(Acted::NotFound) };
    let Some(q) = tx.queue_by_qid(job.qid)? else { return Ok(Acted::NotFound) };
    let place = Place::of(tx, &job)?;
    let (id, state) = (job.id, place.state());
    if let Some(guard) = &target.guard {
        if guard.queue != tx.at(q).name {
            return Ok(Acted::NotFound);
        }
        if guard.state != state || guard.version.is_some_and(|version| version != job.version) {
            return Ok(Acted::WrongState(id, state));
        }
    }
    let place = match place {
        Place::Running(lease) if reclaim_if_over(tx, id, &lease)? => {
            let Some(now) = tx.job(id)? else {
                let is_cancelled = lease.cancel_requested() && matches!(action, Action::Cancel { .. });
                return Ok(if is_cancelled { Acted::Done(id, State::Cancelled) } else { Acted::NotFound });
            };
            job = now;
            let place = Place::of(tx, &job)?;
            // The cancel had been requested.
            if place.state() == State::Cancelled && matches!(action, Action::Cancel { .. }) {
                return Ok(Acted::Done(id, State::Cancelled));
            }
            place
        }
        place => place,
    };
    let state = place.state();
    match (action, place) {
        (Action::Cancel { reason }, Place::Waiting) => {
            let reason = cut_error(reason.as_deref().unwrap_or("cancelled"));
            tx.stop_waiting(q, &job)?;
            tx.end(q, &mut job, State::Cancelled, Some(reason), End::CalledOff)?;
            Ok(Acted::Done(id, State::Cancelled))
        }
        (Action::Cancel { .. }, Place::Running(lease)) => {
            tx.put_lease_flags(id, lease.flags | LeaseRow::CANCEL)?;
            tx.notify_named([WORKER_NOTIFICATION, &lease.worker].concat());
            Ok(Acted::Requested(id))
        }
        (Action::Delete, Place::Waiting) => {
            tx.stop_waiting(q, &job)?;
            tx.delete_waiting(q, &mut job)?;
            Ok(Acted::Done(id, state))
        }
        (Action::Delete, Place::Ended(ended)) => {
            tx.free_key_at_end(&job, End::CalledOff)?;
            tx.leave_ended(q, id.as_bytes(), &ended)?;
            tx.remove(q, id, job.has_history, ended.at)?;
            Ok(Acted::Done(id, state))
        }
        // A record that cannot be read is not changed: writing it back would lose its bytes.
        _ if job.corrupt || job.held => Ok(Acted::WrongState(id, state)),
        (Action::Retry, Place::Ended(ended)) => retry(tx, q, job, &ended),
        (Action::Cancel { .. } | Action::Delete | Action::Retry, _) => Ok(Acted::WrongState(id, state)),
        (_, Place::Waiting) => change(tx, q, job, action),
        _ => Ok(Acted::WrongState(id, state)),
    }
}

/// Changes a waiting job.
fn change(tx: &mut Tx<'_>, q: Q, mut job: Job, action: &Action) -> Step<Acted> {
    tx.stop_waiting(q, &job)?;
    match action {
        Action::Reschedule(when) => job.run_at = when.resolve(tx.now),
        Action::RescheduleBy(ms) => {
            let at = Timestamp::saturating_from_ms(job.run_at.as_ms().saturating_add_signed(*ms));
            job.run_at = When::At(at).resolve(tx.now);
        }
        Action::RunNow => job.run_at = tx.now,
        Action::Reprioritise(priority) => job.priority = *priority,
        Action::EditPayload(payload) => {
            tx.tally(q).bytes += int(payload.bytes.len()) - job.bytes();
            job.payload.clone_from(&payload.bytes);
            job.opts.set_content_type(&payload.content_type);
        }
        Action::Cancel { .. } | Action::Retry | Action::Delete => {
            unreachable!("invariant: these were handled by the caller")
        }
    }
    job.version += 1;
    job.put_asked(tx.conn)?;
    tx.start_waiting(q, Due::from(&job))?;
    Ok(Acted::Done(job.id, State::Waiting))
}

/// Makes an ended job wait again (S11).
fn retry(tx: &mut Tx<'_>, q: Q, mut job: Job, ended: &EndedRow) -> Step<Acted> {
    if takes_key_again(&job, tx.now) {
        if let Some(other) = tx.meet_key(job.qid, &job.kind, &job.opts)?.filter(|holder| holder.id != job.id)
        {
            return Ok(Acted::UniqueConflict(other.id));
        }
        tx.hold_key(job.qid, (job.id, &job.kind), &job.opts, job.created_at)?;
    }
    tx.leave_ended(q, job.id.as_bytes(), ended)?;
    tx.tally(q).bytes += job.bytes();
    (job.history.attempt, job.history.expired_leases, job.history.snoozes, job.history.reason) =
        (1, 0, 0, None);
    (job.history.notes, job.history.result) = (Notes::default(), None);
    (job.run_at, job.expires_at) = (tx.now, None);
    job.version += 1;
    job.put_asked(tx.conn)?;
    job.put_history(tx.conn)?;
    tx.start_waiting(q, Due::from(&job))?;
    Ok(Acted::Done(job.id, State::Waiting))
}

fn takes_key_again(job: &Job, now: Timestamp) -> bool {
    job.opts.unique.as_ref().is_some_and(|unique| match unique.scope {
        Scope::UntilDone => true,
        Scope::UntilStart => !job.history.started,
        Scope::Window { .. } => {
            !job.history.started && keys::window_end(unique, job.created_at).is_some_and(|end| now < end)
        }
    })
}
