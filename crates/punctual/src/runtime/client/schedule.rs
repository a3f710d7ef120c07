//! Schedules, through a client: documents, and the one tick of each that waits (`plant`).

mod look;
mod plant;

pub(crate) use self::plant::is_passing;

use super::{Client, Spec, enqueue::only_answer};
use crate::{
    core::{
        cron::Cron,
        error::{Error, ErrorKind, Result},
        job::{Job, JobRecord, cut_error},
        limits::BATCH_MAX,
        schedule::{PREFIX, SCHEDULED_FOR, Schedule, check_schedule, key},
        time::Timestamp,
    },
    runtime::repeat::Tries,
    store::{Doc, DocOp, DocReply, Enqueued, Only, Pause},
};

/// Why a tick was cancelled.
pub(crate) const CHANGED: &str = "its schedule was changed";
pub(crate) const REMOVED: &str = "its schedule was removed";

/// A schedule by its name, to look at and to set. It lives in the store: whoever reserves its ticks plants the next one,
/// and no process has to be the one that keeps it going.
#[derive(Clone, Debug)]
pub struct ScheduleHandle {
    client: Client,
    name: String,
}

/// Some schedules of a store.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulePage {
    /// In the order of their names.
    pub schedules: Vec<NamedSchedule>,
    /// The names of those that can't be read: set by a newer punctual, or damaged. They can be set anew or removed.
    pub unreadable: Vec<String>,
    /// Behind which name to go on; `None`: all were told.
    pub next: Option<String>,
}

/// A schedule with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSchedule {
    /// Its name.
    pub name: String,
    /// Raised by every change; ticks that were planted before it don't run.
    pub generation: u64,
    /// The schedule.
    pub schedule: Schedule,
}

impl Client {
    /// One schedule, to look at and to set.
    #[doc(alias = "cron")]
    #[doc(alias = "periodic")]
    #[doc(alias = "recurring")]
    pub fn schedule(&self, name: impl Into<String>) -> ScheduleHandle {
        ScheduleHandle { client: self.clone(), name: name.into() }
    }

    /// Schedules by their names, those behind `after`; at most 1,000, and fewer where they are large.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// What the store says.
    pub async fn schedules(&self, after: Option<&str>) -> Result<SchedulePage> {
        let list = DocOp::List { prefix: PREFIX.to_owned(), after: after.map(key), limit: BATCH_MAX };
        let DocReply::Page { docs, more } = self.store().doc(&list).await? else { return Err(unexpected()) };
        let mut page = SchedulePage::default();
        for doc in &docs {
            match NamedSchedule::of(doc) {
                Ok(named) => page.schedules.push(named),
                Err(_) => page.unreadable.push(name_of(doc).to_owned()),
            }
        }
        page.next = docs.last().filter(|_| more).map(|last| name_of(last).to_owned());
        Ok(page)
    }

    /// The tick of a schedule that waits, as [`ScheduleHandle::waiting`] tells it, of one that was read already.
    ///
    /// # Errors
    /// What the store says.
    pub async fn waiting_tick(&self, named: &NamedSchedule) -> Result<Option<JobRecord>> {
        self.holder(&named.schedule.unique_key(&named.name)).await
    }
}

