//! Groups: how they share a queue. What each of them may have of it is in `group_limit.rs`.
//!
//! Groups have letters for names here, and jobs without a group are written `-`. Which of two groups that stand equal comes first
//! is not promised: cases look at whole rounds.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use punctual::{
    JobId, NewJob, OnConflict, Payload, Priority, State, Timestamp, Unique, When,
    job::Concurrency,
    limits::{GROUP_SERVICES_MAX, GROUPS_EXTRA},
    store::{
        Action, Audit, AuditCursor, Enqueued, GroupLimits, Keep, Order, QueueOp, QueueReply, Rate, Reserved,
        Settlement, Upcoming, Verdict,
    },
};

use crate::{
    fixture::{CANCEL, Fixture, QUEUE, START_MS, WATCH, at, dead, ids, millis, retry, secs},
    read::fields_of,
};

pub(crate) fn weight(weight: u32) -> GroupLimits {
    GroupLimits { weight: Some(weight), ..GroupLimits::default() }
}

pub(crate) fn concurrency(most: u32) -> GroupLimits {
    GroupLimits { concurrency: Some(most), ..GroupLimits::default() }
}

pub(crate) fn groups<const N: usize>(of: [(&str, GroupLimits); N]) -> BTreeMap<String, GroupLimits> {
    of.map(|(name, limits)| (name.to_owned(), limits)).into()
}

pub(crate) fn keyed(job: &mut NewJob) {
    job.concurrency = Some(Concurrency { key: "k".to_owned(), limit: 1 });
}

pub(crate) const fn rate(max: u32, period_ms: u64, burst: u32) -> Rate {
    Rate { max, period_ms, burst }
}

/// Puts a job into the group of this name; `-` is none.
pub(crate) fn put(job: &mut NewJob, group: &str) {
    job.group = (group != "-").then(|| group.to_owned());
}

/// Inserts a job of a group, changed.
pub(crate) async fn add_with(t: &Fixture, group: &str, change: impl FnOnce(&mut NewJob)) -> JobId {
    t.add_with(|job| {
        put(job, group);
        change(job);
    })
    .await
}

/// Inserts a job for each letter.
pub(crate) async fn add(t: &Fixture, letters: &str) -> Vec<JobId> {
    let jobs: Vec<NewJob> =
        letters.chars().map(|group| t.job_with(|job| put(job, &group.to_string()))).collect();
    let answers = t.enqueue_all(&jobs).await;
    answers.iter().map(|answer| answer.id().expect("there is room")).collect()
}

/// Whose jobs these are, a letter each.
fn whose<'a>(jobs: impl IntoIterator<Item = &'a Option<String>>) -> String {
    jobs.into_iter().map(|group| group.as_deref().unwrap_or("-")).collect()
}

pub(crate) fn letters(jobs: &[Reserved]) -> String {
    whose(jobs.iter().map(|reserved| &reserved.job.group))
}

/// The same, in the order of letters.
pub(crate) fn sorted(letters: &str) -> String {
    let mut letters: Vec<char> = letters.chars().collect();
    letters.sort_unstable();
    letters.into_iter().collect()
}

pub(crate) fn count(of: &str, letter: char) -> usize {
    of.chars().filter(|&other| other == letter).count()
}

/// Reserves up to `n` jobs and acks them; answers whose they were.
pub(crate) async fn serve(t: &Fixture, n: usize) -> String {
    let jobs = t.reserve(n).await.jobs;
    finish(t, &jobs).await;
    letters(&jobs)
}

/// Serves `n` at a time until this holds of all that was served, for so many rounds: a store that serves nothing, or the wrong
/// groups, must fail and not hang.
async fn serve_until(t: &Fixture, n: impl Fn(&str) -> usize, is_enough: impl Fn(&str) -> bool) -> String {
    const ROUNDS_MAX: usize = 200;
    let mut served = String::new();
    for _ in 0..ROUNDS_MAX {
        if is_enough(&served) {
            return served;
        }
        served += &serve(t, n(&served)).await;
    }
    panic!("{ROUNDS_MAX} rounds served {served:?}");
}

/// Acks these runs.
pub(crate) async fn finish(t: &Fixture, jobs: &[Reserved]) {
    let acks: Vec<Settlement> =
        jobs.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
    t.store.settle(&acks, None).await.expect("leases can be settled");
}

// ── services ──

