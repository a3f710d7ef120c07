//! S15 over a change of shards or placement: concurrency keys and groups hold however old the jobs in an old home are.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use punctual::{
    job::Concurrency,
    store::{
        GroupLimits,
        Placement::{Pinned, Spread},
    },
};

use super::{pinned::turn, *};

pub(super) const DAY: Duration = Duration::from_hours(24);
/// Later than all jobs of these tests are due.
pub(super) const FAR: Duration = Duration::from_hours(24 * 100);

/// A store whose clock the test turns.
pub(super) async fn turned(url: &str) -> (RedisStore, ManualClock) {
    let clock = ManualClock::new(Timestamp::saturating_from_ms(1_800_000_000_000));
    (RedisStore::open(url, Clock::Manual(clock.clone())).await.unwrap(), clock)
}

/// One job of a key that lets one run at once.
pub(super) fn locked(key: &str) -> NewJob {
    NewJob { concurrency: Some(Concurrency { key: key.to_owned(), limit: 1 }), ..job(id(0)) }
}

pub(super) fn of_group(group: &str) -> NewJob {
    NewJob { group: Some(group.to_owned()), ..job(id(0)) }
}

pub(super) fn after(delay: Duration, job: NewJob) -> NewJob {
    NewJob { run_at: When::In(delay), ..job }
}

/// What limits a job.
fn limiter(job: &punctual::JobRecord) -> String {
    let key = job.concurrency.as_ref().map(|concurrency| concurrency.key.clone());
    job.group.clone().or(key).expect("each job here has one")
}

/// Runs all that is due, as much at once as the store lets: how many jobs ran, and how many of one key or group at most at once.
pub(super) async fn run_all(store: &RedisStore) -> (usize, usize) {
    let (instance, mut ran, mut most) = (fastrand::u64(..), 0, 0);
    for number in 1.. {
        let mut running = store.reserve(&want(instance, 2 * number, 100)).await.unwrap().jobs;
        // Nothing was missed: another reserve beside these runs finds no more.
        running.extend(store.reserve(&want(instance, 2 * number + 1, 100)).await.unwrap().jobs);
        let mut at_once = BTreeMap::<String, usize>::new();
        for reserved in &running {
            *at_once.entry(limiter(&reserved.job)).or_default() += 1;
        }
        most = at_once.into_values().fold(most, usize::max);
        ran += running.len();
        if running.is_empty() {
            break;
        }
        let acks: Vec<_> =
            running.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
        store.settle(&acks, None).await.unwrap();
    }
    (ran, most)
}

#[tokio::test]
async fn a_key_with_an_old_job_in_its_old_home_runs_one_job_at_a_time() {
    let (store, clock) = turned(&Server::shared().url()).await;
    let keys: Vec<_> = (0..8).map(|n| format!("key {n}")).collect();
    let mut producer = Producer::new();
    let far: Vec<_> = keys.iter().map(|key| after(90 * DAY, locked(key))).collect();
    producer.enqueue(&store, &far).await;
    store.reshard(8).await.unwrap();
    let new: Vec<_> = keys.iter().map(|key| locked(key)).collect();
    producer.enqueue(&store, &new).await;
    clock.advance(FAR);
    assert_eq!(run_all(&store).await, (16, 1), "jobs that ran, and most of one key at once");
    assert!(is_clean(&store).await);
    // With nothing left in the old home the keys go where the number leads.
    let new: Vec<_> = keys.iter().map(|key| locked(key)).collect();
    let answers = producer.enqueue(&store, &new).await;
    for (key, answer) in keys.iter().zip(&answers) {
        let home = store.get(inserted(answer)).await.unwrap().unwrap().id.shard();
        let again = store.shards().await.unwrap();
        assert!(again.shards[usize::from(home)].is_open, "{key}");
    }
    assert!(1 < answers.iter().map(|answer| inserted(answer).shard()).collect::<BTreeSet<_>>().len());
}

