//! Take: reserves and acks in one step.

use crate::{
    core::{
        error::Result,
        job::JobRecord,
        limits::SWEEP_RIDE_MAX,
        time::{Timestamp, ceil_ms},
    },
    store::{
        Take,
        model::{
            Model,
            verbs::reserve::{Found, Round},
        },
    },
};

impl Model {
    /// [`Store::take`](crate::store::Store::take).
    pub fn take(&mut self, now: Timestamp, take: &Take) -> Result<Vec<JobRecord>> {
        take.check()?;
        self.mark(now);
        self.reclaim(now, &[&take.queue]);
        self.hand_over(now);
        let mut found = Found::at_most(take.n);
        if let Some(due_by) = now.as_ms().checked_sub(ceil_ms(take.older_than)) {
            let due_by = Timestamp::saturating_from_ms(due_by);
            let round = Round { now, due_by, worker: "", lease: None, takes: true, company: true };
            self.reserve_from(&take.queue, usize::MAX, &round, &mut found);
        }
        self.ride(now, &[&take.queue], SWEEP_RIDE_MAX);
        self.hand_over(now);
        Ok(found.done)
    }
}
