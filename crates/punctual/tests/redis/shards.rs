//! A store of several shards, and a change of their number while it is in use.

mod begun;
mod limiters;
mod numbers;
mod pinned;
mod schedule;
mod together;
mod topic;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use punctual::{
    Client, ErrorKind, JobId, NewJob, OnConflict, Payload, State, Timestamp, Unique, When,
    job::{Filter, IdMaker},
    store::{
        Acted, Action, Audit, Batch, CallId, Enqueued, Existing, Keep, List, QueueOp, QueueReply,
        QueueRequest, QueueSettings, Reserve, Reserved, Settled, Settlement, Store, Take, Target, UniqueKey,
        Upcoming, Verdict,
        clock::{Clock, ManualClock},
        redis::RedisStore,
    },
};

use super::{
    drill::{Drill, QUEUE},
    key, open,
    server::{Cluster, Server},
};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

fn id(shard: u16) -> JobId {
    let now = Clock::System.now().as_ms();
    IdMaker::default().make(now, shard, fastrand::u64(..))
}

fn job(id: JobId) -> NewJob {
    NewJob::new(id, "k", QUEUE, Payload::json("1"))
}

fn keyed(key: &str) -> NewJob {
    NewJob { unique: Some(Unique::key(key)), ..job(id(0)) }
}

fn derived(key: &str) -> NewJob {
    job(JobId::derived(QUEUE, None, key))
}

fn unique_key(key: &str) -> UniqueKey {
    UniqueKey {
        kind: Some("k".into()),
        queue: QUEUE.into(),
        group: None,
        concurrency_key: None,
        key: key.into(),
    }
}

fn want(instance: u64, number: u64, n: usize) -> Reserve {
    let queues = vec![QueueRequest { queue: QUEUE.into(), share: n, at_most: n }];
    Reserve { call: CallId { instance, number }, worker: "w".into(), queues, n, lease: None, company: false }
}

/// Makes calls of one producer.
struct Producer {
    instance: u64,
    number: u64,
}

impl Producer {
    fn new() -> Self {
        Self { instance: fastrand::u64(..), number: 0 }
    }

    async fn enqueue(&mut self, store: &RedisStore, jobs: &[NewJob]) -> Vec<Enqueued> {
        self.number += 1;
        self.repeat(store, jobs).await
    }

    /// Makes the last call again.
    async fn repeat(&self, store: &RedisStore, jobs: &[NewJob]) -> Vec<Enqueued> {
        store.enqueue(CallId { instance: self.instance, number: self.number }, jobs).await.unwrap()
    }
}

fn inserted(answer: &Enqueued) -> JobId {
    match answer {
        Enqueued::Inserted { id, .. } => *id,
        other => panic!("not inserted: {other:?}"),
    }
}

/// Reserves until nothing is due, and acks all of it.
async fn drain(store: &RedisStore) -> Vec<JobId> {
    let (instance, mut done) = (fastrand::u64(..), Vec::new());
    for number in 1.. {
        let batch = store.reserve(&want(instance, number, 100)).await.unwrap();
        let ended: Vec<_> = batch
            .jobs
            .iter()
            .map(|reserved| Settlement { lease: reserved.lease, verdict: Verdict::Ack })
            .collect();
        let (settled, _) = store.settle(&ended, None).await.unwrap();
        assert!(settled.iter().all(|settled| *settled == Settled::Settled(State::Done, None)));
        done.extend(batch.jobs.iter().map(|reserved| reserved.job.id));
        // Their ends may let others of their keys start.
        if batch.jobs.is_empty() && !batch.more {
            break;
        }
    }
    done
}

async fn jobs(store: &RedisStore) -> Vec<u64> {
    store.shards().await.unwrap().shards.iter().map(|shard| shard.jobs).collect()
}

async fn is_clean(store: &RedisStore) -> bool {
    let mut audit = Audit::default();
    loop {
        let slice = store.audit(audit.clone()).await.unwrap();
        if !slice.findings.is_empty() {
            println!("{:?}", slice.findings);
            return false;
        }
        match slice.next {
            Some(next) => audit.from = next,
            None => return true,
        }
    }
}