#[tokio::test]
async fn keys_and_groups_hold_over_every_change_of_shards_and_placement() {
    for group_limit in [None, Some(2)] {
        let (store, clock) = turned(&Server::shared().url()).await;
        let most = group_limit.unwrap_or(1);
        let group = GroupLimits { concurrency: Some(2), ..GroupLimits::default() };
        let place = async |placement| {
            let settings = QueueSettings { group, placement, ..QueueSettings::default() };
            store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap();
        };
        place(Spread).await;
        let (mut producer, mut made) = (Producer::new(), 0);
        for change in 0..6_u32 {
            match change {
                1 => drop(store.reshard(8).await.unwrap()),
                2 => drop(store.reshard(3).await.unwrap()),
                3 => place(Pinned).await,
                4 => place(Spread).await,
                5 => drop(store.reshard(1).await.unwrap()),
                _ => {}
            }
            let new: Vec<_> = (0..10)
                .flat_map(|n| [(n, 0), (n, 90 - 15 * change), (n, 90)])
                .map(|(n, days)| {
                    let name = format!("{n}");
                    after(days * DAY, if group_limit.is_some() { of_group(&name) } else { locked(&name) })
                })
                .collect();
            made += producer.enqueue(&store, &new).await.iter().map(inserted).count();
            // All that is due by now runs; what is far stays.
            let (ran, at_once) = run_all(&store).await;
            assert!(at_once <= most, "{at_once} at once in change {change}");
            made -= ran;
        }
        clock.advance(FAR);
        assert_eq!(run_all(&store).await, (made, most), "jobs that ran, and most at once");
        assert!(is_clean(&store).await);
    }
}

