//! One transaction for the verbs: a connection, the time, and the state that is read once and written once. That is
//! the store's row, the queues that were used, and the notifications to send after the commit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension, Row, params, types::ValueRef};

use crate::{
    core::{
        job::State,
        limits::CALLS_AHEAD_MAX,
        silence::{GAP_MS, Silences, Term},
        steady::Doubt,
        time::Timestamp,
    },
    store::{
        CallId, Counts, Keep, QueueSettings,
        clock::Clock,
        sqlite::{
            engine::{fault::Step, schema, sql::named},
            state::{
                codec::{Columns, countable},
                groups::ActiveGroups,
                keys::Key,
                limits::Limiter,
                places::kept_bytes,
            },
        },
    },
};

const FILE: &str = include_str!("../sql/tx.sql");
const STATE: &str = named(FILE, "state");
const PUT_STATE: &str = named(FILE, "put_state");
const ANY_LEASE: &str = named(FILE, "any_lease");
const SILENCES: &str = named(FILE, "silences");
const DOUBT: &str = named(FILE, "doubt");
const PUT_DOUBT: &str = named(FILE, "put_doubt");
const PUT_SILENCES: &str = named(FILE, "put_silences");
const QUEUE_BY_NAME: &str = named(FILE, "queue_by_name");
const QUEUE_BY_QID: &str = named(FILE, "queue_by_qid");
const NEW_QUEUE: &str = named(FILE, "new_queue");
const FOUND_QUEUE: &str = named(FILE, "found_queue");
const PUT_COUNTERS: &str = named(FILE, "put_counters");
const PUT_LIMITER: &str = named(FILE, "put_limiter");
const PUT_ACTIVE_GROUPS: &str = named(FILE, "put_active_groups");
const PUT_SETTINGS: &str = named(FILE, "put_settings");
const CALL: &str = named(FILE, "call");
const PUT_CALL: &str = named(FILE, "put_call");

/// Returns an instant in milliseconds, as SQLite stores it.
pub(crate) const fn ms(t: Timestamp) -> i64 {
    t.as_ms().cast_signed()
}

/// Returns a number of rows or bytes as SQLite takes it.
pub(crate) const fn int(n: usize) -> i64 {
    n.cast_signed() as i64
}

/// Converts an unsigned number so that SQLite sorts it in the same order.
const fn ordered(n: u64) -> i64 {
    (n ^ (1 << 63)).cast_signed()
}

/// Returns the instant of stored milliseconds. Invalid values are brought into range.
pub(crate) fn instant(ms: i64) -> Timestamp {
    Timestamp::saturating_from_ms(ms.max(0).cast_unsigned())
}

/// Reads how long something lasts that ends then, and its end while the clock is behind its beginning. What an older version stored, or
/// something else damaged, ends then.
pub(crate) fn term(row: &Row<'_>, until: Timestamp, at: usize) -> Term {
    let read = |at: usize| row.get(at).ok().and_then(|ms: i64| u64::try_from(ms).ok());
    let lasts = read(at).map_or(Duration::MAX, Duration::from_millis);
    Term { until, lasts, short: read(at + 1).map(Timestamp::saturating_from_ms) }
}

/// Reads when a job is due; `None` if that is no time. Only an audit can mend it, and it sorts behind all times.
pub(crate) fn due_time(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<i64>> {
    Ok(match row.get_ref(at)? {
        ValueRef::Integer(ms) => Some(ms),
        ValueRef::Real(ms) => Some(ms as i64),
        _ => None,
    })
}

/// A number of jobs, and the bytes of their payloads and results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) jobs: i64,
    pub(crate) bytes: i64,
}

impl Kept {
    /// No file has more jobs.
    const JOBS_MAX: i64 = 1 << 40;

    /// Returns whether so many jobs can have so many bytes. Damaged counters remove nothing until an audit has counted again.
    pub(crate) fn is_likely(self) -> bool {
        self.jobs <= Self::JOBS_MAX && self.bytes <= self.jobs.saturating_mul(kept_bytes(i64::MAX))
    }
}

/// The names of the numbers of a [`Tally`], for people, in the order of [`Tally::numbers`].
const NUMBERS: [&str; 11] = [
    "waiting jobs",
    "jobs in a later attempt",
    "running jobs",
    "bytes of live jobs",
    "done jobs",
    "bytes of done jobs",
    "dead jobs",
    "bytes of dead jobs",
    "cancelled jobs",
    "bytes of cancelled jobs",
    "remembered ids",
];

