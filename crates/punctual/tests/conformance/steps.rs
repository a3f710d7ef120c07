//! Each thing that is held for a time × steps of the clock: made while the clock is wrong, and held while it is. What ages has its own
//! cases in retention.rs.

use punctual::{
    NewJob, State, Unique,
    store::{LeaseStatus, LimitOp, LimitRule, LockOp, LockReply, ToolOp, ToolReply, Verdict},
    toolkit::Allowance,
};

use crate::fixture::{Fixture, at, millis, secs};

/// How long each thing is held, in ms.
const LASTS_MS: u64 = 300_000;
/// How far the clock is wrong, in ms: around the bounds of a minute and of two, and far beyond.
const STEPS_MS: [u64; 8] = [1_000, 59_000, 61_000, 119_000, 121_000, 3_600_000, 86_400_000, 365 * 86_400_000];

/// What is held for a time.
#[derive(Clone, Copy, Debug)]
enum Thing {
    /// A unique window whose job has a record, or none.
    Window,
    WindowOfGone,
    Lock,
    /// A limiter of each kind.
    Log,
    Rate,
}

const THINGS: [Thing; 5] = [Thing::Window, Thing::WindowOfGone, Thing::Lock, Thing::Log, Thing::Rate];

impl Thing {
    /// Takes it for the round if it is free; returns whether it was.
    async fn take(self, t: &Fixture, round: usize, owner: u128) -> bool {
        let name = format!("{self:?} {round}");
        match self {
            Self::Window | Self::WindowOfGone => {
                let unique = Unique::key(&name).window(millis(LASTS_MS));
                let job = NewJob { unique: Some(unique), queue: name, ..t.job() };
                let (id, is_new) = (job.id, t.enqueue(job.clone()).await.is_new());
                if is_new && matches!(self, Self::WindowOfGone) {
                    let run = t.reserve_by(&t.want_from(&[(&job.queue, 1)], 1)).await.jobs.remove(0);
                    t.end(&run, Verdict::Ack).await;
                    t.apply(id, punctual::store::Action::Delete).await;
                }
                is_new
            }
            Self::Lock => {
                let lock = LockOp::Acquire { name, owner, lease: millis(LASTS_MS) };
                let said = t.store.tool(&ToolOp::Lock(lock)).await.unwrap();
                matches!(said, ToolReply::Lock(LockReply::Yours(_)))
            }
            Self::Log | Self::Rate => {
                let period = millis(LASTS_MS);
                let rule = match self {
                    Self::Log => LimitRule::Log { max: 1, period, counts_refused: false },
                    _ => LimitRule::Gcra { max: 1, period, burst: 1 },
                };
                let limit = LimitOp { name: "limit".to_owned(), key: name, cost: 1, rule };
                let said = t.store.tool(&ToolOp::Limit(limit)).await.unwrap();
                matches!(said, ToolReply::Limit(Allowance::Allowed))
            }
        }
    }
}

/// S14: what began while the clock was ahead is held for its length after the first that wants it. If the clock reaches its
/// beginning before that, it ends when it would have, which is as much later as the clock was ahead.
pub(crate) async fn a_clock_that_was_ahead_holds_nothing_for_longer(t: Fixture) {
    for (round, step_ms) in STEPS_MS.into_iter().enumerate() {
        let begin = 1_000_000 * round as u64;
        for thing in THINGS {
            t.clock.set(at(begin + step_ms));
            assert!(thing.take(&t, round, 1).await, "{thing:?}, {step_ms} ms ahead");
            t.clock.set(at(begin));
            let is_taken = !thing.take(&t, round, 2).await;
            // A limiter of a clock that was far ahead begins anew.
            assert!(
                is_taken || matches!(thing, Thing::Log | Thing::Rate),
                "{thing:?}, {step_ms} ms ahead, and back"
            );
            t.clock.set(at(begin + LASTS_MS - 1));
            assert!(!thing.take(&t, round, 2).await, "{thing:?}, {step_ms} ms ahead, before its end");
            let later_ms = match thing {
                Thing::Log => step_ms.min(LASTS_MS),
                _ if LASTS_MS < step_ms => 0,
                _ => step_ms,
            };
            t.clock.set(at(begin + LASTS_MS + later_ms));
            assert!(thing.take(&t, round, 2).await, "{thing:?}, {step_ms} ms ahead, after its end");
        }
    }
}

