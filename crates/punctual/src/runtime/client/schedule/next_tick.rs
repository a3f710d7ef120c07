//! The one waiting tick of each schedule: enqueues it, cancels it, and keeps it in order under concurrent changes.

use super::{CHANGED, NamedSchedule, ScheduleHandle, before, unexpected};
use crate::{
    core::{
        cron::Misfire,
        error::{Error, ErrorKind, Result},
        id::JobId,
        job::State,
        limits::MISSED_MAX,
        schedule::{Schedule, Tick},
        time::Timestamp,
    },
    runtime::repeat::Tries,
    store::{Acted, Action, Enqueued, Existing, Guard, Selector, Target},
};

/// The reason of a tick that was cancelled in favour of an earlier one. It is enqueued again with another id.
const MADE_ROOM: &str = "made room for an earlier tick";

/// The message for a queue at its cap.
pub(super) const NO_ROOM: &str = "its queue has no room for the next tick";

/// How often the same tick can have made room for earlier ones.
const ROUNDS_MAX: u32 = 16;
/// How many ticks that have ended or started are skipped: as many as can have been missed.
const BEHIND_MAX: u32 = MISSED_MAX + 16;

/// Returns whether an error concerns the whole store and is transient.
pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::UnknownOutcome | ErrorKind::Closed)
}

/// What to do after a tick could not be enqueued.
enum Next {
    /// Try again: something was removed or has changed.
    Again,
    /// Try the same tick with another id.
    OtherId,
    /// Try the first tick after this instant.
    Behind(Timestamp),
    /// Try the successor of a due tick that was cancelled.
    From(Timestamp),
    /// Give up.
    Stop,
}

/// What decides beside a tick whether another one makes way for it.
#[derive(Clone, Copy)]
struct Looks {
    /// Whether the same tick was met as one that is gone just before.
    is_second_look: bool,
    /// Whether the tick follows another one, instead of being the next after now.
    is_successor: bool,
}

impl ScheduleHandle {
    /// Enqueues the first tick after an instant; returns whether this call enqueued it.
    ///
    /// Without an instant, it enqueues the first tick after now, unless a tick is waiting.
    ///
    /// A waiting tick that is later than the next tick makes room for it: the clock was ahead when it was enqueued.
    /// Ticks that ran then do not run again. A next tick that has passed before it was enqueued needs no room.
    ///
    /// Whatever others change or enqueue meanwhile, in the end a tick of the current schedule waits. A caller that
    /// changes the schedule cancels the earlier tick. A caller that enqueued a tick checks afterwards that the
    /// schedule is still the same. If a tick starts just as a caller finds none waiting, its missed ticks come first:
    /// the later tick makes room for them.
    ///
    /// # Errors
    /// `Full` if the queue is at its cap; `Conflict` if no tick could be enqueued, or if a foreign job holds the key.
    pub(crate) async fn enqueue_next(&self, after: Option<Timestamp>) -> Result<bool> {
        let mut is_successor = after.is_some();
        let mut after = match after {
            Some(after) => after,
            None => self.client.store().now().await?,
        };
        let (mut tries, mut round, mut behind, mut seen_gone) = (Tries::default(), 0, 0, None);
        let mut goes_on = tries.next(fastrand::f64).await;
        while goes_on {
            let Some(named) = self.get().await? else { return Ok(false) };
            let Some(at) = named.next(after) else { return Ok(false) };
            let waiting = if is_successor { None } else { self.waits_for(&named).await? };
            // If the clock went far back, more ticks can have run than are skipped. The waiting tick is then good
            // enough.
            if waiting.is_some_and(|waiting| waiting <= at || BEHIND_MAX <= behind) {
                return Ok(false);
            }
            let tick = named.schedule.tick(&self.name, named.generation, at, round);
            let (id, queue) = (tick.id, &named.schedule.job.queue);
            let next = match self.client.push(vec![tick]).await?.into_iter().next() {
                Some(Enqueued::Inserted { id, .. }) => {
                    if self.get().await?.is_some_and(|now| now.generation == named.generation) {
                        return Ok(true);
                    }
                    self.cancel(id, queue, CHANGED).await?;
                    Next::Again
                }
                Some(Enqueued::Duplicate(met)) => {
                    let gone = met.state.is_none().then_some(at);
                    let is_second_look = gone.is_some() && seen_gone == gone;
                    seen_gone = gone;
                    let looks = Looks { is_second_look, is_successor };
                    self.make_way(&named, (id, at), met, looks).await?
                }
                // A foreign job of another queue must not stop the schedule.
                Some(Enqueued::Conflict { .. }) => Next::OtherId,
                Some(Enqueued::Full) => {
                    let text = format!("queue {queue:?} has no room for a tick of {:?}", self.name);
                    return Err(Error::new(ErrorKind::Full, text));
                }
                _ => return Err(unexpected()),
            };
            goes_on = match next {
                Next::Again => tries.next(fastrand::f64).await,
                Next::OtherId => {
                    round += 1;
                    round < ROUNDS_MAX
                }
                Next::Behind(passed) => {
                    (behind, after, round) = (behind + 1, passed, 0);
                    behind < BEHIND_MAX || !is_successor && behind == BEHIND_MAX
                }
                Next::From(due) => {
                    (round, after, is_successor) = (0, after.min(before(due)), true);
                    tries.next(fastrand::f64).await
                }
                Next::Stop => return Ok(false),
            };
        }
        let text = format!("could not enqueue a tick of {:?}: other jobs hold its unique key", self.name);
        Err(Error::new(ErrorKind::Conflict, text))
    }

