//! Readiness: whether the store answers as callers need it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::StatusCode;
use punctual::{
    Client, ErrorKind, Result,
    store::{DocOp, Identity},
};
use tokio::time::{Instant, timeout};

/// How long the store may take to answer before the server is not ready.
const READY_MAX: Duration = Duration::from_secs(2);
/// How long an answer is repeated: anybody may ask, and each look is a write.
const REPEATED: Duration = Duration::from_secs(1);
/// A document that is looked up to see whether the store answers. There is no such token.
const READY_KEY: &str = "token/ready";

type Answer = (StatusCode, String);

/// Looks whether a server is ready. Clones share what they saw.
#[derive(Clone)]
pub(crate) struct Readiness {
    client: Client,
    is_read_only: bool,
    /// The last answer, and when it was given. Probes that arrive meanwhile wait for it.
    last: Arc<tokio::sync::Mutex<Option<(Instant, Answer)>>>,
    store_is: Arc<Mutex<Option<Identity>>>,
}

impl Readiness {
    pub(crate) fn new(client: &Client, is_read_only: bool) -> Self {
        Self { client: client.clone(), is_read_only, last: Arc::default(), store_is: Arc::default() }
    }

    /// Returns the answer of a probe. If the probe gives up, the look goes on: the log and the next probe get the answer.
    pub(crate) async fn now(&self) -> Answer {
        let readiness = self.clone();
        let answer = tokio::spawn(async move { readiness.answer().await }).await;
        answer.unwrap_or_else(|error| (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")))
    }

    async fn answer(&self) -> Answer {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < REPEATED
        {
            return answer.clone();
        }
        let answer = match timeout(READY_MAX, self.look()).await {
            Ok(Ok(())) => (StatusCode::OK, "ok, the store answers\n".to_owned()),
            Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", error.with_causes())),
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n".to_owned()),
        };
        let was_ready = last.as_ref().is_none_or(|(_, (status, _))| *status == StatusCode::OK);
        let is_ready = answer.0 == StatusCode::OK;
        if was_ready && !is_ready {
            tracing::warn!(target: "punctual", "not ready: {}", answer.1.trim_end());
        } else if !was_ready && is_ready {
            tracing::info!(target: "punctual", "ready again");
        }
        *last = Some((Instant::now(), answer.clone()));
        answer
    }

    /// Asks for the time and for a document, since each token is one. If the server changes things, it leaves a mark, by an empty extend, and
    /// looks which store it is. A store in this process must take what must be durable, too: a file whose log cannot be synced refuses that
    /// alone. A store that is full still ends jobs, so it is ready.
    async fn look(&self) -> Result<()> {
        let store = self.client.store();
        store.now().await?;
        store.doc(&DocOp::Get { key: READY_KEY.to_owned() }).await?;
        if self.is_read_only {
            return Ok(());
        }
        match store.extend(&[]).await {
            Ok(_) => {
                self.note(store.identity().await?);
                if ["sqlite:", "memory:"].iter().any(|scheme| store.url().starts_with(scheme)) {
                    store.settle(&[], None).await?;
                }
            }
            // It was opened for reading only, or by somebody who may only read.
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Forbidden) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Says once that the store has become another one; returns whether it did now.
    fn note(&self, is: Identity) -> bool {
        let was = self.store_is.lock().unwrap_or_else(PoisonError::into_inner).replace(is);
        let Some(was) = was.filter(|was| *was != is) else { return false };
        tracing::error!(target: "punctual", %was, %is,
            "the store is another one than before, and the jobs of before are not in it: a server without persistence was \
            started again, or emptied; restore the old one from a backup, or enqueue again what is missing");
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use punctual::testing::{Fault, FaultyStore, TestQueue};

    use super::*;

    /// A store in which calls of one verb have this fault, and how many came.
    fn store_with(verb: &'static str, fault: Fault) -> (Client, Arc<AtomicU32>) {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let store = FaultyStore::new(Arc::clone(TestQueue::new().client.store()), move |called| {
            if called != verb {
                return Fault::Pass;
            }
            counted.fetch_add(1, Relaxed);
            fault
        });
        (Client::new(Arc::new(store)), calls)
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_takes_no_writes_is_not_ready() {
        let (client, _) = store_with("settle", Fault::Before);
        assert_eq!(Readiness::new(&client, false).now().await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(Readiness::new(&client, true).now().await.0, StatusCode::OK);
        let (client, _) = store_with("extend", Fault::Before);
        assert_eq!(Readiness::new(&client, false).now().await.0, StatusCode::SERVICE_UNAVAILABLE);
        let (client, _) = store_with("settle", Fault::Late(Duration::from_hours(1)));
        assert_eq!(Readiness::new(&client, false).now().await.0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn another_store_is_said_once() {
        let readiness = Readiness::new(&TestQueue::new().client, false);
        let (old, new) = (TestQueue::new().client, TestQueue::new().client);
        let (old, new) = (old.identity().await.unwrap(), new.identity().await.unwrap());
        assert_eq!([old, old, new, new].map(|is| readiness.note(is)), [false, false, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_probes_are_one_look_in_a_second() {
        let (client, looks) = store_with("settle", Fault::Pass);
        let readiness = Readiness::new(&client, false);
        let probes = || async { tokio::join!(readiness.now(), readiness.now(), readiness.now()) };
        probes().await;
        assert_eq!(looks.load(Relaxed), 1);
        tokio::time::advance(REPEATED).await;
        assert_eq!(probes().await.2.0, StatusCode::OK);
        assert_eq!(looks.load(Relaxed), 2);
    }
}
