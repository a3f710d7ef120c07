//! Jobs that one call hands over to several shards.

use super::*;

/// A job that replaces, or puts off, what holds its key.
fn that_meets(key: &str, on_conflict: OnConflict) -> NewJob {
    NewJob { unique: Some(Unique::key(key).on_conflict(on_conflict)), ..job(id(0)) }
}

/// S4: keys that old numbers of shards lead to one shard, one sooner than another, are met there each.
#[tokio::test]
async fn a_call_replaces_each_of_its_keys_after_two_changes_of_shards() {
    let url = Server::shared().url();
    let (store, changer) = (open(&url).await, open(&url).await);
    let mut producer = Producer::new();
    let names: Vec<String> = (0..60).map(|n| format!("key {n}")).collect();
    let new: Vec<NewJob> = names.iter().map(|name| keyed(name)).collect();
    producer.enqueue(&store, &new).await;
    store.reshard(3).await.unwrap();
    store.reshard(8).await.unwrap();
    for (round, on_conflict) in [OnConflict::Replace, OnConflict::Reschedule].into_iter().enumerate() {
        let again: Vec<NewJob> = names.iter().map(|name| that_meets(name, on_conflict)).collect();
        let answers = producer.enqueue(&store, &again).await;
        let duplicates = answers.iter().filter(|answer| matches!(answer, Enqueued::Duplicate(_))).count();
        assert_eq!(duplicates, 0, "duplicates of {}: {on_conflict:?}", names.len());
        // Repeated, it changes nothing more, nor after another change.
        let version = round as u64 + 2;
        for shards in [None, Some(5 + round as u16)] {
            if let Some(shards) = shards {
                changer.reshard(shards).await.unwrap();
            }
            for answer in producer.repeat(&store, &again).await {
                assert!(
                    matches!(&answer, Enqueued::Duplicate(it) if it.version == version),
                    "{shards:?}: {answer:?}"
                );
            }
        }
    }
    assert_eq!(drain(&store).await.len(), names.len());
    assert!(is_clean(&store).await);
}

/// S2: a call that is refused has changed nothing, not even where an old number of shards leads.
#[tokio::test]
async fn a_call_with_an_expired_job_replaces_nothing_in_an_old_shard() {
    let store = open(&Server::shared().url()).await;
    let mut producer = Producer::new();
    let names: Vec<String> = (0..20).map(|n| format!("key {n}")).collect();
    let new: Vec<NewJob> = names.iter().map(|name| keyed(name)).collect();
    let holders: Vec<_> = producer.enqueue(&store, &new).await.iter().map(inserted).collect();
    store.reshard(3).await.unwrap();
    store.reshard(8).await.unwrap();
    let past = When::At(Timestamp::saturating_from_ms(1));
    // One by one: where they lead follows from the key, some to other shards than the first.
    for name in &names {
        let expired = NewJob { expires_at: Some(past), ..keyed(&format!("expired {name}")) };
        let jobs: Vec<NewJob> =
            names.iter().map(|name| that_meets(name, OnConflict::Replace)).chain([expired]).collect();
        let call = CallId { instance: fastrand::u64(..), number: 1 };
        assert_eq!(store.enqueue(call, &jobs).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let mut replaced = 0;
    for holder in holders {
        replaced += u32::from(store.get(holder).await.unwrap().unwrap().version != 1);
    }
    assert_eq!(replaced, 0, "jobs replaced by calls that were refused");
}

/// S3: what was a duplicate is one for each repetition, by another process, too, after the job that held its key has ended.
#[tokio::test]
async fn a_duplicate_stays_one_in_an_old_layout() {
    let url = Server::shared().url();
    let (store, other) = (open(&url).await, open(&url).await);
    let mut producer = Producer::new();
    producer.enqueue(&store, &[limiters::after(limiters::DAY, job(id(0)))]).await;
    store.reshard(8).await.unwrap();
    let new = || (0..20).map(|n| keyed(&format!("key {n}"))).collect::<Vec<_>>();
    producer.enqueue(&store, &new()).await;
    let again = new();
    let answers = producer.enqueue(&store, &again).await;
    assert!(answers.iter().all(|answer| matches!(answer, Enqueued::Duplicate(_))), "{answers:?}");
    assert_eq!(drain(&store).await.len(), again.len());
    let answers = producer.repeat(&other, &again).await;
    assert!(answers.iter().all(|answer| matches!(answer, Enqueued::Duplicate(_))), "{answers:?}");
    assert_eq!(drain(&store).await.len(), 0);
}
