//! The verbs of the model, a file each.

pub(crate) mod act;
pub(crate) mod doc;
pub(crate) mod enqueue;
pub(crate) mod extend;
pub(crate) mod queue;
pub(crate) mod read;
pub(crate) mod reserve;
pub(crate) mod settle;
pub(crate) mod sweep;
pub(crate) mod take;