    /// Handles what a tick met: itself, or the job that holds the key of the schedule.
    async fn make_way(
        &self,
        named: &NamedSchedule,
        (own, at): (JobId, Timestamp),
        met: Existing,
        Looks { is_second_look, is_successor }: Looks,
    ) -> Result<Next> {
        let job = self.client.get(met.id).await?;
        if met.state.is_none() && !is_second_look {
            // Also the answer to a repeated call if the job that it met holds the key no longer.
            return Ok(Next::Again);
        }
        if met.state != Some(State::Waiting) && met.state != Some(State::Running) {
            // It met itself, and that job has ended: it was cancelled by hand, or replaced by another one. If a queue
            // keeps no cancelled jobs, the two cannot be distinguished.
            let made_room = job.is_some_and(|job| job.reason.as_deref() == Some(MADE_ROOM));
            return Ok(if made_room { Next::OtherId } else { Next::Behind(at) });
        }
        let Some(job) = job else { return Ok(Next::Again) };
        if job.id.is_same_elsewhere(own) {
            // It met itself. Once it has started, it does not hold the key, and its successor may have made room meanwhile.
            let holder = self.client.holder(&named.schedule.unique_key(&self.name)).await?;
            if holder.is_some_and(|holder| holder.id == job.id) {
                return Ok(Next::Stop);
            }
            // It stands for the ticks that were missed until now, unless all of these run.
            return Ok(Next::Behind(match named.schedule.cron.misfire() {
                Misfire::RunAll { .. } => at,
                Misfire::RunOnce | Misfire::Skip => at.max(self.client.store().now().await?),
            }));
        }
        let Some(other) = Tick::of(&job).filter(|other| other.name == self.name) else {
            let text = format!("job {} holds the unique key of schedule {:?}", job.id, self.name);
            return Err(Error::new(ErrorKind::Conflict, text)
                .with_hint("such keys are reserved for schedules; use another key"));
        };
        let reason = if other.generation < named.generation {
            CHANGED
        } else if other.generation == named.generation && at < other.at {
            if !is_successor {
                let now = self.client.store().now().await?;
                if at <= now {
                    // It was the next one when this call began, has passed since, and others went on with a later one.
                    return Ok(Next::Behind(now));
                }
            }
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

    pub(super) async fn enqueue_if_missing(&self, named: &NamedSchedule) -> Result<bool> {
        if named.schedule.paused.is_some() { Ok(false) } else { self.enqueue_next(None).await }
    }

    /// Returns the time of the waiting tick, if it is of this generation.
    pub(crate) async fn waits_for(&self, named: &NamedSchedule) -> Result<Option<Timestamp>> {
        let waiting = self.client.holder(&named.schedule.unique_key(&self.name)).await?;
        let tick = waiting.as_ref().and_then(Tick::of);
        let its = tick.filter(|tick| tick.name == self.name && tick.generation == named.generation);
        Ok(its.map(|tick| tick.at))
    }

    /// Cancels the waiting tick if its generation is below this one; returns its time if it was due.
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

    /// Cancels a waiting tick. A tick that started meanwhile notices this itself.
    pub(super) async fn cancel(&self, id: JobId, queue: &str, why: &str) -> Result<bool> {
        let guard = Guard { queue: queue.to_owned(), state: State::Waiting, version: None };
        let target = Target { selector: Selector::Id(id), guard: Some(guard) };
        let action = Action::Cancel { reason: Some(why.to_owned()) };
        let acted = self.client.store().act(&[target], &action).await?;
        Ok(matches!(acted.first(), Some(Acted::Done(..))))
    }
}
