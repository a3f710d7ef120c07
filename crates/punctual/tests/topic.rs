//! Topics on every store, with a clock that is turned by hand: each subscription gets its own job of each publication, once. Across
//! processes that die they are drilled by `punctual-chaos topics`.

#![cfg(all(feature = "derive", feature = "testing"))]
#![deny(dead_code)]
#![expect(clippy::unwrap_used, reason = "cases are tests; clippy takes only functions with #[test] for such")]

#[cfg(feature = "redis")]
#[path = "support/redis.rs"]
mod server;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use punctual::{
    Backoff, Client, Ctx, ErrorKind, Job, JobId, JobRecord, NewJob, Outcome, Payload, Priority, State,
    Timestamp, Unique, Worker,
    client::Cancelled,
    job::Filter,
    store::{
        Acted, CallId, DocOp, Enqueued, List, Placement, Precondition, QueueRequest, QueueSettings, Reserve,
        Store, memory::MemoryStore,
    },
    testing::{Clock, Fault, FaultyStore, ManualClock, TestQueue, pass_time},
    topic::TOPICS_QUEUE,
    worker::WorkReport,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
/// Past the lease of a worker that is not heard of.
const LAPSE: Duration = Duration::from_secs(16);
/// The queues that are subscribed unless a case says otherwise.
const QUEUES: [&str; 3] = ["invoices", "parcels", "reports"];
/// Each of them has had one.
const ONE_EACH: &str = "invoices parcels reports";

#[derive(Clone, Debug, PartialEq, Job, Serialize, Deserialize)]
#[job(kind = "order.paid", backoff = "fixed 10s", max_attempts = 2)]
struct Paid {
    order: u32,
}

/// A store, and where its jobs ran.
struct Rig {
    client: Client,
    clock: ManualClock,
    ran: Arc<Mutex<Vec<String>>>,
    /// Drains workers of any store.
    drains: TestQueue,
    _folder: Option<tempfile::TempDir>,
}

fn clock() -> ManualClock {
    ManualClock::new(Timestamp::saturating_from_ms(1_800_000_000_000))
}

async fn memory() -> Rig {
    let clock = clock();
    Rig::new(Arc::new(MemoryStore::new(Clock::Manual(clock.clone()))), clock, None)
}

#[cfg(feature = "sqlite")]
async fn sqlite() -> Rig {
    use punctual::store::sqlite::{SqliteOptions, SqliteStore};
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.path().join("jobs.db"), options).unwrap();
    Rig::new(Arc::new(store), clock, Some(folder))
}

#[cfg(feature = "redis")]
async fn redis() -> Rig {
    on_redis(&server::Server::shared().url()).await
}

#[cfg(feature = "redis")]
async fn redis_cluster() -> Rig {
    on_redis(&server::Cluster::shared().url()).await
}

#[cfg(feature = "redis")]
async fn on_redis(url: &str) -> Rig {
    use punctual::store::redis::RedisStore;
    let clock = clock();
    let store = RedisStore::open(url, Clock::Manual(clock.clone())).await.unwrap();
    Rig::new(Arc::new(store), clock, None)
}

impl Rig {
    fn new(store: Arc<dyn Store>, clock: ManualClock, folder: Option<tempfile::TempDir>) -> Self {
        let drains = TestQueue::new();
        Self { client: Client::new(store), clock, ran: Arc::default(), drains, _folder: folder }
    }

    async fn subscribe(&self, queues: &[&str]) {
        for queue in queues {
            assert!(self.client.topic("orders").subscribe(queue).await.unwrap());
        }
    }

    async fn publish(&self, order: u32) -> JobId {
        inserted(self.client.topic("orders").publish(Paid { order }).await.unwrap())
    }

    /// A worker that serves all queues here, and notes where its jobs ran.
    fn worker(&self) -> Worker {
        let ran = Arc::clone(&self.ran);
        let mut worker = Worker::new(&self.client);
        for queue in QUEUES {
            worker = worker.queue(queue);
        }
        worker.handle(move |_: Paid, ctx: Ctx| {
            ran.lock().unwrap().push(ctx.queue().to_owned());
            std::future::ready(())
        })
    }

