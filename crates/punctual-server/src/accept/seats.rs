//! The connections that are open, and which of them is ended when a further one needs its place.
//!
//! A client takes a place before anything is known of it. When all places are taken, connections without a known caller go first.
//! Of these, those that wait for no answer go first, then those of the address that has most.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The places of connections.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    taken: Mutex<Vec<Arc<Seat>>>,
}

/// The place of a connection. It is an extension of its requests.
#[derive(Debug)]
pub(crate) struct Seat {
    address: IpAddr,
    since: Instant,
    /// Whether a request on it was let in with a token, or as a program of this machine.
    is_known: AtomicBool,
    /// The requests whose answers are being made or sent.
    pub(super) in_progress: AtomicUsize,
    /// Those whose answers are being made.
    pub(super) unanswered: AtomicUsize,
    /// When its client last took something, in milliseconds since it connected.
    took_ms: AtomicUsize,
    /// Ends the connection.
    pub(super) end: CancellationToken,
}

impl Seats {
    fn taken(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection.
    pub(crate) fn take(&self, address: IpAddr) -> Arc<Seat> {
        let seat = Arc::new(Seat {
            address: network(address),
            since: Instant::now(),
            is_known: AtomicBool::new(false),
            in_progress: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            took_ms: AtomicUsize::new(0),
            end: CancellationToken::new(),
        });
        self.taken().push(Arc::clone(&seat));
        seat
    }

    /// Gives the place of a connection that has ended back.
    pub(super) fn leave(&self, seat: &Arc<Seat>) {
        self.taken().retain(|other| !Arc::ptr_eq(other, seat));
    }

    /// Ends the connection that can best be done without. Returns `false` if all of them are in use by known callers.
    pub(super) fn end_one(&self) -> bool {
        let taken = self.taken();
        let mut of_address = HashMap::<IpAddr, usize>::new();
        let open = || taken.iter().filter(|seat| !seat.end.is_cancelled());
        for seat in open() {
            *of_address.entry(seat.address).or_default() += 1;
        }
        let worst = open().filter(|seat| !seat.is_known() || seat.in_progress.load(Relaxed) == 0).min_by_key(
            |seat| {
                // An answer that is sent, or is not taken, is no work.
                let works = seat.unanswered.load(Relaxed) != 0;
                (seat.is_known(), works, Reverse(of_address[&seat.address]), seat.since)
            },
        );
        worst.map(|seat| seat.end.cancel()).is_some()
    }
}

impl Seat {
    /// Notes that a caller on this connection was let in.
    pub(crate) fn know(&self) {
        self.is_known.store(true, Relaxed);
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Relaxed)
    }

    /// Whether the connection has to end.
    #[cfg(test)]
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_cancelled()
    }

    /// Notes that the client took something.
    pub(crate) fn took(&self) {
        let ms = self.since.elapsed().as_millis();
        self.took_ms.store(usize::try_from(ms).unwrap_or(usize::MAX), Relaxed);
    }

    /// Returns how long ago its client last took something.
    pub(crate) fn took_nothing_for(&self) -> Duration {
        let took = Duration::from_millis(self.took_ms.load(Relaxed) as u64);
        self.since.elapsed().saturating_sub(took)
    }

    /// Ends the connection, with what is being sent on it.
    pub(crate) fn end(&self) {
        self.end.cancel();
    }
}

/// Returns whose connections count together: an address of IPv4, or the first 64 bits of one of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_of_which_nothing_is_known_go_first() {
        let seats = Seats::default();
        let at = |address: &str| seats.take(address.parse().unwrap());
        let (busy, idle) = (at("192.0.2.1"), at("192.0.2.1"));
        for seat in [&busy, &idle] {
            seat.know();
        }
        let (single, first, second) = (at("192.0.2.2"), at("2001:db8::1"), at("2001:db8::2"));
        let asking = at("192.0.2.3");
        busy.in_progress.store(1, Relaxed);
        asking.unanswered.store(1, Relaxed);
        for next in [&first, &single, &second, &asking, &idle] {
            assert!(!next.end.is_cancelled());
            // `single` and `second` are then the only ones of their addresses.
            assert!(seats.end_one());
            assert!(next.end.is_cancelled(), "{next:?}");
        }
        assert!(!seats.end_one());
        assert!(!busy.end.is_cancelled());
        seats.leave(&busy);
        assert_eq!(seats.taken().len(), 5);
    }
}
