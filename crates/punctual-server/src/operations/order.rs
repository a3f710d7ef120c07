//! An order to act on all jobs that match a filter: what it says, and whether a caller may give it.

use punctual::{Error, Result, State, job::Filter, store::Action};
use serde::{Deserialize, Serialize};

use super::outcomes::is_fit;
use crate::gate::{Caller, Refusal, Right};

/// The longest reason in bytes. The store keeps as much with a cancelled job.
const REASON_BYTES_MAX: usize = 1_024;

/// An action that can be ordered for all jobs that match a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ActionName {
    RunNow,
    Retry,
    Cancel,
    Delete,
}

impl ActionName {
    pub(crate) const ALL: [Self; 4] = [Self::RunNow, Self::Retry, Self::Cancel, Self::Delete];

    /// Returns the name, as documents and the API write it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RunNow => "run_now",
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Delete => "delete",
        }
    }

    /// Reads the name. Forms of pages write `run-now`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.replace('-', "_");
        Self::ALL.into_iter().find(|action| action.name() == text)
    }

    /// Returns the action, with a reason if it takes one.
    pub(crate) fn action(self, reason: &str) -> Action {
        match self {
            Self::RunNow => Action::RunNow,
            Self::Retry => Action::Retry,
            Self::Cancel => {
                Action::Cancel { reason: Some(reason.to_owned()).filter(|reason| !reason.is_empty()) }
            }
            Self::Delete => Action::Delete,
        }
    }
}

/// An action on all jobs that match a filter.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) name: ActionName,
    /// Why; can be empty, except for a cancel that is ordered.
    pub(crate) reason: String,
    /// The filter as it was typed.
    pub(crate) text: String,
    /// The filter, narrowed to the states in which the action is possible.
    pub(crate) filter: Filter,
    /// The states in which the action is possible, of those that the filter selects.
    pub(crate) fit: Vec<State>,
    /// The other states that the filter selects.
    pub(crate) unfit: Vec<State>,
}

impl Order {
    /// Reads an order.
    ///
    /// # Errors
    /// `Invalid` for a filter that is empty or cannot be read, and for one that selects no state in which the action is possible.
    pub(crate) fn new(name: ActionName, text: &str, reason: &str) -> Result<Self> {
        let text = text.trim();
        // One slip must not reach every job of the store.
        if text.is_empty() {
            return Err(Error::invalid("the filter is empty")
                .with_hint("write a filter, such as queue:mail state:dead"));
        }
        let (action, filter) = (name.action(""), Filter::parse(text)?);
        let (fit, unfit): (Vec<State>, Vec<State>) =
            selected(&filter).into_iter().partition(|state| is_fit(&action, *state));
        if fit.is_empty() {
            return Err(Error::invalid("the action is not possible in any state that the filter selects")
                .with_hint("choose another action, or another filter"));
        }
        let reason = cut(reason.trim(), REASON_BYTES_MAX).to_owned();
        Ok(Self { name, reason, text: text.to_owned(), filter: filter.state(fit.clone()), fit, unfit })
    }

    /// Checks the role, the queues and the fields that the caller may search.
    pub(crate) fn check(&self, caller: Option<&Caller>) -> Result<(), Refusal> {
        let Some(caller) = caller else { return Ok(()) };
        if caller.payloads_hidden && self.filter.reads_payloads() {
            return Err(Refusal::hidden("the filter looks into payloads, which are hidden from this token"));
        }
        may(caller, Right::Operate, self.queues().as_deref())
    }

    /// Checks that an order has the reason that it needs.
    ///
    /// # Errors
    /// `Invalid` for a cancel without a reason.
    pub(crate) fn check_reason(&self) -> Result<()> {
        if self.asks_reason() && self.reason.is_empty() {
            return Err(Error::invalid("a reason is missing, and nothing was changed")
                .with_hint("write why the jobs are cancelled; the reason is kept with them"));
        }
        Ok(())
    }

    /// Whether the order needs a reason.
    pub(crate) const fn asks_reason(&self) -> bool {
        matches!(self.name, ActionName::Cancel)
    }

    pub(crate) fn action(&self) -> Action {
        self.name.action(&self.reason)
    }

    /// Returns the queues that the filter names; `None` if it is about all.
    pub(crate) fn queues(&self) -> Option<Vec<String>> {
        self.filter.queues().filter(|queues| !queues.is_empty())
    }
}

/// Checks that a caller has a right in each of these queues, or in the whole store (`None`).
pub(crate) fn may(caller: &Caller, right: Right, queues: Option<&[String]>) -> Result<(), Refusal> {
    match queues {
        None => caller.may(right, None),
        Some(queues) => queues.iter().try_for_each(|queue| caller.may(right, Some(queue))),
    }
}

/// Returns the actions that make sense for all jobs that match a filter.
pub(crate) fn offered(text: &str, filter: &Filter) -> Vec<Action> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let states = selected(filter);
    let actions = ActionName::ALL.map(|name| name.action("")).into_iter();
    actions.filter(|action| states.iter().any(|state| is_fit(action, *state))).collect()
}

/// Returns the states that a filter selects.
fn selected(filter: &Filter) -> Vec<State> {
    filter.states().unwrap_or_else(|| State::ALL.to_vec())
}

/// Returns at most this many bytes of a text.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Returns a filter as a caller may see it: one that looks into payloads can say what is in them.
pub(crate) fn shown(filter: &str, hides_payloads: bool) -> Option<&str> {
    let is_plain = || Filter::parse(filter).is_ok_and(|filter| !filter.reads_payloads());
    (!hides_payloads || is_plain()).then_some(filter)
}
