//! The faults of a slice, and how many of each.

use std::time::Duration;

use fastrand::Rng;

use crate::place::Wanted;

/// The kills, over and over.
const KILLS: [Fault; 5] =
    [Fault::KillWorker, Fault::KillProducer, Fault::KillServer, Fault::KillWorker, Fault::KillWorker];
/// Of each other fault there is at least one, and at most one for so many kills.
const KILLS_PER_OTHER: u32 = 4;
/// The most shards of a store.
const SHARDS_MAX: u16 = 4;

/// Something that goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL for a worker.
    KillWorker,
    /// SIGKILL for a producer, which begins again with the same jobs.
    KillProducer,
    /// SIGKILL for the server that the processes talk to.
    KillServer,
    /// SIGSTOP for a worker, and SIGCONT when its leases have lapsed.
    Freeze,
    /// The connections of programs to the servers of Redis cut.
    Cut,
    /// The number of the store's shards changed to this.
    Shards(u16),
}

impl Fault {
    /// About how long it takes there.
    pub(super) const fn takes(self, place: &Wanted) -> Duration {
        Duration::from_millis(match (self, place) {
            (Self::KillServer, Wanted::Sentinel | Wanted::WholeCluster) => 8_000,
            (Self::Freeze, _) => 3_500,
            _ => 500,
        })
    }
}

/// Draws the faults of a slice with so many kills, in their order.
pub(super) fn draw(place: &Wanted, kills: u32, rng: &mut Rng) -> Vec<Fault> {
    let has_server = !matches!(place, Wanted::File | Wanted::Store(_));
    let is_redis = has_server && !matches!(place, Wanted::Http);
    let has_shards = matches!(place, Wanted::Server(_) | Wanted::WholeCluster);
    let mut faults: Vec<Fault> = KILLS.into_iter().cycle().take(kills as usize).collect();
    if !has_server {
        faults.iter_mut().filter(|fault| **fault == Fault::KillServer).for_each(|it| *it = Fault::KillWorker);
    }
    let mut add = |fault: fn(u16) -> Fault| {
        let number = rng.u32(1..=kills.div_ceil(KILLS_PER_OTHER).max(1));
        // Which number of shards, is said below.
        faults.extend((0..number).map(|_| fault(0)));
    };
    add(|_| Fault::Freeze);
    if is_redis {
        add(|_| Fault::Cut);
    }
    if has_shards {
        add(Fault::Shards);
    }
    rng.shuffle(&mut faults);
    // Each change is one: never to the number that there is.
    let mut before = 1;
    for fault in &mut faults {
        if let Fault::Shards(number) = fault {
            before = (before + rng.u16(..SHARDS_MAX - 1)) % SHARDS_MAX + 1;
            *number = before;
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Fsync;

    const PLACES: [Wanted; 5] =
        [Wanted::File, Wanted::Http, Wanted::Server(Fsync::Always), Wanted::Sentinel, Wanted::WholeCluster];

    const fn is_kill(fault: Fault) -> bool {
        matches!(fault, Fault::KillWorker | Fault::KillProducer | Fault::KillServer)
    }

    #[test]
    fn a_slice_has_the_kills_that_it_plans_and_each_fault_that_its_place_knows() {
        for place in PLACES {
            for seed in 0..200 {
                let faults = draw(&place, 10, &mut Rng::with_seed(seed));
                assert_eq!(faults, draw(&place, 10, &mut Rng::with_seed(seed)), "one seed, one order");
                let has = |wanted: fn(&Fault) -> bool| faults.iter().any(wanted);
                assert_eq!(faults.iter().filter(|fault| is_kill(**fault)).count(), 10);
                assert_eq!(has(|fault| *fault == Fault::KillServer), place != Wanted::File);
                let is_redis = !matches!(place, Wanted::File | Wanted::Http);
                assert_eq!(has(|fault| *fault == Fault::Cut), is_redis);
                let has_shards = is_redis && place != Wanted::Sentinel;
                assert_eq!(has(|fault| matches!(fault, Fault::Shards(_))), has_shards);
                assert!(has(|fault| *fault == Fault::Freeze) && has(|fault| *fault == Fault::KillProducer));
            }
        }
    }

    #[test]
    fn each_change_of_shards_is_one() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut before = 1;
            for fault in draw(&Wanted::WholeCluster, 20, &mut Rng::with_seed(seed)) {
                if let Fault::Shards(number) = fault {
                    assert!((1..=SHARDS_MAX).contains(&number) && number != before);
                    before = number;
                    seen.insert(number);
                }
            }
        }
        assert_eq!(seen.len(), usize::from(SHARDS_MAX));
    }
}
