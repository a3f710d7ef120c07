//! Jobs that are handed over to a real broker of RabbitMQ.
#![cfg(all(unix, feature = "amqp"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/rabbitmq.rs"]
mod rabbitmq;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
    time::Duration,
};

use lapin::{
    Connection, ConnectionProperties,
    message::Delivery,
    options::{BasicGetOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use punctual::{
    Backoff, Client, ErrorKind, JobId, JobOptions, JobRecord, NewJob, Payload, State, When, Worker,
    worker::Shutdown,
};
use punctual_forward::Forwarder;
use tokio::{
    sync::{RwLock, RwLockReadGuard},
    task::JoinHandle,
};

use self::rabbitmq::{BODY_MAX, Broker};

/// How long the end of a job is waited for.
const PATIENCE: Duration = Duration::from_mins(2);
/// As many jobs are on their way at once.
const SLOTS: usize = 200;

/// How often each is tried of what depends on how confirms come together.
const ROUNDS: usize = 15;

/// The one of this binary. Whoever kills it writes to it.
fn broker() -> &'static RwLock<Broker> {
    static SHARED: OnceLock<RwLock<Broker>> = OnceLock::new();
    SHARED.get_or_init(|| RwLock::new(Broker::start()))
}

async fn shared() -> RwLockReadGuard<'static, Broker> {
    // It blocks for seconds, once.
    tokio::task::spawn_blocking(broker).await.unwrap().read().await
}

// ── a broker's queue, and who reads it ──

struct Reader {
    connection: Connection,
    queue: String,
}

impl Reader {
    /// With a new queue of this name.
    async fn open(broker: &Broker, queue: &str) -> Self {
        Self::open_as(broker, queue, true).await
    }

    /// The same; what reaches a durable queue is confirmed once it is on disk.
    async fn open_as(broker: &Broker, queue: &str, durable: bool) -> Self {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&broker.url(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let options = QueueDeclareOptions { durable, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap();
        Self { connection, queue: queue.to_owned() }
    }

    /// All that is in the queue now.
    async fn messages(&self) -> Vec<Delivery> {
        let channel = self.connection.create_channel().await.unwrap();
        let (mut all, options) = (Vec::new(), BasicGetOptions { no_ack: true });
        while let Some(message) = channel.basic_get(self.queue.as_str().into(), options).await.unwrap() {
            all.push(message.delivery);
        }
        all
    }

    /// The ids of all that is in the queue now.
    async fn ids(&self) -> Vec<String> {
        self.messages().await.iter().map(id).collect()
    }
}

fn id(message: &Delivery) -> String {
    let id = message.properties.message_id().as_ref().unwrap().as_str();
    id.split_once('_').expect("the store, and the job").1.to_owned()
}

// ── a worker that forwards ──

struct Site {
    client: Client,
    forwarder: Forwarder,
    shutdown: Shutdown,
    worker: JoinHandle<()>,
}

impl Site {
    /// Forwards to a broker, with these options behind its address.
    async fn open(broker: &Broker, options: &str) -> Self {
        Self::open_at(&format!("{}?{options}", broker.url())).await
    }

    async fn open_at(url: &str) -> Self {
        let client = Client::connect("memory:").await.unwrap();
        let forwarder = Forwarder::to(url).unwrap();
        let shutdown = Shutdown::default();
        let worker = Worker::new(&client).name("forwarder").queue("orders").slots(SLOTS);
        let working = worker.handle_raw(forwarder.handler()).run_until(shutdown.clone());
        let worker = tokio::spawn(async move {
            working.await.unwrap();
        });
        Self { client, forwarder, shutdown, worker }
    }

    /// A job that fails for good at its second try, with one header.
    fn job(&self, header: (&str, &str)) -> NewJob {
        let mut job =
            NewJob::new(self.client.make_id(), "order.paid", "orders", Payload::json("{\"total\":12}"));
        job.headers = BTreeMap::from([(header.0.to_owned(), header.1.to_owned())]);
        job.options = JobOptions {
            max_attempts: Some(2),
            backoff: Some(Backoff::fixed(Duration::from_millis(20)).jitter(false)),
            ..JobOptions::default()
        };
        job
    }

    /// Enqueues them together, and waits for their ends.
    async fn ended(&self, jobs: Vec<NewJob>) -> Vec<JobRecord> {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        self.client.push(jobs).await.unwrap();
        self.ends(&ids).await
    }

    async fn ends(&self, ids: &[JobId]) -> Vec<JobRecord> {
        let mut ended = Vec::new();
        for id in ids {
            let job = self.client.finished(*id, PATIENCE).await.unwrap().unwrap();
            assert!(job.state.is_ended(), "{job:?}");
            ended.push(job);
        }
        ended
    }

    async fn close(self) {
        self.shutdown.graceful.cancel();
        self.worker.await.unwrap();
    }
}

fn reason(job: &JobRecord) -> &str {
    job.failures.last().map_or("", |failure| &failure.error)
}

/// Those that are done, and those that are dead for a reason that begins so.
fn split(ended: &[JobRecord], words: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let of = |state| ended.iter().filter(move |job| job.state == state);
    for job in of(State::Dead) {
        assert!(reason(job).starts_with(words), "{:?} instead of {words}", reason(job));
    }
    let ids = |state| of(state).map(|job| job.id.to_string()).collect();
    (ids(State::Done), ids(State::Dead))
}

#[tokio::test]
async fn a_confirmed_job_arrives_with_what_is_known_of_it() {
    let broker = shared().await;
    let reader = Reader::open(&broker, "confirmed").await;
    let site = Site::open(&broker, "routing_key=confirmed").await;
    let mut job = site.job(("traceparent", "00-1"));
    job.run_at = When::In(Duration::from_millis(30));
    let job = site.ended(vec![job]).await.remove(0);
    assert_eq!((job.state, job.attempt), (State::Done, 1));
    let messages = reader.messages().await;
    assert_eq!(messages.len(), 1);
    let (message, properties) = (&messages[0], &messages[0].properties);
    assert_eq!(
        properties.message_id().as_ref().unwrap().as_str(),
        site.client.identity().await.unwrap().message_id(job.id)
    );
    assert_eq!(message.data, b"{\"total\":12}");
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().unwrap().to_string();
    assert_eq!(text(properties.kind()), "order.paid");
    assert_eq!(text(properties.content_type()), "application/json");
    assert_eq!(text(properties.app_id()), "punctual");
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(*properties.timestamp(), Some(job.run_at.as_ms() / 1_000));
    let headers = properties.headers().as_ref().unwrap();
    let header = |name: &str| match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!(header("traceparent"), "00-1");
    assert_eq!(header("punctual-queue"), "orders");
    assert_eq!(header("punctual-attempt"), "1");
    assert_eq!(header("punctual-run-at-ms"), job.run_at.as_ms().to_string());
    site.close().await;
}

#[tokio::test]
async fn an_unroutable_job_is_dead_on_its_last_attempt_with_the_words_of_the_broker() {
    let broker = shared().await;
    let site = Site::open(&broker, "routing_key=nobody-is-there").await;
    let jobs = site.ended(vec![site.job(("n", "1"))]).await;
    assert_eq!((jobs[0].state, jobs[0].attempt), (State::Dead, 2));
    assert_eq!(reason(&jobs[0]), "unroutable: 312 NO_ROUTE");
    site.close().await;
}

/// The broker confirms those at once that are routed nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_exactly_those_die_that_are_routed_nowhere() {
    attributed("routed", true).await;
}

/// The broker confirms all at once, many with one frame, and the client hands a returned message to any of those.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_one_frame_confirms_exactly_those_die_that_are_routed_nowhere() {
    attributed("routed in memory", false).await;
}

