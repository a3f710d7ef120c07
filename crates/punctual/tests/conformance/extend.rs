//! Heartbeats.

use std::time::Duration;

use punctual::{
    ErrorKind,
    limits::LEASE_MAX,
    store::{Heartbeat, Lease, LeaseStatus, Reserve, Verdict},
};

use crate::fixture::{CANCEL, Fixture, at, millis, secs};

/// S9: an extension lasts as long as the lease, from now on; the lease is not reclaimed at its old time.
pub(crate) async fn an_extension_lasts_a_whole_lease_from_now(t: Fixture) {
    let run = t.run().await;
    t.pass(10).await;
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(25_000));
    t.pass(14).await;
    assert_eq!(t.reserve(1).await.reclaimed, []);
    t.pass(1).await;
    assert_eq!(t.reserve(1).await.reclaimed.len(), 1);
}

/// S9: each lease lasts as its reservation said, whatever the queue says by now.
pub(crate) async fn each_lease_is_extended_by_its_own_length(t: Fixture) {
    let (short, long) = (t.run().await, t.run_with(|job| job.options.lease = Some(secs(60))).await);
    t.set(|queue| queue.defaults.lease = Some(secs(99))).await;
    t.pass(5).await;
    let leases = [short.lease.into(), long.lease.into()];
    assert_eq!(t.store.extend(&leases).await.unwrap(), [LeaseStatus::Held; 2]);
    assert_eq!(t.get(short.job.id).await.running.unwrap().until, at(20_000));
    assert_eq!(t.get(long.job.id).await.running.unwrap().until, at(65_000));
}

/// S9: a lease past its time is extended as long as it was not reclaimed.
pub(crate) async fn a_lease_past_its_time_is_extended_while_it_is_current(t: Fixture) {
    let run = t.run().await;
    t.pass(18).await;
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    assert_eq!(t.reserve(1).await.reclaimed, []);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(33_000));
}

/// S8: a lease that is not current is `Lost`, and nothing is extended.
pub(crate) async fn a_stale_lease_is_not_extended(t: Fixture) {
    let old = t.run().await;
    t.pass(15).await;
    let new = t.reserve_one().await;
    t.pass(5).await;
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
    t.pass(10).await;
    assert_eq!(t.extend(run.lease).await, LeaseStatus::CancelRequested);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(25_000));
}

/// S2: a heartbeat changes nothing but the end of the lease.
pub(crate) async fn a_heartbeat_changes_only_the_end_of_the_lease(t: Fixture) {
    let run = t.run().await;
    t.pass(1).await;
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    let mut expected = run.job.clone();
    expected.running.as_mut().unwrap().until = at(16_000);
    assert_eq!(t.get(run.job.id).await, expected);
}

/// S9: a heartbeat can give its lease another length, which later ones keep. Other leases of the call keep theirs.
pub(crate) async fn a_heartbeat_can_give_a_lease_another_length(t: Fixture) {
    let (run, other) = (t.run().await, t.run().await);
    let beats = [Heartbeat { lasts: Some(secs(60)), ..run.lease.into() }, other.lease.into()];
    t.pass(5).await;
    assert_eq!(t.store.extend(&beats).await.unwrap(), [LeaseStatus::Held; 2]);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(65_000));
    assert_eq!(t.get(other.job.id).await.running.unwrap().until, at(20_000));
    t.end(&other, Verdict::Ack).await;
    t.pass(10).await;
    assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(75_000));
    let short = Heartbeat { lasts: Some(secs(2)), ..run.lease.into() };
    assert_eq!(t.store.extend(&[short]).await.unwrap(), [LeaseStatus::Held]);
    assert_eq!(t.get(run.job.id).await.running.unwrap().until, at(17_000));
    let batch = t.reserve(1).await;
    assert_eq!((batch.reclaimed.len(), batch.next_due), (0, Some(millis(800))));
    t.pass(2).await;
    assert_eq!(t.reserve(0).await.reclaimed.len(), 1);
}

/// S9: a repeated reserve extends a lease by its new length, and the pause after the third expired lease follows it.
pub(crate) async fn a_lease_keeps_its_new_length(t: Fixture) {
    let id = t.add().await;
    for expired_leases in 0..2 {
        let run = t.reserve_by(&Reserve { company: true, ..t.want(1) }).await.jobs.remove(0);
        assert_eq!(run.job.expired_leases, expired_leases);
        t.pass(15).await;
        t.reserve(0).await;
    }
    let want = t.want(1);
    let run = t.reserve_by(&want).await.jobs.remove(0);
    let long = Heartbeat { lasts: Some(secs(100)), company: true, ..run.lease.into() };
    assert_eq!(t.store.extend(&[long]).await.unwrap(), [LeaseStatus::Held]);
    t.pass(10).await;
    let again = t.reserve_by(&want).await.jobs.remove(0);
    assert_eq!((again.lasts, again.until), (secs(100), at(140_000)));
    for _ in 0..5 {
        t.pass(20).await;
        t.reserve(0).await;
    }
    let job = t.get(id).await;
    assert_eq!(job.expired_leases, 3);
    assert!(at(340_000) <= job.run_at, "two new lengths at least: {:?}", job.run_at);
}

/// S8, S13: lengths are bounded, and a lease that is not current gets none.
pub(crate) async fn lengths_of_leases_are_bounded(t: Fixture) {
    let (run, stale) = (t.run().await, Lease { job: t.id(0), fence: 1 });
    for lasts in [secs(0), Duration::from_millis(999), LEASE_MAX + secs(1)] {
        let beats = [run.lease.into(), Heartbeat { lasts: Some(lasts), ..run.lease.into() }];
        let error = t.store.extend(&beats).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{lasts:?}");
        assert!(error.to_string().contains("lasts_ms"), "{error}");
    }
    let beats = [secs(1), LEASE_MAX].map(|lasts| Heartbeat { lasts: Some(lasts), ..stale.into() });
    assert_eq!(t.store.extend(&beats).await.unwrap(), [LeaseStatus::Lost; 2]);
    assert_eq!(t.get(run.job.id).await, run.job);
}
