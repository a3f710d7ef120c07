//! The connection for the verbs of one shard. It reconnects, and follows the shard's keys from server to server. It
//! never repeats a call that may have been done.
//!
//! ```text
//! none ──(a call)──► connecting ──► open ──(broken, silent, or another server has the keys)──► none
//!                        │ failed
//!                        └──► pause, 50 ms doubling to 1 s ──► none
//! ```

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Arg, Cmd, Pipeline, RedisError, Value};
use tokio::{
    sync::{Notify, OnceCell, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    core::error::{Error, Result},
    store::redis::{
        connection::{
            Connection,
            address::{Address, Topology},
            awake::Awake,
            durability::{self, Confirm, Unconfirmed, Unfit},
            fault::{self, READONLY},
            io_thread::Thread,
            node::Node,
            preflight::{self, Unsuitable},
            redirect::{Detour, Patience},
            route::Route,
        },
        lock,
        scripts::script::Script,
    },
};

/// How long an answer can take before its connection is dropped.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The first pause between attempts to connect. It doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// An answer or a refusal.
type Answer = Result<Value, Failure>;

/// The connection to one shard.
///
/// A call costs two changes of thread: about 10 µs of the 45 µs that it takes over a Unix socket. (An echoing script,
/// 5,000 sequential calls, Redis 7.0.15, two busy cores; on CPUs that sleep they cost more: decision 54.) Calls can be
/// made concurrently from any runtimes. Their order is defined only if one waits for the answer of the other.
#[derive(Debug)]
pub(crate) struct Link {
    thread: Arc<Thread>,
    line: Arc<Line>,
}

impl Link {
    /// Makes a link that connects when it is first used. Links of several shards can share a thread.
    ///
    /// # Errors
    /// `Unsupported` for certificates that cannot be used.
    pub(crate) fn new(thread: &Arc<Thread>, address: &Address, shard: u16) -> Result<Self> {
        Self::with(thread, address, shard, ANSWER_MAX)
    }

    /// Makes a second link beside another one, which checks the server.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn beside(thread: &Arc<Thread>, address: &Address, shard: u16) -> Result<Self> {
        let link = Self::new(thread, address, shard)?;
        link.line.admitted.set(()).expect("invariant: nobody has it yet");
        Ok(link)
    }

    fn with(thread: &Arc<Thread>, address: &Address, shard: u16, answer_max: Duration) -> Result<Self> {
        let route = Route::new(address, shard)?;
        let line = Line {
            route,
            shard,
            answer_max,
            awake: Arc::clone(thread.awake()),
            admitted: OnceCell::new(),
            state: tokio::sync::Mutex::default(),
            failed: AtomicU64::new(0),
            target: watch::Sender::new(None),
            away: Mutex::default(),
            followed: Mutex::default(),
            moved: Notify::default(),
        };
        Ok(Self { thread: Arc::clone(thread), line: Arc::new(line) })
    }

    /// Connects, and checks once whether the server can have the shard. Scripts do so, too, before they run.
    ///
    /// # Errors
    /// `Unavailable` if there is no server. `Unsupported` if it refuses the login or cannot keep a store's promises.
    /// `Corrupt` if a key of the store has foreign content.
    pub(crate) async fn enter(&self) -> Result<()> {
        self.on_thread(|line| async move { line.enter().await }).await?
    }

    /// Runs a script, and loads it first if the server does not know it.
    ///
    /// # Errors
    /// As mapped in `fault`; `UnknownOutcome` only if the script may have run.
    pub(crate) async fn call(
        &self,
        script: &'static Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value> {
        let cmd = match self.line.route().absent_key() {
            Some(absent) => script.call(&[keys, &[absent]].concat(), args),
            None => script.call(keys, args),
        };
        let call = move |line: Arc<Line>| async move {
            line.enter().await?;
            line.call(script, &cmd).await
        };
        self.on_thread(call).await?
    }

    /// Runs a command.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) async fn command(&self, cmd: Cmd) -> Result<Value> {
        self.on_thread(move |line| async move { line.command(&cmd).await }).await?
    }

    /// Runs commands in one round trip. Returns an answer or a refusal for each.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) async fn ask_all(&self, pipeline: Pipeline) -> Result<Vec<Value>> {
        let cmds: Vec<Cmd> = pipeline.cmd_iter().cloned().collect();
        let answers = self.on_thread(move |line| async move { line.send_each(&cmds).await }).await?;
        answers.map_err(|failure| failure.of("connect"))
    }

    /// Returns whether the server was unreachable at the last attempt. A background task tries again, so the caller
    /// need not wait.
    pub(crate) fn is_away(&self) -> bool {
        let mut away = lock(&self.line.away);
        if away.is_none() && self.line.admitted.initialized() {
            return false;
        }
        let Away { until, is_tried } = away.get_or_insert_with(Away::for_now);
        if *until <= Instant::now() && !*is_tried {
            *is_tried = true;
            let line = Arc::clone(&self.line);
            self.thread.spawn(async move {
                let is_there = line.enter().await.is_ok() && line.connection().await.is_ok();
                let mut away = lock(&line.away);
                // A server that was reached and refused has no pause of its own yet.
                *away = if is_there {
                    None
                } else {
                    away.take().filter(|away| !away.is_tried).or(Some(Away::refused()))
                };
            });
        }
        true
    }

    /// Drops its connection if `other` now uses another server than the one followed before.
    pub(crate) async fn follow(&self, other: &Self) {
        let target = other.node();
        let has_moved = {
            let mut followed = lock(&self.line.followed);
            let has_moved = followed.is_some() && *followed != target;
            *followed = target;
            has_moved
        };
        if has_moved {
            // A caller that waits for the next attempt uses the other server at once, because leases can depend on
            // it.
            self.line.moved.notify_one();
            self.line.state.lock().await.open = None;
        }
    }

    /// Returns the server that it used last.
    pub(crate) fn node(&self) -> Option<Node> {
        self.line.target.borrow().clone()
    }

    /// Returns its thread.
    pub(crate) const fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }

    /// Returns the part that does the work, for tasks on the thread.
    pub(crate) const fn line(&self) -> &Arc<Line> {
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
pub(crate) struct Line {
    route: Route,
    shard: u16,
    answer_max: Duration,
    /// Of the thread.
    awake: Arc<Awake>,
    /// Set once the server passed the checks for the shard.
    admitted: OnceCell<()>,
    state: tokio::sync::Mutex<State>,
    /// The number of failed attempts to connect, in total.
    failed: AtomicU64,
    /// The server that was used last.
    target: watch::Sender<Option<Node>>,
    /// Set after a connection broke or could not be made.
    away: Mutex<Option<Away>>,
    /// The server of the other link that this one follows.
    followed: Mutex<Option<Node>>,
    /// Notified when that server changed.
    moved: Notify,
}

#[derive(Debug)]
struct Away {
    /// The time of the next attempt, at the earliest.
    until: Instant,
    /// Whether a task makes the attempt for callers that do not wait.
    is_tried: bool,
}

impl Away {
    fn for_now() -> Self {
        Self { until: Instant::now(), is_tried: false }
    }

    fn refused() -> Self {
        Self { until: Instant::now() + PAUSE_MAX, is_tried: false }
    }
}

#[derive(Debug, Default)]
struct State {
    open: Option<Arc<Open>>,
    /// A connection to the server to which keys are being migrated.
    asked: Option<Arc<Open>>,
    /// Failed attempts to connect since the last success.
    failures: u32,
    last: Option<Failure>,
}

/// A connection and its server.
#[derive(Debug)]
struct Open {
    node: Node,
    connection: Connection,
    confirm: Confirm,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
enum Failure {
    /// Nothing was sent.
    Unreachable(RedisError),
    /// Nothing was sent, because the server cannot provide what is requested.
    Unfit(Unfit),
    /// Nothing was sent, because the server cannot keep the promises of a store.
    Unsuitable(Unsuitable),
    /// Something was sent.
    Broken(RedisError),
    Silent,
    /// The call was done, but is not durable yet.
    Unconfirmed(Unconfirmed),
}

impl Failure {
    /// Converts the failure of a call that changes nothing.
    fn before(self) -> Self {
        match self {
            Self::Broken(cause) => Self::Unreachable(cause),
            Self::Silent => Self::Unreachable(io::Error::from(io::ErrorKind::TimedOut).into()),
            other => other,
        }
    }

    fn of(self, operation: &str) -> Error {
        match self {
            Self::Unreachable(cause) => fault::unreachable(cause),
            Self::Unfit(why) => fault::unfit(why),
            Self::Unsuitable(why) => why.into(),
            Self::Unconfirmed(why) => fault::unconfirmed(operation, why),
            Self::Broken(cause) => fault::lost(operation, cause),
            Self::Silent => fault::silent(operation),
        }
    }
}

/// A command and how to send it.
struct Parcel<'a> {
    cmd: &'a Cmd,
    /// The script that it runs.
    script: Option<&'a Script>,
    /// Whether the script must be loaded first.
    loads: bool,
    /// Whether it goes to the server to which keys are being migrated.
    asks: bool,
}

impl Parcel<'_> {
    /// Returns the answer, and the answer of the command that confirms it.
    async fn send(&self, open: &Open) -> redis::RedisResult<(Value, Option<Value>)> {
        let load = self.script.filter(|_| self.loads);
        let confirm = self.script.and_then(|script| open.confirm.cmd(script));
        if load.is_none() && confirm.is_none() && !self.asks {
            return Ok((open.connection.send(self.cmd).await?, None));
        }
        let mut pipeline = Pipeline::with_capacity(4);
        // If the script could not be loaded, it stays unknown, and the call says so.
        load.map(|script| pipeline.add_command(script.load()));
        if self.asks {
            // Applies only to the command after it.
            pipeline.cmd("ASKING");
        }
        let at = pipeline.len();
        pipeline.add_command(self.cmd.clone());
        confirm.map(|confirm| pipeline.add_command(confirm));
        let mut answers = open.connection.send_all(&pipeline).await?.into_iter().skip(at);
        Ok((answers.next().unwrap_or(Value::Nil), answers.next()))
    }
}