#[tokio::test]
async fn jobs_are_spread_over_all_shards_and_each_runs_once() {
    for url in [Server::shared().url(), Cluster::shared().url()] {
        let store = open(&url).await;
        store.reshard(8).await.unwrap();
        let client = Client::new(store.clone());
        let new: Vec<_> = (0..800).map(|_| job(client.make_id())).collect();
        let ids: BTreeSet<_> = client.push(new).await.unwrap().iter().map(inserted).collect();
        assert_eq!(jobs(&store).await, [100; 8]);
        assert_eq!(store.count(Some(QUEUE)).await.unwrap().waiting, 800);
        let done = drain(&store).await;
        assert_eq!((done.len(), done.into_iter().collect::<BTreeSet<_>>()), (800, ids));
        assert!(is_clean(&store).await);
    }
}

/// S3: receivers know jobs by the store, too, so that it must stay the same one.
#[tokio::test]
async fn a_store_keeps_its_identity_when_its_number_of_shards_changes() {
    for url in [Server::shared().url(), Cluster::shared().url()] {
        let store = open(&url).await;
        let identity = store.identity().await.unwrap();
        for shards in [8, 3, 1] {
            store.reshard(shards).await.unwrap();
            assert_eq!(store.identity().await.unwrap(), identity, "{shards} shards, {url}");
            let other = open(&url).await;
            assert_eq!(other.identity().await.unwrap(), identity, "{shards} shards, opened anew, {url}");
        }
    }
}

