//! One child that stays: from its start to its end, and the jobs that it runs in between.
//!
//! ```text
//! handler of a job ──► frames to be written ──► task that writes ──► child
//!        ▲                                                            │
//!        └──verdict── task that reads ◄──progress, log, enqueue, verdict
//! ```
//!
//! Reading never waits for writing, so neither side can block the other one. A run ends with a verdict of the child, or with the child:
//! then nothing that the child started is left.

use std::{
    collections::HashMap,
    io,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use punctual::{Client, Ctx, JobRecord, Outcome, limits::ERROR_BYTES_MAX, store::wire, worker::Health};
use tokio::{
    io::AsyncWriteExt as _,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    capture::Tail,
    command::Running,
    frame::{Frames, FromChild, PROTOCOL, ToChild, Why},
    memory::Memory,
    process::Note,
};

/// How long a child may take until it says that it is ready.
const READY_MAX: Duration = Duration::from_mins(1);
/// Said of a child that ended before.
const NOT_READY: &str =
    "it did not say that it is ready: a command for --keep uses a library, as docs/pipe-workers.md shows";
/// The most jobs that a child can run at once.
const SLOTS_MAX: usize = 1_000;
/// The most jobs that a child enqueues and has no answer for.
const CALLS_MAX: usize = 1_000;
/// The most KiB of such jobs. Beyond, its other frames wait for the store.
const CALLS_KIB_MAX: u32 = 16 * 1024;
/// How long a look at the memory of a child is waited for. The child goes on as if it had found nothing.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// How long frames are read that a child left when it ended.
const LEFT_MAX: Duration = Duration::from_secs(1);

/// How children are started and ended.
#[derive(Clone)]
pub(super) struct Manner {
    /// What `sh -c` runs.
    pub(super) command: Arc<str>,
    /// Between the wish that it ends and SIGTERM, and between SIGTERM and SIGKILL.
    pub(super) kill_after: Duration,
    /// Whether children see the address of the store.
    pub(super) pass_store: bool,
    /// The name of the worker, if it was given one.
    pub(super) worker: Option<Arc<str>>,
    pub(super) client: Client,
    /// Where it is reported that a child cannot be ended.
    pub(super) health: Health,
}

/// A child that is ready.
pub(super) struct Child {
    /// Frames to be written. There is room for all that can wait at once.
    frames: mpsc::Sender<Frame>,
    runs: Mutex<Runs>,
    /// How many runs were opened.
    begun: AtomicU64,
    /// The last of what it wrote for people.
    tail: Tail,
    /// How many jobs it can run at once.
    pub(super) slots: usize,
    /// The number of its supervisor: what has this one as an ancestor belongs to the child.
    supervisor: Option<u32>,
    /// The most bytes of memory that a look has found.
    bytes: AtomicU64,
    /// Whether a look is under way.
    is_looked_at: AtomicBool,
    /// Fired to have it ended.
    killed: CancellationToken,
}

/// A frame to be written, and for a job whether it still has to be.
struct Frame {
    bytes: Vec<u8>,
    job: Option<Arc<AtomicU8>>,
}

/// The frame of a job waits.
const WAITS: u8 = 0;
/// It is written, or was.
const GIVEN: u8 = 1;
/// It is not needed any more.
const WITHDRAWN: u8 = 2;

/// The runs of a child, by their numbers.
#[derive(Default)]
struct Runs {
    open: HashMap<u64, Run>,
    /// There can be none any more.
    is_gone: bool,
}

struct Run {
    ctx: Ctx<()>,
    ended: oneshot::Sender<Ended>,
}

/// A run that was opened.
pub(super) struct Opened {
    pub(super) run: u64,
    /// Its end.
    pub(super) end: oneshot::Receiver<Ended>,
    frame: Arc<AtomicU8>,
}

/// How a run ended: with a verdict, or with its child, and why that ended.
pub(super) type Ended = Result<Outcome, String>;

/// What a child leaves when it is gone.
pub(super) struct Gone {
    pub(super) why: String,
    /// How many runs it had.
    pub(super) runs: u64,
}

impl Manner {
    /// Starts a child and waits until it is ready. Returns it, and its task, which ends when it is gone. Returns why it could not start.
    pub(super) async fn start(&self) -> Result<(Arc<Child>, JoinHandle<Gone>), String> {
        let started = self.spawn().await;
        let (mut running, socket) = started.map_err(|e| format!("could not start the command: {e}"))?;
        let (tail, ended) = (Tail::default(), CancellationToken::new());
        let stderr =
            running.stderr().map(|pipe| tokio::spawn(tail.clone().follow(pipe, ended.clone(), None)));
        let mut life =
            Life { running, kill_after: self.kill_after, health: self.health.clone(), tail, ended, stderr };
        let (read, mut write) = socket.into_split();
        let mut read = Frames::new(read);
        let hello = ToChild::Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION"),
            worker: self.worker.as_deref(),
        };
        let greeted = async {
            write.write_all(&hello.encode(b"")).await?;
            tokio::select! {
                biased;
                frame = read.next() => frame,
                _ = life.running.ended() => Ok(None),
            }
        };
        let slots = match timeout(READY_MAX, greeted).await {
            Err(_) => Err(format!("it did not say within {READY_MAX:?} that it is ready")),
            Ok(Err(e)) if e.kind() == io::ErrorKind::InvalidData => Err(e.to_string()),
            Ok(Err(_) | Ok(None)) => Err(String::new()),
            Ok(Ok(Some((FromChild::Ready { protocol, slots }, _)))) => match (protocol, slots) {
                (PROTOCOL, 1..=SLOTS_MAX) => Ok(slots),
                (PROTOCOL, _) => Err(format!("it has {slots} slots; the range is 1 to {SLOTS_MAX}")),
                _ => Err(format!("it speaks version {protocol} of the protocol, and this worker {PROTOCOL}")),
            },
            Ok(Ok(Some((other, _)))) => Err(format!("its first frame is not `ready`, but {other:?}")),
        };
        let slots = match slots {
            Ok(slots) => slots,
            Err(why) => {
                let is_by_itself = why.is_empty();
                let said = life.end(why, Duration::ZERO).await;
                // Perhaps a command that runs one job and knows nothing of the protocol.
                return Err(if is_by_itself { format!("{said} ({NOT_READY})") } else { said });
            }
        };
        // A job and a cancel for each slot, an answer for each call, and the wish that it ends.
        let (frames, to_write) = mpsc::channel(2 * slots + CALLS_MAX + 1);
        let child = Arc::new(Child {
            frames,
            runs: Mutex::default(),
            begun: AtomicU64::new(0),
            tail: life.tail.clone(),
            slots,
            supervisor: life.running.supervisor(),
            bytes: AtomicU64::new(0),
            is_looked_at: AtomicBool::new(false),
            killed: CancellationToken::new(),
        });
        tokio::spawn(write_all(write, to_write, life.ended.clone()));
        let life = Arc::clone(&child).live(read, life, self.client.clone(), self.kill_after);
        Ok((child, tokio::spawn(life)))
    }

    async fn spawn(&self) -> io::Result<(Running, UnixStream)> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Running::child(&["sh", "-c", &self.command], self.kill_after)?;
        command.stdout(Stdio::from(std::os::fd::OwnedFd::from(theirs))).stderr(Stdio::piped());
        // So that spans of a job are not children of what the worker was started in.
        command.env_remove("TRACEPARENT").env_remove("TRACESTATE");
        // Its address may hold a password.
        if !self.pass_store {
            command.env_remove("PUNCTUAL_STORE");
        }
        Ok((Running::start(command, None).await?, UnixStream::from_std(ours)?))
    }
}

