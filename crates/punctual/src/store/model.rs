//! The contract as a program: a pure, synchronous state machine with the answers that every store must give.
//!
//! It reads no clock (now is an argument), does no I/O and is never optimised. Rows are in maps and found by looking
//! at all of them, in the words of the docs of [`Store`](crate::store::Store). No index can disagree with a row, and
//! no counter can drift. Behind a mutex it is [`MemoryStore`](crate::store::memory::MemoryStore); in tests the other
//! stores are compared with it.
//!
//! ```text
//!            enqueue                 reserve, take
//!   nothing ─────────► waiting ◄───────────────────► running      release, retry, snooze, reclaimed: waiting again
//!                         │                             │
//!                         └──────────► ended ◄──────────┘         done, dead, cancelled; an operator's retry: waiting
//!                                        │
//!                                        ▼
//!                                    remembered                   a derived id, for 24 h after the end; then nothing
//! ```
//!
//! Besides the rows it keeps the holders of unique keys, the last call of each instance, the last fence, the last mark
//! and the silences, documents, and the state of tools.

#[cfg(feature = "testing")]
mod future;
mod state;
mod toolkit;
mod verbs;

use std::collections::BTreeMap;

use self::state::{
    groups,
    keys::{self, Held},
    limits,
};
pub use crate::core::silence::marks_before;
use crate::{
    core::{
        id::JobId,
        job::{JobRecord, State},
        silence::Silences,
        steady::Doubt,
        time::Timestamp,
    },
    store::{
        Doc, Keep, Lease, QueueSettings, UniqueKey,
        version_defaults::{Defaults, defaults},
    },
};

/// The contract as a program, with one method per verb of [`Store`](crate::store::Store).
#[derive(Clone, Debug, Default)]
pub struct Model {
    queues: BTreeMap<String, Set>,
    rows: BTreeMap<JobId, Row>,
    /// Derived ids without a record, by queue, and when their jobs ended.
    remembered: BTreeMap<(String, JobId), Timestamp>,
    keys: BTreeMap<UniqueKey, Held>,
    /// The last enqueue of each instance.
    enqueues: BTreeMap<u64, LastEnqueue>,
    /// The last reserve of each instance.
    reserves: BTreeMap<u64, LastReserve>,
    fence: u64,
    /// Concurrency keys with events since blocked jobs were last re-checked, one entry per event (S15).
    touched: Vec<keys::Key>,
    /// The limiters of queues that were ever used.
    limiters: BTreeMap<String, limits::Limiter>,
    /// The active groups of queues that ever had groups (S16).
    active_groups: BTreeMap<String, groups::ActiveGroups>,
    docs: BTreeMap<String, Doc>,
    /// The last version given to a document.
    doc_version: u64,
    tools: toolkit::Tools,
    /// The last mark: the time of the last reserve, take, extend, settle, act or sweep (S14).
    last_mark: Option<Timestamp>,
    silences: Silences,
    /// How far the clock is believed (S17).
    doubt: Doubt,
}

/// The settings of a queue, and the defaults at that time: what equals them was not chosen.
#[derive(Clone, Debug)]
struct Set {
    settings: QueueSettings,
    defaults: Defaults,
}

/// A job, and the state that its record does not show.
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
#[derive(Clone, Debug)]
pub(crate) struct Row {
    job: JobRecord,
    /// Whether the number of attempts was left open, so that the default applies when it is read.
    is_open: bool,
    /// While running: how long one extension lasts, in ms.
    lasts_ms: u64,
    /// Whether it was ever reserved or taken.
    started: bool,
    /// While running: whether its worker knows of the cancel.
    cancel_reported: bool,
    /// While running: whether an expired lease may be the fault of another suspect (S9).
    company: bool,
    /// While waiting: whether it is blocked by its concurrency key, and out of the timeline (S15).
    blocked: bool,
}

impl Row {
    /// Returns the job as reads return it.
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
    /// The positions that were answered `Full`.
    full: Vec<usize>,
    /// The positions that were neither inserted nor `Full`.
    others: Vec<usize>,
}

#[derive(Clone, Debug)]
struct LastReserve {
    number: u64,
    at: Timestamp,
    leases: Vec<Lease>,
}

impl Model {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the settings of a queue, or the defaults if none were set.
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

    /// Sets the settings of a queue, which can be new.
    fn put_settings(&mut self, queue: &str, settings: QueueSettings) {
        self.queues.insert(queue.to_owned(), Set { settings, defaults: defaults() });
    }

    fn is_paused(&self, queue: &str) -> bool {
        self.settings(queue).paused.is_some()
    }

    /// Returns the row of a job that was just found.
    fn row_mut(&mut self, id: JobId) -> &mut Row {
        self.rows.get_mut(&id).expect("invariant: the caller found this row")
    }

    // ── time ──

    /// Leaves a mark, and notes the silence that it ends (S14).
    fn mark(&mut self, now: Timestamp) {
        let leases_exist = self.rows.values().any(|row| row.job.state == State::Running);
        self.silences.note(self.last_mark, now, leases_exist);
        self.doubt = self.last_mark.map_or(self.doubt, |seen| self.doubt.noted(seen, now));
        self.last_mark = Some(now);
    }

    /// Returns the next fence: above every earlier one, and above the clock in case those are lost (S1).
    fn next_fence(&mut self, now: Timestamp) -> u64 {
        self.fence = self.fence.max(now.as_ms() * 1_000) + 1;
        self.fence
    }
}

/// Returns the retention of jobs that ended in this state.
fn keep(settings: &QueueSettings, ended: State) -> Keep {
    match ended {
        State::Done => settings.done,
        State::Dead => settings.dead,
        State::Cancelled => settings.cancelled,
        State::Waiting | State::Running => unreachable!("invariant: only ended jobs are kept by bounds"),
    }
}

/// Returns whether reads hide an ended job because it is past the age of its retention (S17).
fn is_past_age(settings: &QueueSettings, job: &JobRecord, now: Timestamp) -> bool {
    job.finished_at
        .is_some_and(|end| end.as_ms().saturating_add(keep(settings, job.state).age_ms) <= now.as_ms())
}