/// The stored counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) waiting: i64,
    pub(crate) retrying: i64,
    pub(crate) running: i64,
    /// The payload bytes of waiting and running jobs.
    pub(crate) bytes: i64,
    pub(crate) done: Kept,
    pub(crate) dead: Kept,
    pub(crate) cancelled: Kept,
    /// The remembered ids without a record.
    pub(crate) remembered: i64,
}

impl Tally {
    /// Returns the counter of an ended state.
    pub(crate) fn kept(&mut self, state: State) -> &mut Kept {
        match state {
            State::Done => &mut self.done,
            State::Cancelled => &mut self.cancelled,
            State::Dead | State::Waiting | State::Running => &mut self.dead,
        }
    }

    /// Adds the differences between `to` and `from` to all counters.
    pub(crate) fn shift(&mut self, mut from: Self, mut to: Self) {
        for ((n, from), to) in self.numbers().into_iter().zip(from.numbers()).zip(to.numbers()) {
            *n = n.saturating_add(to.saturating_sub(*from));
        }
    }

    fn numbers(&mut self) -> [&mut i64; NUMBERS.len()] {
        let Self { waiting, retrying, running, bytes, done, dead, cancelled, remembered } = self;
        let [done, dead, cancelled] = [done, dead, cancelled].map(|kept| (&mut kept.jobs, &mut kept.bytes));
        [
            waiting,
            retrying,
            running,
            bytes,
            done.0,
            done.1,
            dead.0,
            dead.1,
            cancelled.0,
            cancelled.1,
            remembered,
        ]
    }

    /// Brings all counters into the range in which they are read.
    pub(crate) fn countable(mut self) -> Self {
        for n in self.numbers() {
            *n = countable(*n);
        }
        self
    }

    /// Says which counters differ from those of a count, for people.
    pub(crate) fn differences(mut self, mut counted: Self) -> String {
        let numbers = self.numbers().into_iter().zip(counted.numbers());
        let differing = NUMBERS.iter().zip(numbers).filter(|(_, (kept, counted))| kept != counted);
        let texts =
            differing.map(|(name, (kept, counted))| format!("{name}: kept {kept}, counted {counted}"));
        texts.collect::<Vec<_>>().join("; ")
    }

    /// Returns the counters for callers; `due` is counted elsewhere.
    pub(crate) fn counts(&self) -> Counts {
        let shown = |n: i64| n.max(0).cast_unsigned();
        Counts {
            waiting: shown(self.waiting),
            retrying: shown(self.retrying),
            due: 0,
            running: shown(self.running),
            done: shown(self.done.jobs),
            dead: shown(self.dead.jobs),
            cancelled: shown(self.cancelled.jobs),
            bytes: shown(self.bytes),
            parts_away: 0,
        }
    }

    /// Reads the eleven columns from `waiting` on. An invalid value reads as a number that an audit will find wrong.
    pub(crate) fn read(row: &Row<'_>, from: usize) -> Self {
        let mut c = Columns::new(row);
        let mut kept = |at: usize| Kept { jobs: c.count(at), bytes: c.count(at + 1) };
        let (done, dead, cancelled) = (kept(from + 4), kept(from + 6), kept(from + 8));
        Self {
            waiting: c.count(from),
            retrying: c.count(from + 1),
            running: c.count(from + 2),
            bytes: c.count(from + 3),
            done,
            dead,
            cancelled,
            remembered: c.count(from + 10),
        }
    }
}

/// A queue in a transaction.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) qid: i64,
    pub(crate) name: String,
    pub(crate) settings: QueueSettings,
    /// Whether the settings cannot be read. The queue is then paused and keeps everything until they are set again.
    pub(crate) corrupt: bool,
    pub(crate) tally: Tally,
    stored: Tally,
    pub(crate) limiter: Limiter,
    stored_limiter: Limiter,
    pub(crate) active: ActiveGroups,
    stored_active: ActiveGroups,
}

impl Queue {
    /// Reads the columns of `queue_by_name`.
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let text: Option<String> = row.get(2).unwrap_or_else(|_| Some(String::new()));
        let parsed = text.as_deref().map(serde_json::from_str::<QueueSettings>).transpose();
        let (tally, limiter, active) =
            (Tally::read(row, 3), Limiter::read(row, 14), ActiveGroups::read(row, 17));
        Ok(Self {
            qid: row.get(0)?,
            name: Columns::new(row).text(1),
            corrupt: parsed.is_err(),
            settings: parsed.map_or_else(|_| QueueSettings::unreadable(), Option::unwrap_or_default),
            tally,
            stored: tally,
            limiter,
            stored_limiter: limiter,
            active,
            stored_active: active,
        })
    }

    /// Returns the retention of ended jobs of this state.
    pub(crate) const fn keep(&self, state: State) -> &Keep {
        match state {
            State::Done => &self.settings.done,
            State::Cancelled => &self.settings.cancelled,
            State::Dead | State::Waiting | State::Running => &self.settings.dead,
        }
    }
}

