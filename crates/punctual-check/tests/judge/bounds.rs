//! Of each explanation that the judge accepts the least that is one, and the least that is none.

use punctual::State;
use punctual_check::{
    History, Options, Verdict, Word,
    event::{
        Accepted, Answer, CallId, Deed, Due, Dumped, Ended, Expect, Hex, Key, LeaseId, Op, Reservation,
        Reservations, Said, What,
    },
    judge,
};

use super::hand::{File, LEASE_MS, SECOND, id, verdict, verdict_with};

#[track_caller]
fn breaks(told: &Verdict, rule: &str, is_so: bool) {
    let word = if is_so { Word::Invalid } else { Word::Valid };
    assert_eq!((told.verdict, told.count(rule)), (word, u64::from(is_so)), "{told}");
}

/// A job that ran, was done, and runs again, with this in between.
fn again_after(more: impl Fn(&mut File)) -> Verdict {
    let mut file = File::new("all", 9);
    file.enqueue(1.0, 1);
    file.begin(3.0, 1, 7);
    file.end(4.0, 1, 7);
    file.begin(6.0, 1, 9);
    file.end(7.0, 1, 9);
    more(&mut file);
    file.dump(20.0, &[(1, State::Done)]);
    verdict(&[&file])
}

#[test]
fn an_operators_retry_explains_the_run_behind_it_and_no_other() {
    for (at, is_explained) in [(2.0, false), (5.0, true), (8.0, false)] {
        let told = again_after(|file| {
            let answer = Answer::Act(vec![punctual_check::event::Effect::Done(id(1))]);
            file.call(at, Op::Act { deed: Deed::Retry, targets: vec![Some(id(1))] }, answer);
        });
        breaks(&told, "D4", !is_explained);
    }
    // Nor does another action, or one that may have met any job but at another time.
    breaks(&again_after(|file| file.act(5.0, 1, Deed::Reprioritise)), "D4", true);
    let retry = || Op::Act { deed: Deed::Retry, targets: vec![None] };
    breaks(&again_after(|file| file.lost(5.0, retry())), "D4", false);
    breaks(&again_after(|file| file.lost(8.0, retry())), "D4", true);
    breaks(
        &again_after(|file| file.lost(2.0, Op::Act { deed: Deed::Delete, targets: vec![None] })),
        "D4",
        true,
    );
}

#[test]
fn what_a_killed_process_asked_for_does_not_happen_after_its_death() {
    for (killed, is_explained) in [(2.5, false), (5.0, true)] {
        let (mut operator, mut file) = (File::new("operator", 0), File::new("all", 9));
        operator.lost(2.0, Op::Act { deed: Deed::Retry, targets: vec![Some(id(1))] });
        file.enqueue(1.0, 1);
        file.begin(3.0, 1, 7);
        file.end(4.0, 1, 7);
        file.kill(killed, "operator");
        file.begin(6.0, 1, 9);
        file.end(7.0, 1, 9);
        file.dump(20.0, &[(1, State::Done)]);
        breaks(&verdict(&[&operator, &file]), "D4", !is_explained);
    }
}

#[test]
fn what_was_sent_to_a_server_does_not_happen_after_its_death() {
    for (killed, is_explained) in [(2.5, false), (5.0, true)] {
        let mut file = File::new("all", 9);
        file.lost(2.0, Op::Act { deed: Deed::Retry, targets: vec![Some(id(1))] });
        file.enqueue(1.0, 1);
        file.begin(3.0, 1, 7);
        file.end(4.0, 1, 7);
        file.note(killed, What::ServerKilled { since: ((killed - 0.1) * SECOND as f64) as u64 });
        file.begin(6.0, 1, 9);
        file.end(7.0, 1, 9);
        file.dump(20.0, &[(1, State::Done)]);
        breaks(&verdict(&[&file]), "D4", !is_explained);
    }
}

/// A run that ends cancelled, with this said about it.
fn cancelled_run(said: Said, more: impl Fn(&mut File)) -> Verdict {
    let mut file = File::new("all", 9);
    file.enqueue(1.0, 1);
    file.begin(3.0, 1, 7);
    more(&mut file);
    file.end_as(5.0, 1, 7, said, State::Cancelled);
    file.dump(20.0, &[(1, State::Cancelled)]);
    verdict(&[&file])
}

