//! The same without the feature `otel`: nothing is recorded.

#![expect(clippy::unused_self, reason = "the calls are those of the spans")]

use crate::{
    core::{
        error::{Error, Result},
        job::NewJob,
    },
    runtime::handler::Call,
    store::{Batch, Enqueued, Lease, Settled, Settlement, Verdict},
};

pub(crate) struct Sending;

impl Sending {
    pub(crate) fn begin(_: &mut [NewJob]) -> Self {
        Self
    }

    pub(crate) fn end(self, _: Result<&[Enqueued], &Error>) {}
}

#[derive(Clone, Default)]
pub(crate) struct Running(());

impl Running {
    pub(crate) fn begin(_: &Call, _: bool) -> Self {
        Self(())
    }

    pub(crate) fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        f()
    }

    pub(crate) fn around<F: Future>(&self, run: F) -> F {
        run
    }

    pub(crate) fn end(&self, _: &Call, _: &Verdict, _: &'static str) {}
}

pub(crate) struct Calling;

impl Calling {
    pub(crate) fn begin() -> Self {
        Self
    }

    pub(crate) fn end(
        self,
        _: &[Settlement],
        _: impl Fn(Lease) -> Option<Call>,
        _: &Result<(Vec<Settled>, Option<Batch>)>,
    ) {
    }
}

#[cfg(feature = "cron")]
pub(crate) fn detached<F: Future>(future: F) -> F {
    future
}
