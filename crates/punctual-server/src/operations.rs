//! Operations: actions on all jobs that match a filter. An operation is a document of the store, `operation/ID`, so it goes on
//! after a restart.
//!
//! A server takes the steps of an operation under a lease that the document has. If the server is killed, any other server of the
//! store goes on when the lease has ended. A step can be taken twice: each job must still be what the step's listing showed.
//! The rights of a caller are checked when it gives the order. A token that is revoked later does not stop the operation.

mod kept;
mod operation;
mod order;
mod outcomes;
mod picked;
mod preview;
mod runner;
mod step;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use punctual::{CancellationToken, Client, Error, ErrorKind, Result, Timestamp, store::Precondition};
use tokio::{runtime::Handle, sync::mpsc, task::JoinHandle};

pub(crate) use self::{
    kept::PREFIX,
    operation::{Operation, OperationState},
    order::{ActionName, Order, cut, may, offered, shown},
    outcomes::{Outcomes, is_fit, reason_of},
    picked::Picked,
    preview::Preview,
    step::STEP_JOBS,
};
use self::{kept::Put, runner::Runner};
use crate::activity::{Activity, Actor, Entry, Via};

/// The most operations that run at once. Two servers that get orders at the same time can exceed it by one each.
pub(crate) const RUNNING_MAX: usize = 10;
/// The most operations that are kept after their end. Older ones are removed when another one is ordered.
pub(crate) const ENDED_MAX: usize = 100;
/// How long the count of an order is valid, in hours.
const CONFIRMED_HOURS: u64 = 1;
/// Attempts at a change of a document that others change.
const ATTEMPTS: usize = 20;

/// What was counted before an order was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// When, by the clock of the store.
    pub(crate) at: Timestamp,
    pub(crate) n: u64,
    /// Whether there may be more.
    pub(crate) is_least: bool,
}

/// The operations of a store. Clones share one runner.
#[derive(Clone, Debug)]
pub(crate) struct Operations(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    activity: Activity,
    /// Wakes the runner. It ends when this is dropped.
    wake: mpsc::Sender<()>,
    idle: Mutex<Option<Runner>>,
    task: Mutex<Option<JoinHandle<()>>>,
    stop: OnceLock<CancellationToken>,
}

impl Operations {
    /// Makes the operations of a store. Nothing runs yet.
    pub(crate) fn new(client: &Client, activity: &Activity) -> Self {
        let (wake, woken) = mpsc::channel(1);
        let runner = Runner::new(client, activity, format!("{:016x}", fastrand::u64(..)), woken);
        Self(Arc::new(Shared {
            client: client.clone(),
            activity: activity.clone(),
            wake,
            idle: Mutex::new(Some(runner)),
            task: Mutex::default(),
            stop: OnceLock::new(),
        }))
    }

    /// Starts the runner until `stop`, if it does not run. Outside of a runtime it starts with the first order.
    pub(crate) fn start(&self, stop: &CancellationToken) {
        let stop = self.0.stop.get_or_init(|| stop.clone());
        let Ok(runtime) = Handle::try_current() else { return };
        let Some(runner) = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let task = runtime.spawn(runner.run(stop.clone()));
        *self.0.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    /// Waits until the runner has given back what it runs, after `stop`.
    pub(crate) async fn stopped(&self) {
        let task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A runner that panicked has stopped, too.
            _ = task.await;
        }
    }

    fn wake(&self) {
        self.start(&CancellationToken::new());
        // A full channel means that it is woken already.
        _ = self.0.wake.try_send(());
    }

    /// Stores an operation, and begins to run it. Its caller must have been [checked](Order::check).
    ///
    /// # Errors
    /// `Invalid` without a reason that the order needs, and for a count that is older than an hour; `Conflict` if 10 operations
    /// run; any error of the store.
    pub(crate) async fn order(
        &self,
        order: &Order,
        counted: Counted,
        by: &Actor,
        via: Via,
    ) -> Result<Operation> {
        order.check_reason()?;
        let client = &self.0.client;
        let now = client.store().now().await?;
        if now < counted.at || std::time::Duration::from_hours(CONFIRMED_HOURS) < now.since(counted.at) {
            return Err(Error::invalid("the confirmation is older than an hour, and nothing was changed")
                .with_hint("choose the action again"));
        }
        let (ended, running): (Vec<Operation>, Vec<Operation>) =
            kept::all(client).await?.into_iter().partition(Operation::is_ended);
        if RUNNING_MAX <= running.len() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("{RUNNING_MAX} operations run already, which is the limit"),
            )
            .with_hint("wait until one has ended, or cancel one"));
        }
        // The new one will be kept, too.
        for old in ended.iter().skip(ENDED_MAX - 1) {
            kept::remove(client, &old.id).await?;
        }
        let operation = Operation {
            id: kept::id(now, fastrand::u32(..)),
            action: order.name,
            filter: order.text.clone(),
            reason: order.reason.clone(),
            by: by.name.clone(),
            token: by.token.clone(),
            confirmed_ms: counted.at,
            planned: counted.n,
            at_least: counted.is_least,
            state: OperationState::Running,
            error: None,
            cancelled_by: None,
            outcomes: Outcomes::default(),
            ordered_ms: now,
            updated_ms: now,
            ended_ms: None,
            cursor: None,
            lease: None,
        };
        match kept::put(client, &operation, Precondition::IfAbsent).await? {
            Put::Is(_) => {
                let entry = Entry::new(by.clone(), via, "order").operation(&operation);
                self.0.activity.add(Entry { planned: Some(counted.n), ..entry });
                self.wake();
                Ok(operation)
            }
            Put::Conflict(_) => {
                Err(Error::new(ErrorKind::Conflict, "there is an operation of this id already")
                    .with_hint("try again"))
            }
        }
    }

    /// Returns all operations, the newest first.
    pub(crate) async fn all(&self) -> Result<Vec<Operation>> {
        kept::all(&self.0.client).await
    }

    /// Returns an operation.
    pub(crate) async fn get(&self, id: &str) -> Result<Option<Operation>> {
        Ok(kept::get(&self.0.client, id).await?.map(|(operation, _)| operation))
    }

    /// Cancels an operation: at once if no server runs it, else before its next step. Returns it as it is then, and as it was if
    /// it had ended.
    ///
    /// # Errors
    /// `Conflict` if the document changed at each attempt; any error of the store.
    pub(crate) async fn cancel(&self, id: &str, by: &Actor, via: Via) -> Result<Option<Operation>> {
        let client = &self.0.client;
        for _ in 0..ATTEMPTS {
            let Some((mut operation, version)) = kept::get(client, id).await? else { return Ok(None) };
            if operation.is_ended() || operation.cancelled_by.is_some() {
                return Ok(Some(operation));
            }
            let now = client.store().now().await?;
            operation.cancelled_by = Some(by.name.clone());
            operation.updated_ms = now;
            if operation.held_until(now).is_none() {
                operation.end(OperationState::Cancelled, now);
            }
            if let Put::Is(_) = kept::put(client, &operation, Precondition::IfVersion(version)).await? {
                self.0.activity.add(Entry::new(by.clone(), via, "stop").operation(&operation));
                self.wake();
                return Ok(Some(operation));
            }
        }
        Err(Error::new(ErrorKind::Conflict, "the operation changed at each attempt").with_hint("try again"))
    }
}
