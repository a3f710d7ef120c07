//! Earlier numbers of shards, and when a store forgets them.

use punctual::store::{
    GroupLimits,
    Placement::{Pinned, Spread},
    Rate,
    redis::RedisStore,
};
use punctual::testing::pass_time;

use super::{
    super::console::calls,
    limiters::{DAY, FAR, after, locked, never_twice, of_group, run_all, turned},
    pinned::turn,
    *,
};

const HOUR: Duration = Duration::from_hours(1);
/// What [`scripts_to_enqueue`] enqueues.
const JOBS: u64 = 3 * 8;

/// How many scripts it takes to enqueue jobs with keys and groups one by one.
async fn scripts_to_enqueue(server: &Server, store: &RedisStore, name: &str) -> u64 {
    let mut producer = Producer::new();
    let jobs = |name: String| {
        (0..8).flat_map(move |n| {
            let (key, group) = (format!("key {name} {n}"), format!("group {name} {n}"));
            [keyed(&key), NewJob { group: Some(group), ..job(id(0)) }, derived(&key)]
        })
    };
    let calls = || calls(&server.say(&["INFO", "commandstats"]))["evalsha"];
    // From then on it knows the layout, and what each shard knows of the queue.
    for job in jobs(format!("{name} before")) {
        producer.enqueue(store, &[job]).await;
    }
    let before = calls();
    for job in jobs(name.to_owned()) {
        inserted(&producer.enqueue(store, &[job]).await[0]);
    }
    calls() - before
}

/// An old number of shards costs a second look only as long as something may be where it leads.
#[tokio::test]
async fn an_old_number_of_shards_is_forgotten_when_the_store_is_empty() {
    let server = Server::start(&[]);
    let clock = ManualClock::new(Timestamp::saturating_from_ms(1_800_000_000_000));
    let fresh = open(&server.url()).await;
    assert_eq!(scripts_to_enqueue(&server, &fresh, "one shard").await, JOBS);
    let fresh = open(&server.url()).await;
    fresh.reshard(4).await.unwrap();
    assert_eq!(scripts_to_enqueue(&server, &fresh, "several from the start").await, JOBS);

    let store = RedisStore::open(&server.url(), Clock::Manual(clock.clone())).await.unwrap();
    let settings =
        QueueSettings { done: Keep::NOTHING, cancelled: Keep::NOTHING, ..QueueSettings::default() };
    store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap();
    let mut producer = Producer::new();
    let old = NewJob { run_at: When::In(Duration::from_hours(1)), ..keyed("old") };
    let old_id = inserted(&producer.enqueue(&store, std::slice::from_ref(&old)).await[0]);
    store.reshard(4).await.unwrap();
    assert!(JOBS < scripts_to_enqueue(&server, &store, "beside an old job").await);
    let again = producer.enqueue(&store, &[keyed("old")]).await;
    assert!(matches!(again[0], Enqueued::Duplicate(Existing { id, .. }) if id == old_id), "{again:?}");
    pass_time(&store, &clock, Duration::from_hours(2)).await;
    assert_eq!(drain(&store).await.len() as u64, 2 * JOBS + 1);
    // The ids that stand for idempotency keys are remembered for a day.
    store.sweep(1_000).await.unwrap();
    assert!(JOBS < scripts_to_enqueue(&server, &store, "beside remembered ids").await);
    drain(&store).await;
    pass_time(&store, &clock, Duration::from_hours(25)).await;
    while store.sweep(1_000).await.unwrap().more {}
    assert_eq!(jobs(&store).await, [0; 4]);
    assert_eq!(scripts_to_enqueue(&server, &store, "with nothing left").await, JOBS);
}

/// A text that is at home in another shard than the first of four, as a key, a group or an idempotency key.
async fn text_that_moves() -> String {
    let store = open(&Server::shared().url()).await;
    store.reshard(4).await.unwrap();
    for n in 0.. {
        let text = format!("moves {n}");
        let answer = Producer::new().enqueue(&store, &[locked(&text)]).await;
        if inserted(&answer[0]).shard() != 0 {
            return text;
        }
    }
    unreachable!("there is no end")
}

