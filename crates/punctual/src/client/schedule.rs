//! Schedules, through a client: documents, and the one tick of each that waits.

use super::{Client, Spec};
use crate::{
    cron::Cron,
    error::{Error, ErrorKind, Result},
    job::{Job, JobRecord, State, cut_error},
    limits::BATCH_MAX,
    schedule::{PREFIX, SCHEDULED_FOR, Schedule, Tick, check_schedule, key},
    store::{Action, Doc, DocOp, DocReply, Enqueued, Only, Pause, Target, Which},
    time::Timestamp,
};

/// How often somebody else may change a schedule, or its ticks, while a change is made.
const TRIES_MAX: usize = 16;

/// Why a tick was cancelled.
pub(crate) const CHANGED: &str = "its schedule was changed";
pub(crate) const REMOVED: &str = "its schedule was removed";
const MADE_ROOM: &str = "made room for an earlier tick";

/// A schedule by its name, to look at and to set. It lives in the store: whoever reserves its ticks plants the next one,
/// and no process has to be the one that keeps it going.
#[derive(Clone, Debug)]
pub struct ScheduleHandle {
    client: Client,
    name: String,
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
    pub fn schedule(&self, name: impl Into<String>) -> ScheduleHandle {
        ScheduleHandle { client: self.clone(), name: name.into() }
    }

    /// Schedules by their names, those behind `after`; at most 1,000, and fewer where they are large. No more: all were told.
    ///
    /// # Errors
    /// `Corrupt` for a document that can't be read.
    pub async fn schedules(&self, after: Option<&str>) -> Result<Vec<NamedSchedule>> {
        let (docs, _) = self.schedule_docs(after).await?;
        docs.iter().map(NamedSchedule::of).collect()
    }

    async fn schedule_docs(&self, after: Option<&str>) -> Result<(Vec<Doc>, bool)> {
        let list = DocOp::List { prefix: PREFIX.to_owned(), after: after.map(key), limit: BATCH_MAX };
        match self.store().doc(&list).await? {
            DocReply::Page { docs, more } => Ok((docs, more)),
            DocReply::Is(_) | DocReply::Conflict(_) => Err(unexpected()),
        }
    }

    /// Plants the next tick of every schedule that has none waiting, as each worker does when it starts and from time to time:
    /// one may have been cancelled by hand, or lost with its queue. Answers how many there were none of. A schedule that can't be
    /// read is left alone, with a warning.
    ///
    /// # Errors
    /// What the store says.
    pub async fn plant_schedules(&self) -> Result<u64> {
        let (mut planted, mut after) = (0, None::<String>);
        loop {
            let (docs, more) = self.schedule_docs(after.as_deref()).await?;
            for doc in &docs {
                match NamedSchedule::of(doc) {
                    Ok(named) => planted += u64::from(self.plant_if_missing(&named).await?),
                    Err(error) => tracing::warn!(target: "punctual", %error, "left alone"),
                }
                after = Some(name_of(doc).to_owned());
            }
            if !more {
                return Ok(planted);
            }
        }
    }

    async fn plant_if_missing(&self, named: &NamedSchedule) -> Result<bool> {
        let schedule = self.schedule(&named.name);
        if named.schedule.paused.is_some() || schedule.is_planted(named).await? {
            return Ok(false);
        }
        schedule.plant(None).await
    }
}

