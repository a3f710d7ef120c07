//! What holds due jobs back (S15): the limits of queues, those of groups are in `fair.rs`; and concurrency keys: who runs, who
//! waits for its turn, and whose turn comes. The rules are told in the model's `gate.rs`.

use rusqlite::{OptionalExtension, Row, params, types::Value};

use super::{
    fair::{PUT_GROUPED, as_key, group_of},
    fault::Step,
    job::{Columns, Job},
    reserve::job_id,
    sql::named,
    tx::{Q, Tx, instant, int, ms},
};
use crate::{
    core::{
        digest::digest,
        limits::GATE_MAX,
        rate::{Arrival, Rate},
        time::Timestamp,
    },
    store::Order,
};

const FILE: &str = include_str!("sql/gate.sql");
const RUNNING: &str = named(FILE, "running");
const RUN: &str = named(FILE, "run");
const KEYS_OF: &str = named(FILE, "keys_of");
const RUN_NO_MORE: &str = named(FILE, "run_no_more");
const IS_PARKED: &str = named(FILE, "is_parked");
const PARK: &str = named(FILE, "park");
const UNPARK: &str = named(FILE, "unpark");
const FIRST_FIFO: &str = named(FILE, "first_fifo");
const FIRST_LIFO: &str = named(FILE, "first_lifo");
const COUNT: &str = named(FILE, "count");
const PARKED: &str = named(FILE, "parked");
const PUT_DUE: &str = named(include_str!("sql/place.sql"), "put_due");

/// What stands for a concurrency key with all that it is compared within.
pub(super) type Key = [u8; 16];

/// What a queue or a group remembers for its limits, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) closed: i64,
    pub(super) arrival: i64,
    pub(super) part: i64,
}

impl Gate {
    /// Reads the three columns from `from` on.
    pub(super) fn read(row: &Row<'_>, from: usize) -> Self {
        let mut c = Columns::new(row);
        Self { closed: c.int(from), arrival: c.int(from + 1), part: c.int(from + 2) }
    }

    /// Rubbish reads as an arrival that no rate believes, or as none.
    fn arrival(self) -> Option<Arrival> {
        let (ms, part) = (u64::try_from(self.arrival).ok()?, u32::try_from(self.part).ok()?);
        (0 < ms).then_some(Arrival { ms, part })
    }

    /// Until when it is closed, if it can be.
    fn closed_until(self, now: Timestamp) -> Option<Timestamp> {
        Some(instant(self.closed)).filter(|until| *until <= now.after(GATE_MAX))
    }

    /// When its rate, and whoever closed it, let a job start.
    pub(super) fn opens_in_time(self, rate: Option<Rate>, now: Timestamp) -> Timestamp {
        let by_rate =
            rate.map(|rate| Timestamp::saturating_from_ms(rate.opens_at(self.arrival(), now.as_ms(), 1)));
        self.closed_until(now).into_iter().chain(by_rate).fold(now, Timestamp::max)
    }

    /// A job starts.
    pub(super) fn spend(&mut self, rate: Option<Rate>, now: Timestamp) {
        if let Some(Ok(Arrival { ms, part })) = rate.map(|rate| rate.pass(self.arrival(), now.as_ms(), 1)) {
            (self.arrival, self.part) = (ms.cast_signed(), part.into());
        }
    }

    /// A run closes it.
    pub(super) fn close(&mut self, until: Timestamp, now: Timestamp) {
        self.closed = ms(self.closed_until(now).max(Some(until.min(now.after(GATE_MAX)))).unwrap_or(until));
    }

    /// An operator opens it.
    pub(super) fn open(&mut self) {
        self.closed = 0;
    }

    /// Until when it says more than a new one, if it does.
    pub(super) fn remembers(self, now: Timestamp) -> Option<i64> {
        let last = self.closed.max(self.arrival);
        (0 < last && ms(now) <= last).then_some(last)
    }
}

/// A row of `punctual_parked`.
pub(super) struct ParkedRow {
    key: Value,
    pri: i64,
    run_at: i64,
    id: Value,
    /// How many of the key may run as it starts, itself included.
    most: i64,
    gid: Option<Key>,
}

impl ParkedRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let gid: Value = row.get(5)?;
        Ok(Self {
            key: row.get(0)?,
            pri: row.get(1)?,
            run_at: row.get(2)?,
            id: row.get(3)?,
            most: row.get(4)?,
            gid: as_key(&gid),
        })
    }

    /// The job that it names, where it has a record.
    pub(super) fn job(&self, tx: &mut Tx<'_>) -> Step<Option<Job>> {
        match &self.id {
            Value::Blob(id) => job_id(id).map_or(Ok(None), |id| tx.job(id)),
            _ => Ok(None),
        }
    }
}

