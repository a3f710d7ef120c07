//! How long ended jobs and their ids are kept, and the bounded upkeep that removes them.

use punctual::{
    JobId, NewJob, State, Unique, When,
    store::{Acted, Action, CallId, Enqueued, Keep, Reserve, Settled, Settlement, Swept, Verdict},
};

use crate::fixture::{
    CANCEL, Fixture, QUEUE, at, bytes, dead, duplicate, duplicate_of_gone, key, millis, secs,
};

/// 24 hours.
const DAY_MS: u64 = 86_400_000;

/// What a sweep did that had time left.
fn swept(expired: u64, removed: u64, forgotten: u64) -> Swept {
    let mut swept = Swept::default();
    (swept.expired, swept.removed, swept.forgotten) = (expired, removed, forgotten);
    swept
}

/// What a sweep did that had none left.
fn swept_in_part(expired: u64, removed: u64, forgotten: u64) -> Swept {
    let mut swept = swept(expired, removed, forgotten);
    swept.more = true;
    swept
}

fn derived() -> JobId {
    JobId::derived(QUEUE, None, "invoice-7")
}

/// A job with a derived id.
fn with_derived(t: &Fixture) -> NewJob {
    NewJob { id: derived(), ..t.job() }
}

// ── age ──

/// S17: reads hide a job from the very end of its age on; a sweep removes it; counters count it until then.
pub(crate) async fn a_job_past_its_age_is_hidden_then_removed(t: Fixture) {
    let run = t.run_with(|job| job.unique = Some(Unique::key("k").window(secs(200_000)))).await;
    t.end(&run, Verdict::Ack).await;
    t.until(at(DAY_MS - 1)).await;
    assert_eq!(t.state(run.job.id).await, State::Done);
    assert_eq!(t.holder("k").await, Some(run.job.id));
    t.until(at(DAY_MS)).await;
    assert_eq!((t.find(run.job.id).await, t.holder("k").await), (None, None));
    assert_eq!((t.list("", 10).await, t.counts().await.done), (vec![], 1));
    assert_eq!(t.sweep(100).await.removed, 1);
    assert_eq!(t.counts().await.done, 0);
}

/// S17: an enqueue meets a job that reads hide: its record is there.
pub(crate) async fn an_enqueue_meets_a_job_that_reads_hide(t: Fixture) {
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    t.until(at(DAY_MS)).await;
    let again = t.job_with(|job| job.id = run.job.id);
    assert_eq!(t.enqueue(again).await, duplicate(run.job.id, State::Done, 1));
}

/// S17: dead jobs are kept for 90 days by default.
pub(crate) async fn dead_jobs_are_kept_for_ninety_days(t: Fixture) {
    let run = t.run().await;
    t.end(&run, dead()).await;
    t.until(at(90 * DAY_MS - 1)).await;
    t.sweep(100).await;
    assert_eq!(t.state(run.job.id).await, State::Dead);
    t.until(at(90 * DAY_MS)).await;
    assert_eq!(t.find(run.job.id).await, None);
}

/// S17: retention is a live setting of the queue: it holds for jobs that ended already.
pub(crate) async fn a_change_of_retention_holds_for_ended_jobs(t: Fixture) {
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    t.pass(10).await;
    t.set(|queue| queue.done.age_ms = 10_000).await;
    assert_eq!(t.find(run.job.id).await, None);
    t.set(|queue| queue.done.age_ms = 10_001).await;
    assert_eq!(t.state(run.job.id).await, State::Done);
    t.set(|queue| queue.done = Keep::NOTHING).await;
    assert_eq!((t.find(run.job.id).await, t.counts().await.done), (None, 1));
    assert_eq!(t.sweep(100).await.removed, 1);
}

// ── count and bytes ──

/// Ends jobs of so many bytes, one second apart.
async fn end_jobs(t: &Fixture, sizes: &[usize]) -> Vec<JobId> {
    let mut ended = Vec::new();
    for &size in sizes {
        let run = t.run_with(|job| job.payload = bytes(size)).await;
        t.end(&run, Verdict::Ack).await;
        ended.push(run.job.id);
        t.pass(1).await;
    }
    ended
}