#[test]
fn a_run_ends_cancelled_if_somebody_asked_for_it_before() {
    let failed = Said::Retry(Due::Now);
    breaks(&cancelled_run(failed, |_| ()), "V", true);
    breaks(&cancelled_run(Said::Cancel, |_| ()), "V", false);
    breaks(&cancelled_run(failed, |file| file.ask(4.0, 1, Deed::Cancel)), "V", false);
    breaks(&cancelled_run(failed, |file| file.ask(6.0, 1, Deed::Cancel)), "V", true);
    breaks(&cancelled_run(failed, |file| file.ask(4.0, 1, Deed::Reprioritise)), "V", true);
    let by_key = |deed| Op::Act { deed, targets: vec![None] };
    breaks(&cancelled_run(failed, |file| file.lost(4.0, by_key(Deed::Cancel))), "V", false);
    breaks(&cancelled_run(failed, |file| file.lost(6.0, by_key(Deed::Cancel))), "V", true);
    breaks(&cancelled_run(failed, |file| file.lost(4.0, by_key(Deed::Delete))), "V", true);
}

#[test]
fn a_lease_that_is_reclaimed_ends_cancelled_only_if_somebody_asked_for_it() {
    for (is_asked, is_broken) in [(true, false), (false, true)] {
        let (mut file, mut dead) = (File::new("all", 9), File::new("dead", 1));
        file.enqueue(1.0, 1);
        dead.begin(3.0, 1, 7);
        file.kill(4.0, "dead");
        if is_asked {
            file.ask(5.0, 1, Deed::Cancel);
        }
        file.reclaim(19.0, 1, 7, State::Cancelled);
        file.dump(20.0, &[(1, State::Cancelled)]);
        breaks(&verdict(&[&dead, &file]), "D7", is_broken);
    }
}

/// A worker with so many slots loses so many leases at once, to another one, and so many runs begin again.
fn lost_leases(n: u64, begun: u64, slots: u64, harm: impl Fn(&mut File)) -> Verdict {
    lost_leases_of(File::at("loser", slots, 0.5), n, begun, harm)
}

fn lost_leases_of(mut loser: File, n: u64, begun: u64, harm: impl Fn(&mut File)) -> Verdict {
    let mut file = File::new("all", 0);
    for job in 1..=n {
        file.enqueue(1.0, job);
    }
    for job in 1..=n {
        loser.begin(3.0, job, 10 * job);
    }
    harm(&mut file);
    for job in 1..=n {
        file.reclaim(19.0, job, 10 * job, State::Waiting);
        let row = Reservation { attempt: 2, expired_leases: 1, ..File::row(19.1, job, 10 * job + 1) };
        if job <= begun {
            file.begin_as(19.1, row, vec![]);
        } else {
            let (op, batch) = File::batch(19.1 + job as f64 / 1e3, vec![row], vec![]);
            file.call(19.1 + job as f64 / 1e3, op, Answer::Reserve(batch));
        }
        file.end(19.2, job, 10 * job + 1);
    }
    file.dump(30.0, &(1..=n).map(|job| (job, State::Done)).collect::<Vec<_>>());
    verdict(&[&loser, &file])
}

#[test]
fn a_kill_costs_as_many_leases_as_the_killed_had_slots() {
    let killed = |file: &mut File| file.kill(4.0, "loser");
    let told = lost_leases(2, 2, 2, killed);
    assert_eq!(
        (told.verdict, told.duplicated.budget, told.duplicated.explained),
        (Word::Valid, 2, 2),
        "{told}"
    );
    // One for the runs that begin again, one for the leases.
    let told = lost_leases(3, 3, 2, killed);
    assert_eq!((told.verdict, told.count("D5")), (Word::Invalid, 2), "{told}");
    breaks(&lost_leases(3, 2, 2, killed), "D5", true);
}

#[test]
fn a_killed_process_also_loses_the_leases_of_its_publications() {
    let loser = || File::that_publishes("loser", 1, 2, 0.5);
    let killed = |file: &mut File| file.kill(4.0, "loser");
    breaks(&lost_leases_of(loser(), 3, 3, killed), "D5", false);
    breaks(&lost_leases_of(loser(), 4, 3, killed), "D5", true);
    let met = |file: &mut File| {
        file.note(2.0, What::Harmed { since: SECOND, times: 1, proc: Some("loser".to_owned()) });
    };
    breaks(&lost_leases_of(loser(), 3, 0, met), "D5", false);
    breaks(&lost_leases_of(loser(), 4, 0, met), "D5", true);
}

