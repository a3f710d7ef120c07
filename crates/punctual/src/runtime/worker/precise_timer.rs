//! A timer that keeps its time. The runtime's own turns once a millisecond and rounds up, so that its sleeps end between
//! one and two milliseconds late; a thread that sleeps in the kernel is woken within some 50 µs, on every system.

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

/// The last part of a sleep, which the thread times: more than the runtime's timer is late.
const LAST: Duration = Duration::from_millis(3);

/// Sleeps, one at a time.
pub(crate) struct PreciseTimer {
    set: Sender<Instant>,
    rung: Arc<Notify>,
}

impl PreciseTimer {
    /// Starts the thread, which ends with this.
    ///
    /// # Errors
    /// The system's, if it can have no more threads.
    pub(crate) fn new() -> io::Result<Self> {
        let ((set, times), rung) = (channel(), Arc::new(Notify::new()));
        thread::Builder::new().name("punctual-alarm".to_owned()).spawn({
            let rung = Arc::clone(&rung);
            move || keep_time(&times, &rung)
        })?;
        Ok(Self { set, rung })
    }

    /// Comes back after `pause`, never before. May be dropped before that, and begun again.
    pub(crate) async fn after(&self, pause: Duration) {
        let end = Instant::now() + pause;
        if let Some(first) = pause.checked_sub(LAST) {
            tokio::time::sleep(first).await;
        }
        if self.set.send(end).is_err() {
            return tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
        }
        // It may still ring for a sleep that was given up.
        while Instant::now() < end {
            self.rung.notified().await;
        }
    }
}

/// Rings at the last time that was set.
fn keep_time(times: &Receiver<Instant>, rung: &Notify) {
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
                rung.notify_one();
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
