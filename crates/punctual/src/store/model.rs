//! The contract as a program: a pure, synchronous state machine that answers as every store must.
//!
//! It reads no clock (now is an argument), does no I/O and is never optimised: rows in maps, found by looking at all of
//! them, in the words of the docs of [`Store`](crate::store::Store). There is no index that could disagree with a row and
//! no counter that could drift. Behind a mutex it is [`MemoryStore`](crate::store::memory::MemoryStore); in tests it is
//! the oracle that the other stores agree with.
//!
//! ```text
//!            enqueue                 reserve, take
//!   nothing ─────────► waiting ◄───────────────────► running      release, retry, snooze, taken back: waiting again
//!                         │                             │
//!                         └──────────► ended ◄──────────┘         done, dead, cancelled; an operator's retry: waiting
//!                                        │
//!                                        ▼
//!                                    remembered                   a derived id, for 24 h after the end; then nothing
//! ```
//!
//! Beside the rows it knows who holds which unique key, the last call of each instance, the last fence, when it was last
//! called, documents, and what tools keep.

mod act;
mod doc;
mod enqueue;
mod fair;
mod gate;
mod queue;
mod read;
mod reserve;
mod settle;
mod sweep;
mod tool;

use std::collections::BTreeMap;

use crate::{
    core::{
        id::JobId,
        job::{JobRecord, Scope, State},
        limits::{HEARTBEAT_DEFAULT, ID_MEMORY, LEASE_DEFAULT},
        time::Timestamp,
    },
    store::{
        Doc, Keep, Lease, Order, QueueSettings, UniqueKey,
        defaults::{Defaults, defaults},
    },
};

/// The contract as a program; a method per verb of [`Store`](crate::store::Store).
#[derive(Clone, Debug, Default)]
pub struct Model {
    queues: BTreeMap<String, Set>,
    rows: BTreeMap<JobId, Row>,
    /// Derived ids without a record, by queue: when their jobs ended.
    remembered: BTreeMap<(String, JobId), Timestamp>,
    keys: BTreeMap<UniqueKey, Held>,
    /// The last enqueue of each instance.
    enqueues: BTreeMap<u64, LastEnqueue>,
    /// The last reserve of each instance.
    reserves: BTreeMap<u64, LastReserve>,
    fence: u64,
    /// Concurrency keys with an event since turns were handed over last, an entry for each event (S15).
    touched: Vec<gate::Key>,
    /// Of each queue whose gate was ever closed.
    gates: BTreeMap<String, gate::Gate>,
    /// Of each queue that ever had groups (S16).
    rings: BTreeMap<String, fair::Ring>,
    docs: BTreeMap<String, Doc>,
    /// The version that a document was given last.
    doc_version: u64,
    tools: tool::Tools,
    /// The time of the last reserve, take, extend or settle (S14).
    last_turn: Option<Timestamp>,
    /// Nothing is taken back before it (S14).
    no_take_back_until: Option<Timestamp>,
}

/// What was set of a queue, and which defaults applied then: what equals them nobody chose.
#[derive(Clone, Debug)]
struct Set {
    settings: QueueSettings,
    defaults: Defaults,
}

/// A job, and what its record does not show.
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
#[derive(Clone, Debug)]
struct Row {
    job: JobRecord,
    /// Nobody chose how often it is tried: the default applies when it is read.
    is_open: bool,
    /// While running: how long one extension lasts.
    lasts_ms: u64,
    /// Whether it was reserved or taken, ever.
    started: bool,
    /// While running: its worker has heard of the cancel.
    told: bool,
    /// While running: a crash may be the fault of others (S9).
    company: bool,
    /// While waiting: out of the timeline until it is its turn among the jobs of its concurrency key (S15).
    parked: bool,
}

impl Row {
    /// The job as it is read.
    fn record(&self) -> JobRecord {
        JobRecord { max_attempts: self.max_attempts(), ..self.job.clone() }
    }

