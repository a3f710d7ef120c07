//! D8 by hand: what waits for a reason, and what does not.

use std::time::Duration;

use punctual::State;
use punctual_check::{
    Options, Verdict, Word,
    event::{Answer, Deed, Due, Ended, LeaseId, Op, Reservation, Said, What},
};

use super::hand::{File, id, verdict, verdict_with};

/// What is due starts within 4 s.
fn judged(files: &[&File]) -> Verdict {
    verdict_with(files, Options { start_within: Some(Duration::from_secs(4)), ..Options::default() })
}

/// A driver that enqueued job 1 after a second, and a worker that sleeps until it runs it.
fn run_at(s: f64) -> (File, File) {
    let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 1));
    driver.enqueue(1.0, 1);
    worker.begin(s, 1, 7);
    worker.end(s + 0.1, 1, 7);
    (driver, worker)
}

#[track_caller]
fn is_late(told: &Verdict, is_so: bool) {
    let word = if is_so { Word::Invalid } else { Word::Valid };
    assert_eq!((told.verdict, told.count("D8")), (word, u64::from(is_so)), "{told}");
}

#[test]
fn a_worker_that_sleeps_beside_a_due_job_is_late() {
    for (at, late) in [(4.9, false), (5.1, true), (171.0, true)] {
        let (mut driver, worker) = run_at(at);
        driver.dump(200.0, &[(1, State::Done)]);
        is_late(&judged(&[&driver, &worker]), late);
    }
}

/// A process that dies excuses who waits for what it held. A producer holds nothing.
#[test]
fn a_worker_that_died_excuses_a_late_start_and_a_producer_does_not() {
    for (slots, late) in [(0, true), (1, false)] {
        let (mut driver, worker) = run_at(6.0);
        let other = File::new("other", slots);
        driver.kill(3.0, "other");
        driver.dump(200.0, &[(1, State::Done)]);
        is_late(&judged(&[&driver, &worker, &other]), late);
    }
}

/// The worker of a tick calls the store before its handler begins.
#[test]
fn a_job_that_begins_long_after_it_was_reserved_is_late_unless_it_is_a_tick() {
    for is_tick in [false, true] {
        let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 2));
        driver.enqueue_as(1.0, 1, 1.0, |job| job.is_tick = is_tick);
        let (op, batch) = File::batch(1.5, vec![File::row(1.5, 1, 7)], vec![]);
        worker.call(1.5, op, Answer::Reserve(batch));
        worker.note(9.0, What::Start { id: id(1), fence: 7, sum: File::wanted(1).sum });
        worker.end(9.1, 1, 7);
        driver.dump(200.0, &[(1, State::Done)]);
        is_late(&judged(&[&driver, &worker]), !is_tick);
    }
}

#[test]
fn a_worker_that_was_asked_to_end_has_no_slot_free() {
    for (asked_at, late) in [(1.4, false), (9.0, true)] {
        let mut driver = File::new("driver", 0);
        let (mut full, mut ending) = (File::new("full", 1), File::new("ending", 2));
        for (at, n) in [(0.1, 3), (0.2, 2), (0.3, 1)] {
            driver.enqueue(at, n);
        }
        full.begin(1.2, 2, 6);
        full.end(10.0, 2, 6);
        full.begin(10.1, 1, 7);
        full.end(10.2, 1, 7);
        ending.begin(1.1, 3, 5);
        driver.note(asked_at, What::Draining { proc: "ending".to_owned() });
        ending.end(20.0, 3, 5);
        driver.dump(200.0, &[(1, State::Done), (2, State::Done), (3, State::Done)]);
        is_late(&judged(&[&driver, &full, &ending]), late);
    }
}

/// C5: before the reserve of a job, between this and its answer, and after that.
#[test]
fn a_worker_that_was_asked_to_end_begins_nothing() {
    for (asked_at, begins, broken) in
        [(1.4, false, 1), (1.500_000_5, true, 1), (1.500_000_5, false, 0), (1.6, true, 0)]
    {
        let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 1));
        driver.enqueue(1.0, 1);
        if begins {
            worker.begin(1.5, 1, 7);
        } else {
            let (op, batch) = File::batch(1.5, vec![File::row(1.5, 1, 7)], vec![]);
            worker.call(1.5, op, Answer::Reserve(batch));
        }
        worker.end_as(1.7, 1, 7, Said::Release, State::Waiting);
        driver.note(asked_at, What::Draining { proc: "worker".to_owned() });
        driver.dump(9.0, &[(1, State::Waiting)]);
        let told = verdict(&[&driver, &worker]);
        assert_eq!(told.count("C5"), broken, "{asked_at} {begins}: {told}");
    }
}