#[test]
fn without_harm_no_lease_is_lost() {
    let told = lost_leases(1, 1, 9, |_| ());
    assert_eq!((told.verdict, told.duplicated.budget, told.count("D5")), (Word::Invalid, 0, 2), "{told}");
    // Who is killed before, or has no slots, costs none.
    breaks(&lost_leases(1, 0, 0, |file| file.kill(4.0, "loser")), "D5", true);
}

#[test]
fn a_kill_of_the_server_and_other_harm_cost_as_many_as_all_had_slots() {
    let server = |file: &mut File| file.note(4.0, What::ServerKilled { since: 4 * SECOND - 10 });
    breaks(&lost_leases(2, 0, 2, server), "D5", false);
    breaks(&lost_leases(3, 0, 2, server), "D5", true);
    let stall =
        |times| move |file: &mut File| file.note(2.0, What::Harmed { since: SECOND, times, proc: None });
    breaks(&lost_leases(4, 0, 2, stall(2)), "D5", false);
    breaks(&lost_leases(5, 0, 2, stall(2)), "D5", true);
    // The store was away.
    breaks(&lost_leases(1, 0, 2, stall(0)), "D5", true);
    // Who comes later loses nothing.
    let early = |file: &mut File| file.note(0.2, What::Harmed { since: SECOND / 10, times: 1, proc: None });
    breaks(&lost_leases(1, 0, 2, early), "D5", true);
    // What one process met costs its own leases.
    let met = |proc: &'static str| {
        move |file: &mut File| {
            file.note(2.0, What::Harmed { since: SECOND, times: 1, proc: Some(proc.to_owned()) });
        }
    };
    breaks(&lost_leases(2, 0, 2, met("loser")), "D5", false);
    breaks(&lost_leases(3, 0, 2, met("loser")), "D5", true);
    breaks(&lost_leases(1, 0, 2, met("all")), "D5", true);
}

#[test]
fn a_machine_that_stands_still_costs_as_many_leases_as_all_had_slots() {
    // A lease is 15 s.
    let stall =
        |seconds: f64| move |file: &mut File| file.note(1.0 + seconds, What::Stalled { since: SECOND });
    let told = lost_leases(2, 0, 2, stall(8.0));
    assert_eq!((told.verdict, told.duplicated.budget, told.stalls), (Word::Valid, 2, 1), "{told}");
    breaks(&lost_leases(3, 0, 2, stall(8.0)), "D5", true);
    // One that is shorter than half of a lease costs none.
    let told = lost_leases(1, 0, 2, stall(7.0));
    assert_eq!((told.verdict, told.duplicated.budget, told.stalls), (Word::Invalid, 0, 0), "{told}");
    // One of several leases may cost each slot several.
    breaks(&lost_leases(4, 0, 2, stall(16.0)), "D5", false);
    breaks(&lost_leases(5, 0, 2, stall(16.0)), "D5", true);
    // What two processes noticed, or one twice in a row, is one stall.
    let told = lost_leases(2, 0, 2, |file| {
        file.note(5.0, What::Stalled { since: SECOND });
        file.note(6.0, What::Stalled { since: 2 * SECOND });
        file.note(9.0, What::Stalled { since: 6 * SECOND + SECOND / 10 });
    });
    assert_eq!((told.verdict, told.duplicated.budget, told.stalls), (Word::Valid, 2, 1), "{told}");
    // Who was stopped by the nemesis notices it, too: that is no harm beside it.
    let stopped = |file: &mut File| {
        file.note(2.0, What::Frozen { proc: "all".to_owned(), since: SECOND, with_lock: true });
        stall(8.0)(file);
    };
    assert_eq!(lost_leases(1, 0, 2, stopped).stalls, 0);
}

/// A good job that dies of three lapsed leases in a row, beside a stall from this second on.
fn blamed_job(stalled: Option<u64>) -> Verdict {
    let mut file = File::new("all", 9);
    file.enqueue_as(1.0, 1, 1.0, |job| job.expect = Some(Expect::Done));
    for (crashes, at, then) in [(0, 2.0, State::Waiting), (1, 20.0, State::Waiting), (2, 80.0, State::Dead)] {
        let fence = 7 + u64::from(crashes);
        let row = Reservation { attempt: 1 + crashes, expired_leases: crashes, ..File::row(at, 1, fence) };
        file.begin_as(at, row, vec![]);
        file.reclaim(at + 16.0, 1, fence, then);
    }
    if let Some(since) = stalled {
        file.note(since as f64 + 8.0, What::Stalled { since: since * SECOND });
    }
    let reason = Some("crashes".to_owned());
    let dead = Dumped { id: id(1), state: State::Dead, reason, attempt: 3, expired_leases: 3, run_at: 0 };
    file.note(200.0, What::Dump { now: 200_000, jobs: vec![dead], last: true });
    verdict(&[&file])
}

