//! `punctual stats`: how many jobs there are, from counters the store keeps.

use std::io::Write as _;

use punctual::{limits::DUE_COUNT_MAX, store::Counts};
use serde::Serialize;

use super::{Session, watch::Watch};
use crate::{
    errors::Result,
    output::{clean, grouped, json},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// One queue instead of all.
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
}

pub(crate) async fn run(session: &mut Session, args: &Stats) -> Result {
    let (queue, now_ms) = (args.queue.as_deref(), session.now().await?.as_ms());
    let counts = session.client.count(queue).await?;
    let store = session.client.store();
    let answer = Answer { store: store.url(), durability: store.durability().name(), now_ms, queue, counts };
    if session.format.is_json() {
        return Ok(json(&mut session.out, &answer)?);
    }
    writeln!(session.out, "{:<10} {}  durability {}", "store", clean(answer.store), answer.durability)?;
    if let Some(queue) = queue {
        writeln!(session.out, "{:<10} {}", "queue", clean(queue))?;
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
    Ok(writeln!(session.out, "{:<10} {} bytes of payload wait or run", "size", grouped(counts.bytes))?)
}

/// Due jobs are counted up to a bound.
pub(super) fn due(n: u64) -> String {
    if n < DUE_COUNT_MAX { grouped(n) } else { format!("{}+", grouped(DUE_COUNT_MAX)) }
}
