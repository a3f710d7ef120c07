//! `punctual recover NEW`: copies what can be read of a damaged file into a new one, and repairs that.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
};

use punctual::{
    Client, ErrorKind,
    store::sqlite::{Recovered, SqliteOptions, SqliteStore},
};
use serde::Serialize;

use super::progress::Progress;
use crate::{
    args::Globals,
    errors::{Failure, Result},
    output::{Out, counted, json},
};

/// How often the new file is repaired. The first repair can cause findings for a second one.
const REPAIRS: usize = 2;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
SQLite ends a read at the first damaged page, so a few wrong bits can stop every job of a file. This command reads each page \
alone, writes what it finds to a new file, and repairs that as `punctual audit --repair` does. The damaged file is not changed. \
If the end or the lease of a job was lost, the job is dead, with the reason `orphan`; `punctual retry` runs it. Tables of an \
application in the same file are not copied.

Stop all programs that use the damaged file before you run this command: what they write later is not in the new file. Then \
move the damaged file away with its -wal and -shm, and put the new file in its place. The exit code is 1 if the repaired file \
still has errors.

Examples:
  punctual recover new.db
  punctual recover new.db --store sqlite:/var/lib/app/jobs.db --json")]
pub(crate) struct Recover {
    /// The new file, which must not exist.
    new: PathBuf,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    recovered: Recovered,
    /// The repairs that were made.
    findings: u64,
    /// Whether an audit of the repaired file found nothing.
    ok: bool,
}

pub(super) async fn run(globals: &Globals, args: &Recover) -> Result {
    let url = globals.store();
    if !url.starts_with("sqlite:") {
        return Err(Failure::new(ErrorKind::Unsupported, "only a store in an SQLite file can be recovered")
            .why("`punctual audit --repair` mends a store on Redis")
            .hint("--store sqlite:FILE"));
    }
    let shown = !globals.quiet;
    let mut progress = Progress::new(shown);
    let show = move |page: u32, of: u32| {
        progress.show(|| format!("page {page} of {of}"));
    };
    let recovered = SqliteStore::recover(url, args.new.clone(), show).await?;
    let client = Client::new(Arc::new(SqliteStore::open(&args.new, SqliteOptions::default())?));
    let mut findings = 0;
    for _ in 0..REPAIRS {
        findings += audit(&client, true, shown).await?;
    }
    let ok = audit(&client, false, shown).await? == 0;
    let mut out = Out::new(io::stdout());
    if globals.json() {
        json(&mut out, &Answer { recovered, findings, ok })?;
    } else {
        let Recovered { jobs, rows, lost_rows, pages, lost_pages } = recovered;
        let state = if ok { "repaired" } else { "not all repaired" };
        writeln!(out, "{} in {}, {state}", counted(jobs, "job"), args.new.display())?;
        writeln!(
            out,
            "read   {} of {}; lost {} and {}; {} repaired",
            counted(rows, "row"),
            counted(pages, "page"),
            counted(lost_rows, "row"),
            counted(lost_pages, "page"),
            counted(findings, "finding")
        )?;
        if !ok {
            writeln!(out, "       what is left cannot be repaired automatically: see `punctual audit`")?;
        }
    }
    out.flush()?;
    if ok { Ok(()) } else { Err(Failure::FAILED) }
}

/// Audits the new file, and returns how much was found.
async fn audit(client: &Client, repair: bool, shown: bool) -> Result<u64> {
    let mut progress = Progress::new(shown);
    let show = |checked| progress.show(|| format!("{} checked", counted(checked, "entry")));
    Ok(client.audit(repair, show).await?.findings.len() as u64)
}
