//! The look at all schedules of a store: for each page of documents the clock, a batch of ticks, and the page once more. Only where
//! that does not tell how a schedule stands is it looked at by itself (`plant`).

use super::{
    super::Client,
    CHANGED, NamedSchedule, SchedulePage,
    plant::{NO_ROOM, is_passing},
};
use crate::{
    core::{
        error::Result,
        job::{NewJob, State},
        schedule::Tick,
        time::Timestamp,
    },
    store::Enqueued,
};

impl Client {
    /// Plants the next tick of every schedule that has none waiting, as each worker does when it starts and one of them from time
    /// to time: one may have been cancelled by hand, have died of its last attempt before it had planted its successor, or have been
    /// planted by a clock that was ahead. Answers how many it planted. A schedule that can't be read, or planted, is left alone,
    /// with a warning.
    ///
    /// Dropped, it has planted some of them; called again, it plants the others.
    ///
    /// # Errors
    /// A store that can't be reached.
    pub async fn plant_schedules(&self) -> Result<u64> {
        let (mut planted, mut after) = (0, None::<String>);
        loop {
            let page = self.schedules(after.as_deref()).await?;
            for schedule in &page.unreadable {
                tracing::warn!(target: "punctual", schedule, "could not read the schedule, it is left alone");
            }
            planted += self.plant_page(&page, after.as_deref()).await?;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(planted),
            }
        }
    }

    /// Plants what is missing of the page behind `after`.
    async fn plant_page(&self, page: &SchedulePage, after: Option<&str>) -> Result<u64> {
        if page.schedules.is_empty() {
            return Ok(0);
        }
        let now = self.store().now().await?;
        let next = |named: &NamedSchedule| {
            let tick = named.schedule.tick(&named.name, named.generation, named.next(now)?, 0);
            tick.check().is_ok().then_some(tick)
        };
        let (asked, ticks): (Vec<&NamedSchedule>, Vec<NewJob>) =
            page.schedules.iter().filter_map(|named| Some((named, next(named)?))).unzip();
        let ids: Vec<_> = ticks.iter().map(|tick| tick.id).collect();
        let (mut planted, mut unclear) = (Vec::new(), Vec::new());
        match self.push(ticks).await {
            Ok(answers) => {
                for ((named, id), answer) in asked.into_iter().zip(ids).zip(answers) {
                    match answer {
                        Enqueued::Inserted { id, .. } => planted.push((named, id)),
                        Enqueued::Duplicate(met) if met.id.is_same_elsewhere(id) => {
                            if met.state != Some(State::Waiting) {
                                unclear.push(named);
                            }
                        }
                        Enqueued::Duplicate(met) if self.is_tick_of(named, met.id, now).await? => {}
                        Enqueued::Full => {
                            tracing::warn!(target: "punctual", schedule = named.name, "{NO_ROOM}");
                        }
                        _ => unclear.push(named),
                    }
                }
            }
            Err(error) if is_passing(&error) => return Err(error),
            // One of them is at fault: which, each by itself tells.
            Err(_) => unclear = asked,
        }
        let mut count = planted.len() as u64;
        if !planted.is_empty() {
            // Whoever changed one meanwhile may not have found its tick.
            let now = self.schedules(after).await?;
            for (named, id) in planted {
                let is_same = |is: &NamedSchedule| is.name == named.name && is.generation == named.generation;
                if !now.schedules.iter().any(is_same) {
                    count -= 1;
                    self.schedule(&named.name).cancel(id, &named.schedule.job.queue, CHANGED).await?;
                    unclear.push(named);
                }
            }
        }
        for named in unclear {
            match self.schedule(&named.name).plant_if_missing(named).await {
                Ok(is_new) => count += u64::from(is_new),
                Err(error) if is_passing(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(target: "punctual", schedule = named.name, %error, "could not plant its next tick");
                }
            }
        }
        Ok(count)
    }

    /// Whether a job is the tick of a schedule that waits, due or overdue.
    async fn is_tick_of(
        &self,
        named: &NamedSchedule,
        id: crate::core::id::JobId,
        now: Timestamp,
    ) -> Result<bool> {
        let Some(job) = self.get(id).await?.filter(|job| job.state == State::Waiting) else {
            return Ok(false);
        };
        let is_its = |tick: &Tick<'_>| tick.name == named.name && tick.generation == named.generation;
        let next = named.next(now);
        Ok(Tick::of(&job).filter(is_its).is_some_and(|tick| next.is_none_or(|next| tick.at <= next)))
    }
}
