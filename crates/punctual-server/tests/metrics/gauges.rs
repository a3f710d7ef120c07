//! The gauges of queues, and what a scrape asks of the store.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::Request,
};
use futures_util::future::join_all;
use punctual::{
    CancellationToken, Client, NewJob, Payload, When,
    job::Concurrency,
    store::{Action, CallId, Lease, QueueRequest, Reserve, Settlement, Store, Verdict},
    testing::{Fault, FaultyStore, TestQueue},
};
use punctual_server::Server;
use tokio::time::{Instant, advance};
use tower::ServiceExt as _;

use super::samples;

/// The pause after a reading of the store.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest wait of a scrape.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// A server, without a port.
struct Site(Router);

impl Site {
    fn new(client: &Client) -> Self {
        Self(Server::new(client).router(&CancellationToken::new()))
    }

    async fn text(&self) -> String {
        let peer: SocketAddr = "127.0.0.1:50000".parse().unwrap();
        let mut request = Request::get("/metrics").header("host", "localhost").body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = self.0.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    async fn scrape(&self) -> BTreeMap<String, f64> {
        samples(&self.text().await)
    }
}

/// A store in memory whose calls are counted and can be made to fail.
struct Watched {
    client: Client,
    /// Calls by verb.
    calls: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    /// What happens to calls of a verb.
    faults: Arc<Mutex<BTreeMap<&'static str, Fault>>>,
}

impl Watched {
    async fn new() -> Self {
        let inner = Client::connect("memory:").await.unwrap();
        let (calls, faults) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(Mutex::new(BTreeMap::new())));
        let (counted, chosen) = (Arc::clone(&calls), Arc::clone(&faults));
        let store = FaultyStore::new(Arc::clone(inner.store()), move |verb| {
            *counted.lock().unwrap().entry(verb).or_default() += 1;
            chosen.lock().unwrap().get(verb).copied().unwrap_or(Fault::Pass)
        });
        Self { client: Client::new(Arc::new(store)), calls, faults }
    }

    /// Returns the calls of a verb since the last question.
    fn called(&self, verb: &str) -> usize {
        self.calls.lock().unwrap().remove(verb).unwrap_or_default()
    }

    fn fail(&self, verb: &'static str, fault: Fault) {
        self.faults.lock().unwrap().insert(verb, fault);
    }
}

fn job(client: &Client, queue: &str) -> NewJob {
    NewJob::new(client.make_id(), "k", queue, Payload::json("{}"))
}

async fn reserve(store: &dyn Store, queue: &str, n: usize) -> Vec<Lease> {
    let request = Reserve {
        call: CallId { instance: 7, number: 1 },
        worker: "w".to_owned(),
        queues: vec![QueueRequest { queue: queue.to_owned(), share: n, at_most: n }],
        n,
        lease: None,
        company: false,
    };
    store.reserve(&request).await.unwrap().jobs.into_iter().map(|reserved| reserved.lease).collect()
}

/// The samples whose names begin so, without this part.
fn of<'a>(samples: &'a BTreeMap<String, f64>, begin: &str) -> Vec<(&'a str, f64)> {
    samples.iter().filter_map(|(name, n)| Some((name.strip_prefix(begin)?, *n))).collect()
}

const STATES: [&str; 7] = ["waiting", "due", "retrying", "running", "done", "dead", "cancelled"];

#[track_caller]
fn assert_jobs(samples: &BTreeMap<String, f64>, queue: &str, expected: [u32; 7]) {
    for (state, n) in STATES.into_iter().zip(expected) {
        for name in [
            format!("punctual_queue_jobs{{queue=\"{queue}\",state=\"{state}\"}}"),
            format!("punctual_store_jobs{{state=\"{state}\"}}"),
        ] {
            assert_eq!(
                samples.get(&name).map(|n| n.to_bits()),
                Some(f64::from(n).to_bits()),
                "{name}: {samples:#?}"
            );
        }
    }
}

