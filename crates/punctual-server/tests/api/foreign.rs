//! Answers that are not the server's: a gateway in front of it answers one call in its place. Each of its answers meets each call
//! that a worker or a client makes. No verdict is lost, no worker ends, and nothing is said that is not so.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use punctual::{
    CancellationToken, Client, Ctx, ErrorKind, JobRecord, NewJob, Payload, Worker,
    job::Filter,
    store::{
        Action, Audit, CallId, DocOp, Enqueued, Lease, List, QueueOp, QueueRequest, Reserve, Settlement,
        Store as _, Take, Upcoming, Verdict, http::HttpStore,
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use crate::{client::read, live::Live};

const SECOND: Duration = Duration::from_secs(1);
/// The lease of a job: a heartbeat comes every 2 s, and two of them can be late.
const LEASE: Duration = Duration::from_secs(6);
/// How long a busy machine may take for what comes within a second.
const PATIENCE: Duration = Duration::from_mins(2);

/// What the gateway does with one call.
#[derive(Clone, Copy, Debug)]
struct Foreign {
    /// The head of its answer, and whether the body is cut off.
    status: &'static str,
    is_cut: bool,
    /// Whether the server gets the call before.
    is_after: bool,
}

/// All that a gateway answers. It refuses only what it has not passed on.
fn all() -> Vec<Foreign> {
    let of = |status, is_cut, is_after| Foreign { status, is_cut, is_after };
    let refusals = [
        "302 Found",
        "400 Bad Request",
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "405 Method Not Allowed",
        "408 Request Timeout",
        "429 Too Many Requests",
    ];
    let refused = refusals.map(|status| of(status, false, false));
    let passed = [
        "200 OK",
        "204 No Content",
        "500 Internal Server Error",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "504 Gateway Timeout",
    ];
    let either = |status, is_cut| [of(status, is_cut, false), of(status, is_cut, true)];
    let passed = passed.into_iter().flat_map(|status| either(status, false));
    refused.into_iter().chain(passed).chain(either("200 OK", true)).collect()
}

impl Foreign {
    fn text(self) -> &'static str {
        if self.is_cut { "{\"results\":[" } else { "<html>please log in</html>" }
    }

    fn answer(self) -> String {
        let (status, text) = (self.status, self.text());
        let length = if self.is_cut { text.len() + 9 } else { text.len() };
        let body = if status.starts_with("204") { "" } else { text };
        format!(
            "HTTP/1.1 {status}\r\nlocation: /login\r\ncontent-type: text/html\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    }

    /// What a call fails with: nothing was done, or nobody knows.
    fn kind(self) -> ErrorKind {
        let is_refused = self.status.starts_with(['3', '4']);
        if is_refused { ErrorKind::Unavailable } else { ErrorKind::UnknownOutcome }
    }
}

/// A gateway. It passes everything on but the first call of one name.
struct Gateway {
    url: String,
    armed: Arc<Mutex<Option<(String, Foreign)>>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Gateway {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (armed, seen) =
            (Arc::<Mutex<Option<(String, Foreign)>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (arms, sees) = (Arc::clone(&armed), Arc::clone(&seen));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (arms, sees) = (Arc::clone(&arms), Arc::clone(&sees));
                tokio::spawn(async move {
                    let request = read(&mut stream).await;
                    let Some(name) = request.split(' ').nth(1).and_then(|path| path.rsplit('/').next())
                    else {
                        return;
                    };
                    sees.lock().unwrap().push(name.to_owned());
                    let foreign =
                        arms.lock().unwrap().take_if(|(of, _)| of == name).map(|(_, foreign)| foreign);
                    if let Some(foreign) = foreign {
                        if foreign.is_after {
                            pass(server, &request).await;
                        }
                        let _ = stream.write_all(foreign.answer().as_bytes()).await;
                    } else {
                        let _ = stream.write_all(&pass(server, &request).await).await;
                    }
                });
            }
        });
        Self { url, armed, seen }
    }

    fn arm(&self, name: &str, foreign: Foreign) {
        *self.armed.lock().unwrap() = Some((name.to_owned(), foreign));
    }

    /// Whether the call was made.
    fn has_answered(&self) -> bool {
        self.armed.lock().unwrap().is_none()
    }

    fn count(&self, name: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| *seen == name).count()
    }
}

