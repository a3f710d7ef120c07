//! Whether the loops of workers are alive, by the age of their last completed iterations.
//!
//! Reported by a file that is rewritten every 5 s, and by a port that answers every HTTP request with a line. It has
//! its own thread, so a loop that hangs is still reported.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::core::{
    error::{Error, ErrorKind, Result},
    job::cut_error,
};

/// How often an idle loop signals that it is alive, and how often the file is written.
const BEAT: Duration = Duration::from_secs(5);
/// The age of the last iteration from which on the loop counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// Most notes about jobs that are held up outside the loops. Further notes are ignored until others are withdrawn.
const NOTES_MAX: usize = 1_000;
/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// When a loop completed its last iteration.
#[derive(Debug)]
pub(super) struct Liveness {
    start: Instant,
    last_ms: AtomicU64,
    /// Fires when the worker is asked to end.
    graceful: CancellationToken,
    /// What holds up other jobs while the loop is alive.
    held_up: Mutex<Option<String>>,
}

impl Liveness {
    pub(super) fn new(graceful: CancellationToken) -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0), graceful, held_up: Mutex::default() }
    }

    /// Notes that an iteration is complete.
    pub(super) fn beat(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    /// Signals that the loop is alive while it waits, and checks what holds up jobs.
    pub(super) async fn keep_beating(&self, held_up: impl Fn() -> Option<String>) -> Infallible {
        self.beat();
        self.note(held_up());
        self.keep_waiting(held_up).await
    }

    /// Does the same from a while after the start of a wait that is usually short.
    pub(super) async fn keep_waiting(&self, held_up: impl Fn() -> Option<String>) -> Infallible {
        loop {
            sleep(BEAT).await;
            self.beat();
            self.note(held_up());
        }
    }

    /// Notes what holds up jobs.
    pub(super) fn note(&self, held_up: Option<String>) {
        *self.held_up.lock().unwrap_or_else(PoisonError::into_inner) = held_up;
    }

    fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }

    fn held_up(&self) -> Option<String> {
        self.held_up.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reports whether the workers of a process are alive, by a file, a port, or both.
///
/// A worker can have a file or port of its own ([`Worker::health_file`](crate::Worker::health_file)) and then needs
/// no `Health`. A process with several workers shares one:
///
/// ```no_run
/// # async fn run(client: punctual::Client, mail: punctual::Worker, bulk: punctual::Worker) -> punctual::Result<()> {
/// use punctual::worker::Health;
///
/// let health = Health::default().addr("127.0.0.1:8080".parse().unwrap());
/// let _reporting = health.start().await?;
/// tokio::try_join!(mail.health(&health).run(), bulk.health(&health).run())?;
/// # Ok(())
/// # }
/// ```
///
/// The answer is one line: `ok`, `stopping`, `held up: WHY` or `stuck`, and the age of the oldest last iteration.
/// Only `stuck` is a failure (503): a loop completed no iteration for 30 s. Clones share their workers.
#[derive(Clone, Debug, Default)]
pub struct Health {
    file: Option<PathBuf>,
    addr: Option<SocketAddr>,
    seen: Arc<Seen>,
}

/// What is reported.
#[derive(Debug, Default)]
struct Seen {
    pulses: Mutex<Vec<Arc<Liveness>>>,
    /// What holds up jobs outside the loops, by its subject.
    notes: Mutex<BTreeMap<String, String>>,
}

impl Seen {
    fn report(&self) -> HealthReport {
        let pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        let age = pulses.iter().map(|liveness| liveness.age()).max().unwrap_or_default();
        let is_alive = age < STUCK_AFTER;
        let is_stopping = pulses.iter().any(|liveness| liveness.graceful.is_cancelled());
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let held_up = || {
            let noted = notes.iter().next().map(|(about, why)| format!("{about}: {why}"));
            pulses.iter().find_map(|liveness| liveness.held_up()).or(noted)
        };
        let words = if !is_alive {
            "stuck".to_owned()
        } else if is_stopping {
            "stopping".to_owned()
        } else {
            held_up().map_or_else(|| "ok".to_owned(), |why| format!("held up: {why}"))
        };
        let text = format!("{words}, last iteration {} ms ago\n", age.as_millis());
        HealthReport { is_alive, is_ready: is_alive && !is_stopping && !pulses.is_empty(), text }
    }
}

/// The health of the workers of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthReport {
    /// Whether all loops completed an iteration within 30 s.
    pub is_alive: bool,
    /// Whether it is alive, at least one worker runs, and none was asked to end.
    pub is_ready: bool,
    /// One line, with its line break: `ok`, `stopping`, `held up: WHY` or `stuck`, and the age of the oldest last
    /// iteration.
    pub text: String,
}