#[test]
fn a_good_job_dies_of_crashes_only_if_the_machine_stood_still_under_a_lease_of_it() {
    for (stalled, is_blamed) in [(None, true), (Some(4), false), (Some(40), true), (Some(90), false)] {
        let told = blamed_job(stalled);
        assert_eq!(told.count("E"), u64::from(is_blamed), "{stalled:?}: {told}");
    }
}

#[test]
fn a_process_that_is_stopped_for_a_while_costs_as_many_leases_as_it_has_slots() {
    let stop = |proc: &'static str, with_lock| {
        move |file: &mut File| {
            file.note(4.0, What::Frozen { proc: proc.to_owned(), since: 2 * SECOND, with_lock });
        }
    };
    let frozen = stop("loser", false);
    let told = lost_leases(2, 2, 2, frozen);
    assert_eq!((told.verdict, told.duplicated.budget, told.frozen), (Word::Valid, 2, 1), "{told}");
    breaks(&lost_leases(3, 0, 2, frozen), "D5", true);
    // All others wait for it.
    breaks(&lost_leases(2, 0, 2, stop("all", false)), "D5", true);
    breaks(&lost_leases(2, 0, 2, stop("all", true)), "D5", false);
    breaks(&lost_leases(3, 0, 2, stop("all", true)), "D5", true);
    // Nobody is of that name.
    breaks(&lost_leases(1, 0, 2, stop("other", true)), "D5", true);
}

#[test]
fn a_stop_hits_a_process_whose_lease_is_reclaimed_meanwhile() {
    let hits = |reclaimed: f64| {
        let (mut file, mut worker) = (File::new("all", 0), File::new("worker", 1));
        file.enqueue(1.0, 1);
        worker.begin(3.0, 1, 7);
        let proc = "worker".to_owned();
        file.note(20.0, What::Frozen { proc, since: 4 * SECOND, with_lock: false });
        file.reclaim(reclaimed, 1, 7, State::Dead);
        file.dump(40.0, &[(1, State::Dead)]);
        verdict(&[&worker, &file]).hits
    };
    assert_eq!([3.5, 19.0, 20.5, 25.0].map(hits), [0, 1, 1, 0]);
}

#[test]
fn a_kill_hits_who_was_at_work() {
    let hits = |idle: bool| {
        let (mut file, mut worker) = (File::new("all", 0), File::new("worker", 1));
        file.enqueue(1.0, 1);
        worker.begin(3.0, 1, 7);
        if idle {
            worker.end(3.5, 1, 7);
        }
        file.kill(4.0, "worker");
        if !idle {
            file.reclaim(19.0, 1, 7, State::Dead);
        }
        file.dump(30.0, &[(1, if idle { State::Done } else { State::Dead })]);
        verdict(&[&worker, &file]).hits
    };
    assert_eq!((hits(true), hits(false)), (0, 1));
    let hits = |at: f64| {
        let mut file = File::new("all", 0);
        file.enqueue(1.0, 1);
        file.lost(at, Op::Extend { leases: vec![], company: vec![] });
        file.note(4.0, What::ServerKilled { since: 3 * SECOND });
        file.enqueue(5.0, 2);
        file.dump(30.0, &[]);
        verdict(&[&file]).hits
    };
    // Until a call is answered the server is away.
    assert_eq!([2.0, 3.5, 4.5, 5.5].map(hits), [0, 1, 1, 0]);
}

/// A reserve that is not answered before a job is handed out twice, and this behind it.
fn unanswered_reserve(more: impl Fn(&mut File, CallId), second: f64) -> Verdict {
    let (other, file) = beside_an_unanswered_reserve(more, second);
    verdict(&[&other, &file])
}

fn beside_an_unanswered_reserve(more: impl Fn(&mut File, CallId), second: f64) -> (File, File) {
    let (mut file, mut other) = (File::new("all", 9), File::new("other", 9));
    let call = CallId(Hex(5), 5);
    file.enqueue(1.0, 1);
    other.lost(2.0, Op::Reserve { call });
    file.begin(3.0, 1, 7);
    more(&mut other, call);
    file.note(3.5, What::Harmed { since: 3 * SECOND, times: 1, proc: None });
    let row = Reservation { attempt: 2, expired_leases: 1, ..File::row(second, 1, 9) };
    file.begin_as(second, row, vec![]);
    file.end(second + 0.5, 1, 9);
    file.dump(60.0, &[(1, State::Done)]);
    (other, file)
}

