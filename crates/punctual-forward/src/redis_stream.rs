//! A stream of Redis or Valkey, with `XADD`.
//!
//! A job is forwarded when the server has returned the id of the new entry: it is then as safe as everything on that
//! server. If the answer is lost, the entry is added again. A reader that must not act twice checks the field `id`.

use std::time::Duration;

use punctual::{Error, ErrorKind, JobRecord, Result};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind as Fault, RedisError, Value, aio::MultiplexedConnection,
    cmd,
};
use tokio::{sync::Mutex, time::timeout};
use url::Url;

use crate::{
    pause::Pause,
    sink::{BoxFuture, CONNECT_MAX, Refusal, Sink},
    target::Options,
    template::Template,
};

/// Error codes of a server that accepts no writes now: it is starting, runs a long script, has just become a replica,
/// or has no room left, in memory, on disk or at its replicas.
const RESTLESS: [&str; 9] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"];
/// Error codes of a refused login.
const NOT_LET_IN: [&str; 2] = ["NOAUTH", "WRONGPASS"];

/// A server, and the stream of jobs.
#[derive(Clone)]
pub(crate) struct Address {
    client: Client,
    stream: Template,
    /// About how many entries the stream keeps.
    entries_max: Option<u64>,
    answer: Duration,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The debug output of the client shows passwords.
        f.debug_struct("Address").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Address {
    /// Parses an address that was split into its URL and options.
    pub(crate) fn parse(mut url: Url, options: &mut Options) -> Result<Self> {
        let Some(stream) = options.take("stream").filter(|stream| !stream.is_empty()) else {
            return Err(Error::invalid("the address names no stream").with_hint("add ?stream=NAME"));
        };
        let stream = Template::parse(&stream)?;
        let entries_max = match options.take("maxlen") {
            None => None,
            Some(text) => Some(text.parse().ok().filter(|&n: &u64| 0 < n).ok_or_else(|| {
                Error::invalid(format!("maxlen={text} is no number of entries"))
                    .with_hint("write a whole number, such as maxlen=100000")
            })?),
        };
        let answer = options.answer()?;
        if url.scheme() == "redis+unix" {
            // For a socket, these options follow the path.
            for name in ["db", "user", "pass"] {
                if let Some(value) = options.take(name) {
                    url.query_pairs_mut().append_pair(name, &value);
                }
            }
        }
        let client = Client::open(url).map_err(|error| {
            Error::invalid("this is no address of Redis")
                .with_hint("write redis://HOST:6379/0?stream=NAME or redis+unix:///PATH?stream=NAME")
                .with_source(error)
        })?;
        Ok(Self { client, stream, entries_max, answer })
    }
}

/// Adds jobs to a stream.
pub(crate) struct RedisStream {
    address: Address,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The connection, and how many there were before it.
    open: Option<(MultiplexedConnection, u64)>,
    opened: u64,
    pause: Pause<RedisError>,
}

impl RedisStream {
    pub(crate) fn new(address: Address) -> Self {
        Self { address, state: Mutex::default() }
    }

    async fn add(&self, job: &JobRecord, id: &str) -> std::result::Result<(), Refusal> {
        let stream = self.address.stream.fill(job).map_err(Refusal::Never)?;
        if stream.is_empty() {
            return Err(Refusal::Never("the name of its stream is empty".to_owned()));
        }
        let answer = self.address.answer.min(job.timeout / 2);
        self.ask(&entry(&stream, self.address.entries_max, job, id), answer)
            .await
            .map(drop)
            .map_err(|error| refusal(&error))
    }