/// The index of a queue in this transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Q(usize);

/// How far after its slot a record is looked for if nothing says how far one lies: ids of one millisecond that could meet there are so far
/// apart.
const REACH_OF_LOST: i64 = 511;
/// The stored silences are in force.
const HAS_SILENCES: i64 = 1;
/// The stored doubt is in force: the clock is not believed yet.
const HAS_DOUBT: i64 = 2;

/// The store's state row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StoreRow {
    fence: i64,
    /// The last mark.
    seen: i64,
    /// Which rows of `punctual_meta` are in force: [`HAS_SILENCES`], [`HAS_DOUBT`]. An earlier version kept the end of a pause here.
    grace: i64,
    reach: i64,
    grouped: i64,
}

impl StoreRow {
    /// Reads the columns of `state`. Invalid values read as those of a new store: the clock still keeps fences
    /// rising.
    fn read(row: &Row<'_>) -> Self {
        let mut c = Columns::new(row);
        Self {
            fence: c.int(0).clamp(0, 1 << 62),
            seen: ms(c.time(1)),
            grace: ms(c.time(2)),
            reach: c.int(3).clamp(0, 1 << 24),
            grouped: c.int(4),
        }
    }
}

/// The numbered verb of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbered {
    Enqueue = 0,
    Reserve = 1,
}

/// Queues, and when there may be work in them.
pub(crate) type Notifications = Vec<(String, Timestamp)>;

/// One transaction.
pub(crate) struct Tx<'c> {
    pub(crate) conn: &'c Connection,
    /// The time, read once for the whole transaction (S14).
    pub(crate) now: Timestamp,
    /// How much of that millisecond had passed.
    pub(crate) into_ms: Duration,
    queues: Vec<Queue>,
    by_name: HashMap<String, Q>,
    by_qid: HashMap<i64, Q>,
    store: Option<(StoreRow, StoreRow)>,
    /// Read when they matter.
    silences: Option<Silences>,
    notifications: BTreeMap<usize, Timestamp>,
    /// Concurrency keys with events since blocked jobs were last re-checked, one entry per event (S15).
    touched: Vec<(Q, Key)>,
    /// Groups with an event since then, with their names if known (S16).
    touched_groups: HashMap<(Q, Key), Option<String>>,
    /// Whether blocked jobs were re-checked.
    handed_over: bool,
    /// How many jobs of a key or group run, for those that were counted.
    pub(crate) running: HashMap<(i64, Key), i64>,
    /// Other notifications to send after the commit: those of locks.
    named: BTreeSet<String>,
}

impl<'c> Tx<'c> {
    /// Makes the transaction that has just begun on a connection, or that begins with its first statement.
    ///
    /// # Errors
    /// `Outdated` if the file now has a newer schema: none of its rows may be interpreted.
    pub(crate) fn begin(conn: &'c Connection, clock: &Clock) -> Step<Self> {
        schema::check(conn)?;
        let (now, into_ms) = clock.read();
        Ok(Self {
            conn,
            now,
            into_ms,
            queues: Vec::new(),
            by_name: HashMap::new(),
            by_qid: HashMap::new(),
            store: None,
            silences: None,
            notifications: BTreeMap::new(),
            touched: Vec::new(),
            touched_groups: HashMap::new(),
            handed_over: false,
            running: HashMap::new(),
            named: BTreeSet::new(),
        })
    }

    /// Returns the current time as it is stored.
    pub(crate) const fn now_ms(&self) -> i64 {
        ms(self.now)
    }

