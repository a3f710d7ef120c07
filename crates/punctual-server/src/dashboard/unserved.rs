//! Queues with due jobs that no worker serves, as far as the registrations of workers say.

use std::{collections::BTreeSet, time::Duration};

use punctual::{Timestamp, client::WorkerPage, store::QueueInfo, worker::WorkerState};

use super::{links::Links, terms::exact, text::due};

/// How long a job must be due before its queue counts: a worker that starts needs a moment.
const DUE_FOR: Duration = Duration::from_mins(1);
/// The most queues that are shown.
const QUEUES_SHOWN: usize = 5;

/// A queue that no worker serves.
pub(super) struct Unserved {
    pub(super) name: String,
    pub(super) link: String,
    pub(super) due: String,
}

/// Returns the queues with old due jobs, no running job and no worker.
///
/// Workers in other languages do not register themselves, so a queue with a running job is left out. Nothing is returned
/// if not all workers are known.
pub(super) fn unserved(
    infos: &[QueueInfo],
    workers: &WorkerPage,
    now: Timestamp,
    links: &Links,
) -> Vec<Unserved> {
    if workers.next.is_some() || !workers.unreadable.is_empty() {
        return Vec::new();
    }
    let served: BTreeSet<&str> = workers
        .workers
        .iter()
        .filter(|info| info.state != WorkerState::Missing)
        .flat_map(|info| info.queues.iter().map(|queue| queue.name.as_str()))
        .collect();
    infos
        .iter()
        .filter(|info| info.oldest_due.is_some_and(|at| DUE_FOR <= now.since(at)))
        .filter(|info| info.counts.running == 0 && info.settings.paused.is_none())
        .filter(|info| !info.name.starts_with('$') && !served.contains(info.name.as_str()))
        .take(QUEUES_SHOWN)
        .map(|info| Unserved {
            name: info.name.clone(),
            link: links.jobs(&format!("state:waiting due:<0s {}", exact("queue", &info.name))),
            due: due(info.counts.due),
        })
        .collect()
}
