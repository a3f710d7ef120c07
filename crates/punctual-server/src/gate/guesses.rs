//! Wrong tokens, counted per caller. From 10 in a minute on, the caller guesses, and its unknown tokens wait in a slow lane.
//!
//! The secret of a token cannot be guessed, so no token is ever refused for the number of wrong ones before it: callers behind a proxy share
//! an address. The count protects the store from reads at the same time, and the log from lines.
//!
//! The crate `governor` does not fit: each of its checks counts, its keyed state is unbounded, and it does not know a
//! wrong token that is sent again and again (an open page after its token was revoked) from a new guess.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::token::Digest;

/// Wrong tokens in [`WINDOW`] from which on a caller guesses.
pub(super) const GUESSES_MAX: usize = 10;
/// The time for which wrong tokens count, from the first one on.
pub(super) const WINDOW: Duration = Duration::from_mins(1);
/// Callers that are remembered. If there are more, those that began first are forgotten.
const CALLERS_MAX: usize = 4_096;

/// Whose guesses count together: an address of IPv4, the first 64 bits of one of IPv6, or all callers without an
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Guesser(Option<IpAddr>);

impl From<Option<IpAddr>> for Guesser {
    fn from(address: Option<IpAddr>) -> Self {
        Self(address.map(|address| match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        }))
    }
}

impl fmt::Display for Guesser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

/// The wrong tokens of one caller. There are at most [`GUESSES_MAX`].
#[derive(Debug)]
struct Window {
    began: Instant,
    wrong: Vec<Digest>,
}

/// What is known before a token is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Look at it.
    Unknown,
    /// The caller sent it before, and it was wrong.
    Wrong,
    /// The caller guesses. Look at it in the slow lane.
    Guess,
}

#[derive(Debug, Default)]
pub(super) struct Guesses(Mutex<HashMap<Guesser, Window>>);

impl Guesses {
    fn table(&self) -> MutexGuard<'_, HashMap<Guesser, Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn look(&self, of: Guesser, token: &Digest, now: Instant) -> Before {
        match self.table().get(&of) {
            Some(window) if now < window.began + WINDOW => {
                if window.wrong.contains(token) {
                    Before::Wrong
                } else if window.wrong.len() < GUESSES_MAX {
                    Before::Unknown
                } else {
                    Before::Guess
                }
            }
            _ => Before::Unknown,
        }
    }

    /// Counts a token as wrong. Returns whether it was the last one that is counted.
    pub(super) fn add(&self, of: Guesser, token: Digest, now: Instant) -> bool {
        let mut table = self.table();
        if CALLERS_MAX <= table.len() && !table.contains_key(&of) {
            table.retain(|_, window| now < window.began + WINDOW);
            if CALLERS_MAX <= table.len() {
                let first = table.iter().min_by_key(|(_, window)| window.began).map(|(of, _)| *of);
                first.map(|first| table.remove(&first));
            }
        }
        let window = table.entry(of).or_insert_with(|| Window { began: now, wrong: Vec::new() });
        if window.began + WINDOW <= now {
            *window = Window { began: now, wrong: Vec::new() };
        }
        if window.wrong.len() < GUESSES_MAX {
            window.wrong.push(token);
        }
        GUESSES_MAX <= window.wrong.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesser(address: &str) -> Guesser {
        Guesser::from(Some(address.parse::<IpAddr>().unwrap()))
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_count_together() {
        assert_eq!(guesser("2001:db8:1:2::3"), guesser("2001:db8:1:2:ffff::4"));
        assert_ne!(guesser("2001:db8:1:2::3"), guesser("2001:db8:1:3::3"));
        assert_eq!(guesser("::ffff:192.0.2.1"), guesser("192.0.2.1"));
        assert_ne!(guesser("192.0.2.2"), guesser("192.0.2.1"));
    }

    #[tokio::test]
    async fn the_table_is_bounded_and_forgets_those_that_began_first() {
        let (guesses, begin) = (Guesses::default(), Instant::now());
        let caller = |n: u32| Guesser(Some(IpAddr::V4(n.into())));
        for n in 0..CALLERS_MAX as u32 + 5 {
            guesses.add(caller(n), [7; 32], begin + Duration::from_millis(n.into()));
        }
        let now = begin + Duration::from_secs(5);
        assert_eq!(guesses.table().len(), CALLERS_MAX);
        assert_eq!(guesses.look(caller(4), &[7; 32], now), Before::Unknown);
        assert_eq!(guesses.look(caller(5), &[7; 32], now), Before::Wrong);
        // Windows that are over make room at once.
        guesses.add(caller(u32::MAX), [7; 32], begin + WINDOW + Duration::from_mins(1));
        assert_eq!(guesses.table().len(), 1);
    }
}
