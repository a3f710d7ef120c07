//! The processes that are killed. Each writes a history of its own.

use std::{
    net::SocketAddr,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use punctual::{
    CancellationToken, Client, Ctx, JobRecord, NewJob, Worker,
    store::{Store, url::connect},
};
use punctual_check::{
    Recorder, RecordingStore,
    event::{Hex, What},
};
use punctual_forward::Target;
use punctual_server::Server;

use crate::{away, forward, jobs, limits, locks, races, schedules, stuck, topics, watch::Watch};

/// How many publications a worker hands out at once, beside its jobs: `SLOTS` in `worker/publication.rs` of the library. Of the workers
/// that record what they do, only those of slices get any.
const PUBLICATIONS: usize = 16;

/// Jobs that a producer hands over at once.
const BATCH: u32 = 100;

/// How long a call to a store that is away is repeated: by a child that starts meanwhile, say.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// Before it tries again.
const PAUSE: Duration = Duration::from_millis(50);

/// Jobs that a stream hands over at once.
const DROPS: usize = 10;

/// How a worker runs some of its jobs.
type Handler = Box<dyn Fn(JobRecord, Ctx) -> BoxFuture<'static, punctual::Outcome> + Send + Sync>;

/// `gateway STORE NOTES PROC ADDRESS`, `forwarder STORE NOTES PROC ADDRESS SLOTS LEASE_MS`, `beside STORE NOTES PROC`, `locker STORE HISTORY PROC SLOTS`, `stuck STORE NOTES PROC HEALTH`, `away STORE NOTES PROC LEASE_MS`, `ticker STORE NOTES PROC`, `subscriber STORE NOTES PROC SLOTS LEASE_MS`, `limited STORE NOTES PROC SLOTS LEASE_MS`,
/// `worker STORE HISTORY PROC SLOTS LEASE_MS QUEUE…`, `worker-forwarder STORE HISTORY PROC SLOTS LEASE_MS ADDRESS QUEUE…`, `producer STORE HISTORY PROC JOBS`,
/// `racer STORE HISTORY PROC JOBS BEGIN_MS ME`, or `stream STORE HISTORY PROC JOBS FIRST STEP OVER_MS`, and `feed`, which has jobs of all sorts, alike.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a process can start threads");
    match runtime.block_on(child(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("punctual-chaos child: {problem}");
            ExitCode::FAILURE
        }
    }
}

async fn child(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["worker", store, history, proc, slots, lease_ms, ref queues @ ..] => {
            let (slots, lease) = (slots.parse()?, Duration::from_millis(lease_ms.parse()?));
            let (client, recorder, _watch) = open(store, history, proc, slots, 0).await?;
            work(&client, recorder, queues, slots, lease, None).await
        }
        ["worker-forwarder", store, history, proc, slots, lease_ms, to, ref queues @ ..] => {
            let (slots, lease) = (slots.parse()?, Duration::from_millis(lease_ms.parse()?));
            let (client, recorder, _watch) = open(store, history, proc, slots, PUBLICATIONS).await?;
            let forward = Target::parse(to)?.allow_private().forwarder()?.handler();
            work(&client, recorder, queues, slots, lease, Some(Box::new(forward))).await
        }
        ["locker", store, history, proc, slots] => {
            let dir = Path::new(history).parent().ok_or("a history in no folder")?;
            locks::work(store, dir, proc, slots.parse()?).await
        }
        ["forwarder", store, _, proc, to, slots, lease_ms] => {
            let (slots, lease) = (slots.parse()?, Duration::from_millis(lease_ms.parse()?));
            forward::forward(store, proc, to, slots, lease).await
        }
        ["beside", store, notes, proc] => forward::work_locally(store, notes, proc).await,
        ["stuck", store, _, proc, health] => stuck::work(store, health, proc).await,
        ["away", store, notes, proc, lease_ms] => {
            away::work(store, notes, proc, Duration::from_millis(lease_ms.parse()?)).await
        }
        ["ticker", store, notes, proc] => schedules::work(store, notes, proc).await,
        ["subscriber", store, notes, proc, slots, lease_ms] => {
            let (slots, lease) = (slots.parse()?, Duration::from_millis(lease_ms.parse()?));
            topics::work(store, notes, proc, slots, lease).await
        }
        ["limited", store, notes, proc, slots, lease_ms] => {
            let (slots, lease) = (slots.parse()?, Duration::from_millis(lease_ms.parse()?));
            limits::work(store, notes, proc, slots, lease).await
        }
        ["gateway", store, _, _, addr] => serve(store, addr.parse()?).await,
        ["producer", store, history, proc, jobs] => {
            let (client, _, _watch) = open(store, history, proc, 0, 0).await?;
            produce(&client, jobs.parse()?).await
        }
        ["racer", store, history, proc, jobs, begin_ms, me] => {
            let (client, _, _watch) = open(store, history, proc, 0, 0).await?;
            races::race(&client, jobs.parse()?, begin_ms.parse()?, me.parse()?).await
        }
        [role @ ("stream" | "feed"), store, history, proc, jobs, first, step, over_ms] => {
            let (client, _, _watch) = open(store, history, proc, 0, 0).await?;
            let numbers: Vec<u32> = (first.parse()?..=jobs.parse()?).step_by(step.parse()?).collect();
            let job = if role == "feed" { jobs::of_all_sorts } else { |n| jobs::mixed(n, Duration::ZERO) };
            stream(&client, &numbers, job, Duration::from_millis(over_ms.parse()?)).await
        }
        _ => Err(format!("{args:?} are no arguments of a child").into()),
    }
}

