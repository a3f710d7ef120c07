//! What becomes of a run that ends: S9 (reclaiming), S10 (counting) and S12 (cancel) as arithmetic.
//!
//! The model and SQLite call it. The scripts of Redis repeat it in `store/redis/lua/state/runs.lua`. It reads no clock and touches no
//! store.

use crate::core::{
    id::JobId,
    job::{Payload, State, cut_error},
    limits::{EXPIRED_LEASES_MAX, POISON_LIMIT, SNOOZE_MIN, SNOOZES_MAX},
    time::{Timestamp, When, ceil_ms},
    verdict::{EndReason, Verdict},
};

/// The error of an attempt whose lease expired.
pub(crate) const LEASE_EXPIRED: &str = "lease expired";
/// The start of the error of a run that took longer than its timeout, which follows.
pub(crate) const TIMED_OUT: &str = "timeout after ";
/// The start of the error of a run that panicked. The message follows.
pub(crate) const PANICKED: &str = "panic: ";

/// A run in progress, as its store knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) id: JobId,
    /// The number of this run, from 1.
    pub(crate) attempt: u32,
    pub(crate) expired_leases: u32,
    pub(crate) snoozes: u32,
    pub(crate) max_attempts: u32,
    pub(crate) cancel_requested: bool,
    /// Whether another suspect ran beside it that its expired lease may be the fault of.
    pub(crate) company: bool,
    /// How long its lease lasts, in milliseconds.
    pub(crate) lasts_ms: u64,
}

/// What becomes of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// Any state except running.
    pub(crate) state: State,
    /// If waiting, the number of the next run; if ended, the number of the last run.
    pub(crate) attempt: u32,
    pub(crate) expired_leases: u32,
    pub(crate) snoozes: u32,
    /// If waiting, the new due time; `None` keeps `run_at`.
    pub(crate) run_at: Option<Timestamp>,
    /// Why it ended or was snoozed.
    pub(crate) reason: Option<String>,
    /// Why a settle ended the job, if that is not what the verdict says.
    pub(crate) overruled: Option<EndReason>,
    /// The error under which this run is kept among the failures.
    pub(crate) failed: Option<String>,
    /// The result of a done job.
    pub(crate) result: Option<Payload>,
}

impl Next {
    fn waiting(run: &Run, run_at: Option<Timestamp>) -> Self {
        Self {
            state: State::Waiting,
            attempt: run.attempt,
            expired_leases: 0,
            snoozes: 0,
            run_at,
            reason: None,
            overruled: None,
            failed: None,
            result: None,
        }
    }

    fn ended(state: State, run: &Run, reason: Option<&str>) -> Self {
        let reason = reason.map(|text| cut_error(text).to_owned());
        Self {
            state,
            attempt: run.attempt,
            expired_leases: 0,
            snoozes: 0,
            run_at: None,
            reason,
            overruled: None,
            failed: None,
            result: None,
        }
    }

    /// Makes an end that is not what the verdict says.
    pub(crate) fn overruled(state: State, run: &Run, why: EndReason) -> Self {
        Self { overruled: Some(why), ..Self::ended(state, run, Some(why.name())) }
    }
}

