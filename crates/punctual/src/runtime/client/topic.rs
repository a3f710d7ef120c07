//! Topics, through a client: documents that name the queues that are subscribed, and what is published to them. Who hands a
//! publication out is the worker that reserves it.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
};

use super::{
    Client, Spec,
    enqueue::{check_idempotency_key, only_answer},
};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::{Job, NewJob},
        limits::BATCH_MAX,
        topic::{PREFIX, Subscriptions, check_topic, derived_id, key, publication},
    },
    runtime::repeat::Tries,
    store::{Doc, DocOp, DocReply, Enqueued, Only},
};

/// A topic by its name: to subscribe queues to, and to publish to.
#[derive(Clone, Debug)]
pub struct TopicHandle {
    client: Client,
    name: String,
}

/// A topic as it stands in the store.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// The queues that are subscribed, in the order of their names.
    pub queues: Vec<String>,
}

/// Some topics of a store.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPage {
    /// In the order of their names.
    pub topics: Vec<Topic>,
    /// The names of those that can't be read: changed by a newer punctual, or damaged. They can be removed.
    pub unreadable: Vec<String>,
    /// Behind which name to go on; `None`: all were told.
    pub next: Option<String>,
}

impl Client {
    /// One topic, to subscribe queues to and to publish to. It begins with its first subscription.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use punctual::{Ctx, Job, testing::TestQueue};
    /// # #[derive(Job, serde::Serialize, serde::Deserialize)]
    /// # #[job(kind = "order.paid")]
    /// # struct OrderPaid { order: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// # let t = TestQueue::new();
    /// let orders = t.client.topic("orders");
    /// orders.subscribe("invoices").await?;
    /// orders.subscribe("parcels").await?;
    /// orders.publish(OrderPaid { order: 7 }).delay(Duration::from_secs(60)).await?;
    ///
    /// t.advance(Duration::from_secs(60));
    /// let worker = t.worker().queue("invoices").queue("parcels").handle(async |_: OrderPaid, _: Ctx| ());
    /// assert_eq!(t.drain(worker).await?.done, 2); // a job each
    /// # Ok(()) }
    /// ```
    pub fn topic(&self, name: impl Into<String>) -> TopicHandle {
        TopicHandle { client: self.clone(), name: name.into() }
    }

    /// Topics by their names, those behind `after`; at most 1,000, and fewer where they are large.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// What the store says.
    pub async fn topics(&self, after: Option<&str>) -> Result<TopicPage> {
        let list = DocOp::List { prefix: PREFIX.to_owned(), after: after.map(key), limit: BATCH_MAX };
        let DocReply::Page { docs, more } = self.store().doc(&list).await? else { return Err(unexpected()) };
        let mut page = TopicPage::default();
        for doc in &docs {
            match Topic::of(doc) {
                Ok(topic) => page.topics.push(topic),
                Err(_) => page.unreadable.push(name_of(doc).to_owned()),
            }
        }
        page.next = docs.last().filter(|_| more).map(|last| name_of(last).to_owned());
        Ok(page)
    }
}

