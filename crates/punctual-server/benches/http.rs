//! What the server costs: `cargo bench -p punctual-server --bench http`. Each figure stands beside that of the library on a store of
//! the same sort, in the same run, and `POST /jobs` also beside a handler that does nothing.
//!
//! Stores are SQLite files with durability full; payloads have 200 bytes; handlers of jobs do nothing. Server, clients and store share the
//! processors of this machine. `PUNCTUAL_BENCH_DIR` says where the files go; a name on the command line runs that part alone.
#![expect(clippy::unwrap_used, reason = "a bench that can't do its work has nothing to say")]

use std::{
    future::Future,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header::HOST},
    routing::post,
};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use punctual::{
    CancellationToken, Client, Ctx, JobRecord, NewJob, Payload, Worker,
    store::{
        Keep, QueueSettings,
        sqlite::{SqliteOptions, SqliteStore},
    },
};
use punctual_server::Server;
use tokio::{net::TcpStream, task::JoinSet, time::sleep};

const QUEUE: &str = "bench";
/// Callers of `POST /jobs`, each with one connection.
const CALLERS: usize = 64;
/// Jobs of `POST /jobs` and of enqueues one by one.
const SINGLES: usize = 20_032;
/// Jobs of the other figures of throughput.
const JOBS: usize = 100_000;
/// Jobs of a batch.
const BATCH: usize = 1_000;
/// Jobs whose pick-up is measured.
const PICKUPS: usize = 500;
const SLOTS: usize = 1_000;
/// Open pages.
const DASHBOARDS: usize = 500;
/// How long calls to the store are counted.
const COUNTED: Duration = Duration::from_secs(10);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let folder =
            tempfile::tempdir_in(std::env::var("PUNCTUAL_BENCH_DIR").unwrap_or("/tmp".into())).unwrap();
        let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
        let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
        if wanted("singles") {
            singles(folder.path()).await;
        }
        if wanted("batches") {
            batches(folder.path()).await;
        }
        if wanted("pick-up") {
            pick_ups(folder.path()).await;
        }
        if wanted("drain") {
            drains(folder.path()).await;
        }
        if wanted("dashboards") {
            dashboards(folder.path()).await;
        }
    });
}

/// A fresh store, and a server of it.
struct Site {
    store: Arc<SqliteStore>,
    /// A client of the store itself.
    direct: Client,
    /// A client of the server.
    http: Client,
    addr: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Site {
    async fn new(folder: &Path, name: &str) -> Self {
        let store =
            Arc::new(SqliteStore::open(folder.join(format!("{name}.db")), SqliteOptions::default()).unwrap());
        let direct = Client::new(Arc::clone(&store) as Arc<_>);
        direct
            .queue(QUEUE)
            .set(QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() })
            .await
            .unwrap();
        let (server, stop) = (Server::new(&direct), CancellationToken::new());
        let (ready, addr) = tokio::sync::oneshot::channel();
        tokio::spawn({
            let stop = stop.clone();
            async move {
                let ready = |addr| ready.send(addr).unwrap();
                server.serve("127.0.0.1:0".parse().unwrap(), &stop, ready).await.unwrap();
            }
        });
        let addr = addr.await.unwrap();
        let http = Client::connect(&format!("http://{addr}")).await.unwrap();
        Self { store, direct, http, addr, stop }
    }
}

fn text() -> String {
    "1".repeat(200)
}

fn job(client: &Client) -> NewJob {
    NewJob::new(client.make_id(), "bench", QUEUE, Payload::json(text()))
}

fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// Prints a figure beside that of the library, and what it should be.
fn print(name: &str, unit: &str, direct: f64, http: f64, aim: &str) {
    println!("{name:<44} {direct:>10.1} {http:>10.1} {unit:<6} {:>6.2}  {aim}", http / direct);
}

/// Lets callers do something so often in all, and returns how many were done in a second.
async fn many<F: Future<Output = ()> + Send + 'static>(
    callers: usize,
    count: usize,
    caller: impl Fn(usize) -> F,
) -> f64 {
    let each = count / callers;
    let begin = Instant::now();
    (0..callers).map(|_| caller(each)).collect::<JoinSet<()>>().join_all().await;
    rate(each * callers, begin.elapsed())
}

