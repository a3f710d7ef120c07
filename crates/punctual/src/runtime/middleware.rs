//! Middleware: what happens around every run of a worker, whatever its type of job.

use std::{fmt, future::Future, sync::Arc};

use crate::{
    core::outcome::{IntoOutcome, Outcome},
    runtime::handler::{Call, Erased},
};

/// Wraps the runs of a worker. An async closure `async |call: Call, next: Next| …` is one; so is a type of your own.
///
/// It sees undecodable payloads (as `Outcome::Dead`), and the panics and timeouts of the handler (as `Outcome::Retry`). What it
/// does itself behind the timeout may take a second more; a panic of its own ends the whole run. A run that goes on behind a
/// cancel or the loss of its lease is dropped, and with it what the middleware owns.
pub trait Middleware: Send + Sync + 'static {
    /// Runs what is inside by `next.run(call)`, or doesn't.
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

/// The rest of a run: the middleware further in, and the handler. Owned, so that plain closures can hold it.
#[derive(Clone)]
pub struct Next(Erased);

impl Next {
    /// Runs it.
    ///
    /// Dropped, the run ends where it awaits.
    pub async fn run(self, call: Call) -> Outcome {
        (self.0)(call).await
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

/// A middleware whose type is forgotten: makes of what is inside what is outside.
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
