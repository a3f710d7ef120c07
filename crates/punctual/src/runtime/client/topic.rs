//! Topics through a client: documents with the subscribed queues, and publications to them.
//!
//! The worker that reserves a publication distributes it to the queues.

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
    store::{Doc, DocOp, DocReply, Enqueued, Precondition},
};

/// A handle to one topic, to subscribe queues and to publish.
#[derive(Clone, Debug)]
pub struct TopicHandle {
    client: Client,
    name: String,
    /// The version that a change needs; `None` for any.
    only: Option<u64>,
}

/// A topic as it stands in the store.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// The name.
    pub name: String,
    /// The version: rises with every change of its subscriptions.
    pub version: u64,
    /// The subscribed queues, in the order of their names.
    pub queues: Vec<String>,
}

/// A page of the topics of a store.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPage {
    /// Topics in the order of their names.
    pub topics: Vec<Topic>,
    /// Names of topics that cannot be read: changed by a newer punctual, or damaged. They can be removed.
    pub unreadable: Vec<String>,
    /// The name after which the next page starts; `None` if this is the last page.
    pub next: Option<String>,
}

impl Client {
    /// Returns a handle to one topic, to subscribe queues and to publish.
    ///
    /// The first subscription creates the topic.
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
        TopicHandle { client: self.clone(), name: name.into(), only: None }
    }

    /// Returns a page of topics, by name, after the name `after`.
    ///
    /// A page has at most 1,000, and fewer if they are large.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// Any error of the store.
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
    /// Returns the name of the topic.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets changes through this handle happen only while the topic has this version.
    ///
    /// Otherwise they return `Conflict`, and nothing was changed. It applies to [`subscribe`](Self::subscribe),
    /// [`unsubscribe`](Self::unsubscribe) and [`remove`](Self::remove). A change makes a new version, so a second change needs
    /// another handle.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// # let client = punctual::testing::TestQueue::new().client;
    /// client.topic("orders").subscribe("invoices").await?;
    /// let seen = client.topic("orders").get().await?.expect("it has a subscription");
    /// client.topic("orders").subscribe("parcels").await?; // somebody else changes it
    /// assert!(client.topic("orders").if_version(seen.version).remove().await.is_err());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn if_version(mut self, version: u64) -> Self {
        self.only = Some(version);
        self
    }

    /// Returns the topic, or `None` if it was removed or never had a subscription.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// `Invalid` for an invalid name, `Corrupt` for a document that cannot be read.
    pub async fn get(&self) -> Result<Option<Topic>> {
        self.read().await?.as_ref().map(Topic::of).transpose()
    }

    /// Returns the subscribed queues, in the order of their names.
    ///
    /// If the topic does not exist, there are none.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As [`TopicHandle::get`].
    pub async fn subscriptions(&self) -> Result<Vec<String>> {
        Ok(self.get().await?.map(|topic| topic.queues).unwrap_or_default())
    }

    /// Subscribes a queue to publications that become due from now on.
    ///
    /// It gets a job of each. Returns `false` if it was already subscribed.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// `Invalid` for an invalid queue name, and for more than 1,000 subscriptions. `TooLarge` if the names are too long together.
    /// `Conflict` if others kept changing the topic meanwhile, or if it does not have the version of
    /// [`if_version`](Self::if_version).
    pub async fn subscribe(&self, queue: &str) -> Result<bool> {
        self.change(|topic| topic.add(queue)).await
    }

    /// Ends a subscription.
    ///
    /// The queue keeps its jobs, and gets none of the publications that become due from now on.
    ///
    /// Returns whether it was subscribed.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// `Conflict` as [`subscribe`](Self::subscribe).
    pub async fn unsubscribe(&self, queue: &str) -> Result<bool> {
        self.change(|topic| Ok(topic.take_out(queue))).await
    }

    /// Removes the topic and all its subscriptions.
    ///
    /// Waiting publications then reach no queue. Returns whether it existed.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn remove(&self) -> Result<bool> {
        let mut tries = Tries::default();
        while tries.next(fastrand::f64).await {
            let doc = self.read().await?;
            self.allows(doc.as_ref())?;
            let Some(doc) = doc else { return Ok(false) };
            let remove =
                DocOp::Remove { key: key(&self.name), precondition: Precondition::IfVersion(doc.version) };
            if let DocReply::Is(_) = self.client.store().doc(&remove).await? {
                return Ok(true);
            }
        }
        Err(self.changed_too_often())
    }

    /// Publishes a job (default: due now). Await the builder to send it.
    ///
    /// When the publication is due, each subscribed queue gets a job with the choices made here, except the queue.
    /// Each of these jobs is retried by itself.
    ///
    /// The answer names the publication, a job of [`TOPICS_QUEUE`](crate::topic::TOPICS_QUEUE). If you cancel it before it
    /// is due, no queue gets a job. If you reschedule it, all queues get their jobs at the new time.
    #[expect(clippy::needless_pass_by_value, reason = "a job is handed over; calls read better without `&`")]
    pub fn publish<J: Job>(&self, job: J) -> Publish {
        Publish { spec: Spec::new(&self.client, &job), topic: self.clone() }
    }

    /// Publishes any number of untyped jobs.
    ///
    /// Returns one answer per job, in order. Their queues do not matter.
    ///
    /// Dropping the future has the effects described at [`Client::push`](crate::Client::push).
    ///
    /// # Errors
    /// As [`Client::push`]; `Invalid` for a job with a header that is reserved for publications.
    pub async fn push(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        let publications: Result<_> = jobs.into_iter().map(|job| publication(&self.name, job)).collect();
        self.client.push(publications?).await
    }

    /// Returns the id that an idempotency key stands for in this topic.
    ///
    /// It is for a publication of the kind of `job`.
    ///
    /// # Errors
    /// `Invalid` for a key that does not have 1 to 1,024 bytes.
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

    /// Changes the document; returns the result of `change`, which is whether there is something to write.
    async fn change(&self, change: impl Fn(&mut Subscriptions) -> Result<bool>) -> Result<bool> {
        let mut tries = Tries::default();
        while tries.next(fastrand::f64).await {
            let doc = self.read().await?;
            self.allows(doc.as_ref())?;
            let mut topic = match &doc {
                Some(doc) => Subscriptions::read(&self.name, &doc.value)?,
                None => Subscriptions::default(),
            };
            if !change(&mut topic)? {
                return Ok(false);
            }
            let precondition =
                doc.as_ref().map_or(Precondition::IfAbsent, |doc| Precondition::IfVersion(doc.version));
            let put = DocOp::Put { key: key(&self.name), precondition, value: topic.write()? };
            match self.client.store().doc(&put).await? {
                DocReply::Is(_) => return Ok(true),
                DocReply::Conflict(_) => {}
                DocReply::Page { .. } => return Err(unexpected()),
            }
        }
        Err(self.changed_too_often())
    }

    /// Checks that the document has the version that changes need.
    fn allows(&self, doc: Option<&Doc>) -> Result<()> {
        let (is, name) = (doc.map(|doc| doc.version), &self.name);
        match self.only {
            Some(only) if is != Some(only) => {
                let is = is.map_or("is not there".to_owned(), |is| format!("has the version {is}"));
                let text = format!("topic {name:?} {is}, and the change is for the version {only}");
                Err(Error::new(ErrorKind::Conflict, text).with_hint("read the topic again, and decide anew"))
            }
            _ => Ok(()),
        }
    }

    fn changed_too_often(&self) -> Error {
        let text = format!("topic {:?} was changed by another process at the same time", self.name);
        Error::new(ErrorKind::Conflict, text).with_hint("try again")
    }
}

impl Topic {
    fn of(doc: &Doc) -> Result<Self> {
        let name = name_of(doc).to_owned();
        let queues = Subscriptions::read(&name, &doc.value)?.queues;
        Ok(Self { name, version: doc.version, queues })
    }
}

fn name_of(doc: &Doc) -> &str {
    doc.key.strip_prefix(PREFIX).unwrap_or(&doc.key)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a topic")
}

/// A publication of one job, made by [`TopicHandle::publish`].
///
/// It is sent when it is awaited.
///
/// It has the choices of an [`Enqueue`](crate::client::Enqueue), and they apply to the job of each subscription. A unique key
/// is checked in each queue by itself. An idempotency key belongs to the topic and the kind: a second publication
/// with it returns [`Enqueued::Duplicate`].
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
