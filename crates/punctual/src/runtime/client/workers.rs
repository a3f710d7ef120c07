//! The workers of a store through a client: a list, and orders.

use super::Client;
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        limits::BATCH_MAX,
        registration::{self, PREFIX, WorkerInfo, WorkerOrder, is_id, key},
        time::Timestamp,
    },
    runtime::repeat::Tries,
    store::{Doc, DocOp, DocReply, Precondition},
};

/// The most reads of a page. Large registrations must not hide those after them.
const READS_MAX: usize = 16;

/// A page of the workers of a store.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerPage {
    /// The time by the store's clock.
    pub now: Timestamp,
    /// Workers in the order of their ids.
    pub workers: Vec<WorkerInfo>,
    /// Ids of workers whose registration cannot be read: written by a newer punctual, or damaged.
    pub unreadable: Vec<String>,
    /// The id after which the next page starts; `None` if this is the last page.
    pub next: Option<String>,
}

impl Client {
    /// Returns a page of the workers that run on the store, by id, after the id `after`.
    ///
    /// A page has at most 2,000, and fewer if they are large: it ends with the read that brings it to 1,000, or with its 16th. A worker that was
    /// killed is listed as [missing](crate::worker::WorkerState::Missing) for 24 h. Costs two reads, and one more for each further MiB.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// use punctual::{Client, Ctx, Job, Worker, worker::{Shutdown, WorkerState}};
    ///
    /// #[derive(Job, serde::Serialize, serde::Deserialize)]
    /// #[job(kind = "email.send", queue = "mail")]
    /// struct SendEmail { to: String }
    ///
    /// let client = Client::connect("memory:").await?;
    /// let shutdown = Shutdown::default();
    /// let worker = Worker::new(&client).name("web-1").handle(async |_: SendEmail, _: Ctx| ());
    /// let running = tokio::spawn(worker.run_until(shutdown.clone()));
    /// let info = loop {
    ///     if let Some(info) = client.workers(None).await?.workers.pop() {
    ///         break info;
    ///     }
    ///     tokio::task::yield_now().await;
    /// };
    /// assert_eq!((&*info.name, info.state, info.slots), ("web-1", WorkerState::Working, 50));
    /// assert_eq!((&*info.queues[0].name, &*info.kinds[0]), ("mail", "email.send"));
    ///
    /// shutdown.graceful.cancel();
    /// running.await.unwrap()?;
    /// assert!(client.workers(None).await?.workers.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn workers(&self, after: Option<&str>) -> Result<WorkerPage> {
        let now = self.store().now().await?;
        let mut page = WorkerPage { now, next: after.map(str::to_owned), ..WorkerPage::default() };
        for _ in 0..READS_MAX {
            let after = page.next.as_deref().map(key);
            let list = DocOp::List { prefix: PREFIX.to_owned(), after, limit: BATCH_MAX };
            let DocReply::Page { docs, more } = self.store().doc(&list).await? else {
                return Err(unexpected());
            };
            for doc in &docs {
                match WorkerInfo::read(&doc.key, &doc.value) {
                    Ok(info) if info.is_forgotten(now) => {}
                    Ok(info) => page.workers.push(info.at(now)),
                    Err(_) => page.unreadable.push(name_of(doc).to_owned()),
                }
            }
            page.next = docs.last().filter(|_| more).map(|last| name_of(last).to_owned());
            if page.next.is_none() || BATCH_MAX <= page.workers.len() + page.unreadable.len() {
                break;
            }
        }
        Ok(page)
    }

    /// Returns one worker, or `None` if there is none with this id.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// `Invalid` for an invalid id, `Corrupt` for a registration that cannot be read.
    pub async fn worker(&self, id: &str) -> Result<Option<WorkerInfo>> {
        let Some(doc) = self.registration(id).await? else { return Ok(None) };
        Ok(Some(WorkerInfo::read(&doc.key, &doc.value)?.at(self.store().now().await?)))
    }

    /// Orders a worker to reserve no further jobs, to reserve jobs again, or to stop.
    ///
    /// The worker finds the order when it next writes its registration, within 17 s. The last order counts.
    ///
    /// Returns the worker with its order, or `None` if there is none with this id.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// `Invalid` for an invalid id, `Corrupt` for a registration that cannot be read, `Conflict` if others kept
    /// changing it meanwhile.
    pub async fn order_worker(&self, id: &str, order: WorkerOrder) -> Result<Option<WorkerInfo>> {
        let mut tries = Tries::default();
        while tries.next(fastrand::f64).await {
            let Some(doc) = self.registration(id).await? else { return Ok(None) };
            let value = registration::ordered(&doc.key, &doc.value, order)?;
            let put = DocOp::Put { key: doc.key, precondition: Precondition::IfVersion(doc.version), value };
            match self.store().doc(&put).await? {
                DocReply::Is(Some(doc)) => {
                    let now = self.store().now().await.map_err(Error::in_part)?;
                    return Ok(Some(WorkerInfo::read(&doc.key, &doc.value)?.at(now)));
                }
                DocReply::Conflict(_) => {}
                DocReply::Is(None) | DocReply::Page { .. } => return Err(unexpected()),
            }
        }
        let text = format!("the registration of worker {id} was changed by another process at the same time");
        Err(Error::new(ErrorKind::Conflict, text).with_hint("try again"))
    }

    async fn registration(&self, id: &str) -> Result<Option<Doc>> {
        if !is_id(id) {
            return Err(Error::invalid("the id of a worker has 16 characters: 0 to 9 and a to f")
                .with_hint("punctual worker ls -o wide    lists the ids of all workers"));
        }
        match self.store().doc(&DocOp::Get { key: key(id) }).await? {
            DocReply::Is(doc) => Ok(doc),
            DocReply::Conflict(_) | DocReply::Page { .. } => Err(unexpected()),
        }
    }
}

fn name_of(doc: &Doc) -> &str {
    doc.key.strip_prefix(PREFIX).unwrap_or(&doc.key)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a worker")
}
