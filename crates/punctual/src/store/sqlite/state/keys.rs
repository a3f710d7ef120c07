//! Unique keys (S4): which job holds one. Concurrency keys (S15): which jobs run, which are blocked, and which of
//! these is next. The rules are stated in the model's `keys.rs`.

use rusqlite::{OptionalExtension, params};

use crate::{
    core::{
        digest::digest,
        id::JobId,
        job::{Scope, Unique},
        limits::{BLOCKED_SEARCH_MAX, RECHECK_MAX},
        silence::Term,
        time::Timestamp,
    },
    store::{
        Order,
        sqlite::{
            engine::{
                fault::Step,
                sql::named,
                tx::{Q, Tx, due_time, instant, int, ms, term},
            },
            state::{
                codec::{Columns, Job, Opts},
                groups::{PUT_GROUPED, as_key, group_of},
                places::End,
            },
            verbs::reserve::job_id,
        },
    },
};
use rusqlite::{Row, types::Value};

const UNIQUE: &str = include_str!("../sql/unique_keys.sql");
const HOLDER: &str = named(UNIQUE, "holder");
const HOLD: &str = named(UNIQUE, "hold");
const NOTE_WINDOW: &str = named(UNIQUE, "note_window");
const FREE: &str = named(UNIQUE, "free");

const CONCURRENCY: &str = include_str!("../sql/concurrency_keys.sql");
const RUNNING: &str = named(CONCURRENCY, "running");
const RUN: &str = named(CONCURRENCY, "run");
const KEYS_OF: &str = named(CONCURRENCY, "keys_of");
const RUN_NO_MORE: &str = named(CONCURRENCY, "run_no_more");
const IS_BLOCKED: &str = named(CONCURRENCY, "is_blocked");
const BLOCK: &str = named(CONCURRENCY, "block");
const UNBLOCK: &str = named(CONCURRENCY, "unblock");
const FIRST_FIFO: &str = named(CONCURRENCY, "first_fifo");
const FIRST_LIFO: &str = named(CONCURRENCY, "first_lifo");
const COUNT: &str = named(CONCURRENCY, "count");
const COUNT_ALL: &str = named(CONCURRENCY, "count_all");
const BLOCKED: &str = named(CONCURRENCY, "blocked");
const NEXT_BLOCKED: &str = named(CONCURRENCY, "next_blocked");
const PUT_DUE: &str = named(include_str!("../sql/places.sql"), "put_due");

/// The digest of a concurrency key with its scope.
pub(crate) type Key = [u8; 16];

// ── unique keys ──

/// Encodes kind, group, concurrency key and key. Lengths come first, so that no two lists have the same encoding.
pub(crate) fn encode(
    kind: Option<&str>,
    group: Option<&str>,
    concurrency_key: Option<&str>,
    key: &str,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(kind.unwrap_or_default().len() + key.len() + 16);
    for part in [kind, group, concurrency_key, Some(key)] {
        bytes.push(u8::from(part.is_some()));
        // A name has at most 255 bytes; a longer one can be neither stored nor found.
        bytes.extend_from_slice(&(part.unwrap_or_default().len() as u16).to_be_bytes());
        bytes.extend_from_slice(part.unwrap_or_default().as_bytes());
    }
    bytes
}

fn encoded(kind: &str, opts: &Opts, unique: &Unique) -> Vec<u8> {
    let concurrency_key = opts.concurrency.as_ref().map(|concurrency| concurrency.key.as_str());
    encode(unique.kind_of(kind), opts.group.as_deref(), concurrency_key, &unique.key)
}

/// A row of `punctual_unique`.
struct KeyRow {
    id: JobId,
    /// Of a window.
    term: Option<Term>,
}

/// The holder of a key.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) id: JobId,
    /// The job's record; a window can outlive it.
    pub(crate) job: Option<Job>,
}