#[test]
fn a_call_that_is_not_answered_ends_at_the_answer_of_its_repetition() {
    let answer = |at: f64| {
        move |file: &mut File, call| {
            let batch = Reservations { now: (at * 1e3) as u64, jobs: vec![], reclaimed: vec![] };
            file.call(at, Op::Reserve { call }, Answer::Reserve(batch));
        }
    };
    // The lease lapses at 18 s. From then on somebody may take it back and not say so.
    breaks(&unanswered_reserve(|_, _| (), 19.0), "D6", false);
    breaks(&unanswered_reserve(|_, _| (), 17.0), "D6", true);
    breaks(&unanswered_reserve(answer(18.5), 19.0), "D6", false);
    breaks(&unanswered_reserve(answer(17.0), 19.0), "D6", true);
    // A later call says nothing about it if it went to another shard, and an earlier one, or one of another instance, never does.
    for (later, is_so) in [(CallId(Hex(5), 6), true), (CallId(Hex(5), 4), false), (CallId(Hex(6), 6), false)]
    {
        let other = |file: &mut File, _| answer(17.0)(file, later);
        breaks(&unanswered_reserve(other, 19.0), "D6", false);
        let (other, file) = beside_an_unanswered_reserve(other, 19.0);
        let history = History::of_one_store([other.0, file.0]);
        breaks(&judge(&history, Options::default()), "D6", is_so);
    }
}

#[test]
fn a_reserve_beside_a_settle_that_a_part_of_the_store_did_not_answer_is_unanswered() {
    let away = |file: &mut File, _| {
        let op = Op::Settle { runs: vec![], then: Some(CallId(Hex(5), 6)) };
        file.call(18.5, op, Answer::Settle { states: vec![], away: vec![], then: None });
    };
    let answered = |file: &mut File, call| {
        let batch = Reservations { now: 4_000, jobs: vec![], reclaimed: vec![] };
        file.call(4.0, Op::Reserve { call }, Answer::Reserve(batch));
    };
    let both = |file: &mut File, call| {
        answered(file, call);
        away(file, call);
    };
    breaks(&unanswered_reserve(answered, 19.0), "D6", true);
    breaks(&unanswered_reserve(both, 19.0), "D6", false);
}

#[test]
fn a_lease_is_lost_to_nobody_before_it_lapses() {
    for (at, is_broken) in [(17.0, true), (19.0, false)] {
        let (mut file, mut other) = (File::new("all", 9), File::new("other", 9));
        file.enqueue(1.0, 1);
        other.lost(2.0, Op::Reserve { call: CallId(Hex(5), 5) });
        file.begin(3.0, 1, 7);
        file.call(
            at,
            Op::Extend { leases: vec![LeaseId(id(1), 7)], company: vec![] },
            Answer::Extend(vec![Some(false)]),
        );
        file.dump(60.0, &[(1, State::Dead)]);
        breaks(&verdict(&[&other, &file]), "S8", is_broken);
    }
}

#[test]
fn a_lease_that_lapsed_is_lost_to_nobody_that_had_died_before() {
    for (killed, is_broken) in [(17.0, true), (18.5, false)] {
        let (mut file, mut other) = (File::new("all", 9), File::new("other", 9));
        file.enqueue(1.0, 1);
        other.lost(2.0, Op::Reserve { call: CallId(Hex(5), 5) });
        file.begin(3.0, 1, 7);
        file.kill(killed, "other");
        let leases = vec![LeaseId(id(1), 7)];
        file.call(19.0, Op::Extend { leases, company: vec![] }, Answer::Extend(vec![Some(false)]));
        file.dump(60.0, &[(1, State::Dead)]);
        breaks(&verdict(&[&other, &file]), "S8", is_broken);
    }
}

#[test]
fn an_end_that_was_not_answered_explains_another_run_only_if_it_asks_for_one() {
    for (said, is_explained) in
        [(Said::Retry(Due::Now), true), (Said::Release, true), (Said::Ack, false), (Said::Dead, false)]
    {
        let mut file = File::new("all", 9);
        file.enqueue(1.0, 1);
        file.begin(3.0, 1, 7);
        let runs = vec![Ended { id: id(1), fence: 7, verdict: said }];
        file.lost(4.0, Op::Settle { runs, then: None });
        file.begin(6.0, 1, 9);
        file.end(7.0, 1, 9);
        file.dump(20.0, &[(1, State::Done)]);
        breaks(&verdict(&[&file]), "D6", !is_explained);
    }
}

