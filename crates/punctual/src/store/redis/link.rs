//! The connection that carries the verbs. It repairs itself; it never repeats what may have been done.
//!
//! ```text
//! none ──(a call)──► connecting ──► open ──(broken, silent, or READONLY)──► none
//!                        │ failed
//!                        └──► pause, 50 ms doubling to 1 s ──► none
//! ```

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Arg, Cmd, Pipeline, RedisError, Value};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until, timeout},
};

use super::{
    address::Address,
    connection::Connection,
    fault::{self, NOSCRIPT, READONLY},
    script::Script,
    thread::Thread,
};
use crate::error::{Error, Result};

/// How long a connection may take to come about.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long an answer may take before its connection is given up.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Between the first failure to connect and the next attempt, doubling with each.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What came, be it a refusal.
type Answer = Result<Value, Failure>;

/// The way to one server. A call costs two changes of thread, about 10 µs of the 45 µs that it takes over a Unix socket (an
/// echoing script called 5,000 times one after another, Redis 7.0.15, two busy cores). Calls may be made from any runtime, and from several at a time; only of calls that wait for each
/// other's answers the order is known.
#[derive(Debug)]
pub(super) struct Link {
    thread: Arc<Thread>,
    line: Arc<Line>,
}

impl Link {
    /// Connects for the first time.
    ///
    /// # Errors
    /// `Unavailable` where there is no server; `Unsupported` where it lets nobody in.
    pub(super) async fn open(address: &Address) -> Result<Self> {
        Self::open_with(address, ANSWER_MAX).await
    }

    async fn open_with(address: &Address, answer_max: Duration) -> Result<Self> {
        let thread = Arc::new(Thread::start()?);
        let (state, failed) = (Mutex::default(), AtomicU64::new(0));
        let line = Arc::new(Line { address: address.clone(), answer_max, state, failed });
        let link = Self { thread, line };
        let opened = link.on_thread(|line| async move { line.connection().await.map(drop) }).await?;
        opened.map_err(|failure| failure.of("connect"))?;
        Ok(link)
    }

    /// Runs a script; makes the server know it first where it does not.
    ///
    /// # Errors
    /// As `fault` says. `UnknownOutcome` only where the script may have run.
    pub(super) async fn call(
        &self,
        script: &'static Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value> {
        let cmd = script.call(keys, args);
        self.on_thread(move |line| async move { line.call(script, &cmd).await }).await?
    }

    /// Runs a command.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(super) async fn command(&self, cmd: Cmd) -> Result<Value> {
        self.on_thread(move |line| async move { line.command(&cmd).await }).await?
    }

    /// The thread that it lives on.
    pub(super) const fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }

    /// What does the work, for tasks on the thread.
    pub(super) const fn line(&self) -> &Arc<Line> {
        &self.line
    }

    async fn on_thread<T, F>(&self, work: impl FnOnce(Arc<Line>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.thread.run(work(Arc::clone(&self.line))).await
    }
}

/// The work of a [`Link`], on its thread.
#[derive(Debug)]
pub(super) struct Line {
    address: Address,
    answer_max: Duration,
    state: Mutex<State>,
    /// Attempts to connect that failed, ever.
    failed: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// Attempts to connect that failed since the last success.
    failures: u32,
    /// Not before then the next one.
    pause_until: Option<Instant>,
    last: Option<Failure>,
}

/// Why there is no answer at all.
#[derive(Clone, Debug)]
enum Failure {
    /// Nothing was sent.
    Unreachable(RedisError),
    /// Something was.
    Broken(RedisError),
    Silent,
}

impl Failure {
    fn of(self, operation: &str) -> Error {
        match self {
            Self::Unreachable(cause) => fault::unreachable(cause),
            Self::Broken(cause) => fault::lost(operation, cause),
            Self::Silent => fault::silent(operation),
        }
    }
}

impl Line {
    /// Where it leads.
    pub(super) const fn address(&self) -> &Address {
        &self.address
    }

    /// Runs a command.
    pub(super) async fn command(&self, cmd: &Cmd) -> Result<Value> {
        let operation = cmd.args_iter().next().map_or_else(String::new, |arg| match arg {
            Arg::Simple(name) => String::from_utf8_lossy(name).into_owned(),
            _ => String::new(),
        });
        let answer = self.send(async |connection| connection.send(cmd).await).await;
        self.accept(&operation, answer).await
    }

    /// Runs commands in one round trip, whose answers say nothing; the first refusal is an error.
    pub(super) async fn commands(&self, pipeline: &Pipeline) -> Result<()> {
        for answer in self.send_all(pipeline, pipeline.len()).await {
            self.accept("a batch of commands", answer).await?;
        }
        Ok(())
    }

    async fn call(&self, script: &Script, cmd: &Cmd) -> Result<Value> {
        let mut answer = self.send(async |connection| connection.send(cmd).await).await;
        if is_unknown(&answer) {
            answer = self.call_again(script, cmd).await;
        }
        self.accept(script.name(), answer).await
    }