#[tokio::test]
async fn an_id_leads_to_its_job_in_whatever_shard() {
    let store = open(&Server::shared().url()).await;
    store.reshard(5).await.unwrap();
    let mut producer = Producer::new();
    let new: Vec<_> = (0..5).map(|shard| job(id(shard))).chain([derived("a"), keyed("b")]).collect();
    let ids: Vec<_> = producer.enqueue(&store, &new).await.iter().map(inserted).collect();
    for id in &ids {
        assert_eq!(store.get(*id).await.unwrap().unwrap().id, *id);
    }
    assert_eq!(store.get(id(4)).await.unwrap(), None);
    assert_eq!(store.get(id(900)).await.unwrap(), None);
    assert_eq!(store.holder(&unique_key("b")).await.unwrap().unwrap().id, ids[6]);
    let targets: Vec<Target> =
        ids[..6].iter().map(|id| (*id).into()).chain([unique_key("b").into(), id(900).into()]).collect();
    let acted = store.act(&targets, &Action::Cancel { reason: None }).await.unwrap();
    let cancelled = ids.iter().map(|id| Acted::Done(*id, State::Cancelled)).chain([Acted::NotFound]);
    assert_eq!(acted, cancelled.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_listing_goes_through_all_shards_and_sums_are_of_all() {
    let store = open(&Server::shared().url()).await;
    store.reshard(4).await.unwrap();
    let later = |shard: u16| NewJob { run_at: When::In(LONG), ..job(id(shard % 4)) };
    let new: Vec<_> = (0..40).map(later).collect();
    let ids: BTreeSet<_> = Producer::new().enqueue(&store, &new).await.iter().map(inserted).collect();
    for limit in [1, 7, 40, 1_000] {
        let mut list = List { filter: Filter::all(), after: None, limit };
        let (mut found, mut pages) = (Vec::new(), 0);
        loop {
            let page = store.list(&list).await.unwrap();
            assert!(page.jobs.len() <= limit && page.total == 40);
            found.extend(page.jobs.iter().map(|job| job.id));
            pages += 1;
            match page.next {
                Some(next) => list.after = Some(next),
                None => break,
            }
        }
        assert!(pages <= 40 / limit + 4, "{limit}: {pages}");
        assert_eq!((found.len(), found.into_iter().collect::<BTreeSet<_>>()), (40, ids.clone()), "{limit}");
    }
    let upcoming = Upcoming { queue: None, bucket: LONG * 2, buckets: 1 };
    assert_eq!(store.upcoming(&upcoming).await.unwrap().buckets, [40]);
    assert_eq!(store.queues(None).await.unwrap(), [QUEUE]);
    let QueueReply::Purged { deleted, more } = store.queue(QUEUE, &QueueOp::Purge(15)).await.unwrap() else {
        panic!("there is such a queue");
    };
    assert_eq!((deleted, more), (15, true));
    assert_eq!(store.count(None).await.unwrap().waiting, 25);
}

#[tokio::test]
async fn a_take_takes_from_all_shards() {
    let store = open(&Server::shared().url()).await;
    store.reshard(4).await.unwrap();
    let new: Vec<_> = (0..8).map(|shard| job(id(shard % 4))).collect();
    Producer::new().enqueue(&store, &new).await;
    let take = |n| Take { queue: QUEUE.into(), n, older_than: Duration::ZERO };
    assert_eq!(store.take(&take(5)).await.unwrap().len(), 5);
    assert_eq!(store.take(&take(5)).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_key_is_held_across_every_change() {
    let url = Server::shared().url();
    let (old, changer) = (open(&url).await, open(&url).await);
    let (mut before, mut after) = (Producer::new(), Producer::new());
    let names: Vec<String> = (0..60).map(|n| format!("key {n}")).collect();
    let first: Vec<NewJob> = names.iter().map(|name| keyed(name)).collect();
    let holders: Vec<_> = before.enqueue(&old, &first).await.iter().map(inserted).collect();
    let ids: Vec<NewJob> = names.iter().map(|name| derived(name)).collect();
    before.enqueue(&old, &ids).await;
    for shards in [8, 3, 1, 8] {
        changer.reshard(shards).await.unwrap();
        // By one that has heard of it, and by one that has not.
        for (producer, store) in [(&mut after, &changer), (&mut before, &old)] {
            let again: Vec<NewJob> = names.iter().map(|name| keyed(name)).collect();
            for (answer, holder) in producer.enqueue(store, &again).await.iter().zip(&holders) {
                let Enqueued::Duplicate(Existing { id, .. }) = answer else { panic!("{shards}: {answer:?}") };
                assert_eq!(id, holder);
            }
            let again = producer.enqueue(store, &ids).await;
            let same = |(answer, job): (&Enqueued, &NewJob)| match answer {
                Enqueued::Duplicate(existing) => existing.id == job.id,
                _ => false,
            };
            assert!(again.iter().zip(&ids).all(same), "{shards}: {again:?}");
        }
        for (name, holder) in names.iter().zip(&holders) {
            assert_eq!(changer.holder(&unique_key(name)).await.unwrap().unwrap().id, *holder);
        }
    }
    let replace =
        NewJob { unique: Some(Unique::key("key 7").on_conflict(OnConflict::Replace)), ..job(id(0)) };
    let replaced = after.enqueue(&changer, std::slice::from_ref(&replace)).await;
    assert!(matches!(replaced[..], [Enqueued::Replaced { id, .. }] if id == holders[7]), "{replaced:?}");
    // Repeated, it replaces nothing more.
    let repeated = after.repeat(&changer, std::slice::from_ref(&replace)).await;
    assert!(matches!(&repeated[..], [Enqueued::Duplicate(it)] if it.version == 2), "{repeated:?}");
    assert_eq!(drain(&changer).await.len(), 120);
    // Done, the ids are remembered where they were, and the keys are free.
    let again = after.enqueue(&changer, &ids).await;
    assert!(again.iter().all(|answer| matches!(answer, Enqueued::Duplicate(_))), "{again:?}");
    let next: Vec<NewJob> = names.iter().map(|name| keyed(name)).collect();
    let freed = after.enqueue(&changer, &next).await;
    assert!(freed.iter().all(|answer| matches!(answer, Enqueued::Inserted { .. })), "{freed:?}");
    assert!(is_clean(&changer).await);
}

#[tokio::test]
async fn a_retry_meets_the_holder_of_its_key_in_another_shard() {
    let store = open(&Server::shared().url()).await;
    let mut producer = Producer::new();
    let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let enqueue = async |producer: &mut Producer| {
        let new: Vec<NewJob> = names.iter().map(|name| keyed(name)).collect();
        producer.enqueue(&store, &new).await.iter().map(inserted).collect::<Vec<_>>()
    };
    let done = enqueue(&mut producer).await;
    assert_eq!(drain(&store).await.len(), 20);
    store.reshard(8).await.unwrap();
    let holders = enqueue(&mut producer).await;
    let targets: Vec<Target> = done.iter().map(|id| (*id).into()).collect();
    let acted = store.act(&targets, &Action::Retry).await.unwrap();
    assert_eq!(acted, holders.into_iter().map(Acted::UniqueConflict).collect::<Vec<_>>());
    assert_eq!(drain(&store).await.len(), 20);
    let acted = store.act(&targets, &Action::Retry).await.unwrap();
    assert!(acted.iter().all(|acted| matches!(acted, Acted::Done(..))), "{acted:?}");
}

#[tokio::test]
async fn a_call_repeated_over_a_change_has_its_effect_once() {
    let url = Server::shared().url();
    let (old, changer) = (open(&url).await, open(&url).await);
    let keeps_nothing = QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() };
    changer.queue(QUEUE, &QueueOp::Set(Box::new(keeps_nothing))).await.unwrap();
    let mut producer = Producer::new();
    // By one that has not heard of the change by then, and by one that has.
    for (shards, store) in [(8, &old), (3, &old), (5, &changer), (2, &changer)] {
        let new: Vec<_> =
            (0..50).map(|n| job(id(n % 8))).chain((0..50).map(|n| keyed(&n.to_string()))).collect();
        producer.enqueue(store, &new).await;
        changer.reshard(shards).await.unwrap();
        // Done and gone, nothing but the call's number tells that they were there.
        assert_eq!(drain(&changer).await.len(), 100);
        let again = producer.repeat(store, &new).await;
        assert!(again.iter().all(|answer| matches!(answer, Enqueued::Duplicate(_))), "{shards}: {again:?}");
        assert_eq!(changer.count(None).await.unwrap().waiting, 0);
    }
}

#[tokio::test]
async fn a_reserve_repeated_over_a_change_answers_the_same_jobs() {
    let url = Server::shared().url();
    let (old, changer) = (open(&url).await, open(&url).await);
    old.reshard(2).await.unwrap();
    let mut total = 0;
    for number in 1..=8 {
        let new: Vec<_> = (0..4).map(|n| job(id(n % 2))).collect();
        Producer::new().enqueue(&old, &new).await;
        let call = want(7, number, 3);
        let first = old.reserve(&call).await.unwrap();
        changer.reshard(2 + number as u16).await.unwrap();
        let again = old.reserve(&call).await.unwrap();
        let leases = |batch: &Batch| batch.jobs.iter().map(|job| job.lease).collect::<Vec<_>>();
        assert_eq!(leases(&again), leases(&first), "{number}");
        total += first.jobs.len();
    }
    assert!(8 <= total, "{total}");
}

#[tokio::test]
async fn an_id_is_the_same_job_under_every_number_of_shards() {
    let store = open(&Server::shared().url()).await;
    let mut producer = Producer::new();
    let keyed_by = |n: u16| NewJob { unique: Some(Unique::key(n.to_string())), ..job(id(n)) };
    let new: Vec<_> = [0, 3, 700, 1_023].into_iter().flat_map(|n| [job(id(n)), keyed_by(n)]).collect();
    for answer in producer.enqueue(&store, &new).await.iter().zip(&new) {
        assert_eq!(inserted(answer.0), answer.1.id, "one shard leaves ids as they are");
    }
    for shards in [8, 2, 6] {
        store.reshard(shards).await.unwrap();
        let again = producer.enqueue(&store, &new).await;
        assert!(again.iter().all(|answer| matches!(answer, Enqueued::Duplicate(_))), "{shards}: {again:?}");
        for job in &new {
            assert_eq!(store.get(job.id).await.unwrap().unwrap().id, job.id);
        }
    }
    let targets: Vec<Target> = new.iter().map(|job| job.id.into()).collect();
    let acted = store.act(&targets, &Action::RunNow).await.unwrap();
    assert!(acted.iter().all(|acted| matches!(acted, Acted::Done(..))), "{acted:?}");
    assert_eq!(drain(&store).await.len(), 8);
}

#[tokio::test]
async fn a_batch_that_one_shard_refuses_leaves_nothing_in_the_others() {
    let store = open(&Server::shared().url()).await;
    store.reshard(4).await.unwrap();
    // Made so late that nobody looks for them where they were before.
    let later = Clock::System.now().as_ms() + 3_600_000;
    let late = |shard| job(IdMaker::default().make(later, shard, fastrand::u64(..)));
    let expired = NewJob { expires_at: Some(When::At(Timestamp::saturating_from_ms(1))), ..late(2) };
    let new: Vec<_> = (0..4).map(late).chain([expired]).collect();
    let refused = store.enqueue(CallId { instance: 1, number: 1 }, &new).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(jobs(&store).await, [0; 4]);
    // The number was not used up.
    Producer { instance: 1, number: 0 }.enqueue(&store, &new[..4]).await;
    assert_eq!(jobs(&store).await, [1; 4]);
}

#[tokio::test]
async fn who_only_takes_hears_of_new_shards() {
    let server = Server::start(&[]);
    let url = server.url();
    let (taker, changer) = (open(&url).await, open(&url).await);
    let take = Take { queue: QUEUE.into(), n: 1, older_than: Duration::ZERO };
    let taken = tokio::spawn(async move {
        loop {
            if let Some(job) = taker.take(&take).await.unwrap().pop() {
                return job.id;
            }
            taker.wait(&[QUEUE.to_owned()], LONG * 10).await.unwrap();
        }
    });
    super::until_blocked(&server, 1).await;
    changer.reshard(4).await.unwrap();
    super::until_blocked(&server, 4).await;
    let new = [job(id(3))];
    Producer::new().enqueue(&changer, &new).await;
    assert_eq!(tokio::time::timeout(LONG, taken).await.expect("nobody notified").unwrap(), new[0].id);
}

/// S9: whoever dies of it takes nobody along.
#[tokio::test]
async fn a_job_on_its_last_chance_has_no_company_from_other_shards() {
    let clock = ManualClock::new(Clock::System.now());
    let url = Server::shared().url();
    let store = RedisStore::open(&url, Clock::Manual(clock.clone())).await.unwrap();
    store.reshard(4).await.unwrap();
    let poison = [job(id(3))];
    Producer::new().enqueue(&store, &poison).await;
    let mut number = 0;
    let mut reserve = async || {
        number += 1;
        store.reserve(&want(1, number, 8)).await.unwrap()
    };
    let mut crashes = 0;
    for _ in 0..40 {
        crashes += reserve().await.jobs.len();
        // Past the lease, and no jump.
        clock.advance(Duration::from_secs(16));
        if crashes == 2 {
            break;
        }
    }
    Producer::new().enqueue(&store, &[job(id(0)), job(id(1))]).await;
    for _ in 0..80 {
        clock.advance(Duration::from_secs(1));
        let batch = reserve().await;
        if batch.jobs.iter().any(|reserved| reserved.job.id == poison[0].id) {
            assert_eq!((batch.jobs.len(), batch.jobs[0].job.expired_leases), (1, 2));
            return;
        }
        let release = |reserved: &Reserved| Settlement { lease: reserved.lease, verdict: Verdict::Release };
        store.settle(&batch.jobs.iter().map(release).collect::<Vec<_>>(), None).await.unwrap();
    }
    panic!("it has no last chance");
}

#[tokio::test]
async fn who_sleeps_hears_of_new_shards() {
    let server = Server::start(&[]);
    let url = server.url();
    let sleepers = [open(&url).await, open(&url).await, open(&url).await];
    let changer = open(&url).await;
    let woken = sleepers.each_ref().map(|store| {
        let store = store.clone();
        tokio::spawn(async move {
            let instance = fastrand::u64(..);
            for number in 1.. {
                let batch = store.reserve(&want(instance, number, 1)).await.unwrap();
                if let [reserved] = &batch.jobs[..] {
                    return reserved.job.id;
                }
                if !batch.more {
                    store.wait(&[QUEUE.to_owned()], LONG * 10).await.unwrap();
                }
            }
            unreachable!("it goes on until there is a job")
        })
    });
    super::until_blocked(&server, 3).await;
    changer.reshard(8).await.unwrap();
    // All of them listen to all shards by then: none of the jobs is in the shard that they knew.
    super::until_blocked(&server, 3 * 8).await;
    let new: Vec<_> = (5..8).map(|shard| job(id(shard))).collect();
    let ids: BTreeSet<_> = Producer::new().enqueue(&changer, &new).await.iter().map(inserted).collect();
    let mut got = BTreeSet::new();
    for sleeper in woken {
        got.insert(tokio::time::timeout(LONG, sleeper).await.expect("nobody notified").unwrap());
    }
    assert_eq!(got, ids);
}

/// Each process that hears of a change passes it on, once: so all hear of it, however many sleep.
#[tokio::test]
async fn each_process_passes_a_change_on() {
    const SLEEPERS: usize = 3;
    let server = Server::start(&[]);
    let url = server.url();
    let mut sleepers = tokio::task::JoinSet::new();
    for _ in 0..SLEEPERS {
        let store = open(&url).await;
        sleepers.spawn(async move {
            loop {
                store.wait(&[QUEUE.to_owned()], LONG * 10).await.unwrap();
            }
        });
    }
    super::until_blocked(&server, SLEEPERS).await;
    let mut monitor = UnixStream::connect(server.socket()).unwrap();
    monitor.set_read_timeout(Some(LONG)).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(monitor).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "+OK");
    // The number of a change that is above all before; the layout stays as it is, so nobody else has a reason to announce one.
    server.say(&["ZADD", &key(&url, "changed"), "1000000", "r"]);
    let announced = tokio::task::spawn_blocking(move || {
        let is_announcement = |line: &String| line.contains("\"ZADD\"") && line.contains(":changed\"");
        lines.map_while(Result::ok).filter(is_announcement).take(1 + SLEEPERS).count()
    });
    assert_eq!(announced.await.unwrap(), 1 + SLEEPERS);
}

#[tokio::test]
async fn a_shard_that_takes_no_jobs_any_more_goes_when_it_is_empty() {
    let store = open(&Server::shared().url()).await;
    let keeps_nothing = QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() };
    store.queue(QUEUE, &QueueOp::Set(Box::new(keeps_nothing))).await.unwrap();
    store.reshard(8).await.unwrap();
    let mut producer = Producer::new();
    let new: Vec<_> = (0..16).map(|shard| job(id(shard % 8))).collect();
    producer.enqueue(&store, &new).await;
    let shards = store.reshard(3).await.unwrap();
    assert_eq!((shards.count, shards.shards.len()), (3, 8));
    assert!(shards.shards.iter().all(|shard| shard.is_open == (shard.number < 3) && shard.jobs == 2));
    // An id of a shard that takes none leads to one that does, and is the same one when it comes again.
    let seventh = [job(id(7))];
    assert_eq!(inserted(&producer.enqueue(&store, &seventh).await[0]), seventh[0].id);
    assert_eq!(store.get(seventh[0].id).await.unwrap().unwrap().id, seventh[0].id);
    let again = producer.enqueue(&store, &[new[7].clone(), seventh[0].clone()]).await;
    assert!(again.iter().all(|answer| matches!(answer, Enqueued::Duplicate(_))), "{again:?}");
    assert_eq!(drain(&store).await.len(), 17);
    assert_eq!(store.shards().await.unwrap().shards.len(), 3);
    // Who still thinks that it is there is told.
    inserted(&producer.enqueue(&store, &[job(id(7))]).await[0]);
    assert_eq!(jobs(&store).await.iter().sum::<u64>(), 1);
    assert_eq!(drain(&store).await.len(), 1);
}

#[tokio::test]
async fn settings_hold_in_every_shard_from_the_first_job_on() {
    let url = Server::shared().url();
    let (old, changer) = (open(&url).await, open(&url).await);
    let settings = QueueSettings { max_jobs: Some(20), ..QueueSettings::default() };
    old.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await.unwrap();
    old.queue(QUEUE, &QueueOp::Pause { by: "ann".into(), reason: "test".into() }).await.unwrap();
    let conflict = changer.reshard(21).await.unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict, "{conflict}");
    changer.reshard(8).await.unwrap();
    let new: Vec<_> = (0..80).map(|shard| job(id(shard % 8))).collect();
    let answers = Producer::new().enqueue(&old, &new).await;
    let mut room = BTreeMap::<u16, u32>::new();
    for answer in answers.iter().filter(|answer| **answer != Enqueued::Full) {
        *room.entry(inserted(answer).shard()).or_default() += 1;
    }
    assert_eq!(room.into_values().collect::<Vec<_>>(), [3, 3, 3, 3, 2, 2, 2, 2]);
    assert_eq!(drain(&changer).await.len(), 0);
    let few = QueueSettings { max_jobs: Some(7), ..QueueSettings::default() };
    let refused = changer.queue(QUEUE, &QueueOp::Set(Box::new(few))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    changer.queue(QUEUE, &QueueOp::Resume).await.unwrap();
    assert_eq!(drain(&old).await.len(), 20);
}

#[tokio::test]
async fn a_change_that_was_cut_short_is_finished_by_whoever_comes() {
    let server = Server::start(&[]);
    let url = server.root_url();
    let (old, prefix) = (open(&url).await, url.rsplit_once("prefix=").unwrap().1);
    old.queue(QUEUE, &QueueOp::Pause { by: "ann".into(), reason: "test".into() }).await.unwrap();
    let queues = [QUEUE.to_owned()];
    let wait = old.wait(&queues, LONG);
    let cut = async {
        super::until_blocked(&server, 1).await;
        // The one write that decides it: epoch 1, four shards, not told to anybody, one shard before.
        let row = r"\0\0\0\1\0\4\0\0\0\0\0\0\0\0\1";
        let script = format!("return redis.call('HSET', KEYS[1], 'layout', \"{row}\")");
        assert_eq!(server.say(&["EVAL", &script, "1", &format!("{prefix}:{{0}}:s")]), "1");
        open(&url).await
    };
    let (waited, come) = tokio::join!(tokio::time::timeout(LONG / 2, wait), cut);
    waited.expect("somebody notifies").unwrap();
    let shards = come.shards().await.unwrap();
    assert_eq!((shards.count, shards.shards.len()), (4, 4));
    Producer::new().enqueue(&old, &(0..8).map(|n| job(id(n % 4))).collect::<Vec<_>>()).await;
    assert_eq!(jobs(&come).await, [2; 4]);
    assert_eq!(drain(&come).await.len(), 0, "the queue is paused in all of them");
}

#[tokio::test]
async fn absurd_numbers_of_shards_are_refused() {
    let store = open(&Server::shared().url()).await;
    for shards in [0, 1_025, u16::MAX] {
        assert_eq!(store.reshard(shards).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    // Nothing is remembered of a store that holds nothing.
    Producer::new().enqueue(&store, &[job(id(0))]).await;
    for n in 2..=17 {
        store.reshard(n).await.unwrap();
    }
    assert_eq!(store.reshard(18).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(store.shards().await.unwrap().count, 17);
}

#[tokio::test]
async fn the_number_changes_under_load() {
    let server = Server::start(&[]);
    let url = server.url();
    let mut drill = Drill::begin("shards 1, 8, 3", &url).await;
    drill.work(2, &url).await;
    drill.produce(3, &url).await;
    let changer = open(&url).await;
    for shards in [8, 3] {
        drill.until_done(300).await;
        changer.reshard(shards).await.unwrap();
    }
    drill.until_done(300).await;
    let figures = drill.rest(2).await;
    assert_eq!(figures.verdict.duplicated.explained, 0);
}

/// A job that its id does not lead to is found by an audit: here since the store was made to forget that it had one shard.
#[tokio::test]
async fn an_audit_finds_what_its_id_does_not_lead_to() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = open(&url).await;
    let new: Vec<_> = (0..40).map(|n| derived(&n.to_string())).collect();
    let ids: Vec<_> = Producer::new().enqueue(&store, &new).await.iter().map(inserted).collect();
    store.reshard(4).await.unwrap();
    assert!(is_clean(&store).await);

    let state = key(&url, "s");
    let mut raw = redis::Client::open(url.clone()).unwrap().get_connection().unwrap();
    let row: Vec<u8> = redis::cmd("HGET").arg(&state).arg("layout").query(&mut raw).unwrap();
    let forgotten = &row[..row.len() - 2];
    let () = redis::cmd("HSET").arg(&state).arg("layout").arg(forgotten).query(&mut raw).unwrap();
    let store = open(&url).await;
    let mut lost = BTreeSet::new();
    for id in &ids {
        if store.get(*id).await.unwrap().is_none() {
            lost.insert(*id);
        }
    }
    assert!(!lost.is_empty() && lost.len() < ids.len());
    for repairs in [false, true] {
        let found = Client::new(store.clone()).audit(repairs, |_| ()).await.unwrap().findings;
        assert!(found.iter().all(|finding| finding.what == "astray" && !finding.repaired), "{found:?}");
        assert_eq!(found.iter().map(|finding| finding.id.unwrap()).collect::<BTreeSet<_>>(), lost);
    }
    // What the finding tells to do.
    store.reshard(1).await.unwrap();
    store.reshard(4).await.unwrap();
    assert!(is_clean(&store).await);
    for id in ids {
        assert!(store.get(id).await.unwrap().is_some());
    }
}
