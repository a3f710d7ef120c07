//! Which job comes first, within a queue and between queues.

use punctual::{
    JobId, Priority, When,
    store::{Action, Order, Verdict},
};

use crate::fixture::{Fixture, QUEUE, ids, retry, secs};

/// One job per pair of priority and delay in seconds.
async fn add_all(t: &Fixture, jobs: &[(Priority, u64)]) -> Vec<JobId> {
    let mut added = Vec::new();
    for &(priority, delay) in jobs {
        let id = t.add_with(|job| {
            job.options.priority = Some(priority);
            job.run_at = When::In(secs(delay));
        });
        added.push(id.await);
    }
    added
}

/// S6: priority, then `run_at`, then id.
pub(crate) async fn jobs_come_by_priority_then_time_then_id(t: Fixture) {
    use Priority::{High, Low, Normal};
    let jobs = [(Low, 0), (Normal, 2), (Normal, 1), (Normal, 2), (High, 3)];
    let added = add_all(&t, &jobs).await;
    t.pass(3).await;
    assert_eq!(ids(&t.reserve(10).await), [added[4], added[2], added[1], added[3], added[0]]);
}

/// S6: `lifo` reverses time and id, not the priorities.
pub(crate) async fn lifo_reverses_time_and_id_only(t: Fixture) {
    use Priority::{High, Low, Normal};
    t.set(|queue| queue.order = Order::Lifo).await;
    let jobs = [(Low, 0), (Normal, 2), (Normal, 1), (Normal, 2), (High, 3)];
    let added = add_all(&t, &jobs).await;
    t.pass(3).await;
    assert_eq!(ids(&t.reserve(10).await), [added[4], added[3], added[1], added[2], added[0]]);
}

/// S5, S6: `lifo` looks at due jobs only, however late the newest is.
pub(crate) async fn lifo_starts_nothing_early(t: Fixture) {
    t.set(|queue| queue.order = Order::Lifo).await;
    let due = t.add().await;
    t.add_with(|job| job.run_at = When::In(secs(1))).await;
    assert_eq!(ids(&t.reserve(10).await), [due]);
}

/// S6: the order of a queue is a live setting: it holds for jobs that wait already.
pub(crate) async fn a_change_of_order_holds_for_jobs_that_wait(t: Fixture) {
    let added = t.add_many(3).await;
    t.set(|queue| queue.order = Order::Lifo).await;
    assert_eq!(ids(&t.reserve(1).await), [added[2]]);
    t.set(|queue| queue.order = Order::Fifo).await;
    assert_eq!(ids(&t.reserve(1).await), [added[0]]);
}

/// S6: a job of a higher priority that is not due yet holds nobody up.
pub(crate) async fn a_later_job_of_a_higher_priority_holds_nobody_up(t: Fixture) {
    let added = add_all(&t, &[(Priority::High, 60), (Priority::Low, 0)]).await;
    assert_eq!(ids(&t.reserve(10).await), [added[1]]);
}

/// S6: shares of n are `strict`: a later queue gets what the earlier ones left.
pub(crate) async fn a_later_queue_gets_what_strict_ones_left(t: Fixture) {
    let first = t.add_many(2).await;
    let second = t.add_with(|job| job.queue = "bulk".to_owned()).await;
    t.add_with(|job| job.queue = "bulk".to_owned()).await;
    let batch = t.reserve_by(&t.want_from(&[(QUEUE, 3), ("bulk", 3)], 3)).await;
    assert_eq!(ids(&batch), [first[0], first[1], second]);
    assert!(batch.more);
}

/// S6: each queue gets up to its share first; then each in turn gets what is left.
pub(crate) async fn shares_come_first_and_the_rest_in_turn(t: Fixture) {
    let mail = t.add_many(4).await;
    let bulk = t.add_with(|job| job.queue = "bulk".to_owned()).await;
    let queues = [("bulk", 2), (QUEUE, 1)];
    let batch = t.reserve_by(&t.want_from(&queues, 3)).await;
    assert_eq!(ids(&batch), [bulk, mail[0], mail[1]]);
}

