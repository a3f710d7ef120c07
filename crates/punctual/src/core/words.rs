//! How people read numbers and lengths of time. The server and the command line write them; what they parse is in `duration` and `size`.

use std::{cmp::Ordering, time::Duration};

use crate::core::{
    limits::{DUE_COUNT_MAX, INSTANT_MAX_MS},
    time::Timestamp,
};

/// Units of [`span`], in seconds.
const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];

/// Writes a duration in at most two units, rounded: `120ms`, `4.2s`, `1h 30m`, `3d 4h`; `for ever` if it is longer than the calendar.
pub fn span(length: Duration) -> String {
    let ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    if INSTANT_MAX_MS < ms {
        return "for ever".to_owned();
    }
    if ms < 1_000 {
        return format!("{ms}ms");
    }
    let tenths = (ms + 50) / 100;
    if tenths < 100 && !tenths.is_multiple_of(10) {
        return format!("{}.{}s", tenths / 10, tenths % 10);
    }
    let mut s = (ms + 500) / 1_000;
    let largest = |s: u64| UNITS.iter().position(|(unit, _)| *unit <= s).unwrap_or(UNITS.len() - 1);
    // Rounding to the second unit that is shown can raise the first one.
    if let Some((second, _)) = UNITS.get(largest(s) + 1) {
        s = (s + second / 2) / second * second;
    }
    let first = largest(s);
    let (unit, name) = UNITS[first];
    match UNITS.get(first + 1) {
        Some((second, second_name)) if second <= &(s % unit) => {
            format!("{}{name} {}{second_name}", s / unit, s % unit / second)
        }
        _ => format!("{}{name}", s / unit),
    }
}

/// Writes a time relative to now: `in 41s`, `3m 2s ago`, `now`.
pub fn relative(at: Timestamp, now: Timestamp) -> String {
    match at.cmp(&now) {
        Ordering::Less => format!("{} ago", span(now.since(at))),
        Ordering::Equal => "now".to_owned(),
        Ordering::Greater => format!("in {}", span(at.since(now))),
    }
}

/// Writes a number in groups of three digits: `1,204,331`.
pub fn grouped(n: u64, separator: char) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if 0 < i && (digits.len() - i).is_multiple_of(3) {
            text.push(separator);
        }
        text.push(digit);
    }
    text
}

/// Writes a number of due jobs, which are counted up to a bound: `100,000+`.
pub fn due(n: u64, separator: char) -> String {
    if n < DUE_COUNT_MAX { grouped(n, separator) } else { grouped(DUE_COUNT_MAX, separator) + "+" }
}

/// Writes how many of something there are: `1 job`, `2 jobs`.
pub fn counted(n: u64, noun: &str, separator: char) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{} {noun}s", grouped(n, separator)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        for (ms, text) in [
            (0, "0ms"),
            (120, "120ms"),
            (4_000, "4s"),
            (4_249, "4.2s"),
            (4_996, "5s"),
            (41_000, "41s"),
            (59_700, "1m"),
            (62_000, "1m 2s"),
            (5_400_000, "1h 30m"),
            (3_600_000 + 5_000, "1h"),
            (7_199_000, "2h"),
            (86_399_000, "1d"),
            (3 * 86_400_000 + 4 * 3_600_000, "3d 4h"),
            (u64::MAX, "for ever"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn times_are_before_now_or_after() {
        let now = Timestamp::saturating_from_ms(1_795_192_330_000);
        assert_eq!(relative(now.after(Duration::from_secs(41)), now), "in 41s");
        assert_eq!(relative(now, now.after(Duration::from_secs(182))), "3m 2s ago");
        assert_eq!(relative(now, now), "now");
    }

    #[test]
    fn numbers_are_grouped() {
        let texts = [0, 999, 1_000, 1_204_331].map(|n| grouped(n, ','));
        assert_eq!(texts, ["0", "999", "1,000", "1,204,331"]);
        assert_eq!([99_999, 100_000].map(|n| due(n, ',')), ["99,999", "100,000+"]);
        assert_eq!([0, 1, 1_000].map(|n| counted(n, "job", ' ')), ["0 jobs", "1 job", "1 000 jobs"]);
    }
}
