//! M: which histories fit the model, which differ, and which are unclear.

use punctual::State;
use punctual_check::{
    Options, Replayed, Verdict,
    event::{
        Accepted, Answer, CallId, Deed, Due, Dumped, Ended, Hex, LeaseId, Op, Reservation, Said, Wanted, What,
    },
};

use crate::hand::{File, id, verdict_with};

fn replayed(files: &[&File]) -> Verdict {
    verdict_with(files, Options { replays: true, ..Options::default() })
}

/// Says that one job fits, is unclear or differs.
#[track_caller]
fn is(files: &[&File], fits: u64, unclear: u64, differs: u64) {
    let told = replayed(files);
    let found = (told.replayed.fits, told.replayed.unclear, told.replayed.differs);
    assert_eq!(found, (fits, unclear, differs), "{told}");
    assert_eq!(told.count("M"), differs, "{told}");
}

#[track_caller]
fn fits(files: &[&File]) {
    is(files, 1, 0, 0);
}

#[track_caller]
fn differs(files: &[&File]) {
    is(files, 0, 0, 1);
}

/// The second run of job 1, at 5 s.
fn second() -> Reservation {
    Reservation { attempt: 2, run_at: 3_500, ..File::row(5.0, 1, 20) }
}

/// A job fails at 3 s, is due again half a second later, runs again and is done.
fn failed_once(second: Reservation, at_rest: u32) -> File {
    failed_once_with(|_| (), second, at_rest)
}

/// The same, with something else about it.
fn failed_once_with(with: impl FnOnce(&mut Wanted), second: Reservation, at_rest: u32) -> File {
    let mut file = File::new("a", 10);
    file.enqueue_as(1.0, 1, 1.0, with);
    file.begin(2.0, 1, 10);
    file.end_as(3.0, 1, 10, Said::Retry(Due::In(500)), State::Waiting);
    file.begin_as(5.0, second, vec![]);
    file.end(6.0, 1, 20);
    let done = Dumped {
        id: id(1),
        state: State::Done,
        reason: None,
        attempt: at_rest,
        expired_leases: 0,
        run_at: 0,
    };
    file.note(9.0, What::Dump { now: 9_000, jobs: vec![done], last: true });
    file
}

#[test]
fn a_job_that_fails_and_is_done_fits() {
    fits(&[&failed_once(second(), 2)]);
}

#[test]
fn each_number_counts() {
    differs(&[&failed_once(Reservation { attempt: 1, ..second() }, 2)]);
    differs(&[&failed_once(Reservation { attempt: 3, ..second() }, 2)]);
    differs(&[&failed_once(Reservation { expired_leases: 1, ..second() }, 2)]);
    differs(&[&failed_once(Reservation { run_at: 3_490, ..second() }, 2)]);
    differs(&[&failed_once(Reservation { run_at: 3_510, ..second() }, 2)]);
    differs(&[&failed_once(Reservation { until: 19_999, ..second() }, 2)]);
    differs(&[&failed_once(second(), 1)]);
}

#[test]
fn a_job_that_is_not_due_does_not_run() {
    let mut file = File::new("a", 10);
    file.enqueue_due(1.0, 1, 4.0);
    file.begin_as(3.0, Reservation { run_at: 4_000, ..File::row(3.0, 1, 10) }, vec![]);
    differs(&[&file]);
}

/// A run is settled, and then something more is answered about it.
fn settled(said: Said, state: State, more: impl Fn(&mut File)) -> File {
    let mut file = File::new("a", 10);
    file.enqueue(1.0, 1);
    file.begin(2.0, 1, 10);
    file.end_as(3.0, 1, 10, said, state);
    more(&mut file);
    file
}

#[test]
fn a_verdict_leads_where_it_says() {
    fits(&[&settled(Said::Ack, State::Done, |_| ())]);
    fits(&[&settled(Said::Dead, State::Dead, |_| ())]);
    fits(&[&settled(Said::Release, State::Waiting, |_| ())]);
    differs(&[&settled(Said::Ack, State::Waiting, |_| ())]);
    differs(&[&settled(Said::Retry(Due::Now), State::Dead, |_| ())]);
    differs(&[&settled(Said::Release, State::Cancelled, |_| ())]);
}

#[test]
fn an_ended_lease_is_lost() {
    let extend = |held: bool| {
        move |file: &mut File| {
            let op = Op::Extend { leases: vec![LeaseId(id(1), 10)], company: vec![] };
            file.call(4.0, op, Answer::Extend(vec![Some(held)]));
        }
    };
    fits(&[&settled(Said::Ack, State::Done, extend(false))]);
    differs(&[&settled(Said::Ack, State::Done, extend(true))]);
}

