//! Remembers how a call was divided into parts when it was first made. A repetition must be divided in the same way,
//! because only then does each shard recognise its part (S3).

use std::{collections::HashMap, sync::Arc};

use crate::store::{CallId, Enqueued, redis::Live};

/// The most instances that are remembered. After that, a new one takes the place of any other, whose repetition is then
/// divided as if it were new. For an enqueue that
/// is the same division unless the layout has just changed. A reserve can start with another shard, and its earlier
/// jobs are reclaimed.
const INSTANCES_MAX: usize = 1_024;

/// The last call of each instance.
#[derive(Debug)]
pub(crate) struct Attempts<T>(HashMap<u64, (u64, T)>);

/// What is known of an enqueue that was not fully answered, or can be repeated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tried {
    /// The layouts with which it was tried, in order.
    pub(crate) lives: Vec<Arc<Live>>,
    /// Whether none of its jobs is refused any more, because some may have been stored.
    pub(crate) is_accepted: bool,
    /// The answers so far, one for each job; empty once all jobs are answered.
    pub(crate) answers: Vec<Option<Enqueued>>,
}

impl<T> Default for Attempts<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Attempts<T> {
    /// Returns what is remembered of a call; `new` makes it for a new call.
    pub(crate) fn of(&mut self, call: CallId, new: impl FnOnce() -> T) -> &mut T {
        if INSTANCES_MAX <= self.0.len() && !self.0.contains_key(&call.instance) {
            let any = self.0.keys().next().copied();
            any.map(|instance| self.0.remove(&instance));
        }
        let is_other = self.0.get(&call.instance).is_none_or(|(number, _)| *number != call.number);
        if is_other {
            self.0.insert(call.instance, (call.number, new()));
        }
        &mut self.0.get_mut(&call.instance).expect("invariant: it was put there").1
    }
}
