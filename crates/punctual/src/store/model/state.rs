//! What a job's state counts against.

pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod places;
