//! The names, other than queues, for which [`Store::wait`](super::Store::wait) waits. No queue can have them.

use crate::core::id::JobId;
#[cfg(feature = "redis")]
use crate::core::topic::TOPICS_QUEUE;

/// The prefix for a lock: it may be free.
pub(crate) const LOCK_NOTIFICATION: &str = "$lock/";
/// The prefix for a worker: a cancel was requested for a job that it runs.
pub(crate) const WORKER_NOTIFICATION: &str = "$worker/";
/// How many waits for the same worker a cancel ends, at most: several workers can have one name, and one of them runs the job. Further ones
/// learn of it with their next heartbeat.
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) const NAMESAKES_MAX: u32 = 16;
/// The prefix for a job's id: the job has ended or is gone.
const END_NOTIFICATION: &str = "$end/";

/// Returns the name under which the end of a job is notified.
pub(crate) fn end_notification(id: JobId) -> String {
    format!("{END_NOTIFICATION}{:032x}", u128::from_be_bytes(*id.as_bytes()))
}

/// Returns the job whose end a name stands for, if it is such a name.
pub(crate) fn end_of(name: &str) -> Option<JobId> {
    let digits = name.strip_prefix(END_NOTIFICATION).filter(|digits| digits.len() == 32)?;
    JobId::from_bytes(u128::from_str_radix(digits, 16).ok()?.to_be_bytes()).ok()
}

/// Returns whether a name is that of a queue.
#[cfg(feature = "redis")]
pub(crate) fn is_of_queue(name: &str) -> bool {
    !name.starts_with('$') || name == TOPICS_QUEUE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::id::IdMaker;

    #[test]
    fn a_notification_names_its_job() {
        let id = IdMaker::default().make(7, 3, 9);
        assert_eq!(end_of(&end_notification(id)), Some(id));
        assert_eq!(
            [end_of("$end/7"), end_of("mail"), end_of(&format!("$end/{}", "f".repeat(32)))],
            [None; 3]
        );
    }
}
