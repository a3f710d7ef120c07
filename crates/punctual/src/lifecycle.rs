//! What becomes of a run that ends: S9 (taking back), S10 (counting) and S12 (cancel) as arithmetic, the same for every
//! store that runs in this process. Reads no clock, touches no store.

use crate::{
    id::JobId,
    job::{Payload, State, cut_error},
    limits::{CRASHES_MAX, POISON_LIMIT, SNOOZE_MIN, SNOOZES_MAX},
    store::Verdict,
    time::{Timestamp, When, ceil_ms},
};

/// A run as its store knows it while it goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) id: JobId,
    /// The number of this run, from 1.
    pub(crate) attempt: u32,
    pub(crate) crashes: u32,
    pub(crate) snoozes: u32,
    pub(crate) max_attempts: u32,
    pub(crate) cancel_requested: bool,
    /// Whether others ran beside it that its crash may be the fault of.
    pub(crate) company: bool,
    /// How long its lease lasts.
    pub(crate) lasts_ms: u64,
}

/// Where the job goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// Any state but running.
    pub(crate) state: State,
    /// Waiting: the run that comes next; ended: the run that was the last.
    pub(crate) attempt: u32,
    pub(crate) crashes: u32,
    pub(crate) snoozes: u32,
    /// Waiting: due then; `None`: `run_at` stays.
    pub(crate) run_at: Option<Timestamp>,
    /// Why it ended or was snoozed.
    pub(crate) reason: Option<String>,
    /// The words under which this run is kept among the failures.
    pub(crate) failed: Option<String>,
    /// What a done job leaves.
    pub(crate) result: Option<Payload>,
}

impl Next {
    fn waiting(run: &Run, run_at: Option<Timestamp>) -> Self {
        Self {
            state: State::Waiting,
            attempt: run.attempt,
            crashes: 0,
            snoozes: 0,
            run_at,
            reason: None,
            failed: None,
            result: None,
        }
    }

    fn ended(state: State, run: &Run, reason: Option<&str>) -> Self {
        let reason = reason.map(|text| cut_error(text).to_owned());
        Self {
            state,
            attempt: run.attempt,
            crashes: 0,
            snoozes: 0,
            run_at: None,
            reason,
            failed: None,
            result: None,
        }
    }
}

/// The end of a run by its holder.
pub(crate) fn settled(run: &Run, verdict: &Verdict, now: Timestamp) -> Next {
    match verdict {
        Verdict::Ack => Next::ended(State::Done, run, None),
        Verdict::AckWith { result } => {
            Next { result: Some(result.clone()), ..Next::ended(State::Done, run, None) }
        }
        // S12: the end of the run decides, and anything but an ack obeys the request.
        _ if run.cancel_requested => Next::ended(State::Cancelled, run, Some("cancelled")),
        Verdict::Retry { at, error } | Verdict::RetryAfter { at, error } => {
            let failed = Some(cut_error(error).to_owned());
            if run.max_attempts <= run.attempt {
                Next { failed, ..Next::ended(State::Dead, run, Some("attempts")) }
            } else {
                Next { attempt: run.attempt + 1, failed, ..Next::waiting(run, Some(at.resolve(now))) }
            }
        }
        Verdict::Snooze { after, reason } => {
            let snoozes = run.snoozes + 1;
            if SNOOZES_MAX <= snoozes {
                return Next { snoozes, ..Next::ended(State::Dead, run, Some("snoozes")) };
            }
            let run_at = When::In((*after).max(SNOOZE_MIN)).resolve(now);
            let reason = reason.as_deref().map(|text| cut_error(text).to_owned());
            Next { snoozes, reason, ..Next::waiting(run, Some(run_at)) }
        }
        Verdict::Release => Next::waiting(run, None),
        Verdict::Cancel { reason } => {
            Next::ended(State::Cancelled, run, Some(reason.as_deref().unwrap_or("cancelled")))
        }
        Verdict::Dead { error } => {
            Next { failed: Some(cut_error(error).to_owned()), ..Next::ended(State::Dead, run, Some(error)) }
        }
    }
}

/// The end of a run whose lease is past its time (S9). Snoozes in a row stay: no verdict was given.
pub(crate) fn taken_back(run: &Run, now: Timestamp) -> Next {
    let crashes = (run.crashes + 1).min(CRASHES_MAX);
    let next = if run.cancel_requested {
        Next::ended(State::Cancelled, run, Some("cancelled"))
    } else if POISON_LIMIT <= crashes && !run.company {
        Next::ended(State::Dead, run, Some("crashes"))
    } else if run.max_attempts <= run.attempt {
        Next::ended(State::Dead, run, Some("attempts"))
    } else {
        // After the third crash in a row later and later, each job at its own instant: that parts a poison job from the
        // bystanders that its worker took down with it. After the second only where the next crash would end the job: two
        // restarts alone are no reason to wait.
        let is_parted = 3 <= crashes || (crashes == 2 && run.max_attempts <= run.attempt + 1);
        let step = u64::from(crashes - 1) * run.lasts_ms;
        let pause = step + step * u64::from(run.id.low16()) / 65_536;
        let run_at = is_parted.then(|| Timestamp::saturating_from_ms(now.as_ms().saturating_add(pause)));
        Next { attempt: run.attempt + 1, ..Next::waiting(run, run_at) }
    };
    Next { crashes, snoozes: run.snoozes, failed: Some("lease taken back".to_owned()), ..next }
}

/// Whether one more crash is the last, unless it had company (S9).
pub(crate) const fn is_last_chance(crashes: u32) -> bool {
    POISON_LIMIT <= crashes + 1
}

/// Whole milliseconds of a lease.
pub(crate) fn lease_ms(
    own: Option<std::time::Duration>,
    call: Option<std::time::Duration>,
    queue: Option<std::time::Duration>,
) -> u64 {
    ceil_ms(own.or(call).or(queue).unwrap_or(crate::limits::LEASE_DEFAULT))
}