#[test]
fn what_an_operator_does_is_replayed_too() {
    fits(&[&settled(Said::Release, State::Waiting, |file| file.act(4.0, 1, Deed::Cancel))]);
    fits(&[&settled(Said::Dead, State::Dead, |file| {
        file.act(4.0, 1, Deed::Retry);
        file.begin_as(5.0, Reservation { run_at: 4_000, ..File::row(5.0, 1, 20) }, vec![]);
    })]);
    differs(&[&settled(Said::Ack, State::Done, |file| file.act(4.0, 1, Deed::Cancel))]);
    differs(&[&settled(Said::Ack, State::Done, |file| file.ask(4.0, 1, Deed::Cancel))]);
}

#[test]
fn a_cancel_that_was_requested_decides() {
    let asked = |said, state| {
        let mut file = File::new("a", 10);
        file.enqueue(1.0, 1);
        file.begin(2.0, 1, 10);
        file.ask(2.5, 1, Deed::Cancel);
        file.end_as(3.0, 1, 10, said, state);
        file
    };
    fits(&[&asked(Said::Retry(Due::Now), State::Cancelled)]);
    differs(&[&asked(Said::Retry(Due::Now), State::Waiting)]);
}

/// Calls that overlap have the order that explains them.
#[test]
fn an_answer_that_comes_late_explains_what_came_before_it() {
    let (mut producer, mut worker) = (File::new("a", 0), File::new("b", 10));
    let op = Op::Enqueue { call: CallId(Hex(1), 1), jobs: vec![File::wanted(1)] };
    let inserted = Accepted::Inserted { run_at: 1_000, id: None };
    producer.call_that_takes(1.0, 5.0, op, What::Ok(Answer::Enqueue(vec![inserted])));
    worker.begin(2.0, 1, 10);
    worker.end(3.0, 1, 10);
    fits(&[&producer, &worker]);

    // A verdict is answered after another worker has begun the next run, and ended it.
    let (mut first, mut other) = (File::new("a", 10), File::new("b", 10));
    first.enqueue(1.0, 1);
    first.begin(2.0, 1, 10);
    let runs = vec![Ended { id: id(1), fence: 10, verdict: Said::Retry(Due::In(500)) }];
    let answer = Answer::Settle { states: vec![Some(State::Waiting)], away: vec![], then: None };
    first.call_that_takes(3.0, 5.0, Op::Settle { runs, then: None }, What::Ok(answer));
    other.begin_as(5.0, second(), vec![]);
    other.end(6.0, 1, 20);
    fits(&[&first, &other]);
}

/// The settlement of the first run is not answered. It may have happened, then or later, and may not.
#[test]
fn a_call_without_an_answer_happened_or_did_not() {
    let unanswered = |next: &dyn Fn(&mut File)| {
        let mut file = File::new("a", 10);
        file.enqueue(1.0, 1);
        file.begin(2.0, 1, 10);
        let run = Ended { id: id(1), fence: 10, verdict: Said::Retry(Due::In(500)) };
        file.lost(3.0, Op::Settle { runs: vec![run], then: None });
        next(&mut file);
        file
    };
    fits(&[&unanswered(&|file| file.begin_as(5.0, second(), vec![]))]);
    fits(&[&unanswered(&|file| file.reclaim(20.0, 1, 10, State::Waiting))]);
    differs(&[&unanswered(&|file| file.begin_as(5.0, Reservation { run_at: 3_400, ..second() }, vec![]))]);
    differs(&[&unanswered(&|file| file.reclaim(20.0, 1, 10, State::Dead))]);
}

#[test]
fn a_lease_is_reclaimed_after_its_time_and_not_before() {
    let reclaimed = |at, attempt, expired_leases| {
        let mut file = File::new("a", 10);
        file.enqueue(1.0, 1);
        file.begin(2.0, 1, 10);
        file.reclaim(at, 1, 10, State::Waiting);
        file.begin_as(30.0, Reservation { attempt, expired_leases, ..File::row(30.0, 1, 20) }, vec![]);
        file
    };
    fits(&[&reclaimed(17.0, 2, 1)]);
    // The store had calls for other jobs meanwhile, so 27 s are no jump of its clock (S14).
    fits(&[&reclaimed(29.0, 2, 1)]);
    differs(&[&reclaimed(16.9, 2, 1)]);
    differs(&[&reclaimed(17.0, 2, 0)]);
    differs(&[&reclaimed(17.0, 1, 1)]);
}

/// Another shard answers the same call later, with a later time. Meanwhile somebody else reserves the job.
#[test]
fn a_lease_may_be_reclaimed_before_the_answer_that_tells_it() {
    let (mut first, mut second) = (File::new("a", 10), File::new("b", 10));
    first.enqueue(1.0, 1);
    first.begin(2.0, 1, 10);
    let (op, mut batch) = File::batch(18.0, vec![], vec![(LeaseId(id(1), 10), State::Waiting)]);
    first.call_that_takes(17.0, 1.0, op, What::Ok(Answer::Reserve(batch.clone())));
    second.begin_as(17.5, Reservation { attempt: 2, expired_leases: 1, ..File::row(17.5, 1, 20) }, vec![]);
    fits(&[&first, &second]);

    let mut early = File::new("a", 10);
    early.enqueue(1.0, 1);
    early.begin(2.0, 1, 10);
    batch.now = 16_900;
    let (op, _) = File::batch(16.0, vec![], vec![]);
    early.call_that_takes(16.0, 0.9, op, What::Ok(Answer::Reserve(batch)));
    differs(&[&early]);
}