impl TopicHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As it stands; `None`: nobody ever subscribed to it, or it was removed.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// `Invalid` for what is no name, `Corrupt` for a document that can't be read.
    pub async fn get(&self) -> Result<Option<Topic>> {
        self.read().await?.as_ref().map(Topic::of).transpose()
    }

    /// The queues that are subscribed, in the order of their names; none for a topic that is not there.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// As [`TopicHandle::get`].
    pub async fn subscriptions(&self) -> Result<Vec<String>> {
        Ok(self.get().await?.map(|topic| topic.queues).unwrap_or_default())
    }

    /// Subscribes a queue: from now on it gets a job of each publication that comes due. Answers whether it was not subscribed.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// `Invalid` for what is no queue, and past 1,000 subscriptions; `TooLarge` where the names are too long together;
    /// `Conflict` where others changed the topic too often meanwhile.
    pub async fn subscribe(&self, queue: &str) -> Result<bool> {
        self.change(|topic| topic.add(queue)).await
    }

    /// Ends a subscription: the queue gets nothing of what comes due from now on, and keeps the jobs that it has. Answers
    /// whether it was subscribed.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// `Conflict` where others changed the topic too often meanwhile.
    pub async fn unsubscribe(&self, queue: &str) -> Result<bool> {
        self.change(|topic| Ok(topic.take_out(queue))).await
    }

    /// Removes the topic with all subscriptions. What is published to it comes due for nobody. Answers whether there was one.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// What the store says.
    pub async fn remove(&self) -> Result<bool> {
        let mut tries = Tries::default();
        while tries.next(fastrand::f64).await {
            let Some(doc) = self.read().await? else { return Ok(false) };
            let remove = DocOp::Remove { key: key(&self.name), only: Only::IfVersion(doc.version) };
            if let DocReply::Is(_) = self.client.store().doc(&remove).await? {
                return Ok(true);
            }
        }
        Err(self.changed_too_often())
    }

    /// Publishes a job, for now unless said otherwise, once the builder is awaited. When it is due, each queue that is
    /// subscribed then gets a job like it, with all that is chosen here but the queue; each is retried, and dies, by itself.
    ///
    /// The answer is about the publication, a job of [`TOPICS_QUEUE`](crate::TOPICS_QUEUE): cancel its id before it is due, and
    /// nobody gets a job; give it another time, and all get theirs then.
    #[expect(clippy::needless_pass_by_value, reason = "a job is handed over; calls read better without `&`")]
    pub fn publish<J: Job>(&self, job: J) -> Publish {
        Publish { spec: Spec::new(&self.client, &job), topic: self.clone() }
    }

    /// Publishes untyped jobs: any number, one answer per job, in order. Their queues don't matter.
    ///
    /// Dropped, as [`Client::push`](crate::Client::push).
    ///
    /// # Errors
    /// As [`Client::push`]; `Invalid` for a job with a header that is a publication's own.
    pub async fn push(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        let publications: Result<_> = jobs.into_iter().map(|job| publication(&self.name, job)).collect();
        self.client.push(publications?).await
    }

    /// The id that an idempotency key stands for in this topic, of a publication like `job`, among those of its kind.
    ///
    /// # Errors
    /// `Invalid` for a key of another size than 1 to 1,024 bytes.
    pub fn derived_id(&self, job: &NewJob, key: &str) -> Result<JobId> {
        check_idempotency_key(key)?;
        let placement = NewJob { unique: None, ..job.clone() };
        Ok(derived_id(&self.name, Some(&job.kind), placement.placement_key(), key))
    }

    async fn read(&self) -> Result<Option<Doc>> {
        check_topic(&self.name)?;
        match self.client.store().doc(&DocOp::Get { key: key(&self.name) }).await? {
            DocReply::Is(doc) => Ok(doc),
            DocReply::Conflict(_) | DocReply::Page { .. } => Err(unexpected()),
        }
    }

    /// Changes the document by what it is; answers what `change` does, which is whether there is something to write.
    async fn change(&self, change: impl Fn(&mut Subscriptions) -> Result<bool>) -> Result<bool> {
        let mut tries = Tries::default();
        while tries.next(fastrand::f64).await {
            let doc = self.read().await?;
            let mut topic = match &doc {
                Some(doc) => Subscriptions::read(&self.name, &doc.value)?,
                None => Subscriptions::default(),
            };
            if !change(&mut topic)? {
                return Ok(false);
            }
            let only = doc.as_ref().map_or(Only::IfAbsent, |doc| Only::IfVersion(doc.version));
            let put = DocOp::Put { key: key(&self.name), only, value: topic.write()? };
            match self.client.store().doc(&put).await? {
                DocReply::Is(_) => return Ok(true),
                DocReply::Conflict(_) => {}
                DocReply::Page { .. } => return Err(unexpected()),
            }
        }
        Err(self.changed_too_often())
    }

    fn changed_too_often(&self) -> Error {
        let text = format!("topic {:?} was changed by another process at the same time", self.name);
        Error::new(ErrorKind::Conflict, text).with_hint("try again")
    }
}

impl Topic {
    fn of(doc: &Doc) -> Result<Self> {
        let name = name_of(doc).to_owned();
        Ok(Self { queues: Subscriptions::read(&name, &doc.value)?.queues, name })
    }
}

fn name_of(doc: &Doc) -> &str {
    doc.key.strip_prefix(PREFIX).unwrap_or(&doc.key)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a topic")
}

/// A publication of one job, by [`TopicHandle::publish`]; sent once it is awaited.
///
/// Its choices are those of an [`Enqueue`](crate::Enqueue), of each subscription's job: a unique key is held, or not, in each
/// queue by itself. An idempotency key is one of the topic and the kind: published again with it, the answer is [`Enqueued::Duplicate`].
#[must_use = "a job is published only once this is awaited: add `.await`"]
pub struct Publish {
    topic: TopicHandle,
    pub(super) spec: Result<Spec>,
}

impl fmt::Debug for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publish")
            .field("topic", &self.topic.name)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl IntoFuture for Publish {
    type Output = Result<Enqueued>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let publication = self.spec?.publication(&self.topic.name)?;
            let queue = publication.queue.clone();
            only_answer(&queue, self.topic.client.push(vec![publication]).await?)
        })
    }
}
