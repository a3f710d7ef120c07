//! `settle`: ends leases by their verdicts, sweeps, and can reserve in the same step.

use rusqlite::{CachedStatement, OptionalExtension};

use crate::{
    core::{job::State, lifecycle::settled, limits::SWEEP_RIDE_MAX},
    store::{
        Batch, EndReason, Reserve, Settled, Settlement, Verdict,
        sqlite::{
            engine::{
                fault::Step,
                tx::{Q, Tx},
            },
            state::places::{DELETE_LEASE, LEASE, LeaseRow},
            verbs::{
                reserve::{first_due, reserve},
                sweep,
            },
        },
    },
};

/// Settles, then reserves.
pub(crate) fn settle(
    tx: &mut Tx<'_>,
    batch: &[Settlement],
    then: Option<&Reserve>,
) -> Step<(Vec<Settled>, Option<Batch>)> {
    tx.mark()?;
    let mut queues: Vec<Q> = Vec::new();
    let answers = end_all(tx, batch, &mut queues)?;
    sweep::ride(tx, &queues, batch.len() + SWEEP_RIDE_MAX)?;
    tx.hand_over()?;
    let then = then.map(|request| reserve(tx, request)).transpose()?;
    for q in queues {
        // Notifies of jobs that these ends let start and that were not just reserved.
        let is_limited = tx.at(q).settings.concurrency.is_some() || tx.now < tx.opens_in_time(q);
        if is_limited && let Some(at) = first_due(tx, q)? {
            tx.notify(q, at);
        }
    }
    Ok((answers, then))
}

/// Ends leases in order. `queues` collects the queues of the current ones, in the order of their first appearance.
fn end_all(tx: &mut Tx<'_>, batch: &[Settlement], queues: &mut Vec<Q>) -> Step<Vec<Settled>> {
    let mut hot =
        Hot { lease: tx.conn.prepare_cached(LEASE)?, delete_lease: tx.conn.prepare_cached(DELETE_LEASE)? };
    let mut answers = Vec::with_capacity(batch.len());
    for settlement in batch {
        answers.push(match end_one(tx, &mut hot, settlement)? {
            Some((q, state, overruled)) => {
                if !queues.contains(&q) {
                    queues.push(q);
                }
                Settled::Settled(state, overruled)
            }
            None => Settled::LeaseLost,
        });
    }
    Ok(answers)
}

/// The statements of an ack, prepared once per batch.
struct Hot<'c> {
    lease: CachedStatement<'c>,
    delete_lease: CachedStatement<'c>,
}

/// The result of a settlement.
type End = (Q, State, Option<EndReason>);

/// Ends one lease; returns `None` if it is not current (S8).
fn end_one(tx: &mut Tx<'_>, hot: &mut Hot<'_>, settlement: &Settlement) -> Step<Option<End>> {
    let Settlement { lease, verdict } = settlement;
    let id = lease.job.as_bytes();
    let row = hot.lease.query_row([id], |row| Ok(LeaseRow::read(row))).optional()?;
    let Some(row) = row.filter(|row| row.is(lease)) else { return Ok(None) };
    let Some(q) = tx.queue_by_qid(row.qid)? else { return Ok(None) };

    // The hot path: a done job without keys or history.
    if *verdict == Verdict::Ack && row.flags & (LeaseRow::KEY | LeaseRow::HISTORY | LeaseRow::KEYED) == 0 {
        hot.delete_lease.execute([id])?;
        let tally = tx.tally(q);
        tally.running -= 1;
        tally.bytes -= row.bytes;
        if tx.at(q).keep(State::Done).keeps_nothing() {
            tx.remove(q, lease.job, false, tx.now)?;
        } else {
            tx.put_ended(q, lease.job, State::Done, row.bytes, None)?;
        }
        return Ok(Some((q, State::Done, None)));
    }

    let Some(mut job) = tx.job(lease.job)? else {
        // A lease without a record is dropped, as `audit` does.
        tx.drop_lease(q, id)?;
        tx.end_turn_of_unknown(q, id)?;
        return Ok(None);
    };
    let (state, overruled) = tx.end_run(q, &row, &mut job, |run, now| settled(run, verdict, now))?;
    if let Verdict::RetryAfter { at, .. } = verdict {
        let until = at.resolve(tx.now);
        match &job.opts.group {
            Some(group) => tx.close_group(q, group, until)?,
            None => tx.close(q, until),
        }
    }
    Ok(Some((q, state, overruled)))
}