/// S16: groups of one weight take turns, whatever waits of each and however many one call brings.
pub(crate) async fn equal_groups_take_turns(t: Fixture) {
    for (group, n) in [("a", 60), ("b", 12), ("c", 12)] {
        add(&t, &group.repeat(n)).await;
    }
    let mut served = String::new();
    for n in [1, 2, 3, 5, 4, 1, 8, 12] {
        served += &serve(&t, n).await;
    }
    for round in 0..12 {
        assert_eq!(sorted(&served[round * 3..][..3]), "abc", "{served}");
    }
    // Who is alone has it all.
    assert_eq!(serve(&t, 99).await, "a".repeat(48));
}

/// S16: who weighs three times as much is served three times as often.
pub(crate) async fn groups_are_served_by_their_weights(t: Fixture) {
    t.set(|settings| settings.groups = groups([("a", weight(3))])).await;
    add(&t, &"b".repeat(60)).await;
    add(&t, &"a".repeat(60)).await;
    let mut served = String::new();
    for _ in 0..10 {
        served += &serve(&t, 4).await;
        let (a, b) = (count(&served, 'a'), count(&served, 'b'));
        assert!(a <= 3 * b + 3 && 3 * b <= a + 3, "{served}");
    }
}

/// S16: a group's own weight comes before that of all groups, which is not that of jobs without a group.
pub(crate) async fn a_weight_is_that_of_the_group_else_of_all_groups(t: Fixture) {
    t.set(|settings| {
        settings.group = weight(2);
        settings.groups = groups([("a", weight(6)), ("c", concurrency(99))]);
    })
    .await;
    for group in ["-", "a", "b", "c"] {
        add(&t, &group.repeat(80)).await;
    }
    let served = serve_until(&t, |served| 110 - served.len(), |served| served.len() == 110).await;
    for (letter, n) in [('-', 10), ('a', 60), ('b', 20), ('c', 20)] {
        assert!(count(&served, letter).abs_diff(n) <= 2, "{letter}: {served}");
    }
}

/// S16: between two reservations of a group that has due jobs all the while, any other gets no more than the quotient of their
/// weights, rounded up, and one more.
pub(crate) async fn no_group_gets_more_than_its_share_and_one(t: Fixture) {
    let weights: BTreeMap<char, u32> = [('-', 1), ('a', 1), ('b', 2), ('c', 3), ('d', 7), ('e', 100)].into();
    t.set(|settings| {
        settings.done = Keep::NOTHING;
        let heavy = weights.iter().filter(|(group, _)| **group != '-');
        settings.groups = heavy.map(|(group, w)| (group.to_string(), weight(*w))).collect();
    })
    .await;
    let mut rng = Rng::with_seed(16);
    let mut waiting: BTreeMap<char, usize> = weights.keys().map(|&group| (group, 0)).collect();
    // What others got since a group was served, of groups that had due jobs since then.
    let mut since: BTreeMap<char, BTreeMap<char, u32>> = BTreeMap::new();
    let mut longest = 0;
    for step in 0..500 {
        let mut new = String::new();
        for (group, waiting) in &mut waiting {
            // Heavy groups have much to do, so that they are there all the while; all run out of jobs now and then.
            let most = 2 + weights[group].min(12) as usize;
            if step % 100 < 90 && *waiting < 3 * most && rng.u8(..3) != 0 {
                let n = rng.usize(..=most);
                new.extend(std::iter::repeat_n(*group, n));
                *waiting += n;
            }
        }
        add(&t, &new).await;
        for served in serve(&t, rng.usize(1..20)).await.chars() {
            for (group, others) in &mut since {
                let got = others.entry(served).or_default();
                *got += u32::from(*group != served);
                let most = weights[&served].div_ceil(weights[group]) + 1;
                assert!(*got <= most, "{got} of {served} behind one of {group}");
                longest = longest.max(*got);
            }
            let waiting = waiting.get_mut(&served).expect("it was enqueued");
            *waiting -= 1;
            since.remove(&served);
            if 0 < *waiting {
                since.insert(served, BTreeMap::new());
            }
        }
    }
    assert!(20 < longest, "the heaviest never had its share: {longest}");
}

/// S16: a group that gets its first due job is served within two services of each other one, and one batch.
pub(crate) async fn a_group_that_comes_is_served_soon(t: Fixture) {
    for group in ["a", "b", "c", "d", "-"] {
        add(&t, &group.repeat(90)).await;
    }
    for n in [1, 4] {
        for lead in 0..6 {
            serve(&t, lead).await;
            add(&t, "z").await;
            let served = serve_until(&t, |_| n, |served| served.contains('z')).await;
            assert!(served.find('z') < Some(2 * 5 + n), "{served}");
        }
    }
}

