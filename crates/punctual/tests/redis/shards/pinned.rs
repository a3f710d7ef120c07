//! Queues that are pinned to one shard, and changes of that while jobs come.

use punctual::store::Placement::{self, Pinned, Spread};

use super::*;

/// Sets a queue, and answers why where it may not.
async fn place(store: &RedisStore, settings: QueueSettings) -> Result<(), ErrorKind> {
    let set = QueueOp::Set(Box::new(settings.clone()));
    let QueueReply::Info(info) = store.queue(QUEUE, &set).await.map_err(|error| error.kind())? else {
        panic!("the queue is told");
    };
    assert_eq!(info.settings, settings);
    Ok(())
}

/// Pins the queue, or spreads it again.
pub(super) async fn turn(store: &RedisStore, placement: Placement) {
    place(store, QueueSettings { placement, ..QueueSettings::default() }).await.unwrap();
}

/// The shards that hold jobs.
async fn holding(store: &RedisStore) -> Vec<usize> {
    jobs(store).await.iter().enumerate().filter(|(_, jobs)| 0 < **jobs).map(|(shard, _)| shard).collect()
}

/// Jobs of every sort: with no key, with each sort of key, with an id that stands for an idempotency key.
fn mixed(name: &str) -> Vec<NewJob> {
    let of =
        |group: Option<&str>| NewJob { group: group.map(|group| format!("{group} {name}")), ..keyed(name) };
    vec![
        job(id(fastrand::u16(..8))),
        keyed(&format!("key {name}")),
        derived(&format!("id {name}")),
        of(Some("group")),
        NewJob {
            id: JobId::derived(QUEUE, Some(&format!("own {name}")), "id"),
            ..keyed(&format!("own {name}"))
        },
        // Derived without the key that places it.
        NewJob { id: JobId::derived(QUEUE, None, &format!("odd {name}")), ..keyed(&format!("odd {name}")) },
    ]
}

fn key_of(job: &NewJob) -> Option<UniqueKey> {
    let key = job.unique.as_ref()?.key.clone();
    Some(UniqueKey { group: job.group.clone(), ..unique_key(&key) })
}

/// Whether all of these are known, by these ids.
fn are_known(answers: &[Enqueued], ids: &[JobId]) -> bool {
    answers.len() == ids.len()
        && answers.iter().zip(ids).all(|(answer, id)| match answer {
            Enqueued::Duplicate(existing) => existing.id == *id,
            _ => false,
        })
}

/// Whether the answers to a repeated call name these jobs, which it inserted or met.
fn are_the_same(answers: &[Enqueued], ids: &[JobId]) -> bool {
    answers.len() == ids.len() && answers.iter().zip(ids).all(|(answer, id)| answer.id() == Some(*id))
}

/// S6: of a pinned queue it holds over all shards, groups apart.
#[tokio::test]
async fn a_pinned_queue_lives_in_one_shard_and_comes_in_order() {
    for url in [Server::shared().url(), Cluster::shared().url()] {
        let (old, store) = (open(&url).await, open(&url).await);
        store.reshard(4).await.unwrap();
        turn(&store, Pinned).await;
        let clients = [Client::new(old), Client::new(store.clone())];
        let mut ids = Vec::new();
        for n in 0..30 {
            let client = &clients[n % 2];
            let mut new = mixed(&n.to_string());
            new.push(NewJob { run_at: When::At(Timestamp::saturating_from_ms(1)), ..job(client.make_id()) });
            ids.extend(client.push(new).await.unwrap().iter().map(inserted));
        }
        assert_eq!(holding(&store).await.len(), 1);
        let mut order = Vec::new();
        for id in &ids {
            let job = store.get(*id).await.unwrap().unwrap();
            if job.group.is_none() {
                order.push((job.run_at, *id));
            }
        }
        order.sort_unstable();
        let (mut done, mut taken) = (Vec::new(), Producer::new());
        while done.len() < ids.len() {
            taken.number += 1;
            let batch = store.reserve(&want(taken.instance, taken.number, 1)).await.unwrap();
            done.extend(batch.jobs.iter().map(|reserved| (reserved.job.group.is_none(), reserved.job.id)));
        }
        done.retain(|(has_no_group, _)| *has_no_group);
        assert!(done.into_iter().map(|(_, id)| id).eq(order.into_iter().map(|(_, id)| id)));
        let other = NewJob { queue: "other".into(), ..job(id(0)) };
        let others: Vec<_> = (0..4).map(|n| NewJob { id: id(n), ..other.clone() }).collect();
        Producer::new().enqueue(&store, &others).await;
        assert_eq!(holding(&store).await.len(), 4, "only this one is pinned");
        assert!(is_clean(&store).await);
    }
}

