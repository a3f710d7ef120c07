//! An order to act on all jobs that match a filter: what its forms say, and whether the caller may give it.

use axum::extract::Request;
use punctual::{State, job::Filter, store::Action};

use super::{act, fault::Fault, fields::Fields};
use crate::gate::{Caller, Right};

/// The actions that can be ordered, as forms name them.
const ACTIONS: [&str; 4] = ["run-now", "retry", "cancel", "delete"];

/// An action on all jobs that match a filter.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) action: Action,
    /// The filter as it was typed.
    pub(super) text: String,
    /// The filter, narrowed to the states in which the action is possible.
    pub(super) filter: Filter,
    /// The states in which the action is possible, of those that the filter selects.
    pub(super) fit: Vec<State>,
    /// The other states that the filter selects.
    pub(super) unfit: Vec<State>,
}

impl Order {
    /// Reads a form, and checks that its caller may give the order. Returns the order and all fields.
    pub(super) async fn read(request: Request) -> Result<(Self, Fields), Fault> {
        let caller = request.extensions().get::<Caller>().cloned();
        let fields = Fields::of_form(request.into_body()).await?;
        let order = Self::of(&fields)?;
        if let Some(caller) = caller {
            order.check(&caller)?;
        }
        Ok((order, fields))
    }

    fn of(fields: &Fields) -> Result<Self, Fault> {
        let text = fields.get("filter").to_owned();
        // One slip must not reach every job of the store.
        if text.is_empty() {
            return Err(form("The filter is empty.", "Write a filter, such as queue:mail state:dead."));
        }
        if !ACTIONS.contains(&fields.get("action")) {
            return Err(form("The form names no action for all jobs that match.", "Load the page again."));
        }
        let (action, filter) = (act::action(fields)?, Filter::parse(&text)?);
        let (fit, unfit): (Vec<State>, Vec<State>) =
            selected(&filter).into_iter().partition(|state| act::is_fit(&action, *state));
        if fit.is_empty() {
            return Err(form(
                "The action is not possible in any state that the filter selects.",
                "Choose another action, or another filter.",
            ));
        }
        Ok(Self { filter: filter.state(fit.clone()), action, text, fit, unfit })
    }

    /// Checks the role, the queues and the fields that the caller may search.
    fn check(&self, caller: &Caller) -> Result<(), Fault> {
        if caller.payloads_hidden && self.filter.reads_payloads() {
            return Err(Fault::Hidden);
        }
        let Some(queues) = self.filter.queues().filter(|queues| !queues.is_empty()) else {
            return Ok(caller.may(Right::Operate, None)?);
        };
        Ok(queues.iter().try_for_each(|queue| caller.may(Right::Operate, Some(queue)))?)
    }

    /// Whether the order needs a reason.
    pub(super) const fn asks_reason(&self) -> bool {
        matches!(self.action, Action::Cancel { .. })
    }

    /// Returns the reason of the order; empty if it has none.
    pub(super) fn reason(&self) -> &str {
        match &self.action {
            Action::Cancel { reason } => reason.as_deref().unwrap_or_default(),
            _ => "",
        }
    }
}

/// Returns the actions that make sense for all jobs that match a filter: their names and words.
pub(super) fn offered(text: &str, filter: &Filter) -> Vec<(&'static str, &'static str)> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let states = selected(filter);
    let actions =
        [Action::RunNow, Action::Retry, Action::Cancel { reason: None }, Action::Delete].into_iter();
    actions
        .filter(|action| states.iter().any(|state| act::is_fit(action, *state)))
        .map(|action| (action.name(), act::verb(&action)))
        .collect()
}

/// Returns the states that a filter selects.
fn selected(filter: &Filter) -> Vec<State> {
    filter.states().unwrap_or_else(|| State::ALL.to_vec())
}

fn form(text: &str, hint: &str) -> Fault {
    Fault::Form(text.to_owned(), hint.to_owned())
}