impl Tx<'_> {
    // ── queues ──

    /// When the next job of a queue may start; `None`: when one of those that run has ended.
    pub(super) fn opens(&self, q: Q) -> Option<Timestamp> {
        let queue = self.at(q);
        let is_full = queue.settings.concurrency.is_some_and(|most| i64::from(most) <= queue.tally.running);
        (!is_full).then(|| self.opens_in_time(q))
    }

    pub(super) fn is_open(&self, q: Q) -> bool {
        self.opens(q) == Some(self.now)
    }

    /// When its rate, and whoever closed its gate, let a job of a queue start.
    pub(super) fn opens_in_time(&self, q: Q) -> Timestamp {
        let queue = self.at(q);
        queue.gate.opens_in_time(queue.settings.rate, self.now)
    }

    /// A job of a queue starts.
    pub(super) fn spend(&mut self, q: Q) {
        let (rate, now) = (self.at(q).settings.rate, self.now);
        self.gate(q).spend(rate, now);
    }

    /// A run closes the gate of its queue.
    pub(super) fn close(&mut self, q: Q, until: Timestamp) {
        let now = self.now;
        self.gate(q).close(until, now);
    }

    /// An operator opens the gate of a queue.
    pub(super) fn open(&mut self, q: Q) {
        self.gate(q).open();
    }

    // ── concurrency keys ──

    /// The concurrency key of a job, and how many of it may run.
    pub(super) fn key_of(&mut self, job: &Job) -> Step<Option<(Key, u32)>> {
        let Some(concurrency) = &job.opts.concurrency else { return Ok(None) };
        let queue = self.name_of(job.qid)?;
        let key = digest(&[Some(&queue), job.opts.group.as_deref(), Some(&concurrency.key)]);
        Ok(Some((key, concurrency.limit)))
    }

    /// Whether so many jobs of a key run, or more. They are counted once in a transaction.
    pub(super) fn run_already(&mut self, qid: i64, key: &Key, most: i64) -> Step<bool> {
        let running = match self.running.get(&(qid, *key)) {
            Some(running) => *running,
            None => self.conn.prepare_cached(RUNNING)?.query_row(params![qid, key], |row| row.get(0))?,
        };
        self.running.insert((qid, *key), running);
        Ok(most <= running)
    }

    /// Whether as many jobs of a job's key run as may beside it.
    pub(super) fn is_blocked(&mut self, job: &Job) -> Step<bool> {
        match self.key_of(job)? {
            Some((key, most)) => self.run_already(job.qid, &key, most.into()),
            None => Ok(false),
        }
    }

    /// A job with a key starts.
    pub(super) fn take_turn(&mut self, q: Q, job: &Job, key: Key) -> Step<()> {
        self.run(job, &key)?;
        self.touch(q, key);
        Ok(())
    }

    /// A job starts, and runs as one of a key or a group.
    pub(super) fn run(&mut self, job: &Job, key: &Key) -> Step<()> {
        let added = self.conn.prepare_cached(RUN)?.execute(params![job.qid, key, job.id.as_bytes()])?;
        self.count_running(job.qid, key, int(added));
        Ok(())
    }

    /// The run of a job ends.
    pub(super) fn end_turn(&mut self, q: Q, job: &Job) -> Step<()> {
        if let Some((key, _)) = self.key_of(job)? {
            self.leave_turn(q, key, job.id.as_bytes())?;
            self.touch(q, key);
        }
        if let Some(gid) = group_of(job) {
            self.leave_turn(q, gid, job.id.as_bytes())?;
            self.touch_group(q, gid, job.opts.group.as_deref());
        }
        Ok(())
    }

    /// The same, of a job whose record can't be read.
    pub(super) fn end_turn_of_unknown(&mut self, q: Q, id: &[u8]) -> Step<()> {
        let keys: Vec<Vec<u8>> = {
            let mut keys = self.conn.prepare_cached(KEYS_OF)?;
            let rows = keys.query_map(params![self.at(q).qid, id], |row| row.get(0))?;
            rows.collect::<Result<_, _>>()?
        };
        for key in keys {
            if let Ok(key) = Key::try_from(key) {
                self.leave_turn(q, key, id)?;
                self.touch_event(q, key);
            }
        }
        Ok(())
    }

    /// Notes an event of a concurrency key, or of a group, whichever it is.
    pub(super) fn touch_event(&mut self, q: Q, key: Key) {
        self.touch(q, key);
        self.touch_group(q, key, None);
    }

    fn leave_turn(&mut self, q: Q, key: Key, id: &[u8]) -> Step<()> {
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

    /// Whether a waiting job is parked.
    pub(super) fn is_parked(&mut self, job: &Job) -> Step<bool> {
        let Some((key, _)) = self.key_of(job)? else { return Ok(false) };
        let row = params![job.qid, key, job.priority as i64, ms(job.run_at), job.id.as_bytes()];
        Ok(self.conn.prepare_cached(IS_PARKED)?.exists(row)?)
    }

    /// Whether a job of this key is parked that comes before this one.
    fn is_behind(&self, q: Q, job: &Job, key: &Key) -> Step<bool> {
        let Some(ParkedRow { pri, run_at, id, .. }) = self.first_parked(q, key)? else { return Ok(false) };
        let (own, id) = (job.id.as_bytes(), if let Value::Blob(id) = &id { id.as_slice() } else { &[] });
        let (first, this) = ((run_at, id), (ms(job.run_at), own.as_slice()));
        let is_ahead = match self.at(q).settings.order {
            Order::Fifo => first < this,
            Order::Lifo => this < first,
        };
        Ok(pri < job.priority as i64 || pri == job.priority as i64 && is_ahead)
    }

    /// Parks a due job if it waits for its turn: as many of its key run as may beside it, or one that comes first is parked.
    /// Its row in the timeline is the caller's.
    pub(super) fn park_if_blocked(&mut self, q: Q, job: &Job) -> Step<bool> {
        let Some((key, most)) = self.key_of(job)? else { return Ok(false) };
        if !self.run_already(job.qid, &key, most.into())? && !self.is_behind(q, job, &key)? {
            return Ok(false);
        }
        let (pri, gid) = (job.priority as i64, group_of(job));
        let row = params![job.qid, key, pri, ms(job.run_at), job.id.as_bytes(), most, gid];
        self.conn.prepare_cached(PARK)?.execute(row)?;
        self.touch(q, key);
        Ok(true)
    }

    /// Takes a waiting job out of where it may be parked.
    pub(super) fn unpark(&mut self, q: Q, job: &Job) -> Step<()> {
        if let Some((key, _)) = self.key_of(job)? {
            let row = params![job.qid, key, job.priority as i64, ms(job.run_at), job.id.as_bytes()];
            self.conn.prepare_cached(UNPARK)?.execute(row)?;
            self.touch(q, key);
        }
        Ok(())
    }

    /// For each event of a key, the first of its parked jobs returns to the timeline if it may run; then groups with an event are
    /// filed anew.
    pub(super) fn hand_over(&mut self) -> Step<()> {
        for (q, key) in self.take_touched() {
            if let Some(first) = self.first_parked(q, &key)?
                && !self.run_already(self.at(q).qid, &key, first.most)?
            {
                self.return_parked(q, &first)?;
            }
        }
        self.file_touched()?;
        self.note_hand_over();
        Ok(())
    }

    /// A parked job returns to the timeline.
    fn return_parked(&mut self, q: Q, first: &ParkedRow) -> Step<()> {
        let (qid, ParkedRow { pri, run_at, id, .. }) = (self.at(q).qid, first);
        self.drop_parked(q, first)?;
        let Some(gid) = first.gid else {
            self.conn.prepare_cached(PUT_DUE)?.execute(params![qid, pri, run_at, id])?;
            self.ring(q, instant(*run_at));
            return Ok(());
        };
        self.conn.prepare_cached(PUT_GROUPED)?.execute(params![qid, gid, pri, run_at, id])?;
        let group = first.job(self)?.and_then(|job| job.opts.group);
        self.touch_group(q, gid, group.as_deref());
        Ok(())
    }

    /// The first of the parked jobs of a key.
    fn first_parked(&self, q: Q, key: &Key) -> Step<Option<ParkedRow>> {
        let queue = self.at(q);
        let mut first = self.conn.prepare_cached(match queue.settings.order {
            Order::Fifo => FIRST_FIFO,
            Order::Lifo => FIRST_LIFO,
        })?;
        Ok(first.query_row(params![queue.qid, key], ParkedRow::read).optional()?)
    }

    /// Parked jobs of a queue, counted up to `limit`.
    pub(super) fn count_parked(&self, qid: i64, limit: u64) -> Step<u64> {
        let mut count = self.conn.prepare_cached(COUNT)?;
        Ok(count.query_row(params![qid, limit.cast_signed()], |row| row.get::<_, i64>(0))?.cast_unsigned())
    }

    /// The first `n` parked jobs of a queue, key by key.
    pub(super) fn parked_rows(&self, q: Q, n: usize) -> Step<Vec<ParkedRow>> {
        let mut parked = self.conn.prepare_cached(PARKED)?;
        let rows = parked.query_map(params![self.at(q).qid, int(n)], ParkedRow::read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Deletes a row of a parked job alone.
    pub(super) fn drop_parked(&self, q: Q, row: &ParkedRow) -> Step<()> {
        let key = params![self.at(q).qid, row.key, row.pri, row.run_at, row.id];
        self.conn.prepare_cached(UNPARK)?.execute(key)?;
        Ok(())
    }
}