/// S17: of more than the kept number the oldest ends go first.
pub(crate) async fn the_oldest_ends_go_first_by_number(t: Fixture) {
    let ended = end_jobs(&t, &[1, 1, 1, 1]).await;
    t.set(|queue| queue.done.count = 2).await;
    assert_eq!(t.sweep(100).await.removed, 2);
    assert_eq!(t.list("", 10).await, [ended[3], ended[2]]);
}

/// S17: of more than the kept bytes the oldest ends go first, until the rest fits.
pub(crate) async fn the_oldest_ends_go_first_by_bytes(t: Fixture) {
    let ended = end_jobs(&t, &[1, 50, 30, 30]).await;
    t.set(|queue| queue.done.bytes = 60).await;
    assert_eq!(t.sweep(100).await.removed, 2);
    assert_eq!(t.list("", 10).await, [ended[3], ended[2]]);
}

/// S17: what is kept of one state counts nothing for the others.
pub(crate) async fn each_state_is_kept_for_itself(t: Fixture) {
    let [done, given_up, off] = [t.run().await, t.run().await, t.run().await];
    t.end(&done, Verdict::Ack).await;
    t.end(&given_up, dead()).await;
    t.end(&off, Verdict::Cancel { reason: None }).await;
    t.set(|queue| (queue.done.count, queue.cancelled.count) = (1, 1)).await;
    t.sweep(100).await;
    assert_eq!(t.counts().await.total(), 3);
    t.set(|queue| queue.dead = Keep::NOTHING).await;
    assert_eq!(t.sweep(100).await, swept(0, 1, 0));
    assert_eq!(t.list("", 10).await, [off.job.id, done.job.id]);
}

// ── nothing ──

/// S17: a 0 in any bound keeps nothing: the job is removed in the step that ends it.
pub(crate) async fn a_zero_in_any_bound_keeps_nothing(t: Fixture) {
    let bounds: [fn(&mut Keep); 3] = [|keep| keep.age_ms = 0, |keep| keep.count = 0, |keep| keep.bytes = 0];
    for empty in bounds {
        t.set(|queue| empty(&mut queue.done)).await;
        let run = t.run().await;
        assert_eq!(t.settle_one(run.lease, Verdict::Ack).await, Settled::Settled(State::Done, None));
        assert_eq!((t.find(run.job.id).await, t.counts().await.total()), (None, 0));
    }
}

/// S17: where 0 bytes are kept, a job without any goes as well.
pub(crate) async fn a_bound_of_no_bytes_keeps_no_empty_payload(t: Fixture) {
    let run = t.run_with(|job| job.payload = bytes(0)).await;
    t.end(&run, Verdict::Ack).await;
    t.set(|queue| queue.done.bytes = 0).await;
    assert_eq!(t.sweep(100).await.removed, 1);
}

/// S17: each way to end removes where nothing is kept: also a cancel, an expiry and a crash.
pub(crate) async fn every_end_removes_where_nothing_is_kept(t: Fixture) {
    t.set(|queue| (queue.dead, queue.cancelled) = (Keep::NOTHING, Keep::NOTHING)).await;
    let id = t.add().await;
    t.apply(id, CANCEL).await;
    assert_eq!(t.find(id).await, None);
    let expiring = t.add_with(|job| job.expires_at = Some(When::In(secs(1)))).await;
    t.pass(1).await;
    t.reserve(1).await;
    assert_eq!(t.find(expiring).await, None);
    let run = t.run_with(|job| job.options.max_attempts = Some(1)).await;
    t.pass(15).await;
    assert_eq!(t.reserve(0).await.reclaimed[0].state, State::Dead);
    assert_eq!((t.find(run.job.id).await, t.counts().await.total()), (None, 0));
}

// ── expiry ──

/// S17: a sweep ends waiting jobs from their expiry on; before, and in reads, they wait.
pub(crate) async fn a_sweep_ends_expired_jobs(t: Fixture) {
    let id = t.add_with(|job| job.expires_at = Some(When::In(secs(10)))).await;
    t.until(at(9_999)).await;
    assert_eq!(t.sweep(100).await, swept(0, 0, 0));
    t.until(at(10_000)).await;
    assert_eq!(t.state(id).await, State::Waiting);
    assert_eq!(t.sweep(100).await, swept(1, 0, 0));
    let job = t.get(id).await;
    assert_eq!((job.state, job.reason.as_deref()), (State::Cancelled, Some("expired")));
    assert_eq!(job.finished_at, Some(at(10_000)));
}

