//! The walk over due jobs that reserve and take share: which group is served next, and which job comes first (S6,
//! S16).

use rusqlite::{Row, params, types::Value};

use crate::{
    core::{
        id::JobId,
        job::{Priority, State},
        lifecycle::is_last_chance,
        limits::{BATCH_BYTES_MAX, CANDIDATES_EXTRA, GROUPS_EXTRA, HELD_FOR},
        time::Timestamp,
    },
    store::{
        Order, end_notification,
        sqlite::{
            engine::{
                fault::{Step, all_removed},
                sql::named,
                tx::{Q, Tx, int, ms},
            },
            state::{
                codec::Job,
                groups::Place,
                places::{DELETE_DUE, Due, End},
            },
            verbs::reserve::job_id,
        },
    },
};

const FILE: &str = include_str!("../../sql/reserve.sql");
const DUE_FIFO: &str = named(FILE, "due_fifo");
const DUE_LIFO: &str = named(FILE, "due_lifo");
const LEAVE_FIFO: &str = named(FILE, "leave_fifo");
const LEAVE_LIFO: &str = named(FILE, "leave_lifo");

/// A walk over due jobs in order: at most n jobs, n + 256 candidates and 1 MiB.
pub(crate) struct Pick {
    /// Only jobs with `run_at` up to this time.
    until: Timestamp,
    n: usize,
    candidates: usize,
    bytes: usize,
    /// Whether the next job is too large, or is reserved alone.
    stopped: bool,
    any: bool,
    /// Whether a suspect is reserved alone.
    parts: bool,
}

/// A row of the timeline.
pub(crate) struct DueRow {
    run_at: Value,
    id: Value,
}

/// Returns the first `n` waiting jobs of one level with `run_at` up to `until`, in the queue's order (S6).
pub(crate) fn due_rows(
    tx: &Tx<'_>,
    q: Q,
    priority: Priority,
    until: Timestamp,
    n: usize,
) -> Step<Vec<DueRow>> {
    let queue = tx.at(q);
    let mut stmt = tx.conn.prepare_cached(match queue.settings.order {
        Order::Fifo => DUE_FIFO,
        Order::Lifo => DUE_LIFO,
    })?;
    let range = params![queue.qid, priority as i64, ms(until), int(n)];
    let rows = stmt.query_map(range, DueRow::read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

impl DueRow {
    /// Reads `run_at` and `id`.
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { run_at: row.get(0)?, id: row.get(1)? })
    }

    /// Returns the rest of its key, after the priority.
    pub(crate) const fn key(&self) -> (&Value, &Value) {
        (&self.run_at, &self.id)
    }

    /// Returns the job that it names, if that has a record.
    pub(crate) fn job(&self, tx: &mut Tx<'_>) -> Step<Option<Job>> {
        self.job_id().map_or(Ok(None), |id| tx.job(id))
    }

    fn job_id(&self) -> Option<JobId> {
        match &self.id {
            Value::Blob(id) => job_id(id),
            _ => None,
        }
    }

    /// Deletes only this row.
    pub(crate) fn drop(&self, tx: &Tx<'_>, q: Q, priority: Priority) -> Step<()> {
        let row = params![tx.at(q).qid, priority as i64, self.run_at, self.id];
        all_removed(tx.conn.prepare_cached(DELETE_DUE)?.execute(row)?, 1)
    }

    /// Returns whether it comes before another one, in an order of which both can be part.
    fn comes_before(&self, next: &Self, order: Order) -> bool {
        let (Value::Integer(one), Value::Integer(other)) = (&self.run_at, &next.run_at) else { return false };
        let (Value::Blob(id), Value::Blob(of)) = (&self.id, &next.id) else { return false };
        match order {
            Order::Fifo => (one, id) < (other, of),
            Order::Lifo => (other, of) < (one, id),
        }
    }
}

impl Pick {
    pub(crate) fn new(until: Timestamp, n: usize) -> Self {
        Self {
            until,
            n,
            candidates: n + CANDIDATES_EXTRA,
            bytes: 0,
            stopped: false,
            any: false,
            parts: false,
        }
    }

    /// Sets that jobs are leased: without company, a suspect is reserved alone (S9).
    pub(crate) fn by_lease(self, company: bool) -> Self {
        Self { parts: !company, ..self }
    }