impl Tx<'_> {
    /// Returns the holder of a key, if it is held now.
    pub(crate) fn holder(&mut self, qid: i64, key: &[u8]) -> Step<Option<Holder>> {
        let Some(row) = self.key_row(qid, key)? else { return Ok(None) };
        self.holder_by(&row)
    }

    /// Does the same for who needs the key: from then on, a window of a clock that was ahead ends in its length (S14).
    pub(crate) fn meet_key(&mut self, qid: i64, kind: &str, opts: &Opts) -> Step<Option<Holder>> {
        let Some(unique) = &opts.unique else { return Ok(None) };
        let key = encoded(kind, opts, unique);
        let Some(mut row) = self.key_row(qid, &key)? else { return Ok(None) };
        if let Some(term) = &mut row.term
            && term.note(self.now)
        {
            self.conn.prepare_cached(NOTE_WINDOW)?.execute(params![qid, key, term.short.map(ms)])?;
        }
        self.holder_by(&row)
    }

    fn key_row(&self, qid: i64, key: &[u8]) -> Step<Option<KeyRow>> {
        let mut holder = self.conn.prepare_cached(HOLDER)?;
        let row = holder.query_row(params![qid, key], |row| {
            let mut c = Columns::new(row);
            let until = c.optional(1, Columns::time);
            Ok(c.id(0).map(|id| KeyRow { id, term: until.map(|until| term(row, until, 2)) }))
        });
        Ok(row.optional()?.flatten())
    }

    fn holder_by(&mut self, row: &KeyRow) -> Step<Option<Holder>> {
        let job = self.job(row.id)?;
        let held = row.term.map_or(job.is_some(), |term| self.now < term.end(self.now));
        Ok(held.then_some(Holder { id: row.id, job }))
    }

    /// Returns the holder of the key that a job of this kind with these options needs.
    pub(crate) fn holder_of(&mut self, qid: i64, kind: &str, opts: &Opts) -> Step<Option<Holder>> {
        match &opts.unique {
            Some(unique) => self.holder(qid, &encoded(kind, opts, unique)),
            None => Ok(None),
        }
    }

    /// Takes the key that these options of a job need. It must be free or void.
    pub(crate) fn hold_key(
        &self,
        qid: i64,
        (id, kind): (JobId, &str),
        opts: &Opts,
        created_at: Timestamp,
    ) -> Step<()> {
        let Some(unique) = &opts.unique else { return Ok(()) };
        let (scope, lasts) = match unique.scope {
            Scope::UntilDone => (0, None),
            Scope::UntilStart => (1, None),
            Scope::Window { window_ms } => (2, Some(window_ms.cast_signed())),
        };
        let until = window_end(unique, created_at).map(ms);
        let row = params![qid, encoded(kind, opts, unique), id.as_bytes(), scope, until, lasts];
        self.conn.prepare_cached(HOLD)?.execute(row)?;
        Ok(())
    }

    /// Handles the start of a job: frees a key until start, and stores the start if a retry or cancel will need to
    /// know.
    pub(crate) fn free_key_at_start(&self, job: &mut Job) -> Step<()> {
        let Some(unique) = &job.opts.unique else { return Ok(()) };
        if unique.scope == Scope::UntilStart {
            self.free_key(job)?;
        }
        if !job.holds_until_done() && !job.history.started {
            job.history.started = true;
            job.put_history(self.conn)?;
        }
        Ok(())
    }

    /// Handles the end of a job: frees its key. A window is freed only by an end before the start.
    pub(crate) fn free_key_at_end(&self, job: &Job, how: End) -> Step<()> {
        match &job.opts.unique {
            Some(Unique { scope: Scope::Window { .. }, .. }) if how == End::Other || job.history.started => {
                Ok(())
            }
            Some(_) => self.free_key(job),
            None => Ok(()),
        }
    }

    /// Frees the key if this job holds it.
    fn free_key(&self, job: &Job) -> Step<()> {
        if let Some(unique) = &job.opts.unique {
            let row = params![job.qid, encoded(&job.kind, &job.opts, unique), job.id.as_bytes()];
            self.conn.prepare_cached(FREE)?.execute(row)?;
        }
        Ok(())
    }
}