/// Passes a request on, on a connection of its own; returns the whole answer.
async fn pass(server: SocketAddr, request: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

fn job(client: &Client) -> NewJob {
    let mut job = NewJob::new(client.make_id(), "k", "q", Payload::json("1"));
    job.options.lease = Some(LEASE);
    job
}

/// A worker runs three jobs while one of its calls is answered so.
async fn works(name: &'static str, foreign: Foreign) {
    const JOBS: u64 = 3;
    let live = Live::new(Duration::ZERO).await;
    let gateway = Arc::new(Gateway::to(live.addr).await);
    let client = Client::new(Arc::new(HttpStore::open(&gateway.url).await.unwrap()));
    let direct = &live.client;
    gateway.arm(name, foreign);
    direct.push((0..JOBS).map(|_| job(direct)).collect()).await.unwrap();
    let (stop, beats) = (CancellationToken::new(), Arc::clone(&gateway));
    let worker =
        Worker::new(&client).queue("q").serve_topics(false).handle_raw(move |_: JobRecord, _: Ctx| {
            let beats = Arc::clone(&beats);
            async move {
                // Long enough for a heartbeat that fails and the next one.
                while name == "extend" && beats.count("extend") < 2 {
                    sleep(Duration::from_millis(5)).await;
                }
            }
        });
    let working = tokio::spawn(worker.run_until(stop.clone()));
    let all_done = async {
        while !gateway.has_answered() || direct.count(None).await.unwrap().done < JOBS {
            assert!(!working.is_finished(), "{name}: {foreign:?}: the worker ended");
            sleep(Duration::from_millis(5)).await;
        }
    };
    let done = timeout(PATIENCE, all_done).await;
    done.unwrap_or_else(|_| {
        panic!("{name}: {foreign:?}: not all ran, or it never called: {:?}", gateway.seen)
    });
    stop.cancel();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.done, report.runs(), report.lost), (JOBS, JOBS, 0), "{name}: {foreign:?}: {report:?}");
    let list = List { filter: Filter::all(), after: None, limit: 9 };
    for job in direct.list(&list).await.unwrap().jobs {
        assert_eq!((job.attempt, job.failures.len()), (1, 0), "{name}: {foreign:?}: {job:?}");
    }
    live.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_works_on_whatever_a_gateway_answers_to_one_call() {
    for name in ["reserve", "settle", "extend", "wait", "now", "doc", "tool", "sweep"] {
        join_all(all().into_iter().map(|foreign| works(name, foreign))).await;
    }
}

/// Makes a call. Each of them succeeds in an empty store.
async fn call(store: &HttpStore, client: &Client, name: &str) -> punctual::Result<()> {
    let lease = Lease { job: client.make_id(), fence: 1 };
    let reserve = Reserve {
        call: CallId { instance: 1, number: 1 },
        worker: "w".into(),
        queues: vec![QueueRequest { queue: "q".into(), share: 1, at_most: 1 }],
        n: 1,
        lease: None,
        company: false,
    };
    match name {
        "identity" => store.identity().await.map(drop),
        "now" => store.now().await.map(drop),
        "enqueue" => store.enqueue(CallId { instance: 2, number: 1 }, &[job(client)]).await.map(drop),
        "reserve" => store.reserve(&reserve).await.map(drop),
        "extend" => store.extend(&[lease.into()]).await.map(drop),
        "settle" => store.settle(&[Settlement { lease, verdict: Verdict::Ack }], None).await.map(drop),
        "take" => store.take(&Take { queue: "q".into(), n: 1, older_than: Duration::ZERO }).await.map(drop),
        "wait" => store.wait(&["q".into()], Duration::ZERO).await,
        "get" => store.get(lease.job).await.map(drop),
        "list" => store.list(&List { filter: Filter::all(), after: None, limit: 1 }).await.map(drop),
        "count" => store.count(None).await.map(drop),
        "upcoming" => store.upcoming(&Upcoming { queue: None, bucket: SECOND, buckets: 1 }).await.map(drop),
        "act" => store.act(&[lease.job.into()], &Action::Retry).await.map(drop),
        "queue" => store.queue("q", &QueueOp::Show).await.map(drop),
        "queues" => store.queues(None).await.map(drop),
        "doc" => store.doc(&DocOp::Get { key: "x".into() }).await.map(drop),
        "sweep" => store.sweep(1).await.map(drop),
        "audit" => store.audit(Audit::default()).await.map(drop),
        "doctor" => store.doctor().await.map(drop),
        _ => unreachable!("{name}"),
    }
}

#[tokio::test]
async fn each_call_says_whether_it_can_have_been_done() {
    let live = Live::new(Duration::ZERO).await;
    let gateway = Gateway::to(live.addr).await;
    let store = HttpStore::open(&gateway.url).await.unwrap();
    for name in [
        "identity", "now", "enqueue", "reserve", "extend", "settle", "take", "wait", "get", "list", "count",
        "upcoming", "act", "queue", "queues", "doc", "sweep", "audit", "doctor",
    ] {
        for foreign in all() {
            gateway.arm(name, foreign);
            let error = call(&store, &live.client, name).await.unwrap_err();
            assert!(gateway.has_answered(), "{name} is no call of the API");
            assert_eq!(
                (error.kind(), error.is_foreign()),
                (foreign.kind(), !foreign.is_cut),
                "{name}: {foreign:?}: {error:?}"
            );
            call(&store, &live.client, name).await.unwrap();
        }
    }
}

/// It is told of its own job that it is new, with each kind of key.
#[tokio::test]
async fn a_producer_learns_that_its_job_is_new_whatever_a_gateway_answers() {
    let live = Live::new(Duration::ZERO).await;
    let gateway = Gateway::to(live.addr).await;
    let client = Client::new(Arc::new(HttpStore::open(&gateway.url).await.unwrap()));
    for (n, foreign) in all().into_iter().enumerate() {
        let plain = job(&client);
        let mut unique = job(&client);
        unique.unique = Some(punctual::Unique::key(format!("{n}")));
        let mut derived = job(&client);
        derived.id = punctual::JobId::derived("q", None, &format!("{n}"));
        for job in [plain, unique, derived] {
            gateway.arm("enqueue", foreign);
            let answer = client.push(vec![job.clone()]).await.unwrap().remove(0);
            assert!(answer.is_new() && answer.id() == Some(job.id), "{foreign:?}: {answer:?}");
            // Another call meets it.
            let again = client.push(vec![job]).await.unwrap().remove(0);
            assert!(matches!(again, Enqueued::Duplicate(_)), "{again:?}");
        }
    }
}
