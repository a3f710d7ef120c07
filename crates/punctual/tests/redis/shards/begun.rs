//! A change of the layout has begun: some shards know of it, others do not yet.

use super::*;

/// Makes shard 0 know of an epoch after the current one, as a process does that changes the number of shards.
fn begin(server: &Server, url: &str) {
    const NEXT: &str = "
        local row = redis.call('HGET', KEYS[1], 'turn')
        local epoch = struct.unpack('>I4', row, 29)
        redis.call('HSET', KEYS[1], 'turn', row:sub(1, 28) .. struct.pack('>I4', epoch + 1) .. row:sub(33))";
    server.say(&["EVAL", NEXT, "1", &key(url, "s")]);
}

/// S3: of a call's jobs for one shard, a part is stored. The rest is looked for in an earlier shard first, and that one knows of a
/// change already. The rest is not taken for a part of what is stored, and is stored by the new layout.
#[tokio::test]
async fn a_call_that_meets_a_change_is_stored_in_full() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    let mut producer = Producer::new();
    // Shard 0 is not empty, so the number of shards before stays in use.
    producer.enqueue(&store, &[limiters::after(limiters::DAY, job(id(0)))]).await;
    store.reshard(4).await.unwrap();
    for n in 0..20 {
        let key = format!("key {n}");
        let home = inserted(&producer.enqueue(&store, &[limiters::locked(&key)]).await[0]).shard();
        if home == 0 {
            continue;
        }
        // Made long after the last change, so it is in no earlier shard.
        let later = Clock::System.now().as_ms() + limiters::DAY.as_millis() as u64;
        let young = job(IdMaker::default().make(later, home, fastrand::u64(..)));
        let jobs = [young, limiters::locked(&key)];
        begin(&server, &url);
        producer.number += 1;
        let call = CallId { instance: producer.instance, number: producer.number };
        let error = store.enqueue(call, &jobs).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "a part of it is stored: {error:?}");
        store.reshard(4 + n % 2).await.unwrap();
        let answers = producer.repeat(&store, &jobs).await;
        for answer in &answers {
            assert!(store.get(inserted(answer)).await.unwrap().is_some(), "{answer:?}");
        }
    }
}

/// S3, S4: a job that was stored before, and is done, does not replace the job that holds its key now, in a shard that does not know
/// of the change yet.
#[tokio::test]
async fn a_job_that_is_done_replaces_nothing_during_a_change() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    let mut producer = Producer::new();
    producer.enqueue(&store, &[limiters::after(limiters::DAY, job(id(0)))]).await;
    let again = |n: usize| {
        let unique = Unique::key(format!("key {n}")).on_conflict(OnConflict::Replace);
        NewJob { unique: Some(unique), ..derived(&format!("id {n}")) }
    };
    let first: Vec<_> = (0..20).map(again).collect();
    let first: Vec<_> = producer.enqueue(&store, &first).await.iter().map(inserted).collect();
    assert_eq!(drain(&store).await.len(), first.len());
    store.reshard(4).await.unwrap();
    let holders: Vec<_> = (0..20).map(|n| keyed(&format!("key {n}"))).collect();
    let holders: Vec<_> = producer.enqueue(&store, &holders).await.iter().map(inserted).collect();
    // The number stays the same: after another one, a key can have three homes.
    // The number stays the same: after another one, a key can have three homes.
    for (n, holder) in holders.into_iter().enumerate().filter(|(_, holder)| holder.shard() != 0) {
        begin(&server, &url);
        producer.number += 1;
        let call = CallId { instance: producer.instance, number: producer.number };
        let jobs = [again(n)];
        store.enqueue(call, &jobs).await.unwrap_err();
        store.reshard(4).await.unwrap();
        let answers = producer.repeat(&store, &jobs).await;
        assert!(
            matches!(&answers[0], Enqueued::Duplicate(it) if it.state == Some(State::Done)),
            "{answers:?}"
        );
        assert_eq!(store.get(holder).await.unwrap().unwrap().version, 1, "key {n}");
    }
}
