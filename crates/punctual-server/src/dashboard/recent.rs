//! Readings of all queues. With very many of them one takes seconds: a page then shows what was read last, or that nothing was read yet.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use punctual::{Client, Error, Result, limits::BATCH_MAX};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// How long a page waits for a reading.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// After a reading of a second, the last one serves for this many seconds: very many queues cost a tenth of the time at most.
const REST_FACTOR: u32 = 9;
/// The longest time for which a reading serves. For as long again it is shown while the next one goes on.
const REST_MAX: Duration = Duration::from_mins(1);

/// The last reading, if one takes long; otherwise each page makes its own. Clones are the same one.
#[derive(Debug)]
pub(super) struct Recent<T>(Arc<Mutex<State<T>>>);

#[derive(Debug)]
struct State<T> {
    /// With the time until which it serves.
    last: Option<(T, Instant)>,
    /// Why the last reading failed, until a page has said so.
    failed: Option<Error>,
    /// The reading in progress, or the last one.
    reading: Option<JoinHandle<()>>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { last: None, failed: None, reading: None })))
    }
}

impl<T> Clone for Recent<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone + Send + 'static> Recent<T> {
    /// Returns what `read` returns. If it takes more than a second and the store has at least 1,000 queues, returns the last reading, or
    /// `None` if there is none or it is too old; the reading goes on. It makes one call more to the store, for the number of queues.
    ///
    /// # Errors
    /// That of `read`; of one that went on, at the next call.
    pub(super) async fn get(
        &self,
        client: &Client,
        read: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Option<T>> {
        {
            let mut state = self.state();
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            if state.is_enough() {
                return Ok(state.shown());
            }
        }
        let (begin, mut read) = (Instant::now(), Box::pin(read));
        let is_many = async {
            sleep(WAIT_MAX).await;
            // With fewer queues it is the store that is slow, or this machine.
            client.store().queues(None).await.is_ok_and(|names| BATCH_MAX <= names.len())
        };
        // Both go on: the reading can hold what the other call waits for.
        let value = tokio::select! {
            value = read.as_mut() => Some(value?),
            is_many = is_many => if is_many { None } else { Some(read.as_mut().await?) },
        };
        let mut state = self.state();
        if value.is_some() {
            // What is shown later is not to be older.
            state.last = None;
            return Ok(value);
        }
        if !state.is_enough() {
            let own = self.clone();
            state.reading = Some(tokio::spawn(async move {
                let value = read.await;
                let rest = (begin.elapsed() * REST_FACTOR).min(REST_MAX);
                let mut state = own.state();
                match value {
                    Ok(value) => state.last = Some((value, Instant::now() + rest)),
                    Err(error) => state.failed = Some(error),
                }
            }));
        }
        Ok(state.shown())
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> State<T> {
    /// Whether no other reading is to begin.
    fn is_enough(&self) -> bool {
        let serves = self.last.as_ref().is_some_and(|(_, until)| Instant::now() < *until);
        serves || self.reading.as_ref().is_some_and(|reading| !reading.is_finished())
    }

    /// Returns the last reading, unless it is too old.
    fn shown(&self) -> Option<T> {
        let last = self.last.as_ref().filter(|(_, until)| Instant::now() < *until + REST_MAX);
        last.map(|(value, _)| value.clone())
    }
}

#[cfg(test)]
mod tests {
    use punctual::{ErrorKind, NewJob, Payload, testing::TestQueue};

    use super::*;

    async fn slow(n: u32) -> Result<u32> {
        sleep(Duration::from_secs(4)).await;
        Ok(n)
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reading_of_few_queues_is_waited_for() {
        let (t, recent) = (TestQueue::new(), Recent::default());
        for n in 1..4 {
            assert_eq!(recent.get(&t.client, slow(n)).await.unwrap(), Some(n));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reading_of_many_queues_goes_on_and_serves_for_a_while() {
        let (t, recent) = (TestQueue::new(), Recent::default());
        let job = |n| NewJob::new(t.client.make_id(), "k", format!("q{n}"), Payload::json("1"));
        t.client.push((0..BATCH_MAX).map(job).collect()).await.unwrap();
        let begin = Instant::now();
        assert_eq!(recent.get(&t.client, slow(1)).await.unwrap(), None);
        assert_eq!(recent.get(&t.client, slow(2)).await.unwrap(), None, "one is in progress");
        assert_eq!(begin.elapsed(), WAIT_MAX);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(recent.get(&t.client, slow(3)).await.unwrap(), Some(1));
        // It serves for nine times four seconds, and is shown after that, too, while another one takes long.
        sleep(Duration::from_secs(36)).await;
        assert_eq!(recent.get(&t.client, slow(4)).await.unwrap(), Some(1));
        sleep(Duration::from_secs(4)).await;
        assert_eq!(recent.get(&t.client, slow(5)).await.unwrap(), Some(4));
        sleep(Duration::from_hours(1)).await;
        assert_eq!(recent.get(&t.client, slow(6)).await.unwrap(), None, "that was an hour ago");
        sleep(Duration::from_hours(1)).await;
        assert_eq!(recent.get(&t.client, async { Ok(7) }).await.unwrap(), Some(7));
        assert_eq!(recent.get(&t.client, slow(8)).await.unwrap(), None, "7 is newer than what was kept");
        sleep(Duration::from_hours(1)).await;
        let fails = async {
            sleep(Duration::from_secs(4)).await;
            Err(Error::new(ErrorKind::Unavailable, "away"))
        };
        assert_eq!(recent.get(&t.client, fails).await.unwrap(), None);
        sleep(Duration::from_secs(4)).await;
        recent.get(&t.client, slow(9)).await.unwrap_err();
        assert_eq!(recent.get(&t.client, async { Ok(9) }).await.unwrap(), Some(9));
    }
}