impl ScheduleHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As it stands; `None`: there is no such schedule.
    ///
    /// # Errors
    /// `Invalid` for what is no name, `Corrupt` for a document that can't be read.
    pub async fn get(&self) -> Result<Option<NamedSchedule>> {
        check_schedule(&self.name)?;
        self.doc(DocOp::Get { key: key(&self.name) }).await?.as_ref().map(NamedSchedule::of).transpose()
    }

    /// Enqueues `job` at every tick from now on. A schedule of this name is changed, and stays paused if it is; one that is
    /// like this already is left as it is, so that every start of a program may set it.
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
    /// # Errors
    /// As [`ScheduleHandle::set`].
    pub async fn put(&self, schedule: Schedule) -> Result<NamedSchedule> {
        self.change(|was| Ok(Schedule { paused: was.and_then(|was| was.paused.clone()), ..schedule.clone() }))
            .await
    }

    /// Enqueues nothing until it is resumed; `by` and `reason` are for people. The tick that waits is cancelled.
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
    /// # Errors
    /// As [`ScheduleHandle::pause`].
    pub async fn resume(&self) -> Result<NamedSchedule> {
        self.change(|was| Ok(Schedule { paused: None, ..self.known(was)?.clone() })).await
    }

    /// Removes it, and cancels the tick that waits; one that runs goes on. Answers whether there was one.
    ///
    /// # Errors
    /// What the store says.
    pub async fn remove(&self) -> Result<bool> {
        let Some(was) = self.get().await? else { return Ok(false) };
        self.doc(DocOp::Remove { key: key(&self.name), only: Only::Always }).await?;
        self.cancel_tick(&was.schedule, REMOVED).await?;
        Ok(true)
    }

    /// Enqueues its job now, once, beside its ticks; also while it is paused.
    ///
    /// # Errors
    /// `Invalid` where there is no such schedule.
    pub async fn fire(&self) -> Result<Enqueued> {
        let named = self.get().await?;
        let mut job = self.known(named.as_ref().map(|named| &named.schedule))?.job(&self.name);
        job.id = self.client.make_id();
        let now = self.client.store().now().await?;
        job.headers.insert(SCHEDULED_FOR.to_owned(), now.as_ms().to_string());
        let answers = self.client.push(vec![job]).await?;
        answers.into_iter().next().ok_or_else(unexpected)
    }

    /// The tick that waits; `None`: the schedule is paused or not there, or its last tick started just now.
    ///
    /// # Errors
    /// What the store says.
    pub async fn waiting(&self) -> Result<Option<JobRecord>> {
        match self.get().await? {
            Some(named) => self.client.holder(&named.schedule.unique_key(&self.name)).await,
            None => Ok(None),
        }
    }

    fn known<'a>(&self, schedule: Option<&'a Schedule>) -> Result<&'a Schedule> {
        schedule.ok_or_else(|| {
            Error::invalid(format!("there is no schedule {:?}", self.name))
                .with_hint("punctual cron ls    shows all")
        })
    }

    /// Changes the document by what it is, then the tick that waits.
    async fn change(&self, to: impl Fn(Option<&Schedule>) -> Result<Schedule>) -> Result<NamedSchedule> {
        for _ in 0..TRIES_MAX {
            let was = self.get().await?;
            let schedule = to(was.as_ref().map(|was| &was.schedule))?;
            let only = was.as_ref().map_or(Only::IfAbsent, |was| Only::IfVersion(was.generation));
            let put = DocOp::Put { key: key(&self.name), only, value: schedule.write()? };
            match self.client.store().doc(&put).await? {
                DocReply::Is(Some(doc)) => {
                    let is = NamedSchedule::of(&doc)?;
                    if let Some(was) = was.filter(|was| was.generation != is.generation) {
                        self.cancel_tick(&was.schedule, CHANGED).await?;
                    }
                    self.plant(None).await?;
                    return Ok(is);
                }
                DocReply::Conflict(_) => {}
                DocReply::Is(None) | DocReply::Page { .. } => return Err(unexpected()),
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!("schedule {:?} was changed by others at the same time", self.name),
        )
        .with_hint("try again"))
    }

    /// Lets the first tick after an instant wait; answers whether this call planted it. Without an instant, the first after now,
    /// unless one waits.
    ///
    /// Whatever is changed or planted meanwhile, in the end a tick of the schedule as it then is waits: who changes it cancels
    /// the tick of before; who planted one looks again whether the schedule is still the same; and where somebody found that
    /// none waited, just when one had started that has missed ones behind it, the later tick makes room for these.
    pub(crate) async fn plant(&self, after: Option<Timestamp>) -> Result<bool> {
        let is_successor = after.is_some();
        let mut after = match after {
            Some(after) => after,
            None => self.client.store().now().await?,
        };
        let mut turn = 0;
        for _ in 0..TRIES_MAX {
            let Some(named) = self.get().await? else { return Ok(false) };
            if !is_successor && self.is_planted(&named).await? {
                return Ok(false);
            }
            let Some(at) = named.next(after) else { return Ok(false) };
            let tick = named.schedule.tick(&self.name, named.generation, at, turn);
            let (id, queue) = (tick.id, &named.schedule.job.queue);
            match self.client.push(vec![tick]).await?.into_iter().next() {
                Some(Enqueued::Inserted { id, .. }) => {
                    if self.get().await?.is_some_and(|now| now.generation == named.generation) {
                        return Ok(true);
                    }
                    self.cancel(Which::Id(id), queue, CHANGED).await?;
                }
                Some(Enqueued::Duplicate(met)) if met.id == id => match met.state {
                    Some(State::Waiting | State::Running) => return Ok(false),
                    _ if self
                        .client
                        .get(id)
                        .await?
                        .is_some_and(|job| job.reason.as_deref() == Some(MADE_ROOM)) =>
                    {
                        turn += 1;
                    }
                    // It was called off by hand: the one behind it.
                    _ => (after, turn) = (at, 0),
                },
                Some(Enqueued::Duplicate(met)) => {
                    let Some(waiting) = self.client.get(met.id).await? else { continue };
                    match Tick::of(&waiting.headers).filter(|_| named.has(&waiting)) {
                        Some(other) if is_successor && at < other.at => {
                            self.cancel(Which::Id(met.id), queue, MADE_ROOM).await?;
                        }
                        Some(_) => return Ok(false),
                        None => self.cancel(Which::Id(met.id), queue, CHANGED).await?,
                    }
                }
                Some(Enqueued::Full) => {
                    return Err(Error::new(
                        ErrorKind::StoreFull,
                        format!("queue {queue:?} has no room for a tick of {:?}", self.name),
                    ));
                }
                _ => return Err(unexpected()),
            }
        }
        Ok(false)
    }

    /// Whether a tick of it waits.
    async fn is_planted(&self, named: &NamedSchedule) -> Result<bool> {
        let waiting = self.client.holder(&named.schedule.unique_key(&self.name)).await?;
        Ok(waiting.is_some_and(|waiting| named.has(&waiting)))
    }

    async fn cancel_tick(&self, of: &Schedule, why: &str) -> Result<()> {
        self.cancel(Which::Key(of.unique_key(&self.name)), &of.job.queue, why).await
    }

    /// Cancels a tick that waits in this queue; one that started meanwhile finds out by itself.
    async fn cancel(&self, which: Which, queue: &str, why: &str) -> Result<()> {
        let target = Target { which, guard: Some((queue.to_owned(), State::Waiting)) };
        let action = Action::Cancel { reason: Some(why.to_owned()) };
        self.client.store().act(&[target], &action).await.map(drop)
    }

    async fn doc(&self, op: DocOp) -> Result<Option<Doc>> {
        match self.client.store().doc(&op).await? {
            DocReply::Is(doc) => Ok(doc),
            DocReply::Conflict(_) | DocReply::Page { .. } => Err(unexpected()),
        }
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

    /// Whether a job is a tick of it as it stands.
    fn has(&self, job: &JobRecord) -> bool {
        Tick::of(&job.headers)
            .is_some_and(|tick| tick.name == self.name && tick.generation == self.generation)
    }

    /// The first tick after an instant; none while it is paused.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if self.schedule.paused.is_some() { None } else { self.schedule.cron.next(after) }
    }
}

fn name_of(doc: &Doc) -> &str {
    doc.key.strip_prefix(PREFIX).unwrap_or(&doc.key)
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Corrupt, "the store answered another question about a schedule")
}
