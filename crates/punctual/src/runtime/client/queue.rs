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

/// How often an update of settings begins again.
const UPDATE_TRIES_MAX: u32 = 100;
/// The longest pause before it begins again for the first time; each is twice as long as the one before.
const UPDATE_PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest of these pauses.
const UPDATE_PAUSE_MAX: Duration = Duration::from_millis(200);

/// A queue by its name, to look at and to set. Settings live in the store and are live for every worker.
#[derive(Clone, Debug)]
pub struct QueueHandle {
    client: Client,
    name: String,
}

impl QueueHandle {
    pub(super) fn new(client: Client, name: String) -> Self {
        Self { client, name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its settings and counts; `None`: there is no such queue.
    ///
    /// Dropped, it has changed nothing.
    pub async fn show(&self) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Show).await
    }

    /// Lets nothing be reserved or taken from it until it is resumed; `by` and `reason` are for people.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    pub async fn pause(&self, by: impl Into<String>, reason: impl Into<String>) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Pause { by: by.into(), reason: reason.into() }).await
    }

    /// Ends a pause.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    pub async fn resume(&self) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Resume).await
    }

    /// Replaces its settings, all but the pause: what the argument leaves at its default is set to the default. To change some of
    /// them, [`update`](Self::update) them.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    pub async fn set(&self, settings: QueueSettings) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Set(Box::new(settings))).await
    }

    /// Changes its settings, all but the pause: reads them, lets `change` change them, and replaces them if nobody else did
    /// meanwhile; else it begins again. A queue that does not exist begins with the default settings, and is made.
    ///
    /// `change` may be called several times. If the future is dropped, the settings are changed as a whole or not at all.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// `Invalid` for settings that break a limit. `Conflict` where others changed them all the time.
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
            // Those that met once must not meet again.
            tokio::time::sleep(pause_max.mul_f64(fastrand::f64())).await;
            pause_max = (pause_max * 2).min(UPDATE_PAUSE_MAX);
        }
        let text =
            format!("the settings of queue {:?} changed {UPDATE_TRIES_MAX} times meanwhile", self.name);
        Err(Error::new(ErrorKind::Conflict, text).with_hint("try again"))
    }

    /// Lets jobs start again that a run holds back, by [`Outcome::RetryAfter`](crate::Outcome::RetryAfter): those of the queue, or of
    /// this group alone. Its rate, its other limits and a pause stay as they are. `None`: there is no such queue.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    pub async fn open(&self, group: Option<&str>) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Open { group: group.map(str::to_owned) }).await
    }

    /// Deletes its waiting jobs in slices, telling `progress` after each how many are gone; answers how many were.
    ///
    /// Dropped, it ends where it is; made again, it goes on.
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