    async fn drain(&self) -> WorkReport {
        self.drains.drain(self.worker()).await.unwrap()
    }

    /// Drains, and answers where jobs ran.
    async fn runs(&self) -> String {
        self.drain().await;
        let mut ran = std::mem::take(&mut *self.ran.lock().unwrap());
        ran.sort_unstable();
        ran.join(" ")
    }

    async fn jobs(&self, filter: &str) -> Vec<JobRecord> {
        let mut list = List { filter: Filter::parse(filter).unwrap(), after: None, limit: 1_000 };
        let mut jobs = Vec::new();
        loop {
            let page = self.client.list(&list).await.unwrap();
            jobs.extend(page.jobs);
            match page.next {
                Some(next) => list.after = Some(next),
                None => return jobs,
            }
        }
    }

    /// Lets a queue have at most so many jobs.
    async fn cap(&self, queue: &str, max_jobs: Option<u64>) {
        let settings = QueueSettings { max_jobs, ..QueueSettings::default() };
        self.client.queue(queue).set(settings).await.unwrap();
    }

    async fn get(&self, id: JobId) -> JobRecord {
        self.client.get(id).await.unwrap().unwrap()
    }

    /// A worker that reserves a publication, and is not heard of again.
    async fn reserve(&self, number: u64) {
        assert_eq!(self.look(number).await, 1);
    }

    async fn look(&self, number: u64) -> usize {
        let reserve = Reserve {
            call: CallId { instance: 1, number },
            worker: "another".to_owned(),
            queues: vec![QueueRequest { queue: TOPICS_QUEUE.to_owned(), share: 1, at_most: 1 }],
            n: 1,
            lease: None,
            company: false,
        };
        self.client.store().reserve(&reserve).await.unwrap().jobs.len()
    }
}

fn inserted(answer: Enqueued) -> JobId {
    match answer {
        Enqueued::Inserted { id, .. } => id,
        other => panic!("not inserted: {other:?}"),
    }
}