#[tokio::test]
async fn gauges_equal_the_history_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("test.db").display());
    for t in [TestQueue::new(), TestQueue::connect(&file).await.unwrap()] {
        let store = t.client.store();
        t.client.push((0..7).map(|_| job(&t.client, "mail")).collect()).await.unwrap();
        let mut later = job(&t.client, "mail");
        later.run_at = When::In(Duration::from_hours(1));
        let mut cancelled = job(&t.client, "mail");
        cancelled.run_at = When::In(Duration::from_hours(2));
        let id = cancelled.id;
        t.client.push(vec![later, cancelled]).await.unwrap();
        t.client.act(&[id.into()], &Action::Cancel { reason: None }).await.unwrap();
        let verdicts = [
            Verdict::AckWith { result: Payload::json("1") },
            Verdict::Dead { error: "no".to_owned() },
            Verdict::Retry { at: When::In(Duration::from_mins(9)), error: "later".to_owned() },
        ];
        let leases = reserve(&**store, "mail", 5).await;
        assert_eq!(leases.len(), 5);
        for (lease, verdict) in leases.into_iter().zip(verdicts) {
            store.settle(&[Settlement { lease, verdict }], None).await.unwrap();
        }
        t.advance(Duration::from_millis(90_500));

        let samples = Site::new(&t.client).scrape().await;
        assert_jobs(&samples, "mail", [4, 2, 1, 2, 1, 1, 1]);
        let oldest = "punctual_queue_oldest_due_seconds{queue=\"mail\"}";
        assert_eq!(samples[oldest].to_bits(), 90.5_f64.to_bits(), "{samples:#?}");
        assert_eq!(of(&samples, "punctual_queue_paused"), [("{queue=\"mail\"}", 0.0)]);
        assert_eq!(of(&samples, "punctual_queues_left_out"), [("", 0.0)]);
        assert_eq!(of(&samples, "punctual_store_up"), [("", 1.0)]);
        assert!(samples["punctual_sample_age_seconds"] < 60.0, "{samples:#?}");

        t.client.queue("mail").pause("ana", "reason").await.unwrap();
        t.client.queue("mail").purge(|_| {}).await.unwrap();
        let samples = Site::new(&t.client).scrape().await;
        assert_jobs(&samples, "mail", [0, 0, 0, 2, 1, 1, 1]);
        assert_eq!(samples[oldest].to_bits(), 0, "{samples:#?}");
        assert_eq!(of(&samples, "punctual_queue_paused"), [("{queue=\"mail\"}", 1.0)]);
    }
}

/// Jobs that wait for another job of their key are due, too, and an alert must see them.
#[tokio::test]
async fn jobs_that_a_key_holds_back_have_an_age_of_their_own() {
    let t = TestQueue::new();
    let keyed = || {
        let mut job = job(&t.client, "mail");
        job.concurrency = Some(Concurrency { key: "tenant".to_owned(), limit: 1 });
        job
    };
    t.client.push(vec![keyed(), keyed(), keyed(), keyed()]).await.unwrap();
    let store = t.client.store();
    let first = reserve(&**store, "mail", 4).await;
    assert_eq!(first.len(), 1);
    t.advance(Duration::from_secs(13));
    let samples = Site::new(&t.client).scrape().await;
    assert_jobs(&samples, "mail", [3, 3, 0, 1, 0, 0, 0]);
    let age = |of: &str| samples[&format!("punctual_queue_oldest_{of}_seconds{{queue=\"mail\"}}")].to_bits();
    assert_eq!((age("due"), age("blocked")), (0, 13.0_f64.to_bits()), "{samples:#?}");
}

#[tokio::test]
async fn an_empty_store_has_no_gauges_of_queues() {
    let client = Client::connect("memory:").await.unwrap();
    let samples = Site::new(&client).scrape().await;
    assert_eq!(of(&samples, "punctual_queue_"), []);
    assert_eq!(of(&samples, "punctual_store_jobs{").len(), STATES.len());
}

#[tokio::test]
async fn names_of_queues_are_escaped() {
    let long = "ü".repeat(127);
    let names = [
        "a\"b",
        "a\\",
        "\\\"",
        "a\\n",
        "{a=\"b\"} 1",
        "# HELP x",
        "a b",
        "a,b",
        "other",
        "é\u{2028}ü",
        &long,
    ];
    let client = Client::connect("memory:").await.unwrap();
    client.push(names.map(|name| job(&client, name)).into()).await.unwrap();
    let text = Site::new(&client).text().await;
    // `samples` fails for a line without a number.
    let samples = samples(&text);
    for name in names {
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
        for name in [
            format!("punctual_queue_jobs{{queue=\"{escaped}\",state=\"waiting\"}}"),
            format!("punctual_queue_oldest_due_seconds{{queue=\"{escaped}\"}}"),
            format!("punctual_queue_paused{{queue=\"{escaped}\"}}"),
        ] {
            assert!(samples.contains_key(&name), "{name} is not in {text}");
        }
    }
    let each = samples.keys().filter(|name| name.starts_with("punctual_queue_jobs{")).count();
    assert_eq!(each, names.len() * STATES.len());
    for line in text.lines().filter(|line| line.starts_with('#')) {
        assert!(line.starts_with("# HELP punctual_") || line.starts_with("# TYPE punctual_"), "{line}");
    }
}