/// Returns what becomes of a run that its holder settles.
pub(crate) fn settled(run: &Run, verdict: &Verdict, now: Timestamp) -> Next {
    match verdict {
        Verdict::Ack => Next::ended(State::Done, run, None),
        Verdict::AckWith { result } => {
            Next { result: Some(result.clone()), ..Next::ended(State::Done, run, None) }
        }
        // S12: the end of the run decides. Anything but an ack obeys the request.
        _ if run.cancel_requested => Next::overruled(State::Cancelled, run, EndReason::CancelRequested),
        Verdict::Retry { at, error } | Verdict::RetryAfter { at, error } => {
            let failed = Some(cut_error(error).to_owned());
            if run.max_attempts <= run.attempt {
                Next { failed, ..Next::overruled(State::Dead, run, EndReason::Attempts) }
            } else {
                Next { attempt: run.attempt + 1, failed, ..Next::waiting(run, Some(at.resolve(now))) }
            }
        }
        Verdict::Snooze { after, reason } => {
            let snoozes = run.snoozes + 1;
            if SNOOZES_MAX <= snoozes {
                return Next { snoozes, ..Next::overruled(State::Dead, run, EndReason::Snoozes) };
            }
            let run_at = When::In((*after).max(SNOOZE_MIN)).resolve(now);
            let reason = reason.as_deref().map(|text| cut_error(text).to_owned());
            // With a reason, its worker held it: it did not run.
            let expired_leases = if reason.is_some() { run.expired_leases } else { 0 };
            Next { expired_leases, snoozes, reason, ..Next::waiting(run, Some(run_at)) }
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

/// Returns what becomes of a run whose lease expired (S9). Snoozes in a row stay, because no verdict was given.
pub(crate) fn reclaimed(run: &Run, now: Timestamp) -> Next {
    let expired_leases = (run.expired_leases + 1).min(EXPIRED_LEASES_MAX);
    let next = if run.cancel_requested {
        Next::ended(State::Cancelled, run, Some("cancelled"))
    } else if POISON_LIMIT <= expired_leases && !run.company {
        Next::ended(State::Dead, run, Some("crashes"))
    } else if run.max_attempts <= run.attempt {
        Next::ended(State::Dead, run, Some("attempts"))
    } else {
        // From the third expired lease in a row on, each job is due later, at its own instant. That separates a
        // poison job from the jobs that ran beside it. After the second one this is done only if the next attempt is
        // the last: two restarts alone are no reason to wait.
        let is_parted = 3 <= expired_leases || (expired_leases == 2 && run.max_attempts <= run.attempt + 1);
        let step = u64::from(expired_leases - 1) * run.lasts_ms;
        let pause = step + step * u64::from(run.id.low16()) / 65_536;
        let run_at = is_parted.then(|| Timestamp::saturating_from_ms(now.as_ms().saturating_add(pause)));
        Next { attempt: run.attempt + 1, ..Next::waiting(run, run_at) }
    };
    Next { expired_leases, snoozes: run.snoozes, failed: Some(LEASE_EXPIRED.to_owned()), ..next }
}

/// Returns whether one more expired lease ends the job, unless the run had company (S9).
pub(crate) const fn is_last_chance(expired_leases: u32) -> bool {
    POISON_LIMIT <= expired_leases + 1
}

/// Returns a lease in whole milliseconds.
pub(crate) fn lease_ms(
    own: Option<std::time::Duration>,
    call: Option<std::time::Duration>,
    queue: Option<std::time::Duration>,
) -> u64 {
    ceil_ms(own.or(call).or(queue).unwrap_or(crate::core::limits::LEASE_DEFAULT))
}

/// S9, S10 and S12 with results worked out by hand. Stores share this file, so they cannot find an error in it.
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn now() -> Timestamp {
        Timestamp::saturating_from_ms(NOW)
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::saturating_from_ms(NOW + ms)
    }

    /// The second run of five, with a lease of 10 s. The last 16 bits of the id are half of their maximum.
    fn run() -> Run {
        Run {
            id: "00000000-0000-7000-8000-000000008000".parse().unwrap(),
            attempt: 2,
            expired_leases: 1,
            snoozes: 7,
            max_attempts: 5,
            cancel_requested: false,
            company: false,
            lasts_ms: 10_000,
        }
    }

    /// State, attempt, snoozes, due, reason, failure. Only a snooze with a reason leaves expired leases in a row.
    type Expected<'a> = (State, u32, u32, Option<Timestamp>, Option<&'a str>, Option<&'a str>);

    #[track_caller]
    fn ends(run: &Run, verdict: &Verdict, expected: Expected<'_>) {
        let next = settled(run, verdict, now());
        let is_held = next.state == State::Waiting && next.reason.is_some();
        assert_eq!(next.expired_leases, if is_held { run.expired_leases } else { 0 }, "{verdict:?}");
        let (reason, failed) = (next.reason.as_deref(), next.failed.as_deref());
        assert_eq!(
            (next.state, next.attempt, next.snoozes, next.run_at, reason, failed),
            expected,
            "{verdict:?}"
        );
    }

    #[test]
    fn each_verdict_leads_where_it_says() {
        let error = || "no".to_owned();
        let in_5_s = When::In(Duration::from_secs(5));
        let because = Some("why".to_owned());
        let (run, last) = (run(), Run { attempt: 5, ..run() });
        ends(&run, &Verdict::Ack, (State::Done, 2, 0, None, None, None));
        ends(&last, &Verdict::Ack, (State::Done, 5, 0, None, None, None));
        for verdict in [
            Verdict::Retry { at: in_5_s, error: error() },
            Verdict::RetryAfter { at: in_5_s, error: error() },
        ] {
            ends(&run, &verdict, (State::Waiting, 3, 0, Some(at(5_000)), None, Some("no")));
            ends(
                &Run { attempt: 4, ..run },
                &verdict,
                (State::Waiting, 5, 0, Some(at(5_000)), None, Some("no")),
            );
            ends(&last, &verdict, (State::Dead, 5, 0, None, Some("attempts"), Some("no")));
        }
        ends(&last, &Verdict::Release, (State::Waiting, 5, 0, None, None, None));
        ends(
            &run,
            &Verdict::Cancel { reason: None },
            (State::Cancelled, 2, 0, None, Some("cancelled"), None),
        );
        ends(&run, &Verdict::Cancel { reason: because }, (State::Cancelled, 2, 0, None, Some("why"), None));
        ends(&run, &Verdict::Dead { error: error() }, (State::Dead, 2, 0, None, Some("no"), Some("no")));
    }

    #[test]
    fn a_result_is_kept_with_an_ack_alone() {
        let result = Payload::json("7");
        let next = settled(&run(), &Verdict::AckWith { result: result.clone() }, now());
        assert_eq!((next.state, next.attempt, next.result), (State::Done, 2, Some(result)));
        assert_eq!(settled(&run(), &Verdict::Ack, now()).result, None);
    }

    #[test]
    fn a_snooze_counts_no_attempt_and_ten_thousand_in_a_row_are_the_end() {
        let snooze =
            |ms| Verdict::Snooze { after: Duration::from_millis(ms), reason: Some("later".to_owned()) };
        let last = Run { attempt: 5, ..run() };
        ends(&last, &snooze(3_000), (State::Waiting, 5, 8, Some(at(3_000)), Some("later"), None));
        ends(&last, &snooze(100), (State::Waiting, 5, 8, Some(at(100)), Some("later"), None));
        ends(&last, &snooze(99), (State::Waiting, 5, 8, Some(at(100)), Some("later"), None));
        let often = |snoozes| Run { snoozes, ..run() };
        ends(&often(9_998), &snooze(100), (State::Waiting, 2, 9_999, Some(at(100)), Some("later"), None));
        ends(&often(9_999), &snooze(100), (State::Dead, 2, 10_000, None, Some("snoozes"), None));
    }

    #[test]
    fn a_requested_cancel_wins_over_all_but_an_ack() {
        let run = Run { cancel_requested: true, ..run() };
        let error = || "no".to_owned();
        ends(&run, &Verdict::Ack, (State::Done, 2, 0, None, None, None));
        for verdict in [
            Verdict::Retry { at: When::Now, error: error() },
            Verdict::RetryAfter { at: When::Now, error: error() },
            Verdict::Snooze { after: Duration::from_secs(1), reason: None },
            Verdict::Release,
            Verdict::Cancel { reason: Some("why".to_owned()) },
            Verdict::Dead { error: error() },
        ] {
            ends(&run, &verdict, (State::Cancelled, 2, 0, None, Some("cancelled"), None));
        }
    }

    #[test]
    fn words_are_cut_at_a_kibibyte_between_two_characters() {
        let (long, cut) = (format!("x{}", "é".repeat(900)), format!("x{}", "é".repeat(511)));
        ends(
            &run(),
            &Verdict::Dead { error: long.clone() },
            (State::Dead, 2, 0, None, Some(&cut), Some(&cut)),
        );
        ends(
            &run(),
            &Verdict::Cancel { reason: Some(long) },
            (State::Cancelled, 2, 0, None, Some(&cut), None),
        );
    }

    #[test]
    fn a_lapsed_lease_counts_a_crash_and_an_attempt() {
        let of = |expired_leases, company| Run { expired_leases, company, ..run() };
        // Expired leases in a row so far, company; state, attempt, expired leases in a row, due, reason.
        for (run, expected) in [
            (of(0, false), (State::Waiting, 3, 1, None, None)),
            (of(1, false), (State::Waiting, 3, 2, None, None)),
            (of(1, true), (State::Waiting, 3, 2, None, None)),
            // One lease, and up to one more by the id: here half of it.
            (Run { attempt: 3, ..of(1, false) }, (State::Waiting, 4, 2, None, None)),
            (Run { attempt: 4, ..of(1, false) }, (State::Waiting, 5, 2, Some(at(15_000)), None)),
            (of(2, false), (State::Dead, 2, 3, None, Some("crashes"))),
            (of(2, true), (State::Waiting, 3, 3, Some(at(30_000)), None)),
            (of(3, false), (State::Dead, 2, 4, None, Some("crashes"))),
            (of(3, true), (State::Waiting, 3, 4, Some(at(45_000)), None)),
            (of(255, true), (State::Waiting, 3, 255, Some(at(3_810_000)), None)),
            (Run { attempt: 5, ..of(0, false) }, (State::Dead, 5, 1, None, Some("attempts"))),
            (Run { attempt: 5, ..of(2, false) }, (State::Dead, 5, 3, None, Some("crashes"))),
            (Run { attempt: 5, ..of(2, true) }, (State::Dead, 5, 3, None, Some("attempts"))),
            (
                Run { cancel_requested: true, ..of(0, false) },
                (State::Cancelled, 2, 1, None, Some("cancelled")),
            ),
            (
                Run { cancel_requested: true, ..of(2, false) },
                (State::Cancelled, 2, 3, None, Some("cancelled")),
            ),
        ] {
            let next = reclaimed(&run, now());
            assert_eq!(
                (next.state, next.attempt, next.expired_leases, next.run_at, next.reason.as_deref()),
                expected,
                "{run:?}"
            );
            assert_eq!((next.snoozes, next.failed.as_deref()), (7, Some("lease expired")), "{run:?}");
        }
    }

    #[test]
    fn jobs_that_crashed_together_come_back_apart() {
        for (end, ms) in [("0000", 10_000), ("0001", 10_000), ("4000", 12_500), ("ffff", 19_999)] {
            let id = format!("00000000-0000-7000-8000-00000000{end}").parse().unwrap();
            assert_eq!(reclaimed(&Run { id, attempt: 4, ..run() }, now()).run_at, Some(at(ms)), "{end}");
        }
    }

    #[test]
    fn two_expired_leases_in_a_row_leave_one_chance() {
        assert_eq!([0, 1, 2, 3, 255].map(is_last_chance), [false, false, true, true, true]);
    }

    #[test]
    fn a_lease_is_the_jobs_or_the_calls_or_the_queues_in_whole_milliseconds() {
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(lease_ms(ms(1), ms(2), ms(3)), 1);
        assert_eq!(lease_ms(None, ms(2), ms(3)), 2);
        assert_eq!(lease_ms(None, None, ms(3)), 3);
        assert_eq!(lease_ms(None, None, None), 15_000);
        assert_eq!(lease_ms(Some(Duration::from_micros(1_000_001)), None, None), 1_001);
    }
}
