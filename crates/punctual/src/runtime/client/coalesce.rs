//! Merges the enqueues of one client into few calls to its store.
//!
//! Callers queue up. All waiting requests are sent in one call of at most 1,000 jobs and 1 MiB. While a call is in
//! flight, the next one gathers; no caller waits longer to fill a batch. A large call does not wait for the one
//! before it. Two can be in flight, sent in order and numbered separately, because S3 holds for consecutive calls of
//! one instance.
//!
//! A call with a transient failure is repeated with the same number. A merged call that is refused is halved and
//! tried again, so one caller's invalid job does not fail the others. If part of the store is unavailable, callers
//! that do not need it get their answers, and the call is repeated in a separate lane.
//!
//! There is no task. Each waiting caller drives all calls, also those of others, so it depends on no runtime but its
//! own. A caller that is dropped before its jobs were sent removes them.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, Sleep, sleep_until},
};

use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::NewJob,
        limits::{BATCH_BYTES_MAX, BATCH_MAX},
    },
    runtime::{repeat::Pauses, worker::run::catch_panic},
    store::{CallId, Enqueued, Store},
};

mod flight;

use flight::{Caller, Crowd, Flight};

/// Calls in flight at once, so that one is encoded while the store works on another.
const LANES: usize = 2;
/// Calls with this many jobs or more do not wait for the one before. Smaller calls gain more by merging.
const LARGE: usize = BATCH_MAX / 2;
/// How long one call is repeated before its callers get an error.
const REPEAT_MAX: Duration = Duration::from_secs(30);
/// Calls that may wait for an unavailable part of the store while others go on. The callers of further ones get an
/// error.
const STRANDED_MAX: usize = 64;

/// The result for one caller.
type Answer = Result<Vec<Enqueued>>;
/// The store's answers to one call; `None` for a job whose part of the store is unavailable.
type Answers = Result<Vec<Option<Enqueued>>>;

/// Shared by all callers of a client.
pub(super) struct Coalescer {
    store: Arc<dyn Store>,
    line: Mutex<Line>,
    crowd: Arc<Crowd>,
}

