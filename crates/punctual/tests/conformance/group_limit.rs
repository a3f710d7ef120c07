//! What each group may have of its queue: how many of its jobs run, how often one starts, and runs that close it for a while.

use std::time::Duration;

use punctual::{
    ErrorKind, JobId, NewJob, State, When,
    job::Status,
    limits::{GROUP_LIMITS_MAX, NAME_BYTES_MAX, REGROUP_MAX},
    store::{Action, GroupLimits, QueueOp, QueueSettings, Rate, Reserve, Settled, Settlement, Verdict},
};

use crate::{
    fixture::{CANCEL, Fixture, QUEUE, WATCH, at, dead, ids, millis, retry, secs, snooze},
    group::{add, add_with, concurrency, finish, groups, keyed, letters, put, rate, serve, sorted, weight},
};

const HOUR: Duration = secs(3_600);

fn starts(rate: Rate) -> GroupLimits {
    GroupLimits { rate: Some(rate), ..GroupLimits::default() }
}

fn retry_after(after: Duration) -> Verdict {
    Verdict::RetryAfter { at: When::In(after), error: "429".to_owned() }
}

/// A call whose leases outlast all waits.
fn want_for_long(t: &Fixture, n: usize) -> Reserve {
    Reserve { lease: Some(HOUR), ..t.want(n) }
}

// ── how many of a group run ──

/// S15: of a group as many jobs run as may; others are not held back, and nobody is told to call in vain.
pub(crate) async fn a_group_runs_as_many_jobs_as_may(t: Fixture) {
    t.set(|settings| settings.group = concurrency(2)).await;
    let added = add(&t, "aaaa---bbb").await;
    let mut batch = t.reserve(20).await;
    batch.jobs.sort_by_key(|reserved| reserved.job.id);
    let expected = [&added[..2], &added[4..9]].concat();
    assert_eq!((ids(&batch), batch.more, batch.next_due), (expected, false, Some(WATCH)));
    assert_eq!(t.reserve(20).await.jobs, []);
    t.end(&batch.jobs[1], Verdict::Ack).await;
    assert_eq!(ids(&t.reserve(20).await), [added[2]]);
}

/// S15: a group's own limits come before those of all groups, each for itself.
pub(crate) async fn a_limit_is_that_of_the_group_else_of_all_groups(t: Fixture) {
    t.set(|settings| {
        settings.group = concurrency(2);
        settings.groups = groups([
            ("a", concurrency(1)),
            ("b", concurrency(3)),
            ("c", weight(5)),
            ("d", starts(rate(1, 1_000, 1))),
        ]);
    })
    .await;
    add(&t, "aaaabbbbccccddddeeee----").await;
    assert_eq!(sorted(&letters(&t.reserve(99).await.jobs)), "----abbbccdee");
    t.pass(1).await;
    assert_eq!(letters(&t.reserve(99).await.jobs), "d");
    t.pass(1).await;
    assert_eq!(t.reserve(99).await.jobs, []);
}

/// S15: whatever ends a run gives its place back.
pub(crate) async fn every_end_of_a_run_gives_its_place_back(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    let mut run = t.run_with(|job| put(job, "a")).await;
    let verdicts =
        [retry(secs(60)), snooze(secs(60)), Verdict::Cancel { reason: None }, dead(), Verdict::Ack];
    for verdict in verdicts {
        let next = add(&t, "a").await;
        assert_eq!(t.reserve(9).await.jobs, []);
        t.end(&run, verdict).await;
        run = t.reserve_one().await;
        assert_eq!(run.job.id, next[0]);
    }
    // What is released is the first again.
    add(&t, "a").await;
    t.end(&run, Verdict::Release).await;
    assert_eq!(t.reserve_one().await.job.id, run.job.id);
}

/// S9, S15: a lease that is reclaimed gives its place back in the same call.
pub(crate) async fn a_lease_reclaimed_gives_its_place_back(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    let run = t.run_with(|job| {
        put(job, "a");
        job.options.max_attempts = Some(1);
    });
    let run = run.await;
    let next = add(&t, "aa").await[0];
    assert_eq!(t.reserve(9).await.jobs, []);
    t.pass(15).await;
    let batch = t.reserve(9).await;
    assert_eq!((batch.reclaimed.len(), ids(&batch)), (1, vec![next]));
    assert_eq!(t.state(run.job.id).await, State::Dead);
}