/// S15, S17: a pinned queue has its bounds as a whole.
#[tokio::test]
async fn the_bounds_of_a_pinned_queue_are_not_shared() {
    let store = open(&Server::shared().url()).await;
    store.reshard(4).await.unwrap();
    let with = |placement, max_jobs| {
        let done = Keep { count: 3, ..Keep::SHORT };
        QueueSettings { placement, max_jobs: Some(max_jobs), done, ..QueueSettings::default() }
    };
    assert_eq!(place(&store, with(Spread, 2)).await, Err(ErrorKind::Conflict));
    let mut producer = Producer::new();
    for (max_jobs, shards) in [(2, 4), (7, 8), (7, 3)] {
        place(&store, with(Pinned, max_jobs)).await.unwrap();
        store.reshard(shards).await.unwrap();
        let new: Vec<_> = (0..10).flat_map(|n| mixed(&format!("{max_jobs} {shards} {n}"))).collect();
        let answers = producer.enqueue(&store, &new).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_new()).count() as u64, max_jobs);
        assert!(answers.iter().all(|answer| answer.is_new() || *answer == Enqueued::Full));
        assert_eq!(drain(&store).await.len() as u64, max_jobs);
        while store.sweep(100).await.unwrap().more {}
    }
    place(&store, with(Pinned, 2)).await.unwrap();
    assert_eq!(place(&store, with(Spread, 2)).await, Err(ErrorKind::Conflict));
    place(&store, with(Spread, 3)).await.unwrap();
    let new: Vec<_> = (0..30).map(|n| job(id(n % 3))).collect();
    let answers = producer.enqueue(&store, &new).await;
    let room: BTreeSet<_> =
        answers.iter().filter(|answer| answer.is_new()).map(|it| inserted(it).shard()).collect();
    assert_eq!((answers.iter().filter(|answer| answer.is_new()).count(), room.len()), (3, 3));
}

/// S17: what is kept of a pinned queue is kept where all of it ends.
#[tokio::test]
async fn a_pinned_queue_keeps_all_that_it_may() {
    let store = open(&Server::shared().url()).await;
    store.reshard(4).await.unwrap();
    let done = Keep { count: 8, ..Keep::SHORT };
    let settings = QueueSettings { placement: Pinned, done, ..QueueSettings::default() };
    place(&store, settings).await.unwrap();
    Producer::new().enqueue(&store, &(0..20).map(|n| job(id(n % 4))).collect::<Vec<_>>()).await;
    assert_eq!(drain(&store).await.len(), 20);
    while store.sweep(100).await.unwrap().more {}
    assert_eq!(store.count(Some(QUEUE)).await.unwrap().done, 8);
}

/// S3, S4: whatever was enqueued under one rule is met under the other.
#[tokio::test]
async fn keys_and_ids_hold_from_spread_to_pinned_and_back() {
    let url = Server::shared().url();
    let (old, changer) = (open(&url).await, open(&url).await);
    let (mut before, mut after) = (Producer::new(), Producer::new());
    let mut known: Vec<(NewJob, JobId)> = Vec::new();
    let changes = [
        (1, Spread),
        (1, Pinned),
        (4, Pinned),
        (4, Spread),
        (3, Pinned),
        (8, Pinned),
        (8, Spread),
        (1, Spread),
        (2, Pinned),
    ];
    for (i, (shards, placement)) in changes.into_iter().enumerate() {
        changer.reshard(shards).await.unwrap();
        turn(&changer, placement).await;
        // By one that has not heard of it first.
        for (producer, store) in [(&mut before, &old), (&mut after, &changer)] {
            if !known.is_empty() {
                let (again, ids): (Vec<_>, Vec<_>) = known.iter().cloned().unzip();
                let answers = producer.enqueue(store, &again).await;
                assert!(are_known(&answers, &ids), "{shards} {placement:?}: {answers:?}");
                let again: Vec<_> = again
                    .into_iter()
                    .filter(|job| job.unique.is_some())
                    .map(|job| NewJob { id: id(3), ..job })
                    .collect();
                let answers = producer.enqueue(store, &again).await;
                assert!(answers.iter().all(|it| matches!(it, Enqueued::Duplicate(_))), "{answers:?}");
            }
        }
        for (job, id) in &known {
            assert_eq!(changer.get(*id).await.unwrap().unwrap().id, *id);
            if let Some(key) = key_of(job) {
                assert_eq!(changer.holder(&key).await.unwrap().unwrap().id, *id);
            }
        }
        let new: Vec<_> = (0..6).flat_map(|n| mixed(&format!("{i} {n}"))).collect();
        let (store, producer) = if i % 2 == 0 { (&old, &mut before) } else { (&changer, &mut after) };
        let ids = producer.enqueue(store, &new).await.iter().map(inserted).collect::<Vec<_>>();
        known.extend(new.into_iter().zip(ids));
    }
    // One of each sort by its id, one by its key, whenever they came.
    let ids = known.iter().skip(1).step_by(7).map(|(_, id)| Target::from(*id));
    let keys = known.iter().skip(5).step_by(6).filter_map(|(job, _)| key_of(job)).map(Target::from);
    let (ids, keys): (Vec<_>, Vec<_>) = (ids.collect(), keys.collect());
    for targets in [&ids, &keys] {
        let acted = old.act(targets, &Action::RunNow).await.unwrap();
        assert!(acted.iter().all(|acted| matches!(acted, Acted::Done(..))), "{acted:?}");
    }
    let acted = old.act(&ids, &Action::Cancel { reason: None }).await.unwrap();
    assert!(acted.iter().all(|acted| matches!(acted, Acted::Done(_, State::Cancelled))), "{acted:?}");
    assert_eq!(drain(&old).await.len(), known.len() - ids.len());
    // Done, the ids are remembered wherever they were.
    let (again, ids): (Vec<_>, Vec<_>) = known.into_iter().filter(|(job, _)| job.id.is_derived()).unzip();
    let answers = before.enqueue(&old, &again).await;
    assert!(are_known(&answers, &ids), "{answers:?}");
    assert!(is_clean(&changer).await);
}

