//! An answer is lost, or a part of a call cannot be made, and by the time of its repetition something has changed.

use std::time::Duration;

use punctual::{
    JobId, NewJob, Timestamp, Unique, When,
    store::{
        Action, CallId, Enqueued, Store,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};

use super::{
    Hand, Proxy, Weather, Whom, at_last, open,
    outage::{AWAY, EARLIER, FIRST, LAST, SHARDS, cluster, job},
    server::Cluster,
};

/// An id that leads to this shard, and nowhere else.
fn in_shard(shard: u16) -> JobId {
    punctual::job::IdMaker::default().make(Clock::System.now().as_ms(), shard, fastrand::u64(..))
}

/// A store of several shards whose ids of now are looked for in one place.
async fn spread(cluster: &Cluster) -> String {
    let url = cluster.url();
    spread_at(&url).await;
    url
}

/// Spreads a store over several shards so long ago that ids of now are looked for in one place.
async fn spread_at(url: &str) {
    let now_ms = Clock::System.now().as_ms();
    let clock = ManualClock::new(Timestamp::saturating_from_ms(now_ms - EARLIER.as_millis() as u64));
    let changer = RedisStore::open(url, Clock::Manual(clock)).await.unwrap();
    changer.reshard(SHARDS).await.unwrap();
}

/// S3: a reserve whose answer one shard lost is repeated there first, though another one, which was away, has jobs by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_is_repeated_first_where_its_answer_was_lost() {
    let mut cluster = cluster();
    let url = spread(&cluster).await;
    let proxy = Proxy::to(&cluster.servers[LAST].socket()).await.unwrap();
    let port = proxy.port().to_string();
    cluster.servers[LAST].say(&["CONFIG", "SET", "cluster-announce-port", &port]);
    for server in &cluster.servers {
        server.until_says(&["CLUSTER", "SLOTS"], |slots| slots.contains(&port));
    }
    let (store, other) = (open(&url).await, open(&url).await);
    let [away, lost] = [1, 3].map(|shard| NewJob { id: in_shard(shard), ..job(in_shard(shard)) });
    let answers =
        other.enqueue(CallId { instance: 1, number: 1 }, &[away.clone(), lost.clone()]).await.unwrap();
    assert!(answers.iter().all(Enqueued::is_new), "{answers:?}");
    // Each server knows the script by now.
    let mut nobody = Hand::new(&other, 2).want(1);
    nobody.queues[0].queue = "nobody".into();
    other.reserve(&nobody).await.unwrap();

    cluster.servers[AWAY].kill();
    let want = Hand::new(&store, 3).want(1);
    proxy.set(Weather::Lose(1), Whom::All);
    let unknown = store.reserve(&want).await.unwrap_err();
    proxy.set(Weather::Fair, Whom::All);
    let is_running =
        async || Ok(other.get(lost.id).await?.is_some_and(|job| job.state == punctual::State::Running));
    assert!(at_last(is_running).await, "its answer was not lost, but {unknown:?}");
    cluster.servers[AWAY].restart();
    // Both can be reached again.
    for job in [&away, &lost] {
        at_last(async || store.get(job.id).await).await;
    }
    let jobs = at_last(async || store.reserve(&want).await).await.jobs;
    let ids: Vec<JobId> = jobs.iter().map(|reserved| reserved.job.id).collect();
    assert_eq!(ids, [lost.id], "what it holds in shard 3 would be nobody's");
}

/// S2: a call of which one shard has done its part is not refused by another one, be it that a job has expired since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_done_in_part_is_not_refused_when_its_rest_has_expired() {
    let mut cluster = cluster();
    let url = spread(&cluster).await;
    let clock = ManualClock::new(Clock::System.now());
    let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
    let there = job(in_shard(3));
    let soon = When::At(clock.now().after(Duration::from_secs(5)));
    let away = NewJob { expires_at: Some(soon), ..job(in_shard(1)) };
    let (call, jobs) = (CallId { instance: 1, number: 1 }, [there.clone(), away.clone()]);
    cluster.servers[AWAY].kill();
    let error = store.enqueue(call, &jobs).await.unwrap_err();
    assert!(error.is_repeatable(), "{error:?}");
    assert!(store.get(there.id).await.unwrap().is_some(), "its part is done");

    cluster.servers[AWAY].restart();
    at_last(async || store.get(away.id).await).await;
    clock.advance(Duration::from_secs(6));
    let answers = store.enqueue(call, &jobs).await;
    assert!(answers.is_ok(), "{answers:?}");
    assert!(answers.unwrap().iter().all(|answer| answer.id().is_some()), "each has an answer");
    while store.sweep(100).await.unwrap().more {}
    assert_eq!(store.get(away.id).await.unwrap().unwrap().state, punctual::State::Cancelled);
}

/// S3: a call is repeated that came through only in part. A job whose earlier shard was away meanwhile goes into a shard that has
/// the rest of the call already, and that shard does not take it for one of those.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_a_call_is_stored_in_a_shard_that_has_a_part_of_it() {
    let mut cluster = cluster();
    let url = cluster.url();
    let store = open(&url).await;
    // Shard 0 is not empty, so it is looked at for a job with a key that may have been put there before there were others.
    let far = NewJob { run_at: When::In(Duration::from_hours(1)), ..job(in_shard(0)) };
    store.enqueue(CallId { instance: 3, number: 1 }, &[far]).await.unwrap();
    spread_at(&url).await;
    let mut keyed = None;
    for n in 0.. {
        let [job, again] =
            [(); 2].map(|()| NewJob { unique: Some(Unique::key(format!("key {n}"))), ..job(in_shard(3)) });
        let answers = store.enqueue(CallId { instance: 1, number: n + 1 }, &[job]).await.unwrap();
        let id = answers[0].id().unwrap();
        if id.shard() == 3 {
            store.act(&[id.into()], &Action::Delete).await.unwrap();
            keyed = Some(again);
            break;
        }
    }
    let (there, keyed) = (job(in_shard(3)), keyed.unwrap());
    let (call, jobs) = (CallId { instance: 2, number: 1 }, [there.clone(), keyed]);
    cluster.servers[FIRST].kill();
    let error = store.enqueue(call, &jobs).await.unwrap_err();
    assert!(error.is_repeatable(), "{error:?}");

    cluster.servers[FIRST].restart();
    assert!(at_last(async || store.get(there.id).await).await.is_some(), "its part is done");
    let answers = at_last(async || store.enqueue(call, &jobs).await).await;
    assert!(answers.iter().all(Enqueued::is_new), "{answers:?}");
    assert!(store.get(answers[1].id().unwrap()).await.unwrap().is_some(), "it was stored");
}