/// S8, S15: a place is given back once, however often a lease is settled, and by a current lease alone.
pub(crate) async fn a_place_is_given_back_once(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    let old = t.run_with(|job| put(job, "a")).await;
    t.pass(15).await;
    let new = t.reserve_one().await;
    add(&t, "aa").await;
    for _ in 0..2 {
        assert_eq!(t.settle_one(old.lease, Verdict::Ack).await, Settled::LeaseLost);
        assert_eq!(t.reserve(9).await.jobs, []);
    }
    t.end(&new, Verdict::Ack).await;
    assert_eq!(t.settle_one(new.lease, Verdict::Ack).await, Settled::LeaseLost);
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    assert_eq!(t.reserve(9).await.jobs, []);
}

/// S15: a settle and the reserve behind it are one step: the place is free in it.
pub(crate) async fn a_place_is_free_in_the_step_that_ends_a_run(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    let run = t.run_with(|job| put(job, "a")).await;
    let next = add(&t, "aa").await[0];
    let ack = [Settlement { lease: run.lease, verdict: Verdict::Ack }];
    let (_, batch) = t.store.settle(&ack, Some(&t.want(9))).await.unwrap();
    assert_eq!(ids(&batch.unwrap()), [next]);
}

/// S15: jobs that are deleted, cancelled or put off while their group is full free nothing, and what runs keeps its place.
pub(crate) async fn only_runs_have_places(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    let run = t.run_with(|job| put(job, "a")).await;
    let jobs = add(&t, "aaaa").await;
    t.apply(jobs[0], CANCEL).await;
    t.apply(jobs[1], Action::Delete).await;
    t.apply(jobs[2], Action::Reschedule(When::In(secs(9)))).await;
    // A cancel of a run is a request.
    t.apply(run.job.id, CANCEL).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&run, Verdict::Release).await;
    assert_eq!(t.state(run.job.id).await, State::Cancelled);
    assert_eq!(ids(&t.reserve(9).await), [jobs[3]]);
}

// ── how often one starts ──

/// S5, S15: jobs of a group start evenly by its rate, to the millisecond, and the answer says when.
pub(crate) async fn a_group_starts_jobs_by_its_rate(t: Fixture) {
    t.set(|settings| settings.group = starts(rate(3, 1_000, 1))).await;
    let jobs = add(&t, "aaaaa").await;
    for (n, job) in (0..).zip(&jobs) {
        if 0 < n {
            t.clock.set(at(n * 334 - 1));
            assert_eq!(t.reserve(9).await.jobs, []);
            t.clock.set(at(n * 334));
        }
        let batch = t.reserve(9).await;
        let wait = if n < 4 { millis(334) } else { WATCH };
        assert_eq!((ids(&batch), batch.more, batch.next_due), (vec![*job], false, Some(wait)));
    }
}

/// S15: each group has a rate and a burst for itself, and the answer tells which opens first.
pub(crate) async fn groups_have_rates_and_bursts_of_their_own(t: Fixture) {
    t.set(|settings| {
        settings.group = starts(rate(10, 1_000, 4));
        settings.groups = groups([("b", starts(rate(1, 3_000, 2)))]);
    })
    .await;
    add(&t, &"a".repeat(20)).await;
    add(&t, &"b".repeat(20)).await;
    add(&t, "cc-").await;
    let batch = t.reserve(99).await;
    assert_eq!(sorted(&letters(&batch.jobs)), "-aaaabbcc");
    assert_eq!((batch.more, batch.next_due), (false, Some(millis(100))));
    finish(&t, &batch.jobs).await;
    t.clock.set(at(250));
    assert_eq!(serve(&t, 99).await, "aa");
    t.clock.set(at(2_999));
    assert_eq!(serve(&t, 99).await, "aaaa");
    t.clock.set(at(3_000));
    let batch = t.reserve(99).await;
    assert_eq!((letters(&batch.jobs), batch.next_due), ("b".to_owned(), Some(millis(99))));
}