impl ScheduleHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As it stands; `None`: there is no such schedule.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// `Invalid` for what is no name, `Corrupt` for a document that can't be read.
    pub async fn get(&self) -> Result<Option<NamedSchedule>> {
        self.read().await?.as_ref().map(NamedSchedule::of).transpose()
    }

    async fn read(&self) -> Result<Option<Doc>> {
        check_schedule(&self.name)?;
        match self.client.store().doc(&DocOp::Get { key: key(&self.name) }).await? {
            DocReply::Is(doc) => Ok(doc),
            DocReply::Conflict(_) | DocReply::Page { .. } => Err(unexpected()),
        }
    }

    /// Enqueues `job` at every tick from now on. A schedule of this name is changed, and stays paused if it is; one that is
    /// like this already is left as it is, so that every start of a program may set it.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// As [`Schedule::new`]; `Conflict` where others changed it too often meanwhile.
    ///
    /// ```
    /// # use punctual::{Client, Cron, Job, testing::TestQueue};
    /// # #[derive(Job, serde::Serialize, serde::Deserialize)]
    /// # #[job(kind = "cleanup")]
    /// # struct Cleanup { keep_days: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// # let client = TestQueue::new().client;
    /// let nightly = Cron::new("0 2 * * *")?.in_tz("Europe/Berlin")?;
    /// client.schedule("nightly-cleanup").set(nightly, Cleanup { keep_days: 30 }).await?;
    /// # Ok(()) }
    /// ```
    pub async fn set<J: Job>(&self, cron: Cron, job: J) -> Result<NamedSchedule> {
        self.set_with(cron, &job, |_| ()).await
    }

    /// The same, with what is to be chosen for the jobs.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// As [`ScheduleHandle::set`].
    pub async fn set_with<J: Job>(
        &self,
        cron: Cron,
        job: &J,
        choose: impl FnOnce(&mut Spec),
    ) -> Result<NamedSchedule> {
        let mut spec = Spec::new(&self.client, job)?;
        choose(&mut spec);
        self.put(Schedule::new(cron, spec.finish()?)?).await
    }

    /// Sets the whole schedule, but for its pause.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// As [`ScheduleHandle::set`].
    pub async fn put(&self, schedule: Schedule) -> Result<NamedSchedule> {
        self.change(|was| Ok(Schedule { paused: was.and_then(|was| was.paused.clone()), ..schedule.clone() }))
            .await
    }

    /// Enqueues nothing until it is resumed; `by` and `reason` are for people. The tick that waits is cancelled.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// `Invalid` where there is no such schedule; as [`ScheduleHandle::set`].
    pub async fn pause(&self, by: &str, reason: &str) -> Result<NamedSchedule> {
        let since_ms = self.client.store().now().await?.as_ms();
        let pause = Pause { since_ms, by: cut_error(by).to_owned(), reason: cut_error(reason).to_owned() };
        self.change(|was| Ok(Schedule { paused: Some(pause.clone()), ..self.known(was)?.clone() })).await
    }

    /// Ends a pause: it goes on with the next tick from now.
    ///
    /// Dropped, it may have been done or not; it may be made again.
    ///
    /// # Errors
    /// As [`ScheduleHandle::pause`].
    pub async fn resume(&self) -> Result<NamedSchedule> {
        self.change(|was| Ok(Schedule { paused: None, ..self.known(was)?.clone() })).await
    }

    /// Removes it, and cancels the tick that waits; one that runs goes on. Answers whether there was one.
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
                // A tick of one that can't be read finds out by itself.
                if let Ok(was) = NamedSchedule::of(&doc) {
                    self.call_off(&was.schedule, doc.version + 1, REMOVED).await?;
                }
                return Ok(true);
            }
        }
        Err(self.changed_too_often())
    }

    /// Enqueues its job now, once, beside its ticks; also while it is paused.
    ///
    /// Dropped, it may have been enqueued or not: made again, there may be two.
    ///
    /// # Errors
    /// `Invalid` where there is no such schedule; `Full` where the queue is at its cap.
    pub async fn fire(&self) -> Result<Enqueued> {
        let named = self.get().await?;
        let mut job = self.known(named.as_ref().map(|named| &named.schedule))?.job(&self.name);
        job.id = self.client.make_id();
        let now = self.client.store().now().await?;
        job.headers.insert(SCHEDULED_FOR.to_owned(), now.as_ms().to_string());
        let queue = job.queue.clone();
        only_answer(&queue, self.client.push(vec![job]).await?)
    }

    /// The tick that waits; `None`: the schedule is paused or not there, its last tick started just now, or the one that waited was
    /// cancelled.
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Errors
    /// What the store says.
    pub async fn waiting(&self) -> Result<Option<JobRecord>> {
        match self.get().await? {
            Some(named) => self.client.waiting_tick(&named).await,
            None => Ok(None),
        }
    }

    fn known<'a>(&self, schedule: Option<&'a Schedule>) -> Result<&'a Schedule> {
        schedule.ok_or_else(|| {
            Error::invalid(format!("there is no schedule {:?}", self.name))
                .with_hint("punctual cron ls    lists all schedules")
        })
    }

    /// Changes the document by what it is, then the tick that waits. A document that can't be read is replaced.
    async fn change(&self, to: impl Fn(Option<&Schedule>) -> Result<Schedule>) -> Result<NamedSchedule> {
        let mut tries = Tries::default();
        while tries.next(fastrand::f64).await {
            let doc = self.read().await?;
            let was = doc.as_ref().and_then(|doc| NamedSchedule::of(doc).ok());
            let schedule = to(was.as_ref().map(|was| &was.schedule))?;
            schedule.check(&self.name)?;
            let only = doc.as_ref().map_or(Only::IfAbsent, |doc| Only::IfVersion(doc.version));
            let put = DocOp::Put { key: key(&self.name), only, value: schedule.write()? };
            match self.client.store().doc(&put).await? {
                DocReply::Is(Some(doc)) => {
                    let is = NamedSchedule::of(&doc)?;
                    let due = match &was {
                        Some(was) => self.call_off(&was.schedule, is.generation, CHANGED).await?,
                        None => None,
                    };
                    // A tick that was due already is due by the new schedule, too, if that has it.
                    self.plant(due.map(before)).await?;
                    return Ok(is);
                }
                DocReply::Conflict(_) => {}
                DocReply::Is(None) | DocReply::Page { .. } => return Err(unexpected()),
            }
        }
        Err(self.changed_too_often())
    }

    fn changed_too_often(&self) -> Error {
        let text = format!("schedule {:?} was changed by another process at the same time", self.name);
        Error::new(ErrorKind::Conflict, text).with_hint("try again")
    }
}

impl Schedule {
    /// Ticks by `cron`, each time with such a job.
    pub(crate) fn of<J: Job>(client: &Client, cron: Cron, job: &J) -> Result<Self> {
        Self::new(cron, Spec::new(client, job)?.finish()?)
    }
}

impl NamedSchedule {
    fn of(doc: &Doc) -> Result<Self> {
        let name = name_of(doc).to_owned();
        Ok(Self { schedule: Schedule::read(&name, &doc.value)?, name, generation: doc.version })
    }

    /// The first tick after an instant; none while it is paused.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if self.schedule.paused.is_some() { None } else { self.schedule.cron.next(after) }
    }
}

/// The instant behind which a tick is the next.
pub(crate) fn before(tick: Timestamp) -> Timestamp {
    Timestamp::saturating_from_ms(tick.as_ms().saturating_sub(1))
}

fn name_of(doc: &Doc) -> &str {
    doc.key.strip_prefix(PREFIX).unwrap_or(&doc.key)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a schedule")
}
