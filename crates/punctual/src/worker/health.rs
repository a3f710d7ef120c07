//! Whether a worker's loop is alive: the age of its last completed turn, not the state of a socket.
//!
//! Told by a file that is rewritten every few seconds, and by a port that answers every HTTP request with a line, on a
//! thread of its own: a loop that hangs can't keep it from saying so.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind, Result};

/// How often an idle loop shows that it lives, and how often the file is written.
const BEAT: Duration = Duration::from_secs(5);
/// Age of the last turn from which on the loop counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// When the loop completed its last turn.
#[derive(Debug)]
pub(super) struct Pulse {
    start: Instant,
    last_ms: AtomicU64,
    /// What holds up others while the loop is alive.
    held_up: Mutex<Option<String>>,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0), held_up: Mutex::default() }
    }

    /// A turn is complete.
    pub(super) fn beat(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    /// Beats for as long as the loop waits for something to do, and looks what holds up others.
    pub(super) async fn keep_beating(&self, held_up: impl Fn() -> Option<String>) {
        loop {
            self.beat();
            self.note(held_up());
            sleep(BEAT).await;
        }
    }

    /// Takes note of what holds up others.
    pub(super) fn note(&self, held_up: Option<String>) {
        *self.held_up.lock().unwrap_or_else(PoisonError::into_inner) = held_up;
    }

    fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }

    /// Whether the loop is alive, and the words for it.
    fn report(&self) -> (bool, String) {
        let age = self.age();
        let alive = age < STUCK_AFTER;
        let held_up = self.held_up.lock().unwrap_or_else(PoisonError::into_inner);
        let words = match held_up.as_deref() {
            _ if !alive => "stuck".to_owned(),
            Some(by) => format!("held up: {by}"),
            None => "ok".to_owned(),
        };
        (alive, format!("{words}, last turn {} ms ago\n", age.as_millis()))
    }
}

/// Where health is told.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    pub(super) file: Option<PathBuf>,
    pub(super) addr: Option<SocketAddr>,
}

impl Health {
    /// Starts telling until `end` fires.
    ///
    /// # Errors
    /// `Unavailable` if the port can't be bound.
    pub(super) async fn start(self, pulse: Arc<Pulse>, end: CancellationToken) -> Result<()> {
        let Self { file, addr } = self;
        if file.is_none() && addr.is_none() {
            return Ok(());
        }
        let listener = match addr {
            None => None,
            Some(addr) => Some(std::net::TcpListener::bind(addr).map_err(|e| {
                Error::new(ErrorKind::Unavailable, format!("could not listen on {addr} for health"))
                    .with_source(e)
            })?),
        };
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let spawned = thread::Builder::new().name("punctual-health".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async {
                    let served = async {
                        let _ = ready.send(());
                        tokio::join!(write(file, &pulse), serve(listener, &pulse));
                    };
                    tokio::select! {
                        () = served => {}
                        () = end.cancelled() => {}
                    }
                }),
                Err(error) => tracing::error!(target: "punctual", %error, "health is not told"),
            }
        });
        spawned.map_err(|e| {
            Error::new(ErrorKind::Unavailable, "could not start the health thread").with_source(e)
        })?;
        // A runtime that could not be built was logged: a worker without a health port is better than none.
        let _ = is_ready.await;
        Ok(())
    }
}

/// Rewrites the file.
async fn write(file: Option<PathBuf>, pulse: &Pulse) {
    let Some(file) = file else { return };
    loop {
        let (alive, text) = pulse.report();
        // A stuck loop's file is left to grow old, for whoever looks at nothing but its time.
        if alive && let Err(error) = std::fs::write(&file, text) {
            tracing::warn!(target: "punctual", %error, file = %file.display(), "could not write the health file");
        }
        sleep(BEAT).await;
    }
}

/// Answers requests.
async fn serve(listener: Option<std::net::TcpListener>, pulse: &Pulse) {
    let Some(listener) = listener else { return };
    let listening = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    let listener = match listening {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(target: "punctual", %error, "the health port is not served");
            return;
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (alive, text) = pulse.report();
                tokio::spawn(timeout(REQUEST_MAX, answer(stream, alive, text)));
            }
            Err(error) => {
                tracing::warn!(target: "punctual", %error, "could not accept a health request");
                sleep(BEAT).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, alive: bool, text: String) -> std::io::Result<()> {
    // What is asked doesn't matter; it is read so that closing doesn't reset the connection.
    let _ = stream.read(&mut [0; 2_048]).await?;
    let status = if alive { "200 OK" } else { "503 Service Unavailable" };
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all((head + &text).as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_completed_no_turn_for_a_while_is_stuck() {
        let now = Instant::now();
        let pulse = |ago: Duration| Pulse {
            start: now.checked_sub(ago).unwrap(),
            last_ms: AtomicU64::new(0),
            held_up: Mutex::default(),
        };
        assert!(pulse(Duration::from_secs(1)).report().0);
        let (alive, text) = pulse(STUCK_AFTER).report();
        assert!(!alive && text.starts_with("stuck, last turn 30"), "{text}");
    }

    #[test]
    fn health_says_what_holds_up_others() {
        let pulse = Pulse::new();
        pulse.note(Some("kind k: job 1 runs 3 s past its timeout".to_owned()));
        let (alive, text) = pulse.report();
        assert!(alive && text.starts_with("held up: kind k: job 1"), "{text}");
        pulse.note(None);
        assert!(pulse.report().1.starts_with("ok"));
    }
}
