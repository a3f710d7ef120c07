//! Whether a schedule ticked as it should, by the ticks that a store holds in the end.

use punctual::{JobRecord, State, Timestamp, limits::POISON_LIMIT, schedule::Cron};

/// A tick that a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TickAtRest {
    /// The time of the schedule that it stands for.
    pub at: Timestamp,
    /// Whether it died of expired leases, perhaps before it enqueued the next one: the schedule then goes on with a later one.
    pub may_be_last: bool,
}

impl TickAtRest {
    /// Returns the tick that a job is; `None` if it is none.
    pub fn of(job: &JobRecord) -> Option<Self> {
        let at = job.headers.get("scheduled_for")?.parse().ok()?;
        let may_be_last = job.state == State::Dead && POISON_LIMIT <= job.expired_leases;
        Some(Self { at: Timestamp::from_ms(at).ok()?, may_be_last })
    }
}

/// Judges the ticks of a schedule that makes up for all that it missed: each of them is there once.
///
/// Leave out cancelled ones: the one that waited when the schedule was removed, and those that made room for an earlier one and
/// are there again under another id.
///
/// `begun` is when it was there, if that is known: the next tick is the first. `ended` is an instant up to which all of its
/// ticks had ended.
///
/// # Errors
/// A sentence that says what is missing, or there twice.
pub fn judge_ticks(
    cron: &Cron,
    begun: Option<Timestamp>,
    ended: Timestamp,
    mut ticks: Vec<TickAtRest>,
) -> Result<(), String> {
    ticks.sort_unstable();
    let Some(first) = ticks.first() else { return Err("the schedule never ticked".to_owned()) };
    if let Some(begun) = begun
        && cron.next(begun).is_some_and(|next| next < first.at)
    {
        return Err(format!("the schedule was there at {begun}, and ticked first at {}", first.at));
    }
    let ends = ticks.iter().skip(1).map(|tick| Some(tick.at)).chain([None]);
    for (tick, next) in ticks.iter().zip(ends) {
        let expected = cron.next(tick.at);
        match next {
            Some(next) if Some(next) == expected => {}
            Some(next) if tick.may_be_last && expected < Some(next) => {}
            None if tick.may_be_last || expected.is_none_or(|expected| ended < expected) => {}
            Some(next) => {
                let expected = expected.map_or_else(|| "no time".to_owned(), |at| at.to_string());
                return Err(format!(
                    "after {}, the schedule ticked at {next}, and should at {expected}",
                    tick.at
                ));
            }
            None => {
                return Err(format!("the schedule was there until {ended}, and ticked last at {}", tick.at));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_tick_that_is_missing_or_there_twice_is_noticed() {
        let at = |ms| Timestamp::from_ms(ms).expect("an instant");
        let cron = Cron::every(Duration::from_secs(1)).expect("a schedule");
        let judge = |ticks: &[u64], dead: u64| {
            let tick = |s: &u64| TickAtRest { at: at(s * 1_000), may_be_last: *s == dead };
            let ticks = ticks.iter().map(tick).collect();
            judge_ticks(&cron, Some(at(99_500)), at(103_500), ticks).is_ok()
        };
        assert!(judge(&[100, 101, 102, 103], 0) && judge(&[104, 103, 102, 101, 100], 0));
        assert!(!judge(&[], 0) && !judge(&[100, 102, 103], 0) && !judge(&[100, 100, 101, 102, 103], 0));
        assert!(!judge(&[101, 102, 103], 0), "too late a beginning");
        assert!(!judge(&[100, 101, 102], 0), "too early an end");
        // One that dies of its worker may leave out those after it, and no others.
        assert!(judge(&[100, 103], 100) && judge(&[100, 101], 101) && !judge(&[100, 102, 103], 102));
        assert!(!judge(&[100, 100, 101, 102, 103], 100));
    }
}
