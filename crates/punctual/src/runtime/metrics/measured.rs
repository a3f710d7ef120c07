//! A store that times each call, and counts failed calls and reclaimed leases.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use super::Metrics;
use crate::{
    core::error::{ErrorKind, Result},
    store::{BoxFuture, Call, Durability, Identity, Reply, Settled, Store, sealed::Sealed},
};

/// A store whose calls are counted.
pub(crate) struct Measured {
    inner: Arc<dyn Store>,
    metrics: Metrics,
    /// Which store it was when it last said so.
    was: Mutex<Option<Identity>>,
}

impl Measured {
    pub(crate) fn new(inner: Arc<dyn Store>, metrics: &Metrics) -> Self {
        Self { inner, metrics: metrics.clone(), was: Mutex::default() }
    }

    /// Counts what an answer says of the store.
    fn count(&self, reply: &Reply) {
        match reply {
            Reply::Identity(is) => {
                let was = self.was.lock().unwrap_or_else(PoisonError::into_inner).replace(*is);
                if was.is_some_and(|was| was != *is) {
                    self.metrics.store_changed();
                }
            }
            Reply::Enqueued(answers) if answers.iter().any(Option::is_none) => {
                self.metrics.failed("enqueue", ErrorKind::Unavailable);
            }
            Reply::Batch(batch) => self.metrics.reclaimed(batch),
            Reply::Settled((settled, batch)) => {
                if settled.iter().any(|settled| matches!(settled, Settled::Away { .. })) {
                    self.metrics.failed("settle", ErrorKind::Unavailable);
                }
                if let Some(batch) = batch {
                    self.metrics.reclaimed(batch);
                }
            }
            _ => {}
        }
    }
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Sealed for Measured {}

impl Store for Measured {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn shard(&self) -> u16 {
        self.inner.shard()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.inner.as_any()
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            let (verb, begin) = (call.name(), Instant::now());
            let is_wait = matches!(call, Call::Wait { .. });
            let reply = self.inner.call(call).await;
            // How long a wait lasts says nothing of the store.
            if !is_wait {
                self.metrics.called(verb, begin.elapsed());
            }
            match &reply {
                Ok(reply) => self.count(reply),
                Err(error) => self.metrics.failed(verb, error.kind()),
            }
            reply
        })
    }
}
