//! Bounded upkeep: expiry, retention, and forgetting (S17). It is part of reserve, settle and take. If there is
//! nothing to do, it costs a few index seeks.

use rusqlite::{params, types::Value};

use crate::{
    core::{
        job::State,
        limits::{CALL_MEMORY, ID_MEMORY, ID_MEMORY_MAX, ORPHANED_AFTER},
        time::{Timestamp, ceil_ms},
    },
    store::{
        Keep, Swept,
        sqlite::{
            engine::{
                fault::{Step, all_removed},
                sql::named,
                tx::{Kept, Q, Tx, instant, int, ms},
            },
            state::places::{End, EndedRow, Place},
            verbs::{
                queue::queues_behind,
                reserve::{end_endless, job_id, next_reclaim, reclaim_at_most},
            },
        },
    },
};

const FILE: &str = include_str!("../sql/sweep.sql");
const EXPIRED: &str = named(FILE, "expired");
const DROP_EXPIRY: &str = named(FILE, "drop_expiry");
const OLDEST_ENDED: &str = named(FILE, "oldest_ended");
const OLDEST_MEMORY: &str = named(FILE, "oldest_memory");
const FORGET_ID: &str = named(FILE, "forget_id");
const PAST_WINDOWS: &str = named(FILE, "past_windows");
const FORGET_WINDOW: &str = named(FILE, "forget_window");
const IDLE_CALLS: &str = named(FILE, "idle_calls");
const FORGET_CALL: &str = named(FILE, "forget_call");

/// The order in which ended jobs are swept.
const ENDED: [State; 3] = [State::Done, State::Cancelled, State::Dead];

/// The queues of one sweep; the next one continues after them.
const QUEUES_MAX: usize = 500;

/// Sweeps queues after `after` by name, then the whole store. Also returns the queue after which the next sweep
/// continues, if there are more.
pub(crate) fn sweep(tx: &mut Tx<'_>, limit: usize, after: Option<&str>) -> Step<(Swept, Option<String>)> {
    tx.mark()?;
    let queues = queues_behind(tx, after, QUEUES_MAX)?;
    let mut swept = sweep_queues(tx, &queues, limit, By::Itself)?;
    let now = tx.now;
    swept.next_reclaim_ms = next_reclaim(tx, &queues)?.map(|at| ceil_ms(at.since(now)));
    tx.hand_over()?;
    let last = queues.last().filter(|_| queues.len() == QUEUES_MAX).map(|q| tx.at(*q).name.clone());
    // What is left of these queues comes first.
    let next = if swept.more { after.map(str::to_owned) } else { last };
    swept.more |= next.is_some();
    Ok((swept, next))
}

/// Sweeps these queues in turn, then the whole store, up to `limit` items in all, as a part of another call.
pub(crate) fn ride(tx: &mut Tx<'_>, queues: &[Q], limit: usize) -> Step<Swept> {
    sweep_queues(tx, queues, limit, By::OtherCall)
}

/// What a sweep is a part of.
#[derive(PartialEq, Eq)]
enum By {
    Itself,
    OtherCall,
}

fn sweep_queues(tx: &mut Tx<'_>, queues: &[Q], limit: usize, by: By) -> Step<Swept> {
    let mut sweep = Sweep { by, steady: tx.steady()?, left: limit, done: Swept::default() };
    for &q in queues {
        if sweep.by == By::Itself {
            sweep.reclaim(tx, q)?;
        }
        sweep.expire(tx, q)?;
        for state in ENDED {
            sweep.remove(tx, q, state)?;
        }
        sweep.forget_ids(tx, q)?;
    }
    sweep.forget_windows(tx)?;
    sweep.forget_calls(tx)?;
    Ok(Swept { more: sweep.left == 0, ..sweep.done })
}

/// A sweep in progress.
struct Sweep {
    by: By,
    /// The time by which it removes.
    steady: Timestamp,
    left: usize,
    done: Swept,
}

impl Sweep {
    /// Reclaims expired leases, so that also those of queues that no worker serves end (S9).
    fn reclaim(&mut self, tx: &mut Tx<'_>, q: Q) -> Step<()> {
        end_endless(tx, q)?;
        let reclaimed = reclaim_at_most(tx, &[q], self.left, ORPHANED_AFTER)?.len();
        self.done.reclaimed += reclaimed as u64;
        self.left -= reclaimed;
        Ok(())
    }