    fn max_attempts(&self) -> u32 {
        if self.is_open { defaults().max_attempts } else { self.job.max_attempts }
    }
}

/// A unique key that is taken.
#[derive(Clone, Copy, Debug)]
struct Held {
    by: JobId,
    /// Of a window: void from then on.
    until: Option<Timestamp>,
}

#[derive(Clone, Debug)]
struct LastEnqueue {
    number: u64,
    at: Timestamp,
    /// The places that were answered `Full`.
    full: Vec<usize>,
}

#[derive(Clone, Debug)]
struct LastReserve {
    number: u64,
    at: Timestamp,
    leases: Vec<Lease>,
}

impl Model {
    /// A store without jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// The settings of a queue, which are the defaults where nobody set any.
    fn settings(&self, queue: &str) -> QueueSettings {
        let Some(Set { settings, defaults: Defaults { short, long, .. } }) = self.queues.get(queue) else {
            return QueueSettings::default();
        };
        let read = |keep, then, now| if keep == then { now } else { keep };
        let now = defaults();
        QueueSettings {
            done: read(settings.done, *short, now.short),
            cancelled: read(settings.cancelled, *short, now.short),
            dead: read(settings.dead, *long, now.long),
            ..settings.clone()
        }
    }

    /// Sets a queue, which may be new.
    fn put_settings(&mut self, queue: &str, settings: QueueSettings) {
        self.queues.insert(queue.to_owned(), Set { settings, defaults: defaults() });
    }

    fn is_paused(&self, queue: &str) -> bool {
        self.settings(queue).paused.is_some()
    }

    /// The row of a job that was just found.
    fn row_mut(&mut self, id: JobId) -> &mut Row {
        self.rows.get_mut(&id).expect("invariant: the caller found this row")
    }

    /// Jobs of a queue in one state, in the order of their ids.
    fn jobs<'a>(&'a self, queue: &'a str, state: State) -> impl Iterator<Item = &'a JobRecord> {
        self.rows.values().map(|row| &row.job).filter(move |job| job.queue == queue && job.state == state)
    }

    /// The timeline: waiting jobs that are not parked.
    fn timeline<'a>(&'a self, queue: &'a str) -> impl Iterator<Item = &'a JobRecord> {
        self.jobs(queue, State::Waiting).filter(|job| !self.rows[&job.id].parked)
    }

    /// Waiting jobs of a queue in the order in which they run (S6).
    fn in_order(&self, queue: &str, mut jobs: Vec<&JobRecord>) -> Vec<JobId> {
        match self.settings(queue).order {
            Order::Fifo => jobs.sort_by_key(|job| (job.priority, job.run_at, job.id)),
            Order::Lifo => {
                jobs.sort_by_key(|job| (job.priority, std::cmp::Reverse((job.run_at, job.id))));
            }
        }
        jobs.into_iter().map(|job| job.id).collect()
    }

    /// The running job of a lease, if the lease is current (S8).
    fn run_of(&self, lease: Lease) -> Option<&Row> {
        let row = self.rows.get(&lease.job)?;
        (row.job.running.as_ref()?.fence == lease.fence).then_some(row)
    }

    // ── time ──

    /// Looks for a jump of the clock, then leaves the time of this call (S14).
    fn turn(&mut self, now: Timestamp) {
        if self.no_take_back_until.is_some_and(|until| now.after(HEARTBEAT_DEFAULT) < until) {
            self.no_take_back_until = None;
        }
        let leases_exist = self.rows.values().any(|row| row.job.state == State::Running);
        // A jump has one pause: after a call in it, a silence is no second jump.
        let had_its_pause = |last: Timestamp| self.no_take_back_until.is_some_and(|until| last < until);
        let jumped =
            |last: Timestamp| last.after(LEASE_DEFAULT + HEARTBEAT_DEFAULT) < now && !had_its_pause(last);
        if leases_exist && self.last_turn.is_some_and(jumped) {
            self.no_take_back_until = Some(now.after(HEARTBEAT_DEFAULT));
        }
        self.last_turn = Some(now);
    }

