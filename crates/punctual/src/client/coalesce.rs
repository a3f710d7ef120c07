//! Merges the enqueues of one client into few calls to its store.
//!
//! One background task per client takes what callers hand in, joins whatever is there into one call of at most 1,000 jobs
//! and 1 MiB, and shares the answers out. While a call is on its way the next one gathers: nobody waits for company. A large
//! one does not wait for the one before either: two may be on their way, sent in their order, and numbered apart (S3 holds
//! for calls of one instance in a row). A call that fails in passing is repeated with the same number; a merged call that is
//! refused is halved and tried again, so that one caller's bad job costs nobody else. The task never drops a request
//! unanswered and holds no client, so it ends with the last of them.

use std::{
    collections::VecDeque,
    fmt, mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

use crate::{
    error::{Error, ErrorKind, Result},
    job::NewJob,
    limits::{BATCH_BYTES_MAX, BATCH_MAX},
    repeat::Pauses,
    store::{Call, Enqueued, Store},
};

/// Requests that may wait for the call before them; further callers wait for a place.
const INBOX_MAX: usize = 4 * BATCH_MAX;
/// Calls that may be on their way at once, so that one is encoded while the store is at another.
const LANES: usize = 2;
/// From so many jobs on a call does not wait for the one before it: smaller ones gain more by company.
const LARGE: usize = BATCH_MAX / 2;
/// How long one call is repeated before its callers are told.
const REPEAT_MAX: Duration = Duration::from_secs(30);

/// The callers' side.
pub(super) struct Coalescer {
    store: Arc<dyn Store>,
    /// Where requests go; `None` until the first one, and closed when the runtime that the task ran on is gone.
    inbox: Mutex<Option<mpsc::Sender<Request>>>,
}

impl Coalescer {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, inbox: Mutex::new(None) }
    }

    /// Hands jobs in, cut into requests that fit one call, and waits for all answers.
    pub(super) async fn push(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        let inbox = self.inbox()?;
        let mut answers = Vec::with_capacity(jobs.len());
        let mut waiting = VecDeque::new();
        for jobs in cut(jobs) {
            let (answer, answered) = oneshot::channel();
            waiting.push_back(answered);
            // A closed inbox drops the request, and with it the other end of `answered`, which says so below.
            let _ = inbox.send(Request { jobs, answer }).await;
        }
        for answered in waiting {
            answers.extend(answered.await.map_err(|_| ended())??);
        }
        Ok(answers)
    }

    /// The way to the task, started on the current runtime where there is none.
    fn inbox(&self) -> Result<mpsc::Sender<Request>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = inbox.as_ref().filter(|inbox| !inbox.is_closed()) {
            return Ok(open.clone());
        }
        let runtime = Handle::try_current().map_err(|e| {
            Error::new(ErrorKind::Unsupported, "could not enqueue outside of a tokio runtime").with_source(e)
        })?;
        let (sender, receiver) = mpsc::channel(INBOX_MAX);
        runtime.spawn(Gatherer::new(&self.store, receiver).run());
        *inbox = Some(sender.clone());
        Ok(sender)
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer").finish_non_exhaustive()
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::UnknownOutcome, "the runtime that carried the enqueue was shut down")
        .with_hint("repeat it with the same id: what was stored answers duplicate")
}

/// One caller's jobs, few enough for one call.
struct Request {
    jobs: Vec<NewJob>,
    answer: oneshot::Sender<Result<Vec<Enqueued>>>,
}

impl Request {
    fn bytes(&self) -> usize {
        self.jobs.iter().map(|job| job.payload.bytes.len()).sum()
    }
}

