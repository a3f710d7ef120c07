//! The connection to a NATS server, which is re-established when it is lost.
//!
//! The client would reconnect by itself and keep messages in flight for later. Callers would not learn of the loss,
//! and would wait for their whole timeout. So a lost connection is abandoned: all its callers get an error at once,
//! and the next call makes a new connection. Messages that the client still sends on the old one have the same
//! `Nats-Msg-Id` as their repetitions, and the stream keeps one of them.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, ServerError,
    connection::State,
    jetstream::{Context, ContextBuilder},
};
use punctual::{Error, ErrorKind};
use tokio::sync::{Mutex, watch};

use super::{Address, Login};
use crate::{pause::Pause, sink::CONNECT_MAX, tls::Files};

/// How often the server must show that it is alive while it sends nothing else.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long a server that came back can take to find its streams again. Until then it answers as if there were none.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// Messages in flight at once; further ones wait.
const IN_FLIGHT_MAX: usize = 16_384;

/// A connection to a server.
pub(super) struct Link {
    address: Address,
    /// Read again for each connection. They were checked before the first one.
    files: Files,
    state: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    line: Option<Line>,
    /// There was a connection before.
    was_connected: bool,
    pause: Pause<Fault>,
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// A problem to be corrected.
    Login(String),
    /// The server cannot be reached now.
    Away(String),
}

impl Fault {
    pub(super) fn into_words(self) -> String {
        match self {
            Self::Login(words) | Self::Away(words) => words,
        }
    }

    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Login(words) => Error::invalid(words)
                .with_hint("check the user and password of the address, or the file of its credentials"),
            Self::Away(words) => Error::new(ErrorKind::Unavailable, words),
        }
    }
}

/// What a connection reports beside its answers.
#[derive(Clone, Debug, Default)]
struct Heard {
    is_lost: bool,
    /// The last complaint of the server. It does not say which message it is about.
    said: Option<String>,
}

/// One connection. Clones share it.
#[derive(Clone)]
pub(super) struct Line {
    context: Context,
    heard: Arc<watch::Sender<Heard>>,
    /// When it was made, if another one was lost before.
    came_back: Option<Instant>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Line {
    pub(super) const fn context(&self) -> &Context {
        &self.context
    }

    /// Returns whether nothing should be sent on it any more.
    pub(super) fn is_lost(&self) -> bool {
        self.heard.borrow().is_lost || self.context.client().connection_state() != State::Connected
    }

    /// Returns whether the server came back a short time ago, so that it may still be looking for its streams.
    pub(super) fn is_recovering(&self) -> bool {
        self.came_back.is_some_and(|at| at.elapsed() < RECOVERY_MAX)
    }

    /// Returns when the connection is lost.
    pub(super) async fn lost(&self) {
        // This struct keeps the sender, so the wait cannot fail.
        drop(self.heard.subscribe().wait_for(|heard| heard.is_lost).await);
    }

    /// Returns the server's message when it says that this user may not publish under a subject. It sends no answer
    /// then.
    pub(super) async fn refused(&self, subject: &str) -> String {
        let about = format!("publish to \"{subject}\"");
        let is_about = |said: &String| said.to_lowercase().contains(&about.to_lowercase());
        let mut heard = self.heard.subscribe();
        // Earlier complaints were about earlier messages.
        heard.mark_unchanged();
        loop {
            if heard.changed().await.is_err() {
                return std::future::pending().await;
            }
            if let Some(said) = heard.borrow_and_update().said.clone().filter(is_about) {
                return said;
            }
        }
    }

    /// Returns the last complaint of the server.
    pub(super) fn said(&self) -> Option<String> {
        self.heard.borrow().said.clone()
    }
}

impl Link {
    pub(super) fn new(address: Address, files: Files) -> Self {
        Self { address, files, state: Mutex::default() }
    }

    /// Returns the shared connection.
    pub(super) async fn line(&self) -> Result<Line, Fault> {
        let mut state = self.state.lock().await;
        if let Some(line) = state.line.as_ref().filter(|line| !line.is_lost()) {
            return Ok(line.clone());
        }
        state.line = None;
        state.pause.check()?;
        let opened = self.open().await;
        let mut line = state.pause.note(opened)?;
        line.came_back = state.was_connected.then(Instant::now);
        state.was_connected = true;
        state.line = Some(line.clone());
        Ok(line)
    }

    /// Makes the next call reconnect, unless another call has done so.
    pub(super) async fn leave(&self, line: &Line) {
        let mut state = self.state.lock().await;
        if state.line.as_ref().is_some_and(|now| Arc::ptr_eq(&now.heard, &line.heard)) {
            state.line = None;
        }
    }

    async fn open(&self) -> Result<Line, Fault> {
        let heard = Arc::new(watch::Sender::new(Heard::default()));
        let options = self.options(Arc::clone(&heard)).await?;
        let connecting = options.connect(self.address.server.clone());
        let client: Client = match tokio::time::timeout(CONNECT_MAX, connecting).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                let words = format!("could not connect to NATS: {error}");
                return Err(match error.kind() {
                    ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                        Fault::Login(words)
                    }
                    _ => Fault::Away(words),
                });
            }
            Err(_) => {
                let late = format!("could not connect to NATS within {} s", CONNECT_MAX.as_secs());
                return Err(Fault::Away(late));
            }
        };
        let context = ContextBuilder::new()
            .timeout(self.address.answer)
            .max_ack_inflight(IN_FLIGHT_MAX)
            .backpressure_on_inflight(true)
            .build(client);
        Ok(Line { context, heard, came_back: None })
    }

    async fn options(&self, heard: Arc<watch::Sender<Heard>>) -> Result<ConnectOptions, Fault> {
        let options = ConnectOptions::new()
            .name("punctual forward")
            .connection_timeout(CONNECT_MAX)
            .ping_interval(PING_INTERVAL)
            .request_timeout(Some(CONNECT_MAX))
            // One attempt, in which it finds that it is not used any more, and ends.
            .max_reconnects(1)
            .ignore_discovered_servers()
            .event_callback(move |event| {
                let said = match event {
                    Event::Disconnected | Event::Closed => None,
                    Event::ServerError(ServerError::Other(said)) => Some(said),
                    Event::ServerError(error) => Some(error.to_string()),
                    _ => return std::future::ready(()),
                };
                heard.send_modify(|heard| {
                    heard.is_lost |= said.is_none();
                    heard.said = said.or_else(|| heard.said.take());
                });
                std::future::ready(())
            });
        let Files { ca, client } = self.files.clone();
        // A server without TLS would take the jobs without checking any certificate.
        let options = if ca.is_some() || client.is_some() { options.require_tls(true) } else { options };
        let options = if let Some(ca) = ca { options.add_root_certificates(ca) } else { options };
        let options = match client {
            Some((cert, key)) => options.add_client_certificate(cert, key),
            None => options,
        };
        match &self.address.login {
            Login::Nobody => Ok(options),
            Login::User { user, password } => Ok(options.user_and_password(user.clone(), password.clone())),
            Login::Token(token) => Ok(options.token(token.clone())),
            Login::Credentials(file) => options.credentials_file(file).await.map_err(|error| {
                Fault::Login(format!("could not read the credentials in {}: {error}", file.display()))
            }),
        }
    }
}