/// S15: what expires, is held back or is called off spends nothing of a group's rate.
pub(crate) async fn only_what_starts_spends_of_a_groups_rate(t: Fixture) {
    t.set(|settings| settings.group = starts(rate(1, 1_000, 2))).await;
    t.run_with(|job| {
        put(job, "a");
        keyed(job);
    })
    .await;
    let short = add_with(&t, "a", |job| job.expires_at = Some(When::In(millis(1)))).await;
    add_with(&t, "a", keyed).await;
    let jobs = add(&t, "aaa").await;
    t.apply(jobs[0], CANCEL).await;
    t.clock.set(at(1));
    assert_eq!(ids(&t.reserve(9).await), [jobs[1]]);
    assert_eq!(t.state(short).await, State::Cancelled);
    assert_eq!(t.reserve(9).await.jobs, []);
}

/// S15: settings that change, a pause, and the end of all of its jobs don't begin a group's rate anew.
pub(crate) async fn a_groups_rate_goes_on(t: Fixture) {
    let once = || starts(rate(1, 1_000, 1));
    t.set(|settings| settings.group = once()).await;
    add(&t, "a").await;
    assert_eq!(serve(&t, 9).await, "a");
    t.set(|settings| (settings.groups, settings.max_jobs) = (groups([("a", once())]), Some(9))).await;
    t.pause().await;
    t.queue(QueueOp::Resume).await;
    t.clock.set(at(999));
    t.sweep(9).await;
    add(&t, "ab").await;
    assert_eq!(serve(&t, 9).await, "b");
    t.clock.set(at(1_000));
    assert_eq!(serve(&t, 9).await, "a");
}

/// S14, S15: a clock that goes back far voids what a group's rate kept; one that goes back a little is followed.
pub(crate) async fn a_groups_rate_follows_the_clock(t: Fixture) {
    t.set(|settings| settings.group = starts(rate(1, 1_000, 1))).await;
    add(&t, "aaa").await;
    t.pass(60).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.clock.set(at(59_000));
    let batch = t.reserve(9).await;
    assert_eq!((batch.jobs.len(), batch.next_due), (1, Some(millis(1_000))));
    t.clock.set(at(58_999));
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.clock.set(at(59_998));
    assert_eq!(t.reserve(9).await.jobs, []);
}

