//! The one tick of each schedule that waits: planted, called off, and kept in order whatever others do at the same time.

use super::{super::Client, CHANGED, NamedSchedule, ScheduleHandle, TRIES_MAX, before, unexpected};
use crate::{
    error::{Error, ErrorKind, Result},
    id::JobId,
    job::State,
    limits::MISSED_MAX,
    schedule::{Schedule, Tick},
    store::{Acted, Action, Enqueued, Existing, Guard, Target, Which},
    time::Timestamp,
};

/// Why a tick was cancelled that an earlier one took the place of. It comes back with another id.
const MADE_ROOM: &str = "made room for an earlier tick";

impl Client {
    /// Plants the next tick of every schedule that has none waiting, as each worker does when it starts and from time to time:
    /// one may have been cancelled by hand, or died of its last attempt before it had planted its successor. Answers how many it
    /// planted. A schedule that can't be read, or planted, is left alone, with a warning.
    ///
    /// # Errors
    /// A store that can't be reached.
    pub async fn plant_schedules(&self) -> Result<u64> {
        let (mut planted, mut after) = (0, None::<String>);
        loop {
            let page = self.schedules(after.as_deref()).await?;
            for schedule in page.unreadable {
                tracing::warn!(target: "punctual", schedule, "could not read the schedule, it is left alone");
            }
            for named in page.schedules {
                match self.schedule(&named.name).plant_if_missing(&named).await {
                    Ok(is_new) => planted += u64::from(is_new),
                    Err(error) if is_passing(&error) => return Err(error),
                    Err(error) => {
                        tracing::warn!(target: "punctual", schedule = named.name, %error, "could not plant its next tick");
                    }
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(planted),
            }
        }
    }
}

/// How many ticks that ended already are passed over: as many as may have been missed.
const BEHIND_MAX: u32 = MISSED_MAX + 16;

/// Whether an error is the whole store's, and passes.
pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::UnknownOutcome | ErrorKind::Closed)
}

/// How to go on after a tick that could not be planted.
enum Next {
    /// As before: something was cleared away, or has changed.
    Again,
    /// With the same tick under another id.
    OtherId,
    /// With the tick behind it.
    Behind,
    /// As the successor of one that was due and gave way.
    From(Timestamp),
    /// Not at all.
    Stop,
}

impl ScheduleHandle {
    /// Lets the first tick after an instant wait; answers whether this call planted it. Without an instant, the first after now,
    /// unless one waits.
    ///
    /// Whatever is changed or planted meanwhile, in the end a tick of the schedule as it then is waits: who changes it calls off
    /// the tick of before; who planted one looks again whether the schedule is still the same; and where somebody found that
    /// none waited, just when one had started that has missed ones behind it, the later tick makes room for these.
    ///
    /// # Errors
    /// `Full` where the queue is at its cap; `Conflict` where no tick could be planted, or somebody else's job holds the
    /// key.
    pub(crate) async fn plant(&self, after: Option<Timestamp>) -> Result<bool> {
        let mut is_successor = after.is_some();
        let mut after = match after {
            Some(after) => after,
            None => self.client.store().now().await?,
        };
        let (mut turn, mut tries, mut behind, mut seen_gone) = (0, 0, 0, None);
        while tries < TRIES_MAX && behind < BEHIND_MAX {
            let Some(named) = self.get().await? else { return Ok(false) };
            if !is_successor && self.is_planted(&named).await? {
                return Ok(false);
            }
            let Some(at) = named.next(after) else { return Ok(false) };
            let tick = named.schedule.tick(&self.name, named.generation, at, turn);
            let queue = &named.schedule.job.queue;
            let next = match self.client.push(vec![tick]).await?.into_iter().next() {
                Some(Enqueued::Inserted { id, .. }) => {
                    if self.get().await?.is_some_and(|now| now.generation == named.generation) {
                        return Ok(true);
                    }
                    self.cancel(id, queue, CHANGED).await?;
                    Next::Again
                }
                Some(Enqueued::Duplicate(met)) => {
                    let is_second_look = seen_gone.replace(at) == Some(at);
                    self.make_way(&named, at, met, is_successor, is_second_look).await?
                }
                Some(Enqueued::Full) => {
                    let text = format!("queue {queue:?} has no room for a tick of {:?}", self.name);
                    return Err(Error::new(ErrorKind::Full, text));
                }
                _ => return Err(unexpected()),
            };
            match next {
                Next::Again => tries += 1,
                Next::OtherId => (tries, turn) = (tries + 1, turn + 1),
                Next::Behind => (behind, after, turn) = (behind + 1, at, 0),
                Next::From(due) => {
                    (tries, turn) = (tries + 1, 0);
                    (after, is_successor) = (after.min(before(due)), true);
                }
                Next::Stop => return Ok(false),
            }
        }
        let text = format!("could not plant a tick of {:?}: others are in its way", self.name);
        Err(Error::new(ErrorKind::Conflict, text))
    }