/// Returns when a window ends; `None` for other scopes.
pub(crate) fn window_end(unique: &Unique, created_at: Timestamp) -> Option<Timestamp> {
    match unique.scope {
        Scope::Window { window_ms } => {
            Some(Timestamp::saturating_from_ms(created_at.as_ms().saturating_add(window_ms)))
        }
        Scope::UntilDone | Scope::UntilStart => None,
    }
}

// ── concurrency keys ──

/// Returns a number of a row; 0 for what is none.
const fn number(value: &Value) -> i64 {
    if let Value::Integer(n) = value { *n } else { 0 }
}

/// A row of `punctual_parked`.
pub(crate) struct BlockedRow {
    key: Value,
    pri: Value,
    run_at: Value,
    id: Value,
    /// How many jobs of the key can run when it starts, including itself.
    most: i64,
    gid: Option<Key>,
}

impl BlockedRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let gid: Value = row.get(5)?;
        Ok(Self {
            key: row.get(0)?,
            pri: row.get(1)?,
            run_at: row.get(2)?,
            id: row.get(3)?,
            most: Columns::new(row).int(4),
            gid: as_key(&gid),
        })
    }

    /// Returns whether its place can be read.
    const fn is_sound(&self) -> bool {
        matches!((&self.pri, &self.run_at), (Value::Integer(_), Value::Integer(_)))
    }

    /// Returns the job that it names, if that has a record.
    pub(crate) fn job(&self, tx: &mut Tx<'_>) -> Step<Option<Job>> {
        match &self.id {
            Value::Blob(id) => job_id(id).map_or(Ok(None), |id| tx.job(id)),
            _ => Ok(None),
        }
    }
}