#[test]
fn nobody_is_late_unless_it_is_asked() {
    let (mut driver, worker) = run_at(171.0);
    driver.dump(200.0, &[(1, State::Done)]);
    assert_eq!(verdict(&[&driver, &worker]).verdict, Word::Valid);
}

/// A job whose handler begins 6.5 s after its reservation, which says so many expired leases in a row.
fn held_for_long(expired_leases: u32) -> Verdict {
    let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 2));
    driver.enqueue(1.0, 1);
    let row = Reservation { expired_leases, ..File::row(1.5, 1, 7) };
    let (op, batch) = File::batch(1.5, vec![row], vec![]);
    worker.call(1.5, op, Answer::Reserve(batch));
    worker.note(8.0, What::Start { id: id(1), fence: 7, sum: row.sum });
    worker.end(8.1, 1, 7);
    driver.dump(200.0, &[(1, State::Done)]);
    judged(&[&driver, &worker])
}

#[test]
fn a_handler_that_begins_late_is_late() {
    is_late(&held_for_long(0), true);
}

#[test]
fn a_job_waits_until_it_is_due() {
    for (due, late) in [(18.0, false), (14.0, true)] {
        let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 1));
        driver.enqueue_due(1.0, 1, due);
        worker.begin_as(20.0, Reservation { run_at: (due * 1e3) as u64, ..File::row(20.0, 1, 7) }, vec![]);
        worker.end(20.1, 1, 7);
        driver.dump(200.0, &[(1, State::Done)]);
        is_late(&judged(&[&driver, &worker]), late);
    }
}

#[test]
fn a_job_waits_for_a_slot() {
    for (slots, late) in [(1, false), (2, true)] {
        let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", slots));
        driver.enqueue(1.0, 1);
        worker.begin(1.1, 1, 7);
        driver.enqueue(1.0, 2);
        worker.end(9.0, 1, 7);
        worker.begin(9.1, 2, 9);
        worker.end(9.2, 2, 9);
        driver.dump(200.0, &[(1, State::Done), (2, State::Done)]);
        is_late(&judged(&[&driver, &worker]), late);
    }
}

#[test]
fn a_job_waits_for_a_process_that_has_slots() {
    let (mut driver, mut gone) = (File::new("driver", 0), File::new("gone", 1));
    let mut late = File::new("late", 1);
    gone.enqueue(1.0, 1);
    driver.kill(1.1, "gone");
    late.begin(9.0, 1, 7);
    late.end(9.1, 1, 7);
    driver.dump(200.0, &[(1, State::Done)]);
    is_late(&judged(&[&driver, &gone, &late]), true);
    // The other one was not there before.
    let mut late = File::at("late", 1, 8.9);
    late.begin(9.0, 1, 7);
    late.end(9.1, 1, 7);
    is_late(&judged(&[&driver, &gone, &late]), false);
}

#[test]
fn a_job_waits_out_harm_and_no_longer() {
    // Of harm at these instants, one cuts the wait into parts that are short enough.
    for (harm, late) in [(4.0, false), (0.5, true), (1.5, true), (6.5, true), (8.0, true)] {
        let (mut driver, worker) = run_at(7.0);
        driver.note(harm, What::Harmed { since: (harm * 1e9) as u64, times: 1, proc: None });
        driver.dump(200.0, &[(1, State::Done)]);
        is_late(&judged(&[&driver, &worker]), late);
    }
    // Harm that lasts is no wait, nor is a time in which the store is away.
    for times in [1, 0] {
        let (mut driver, worker) = run_at(9.0);
        driver.note(7.0, What::Harmed { since: 3_000_000_000, times, proc: None });
        driver.dump(200.0, &[(1, State::Done)]);
        is_late(&judged(&[&driver, &worker]), false);
    }
}