    /// What a tick met: itself, or who holds the key of the schedule.
    async fn make_way(
        &self,
        named: &NamedSchedule,
        at: Timestamp,
        met: Existing,
        is_successor: bool,
        is_second_look: bool,
    ) -> Result<Next> {
        let job = self.client.get(met.id).await?;
        if met.state.is_none() && !is_second_look {
            // A call that was repeated answers so, too, where the job that it met is gone by now.
            return Ok(Next::Again);
        }
        if met.state != Some(State::Waiting) && met.state != Some(State::Running) {
            // Itself, which ended: it was called off by hand, or another one is there by now. Where a queue keeps no record of
            // what it cancels, nobody can tell the two apart.
            let made_room = job.is_some_and(|job| job.reason.as_deref() == Some(MADE_ROOM));
            return Ok(if made_room { Next::OtherId } else { Next::Behind });
        }
        let Some(job) = job else { return Ok(Next::Again) };
        let Some(other) = Tick::of(&job).filter(|other| other.name == self.name) else {
            let text = format!("job {} holds the unique key of schedule {:?}", job.id, self.name);
            return Err(Error::new(ErrorKind::Conflict, text)
                .with_hint("such keys are for schedules; give the job another one"));
        };
        let reason = if other.generation < named.generation {
            CHANGED
        } else if is_successor && other.generation == named.generation && at < other.at {
            MADE_ROOM
        } else if other.generation == named.generation {
            return Ok(Next::Stop);
        } else {
            return Ok(Next::Again);
        };
        let is_cancelled = self.cancel(job.id, &job.queue, reason).await?;
        let is_due = reason == CHANGED && is_cancelled && other.at <= self.client.store().now().await?;
        Ok(if is_due { Next::From(other.at) } else { Next::Again })
    }

    async fn plant_if_missing(&self, named: &NamedSchedule) -> Result<bool> {
        if named.schedule.paused.is_some() || self.is_planted(named).await? {
            return Ok(false);
        }
        self.plant(None).await
    }

    /// Whether a tick of it waits.
    async fn is_planted(&self, named: &NamedSchedule) -> Result<bool> {
        let waiting = self.client.holder(&named.schedule.unique_key(&self.name)).await?;
        let is_its = |tick: Tick<'_>| tick.name == self.name && tick.generation == named.generation;
        Ok(waiting.is_some_and(|waiting| Tick::of(&waiting).is_some_and(is_its)))
    }

    /// Cancels the tick that waits if it is of a generation below this one; answers its time if it was due.
    pub(super) async fn call_off(&self, of: &Schedule, below: u64, why: &str) -> Result<Option<Timestamp>> {
        let waiting = self.client.holder(&of.unique_key(&self.name)).await?;
        let Some(job) = &waiting else { return Ok(None) };
        let Some(tick) = Tick::of(job).filter(|tick| tick.name == self.name && tick.generation < below)
        else {
            return Ok(None);
        };
        let is_cancelled = self.cancel(job.id, &job.queue, why).await?;
        let now = self.client.store().now().await?;
        Ok((is_cancelled && tick.at <= now).then_some(tick.at))
    }

    /// Cancels a tick that waits; one that started meanwhile finds out by itself.
    async fn cancel(&self, id: JobId, queue: &str, why: &str) -> Result<bool> {
        let guard = Guard { queue: queue.to_owned(), state: State::Waiting, version: None };
        let target = Target { which: Which::Id(id), guard: Some(guard) };
        let action = Action::Cancel { reason: Some(why.to_owned()) };
        let acted = self.client.store().act(&[target], &action).await?;
        Ok(matches!(acted.first(), Some(Acted::Done(..))))
    }
}