#[tokio::test]
async fn a_key_never_runs_twice_while_the_shards_change() {
    const KEYS: usize = 12;
    let url = Server::shared().url();
    let changer = open(&url).await;
    let change = async {
        for shards in [8, 3, 5, 1, 4] {
            changer.reshard(shards).await.unwrap();
            turn(&changer, if shards % 2 == 0 { Pinned } else { Spread }).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    Box::pin(never_twice(&url, |_| fastrand::usize(..KEYS).to_string(), usize::MAX, change)).await;
}

/// Runs two producers and two workers while `change` runs, with jobs of keys that let one job run at once: two of one key never do.
/// `key` returns a job's key, from the number of jobs before it; the producers pause while `waiting_max` jobs wait.
pub(super) async fn never_twice(
    url: &str,
    key: impl Fn(usize) -> String,
    waiting_max: usize,
    change: impl Future<Output = ()>,
) {
    let stores = [open(url).await, open(url).await];
    let workers = [open(url).await, open(url).await];
    let (is_over, running) = (AtomicBool::new(false), Mutex::new(BTreeMap::<String, JobId>::new()));
    let (made, ran) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let over = || is_over.load(Ordering::SeqCst);
    let produce = async |store: &RedisStore| {
        let mut producer = Producer::new();
        while !over() {
            let before = made.load(Ordering::SeqCst);
            if waiting_max <= before - ran.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
                continue;
            }
            let new: Vec<_> = (0..4).map(|_| locked(&key(before))).collect();
            made.fetch_add(4, Ordering::SeqCst);
            assert!(producer.enqueue(store, &new).await.iter().all(Enqueued::is_new));
        }
    };
    let work = async |store: &RedisStore| {
        let instance = fastrand::u64(..);
        for number in 1.. {
            let is_last = over();
            let jobs = store.reserve(&want(instance, number, 8)).await.unwrap().jobs;
            for Reserved { job, .. } in &jobs {
                let other = running.lock().unwrap().insert(limiter(job), job.id);
                assert_eq!(other, None, "{} runs beside it, of one key", job.id);
            }
            if jobs.is_empty() && is_last {
                break;
            }
            tokio::task::yield_now().await;
            // Out of the list before the store hears of it: somebody else may start the next at once.
            for reserved in &jobs {
                running.lock().unwrap().remove(&limiter(&reserved.job));
            }
            let acks: Vec<_> =
                jobs.iter().map(|job| Settlement { lease: job.lease, verdict: Verdict::Ack }).collect();
            store.settle(&acks, None).await.unwrap();
            ran.fetch_add(jobs.len(), Ordering::SeqCst);
        }
    };
    let change = async {
        change.await;
        is_over.store(true, Ordering::SeqCst);
    };
    tokio::join!(produce(&stores[0]), produce(&stores[1]), work(&workers[0]), work(&workers[1]), change);
    // What came in behind the workers' last look.
    let rest = drain(&stores[0]).await.len();
    assert_eq!(ran.into_inner() + rest, made.into_inner());
    assert!(is_clean(&stores[0]).await);
}

/// S3: a call whose jobs went to an old home has its effect once, also when they are long gone.
#[tokio::test]
async fn a_repeated_call_finds_what_it_put_into_an_old_home() {
    let store = open(&Server::shared().url()).await;
    let none = Keep { age_ms: 0, count: 0, bytes: 0 };
    let settings = QueueSettings { done: none, ..QueueSettings::default() };
    store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap();
    let keys: Vec<_> = (0..8).map(|n| format!("key {n}")).collect();
    let mut producer = Producer::new();
    let far: Vec<_> = keys.iter().map(|key| after(DAY, locked(key))).collect();
    producer.enqueue(&store, &far).await;
    store.reshard(8).await.unwrap();
    let new: Vec<_> = keys.iter().map(|key| locked(key)).collect();
    let ids: Vec<_> = producer.enqueue(&store, &new).await.iter().map(inserted).collect();
    assert_eq!(jobs(&store).await[0], 16, "all of them are where their keys are");
    let again: Vec<_> = producer.repeat(&store, &new).await.iter().map(Enqueued::id).collect();
    assert_eq!(again, ids.iter().copied().map(Some).collect::<Vec<_>>());
    assert_eq!(drain(&store).await.len(), 8);
    let gone = producer.repeat(&store, &new).await;
    assert!(
        gone.iter().all(|answer| matches!(answer, Enqueued::Duplicate(Existing { state: None, .. }))),
        "{gone:?}"
    );
    assert_eq!(jobs(&store).await.iter().sum::<u64>(), 8);
}

/// S15, S17: the cap of a queue holds for what follows its key, and does not shut it out.
#[tokio::test]
async fn what_follows_its_key_into_an_old_home_has_room_there() {
    let store = open(&Server::shared().url()).await;
    store.reshard(4).await.unwrap();
    let settings = QueueSettings { max_jobs: Some(20), ..QueueSettings::default() };
    store.queue(QUEUE, &QueueOp::Set(Box::new(settings.clone()))).await.unwrap();
    let (mut producer, mut accepted) = (Producer::new(), 0);
    for n in 0..40 {
        producer.enqueue(&store, &[locked(&(n % 10).to_string())]).await;
        if n == 9 {
            turn(&store, Pinned).await;
        }
        if 10 <= n {
            let answer = producer.enqueue(&store, &[locked(&(n % 10).to_string())]).await;
            accepted += usize::from(answer[0].is_new());
        }
    }
    assert!((1..=80).contains(&accepted), "{accepted}");
    assert!(store.count(Some(QUEUE)).await.unwrap().waiting <= 4 * 20);
    let ran = run_all(&store).await;
    assert_eq!(ran.1, 1);
}

/// S11, S15: a retry doesn't make a key live in two shards.
#[tokio::test]
async fn a_retry_waits_until_its_key_has_left_the_other_shards() {
    let store = open(&Server::shared().url()).await;
    let keys: Vec<_> = (0..8).map(|n| format!("key {n}")).collect();
    let mut producer = Producer::new();
    let new: Vec<_> = keys.iter().map(|key| locked(key)).collect();
    let old: Vec<_> = producer.enqueue(&store, &new).await.iter().map(inserted).collect();
    assert_eq!(drain(&store).await.len(), 8);
    store.reshard(8).await.unwrap();
    let new: Vec<_> = keys.iter().map(|key| locked(key)).collect();
    let ids: Vec<_> = producer.enqueue(&store, &new).await.iter().map(inserted).collect();
    assert!(jobs(&store).await[1..].iter().sum::<u64>() > 0);
    let targets: Vec<Target> = old.iter().map(|id| (*id).into()).collect();
    let acted = store.act(&targets, &Action::Retry).await.unwrap();
    for ((acted, id), old) in acted.iter().zip(&ids).zip(&old) {
        let is_elsewhere = id.shard() != 0;
        let expected =
            if is_elsewhere { Acted::LimiterConflict(*id) } else { Acted::Done(*old, State::Waiting) };
        assert_eq!(*acted, expected);
    }
    assert_eq!(run_all(&store).await.1, 1);
    let acted = store.act(&targets, &Action::Retry).await.unwrap();
    assert!(acted.iter().all(|acted| matches!(acted, Acted::Done(_, State::Waiting))), "{acted:?}");
    assert_eq!(run_all(&store).await, (8, 1));
    assert!(is_clean(&store).await);
}
