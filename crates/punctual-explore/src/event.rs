//! What an exploration has met. An exploration that never met something shows nothing about it.

use std::sync::atomic::{AtomicU32, Ordering};

use punctual::store::EndReason;

/// What a step can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An expired lease was reclaimed.
    Reclaimed,
    /// A reclaimed job was dead as poison.
    Poison,
    /// A job was dead after its last attempt.
    LastAttempt,
    /// A repeated reserve returned a job.
    RepeatedReserve,
    /// A settle by a lease that is not current.
    LateSettle,
    /// A heartbeat by a lease that is not current.
    LateHeartbeat,
    /// A requested cancel decided the end of a run.
    CancelledRun,
    /// A due job was held back by a limit or pause.
    Blocked,
    /// An enqueue met an id or a key that is taken.
    Duplicate,
    /// An operator's retry met a key that is taken.
    UniqueConflict,
    /// A settle and a reserve in one call.
    SettledAndReserved,
    /// A jump of the clock.
    Jump,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Reclaimed,
        Self::Poison,
        Self::LastAttempt,
        Self::RepeatedReserve,
        Self::LateSettle,
        Self::LateHeartbeat,
        Self::CancelledRun,
        Self::Blocked,
        Self::Duplicate,
        Self::UniqueConflict,
        Self::SettledAndReserved,
        Self::Jump,
    ];
}

impl From<EndReason> for Event {
    fn from(reason: EndReason) -> Self {
        if reason == EndReason::CancelRequested { Self::CancelledRun } else { Self::LastAttempt }
    }
}

/// A set of events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events(u32);

impl Events {
    /// Adds an event.
    pub fn note(&mut self, event: Event) {
        self.0 |= 1 << event as u32;
    }
}

/// All events of an exploration.
#[derive(Debug, Default)]
pub struct Met(AtomicU32);

impl Met {
    /// Adds events.
    pub fn note(&self, events: Events) {
        self.0.fetch_or(events.0, Ordering::Relaxed);
    }

    /// Returns those that were met.
    pub fn list(&self) -> Vec<Event> {
        let met = self.0.load(Ordering::Relaxed);
        Event::ALL.into_iter().filter(|event| met & (1 << *event as u32) != 0).collect()
    }
}
