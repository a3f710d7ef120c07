//! Refusals that pass: of a server that loads, a user whose rights are being changed, a proxy. Each meets each command that a worker
//! sends. No verdict is lost, no worker ends, and no job runs twice.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use punctual::{Ctx, JobRecord, Worker, job::Filter, store::List, worker::WorkReport};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::*;

/// How long a busy machine may take for what comes within seconds.
const PATIENCE: Duration = Duration::from_mins(2);
/// How many commands of a worker meet each refusal, one worker each: more than it sends for three jobs.
const COMMANDS: u64 = 14;
/// A heartbeat comes every 2 s, and two of them can be late.
const LEASE: Duration = Duration::from_secs(6);
/// How long the runs take: longer than it takes to the first heartbeat.
const RUN: Duration = Duration::from_millis(2_200);

/// What one command meets.
#[derive(Clone, Copy, Debug)]
enum Foreign {
    /// It is not passed on, and this is the answer.
    Says(&'static str),
    /// The connection ends before it is passed on, or after.
    Cut { is_after: bool },
}

const ALL: [Foreign; 9] = [
    Foreign::Says("NOPERM this user has no permissions to run the 'evalsha' command"),
    Foreign::Says("WRONGPASS invalid username-password pair or user is disabled."),
    Foreign::Says("LOADING Redis is loading the dataset in memory"),
    Foreign::Says("READONLY You can't write against a read only replica."),
    Foreign::Says("MOVED 1 127.0.0.1:1"),
    Foreign::Says("ERR max number of clients reached"),
    Foreign::Says("DENIED by the proxy"),
    Foreign::Cut { is_after: false },
    Foreign::Cut { is_after: true },
];

/// A port that leads to a server. One command, by its number since the gate was armed, meets something foreign.
struct Gate {
    port: u16,
    armed: Arc<AtomicU64>,
}

impl Gate {
    async fn to(socket: PathBuf, foreign: Foreign) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let armed = Arc::new(AtomicU64::new(u64::MAX));
        let left = Arc::clone(&armed);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (socket, left) = (socket.clone(), Arc::clone(&left));
                tokio::spawn(async move {
                    carry(client, UnixStream::connect(socket).await?, &left, foreign).await
                });
            }
        });
        Self { port, armed }
    }

    /// The command after so many others meets it.
    fn arm(&self, after: u64) {
        self.armed.store(after, Ordering::SeqCst);
    }
}

/// Passes commands on, one after another, and their answers back.
async fn carry(
    mut client: TcpStream,
    mut server: UnixStream,
    left: &AtomicU64,
    foreign: Foreign,
) -> io::Result<()> {
    let (mut asked, mut said) = (Vec::new(), Vec::new());
    loop {
        let command = next(&mut client, &mut asked).await?;
        let count = |left: u64| (left != u64::MAX).then(|| left.wrapping_sub(1));
        let is_met = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count) == Ok(0);
        match foreign {
            Foreign::Says(text) if is_met => {
                client.write_all(format!("-{text}\r\n").as_bytes()).await?;
                continue;
            }
            Foreign::Cut { is_after: false } if is_met => return Ok(()),
            _ => {}
        }
        server.write_all(&command).await?;
        let answer = next(&mut server, &mut said).await?;
        if is_met {
            return Ok(());
        }
        client.write_all(&answer).await?;
    }
}