/// Cuts jobs into runs of at most 1,000 and 1 MiB; a larger job is a run of its own.
fn cut(jobs: Vec<NewJob>) -> Vec<Vec<NewJob>> {
    let mut runs = Vec::new();
    let (mut run, mut room) = (Vec::new(), Room::new());
    for job in jobs {
        if !room.admits(1, job.payload.bytes.len()) {
            runs.push(mem::take(&mut run));
            room = Room::new();
        }
        room.add(1, job.payload.bytes.len());
        run.push(job);
    }
    if !run.is_empty() {
        runs.push(run);
    }
    runs
}

/// What still fits one call.
struct Room {
    jobs: usize,
    bytes: usize,
}

impl Room {
    fn new() -> Self {
        Self { jobs: 0, bytes: 0 }
    }

    /// Whether so much more fits. Whatever comes first does: a job that is larger than a call's bytes travels alone.
    fn admits(&self, jobs: usize, bytes: usize) -> bool {
        self.jobs == 0 || (self.jobs + jobs <= BATCH_MAX && self.bytes + bytes <= BATCH_BYTES_MAX)
    }

    fn add(&mut self, jobs: usize, bytes: usize) {
        self.jobs += jobs;
        self.bytes += bytes;
    }
}

/// Several requests as one call.
struct Merged {
    jobs: Vec<NewJob>,
    /// Who gets the answers, and how many each, in the order of the jobs.
    callers: Vec<(usize, oneshot::Sender<Result<Vec<Enqueued>>>)>,
}

impl Merged {
    fn of(first: Request) -> (Self, Room) {
        let mut room = Room::new();
        room.add(first.jobs.len(), first.bytes());
        (Self { callers: vec![(first.jobs.len(), first.answer)], jobs: first.jobs }, room)
    }

    /// Joins a request, if it fits; else answers it.
    fn admit(&mut self, request: Request, room: &mut Room) -> Option<Request> {
        let (jobs, bytes) = (request.jobs.len(), request.bytes());
        if !room.admits(jobs, bytes) {
            return Some(request);
        }
        room.add(jobs, bytes);
        self.callers.push((jobs, request.answer));
        self.jobs.extend(request.jobs);
        None
    }

    /// Whether it gains less by more company than by not waiting for it.
    fn is_large(&self) -> bool {
        LARGE <= self.jobs.len()
    }

    /// The later half of the callers, with their jobs.
    fn split(&mut self) -> Self {
        let callers = self.callers.split_off(self.callers.len() / 2);
        let kept = self.callers.iter().map(|(n, _)| n).sum();
        Self { jobs: self.jobs.split_off(kept), callers }
    }

    /// Gives every caller its answers. One that has gone away doesn't care.
    fn answer(self, result: Result<Vec<Enqueued>>) {
        match result {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                for (n, caller) in self.callers {
                    let _ = caller.send(Ok(answers.by_ref().take(n).collect()));
                }
            }
            Err(error) => {
                for (_, caller) in self.callers {
                    let _ = caller.send(Err(copy(&error)));
                }
            }
        }
    }
}

/// The same error for one more caller.
fn copy(error: &Error) -> Error {
    let mut copy = Error::new(error.kind(), error.to_string());
    if let Some(hint) = error.hint() {
        copy = copy.with_hint(hint);
    }
    if let Some(source) = std::error::Error::source(error) {
        copy = copy.with_source(source.to_string());
    }
    copy
}

/// The task's side: gathers requests, and hands each call to a lane.
struct Gatherer {
    inbox: mpsc::Receiver<Request>,
    /// What did not fit the call before.
    ahead: Option<Request>,
    /// Those with no call on its way.
    free: Vec<Lane>,
    busy: JoinSet<Lane>,
}

impl Gatherer {
    fn new(store: &Arc<dyn Store>, inbox: mpsc::Receiver<Request>) -> Self {
        let free = (0..LANES).map(|_| Lane::new(Arc::clone(store))).collect();
        Self { inbox, ahead: None, free, busy: JoinSet::new() }
    }