/// S14, S15: a group that its rate lets start again is held back again if the clock goes back, and nobody is told to call in vain.
pub(crate) async fn a_clock_that_goes_back_closes_a_group_again(t: Fixture) {
    t.set(|settings| settings.group = starts(rate(1, 1_000, 1))).await;
    add(&t, "aa").await;
    assert_eq!(t.reserve(1).await.jobs.len(), 1);
    t.pass(1).await;
    add(&t, "a").await;
    t.clock.set(at(500));
    let batch = t.reserve(0).await;
    assert_eq!((batch.more, batch.next_due), (false, Some(millis(500))));
    add(&t, "-").await;
    let batch = t.reserve(1).await;
    assert_eq!((letters(&batch.jobs), batch.more), ("-".to_owned(), false));
    assert_eq!(batch.next_due, Some(millis(500)));
    t.clock.set(at(1_000));
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

/// S14, S15: a group whose rate has parts of a millisecond opens after these, also for a clock that goes back to just before.
pub(crate) async fn a_clock_that_goes_back_by_a_millisecond_closes_a_group_again(t: Fixture) {
    t.set(|settings| settings.group = starts(rate(3, 1_000, 1))).await;
    add(&t, "aa").await;
    assert_eq!(t.reserve(1).await.jobs.len(), 1);
    t.clock.set(at(334));
    add(&t, "a").await;
    t.clock.set(at(333));
    let batch = t.reserve(0).await;
    assert_eq!((batch.more, batch.next_due), (false, Some(millis(1))));
    t.clock.set(at(334));
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

/// The clock goes back, so that what the rate of group a kept is ignored, and comes near again, so that a is closed. Jobs of `coming`
/// and one of c come then, and one of b, which is served before both. Returns in which order a and c start when a opens.
async fn turns_of_one_that_time_closed(t: &Fixture, coming: &str) -> String {
    let heavy = GroupLimits { weight: Some(100), ..GroupLimits::default() };
    t.set(|settings| settings.groups = groups([("a", starts(rate(1, 1_000, 1))), ("b", heavy)])).await;
    t.clock.set(at(10_000));
    add(t, "a").await;
    assert_eq!(letters(&t.reserve(1).await.jobs), "a");
    t.clock.set(at(9_000));
    add(t, "ab").await;
    assert_eq!(letters(&t.reserve(1).await.jobs), "b");
    t.clock.set(at(10_500));
    add(t, coming).await;
    add(t, "bc").await;
    assert_eq!(letters(&t.reserve(1).await.jobs), "b");
    t.clock.set(at(11_000));
    letters(&t.reserve(1).await.jobs) + &letters(&t.reserve(1).await.jobs)
}

/// S14, S16: a group that time alone closes keeps its turn.
pub(crate) async fn a_group_that_time_alone_closes_keeps_its_turn(t: Fixture) {
    assert_eq!(turns_of_one_that_time_closed(&t, "").await, "ac");
}

/// S14, S16: the same, and something happens to the group while it is closed: its turn is lost.
pub(crate) async fn a_group_that_time_alone_closes_loses_its_turn_by_an_event(t: Fixture) {
    assert_eq!(turns_of_one_that_time_closed(&t, "a").await, "ca");
}

/// S14, S16: the same for one that is not active yet: it is not activated, and takes no part in the turns of others.
pub(crate) async fn a_group_that_time_alone_closes_is_not_activated(t: Fixture) {
    t.set(|settings| settings.groups = groups([("a", starts(rate(1, 1_000, 1)))])).await;
    t.clock.set(at(10_000));
    add(&t, "a").await;
    assert_eq!(letters(&t.reserve(1).await.jobs), "a");
    t.clock.set(at(9_000));
    add(&t, "a").await;
    t.clock.set(at(10_500));
    // Nobody is told to call in vain.
    let batch = t.reserve(0).await;
    assert_eq!((batch.more, batch.next_due), (false, Some(millis(500))));
    // While no group is active, the turn of ungrouped jobs stays.
    add(&t, "--").await;
    assert_eq!(letters(&t.reserve(1).await.jobs), "-");
    add(&t, "c").await;
    assert_eq!(letters(&t.reserve(1).await.jobs) + &letters(&t.reserve(1).await.jobs), "-c");
    t.clock.set(at(11_000));
    assert_eq!(letters(&t.reserve(9).await.jobs), "a");
}

/// S14, S16: the same for one whose turn comes meanwhile, and for one to which something happens.
pub(crate) async fn a_group_that_time_alone_closes_starts_nothing(t: Fixture) {
    for happens in [false, true] {
        t.set(|settings| settings.groups = groups([("a", starts(rate(1, 1_000, 1)))])).await;
        let begin = if happens { 14_000 } else { 10_000 };
        t.clock.set(at(begin));
        add(&t, "a").await;
        assert_eq!(letters(&t.reserve(1).await.jobs), "a");
        t.clock.set(at(begin - 1_000));
        add(&t, "-a").await;
        assert_eq!(letters(&t.reserve(1).await.jobs), "-");
        t.clock.set(at(begin + 500));
        if happens {
            add(&t, "a").await;
        }
        let batch = t.reserve(9).await;
        assert_eq!(
            (letters(&batch.jobs), batch.more, batch.next_due),
            (String::new(), false, Some(millis(500)))
        );
        t.clock.set(at(begin + 1_000));
        assert_eq!(letters(&t.reserve(9).await.jobs), "a");
    }
}

/// S14, S16: what a limit of one group keeps changes no turn of others when the clock goes back.
pub(crate) async fn a_limit_of_a_group_changes_no_turn_of_others(t: Fixture) {
    t.set(|settings| settings.groups = groups([("z", starts(rate(1, 1_000, 1)))])).await;
    t.clock.set(at(450));
    add(&t, "z").await;
    assert_eq!(letters(&t.reserve(1).await.jobs), "z");
    add(&t, "z").await;
    let due = |ms| move |job: &mut NewJob| job.run_at = When::At(at(ms));
    let first = add_with(&t, "b", due(900)).await;
    for (group, ms) in [("b", 1_400), ("a", 800), ("c", 850)] {
        add_with(&t, group, due(ms)).await;
    }
    t.clock.set(at(1_000));
    assert_eq!(letters(&t.reserve(1).await.jobs), "a");
    t.clock.set(at(1_500));
    add(&t, "z").await;
    t.clock.set(at(1_200));
    t.apply(first, CANCEL).await;
    t.clock.set(at(1_500));
    assert_eq!(letters(&t.reserve(1).await.jobs), "c");
}

/// S14, S15: a group that a clock which went back opens is found beside as many others as one call looks at.
pub(crate) async fn a_group_that_a_clock_opens_is_found_among_many(t: Fixture) {
    const HOURS: u64 = 3_600_000;
    t.set(|settings| settings.groups = groups([("w", starts(rate(1, 1_000, 1)))])).await;
    add(&t, "ww").await;
    t.clock.set(at(2 * HOURS));
    let want = |n| want_for_long(&t, n);
    assert_eq!(t.reserve_by(&want(1)).await.jobs.len(), 1);
    let job = |n: usize| t.job_with(|job| job.group = Some(format!("{}", n % REGROUP_MAX)));
    t.enqueue_all(&(0..3 * REGROUP_MAX).map(job).collect::<Vec<_>>()).await;
    let mut started = 0;
    while started < REGROUP_MAX {
        started += t.reserve_by(&want(20.min(REGROUP_MAX - started))).await.jobs.len();
    }
    t.clock.set(at(HOURS));
    assert_eq!(t.reserve(0).await.next_due, Some(Duration::ZERO));
    assert_eq!(letters(&t.reserve(9).await.jobs), "w");
}

// ── a run closes its group ──

/// S10, S15: a run closes its group, and it alone, until it says so.
pub(crate) async fn a_run_closes_its_group_alone(t: Fixture) {
    let run = t.run_with(|job| put(job, "a")).await;
    let job = t.end(&run, retry_after(secs(30))).await;
    assert_eq!((job.state, job.attempt, job.run_at), (State::Waiting, 2, at(30_000)));
    let held = add(&t, "aab-").await;
    let batch = t.reserve(9).await;
    assert_eq!((sorted(&letters(&batch.jobs)), batch.more), ("-b".to_owned(), false));
    finish(&t, &batch.jobs).await;
    let batch = t.reserve(9).await;
    assert_eq!((batch.jobs.len(), batch.next_due), (0, Some(secs(30))));
    assert_eq!(t.take(9).await, []);
    // The queue itself is open.
    assert_eq!(t.info().await.opens_at, None);
    t.clock.set(at(29_999));
    assert_eq!(t.reserve(9).await.jobs, []);
    t.clock.set(at(30_000));
    assert_eq!(ids(&t.reserve(9).await), [held[0], held[1], run.job.id]);
}

/// S15: a run of no group closes the queue, groups and all.
pub(crate) async fn a_run_without_a_group_closes_its_queue(t: Fixture) {
    let run = t.run().await;
    t.end(&run, retry_after(secs(30))).await;
    add(&t, "ab").await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.pass(30).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 3);
}

/// S15: a group is closed until the latest of what was asked for, and for a day at most.
pub(crate) async fn a_group_is_closed_for_a_day_at_most(t: Fixture) {
    add(&t, "aaaa").await;
    let runs = t.reserve(3).await.jobs;
    t.end(&runs[0], retry_after(secs(60))).await;
    t.end(&runs[1], retry_after(secs(30))).await;
    t.end(&runs[2], Verdict::Release).await;
    assert_eq!(t.reserve(9).await.next_due, Some(secs(60)));
    t.pass(60).await;
    let run = t.reserve(1).await.jobs;
    let day = 24 * 3_600;
    t.end(&run[0], retry_after(secs(90 * day))).await;
    assert_eq!(t.reserve(9).await.next_due, Some(secs(day)));
    // One that lies further ahead than it can was left by a clock that went back.
    t.clock.set(at(59_999));
    assert_eq!(t.reserve(9).await.jobs.len(), 2);
}

/// S15: an operator opens a group that a run closed, and it alone.
pub(crate) async fn an_operator_opens_a_group(t: Fixture) {
    let open = |group: &str| QueueOp::Open { group: Some(group.to_owned()) };
    add(&t, "aabb").await;
    let runs = t.reserve(2).await.jobs;
    assert_eq!(sorted(&letters(&runs)), "ab");
    for run in &runs {
        t.end(run, retry_after(secs(3_600))).await;
    }
    assert_eq!(t.reserve(9).await.jobs, []);
    t.queue(open("nobody")).await;
    t.queue(QueueOp::Open { group: None }).await;
    assert_eq!(t.reserve(9).await.jobs, [], "the queue itself was open");
    t.queue(open("a")).await;
    assert_eq!(letters(&t.reserve(9).await.jobs), "a");
    t.queue(open("b")).await;
    assert_eq!(letters(&t.reserve(9).await.jobs), "b");
    assert_eq!(t.store.queue(QUEUE, &open("")).await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// S14, S15: what closed a group is remembered to its last millisecond, also while none of its jobs waits: a clock that goes back
/// by one finds it closed.
pub(crate) async fn a_limiter_is_remembered_to_its_last_instant(t: Fixture) {
    let run = t.run_with(|job| put(job, "a")).await;
    t.clock.set(at(1_000));
    t.end(&run, retry_after(millis(0))).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.clock.set(at(999));
    add(&t, "a").await;
    let batch = t.reserve(9).await;
    assert_eq!((batch.jobs.len(), batch.next_due), (0, Some(millis(1))));
    t.clock.set(at(1_000));
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

/// S8, S15: a lease that was lost closes nothing.
pub(crate) async fn a_lost_lease_closes_no_group(t: Fixture) {
    let run = t.run_with(|job| put(job, "a")).await;
    t.pass(15).await;
    t.reserve(0).await;
    assert_eq!(t.settle_one(run.lease, retry_after(secs(60))).await, Settled::LeaseLost);
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

// ── settings ──

/// S15: a limit of groups that is raised, lowered or taken away counts at once for those that wait.
pub(crate) async fn limits_of_groups_are_live(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    add(&t, "aaaaaaaa").await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.set(|settings| settings.group = concurrency(3)).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 2);
    t.set(|settings| (settings.group, settings.groups) = (concurrency(9), groups([("a", concurrency(1))])))
        .await;
    assert_eq!(t.reserve(9).await.jobs, []);
    t.set(|settings| settings.groups = groups([("a", concurrency(4)), ("b", concurrency(1))])).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    t.set(|settings| settings.group = starts(rate(1, 60_000, 1))).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
    let batch = t.reserve(9).await;
    assert_eq!((batch.jobs.len(), batch.more), (0, false));
    t.set(|_| ()).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 3);
}

/// S15, S16: a limit that goes may hold back more groups than one call looks at. A job that comes for later hides none that is due.
pub(crate) async fn a_later_job_hides_no_group_that_a_setting_opens(t: Fixture) {
    const GROUPS: usize = REGROUP_MAX + 30;
    let job = |n: usize, later: u64| {
        t.job_with(|job| (job.group, job.run_at) = (Some(format!("{n}")), When::In(secs(later))))
    };
    t.set(|settings| settings.group = concurrency(1)).await;
    for _ in 0..2 {
        t.enqueue_all(&(0..GROUPS).map(|n| job(n, 0)).collect::<Vec<_>>()).await;
    }
    // The model looks at all jobs for each one that starts.
    let want = || want_for_long(&t, 20);
    while t.reserve_by(&want()).await.more {}
    assert_eq!(t.counts().await.running, GROUPS as u64);
    t.set(|_| ()).await;
    for n in 0..GROUPS {
        t.enqueue(job(n, 60)).await;
    }
    while t.reserve_by(&want()).await.more {}
    assert_eq!(t.counts().await.running, 2 * GROUPS as u64);
}

/// S15: a group that is full or closed when a limit goes is known to the next call, which says so before anything runs.
pub(crate) async fn a_group_that_a_setting_opens_is_due(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    t.run_with(|job| put(job, "a")).await;
    add(&t, "a").await;
    assert!(!t.reserve(9).await.more);
    t.set(|settings| settings.group = concurrency(2)).await;
    let batch = t.reserve(0).await;
    assert_eq!((batch.more, batch.next_due), (true, Some(Duration::ZERO)));
}

/// S14: limits of groups are kept as they were set.
pub(crate) async fn limits_of_groups_are_told(t: Fixture) {
    let mut settings = QueueSettings {
        group: GroupLimits { weight: Some(2), concurrency: None, rate: Some(rate(7, 1_000, 3)) },
        groups: groups([("a", weight(100)), ("b.c", concurrency(10_000)), ("é \"", weight(1))]),
        ..QueueSettings::default()
    };
    t.queue(QueueOp::Set(Box::new(settings.clone()))).await;
    assert_eq!(t.info().await.settings, settings);
    settings.groups = (0..GROUP_LIMITS_MAX).map(|n| (format!("customer {n}"), weight(3))).collect();
    t.queue(QueueOp::Set(Box::new(settings.clone()))).await;
    assert_eq!(t.info().await.settings, settings);
    t.pause().await;
    assert_eq!(t.info().await.settings.groups, settings.groups);
}

/// S15, S16: limits of groups that make no sense are refused, and nothing changes.
pub(crate) async fn limits_of_groups_are_checked(t: Fixture) {
    let bad = [
        weight(0),
        weight(101),
        concurrency(0),
        concurrency(10_001),
        starts(rate(0, 1_000, 1)),
        starts(rate(1, 0, 1)),
        starts(rate(1, 30 * 24 * 3_600_000 + 1, 1)),
        starts(rate(1, 1_000, 0)),
    ];
    let of_all = bad.iter().map(|&group| QueueSettings { group, ..QueueSettings::default() });
    let of_one =
        |name: &str, limits| QueueSettings { groups: groups([(name, limits)]), ..QueueSettings::default() };
    let too_many = (0..=GROUP_LIMITS_MAX).map(|n| (n.to_string(), weight(1))).collect();
    let bad = of_all.chain(bad.iter().map(|&limits| of_one("a", limits))).chain([
        of_one("", weight(1)),
        of_one(&"x".repeat(NAME_BYTES_MAX + 1), weight(1)),
        QueueSettings { groups: too_many, ..QueueSettings::default() },
    ]);
    t.set(|settings| settings.groups = groups([("a", weight(100))])).await;
    for bad in bad {
        let refused = t.store.queue(QUEUE, &QueueOp::Set(Box::new(bad))).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
    assert_eq!(t.info().await.settings.groups, groups([("a", weight(100))]));
    for unknown in [r#"{"group":{"wait":1}}"#, r#"{"groups":{"a":{"max":1}}}"#, r#"{"group":3}"#] {
        assert!(serde_json::from_str::<QueueSettings>(unknown).is_err(), "{unknown}");
    }
}

// ── what is held back ──

/// S15: a due job whose group is full or closed is shown so; others of the queue are not.
pub(crate) async fn a_job_behind_its_group_is_shown_as_blocked(t: Fixture) {
    t.set(|settings| settings.groups = groups([("a", concurrency(1))])).await;
    let run = t.run_with(|job| put(job, "a")).await;
    let jobs = add(&t, "ab-").await;
    let later = add_with(&t, "a", |job| job.run_at = When::In(secs(9))).await;
    let status = async |id| t.get(id).await.status(at(0));
    assert_eq!(status(jobs[0]).await, Status::Blocked);
    assert_eq!(status(later).await, Status::Scheduled);
    assert_eq!(t.list("state:blocked", 9).await, [jobs[0]]);
    assert_eq!(t.list("state:ready", 9).await, [jobs[2], jobs[1]]);
    t.end(&run, Verdict::Ack).await;
    assert_eq!(status(jobs[0]).await, Status::Ready);
    t.set(|settings| settings.group = starts(rate(1, 1_000, 1))).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 3);
    let closed = add(&t, "ab-").await;
    assert_eq!(t.list("state:blocked", 9).await, [closed[1], closed[0]]);
    t.pass(1).await;
    assert_eq!(t.list("state:blocked", 9).await, []);
}

/// S15: so is one whose group a run closed.
pub(crate) async fn a_job_of_a_closed_group_is_shown_as_blocked(t: Fixture) {
    let run = t.run_with(|job| put(job, "a")).await;
    let jobs = add(&t, "ab-").await;
    t.end(&run, retry_after(secs(5))).await;
    assert_eq!(t.list("state:blocked", 9).await, [jobs[0]]);
    t.pass(5).await;
    assert_eq!(t.list("state:blocked", 9).await, []);
}

/// S15: a take starts no more of a group than may run or start, and keeps no place.
pub(crate) async fn a_take_obeys_limits_of_groups(t: Fixture) {
    t.set(|settings| {
        settings.group = GroupLimits { rate: Some(rate(1, 1_000, 3)), ..concurrency(1) };
    })
    .await;
    let jobs = add(&t, "aaaaa").await;
    add(&t, "b").await;
    let taken = t.take(9).await;
    let of_a: Vec<JobId> =
        taken.iter().filter(|job| job.group.as_deref() == Some("a")).map(|job| job.id).collect();
    assert_eq!((taken.len(), of_a), (4, jobs[..3].to_vec()));
    t.pass(2).await;
    assert_eq!(t.reserve(1).await.jobs.len(), 1);
    assert_eq!(t.take(9).await, []);
}

/// S15: who has the turn of a key starts when its group has a place, too.
pub(crate) async fn a_turn_waits_for_a_place_of_its_group(t: Fixture) {
    t.set(|settings| settings.group = concurrency(2)).await;
    let first = t.run_with(|job| {
        put(job, "a");
        keyed(job);
    });
    let first = first.await;
    let turn = add_with(&t, "a", keyed).await;
    let free = add(&t, "aa").await;
    let second = t.reserve_one().await;
    assert_eq!(second.job.id, free[0]);
    // It has been blocked; the third takes the place before it is free again.
    t.end(&second, Verdict::Ack).await;
    let third = t.reserve_one().await;
    assert_eq!(third.job.id, free[1]);
    let last = add(&t, "a").await;
    t.end(&first, Verdict::Ack).await;
    assert_eq!(ids(&t.reserve(9).await), [turn]);
    t.end(&third, Verdict::Ack).await;
    assert_eq!(ids(&t.reserve(9).await), last);
}

// ── wait ──

/// S13, S15: the end of a run wakes who waits for a place of its group.
pub(crate) async fn a_place_in_a_group_ends_a_wait(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    add(&t, "aa").await;
    let runs = t.reserve_by(&want_for_long(&t, 9)).await.jobs;
    let queues = [QUEUE.to_owned()];
    let wait = tokio::time::timeout(secs(20), t.store.wait(&queues, HOUR));
    let (woken, _) = tokio::join!(wait, t.end(&runs[0], Verdict::Ack));
    woken.expect("it returns").unwrap();
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}

/// S13, S15: a limit of groups that is raised wakes who waits.
pub(crate) async fn a_limit_that_is_raised_ends_a_wait(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    add(&t, "aa").await;
    t.reserve_by(&want_for_long(&t, 9)).await;
    let queues = [QUEUE.to_owned()];
    let wait = tokio::time::timeout(secs(20), t.store.wait(&queues, HOUR));
    let (woken, ()) = tokio::join!(wait, t.set(|settings| settings.group = concurrency(2)));
    woken.expect("it returns").unwrap();
    assert_eq!(t.reserve(9).await.jobs.len(), 1);
}