/// S17: the oldest expiry comes first, then the id.
pub(crate) async fn the_oldest_expiry_comes_first(t: Fixture) {
    let mut added = Vec::new();
    for seconds in [3, 1, 2, 1] {
        added.push(t.add_with(|job| job.expires_at = Some(When::In(secs(seconds)))).await);
    }
    t.pass(3).await;
    assert_eq!(t.sweep(2).await, swept_in_part(2, 0, 0));
    assert_eq!(t.list("state:cancelled", 10).await, [added[3], added[1]]);
    t.sweep(1).await;
    assert_eq!(t.state(added[2]).await, State::Cancelled);
    assert_eq!(t.state(added[0]).await, State::Waiting);
}

/// S17: a paused queue holds no expiry back.
pub(crate) async fn jobs_of_a_paused_queue_expire(t: Fixture) {
    t.add_with(|job| job.expires_at = Some(When::In(secs(1)))).await;
    t.pause().await;
    t.pass(1).await;
    assert_eq!(t.sweep(100).await.expired, 1);
}

// ── how a sweep goes on ──

/// S13, S17: a sweep does at most as much as its limit, says so, and goes on from there: idempotent, anyone's.
pub(crate) async fn a_sweep_is_bounded_and_goes_on(t: Fixture) {
    t.add_many(5).await;
    t.take(5).await;
    t.until(at(DAY_MS)).await;
    assert_eq!(t.sweep(3).await, swept_in_part(0, 3, 0));
    assert_eq!(t.counts().await.done, 2);
    assert_eq!(t.sweep(3).await.removed, 2);
    assert_eq!(t.sweep(3).await, swept(0, 0, 0));
}

/// S17: queues go by name; within one, expired jobs, then done, cancelled and dead ones.
pub(crate) async fn a_sweep_goes_by_queue_and_state(t: Fixture) {
    let [given_up, off] = [t.run().await, t.run().await];
    t.end(&given_up, dead()).await;
    t.end(&off, Verdict::Cancel { reason: None }).await;
    t.add().await;
    t.take(1).await;
    t.add_with(|job| job.expires_at = Some(When::In(secs(1)))).await;
    let bulk = t.add_with(|job| job.queue = "bulk".to_owned()).await;
    t.apply(bulk, CANCEL).await;
    t.until(at(90 * DAY_MS)).await;
    // waiting, done, cancelled and dead jobs of the second queue, sweep by sweep; the first one is bulk's turn
    for expected in [(1, 1, 1, 1), (0, 1, 2, 1), (0, 0, 2, 1), (0, 0, 1, 1), (0, 0, 1, 0)] {
        t.sweep(1).await;
        let left = t.counts().await;
        assert_eq!((left.waiting, left.done, left.cancelled, left.dead), expected);
    }
    assert_eq!(t.store.count(Some("bulk")).await.unwrap().total(), 0);
    assert_eq!(t.sweep(100).await, swept(0, 0, 2), "last the calls: an enqueue's and a reserve's");
}

/// S13, S17: up to 100 items of upkeep ride on a reserve, and on a take.
pub(crate) async fn a_hundred_items_ride_on_a_reserve_and_a_take(t: Fixture) {
    t.add_many(250).await;
    t.take(250).await;
    t.set(|queue| queue.done = Keep::NOTHING).await;
    t.reserve(0).await;
    assert_eq!(t.counts().await.done, 150);
    t.take(0).await;
    assert_eq!(t.counts().await.done, 50);
    t.reserve(0).await;
    assert_eq!(t.counts().await.done, 0);
}

/// S17: other calls let a bound be exceeded by a sixteenth of it, then remove down to it. A sweep holds it to the letter.
pub(crate) async fn a_bound_that_is_exceeded_by_a_sixteenth_is_met_again(t: Fixture) {
    t.set(|queue| queue.done.count = 32).await;
    t.add_many(34).await;
    t.take(34).await;
    t.reserve(0).await;
    assert_eq!(t.counts().await.done, 34);
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.counts().await.done, 32);
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.counts().await.done, 33);
    assert_eq!(t.sweep(100).await, swept(0, 1, 0));
}

