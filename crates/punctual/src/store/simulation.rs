//! Whether this thread simulates a fleet of processes, and what time it is there (feature `simulation`).
//!
//! In a simulation, all processes are tasks of one runtime with a paused clock. The system's clock shows the time of that
//! runtime, workers run as tasks instead of threads, and random numbers follow from a seed. Only `punctual-sim` begins
//! one. Without the feature nothing is simulated, and the checks compile to nothing.

#[cfg(feature = "simulation")]
pub use on::Simulation;
pub(crate) use on::{is_on, since_epoch};

#[cfg(feature = "simulation")]
mod on {
    use std::{cell::Cell, marker::PhantomData, time::Duration};

    use tokio::time::Instant;

    use crate::core::time::Timestamp;

    thread_local! {
        /// When the simulation began: on its own clock, and on that of its runtime.
        static BEGUN: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
    }

    /// This thread simulates until this is dropped.
    #[derive(Debug)]
    #[must_use = "the simulation ends when this is dropped"]
    pub struct Simulation(PhantomData<*const ()>);

    impl Simulation {
        /// Begins a simulation on this thread. Call it within its runtime, whose clock is paused.
        ///
        /// The system's clock shows `start` then. All random numbers that the library draws follow from `seed`.
        pub fn begin(start: Timestamp, seed: u64) -> Self {
            fastrand::seed(seed);
            BEGUN.set(Some((start, Instant::now())));
            Self(PhantomData)
        }

        /// Steps the system's clock by so many milliseconds. The runtime's clock goes on steadily.
        pub fn step(&self, by_ms: i64) {
            BEGUN.set(BEGUN.get().map(|(start, begun)| {
                (Timestamp::saturating_from_ms(start.as_ms().saturating_add_signed(by_ms)), begun)
            }));
        }
    }

    impl Drop for Simulation {
        fn drop(&mut self) {
            BEGUN.set(None);
        }
    }

    /// Returns whether this thread simulates.
    pub(crate) fn is_on() -> bool {
        BEGUN.get().is_some()
    }

    /// Returns what the system's clock shows in the simulation of this thread, as the time since 1970.
    pub(crate) fn since_epoch() -> Option<Duration> {
        let (start, begun) = BEGUN.get()?;
        Some(Duration::from_millis(start.as_ms()) + begun.elapsed())
    }
}

#[cfg(not(feature = "simulation"))]
mod on {
    use std::time::Duration;

    /// Nothing is simulated in this build.
    pub(crate) const fn is_on() -> bool {
        false
    }

    /// The system's clock shows the real time in this build.
    pub(crate) const fn since_epoch() -> Option<Duration> {
        None
    }
}