macro_rules! on_every_store {
    ($($(#[$attr:meta])* $store:ident),+ => $cases:tt) => {
        $( $(#[$attr])* mod $store { on_every_store!(@cases $store $cases); } )+
    };
    (@cases $store:ident [ $($case:ident),+ $(,)? ]) => {
        $(
            #[tokio::test]
            async fn $case() {
                super::$case(super::$store().await).await;
            }
        )+
    };
}

on_every_store!(
    memory,
    #[cfg(feature = "sqlite")] sqlite,
    #[cfg(feature = "redis")] redis,
    #[cfg(feature = "redis")] redis_cluster => [
    each_subscription_gets_a_job_of_its_own,
    a_publication_waits_for_its_time,
    a_publication_is_cancelled_before_it_is_due,
    a_publication_is_put_off_and_brought_forward,
    who_is_subscribed_when_it_is_due_counts,
    what_nobody_is_subscribed_to_is_done,
    a_publication_that_comes_back_is_handed_out_once,
    a_worker_that_died_in_the_midst_made_no_job_twice,
    a_queue_without_room_gets_its_job_later,
    each_subscription_has_its_own_retries_and_dead_jobs,
    jobs_have_what_was_chosen,
    what_was_left_open_comes_from_each_queue,
    a_unique_key_is_held_in_each_queue,
    an_idempotency_key_is_one_of_its_topic,
    an_idempotency_key_may_come_again_after_it_was_forgotten,
    a_publication_expires,
    names_are_reserved,
    topics_are_told_and_removed,
    publications_are_paused,
]);

async fn each_subscription_gets_a_job_of_its_own(t: Rig) {
    t.subscribe(&QUEUES).await;
    let id = t.publish(7).await;
    let report = t.drain().await;
    assert_eq!((report.done, report.publications), (3, 1));
    let jobs = t.jobs("state:done kind:order.paid -queue:$topics").await;
    assert_eq!(jobs.len(), 3);
    for job in &jobs {
        assert_eq!(job.payload, Paid { order: 7 }.encode().unwrap());
        let told = (job.headers["topic"].as_str(), job.headers["publication"].as_str());
        assert_eq!((told, job.headers.len()), (("orders", id.to_string().as_str()), 2));
    }
    let publication = t.get(id).await;
    assert_eq!((publication.queue.as_str(), publication.state), (TOPICS_QUEUE, State::Done));
    assert_eq!(t.runs().await, ONE_EACH);
    assert_eq!(t.runs().await, "");
}

async fn a_publication_waits_for_its_time(t: Rig) {
    t.subscribe(&QUEUES).await;
    t.client.topic("orders").publish(Paid { order: 7 }).delay(Duration::from_millis(60_001)).await.unwrap();
    t.clock.advance(MINUTE);
    assert_eq!(t.runs().await, "");
    assert_eq!(t.client.count(Some(TOPICS_QUEUE)).await.unwrap().waiting, 1);
    t.clock.advance(Duration::from_millis(1));
    assert_eq!(t.runs().await, ONE_EACH);
}

async fn a_publication_is_cancelled_before_it_is_due(t: Rig) {
    t.subscribe(&QUEUES).await;
    let answer = t.client.topic("orders").publish(Paid { order: 7 }).delay(HOUR).await.unwrap();
    assert_eq!(t.client.cancel(inserted(answer)).await.unwrap(), Cancelled::Done);
    t.clock.advance(2 * HOUR);
    assert_eq!(t.runs().await, "");
    assert_eq!(t.jobs("").await.len(), 1);
}

async fn a_publication_is_put_off_and_brought_forward(t: Rig) {
    t.subscribe(&QUEUES).await;
    let id = inserted(t.client.topic("orders").publish(Paid { order: 7 }).delay(HOUR).await.unwrap());
    t.client.reschedule(id, 3 * HOUR).await.unwrap();
    t.client.edit(id, Paid { order: 8 }.encode().unwrap()).await.unwrap();
    t.client.reprioritise(id, Priority::High).await.unwrap();
    t.clock.advance(2 * HOUR);
    assert_eq!(t.runs().await, "");
    assert_eq!(t.client.run_now(id).await.unwrap(), Acted::Done(id, State::Waiting));
    assert_eq!(t.runs().await, ONE_EACH);
    for job in t.jobs("state:done -queue:$topics").await {
        assert_eq!((job.payload, job.priority), (Paid { order: 8 }.encode().unwrap(), Priority::High));
    }
}

async fn who_is_subscribed_when_it_is_due_counts(t: Rig) {
    t.subscribe(&QUEUES[..2]).await;
    let topic = t.client.topic("orders");
    topic.publish(Paid { order: 7 }).delay(HOUR).await.unwrap();
    assert!(topic.subscribe(QUEUES[2]).await.unwrap());
    assert!(!topic.subscribe(QUEUES[2]).await.unwrap());
    assert!(topic.unsubscribe(QUEUES[0]).await.unwrap());
    assert!(!topic.unsubscribe(QUEUES[0]).await.unwrap());
    assert_eq!(topic.subscriptions().await.unwrap(), QUEUES[1..]);
    t.clock.advance(HOUR);
    assert_eq!(t.runs().await, "parcels reports");
}

async fn what_nobody_is_subscribed_to_is_done(t: Rig) {
    t.subscribe(&QUEUES[..1]).await;
    t.client.topic("orders").unsubscribe(QUEUES[0]).await.unwrap();
    let ids =
        [t.publish(1).await, inserted(t.client.topic("nope").publish(Paid { order: 2 }).await.unwrap())];
    assert_eq!(t.drain().await.publications, 2);
    for id in ids {
        assert_eq!(t.get(id).await.state, State::Done);
    }
    assert_eq!(t.jobs("").await.len(), 2);
}

/// A worker that dies between the last job and the end of the publication, and again; then somebody retries it by hand.
async fn a_publication_that_comes_back_is_handed_out_once(t: Rig) {
    t.subscribe(&QUEUES).await;
    let id = t.publish(7).await;
    for _ in 0..2 {
        let never_settled = FaultyStore::new(Arc::clone(t.client.store()), |verb| match verb {
            "settle" => Fault::Before,
            _ => Fault::Pass,
        });
        let dying = Worker::new(&Client::new(Arc::new(never_settled))).handle(async |_: Paid, _: Ctx| ());
        assert_eq!(t.drains.drain(dying).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(t.jobs("state:waiting").await.len(), 3);
        pass_time(&**t.client.store(), &t.clock, LAPSE).await;
        assert_eq!(t.get(id).await.state, State::Running);
    }
    while !t.get(id).await.state.is_ended() {
        t.drain().await;
        pass_time(&**t.client.store(), &t.clock, LAPSE).await;
    }
    assert_eq!(t.get(id).await.state, State::Done);
    assert_eq!(t.get(id).await.failures.len(), 2);
    assert_eq!(t.runs().await, ONE_EACH);
    assert_eq!(t.client.retry(id).await.unwrap(), Acted::Done(id, State::Waiting));
    assert_eq!(t.runs().await, "");
    assert_eq!(t.get(id).await.state, State::Done);
}

/// Jobs this large are enqueued one by one; the worker is gone after the second.
async fn a_worker_that_died_in_the_midst_made_no_job_twice(t: Rig) {
    t.subscribe(&QUEUES).await;
    let large = Payload::json(format!("{{\"order\":7,\"of\":\"{}\"}}", "x".repeat(700_000)));
    let job = NewJob::new(t.client.make_id(), Paid::KIND, "any", large);
    t.client.topic("orders").push(vec![job]).await.unwrap();
    let (second, mut enqueued) = (Arc::new(Notify::new()), 0);
    let seen = Arc::clone(&second);
    let stalling = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
        enqueued += i32::from(verb == "enqueue");
        if verb != "enqueue" || enqueued < 2 {
            return Fault::Pass;
        }
        seen.notify_one();
        Fault::Delay(HOUR)
    });
    let dying = Worker::new(&Client::new(Arc::new(stalling))).handle(async |_: Paid, _: Ctx| ());
    tokio::select! {
        report = t.drains.drain(dying) => panic!("it ended: {report:?}"),
        () = async {
            second.notified().await;
            while t.jobs("state:waiting").await.len() < 2 {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    pass_time(&**t.client.store(), &t.clock, LAPSE).await;
    assert_eq!(t.runs().await, ONE_EACH);
    assert_eq!(t.runs().await, "");
}

async fn a_queue_without_room_gets_its_job_later(t: Rig) {
    t.subscribe(&QUEUES).await;
    t.cap("parcels", Some(0)).await;
    let id = t.publish(7).await;
    assert_eq!(t.runs().await, "invoices reports");
    let publication = t.get(id).await;
    assert_eq!((publication.state, publication.attempt), (State::Waiting, 2));
    assert_eq!(publication.failures[0].error, "no room in 1 of the 3 subscribed queues: \"parcels\"");
    // Until it is given up: it must not go on for longer than it is known who has had it.
    for _ in 2..=9 {
        t.clock.advance(6 * HOUR);
        assert_eq!(t.runs().await, "");
    }
    let publication = t.get(id).await;
    assert_eq!(publication.state, State::Dead);
    assert!(
        publication.failures.last().unwrap().error.starts_with("it was begun to be handed out a day ago")
    );
    // What becomes of a publication that somebody retries is their business.
    t.cap("parcels", None).await;
    t.client.retry(id).await.unwrap();
    assert!(t.runs().await.contains("parcels"));
}

async fn each_subscription_has_its_own_retries_and_dead_jobs(t: Rig) {
    t.subscribe(&QUEUES).await;
    let id = t.publish(7).await;
    let worker = || {
        let worker = QUEUES.iter().fold(Worker::new(&t.client), |worker, queue| worker.queue(*queue));
        worker.handle(async |_: Paid, ctx: Ctx| match (ctx.queue(), ctx.attempt()) {
            ("parcels", _) | ("reports", 1) => Outcome::retry("no"),
            _ => Outcome::Done,
        })
    };
    assert_eq!(t.drains.drain(worker()).await.unwrap().done, 1);
    t.clock.advance(10 * SECOND);
    let report = t.drains.drain(worker()).await.unwrap();
    assert_eq!((report.done, report.dead), (1, 1));
    let dead = t.jobs("state:dead").await;
    assert_eq!((dead.len(), dead[0].queue.as_str()), (1, "parcels"));
    assert_eq!(t.get(id).await.state, State::Done);
}

async fn jobs_have_what_was_chosen(t: Rig) {
    t.subscribe(&QUEUES[..1]).await;
    let publish = t.client.topic("orders").publish(Paid { order: 7 });
    let publish = publish.group("acme").concurrency_key("printer").concurrency_limit(2);
    let publish = publish.priority(Priority::High).max_attempts(7).backoff(Backoff::fixed(SECOND));
    let publish = publish.timeout(MINUTE).lease(2 * MINUTE).expires_in(HOUR).tag("vip").header("trace", "1");
    let publication = t.get(inserted(publish.delay(MINUTE).await.unwrap())).await;
    assert_eq!((publication.priority, publication.max_attempts), (Priority::High, 9));
    t.clock.advance(MINUTE);
    t.drains.drain(Worker::new(&t.client).handle(async |_: Paid, _: Ctx| ())).await.unwrap();
    let job = t.jobs("state:waiting").await.remove(0);
    assert_eq!((job.group.as_deref(), job.concurrency.unwrap().limit), (Some("acme"), 2));
    assert_eq!((job.priority, job.max_attempts, job.backoff), (Priority::High, 7, Backoff::fixed(SECOND)));
    assert_eq!((job.timeout, job.lease), (MINUTE, Some(2 * MINUTE)));
    assert_eq!((job.run_at, job.expires_at), (publication.run_at, publication.expires_at));
    assert_eq!((job.tags, job.headers["trace"].as_str()), (vec!["vip".to_owned()], "1"));
}

async fn what_was_left_open_comes_from_each_queue(t: Rig) {
    t.subscribe(&QUEUES[..2]).await;
    let mut settings = QueueSettings::default();
    (settings.defaults.max_attempts, settings.defaults.priority) = (Some(5), Some(Priority::Low));
    t.client.queue(QUEUES[0]).set(settings).await.unwrap();
    let job = NewJob::new(t.client.make_id(), "other", "any", Payload::json("1"));
    t.client.topic("orders").push(vec![job]).await.unwrap();
    t.drains.drain(Worker::new(&t.client).handle(async |_: Paid, _: Ctx| ())).await.unwrap();
    let mut jobs = t.jobs("state:waiting").await;
    jobs.sort_by(|a, b| a.queue.cmp(&b.queue));
    let chosen: Vec<_> = jobs.iter().map(|job| (job.max_attempts, job.priority)).collect();
    assert_eq!(chosen, [(5, Priority::Low), (20, Priority::Normal)]);
}

async fn a_unique_key_is_held_in_each_queue(t: Rig) {
    t.subscribe(&QUEUES).await;
    for order in [7, 8] {
        let unique = Unique::key("latest").until_start();
        inserted(t.client.topic("orders").publish(Paid { order }).unique(unique).await.unwrap());
        t.drains.drain(Worker::new(&t.client).handle(async |_: Paid, _: Ctx| ())).await.unwrap();
    }
    assert_eq!(t.runs().await, ONE_EACH);
}

async fn an_idempotency_key_is_one_of_its_topic(t: Rig) {
    t.subscribe(&QUEUES).await;
    let publish = async |topic: &str| {
        let topic = t.client.topic(topic);
        topic.publish(Paid { order: 7 }).group("acme").idempotency_key("order 7").await.unwrap()
    };
    let id = inserted(publish("orders").await);
    assert_eq!(publish("orders").await.id(), Some(id));
    assert!(!publish("orders").await.is_new());
    assert!(publish("parcels").await.is_new());
    let job =
        NewJob { group: Some("acme".to_owned()), ..NewJob::new(id, "order.paid", "any", Payload::json("1")) };
    let topic = t.client.topic("orders");
    let known = topic.derived_id(&job, "order 7").unwrap();
    assert!(!topic.push(vec![NewJob { id: known, ..job }]).await.unwrap()[0].is_new());
    assert_eq!(t.runs().await, ONE_EACH);
}

/// Its publication has the same id again, and its jobs are others all the same: those of before, which ended later, may be known.
async fn an_idempotency_key_may_come_again_after_it_was_forgotten(t: Rig) {
    t.subscribe(&QUEUES).await;
    let publish = async || {
        let publish = t.client.topic("orders").publish(Paid { order: 7 });
        assert!(publish.idempotency_key("daily").await.unwrap().is_new());
    };
    publish().await;
    t.drains.drain(Worker::new(&t.client).handle(async |_: Paid, _: Ctx| ())).await.unwrap();
    pass_time(&**t.client.store(), &t.clock, 25 * HOUR).await;
    assert_eq!(t.runs().await, ONE_EACH);
    // Until the record is gone.
    while t.client.store().sweep(1_000).await.unwrap().more {}
    t.clock.advance(24 * HOUR);
    publish().await;
    assert_eq!(t.runs().await, ONE_EACH);
}

async fn a_publication_expires(t: Rig) {
    t.subscribe(&QUEUES).await;
    let publish = t.client.topic("orders").publish(Paid { order: 7 }).expires_in(HOUR);
    let id = inserted(publish.await.unwrap());
    t.clock.advance(2 * HOUR);
    assert_eq!(t.runs().await, "");
    assert_eq!(t.get(id).await.reason.as_deref(), Some("expired"));
}

async fn names_are_reserved(t: Rig) {
    let refused = t.client.enqueue(Paid { order: 7 }).queue(TOPICS_QUEUE).await.unwrap_err();
    assert_eq!((refused.kind(), refused.hint()), (ErrorKind::Invalid, Some("publish to a topic instead")));
    let other = t.client.enqueue(Paid { order: 7 }).queue("$other").header("topic", "orders");
    assert_eq!(other.await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(t.client.queue("$other").pause("me", "").await.unwrap_err().kind(), ErrorKind::Invalid);
    let topic = t.client.topic("orders");
    for queue in [TOPICS_QUEUE, "$other", "", "a\nb"] {
        assert_eq!(topic.subscribe(queue).await.unwrap_err().kind(), ErrorKind::Invalid, "{queue:?}");
    }
    for name in ["", "a\nb", &"n".repeat(201)] {
        let topic = t.client.topic(name);
        assert_eq!(topic.subscribe("q").await.unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
        let publish = topic.publish(Paid { order: 7 }).await;
        assert_eq!(publish.unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
    }
    for header in ["topic", "publication", "topic_job"] {
        let publish = topic.publish(Paid { order: 7 }).header(header, "x").await;
        assert_eq!(publish.unwrap_err().kind(), ErrorKind::Invalid, "{header}");
    }
    let full = topic.publish(Paid { order: 7 }).header("x", "y".repeat(8_100)).await;
    assert_eq!(full.unwrap_err().kind(), ErrorKind::TooLarge);
    let worker = Worker::new(&t.client).queue(TOPICS_QUEUE).handle(async |_: Paid, _: Ctx| ());
    assert_eq!(t.drains.drain(worker).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(t.jobs("").await, []);
}

async fn topics_are_told_and_removed(t: Rig) {
    assert_eq!(t.client.topic("orders").get().await.unwrap(), None);
    t.subscribe(&QUEUES).await;
    t.client.topic("news").subscribe("letters").await.unwrap();
    let put =
        DocOp::Put { key: "topic/odd".to_owned(), precondition: Precondition::Always, value: b"1".to_vec() };
    t.client.store().doc(&put).await.unwrap();
    let page = t.client.topics(None).await.unwrap();
    let names: Vec<_> = page.topics.iter().map(|topic| (topic.name.as_str(), topic.queues.len())).collect();
    assert_eq!(
        (names, page.unreadable.as_slice()),
        (vec![("news", 1), ("orders", 3)], &["odd".to_owned()][..])
    );
    assert_eq!(t.client.topics(Some("news")).await.unwrap().topics.len(), 1);
    assert_eq!(t.client.topic("odd").subscribe("q").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(t.client.topic("odd").remove().await.unwrap());
    let orders = |version| t.client.topic("orders").if_version(version);
    let seen = orders(0).get().await.unwrap().unwrap().version;
    assert!(orders(seen).subscribe("new").await.unwrap());
    for answer in [
        orders(seen).subscribe("q").await,
        orders(seen).unsubscribe("new").await,
        orders(seen).remove().await,
    ] {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Conflict);
    }
    let none = t.client.topic("none").if_version(seen).subscribe("q").await;
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Conflict);
    let now = orders(0).get().await.unwrap().unwrap();
    assert!(seen < now.version && now.queues.len() == 4);
    assert!(orders(now.version).remove().await.unwrap());
    assert!(!t.client.topic("orders").remove().await.unwrap());
    t.publish(7).await;
    assert_eq!(t.runs().await, "");
}

async fn publications_are_paused(t: Rig) {
    t.subscribe(&QUEUES).await;
    t.publish(7).await;
    t.client.queue(TOPICS_QUEUE).pause("me", "migration").await.unwrap();
    assert_eq!(t.runs().await, "");
    let mut settings = t.client.queue(TOPICS_QUEUE).show().await.unwrap().unwrap().settings;
    assert_eq!(settings.paused.take().unwrap().reason, "migration");
    settings.placement = Placement::Pinned;
    t.client.queue(TOPICS_QUEUE).set(settings).await.unwrap();
    t.client.queue(TOPICS_QUEUE).resume().await.unwrap();
    let idle = t.worker().serve_topics(false);
    assert_eq!(t.drains.drain(idle).await.unwrap().done, 0);
    assert_eq!(t.runs().await, ONE_EACH);
}

/// What crashed thrice is dead, for people, and reaches all that have not had it when it is retried.
#[tokio::test]
async fn a_publication_whose_workers_crash_is_dead() {
    let t = memory().await;
    t.subscribe(&QUEUES).await;
    let id = t.publish(7).await;
    for number in 1..=3 {
        t.reserve(2 * number).await;
        pass_time(&**t.client.store(), &t.clock, LAPSE).await;
    }
    let buried = Arc::new(Mutex::new(Vec::new()));
    let bury = Arc::clone(&buried);
    let worker = t.worker().on_dead(move |job, reason| {
        bury.lock().unwrap().push((job.id, reason));
        std::future::ready(())
    });
    t.drains.drain(worker).await.unwrap();
    assert_eq!(*buried.lock().unwrap(), [(id, "crashes".to_owned())]);
    t.client.retry(id).await.unwrap();
    assert_eq!(t.runs().await, ONE_EACH);
}

/// Services that start together subscribe their queues, all at once.
#[tokio::test(start_paused = true)]
async fn five_hundred_subscribe_at_the_same_time() {
    let memory = Arc::new(MemoryStore::new(Clock::Manual(clock())));
    let mut random = fastrand::Rng::with_seed(7);
    let slow = FaultyStore::new(memory, move |_| Fault::Delay(Duration::from_millis(random.u64(..9))));
    let client = Client::new(Arc::new(slow));
    let subscribe = async |n: u32| client.topic("orders").subscribe(&format!("queue{n}")).await;
    let answers = futures_util::future::join_all((0..500).map(subscribe)).await;
    let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} of 500 failed, the first with {:?}", failed.len(), failed[0]);
    assert_eq!(client.topic("orders").subscriptions().await.unwrap().len(), 500);
}
