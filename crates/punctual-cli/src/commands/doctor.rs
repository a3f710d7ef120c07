//! `punctual doctor`: checks the store's health and configuration.

use std::{io::Write as _, time::Duration};

use punctual::{
    Client, State,
    job::Filter,
    limits::BATCH_MAX,
    store::{Check, CheckLevel, List},
};

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{clean, counted, json},
};

/// How long after its lease a running job is reported. Before, its queue's workers or upkeep reclaim it, unless the store was away.
const OVERDUE: Duration = Duration::from_secs(90);

/// Reports running jobs whose leases are over, among the first that run.
async fn leases(client: &Client) -> Option<Check> {
    let list = List { filter: Filter::all().state([State::Running]), after: None, limit: BATCH_MAX };
    // What keeps it from an answer is reported by the store's own checks.
    let page = client.list(&list).await.ok()?;
    let is_over = |until: punctual::Timestamp| until.as_ms() + OVERDUE.as_millis() as u64 <= page.now.as_ms();
    let over = page.jobs.iter().filter(|job| job.running.as_ref().is_some_and(|run| is_over(run.until)));
    let first = over.clone().next()?;
    let text = format!(
        "{} whose lease is over, for example {} of queue {}: its worker died, and no worker serves the queue, or the store was away",
        counted(over.count() as u64, "running job"),
        first.id,
        first.queue
    );
    let fix = "start a worker for the queue, or cancel the job".to_owned();
    Some(Check { level: CheckLevel::Warn, name: "leases".into(), text, fix: Some(fix) })
}

pub(super) async fn run(session: &mut Session) -> Result {
    let mut checks = session.client.store().doctor().await?;
    checks.extend(leases(&session.client).await);
    if session.format.is_json() {
        json(&mut session.out, &checks)?;
    } else {
        for check in &checks {
            let level = check.level.name();
            let style = session.paint.level(check.level);
            writeln!(session.out, "{style}{level:<4}{style:#}  {:<12}  {}", check.name, clean(&check.text))?;
            if let Some(fix) = &check.fix {
                writeln!(session.out, "      fix           {}", clean(fix))?;
            }
        }
    }
    session.out.flush()?;
    if checks.iter().any(|check| check.level == CheckLevel::Fail) { Err(Failure::FAILED) } else { Ok(()) }
}
