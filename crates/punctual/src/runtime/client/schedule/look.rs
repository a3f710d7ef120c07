//! Checks all schedules of a store for missing ticks.
//!
//! For each page of documents it reads the clock, a batch of ticks, and the page again. Only a schedule that is then
//! still unclear is checked by itself (`next_tick`).

use super::{
    super::Client,
    CHANGED, NamedSchedule, SchedulePage,
    next_tick::{NO_ROOM, is_passing},
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
    /// Enqueues the next tick of each schedule that has none waiting; returns how many.
    ///
    /// Each worker does this when it starts, and one of the workers does it from time to time. A tick can be missing
    /// because it was cancelled by hand, died before it enqueued its successor, or was enqueued by a clock that was
    /// ahead. A schedule that cannot be read, or whose tick cannot be enqueued, is skipped with a warning.
    ///
    /// If the future is dropped, some ticks may have been enqueued. A repeated call enqueues the others.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn enqueue_ticks(&self) -> Result<u64> {
        let (mut enqueued, mut after) = (0, None::<String>);
        loop {
            let page = self.schedules(after.as_deref()).await?;
            for schedule in &page.unreadable {
                tracing::warn!(target: "punctual", schedule, "could not read the schedule, it is left alone");
            }
            enqueued += self.enqueue_page(&page, after.as_deref()).await?;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(enqueued),
            }
        }
    }

    /// Enqueues the missing ticks of the page after `after`.
    async fn enqueue_page(&self, page: &SchedulePage, after: Option<&str>) -> Result<u64> {
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
        let (mut enqueued, mut unclear) = (Vec::new(), Vec::new());
        match self.push(ticks).await {
            Ok(answers) => {
                for ((named, id), answer) in asked.into_iter().zip(ids).zip(answers) {
                    match answer {
                        Enqueued::Inserted { id, .. } => enqueued.push((named, id)),
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
            // One of the ticks was refused. Each is then tried by itself to find out which.
            Err(_) => unclear = asked,
        }
        let mut count = enqueued.len() as u64;
        if !enqueued.is_empty() {
            // A caller that changed a schedule meanwhile may not have found its tick.
            let now = self.schedules(after).await?;
            for (named, id) in enqueued {
                let is_same = |is: &NamedSchedule| is.name == named.name && is.generation == named.generation;
                if !now.schedules.iter().any(is_same) {
                    count -= 1;
                    self.schedule(&named.name).cancel(id, &named.schedule.job.queue, CHANGED).await?;
                    unclear.push(named);
                }
            }
        }
        for named in unclear {
            match self.schedule(&named.name).enqueue_if_missing(named).await {
                Ok(is_new) => count += u64::from(is_new),
                Err(error) if is_passing(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(target: "punctual", schedule = named.name, %error, "could not enqueue the next tick");
                }
            }
        }
        Ok(count)
    }

    /// Returns whether a job is the waiting tick of a schedule, due or overdue.
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
