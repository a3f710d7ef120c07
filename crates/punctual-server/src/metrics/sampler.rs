//! Reads the queues of a store for all scrapes together.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use punctual::Client;
use tokio::{
    sync::{self, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::sample::{Sample, Search};

/// The least time from the end of one reading to the next.
const PAUSE: Duration = Duration::from_secs(5);
/// After a reading of a second, the sampler rests this many seconds: very many queues cost a tenth of the time at most.
const REST_FACTOR: u32 = 9;
/// How long a scrape waits for the store. Prometheus waits 10 s for all of the answer.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// How long the store may take to say its time before it counts as away.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long a whole reading may take.
const READ_MAX: Duration = Duration::from_secs(30);

/// Reads the queues of a store, only for a scrape. Clones share everything.
#[derive(Clone, Debug)]
pub(crate) struct Sampler(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    known: watch::Sender<Known>,
    /// The reading in progress, or the last one.
    reading: Mutex<Option<JoinHandle<()>>>,
    /// Only the reading in progress has it.
    search: sync::Mutex<Search>,
}

/// What is known of the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Whether it answered last time.
    pub(super) is_up: bool,
    /// The last sample; `None` if the store is away.
    pub(super) sample: Option<Arc<Sample>>,
    is_reading: bool,
    /// When the next reading can begin; `None` before the first one.
    next: Option<Instant>,
}

impl Sampler {
    pub(crate) fn new(client: &Client) -> Self {
        let (client, known) = (client.clone(), watch::Sender::default());
        Self(Arc::new(Shared { client, known, reading: Mutex::default(), search: sync::Mutex::default() }))
    }

    /// Returns what is known of the store, after a new reading if the last one ended 5 s ago or earlier.
    ///
    /// It waits 3 s at most. A reading that takes longer continues, and the last sample is returned meanwhile.
    pub(crate) async fn now(&self) -> Known {
        let mut known = self.0.known.subscribe();
        self.begin();
        // If this takes too long, the last sample is all there is.
        let _ = timeout(WAIT_MAX, known.wait_for(|known| !known.is_reading)).await;
        self.0.known.borrow().clone()
    }

    /// Begins a reading, unless one is in progress or has just ended. It ends even if nobody waits for it.
    fn begin(&self) {
        let mut reading = self.0.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = self.0.known.borrow().next.is_some_and(|next| Instant::now() < next);
        if is_recent || reading.as_ref().is_some_and(|reading| !reading.is_finished()) {
            return;
        }
        self.0.known.send_modify(|known| known.is_reading = true);
        let shared = Arc::clone(&self.0);
        *reading = Some(tokio::spawn(async move { shared.read().await }));
    }
}

impl Shared {
    async fn read(&self) {
        let begin = Instant::now();
        // A failed call is counted with its code like any other.
        let sample = timeout(READ_MAX, self.sample()).await.ok().flatten().map(Arc::new);
        // A store that is away is tried again soon.
        let rest = if sample.is_some() { begin.elapsed() * REST_FACTOR } else { Duration::ZERO };
        let next = Some(Instant::now() + rest.max(PAUSE));
        // A store that answers is up, even if a record of it cannot be read.
        self.known.send_modify(|known| {
            *known = Known { is_up: known.is_up, sample, is_reading: false, next };
        });
    }

    async fn sample(&self) -> Option<Sample> {
        let at = Instant::now();
        let now = timeout(ANSWER_MAX, self.client.store().now()).await.ok().and_then(Result::ok);
        self.known.send_modify(|known| known.is_up = now.is_some());
        let now = now?;
        let read = self.search.lock().await.read(&self.client, at, now).await;
        if read.as_ref().is_err_and(punctual::Error::is_repeatable) {
            self.known.send_modify(|known| known.is_up = false);
        }
        read.ok()
    }
}