async fn attributed(queue: &str, durable: bool) {
    let broker = shared().await;
    let reader = Reader::open_as(&broker, queue, durable).await;
    let site = Site::open(&broker, "routing_key={header.key}").await;
    for _ in 0..ROUNDS {
        let mut jobs = Vec::new();
        let (mut good, mut bad) = (BTreeSet::new(), BTreeSet::new());
        for n in 0..SLOTS {
            let is_good = n % 3 != 0;
            let mut job = site.job(("key", if is_good { queue } else { "nowhere" }));
            job.options.max_attempts = Some(1);
            if is_good { &mut good } else { &mut bad }.insert(job.id.to_string());
            jobs.push(job);
        }
        let (done, dead) = split(&site.ended(jobs).await, "unroutable: 312 NO_ROUTE");
        let arrived = reader.ids().await;
        assert_eq!(arrived.len(), good.len(), "nothing arrives twice");
        assert!(done == good && dead == bad, "{} were taken for others", done.difference(&good).count());
        assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>(), good);
    }
    site.close().await;
}

/// It closes the channel of all others, too; those may arrive twice.
#[tokio::test]
async fn an_unknown_exchange_fails_only_the_jobs_that_name_it() {
    let broker = shared().await;
    let reader = Reader::open(&broker, "bystanders").await;
    let site = Site::open(&broker, "exchange={header.exchange}&routing_key=bystanders").await;
    let jobs: Vec<_> = (0..SLOTS)
        .map(|n| site.job(("exchange", if n % 40 == 7 { "nothing-of-the-kind" } else { "amq.direct" })))
        .collect();
    let channel = reader.connection.create_channel().await.unwrap();
    let (queue, exchange) = ("bystanders".into(), "amq.direct".into());
    let bound = channel.queue_bind(
        queue,
        exchange,
        "bystanders".into(),
        lapin::options::QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.unwrap();
    only_the_bad_fail(&site, &reader, jobs, "404 NOT_FOUND - no exchange 'nothing-of-the-kind'", |job| {
        job.headers["exchange"] != "amq.direct"
    })
    .await;
    site.close().await;
}

#[tokio::test]
async fn a_body_above_the_limit_of_the_broker_fails_only_its_own_job() {
    let broker = shared().await;
    let reader = Reader::open(&broker, "bodies").await;
    let site = Site::open(&broker, "routing_key=bodies").await;
    let mut jobs: Vec<_> = (0..SLOTS).map(|_| site.job(("n", "1"))).collect();
    let body = |bytes: usize| Payload::json("0".repeat(bytes));
    jobs[3].payload = body(BODY_MAX);
    jobs[50].payload = body(BODY_MAX + 1);
    jobs[150].payload = body(BODY_MAX + 1);
    let words = "406 PRECONDITION_FAILED - message size 131073 is larger than configured max size 131072";
    only_the_bad_fail(&site, &reader, jobs, words, |job| BODY_MAX < job.payload.bytes.len()).await;
    site.close().await;
}

async fn only_the_bad_fail(
    site: &Site,
    reader: &Reader,
    jobs: Vec<NewJob>,
    words: &str,
    is_bad: impl Fn(&NewJob) -> bool,
) {
    let (bad, good): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| is_bad(job));
    let [bad, good] =
        [bad, good].map(|jobs| -> BTreeSet<_> { jobs.iter().map(|job| job.id.to_string()).collect() });
    let ended = site.ended(jobs).await;
    let (done, dead) = split(&ended, words);
    assert_eq!((&done, &dead), (&good, &bad));
    assert!(ended.iter().all(|job| job.state == State::Dead || job.attempt == 1), "a bystander paid");
    assert_eq!(reader.ids().await.into_iter().collect::<BTreeSet<_>>(), good);
}