/// Keeps the health reported until it is dropped.
#[derive(Debug)]
#[must_use = "health is reported until this is dropped"]
pub struct Reporting {
    _end: DropGuard,
}

/// A loop that is reported until this is dropped.
#[derive(Debug)]
pub(super) struct Member {
    liveness: Arc<Liveness>,
    seen: Arc<Seen>,
}

impl Member {
    pub(super) const fn liveness(&self) -> &Arc<Liveness> {
        &self.liveness
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut pulses = self.seen.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        pulses.retain(|liveness| !Arc::ptr_eq(liveness, &self.liveness));
    }
}

impl Health {
    /// Rewrites this file every 5 s while all loops are alive.
    #[must_use]
    pub fn file(mut self, file: impl Into<PathBuf>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Answers HTTP requests on this address: 200 while all loops are alive, else 503.
    #[must_use]
    pub const fn addr(mut self, addr: SocketAddr) -> Self {
        self.addr = Some(addr);
        self
    }

    /// Notes that something outside the workers holds up jobs.
    ///
    /// `about` is its subject, for example a queue. `None` withdraws the note.
    ///
    /// At most 1,000 notes are kept, each with the first KiB of both texts. Further notes are ignored.
    pub fn note(&self, about: &str, held_up: Option<&str>) {
        let (about, held_up) = (cut_error(about), held_up.map(cut_error));
        let mut notes = self.seen.notes.lock().unwrap_or_else(PoisonError::into_inner);
        match held_up {
            Some(why) if notes.get(about).is_some_and(|noted| noted == why) => {}
            Some(_) if NOTES_MAX <= notes.len() && !notes.contains_key(about) => {}
            Some(why) => _ = notes.insert(about.to_owned(), why.to_owned()),
            None => _ = notes.remove(about),
        }
    }

    /// Returns the health now.
    pub fn now(&self) -> HealthReport {
        self.seen.report()
    }

    /// Adds a loop that ends gracefully with this token.
    pub(super) fn join(&self, graceful: CancellationToken) -> Member {
        let (liveness, seen) = (Arc::new(Liveness::new(graceful)), Arc::clone(&self.seen));
        seen.pulses.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&liveness));
        Member { liveness, seen }
    }

    /// Starts the reporting on its own thread.
    ///
    /// Before it returns, the file is written and the port answers.
    ///
    /// If the future is dropped, the port can stay bound until the thread ends.
    ///
    /// # Errors
    /// `Unavailable` if the port cannot be bound.
    pub async fn start(&self) -> Result<Reporting> {
        let end = CancellationToken::new();
        let reporting = Reporting { _end: end.clone().drop_guard() };
        self.report_until(end).await?;
        Ok(reporting)
    }

    /// Reports until `end` fires.
    pub(super) async fn report_until(&self, end: CancellationToken) -> Result<()> {
        let Self { file, addr, seen } = self.clone();
        if file.is_none() && addr.is_none() {
            return Ok(());
        }
        let listener = match addr {
            None => None,
            Some(addr) => Some(std::net::TcpListener::bind(addr).map_err(|e| {
                Error::new(ErrorKind::Unavailable, format!("could not listen on {addr} for health"))
                    .with_hint("choose another address, or end the program that listens there")
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
                        tokio::join!(write(file, &seen), serve(listener, &seen));
                    };
                    tokio::select! {
                        () = served => {}
                        () = end.cancelled() => {}
                    }
                }),
                Err(error) => tracing::error!(target: "punctual", %error, "could not report health"),
            }
        });
        spawned.map_err(|e| {
            Error::new(ErrorKind::Unavailable, "could not start the health thread").with_source(e)
        })?;
        // A failure to build the runtime was logged. A worker without a health port is better than none.
        let _ = is_ready.await;
        Ok(())
    }
}

