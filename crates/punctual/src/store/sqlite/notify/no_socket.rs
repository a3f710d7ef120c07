//! For systems without Unix sockets: waiters of other processes get no notifications, and check every 20 ms.

use std::{path::Path, sync::Arc};

use super::{Notification, Notifier};
use crate::core::time::Timestamp;

/// Stands in for the sockets.
#[derive(Debug)]
pub(crate) struct Peers;

impl Peers {
    pub(crate) fn new(_database: &Path) -> Self {
        Self
    }

    pub(crate) fn listen(&self, _notifier: &Arc<Notifier>) {}

    pub(crate) fn is_open(&self) -> bool {
        false
    }

    pub(crate) fn show(&self, _id: u64, _armed: Timestamp, _queues: &[u64]) {}

    pub(crate) fn hide(&self, _id: u64, _armed: Timestamp, _queues: &[u64]) {}

    pub(crate) fn others_mind(&self, _own: Option<u64>, _queues: &[u64], _at: Timestamp) -> bool {
        false
    }

    pub(crate) fn notify(&self, _notification: Notification) -> bool {
        false
    }

    pub(crate) fn test(&self) -> Result<(usize, usize), String> {
        Err("this system has no Unix sockets".to_owned())
    }
}
