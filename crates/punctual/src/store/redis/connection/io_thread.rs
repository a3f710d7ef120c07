//! The thread on which all connections of a store live.
//!
//! A store's verbs are called from several runtimes, and some of these end before the store does, for example a
//! worker's. A connection that such a runtime drives would end with it. So each store has one thread with its own
//! runtime, and callers wait for its answers. Timers run on it, too, because a test can stop the time of its own
//! runtime.
//!
//! What needs the processor for long goes to other threads, so that no answer waits for it.

use std::{
    fmt,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::awake::Awake;
use crate::core::error::{Error, ErrorKind, Result};

/// How long the end of a store waits for what must still be sent to its server.
const CLOSE_MAX: Duration = Duration::from_millis(500);
/// The most calculations of a store at once. Further ones wait.
const COMPUTING_MAX: usize = 2;

/// A thread named `punctual-redis`. It ends when this is dropped. No task that runs on it may own it.
pub(crate) struct Thread {
    runtime: Handle,
    tasks: TaskTracker,
    closing: CancellationToken,
    awake: Arc<Awake>,
    computing: Arc<Semaphore>,
    join: Option<JoinHandle<()>>,
}

impl Thread {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Unavailable` if the system has no more threads or files.
    pub(crate) fn start() -> Result<Self> {
        let failed = |e| Error::new(ErrorKind::Unavailable, "could not start a thread").with_source(e);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        let computing = Arc::new(Semaphore::new(COMPUTING_MAX));
        let (handle, left, closed) = (runtime.handle().clone(), tasks.clone(), closing.clone());
        let body = move || {
            runtime.block_on(async {
                closed.cancelled().await;
                left.close();
                // What takes longer is dropped; nothing depends on it.
                drop(tokio::time::timeout(CLOSE_MAX, left.wait()).await);
            });
        };
        let thread = thread::Builder::new().name("punctual-redis".into()).spawn(body).map_err(failed)?;
        Ok(Self { runtime: handle, tasks, closing, awake: Awake::new(), computing, join: Some(thread) })
    }

    /// Runs a task on the thread and returns its result. If the future is dropped, the task goes on.
    ///
    /// # Errors
    /// `Closed` if the task does not finish.
    pub(crate) async fn run<T, F>(&self, task: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let answer = self.tasks.spawn_on(task, &self.runtime).await;
        answer.map_err(|e| Error::new(ErrorKind::Closed, "the store's thread has ended").with_source(e))
    }

    /// Runs a calculation on a thread that may be busy for long, as soon as one is free. If
    /// the future is dropped before, the calculation does not begin.
    ///
    /// # Errors
    /// `Closed` if the calculation does not finish.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let closed = |e| Error::new(ErrorKind::Closed, "the store's thread has ended").with_source(e);
        let permit = Arc::clone(&self.computing).acquire_owned().await;
        let work = move || {
            let done = work();
            drop(permit);
            done
        };
        self.runtime.spawn_blocking(work).await.map_err(closed)
    }

    /// Runs a task on the thread.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Returns what keeps the thread awake for moments.
    pub(crate) const fn awake(&self) -> &Arc<Awake> {
        &self.awake
    }

    /// Returns a token that is cancelled when the thread is about to end.
    pub(crate) fn closing(&self) -> CancellationToken {
        self.closing.child_token()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.closing.cancel();
        if let Some(thread) = self.join.take() {
            // A panic was already reported.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::oneshot, task::yield_now};

    use super::*;

    #[test]
    fn it_outlives_the_runtimes_that_call_it() {
        let thread = Thread::start().unwrap();
        for n in 0..3 {
            let runtime = Builder::new_current_thread().build().unwrap();
            let name = async move { (n, thread::current().name().map(str::to_owned)) };
            let answer = runtime.block_on(thread.run(name)).unwrap();
            assert_eq!(answer, (n, Some("punctual-redis".to_owned())));
        }
    }

    #[tokio::test]
    async fn its_end_waits_for_what_is_still_to_be_done() {
        let thread = Thread::start().unwrap();
        let (said, heard) = oneshot::channel();
        let closing = thread.closing();
        thread.spawn(async move {
            closing.cancelled().await;
            yield_now().await;
            said.send("bye").unwrap();
        });
        drop(thread);
        assert_eq!(heard.await, Ok("bye"));
    }

    #[tokio::test]
    async fn a_calculation_holds_up_neither_its_caller_nor_the_thread() {
        let thread = Thread::start().unwrap();
        let (release, held) = std::sync::mpsc::channel();
        let long = thread.compute(move || held.recv().unwrap());
        let others = async {
            release.send(thread.run(async { 7 }).await.unwrap()).unwrap();
        };
        assert_eq!(tokio::join!(long, others).0.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_that_call_alone() {
        let thread = Thread::start().unwrap();
        let error = thread.run::<(), _>(async { panic!("planted") }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert_eq!(thread.run(async { 7 }).await.unwrap(), 7);
    }
}