#[tokio::test]
async fn a_check_says_what_somebody_has_to_mend() {
    let broker = shared().await;
    let _reader = Reader::open(&broker, "checked").await;
    let check = async |url: &str| Forwarder::to(url).unwrap().check().await;
    check(&format!("{}?routing_key=checked", broker.url())).await.unwrap();
    check(&format!("{}?exchange=amq.topic&routing_key={{kind}}", broker.url())).await.unwrap();
    let stranger = broker.url().replacen(":punctual@", ":wrong@", 1);
    let elsewhere = format!("amqp://127.0.0.1:{}/", 1);
    let kinds = [
        (format!("{stranger}?routing_key=checked"), ErrorKind::Invalid, "403 ACCESS_REFUSED"),
        (format!("{}?routing_key=unheard-of", broker.url()), ErrorKind::Invalid, "404 NOT_FOUND"),
        (format!("{}?exchange=unheard-of&routing_key=k", broker.url()), ErrorKind::Invalid, "404 NOT_FOUND"),
        (format!("{elsewhere}?routing_key=checked"), ErrorKind::Unavailable, "could not reach RabbitMQ"),
    ];
    for (url, kind, words) in kinds {
        let error = check(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_wait_for_a_broker_that_is_killed_and_spend_no_attempt() {
    drop(shared().await);
    let mut broker = broker().write().await;
    let site = {
        Reader::open(&broker, "outage").await;
        Site::open(&broker, "routing_key=outage").await
    };
    // A broker that is killed before it has written that the queue exists comes back without it.
    tokio::task::block_in_place(|| broker.control(&["eval", "mnesia:sync_log()."]));
    let mut ids = Vec::new();
    for n in 0..500_u64 {
        let mut job = site.job(("n", "1"));
        job.run_at = When::In(Duration::from_millis(n));
        ids.push(job.id);
        site.client.push(vec![job]).await.unwrap();
    }
    // In the midst of them.
    site.ends(&ids[..100]).await;
    tokio::task::block_in_place(|| {
        broker.kill();
        broker.restart();
    });
    let ended = site.ends(&ids).await;
    for job in ended {
        assert!(job.state == State::Done && job.attempt == 1, "an outage cost an attempt: {job:?}");
    }
    let arrived: BTreeSet<_> = Reader::open(&broker, "outage").await.ids().await.into_iter().collect();
    assert_eq!(arrived, ids.iter().map(ToString::to_string).collect());
    site.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_holds_back_what_is_published_is_said_while_the_job_waits() {
    drop(shared().await);
    let broker = broker().write().await;
    Reader::open(&broker, "alarm").await;
    let site = Site::open(&broker, "routing_key=alarm").await;
    site.ended(vec![site.job(("n", "0"))]).await;
    tokio::task::block_in_place(|| broker.set_memory_alarm(true));
    let job = site.job(("n", "1"));
    let id = job.id;
    site.client.push(vec![job]).await.unwrap();
    let said = async {
        while site.forwarder.counts().trouble.is_none_or(|why| !why.contains("connection.blocked")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE / 4, said).await.expect("a job waits, and nothing says why");
    tokio::task::block_in_place(|| broker.set_memory_alarm(false));
    assert_eq!(site.ends(&[id]).await[0].attempt, 1);
    assert_eq!(site.forwarder.counts().trouble, None);
    site.close().await;
}

/// It takes connections, and never says a word.
#[tokio::test]
async fn a_broker_that_hangs_while_it_is_connected_to_is_said() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let site = Site::open_at(&format!("amqp://{}?routing_key=any", silent.local_addr().unwrap())).await;
    site.client.push((0..3).map(|_| site.job(("n", "1"))).collect()).await.unwrap();
    let said = async {
        while site.forwarder.counts().trouble.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE / 2, said).await.expect("jobs wait, and nothing says why");
    site.close().await;
}