    /// Makes the server know a script and runs it, in one round trip.
    async fn call_again(&self, script: &Script, cmd: &Cmd) -> Answer {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(script.load()).add_command(cmd.clone());
        // A script that could not be loaded is still unknown, and says so.
        self.send_all(&pipeline, 2).await.remove(1)
    }

    /// Sends commands in one round trip; answers each.
    async fn send_all(&self, pipeline: &Pipeline, n: usize) -> Vec<Answer> {
        match self.send(async |connection| connection.send_all(pipeline).await).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(failure) => vec![Err(failure); n],
        }
    }

    /// Sends something over the connection that there is, else over a new one. One that breaks or stays silent is not used
    /// again.
    async fn send<T>(
        &self,
        send: impl AsyncFnOnce(&Connection) -> redis::RedisResult<T>,
    ) -> Result<T, Failure> {
        let connection = self.connection().await?;
        let failure = match timeout(self.answer_max, send(&connection)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(cause)) => Failure::Broken(cause),
            Err(_) => Failure::Silent,
        };
        let mut state = self.state.lock().await;
        // Somebody else may have opened a new one since.
        if state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection)) {
            state.connection = None;
        }
        Err(failure)
    }

    /// Turns what came, or did not, into what a caller gets.
    async fn accept(&self, operation: &str, answer: Answer) -> Result<Value> {
        let refusal = match answer {
            Ok(Value::ServerError(refusal)) => refusal,
            Ok(value) => return Ok(value),
            Err(failure) => return Err(failure.of(operation)),
        };
        if refusal.code() == READONLY {
            // The server's name may lead to another one by now.
            self.state.lock().await.connection = None;
        }
        Err(fault::refused(operation, &refusal))
    }

    /// The connection that there is, else a new one. Those who waited for one attempt share its failure, and after one there
    /// is a pause, so that nobody hammers a server that is down.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let failed_before = self.failed.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(connection));
        }
        if let Some(failure) = &state.last
            && self.failed.load(Ordering::Relaxed) != failed_before
        {
            return Err(failure.clone());
        }
        if let Some(pause) = state.pause_until.take() {
            sleep_until(pause).await;
        }
        match connect(&self.address).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *state = State { connection: Some(Arc::clone(&connection)), ..State::default() };
                Ok(connection)
            }
            Err(cause) => {
                let (failure, failures) = (Failure::Unreachable(cause), state.failures + 1);
                let pause_until = Some(Instant::now() + pause(failures));
                *state = State { connection: None, failures, pause_until, last: Some(failure.clone()) };
                self.failed.fetch_add(1, Ordering::Relaxed);
                Err(failure)
            }
        }
    }
}