/// A store of one shard that keeps no ended jobs, with a job that waits throughout the test.
async fn never_empty(url: &str) -> (RedisStore, ManualClock) {
    let (store, clock) = turned(url).await;
    let group = GroupLimits {
        rate: Some(Rate { max: 1, period_ms: 3 * 3_600_000, burst: 1 }),
        ..GroupLimits::default()
    };
    let (done, cancelled) = (Keep::NOTHING, Keep::NOTHING);
    let settings = QueueSettings { done, cancelled, group, ..QueueSettings::default() };
    store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap();
    Producer::new().enqueue(&store, &[after(FAR, job(id(0)))]).await;
    (store, clock)
}

/// How many earlier numbers a store remembers after some sweeps.
async fn earlier_numbers(server: &Server, url: &str, store: &RedisStore) -> usize {
    for _ in 0..3 {
        while store.sweep(1_000).await.unwrap().more {}
    }
    remembered(server, url)
}

/// How many earlier numbers a store remembers.
fn remembered(server: &Server, url: &str) -> usize {
    let length = server.say(&["HSTRLEN", &key(url, "s"), "layout"]);
    (length.parse::<usize>().unwrap() - 13) / 2
}

/// The jobs of a store, without the one that waits throughout.
async fn others(store: &RedisStore) -> u64 {
    jobs(store).await.iter().sum::<u64>() - 1
}

#[tokio::test]
async fn an_old_number_is_forgotten_though_the_store_never_runs_empty() {
    let server = Server::start(&[]);
    let (store, clock) = never_empty(&server.url()).await;
    let old: Vec<_> = [locked("old"), of_group("old"), keyed("old"), derived("old")].into();
    Producer::new().enqueue(&store, &old).await;
    store.reshard(4).await.unwrap();
    assert!(JOBS < scripts_to_enqueue(&server, &store, "beside old jobs").await);
    while 0 < others(&store).await {
        drain(&store).await;
        pass_time(&store, &clock, HOUR).await;
    }
    pass_time(&store, &clock, 2 * DAY).await;
    for _ in 0..3 {
        while store.sweep(1_000).await.unwrap().more {}
    }
    assert_eq!(others(&store).await, 0);
    assert_eq!(scripts_to_enqueue(&server, &store, "beside a job without a key").await, JOBS);
}

/// S4, S15: a job that only the old number leads to is found while it is in the store.
#[tokio::test]
async fn an_old_number_is_kept_while_one_job_of_it_is_there() {
    let (text, server) = (text_that_moves().await, Server::start(&[]));
    let elsewhere = job(id(3));
    let dead = NewJob { kind: "dies".into(), ..locked(&text) };
    for old in [keyed(&text), locked(&text), of_group(&text), derived(&text), elsewhere, dead] {
        let url = server.url();
        let (store, clock) = never_empty(&url).await;
        let mut producer = Producer::new();
        let dies = old.kind == "dies";
        let old = after(if dies { Duration::ZERO } else { 3 * DAY }, old);
        let old_id = inserted(&producer.enqueue(&store, std::slice::from_ref(&old)).await[0]);
        let others_of_it: Vec<_> =
            (0..8).flat_map(|n| [keyed(&n.to_string()), locked(&n.to_string())]).collect();
        if dies {
            let lease = store.reserve(&want(1, 1, 1)).await.unwrap().jobs[0].lease;
            let verdict = Verdict::Dead { error: "it dies".into() };
            store.settle(&[Settlement { lease, verdict }], None).await.unwrap();
        }
        producer.enqueue(&store, &others_of_it).await;
        store.reshard(4).await.unwrap();
        assert_eq!(drain(&store).await.len(), 16);
        pass_time(&store, &clock, 2 * DAY).await;
        assert_eq!(earlier_numbers(&server, &url, &store).await, 1, "{old:?}");
        assert_eq!(store.get(old_id).await.unwrap().unwrap().id, old_id);
        let new = NewJob {
            id: if old_id.is_derived() || old.id.shard() == 3 { old.id } else { id(0) },
            ..old.clone()
        };
        let answer = producer.enqueue(&store, &[new]).await.remove(0);
        match answer {
            Enqueued::Duplicate(Existing { id, .. }) => assert_eq!(id, old_id),
            Enqueued::Inserted { id, .. } if dies => assert_ne!(id.shard(), 0),
            Enqueued::Inserted { id, .. } => {
                assert_eq!(id.shard(), 0, "it follows the old one: {old:?}");
                assert!(old.group.is_some() || old.concurrency.is_some());
            }
            other => panic!("{other:?}"),
        }
        if dies {
            // It may not run again beside that one.
            let acted = store.act(&[old_id.into()], &Action::Retry).await.unwrap();
            assert!(matches!(acted[..], [Acted::LimiterConflict(_)]), "{acted:?}");
            store.act(&[old_id.into()], &Action::Delete).await.unwrap();
        }
        for _ in 0..3 {
            pass_time(&store, &clock, 2 * DAY).await;
            drain(&store).await;
        }
        assert_eq!(others(&store).await, 0);
        assert_eq!(earlier_numbers(&server, &url, &store).await, 0, "{old:?}");
    }
}

