//! `punctual bench instructions`: how many instructions a server of Redis executes for one job at a time, counted by callgrind.
//!
//! The server is one of our own: what else the machine does changes no count. A dump of callgrind has the instructions since the dump
//! before, network and Lua included. Enqueues are calls of one job. The other column is the ack of a job together with the reserve of
//! the next one, as a worker with one slot sends them. The first calls, which load scripts, are not counted.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt, fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use punctual::{
    Client, NewJob, Payload, Unique, When,
    job::Concurrency,
    store::{
        CallId, Heartbeat, Keep, Lease, QueueOp, QueueRequest, QueueSettings, Reserve, Settled, Settlement,
        Store, Take, Verdict, clock::Clock, redis::RedisStore,
    },
};
use redis::{Script, aio::MultiplexedConnection};
use serde::Serialize;
use tempfile::TempDir;

use super::{PAYLOAD_BYTES, QUEUE, figures::Instructions, script, step};

/// How long the server may take to answer after its start. Under callgrind it is 50 times slower.
const START_MAX: Duration = Duration::from_mins(1);
/// How long it may take for one answer.
const ANSWER_MAX: Duration = Duration::from_mins(1);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Runs the server until the input ends, which the system sees to however this process ends.
const GUARD: &str = r#""$@" </dev/null & read -r _; kill -KILL $!; wait"#;
/// Calls before the count begins.
const WARM_UP: usize = 8;
/// The bound of done jobs in the row "retention at its bound". The queue is filled to it first.
const BOUND: u64 = 1_024;
/// Jobs per call while the queue is filled.
const FILL: u64 = 128;
/// The jobs that are counted in that row: two sweeps, one after every 65 acks.
const AT_BOUND: usize = 2 * 65;
/// Groups over which jobs with a group are spread.
const GROUPS: usize = 10;

/// How many jobs are counted.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
The command starts a redis-server of its own under callgrind, and leaves --store alone. It needs redis-server and valgrind on \
the path. The table shows thousands of instructions of the server for one job, and JSON shows instructions.

Examples:
  punctual bench instructions
  punctual bench instructions --jobs 20 -o json")]
pub(crate) struct Sizes {
    /// Number of jobs of each row, a tenth of it for payloads over 1 KiB, 20 to 10,000 (default: 100). Retention at its bound always
    /// takes 130.
    #[arg(long, default_value_t = 100, hide_default_value = true, value_name = "N", value_parser = clap::value_parser!(u32).range(20..=10_000))]
    jobs: u32,
}

/// What jobs of a row are like.
struct Shape {
    name: &'static str,
    keep: Keep,
    payload_bytes: usize,
    shards: u16,
    /// Gives the job of a number what the row is about.
    with: fn(NewJob, usize) -> NewJob,
}

impl Shape {
    const PLAIN: Self = Self {
        name: "plain",
        keep: Keep::NOTHING,
        payload_bytes: PAYLOAD_BYTES,
        shards: 1,
        with: |job, _| job,
    };

    fn all() -> [Self; 10] {
        [
            Self::PLAIN,
            Self { name: "default retention", keep: Keep::SHORT, ..Self::PLAIN },
            Self {
                name: "retention at its bound",
                keep: Keep { count: BOUND, ..Keep::SHORT },
                ..Self::PLAIN
            },
            Self {
                name: "unique key",
                with: |job, n| NewJob { unique: Some(Unique::key(format!("user:{n}"))), ..job },
                ..Self::PLAIN
            },
            Self {
                name: "concurrency key",
                with: |job, n| NewJob {
                    concurrency: Some(Concurrency { key: format!("row:{n}"), limit: 1 }),
                    ..job
                },
                ..Self::PLAIN
            },
            Self {
                name: "group",
                with: |job, n| NewJob { group: Some(format!("tenant:{}", n % GROUPS)), ..job },
                ..Self::PLAIN
            },
            Self { name: "1 KiB", payload_bytes: 1 << 10, ..Self::PLAIN },
            Self { name: "100 KiB", payload_bytes: 100 << 10, ..Self::PLAIN },
            Self { name: "1 MiB", payload_bytes: (1 << 20) - 16, ..Self::PLAIN },
            Self { name: "16 shards", shards: 16, ..Self::PLAIN },
        ]
    }
}

/// Instructions of a row, for one job.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    enqueue: u64,
    /// The ack with the next reserve.
    ack_and_reserve: u64,
    life: u64,
    /// The life beside that of bare scripts with the same payload.
    ratio: f64,
}