/// S16: who had nothing to do, or was never there, has saved nothing up; who was served meanwhile owes nothing.
pub(crate) async fn who_was_away_has_saved_nothing_up(t: Fixture) {
    for (busy, away) in [("a", "b"), ("a", "-"), ("-", "a")] {
        add(&t, &busy.repeat(100)).await;
        add(&t, away).await;
        assert!(serve(&t, 60).await.contains(away));
        for back in [away, "n"] {
            add(&t, &back.repeat(9)).await;
            let served = serve(&t, 10).await;
            assert!((4..=6).contains(&served.matches(back).count()), "{busy} {back}: {served}");
            t.queue(QueueOp::Purge(1_000)).await;
            add(&t, &busy.repeat(100)).await;
        }
        t.queue(QueueOp::Purge(1_000)).await;
    }
}

/// S16: who comes with one job after the other gets no more than who has them all there.
pub(crate) async fn who_comes_and_goes_gains_nothing(t: Fixture) {
    for (there, comes) in [("a", "b"), ("b", "a"), ("a", "-"), ("-", "a")] {
        add(&t, &there.repeat(40)).await;
        let mut served = String::new();
        for round in 0..20 {
            if round == 0 || served.ends_with(comes) {
                add(&t, comes).await;
            }
            served += &serve(&t, 1).await;
        }
        assert!((9..=11).contains(&served.matches(comes).count()), "{there} {comes}: {served}");
        t.queue(QueueOp::Purge(1_000)).await;
    }
}

/// S16: the jobs without a group are one group of weight 1 beside the others, and nobody's while they are alone.
pub(crate) async fn jobs_without_a_group_are_a_group(t: Fixture) {
    add(&t, &"-".repeat(60)).await;
    assert_eq!(serve(&t, 20).await, "-".repeat(20));
    t.set(|settings| settings.groups = groups([("b", weight(2))])).await;
    for group in ["a", "b"] {
        add(&t, &group.repeat(40)).await;
    }
    for _ in 0..5 {
        let served = serve(&t, 8).await;
        for (letter, n) in [('-', 2), ('a', 2), ('b', 4)] {
            assert!(count(&served, letter).abs_diff(n) <= 1, "{served}");
        }
    }
}

/// S16: groups of another queue are other groups.
pub(crate) async fn a_group_is_one_of_its_queue(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    add(&t, "aab").await;
    for _ in 0..3 {
        add_with(&t, "a", |job| job.queue = "push".to_owned()).await;
    }
    let batch = t.reserve_by(&t.want_from(&[(QUEUE, 9), ("push", 9)], 9)).await;
    assert_eq!(sorted(&letters(&batch.jobs)), "aaaab");
}

/// S16: however many groups come for a single job, those that wait are served.
pub(crate) async fn newcomers_starve_nobody(t: Fixture) {
    t.set(|settings| settings.groups = groups([("a", weight(2))])).await;
    add(&t, &"a".repeat(60)).await;
    add(&t, &"-".repeat(60)).await;
    let mut served = String::new();
    for n in 0..90 {
        t.add_with(|job| job.group = Some(format!("only {n}"))).await;
        served += &letters(&t.reserve(1).await.jobs);
    }
    let (heavy, rest) = (count(&served, 'a'), count(&served, '-'));
    // As many come as are served: those that wait are more and more.
    assert!(12 <= heavy && 6 <= rest, "{heavy} and {rest} of {served}");
}

/// S16: a hundred groups that become due at once have a turn each before one has its second.
pub(crate) async fn a_hundred_groups_become_due_at_once(t: Fixture) {
    let jobs: Vec<NewJob> = (0..200)
        .map(|n| {
            t.job_with(|job| {
                job.group = Some(format!("g{}", n % 100));
                job.run_at = When::In(secs(10));
            })
        })
        .collect();
    t.enqueue_all(&jobs).await;
    assert_eq!(t.reserve(9).await.next_due, Some(secs(10)));
    t.pass(10).await;
    for _ in 0..2 {
        let mut served = Vec::new();
        while served.len() < 100 {
            let batch = t.reserve(10).await;
            assert_eq!(batch.jobs.len(), 10);
            served.extend(batch.jobs.into_iter().map(|reserved| reserved.job.group));
        }
        served.sort_unstable();
        served.dedup();
        assert_eq!(served.len(), 100);
    }
    assert_eq!(t.counts().await.due, 0);
}