#[test]
fn a_repeated_reserve_took_effect_when_it_was_made_first() {
    let mut file = File::new("all", 9);
    file.enqueue(1.0, 1);
    let (op, batch) = File::batch(2.0, vec![File::row(2.0, 1, 7)], vec![]);
    file.lost(2.0, op.clone());
    file.ask(3.0, 1, Deed::Cancel);
    file.call(4.0, op, Answer::Reserve(batch));
    file.end(5.0, 1, 7);
    file.dump(20.0, &[(1, State::Done)]);
    breaks(&verdict(&[&file]), "C1", false);
}

#[test]
fn a_process_lets_go_of_what_it_was_told_is_gone() {
    // Its word was on its way for a lease and a second at most.
    let latest = LEASE_MS as f64 / 1e3;
    for (after, is_broken) in [(latest - 1.0, false), (latest + 2.0, true)] {
        let mut file = File::new("all", 9);
        file.enqueue(1.0, 1);
        file.begin(3.0, 1, 7);
        file.end(4.0, 1, 7);
        let leases = vec![LeaseId(id(1), 7)];
        file.call(4.0 + after, Op::Extend { leases, company: vec![] }, Answer::Extend(vec![Some(false)]));
        file.dump(60.0, &[(1, State::Done)]);
        breaks(&verdict(&[&file]), "D6", is_broken);
    }
}

#[test]
fn a_clock_that_was_stepped_proves_nothing_about_elapsed_time() {
    // It went back, and the job is due now; or it did not, and the job has been due since the step.
    for (run_at, is_broken) in [(171_000, false), (1_000, true)] {
        let mut file = File::new("all", 9);
        file.enqueue(1.0, 1);
        file.note(2.0, What::ClockStepped);
        file.begin_as(171.0, Reservation { run_at, ..File::row(171.0, 1, 7) }, vec![]);
        file.end(172.0, 1, 7);
        file.dump(200.0, &[(1, State::Done)]);
        let start_within = Some(std::time::Duration::from_secs(4));
        breaks(&verdict_with(&[&file], Options { start_within, ..Options::default() }), "D8", is_broken);
    }
}

/// The first answer came before the clock went back, and was lost.
#[test]
fn a_reserve_that_is_answered_again_says_the_time_of_then() {
    for (stepped_at, is_broken) in [(2.5, false), (1.5, true)] {
        let mut file = File::new("all", 9);
        file.enqueue(1.0, 1);
        let row = Reservation { run_at: 9_000, ..File::row(3.0, 1, 7) };
        let (op, batch) = File::batch(3.0, vec![row], vec![]);
        let lose = |file: &mut File| file.lost(2.0, op.clone());
        let step = |file: &mut File| file.note(stepped_at, What::ClockStepped);
        if stepped_at < 2.0 {
            step(&mut file);
            lose(&mut file);
        } else {
            lose(&mut file);
            step(&mut file);
        }
        file.call(3.0, op.clone(), Answer::Reserve(batch));
        file.end(4.0, 1, 7);
        file.dump(20.0, &[(1, State::Done)]);
        breaks(&verdict(&[&file]), "T1", is_broken);
    }
}

#[test]
fn a_step_of_the_clock_costs_no_lease() {
    let mut file = File::new("all", 9);
    file.enqueue(1.0, 1);
    file.begin(2.0, 1, 7);
    file.note(3.0, What::ClockStepped);
    let row = Reservation { attempt: 2, expired_leases: 1, ..File::row(60.0, 1, 8) };
    file.begin_as(60.0, row, vec![(LeaseId(id(1), 7), State::Waiting)]);
    file.end(61.0, 1, 8);
    file.dump(200.0, &[(1, State::Done)]);
    let told = verdict(&[&file]);
    assert_eq!(told.count("D5"), 2, "it began again, and its lease lapsed: {told}");
}

