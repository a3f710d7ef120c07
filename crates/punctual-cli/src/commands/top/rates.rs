//! Rates at which the sums of the last hour rise. When a minute leaves the hour, its runs leave the sums. Therefore only reads of the
//! same minute are compared, and the old rates stay until there are two reads of a new minute.

use std::collections::{BTreeMap, VecDeque};

use super::QUEUES_MAX;

/// Looks are compared over this long at most.
const SPAN_MS: u64 = 10_000;
/// Shorter intervals are not compared, because workers add to the sums once a second.
const SPAN_MIN_MS: u64 = 900;
const MINUTE_MS: u64 = 60_000;

/// Runs of the last hour, by name.
pub(super) type Sums = BTreeMap<String, u64>;

#[derive(Debug, Default)]
pub(super) struct Rates {
    /// Looks of one minute, the oldest in front.
    looks: VecDeque<(u64, Sums)>,
    /// Runs a second; `None`: nothing was compared yet.
    last: Option<BTreeMap<String, f64>>,
}

impl Rates {
    /// Takes note of a look when the store's clock showed `now_ms`.
    pub(super) fn note(&mut self, now_ms: u64, sums: Sums) {
        let is_near =
            |at: u64| at <= now_ms && now_ms - at <= SPAN_MS && at / MINUTE_MS == now_ms / MINUTE_MS;
        self.looks.retain(|(at, _)| is_near(*at));
        if let Some((at, then)) = self.looks.front()
            && SPAN_MIN_MS <= now_ms - at
        {
            let seconds = (now_ms - at) as f64 / 1_000.0;
            // If the list was full, the earlier sum of a queue that was not on it is unknown.
            let had = |name: &String| then.get(name).copied().or((then.len() < QUEUES_MAX).then_some(0));
            let rate = |(name, runs): (&String, &u64)| {
                Some((name.clone(), runs.saturating_sub(had(name)?) as f64 / seconds))
            };
            self.last = Some(sums.iter().filter_map(rate).collect());
        }
        self.looks.push_back((now_ms, sums));
    }

    /// Returns the runs per second of a queue, 0 if it is not in the list.
    pub(super) fn of(&self, name: &str) -> Option<f64> {
        self.last.as_ref().map(|last| last.get(name).copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates of `mail` over looks: milliseconds, and its sum.
    fn rates(looks: &[(u64, u64)]) -> Vec<Option<f64>> {
        let mut rates = Rates::default();
        let mut seen = Vec::new();
        for (now_ms, runs) in looks {
            rates.note(*now_ms, [("mail".to_owned(), *runs)].into());
            seen.push(rates.of("mail"));
        }
        assert_eq!(rates.of("other"), rates.last.is_some().then_some(0.0));
        seen
    }

    #[test]
    fn a_rate_is_a_difference_over_some_seconds() {
        assert_eq!(rates(&[(0, 5), (1_000, 15), (2_000, 15)]), [None, Some(10.0), Some(5.0)]);
        assert_eq!(rates(&[(0, 0), (9_000, 90), (18_000, 90), (29_000, 90)])[2..], [Some(0.0), Some(0.0)]);
        assert_eq!(rates(&[(0, 5), (300, 9)]), [None, None]);
    }

    #[test]
    fn a_minute_that_leaves_the_hour_is_no_rate() {
        let looks = [(58_000, 100), (59_000, 110), (60_000, 20), (61_000, 25)];
        assert_eq!(rates(&looks), [None, Some(10.0), Some(10.0), Some(5.0)]);
        // Nor is a clock that goes back, or a sum that falls.
        assert_eq!(rates(&[(5_000, 9), (2_000, 9), (3_000, 4)]), [None, None, Some(0.0)]);
    }
}
