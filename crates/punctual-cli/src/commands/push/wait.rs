//! `push --wait`: stays until the job has ended, and tells how.

use std::{io::Write as _, time::Duration};

use punctual::{JobId, JobRecord, Status, Timestamp};
use tokio::{
    signal,
    time::{Instant, sleep, timeout},
};

use super::super::{Session, not_found, show::headline};
use crate::{
    errors::{Failure, INTERRUPTED, Result},
    output::{clean, json},
    times::span,
    wire::JobView,
};

/// Pauses between two looks at the job: short at first, for those that run at once.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

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
        return Err(Failure::new(
            "timed_out",
            format!("job {} has not ended after {}", id.short(), span(at_most)),
        )
        .why("it goes on; only the wait for it is over")
        .hint(format!("punctual why {id}")));
    };
    let (job, now) = ended?;
    let status = job.status(now);
    if session.format.is_json() {
        json(&mut session.out, &JobView::new(&job, now).with_failures(&job))?;
    } else if session.format.is_for_people() {
        let (style, took) = (session.paint.status(status), span(begin.elapsed()));
        let why = job.reason.as_deref().map(|reason| format!(": {}", clean(reason))).unwrap_or_default();
        writeln!(session.out, "{style}{status}{style:#} {}  after {took}{why}", id.short())?;
    }
    session.out.flush()?;
    if status == Status::Done { Ok(()) } else { Err(Failure::Silent(1)) }
}

/// The job when it has ended. What becomes of it until then is told as it is seen.
async fn ended(session: &Session, id: JobId) -> Result<(JobRecord, Timestamp)> {
    let (mut pause, mut told) = (PAUSE_MIN, None);
    loop {
        let now = session.now().await?;
        let Some(job) = session.client.get(id).await? else {
            return Err(not_found(id).hint("a queue that keeps no ended jobs can't tell how they ended"));
        };
        let status = job.status(now);
        if matches!(status, Status::Done | Status::Dead | Status::Cancelled) {
            return Ok((job, now));
        }
        if told != Some((status, job.attempt)) {
            told = Some((status, job.attempt));
            session.say(&clean(&headline(&job, now)));
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