/// A connection that stays open.
async fn connect(addr: SocketAddr) -> SendRequest<Body> {
    let stream = TcpStream::connect(addr).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn send(sender: &mut SendRequest<Body>, path: &str, body: String) -> (StatusCode, Vec<u8>) {
    sender.ready().await.unwrap();
    let builder = Request::post(path).header(HOST, "localhost").header("content-type", "application/json");
    let answer = sender.send_request(builder.body(Body::from(body)).unwrap()).await.unwrap();
    let status = answer.status();
    (status, to_bytes(Body::new(answer.into_body()), usize::MAX).await.unwrap().to_vec())
}

/// `POST /jobs`, so many a second.
async fn posts(addr: SocketAddr, callers: usize, count: usize) -> f64 {
    many(callers, count, |each| async move {
        let mut sender = connect(addr).await;
        let body = format!("{{\"kind\":\"bench\",\"queue\":\"{QUEUE}\",\"payload\":\"{}\"}}", text());
        for _ in 0..each {
            let (status, answer) = send(&mut sender, "/api/v1/jobs", body.clone()).await;
            assert_eq!(status, StatusCode::CREATED, "{}", String::from_utf8_lossy(&answer));
        }
    })
    .await
}

/// A server that reads each body and answers as if it had stored a job.
async fn bare() -> SocketAddr {
    let answer = r#"{"status":"inserted","id":"00000000-0000-0000-0000-000000000000","run_at_ms":0}"#;
    let handler = move |body: axum::body::Bytes| async move {
        drop(body);
        (StatusCode::CREATED, [("content-type", "application/json")], answer)
    };
    let router = Router::new().route("/api/v1/jobs", post(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    addr
}

async fn singles(folder: &Path) {
    println!(
        "\n{:<44} {:>10} {:>10} {:<6} {:>6}",
        "enqueues one by one", "library", "POST /jobs", "", "ratio"
    );
    let limit = bare().await;
    for (callers, count, aim) in [(1, 2_000, ""), (CALLERS, SINGLES, "aim 0.5")] {
        let (one, other) = (
            Site::new(folder, &format!("direct-{callers}")).await,
            Site::new(folder, &format!("http-{callers}")).await,
        );
        let direct = many(callers, count, |each| {
            let client = one.direct.clone();
            async move {
                for _ in 0..each {
                    client.push(vec![job(&client)]).await.unwrap();
                }
            }
        })
        .await;
        let http = posts(other.addr, callers, count).await;
        print(&format!("{callers} callers"), "jobs/s", direct, http, aim);
        println!(
            "{:<44} {:>10} {:>10.1} jobs/s",
            "  a handler that does nothing",
            "",
            posts(limit, callers, count).await
        );
    }
}

async fn batches(folder: &Path) {
    println!("\n{:<44} {:>10} {:>10}", "batches of 1,000", "library", "server");
    let one = Site::new(folder, "batch-direct").await;
    let begin = Instant::now();
    for _ in 0..JOBS / BATCH {
        one.direct.push((0..BATCH).map(|_| job(&one.direct)).collect()).await.unwrap();
    }
    let direct = rate(JOBS, begin.elapsed());
    let other = Site::new(folder, "batch-http").await;
    let begin = Instant::now();
    for _ in 0..JOBS / BATCH {
        other.http.push((0..BATCH).map(|_| job(&other.http)).collect()).await.unwrap();
    }
    print("a client of http://", "jobs/s", direct, rate(JOBS, begin.elapsed()), "");
    let other = Site::new(folder, "batch-enqueue").await;
    let new = format!("{{\"kind\":\"bench\",\"queue\":\"{QUEUE}\",\"payload\":\"{}\"}}", text());
    let body = format!("{{\"jobs\":[{}]}}", vec![new.as_str(); BATCH].join(","));
    let mut sender = connect(other.addr).await;
    let begin = Instant::now();
    for _ in 0..JOBS / BATCH {
        let (status, answer) = send(&mut sender, "/api/v1/enqueue", body.clone()).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&answer));
    }
    print("POST /enqueue", "jobs/s", direct, rate(JOBS, begin.elapsed()), "aim 0.7");
}

/// A worker that notes when each job starts, and how long the pick-ups took in milliseconds.
async fn picked_up(client: &Client) -> (f64, f64) {
    let begin = Instant::now();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let stop = CancellationToken::new();
    let handler = {
        let seen = Arc::clone(&seen);
        move |job: JobRecord, _: Ctx<()>| {
            let at: f64 = String::from_utf8_lossy(&job.payload.bytes).trim().parse().unwrap();
            seen.lock().unwrap().push(begin.elapsed().as_secs_f64() * 1e3 - at);
            std::future::ready(())
        }
    };
    let worker =
        tokio::spawn(Worker::new(client).queue(QUEUE).slots(50).handle_raw(handler).run_until(stop.clone()));
    for _ in 0..PICKUPS {
        sleep(Duration::from_millis(fastrand::u64(5..15))).await;
        let mut job = job(client);
        job.payload = Payload::json(format!("{:<200.4}", begin.elapsed().as_secs_f64() * 1e3));
        client.push(vec![job]).await.unwrap();
    }
    while seen.lock().unwrap().len() < PICKUPS {
        sleep(Duration::from_millis(20)).await;
    }
    stop.cancel();
    worker.await.unwrap().unwrap();
    let mut ms = std::mem::take(&mut *seen.lock().unwrap());
    ms.sort_by(f64::total_cmp);
    (ms[ms.len() / 2], ms[ms.len() * 99 / 100])
}

async fn pick_ups(folder: &Path) {
    println!("\n{:<44} {:>10} {:>10}", "from before the enqueue to the handler", "library", "http://");
    let (one, other) = (Site::new(folder, "pickup-direct").await, Site::new(folder, "pickup-http").await);
    let (direct, http) = (picked_up(&one.direct).await, picked_up(&other.http).await);
    println!("{:<44} {:>10.2} {:>10.2} ms     {:>+6.2}  aim +1", "p50", direct.0, http.0, http.0 - direct.0);
    println!("{:<44} {:>10.2} {:>10.2} ms     {:>+6.2}", "p99", direct.1, http.1, http.1 - direct.1);
}

/// Lets a worker run all jobs, and returns how many were done in a second.
async fn drain(site: &Site, client: &Client) -> f64 {
    for _ in 0..JOBS / BATCH {
        site.direct.push((0..BATCH).map(|_| job(&site.direct)).collect()).await.unwrap();
    }
    let left = Arc::new(AtomicU64::new(JOBS as u64));
    let stop = CancellationToken::new();
    let handler = {
        let (left, stop) = (left, stop.clone());
        move |_: JobRecord, _: Ctx<()>| {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                stop.cancel();
            }
            std::future::ready(())
        }
    };
    let begin = Instant::now();
    Worker::new(client).queue(QUEUE).slots(SLOTS).handle_raw(handler).run_until(stop).await.unwrap();
    rate(JOBS, begin.elapsed())
}