    /// Until when nothing is taken back, if so.
    fn no_take_back(&self, now: Timestamp) -> Option<Timestamp> {
        self.no_take_back_until.filter(|&until| now < until && until <= now.after(HEARTBEAT_DEFAULT))
    }

    /// The next fence: above every earlier one, and above the clock, should they ever be lost (S1).
    fn next_fence(&mut self, now: Timestamp) -> u64 {
        self.fence = self.fence.max(now.as_ms() * 1_000) + 1;
        self.fence
    }

    // ── unique keys ──

    /// Who holds a key (S4).
    fn held(&self, key: &UniqueKey, now: Timestamp) -> Option<Held> {
        let held = *self.keys.get(key)?;
        let holds = match held.until {
            Some(until) => now < until,
            None => self.rows.contains_key(&held.by),
        };
        holds.then_some(held)
    }

    /// Frees the key of a job, if the job has it.
    fn free_key(&mut self, id: JobId) {
        if let Some(key) = UniqueKey::of(&self.row_mut(id).job)
            && self.keys.get(&key).is_some_and(|held| held.by == id)
        {
            self.keys.remove(&key);
        }
    }

    // ── ends ──

    /// Ends a job; answers its record as of the end, which may be gone already.
    fn end(&mut self, id: JobId, state: State, reason: Option<String>, now: Timestamp) -> JobRecord {
        self.leave_waiting(id);
        let row = self.row_mut(id);
        (row.job.state, row.job.reason, row.job.finished_at) = (state, reason, Some(now));
        let ended = row.record();
        if !is_window(&ended) {
            self.free_key(id);
        }
        if keep(&self.settings(&ended.queue), state).keeps_nothing() {
            self.remove(id, now);
        }
        ended
    }

    /// Removes a record; a derived id outlives it (S17).
    fn remove(&mut self, id: JobId, now: Timestamp) {
        let row = self.rows.remove(&id).expect("invariant: the caller found this row");
        let ended_at = row.job.finished_at.unwrap_or(now);
        if id.is_derived() && now < ended_at.after(ID_MEMORY) {
            self.remembered.insert((row.job.queue, id), ended_at);
        }
    }

    /// Removes a job that somebody deletes or purges; unlike age, that frees a window whose job never started.
    fn delete(&mut self, id: JobId, now: Timestamp) {
        self.leave_waiting(id);
        if !(is_window(&self.row_mut(id).job) && self.row_mut(id).started) {
            self.free_key(id);
        }
        self.remove(id, now);
    }
}

fn is_window(job: &JobRecord) -> bool {
    job.unique.as_ref().is_some_and(|unique| matches!(unique.scope, Scope::Window { .. }))
}

/// Until when a job holds its key, if that is settled by its enqueue.
fn window_end(job: &JobRecord) -> Option<Timestamp> {
    match job.unique.as_ref()?.scope {
        Scope::Window { window_ms } => {
            Some(Timestamp::saturating_from_ms(job.created_at.as_ms().saturating_add(window_ms)))
        }
        Scope::UntilDone | Scope::UntilStart => None,
    }
}

/// How long a queue keeps jobs that ended so.
fn keep(settings: &QueueSettings, ended: State) -> Keep {
    match ended {
        State::Done => settings.done,
        State::Dead => settings.dead,
        State::Cancelled => settings.cancelled,
        State::Waiting | State::Running => unreachable!("invariant: only ended jobs are kept by bounds"),
    }
}

/// Whether reads hide an ended job: it is past the age that its queue keeps it for (S17).
fn is_past_age(settings: &QueueSettings, job: &JobRecord, now: Timestamp) -> bool {
    job.finished_at
        .is_some_and(|end| end.as_ms().saturating_add(keep(settings, job.state).age_ms) <= now.as_ms())
}
