//! Steps of the store's clock, back and forth. What a step forth does to leases is in silence.rs.

use punctual::{
    When,
    store::{Action, Settled, Verdict},
};

use crate::fixture::{Fixture, QUEUE, at, ids, retry, secs};

/// S14: the store tells the time of its own clock, and reads it anew for each call.
pub(crate) async fn the_store_goes_by_its_own_clock(t: Fixture) {
    assert_eq!(t.store.now().await.unwrap(), at(0));
    t.clock.set(at(7));
    assert_eq!(t.store.now().await.unwrap(), at(7));
    assert_eq!(t.reserve(0).await.now, at(7));
}

/// S5, S14: the clock back by d makes jobs late by d; nothing starts early, and nothing is lost.
pub(crate) async fn a_step_back_makes_jobs_late(t: Fixture) {
    t.clock.set(at(60_000));
    let id = t.add().await;
    t.clock.set(at(50_000));
    let batch = t.reserve(1).await;
    assert_eq!((batch.jobs.len(), batch.next_due), (0, Some(secs(10))));
    t.clock.set(at(60_000));
    assert_eq!(ids(&t.reserve(1).await), [id]);
}

/// S8, S10, S14: fences rise whatever the clock does.
pub(crate) async fn fences_rise_when_the_clock_goes_back(t: Fixture) {
    t.clock.set(at(3_600_000));
    let run = t.run().await;
    t.end(&run, Verdict::Release).await;
    t.clock.set(at(3_600_000 - 60_000));
    t.apply(run.job.id, Action::RunNow).await;
    assert!(run.lease.fence < t.reserve_one().await.lease.fence);
}

/// S8, S10, S14: nor does a take on a clock that went back lower the fences behind it.
pub(crate) async fn a_take_lowers_no_fence(t: Fixture) {
    t.clock.set(at(3_600_000));
    let run = t.run().await;
    t.clock.set(at(0));
    t.add().await;
    assert_eq!(t.take(1).await.len(), 1);
    assert!(run.lease.fence < t.run().await.lease.fence);
}

/// S9, S14: a smaller step forth may take leases back early; the fence bounds the harm.
pub(crate) async fn a_small_step_forth_takes_leases_back_early(t: Fixture) {
    let run = t.run().await;
    t.pass(15).await;
    let again = t.reserve_one().await;
    t.clock.set(at(1_000));
    assert_eq!(t.settle_one(run.lease, retry(secs(0))).await, Settled::LeaseLost);
    assert_eq!(t.end(&again, Verdict::Ack).await.finished_at, Some(at(1_000)));
}

/// S14: a wait goes by the store's clock as well: a job that a turn of the clock makes due ends it.
pub(crate) async fn a_turn_of_the_clock_ends_a_wait(t: Fixture) {
    t.add_with(|job| job.run_at = When::In(secs(1))).await;
    let queues = [QUEUE.to_owned()];
    let wait = tokio::time::timeout(secs(20), t.store.wait(&queues, secs(3_600)));
    let (woken, ()) = tokio::join!(wait, async { t.pass(1).await });
    woken.expect("it returns").unwrap();
}
