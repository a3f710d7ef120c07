//! One queue, through a client.

use std::time::Duration;

use super::Client;
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        limits::BATCH_MAX,
    },
    store::{QueueInfo, QueueOp, QueueReply, QueueSettings, Replace},
};

/// How often an update of settings is tried.
const UPDATE_TRIES_MAX: u32 = 100;
/// The longest pause before the second try. It doubles with each further try.
const UPDATE_PAUSE_MIN: Duration = Duration::from_millis(5);
/// The upper bound of these pauses.
const UPDATE_PAUSE_MAX: Duration = Duration::from_millis(200);

/// A handle to one queue, to read it and to change its settings.
///
/// Settings are stored, and take effect for all workers at once.
#[derive(Clone, Debug)]
pub struct QueueHandle {
    client: Client,
    name: String,
}

impl QueueHandle {
    pub(super) fn new(client: Client, name: String) -> Self {
        Self { client, name }
    }

    /// Returns the name of the queue.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its settings and counts, or `None` if there is no such queue.
    ///
    /// Dropping the future changes nothing.
    pub async fn show(&self) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Show).await
    }

    /// Pauses the queue: no job is reserved or taken until it is resumed.
    ///
    /// `by` and `reason` are for people.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    pub async fn pause(&self, by: impl Into<String>, reason: impl Into<String>) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Pause { by: by.into(), reason: reason.into() }).await
    }

    /// Ends a pause.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    pub async fn resume(&self) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Resume).await
    }

    /// Replaces all settings except the pause.
    ///
    /// A setting that is not given gets its default.
    ///
    /// To change only some of them, use [`update`](Self::update).
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    pub async fn set(&self, settings: QueueSettings) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Set(Box::new(settings))).await
    }

    /// Changes the settings, except the pause.
    ///
    /// Reads them, calls `change`, and replaces them if they did not change meanwhile. Otherwise it tries again. A
    /// queue that does not exist starts with the default settings, and is created. `change` can be called several
    /// times.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// `Invalid` for settings that break a limit. `Conflict` if others kept changing them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> punctual::Result<()> {
    /// let client = punctual::Client::connect("memory:").await?;
    /// let info = client.queue("mail").update(|settings| settings.concurrency = Some(7)).await?;
    /// assert_eq!(info.settings.concurrency, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn update(&self, mut change: impl FnMut(&mut QueueSettings)) -> Result<QueueInfo> {
        let mut seen = self.show().await?.map(|info| info.settings).unwrap_or_default();
        let mut pause_max = UPDATE_PAUSE_MIN;
        for _ in 0..UPDATE_TRIES_MAX {
            let mut new = seen.clone();
            change(&mut new);
            let replace = QueueOp::Replace(Box::new(Replace { seen, new }));
            match self.client.store().queue(&self.name, &replace).await? {
                QueueReply::Info(info) => return Ok(*info),
                QueueReply::Conflict(info) => seen = info.settings,
                QueueReply::Unknown | QueueReply::Purged { .. } => return Err(unexpected()),
            }
            // Random, so that callers that collided do not collide again.
            tokio::time::sleep(pause_max.mul_f64(fastrand::f64())).await;
            pause_max = (pause_max * 2).min(UPDATE_PAUSE_MAX);
        }
        let text =
            format!("the settings of queue {:?} changed {UPDATE_TRIES_MAX} times meanwhile", self.name);
        Err(Error::new(ErrorKind::Conflict, text).with_hint("try again"))
    }

    /// Ends a pause that a run requested, of the queue or of one group.
    ///
    /// Runs request it with [`Outcome::RetryAfter`](crate::Outcome::RetryAfter).
    /// The rate, the other limits and an operator's pause stay as they are. Returns `None` if there is no such queue.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    pub async fn open(&self, group: Option<&str>) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Open { group: group.map(str::to_owned) }).await
    }

    /// Deletes the waiting jobs in slices; returns how many.
    ///
    /// Calls `progress` after each slice with the number of jobs deleted so far.
    ///
    /// If the future is dropped, it stops after some slices. A repeated call continues.
    pub async fn purge(&self, mut progress: impl FnMut(u64)) -> Result<u64> {
        let mut gone = 0;
        loop {
            match self.client.store().queue(&self.name, &QueueOp::Purge(BATCH_MAX)).await? {
                QueueReply::Purged { deleted, more } => {
                    gone += deleted;
                    progress(gone);
                    if !more {
                        return Ok(gone);
                    }
                }
                QueueReply::Unknown => return Ok(gone),
                QueueReply::Info(_) | QueueReply::Conflict(_) => return Err(unexpected()),
            }
        }
    }

    async fn info(&self, op: QueueOp) -> Result<Option<QueueInfo>> {
        match self.client.store().queue(&self.name, &op).await? {
            QueueReply::Info(info) => Ok(Some(*info)),
            QueueReply::Unknown => Ok(None),
            QueueReply::Conflict(_) | QueueReply::Purged { .. } => Err(unexpected()),
        }
    }
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a queue")
}