/// S4, S15: so is what outlives a job: the window of a unique key, a derived id, the rate of a group.
#[tokio::test]
async fn an_old_number_is_kept_while_something_of_it_is_remembered() {
    let (text, server) = (text_that_moves().await, Server::start(&[]));
    let window = NewJob { unique: Some(Unique::key(&text).window(3 * DAY)), ..job(id(0)) };
    for (old, lasts) in [(window, 3 * DAY), (derived(&text), DAY), (of_group(&text), 3 * HOUR)] {
        let url = server.url();
        let (store, clock) = never_empty(&url).await;
        let mut producer = Producer::new();
        producer.enqueue(&store, std::slice::from_ref(&old)).await;
        assert_eq!(drain(&store).await.len(), 1);
        store.reshard(4).await.unwrap();
        for wait in [Duration::ZERO, lasts.checked_sub(Duration::from_millis(1)).unwrap()] {
            pass_time(&store, &clock, wait).await;
            assert_eq!(earlier_numbers(&server, &url, &store).await, 1, "{old:?}");
        }
        if old.group.is_none() {
            let again = producer.enqueue(&store, std::slice::from_ref(&old)).await;
            assert!(matches!(again[0], Enqueued::Duplicate(_)), "{again:?}");
        }
        // The rate of a group is in force through its last millisecond.
        pass_time(&store, &clock, Duration::from_millis(2)).await;
        assert_eq!(earlier_numbers(&server, &url, &store).await, 0, "{old:?}");
        let again = producer.enqueue(&store, std::slice::from_ref(&old)).await;
        assert!(matches!(again[0], Enqueued::Inserted { .. }), "{again:?}");
    }
}

/// S15: the rate of a group is all that is left of it in a shard, and a job follows the group there: the search begins anew.
#[tokio::test]
async fn an_old_number_is_kept_for_what_followed_during_the_search() {
    let (text, server) = (text_that_moves().await, Server::start(&[]));
    let url = server.url();
    let (store, clock) = never_empty(&url).await;
    let mut producer = Producer::new();
    producer.enqueue(&store, &[of_group(&text)]).await;
    assert_eq!(drain(&store).await.len(), 1);
    store.reshard(4).await.unwrap();
    assert_eq!(earlier_numbers(&server, &url, &store).await, 1);
    let follower = producer.enqueue(&store, &[after(DAY, of_group(&text))]).await;
    assert_eq!(inserted(&follower[0]).shard(), 0);
    pass_time(&store, &clock, 4 * HOUR).await;
    assert_eq!(earlier_numbers(&server, &url, &store).await, 1);
    let next = producer.enqueue(&store, &[after(DAY, of_group(&text))]).await;
    assert_eq!(inserted(&next[0]).shard(), 0, "beside the one that waits there");
    for ran in [1, 1] {
        pass_time(&store, &clock, DAY).await;
        assert_eq!(run_all(&store).await, (ran, 1));
    }
    pass_time(&store, &clock, DAY).await;
    assert_eq!(earlier_numbers(&server, &url, &store).await, 0);
}