/// A suspect that had company is not to blame (S9).
#[test]
fn company_decides_whether_a_third_expired_lease_ends_a_job() {
    let third = |company, state| {
        let mut file = File::new("a", 10);
        file.enqueue(1.0, 1);
        for (run, at) in [(1, 2.0), (2, 20.0)] {
            let expired_leases = run - 1;
            file.begin_as(
                at,
                Reservation { attempt: run, expired_leases, ..File::row(at, 1, u64::from(run)) },
                vec![],
            );
            file.reclaim(at + 16.0, 1, u64::from(run), State::Waiting);
        }
        let row = Reservation { attempt: 3, expired_leases: 2, company, ..File::row(40.0, 1, 3) };
        file.begin_as(40.0, row, vec![]);
        file.reclaim(56.0, 1, 3, state);
        file
    };
    fits(&[&third(false, State::Dead)]);
    fits(&[&third(true, State::Waiting)]);
    differs(&[&third(false, State::Waiting)]);
    differs(&[&third(true, State::Dead)]);
}

/// The model does not know of the heartbeats that kept the lease of a job whose cancel was requested.
#[test]
fn a_cancel_that_was_requested_after_heartbeats_holds_no_lease() {
    for asked in [18.0, 80.0, 120.0] {
        let asked_and_reclaimed = |after: f64| {
            let mut file = File::new("a", 10);
            file.enqueue(1.0, 1);
            file.begin(2.0, 1, 10);
            file.ask(asked, 1, Deed::Cancel);
            file.reclaim(asked + after, 1, 10, State::Cancelled);
            file
        };
        fits(&[&asked_and_reclaimed(0.1)]);
        fits(&[&asked_and_reclaimed(30.0)]);
    }
}

/// Nobody was told of the first reservation, until its lease was reclaimed.
#[test]
fn a_reservation_whose_answer_was_lost_is_known_by_its_lease() {
    let mut file = File::new("a", 10);
    file.enqueue(1.0, 1);
    let (op, _) = File::batch(2.0, vec![], vec![]);
    file.lost(2.0, op);
    file.reclaim(20.0, 1, 2_000_001, State::Waiting);
    file.begin_as(
        30.0,
        Reservation { attempt: 2, expired_leases: 1, ..File::row(30.0, 1, 30_000_001) },
        vec![],
    );
    fits(&[&file]);
}

/// Nobody was told of its first reservation at all: then nothing is shown.
#[test]
fn what_calls_without_answers_may_explain_is_unclear() {
    let mut file = File::new("a", 10);
    file.enqueue(1.0, 1);
    let (op, _) = File::batch(2.0, vec![], vec![]);
    file.lost(2.0, op);
    file.begin_as(30.0, Reservation { attempt: 2, expired_leases: 1, ..File::row(30.0, 1, 20) }, vec![]);
    is(&[&file], 0, 1, 0);
}

/// Something happens to a job that the model is not told of, so an attempt that it cannot explain shows nothing.
#[test]
fn what_is_not_replayed_is_unclear() {
    let unclear = |file: &File| is(&[file], 0, 1, 0);
    let wrong = Reservation { attempt: 3, ..second() };
    differs(&[&failed_once(wrong, 2)]);
    // Another job took its place, with other options.
    unclear(&failed_once(Reservation { max_attempts: 3, ..wrong }, 2));
    // It may have expired, and been made anew.
    unclear(&failed_once_with(|job| job.expires = Some(Due::In(60_000)), wrong, 2));
    let mut taken = failed_once(wrong, 2);
    taken.call(9.5, Op::Take, Answer::Take(vec![id(1)]));
    unclear(&taken);
}

#[test]
fn a_job_may_be_cancelled_by_its_expiry_alone() {
    let waits = |expires| {
        let mut file = File::new("a", 10);
        file.enqueue_as(1.0, 1, 1.0, |job| job.expires = expires);
        file.dump(9.0, &[(1, State::Cancelled)]);
        file
    };
    fits(&[&waits(Some(Due::In(5_000)))]);
    differs(&[&waits(None)]);
}

/// The search is bounded.
#[test]
fn a_job_of_too_many_calls_is_unclear() {
    let told_often = |times: u32| {
        settled(Said::Ack, State::Done, |file| {
            for at in 0..times {
                let op = Op::Extend { leases: vec![LeaseId(id(1), 10)], company: vec![] };
                file.call(4.0 + 0.01 * f64::from(at), op, Answer::Extend(vec![Some(false)]));
            }
        })
    };
    fits(&[&told_often(125)]);
    is(&[&told_often(126)], 0, 1, 0);
}

#[test]
fn nothing_is_replayed_unless_asked() {
    let told = verdict_with(&[&failed_once(second(), 1)], Options::default());
    assert_eq!((told.replayed, told.count("M")), (Replayed::default(), 0));
}