/// Rewrites the file.
async fn write(file: Option<PathBuf>, seen: &Seen) {
    let Some(file) = file else { return };
    loop {
        let HealthReport { is_alive: alive, text, .. } = seen.report();
        // If a loop is stuck, the file is not rewritten, for monitors that check only its age.
        if alive && let Err(error) = std::fs::write(&file, text) {
            tracing::warn!(target: "punctual", %error, file = %file.display(), "could not write the health file");
        }
        sleep(BEAT).await;
    }
}

/// Answers requests.
async fn serve(listener: Option<std::net::TcpListener>, seen: &Seen) {
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
                let HealthReport { is_alive: alive, text, .. } = seen.report();
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
    // The request is read only so that closing the connection does not reset it.
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

    /// Makes a loop whose last iteration was `ago` before now.
    fn loop_of(health: &Health, ago: Duration) -> Member {
        let member = health.join(CancellationToken::new());
        let mut pulses = health.seen.pulses.lock().unwrap();
        pulses.pop();
        let start = Instant::now().checked_sub(ago).unwrap();
        let liveness = Arc::new(Liveness { start, ..Liveness::new(CancellationToken::new()) });
        pulses.push(Arc::clone(&liveness));
        drop(pulses);
        Member { liveness, seen: Arc::clone(&member.seen) }
    }

    #[test]
    fn a_loop_that_completed_no_turn_for_a_while_is_stuck() {
        let health = Health::default();
        let young = loop_of(&health, Duration::from_secs(1));
        assert!(health.seen.report().is_alive);
        let old = loop_of(&health, STUCK_AFTER);
        let HealthReport { is_alive: alive, text, .. } = health.seen.report();
        assert!(!alive && text.starts_with("stuck, last iteration 30"), "{text}");
        // It ended; the others are alive.
        drop(old);
        assert!(health.seen.report().is_alive);
        drop(young);
    }

    #[test]
    fn notes_are_bounded_in_number_and_size() {
        let health = Health::default();
        for n in 0..=NOTES_MAX {
            health.note(&n.to_string(), Some(&"x".repeat(5_000)));
        }
        let kept = || health.seen.notes.lock().unwrap().clone();
        assert_eq!((kept().len(), kept()["0"].len()), (NOTES_MAX, 1_024));
        // A kept note can change, and leaves room when it is withdrawn.
        health.note("0", Some("why"));
        assert_eq!(kept()["0"], "why");
        health.note("0", None);
        health.note("more", Some("why"));
        assert_eq!((kept().len(), kept().contains_key("more")), (NOTES_MAX, true));
    }

    #[test]
    fn health_says_what_holds_up_others() {
        let health = Health::default();
        let (one, two) = (health.join(CancellationToken::new()), health.join(CancellationToken::new()));
        two.liveness.note(Some("kind k: job 1 runs 3 s past its timeout".to_owned()));
        let HealthReport { is_alive: alive, text, .. } = health.seen.report();
        assert!(alive && text.starts_with("held up: kind k: job 1"), "{text}");
        two.liveness.note(None);
        health.note("queue mail", Some("no route to host"));
        let HealthReport { is_alive: alive, text, .. } = health.seen.report();
        assert!(
            alive && text.starts_with("held up: queue mail: no route to host, last iteration "),
            "{text}"
        );
        health.note("queue mail", None);
        assert!(health.seen.report().text.starts_with("ok"));
        one.liveness.graceful.cancel();
        let HealthReport { is_alive: alive, text, .. } = health.seen.report();
        assert!(alive && text.starts_with("stopping, last iteration "), "{text}");
    }
}