async fn drains(folder: &Path) {
    println!("\n{:<44} {:>10} {:>10}", "a worker with 1,000 slots", "library", "http://");
    let (one, other) = (Site::new(folder, "drain-direct").await, Site::new(folder, "drain-http").await);
    let (direct, http) = (drain(&one, &one.direct).await, drain(&other, &other.http).await);
    print("drain", "jobs/s", direct, http, "aim 0.5");
}

/// Calls to the store in a second.
async fn counted(store: &SqliteStore) -> f64 {
    let before = store.operations();
    sleep(COUNTED).await;
    (store.operations() - before) as f64 / COUNTED.as_secs_f64()
}

/// An open overview: it hears of changes, and then reads the page again.
async fn overview(addr: SocketAddr, read: Arc<AtomicU64>) {
    let mut events = connect(addr).await;
    let get = |path: &str| Request::get(path).header(HOST, "localhost").body(Body::empty()).unwrap();
    let stream = events.send_request(get("/events")).await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    let mut stream = Body::new(stream.into_body()).into_data_stream();
    let mut page = connect(addr).await;
    while let Some(Ok(part)) = futures_util::StreamExt::next(&mut stream).await {
        if part.windows(6).any(|part| part == b"data: ") {
            page.ready().await.unwrap();
            let answer = page.send_request(get("/")).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            to_bytes(Body::new(answer.into_body()), usize::MAX).await.unwrap();
            read.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn dashboards(folder: &Path) {
    println!("\ncalls to the store in a second");
    let site = Site::new(folder, "dashboards").await;
    println!("{:<44} {:>10.1}  aim 0", "a server without pages", counted(&site.store).await);
    let read = Arc::new(AtomicU64::new(0));
    let mut pages: JoinSet<()> = (0..DASHBOARDS).map(|_| overview(site.addr, Arc::clone(&read))).collect();
    // All of them have read the page once.
    while read.load(Ordering::Relaxed) < DASHBOARDS as u64 {
        sleep(Duration::from_millis(50)).await;
    }
    sleep(Duration::from_secs(3)).await;
    println!("{:<44} {:>10.1}  aim 2", "500 open overviews, nothing happens", counted(&site.store).await);
    let producer = tokio::spawn({
        let client = site.direct.clone();
        async move {
            loop {
                client.push(vec![job(&client)]).await.unwrap();
                sleep(Duration::from_millis(200)).await;
            }
        }
    });
    sleep(Duration::from_secs(3)).await;
    let before = read.load(Ordering::Relaxed);
    let with = counted(&site.store).await;
    let pages_read = (read.load(Ordering::Relaxed) - before) as f64 / COUNTED.as_secs_f64();
    producer.abort();
    println!(
        "{:<44} {with:>10.1}  of which 5 are the producer's; {pages_read:.0} pages a second",
        "500 open overviews, 5 jobs enqueued a second"
    );
    pages.abort_all();
}
