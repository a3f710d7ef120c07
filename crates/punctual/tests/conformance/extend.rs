//! Heartbeats.

use punctual::store::{Heartbeat, Lease, LeaseStatus, Verdict};

use crate::fixture::{CANCEL, Fixture, at, secs};

/// S9: an extension lasts as long as the lease, from now on; the lease is not reclaimed at its old time.
pub(crate) async fn an_extension_lasts_a_whole_lease_from_now(t: Fixture) {
    let run = t.run().await;
    t.pass(10);
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(25_000));
    t.pass(14);
    assert_eq!(t.reserve(1).await.reclaimed, []);
    t.pass(1);
    assert_eq!(t.reserve(1).await.reclaimed.len(), 1);
}

/// S9: each lease lasts as its reservation said, whatever the queue says by now.
pub(crate) async fn each_lease_is_extended_by_its_own_length(t: Fixture) {
    let (short, long) = (t.run().await, t.run_with(|job| job.options.lease = Some(secs(60))).await);
    t.set(|queue| queue.defaults.lease = Some(secs(99))).await;
    t.pass(5);
    let leases = [short.lease.into(), long.lease.into()];
    assert_eq!(t.store.extend(&leases).await.unwrap(), [LeaseStatus::Held; 2]);
    assert_eq!(t.get(short.job.id).await.running.unwrap().until, at(20_000));
    assert_eq!(t.get(long.job.id).await.running.unwrap().until, at(65_000));
}

/// S9: a lease past its time is extended as long as it was not reclaimed.
pub(crate) async fn a_lease_past_its_time_is_extended_while_it_is_current(t: Fixture) {
    let run = t.run().await;
    t.pass(18);
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    assert_eq!(t.reserve(1).await.reclaimed, []);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(33_000));
}

/// S8: a lease that is not current is `Lost`, and nothing is extended.
pub(crate) async fn a_stale_lease_is_not_extended(t: Fixture) {
    let old = t.run().await;
    t.pass(15);
    let new = t.reserve_one().await;
    t.pass(5);
    assert_eq!(t.extend(old.lease).await, LeaseStatus::Lost);
    assert_eq!(t.get(new.job.id).await, new.job);
    t.end(&new, Verdict::Ack).await;
    assert_eq!(t.extend(new.lease).await, LeaseStatus::Lost);
}

/// S8: each lease of a batch is answered for itself, in its place.
pub(crate) async fn each_lease_of_a_heartbeat_is_answered_in_its_place(t: Fixture) {
    use LeaseStatus::{CancelRequested, Held, Lost};
    let (first, second) = (t.run().await, t.run().await);
    let wrong = Lease { job: first.job.id, fence: second.lease.fence };
    let unknown = Lease { job: t.id(0), fence: 1 };
    t.apply(second.job.id, CANCEL).await;
    let answers =
        t.store.extend(&[wrong, first.lease, unknown, second.lease].map(Heartbeat::from)).await.unwrap();
    assert_eq!(answers, [Lost, Held, Lost, CancelRequested]);
}

/// S12: a heartbeat learns of a cancel, and still extends: the end of the run decides.
pub(crate) async fn a_heartbeat_hears_of_a_cancel_and_extends(t: Fixture) {
    let run = t.run().await;
    t.apply(run.job.id, CANCEL).await;
    t.pass(10);
    assert_eq!(t.extend(run.lease).await, LeaseStatus::CancelRequested);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(25_000));
}

/// S2: a heartbeat changes nothing but the end of the lease.
pub(crate) async fn a_heartbeat_changes_only_the_end_of_the_lease(t: Fixture) {
    let run = t.run().await;
    t.pass(1);
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    let mut expected = run.job.clone();
    expected.running.as_mut().unwrap().until = at(16_000);
    assert_eq!(t.get(run.job.id).await, expected);
}