/// S17: the same for bytes.
pub(crate) async fn a_bound_of_bytes_that_is_exceeded_by_a_sixteenth_is_met_again(t: Fixture) {
    t.set(|queue| queue.done.bytes = 160).await;
    let ended = end_jobs(&t, &[100, 50, 20]).await;
    assert_eq!(t.list("", 10).await, [ended[2], ended[1], ended[0]]);
    let last = end_jobs(&t, &[1]).await;
    assert_eq!(t.list("", 10).await, [last[0], ended[2], ended[1]]);
}

/// S17: at most 64 jobs more than the bound.
pub(crate) async fn a_large_bound_is_exceeded_by_few_jobs(t: Fixture) {
    t.set(|queue| queue.done.count = 1_600).await;
    for jobs in [1_000, 664] {
        t.add_many(jobs).await;
        t.take(jobs).await;
    }
    t.reserve(0).await;
    assert_eq!(t.counts().await.done, 1_664);
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    assert_eq!(t.counts().await.done, 1_600);
}

/// S17: at most 256 KiB more than the bound.
pub(crate) async fn a_large_bound_of_bytes_is_exceeded_by_few_bytes(t: Fixture) {
    const BYTES: usize = 256 << 10;
    t.set(|queue| queue.done.bytes = 32 * BYTES as u64).await;
    end_jobs(&t, &[BYTES; 33]).await;
    assert_eq!(t.counts().await.done, 33);
    end_jobs(&t, &[1]).await;
    assert_eq!(t.counts().await.done, 32);
}

/// S13, S17: the first reserve past its age removes a job that was acked, without a sweep.
pub(crate) async fn a_reserve_removes_a_done_job_past_its_age(t: Fixture) {
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    t.until(at(DAY_MS - 1)).await;
    t.reserve(0).await;
    assert_eq!(t.counts().await.done, 1);
    t.until(at(DAY_MS)).await;
    t.reserve(0).await;
    assert_eq!(t.counts().await.done, 0);
}

/// S13, S17: and one that ended otherwise.
pub(crate) async fn a_reserve_removes_a_cancelled_job_past_its_age(t: Fixture) {
    let run = t.run().await;
    t.end(&run, Verdict::Cancel { reason: None }).await;
    t.until(at(DAY_MS - 1)).await;
    t.reserve(0).await;
    assert_eq!(t.counts().await.cancelled, 1);
    t.until(at(DAY_MS)).await;
    t.reserve(0).await;
    assert_eq!(t.counts().await.cancelled, 0);
}

/// S13, S17: the first reserve past its expiry ends a waiting job, be it that it asks for none.
pub(crate) async fn a_reserve_ends_what_is_past_its_expiry(t: Fixture) {
    t.run().await;
    let id = t.add_with(|job| job.expires_at = Some(When::In(secs(10)))).await;
    t.until(at(9_999)).await;
    t.reserve(0).await;
    assert_eq!(t.state(id).await, State::Waiting);
    t.until(at(10_000)).await;
    t.reserve(0).await;
    assert_eq!(t.state(id).await, State::Cancelled);
}

/// S13, S17: as many items as it settles, and 100 more, ride on a settle, in the queues of its leases.
pub(crate) async fn a_hundred_items_and_its_own_length_ride_on_a_settle(t: Fixture) {
    t.add_many(110).await;
    t.take(110).await;
    let runs = [t.run().await, t.run().await];
    t.set(|queue| queue.done.count = 1).await;
    t.store.settle(&[], None).await.unwrap();
    assert_eq!(t.counts().await.done, 110);
    let batch = runs.map(|run| Settlement { lease: run.lease, verdict: Verdict::Ack });
    t.store.settle(&batch, None).await.unwrap();
    assert_eq!(t.counts().await.done, 10);
}

// ── ids outlive their jobs ──

