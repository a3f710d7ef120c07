//! State that holds jobs back: groups, keys, limits, and the states of jobs.

pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod places;