/// S13, S16: one call looks at so many groups that come; those that have been due for longest come first, the others soon.
pub(crate) async fn more_groups_than_one_call_lets_in(t: Fixture) {
    let many = |name: &str, n: usize| -> Vec<NewJob> {
        (0..n).map(|n| t.job_with(|job| job.group = Some(format!("{name} {n}")))).collect()
    };
    let early = many("early", 20 + GROUPS_EXTRA);
    t.enqueue_all(&early).await;
    t.pass(1).await;
    t.enqueue_all(&many("late", 100)).await;
    let mut served = BTreeMap::new();
    for n in [20].into_iter().chain([12; 11]) {
        let batch = t.reserve(n).await;
        for reserved in batch.jobs {
            *served.entry(reserved.job.group.unwrap()).or_insert(0) += 1;
        }
        let are_early = served.keys().all(|group| group.starts_with("early"));
        let has_more = served.len() < early.len() + 100;
        assert_eq!((are_early, batch.more), (served.len() <= early.len(), has_more));
    }
    assert_eq!((served.len(), served.into_values().max()), (152, Some(1)));
}

/// S16, S13: a store may end a reserve after some services of groups, and answers fewer jobs only if it says that there are more. A
/// take gives them all.
pub(crate) async fn a_reserve_of_many_groups_says_whether_there_is_more(t: Fixture) {
    const GROUPS: usize = 3 * GROUP_SERVICES_MAX;
    let round = || -> Vec<NewJob> {
        (0..GROUPS).map(|n| t.job_with(|job| job.group = Some(format!("{n}")))).collect()
    };
    t.enqueue_all(&round()).await;
    t.enqueue_all(&round()).await;
    let mut each = BTreeMap::<String, usize>::new();
    let mut left = 2 * GROUPS;
    while 0 < left {
        let batch = t.reserve(1_000).await;
        assert!(GROUP_SERVICES_MAX.min(left) <= batch.jobs.len(), "{} of {left} jobs", batch.jobs.len());
        finish(&t, &batch.jobs).await;
        left -= batch.jobs.len();
        assert_eq!(batch.more, 0 < left);
        for reserved in batch.jobs {
            *each.entry(reserved.job.group.unwrap()).or_default() += 1;
        }
    }
    assert_eq!((each.len(), each.values().max()), (GROUPS, Some(&2)));
    t.enqueue_all(&round()).await;
    assert_eq!(t.take(1_000).await.len(), GROUPS);
}

/// S16: a weight that changes counts from the next reservation on.
pub(crate) async fn weights_are_live(t: Fixture) {
    for group in ["a", "b"] {
        add(&t, &group.repeat(60)).await;
    }
    assert_eq!(sorted(&serve(&t, 8).await), "aaaabbbb");
    t.set(|settings| settings.groups = groups([("a", weight(4))])).await;
    assert!((14..=18).contains(&count(&serve(&t, 20).await, 'a')));
    t.set(|_| ()).await;
    assert!((4..=6).contains(&count(&serve(&t, 10).await, 'a')));
}

// ── order ──

/// S6: inside a group jobs come by priority, `run_at` and id, or the reverse of the last two.
pub(crate) async fn a_group_has_the_order_of_its_queue(t: Fixture) {
    use Priority::{High, Low, Normal};
    let jobs = [(Low, 0), (Normal, 2), (Normal, 1), (Normal, 2), (High, 3)];
    for (order, places) in [(Order::Fifo, [4, 2, 1, 3, 0]), (Order::Lifo, [4, 3, 1, 2, 0])] {
        t.set(|settings| settings.order = order).await;
        let mut added = Vec::new();
        for (priority, delay) in jobs {
            let change = |job: &mut NewJob| {
                (job.options.priority, job.run_at) = (Some(priority), When::In(secs(delay)));
            };
            added.push(add_with(&t, "a", change).await);
        }
        add_with(&t, "a", |job| job.run_at = When::In(secs(4))).await;
        t.pass(3).await;
        assert_eq!(ids(&t.reserve(9).await), places.map(|place| added[place]), "{order:?}");
        t.queue(QueueOp::Purge(9)).await;
    }
}