#[test]
fn upkeep_explains_a_second_run_only_after_a_step_of_the_clock() {
    for (is_stepped, reclaimed, is_broken) in [(true, 1, false), (true, 0, true), (false, 1, true)] {
        let mut file = File::new("all", 9);
        file.enqueue(1.0, 1);
        file.begin(2.0, 1, 7);
        file.note(3.0, What::Harmed { since: 2 * SECOND, times: 1, proc: None });
        if is_stepped {
            file.note(3.5, What::ClockStepped);
        }
        file.call(4.0, Op::Sweep, Answer::Sweep(reclaimed));
        file.begin_as(60.0, Reservation { attempt: 2, expired_leases: 1, ..File::row(60.0, 1, 8) }, vec![]);
        file.end(61.0, 1, 8);
        file.dump(200.0, &[(1, State::Done)]);
        let told = verdict(&[&file]);
        assert_eq!(told.count("D6"), u64::from(is_broken), "{is_stepped}, {reclaimed}: {told}");
    }
}

/// By a clock that was set forward, its lease has been over for a minute.
#[test]
fn an_action_explains_a_second_run_only_after_the_end_of_the_lease() {
    let due = Due::In(1_000);
    for (act, is_broken) in [(Some(40.0), false), (Some(3.0), true), (None, true)] {
        let mut file = File::new("all", 9);
        file.enqueue(1.0, 1);
        file.begin(2.0, 1, 7);
        file.note(2.5, What::Harmed { since: 2 * SECOND, times: 1, proc: None });
        if let Some(at) = act {
            file.act(at, 1, Deed::Reschedule(due));
        }
        file.begin_as(60.0, Reservation { attempt: 2, expired_leases: 1, ..File::row(60.0, 1, 8) }, vec![]);
        file.end(61.0, 1, 8);
        file.dump(200.0, &[(1, State::Done)]);
        let told = verdict(&[&file]);
        assert_eq!(
            (told.count("D5"), told.count("D6")),
            (u64::from(is_broken), u64::from(is_broken)),
            "{act:?}: {told}"
        );
    }
}

#[test]
fn a_job_of_a_clock_that_was_ahead_waits_at_rest() {
    for (run_at, is_broken) in [(1_000_000_000, false), (100_000, true)] {
        let mut file = File::new("all", 9);
        file.enqueue(1.0, 1);
        file.note(2.0, What::ClockStepped);
        let (state, reason) = (State::Waiting, None);
        let job = Dumped { id: id(1), state, reason, attempt: 1, expired_leases: 0, run_at };
        file.note(200.0, What::Dump { now: 200_000, jobs: vec![job], last: true });
        breaks(&verdict(&[&file]), "D8", is_broken);
    }
}

/// Job 1 dies with its process three times, and runs again; of its third lease somebody was told, or nobody.
fn fourth_run(third_is_known: bool) -> Verdict {
    let mut file = File::new("all", 9);
    file.enqueue(1.0, 1);
    for (n, s) in [(1, 2.0), (2, 20.0), (3, 40.0), (4, 90.0)] {
        let row = Reservation { attempt: n, expired_leases: n - 1, ..File::row(s, 1, u64::from(n)) };
        if third_is_known || n != 3 {
            file.begin_as(s, row, vec![]);
        } else {
            file.lost(s, Op::Reserve { call: CallId(Hex(8), 7) });
        }
        if n < 4 {
            file.reclaim(s + 16.0, 1, u64::from(n), State::Waiting);
        }
    }
    file.end(91.0, 1, 4);
    file.dump(100.0, &[(1, State::Done)]);
    verdict(&[&file])
}

#[test]
fn a_lease_that_nobody_was_told_of_may_have_had_company() {
    assert_eq!(fourth_run(false).count("D7"), 0, "{}", fourth_run(false));
    // The third expired lease should have ended it, and it ran after that.
    assert_eq!(fourth_run(true).count("D7"), 2, "{}", fourth_run(true));
}

/// An enqueue of job 1 is not answered, and its repetition says that the job was there and is gone.
fn gone(unique: bool) -> Verdict {
    let mut file = File::new("all", 9);
    file.enqueue(1.0, 2);
    let scope = punctual::job::Scope::UntilDone;
    let key = unique.then(|| Key { name: "key".to_owned(), scope, replaces: false });
    let mut job = File::wanted(1);
    job.unique = key;
    let op = || Op::Enqueue { call: CallId(Hex(1), 1), jobs: vec![job.clone()] };
    file.lost(1.5, op());
    file.call(1.6, op(), Answer::Enqueue(vec![Accepted::Gone(id(1))]));
    file.begin(2.0, 2, 7);
    file.end(3.0, 2, 7);
    file.dump(20.0, &[(2, State::Done)]);
    verdict(&[&file])
}

