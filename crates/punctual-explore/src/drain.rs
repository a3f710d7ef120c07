//! The drain: what becomes of a state when all faults stop. One healthy worker runs every job to its end, and sleeps for as
//! long as the store tells it.

use std::time::Duration;

use crate::{
    rule::{Broke, Checked, Rule, check},
    scope::Scope,
    world::World,
};

/// The most reserves of a drain.
const RESERVES_MAX: usize = 256;

/// The longest time of a drain: a crashed lease (15 s), the pause after a silence (6 s), and the delay of a job whose workers
/// crashed (at most 3 leases × 2).
const DRAIN_MAX: Duration = Duration::from_secs(15 + 6 + 90);

/// How many jobs its worker runs at once.
const SLOTS: usize = 2;

/// Drains a copy of a world, and returns what is wrong if not everything ends.
pub fn drain(world: &World, scope: &Scope) -> Checked {
    let mut world = world.clone();
    let mut slept = Duration::ZERO;
    world.heal();
    for _ in 0..RESERVES_MAX {
        let batch = world.work(scope, SLOTS)?;
        if batch.more || !batch.jobs.is_empty() {
            continue;
        }
        let Some(next_due) = batch.next_due else { break };
        world.sleep(next_due);
        slept += next_due;
    }
    let live = world.referee.live();
    let ends = |how: String| Broke { rule: Rule::Ends, how };
    if !live.is_empty() {
        let jobs = crate::referee::list(&live);
        return Err(ends(format!("{jobs} did not end in {} s of a healthy worker", slept.as_secs())));
    }
    check(slept <= DRAIN_MAX, Rule::Ends, || format!("the last job ended after {} s only", slept.as_secs()))
}
