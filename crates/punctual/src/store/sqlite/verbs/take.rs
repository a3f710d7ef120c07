//! `take`: reserves and acks in one step, at most once.

use crate::{
    core::{
        job::{JobRecord, State},
        limits::SWEEP_RIDE_MAX,
        time::ceil_ms,
    },
    store::{
        Take,
        sqlite::{
            engine::{
                fault::Step,
                tx::{Tx, instant},
            },
            state::places::{End, EndedRow, Place},
            verbs::{
                reserve::{pick::Pick, reclaim},
                sweep,
            },
        },
    },
};

/// Takes jobs, at most once.
pub(crate) fn take(tx: &mut Tx<'_>, take: &Take) -> Step<Vec<JobRecord>> {
    tx.mark()?;
    let queue = tx.queue(&take.queue)?;
    let queues = queue.as_slice();
    reclaim(tx, queues)?;
    tx.hand_over()?;
    let mut records = Vec::new();
    if let (Some(q), Some(due_by)) = (queue, tx.now.as_ms().checked_sub(ceil_ms(take.older_than))) {
        let until = instant(due_by.cast_signed());
        Pick::new(until, take.n).run(tx, q, take.n, |tx, q, mut job| {
            tx.free_key_at_start(&mut job)?;
            // It runs only within this step.
            if let Some((key, _)) = tx.key_of(&job)? {
                tx.touch(q, key);
            }
            (job.history.expired_leases, job.history.snoozes, job.history.reason) = (0, 0, None);
            tx.end(q, &mut job, State::Done, None, End::Other)?;
            let ended = EndedRow { state: State::Done, at: tx.now, bytes: job.kept_bytes(), reason: None };
            records.push(job.into_record(&tx.at(q).name, &Place::Ended(ended)));
            Ok(true)
        })?;
    }
    sweep::ride(tx, queues, SWEEP_RIDE_MAX)?;
    tx.hand_over()?;
    Ok(records)
}