/// S6: the sum of the shares may pass n, n is never passed; a share of 0 waits for the rest.
pub(crate) async fn a_share_of_zero_gets_only_what_is_left(t: Fixture) {
    let mail = t.add_many(2).await;
    let bulk = t.add_with(|job| job.queue = "bulk".to_owned()).await;
    let batch = t.reserve_by(&t.want_from(&[("bulk", 0), (QUEUE, 1)], 2)).await;
    assert_eq!(ids(&batch), [mail[0], bulk]);
}

/// S6: a bound holds for what is left over; the queues behind it get that, and `more` tells of what was held back.
pub(crate) async fn a_bound_of_a_queue_leaves_the_rest_to_the_others(t: Fixture) {
    let mail = t.add_many(3).await;
    let bulk = t.add_with(|job| job.queue = "bulk".to_owned()).await;
    let batch = t.reserve_by(&t.want_at_most(&[(QUEUE, 2), ("bulk", 9)], 9)).await;
    assert_eq!((ids(&batch), batch.more), (vec![mail[0], mail[1], bulk], true));
}

/// S6: a bound holds for the share, too, and for both together.
pub(crate) async fn a_bound_of_a_queue_holds_for_its_share_and_the_rest_together(t: Fixture) {
    let mail = t.add_many(9).await;
    for (share, at_most, expected) in
        [(5, 2, 0..2), (1, 3, 2..5), (0, 1, 5..6), (4, 0, 6..6), (1, 1_000, 6..9)]
    {
        let mut want = t.want_from(&[(QUEUE, share)], 9);
        want.queues[0].at_most = at_most;
        assert_eq!(ids(&t.reserve_by(&want).await), mail[expected], "share {share}, at most {at_most}");
    }
}

/// S6: a queue named twice is two wants with a bound each.
pub(crate) async fn a_queue_named_twice_has_two_bounds(t: Fixture) {
    let mail = t.add_many(5).await;
    let batch = t.reserve_by(&t.want_at_most(&[(QUEUE, 1), (QUEUE, 2)], 9)).await;
    assert_eq!(ids(&batch), mail[..3]);
}

/// S9: leases are reclaimed in a queue of which nothing is requested.
pub(crate) async fn a_bound_of_zero_reclaims_all_the_same(t: Fixture) {
    let run = t.run().await;
    t.pass(16).await;
    let batch = t.reserve_by(&t.want_at_most(&[(QUEUE, 0)], 9)).await;
    assert_eq!((batch.jobs.len(), batch.reclaimed.len(), batch.more), (0, 1, true));
    assert_eq!(batch.reclaimed[0].lease, run.lease);
}

/// S6: a queue outside of the wants gives nothing.
pub(crate) async fn only_the_named_queues_give_jobs(t: Fixture) {
    t.add_with(|job| job.queue = "bulk".to_owned()).await;
    let batch = t.reserve(10).await;
    assert_eq!((batch.jobs.len(), batch.more, batch.next_due), (0, false, None));
}

/// S6, S9, S10: who is released or reclaimed returns to its place; who failed goes behind.
pub(crate) async fn a_released_job_returns_to_its_place_and_a_failed_one_goes_behind(t: Fixture) {
    let added = t.add_many(3).await;
    t.pass(1).await;
    let runs = t.reserve(2).await.jobs;
    t.end(&runs[0], retry(secs(0))).await;
    t.end(&runs[1], Verdict::Release).await;
    assert_eq!(ids(&t.reserve(10).await), [added[1], added[2], added[0]]);
}

/// S6: a new level counts at once.
pub(crate) async fn reprioritise_moves_a_job_to_its_new_place(t: Fixture) {
    let added = t.add_many(3).await;
    t.apply(added[2], Action::Reprioritise(Priority::High)).await;
    t.apply(added[0], Action::Reprioritise(Priority::Low)).await;
    assert_eq!(ids(&t.reserve(10).await), [added[2], added[1], added[0]]);
}
