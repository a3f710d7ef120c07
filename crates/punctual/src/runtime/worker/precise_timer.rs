//! A precise timer. The runtime's timer has a resolution of 1 ms and rounds up, so its sleeps end 1 to 2 ms late. A
//! thread that sleeps in the kernel is woken within about 50 µs, on every system. In a simulation, the runtime's timer is
//! precise.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::store::simulation;

/// The last part of a sleep, which the thread times. It is longer than the runtime's timer is late.
const LAST: Duration = Duration::from_millis(3);

/// A timer for one sleep at a time. In a simulation, it has no thread.
pub(crate) struct PreciseTimer(Option<Thread>);

/// The thread that keeps the time.
struct Thread {
    set: Sender<Instant>,
    notify: Arc<Notify>,
}

impl PreciseTimer {
    /// Starts the thread. It ends when this is dropped.
    ///
    /// # Errors
    /// The system's error if it cannot start a thread.
    pub(crate) fn new() -> io::Result<Self> {
        if simulation::is_on() {
            return Ok(Self(None));
        }
        let ((set, times), notify) = (channel(), Arc::new(Notify::new()));
        thread::Builder::new().name("punctual-alarm".to_owned()).spawn({
            let notify = Arc::clone(&notify);
            move || keep_time(&times, &notify)
        })?;
        Ok(Self(Some(Thread { set, notify })))
    }

    /// Returns after `pause`, never earlier. Can be dropped before that, and called again.
    pub(crate) async fn after(&self, pause: Duration) {
        match &self.0 {
            Some(thread) => thread.after(pause).await,
            None => tokio::time::sleep(pause).await,
        }
    }
}

impl Thread {
    async fn after(&self, pause: Duration) {
        let end = Instant::now() + pause;
        if let Some(first) = pause.checked_sub(LAST) {
            tokio::time::sleep(first).await;
        }
        if self.set.send(end).is_err() {
            return tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
        }
        // The thread may still notify for an earlier sleep that was given up.
        while Instant::now() < end {
            self.notify.notified().await;
        }
    }
}

/// Notifies at the last time that was set.
fn keep_time(times: &Receiver<Instant>, notify: &Notify) {
    let mut at: Option<Instant> = None;
    loop {
        let set = match at {
            Some(at) => times.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => times.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match set {
            Ok(time) => at = Some(time),
            Err(RecvTimeoutError::Timeout) => {
                at = None;
                notify.notify_one();
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_never_rings_early_not_even_after_one_that_was_given_up() {
        let precise_timer = PreciseTimer::new().expect("one thread more");
        for pause in [0, 1, 2, 5, 10].map(Duration::from_millis) {
            tokio::select! {
                biased;
                () = precise_timer.after(pause / 2) => {}
                () = tokio::task::yield_now() => {}
            }
            let begin = Instant::now();
            precise_timer.after(pause).await;
            assert!(pause <= begin.elapsed());
        }
    }
}