/// S3, S15: the shards refuse its call, and it repeats the call by the new layout.
#[tokio::test]
async fn a_process_that_looks_under_a_forgotten_number_learns_of_it() {
    let server = Server::start(&[]);
    let url = server.url();
    let (old, changer) = (open(&url).await, open(&url).await);
    Producer::new().enqueue(&old, &[after(FAR, job(id(0)))]).await;
    changer.reshard(4).await.unwrap();
    let keys: Vec<_> = (0..8).map(|n| format!("key {n}")).collect();
    let (mut before, mut after_it) = (Producer::new(), Producer::new());
    // From here on it knows the layout with both numbers.
    before.enqueue(&old, &keys.iter().map(|key| after(FAR, locked(key))).collect::<Vec<_>>()).await;
    for _ in 0..3 {
        changer.sweep(1_000).await.unwrap();
    }
    let epoch = || server.say(&["HGET", &key(&url, "s"), "layout"]);
    let forgotten = epoch();
    let new = || keys.iter().map(|key| locked(key)).collect::<Vec<_>>();
    let (new, beside) = (new(), new());
    let (one, other) = tokio::join!(before.enqueue(&old, &new), after_it.enqueue(&changer, &beside));
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(inserted(one).shard(), inserted(other).shard());
    }
    assert_eq!(epoch(), forgotten);
    assert_eq!(
        before.repeat(&old, &new).await.iter().map(Enqueued::id).collect::<Vec<_>>(),
        one.iter().map(Enqueued::id).collect::<Vec<_>>()
    );
    assert_eq!(run_all(&changer).await, (16, 1));
    assert_eq!(scripts_to_enqueue(&server, &old, "by the new layout").await, JOBS);
    assert_eq!(scripts_to_enqueue(&server, &changer, "by the new layout, too").await, JOBS);
}

/// S13: each sweep reads some records, and none while the misplaced job that was found is there.
#[tokio::test]
async fn a_search_goes_on_with_the_next_sweep() {
    const MANY: usize = 6_000;
    let (text, server) = (text_that_moves().await, Server::start(&[]));
    let url = server.url();
    let (store, _) = never_empty(&url).await;
    let mut producer = Producer::new();
    for _ in 0..MANY / 1_000 {
        let new: Vec<_> = (0..1_000).map(|_| after(FAR, job(id(0)))).collect();
        producer.enqueue(&store, &new).await;
    }
    let scans = || calls(&server.say(&["INFO", "commandstats"])).get("hscan").copied().unwrap_or_default();
    store.reshard(4).await.unwrap();
    store.sweep(1_000).await.unwrap();
    let of_one = scans();
    assert!((100..=16 * 16).contains(&of_one), "{of_one}");
    assert_eq!(remembered(&server, &url), 1, "{MANY} records are more than one sweep looks at");
    store.sweep(1_000).await.unwrap();
    assert_eq!(remembered(&server, &url), 0);

    let url = server.url();
    let (store, clock) = never_empty(&url).await;
    let old = producer.enqueue(&store, &[after(DAY, locked(&text))]).await;
    store.reshard(4).await.unwrap();
    store.sweep(1_000).await.unwrap();
    let found = scans();
    store.sweep(1_000).await.unwrap();
    assert_eq!((scans(), remembered(&server, &url)), (found, 1), "it is there");
    pass_time(&store, &clock, DAY).await;
    assert_eq!(drain(&store).await, [inserted(&old[0])]);
    assert_eq!(earlier_numbers(&server, &url, &store).await, 0);
}

/// S15: another server has the records in another order: a search begins anew there.
#[tokio::test]
async fn a_search_does_not_go_on_in_another_order() {
    let (text, server) = (text_that_moves().await, Server::start(&[]));
    let url = server.url();
    let (store, _) = never_empty(&url).await;
    let many: Vec<_> = (0..1_000).map(|_| after(FAR, job(id(0)))).collect();
    let mut producer = Producer::new();
    producer.enqueue(&store, &many).await;
    producer.enqueue(&store, &[after(DAY, locked(&text))]).await;
    store.reshard(4).await.unwrap();
    assert_eq!(earlier_numbers(&server, &url, &store).await, 1);
    // As if another server had found a job that is gone, close to the end of its records.
    let edit = "local row = redis.call('HGET', KEYS[1], 'search') \
        redis.call('HSET', KEYS[1], 'search', string.sub(row, 1, 5) .. ARGV[1] .. ' 18446744073709551615 ') \
        return string.match(row, '^....h(%x+) %d+ ')";
    let own = server.say(&["EVAL", edit, "1", &key(&url, "s"), &"0".repeat(40)]);
    assert_eq!(own.len(), 40, "{own}");
    assert_eq!(earlier_numbers(&server, &url, &store).await, 1);
}