/// S3, S17: a derived id is remembered for 24 h from the end of its job, and unknown past that, swept or not.
pub(crate) async fn a_derived_id_is_remembered_for_a_day(t: Fixture) {
    t.set(|queue| queue.done = Keep::NOTHING).await;
    t.enqueue_all(&[with_derived(&t)]).await;
    t.pass(1).await;
    t.take(1).await;
    assert_eq!(t.enqueue(with_derived(&t)).await, duplicate_of_gone(derived()));
    t.until(at(DAY_MS + 999)).await;
    assert_eq!(t.enqueue(with_derived(&t)).await, duplicate_of_gone(derived()));
    t.until(at(DAY_MS + 1_000)).await;
    assert!(t.enqueue(with_derived(&t)).await.is_new());
}

/// S3, S17: the same where the record goes with the ack.
pub(crate) async fn a_derived_id_is_remembered_from_its_ack_on(t: Fixture) {
    t.set(|queue| queue.done = Keep::NOTHING).await;
    t.enqueue(with_derived(&t)).await;
    let run = t.reserve_one().await;
    assert!(matches!(t.settle_one(run.lease, Verdict::Ack).await, Settled::Settled(..)));
    assert_eq!(t.enqueue(with_derived(&t)).await, duplicate_of_gone(derived()));
}

/// S3, S17: the same where a sweep removes the record.
pub(crate) async fn a_derived_id_is_remembered_behind_a_sweep(t: Fixture) {
    t.enqueue(with_derived(&t)).await;
    let run = t.reserve_one().await;
    t.end(&run, Verdict::Ack).await;
    t.set(|queue| queue.done = Keep::NOTHING).await;
    assert_eq!(t.sweep(100).await.removed, 1);
    assert_eq!(t.enqueue(with_derived(&t)).await, duplicate_of_gone(derived()));
}

/// S17: the day counts from the end, not from the removal of the record.
pub(crate) async fn the_memory_of_an_id_counts_from_the_end_of_its_job(t: Fixture) {
    t.enqueue_all(&[with_derived(&t)]).await;
    t.take(1).await;
    t.until(at(DAY_MS / 2)).await;
    t.apply(derived(), Action::Delete).await;
    t.until(at(DAY_MS - 1)).await;
    assert_eq!(t.enqueue(with_derived(&t)).await, duplicate_of_gone(derived()));
    t.until(at(DAY_MS)).await;
    assert!(t.enqueue(with_derived(&t)).await.is_new());
}

/// S17: an id is remembered in the queue of its job only.
pub(crate) async fn an_id_is_remembered_in_its_queue_only(t: Fixture) {
    t.enqueue_all(&[with_derived(&t)]).await;
    t.apply(derived(), Action::Delete).await;
    let elsewhere = NewJob { queue: "bulk".to_owned(), ..with_derived(&t) };
    assert!(t.enqueue(elsewhere).await.is_new());
}

/// S17: an id that a maker made is repeated by its maker only, and not remembered.
pub(crate) async fn a_made_id_is_not_remembered(t: Fixture) {
    let job = t.job();
    for _ in 0..2 {
        assert!(t.enqueue(job.clone()).await.is_new());
        t.apply(job.id, Action::Delete).await;
    }
    t.until(at(DAY_MS)).await;
    assert_eq!(t.sweep(100).await.forgotten, 1, "the last call of the fixture, and no id");
}

/// S8, S10: an id that comes back after its record was pruned has higher fences: old leases stay lost.
pub(crate) async fn an_id_that_comes_back_has_higher_fences(t: Fixture) {
    t.set(|queue| queue.done = Keep::NOTHING).await;
    t.enqueue_all(&[with_derived(&t)]).await;
    let old = t.reserve_one().await;
    assert_eq!(t.settle_one(old.lease, Verdict::Ack).await, Settled::Settled(State::Done, None));
    t.until(at(DAY_MS)).await;
    t.sweep(100).await;
    t.enqueue_all(&[with_derived(&t)]).await;
    let new = t.reserve_one().await;
    assert!(old.lease.fence < new.lease.fence);
    assert_eq!(t.settle_one(old.lease, dead()).await, Settled::LeaseLost);
    assert_eq!(t.state(derived()).await, State::Running);
}

