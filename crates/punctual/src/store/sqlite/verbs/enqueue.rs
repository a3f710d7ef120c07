//! `enqueue`: checks, decides for each job, inserts. The hot path is one search for the id and three b-tree inserts.

use std::collections::HashSet;

use rusqlite::params;

use crate::{
    core::{
        job::{JobOptions, NewJob, OnConflict, State, Unique},
        time::Timestamp,
    },
    store::{
        CallId, Enqueued, Existing, check_enqueue, resolve_expiry,
        sqlite::{
            engine::{
                fault::Step,
                row_number::Found,
                tx::{Numbered, Q, Tx, int, ms},
            },
            state::{
                codec::{INSERT, Job, Opts},
                keys::Holder,
                places::{Due, Place},
            },
        },
    },
};

/// Added to the position of a job that was neither inserted nor `Full`: above all positions in a call.
const OTHER: u16 = 1 << 15;

/// A numbered enqueue (S3).
pub(crate) fn enqueue(
    tx: &mut Tx<'_>,
    call: CallId,
    jobs: &[NewJob],
    payload_bytes_max: usize,
) -> Step<Vec<Enqueued>> {
    if let Some((number, kept)) = tx.last_call(call, Numbered::Enqueue)?
        && call.number <= number
    {
        return replay(tx, jobs, (call.number == number).then_some(&kept[..]));
    }
    let answers = insert(tx, jobs, payload_bytes_max)?;
    let full = |answer: &Enqueued| matches!(answer, Enqueued::Full);
    if !answers.iter().all(full) {
        let kept: Vec<u8> = answers.iter().zip(0..).filter_map(kept).flat_map(u16::to_le_bytes).collect();
        tx.put_call(call, Numbered::Enqueue, &kept)?;
    }
    Ok(answers)
}

/// Returns what is kept of an answer for a repetition: its position, unless the job was inserted.
fn kept((answer, at): (&Enqueued, u16)) -> Option<u16> {
    match answer {
        Enqueued::Inserted { .. } => None,
        Enqueued::Full => Some(at),
        Enqueued::Duplicate(_)
        | Enqueued::Conflict { .. }
        | Enqueued::Replaced { .. }
        | Enqueued::Rescheduled { .. } => Some(OTHER + at),
    }
}

/// Answers a repeated call without writing. `kept` has the positions of jobs that were not inserted, two bytes each, with [`OTHER`]
/// added if they were not `Full` either; `None` for an older call.
fn replay(tx: &mut Tx<'_>, jobs: &[NewJob], kept: Option<&[u8]>) -> Step<Vec<Enqueued>> {
    let is_last = kept.is_some();
    let kept: HashSet<u16> = kept
        .into_iter()
        .flat_map(|kept| kept.chunks_exact(2))
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
        .collect();
    // Of two jobs with one id, only the first was inserted.
    let mut told = HashSet::new();
    let mut answers = Vec::with_capacity(jobs.len());
    for (new, at) in jobs.iter().zip(0_u16..) {
        if kept.contains(&at) {
            answers.push(Enqueued::Full);
            continue;
        }
        let (own, q) = (tx.job(new.id)?, tx.queue(&new.queue)?);
        if is_last && !kept.contains(&(OTHER + at)) && told.insert(new.id) {
            answers.push(match own {
                Some(job) => Enqueued::Inserted { id: new.id, run_at: new.run_at.resolve(job.created_at) },
                None => Enqueued::Duplicate(gone(new.id)),
            });
            continue;
        }
        if own.as_ref().is_some_and(|job| !is_in(tx, job, q)) {
            answers.push(Enqueued::Conflict { id: new.id });
            continue;
        }
        let holder = match (&own, q) {
            (None, Some(q)) => {
                tx.holder_of(tx.at(q).qid, &new.kind, &Opts::of(new, &JobOptions::default()))?
            }
            _ => None,
        };
        let existing = match (own, holder) {
            (Some(job), _) => existing(tx, &job)?,
            (None, Some(holder)) => existing_holder(tx, &holder)?,
            (None, None) => gone(new.id),
        };
        answers.push(Enqueued::Duplicate(existing));
    }
    Ok(answers)
}

/// Inserts jobs in order. Each sees the effects of the earlier ones.
pub(crate) fn insert(tx: &mut Tx<'_>, jobs: &[NewJob], payload_bytes_max: usize) -> Step<Vec<Enqueued>> {
    check_enqueue(jobs, tx.now, payload_bytes_max)?;
    let answers = jobs.iter().map(|new| insert_one(tx, new)).collect();
    tx.hand_over()?;
    answers
}