impl Line {
    /// Returns whether another server can take over from the one that has the keys.
    fn is_one_of_several(&self) -> bool {
        !matches!(self.address().topology(), Topology::Server(_))
    }

    /// Returns its address.
    pub(crate) const fn address(&self) -> &Address {
        self.route.address()
    }

    /// Returns how it finds its server.
    pub(crate) const fn route(&self) -> &Route {
        &self.route
    }

    /// Returns when calls go to another server than this one.
    pub(crate) async fn moved_from(&self, node: &Node) {
        let mut target = self.target.subscribe();
        // The sender lives as long as the line.
        drop(target.wait_for(|target| target.as_ref().is_some_and(|target| target != node)).await);
    }

    /// Connects, and checks once whether the server can keep a store's promises and whether the keys are ours.
    async fn enter(&self) -> Result<()> {
        let look = || async {
            self.check_replicas().await.map_err(|failure| failure.of("connect"))?;
            let questions = preflight::questions(self.address(), self.shard);
            let cmds: Vec<Cmd> = questions.cmd_iter().cloned().collect();
            let answers = self.send_each(&cmds).await.map_err(|failure| failure.before().of("connect"))?;
            preflight::check(self.address(), self.shard, answers)
        };
        self.admitted.get_or_try_init(look).await.copied()
    }