async fn open(
    url: &str,
    history: &str,
    proc: &str,
    slots: usize,
    publications: usize,
) -> Result<(Client, Arc<Recorder>, Watch), Box<dyn std::error::Error>> {
    let recorder = Arc::new(Recorder::create(Path::new(history), proc, slots as u64, publications as u64)?);
    let watch = Watch::begin(Some(Arc::clone(&recorder)), None)?;
    let store = reach(url).await?;
    Ok((Client::new(Arc::new(RecordingStore::new(store, Arc::clone(&recorder)))), recorder, watch))
}

/// The server may be killed just when a child on a busy machine gets to it.
pub(crate) async fn reach(url: &str) -> punctual::Result<Arc<dyn Store>> {
    until_reached(async || connect(url).await).await
}

/// Makes a call that may be made again, again and again while the store is away.
pub(crate) async fn until_reached<T>(call: impl AsyncFn() -> punctual::Result<T>) -> punctual::Result<T> {
    let begin = Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_repeatable() && begin.elapsed() < AWAY_MAX => {
                tokio::time::sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}

/// Works until SIGTERM, or SIGKILL.
async fn work(
    client: &Client,
    recorder: Arc<Recorder>,
    queues: &[&str],
    slots: usize,
    lease: Duration,
    forward: Option<Handler>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (name, forward) = (recorder.proc().to_owned(), Arc::new(forward));
    let worker = Worker::new(client);
    let worker = match *forward {
        // Without shares, a queue would wait until there is nothing due in the one before it.
        Some(_) => worker.weighted(queues.iter().map(|queue| (*queue, 1))),
        None => queues.iter().fold(worker, |worker, queue| worker.queue(*queue)),
    };
    worker
        .name(name)
        .slots(slots)
        .lease(lease)
        .handle_raw(move |job: JobRecord, ctx: Ctx| {
            let (recorder, forward) = (Arc::clone(&recorder), Arc::clone(&forward));
            async move {
                let (id, fence) = (job.id, ctx.fence());
                recorder.note(What::Start { id, fence, sum: Hex::fingerprint(&job.payload.bytes) });
                let outcome = match &*forward {
                    Some(forward) if job.kind == jobs::FORWARDED => forward(job, ctx).await,
                    _ => jobs::handle(&job, &ctx).await,
                };
                recorder.note(What::End { id, fence });
                outcome
            }
        })
        .run()
        .await?;
    Ok(())
}

/// Serves a store over HTTP until SIGKILL.
async fn serve(store: &str, addr: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::new(&Client::connect(store).await?);
    Ok(server.serve(addr, &CancellationToken::new(), |_| ()).await?)
}

/// Hands over all jobs, from the first on, whatever an earlier run of it did.
async fn produce(client: &Client, jobs: u32) -> Result<(), Box<dyn std::error::Error>> {
    for from in (0..jobs).step_by(BATCH as usize) {
        client.push((from..jobs.min(from + BATCH)).map(jobs::plain).collect()).await?;
    }
    Ok(())
}

/// Hands over jobs little by little.
async fn stream(
    client: &Client,
    numbers: &[u32],
    job: fn(u32) -> NewJob,
    over: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let between = over.mul_f64(DROPS as f64 / numbers.len().max(1) as f64).max(Duration::from_micros(1));
    // Who was held up catches up.
    let mut drops = tokio::time::interval(between);
    for numbers in numbers.chunks(DROPS) {
        drops.tick().await;
        client.push(numbers.iter().map(|n| job(*n)).collect()).await?;
    }
    Ok(())
}
