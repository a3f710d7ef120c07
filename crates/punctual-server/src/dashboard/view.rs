//! What a request sees of the dashboard: the board, and what the caller may do there.

use std::{convert::Infallible, ops::Deref, sync::Arc};

use axum::{extract::FromRequestParts, http::request::Parts};
use punctual::job::Filter;

use super::{Board, fault::Fault};
use crate::{
    activity::{Actor, Entry, Via},
    gate::{Caller, Refusal, Right},
    operations::shown,
};

/// The board as the caller of a request sees it. Without a gate in front of the router, anybody may do anything.
#[derive(Clone, Debug)]
pub(super) struct View {
    board: Arc<Board>,
    caller: Option<Caller>,
    /// Whether the caller has a token, with which it can log out.
    has_token: bool,
}

impl Deref for View {
    type Target = Board;

    fn deref(&self) -> &Board {
        &self.board
    }
}

impl FromRequestParts<Arc<Board>> for View {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, board: &Arc<Board>) -> Result<Self, Infallible> {
        Ok(Self::new(board, parts.extensions.get().cloned()))
    }
}

impl View {
    pub(super) fn new(board: &Arc<Board>, caller: Option<Caller>) -> Self {
        let has_token = caller.as_ref().is_some_and(|caller| caller.token.is_some());
        Self { board: Arc::clone(board), caller, has_token }
    }

    /// Returns the same view for a page that several callers share: it has nothing of this one but that it can log out.
    pub(super) fn shared(&self) -> Self {
        Self { caller: None, ..self.clone() }
    }

    /// Returns whether the caller has a token, with which it can log out.
    pub(super) const fn has_token(&self) -> bool {
        self.has_token
    }

    /// Checks that the caller has a right, in one queue or in the whole store (`None`).
    pub(super) fn check(&self, right: Right, queue: Option<&str>) -> Result<(), Refusal> {
        self.caller.as_ref().map_or(Ok(()), |caller| caller.may(right, queue))
    }

    /// Returns whether a page shows the buttons that need a right, in one queue or in the whole store (`None`).
    pub(super) fn may(&self, right: Right, queue: Option<&str>) -> bool {
        !self.options.read_only && self.check(right, queue).is_ok()
    }

    /// Returns whether a page shows the buttons that act on jobs of any queue that the caller may use.
    pub(super) fn may_operate(&self) -> bool {
        let queue = self.queues().and_then(<[String]>::first).map(String::as_str);
        self.may(Right::Operate, queue)
    }

    /// Returns the only queues that the caller may use; `None` for the whole store.
    pub(super) fn queues(&self) -> Option<&[String]> {
        self.caller.as_ref()?.queues.as_deref()
    }

    /// Checks that the caller may list the jobs that match a filter.
    pub(super) fn check_search(&self, filter: &Filter) -> Result<(), Fault> {
        let Some(queues) = filter.queues().filter(|queues| !queues.is_empty()) else {
            return Ok(self.check(Right::Read, None)?);
        };
        Ok(queues.iter().try_for_each(|queue| self.check(Right::Read, Some(queue)))?)
    }

    /// Returns the caller, if a gate has let it in.
    pub(super) const fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Returns the caller for records of who did what.
    pub(super) fn actor(&self) -> Actor {
        Actor::of(self.caller(), "dashboard")
    }

    /// Begins an entry of the activity log in the name of the caller.
    pub(super) fn entry(&self, action: &str) -> Entry {
        Entry::new(self.actor(), Via::Dashboard, action)
    }

    /// Returns a filter as the caller may see it.
    pub(super) fn shown<'a>(&self, filter: &'a str) -> Option<&'a str> {
        shown(filter, self.caller().is_some_and(|caller| caller.payloads_hidden))
    }

    /// Returns the name of the caller, for people.
    pub(super) fn name(&self) -> &str {
        self.caller.as_ref().map_or("dashboard", |caller| caller.name.as_str())
    }

    /// Returns why payloads, results and values of headers are hidden, if they are.
    pub(super) fn hides(&self) -> Option<&'static str> {
        if self.options.hide_payloads {
            Some("Hidden by the settings of this dashboard.")
        } else if self.caller.as_ref().is_some_and(|caller| caller.payloads_hidden) {
            Some("Hidden from your token. A token that shows payloads shows this, too.")
        } else {
            None
        }
    }
}