impl Row {
    /// `counts` are those of an enqueue and of an ack with a reserve, `bare` is the life of bare scripts (default: this is theirs).
    fn new(name: String, (enqueue, ack_and_reserve): (u64, u64), bare: Option<u64>) -> Self {
        let life = enqueue + ack_and_reserve;
        let ratio = (life as f64 / bare.unwrap_or(life).max(1) as f64 * 100.0).round() / 100.0;
        Self { name, enqueue, ack_and_reserve, life, ratio }
    }
}

/// The counts of all rows.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    server: String,
    jobs: u32,
    rows: Vec<Row>,
    calls: Vec<Call>,
}

/// Instructions of a call that is no part of a plain life.
#[derive(Debug, Serialize)]
struct Call {
    name: &'static str,
    instructions: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, thousands of instructions a job", self.server)?;
        writeln!(f, "{:<30}{:>10}{:>16}{:>10}{:>9}", "", "enqueue", "ack + reserve", "life", "× bare")?;
        let thousands = |n: u64| n as f64 / 1e3;
        for row in &self.rows {
            let (enqueue, next, life) =
                (thousands(row.enqueue), thousands(row.ack_and_reserve), thousands(row.life));
            writeln!(f, "{:<30}{enqueue:>10.1}{next:>16.1}{life:>10.1}{:>9.2}", row.name, row.ratio)?;
        }
        for call in &self.calls {
            writeln!(f, "{:<30}{:>26.1}", call.name, thousands(call.instructions))?;
        }
        Ok(())
    }
}

/// Counts a life of a plain job with default retention, and one of bare scripts. `None` if callgrind or the server is not there.
pub(super) async fn one_by_one() -> Result<Option<Instructions>> {
    const JOBS: usize = 50;
    if missing().is_some() {
        return Ok(None);
    }
    step("instructions of a server");
    let mut server = Callgrind::start().await?;
    let sum = |(enqueue, next)| enqueue + next;
    let bare = sum(server.bare(JOBS, PAYLOAD_BYTES).await?);
    let kept = Shape { keep: Keep::SHORT, ..Shape::PLAIN };
    let life = sum(server.lives(0, &kept, JOBS).await?);
    Ok(Some(Instructions { server_instructions_per_life: life, server_instructions_per_life_bare: bare }))
}

/// Returns the first program that is not on the path.
fn missing() -> Option<&'static str> {
    ["redis-server", "valgrind"].into_iter().find(|program| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    })
}

/// Counts everything.
pub(super) async fn measure(sizes: &Sizes) -> Result<Figures> {
    step("the server under callgrind");
    let mut server = Callgrind::start().await?;
    let (mut rows, mut bare_lives) = (Vec::new(), BTreeMap::new());
    for (at, shape) in Shape::all().into_iter().enumerate() {
        let jobs = match &shape {
            shape if shape.keep.count == BOUND => AT_BOUND,
            shape if shape.payload_bytes <= 1 << 10 => sizes.jobs as usize,
            _ => sizes.jobs as usize / 10,
        };
        let bytes = shape.payload_bytes;
        if let Entry::Vacant(entry) = bare_lives.entry(bytes) {
            let name = format!("bare scripts, {bytes} bytes");
            step(&name);
            let row = Row::new(name, server.bare(jobs, bytes).await?, None);
            entry.insert(row.life);
            rows.push(row);
        }
        step(shape.name);
        let counts = server.lives(at, &shape, jobs).await?;
        rows.push(Row::new(shape.name.to_owned(), counts, bare_lives.get(&bytes).copied()));
    }
    step("other calls");
    let calls = server.calls(Shape::all().len(), sizes.jobs as usize).await?;
    Ok(Figures { server: server.version().await?, jobs: sizes.jobs, rows, calls })
}

/// A server under callgrind, in a folder of its own. It ends with its value.
struct Callgrind {
    child: Child,
    folder: TempDir,
    connection: Option<MultiplexedConnection>,
    dumps: u32,
}

