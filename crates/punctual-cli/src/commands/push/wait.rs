//! `push --wait`: waits until the job has ended, and reports how.

use std::{io::Write as _, time::Duration};

use punctual::{JobId, JobRecord, Timestamp, job::Status, store::wire::JobView};
use tokio::{
    signal,
    time::{Instant, timeout},
};

use super::super::{
    Session,
    ls::how_far,
    not_found,
    show::{content, headline},
};
use crate::{
    errors::{Failure, INTERRUPTED, Result},
    output::{clean, json},
    times::span,
};

/// Time between two reads of the job's progress. Its end is noticed at once.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Waits for the end of a job: exit 0 for done, 1 for dead or cancelled, 7 if that takes longer than `at_most`. The job
/// goes on either way.
pub(super) async fn wait(session: &mut Session, id: JobId, at_most: Duration) -> Result {
    let begin = Instant::now();
    let seen = {
        let ended = ended(session, id);
        tokio::select! {
            biased;
            stopped = signal::ctrl_c() => {
                stopped?;
                session.say(&format!("job {id} goes on"));
                return Err(Failure::Silent(INTERRUPTED));
            }
            ended = timeout(at_most, ended) => ended,
        }
    };
    let Ok(ended) = seen else {
        return Err(Failure::timed_out(format!("job {} has not ended after {}", id.short(), span(at_most)))
            .why("the job goes on; only the wait has ended")
            .hint(format!("punctual why {id}")));
    };
    let (job, now) = ended?;
    let status = job.status(now);
    if session.format.is_json() {
        json(&mut session.out, &JobView::new(&job, now).with_details(&job))?;
    } else if session.format.is_for_people() {
        let (style, took) = (session.paint.status(status), span(begin.elapsed()));
        let why = job.reason.as_deref().map(|reason| format!(": {}", clean(reason))).unwrap_or_default();
        writeln!(session.out, "{style}{status}{style:#} {}  after {took}{why}", id.short())?;
        if let Some(result) = &job.result {
            writeln!(session.out, "{}", clean(&content(result)))?;
        }
    }
    session.out.flush()?;
    if status == Status::Done { Ok(()) } else { Err(Failure::FAILED) }
}

/// Returns the job after it has ended. Until then, each change is printed.
async fn ended(session: &Session, id: JobId) -> Result<(JobRecord, Timestamp)> {
    let (mut at_most, mut told) = (Duration::ZERO, None);
    loop {
        let Some(job) = session.client.finished(id, at_most).await? else {
            return Err(not_found(id).hint("let the queue keep ended jobs: punctual queue set QUEUE retention.done.age=1h retention.done.count=100"));
        };
        let now = session.now().await?;
        if job.state.is_ended() {
            return Ok((job, now));
        }
        let stand = (job.status(now), job.attempt, job.notes.progress.clone());
        if told.as_ref() != Some(&stand) {
            told = Some(stand);
            let progress = how_far(&job);
            let dot = if progress.is_empty() { "" } else { " · " };
            session.say(&clean(&format!("{}{dot}{progress}", headline(&job, now))));
        }
        at_most = LOOK_EVERY;
    }
}