    /// Connects, and checks whether the requested durability is available.
    async fn check_replicas(&self) -> Result<(), Failure> {
        let open = self.connection().await?;
        let checked = self.send(&open, open.confirm.check_replicas(&open.connection)).await;
        let checked = checked.map_err(Failure::before)?;
        if checked.is_err() && self.is_one_of_several() {
            // The replicas may follow another server now, which may have replaced this one.
            self.leave(&open).await;
        }
        checked.map_err(Failure::Unfit)
    }

    /// Runs a command.
    pub(crate) async fn command(&self, cmd: &Cmd) -> Result<Value> {
        let answer = self.deliver(cmd, None).await;
        self.accept(&name(cmd), answer)
    }

    /// Runs commands in one round trip whose answers and order do not matter. The first refusal is an error.
    pub(crate) async fn commands(&self, cmds: &[Cmd]) -> Result<()> {
        let answers = self.send_each(cmds).await.map_err(|failure| failure.of("a batch of commands"))?;
        for (cmd, answer) in cmds.iter().zip(answers) {
            self.accept(&name(cmd), Ok(answer))?;
        }
        Ok(())
    }

    /// Sends commands in one round trip, and sends those again that were redirected.
    async fn send_each(&self, cmds: &[Cmd]) -> Result<Vec<Value>, Failure> {
        let mut pipeline = Pipeline::with_capacity(cmds.len());
        for cmd in cmds {
            pipeline.add_command(cmd.clone());
        }
        let open = self.connection().await?;
        let mut answers = self.send(&open, open.connection.send_all(&pipeline)).await?;
        for (cmd, answer) in cmds.iter().zip(&mut answers) {
            if Detour::of(answer, self.address().topology()).is_some() {
                *answer = self.deliver(cmd, None).await?;
            }
        }
        Ok(answers)
    }

