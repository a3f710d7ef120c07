//! A consistency check of a store that is well: what it finds wrong in a sick one is each store's own test.

use punctual::{
    Unique, When,
    store::{Audit, Verdict},
};

use crate::fixture::{Fixture, dead, retry, secs};

/// S2: jobs in every state, keys, counters and remembered ids hold together.
pub(crate) async fn a_store_that_is_well_has_no_findings(t: Fixture) {
    assert_eq!(t.audit(false).await, []);
    for end in [Verdict::Ack, dead(), Verdict::Cancel { reason: None }, retry(secs(60)), Verdict::Release] {
        let run = t.run_with(|job| job.unique = Some(Unique::key(job.id.to_string()))).await;
        t.end(&run, end).await;
    }
    t.add_with(|job| (job.run_at, job.expires_at) = (When::In(secs(60)), Some(When::In(secs(90))))).await;
    t.add_with(|job| (job.queue, job.unique) = ("bulk".to_owned(), Some(Unique::key("k").window(secs(60)))))
        .await;
    t.reserve_by(&t.want_from(&[("bulk", 1)], 1)).await;
    assert_eq!(t.audit(false).await, []);
}

/// S2: a repair of a store that is well changes nothing.
pub(crate) async fn a_repair_without_findings_changes_nothing(t: Fixture) {
    let run = t.run().await;
    t.end(&run, retry(secs(60))).await;
    let other = t.run().await;
    let before = (t.get(run.job.id).await, t.get(other.job.id).await, t.counts().await);
    assert_eq!(t.audit(true).await, []);
    assert_eq!((t.get(run.job.id).await, t.get(other.job.id).await, t.counts().await), before);
}

/// S13: an audit goes in slices of at most 1,000.
pub(crate) async fn an_audit_goes_in_slices(t: Fixture) {
    t.add_many(1_000).await;
    t.add_many(500).await;
    assert!(t.store.audit(Audit::default()).await.unwrap().next.is_some());
    assert_eq!(t.audit(false).await, []);
}
