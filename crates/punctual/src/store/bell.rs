//! The names, other than queues, for which [`Store::wait`](super::Store::wait) waits. No queue can have them.

use crate::core::id::JobId;
#[cfg(feature = "redis")]
use crate::core::topic::TOPICS_QUEUE;

/// The prefix for a lock: it may be free.
pub(crate) const LOCK_BELL: &str = "$lock/";
/// The prefix for a worker: a cancel was requested for a job that it runs.
pub(crate) const WORKER_BELL: &str = "$worker/";
/// The prefix for a job's id: the job has ended or is gone.
const END_BELL: &str = "$end/";

/// Returns the name under which the end of a job is notified.
pub(crate) fn end_bell(id: JobId) -> String {
    format!("{END_BELL}{:032x}", u128::from_be_bytes(*id.as_bytes()))
}

/// Returns the job whose end a name stands for, if it is such a name.
pub(crate) fn end_of(bell: &str) -> Option<JobId> {
    let digits = bell.strip_prefix(END_BELL).filter(|digits| digits.len() == 32)?;
    JobId::from_bytes(u128::from_str_radix(digits, 16).ok()?.to_be_bytes()).ok()
}

/// Returns whether a name is that of a queue.
#[cfg(feature = "redis")]
pub(crate) fn is_of_queue(bell: &str) -> bool {
    !bell.starts_with('$') || bell == TOPICS_QUEUE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::id::IdMaker;

    #[test]
    fn a_bell_names_its_job() {
        let id = IdMaker::default().make(7, 3, 9);
        assert_eq!(end_of(&end_bell(id)), Some(id));
        assert_eq!(
            [end_of("$end/7"), end_of("mail"), end_of(&format!("$end/{}", "f".repeat(32)))],
            [None; 3]
        );
    }
}