    async fn call(&self, script: &Script, cmd: &Cmd) -> Result<Value> {
        let answer = self.deliver(cmd, Some(script)).await;
        self.accept(script.name(), answer)
    }

    /// Sends a command to the server that has its keys now. Sends it again only if nothing was done.
    async fn deliver(&self, cmd: &Cmd, script: Option<&Script>) -> Answer {
        let mut parcel = Parcel { cmd, script, loads: false, asks: false };
        let (mut patience, mut asked) = (Patience::default(), None);
        loop {
            parcel.asks = asked.is_some();
            let open = match asked.take() {
                Some(node) => self.connection_to(node).await,
                None => self.connection().await,
            };
            let open = match open {
                // The named server is no primary any more, and says so.
                Err(Failure::Unfit(Unfit::Replica)) if self.is_one_of_several() => {
                    let pause = patience.next().ok_or(Failure::Unfit(Unfit::Replica))?;
                    sleep(pause).await;
                    continue;
                }
                open => open?,
            };
            let (answer, confirmed) = self.send(&open, parcel.send(&open)).await?;
            let Some(detour) = Detour::of(&answer, self.address().topology()) else {
                if let Some(confirmed) = confirmed
                    && !matches!(answer, Value::ServerError(_))
                {
                    let confirmed = open.confirm.check(&confirmed);
                    if confirmed.is_err() && self.is_one_of_several() {
                        // Its replicas may follow another server now, without it knowing.
                        self.leave(&open).await;
                    }
                    match confirmed {
                        Err(why) if script.is_some_and(durability::gives_away) => {
                            let why = fault::unconfirmed("take", why);
                            tracing::warn!(
                                target: "punctual",
                                error = &why as &dyn std::error::Error,
                                "jobs were taken, but may be returned again after a failover"
                            );
                        }
                        confirmed => confirmed.map_err(Failure::Unconfirmed)?,
                    }
                }
                if is_readonly(&answer) {
                    // The server's name may resolve to another server now.
                    self.leave(&open).await;
                }
                return Ok(answer);
            };
            let pause = match detour {
                Detour::Load if parcel.loads => return Ok(answer),
                Detour::Load => Duration::ZERO,
                _ => match patience.next() {
                    Some(pause) => pause,
                    None => return Ok(answer),
                },
            };
            match detour {
                Detour::Load => {
                    parcel.loads = true;
                    asked = parcel.asks.then(|| open.node.clone());
                }
                Detour::Moved(place) => {
                    if self.leave(&open).await
                        && let Some(node) = open.node.named_by(&place)
                    {
                        self.route.learn(node);
                    }
                }
                Detour::Ask(place) => asked = open.node.named_by(&place),
                Detour::Elsewhere => drop(self.leave(&open).await),
                Detour::Later => {}
            }
            sleep(pause).await;
        }
    }