    async fn look(&self) -> Result<()> {
        let Some(stream) = self.address.stream.fixed() else {
            return match self.ask(&cmd("PING"), self.address.answer).await {
                Err(error) if error.code() != Some("NOPERM") => Err(refused_at_start(error)),
                _ => Ok(()),
            };
        };
        match self.ask(cmd("TYPE").arg(stream), self.address.answer).await {
            Ok(Value::SimpleString(kind)) if !["none", "stream"].contains(&kind.as_str()) => {
                Err(Error::invalid(format!("{stream:?} is there already, and is a {kind}, not a stream"))
                    .with_hint("choose another name"))
            }
            Ok(_) => Ok(()),
            // A user that may add entries need not be allowed to ask.
            Err(error) if error.code() == Some("NOPERM") => Ok(()),
            Err(error) => Err(refused_at_start(error)),
        }
    }

    async fn ask(&self, cmd: &Cmd, at_most: Duration) -> std::result::Result<Value, RedisError> {
        let (mut connection, number) = self.connection().await?;
        // The client treats a refusal as a value.
        let asked = timeout(at_most, connection.send_packed_command(cmd)).await;
        let late = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        let answer = asked.unwrap_or_else(|_| late()).and_then(Value::extract_error);
        let is_left = answer.as_ref().is_err_and(|error| {
            error.is_io_error()
                || error.is_unrecoverable_error()
                // The server's name may resolve to another server now.
                || error.code() == Some("READONLY")
        });
        if is_left {
            let mut state = self.state.lock().await;
            state.open.take_if(|(_, open)| *open == number);
        }
        answer
    }

    async fn connection(&self) -> std::result::Result<(MultiplexedConnection, u64), RedisError> {
        let mut state = self.state.lock().await;
        if let Some(open) = &state.open {
            return Ok(open.clone());
        }
        state.pause.check()?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(self.address.answer));
        let opened = self.address.client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = state.pause.note(opened)?;
        state.opened += 1;
        let open = (connection, state.opened);
        state.open = Some(open.clone());
        Ok(open)
    }
}

impl Sink for RedisStream {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.look())
    }

    fn send<'a>(
        &'a self,
        job: &'a JobRecord,
        id: &'a str,
    ) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(self.add(job, id))
    }
}

/// Makes the command that adds a job.
fn entry(stream: &str, entries_max: Option<u64>, job: &JobRecord, id: &str) -> Cmd {
    let mut cmd = cmd("XADD");
    cmd.arg(stream);
    if let Some(entries_max) = entries_max {
        // Trims whole nodes of the stream. To trim to the exact entry would cost much more.
        cmd.arg("MAXLEN").arg("~").arg(entries_max);
    }
    cmd.arg("*").arg("id").arg(id).arg("kind").arg(&job.kind).arg("queue").arg(&job.queue);
    cmd.arg("attempt").arg(job.attempt).arg("run-at-ms").arg(job.run_at.as_ms());
    cmd.arg("content-type").arg(&*job.payload.content_type).arg("payload").arg(&job.payload.bytes);
    for (name, value) in &job.headers {
        cmd.arg(format!("header.{name}")).arg(value);
    }
    cmd
}

/// Returns what becomes of a job that was not added.
fn refusal(error: &RedisError) -> Refusal {
    let words = words(error);
    match (error.kind(), error.code()) {
        (_, Some(code)) if RESTLESS.contains(&code) => Refusal::Away(words),
        (Fault::Server(_) | Fault::Extension, _) => Refusal::Refused(words),
        _ => Refusal::Away(words),
    }
}

/// Converts the error of the first connection.
fn refused_at_start(error: RedisError) -> Error {
    let is_login = error.kind() == Fault::AuthenticationFailed
        || error.code().is_some_and(|code| NOT_LET_IN.contains(&code));
    let words = words(&error);
    if is_login {
        return Error::invalid(format!("Redis does not let this user in: {words}"))
            .with_hint("check the user and the password of the address");
    }
    match refusal(&error) {
        Refusal::Refused(words) => Error::invalid(format!("Redis says: {words}")),
        _ => Error::new(ErrorKind::Unavailable, format!("could not reach Redis: {words}")).with_source(error),
    }
}

/// Returns the server's message, if there is one.
fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}
