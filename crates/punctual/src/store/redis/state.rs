//! The stored form of jobs and of the settings of queues.

pub(crate) mod codec;
pub(crate) mod settings;