/// S6, S16: urgent jobs of one group don't overtake those of another.
pub(crate) async fn priority_does_not_cross_groups(t: Fixture) {
    for (group, priority) in [("a", Priority::High), ("b", Priority::Low), ("-", Priority::Normal)] {
        for _ in 0..4 {
            add_with(&t, group, |job| job.options.priority = Some(priority)).await;
        }
    }
    let served = serve(&t, 12).await;
    for round in 0..4 {
        assert_eq!(sorted(&served[round * 3..][..3]), "-ab", "{served}");
    }
}

/// S6: who is released or failed returns to its place in its group.
pub(crate) async fn a_released_job_returns_to_its_group(t: Fixture) {
    let added = add(&t, "aaa").await;
    t.pass(1).await;
    let runs = t.reserve(2).await.jobs;
    t.end(&runs[0], retry(secs(0))).await;
    t.end(&runs[1], Verdict::Release).await;
    assert_eq!(ids(&t.reserve(9).await), [added[1], added[2], added[0]]);
}

// ── the queue around them ──

/// S9, S16: nothing is reserved or taken from groups of a paused queue, and turns go on behind the pause.
pub(crate) async fn groups_of_a_paused_queue_give_no_jobs(t: Fixture) {
    add(&t, "aaabbb").await;
    let mut served = serve(&t, 1).await;
    t.pause().await;
    let batch = t.reserve(9).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, false, None));
    assert_eq!(t.take(9).await, []);
    t.queue(QueueOp::Resume).await;
    served += &serve(&t, 5).await;
    for round in 0..3 {
        assert_eq!(sorted(&served[round * 2..][..2]), "ab", "{served}");
    }
}

/// S15, S16: groups take turns for the places of a queue.
pub(crate) async fn groups_take_turns_at_a_full_queue(t: Fixture) {
    t.set(|settings| (settings.concurrency, settings.group) = (Some(3), concurrency(2))).await;
    add(&t, "aaaaaabbbbbb").await;
    let mut runs = VecDeque::from(t.reserve(9).await.jobs);
    let mut served = letters(runs.make_contiguous());
    assert_eq!(served.len(), 3);
    while let Some(run) = runs.pop_front() {
        let batch = t.reserve(9).await;
        assert_eq!((batch.jobs.len(), batch.more), (0, false));
        t.end(&run, Verdict::Ack).await;
        let next = t.reserve(9).await.jobs;
        served += &letters(&next);
        runs.extend(next);
    }
    assert_eq!(sorted(&served), "aaaaaabbbbbb");
    for n in 1..=12 {
        assert!(count(&served[..n], 'a').abs_diff(count(&served[..n], 'b')) <= 1, "{served}");
    }
}

/// S15, S16: groups take turns in what a queue's rate lets start.
pub(crate) async fn groups_take_turns_at_a_queues_rate(t: Fixture) {
    t.set(|settings| settings.rate = Some(rate(1, 1_000, 1))).await;
    add(&t, "aaabbb").await;
    let mut served = String::new();
    for _ in 0..6 {
        let batch = t.reserve(9).await;
        served += &letters(&batch.jobs);
        assert_eq!(batch.next_due, Some(if served.len() < 6 { secs(1) } else { WATCH }));
        t.pass(1).await;
    }
    for round in 0..3 {
        assert_eq!(sorted(&served[round * 2..][..2]), "ab", "{served}");
    }
}

// ── heads that don't start ──

/// S11, S16: a job past its `expires_at` costs its group no turn.
pub(crate) async fn expired_heads_cost_no_turn(t: Fixture) {
    let mut expired = Vec::new();
    for group in ["a", "a", "a", "-", "a"] {
        expired.push(add_with(&t, group, |job| job.expires_at = Some(When::In(secs(5)))).await);
    }
    add(&t, "aabb--").await;
    t.pass(5).await;
    let served = serve(&t, 6).await;
    for round in 0..2 {
        assert_eq!(sorted(&served[round * 3..][..3]), "-ab", "{served}");
    }
    for id in expired {
        let job = t.get(id).await;
        assert_eq!((job.state, job.reason.as_deref()), (State::Cancelled, Some("expired")));
    }
    assert_eq!(t.reserve(9).await.next_due, None);
}

/// S9, S13: of a group, too, n + 256 candidates are looked at, and 100 expired ones end by the way.
pub(crate) async fn candidates_of_groups_are_bounded(t: Fixture) {
    let expiring = |job: &mut NewJob| {
        put(job, "a");
        job.expires_at = Some(When::In(secs(1)));
    };
    t.enqueue_all(&(0..400).map(|_| t.job_with(expiring)).collect::<Vec<_>>()).await;
    let good = add(&t, "a").await;
    t.pass(1).await;
    let batch = t.reserve(1).await;
    assert_eq!((batch.jobs.len(), batch.more), (0, true));
    assert_eq!((t.counts().await.cancelled, t.counts().await.waiting), (357, 44));
    assert_eq!(ids(&t.reserve(1).await), good);
}

