//! The connection to a broker, which is re-established when it is lost, and the lane for messages.

use std::time::{Duration, Instant};

use lapin::{
    Connection, ConnectionProperties,
    runtime::default_runtime,
    tcp::{OwnedIdentity, OwnedTLSConfig},
};
use tokio::{
    sync::{Mutex, Semaphore, SemaphorePermit},
    task::JoinHandle,
    time::timeout,
};

use super::lane::Lane;
use crate::{
    pause::Pause,
    sink::{CONNECT_MAX, Refusal},
    tls::Tls,
};

/// How long an attempt to connect can hang before another one starts. The client cannot cancel an attempt: each keeps
/// a thread and a socket while the other side is silent.
const HANG_MAX: Duration = Duration::from_mins(10);
/// The message for a broker that runs out of memory or disk.
pub(super) const BLOCKED: &str = "the broker holds back what is published (connection.blocked)";
/// Channels for single messages, at once.
const ALONE_MAX: usize = 8;

/// A connection to a broker. The client never reconnects by itself, so that messages in flight are known to be lost.
pub(super) struct Link {
    uri: String,
    tls: OwnedTLSConfig,
    state: Mutex<State>,
    alone: Semaphore,
}

type Attempt = JoinHandle<Result<Connection, lapin::Error>>;

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    lane: Option<Lane>,
    /// An unfinished attempt to connect that no caller waits for, and when it started.
    attempt: Option<(Instant, Attempt)>,
    pause: Pause<lapin::Error>,
}

impl State {
    fn is_blocked(&self) -> bool {
        let status = self.connection.as_ref().map(Connection::status);
        status.is_some_and(|status| status.connected() && status.blocked())
    }
}

/// Makes the refusal for a broker that is unavailable.
pub(super) fn away(error: &lapin::Error) -> Refusal {
    Refusal::Away(error.to_string())
}

impl Link {
    pub(super) fn new(uri: String, tls: Tls) -> Self {
        let identity = tls
            .client
            .map(|(cert, key)| OwnedIdentity::PKCS8 { pem: cert.into_bytes(), key: key.into_bytes() });
        let tls = OwnedTLSConfig { identity, cert_chain: tls.ca };
        Self { uri, tls, state: Mutex::default(), alone: Semaphore::new(ALONE_MAX) }
    }

    /// Returns the lane that all messages share.
    pub(super) async fn lane(&self) -> Result<Lane, Refusal> {
        let mut state = self.state.lock().await;
        // The client would keep a message that it cannot send and send it later, although the job is retried, too.
        if state.is_blocked() {
            return Err(Refusal::Away(BLOCKED.to_owned()));
        }
        if let Some(lane) = state.lane.as_ref().filter(|lane| lane.is_open()) {
            return Ok(lane.clone());
        }
        let lane = self.open(&mut state).await.map_err(|error| away(&error))?;
        state.lane = Some(lane.clone());
        Ok(lane)
    }

    /// Returns a lane for one message, which ends with the returned guard.
    pub(super) async fn alone(&self) -> Result<(Lane, SemaphorePermit<'_>), Refusal> {
        let permit = self.alone.acquire().await.expect("invariant: it is never closed");
        let lane = self.open(&mut *self.state.lock().await).await.map_err(|error| away(&error))?;
        Ok((lane, permit))
    }

    /// Returns whether the broker is known to have blocked publishing; false while somebody connects. It never waits: the connection may be
    /// made by the task that asks.
    pub(super) fn is_known_to_block(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.is_blocked())
    }

    /// Returns whether the broker has blocked publishing. It does so when it runs out of memory or disk.
    pub(super) async fn is_blocked(&self) -> bool {
        self.state.lock().await.is_blocked()
    }

    /// Returns a channel for questions about the broker; a question with a wrong name closes it.
    pub(super) async fn channel(&self) -> Result<lapin::Channel, lapin::Error> {
        self.channel_of(&mut *self.state.lock().await).await
    }

    async fn open(&self, state: &mut State) -> Result<Lane, lapin::Error> {
        let channel = self.channel_of(state).await?;
        within(Lane::open(channel)).await
    }

    async fn channel_of(&self, state: &mut State) -> Result<lapin::Channel, lapin::Error> {
        if let Some(connection) = state.connection.as_ref().filter(|it| it.status().connected()) {
            let channel = within(connection.create_channel()).await;
            if channel.as_ref().is_err_and(is_late) {
                // The client says that it is connected, but it does not work.
                (state.connection, state.lane) = (None, None);
            }
            return channel;
        }
        state.pause.check()?;
        (state.connection, state.lane) = (None, None);
        let opened = async {
            let connection = self.connect(state).await?;
            let channel = within(connection.create_channel()).await?;
            Ok((connection, channel))
        };
        let opened = opened.await;
        let (connection, channel) = state.pause.note(opened)?;
        state.connection = Some(connection);
        Ok(channel)
    }

    /// Says what to write instead if one side may use TLS and the other does not.
    fn explained(&self, error: lapin::Error) -> lapin::Error {
        use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidData, UnexpectedEof};

        let is_tls = self.uri.starts_with("amqps:");
        let is_foreign = match error.kind() {
            // A certificate that is refused is invalid data, too.
            lapin::ErrorKind::IOError(io) if is_tls => {
                io.kind() == InvalidData && io.to_string().contains("corrupt message")
            }
            lapin::ErrorKind::IOError(io) => {
                matches!(io.kind(), ConnectionAborted | ConnectionReset | UnexpectedEof)
            }
            lapin::ErrorKind::ParsingError(_) => !is_tls,
            _ => false,
        };
        if !is_foreign {
            return error;
        }
        let (what, scheme) = if is_tls { ("no TLS", "amqp") } else { ("TLS", "amqps") };
        let text = format!("{error}; if the broker uses {what} at this port, write {scheme}://");
        std::io::Error::new(InvalidData, text).into()
    }

    async fn connect(&self, state: &mut State) -> Result<Connection, lapin::Error> {
        let (since, mut attempt) = match state.attempt.take() {
            Some((since, attempt)) if since.elapsed() < HANG_MAX => (since, attempt),
            _ => {
                let properties =
                    ConnectionProperties::default().with_connection_name("punctual forward".into());
                let (uri, tls) = (self.uri.clone(), self.tls.clone());
                let connect = async move {
                    Connection::connect_with_config(&uri, properties, tls, default_runtime()?).await
                };
                (Instant::now(), tokio::spawn(connect))
            }
        };
        match timeout(CONNECT_MAX, &mut attempt).await {
            Ok(Ok(connection)) => connection.map_err(|error| self.explained(error)),
            Ok(Err(panicked)) => Err(std::io::Error::other(panicked).into()),
            Err(_) => {
                state.attempt = Some((since, attempt));
                Err(late())
            }
        }
    }
}

/// Gives up on a broker that does not answer.
pub(super) async fn within<T>(
    step: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, lapin::Error> {
    timeout(CONNECT_MAX, step).await.unwrap_or_else(|_| Err(late()))
}

fn late() -> lapin::Error {
    let late = format!("no answer within {} s", CONNECT_MAX.as_secs());
    std::io::Error::new(std::io::ErrorKind::TimedOut, late).into()
}

fn is_late(error: &lapin::Error) -> bool {
    matches!(error.kind(), lapin::ErrorKind::IOError(error) if error.kind() == std::io::ErrorKind::TimedOut)
}
