//! What a job's state is made of: its row, its place, and what it counts against.

pub(crate) mod codec;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod places;