impl Coalescer {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, line: Mutex::default(), crowd: Arc::default() }
    }

    /// Splits the jobs into requests that fit one call each, and waits for all answers.
    ///
    /// If the future is dropped, jobs that were not sent yet are removed.
    pub(super) async fn push(&self, jobs: Vec<NewJob>) -> Answer {
        // The timer of the runtime is needed if a call is repeated.
        Handle::try_current().map_err(|e| {
            Error::new(ErrorKind::Unsupported, "could not enqueue outside of a tokio runtime").with_source(e)
        })?;
        let mut answers = Vec::with_capacity(jobs.len());
        let mut place = Place { coalescer: self, callers: VecDeque::new() };
        for jobs in cut(jobs) {
            let caller = Arc::<Caller>::default();
            place.callers.push_back((self.crowd.join(&caller), Arc::clone(&caller)));
            lock(&self.line).join(Request { jobs, caller });
        }
        while let Some((number, caller)) = place.callers.front() {
            answers.extend(self.answer(caller).await?);
            self.crowd.leave(*number);
            place.callers.pop_front();
        }
        Ok(answers)
    }

    /// Drives the calls until this caller has its answer.
    async fn answer(&self, caller: &Caller) -> Answer {
        let mut pause: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|cx| {
            loop {
                let (flights, again) = {
                    let mut line = lock(&self.line);
                    line.advance(&self.store);
                    if let Poll::Ready(answer) = caller.poll(cx) {
                        return Poll::Ready(answer);
                    }
                    line.awaited()
                };
                let mut has_moved = false;
                for flight in flights {
                    has_moved |= flight.poll(&self.crowd).is_ready();
                }
                if let Some(again) = again {
                    let pause = pause.get_or_insert_with(|| Box::pin(sleep_until(again)));
                    pause.as_mut().reset(again);
                    has_moved |= pause.as_mut().poll(cx).is_ready();
                }
                if !has_moved {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A caller's place in the line. When it is dropped, what was not sent is removed.
struct Place<'a> {
    coalescer: &'a Coalescer,
    /// Each with its number in the crowd.
    callers: VecDeque<(u64, Arc<Caller>)>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Coalescer { line, crowd, .. } = self.coalescer;
        if !self.callers.is_empty() {
            lock(line).leave(&self.callers);
            self.callers.iter().for_each(|(number, _)| crowd.leave(*number));
        }
    }
}

/// The jobs of one caller, few enough for one call.
struct Request {
    jobs: Vec<NewJob>,
    caller: Arc<Caller>,
}

impl Request {
    fn bytes(&self) -> usize {
        self.jobs.iter().map(|job| job.payload.bytes.len()).sum()
    }
}

/// Splits jobs into runs of at most 1,000 jobs and 1 MiB. A larger job is a run of its own.
fn cut(jobs: Vec<NewJob>) -> Vec<Vec<NewJob>> {
    let mut runs = Vec::new();
    let (mut run, mut room) = (Vec::new(), Room::default());
    for job in jobs {
        if !room.admits(1, job.payload.bytes.len()) {
            runs.push(mem::take(&mut run));
            room = Room::default();
        }
        room.add(1, job.payload.bytes.len());
        run.push(job);
    }
    if !run.is_empty() {
        runs.push(run);
    }
    runs
}

/// What still fits into one call.
#[derive(Default)]
struct Room {
    jobs: usize,
    bytes: usize,
}

impl Room {
    /// Returns whether this much more fits. The first job always fits: one that is larger than a call is sent alone.
    fn admits(&self, jobs: usize, bytes: usize) -> bool {
        self.jobs == 0 || (self.jobs + jobs <= BATCH_MAX && self.bytes + bytes <= BATCH_BYTES_MAX)
    }

    fn add(&mut self, jobs: usize, bytes: usize) {
        self.jobs += jobs;
        self.bytes += bytes;
    }
}

/// A call that is being gathered.
#[derive(Default)]
struct Gathering {
    room: Room,
    requests: Vec<Request>,
}

/// The requests that wait to be sent, and the calls in flight.
#[derive(Default)]
struct Line {
    /// Each entry is one call. New requests join the last one.
    gathering: VecDeque<Gathering>,
    lanes: [Lane; LANES],
    /// Calls that wait for an unavailable part of the store, each in a lane of its own, so that they hold up no
    /// others.
    stranded: Vec<Lane>,
}

impl Line {
    fn join(&mut self, request: Request) {
        let (jobs, bytes) = (request.jobs.len(), request.bytes());
        if self.gathering.back().is_none_or(|last| !last.room.admits(jobs, bytes)) {
            self.gathering.push_back(Gathering::default());
        }
        if let Some(last) = self.gathering.back_mut() {
            last.room.add(jobs, bytes);
            last.requests.push(request);
        }
    }

    /// Removes what a caller has not sent. Sent jobs stay, because their fate is unknown.
    fn leave(&mut self, callers: &VecDeque<(u64, Arc<Caller>)>) {
        for gathering in &mut self.gathering {
            let room = &mut gathering.room;
            gathering.requests.retain(|request| {
                let stays = !callers.iter().any(|(_, caller)| Arc::ptr_eq(caller, &request.caller));
                if !stays {
                    (room.jobs, room.bytes) = (room.jobs - request.jobs.len(), room.bytes - request.bytes());
                }
                stays
            });
        }
        self.gathering.retain(|gathering| !gathering.requests.is_empty());
    }

    /// Distributes answers, repeats the calls that are due for it, and sends what may be sent.
    fn advance(&mut self, store: &Arc<dyn Store>) {
        for lane in &mut self.stranded {
            lane.land();
            lane.go_on(store);
        }
        self.stranded.retain(Lane::is_needed);
        for lane in &mut self.lanes {
            lane.land();
            if let Some(stranded) = lane.set_aside() {
                if self.stranded.len() < STRANDED_MAX {
                    self.stranded.push(stranded);
                } else {
                    stranded.give_up();
                }
            }
            lane.go_on(store);
        }
        while let Some(first) = self.gathering.front()
            && (LARGE <= first.room.jobs || self.lanes.iter().all(Lane::is_free))
            && let Some(lane) = self.lanes.iter_mut().find(|lane| lane.is_free())
            && let Some(first) = self.gathering.pop_front()
        {
            lane.send(store, Merged::of(first));
        }
    }

    /// Returns what to wait for: the calls in flight, and the time of the next repetition.
    fn awaited(&self) -> (Vec<Arc<Flight>>, Option<Instant>) {
        let (mut flights, mut again) = (Vec::new(), None::<Instant>);
        for lane in self.lanes.iter().chain(&self.stranded) {
            match &lane.stage {
                Stage::Flying { flight, .. } => flights.push(Arc::clone(flight)),
                Stage::Pausing { until, .. } => again = again.into_iter().chain([*until]).min(),
                Stage::Free => {}
            }
        }
        (flights, again)
    }
}

/// Several requests as one call.
struct Merged {
    jobs: Arc<Vec<NewJob>>,
    /// The callers and how many answers each gets, in the order of the jobs. Callers with an answer are removed.
    callers: Vec<(usize, Weak<Caller>)>,
    /// One answer per job, set once a part of the store has answered.
    answers: Vec<Option<Enqueued>>,
    /// Until when the call is repeated, counted from its first sending.
    until: Option<Instant>,
    pauses: Pauses,
    /// An answer was lost. After that, no failure can prove that nothing was changed.
    is_unknown: bool,
}

impl Merged {
    fn new(jobs: Vec<NewJob>, callers: Vec<(usize, Weak<Caller>)>) -> Self {
        Self {
            jobs: Arc::new(jobs),
            callers,
            answers: Vec::new(),
            until: None,
            pauses: Pauses::default(),
            is_unknown: false,
        }
    }

    fn of(gathering: Gathering) -> Self {
        let mut jobs = Vec::with_capacity(gathering.room.jobs);
        let mut callers = Vec::with_capacity(gathering.requests.len());
        for request in gathering.requests {
            callers.push((request.jobs.len(), Arc::downgrade(&request.caller)));
            jobs.extend(request.jobs);
        }
        Self::new(jobs, callers)
    }

    /// Splits the callers and their jobs into two halves.
    fn split(self) -> [Self; 2] {
        let Self { jobs, mut callers, is_unknown: was_lost, .. } = self;
        let mut jobs = Arc::unwrap_or_clone(jobs);
        let later = callers.split_off(callers.len() / 2);
        let kept = callers.iter().map(|(n, _)| n).sum();
        let jobs_later = jobs.split_off(kept);
        [(jobs, callers), (jobs_later, later)]
            .map(|(jobs, callers)| Self { is_unknown: was_lost, ..Self::new(jobs, callers) })
    }

    /// Returns whether the store has answered for none of the jobs.
    fn is_unanswered(&self) -> bool {
        self.answers.iter().all(Option::is_none)
    }

    /// Returns whether a caller still waits for its answers.
    fn is_wanted(&self) -> bool {
        self.callers.iter().any(|(_, caller)| 0 < caller.strong_count())
    }

    fn wake(&self) {
        self.callers.iter().filter_map(|(_, caller)| caller.upgrade()).for_each(|caller| caller.wake());
    }

    /// Gives their results to the callers whose jobs are all answered. Callers that were dropped are ignored.
    fn take_in(&mut self, answers: Vec<Option<Enqueued>>) {
        self.answers.resize(self.jobs.len(), None);
        self.answers.iter_mut().zip(answers).for_each(|(known, new)| *known = known.take().or(new));
        let mut rest = &self.answers[..];
        for (n, caller) in &mut self.callers {
            let own;
            (own, rest) = rest.split_at(*n);
            if let Some(answers) = own.iter().cloned().collect::<Option<Vec<_>>>()
                && let Some(caller) = mem::take(caller).upgrade()
            {
                caller.tell(Ok(answers));
            }
        }
    }

    /// Gives all callers that wait the error after which the call is not repeated.
    ///
    /// After a lost answer, it does not say that nothing was changed, unless the store itself refused the jobs: before a store
    /// checks jobs, it answers a repetition.
    fn give_up(self, error: Error) {
        let is_lost = error.kind() == ErrorKind::UnknownOutcome;
        let is_proof =
            is_refusal(error.kind()) && error.kind() != ErrorKind::Unsupported && !error.is_foreign();
        if self.is_unknown && !is_lost && !is_proof {
            let text = format!("could not learn whether the jobs were stored: {error}");
            let error = error
                .hint()
                .map(str::to_owned)
                .into_iter()
                .fold(Error::new(ErrorKind::UnknownOutcome, text).with_source(error), Error::with_hint);
            return self.fail(&error);
        }
        self.fail(&error);
    }

    /// Gives the error to all callers that wait.
    fn fail(self, error: &Error) {
        for caller in self.callers.into_iter().filter_map(|(_, caller)| caller.upgrade()) {
            caller.tell(Err(copy(error)));
        }
    }
}

/// Makes the error for jobs without an answer.
fn stranded() -> Error {
    Error::new(ErrorKind::UnknownOutcome, "a part of the store cannot be reached")
        .with_hint("check that all servers of the store run; repeat the call with the same id")
}

/// Copies an error for one more caller.
fn copy(error: &Error) -> Error {
    let mut copy = Error::new(error.kind(), error.to_string());
    if let Some(hint) = error.hint() {
        copy = copy.with_hint(hint);
    }
    if let Some(source) = std::error::Error::source(error) {
        copy = copy.with_source(source.to_string());
    }
    if error.is_foreign() { copy.foreign() } else { copy }
}

/// Sends calls one after another, numbered as an instance of its own.
struct Lane {
    instance: u64,
    number: u64,
    stage: Stage,
    /// Parts of a call that was refused, the last one first.
    parts: Vec<Merged>,
}

/// The stage of a lane's call.
enum Stage {
    Free,
    Flying { merged: Merged, flight: Arc<Flight> },
    Pausing { merged: Merged, until: Instant },
}

impl Default for Lane {
    fn default() -> Self {
        Self { instance: fastrand::u64(..), number: 0, stage: Stage::Free, parts: Vec::new() }
    }
}

impl Lane {
    fn is_free(&self) -> bool {
        matches!(self.stage, Stage::Free)
    }

    /// Returns whether the call must go on.
    fn is_needed(&self) -> bool {
        match &self.stage {
            Stage::Free => false,
            Stage::Flying { .. } => true,
            Stage::Pausing { merged, .. } => merged.is_wanted(),
        }
    }

    /// Moves a call that is partly answered to a lane of its own, with its number.
    fn set_aside(&mut self) -> Option<Self> {
        let Stage::Pausing { merged, .. } = &self.stage else { return None };
        if merged.answers.is_empty() {
            return None;
        }
        let parts = mem::take(&mut self.parts);
        Some(mem::replace(self, Self { parts, ..Self::default() }))
    }

    /// Gives the error to the callers of a call that waits to be repeated.
    fn give_up(self) {
        if let Stage::Pausing { merged, .. } = self.stage {
            merged.fail(&stranded());
        }
    }

    /// Makes a new call.
    fn send(&mut self, store: &Arc<dyn Store>, mut merged: Merged) {
        self.number += 1;
        merged.until = Some(Instant::now() + REPEAT_MAX);
        self.fly(store, merged);
    }

    /// Sends the call with this number, for the first time or again.
    fn fly(&mut self, store: &Arc<dyn Store>, merged: Merged) {
        let call = CallId { instance: self.instance, number: self.number };
        let (store, jobs) = (Arc::clone(store), Arc::clone(&merged.jobs));
        let flight = Flight::new(Box::pin(async move {
            let answer = catch_panic(async { store.enqueue_each(call, &jobs).await }).await;
            answer.unwrap_or_else(|panic| {
                Err(Error::new(ErrorKind::Closed, format!("the store panicked: {panic}")))
            })
        }));
        // Each of them can drive the call: the caller that sends it may stop polling.
        merged.wake();
        self.stage = Stage::Flying { merged, flight };
    }

    /// Handles a result: answers, repeats later, or halves a refused call.
    fn land(&mut self) {
        let Stage::Flying { flight, .. } = &self.stage else { return };
        let Some(answer) = flight.take() else { return };
        let Stage::Flying { mut merged, .. } = mem::replace(&mut self.stage, Stage::Free) else { return };
        match answer {
            Err(error) if error.is_repeatable() => self.repeat_later(merged, error),
            Err(error) if is_refusal(error.kind()) && 1 < merged.callers.len() && merged.is_unanswered() => {
                let [first, later] = merged.split();
                self.parts.extend([later, first]);
            }
            Err(error) => merged.give_up(error),
            Ok(answers) => {
                merged.take_in(answers);
                if merged.is_wanted() {
                    self.repeat_later(merged, stranded());
                }
            }
        }
    }

    fn repeat_later(&mut self, mut merged: Merged, error: Error) {
        merged.is_unknown |= error.kind() == ErrorKind::UnknownOutcome;
        let (pause, now) = (merged.pauses.next(), Instant::now());
        if merged.until.is_none_or(|until| until < now + pause) {
            return merged.give_up(error);
        }
        tracing::debug!(target: "punctual", %error, ?pause, jobs = merged.jobs.len(), "enqueue will be repeated");
        self.stage = Stage::Pausing { merged, until: now + pause };
    }

    /// Repeats a call whose pause is over, and sends parts of a refused one, as long as a caller waits for them.
    fn go_on(&mut self, store: &Arc<dyn Store>) {
        if let Stage::Pausing { until, .. } = &self.stage
            && *until <= Instant::now()
            && let Stage::Pausing { merged, .. } = mem::replace(&mut self.stage, Stage::Free)
            && merged.is_wanted()
        {
            self.fly(store, merged);
        }
        while self.is_free()
            && let Some(part) = self.parts.pop()
        {
            if part.is_wanted() {
                self.send(store, part);
            }
        }
    }
}

/// Returns whether the store refused the content of the call, so that a part of it may succeed.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Invalid | ErrorKind::TooLarge | ErrorKind::Conflict | ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::{core::id::IdMaker, core::job::Payload};

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

    #[test]
    fn callers_whose_jobs_are_answered_wait_for_no_others() {
        let mut ids = IdMaker::default();
        let jobs = (0..3).map(|_| NewJob::new(ids.make(1, 0, 1), "k", "q", Payload::json("1"))).collect();
        let callers: [Arc<Caller>; 2] = Default::default();
        let [first, second] = callers.each_ref().map(Arc::downgrade);
        let mut merged = Merged::new(jobs, vec![(1, first), (2, second)]);
        let told = || {
            callers.each_ref().map(|caller| match caller.poll(&Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => answer.unwrap().len(),
                Poll::Pending => 0,
            })
        };
        let full = || Some(Enqueued::Full);
        merged.take_in(vec![full(), full(), None]);
        assert_eq!((told(), merged.is_wanted()), ([1, 0], true));
        merged.take_in(vec![None, None, full()]);
        assert_eq!((told(), merged.is_wanted()), ([0, 2], false));
    }
}