impl Drop for Callgrind {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Callgrind {
    async fn start() -> Result<Self> {
        if let Some(program) = missing() {
            bail!("{program} is not on the path; on Debian: apt-get install redis-server valgrind");
        }
        let folder = tempfile::Builder::new().prefix("punctual-callgrind-").tempdir()?;
        let at = |name: &str| folder.path().join(name).display().to_string();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            GUARD,
            "sh",
            "valgrind",
            "--tool=callgrind",
            "--vgdb=no",
            "--dump-before=echoCommand",
        ]);
        command.arg(format!("--callgrind-out-file={}", at("out")));
        // Its own upkeep, once a second, is the only thing that is not the work of a call.
        command.args(["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--hz", "1"]);
        command.args(["--unixsocket", &at("s"), "--dir", &at(""), "--logfile", &at("log")]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("could not start a shell")?;
        let mut server = Self { child, folder, connection: None, dumps: 0 };
        let begin = Instant::now();
        let client = redis::Client::open(server.address())?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_MAX));
        loop {
            if let Ok(connection) = client.get_multiplexed_async_connection_with_config(&config).await {
                server.connection = Some(connection);
                return Ok(server);
            }
            if server.child.try_wait()?.is_some() || START_MAX < begin.elapsed() {
                bail!(
                    "the server does not answer: {}",
                    fs::read_to_string(server.file("log")).unwrap_or_default()
                )
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn address(&self) -> String {
        format!("redis+unix://{}", self.file("s").display())
    }

    fn connection(&self) -> MultiplexedConnection {
        self.connection.clone().expect("invariant: a started server has a connection")
    }

    async fn version(&self) -> Result<String> {
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut self.connection()).await?;
        let line = |name| info.lines().find_map(|line| line.strip_prefix(name));
        let valkey = line("valkey_version:").map(|version| format!("Valkey {version}"));
        let redis = || line("redis_version:").map(|version| format!("Redis {version}"));
        Ok(valkey.or_else(redis).unwrap_or_default())
    }

    /// Returns the instructions since the count before. Callgrind dumps them when the server begins to execute ECHO.
    async fn count(&mut self) -> Result<u64> {
        let () = redis::cmd("ECHO").arg("").query_async(&mut self.connection()).await?;
        self.dumps += 1;
        let dump = fs::read_to_string(self.file(&format!("out.{}", self.dumps)))?;
        let line = dump.lines().find_map(|line| line.strip_prefix("summary: "));
        Ok(line.context("a dump of callgrind has a sum")?.parse()?)
    }

    /// Counts lives in the bare scripts, which leave nothing behind. Returns instructions of an enqueue, and of an ack with the next reserve.
    async fn bare(&mut self, jobs: usize, payload_bytes: usize) -> Result<(u64, u64)> {
        let mut connection = self.connection();
        let [enqueue, reserve, ack] = [script::ENQUEUE, script::RESERVE, script::ACK].map(Script::new);
        let mut load = redis::pipe();
        for script in [&enqueue, &reserve, &ack] {
            load.load_script(script).ignore();
        }
        let () = load.query_async(&mut connection).await?;
        let body = vec![b'1'; payload_bytes];
        let mut enqueued = 0;
        for n in 0..WARM_UP + jobs {
            if n == WARM_UP {
                self.count().await?;
            }
            let id = [(n as u64).to_be_bytes(), fastrand::u64(..).to_be_bytes()].concat();
            let mut call = enqueue.prepare_invoke();
            call.key("bare:j").key("bare:t").arg(id).arg(n).arg(&body);
            let () = call.invoke_async(&mut connection).await?;
            if n + 1 == WARM_UP + jobs {
                enqueued = self.count().await?;
            }
        }
        let mut ended: Vec<Vec<u8>> = Vec::new();
        for n in 0..WARM_UP + jobs {
            if n == WARM_UP {
                self.count().await?;
            }
            let mut calls = redis::pipe();
            if !ended.is_empty() {
                calls.invoke_script(ack.key("bare:j").key("bare:l").arg(&ended)).ignore();
            }
            let mut call = reserve.prepare_invoke();
            call.key("bare:j").key("bare:t").key("bare:l").arg("+inf").arg(15_000).arg(1);
            let (reserved,): (Vec<Vec<Vec<u8>>>,) =
                calls.invoke_script(&call).query_async(&mut connection).await?;
            ended = reserved.into_iter().next().context("a job is left")?;
        }
        let ended = self.count().await?;
        let () = redis::cmd("FLUSHDB").query_async(&mut connection).await?;
        Ok((enqueued / jobs as u64, ended / jobs as u64))
    }

    /// Counts lives of a shape, in the same way.
    async fn lives(&mut self, at: usize, shape: &Shape, jobs: usize) -> Result<(u64, u64)> {
        let url = format!("{}?prefix=row{at}", self.address());
        if 1 < shape.shards {
            RedisStore::open(&url, Clock::System).await?.reshard(shape.shards).await?;
        }
        let client = Client::connect(&url).await?;
        let store = Arc::clone(client.store());
        let settings = QueueSettings { done: shape.keep, ..QueueSettings::default() };
        store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await?;
        let mut calls = Calls::default();
        let payload = Payload::json(vec![b'1'; shape.payload_bytes]);
        if shape.keep.count == BOUND {
            for _ in 0..BOUND / FILL {
                let jobs = (0..FILL).map(|_| NewJob::new(client.make_id(), "bench", QUEUE, payload.clone()));
                let _ = store.enqueue(calls.next(), &jobs.collect::<Vec<_>>()).await?;
                let take = Take { queue: QUEUE.to_owned(), n: FILL as usize, older_than: Duration::ZERO };
                let _ = store.take(&take).await?;
            }
        }
        for n in 0..WARM_UP {
            let job = (shape.with)(NewJob::new(client.make_id(), "bench", QUEUE, payload.clone()), n);
            let _ = store.enqueue(calls.next(), &[job]).await?;
        }
        self.count().await?;
        for n in WARM_UP..WARM_UP + jobs {
            let job = (shape.with)(NewJob::new(client.make_id(), "bench", QUEUE, payload.clone()), n);
            let _ = store.enqueue(calls.next(), &[job]).await?;
        }
        let enqueued = self.count().await?;
        let mut lease = None;
        for n in 0..WARM_UP + jobs {
            if n == WARM_UP {
                self.count().await?;
            }
            let ack = lease.map(|lease| Settlement { lease, verdict: Verdict::Ack });
            lease = Some(calls.next_job(store.as_ref(), ack).await?);
        }
        let ended = self.count().await?;
        drop(client);
        Ok((enqueued / jobs as u64, ended / jobs as u64))
    }

    /// Counts heartbeats of a running job, and retries that come with the reserve of the next job.
    async fn calls(&mut self, at: usize, counted: usize) -> Result<Vec<Call>> {
        let client = Client::connect(&format!("{}?prefix=row{at}", self.address())).await?;
        let store = Arc::clone(client.store());
        let settings = QueueSettings { done: Keep::NOTHING, ..QueueSettings::default() };
        store.queue(QUEUE, &QueueOp::Set(Box::new(settings))).await?;
        let mut calls = Calls::default();
        let payload = Payload::json(vec![b'1'; PAYLOAD_BYTES]);
        for _ in 0..WARM_UP {
            let job = NewJob::new(client.make_id(), "bench", QUEUE, payload.clone());
            let _ = store.enqueue(calls.next(), &[job]).await?;
        }
        let mut lease = calls.next_job(store.as_ref(), None).await?;
        for n in 0..WARM_UP + counted {
            if n == WARM_UP {
                self.count().await?;
            }
            let _ = store.extend(&[Heartbeat::from(lease)]).await?;
        }
        let beats = self.count().await?;
        for n in 0..WARM_UP + counted {
            if n == WARM_UP {
                self.count().await?;
            }
            let retry = Verdict::Retry { at: When::Now, error: "timeout".to_owned() };
            lease = calls.next_job(store.as_ref(), Some(Settlement { lease, verdict: retry })).await?;
        }
        let retries = self.count().await?;
        let each = |name, n| Call { name, instructions: n / counted as u64 };
        Ok(vec![each("heartbeat", beats), each("retry with the next reserve", retries)])
    }
}

/// Numbers of calls.
#[derive(Default)]
struct Calls(u64);

impl Calls {
    fn next(&mut self) -> CallId {
        self.0 += 1;
        CallId { instance: 1, number: self.0 }
    }

    /// Settles a job, and reserves the next one.
    async fn next_job(&mut self, store: &dyn Store, settlement: Option<Settlement>) -> Result<Lease> {
        let mut settlements: Vec<Settlement> = settlement.into_iter().collect();
        // A store with several shards may find the next job in a later call.
        loop {
            let queues = vec![QueueRequest { queue: QUEUE.to_owned(), share: 1, at_most: 1 }];
            let want = Reserve {
                call: self.next(),
                worker: "bench".to_owned(),
                queues,
                n: 1,
                lease: None,
                company: false,
            };
            let (settled, reserved) = store.settle(&settlements, Some(&want)).await?;
            ensure!(
                settled.iter().all(|settled| matches!(settled, Settled::Settled(..))),
                "a settlement was refused"
            );
            settlements.clear();
            if let Some(job) = reserved.and_then(|reserved| reserved.jobs.into_iter().next()) {
                return Ok(job.lease);
            }
        }
    }
}