    /// Waits for an answer. A connection that breaks or stays silent is not used again.
    async fn send<T>(
        &self,
        open: &Arc<Open>,
        send: impl Future<Output = redis::RedisResult<T>>,
    ) -> Result<T, Failure> {
        let in_flight = open.connection.is_local().then(|| self.awake.for_call());
        let answer = timeout(self.answer_max, send).await;
        drop(in_flight);
        let failure = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(cause)) => Failure::Broken(cause),
            Err(_) => Failure::Silent,
        };
        if self.leave(open).await {
            *lock(&self.away) = Some(Away::for_now());
        }
        Err(failure)
    }

    /// Stops using a connection; returns whether this call was the first to do so.
    async fn leave(&self, left: &Arc<Open>) -> bool {
        let mut state = self.state.lock().await;
        let is_left = |open: &mut Arc<Open>| Arc::ptr_eq(open, left);
        let (open, asked) = (state.open.take_if(is_left), state.asked.take_if(is_left));
        open.is_some() || asked.is_some()
    }

    /// Converts the answer or failure into the caller's result.
    fn accept(&self, operation: &str, answer: Answer) -> Result<Value> {
        let answer = answer.map_err(|failure| failure.of(operation))?;
        let topology = self.address().topology();
        if !matches!(topology, Topology::Server(_)) && Detour::of(&answer, topology).is_some() {
            return Err(fault::restless(operation));
        }
        match answer {
            Value::ServerError(refusal) => Err(fault::refused(operation, &refusal)),
            value => Ok(value),
        }
    }

    /// Returns the current connection, or makes a new one.
    ///
    /// Callers that waited for one attempt share its failure. A pause follows, so that a server that is down is not
    /// flooded.
    async fn connection(&self) -> Result<Arc<Open>, Failure> {
        let failed_before = self.failed.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        if let Some(open) = state.open.as_ref().filter(|open| open.connection.is_open()) {
            return Ok(Arc::clone(open));
        }
        if let Some(failure) = &state.last
            && self.failed.load(Ordering::Relaxed) != failed_before
        {
            return Err(failure.clone());
        }
        let away_until = lock(&self.away).as_ref().map(|away| away.until);
        if let Some(until) = away_until {
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.moved.notified() => {}
            }
        }
        match self.connect().await {
            Ok(open) => {
                self.target.send_replace(Some(open.node.clone()));
                let open = Arc::new(open);
                *state = State { open: Some(Arc::clone(&open)), ..State::default() };
                *lock(&self.away) = None;
                Ok(open)
            }
            Err(failure) => {
                let failures = state.failures + 1;
                *state = State { failures, last: Some(failure.clone()), ..State::default() };
                *lock(&self.away) =
                    Some(Away { until: Instant::now() + pause(failures, fastrand::f64()), is_tried: false });
                self.failed.fetch_add(1, Ordering::Relaxed);
                Err(failure)
            }
        }
    }

    async fn connect(&self) -> Result<Open, Failure> {
        let (node, connection) = self.route.connect().await.map_err(Failure::Unreachable)?;
        self.agree(node, connection).await
    }

    /// Finds out whether a server that is not the first one can have the store, and how it confirms writes, because each can be
    /// configured differently. The first one is checked by [`enter`](Self::enter).
    async fn agree(&self, node: Node, connection: Connection) -> Result<Open, Failure> {
        if self.target.borrow().is_some() {
            let asked = timeout(self.answer_max, connection.send(&preflight::question())).await;
            let answer = asked.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
            answer
                .and_then(|answer| preflight::check_again(self.address(), answer))
                .map_err(Failure::Unreachable)?
                .map_err(Failure::Unsuitable)?;
        }
        let agreed = timeout(self.answer_max, Confirm::agree(self.address().durability(), &connection)).await;
        let agreed = agreed.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        let confirm = agreed.map_err(Failure::Unreachable)?.map_err(Failure::Unfit)?;
        Ok(Open { node, connection, confirm })
    }

    /// Returns a connection to a server that another one named for a single call. It is kept, because during a
    /// migration many calls go there.
    async fn connection_to(&self, node: Node) -> Result<Arc<Open>, Failure> {
        let mut state = self.state.lock().await;
        if let Some(open) = &state.asked
            && open.node == node
            && open.connection.is_open()
        {
            return Ok(Arc::clone(open));
        }
        let connection = self.route.connect_to(&node).await.map_err(Failure::Unreachable)?;
        let open = Arc::new(self.agree(node, connection).await?);
        state.asked = Some(Arc::clone(&open));
        Ok(open)
    }
}

/// Returns the pause after this many failures in a row. It is random, because many processes lost the server
/// together. `random` is in `[0, 1)`.
pub(crate) fn pause(failures: u32, random: f64) -> Duration {
    let doubled = PAUSE_MIN * 2_u32.pow(failures.saturating_sub(1).min(10));
    doubled.min(PAUSE_MAX).mul_f64(0.75 + 0.5 * random)
}

