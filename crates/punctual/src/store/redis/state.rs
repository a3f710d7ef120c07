//! How jobs and settings of queues are stored.

pub(crate) mod codec;
pub(crate) mod settings;
