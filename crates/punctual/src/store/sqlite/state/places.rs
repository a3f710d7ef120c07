//! The places of a job, and the moves between them. A job is in exactly one:
//!
//! ```text
//! punctual_due (waiting) ── reserve ──► punctual_lease (running) ── settle ──► punctual_ended (done, dead, cancelled)
//!    │   ▲ ▲                                   │                                     │
//!    ▼   │ └──── retry, snooze, release, reclaimed               operator's retry ───┘
//! punctual_parked (blocked by its key: keys.rs)
//! ```
//!
//! A job with a group waits in `punctual_grouped` in place of `punctual_due` (groups.rs).
//!
//! Each move also updates the queue's counters, the job's keys and its expiry. No other code may write these tables.

use rusqlite::{OptionalExtension, Row, params};

use crate::{
    core::{
        digest::group_digest,
        id::JobId,
        job::{Failure, Priority, State},
        lifecycle::{Next, Run},
        limits::{FAILURES_MAX, ID_MEMORY, LEASE_MAX, PAYLOAD_BYTES_MAX},
        time::Timestamp,
    },
    store::{
        EndReason, Lease, end_notification,
        sqlite::{
            engine::{
                fault::{Step, all_removed},
                sql::named,
                tx::{Q, Tx, instant, int, ms},
            },
            state::{
                codec::{Columns, Job},
                groups::{DELETE_GROUPED, IS_GROUPED, PUT_GROUPED, group_of},
            },
        },
    },
};

const FILE: &str = include_str!("../sql/places.sql");
const IS_DUE: &str = named(FILE, "is_due");
const PUT_DUE: &str = named(FILE, "put_due");
pub(crate) const DELETE_DUE: &str = named(FILE, "delete_due");
const PUT_EXPIRY: &str = named(FILE, "put_expiry");
const DELETE_EXPIRY: &str = named(FILE, "delete_expiry");
pub(crate) const LEASE: &str = named(FILE, "lease");
pub(crate) const PUT_LEASE: &str = named(FILE, "put_lease");
const PUT_LEASE_FLAGS: &str = named(FILE, "put_lease_flags");
pub(crate) const DELETE_LEASE: &str = named(FILE, "delete_lease");
const ENDED: &str = named(FILE, "ended");
pub(crate) const PUT_ENDED: &str = named(FILE, "put_ended");
const DELETE_ENDED: &str = named(FILE, "delete_ended");
const REMEMBER: &str = named(FILE, "remember");
const REMEMBER_AGAIN: &str = named(FILE, "remember_again");
const REMEMBERED: &str = named(FILE, "remembered");

/// A row of `punctual_lease`.
#[derive(Clone, Debug)]
pub(crate) struct LeaseRow {
    pub(crate) fence: i64,
    pub(crate) qid: i64,
    pub(crate) until: Timestamp,
    pub(crate) lasts_ms: i64,
    pub(crate) started_at: Timestamp,
    pub(crate) bytes: i64,
    pub(crate) flags: i64,
    pub(crate) worker: String,
}

impl LeaseRow {
    /// The flag: a cancel was requested.
    pub(crate) const CANCEL: i64 = 1;
    /// The flag: the job has a unique key that its end frees.
    pub(crate) const KEY: i64 = 2;
    /// The flag: the job has a row in `punctual_past`.
    pub(crate) const HISTORY: i64 = 4;
    /// The flag: the job has a concurrency key or a group, with a row in `punctual_keyed` for each.
    pub(crate) const KEYED: i64 = 8;
    /// The flag: an expired lease may be the fault of another suspect (S9).
    pub(crate) const COMPANY: i64 = 16;

    /// Reads the columns of `lease`. Invalid values read as zero: no caller holds fence 0, so such a lease is
    /// reclaimed.
    pub(crate) fn read(row: &Row<'_>) -> Self {
        let mut c = Columns::new(row);
        Self {
            fence: c.int(0),
            qid: c.int(1),
            until: c.time(2),
            lasts_ms: c.int(3).clamp(0, LEASE_MAX.as_millis() as i64),
            started_at: c.time(4),
            bytes: c.count(5),
            flags: c.int(6),
            worker: c.text(7),
        }
    }

    pub(crate) const fn cancel_requested(&self) -> bool {
        self.flags & Self::CANCEL != 0
    }

