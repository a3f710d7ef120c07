//! Takes the steps of operations: one loop for each process. It reads the store at its start, when it is woken, and once a minute
//! while it has nothing to do.

use std::{collections::BTreeMap, time::Duration};

use punctual::{CancellationToken, Client, ErrorKind, Result, store::Precondition};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    ATTEMPTS, Operation, OperationState, cut,
    kept::{self, Put},
    operation::Lease,
    step::Step,
};
use crate::activity::{Activity, Actor, Entry, Via};

/// How long a server has an operation without a further step. Another server goes on after it.
const LEASE: Duration = Duration::from_secs(15);
/// How often a server without operations looks for those that another server left.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// The first pause after an error of the store. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest pause between two steps. It is as long as the step took, so that operations leave half of the time to others.
const REST_MAX: Duration = Duration::from_secs(1);
/// The longest error text in bytes.
const ERROR_BYTES_MAX: usize = 1_024;

/// The runner of a process.
#[derive(Debug)]
pub(super) struct Runner {
    client: Client,
    activity: Activity,
    /// The name of this process in leases.
    instance: String,
    woken: mpsc::Receiver<()>,
    /// Operations that this process has a lease of, by id, and until when by its own clock.
    held: BTreeMap<String, Instant>,
}

/// What to do with an operation after a step.
enum Next {
    /// Take the next step.
    Step,
    /// Look again after this time: another server has it.
    Wait(Duration),
    /// Forget it: it has ended, or is gone.
    End,
}

impl Runner {
    pub(super) fn new(
        client: &Client,
        activity: &Activity,
        instance: String,
        woken: mpsc::Receiver<()>,
    ) -> Self {
        Self { client: client.clone(), activity: activity.clone(), instance, woken, held: BTreeMap::new() }
    }

    /// Runs operations until `stop`, or until all that could give orders is dropped.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut pause = PAUSE_MIN;
        loop {
            let wait = match self.work(&stop, &mut pause).await {
                Ok(wait) => {
                    pause = PAUSE_MIN;
                    wait
                }
                // A store behind a server whose token does not allow this, or that is closed.
                Err(
                    ErrorKind::Unauthenticated
                    | ErrorKind::Forbidden
                    | ErrorKind::Unsupported
                    | ErrorKind::Closed,
                ) => LOOK_EVERY,
                Err(_) => {
                    let now = pause;
                    pause = (pause * 2).min(PAUSE_MAX);
                    now
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                woken = self.woken.recv() => if woken.is_none() { break },
                () = sleep(wait) => {}
            }
        }
        self.give_back().await;
    }