/// S3, S4: at every instant of a change.
#[tokio::test]
async fn nothing_gets_in_twice_while_a_queue_is_pinned_and_spread() {
    let url = Server::shared().url();
    let stores = [open(&url).await, open(&url).await];
    let changer = open(&url).await;
    changer.reshard(4).await.unwrap();
    let (is_over, round) = (std::sync::atomic::AtomicBool::new(false), tokio::sync::Barrier::new(2));
    let over = || is_over.load(std::sync::atomic::Ordering::SeqCst);
    let (rounds, _) = tokio::sync::watch::channel(0);
    let is_last = std::sync::atomic::AtomicBool::new(false);
    let enqueue = async |store: &RedisStore| {
        let (mut producer, mut ids) = (Producer::new(), Vec::new());
        for n in 0.. {
            // Both stop at the same round: one of them says which.
            if round.wait().await.is_leader() {
                is_last.store(over(), std::sync::atomic::Ordering::SeqCst);
                rounds.send_modify(|rounds| *rounds += 1);
            }
            round.wait().await;
            if is_last.load(std::sync::atomic::Ordering::SeqCst) {
                break;
            }
            let new: Vec<_> = mixed(&n.to_string()).into_iter().skip(1).collect();
            let answers = producer.enqueue(store, &new).await;
            assert!(are_the_same(&producer.repeat(store, &new).await, &ids_of(&answers)));
            ids.push(answers);
        }
        ids
    };
    // Each change is met by some, however long they take.
    let some_rounds = async || {
        let now = *rounds.borrow();
        drop(rounds.subscribe().wait_for(|rounds| now + 2 <= *rounds).await.unwrap());
    };
    let change = async {
        for (n, shards) in [4, 4, 6, 6, 3, 3, 4, 4].into_iter().enumerate() {
            turn(&changer, [Pinned, Spread][n % 2]).await;
            some_rounds().await;
            changer.reshard(shards).await.unwrap();
            some_rounds().await;
        }
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
    };
    let (one, other, ()) = tokio::join!(enqueue(&stores[0]), enqueue(&stores[1]), change);
    let (mut all, rounds) = (BTreeSet::new(), one.len());
    for (one, other) in one.into_iter().zip(other) {
        assert_eq!(ids_of(&one), ids_of(&other));
        let new = one.iter().zip(&other).map(|(one, other)| (one.is_new(), other.is_new()));
        assert!(new.clone().all(|(one, other)| one != other), "{one:?} {other:?}");
        all.extend(ids_of(&one));
    }
    assert_eq!((all.len(), drain(&changer).await.into_iter().collect()), (rounds * 5, all));
    assert!(is_clean(&changer).await);
}

fn ids_of(answers: &[Enqueued]) -> Vec<JobId> {
    answers.iter().map(|answer| answer.id().expect("there is room")).collect()
}

/// S3: of a call that is repeated over a change, also where nothing but its number tells that the jobs were there.
#[tokio::test]
async fn a_call_repeated_over_a_change_of_its_queue_has_its_effect_once() {
    let url = Server::shared().url();
    let (old, changer) = (open(&url).await, open(&url).await);
    changer.reshard(4).await.unwrap();
    let settings = |placement| QueueSettings { placement, done: Keep::NOTHING, ..QueueSettings::default() };
    place(&changer, settings(Spread)).await.unwrap();
    let mut producer = Producer::new();
    for (placement, store) in [(Pinned, &old), (Spread, &old), (Pinned, &changer)] {
        let new: Vec<_> =
            (0..50).map(|n| job(id(n % 8))).chain((0..50).map(|n| keyed(&n.to_string()))).collect();
        producer.enqueue(store, &new).await;
        place(&changer, settings(placement)).await.unwrap();
        assert_eq!(drain(&changer).await.len(), 100);
        let again = producer.repeat(store, &new).await;
        assert!(again.iter().all(|answer| matches!(answer, Enqueued::Duplicate(_))), "{again:?}");
        assert_eq!(changer.count(None).await.unwrap().waiting, 0);
    }
}