/// Reads one whole command or answer.
async fn next(from: &mut (impl AsyncRead + Unpin), read: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    loop {
        if let Some(n) = length(read) {
            return Ok(read.drain(..n).collect());
        }
        if from.read_buf(read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The length of the first value in these bytes, if it is whole (RESP2).
fn length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).unwrap().parse::<i64>().unwrap();
    match bytes[0] {
        b'$' => {
            let whole = usize::try_from(number()).map_or(end, |n| end + n + 2);
            (whole <= bytes.len()).then_some(whole)
        }
        b'*' => (0..number()).try_fold(end, |at, _| Some(at + length(bytes.get(at..)?)?)),
        _ => Some(end),
    }
}

/// Jobs whose runs take so long.
fn jobs_of(client: &Client, n: usize, run: Duration) -> Vec<NewJob> {
    let mut jobs = jobs(client, n);
    for job in &mut jobs {
        job.options.lease = Some(LEASE);
        job.payload = Payload::json(run.as_millis().to_string());
    }
    jobs
}

/// A worker of the queue.
struct Working {
    stop: CancellationToken,
    ends: JoinHandle<punctual::Result<WorkReport>>,
    /// How many runs have ended.
    ran: Arc<AtomicU64>,
}

impl Working {
    fn on(client: &Client) -> Self {
        let (stop, ran) = (CancellationToken::new(), Arc::<AtomicU64>::default());
        let counted = Arc::clone(&ran);
        let worker = Worker::new(client).queue("mail").serve_topics(false);
        let worker = worker.handle_raw(move |job: JobRecord, _: Ctx| {
            let counted = Arc::clone(&counted);
            let run = std::str::from_utf8(&job.payload.bytes).unwrap().parse().unwrap();
            async move {
                sleep(Duration::from_millis(run)).await;
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { stop: stop.clone(), ends: tokio::spawn(worker.run_until(stop)), ran }
    }
}

/// Waits until so many jobs are done; a worker that has ended fails the test.
async fn until_done(direct: &Client, n: u64, working: &Working, what: &str) {
    let done = async {
        while direct.count(None).await.unwrap().done < n {
            assert!(!working.ends.is_finished(), "{what}: the worker ended");
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, done).await.unwrap_or_else(|_| panic!("{what}: not all jobs are done"));
}

/// No job ran twice, and each verdict was settled.
async fn all_ran_once(direct: &Client, report: &WorkReport, n: u64, what: &str) {
    assert_eq!((report.done, report.runs(), report.lost), (n, n, 0), "{what}: {report:?}");
    let list = List { filter: Filter::all(), after: None, limit: 9 };
    for job in direct.list(&list).await.unwrap().jobs {
        assert_eq!((job.attempt, job.failures.len()), (1, 0), "{what}: {job:?}");
    }
}

async fn works(server: &Server, foreign: Foreign, after: u64) {
    let what = format!("{foreign:?} after {after} commands");
    // Each address has a prefix of its own.
    let url = server.url();
    let direct = Client::new(open(&url).await);
    let gate = Gate::to(server.socket(), foreign).await;
    let (_, prefix) = url.split_once("prefix=").unwrap();
    let url = format!("redis://127.0.0.1:{}/0?prefix={prefix}", gate.port);
    let client = Client::new(open(&url).await);
    let working = Working::on(&client);
    direct.push(jobs_of(&direct, 1, Duration::ZERO)).await.unwrap();
    until_done(&direct, 1, &working, &what).await;
    gate.arm(after);
    direct.push(jobs_of(&direct, 2, RUN)).await.unwrap();
    until_done(&direct, 3, &working, &what).await;
    working.stop.cancel();
    all_ran_once(&direct, &working.ends.await.unwrap().unwrap(), 3, &what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_works_on_whatever_one_of_its_commands_meets() {
    let server = Server::start(&[]);
    for foreign in ALL {
        join_all((0..COMMANDS).map(|after| works(&server, foreign, after))).await;
    }
}

/// The number behind a name in what a server says.
fn number(text: &str, name: &str) -> u64 {
    let (_, rest) = text.split_once(name).unwrap_or((name, "0"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

/// An operator takes the right to run scripts away, then the password, each until the worker has met it, and gives it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_works_on_after_its_user_was_changed() {
    let server = Server::start(&["--user", "ana", "on", ">secret", "~*", "+@all"]);
    let url = server.url();
    let direct = Client::new(open(&url).await);
    let client = Client::new(open(&(url + "&user=ana&pass=secret")).await);
    let working = Working::on(&client);
    direct.push(jobs_of(&direct, 1, Duration::ZERO)).await.unwrap();
    until_done(&direct, 1, &working, "before").await;

    server.say(&["ACL", "SETUSER", "ana", "-evalsha"]);
    direct.push(jobs_of(&direct, 1, Duration::ZERO)).await.unwrap();
    let rejected = async || {
        let stats = server.say(&["INFO", "commandstats"]);
        let of =
            stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default().to_owned();
        number(&of, "rejected_calls=")
    };
    while rejected().await < 3 {
        assert!(!working.ends.is_finished(), "the worker ended without its right");
        sleep(LOOK).await;
    }
    server.say(&["ACL", "SETUSER", "ana", "+evalsha"]);
    until_done(&direct, 2, &working, "without the right").await;

    direct.push(jobs_of(&direct, 1, RUN)).await.unwrap();
    while direct.count(None).await.unwrap().running == 0 {
        sleep(LOOK).await;
    }
    // While it runs: its verdict meets this.
    server.say(&["ACL", "SETUSER", "ana", "resetpass", ">other"]);
    server.say(&["ACL", "LOG", "RESET"]);
    server.say(&["CLIENT", "KILL", "USER", "ana"]);
    let refused = || number(&server.say(&["ACL", "LOG", "1"]).replace('\n', " "), "count ");
    while refused() < 3 || working.ran.load(Ordering::SeqCst) < 3 {
        assert!(!working.ends.is_finished(), "the worker ended without its password");
        sleep(LOOK).await;
    }
    server.say(&["ACL", "SETUSER", "ana", "resetpass", ">secret"]);
    until_done(&direct, 3, &working, "without the password").await;
    working.stop.cancel();
    all_ran_once(&direct, &working.ends.await.unwrap().unwrap(), 3, "in the end").await;
}

/// What a process was notified of before a call of it is refused is there for afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_costs_no_notification() {
    let server = Server::start(&["--user", "ana", "on", ">secret", "~*", "+@all"]);
    let url = server.url();
    let direct = Client::new(open(&url).await);
    let store = open(&format!("{url}&user=ana&pass=secret")).await;
    store.sweep(1).await.unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.wait(&["mail".to_owned()], PATIENCE).await }
    });
    until_blocked(&server, 1).await;
    let mut later = jobs(&direct, 1);
    later[0].run_at = When::In(Duration::from_secs(1));
    direct.push(later).await.unwrap();
    while server.say(&["EXISTS", &super::key(&url, "w:mail")]).trim() != "0" {
        sleep(LOOK).await;
    }
    server.say(&["ACL", "SETUSER", "ana", "-evalsha"]);
    store.sweep(1).await.unwrap_err();
    server.say(&["ACL", "SETUSER", "ana", "+evalsha"]);
    let begin = Instant::now();
    waiting.await.unwrap().unwrap();
    assert!(begin.elapsed() < PATIENCE / 2, "it was notified after {:?}", begin.elapsed());
}
