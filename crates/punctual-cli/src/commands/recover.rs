//! `punctual recover FILE`: copies what can be read of a damaged file into a new one, and repairs that.

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

/// How often the new file is repaired: what is found by the first repair can need a second.
const REPAIRS: usize = 2;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
SQLite ends a read at the first damaged page, so a few wrong bits can stop every job of a file. This command reads each page \
alone, writes what it finds to a new file, and repairs that as `punctual audit --repair` does. The damaged file is not changed. \
A job whose end was lost runs again. Tables of an application in the same file are not copied.

Afterwards stop all programs that use the damaged file, move it away with its -wal and -shm, and put the new file in its place. \
If they still worked meanwhile, stop them first. The exit code is 1 if the new file could not be repaired.

Examples:
  punctual recover new.db
  punctual recover new.db --store sqlite:/var/lib/app/jobs.db --json")]
pub(crate) struct Recover {
    /// The new file, which must not exist.
    file: PathBuf,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    recovered: Recovered,
    /// What was wrong in the new file.
    findings: u64,
    /// Whether all of it was repaired.
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
    let recovered = SqliteStore::recover(url, args.file.clone(), show).await?;
    let client = Client::new(Arc::new(SqliteStore::open(&args.file, SqliteOptions::default())?));
    let (mut findings, mut ok) = (0, false);
    for _ in 0..REPAIRS {
        let mut progress = Progress::new(shown);
        let report = client
            .audit(true, |checked| progress.show(|| format!("{} checked", counted(checked, "entry"))))
            .await?;
        findings += report.findings.len() as u64;
        ok = report.findings.iter().all(|finding| finding.repaired);
    }
    let mut out = Out::new(io::stdout());
    if globals.json() {
        json(&mut out, &Answer { recovered, findings, ok })?;
    } else {
        let Recovered { jobs, rows, lost_rows, pages, lost_pages } = recovered;
        writeln!(out, "{} in {}, repaired", counted(jobs, "job"), args.file.display())?;
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