/// S14, S17: what is held when the clock steps ahead is held again when it is back, whatever upkeep came meanwhile, and ends when it
/// would have.
pub(crate) async fn a_step_that_is_taken_back_frees_nothing(t: Fixture) {
    for (round, step_ms) in STEPS_MS.into_iter().enumerate() {
        let begin = 1_000_000 * round as u64;
        t.clock.set(at(begin));
        t.mark().await;
        for thing in THINGS {
            assert!(thing.take(&t, round, 1).await, "{thing:?}");
        }
        for _ in 0..3 {
            t.clock.set(at(begin + step_ms));
            t.sweep(100).await;
            t.clock.advance(secs(1));
            t.sweep(100).await;
            t.clock.set(at(begin + 3_000));
            t.sweep(100).await;
        }
        for (ms, is_over) in [(LASTS_MS - 1, false), (LASTS_MS, true)] {
            t.clock.set(at(begin + ms));
            for thing in THINGS {
                assert_eq!(
                    thing.take(&t, round, 2).await,
                    is_over,
                    "{thing:?}, {step_ms} ms ahead, {ms} ms later"
                );
            }
        }
    }
}

/// S14: who wants a thing while the clock is behind its beginning does not get it when the clock is right again.
pub(crate) async fn a_step_back_that_is_taken_back_frees_nothing(t: Fixture) {
    for (round, step_ms) in STEPS_MS.into_iter().enumerate() {
        let begin = STEPS_MS[STEPS_MS.len() - 1] + 1_000_000 * (1 + round as u64);
        for thing in [Thing::Window, Thing::WindowOfGone, Thing::Lock] {
            t.clock.set(at(begin));
            assert!(thing.take(&t, round, 1).await, "{thing:?}");
            for ms in [begin - step_ms, begin + 1_000, begin - step_ms + 500, begin + LASTS_MS - 1] {
                t.clock.set(at(ms));
                assert!(!thing.take(&t, round, 2).await, "{thing:?}, {step_ms} ms behind, at {ms}");
            }
            t.clock.set(at(begin + LASTS_MS));
            assert!(thing.take(&t, round, 2).await, "{thing:?}, {step_ms} ms behind");
        }
    }
}

/// S9, S14: a holder that lives keeps its lease, whatever the clock does: there, there and back, again and again.
pub(crate) async fn no_step_costs_a_holder_that_lives_its_lease(t: Fixture) {
    let mut begin = STEPS_MS[STEPS_MS.len() - 1];
    for lasts_ms in [1_000, 2_000, 15_000, 60_000, 3_600_000] {
        for (step_ms, is_back) in STEPS_MS.into_iter().flat_map(|ms| [(ms, false), (ms, true)]) {
            begin += 10 * lasts_ms;
            t.clock.set(at(begin));
            let run = t.run_with(|job| job.options.lease = Some(millis(lasts_ms))).await;
            let wrong = |ms: u64| if is_back { ms - step_ms } else { ms + step_ms };
            // Between two heartbeats, a third of a lease apart, somebody looks for leases to reclaim twice.
            for (beat, is_wrong) in [false, true, false, true, true, false, false].into_iter().enumerate() {
                for look in 1..=2 {
                    let ms = begin + (2 * beat as u64 + look) * lasts_ms / 6;
                    t.clock.set(at(if is_wrong { wrong(ms) } else { ms }));
                    let reclaimed = t.reserve(0).await.reclaimed;
                    assert_eq!(reclaimed, [], "a lease of {lasts_ms} ms, {step_ms} ms, back: {is_back}");
                }
                assert_eq!(t.extend(run.lease).await, LeaseStatus::Held);
            }
            assert_eq!(t.end(&run, Verdict::Ack).await.state, State::Done);
        }
    }
}