/// Writes frames until the child is gone.
async fn write_all(mut write: OwnedWriteHalf, mut frames: mpsc::Receiver<Frame>, gone: CancellationToken) {
    let all = async {
        while let Some(Frame { bytes, job }) = frames.recv().await {
            let is_withdrawn = job.is_some_and(|state| {
                state.compare_exchange(WAITS, GIVEN, Ordering::AcqRel, Ordering::Acquire).is_err()
            });
            // Without a reader the child is gone, or will be: its task sees that.
            if !is_withdrawn && write.write_all(&bytes).await.is_err() {
                break;
            }
        }
        // The channel is closed, or the child reads no more. The end of the file would tell it to end.
        gone.cancelled().await;
    };
    tokio::select! {
        () = all => {}
        () = gone.cancelled() => {}
    }
}

/// The processes of a child, and what they write for people.
struct Life {
    running: Running,
    /// Between SIGTERM and SIGKILL.
    kill_after: Duration,
    health: Health,
    tail: Tail,
    /// Fired when the command has ended.
    ended: CancellationToken,
    stderr: Option<JoinHandle<()>>,
}

impl Life {
    /// Ends the child if it runs, and waits until nothing is left of it. Returns why it ended: for the reason given, or by itself.
    /// `grace`: how long it may take to end by itself.
    async fn end(&mut self, why: String, grace: Duration) -> String {
        let exited = if let Ok(exited) = timeout(grace, self.running.ended()).await {
            exited
        } else {
            let about = format!("the child of process {}", self.running.supervisor().unwrap_or_default());
            let note = Note { health: &self.health, about };
            let report = |words: String| {
                tracing::warn!("{}: {words}", note.about);
                note.put(&words);
            };
            self.running.gone(self.kill_after, report).await
        };
        self.ended.cancel();
        if let Some(stderr) = self.stderr.take() {
            let _ = stderr.await;
        }
        let how = match exited {
            Ok(status) => status.to_string(),
            Err(e) => e.to_string(),
        };
        let why = if why.is_empty() {
            format!("the child ended: {how}")
        } else {
            format!("the child was ended: {why}")
        };
        // Of the rest, the end is kept: it has the error.
        let said = self.tail.text();
        let from = said.len().saturating_sub(ERROR_BYTES_MAX.saturating_sub(why.len() + 1));
        match said[said.ceil_char_boundary(from)..].trim() {
            "" => why,
            said => format!("{why}\n{said}"),
        }
    }
}