/// S10: the same holds for an id that was deleted and enqueued again at once, at one instant.
pub(crate) async fn a_deleted_id_comes_back_with_higher_fences(t: Fixture) {
    let job = t.job();
    t.enqueue_all(std::slice::from_ref(&job)).await;
    let old = t.reserve_one().await;
    t.end(&old, Verdict::Release).await;
    t.apply(job.id, Action::Delete).await;
    t.enqueue_all(&[job]).await;
    assert!(old.lease.fence < t.reserve_one().await.lease.fence);
}

// ── what is forgotten ──

/// S17: a sweep forgets ids past their day: one item each.
pub(crate) async fn a_sweep_forgets_ids_past_their_day(t: Fixture) {
    t.enqueue_all(&[with_derived(&t)]).await;
    t.apply(derived(), Action::Delete).await;
    t.until(at(DAY_MS - 1)).await;
    assert_eq!(t.sweep(100).await.forgotten, 1, "the last call of the fixture");
    t.until(at(DAY_MS)).await;
    assert_eq!(t.sweep(100).await, swept(0, 0, 1));
}

/// S4, S17: a sweep forgets windows past their time.
pub(crate) async fn a_sweep_forgets_windows_past_their_time(t: Fixture) {
    let run = t.run_with(|job| job.unique = Some(Unique::key("k").window(secs(10)))).await;
    t.end(&run, Verdict::Ack).await;
    t.until(at(9_999)).await;
    assert_eq!(t.sweep(100).await, swept(0, 0, 0));
    t.until(at(10_000)).await;
    assert_eq!(t.act(key("k"), Action::Delete).await, Acted::NotFound);
    assert_eq!(t.sweep(100).await, swept(0, 0, 1));
    assert_eq!(t.sweep(100).await, swept(0, 0, 0));
}

/// S3, S17: a sweep forgets the last calls of an instance an hour after they came, enqueues and reserves apart.
pub(crate) async fn a_sweep_forgets_calls_after_an_hour(t: Fixture) {
    t.add_with(|job| job.run_at = When::In(secs(86_400))).await;
    t.pass(1).await;
    t.reserve(1).await;
    t.until(at(3_599_999)).await;
    assert_eq!(t.sweep(100).await, swept(0, 0, 0));
    t.clock.advance(millis(1));
    assert_eq!(t.sweep(100).await, swept(0, 0, 1));
    t.pass(1).await;
    assert_eq!(t.sweep(100).await, swept(0, 0, 1));
}

/// S3, S17: it forgets those first whose last call came first, also where all of them called again, and few at a time.
pub(crate) async fn a_sweep_of_few_forgets_calls_in_order(t: Fixture) {
    let want = |instance, number| Reserve { call: CallId { instance, number }, ..t.want(0) };
    let instances: Vec<u64> = (101..=106).collect();
    for &instance in &instances {
        t.reserve_by(&want(instance, 7)).await;
    }
    for &instance in instances.iter().rev() {
        t.pass(1).await;
        t.reserve_by(&want(instance, 8)).await;
    }
    t.until(at(3_600_000 + 3_000)).await;
    for forgotten in [1, 1, 1, 0] {
        let swept = if forgotten == 1 { swept_in_part } else { swept };
        assert_eq!(t.sweep(1).await, swept(0, 0, forgotten));
    }
    // Of those that are left a call of an earlier number is a repetition, and leaves nothing; of the others it is a new one.
    t.reserve_by(&want(101, 1)).await;
    t.reserve_by(&want(106, 1)).await;
    t.pass(3_599).await;
    assert_eq!(t.sweep(100).await, swept(0, 0, 3));
    t.pass(1).await;
    assert_eq!(t.sweep(100).await, swept(0, 0, 1));
}

// ── steps of the clock ──

/// Whatever ages in this store ages in half a minute, but for what is remembered of derived ids and calls.
async fn age_in_half_a_minute(t: &Fixture) {
    let keep = |keep: &mut Keep| keep.age_ms = 30_000;
    t.set(|queue| [&mut queue.done, &mut queue.dead, &mut queue.cancelled].into_iter().for_each(keep)).await;
}