/// S12, S16: a group whose only due job is called off or put off has no turn, and comes back with its next.
pub(crate) async fn a_group_leaves_with_its_last_due_job(t: Fixture) {
    let actions =
        [CANCEL, Action::Delete, Action::Reschedule(When::In(secs(60))), Action::RescheduleBy(60_000)];
    for action in actions {
        let jobs = add(&t, "abc").await;
        let first = ids(&t.reserve(1).await)[0];
        let mut rest = jobs;
        rest.retain(|&id| id != first);
        t.apply(rest[0], action.clone()).await;
        let batch = t.reserve(9).await;
        assert_eq!((ids(&batch), batch.more), (vec![rest[1]], false), "{action:?}");
        if matches!(action, Action::Reschedule(_) | Action::RescheduleBy(_)) {
            assert_eq!(t.reserve(9).await.jobs, []);
            t.apply(rest[0], Action::RunNow).await;
            assert_eq!(ids(&t.reserve(9).await), [rest[0]]);
        }
    }
}

/// S5, S16: a group with jobs for later alone has no turn until they are due.
pub(crate) async fn a_group_comes_when_its_first_job_is_due(t: Fixture) {
    add_with(&t, "a", |job| job.run_at = When::In(secs(5))).await;
    add_with(&t, "b", |job| job.run_at = When::In(secs(9))).await;
    add(&t, "-").await;
    let batch = t.reserve(9).await;
    assert_eq!((letters(&batch.jobs), batch.more, batch.next_due), ("-".to_owned(), false, Some(secs(5))));
    finish(&t, &batch.jobs).await;
    t.clock.set(at(4_999));
    assert_eq!(serve(&t, 9).await, "");
    t.clock.set(at(5_000));
    assert_eq!(serve(&t, 9).await, "a");
    assert_eq!(t.reserve(9).await.next_due, Some(secs(4)));
    t.pass(4).await;
    assert_eq!(serve(&t, 9).await, "b");
}

// ── concurrency keys ──

/// S15: a job that waits for its key holds back nobody of its group, and returns to its place in it.
pub(crate) async fn a_key_inside_a_group_is_handed_over(t: Fixture) {
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(add_with(&t, "a", keyed).await);
    }
    jobs.push(add_with(&t, "b", keyed).await);
    jobs.extend(add(&t, "a").await);
    let mut batch = t.reserve(9).await;
    batch.jobs.sort_by_key(|reserved| reserved.job.id);
    assert_eq!((ids(&batch), batch.more), (vec![jobs[0], jobs[3], jobs[4]], false));
    assert_eq!(t.list("state:blocked", 9).await, [jobs[2], jobs[1]]);
    // A turn in another group is another turn.
    t.end(&batch.jobs[1], Verdict::Ack).await;
    assert_eq!(t.reserve(9).await.jobs, []);
    let behind = add(&t, "a").await;
    t.end(&batch.jobs[0], Verdict::Ack).await;
    let next = t.reserve(9).await;
    assert_eq!(ids(&next), [jobs[1], behind[0]]);
    t.end(&next.jobs[0], Verdict::Ack).await;
    assert_eq!(ids(&t.reserve(9).await), [jobs[2]]);
}

/// S16: jobs that are blocked cost their group no service.
pub(crate) async fn blocked_heads_cost_no_service(t: Fixture) {
    for group in ["a", "-"] {
        t.run_with(|job| {
            put(job, group);
            keyed(job);
        })
        .await;
        for _ in 0..5 {
            add_with(&t, group, keyed).await;
        }
    }
    add(&t, "aaabbb---").await;
    let served = serve(&t, 9).await;
    assert_eq!(sorted(&served), "---aaabbb");
    for round in 0..3 {
        assert_eq!(sorted(&served[round * 3..][..3]), "-ab", "{served}");
    }
}

// ── take ──

/// S16: groups take turns in what is taken, too.
pub(crate) async fn groups_take_turns_in_takes(t: Fixture) {
    add(&t, "aaaaabbb-").await;
    let mut taken = String::new();
    for n in [1, 2, 5] {
        taken += &whose(t.take(n).await.iter().map(|job| &job.group));
    }
    assert_eq!(
        (sorted(&taken[..3]), sorted(&taken[3..5]), sorted(&taken[5..7])),
        ("-ab".into(), "ab".into(), "ab".into())
    );
    assert_eq!(t.take(9).await.len(), 1);
}

