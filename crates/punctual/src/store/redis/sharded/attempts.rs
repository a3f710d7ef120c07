//! How a call was cut into parts when it was made for the first time: its repetition must be cut the same way, since only
//! then each shard knows its part again (S3).

use std::{collections::HashMap, sync::Arc};

use crate::store::{Call, Enqueued, redis::Live};

/// More instances than this are not remembered. Of one that was forgotten a repetition is cut as if it were new: an enqueue the
/// same way unless the layout has just changed; a reserve may begin with another shard, and what it got before is taken back.
const INSTANCES_MAX: usize = 1_024;

/// What is remembered of the last call of each instance.
#[derive(Debug)]
pub(crate) struct Attempts<T>(HashMap<u64, (u64, T)>);

/// What is known of an enqueue that was not answered in full, or may be repeated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tried {
    /// The layouts by which it was tried, one after another.
    pub(crate) lives: Vec<Arc<Live>>,
    /// Whether none of its jobs is refused any more: some may have been done.
    pub(crate) is_accepted: bool,
    /// The answers so far, one for each job; none once all jobs are answered.
    pub(crate) answers: Vec<Option<Enqueued>>,
}

impl<T> Default for Attempts<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Attempts<T> {
    /// What is remembered of a call; `new` for one that was not made before.
    pub(crate) fn of(&mut self, call: Call, new: impl FnOnce() -> T) -> &mut T {
        if INSTANCES_MAX <= self.0.len() && !self.0.contains_key(&call.instance) {
            self.0.clear();
        }
        let is_other = self.0.get(&call.instance).is_none_or(|(number, _)| *number != call.number);
        if is_other {
            self.0.insert(call.instance, (call.number, new()));
        }
        &mut self.0.get_mut(&call.instance).expect("invariant: it was put there").1
    }
}