    async fn run(mut self) {
        while let Some(first) = match self.ahead.take() {
            Some(request) => Some(request),
            None => self.inbox.recv().await,
        } {
            let (mut merged, mut room) = Merged::of(first);
            let lane = loop {
                self.gather(&mut merged, &mut room);
                if (self.busy.is_empty() || merged.is_large())
                    && let Some(lane) = self.free.pop()
                {
                    break lane;
                }
                tokio::select! {
                    lane = self.busy.join_next() => match lane {
                        Some(Ok(lane)) => self.free.push(lane),
                        // It panicked, and its callers know; the runtime is shutting down otherwise.
                        _ => return,
                    },
                    request = self.inbox.recv(), if self.ahead.is_none() && !self.inbox.is_closed() => {
                        if let Some(request) = request {
                            self.ahead = merged.admit(request, &mut room);
                        }
                    }
                }
            };
            self.busy.spawn(lane.deliver(merged));
        }
        while self.busy.join_next().await.is_some() {}
    }

    /// Joins what is there; a request that does not fit any more goes ahead of the next call.
    fn gather(&mut self, merged: &mut Merged, room: &mut Room) {
        while self.ahead.is_none()
            && let Ok(request) = self.inbox.try_recv()
        {
            self.ahead = merged.admit(request, room);
        }
    }
}

/// Makes calls one after another, numbered as an instance of its own.
struct Lane {
    store: Arc<dyn Store>,
    instance: u64,
    number: u64,
}

impl Lane {
    fn new(store: Arc<dyn Store>) -> Self {
        Self { store, instance: fastrand::u64(..), number: 0 }
    }

    /// Makes the call; halves it as long as it is refused.
    async fn deliver(mut self, merged: Merged) -> Self {
        let mut parts = vec![merged];
        while let Some(mut part) = parts.pop() {
            match self.call(&part.jobs).await {
                Err(error) if is_refusal(error.kind()) && 1 < part.callers.len() => {
                    let later = part.split();
                    parts.extend([later, part]);
                }
                result => part.answer(result),
            }
        }
        self
    }

    /// One call, repeated with its own number while it fails in passing.
    async fn call(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.number += 1;
        let call = Call { instance: self.instance, number: self.number };
        let (until, mut pauses, mut unknown) = (Instant::now() + REPEAT_MAX, Pauses::default(), false);
        loop {
            let error = match self.store.enqueue(call, jobs).await {
                Err(error) if error.is_repeatable() => error,
                result => return result,
            };
            unknown |= error.kind() == ErrorKind::UnknownOutcome;
            let pause = pauses.next();
            if until < Instant::now() + pause {
                // Once an answer was lost, no later failure can say any more that nothing was changed.
                return Err(if unknown && error.kind() != ErrorKind::UnknownOutcome {
                    Error::new(ErrorKind::UnknownOutcome, "could not learn whether the jobs were stored")
                        .with_source(error)
                } else {
                    error
                });
            }
            tracing::debug!(target: "punctual", %error, ?pause, jobs = jobs.len(), "enqueue will be repeated");
            tokio::time::sleep(pause).await;
        }
    }
}

/// Whether the store refused the call for what is in it, so that a part of it may pass.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Invalid | ErrorKind::TooLarge | ErrorKind::Conflict | ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::IdMaker, job::Payload};

    #[test]
    fn runs_hold_at_most_1000_jobs_and_1_mib_and_a_larger_job_travels_alone() {
        let sizes = |bytes: &[usize]| -> Vec<usize> {
            let mut ids = IdMaker::default();
            let jobs =
                bytes.iter().map(|n| NewJob::new(ids.make(1, 0, 1), "k", "q", Payload::json(vec![b'1'; *n])));
            cut(jobs.collect()).iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[1; 2_001]), [1_000, 1_000, 1]);
        assert_eq!(sizes(&[600_000, 448_576, 1]), [2, 1]);
        assert_eq!(sizes(&[1, 2_000_000, 1]), [1, 1, 1]);
    }
}