/// S5: of each group only jobs are taken that are old enough; the others keep their services.
pub(crate) async fn only_jobs_of_groups_that_are_old_enough_are_taken(t: Fixture) {
    let old = add(&t, "aa").await;
    t.pass(4).await;
    add(&t, "b-").await;
    t.clock.set(at(9_999));
    assert_eq!(t.take_older(9, secs(10)).await, []);
    t.clock.set(at(10_000));
    let taken: Vec<JobId> = t.take_older(9, secs(10)).await.iter().map(|job| job.id).collect();
    assert_eq!(taken, old);
    add(&t, "a").await;
    let served = serve(&t, 2).await;
    assert_eq!(sorted(&(served + &serve(&t, 9).await)), "-ab");
}

// ── reads and acts ──

/// S13: jobs of groups are counted, listed and told of as others are, held back or not.
pub(crate) async fn jobs_of_groups_are_counted_and_listed(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    let run = t.run_with(|job| put(job, "a")).await;
    t.pass(1).await;
    let held = add(&t, "aa").await;
    t.pass(1).await;
    let other = add(&t, "b-").await;
    let later = add_with(&t, "a", |job| job.run_at = When::In(secs(15))).await;
    let counts = t.counts().await;
    assert_eq!((counts.waiting, counts.running, counts.due, counts.bytes), (5, 1, 4, 6));
    assert_eq!(t.info().await.oldest_due, Some(at(1_000)));
    let upcoming = Upcoming { queue: Some(QUEUE.to_owned()), bucket: secs(10), buckets: 2 };
    let histogram = t.store.upcoming(&upcoming).await.unwrap();
    assert_eq!(fields_of(histogram), (at(2_000), 4, vec![0, 1], true));
    assert_eq!(t.list("group:a", 2).await, [later, held[1], held[0], run.job.id]);
    assert_eq!(t.list("group:a state:blocked", 9).await, [held[1], held[0]]);
    assert_eq!(t.list("group:b", 9).await, other[..1]);
    let job = t.get(held[0]).await;
    assert_eq!((job.group.as_deref(), job.run_at), (Some("a"), at(1_000)));
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.reserve(9).await.jobs.len(), 3);
    let counts = t.counts().await;
    assert_eq!((counts.waiting, counts.running, counts.due, counts.done), (2, 3, 1, 1));
}

/// S13: a purge deletes waiting jobs of all groups, and they leave no turn behind.
pub(crate) async fn a_purge_deletes_jobs_of_all_groups(t: Fixture) {
    t.set(|settings| settings.groups = groups([("a", concurrency(1))])).await;
    let run = t.run_with(|job| put(job, "a")).await;
    add(&t, "aabb-").await;
    add_with(&t, "c", |job| job.run_at = When::In(secs(60))).await;
    assert_eq!(t.queue(QueueOp::Purge(4)).await, QueueReply::Purged { deleted: 4, more: true });
    assert_eq!(t.queue(QueueOp::Purge(9)).await, QueueReply::Purged { deleted: 2, more: false });
    let counts = t.counts().await;
    assert_eq!((counts.waiting, counts.running, counts.due, counts.bytes), (0, 1, 0, 1));
    let batch = t.reserve(9).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, false, Some(WATCH)));
    add(&t, "ab").await;
    assert_eq!(serve(&t, 9).await, "b");
    t.end(&run, Verdict::Ack).await;
    assert_eq!(serve(&t, 9).await, "a");
}

/// S6, S16: what moves a job moves it inside its group.
pub(crate) async fn acts_move_jobs_inside_their_group(t: Fixture) {
    let jobs = add(&t, "aaaaa").await;
    add(&t, "bbb").await;
    t.apply(jobs[4], Action::Reprioritise(Priority::High)).await;
    t.apply(jobs[0], Action::Reprioritise(Priority::Low)).await;
    t.apply(jobs[1], Action::Reschedule(When::In(secs(1)))).await;
    t.apply(jobs[2], Action::EditPayload(Payload::json("2"))).await;
    t.pass(1).await;
    let batch = t.reserve(9).await;
    let of_a: Vec<JobId> = ids(&batch).into_iter().filter(|id| jobs.contains(id)).collect();
    assert_eq!(of_a, [jobs[4], jobs[2], jobs[3], jobs[1], jobs[0]]);
    assert_eq!(count(&letters(&batch.jobs)[..6], 'b'), 3);
}