    /// Returns whether this row is that of `lease` (S8).
    pub(crate) const fn is(&self, lease: &Lease) -> bool {
        self.fence == lease.fence.cast_signed()
    }
}

/// A row of `punctual_ended`.
#[derive(Clone, Debug)]
pub(crate) struct EndedRow {
    pub(crate) state: State,
    pub(crate) at: Timestamp,
    pub(crate) bytes: i64,
    pub(crate) reason: Option<String>,
}

impl EndedRow {
    /// Reads the four columns of `ended` from `from` on.
    pub(crate) fn read(row: &Row<'_>, from: usize) -> Self {
        let mut c = Columns::new(row);
        Self {
            state: ended_state(c.int(from)),
            at: c.time(from + 1),
            bytes: kept_bytes(c.int(from + 2)),
            reason: c.optional(from + 3, Columns::text),
        }
    }
}

/// Returns a stored size of an ended job: at most what payload and result can have. A damaged one would make its queue exceed its bound.
pub(crate) fn kept_bytes(stored: i64) -> i64 {
    stored.clamp(0, 2 * int(PAYLOAD_BYTES_MAX))
}

/// Returns the ended state with this number, an index into [`State::ALL`]. An invalid one is read as dead, for people
/// to look at.
pub(crate) fn ended_state(n: i64) -> State {
    let state = usize::try_from(n).ok().and_then(|n| State::ALL.get(n)).copied();
    state.filter(|state| state.is_ended()).unwrap_or(State::Dead)
}

/// The place of a job.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Waiting,
    Running(LeaseRow),
    Ended(EndedRow),
    /// In no place; `audit` repairs it.
    Nowhere,
}

impl Place {
    /// Returns the state that callers see.
    pub(crate) const fn state(&self) -> State {
        match self {
            Self::Waiting => State::Waiting,
            Self::Running(_) => State::Running,
            Self::Ended(ended) => ended.state,
            Self::Nowhere => State::Dead,
        }
    }

    /// Returns the place of a job. If it is in two, running wins, then waiting.
    pub(crate) fn of(tx: &mut Tx<'_>, job: &Job) -> Step<Self> {
        if let Some(lease) = tx.lease(job.id)? {
            return Ok(Self::Running(lease));
        }
        let ended = {
            let mut ended = tx.conn.prepare_cached(ENDED)?;
            ended.query_row([job.id.as_bytes()], |row| Ok(EndedRow::read(row, 0))).optional()?
        };
        Ok(match ended {
            _ if Self::waits(tx, job)? => Self::Waiting,
            Some(ended) => Self::Ended(ended),
            None => Self::Nowhere,
        })
    }

    fn waits(tx: &mut Tx<'_>, job: &Job) -> Step<bool> {
        Ok(tx.is_due(job)? || tx.is_blocked(job)?)
    }
}

/// How a job ends, as far as its unique key is concerned (S4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A cancel, delete or purge of a waiting job.
    CalledOff,
    /// Any other end.
    Other,
}

/// What the timeline needs of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due<'a> {
    pub(crate) group: Option<&'a str>,
    pub(crate) id: JobId,
    pub(crate) priority: Priority,
    pub(crate) run_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) attempt: u32,
}

impl<'a> From<&'a Job> for Due<'a> {
    fn from(job: &'a Job) -> Self {
        let &Job { id, priority, run_at, expires_at, .. } = job;
        let group = job.opts.group.as_deref();
        Self { group, id, priority, run_at, expires_at, attempt: job.history.attempt }
    }
}