#[tokio::test]
async fn a_user_that_may_not_ask_which_server_it_is_keeps_the_numbers() {
    let server = Server::start(&[]);
    let url = server.url();
    let (store, _) = never_empty(&url).await;
    store.reshard(4).await.unwrap();
    for (right, numbers) in [("-info", 1), ("+info", 0)] {
        server.say(&["ACL", "SETUSER", "default", right]);
        assert_eq!(earlier_numbers(&server, &url, &store).await, numbers);
    }
}

/// S15: the number of shards grows and each old number is forgotten while jobs come and run.
#[tokio::test]
async fn a_key_never_runs_twice_while_old_numbers_are_forgotten() {
    let server = Server::start(&[]);
    let url = server.url();
    let (changer, sweeper) = (open(&url).await, open(&url).await);
    let settings = QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() };
    changer.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap();
    let change = async {
        for shards in [2, 3, 5, 8] {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let sweep = async {
                for _ in 0..10 {
                    sweeper.sweep(1_000).await.unwrap();
                }
            };
            let (changed, ()) = tokio::join!(changer.reshard(shards), sweep);
            changed.unwrap();
            let mut sweeps = 0;
            while 0 < remembered(&server, &url) {
                changer.sweep(1_000).await.unwrap();
                sweeps += 1;
                assert!(sweeps < 1_000, "{shards} shards, and the number before is not forgotten");
            }
        }
    };
    // A few keys at a time, then others.
    let key = |before: usize| format!("{}", before / 100 * 4 + fastrand::usize(..4));
    Box::pin(never_twice(&url, key, 40, change)).await;
}

/// Jobs of a queue that is pinned, or was, are looked for in both places: they keep no number.
#[tokio::test]
async fn what_a_pinned_queue_put_somewhere_keeps_no_number() {
    let (text, server) = (text_that_moves().await, Server::start(&[]));
    let url = server.url();
    let (store, clock) = turned(&url).await;
    let mut producer = Producer::new();
    producer.enqueue(&store, &[after(FAR, job(id(0)))]).await;
    store.reshard(4).await.unwrap();
    turn(&store, Pinned).await;
    let pinned = inserted(&producer.enqueue(&store, &[after(DAY, locked(&text))]).await[0]);
    assert_eq!(earlier_numbers(&server, &url, &store).await, 0);
    turn(&store, Spread).await;
    store.reshard(5).await.unwrap();
    assert_eq!(earlier_numbers(&server, &url, &store).await, 0);
    let beside = inserted(&producer.enqueue(&store, &[after(DAY, locked(&text))]).await[0]);
    assert_eq!(beside.shard(), pinned.shard(), "it follows the one that was placed by the queue's name");
    let other = NewJob { queue: "other".into(), ..locked(&text) };
    let own = inserted(&producer.enqueue(&store, &[other]).await[0]);
    assert_ne!(own.shard(), pinned.shard(), "which is not where its key leads");
    pass_time(&store, &clock, DAY).await;
    assert_eq!(run_all(&store).await, (2, 1));
}

#[tokio::test]
async fn an_old_number_is_forgotten_by_a_cluster() {
    let (text, cluster) = (text_that_moves().await, Cluster::shared());
    let url = cluster.url();
    let (store, clock) = never_empty(&url).await;
    // The servers that do not have shard 0 answer with a redirect.
    let known = || cluster.servers.iter().map(|server| server.say(&["HSTRLEN", &key(&url, "s"), "layout"]));
    let numbers = || known().find_map(|length| length.parse::<usize>().ok()).unwrap();
    Producer::new().enqueue(&store, &[after(DAY, locked(&text))]).await;
    store.reshard(4).await.unwrap();
    for length in [15, 15, 13] {
        for _ in 0..3 {
            store.sweep(1_000).await.unwrap();
        }
        assert_eq!(numbers(), length);
        pass_time(&store, &clock, DAY / 2).await;
        drain(&store).await;
    }
}