/// What met the holder of its key was not inserted, and its repetition cannot tell.
#[test]
fn a_repetition_that_finds_no_job_proves_a_loss_only_without_a_unique_key() {
    breaks(&gone(false), "D1", true);
    breaks(&gone(true), "D1", false);
}

/// Job 2 replaces the waiting job 1, which holds its key; then job 3 gets the key.
fn replaced(expires: Option<Due>) -> Verdict {
    let scope = punctual::job::Scope::UntilDone;
    let with = |n: u64, expires: Option<Due>, answer: Accepted, file: &mut File| {
        let unique = Some(Key { name: "key".to_owned(), scope, replaces: n == 2 });
        let job = punctual_check::event::Wanted { unique, expires, ..File::wanted(n) };
        let op = Op::Enqueue { call: CallId(Hex(1), n), jobs: vec![job] };
        file.call(n as f64, op, Answer::Enqueue(vec![answer]));
    };
    let mut file = File::new("all", 9);
    with(1, None, Accepted::Inserted { run_at: 1_000, id: None }, &mut file);
    with(2, expires, Accepted::Replaced(id(1)), &mut file);
    with(3, None, Accepted::Inserted { run_at: 3_000, id: None }, &mut file);
    file.dump(20.0, &[(1, State::Cancelled), (3, State::Done)]);
    verdict(&[&file])
}

/// What replaces a job can make it expire.
#[test]
fn a_holder_that_was_replaced_may_have_expired() {
    let soon = Some(Due::In(5_000));
    assert_eq!(replaced(None).count("U1"), 1, "{}", replaced(None));
    assert_eq!(replaced(soon).count("U1"), 0, "{}", replaced(soon));
}

/// A job, enqueued after a second, that expires so and is reserved after 3 s.
fn expiring(expires: Due, more: impl Fn(&mut File)) -> Verdict {
    let mut file = File::new("all", 9);
    file.enqueue_as(1.0, 1, 1.0, |job| job.expires = Some(expires));
    more(&mut file);
    run_after_three(file)
}

fn run_after_three(mut file: File) -> Verdict {
    file.begin(3.0, 1, 7);
    file.end(4.0, 1, 7);
    file.dump(20.0, &[(1, State::Done)]);
    verdict(&[&file])
}

#[test]
fn a_job_is_not_handed_out_once_it_has_expired() {
    breaks(&expiring(Due::At(3_001), |_| ()), "T3", false);
    breaks(&expiring(Due::At(3_000), |_| ()), "T3", true);
    // It was enqueued at 1,000 by the store's clock, whose readings are rounded.
    breaks(&expiring(Due::In(1_999), |_| ()), "T3", false);
    breaks(&expiring(Due::In(1_998), |_| ()), "T3", true);
    // A retry takes the expiry away.
    breaks(&expiring(Due::At(3_000), |file| file.act(2.0, 1, Deed::Retry)), "T3", false);
    breaks(&expiring(Due::At(3_000), |file| file.act(2.0, 1, Deed::Reprioritise)), "T3", true);
}

#[test]
fn a_job_that_was_handed_out_in_time_may_be_told_again_later() {
    let mut file = File::new("all", 9);
    file.enqueue_as(1.0, 1, 1.0, |job| job.expires = Some(Due::At(3_000)));
    let (op, _) = File::batch(2.5, vec![], vec![]);
    file.lost(2.5, op.clone());
    let (_, told) = File::batch(3.5, vec![File::row(3.5, 1, 7)], vec![]);
    file.call(3.5, op, Answer::Reserve(told));
    file.end(4.0, 1, 7);
    file.dump(20.0, &[(1, State::Done)]);
    breaks(&verdict(&[&file]), "T3", false);
}

/// A job that is moved after 2 s, and reserved after 3 s.
fn moved(due: Due, more: impl Fn(&mut File)) -> Verdict {
    let mut file = File::new("all", 9);
    file.enqueue_due(1.0, 1, 2.5);
    file.act(2.0, 1, Deed::Reschedule(due));
    more(&mut file);
    run_after_three(file)
}

#[test]
fn a_job_that_was_moved_waits_for_its_new_time_however_that_was_said() {
    breaks(&moved(Due::At(3_000), |_| ()), "C2", false);
    breaks(&moved(Due::At(3_001), |_| ()), "C2", true);
    breaks(&moved(Due::In(1_000), |_| ()), "C2", false);
    breaks(&moved(Due::In(1_100), |_| ()), "C2", true);
    breaks(&moved(Due::In(1_100), |file| file.act(2.2, 1, Deed::Reschedule(Due::Now))), "C2", false);
}