#[test]
fn a_job_waits_for_those_due_before_it_and_not_for_others() {
    for (n_first, late) in [(true, false), (false, true)] {
        let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 9));
        // Eight jobs, one a second: the judged one is due before all of them, or behind them.
        driver.enqueue(1.0, 1);
        for n in 2..=8 {
            driver.enqueue(1.0 + n as f64 / 100.0, n);
        }
        let order: Vec<u64> = if n_first { (1..=8).collect() } else { (2..=8).chain([1]).collect() };
        for (at, n) in (1_u32..).zip(order) {
            let s = 1.0 + f64::from(at);
            let run_at = if n == 1 { 1_000 } else { 1_000 + 10 * n };
            worker.begin_as(s, Reservation { run_at, ..File::row(s, n, u64::from(10 * at)) }, vec![]);
            worker.end(s + 0.1, n, u64::from(10 * at));
        }
        driver.dump(200.0, &(1..=8).map(|n| (n, State::Done)).collect::<Vec<_>>());
        is_late(&judged(&[&driver, &worker]), late);
    }
}

#[test]
fn a_run_after_a_failure_is_as_little_late_as_a_first_one() {
    for (again, late) in [(5.0, false), (9.0, true)] {
        let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 1));
        driver.enqueue(1.0, 1);
        worker.begin(1.5, 1, 7);
        worker.end_as(2.0, 1, 7, Said::Retry(Due::Now), State::Waiting);
        let row = Reservation { attempt: 2, run_at: 2_000, ..File::row(again, 1, 9) };
        worker.begin_as(again, row, vec![]);
        worker.end(again + 0.1, 1, 9);
        driver.dump(200.0, &[(1, State::Done)]);
        is_late(&judged(&[&driver, &worker]), late);
    }
}

#[test]
fn a_lapsed_lease_is_reclaimed_in_time() {
    // It lapses 15 s after 2 s.
    for (back, late) in [(20.5, false), (21.5, true)] {
        let (mut driver, mut dead) = (File::new("driver", 0), File::new("dead", 1));
        let mut worker = File::new("worker", 1);
        driver.enqueue(1.0, 1);
        dead.begin(2.0, 1, 7);
        driver.kill(2.5, "dead");
        let row = Reservation { attempt: 2, expired_leases: 1, ..File::row(back, 1, 9) };
        worker.begin_as(back, row, vec![(LeaseId(id(1), 7), State::Waiting)]);
        worker.end(back + 0.1, 1, 9);
        driver.dump(200.0, &[(1, State::Done)]);
        is_late(&judged(&[&driver, &dead, &worker]), late);
    }
}

#[test]
fn what_waits_or_runs_at_rest_was_left_over() {
    for state in [State::Waiting, State::Running] {
        let mut driver = File::new("driver", 0);
        driver.enqueue(1.0, 1);
        driver.dump(20.0, &[(1, state)]);
        is_late(&verdict(&[&driver]), true);
    }
}

#[test]
fn what_is_due_after_the_end_may_wait_at_rest_and_nothing_else() {
    // Due at the beginning, and told so by each who may say when it is due.
    let told = |due: f64, more: &dyn Fn(&mut File)| {
        let mut file = File::new("driver", 1);
        file.enqueue_due(1.0, 1, due);
        more(&mut file);
        file.dump(20.0, &[(1, State::Waiting)]);
        verdict(&[&file])
    };
    is_late(&told(21.0, &|_| ()), false);
    is_late(&told(20.0, &|_| ()), true);
    is_late(&told(1.0, &|file| file.act(2.0, 1, Deed::Reschedule(Due::At(21_000)))), false);
    is_late(&told(1.0, &|file| file.act(2.0, 1, Deed::Reschedule(Due::In(19_000)))), false);
    is_late(&told(1.0, &|file| file.act(2.0, 1, Deed::Reschedule(Due::In(17_000)))), true);
    is_late(&told(21.0, &|file| file.act(2.0, 1, Deed::Reschedule(Due::Now))), true);
    is_late(&told(21.0, &|file| file.act(2.0, 1, Deed::Move)), true);
    let failed = |due| {
        move |file: &mut File| {
            file.begin(2.0, 1, 7);
            file.end_as(3.0, 1, 7, Said::Retry(due), State::Waiting);
        }
    };
    is_late(&told(1.0, &failed(Due::In(18_000))), false);
    is_late(&told(1.0, &failed(Due::In(16_000))), true);
    is_late(&told(1.0, &failed(Due::Now)), true);
}

