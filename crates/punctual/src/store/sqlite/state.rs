//! The state of a job: its row, its place, and its limits, keys and group.

pub(crate) mod codec;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod places;
