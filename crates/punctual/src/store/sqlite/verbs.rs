//! The verbs of the store, a file each: functions over a transaction.

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