    /// Takes steps of all operations in turn, until nothing can be done now. Returns how long to wait. Each step that succeeds
    /// makes the pause after the next error short again.
    async fn work(&mut self, stop: &CancellationToken, pause: &mut Duration) -> Result<Duration, ErrorKind> {
        let failed = |what: &'static str| {
            move |error: punctual::Error| {
                tracing::warn!(target: "punctual", error = %error.with_causes(), "{what}");
                error.kind()
            }
        };
        let all = kept::all(&self.client).await.map_err(failed("operations could not be read"))?;
        let mut ids: Vec<String> =
            all.into_iter().filter(|operation| !operation.is_ended()).map(|operation| operation.id).collect();
        // The oldest first.
        ids.reverse();
        let begun = Instant::now();
        loop {
            let (mut wait, mut left, mut passing) = (LOOK_EVERY, Vec::new(), None);
            for id in ids {
                if stop.is_cancelled() {
                    return Ok(LOOK_EVERY);
                }
                let began = Instant::now();
                let next = match self.step(&id).await.map_err(failed("an operation waits for the store")) {
                    Ok(next) => next,
                    // It does not hold up the others.
                    Err(kind) => {
                        passing = Some(kind);
                        continue;
                    }
                };
                *pause = PAUSE_MIN;
                match next {
                    Next::End => {}
                    Next::Wait(by) => wait = wait.min(by),
                    Next::Step => {
                        left.push(id);
                        sleep(began.elapsed().min(REST_MAX)).await;
                    }
                }
            }
            if let Some(kind) = passing {
                return Err(kind);
            }
            if left.is_empty() || !self.woken.is_empty() {
                return Ok(wait);
            }
            // Another server may have left an operation meanwhile.
            if LEASE < begun.elapsed() {
                return Ok(Duration::ZERO);
            }
            ids = left;
        }
    }

    /// Takes the next step of an operation, if no other server has it.
    async fn step(&mut self, id: &str) -> Result<Next> {
        let found = match kept::get(&self.client, id).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(target: "punctual", error = %error.with_causes(), "an operation is left alone");
                None
            }
            found => found?,
        };
        let Some((mut operation, mut version)) = found.filter(|(operation, _)| !operation.is_ended()) else {
            self.held.remove(id);
            return Ok(Next::End);
        };
        let held = self.held.get(id).copied().filter(|until| Instant::now() < *until);
        let until = match held.filter(|_| operation.is_held_by(&self.instance)) {
            Some(until) => until,
            None => match self.claim(&mut operation, &mut version).await? {
                Ok(until) => until,
                Err(next) => return Ok(next),
            },
        };
        if operation.cancelled_by.is_some() {
            let now = self.client.store().now().await?;
            operation.end(OperationState::Cancelled, now);
            return self.save(operation, version, |_| {}).await;
        }
        let began = Instant::now();
        match Step::take(&self.client, &operation, until).await {
            Ok(step) => {
                let lease = Lease { instance: self.instance.clone(), until_ms: step.now.after(LEASE) };
                self.held.insert(id.to_owned(), began + LEASE);
                self.save(operation, version, |operation| {
                    operation.outcomes.add(&step.outcomes);
                    operation.cursor.clone_from(&step.next);
                    operation.updated_ms = step.now;
                    operation.lease = Some(lease.clone());
                    if step.next.is_none() {
                        operation.end(OperationState::Done, step.now);
                    }
                })
                .await
            }
            Err(error) if is_passing(error.kind()) => Err(error),
            Err(error) => {
                let now = self.client.store().now().await?;
                let text = cut(&error.to_string(), ERROR_BYTES_MAX).to_owned();
                tracing::warn!(target: "punctual", error = %error.with_causes(), id, "an operation failed");
                self.save(operation, version, |operation| {
                    operation.error = Some(text.clone());
                    operation.end(OperationState::Failed, now);
                })
                .await
            }
        }
    }

    /// Takes the lease of an operation. Returns until when this process has it by its own clock, or what to do without it.
    async fn claim(&mut self, of: &mut Operation, version: &mut u64) -> Result<Result<Instant, Next>> {
        let began = Instant::now();
        let now = self.client.store().now().await?;
        if let Some(until) = of.held_until(now).filter(|_| !of.is_held_by(&self.instance)) {
            self.held.remove(&of.id);
            return Ok(Err(Next::Wait(until.since(now))));
        }
        of.lease = Some(Lease { instance: self.instance.clone(), until_ms: now.after(LEASE) });
        match kept::put(&self.client, of, Precondition::IfVersion(*version)).await? {
            Put::Is(new) => *version = new,
            // Another server was faster, or the operation was cancelled.
            Put::Conflict(_) => return Ok(Err(Next::Step)),
        }
        self.held.insert(of.id.clone(), began + LEASE);
        Ok(Ok(began + LEASE))
    }

    /// Makes a change of an operation that this process holds, also if somebody cancels it meanwhile.
    async fn save(
        &mut self,
        mut operation: Operation,
        mut version: u64,
        change: impl Fn(&mut Operation),
    ) -> Result<Next> {
        for _ in 0..ATTEMPTS {
            change(&mut operation);
            match kept::put(&self.client, &operation, Precondition::IfVersion(version)).await? {
                Put::Is(_) if operation.is_ended() => {
                    self.held.remove(&operation.id);
                    self.note_end(&operation);
                    return Ok(Next::End);
                }
                Put::Is(_) => return Ok(Next::Step),
                Put::Conflict(Some(now)) if now.0.is_held_by(&self.instance) => {
                    (operation, version) = *now;
                }
                // The lease had ended, and another server goes on from the step before this one.
                Put::Conflict(_) => break,
            }
        }
        self.held.remove(&operation.id);
        Ok(Next::Step)
    }

    /// Says in the activity log what became of an operation, in the name of the caller that ordered it.
    fn note_end(&self, of: &Operation) {
        let by = Actor { name: of.by.clone(), token: of.token.clone() };
        let entry = Entry::new(by, Via::Operation, of.state.name()).jobs([], &of.outcomes).operation(of);
        self.activity.add(Entry { error: of.error.clone(), ..entry });
    }

    /// Ends the leases of this process, so that another server can go on at once.
    async fn give_back(&mut self) {
        for id in std::mem::take(&mut self.held).into_keys() {
            let Ok(Some((mut operation, version))) = kept::get(&self.client, &id).await else { continue };
            if operation.is_ended() || !operation.is_held_by(&self.instance) {
                continue;
            }
            operation.lease = None;
            if let Err(error) = kept::put(&self.client, &operation, Precondition::IfVersion(version)).await {
                tracing::debug!(target: "punctual", %error, id, "an operation goes on when its lease has ended");
            }
        }
    }
}

/// Whether an operation that met such an error can go on later.
const fn is_passing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable
            | ErrorKind::UnknownOutcome
            | ErrorKind::StoreFull
            | ErrorKind::Full
            | ErrorKind::Closed
            | ErrorKind::Outdated
            | ErrorKind::Unauthenticated
            | ErrorKind::Forbidden
    )
}