/// Returns a command's name, for messages.
fn name(cmd: &Cmd) -> String {
    match cmd.args_iter().next() {
        Some(Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
        _ => String::new(),
    }
}

fn is_readonly(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(refusal) if refusal.code() == READONLY)
}

#[cfg(test)]
mod tests {
    use std::{slice, sync::LazyLock};

    use tokio::runtime::Builder;

    use super::*;
    use crate::{core::error::ErrorKind, store::redis::server::Server};

    static ECHO: LazyLock<Script> =
        LazyLock::new(|| Script::new("echo", &["local key, arg = KEYS[1], ARGV[1]", "return {key, arg}"]));
    static COUNT: LazyLock<Script> =
        LazyLock::new(|| Script::new("count", &["return redis.call('INCR', KEYS[1])"]));
    static BROKEN: LazyLock<Script> = LazyLock::new(|| Script::new("broken", &["return nothing.at_all"]));

    async fn open_at(url: &str) -> Result<Link> {
        let link = Link::new(&Arc::new(Thread::start()?), &Address::parse(url)?, 0)?;
        link.enter().await?;
        Ok(link)
    }

    async fn open(server: &Server) -> Link {
        open_at(&server.root_url()).await.unwrap()
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
            let outcome = match open_at(&url).await {
                // Without a password the login succeeds, but commands are refused.
                Ok(link) => link.command(cmd("PING")).await.map(drop),
                Err(e) => Err(e),
            };
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        let link = open_at(&format!("{}&pass=right", server.url())).await.unwrap();
        link.command(cmd("PING")).await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_comes_back_is_found_again() {
        let mut server = Server::start(&[]);
        let link = open(&server).await;
        link.call(&COUNT, &["n".into()], &[]).await.unwrap();
        server.kill();
        let error = link.call(&COUNT, &["n".into()], &[]).await.unwrap_err();
        // It depends on which side notices the end first; from then on nothing is sent.
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
        // The one command that succeeds without an answer.
        let error = link.command(cmd("SHUTDOWN NOSAVE")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome);
        server.restart();
        assert_eq!(link.call(&COUNT, &["n".into()], &[]).await.unwrap(), Value::Int(1));
    }

    #[tokio::test]
    async fn a_server_that_stays_silent_leaves_the_outcome_open_and_its_connection_is_given_up() {
        let server = Server::start(&[]);
        let address = Address::parse(&server.url()).unwrap();
        let thread = Arc::new(Thread::start().unwrap());
        let link = Link::with(&thread, &address, 0, Duration::from_millis(50)).unwrap();
        link.enter().await.unwrap();
        server.freeze();
        let error = link.call(&COUNT, &["n".into()], &[]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome);
        server.thaw();
        // On the old connection, the late answer would come first.
        let answer = link.call(&ECHO, &["k".into()], &["a".into()]).await.unwrap();
        assert_eq!(answer, Value::Array(vec![bytes(b"k"), bytes(b"a")]));
        let clients = link.command(cmd("CLIENT LIST TYPE normal")).await.unwrap();
        let Value::BulkString(clients) = clients else { panic!("{clients:?}") };
        assert_eq!(String::from_utf8(clients).unwrap().lines().count(), 1);
    }

    /// A late failure of an old connection says nothing about the current one.
    #[tokio::test]
    async fn who_was_away_and_is_back_is_not_away() {
        let link = open(Server::shared()).await;
        let fail = |old: Arc<Open>| {
            let broken = || Err::<(), _>(io::Error::from(io::ErrorKind::BrokenPipe).into());
            link.on_thread(move |line| async move { line.send(&old, async { broken() }).await.is_err() })
        };
        let Ok(old) = link.line.connection().await else { panic!("the server is there") };
        assert!(fail(Arc::clone(&old)).await.unwrap() && link.is_away());
        while link.is_away() {
            tokio::task::yield_now().await;
        }
        assert!(fail(old).await.unwrap() && !link.is_away());
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
        assert_eq!((pause(1, 0.0), pause(1, 0.5)), (PAUSE_MIN.mul_f64(0.75), PAUSE_MIN));
        assert!(pause(2, 0.999) < pause(5, 0.0));
        assert_eq!(pause(u32::MAX, 1.0), PAUSE_MAX.mul_f64(1.25));
    }
}