/// S11: in the other shard that its queue has put it into.
#[tokio::test]
async fn a_retry_meets_who_took_its_key_in_a_pinned_queue() {
    let store = open(&Server::shared().url()).await;
    store.reshard(4).await.unwrap();
    let new: Vec<NewJob> = (0..20).map(|n| keyed(&n.to_string())).collect();
    let mut producer = Producer::new();
    let done = ids_of(&producer.enqueue(&store, &new).await);
    assert_eq!(drain(&store).await.len(), 20);
    turn(&store, Pinned).await;
    let again: Vec<NewJob> = (0..20).map(|n| keyed(&n.to_string())).collect();
    let holders = producer.enqueue(&store, &again).await.iter().map(inserted).collect::<Vec<_>>();
    let targets: Vec<Target> = done.iter().map(|id| (*id).into()).collect();
    let acted = store.act(&targets, &Action::Retry).await.unwrap();
    assert_eq!(acted, holders.into_iter().map(Acted::UniqueConflict).collect::<Vec<_>>());
}

/// Whoever changes a queue sets it, then decides the layout, then tells it: who comes goes on from there.
#[tokio::test]
async fn a_pin_that_was_cut_short_is_finished_by_whoever_comes() {
    for is_decided in [false, true] {
        let server = Server::start(&[]);
        let url = server.root_url();
        let (old, changer) = (open(&url).await, open(&url).await);
        let prefix = url.rsplit_once("prefix=").unwrap().1;
        let eval = |script: &str, shard: u16| {
            assert_eq!(server.say(&["EVAL", script, "1", &format!("{prefix}:{{{shard}}}:s")]), "1");
        };
        changer.reshard(4).await.unwrap();
        Producer::new().enqueue(&old, &[job(id(0))]).await;
        eval("redis.call('HSET', KEYS[1], 'old', redis.call('HGET', KEYS[1], 'layout')) return 1", 0);
        turn(&changer, Pinned).await;
        // What was done after the cut, undone.
        let untold = "local row = redis.call('HGET', KEYS[1], 'turn') \
                      redis.call('HSET', KEYS[1], 'turn', row:sub(1, 28) .. '\\0\\0\\0\\0' .. row:sub(33)) return 1";
        (0..4).for_each(|shard| eval(untold, shard));
        let back = if is_decided {
            "local row = redis.call('HGET', KEYS[1], 'layout') \
             redis.call('HSET', KEYS[1], 'layout', row:sub(1, 6) .. '\\0' .. row:sub(8)) return 1"
        } else {
            "redis.call('HSET', KEYS[1], 'layout', redis.call('HGET', KEYS[1], 'old')) \
             return redis.call('HDEL', KEYS[1], 'pins')"
        };
        eval(back, 0);
        let come = open(&url).await;
        let QueueReply::Info(info) = come.queue(QUEUE, &QueueOp::Show).await.unwrap() else {
            panic!("there is such a queue");
        };
        assert_eq!(info.settings.placement, Pinned);
        assert_eq!(drain(&come).await.len(), 1);
        let before = jobs(&come).await;
        Producer::new().enqueue(&old, &(0..40).map(|n| job(id(n % 4))).collect::<Vec<_>>()).await;
        let after = jobs(&come).await;
        let grown = before.iter().zip(&after).filter(|(before, after)| before < after).count();
        assert_eq!(grown, 1, "{is_decided}: {before:?} {after:?}");
    }
}

/// S4: a job with an id and a unique key does not replace itself, though it has another id in the pinned queue.
#[tokio::test]
async fn a_job_of_a_pinned_queue_does_not_meet_itself() {
    let store = open(&Server::shared().url()).await;
    store.reshard(8).await.unwrap();
    turn(&store, Placement::Pinned).await;
    let mut producer = Producer::new();
    let new: Vec<NewJob> = (0..60)
        .map(|n| NewJob {
            unique: Some(Unique::key(format!("key {n}")).on_conflict(OnConflict::Replace)),
            ..derived(&format!("id {n}"))
        })
        .collect();
    let ids: Vec<_> = producer.enqueue(&store, &new).await.iter().map(inserted).collect();
    assert!(are_the_same(&producer.repeat(&store, &new).await, &ids));
    let answers = producer.enqueue(&store, &new).await;
    assert!(are_known(&answers, &ids), "{answers:?}");
}
