//! Schedules through a client: their documents, and the one waiting tick of each (`enqueue_next`).

mod look;
mod next_tick;

pub(crate) use self::next_tick::is_passing;

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
    store::{Doc, DocOp, DocReply, Enqueued, Pause, Precondition},
};

/// The reason of a tick that was cancelled because its schedule changed.
pub(crate) const CHANGED: &str = "its schedule was changed";
pub(crate) const REMOVED: &str = "its schedule was removed";

/// A handle to one schedule, to read and change it.
///
/// The schedule is stored. The worker that reserves a tick enqueues the next one, so no single process has to keep
/// running.
#[derive(Clone, Debug)]
pub struct ScheduleHandle {
    client: Client,
    name: String,
    /// The generation that a change needs; `None` for any.
    only: Option<u64>,
}

/// A page of the schedules of a store.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulePage {
    /// Schedules in the order of their names.
    pub schedules: Vec<NamedSchedule>,
    /// Names of schedules that cannot be read: set by a newer punctual, or damaged. They can be set again or removed.
    pub unreadable: Vec<String>,
    /// The name after which the next page starts; `None` if this is the last page.
    pub next: Option<String>,
}

/// A schedule with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSchedule {
    /// The name.
    pub name: String,
    /// The generation: rises with every change. Ticks of an earlier generation do not run.
    pub generation: u64,
    /// The schedule.
    pub schedule: Schedule,
}

impl Client {
    /// Returns a handle to one schedule, to read and change it.
    #[doc(alias = "cron")]
    #[doc(alias = "periodic")]
    #[doc(alias = "recurring")]
    pub fn schedule(&self, name: impl Into<String>) -> ScheduleHandle {
        ScheduleHandle { client: self.clone(), name: name.into(), only: None }
    }

    /// Returns a page of schedules, by name, after the name `after`.
    ///
    /// A page has at most 1,000, and fewer if they are large.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// Any error of the store.
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

    /// Returns the waiting tick of a schedule that was read before.
    ///
    /// Otherwise it works as [`ScheduleHandle::waiting`].
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn waiting_tick(&self, named: &NamedSchedule) -> Result<Option<JobRecord>> {
        self.holder(&named.schedule.unique_key(&named.name)).await
    }
}