impl Tx<'_> {
    /// Returns the concurrency key of a job and its limit.
    pub(crate) fn key_of(&mut self, job: &Job) -> Step<Option<(Key, u32)>> {
        let Some(concurrency) = &job.opts.concurrency else { return Ok(None) };
        let queue = self.name_of(job.qid)?;
        let key = digest(&[Some(&queue), job.opts.group.as_deref(), Some(&concurrency.key)]);
        Ok(Some((key, concurrency.limit)))
    }

    /// Returns whether `most` jobs of a key run, or more. They are counted once per transaction.
    pub(crate) fn run_already(&mut self, qid: i64, key: &Key, most: i64) -> Step<bool> {
        let running = match self.running.get(&(qid, *key)) {
            Some(running) => *running,
            None => self.conn.prepare_cached(RUNNING)?.query_row(params![qid, key], |row| row.get(0))?,
        };
        self.running.insert((qid, *key), running);
        Ok(most <= running)
    }

    /// Returns whether the concurrency key of a job is full.
    pub(crate) fn is_key_full(&mut self, job: &Job) -> Step<bool> {
        match self.key_of(job)? {
            Some((key, most)) => self.run_already(job.qid, &key, most.into()),
            None => Ok(false),
        }
    }

    /// Counts the start of a job with a key.
    pub(crate) fn take_slot(&mut self, q: Q, job: &Job, key: Key) -> Step<()> {
        self.run(job, &key)?;
        self.touch(q, key);
        Ok(())
    }

    /// Counts the start of a job for a key or a group.
    pub(crate) fn run(&mut self, job: &Job, key: &Key) -> Step<()> {
        let added = self.conn.prepare_cached(RUN)?.execute(params![job.qid, key, job.id.as_bytes()])?;
        self.count_running(job.qid, key, int(added));
        Ok(())
    }

    /// Handles the end of a job's run.
    pub(crate) fn end_slot(&mut self, q: Q, job: &Job) -> Step<()> {
        if let Some((key, _)) = self.key_of(job)? {
            self.leave_slot(q, key, job.id.as_bytes())?;
            self.touch(q, key);
        }
        if let Some(gid) = group_of(job) {
            self.leave_slot(q, gid, job.id.as_bytes())?;
            self.touch_group(q, gid, job.opts.group.as_deref());
        }
        Ok(())
    }

    /// Handles the end of a run whose record cannot be read.
    pub(crate) fn end_turn_of_unknown(&mut self, q: Q, id: &[u8]) -> Step<()> {
        let keys: Vec<Vec<u8>> = {
            let mut keys = self.conn.prepare_cached(KEYS_OF)?;
            let rows = keys.query_map(params![self.at(q).qid, id], |row| row.get(0))?;
            rows.collect::<Result<_, _>>()?
        };
        for key in keys {
            if let Ok(key) = Key::try_from(key) {
                self.leave_slot(q, key, id)?;
                self.touch_event(q, key);
            }
        }
        Ok(())
    }

    /// Notes an event of a digest, which is that of a concurrency key or a group.
    pub(crate) fn touch_event(&mut self, q: Q, key: Key) {
        self.touch(q, key);
        self.touch_group(q, key, None);
    }

    fn leave_slot(&mut self, q: Q, key: Key, id: &[u8]) -> Step<()> {
        let qid = self.at(q).qid;
        let removed = self.conn.prepare_cached(RUN_NO_MORE)?.execute(params![qid, key, id])?;
        self.count_running(qid, &key, -int(removed));
        Ok(())
    }

    fn count_running(&mut self, qid: i64, key: &Key, by: i64) {
        if let Some(running) = self.running.get_mut(&(qid, *key)) {
            *running += by;
        }
    }

    /// Returns whether a waiting job is blocked by its concurrency key.
    pub(crate) fn is_blocked(&mut self, job: &Job) -> Step<bool> {
        let Some((key, _)) = self.key_of(job)? else { return Ok(false) };
        let row = params![job.qid, key, job.priority as i64, ms(job.run_at), job.id.as_bytes()];
        Ok(self.conn.prepare_cached(IS_BLOCKED)?.exists(row)?)
    }

    /// Returns whether a blocked job of this key comes before this one.
    fn is_behind(&self, q: Q, job: &Job, key: &Key) -> Step<bool> {
        let Some(BlockedRow { pri, run_at, id, .. }) = self.first_blocked(q, key)? else { return Ok(false) };
        let (own, id) = (job.id.as_bytes(), if let Value::Blob(id) = &id { id.as_slice() } else { &[] });
        let (pri, run_at) = (number(&pri), number(&run_at));
        let (first, this) = ((run_at, id), (ms(job.run_at), own.as_slice()));
        let is_ahead = match self.at(q).settings.order {
            Order::Fifo => first < this,
            Order::Lifo => this < first,
        };
        Ok(pri < job.priority as i64 || pri == job.priority as i64 && is_ahead)
    }

    /// Blocks a due job if its key is full, or if a blocked job of its key comes first. The caller handles its row in
    /// the timeline.
    pub(crate) fn block_if_full(&mut self, q: Q, job: &Job) -> Step<bool> {
        let Some((key, most)) = self.key_of(job)? else { return Ok(false) };
        if !self.run_already(job.qid, &key, most.into())? && !self.is_behind(q, job, &key)? {
            return Ok(false);
        }
        let (pri, gid) = (job.priority as i64, group_of(job));
        let row = params![job.qid, key, pri, ms(job.run_at), job.id.as_bytes(), most, gid];
        self.conn.prepare_cached(BLOCK)?.execute(row)?;
        self.touch(q, key);
        Ok(true)
    }

    /// Removes a waiting job from the blocked ones, if it is there.
    pub(crate) fn unblock(&mut self, q: Q, job: &Job) -> Step<()> {
        if let Some((key, _)) = self.key_of(job)? {
            let row = params![job.qid, key, job.priority as i64, ms(job.run_at), job.id.as_bytes()];
            self.conn.prepare_cached(UNBLOCK)?.execute(row)?;
            self.touch(q, key);
        }
        Ok(())
    }

    /// Re-checks the first blocked job of the key for each event, and returns it to the timeline if it can run; the next
    /// one, too, if it is not due any more. Then files groups with an event again.
    pub(crate) fn hand_over(&mut self) -> Step<()> {
        for (q, key) in self.take_touched() {
            for _ in 0..RECHECK_MAX {
                let Some(first) = self.first_blocked(q, &key)? else { break };
                if self.run_already(self.at(q).qid, &key, first.most)? {
                    break;
                }
                let run_at = self.return_blocked(q, &first)?;
                if run_at <= ms(self.now) {
                    break;
                }
            }
        }
        self.file_touched()?;
        self.note_hand_over();
        Ok(())
    }

    /// Returns a blocked job to the timeline, and says when it is due.
    fn return_blocked(&mut self, q: Q, first: &BlockedRow) -> Step<i64> {
        let (qid, id) = (self.at(q).qid, &first.id);
        let (mut pri, mut run_at) = (number(&first.pri), number(&first.run_at));
        self.drop_blocked(q, first)?;
        if !first.is_sound()
            && let Some(job) = first.job(self)?
        {
            (pri, run_at) = (job.priority as i64, ms(job.run_at));
        }
        let Some(gid) = first.gid else {
            self.conn.prepare_cached(PUT_DUE)?.execute(params![qid, pri, run_at, id])?;
            self.notify(q, instant(run_at));
            return Ok(run_at);
        };
        self.conn.prepare_cached(PUT_GROUPED)?.execute(params![qid, gid, pri, run_at, id])?;
        let group = first.job(self)?.and_then(|job| job.opts.group);
        self.touch_group(q, gid, group.as_deref());
        Ok(run_at)
    }

    /// Returns the first blocked job of a key.
    fn first_blocked(&self, q: Q, key: &Key) -> Step<Option<BlockedRow>> {
        let queue = self.at(q);
        let mut first = self.conn.prepare_cached(match queue.settings.order {
            Order::Fifo => FIRST_FIFO,
            Order::Lifo => FIRST_LIFO,
        })?;
        Ok(first.query_row(params![queue.qid, key], BlockedRow::read).optional()?)
    }

    /// Counts the blocked jobs of a queue, or of all, up to `limit`.
    pub(crate) fn count_blocked(&self, q: Option<Q>, limit: u64) -> Step<u64> {
        let (sql, qid) = q.map_or((COUNT_ALL, None), |q| (COUNT, Some(self.at(q).qid)));
        let mut count = self.conn.prepare_cached(sql)?;
        Ok(count.query_row(params![qid, limit.cast_signed()], |row| row.get::<_, i64>(0))?.cast_unsigned())
    }

    /// Returns when the oldest blocked job of a queue became due, of the first jobs of some keys and priorities.
    pub(crate) fn oldest_blocked(&self, q: Q) -> Step<Option<Timestamp>> {
        let mut next = self.conn.prepare_cached(NEXT_BLOCKED)?;
        let (mut oldest, mut after) = (None, (Value::Blob(Vec::new()), Value::Integer(-1)));
        for _ in 0..BLOCKED_SEARCH_MAX {
            let row = next.query_row(params![self.at(q).qid, after.0, after.1], |row| {
                Ok(((row.get(0)?, row.get(1)?), due_time(row, 2)?))
            });
            let Some((of, run_at)) = row.optional()? else { break };
            after = of;
            oldest = oldest.into_iter().chain(run_at.map(instant)).min();
        }
        Ok(oldest)
    }

    /// Returns the first `n` blocked jobs of a queue, key by key.
    pub(crate) fn blocked_rows(&self, q: Q, n: usize) -> Step<Vec<BlockedRow>> {
        let mut blocked = self.conn.prepare_cached(BLOCKED)?;
        let rows = blocked.query_map(params![self.at(q).qid, int(n)], BlockedRow::read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Deletes only a row of a blocked job.
    pub(crate) fn drop_blocked(&self, q: Q, row: &BlockedRow) -> Step<()> {
        let key = params![self.at(q).qid, row.key, row.pri, row.run_at, row.id];
        self.conn.prepare_cached(UNBLOCK)?.execute(key)?;
        Ok(())
    }
}