/// 1,200 queues with one job each, and a large one that is last by name.
#[tokio::test(start_paused = true)]
async fn the_largest_queues_are_found_among_many() {
    let watched = Watched::new().await;
    let mut jobs: Vec<NewJob> = (0..1_200).map(|n| job(&watched.client, &format!("q{n:04}"))).collect();
    jobs.extend((0..3).map(|_| job(&watched.client, "zz")));
    watched.client.push(jobs).await.unwrap();
    let site = Site::new(&watched.client);
    let large = "punctual_queue_jobs{queue=\"zz\",state=\"due\"}";
    for (n, (is_found, left_out)) in
        [(false, 500), (false, 701), (true, 701), (true, 701)].into_iter().enumerate()
    {
        let samples = site.scrape().await;
        assert_eq!(samples.contains_key(large), is_found, "sample {n}");
        assert_eq!(of(&samples, "punctual_queue_paused").len(), 500, "sample {n}");
        assert_eq!(of(&samples, "punctual_queue_jobs").len(), 500 * STATES.len(), "sample {n}");
        assert_eq!(of(&samples, "punctual_queues_left_out"), [("", f64::from(left_out))], "sample {n}");
        let all = samples["punctual_store_jobs{state=\"due\"}"];
        assert_eq!(all.to_bits(), 1_203_f64.to_bits(), "sample {n}");
        let calls = ["now", "count", "queues"].map(|verb| watched.called(verb));
        assert_eq!(calls, [1, 1, 1], "sample {n}");
        assert!(watched.called("queue") <= 1_000, "sample {n}");
        advance(PAUSE).await;
    }
}

/// 600 queues with two jobs that are not due yet. Two of the smaller queues among them have a job that is overdue; one of
/// these is paused.
#[tokio::test]
async fn an_overdue_queue_is_shown_however_small() {
    let t = TestQueue::new();
    t.client.push(["late", "late-on-purpose"].map(|name| job(&t.client, name)).into()).await.unwrap();
    t.client.queue("late-on-purpose").pause("ana", "reason").await.unwrap();
    t.advance(Duration::from_secs(59));
    let large = (0..1_200).map(|n| NewJob {
        run_at: When::In(Duration::from_hours(1)),
        ..job(&t.client, &format!("a{:03}", n % 600))
    });
    t.client.push(large.collect()).await.unwrap();
    // The second reading of a search has the last queues by name. Each server searches for itself.
    for (advance, is_late) in [(0, false), (1, true)] {
        t.advance(Duration::from_secs(advance));
        tokio::time::pause();
        let site = Site::new(&t.client);
        site.scrape().await;
        tokio::time::advance(PAUSE).await;
        let samples = site.scrape().await;
        tokio::time::resume();
        let shown = of(&samples, "punctual_queue_paused{");
        assert_eq!(shown.len(), 500);
        assert_eq!(shown.iter().any(|(name, _)| name.contains("\"late\"")), is_late, "{advance}");
        assert!(!shown.iter().any(|(name, _)| name.contains("purpose")), "{advance}");
    }
}