    /// Walks one queue and passes up to `up_to` jobs to `each`, which puts them into their next place.
    pub(crate) fn run(
        &mut self,
        tx: &mut Tx<'_>,
        q: Q,
        up_to: usize,
        mut each: impl FnMut(&mut Tx<'_>, Q, Job) -> Step<bool>,
    ) -> Step<()> {
        if tx.at(q).settings.paused.is_some() {
            return Ok(());
        }
        let mut wanted = up_to.min(self.n);
        let is_shared = tx.at(q).active.has_groups() && self.goes_on(tx, q, wanted);
        if is_shared {
            tx.let_in(q, wanted + GROUPS_EXTRA)?;
            self.mind_ungrouped(tx, q)?;
            self.share(tx, q, &mut wanted, &mut each)?;
        }
        for priority in Priority::ALL {
            while self.goes_on(tx, q, wanted) {
                let asked = wanted.min(self.candidates);
                // One more shows where the range ends that is left.
                let rows = due_rows(tx, q, priority, self.until, asked + 1)?;
                let all = rows.len() < asked;
                let mut looked = 0;
                for row in rows.iter().take(asked) {
                    if !tx.is_open(q) {
                        break;
                    }
                    let Some(given) = self.candidate(tx, q, row, &mut each)? else { break };
                    wanted -= usize::from(given);
                    self.candidates -= 1;
                    looked += 1;
                }
                self.leave(tx, q, priority, &rows, looked)?;
                if all {
                    break;
                }
            }
        }
        if is_shared {
            self.mind_ungrouped(tx, q)?;
        }
        Ok(())
    }

    /// Returns whether more jobs may be checked.
    fn goes_on(&self, tx: &Tx<'_>, q: Q, wanted: usize) -> bool {
        0 < wanted && 0 < self.candidates && !self.stopped && tx.is_open(q)
    }

    /// Serves one job at a time, by tags, while groups are active.
    fn share(
        &mut self,
        tx: &mut Tx<'_>,
        q: Q,
        wanted: &mut usize,
        each: &mut impl FnMut(&mut Tx<'_>, Q, Job) -> Step<bool>,
    ) -> Step<()> {
        let mut stale = 0;
        while self.goes_on(tx, q, *wanted)
            && let Some(mut group) = tx.first_active(q, &mut stale)?
        {
            if tx.at(q).active.ungrouped().is_some_and(|ungrouped| ungrouped <= group.tag())
                && let Some((priority, row)) = self.first_ungrouped(tx, q)?
            {
                let Some(given) = self.candidate(tx, q, &row, each)? else { break };
                row.drop(tx, q, priority)?;
                if given {
                    tx.charge_ungrouped(q);
                }
                self.mind_ungrouped(tx, q)?;
                self.looked(given, wanted);
                continue;
            }
            let Some((priority, row)) = tx.head(q, &group, self.until)? else {
                // It counts as a candidate only if its first job is due and is just not old enough for this take.
                let first = tx.file(q, &mut group, false)?;
                if group.place() == Place::Coming && first.is_some_and(|at| at <= tx.now_ms()) {
                    self.looked(false, wanted);
                } else {
                    stale += 1;
                }
                continue;
            };
            let Some(given) = self.candidate(tx, q, &row, each)? else { break };
            tx.drop_head(q, &group, priority, &row)?;
            if given {
                tx.charge(q, &mut group);
            }
            tx.file(q, &mut group, true)?;
            self.looked(given, wanted);
        }
        Ok(())
    }

    /// Checks whether ungrouped jobs are due.
    fn mind_ungrouped(&self, tx: &mut Tx<'_>, q: Q) -> Step<()> {
        let now = Self { until: tx.now, ..*self };
        let is_due = now.first_ungrouped(tx, q)?.is_some();
        tx.mind_ungrouped(q, is_due);
        Ok(())
    }

    const fn looked(&mut self, given: bool, wanted: &mut usize) {
        self.candidates -= 1;
        *wanted -= given as usize;
    }

    /// Returns the first due ungrouped job, and its priority.
    fn first_ungrouped(&self, tx: &Tx<'_>, q: Q) -> Step<Option<(Priority, DueRow)>> {
        for priority in Priority::ALL {
            if let Some(row) = due_rows(tx, q, priority, self.until, 1)?.pop() {
                return Ok(Some((priority, row)));
            }
        }
        Ok(None)
    }

    /// Removes the first rows from the timeline, in one statement if they and the next one are in order. Damage to one of them must not
    /// remove others with it.
    fn leave(&self, tx: &Tx<'_>, q: Q, priority: Priority, rows: &[DueRow], looked: usize) -> Step<()> {
        let Some(last) = rows[..looked].last() else { return Ok(()) };
        let order = tx.at(q).settings.order;
        let behind = rows.len().min(looked + 1);
        if !rows[..behind].is_sorted_by(|one, next| one.comes_before(next, order)) {
            return rows[..looked].iter().try_for_each(|row| row.drop(tx, q, priority));
        }
        let (qid, priority) = (tx.at(q).qid, priority as i64);
        let removed = match order {
            Order::Fifo => {
                let range = params![qid, priority, last.run_at, last.id];
                tx.conn.prepare_cached(LEAVE_FIFO)?.execute(range)?
            }
            Order::Lifo => {
                let range = params![qid, priority, last.run_at, last.id, ms(self.until)];
                tx.conn.prepare_cached(LEAVE_LIFO)?.execute(range)?
            }
        };
        all_removed(removed, looked)
    }

    /// Decides on one due job. `None`: it stays and the walk ends; otherwise whether it was passed to `each`.
    fn candidate(
        &mut self,
        tx: &mut Tx<'_>,
        q: Q,
        row: &DueRow,
        each: &mut impl FnMut(&mut Tx<'_>, Q, Job) -> Step<bool>,
    ) -> Step<Option<bool>> {
        if self.stopped {
            return Ok(None);
        }
        let Some(mut job) = row.job(tx)?.filter(|job| !job.corrupt) else {
            quarantine(tx, q, row)?;
            return Ok(Some(false));
        };
        if job.expires_at.is_some_and(|t| t <= tx.now) {
            tx.left_due(q, Due::from(&job))?;
            if let Some((key, _)) = tx.key_of(&job)? {
                tx.touch(q, key);
            }
            tx.end(q, &mut job, State::Cancelled, Some("expired"), End::Other)?;
            return Ok(Some(false));
        }
        if job.held {
            hold(tx, q, &mut job)?;
            return Ok(Some(false));
        }
        if tx.block_if_full(q, &job)? {
            return Ok(Some(false));
        }
        let bytes = self.bytes + job.payload.len();
        let alone = self.parts && is_last_chance(job.history.expired_leases);
        if self.any && (alone || BATCH_BYTES_MAX < bytes) {
            self.stopped = true;
            return Ok(None);
        }
        tx.left_due(q, Due::from(&job))?;
        let given = each(tx, q, job)?;
        if given {
            (self.bytes, self.any, self.stopped) = (bytes, true, alone);
            self.n -= 1;
            tx.spend(q);
        }
        Ok(Some(given))
    }
}

/// Holds a job of a newer version for a minute: this version cannot run it, and it must not block others. The caller
/// handles its row in the timeline.
fn hold(tx: &mut Tx<'_>, q: Q, job: &mut Job) -> Step<()> {
    tracing::warn!(target: "punctual", id = %job.id, kind = job.kind,
        "a newer version wrote this job: it waits for a worker of that version");
    tx.left_due(q, Due::from(&*job))?;
    job.put_run_at(tx.conn, tx.now.after(HELD_FOR))?;
    tx.start_waiting(q, Due::from(&*job))
}

/// Makes a waiting job that cannot be read dead, reason `corrupt`, and keeps its bytes. Drops an entry without a
/// record. The caller handles its row in the timeline.
pub(crate) fn quarantine(tx: &mut Tx<'_>, q: Q, row: &DueRow) -> Step<()> {
    tx.tally(q).waiting -= 1;
    let Some(id) = row.job_id() else { return Ok(()) };
    let Some(bytes) = tx.payload_bytes(id)? else { return Ok(()) };
    if let Some(job) = tx.job(id)? {
        tx.free_key_at_end(&job, End::Other)?;
        if let Some((key, _)) = tx.key_of(&job)? {
            tx.touch(q, key);
        }
    }
    tx.tally(q).bytes -= bytes;
    // The flag that a caller waits for it may be unreadable.
    tx.notify_named(end_notification(id));
    tx.put_ended(q, id, State::Dead, bytes, Some("corrupt"))
}
