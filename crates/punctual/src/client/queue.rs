//! One queue, through a client.

use super::Client;
use crate::{
    error::{Error, ErrorKind, Result},
    limits::BATCH_MAX,
    store::{QueueInfo, QueueOp, QueueReply, QueueSettings},
};

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
    pub async fn show(&self) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Show).await
    }

    /// Lets nothing be reserved or taken from it until it is resumed; `by` and `reason` are for people.
    pub async fn pause(&self, by: impl Into<String>, reason: impl Into<String>) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Pause { by: by.into(), reason: reason.into() }).await
    }

    /// Ends a pause.
    pub async fn resume(&self) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Resume).await
    }

    /// Replaces its settings, all but the pause.
    pub async fn set(&self, settings: QueueSettings) -> Result<Option<QueueInfo>> {
        self.info(QueueOp::Set(Box::new(settings))).await
    }

    /// Deletes its waiting jobs in slices, telling `progress` after each how many are gone; answers how many were.
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
                QueueReply::Info(_) => return Err(unexpected()),
            }
        }
    }

    async fn info(&self, op: QueueOp) -> Result<Option<QueueInfo>> {
        match self.client.store().queue(&self.name, &op).await? {
            QueueReply::Info(info) => Ok(Some(*info)),
            QueueReply::Unknown => Ok(None),
            QueueReply::Purged { .. } => Err(unexpected()),
        }
    }
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a queue")
}