fn insert_one(tx: &mut Tx<'_>, new: &NewJob) -> Step<Enqueued> {
    let Found::Free(slot) = tx.find_slot(new.id)? else {
        let Some(job) = tx.job(new.id)? else { return Ok(Enqueued::Duplicate(gone(new.id))) };
        let q = tx.queue(&new.queue)?;
        return if is_in(tx, &job, q) {
            Ok(Enqueued::Duplicate(existing(tx, &job)?))
        } else {
            Ok(Enqueued::Conflict { id: new.id })
        };
    };
    let known_queue = tx.queue(&new.queue)?;
    if let Some(q) = known_queue {
        if tx.remembers(q, new.id)? {
            return Ok(Enqueued::Duplicate(gone(new.id)));
        }
        if let Some(unique) = &new.unique {
            let opts = Opts::of(new, &tx.at(q).settings.defaults);
            if let Some(holder) = tx.meet_key(tx.at(q).qid, &new.kind, &opts)? {
                return meet(tx, q, &holder, new, unique, opts);
            }
        }
        if is_full(tx, q, new.payload.bytes.len()) {
            return Ok(Enqueued::Full);
        }
    }
    let q = known_queue.map_or_else(|| tx.queue_or_new(&new.queue), Ok)?;

    let defaults = &tx.at(q).settings.defaults;
    let opts = Opts::of(new, defaults);
    let priority = new.options.priority.or(defaults.priority).unwrap_or_default();
    let (qid, now) = (tx.at(q).qid, tx.now);
    let (run_at, expires_at) = times(new, now);
    let id = new.id.as_bytes();
    let row = params![
        slot,
        id,
        qid,
        new.kind,
        priority as i64,
        ms(run_at),
        ms(now),
        expires_at.map(ms),
        opts.text(),
        new.payload.bytes,
    ];
    tx.conn.prepare_cached(INSERT)?.execute(row)?;
    let group = new.group.as_deref();
    tx.start_waiting(q, Due { group, id: new.id, priority, run_at, expires_at, attempt: 1 })?;
    tx.tally(q).bytes += int(new.payload.bytes.len());
    tx.hold_key(qid, (new.id, &new.kind), &opts, now)?;
    Ok(Enqueued::Inserted { id: new.id, run_at })
}

/// Returns whether a job is in this queue.
fn is_in(tx: &Tx<'_>, job: &Job, q: Option<Q>) -> bool {
    q.is_some_and(|q| tx.at(q).qid == job.qid)
}

/// Returns the due time and the expiry.
fn times(new: &NewJob, now: Timestamp) -> (Timestamp, Option<Timestamp>) {
    (new.run_at.resolve(now), new.expires_at.map(|t| resolve_expiry(t, now)))
}

/// Returns whether the queue has no room for one more job of this size.
fn is_full(tx: &Tx<'_>, q: Q, bytes: usize) -> bool {
    let queue = tx.at(q);
    let counts = queue.tally.counts();
    let jobs_full = queue.settings.max_jobs.is_some_and(|max| max <= counts.waiting + counts.running);
    jobs_full || queue.settings.max_bytes.is_some_and(|max| max < counts.bytes + bytes as u64)
}

/// Applies the conflict rule to a job whose unique key is held (S4).
fn meet(tx: &mut Tx<'_>, q: Q, holder: &Holder, new: &NewJob, unique: &Unique, opts: Opts) -> Step<Enqueued> {
    let may_change = match (&holder.job, unique.on_conflict) {
        (None, _) | (_, OnConflict::Keep) => false,
        (Some(job), _) => {
            matches!(Place::of(tx, job)?, Place::Waiting)
                && unique.version.is_none_or(|version| version == job.version)
        }
    };
    let Some(mut job) = holder.job.clone().filter(|_| may_change) else {
        return Ok(Enqueued::Duplicate(existing_holder(tx, holder)?));
    };
    tx.stop_waiting(q, &job)?;
    let (run_at, expires_at) = times(new, tx.now);
    (job.run_at, job.version) = (run_at, job.version + 1);
    let id = job.id;
    if unique.on_conflict == OnConflict::Reschedule {
        job.put_asked(tx.conn)?;
        tx.start_waiting(q, Due::from(&job))?;
        return Ok(Enqueued::Rescheduled { id, run_at });
    }
    tx.tally(q).bytes += int(new.payload.bytes.len()) - job.bytes();
    let defaults = &tx.at(q).settings.defaults;
    job.priority = new.options.priority.or(defaults.priority).unwrap_or_default();
    job.kind.clone_from(&new.kind);
    job.payload.clone_from(&new.payload.bytes);
    job.expires_at = expires_at;
    job.opts = opts.with_scope_of(job.opts);
    job.put_asked(tx.conn)?;
    tx.start_waiting(q, Due::from(&job))?;
    Ok(Enqueued::Replaced { id, run_at })
}

fn existing(tx: &mut Tx<'_>, job: &Job) -> Step<Existing> {
    let place = Place::of(tx, job)?;
    let cancel_requested = matches!(&place, Place::Running(lease) if lease.cancel_requested());
    let kind = Some(job.kind.clone());
    Ok(Existing { id: job.id, kind, state: Some(place.state()), version: job.version, cancel_requested })
}

fn existing_holder(tx: &mut Tx<'_>, holder: &Holder) -> Step<Existing> {
    holder.job.as_ref().map_or(Ok(gone(holder.id)), |job| existing(tx, job))
}

/// Returns the answer for a job whose record is gone.
const fn gone(id: crate::core::id::JobId) -> Existing {
    Existing { id, kind: None, state: None::<State>, version: 0, cancel_requested: false }
}