/// Connects, within [`CONNECT_MAX`].
pub(super) async fn connect(address: &Address) -> redis::RedisResult<Connection> {
    let opened = timeout(CONNECT_MAX, Connection::open(address)).await;
    opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

/// How long to wait after so many failures in a row; not the same for all processes, which lost the server together.
pub(super) fn pause(failures: u32) -> Duration {
    let doubled = PAUSE_MIN * 2_u32.pow(failures.saturating_sub(1).min(10));
    doubled.min(PAUSE_MAX).mul_f64(0.75 + 0.5 * fastrand::f64())
}

fn is_unknown(answer: &Answer) -> bool {
    matches!(answer, Ok(Value::ServerError(refusal)) if refusal.code() == NOSCRIPT)
}

#[cfg(test)]
mod tests {
    use std::{slice, sync::LazyLock};

    use tokio::runtime::Builder;

    use super::*;
    use crate::{error::ErrorKind, store::redis::server::Server};

    static ECHO: LazyLock<Script> =
        LazyLock::new(|| Script::new("echo", &["local key, arg = KEYS[1], ARGV[1]", "return {key, arg}"]));
    static COUNT: LazyLock<Script> =
        LazyLock::new(|| Script::new("count", &["return redis.call('INCR', KEYS[1])"]));
    static BROKEN: LazyLock<Script> = LazyLock::new(|| Script::new("broken", &["return nothing.at_all"]));

    async fn open(server: &Server) -> Link {
        Link::open(&Address::parse(&server.url()).unwrap()).await.unwrap()
    }

    fn cmd(words: &str) -> Cmd {
        let mut cmd = Cmd::new();
        for word in words.split(' ') {
            cmd.arg(word);
        }
        cmd
    }

    fn bytes(bytes: &[u8]) -> Value {
        Value::BulkString(bytes.to_vec())
    }

    #[tokio::test]
    async fn bytes_go_through_as_they_are() {
        let link = open(Server::shared()).await;
        let odd: Vec<u8> = (0..=u8::MAX).chain(*b"\r\n").collect();
        let answer = link.call(&ECHO, slice::from_ref(&odd), &[Vec::new()]).await.unwrap();
        assert_eq!(answer, Value::Array(vec![bytes(&odd), bytes(b"")]));
        let large = vec![0xff; 3 << 20];
        let answer = link.call(&ECHO, &[Vec::new()], slice::from_ref(&large)).await.unwrap();
        assert_eq!(answer, Value::Array(vec![bytes(b""), bytes(&large)]));
    }

    #[tokio::test]
    async fn a_script_that_the_server_forgot_runs_once() {
        let server = Server::start(&[]);
        let link = open(&server).await;
        for expected in 1..=3 {
            link.command(cmd("SCRIPT FLUSH")).await.unwrap();
            assert_eq!(link.call(&COUNT, &["n".into()], &[]).await.unwrap(), Value::Int(expected));
        }
    }

    #[tokio::test]
    async fn refusals_are_errors_and_the_connection_goes_on() {
        let server = Server::start(&["--maxmemory", "1"]);
        let link = open(&server).await;
        let full = link.call(&COUNT, &["n".into()], &[]).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StoreFull);
        let broken = link.call(&BROKEN, &[], &[]).await.unwrap_err();
        assert_eq!((broken.kind(), broken.to_string().contains("broken")), (ErrorKind::Corrupt, true));
        link.command(cmd("REPLICAOF 127.0.0.1 1")).await.unwrap();
        let replica = link.call(&COUNT, &["n".into()], &[]).await.unwrap_err();
        assert_eq!(replica.kind(), ErrorKind::Unavailable);
        link.command(cmd("REPLICAOF NO ONE")).await.unwrap();
        link.command(cmd("CONFIG SET maxmemory 0")).await.unwrap();
        assert_eq!(link.call(&COUNT, &["n".into()], &[]).await.unwrap(), Value::Int(1));
    }

    #[tokio::test]
    async fn who_is_not_let_in_is_told_so_without_the_password() {
        let server = Server::start(&["--requirepass", "right"]);
        for url in [server.url(), format!("{}&pass=wrong-secret", server.url())] {
            let address = Address::parse(&url).unwrap();
            let outcome = match Link::open(&address).await {
                // Without a password it is let in, but may do nothing.
                Ok(link) => link.command(cmd("PING")).await.map(drop),
                Err(e) => Err(e),
            };
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        let address = Address::parse(&format!("{}&pass=right", server.url())).unwrap();
        Link::open(&address).await.unwrap().command(cmd("PING")).await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_comes_back_is_found_again() {
        let mut server = Server::start(&[]);
        let link = open(&server).await;
        link.call(&COUNT, &["n".into()], &[]).await.unwrap();
        server.kill();
        let error = link.call(&COUNT, &["n".into()], &[]).await.unwrap_err();
        // Which of the two depends on who hears of the death first; from then on nothing is sent.
        assert!(error.is_repeatable(), "{error:?}");
        for _ in 0..3 {
            let error = link.call(&COUNT, &["n".into()], &[]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
        }
        server.restart();
        assert_eq!(link.call(&COUNT, &["n".into()], &[]).await.unwrap(), Value::Int(1));
    }

    #[tokio::test]
    async fn a_connection_that_breaks_under_a_call_leaves_its_outcome_open() {
        let mut server = Server::start(&[]);
        let link = open(&server).await;
        // The one command that is done without an answer.
        let error = link.command(cmd("SHUTDOWN NOSAVE")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome);
        server.restart();
        assert_eq!(link.call(&COUNT, &["n".into()], &[]).await.unwrap(), Value::Int(1));
    }

    #[tokio::test]
    async fn a_server_that_stays_silent_leaves_the_outcome_open_and_its_connection_is_given_up() {
        let server = Server::start(&[]);
        let address = Address::parse(&server.url()).unwrap();
        let link = Link::open_with(&address, Duration::from_millis(50)).await.unwrap();
        server.freeze();
        let error = link.call(&COUNT, &["n".into()], &[]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome);
        server.thaw();
        // On the old connection the late answer would come first.
        let answer = link.call(&ECHO, &["k".into()], &["a".into()]).await.unwrap();
        assert_eq!(answer, Value::Array(vec![bytes(b"k"), bytes(b"a")]));
        let clients = link.command(cmd("CLIENT LIST TYPE normal")).await.unwrap();
        let Value::BulkString(clients) = clients else { panic!("{clients:?}") };
        assert_eq!(String::from_utf8(clients).unwrap().lines().count(), 1);
    }

    #[test]
    fn it_outlives_the_runtime_that_opened_it() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let link = runtime().block_on(open(Server::shared()));
        let answer = runtime().block_on(link.call(&ECHO, &["k".into()], &["a".into()]));
        assert_eq!(answer.unwrap(), Value::Array(vec![bytes(b"k"), bytes(b"a")]));
    }

    #[test]
    fn a_pause_is_bounded() {
        assert!((38..=63).contains(&pause(1).as_millis()));
        assert!(pause(2) < pause(5));
        assert!(pause(u32::MAX) <= PAUSE_MAX.mul_f64(1.25));
    }
}
