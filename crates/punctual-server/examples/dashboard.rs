//! Serves the dashboard of a store in memory that is full of life: `cargo run -p punctual-server --example dashboard`.
//!
//! The store's clock starts one hour ago. Workers run through that hour in a few seconds, then the clock goes on as usual.

use std::{error::Error, sync::Arc, time::Duration};

use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use punctual::{
    CancellationToken, Client, Ctx, JobRecord, NewJob, Outcome, Payload, Priority, Timestamp, Unique, When,
    Worker,
    job::Concurrency,
    schedule::{Cron, Misfire, Schedule},
    store::{
        GroupLimits, Rate,
        clock::{Clock, ManualClock},
        memory::MemoryStore,
    },
};
use punctual_server::{DashboardOptions, dashboard};

/// Steps of the hour that has passed.
const STEPS: u64 = 30;
/// The time of one step.
const STEP: Duration = Duration::from_mins(2);

/// Kinds with their queues, and how many percent of their runs fail.
const KINDS: [(&str, &str, u32); 7] = [
    ("email.send", "mail", 6),
    ("email.digest", "mail", 0),
    ("invoice.render", "documents", 3),
    ("image.resize", "media", 2),
    ("webhook.deliver", "webhooks", 18),
    ("report.build", "reports", 4),
    ("search.index", "search", 0),
];
const GROUPS: [&str; 5] = ["acme", "globex", "initech", "umbrella", "hooli"];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let now = Timestamp::try_from(std::time::SystemTime::now())?;
    let clock = ManualClock::new(Timestamp::from_ms(now.as_ms() - 3_600_000)?);
    let client = Client::new(Arc::new(MemoryStore::new(Clock::Manual(clock.clone()))));
    settle_in(&client).await?;
    live_through(&client, &clock).await?;
    let _running = leave_running(&client);
    ahead(&client).await?;
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            clock.advance(Duration::from_millis(100));
        }
    });
    let addr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7890".to_owned());
    let read_only = std::env::args().nth(2).is_some_and(|arg| arg == "read-only");
    let router = dashboard(&client, DashboardOptions { read_only, ..DashboardOptions::default() });
    let listener = tokio::net::TcpListener::bind(&addr).await?;
    println!("http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// Makes a job of some kind.
fn job(client: &Client, n: u64) -> NewJob {
    let (kind, queue, _) = KINDS[usize::try_from(n * 7 + n / 5).unwrap_or(0) % KINDS.len()];
    let payload = format!(
        "{{\"user\":{},\"to\":\"user-{n}@example.com\",\"template\":\"welcome\",\"ledger\":{}}}",
        n % 900,
        u128::from(n) + 12_345_678_901_234_567_890_123
    );
    let mut job = NewJob::new(client.make_id(), kind, queue, Payload::json(payload));
    job.group = Some(GROUPS[usize::try_from(n).unwrap_or(0) % GROUPS.len()].to_owned());
    if n.is_multiple_of(4) {
        job.tags = vec!["campaign-7".to_owned(), "vip".to_owned()];
    }
    if n.is_multiple_of(3) {
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        job.headers.insert("traceparent".to_owned(), trace.to_owned());
    }
    job.options.max_attempts = Some(if n.is_multiple_of(5) { 1 } else { 8 });
    job
}

/// Runs a job: most succeed, some fail in ways that services fail.
async fn run(job: JobRecord, ctx: Ctx) -> Outcome {
    let n = job.payload.bytes.iter().fold(7_u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(*b)));
    let percent = KINDS.iter().find(|(kind, ..)| *kind == job.kind).map_or(0, |(.., percent)| *percent);
    ctx.log(format!("fetched {} rows for {}", n % 400, job.group.as_deref().unwrap_or("nobody")));
    if percent <= n % 100 {
        ctx.log("done");
        return Outcome::done_with(n % 1_000);
    }
    match n % 4 {
        0 => Outcome::retry(format!("421 4.7.0 try again later (session {n:08x})")),
        1 => Outcome::retry(format!("timeout after {}.0{} s", n % 30 + 1, n % 10)),
        2 => Outcome::retry(format!("no template \"welcome-{}\" for user {}", n % 7, n % 900)),
        _ => Outcome::Dead(format!("HTTP 410 Gone from https://hooks.example.com/{n}")),
    }
}