#[tokio::test(start_paused = true)]
async fn scrapes_share_one_reading() {
    let watched = Watched::new().await;
    watched.client.push(vec![job(&watched.client, "mail")]).await.unwrap();
    let site = Site::new(&watched.client);
    assert_eq!(watched.called("now"), 0, "no scrape has asked yet");
    watched.fail("count", Fault::Delay(PAUSE / 10));
    for n in 0..2 {
        let scrapes = join_all((0..50).map(|_| site.scrape())).await;
        for samples in &scrapes {
            assert_jobs(samples, "mail", [1, 1, 0, 0, 0, 0, 0]);
        }
        // So does a scrape that comes a little later.
        advance(PAUSE / 2).await;
        site.scrape().await;
        let calls = ["now", "count", "queues", "queue"].map(|verb| watched.called(verb));
        assert_eq!(calls, [1, 1, 1, 1], "round {n}");
        advance(PAUSE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_gives_the_last_sample_and_its_age() {
    let watched = Watched::new().await;
    watched.client.push(vec![job(&watched.client, "mail")]).await.unwrap();
    let site = Site::new(&watched.client);
    site.scrape().await;
    watched.client.push(vec![job(&watched.client, "mail")]).await.unwrap();
    watched.fail("count", Fault::Delay(Duration::from_secs(20)));
    advance(PAUSE).await;
    for n in 0..2 {
        let begin = Instant::now();
        let samples = site.scrape().await;
        let took = begin.elapsed();
        assert!((WAIT_MAX..WAIT_MAX + Duration::from_millis(100)).contains(&took), "scrape {n}: {took:?}");
        assert_jobs(&samples, "mail", [1, 1, 0, 0, 0, 0, 0]);
        let age = samples["punctual_sample_age_seconds"];
        assert!(8.0 <= age, "scrape {n}: {age}");
        assert_eq!(of(&samples, "punctual_store_up"), [("", 1.0)]);
    }
    assert_eq!(watched.called("count"), 2, "the reading is not begun anew");
    // The reading ends although nobody waits for it.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let samples = site.scrape().await;
    assert_jobs(&samples, "mail", [2, 2, 0, 0, 0, 0, 0]);
    assert_eq!(watched.called("count"), 0);
    // It took 20 s: the next one begins 180 s after its end.
    for (seconds, calls) in [(170, 0), (10, 1)] {
        advance(Duration::from_secs(seconds)).await;
        site.scrape().await;
        assert_eq!(watched.called("count"), calls, "{seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_no_error_of_the_scrape() {
    let watched = Watched::new().await;
    watched.client.push(vec![job(&watched.client, "mail")]).await.unwrap();
    let site = Site::new(&watched.client);
    let faults = [
        ("now", Fault::Before),
        ("queue", Fault::Before),
        ("queues", Fault::Before),
        ("now", Fault::Delay(Duration::from_hours(1))),
    ];
    for (verb, fault) in faults {
        assert_jobs(&site.scrape().await, "mail", [1, 1, 0, 0, 0, 0, 0]);
        advance(PAUSE).await;
        watched.fail(verb, fault);
        let begin = Instant::now();
        let samples = site.scrape().await;
        assert!(begin.elapsed() <= WAIT_MAX, "{verb}, {fault:?}: {:?}", begin.elapsed());
        assert_eq!(of(&samples, "punctual_store_up"), [("", 0.0)], "{verb}, {fault:?}");
        for gone in ["punctual_queue", "punctual_store_jobs", "punctual_sample"] {
            assert_eq!(of(&samples, gone), [], "{verb}, {fault:?}");
        }
        // The rest is there.
        assert!(!of(&samples, "punctual_build_info").is_empty(), "{verb}, {fault:?}");
        watched.fail(verb, Fault::Pass);
        advance(PAUSE).await;
    }
}

/// The gate looks up tokens in the store, too.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_long_is_no_error_of_the_scrape() {
    let watched = Watched::new().await;
    let seen = Site::new(&watched.client);
    for fault in [Fault::Before, Fault::Delay(Duration::from_hours(1))] {
        for verb in ["now", "doc"] {
            watched.fail(verb, Fault::Pass);
        }
        // It had a sample, and the next one is not due yet.
        assert_eq!(of(&seen.scrape().await, "punctual_store_up"), [("", 1.0)]);
        advance(Duration::from_secs(2)).await;
        for verb in ["now", "doc"] {
            watched.fail(verb, fault);
        }
        for n in 0..3 {
            let begin = Instant::now();
            let text = seen.text().await;
            assert!(begin.elapsed() < Duration::from_secs(9), "scrape {n}: {:?}", begin.elapsed());
            // The caller has no right to more.
            let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(samples, ["punctual_store_up 0"], "scrape {n}, {fault:?}");
            advance(Duration::from_secs(30)).await;
        }
    }
    // A refusal for another reason is passed on.
    for verb in ["now", "doc"] {
        watched.fail(verb, Fault::Pass);
    }
    let request = Request::get("/metrics").header("host", "localhost").body(Body::empty()).unwrap();
    let answer = Site::new(&watched.client).0.oneshot(request).await.unwrap();
    assert_ne!(answer.status(), 200);
}
