//! `punctual audit [--repair]`: checks that each job is in exactly one state, and each index entry has a record.

use std::io::Write as _;

use punctual::store::{CheckLevel, Finding, clock::Clock, redis::RedisStore};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{clean, counted, json},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The store can be in use meanwhile. The exit code is 1 if something is wrong and was not repaired.

Examples:
  punctual audit
  punctual audit --repair
  punctual audit -o json")]
pub(crate) struct Audit {
    /// Repair what is found; no record of a job is deleted.
    #[arg(long)]
    repair: bool,
}

impl Audit {
    pub(crate) const fn repairs(&self) -> bool {
        self.repair
    }
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    checked: u64,
    ok: bool,
    findings: &'a [Finding],
}

/// Makes the state of a store on Redis again if it is gone, because such a store cannot be opened. Returns that as a finding.
pub(crate) async fn restore(url: &str) -> Result<Option<Finding>> {
    if !url.starts_with("redis") || !RedisStore::restore(url, Clock::System).await? {
        return Ok(None);
    }
    let detail = "the state of the store was gone or damaged".to_owned();
    Ok(Some(Finding { id: None, queue: None, what: "corrupt".into(), detail, repaired: true }))
}

pub(crate) async fn run(session: &mut Session, args: &Audit) -> Result {
    let mut progress = session.progress();
    let mut report = session
        .client
        .audit(args.repair, |checked| progress.show(|| format!("{} checked", counted(checked, "entry"))))
        .await?;
    drop(progress);
    report.findings.splice(..0, session.mended.take());
    let ok = report.findings.iter().all(|finding| finding.repaired);
    if session.format.is_json() {
        json(&mut session.out, &Answer { checked: report.checked, ok, findings: &report.findings })?;
    } else {
        for finding in &report.findings {
            let level = if finding.repaired { "fixed" } else { "fail" };
            let id = finding.id.map(|id| format!("  {id}")).unwrap_or_default();
            let queue = finding.queue.as_deref().map(|queue| format!(" (queue {queue})")).unwrap_or_default();
            let line = format!("{}{queue}: {}{id}", finding.what, finding.detail);
            let style =
                session.paint.level(if finding.repaired { CheckLevel::Warn } else { CheckLevel::Fail });
            writeln!(session.out, "{style}{level:<5}{style:#}  {}", clean(&line))?;
        }
        if report.findings.is_empty() {
            let total = session.client.count(None).await?.total();
            let style = session.paint.level(CheckLevel::Ok);
            writeln!(
                session.out,
                "{style}ok{style:#}     {}, each in exactly one state",
                counted(total, "job")
            )?;
        } else if !ok && !args.repair {
            writeln!(session.out, "       fix  punctual audit --repair")?;
        } else if !ok {
            writeln!(session.out, "       what is left cannot be repaired automatically")?;
        }
    }
    session.out.flush()?;
    if ok { Ok(()) } else { Err(Failure::FAILED) }
}