#[test]
fn a_worker_may_hold_a_suspect_that_it_reserved() {
    for (expired_leases, is_held) in [(1, false), (2, true)] {
        let told = held_for_long(expired_leases);
        assert_eq!(told.count("D8"), u64::from(!is_held), "{told}");
    }
}

// ── C4 ──

/// A run of job 1 from 2 s to `end`, or to the end of its process. Its cancel is requested at 3 s; it may go on for 4 s.
fn cancelled_run(end: Option<f64>, with: impl FnOnce(&mut File)) -> Verdict {
    let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 1));
    driver.enqueue(1.0, 1);
    worker.begin(2.0, 1, 7);
    driver.ask(3.0, 1, Deed::Cancel);
    let state = if let Some(end) = end {
        worker.end_as(end, 1, 7, Said::Cancel, State::Cancelled);
        State::Cancelled
    } else {
        State::Running
    };
    with(&mut driver);
    driver.dump(200.0, &[(1, state)]);
    let cancel_within = Some(Duration::from_secs(4));
    verdict_with(&[&driver, &worker], Options { cancel_within, ..Options::default() })
}

#[test]
fn a_run_hears_of_its_cancel() {
    let note = |m: f64, proc: Option<&'static str>| {
        move |file: &mut File| {
            file.note(m, What::Harmed { since: (m * 1e9) as u64, times: 1, proc: proc.map(str::to_owned) });
        }
    };
    let harm = |m| note(m, None);
    let harm_to = |proc| note(6.0, Some(proc));
    for (told, is_deaf) in [
        (cancelled_run(Some(6.9), |_| ()), false),
        (cancelled_run(Some(7.2), |_| ()), true),
        // Each part is short enough.
        (cancelled_run(Some(9.0), harm(6.0)), false),
        (cancelled_run(Some(9.0), harm(4.0)), true),
        (cancelled_run(Some(9.0), harm_to("driver")), true),
        (cancelled_run(Some(9.0), harm_to("worker")), false),
        // A second request changes nothing.
        (cancelled_run(Some(7.2), |file| file.ask(6.0, 1, Deed::Cancel)), true),
    ] {
        assert_eq!(told.count("C4"), u64::from(is_deaf), "{told}");
    }
}

#[test]
fn a_run_whose_process_is_gone_hears_of_nothing() {
    let told = cancelled_run(None, |file| {
        file.kill(4.0, "worker");
        file.reclaim(40.0, 1, 7, State::Cancelled);
    });
    assert_eq!(told.count("C4"), 0, "{told}");
}

#[test]
fn a_run_that_was_told_that_its_lease_is_lost_is_over() {
    for (at, is_deaf) in [(6.9, false), (7.2, true)] {
        let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 1));
        driver.enqueue(1.0, 1);
        worker.begin(2.0, 1, 7);
        driver.ask(3.0, 1, Deed::Cancel);
        let runs = vec![Ended { id: id(1), fence: 7, verdict: Said::Cancel }];
        let answer = Answer::Settle { states: vec![None], away: vec![], then: None };
        worker.call(at, Op::Settle { runs, then: None }, answer);
        // Its process goes on.
        driver.enqueue(90.0, 2);
        worker.begin(91.0, 2, 8);
        worker.end(91.1, 2, 8);
        driver.dump(200.0, &[(1, State::Cancelled), (2, State::Done)]);
        let cancel_within = Some(Duration::from_secs(4));
        let told = verdict_with(&[&driver, &worker], Options { cancel_within, ..Options::default() });
        assert_eq!(told.count("C4"), u64::from(is_deaf), "{told}");
    }
}

#[test]
fn nobody_is_deaf_to_a_cancel_unless_it_is_asked() {
    let (mut driver, mut worker) = (File::new("driver", 0), File::new("worker", 1));
    driver.enqueue(1.0, 1);
    worker.begin(2.0, 1, 7);
    driver.ask(3.0, 1, Deed::Cancel);
    worker.end_as(171.0, 1, 7, Said::Cancel, State::Cancelled);
    driver.dump(200.0, &[(1, State::Cancelled)]);
    assert_eq!(verdict(&[&driver, &worker]).verdict, Word::Valid);
}
