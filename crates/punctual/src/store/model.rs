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

mod state;
mod toolkit;
mod verbs;

use std::collections::BTreeMap;

use self::state::{
    groups,
    keys::{self, Held},
    limits,
};
use crate::{
    core::{
        id::JobId,
        job::{JobRecord, State},
        limits::{HEARTBEAT_DEFAULT, LEASE_DEFAULT},
        time::Timestamp,
    },
    store::{
        Doc, Keep, Lease, QueueSettings, UniqueKey,
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
    touched: Vec<keys::Key>,
    /// Of each queue whose gate was ever closed.
    gates: BTreeMap<String, limits::Gate>,
    /// Of each queue that ever had groups (S16).
    rings: BTreeMap<String, groups::Ring>,
    docs: BTreeMap<String, Doc>,
    /// The version that a document was given last.
    doc_version: u64,
    tools: toolkit::Tools,
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
pub(crate) struct Row {
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