    /// Writes what was gathered. Afterwards only the commit and the notifications may follow.
    pub(crate) fn finish(mut self) -> Step<Notifications> {
        if self.handed_over && self.store()?.grouped != 0 {
            self.forget_limiters()?;
        }
        if let Some((now, before)) = &self.store
            && now != before
        {
            self.conn.prepare_cached(PUT_STATE)?.execute(params![
                now.fence,
                now.seen,
                now.grace,
                now.reach,
                now.grouped
            ])?;
        }
        for queue in self.queues.iter().filter(|queue| queue.tally != queue.stored) {
            let t = &queue.tally;
            self.conn.prepare_cached(PUT_COUNTERS)?.execute(params![
                queue.qid,
                t.waiting,
                t.retrying,
                t.running,
                t.bytes,
                t.done.jobs,
                t.done.bytes,
                t.dead.jobs,
                t.dead.bytes,
                t.cancelled.jobs,
                t.cancelled.bytes,
                t.remembered,
            ])?;
        }
        for queue in self.queues.iter().filter(|queue| queue.limiter != queue.stored_limiter) {
            let Limiter { closed, tat, part } = queue.limiter;
            self.conn.prepare_cached(PUT_LIMITER)?.execute(params![queue.qid, closed, tat, part])?;
        }
        for queue in self.queues.iter().filter(|queue| queue.active != queue.stored_active) {
            let [time, ungrouped, seen, version] = queue.active.columns();
            self.conn
                .prepare_cached(PUT_ACTIVE_GROUPS)?
                .execute(params![queue.qid, time, ungrouped, seen, version])?;
        }
        let mut queues = self.queues;
        let notifications =
            self.notifications.into_iter().map(|(q, at)| (std::mem::take(&mut queues[q].name), at));
        Ok(notifications.chain(self.named.into_iter().map(|name| (name, self.now))).collect())
    }

    // ── queues ──

    /// Returns the queue of this name, if it exists.
    pub(crate) fn queue(&mut self, name: &str) -> Step<Option<Q>> {
        if let Some(q) = self.by_name.get(name) {
            return Ok(Some(*q));
        }
        let read = self.conn.prepare_cached(QUEUE_BY_NAME)?.query_row([name], Queue::read).optional()?;
        Ok(read.map(|queue| self.hold(queue)))
    }

    /// Creates the queue with this number, of which rows exist, under a name that nobody has.
    pub(crate) fn found_queue(&mut self, qid: i64) -> Step<Q> {
        let mut name = format!("found-{qid}");
        while self.queue(&name)?.is_some() {
            name.push('+');
        }
        self.conn.prepare_cached(FOUND_QUEUE)?.execute(params![qid, name])?;
        // It may have been held under a name that could not be read.
        self.by_qid.remove(&qid);
        let queue = self.conn.prepare_cached(QUEUE_BY_QID)?.query_row([qid], Queue::read)?;
        Ok(self.hold(queue))
    }

    /// Returns the queue of this name, and creates it if it is new.
    pub(crate) fn queue_or_new(&mut self, name: &str) -> Step<Q> {
        if let Some(q) = self.queue(name)? {
            return Ok(q);
        }
        self.conn.prepare_cached(NEW_QUEUE)?.execute([name])?;
        let queue = self.conn.prepare_cached(QUEUE_BY_NAME)?.query_row([name], Queue::read)?;
        Ok(self.hold(queue))
    }

    /// Returns the queue with this number; `None` if a row names one that does not exist.
    pub(crate) fn queue_by_qid(&mut self, qid: i64) -> Step<Option<Q>> {
        if let Some(q) = self.by_qid.get(&qid) {
            return Ok(Some(*q));
        }
        let read = self.conn.prepare_cached(QUEUE_BY_QID)?.query_row([qid], Queue::read).optional()?;
        Ok(read.map(|queue| self.hold(queue)))
    }

    /// Returns the name of the queue with this number.
    pub(crate) fn name_of(&mut self, qid: i64) -> Step<String> {
        Ok(self.queue_by_qid(qid)?.map_or_else(String::new, |q| self.at(q).name.clone()))
    }

    fn hold(&mut self, queue: Queue) -> Q {
        let q = Q(self.queues.len());
        self.by_name.insert(queue.name.clone(), q);
        self.by_qid.insert(queue.qid, q);
        self.queues.push(queue);
        q
    }

    pub(crate) fn at(&self, q: Q) -> &Queue {
        &self.queues[q.0]
    }

    pub(crate) fn tally(&mut self, q: Q) -> &mut Tally {
        &mut self.queues[q.0].tally
    }

    pub(crate) fn limiter(&mut self, q: Q) -> &mut Limiter {
        &mut self.queues[q.0].limiter
    }

    pub(crate) fn active_mut(&mut self, q: Q) -> &mut ActiveGroups {
        &mut self.queues[q.0].active
    }

