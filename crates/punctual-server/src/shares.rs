//! Shares: how much of what all callers share one of them can use at once.
//!
//! A caller that asks for more waits for its own requests, and keeps no other caller waiting.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{extract::ConnectInfo, http::Extensions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::gate::Caller;

/// Callers that are remembered. If there are more, those that use nothing are forgotten.
const CALLERS_MAX: usize = 1_024;

/// Whose share it is: of a token, of a user that a proxy names, or of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Who(String);

impl Who {
    /// Returns who made a request.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        Self::caller(extensions.get()).unwrap_or_else(|| {
            let peer = extensions.get::<ConnectInfo<SocketAddr>>();
            Self(peer.map_or_else(String::new, |ConnectInfo(peer)| format!("address {}", peer.ip())))
        })
    }

    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Returns the name under which a caller's uses are counted.
    pub(crate) fn caller(caller: Option<&Caller>) -> Option<Self> {
        let Caller { token, name, .. } = caller?;
        Some(Self(token.as_ref().map_or_else(|| format!("user {name}"), |id| format!("token {id}"))))
    }
}

/// Something that a number of callers can use at once, and one caller only a part of it.
#[derive(Debug)]
pub(crate) struct Shares {
    all: Arc<Semaphore>,
    each: usize,
    callers: Mutex<HashMap<Who, Arc<Semaphore>>>,
}

/// A use, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Shares {
    /// Makes shares of `all` uses at once, of which one caller has at most `each`.
    pub(crate) fn new(all: usize, each: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), each, callers: Mutex::default() }
    }

    /// Waits for a use.
    pub(crate) async fn take(&self, who: &Who) -> Share {
        let own = self.own(who).acquire_owned().await.expect("invariant: it is never closed");
        let of_all = Arc::clone(&self.all).acquire_owned().await.expect("invariant: it is never closed");
        Share { _own: own, _of_all: of_all }
    }

    /// Takes a use, if the caller has one left and there is one.
    pub(crate) fn try_take(&self, who: &Who) -> Option<Share> {
        let own = self.own(who).try_acquire_owned().ok()?;
        Some(Share { _own: own, _of_all: Arc::clone(&self.all).try_acquire_owned().ok()? })
    }

    fn own(&self, who: &Who) -> Arc<Semaphore> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if CALLERS_MAX <= callers.len() && !callers.contains_key(who) {
            // One that is used has a further owner: a permit, or a caller that waits for one.
            callers.retain(|_, own| 1 < Arc::strong_count(own));
        }
        Arc::clone(callers.entry(who.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.each))))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_caller_that_wants_all_leaves_some_to_others() {
        let (shares, a) = (Shares::new(3, 2), Who::named("a"));
        let first = shares.take(&a).await;
        let _second = shares.take(&a).await;
        assert!(shares.try_take(&a).is_none());
        let mut third = Box::pin(shares.take(&a));
        assert!(third.as_mut().now_or_never().is_none());
        let other = shares.take(&Who::named("b")).now_or_never().unwrap();
        assert!(shares.try_take(&Who::named("c")).is_none());
        drop(first);
        let _third = third.await;
        drop(other);
        assert!(shares.try_take(&Who::named("c")).is_some());
    }

    #[tokio::test]
    async fn only_callers_that_use_something_are_remembered() {
        let shares = Shares::new(9, 1);
        let _kept = shares.take(&Who::named("kept")).await;
        for n in 0..3 * CALLERS_MAX {
            shares.take(&Who::named(&n.to_string())).await;
        }
        assert!(shares.callers.lock().unwrap().len() <= CALLERS_MAX);
        assert!(shares.try_take(&Who::named("kept")).is_none());
    }
}