async fn settle_in(client: &Client) -> punctual::Result<()> {
    client.queue("media").update(|of| of.concurrency = Some(4)).await?;
    client
        .queue("webhooks")
        .update(|of| {
            of.rate = Some(Rate { max: 600, period_ms: 60_000, burst: 20 });
            of.group = GroupLimits { concurrency: Some(10), ..GroupLimits::default() };
            of.groups =
                [("acme".to_owned(), GroupLimits { weight: Some(3), ..GroupLimits::default() })].into();
        })
        .await?;
    let of = |kind: &str, queue: &str| {
        NewJob::new(client.make_id(), kind, queue, Payload::json("{\"full\":true}"))
    };
    for (name, cron, kind, queue) in [
        ("nightly-report", Cron::new("0 3 * * *")?.in_tz("Europe/Berlin")?, "report.build", "reports"),
        (
            "poll-feeds",
            Cron::every(Duration::from_mins(10))?.on_misfire(Misfire::Skip)?,
            "feed.poll",
            "feeds",
        ),
        ("weekly-digest", Cron::new("30 8 * * mon")?, "email.digest", "mail"),
    ] {
        client.schedule(name).put(Schedule::new(cron, of(kind, queue))?).await?;
    }
    client.schedule("weekly-digest").pause("ana", "new template is reviewed").await?;
    for (topic, queues) in
        [("user.created", &["mail", "crm", "search"][..]), ("order.paid", &["documents", "webhooks"])]
    {
        for queue in queues {
            client.topic(topic).subscribe(queue).await?;
        }
    }
    Ok(())
}

/// Runs workers through the past hour.
async fn live_through(client: &Client, clock: &ManualClock) -> Result<(), Box<dyn Error>> {
    let end = CancellationToken::new();
    let mut worker = Worker::new(client).name("worker-1@web-3").slots(64).handle_raw(run);
    for queue in ["mail", "documents", "media", "webhooks", "reports", "search"] {
        worker = worker.queue(queue);
    }
    let running = tokio::spawn(worker.run_until(end.clone()));
    for step in 0..STEPS {
        let many = 40 + step * 7 % 60;
        client.push((0..many).map(|i| job(client, step * 100 + i)).collect()).await?;
        // Only between runs, since a clock that jumps ends leases.
        while 0 < client.count(None).await?.running + client.count(Some("mail")).await?.due {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        clock.advance(STEP);
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    end.cancel();
    running.await??;
    Ok(())
}

/// Starts a worker with long runs.
fn leave_running(client: &Client) -> tokio::task::JoinHandle<()> {
    let long = async |_: JobRecord, ctx: Ctx| {
        let total = 800;
        for done in (120..total).step_by(3) {
            ctx.progress(done, total);
            ctx.message("scaling images");
            tokio::time::sleep(Duration::from_millis(900)).await;
        }
        Outcome::Done
    };
    let worker = Worker::new(client).name("worker-2@gpu-1").queue("renders").slots(4).handle_raw(long);
    tokio::spawn(async move {
        let _ = worker.run_until(CancellationToken::new()).await;
    })
}

/// Enqueues what is still to come.
async fn ahead(client: &Client) -> punctual::Result<()> {
    let mut jobs = Vec::new();
    for n in 0..420_u64 {
        let mut job = job(client, 5_000 + n);
        let minutes = (n * n / 37 + n * 13) % 70;
        job.run_at = When::In(Duration::from_secs(minutes * 60 + n % 60));
        jobs.push(job);
    }
    for n in 0..900_u64 {
        let mut job = job(client, 9_000 + n);
        job.run_at = When::In(Duration::from_mins((n * 29 + n * n / 11) % 40_000));
        jobs.push(job);
    }
    for n in 0..12_u64 {
        let mut job = NewJob::new(
            client.make_id(),
            "video.render",
            "renders",
            Payload::json(format!("{{\"clip\":{n}}}")),
        );
        job.concurrency = Some(Concurrency { key: format!("gpu-{}", n % 3), limit: 1 });
        job.options.priority = Some(Priority::High);
        jobs.push(job);
    }
    let mut close =
        NewJob::new(client.make_id(), "order.close", "orders", Payload::json("{\"order\":9007199254740993}"));
    close.run_at = When::In(Duration::from_mins(30));
    close.unique = Some(Unique::key("order-9007199254740993"));
    jobs.push(close);
    let image = Payload { bytes: vec![0xff, 0xd8, 0xff, 0x00, 0x10], content_type: "image/jpeg".into() };
    jobs.push(NewJob::new(client.make_id(), "image.store", "media", image));
    for jobs in jobs.chunks(500) {
        client.push(jobs.to_vec()).await?;
    }
    client.queue("reports").pause("ana", "database is moved").await?;
    Ok(())
}
