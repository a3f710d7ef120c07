//! Why a job is not running, in sentences.

use punctual::{
    Client, JobRecord, Timestamp,
    store::QueueInfo,
    why::{Beside, Reason, Words, beside, reasons},
};

use crate::dashboard::text::{SEPARATOR, relative, whole};

/// Pages of running jobs that are read for a job which is blocked: one, since whoever may look at a job may make this call.
const PAGES_MAX: usize = 1;

/// Returns what keeps a job from running, or how it ended; the first reason is the most important one. While what runs beside it
/// cannot be read, the reasons are more general.
pub(crate) async fn sentences(
    client: &Client,
    job: &JobRecord,
    queue: Option<&QueueInfo>,
    now: Timestamp,
) -> Vec<String> {
    let beside = beside(client, job, queue, PAGES_MAX).await.unwrap_or(Beside::UNKNOWN);
    let at = |instant| format!("{} ({})", whole(instant), relative(instant, now));
    let words = Words { at: &at, separator: SEPARATOR };
    reasons(job, queue, beside, now, words).iter().map(sentence).collect()
}

fn sentence(Reason { code, text }: &Reason) -> String {
    let mut rest = text.chars();
    let first = rest.next().into_iter().flat_map(char::to_uppercase);
    // The error or line of a run has a full stop of its own, or none.
    let stop = if ["failed", "log"].contains(code) { "" } else { "." };
    first.chain(rest).collect::<String>() + stop
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_becomes_a_sentence() {
        let said = |code, text: &str| sentence(&Reason { code, text: text.to_owned() });
        assert_eq!(said("done", "the job is done"), "The job is done.");
        assert_eq!(said("failed", "attempt 1 failed: no"), "Attempt 1 failed: no");
        assert_eq!(said("log", ""), "");
    }
}