    /// Replaces a queue's settings.
    pub(crate) fn put_settings(&mut self, q: Q, settings: QueueSettings) -> Step<()> {
        let text = (settings != QueueSettings::default()).then(|| settings.stored());
        self.conn.prepare_cached(PUT_SETTINGS)?.execute(params![self.at(q).qid, text])?;
        let queue = &mut self.queues[q.0];
        (queue.settings, queue.corrupt) = (settings, false);
        Ok(())
    }

    /// After the commit, notifies callers that wait for this queue that there may be work at `at`.
    pub(crate) fn notify(&mut self, q: Q, at: Timestamp) {
        self.notifications.entry(q.0).and_modify(|t| *t = at.min(*t)).or_insert(at);
    }

    /// Notes an event of a concurrency key. `hand_over` must follow.
    pub(crate) fn touch(&mut self, q: Q, key: Key) {
        self.touched.push((q, key));
    }

    pub(crate) fn take_touched(&mut self) -> Vec<(Q, Key)> {
        std::mem::take(&mut self.touched)
    }

    /// Notes an event of a group. `hand_over` must follow.
    pub(crate) fn touch_group(&mut self, q: Q, gid: Key, name: Option<&str>) {
        let known = self.touched_groups.entry((q, gid)).or_default();
        if known.is_none() {
            *known = name.map(str::to_owned);
        }
    }

    pub(crate) fn take_touched_groups(&mut self) -> HashMap<(Q, Key), Option<String>> {
        std::mem::take(&mut self.touched_groups)
    }

    /// Notes that blocked jobs were re-checked, so that obsolete state can be forgotten.
    pub(crate) const fn note_hand_over(&mut self) {
        self.handed_over = true;
    }

    /// After the commit, notifies callers that wait under this name, which is no queue's.
    pub(crate) fn notify_named(&mut self, name: String) {
        self.named.insert(name);
    }

    // ── the store's row ──

    fn store(&mut self) -> Step<&mut StoreRow> {
        if self.store.is_none() {
            let read = self.conn.prepare_cached(STATE)?.query_row([], |row| Ok(StoreRow::read(row)));
            // Something else may have removed it. Then the file may have groups, and records that lie after their slots. finish() writes it anew.
            let lost = StoreRow { grouped: 1, reach: REACH_OF_LOST, ..StoreRow::default() };
            let read = read.optional()?.unwrap_or(lost);
            self.store = Some((read, read));
        }
        Ok(&mut self.store.as_mut().expect("invariant: it was just read").0)
    }

    /// Returns the next fence. It is at least the time in microseconds, so fences never go back, not even if a power
    /// cut lost the last reservations (S1, S10). The fences of one call are consecutive.
    pub(crate) fn next_fence(&mut self) -> Step<i64> {
        let floor = self.now_ms().saturating_mul(1_000);
        let store = self.store()?;
        store.fence = store.fence.max(floor) + 1;
        Ok(store.fence)
    }

    /// Leaves a mark, and notes the silence that it ends (S14).
    pub(crate) fn mark(&mut self) -> Step<()> {
        let (conn, now) = (self.conn, self.now);
        let row = self.store()?;
        let seen = (0 < row.seen).then(|| instant(row.seen));
        row.seen = ms(now);
        if let Some(seen) = seen.filter(|seen| Doubt::is_changed_by(*seen, now)) {
            self.doubt_after(seen)?;
        }
        let row = self.store()?;
        let is_near = seen.is_some_and(|seen| seen <= now && now.since(seen).as_millis() <= GAP_MS.into());
        let has_silences = row.grace & HAS_SILENCES != 0;
        if is_near && !has_silences {
            return Ok(());
        }
        let leases_exist = conn.prepare_cached(ANY_LEASE)?.exists([])?;
        if !leases_exist && !has_silences {
            return Ok(());
        }
        let before = self.silences()?.clone();
        let mut silences = before.clone();
        silences.note(seen, now, leases_exist);
        self.has(HAS_SILENCES, silences != Silences::default())?;
        if silences != before {
            conn.prepare_cached(PUT_SILENCES)?.execute([silences.to_bytes()])?;
            self.silences = Some(silences);
        }
        Ok(())
    }

    /// Returns whether leases can end later than their length from now, because the clock went back.
    pub(crate) fn can_end_late(&mut self) -> Step<bool> {
        let (now, seen) = (self.now, instant(self.store()?.seen));
        Ok(now < seen || self.silences()?.can_end_late(now))
    }

