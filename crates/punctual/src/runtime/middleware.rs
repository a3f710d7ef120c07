//! Middleware: code that runs around every run of a worker, whatever the type of job.

use std::{fmt, future::Future, sync::Arc};

use crate::{
    core::outcome::{IntoOutcome, Outcome},
    runtime::handler::{Call, Erased},
};

/// Wraps the runs of a worker.
///
/// An async closure `async |call: Call, next: Next| …` is middleware, and so is a type that implements this trait.
///
/// Middleware sees undecodable payloads as `Outcome::Dead`, and panics and timeouts of the handler as
/// `Outcome::Retry`. Its own work after a timeout can take one more second. If it panics itself, the whole run ends.
/// A run that goes on after a cancel or the loss of its lease is dropped, together with what the middleware owns.
pub trait Middleware: Send + Sync + 'static {
    /// Wraps one run. Calls `next.run(call)` to continue it, or skips it.
    fn around(&self, call: Call, next: Next) -> impl Future<Output = Outcome> + Send;
}

impl<F, Fut> Middleware for F
where
    F: Fn(Call, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send,
{
    async fn around(&self, call: Call, next: Next) -> Outcome {
        self(call, next).await.into_outcome()
    }
}

/// The rest of a run: the inner middleware and the handler.
///
/// It is owned, so that plain closures can hold it.
#[derive(Clone)]
pub struct Next(Erased);

impl Next {
    /// Continues the run and returns its outcome.
    ///
    /// If the future is dropped, the run ends at its next await.
    pub async fn run(self, call: Call) -> Outcome {
        (self.0)(call).await
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

/// A middleware without its type: wraps an inner handler into an outer one.
pub(crate) type Layer = Box<dyn Fn(Erased) -> Erased + Send + Sync>;

pub(crate) fn layer(middleware: impl Middleware) -> Layer {
    let middleware = Arc::new(middleware);
    Box::new(move |inside| {
        let middleware = Arc::clone(&middleware);
        Arc::new(move |call| {
            let (middleware, next) = (Arc::clone(&middleware), Next(Arc::clone(&inside)));
            Box::pin(async move { middleware.around(call, next).await })
        })
    })
}