impl ScheduleHandle {
    /// Returns the name of the schedule.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets changes through this handle happen only while the schedule has this generation.
    ///
    /// Otherwise they return `Conflict`, and nothing was changed. It applies to [`set`](Self::set), [`put`](Self::put),
    /// [`pause`](Self::pause), [`resume`](Self::resume) and [`remove`](Self::remove). A change makes a new generation, so a
    /// second change needs another handle.
    ///
    /// ```
    /// # use punctual::{Client, Job, schedule::Cron, testing::TestQueue};
    /// # #[derive(Job, serde::Serialize, serde::Deserialize)] #[job(kind = "cleanup")] struct Cleanup;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
    /// # let client = TestQueue::new().client;
    /// let seen = client.schedule("nightly").set(Cron::new("0 2 * * *")?, Cleanup).await?;
    /// client.schedule("nightly").pause("bo", "moved").await?; // somebody else changes it
    /// let late = client.schedule("nightly").if_generation(seen.generation);
    /// assert!(late.remove().await.is_err());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn if_generation(mut self, generation: u64) -> Self {
        self.only = Some(generation);
        self
    }

    /// Returns the schedule, or `None` if it does not exist.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// `Invalid` for an invalid name, `Corrupt` for a document that cannot be read.
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

    /// Sets the schedule: enqueues `job` at every tick from now on.
    ///
    /// An existing schedule of this name is changed. It stays paused if it is. If nothing differs, nothing changes,
    /// so a program can call this at every start.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// As [`Schedule::new`]; `Conflict` if others kept changing it meanwhile, or if it does not have the generation of
    /// [`if_generation`](Self::if_generation).
    ///
    /// ```
    /// # use punctual::{Client, Job, schedule::Cron, testing::TestQueue};
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

    /// Sets the schedule as [`ScheduleHandle::set`] does, with options for its jobs.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
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

    /// Sets the whole schedule, except its pause.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// As [`ScheduleHandle::set`].
    pub async fn put(&self, schedule: Schedule) -> Result<NamedSchedule> {
        self.change(|was| Ok(Schedule { paused: was.and_then(|was| was.paused.clone()), ..schedule.clone() }))
            .await
    }

    /// Pauses the schedule and cancels its waiting tick.
    ///
    /// `by` and `reason` are for people.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// `Invalid` if there is no such schedule; otherwise as [`ScheduleHandle::set`].
    pub async fn pause(&self, by: &str, reason: &str) -> Result<NamedSchedule> {
        let since_ms = self.client.store().now().await?.as_ms();
        let pause = Pause { since_ms, by: cut_error(by).to_owned(), reason: cut_error(reason).to_owned() };
        self.change(|was| Ok(Schedule { paused: Some(pause.clone()), ..self.known(was)?.clone() })).await
    }

    /// Resumes the schedule. It continues with the next tick after now.
    ///
    /// If the future is dropped, the call may have taken effect. It is safe to repeat it.
    ///
    /// # Errors
    /// As [`ScheduleHandle::pause`].
    pub async fn resume(&self) -> Result<NamedSchedule> {
        self.change(|was| Ok(Schedule { paused: None, ..self.known(was)?.clone() })).await
    }

    /// Removes the schedule and cancels its waiting tick.
    ///
    /// A running tick goes on. Returns whether it existed.
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
                // A tick of a schedule that cannot be read notices this itself.
                if let Ok(was) = NamedSchedule::of(&doc) {
                    self.call_off(&was.schedule, doc.version + 1, REMOVED).await.map_err(Error::in_part)?;
                }
                return Ok(true);
            }
        }
        Err(self.changed_too_often())
    }

    /// Enqueues its job once, now, in addition to its ticks.
    ///
    /// Works also while it is paused.
    ///
    /// If the future is dropped, the job may have been enqueued. A repeated call can enqueue a second one.
    ///
    /// # Errors
    /// `Invalid` if there is no such schedule; `Full` if the queue is at its cap.
    pub async fn fire(&self) -> Result<Enqueued> {
        let named = self.get().await?;
        let mut job = self.known(named.as_ref().map(|named| &named.schedule))?.job(&self.name);
        job.id = self.client.make_id();
        let now = self.client.store().now().await?;
        job.headers.insert(SCHEDULED_FOR.to_owned(), now.as_ms().to_string());
        let queue = job.queue.clone();
        only_answer(&queue, self.client.push(vec![job]).await?)
    }

    /// Returns the waiting tick.
    ///
    /// `None` means that the schedule is paused or does not exist, that its last tick has just started, or that its
    /// waiting tick was cancelled.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// Any error of the store.
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

    /// Changes the document, then the waiting tick. Replaces a document that cannot be read.
    async fn change(&self, to: impl Fn(Option<&Schedule>) -> Result<Schedule>) -> Result<NamedSchedule> {
        let mut tries = Tries::default();
        while tries.next(fastrand::f64).await {
            let doc = self.read().await?;
            self.allows(doc.as_ref())?;
            let was = doc.as_ref().and_then(|doc| NamedSchedule::of(doc).ok());
            let schedule = to(was.as_ref().map(|was| &was.schedule))?;
            schedule.check(&self.name)?;
            let expression = schedule.cron.expression();
            if was.as_ref().is_none_or(|was| was.schedule.cron.expression() != expression) {
                // An expression that an earlier version stored stays, although it would be refused now.
                schedule.cron.check()?;
            }
            let precondition =
                doc.as_ref().map_or(Precondition::IfAbsent, |doc| Precondition::IfVersion(doc.version));
            let put = DocOp::Put { key: key(&self.name), precondition, value: schedule.write()? };
            match self.client.store().doc(&put).await? {
                DocReply::Is(Some(doc)) => {
                    let is = NamedSchedule::of(&doc)?;
                    self.move_tick(was.as_ref(), &is).await.map_err(Error::in_part)?;
                    return Ok(is);
                }
                DocReply::Conflict(_) => {}
                DocReply::Is(None) | DocReply::Page { .. } => return Err(unexpected()),
            }
        }
        Err(self.changed_too_often())
    }

    /// After a change: calls off the waiting tick, and enqueues the next one.
    async fn move_tick(&self, was: Option<&NamedSchedule>, is: &NamedSchedule) -> Result<()> {
        let due = match was {
            Some(was) => self.call_off(&was.schedule, is.generation, CHANGED).await?,
            None => None,
        };
        // A tick that was already due stays due if the new schedule has it, too.
        self.enqueue_next(due.map(before)).await.map(drop)
    }

    /// Checks that the document has the generation that changes need.
    fn allows(&self, doc: Option<&Doc>) -> Result<()> {
        let (is, name) = (doc.map(|doc| doc.version), &self.name);
        match self.only {
            Some(only) if is != Some(only) => {
                let is = is.map_or("is not there".to_owned(), |is| format!("has the generation {is}"));
                let text = format!("schedule {name:?} {is}, and the change is for the generation {only}");
                Err(Error::new(ErrorKind::Conflict, text)
                    .with_hint("read the schedule again, and decide anew"))
            }
            _ => Ok(()),
        }
    }

    fn changed_too_often(&self) -> Error {
        let text = format!("schedule {:?} was changed by another process at the same time", self.name);
        Error::new(ErrorKind::Conflict, text).with_hint("try again")
    }
}

impl Schedule {
    /// Makes a schedule that enqueues `job` at the ticks of `cron`.
    pub(crate) fn of<J: Job>(client: &Client, cron: Cron, job: &J) -> Result<Self> {
        Self::new(cron, Spec::new(client, job)?.finish()?)
    }
}

impl NamedSchedule {
    fn of(doc: &Doc) -> Result<Self> {
        let name = name_of(doc).to_owned();
        Ok(Self { schedule: Schedule::read(&name, &doc.value)?, name, generation: doc.version })
    }

    /// Returns the first tick after an instant; `None` while the schedule is paused.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if self.schedule.paused.is_some() { None } else { self.schedule.cron.next(after) }
    }
}

/// Returns the instant for which `tick` is the next tick.
pub(crate) fn before(tick: Timestamp) -> Timestamp {
    Timestamp::saturating_from_ms(tick.as_ms().saturating_sub(1))
}

fn name_of(doc: &Doc) -> &str {
    doc.key.strip_prefix(PREFIX).unwrap_or(&doc.key)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a schedule")
}