impl Opened {
    /// Takes the job back if its frame is not written yet. Returns whether it is not.
    pub(super) fn withdraw(&self) -> bool {
        self.frame.compare_exchange(WAITS, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Child {
    /// Opens a run, whose job it gets next; `None` if the child takes no jobs.
    pub(super) fn open(&self, job: &JobRecord, ctx: &Ctx<()>) -> Option<Opened> {
        let mut runs = self.runs();
        if self.killed.is_cancelled() || runs.is_gone {
            return None;
        }
        if runs.open.is_empty() {
            // It is about earlier jobs.
            self.tail.clear();
        }
        let run = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let (ended, end) = oneshot::channel();
        runs.open.insert(run, Run { ctx: ctx.clone(), ended });
        let frame = Arc::new(AtomicU8::new(WAITS));
        let bytes = ToChild::job(run, ctx.fence(), job).encode(&job.payload.bytes);
        self.write(Frame { bytes, job: Some(Arc::clone(&frame)) });
        Some(Opened { run, end, frame })
    }

    /// Forgets a run whose job was taken back.
    pub(super) fn close(&self, run: u64) {
        self.runs().open.remove(&run);
    }

    /// Asks it to end a run, or to end itself.
    pub(super) fn ask(&self, run: Option<(u64, Why)>) {
        let frame = match run {
            Some((run, reason)) => ToChild::Cancel { run, reason },
            None => ToChild::Stop {},
        };
        self.write(Frame { bytes: frame.encode(b""), job: None });
    }

    fn write(&self, frame: Frame) {
        // It is closed if the child is gone. If it were full, the child would read nothing, and could only be ended.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.frames.try_send(frame) {
            self.kill();
        }
    }

    /// Returns how many runs were opened.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Looks at its memory, outside of the tasks of the worker. Returns the most bytes that a look has found. While a look is under way,
    /// another one is not begun.
    pub(super) async fn look(self: &Arc<Self>, memory: &Memory) -> u64 {
        if let Some(supervisor) = self.supervisor
            && !self.is_looked_at.swap(true, Ordering::AcqRel)
        {
            let (child, memory) = (Arc::clone(self), memory.clone());
            let looked = tokio::task::spawn_blocking(move || {
                let bytes = memory.of_descendants(supervisor);
                child.bytes.fetch_max(bytes, Ordering::AcqRel);
                child.is_looked_at.store(false, Ordering::Release);
            });
            let _ = timeout(LOOK_MAX, looked).await;
        }
        self.bytes()
    }

    /// Returns the most bytes of memory that a look has found.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Returns whether it can get jobs: nobody ended it, and it did not end.
    pub(super) fn takes_jobs(&self) -> bool {
        !self.killed.is_cancelled() && !self.runs().is_gone
    }

    /// Has it ended at once.
    pub(super) fn kill(&self) {
        self.killed.cancel();
    }

    fn runs(&self) -> std::sync::MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what it says until it is gone.
    async fn live(
        self: Arc<Self>,
        mut read: Frames<OwnedReadHalf>,
        mut life: Life,
        client: Client,
        kill_after: Duration,
    ) -> Gone {
        let (calls, room) = (TaskTracker::new(), Arc::new(Semaphore::new(CALLS_KIB_MAX as usize)));
        let (why, grace) = loop {
            let frame = tokio::select! {
                biased;
                () = self.killed.cancelled() => {
                    break ("it did not do what it was asked for".to_owned(), Duration::ZERO);
                }
                frame = read.next() => frame,
                // Something that it started may hold the socket open.
                _ = life.running.ended() => break (String::new(), Duration::ZERO),
            };
            match frame {
                Err(e) if e.kind() == io::ErrorKind::InvalidData => break (e.to_string(), Duration::ZERO),
                // It closed its side, mostly because it ends.
                Ok(None) | Err(_) => break (String::new(), kill_after),
                Ok(Some((FromChild::Enqueue { .. }, _))) if CALLS_MAX <= calls.len() => {
                    break (format!("it has more than {CALLS_MAX} calls without an answer"), Duration::ZERO);
                }
                Ok(Some((FromChild::Enqueue { call, .. }, job))) => {
                    let kib = u32::try_from(job.len() / 1024 + 1).unwrap_or(u32::MAX).min(CALLS_KIB_MAX);
                    let room = tokio::select! {
                        () = self.killed.cancelled() => continue,
                        room = Arc::clone(&room).acquire_many_owned(kib) => room,
                    };
                    let (child, client) = (Arc::clone(&self), client.clone());
                    calls.spawn(async move {
                        child.enqueue(&client, call, &job).await;
                        drop(room);
                    });
                }
                Ok(Some((frame, body))) => {
                    if let Err(why) = self.hear(frame, body) {
                        break (why, Duration::ZERO);
                    }
                }
            }
        };
        // No job is given to it any more.
        self.runs().is_gone = true;
        let why = life.end(why, grace).await;
        // Verdicts that it had written count.
        let left = async {
            while let Ok(Some((frame, body))) = read.next().await {
                let _ = self.hear(frame, body);
            }
        };
        let _ = timeout(LEFT_MAX, left).await;
        for (_, run) in std::mem::take(&mut self.runs().open) {
            let _ = run.ended.send(Err(why.clone()));
        }
        Gone { why, runs: self.begun() }
    }

    /// Takes a frame about a run.
    fn hear(&self, frame: FromChild, body: Vec<u8>) -> Result<(), String> {
        let unknown = |run: u64| format!("it wrote about run {run}, which it does not have");
        // Notes of a run that has ended are late, and nothing else.
        let ctx = |run: u64| {
            let open = self.runs().open.get(&run).map(|run| run.ctx.clone());
            if open.is_none() && !(1..=self.begun()).contains(&run) { Err(unknown(run)) } else { Ok(open) }
        };
        match frame {
            FromChild::Progress { run, done, total, message } => {
                let Some(ctx) = ctx(run)? else { return Ok(()) };
                if done.is_some() || total.is_some() {
                    ctx.progress(done.unwrap_or(0), total);
                }
                if let Some(message) = message {
                    ctx.message(message);
                }
            }
            FromChild::Log { run, text } => {
                if let Some(ctx) = ctx(run)? {
                    ctx.log(text);
                }
            }
            FromChild::Ready { .. } => return Err("it said twice that it is ready".to_owned()),
            verdict => {
                if let Some((run, outcome)) = verdict.into_verdict(body) {
                    let run = self.runs().open.remove(&run).ok_or_else(|| unknown(run))?;
                    // Nobody waits for a run that was given back.
                    let _ = run.ended.send(Ok(outcome));
                }
            }
        }
        Ok(())
    }

    /// Enqueues a job for it, and answers.
    async fn enqueue(&self, client: &Client, call: u64, job: &[u8]) {
        let job = std::str::from_utf8(job)
            .map_err(|_| punctual::Error::invalid("the job is not UTF-8"))
            .and_then(|text| wire::job(text, || client.make_id()));
        let answer = match job {
            Ok(job) => client.push(vec![job]).await.map(|mut all| all.remove(0)),
            Err(e) => Err(e),
        };
        let frame = match &answer {
            Ok(answer) => ToChild::Enqueued { call, answer },
            Err(e) => {
                ToChild::Refused { call, code: e.kind().code(), message: e.to_string(), hint: e.hint() }
            }
        };
        self.write(Frame { bytes: frame.encode(b""), job: None });
    }
}
