//! What [`Store::wait`](super::Store::wait) waits for beside work, by names that no queue may have.

use crate::core::id::JobId;
#[cfg(feature = "redis")]
use crate::core::topic::TOPICS_QUEUE;

/// Before the name of a lock: it may be free.
pub(crate) const LOCK_BELL: &str = "$lock/";
/// Before the name of a worker: somebody asked to cancel a job that it runs.
pub(crate) const WORKER_BELL: &str = "$worker/";
/// Before the digits of a job's id: it has ended, or is gone.
const END_BELL: &str = "$end/";

/// The bell of a job's end.
pub(crate) fn end_bell(id: JobId) -> String {
    format!("{END_BELL}{:032x}", u128::from_be_bytes(*id.as_bytes()))
}

/// The job whose end a bell tells, if it is one's.
pub(crate) fn end_of(bell: &str) -> Option<JobId> {
    let digits = bell.strip_prefix(END_BELL).filter(|digits| digits.len() == 32)?;
    JobId::from_bytes(u128::from_str_radix(digits, 16).ok()?.to_be_bytes()).ok()
}

/// Whether it is the bell of a queue.
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