/// S11, S15: an ended job that is retried waits in its group again, and behind its limits.
pub(crate) async fn a_retried_job_waits_in_its_group(t: Fixture) {
    t.set(|settings| settings.group = concurrency(1)).await;
    let run = t.run_with(|job| put(job, "a")).await;
    t.end(&run, dead()).await;
    let other = t.run_with(|job| put(job, "a")).await;
    t.apply(run.job.id, Action::Retry).await;
    assert_eq!(t.list("state:blocked", 9).await, [run.job.id]);
    assert_eq!(t.reserve(9).await.jobs, []);
    t.end(&other, Verdict::Ack).await;
    assert_eq!(ids(&t.reserve(9).await), [run.job.id]);
}

/// S4, S16: a job of a group that is replaced stays in it, at its new time.
pub(crate) async fn a_job_of_a_group_can_be_replaced(t: Fixture) {
    let unique = |job: &mut NewJob, on_conflict| {
        put(job, "a");
        job.unique = Some(Unique { on_conflict, ..Unique::key("u") });
    };
    let id = t.add_with(|job| unique(job, OnConflict::Keep)).await;
    add(&t, "ab").await;
    for (on_conflict, delay) in [(OnConflict::Reschedule, 9), (OnConflict::Replace, 0)] {
        let again = t.job_with(|job| {
            unique(job, on_conflict);
            (job.payload, job.run_at) = (Payload::json("[2]"), When::In(secs(delay)));
        });
        let answer = t.enqueue(again).await;
        let run_at = at(delay * 1_000);
        let expected = match on_conflict {
            OnConflict::Replace => Enqueued::Replaced { id, run_at },
            _ => Enqueued::Rescheduled { id, run_at },
        };
        assert_eq!(answer, expected);
        if 0 < delay {
            assert_eq!(sorted(&serve(&t, 9).await), "ab");
        }
    }
    assert_eq!(ids(&t.reserve(9).await), [id]);
}

/// S15, S16: a store with groups is well.
pub(crate) async fn an_audit_finds_nothing_wrong_with_groups(t: Fixture) {
    t.set(|settings| settings.groups = groups([("a", concurrency(1)), ("c", weight(2))])).await;
    add(&t, "aaabbccc-").await;
    for _ in 0..2 {
        add_with(&t, "b", keyed).await;
        add_with(&t, "c", |job| job.run_at = When::In(secs(60))).await;
    }
    assert_eq!(t.reserve(5).await.jobs.len(), 5);
    for repair in [false, true] {
        let mut audit = Audit { repair, from: AuditCursor::default() };
        loop {
            let audited = t.store.audit(audit.clone()).await.unwrap();
            assert_eq!(audited.findings, []);
            match audited.next {
                Some(next) => audit.from = next,
                None => break,
            }
        }
    }
    assert_eq!(t.counts().await.waiting, 8);
}

/// S14, S16: a clock that goes back makes groups late, and loses none.
pub(crate) async fn a_step_back_loses_no_group(t: Fixture) {
    t.pass(60).await;
    add(&t, "aabb-").await;
    assert_eq!(t.reserve(1).await.jobs.len(), 1);
    t.clock.set(Timestamp::saturating_from_ms(START_MS));
    let batch = t.reserve(9).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, false, Some(WATCH)));
    t.clock.set(at(60_000));
    assert_eq!(t.reserve(9).await.jobs.len(), 4);
}

/// S14, S16: a group that has its turn by a job that came after its turn began waits for that job if the clock goes back.
pub(crate) async fn a_group_waits_for_the_job_that_kept_it_in_turn(t: Fixture) {
    let jobs = add(&t, "aa").await;
    let first = ids(&t.reserve(1).await)[0];
    t.pass(1).await;
    let later = add(&t, "a").await;
    let second = jobs.into_iter().find(|&id| id != first).unwrap();
    t.apply(second, CANCEL).await;
    t.clock.set(at(500));
    add(&t, "-").await;
    let batch = t.reserve(1).await;
    assert_eq!((letters(&batch.jobs), batch.more), ("-".to_owned(), false));
    assert_eq!(batch.next_due, Some(millis(500)));
    t.pass(1).await;
    assert_eq!(ids(&t.reserve(9).await), later);
}
