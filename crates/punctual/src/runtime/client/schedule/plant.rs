//! The one tick of each schedule that waits: planted, called off, and kept in order whatever others do at the same time.

use super::{CHANGED, NamedSchedule, ScheduleHandle, before, unexpected};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::State,
        limits::MISSED_MAX,
        schedule::{Schedule, Tick},
        time::Timestamp,
    },
    runtime::repeat::Tries,
    store::{Acted, Action, Enqueued, Existing, Guard, Target, Which},
};

/// Why a tick was cancelled that an earlier one took the place of. It comes back with another id.
const MADE_ROOM: &str = "made room for an earlier tick";

/// What is said of a queue at its cap.
pub(super) const NO_ROOM: &str = "its queue has no room for the next tick";

/// How often the same tick may have made room for earlier ones.
const TURNS_MAX: u32 = 16;
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
    /// A tick that waits for a later time than the next does not count: the clock was ahead when it was planted. It makes room. Ticks
    /// that ran then are not run again.
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
        let (mut tries, mut turn, mut behind, mut seen_gone) = (Tries::default(), 0, 0, None);
        let mut goes_on = tries.next(fastrand::f64).await;
        while goes_on {
            let Some(named) = self.get().await? else { return Ok(false) };
            let Some(at) = named.next(after) else { return Ok(false) };
            let waiting = if is_successor { None } else { self.waits_for(&named).await? };
            // Of a clock that went far back more ticks may have run than are passed over: the one that waits is as good as any.
            if waiting.is_some_and(|waiting| waiting <= at || BEHIND_MAX <= behind) {
                return Ok(false);
            }
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
                    self.make_way(&named, at, met, is_second_look).await?
                }
                Some(Enqueued::Full) => {
                    let text = format!("queue {queue:?} has no room for a tick of {:?}", self.name);
                    return Err(Error::new(ErrorKind::Full, text));
                }
                _ => return Err(unexpected()),
            };
            goes_on = match next {
                Next::Again => tries.next(fastrand::f64).await,
                Next::OtherId => {
                    turn += 1;
                    turn < TURNS_MAX
                }
                Next::Behind => {
                    (behind, after, turn) = (behind + 1, at, 0);
                    behind < BEHIND_MAX || !is_successor && behind == BEHIND_MAX
                }
                Next::From(due) => {
                    (turn, after, is_successor) = (0, after.min(before(due)), true);
                    tries.next(fastrand::f64).await
                }
                Next::Stop => return Ok(false),
            };
        }
        let text = format!("could not enqueue a tick of {:?}: other jobs hold its unique key", self.name);
        Err(Error::new(ErrorKind::Conflict, text))
    }

    /// What a tick met: itself, or who holds the key of the schedule.
    async fn make_way(
        &self,
        named: &NamedSchedule,
        at: Timestamp,
        met: Existing,
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
                .with_hint("such keys are reserved for schedules; use another key"));
        };
        let reason = if other.generation < named.generation {
            CHANGED
        } else if other.generation == named.generation && at < other.at {
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

    pub(super) async fn plant_if_missing(&self, named: &NamedSchedule) -> Result<bool> {
        if named.schedule.paused.is_some() { Ok(false) } else { self.plant(None).await }
    }

    /// The time of the tick that waits, if it is of this version.
    async fn waits_for(&self, named: &NamedSchedule) -> Result<Option<Timestamp>> {
        let waiting = self.client.holder(&named.schedule.unique_key(&self.name)).await?;
        let tick = waiting.as_ref().and_then(Tick::of);
        let its = tick.filter(|tick| tick.name == self.name && tick.generation == named.generation);
        Ok(its.map(|tick| tick.at))
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
    pub(super) async fn cancel(&self, id: JobId, queue: &str, why: &str) -> Result<bool> {
        let guard = Guard { queue: queue.to_owned(), state: State::Waiting, version: None };
        let target = Target { which: Which::Id(id), guard: Some(guard) };
        let action = Action::Cancel { reason: Some(why.to_owned()) };
        let acted = self.client.store().act(&[target], &action).await?;
        Ok(matches!(acted.first(), Some(Acted::Done(..))))
    }
}