    /// Cancels waiting jobs past their `expires_at`, oldest first.
    fn expire(&mut self, tx: &mut Tx<'_>, q: Q) -> Step<()> {
        let qid = tx.at(q).qid;
        let rows: Vec<(Value, Value)> = {
            let mut stmt = tx.conn.prepare_cached(EXPIRED)?;
            let read = stmt.query_map(params![qid, ms(self.steady), int(self.left)], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
            read.collect::<Result<_, _>>()?
        };
        for (expires_at, id) in rows {
            let known = if let Value::Blob(id) = &id { job_id(id) } else { None };
            let job = known.map_or(Ok(None), |id| tx.job(id))?;
            match job
                .filter(|job| job.expires_at.map(|at| Value::Integer(ms(at))).as_ref() == Some(&expires_at))
            {
                Some(mut job) if matches!(Place::of(tx, &job)?, Place::Waiting) => {
                    tx.stop_waiting(q, &job)?;
                    tx.end(q, &mut job, State::Cancelled, Some("expired"), End::Other)?;
                    self.done.expired += 1;
                }
                // An entry without a waiting job would be met for ever.
                _ => {
                    let row = params![qid, expires_at, id];
                    all_removed(tx.conn.prepare_cached(DROP_EXPIRY)?.execute(row)?, 1)?;
                }
            }
            self.left -= 1;
        }
        Ok(())
    }

    /// Removes ended jobs of one state past a bound, oldest end first.
    fn remove(&mut self, tx: &mut Tx<'_>, q: Q, state: State) -> Step<()> {
        let keep = *tx.at(q).keep(state);
        let mut kept = *tx.tally(q).kept(state);
        if kept.jobs <= 0 {
            return Ok(());
        }
        let is_exceeded = |by: &Keep, kept: &Kept| {
            by.is_exceeded(kept.jobs.max(0).cast_unsigned(), kept.bytes.max(0).cast_unsigned())
        };
        let waits_for = if self.by == By::OtherCall { keep.with_slack() } else { keep };
        let was_exceeded = kept.is_likely() && is_exceeded(&waits_for, &kept);
        let mut rows: Vec<(Vec<u8>, EndedRow)> = Vec::new();
        {
            let mut stmt = tx.conn.prepare_cached(OLDEST_ENDED)?;
            let mut read = stmt.query(params![tx.at(q).qid, state as i64, int(self.left)])?;
            // Stops at the first row within all bounds: if there is nothing to do, one row is read.
            while let Some(row) = read.next()? {
                let ended = EndedRow::read(row, 1);
                let is_over = was_exceeded && is_exceeded(&keep, &kept);
                if !keep.keeps_nothing() && !is_over && !is_past(&keep, ended.at, self.steady) {
                    break;
                }
                kept.jobs -= 1;
                kept.bytes -= ended.bytes;
                rows.push((row.get_ref(0)?.as_bytes().unwrap_or_default().to_vec(), ended));
            }
        }
        for (id, ended) in rows {
            tx.leave_ended(q, &id, &ended)?;
            if let Some(id) = job_id(&id) {
                tx.remove(q, id, true, ended.at)?;
            }
            self.done.removed += 1;
            self.left -= 1;
        }
        Ok(())
    }

    /// Forgets ids past their time or number, oldest end first.
    fn forget_ids(&mut self, tx: &mut Tx<'_>, q: Q) -> Step<()> {
        let mut remembered = tx.tally(q).remembered;
        if remembered <= 0 {
            return Ok(());
        }
        let qid = tx.at(q).qid;
        let mut ids: Vec<Value> = Vec::new();
        {
            let mut stmt = tx.conn.prepare_cached(OLDEST_MEMORY)?;
            let mut read = stmt.query(params![qid, int(self.left)])?;
            while let Some(row) = read.next()? {
                let ended_at = instant(row.get(1).unwrap_or_default());
                if remembered.cast_unsigned() <= ID_MEMORY_MAX && self.steady < ended_at.after(ID_MEMORY) {
                    break;
                }
                remembered -= 1;
                ids.push(row.get(0)?);
            }
        }
        for id in ids {
            all_removed(tx.conn.prepare_cached(FORGET_ID)?.execute(params![qid, id])?, 1)?;
            tx.tally(q).remembered -= 1;
            self.forgot();
        }
        Ok(())
    }

    fn forget_windows(&mut self, tx: &Tx<'_>) -> Step<()> {
        self.forget(tx, PAST_WINDOWS, self.steady, FORGET_WINDOW)
    }

    fn forget_calls(&mut self, tx: &Tx<'_>) -> Step<()> {
        // At the last instant everything is old: no later instant exists.
        let old_at = if self.steady == Timestamp::MAX {
            Some(self.steady.as_ms())
        } else {
            self.steady.as_ms().checked_sub(CALL_MEMORY.as_millis() as u64)
        };
        match old_at {
            Some(at) => self.forget(tx, IDLE_CALLS, Timestamp::saturating_from_ms(at), FORGET_CALL),
            None => Ok(()),
        }
    }

    /// Deletes rows that are old at `old_at`, by their two columns.
    fn forget(&mut self, tx: &Tx<'_>, find: &str, old_at: Timestamp, delete: &str) -> Step<()> {
        if self.left == 0 {
            return Ok(());
        }
        let rows: Vec<(Value, Value)> = {
            let mut stmt = tx.conn.prepare_cached(find)?;
            let read =
                stmt.query_map(params![ms(old_at), int(self.left)], |row| Ok((row.get(0)?, row.get(1)?)))?;
            read.collect::<Result<_, _>>()?
        };
        for (a, b) in rows {
            all_removed(tx.conn.prepare_cached(delete)?.execute(params![a, b])?, 1)?;
            self.forgot();
        }
        Ok(())
    }

    fn forgot(&mut self) {
        self.done.forgotten += 1;
        self.left -= 1;
    }
}

/// Returns whether an ended job is past the age of its retention.
pub(crate) fn is_past(keep: &Keep, ended_at: Timestamp, now: Timestamp) -> bool {
    ended_at.as_ms().saturating_add(keep.age_ms) <= now.as_ms()
}
