//! `punctual stats`: prints the number of jobs in each state, from counters of the store, and what ran in the last hour, from sums
//! that workers write.

use std::io::Write as _;

use punctual::{store::Counts, toolkit::LastHour, words};
use serde::Serialize;

use super::{Session, hour, watch::Watch};
use crate::{
    errors::Result,
    output::{SEPARATOR, clean, grouped, json},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual stats
  punctual stats -q mail --watch
  punctual stats -o json")]
pub(crate) struct Stats {
    /// Queue to count (default: all).
    #[arg(short, long)]
    queue: Option<String>,
    #[command(flatten)]
    pub(super) watch: Watch,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    store: &'a str,
    durability: &'static str,
    now_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    #[serde(flatten)]
    counts: Counts,
    /// `None` if a queue was requested, or the store did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_hour: Option<LastHour>,
}

pub(crate) async fn run(session: &mut Session, args: &Stats) -> Result {
    let (queue, now_ms) = (args.queue.as_deref(), session.now().await?.as_ms());
    let counts = session.client.count(queue).await?;
    let last_hour = if queue.is_none() { hour::read(session).await } else { None };
    let store = session.client.store();
    let (url, durability) = (store.url(), store.durability().name());
    let answer = Answer { store: url, durability, now_ms, queue, counts, last_hour };
    if session.format.is_json() {
        return Ok(json(&mut session.out, &answer)?);
    }
    writeln!(session.out, "{:<10} {}  durability {}", "store", clean(answer.store), answer.durability)?;
    if let Some(queue) = queue {
        writeln!(session.out, "{:<10} {}", "queue", clean(queue))?;
    }
    if 0 < counts.parts_away {
        let note = "shards cannot be reached; their jobs are not counted";
        writeln!(session.out, "{:<10} {} {note}", "away", counts.parts_away)?;
    }
    let waiting = format!("  (due {}, retrying {})", due(counts.due), grouped(counts.retrying));
    for (name, n, more) in [
        ("waiting", counts.waiting, waiting.as_str()),
        ("running", counts.running, ""),
        ("done", counts.done, ""),
        ("dead", counts.dead, ""),
        ("cancelled", counts.cancelled, ""),
    ] {
        writeln!(session.out, "{name:<10} {}{more}", grouped(n))?;
    }
    writeln!(session.out, "{:<10} {} bytes of payloads, waiting and running", "size", grouped(counts.bytes))?;
    let tables: Vec<_> = answer.last_hour.iter().flat_map(hour::tables).collect();
    if !tables.is_empty() {
        writeln!(session.out, "\n{:<10} {}", "last hour", hour::NOTE)?;
    }
    Ok(tables.iter().try_for_each(|table| table.print(&mut session.out))?)
}

/// Due jobs are counted up to a bound.
pub(super) fn due(n: u64) -> String {
    words::due(n, SEPARATOR)
}