impl Tx<'_> {
    /// Makes a job wait that is in no place.
    pub(crate) fn start_waiting(&mut self, q: Q, due: Due<'_>) -> Step<()> {
        let (qid, id) = (self.at(q).qid, due.id.as_bytes());
        let (pri, run_at) = (due.priority as i64, ms(due.run_at));
        if let Some(group) = due.group {
            let gid = group_digest(group);
            self.conn.prepare_cached(PUT_GROUPED)?.execute(params![qid, gid, pri, run_at, id])?;
            // The notification is sent when the group is filed, for the time at which it can start.
            self.touch_group(q, gid, due.group);
        } else {
            self.conn.prepare_cached(PUT_DUE)?.execute(params![qid, pri, run_at, id])?;
            self.notify(q, due.run_at);
        }
        if let Some(t) = due.expires_at {
            self.conn.prepare_cached(PUT_EXPIRY)?.execute(params![qid, ms(t), id])?;
        }
        let tally = self.tally(q);
        tally.waiting += 1;
        tally.retrying += i64::from(1 < due.attempt);
        Ok(())
    }

    /// Removes a waiting job from its place.
    pub(crate) fn stop_waiting(&mut self, q: Q, job: &Job) -> Step<()> {
        self.drop_due(q, job)?;
        self.unblock(q, job)?;
        self.left_due(q, Due::from(job))
    }

    /// Returns whether a job is in the timeline.
    pub(crate) fn is_due(&self, job: &Job) -> Step<bool> {
        let (pri, run_at, id) = (job.priority as i64, ms(job.run_at), job.id.as_bytes());
        Ok(match group_of(job) {
            Some(gid) => {
                self.conn.prepare_cached(IS_GROUPED)?.exists(params![job.qid, gid, pri, run_at, id])?
            }
            None => self.conn.prepare_cached(IS_DUE)?.exists(params![job.qid, pri, run_at, id])?,
        })
    }

    /// Removes a job only from the timeline.
    pub(crate) fn drop_due(&mut self, q: Q, job: &Job) -> Step<()> {
        let (pri, run_at, id) = (job.priority as i64, ms(job.run_at), job.id.as_bytes());
        if let Some(gid) = group_of(job) {
            self.conn.prepare_cached(DELETE_GROUPED)?.execute(params![job.qid, gid, pri, run_at, id])?;
            self.touch_group(q, gid, job.opts.group.as_deref());
        } else {
            self.conn.prepare_cached(DELETE_DUE)?.execute(params![job.qid, pri, run_at, id])?;
        }
        Ok(())
    }

    /// Does the rest of leaving the timeline, for callers that delete many rows in one statement.
    pub(crate) fn left_due(&mut self, q: Q, due: Due<'_>) -> Step<()> {
        if let Some(t) = due.expires_at {
            let row = params![self.at(q).qid, ms(t), due.id.as_bytes()];
            self.conn.prepare_cached(DELETE_EXPIRY)?.execute(row)?;
        }
        let tally = self.tally(q);
        tally.waiting -= 1;
        tally.retrying -= i64::from(1 < due.attempt);
        Ok(())
    }

    /// Ends a job that is in no place. It is removed at once if its queue keeps no jobs of this state (S17).
    pub(crate) fn end(
        &mut self,
        q: Q,
        job: &mut Job,
        state: State,
        reason: Option<&str>,
        how: End,
    ) -> Step<()> {
        self.free_key_at_end(job, how)?;
        self.notify_end(job);
        self.tally(q).bytes -= job.bytes();
        if self.at(q).keep(state).keeps_nothing() {
            return self.remove(q, job.id, job.has_history, self.now);
        }
        job.history.reason = None;
        job.put_history(self.conn)?;
        self.put_ended(q, job.id, state, job.kept_bytes(), reason)
    }

    /// Notifies callers that wait for the end of a job, if there are any.
    pub(crate) fn notify_end(&mut self, job: &mut Job) {
        if std::mem::take(&mut job.history.watched) {
            self.notify_named(end_notification(job.id));
        }
    }

    /// Removes a job that was waiting until now. It counts as ended now.
    pub(crate) fn delete_waiting(&mut self, q: Q, job: &mut Job) -> Step<()> {
        self.free_key_at_end(job, End::CalledOff)?;
        self.notify_end(job);
        self.tally(q).bytes -= job.bytes();
        self.remove(q, job.id, job.has_history, self.now)
    }

    /// Writes the entry of an ended job.
    pub(crate) fn put_ended(
        &mut self,
        q: Q,
        id: JobId,
        state: State,
        bytes: i64,
        reason: Option<&str>,
    ) -> Step<()> {
        let ended = params![id.as_bytes(), self.at(q).qid, state as i64, self.now_ms(), bytes, reason];
        self.conn.prepare_cached(PUT_ENDED)?.execute(ended)?;
        let kept = self.tally(q).kept(state);
        kept.jobs += 1;
        kept.bytes += bytes;
        Ok(())
    }

    /// Removes an ended job from its place.
    pub(crate) fn leave_ended(&mut self, q: Q, id: &[u8], ended: &EndedRow) -> Step<()> {
        self.conn.prepare_cached(DELETE_ENDED)?.execute([id])?;
        let kept = self.tally(q).kept(ended.state);
        kept.jobs -= 1;
        kept.bytes -= ended.bytes;
        Ok(())
    }

    /// Removes the record of a job that is in no place. A derived id is remembered (S17).
    pub(crate) fn remove(&mut self, q: Q, id: JobId, has_history: bool, ended_at: Timestamp) -> Step<()> {
        self.delete_job(id, has_history)?;
        if id.is_derived() && self.steady()? < ended_at.after(ID_MEMORY) {
            let entry = params![self.at(q).qid, id.as_bytes(), ms(ended_at)];
            if self.conn.prepare_cached(REMEMBER_AGAIN)?.execute(entry)? == 0 {
                self.conn.prepare_cached(REMEMBER)?.execute(entry)?;
                self.tally(q).remembered += 1;
            }
        }
        Ok(())
    }

    /// Returns whether an id without a record is remembered in this queue.
    pub(crate) fn remembers(&self, q: Q, id: JobId) -> Step<bool> {
        if !id.is_derived() {
            return Ok(false);
        }
        let mut stmt = self.conn.prepare_cached(REMEMBERED)?;
        let at: Option<i64> =
            stmt.query_row(params![self.at(q).qid, id.as_bytes()], |row| row.get(0)).optional()?;
        Ok(at.is_some_and(|at| self.now < instant(at).after(ID_MEMORY)))
    }

    /// Returns the lease of a running job.
    pub(crate) fn lease(&self, id: JobId) -> Step<Option<LeaseRow>> {
        Ok(self
            .conn
            .prepare_cached(LEASE)?
            .query_row([id.as_bytes()], |row| Ok(LeaseRow::read(row)))
            .optional()?)
    }

    /// Sets the flags of a lease.
    pub(crate) fn put_lease_flags(&mut self, id: JobId, flags: i64) -> Step<()> {
        self.conn.prepare_cached(PUT_LEASE_FLAGS)?.execute(params![id.as_bytes(), flags])?;
        Ok(())
    }

    /// Deletes a lease.
    pub(crate) fn drop_lease(&mut self, q: Q, id: &[u8]) -> Step<()> {
        all_removed(self.conn.prepare_cached(DELETE_LEASE)?.execute([id])?, 1)?;
        self.tally(q).running -= 1;
        Ok(())
    }

    /// Ends a run, and moves the job as `then` says. Used for settling and reclaiming, so that both do the same.
    pub(crate) fn end_run(
        &mut self,
        q: Q,
        lease: &LeaseRow,
        job: &mut Job,
        then: impl FnOnce(&Run, Timestamp) -> Next,
    ) -> Step<(State, Option<EndReason>)> {
        let run = Run {
            id: job.id,
            attempt: job.history.attempt,
            expired_leases: job.history.expired_leases,
            snoozes: job.history.snoozes,
            max_attempts: job.opts.max_attempts(),
            cancel_requested: lease.cancel_requested(),
            company: lease.flags & LeaseRow::COMPANY != 0,
            lasts_ms: lease.lasts_ms.cast_unsigned(),
        };
        let next = if job.corrupt {
            let next = Next::overruled(State::Dead, &run, EndReason::Corrupt);
            Next { expired_leases: run.expired_leases, snoozes: run.snoozes, ..next }
        } else {
            then(&run, self.now)
        };
        self.drop_lease(q, job.id.as_bytes())?;
        if job.corrupt {
            self.end_turn_of_unknown(q, job.id.as_bytes())?;
        }
        self.end_slot(q, job)?;
        if let Some(error) = next.failed {
            job.history.failures.push(Failure {
                attempt: run.attempt,
                started_ms: lease.started_at.as_ms(),
                ended_ms: self.now.as_ms(),
                worker: lease.worker.clone(),
                error,
            });
            let surplus = job.history.failures.len().saturating_sub(FAILURES_MAX);
            job.history.failures.drain(..surplus);
        }
        (job.history.attempt, job.history.expired_leases, job.history.snoozes) =
            (next.attempt, next.expired_leases, next.snoozes);
        job.history.result = next.result;
        if next.state == State::Waiting {
            job.history.reason = next.reason;
            job.put_history(self.conn)?;
            if let Some(run_at) = next.run_at {
                job.put_run_at(self.conn, run_at)?;
            }
            self.start_waiting(q, Due::from(&*job))?;
        } else {
            self.end(q, job, next.state, next.reason.as_deref(), End::Other)?;
        }
        Ok((next.state, next.overruled))
    }
}
