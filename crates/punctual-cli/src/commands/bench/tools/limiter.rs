//! Measures rate limiters: speed, calls that pass although they should not, and memory per key.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use punctual::{
    store::{BoxFuture, Keep},
    toolkit::RateLimiter,
};

use super::{CALLERS, Place, Sizes, call, figures::LimiterFigures, fresh_name, handmade, speed};

/// Calls of each key where speed is measured; half of them pass.
const CALLS_PER_KEY: usize = 100;
const PASS: u32 = 50;
/// So long that nothing expires meanwhile.
const LONG: Duration = Duration::from_hours(1);
/// How many may pass in which period where all call at once.
const EXACT: (u32, Duration) = (100, Duration::from_millis(200));
/// How long they do.
const EXACT_FOR: Duration = Duration::from_secs(1);
/// Stamps are whole milliseconds, so that less than a period may lie between two that are a period apart.
const STAMP: Duration = Duration::from_millis(2);

/// What is measured.
#[derive(Clone, Copy)]
pub(super) enum Limiter {
    /// A log of calls.
    Log,
    /// One instant for each key.
    Evenly,
    Handmade,
}

impl Limiter {
    pub(super) const ALL: [Self; 3] = [Self::Log, Self::Evenly, Self::Handmade];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Log => "punctual",
            Self::Evenly => "punctual, evenly",
            Self::Handmade => "script",
        }
    }

    /// One in this store that lets so many pass in each period.
    async fn rule(self, place: &Place, store: &str, (max, period): (u32, Duration)) -> Result<Rule> {
        let ours = async || place.fresh(store, Keep::NOTHING).await;
        Ok(match self {
            Self::Log => Rule::Ours(ours().await?.rate_limiter("bench", max, period)),
            // As many at once after a pause.
            Self::Evenly => Rule::Ours(ours().await?.rate_limiter("bench", max, period).evenly(max)),
            Self::Handmade => {
                let (server, prefix) = place.server().context("a script runs on Redis only")?;
                let limiter = handmade::Limiter::new(server.connection(), &format!("{prefix}{store}:"));
                Rule::Handmade(limiter, max, period.as_millis() as u64)
            }
        })
    }
}

/// One with its numbers.
#[derive(Clone)]
enum Rule {
    Ours(RateLimiter),
    Handmade(handmade::Limiter, u32, u64),
}

impl Rule {
    async fn is_allowed(&self, key: String) -> Result<bool> {
        match self {
            Self::Ours(limiter) => Ok(limiter.is_allowed(key).await?),
            Self::Handmade(limiter, max, period_ms) => limiter.is_allowed(&key, *max, *period_ms).await,
        }
    }
}

pub(super) async fn measure(place: &Place, sizes: &Sizes, subject: Limiter) -> Result<LimiterFigures> {
    let speed = speed(place, sizes.calls, async |calls| {
        Ok(asks(subject.rule(place, &fresh_name(), (PASS, LONG)).await?, (calls / CALLS_PER_KEY).max(1)))
    })
    .await?;
    let burst = if matches!(subject, Limiter::Evenly) { EXACT.0 } else { 0 };
    let (most, passed) = at_once(subject.rule(place, &fresh_name(), EXACT).await?).await?;
    let in_all = EXACT.0 * EXACT_FOR.as_millis().div_ceil(EXACT.1.as_millis()) as u32 + burst;
    Ok(LimiterFigures {
        name: subject.name(),
        speed,
        may_pass: EXACT.0 + burst,
        most_in_a_period: most,
        used_percent: f64::from(passed) / f64::from(in_all) * 100.0,
        bytes_per_key: bytes(place, subject, sizes.keys, 1).await?,
        bytes_per_full_key: bytes(place, subject, sizes.keys.div_ceil(CALLS_PER_KEY), CALLS_PER_KEY).await?,
    })
}

/// Calls for so many users in turn.
fn asks(
    rule: Rule,
    users: usize,
) -> impl Fn(usize) -> BoxFuture<'static, Result<()>> + Clone + Send + 'static {
    move |n| {
        let (rule, key) = (rule.clone(), format!("user-{}", n % users));
        Box::pin(async move { rule.is_allowed(key).await.map(drop) })
    }
}

/// Bytes of each of so many keys that were called so often.
async fn bytes(place: &Place, subject: Limiter, keys: usize, each: usize) -> Result<Option<f64>> {
    let store = fresh_name();
    let rule = subject.rule(place, &store, (each as u32, LONG)).await?;
    let before = place.bytes(&store).await?;
    call(CALLERS, keys * each, asks(rule, keys)).await?;
    let used = place.bytes(&store).await?.zip(before);
    place.forget(&store).await?;
    Ok(used.map(|(after, before)| after.saturating_sub(before) as f64 / keys as f64))
}

/// All callers ask for one key as often as they can: the most that surely passed within one period, and how many passed.
async fn at_once(rule: Rule) -> Result<(u32, u32)> {
    let passed = Arc::new(Mutex::new(Vec::new()));
    let begin = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let (rule, passed) = (rule.clone(), Arc::clone(&passed));
        callers.spawn(async move {
            while begin.elapsed() < EXACT_FOR {
                let from = begin.elapsed();
                if rule.is_allowed("all".to_owned()).await?
                    && let Ok(mut passed) = passed.lock()
                {
                    passed.push((from, begin.elapsed()));
                }
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    let passed = std::mem::take(&mut *passed.lock().expect("no caller panics"));
    let in_time = passed.iter().filter(|(_, ended)| *ended < EXACT_FOR).count();
    Ok((most(&passed, EXACT.1.saturating_sub(STAMP)), in_time as u32))
}

/// The most calls that began and ended within one stretch of time so long: whenever they were counted, it was within it.
fn most(passed: &[(Duration, Duration)], long: Duration) -> u32 {
    let mut most = 0;
    for (from, _) in passed {
        let within = |(began, ended): &&(Duration, Duration)| from <= began && *ended < *from + long;
        most = most.max(passed.iter().filter(within).count());
    }
    most as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_surely_passed_within_a_period_counts() {
        let ms = |from, to| (Duration::from_millis(from), Duration::from_millis(to));
        let passed = [ms(0, 10), ms(5, 20), ms(50, 101), ms(99, 100), ms(120, 130)];
        assert_eq!(most(&passed, Duration::from_millis(100)), 3);
        assert_eq!(most(&passed, Duration::from_millis(31)), 2);
        assert_eq!(most(&[], Duration::from_millis(100)), 0);
    }
}