/// Makes a job of each kind that ends or ages. Returns the one that waits until it expires.
async fn add_what_ages(t: &Fixture, n: usize) -> JobId {
    let runs = [t.run().await, t.run().await, t.run().await];
    let ends = [Verdict::Ack, dead(), Verdict::Cancel { reason: None }];
    for (run, end) in runs.iter().zip(ends) {
        t.end(run, end).await;
    }
    let windowed = t.run_with(|job| job.unique = Some(Unique::key(format!("w{n}")).window(secs(30)))).await;
    t.end(&windowed, Verdict::Ack).await;
    t.add_with(|job| {
        job.queue = "unserved".into();
        job.expires_at = Some(When::In(secs(30)));
    })
    .await
}

/// S14, S17: a step of the clock ages nothing if it is taken back within two minutes, whatever calls come meanwhile.
pub(crate) async fn a_step_of_the_clock_that_is_taken_back_removes_nothing(t: Fixture) {
    age_in_half_a_minute(&t).await;
    let derived_ended = at(0);
    t.enqueue_all(&[with_derived(&t)]).await;
    t.apply(derived(), Action::Delete).await;
    let mut waiting = Vec::new();
    for (n, step_ms) in [125_000, 3_600_000, DAY_MS, 365 * DAY_MS].into_iter().enumerate() {
        waiting.push(add_what_ages(&t, n).await);
        let (before, begun) = (t.counts().await, t.clock.now());
        for _ in 0..2 {
            t.clock.set(begun.after(millis(step_ms)));
            for _ in 0..2 {
                assert_eq!(t.sweep(100).await, swept(0, 0, 0), "{step_ms} ms ahead");
                t.clock.advance(secs(1));
            }
            let mut other = t.want(1);
            other.queues[0].queue = "other".into();
            t.reserve_by(&other).await;
            t.clock.set(begun.after(secs(2)));
            assert_eq!(t.sweep(100).await, swept(0, 0, 0), "{step_ms} ms ahead, and back");
        }
        assert_eq!(t.counts().await, before, "{step_ms} ms ahead, and back");
        for id in &waiting {
            assert_eq!(t.state(*id).await, State::Waiting);
        }
    }
    // What was remembered still is, for as long as it was meant to be.
    let new = NewJob { unique: Some(Unique::key("w3").window(secs(30))), ..t.job() };
    assert!(matches!(t.enqueue(new).await, Enqueued::Duplicate { .. }));
    t.until(derived_ended.after(millis(DAY_MS - 1))).await;
    assert!(matches!(t.enqueue(with_derived(&t)).await, Enqueued::Duplicate { .. }));
}

/// S14, S17: a step that stays is believed two minutes later, if calls come meanwhile.
pub(crate) async fn a_step_of_the_clock_that_stays_is_believed(t: Fixture) {
    let run = t.run().await;
    t.end(&run, Verdict::Ack).await;
    t.silence(DAY_MS / 1_000);
    assert_eq!(t.sweep(100).await.removed, 0);
    t.pass(119).await;
    assert_eq!(t.sweep(100).await.removed, 0);
    t.pass(1).await;
    assert_eq!(t.sweep(100).await.removed, 1);
}

/// S17: after a step of the clock, what ages goes on ageing from where it was.
pub(crate) async fn what_ages_goes_on_after_a_step_of_the_clock(t: Fixture) {
    age_in_half_a_minute(&t).await;
    add_what_ages(&t, 0).await;
    t.clock.advance(secs(3_000));
    assert_eq!(t.sweep(100).await, swept(0, 0, 0));
    t.pass(29).await;
    assert_eq!(t.sweep(100).await, swept(0, 0, 0));
    // Steady time goes on from where it was.
    t.pass(1).await;
    assert_eq!(t.sweep(100).await, swept(1, 4, 1));
}

/// S17: a store that is called once an hour removes what was old at the call before.
pub(crate) async fn a_store_that_is_seldom_called_removes_one_call_later(t: Fixture) {
    age_in_half_a_minute(&t).await;
    add_what_ages(&t, 0).await;
    t.silence(3_000);
    assert_eq!(t.sweep(100).await, swept(0, 0, 0));
    t.silence(121);
    assert_eq!(t.sweep(100).await, swept(1, 4, 1));
}