    /// Sets or clears one of these flags.
    fn has(&mut self, row: i64, is_there: bool) -> Step<()> {
        let grace = self.store()?.grace & (HAS_SILENCES | HAS_DOUBT);
        self.store()?.grace = if is_there { grace | row } else { grace & !row };
        Ok(())
    }

    /// Notes a gap that a mark ends (S17).
    fn doubt_after(&mut self, seen: Timestamp) -> Step<()> {
        let doubt = self.doubt()?.noted(seen, self.now);
        let is_one = doubt != Doubt::default();
        if is_one {
            let mut put = self.conn.prepare_cached(PUT_DOUBT)?;
            for (key, at) in [("doubt_since", doubt.since), ("doubt_from", doubt.from)] {
                put.execute(params![key, ms(at)])?;
            }
        }
        self.has(HAS_DOUBT, is_one)
    }

    fn doubt(&mut self) -> Step<Doubt> {
        if self.store()?.grace & HAS_DOUBT == 0 {
            return Ok(Doubt::default());
        }
        let read = |row: &Row<'_>| {
            let mut c = Columns::new(row);
            Ok(Doubt { since: c.time(0), from: c.time(1) })
        };
        Ok(self.conn.prepare_cached(DOUBT)?.query_row([], read).optional()?.unwrap_or_default())
    }

    /// Returns the time by which upkeep removes (S17). Reads two rows while the clock is doubted.
    pub(crate) fn steady(&mut self) -> Step<Timestamp> {
        let (doubt, now) = (self.doubt()?, self.now);
        if doubt != Doubt::default() && doubt.until() <= now {
            self.has(HAS_DOUBT, false)?;
        }
        Ok(doubt.steady(now))
    }

    /// Returns the silences that may hold leases back.
    pub(crate) fn silences(&mut self) -> Step<&Silences> {
        if self.silences.is_none() {
            let mut known = Silences::default();
            if self.store()?.grace & HAS_SILENCES != 0 {
                let row = self
                    .conn
                    .prepare_cached(SILENCES)?
                    .query_row([], |row| Ok(row.get(0).unwrap_or_default()))
                    .optional()?;
                known = row.map(|bytes: Vec<u8>| Silences::from_bytes(&bytes)).unwrap_or_default();
            }
            self.silences = Some(known);
        }
        Ok(self.silences.get_or_insert_default())
    }

    /// Returns the time of the last mark (S9).
    pub(crate) fn seen(&mut self) -> Step<Timestamp> {
        Ok(instant(self.store()?.seen))
    }

    /// Returns the last fence: at least the time in microseconds at which it was made.
    pub(crate) fn last_fence(&mut self) -> Step<u64> {
        Ok(self.store()?.fence.max(0).cast_unsigned())
    }

    /// Returns how far after its slot a record can be.
    pub(crate) fn reach(&mut self) -> Step<i64> {
        Ok(self.store()?.reach)
    }

    pub(crate) fn set_reach(&mut self, reach: i64) -> Step<()> {
        self.store()?.reach = reach;
        Ok(())
    }

    /// Notes that some queue has groups.
    pub(crate) fn set_grouped(&mut self) -> Step<()> {
        self.store()?.grouped = 1;
        Ok(())
    }

    // ── last calls ──

    /// Returns the number and the stored answer of the instance's last call of a verb.
    pub(crate) fn last_call(&self, call: CallId, verb: Numbered) -> Step<Option<(u64, Vec<u8>)>> {
        let read = self
            .conn
            .prepare_cached(CALL)?
            .query_row(params![ordered(call.instance), verb as i64], |row| {
                let number =
                    if let ValueRef::Integer(n) = row.get_ref(0)? { Some(n.cast_unsigned()) } else { None };
                Ok((number, row.get_ref(1)?.as_blob_or_null().ok().flatten().unwrap_or_default().to_vec()))
            })
            .optional()?;
        let is_sound = |number: &u64| number.saturating_sub(call.number) < CALLS_AHEAD_MAX;
        Ok(read.and_then(|(number, answer)| Some((number.filter(is_sound)?, answer))))
    }

    /// Stores the answer of the instance's last call of a verb.
    pub(crate) fn put_call(&self, call: CallId, verb: Numbered, answer: &[u8]) -> Step<()> {
        let (instance, number) = (ordered(call.instance), call.number.cast_signed());
        let answer = (!answer.is_empty()).then_some(answer);
        self.conn.prepare_cached(PUT_CALL)?.execute(params![
            instance,
            verb as i64,
            number,
            self.now_ms(),
            answer
        ])?;
        Ok(())
    }
}
