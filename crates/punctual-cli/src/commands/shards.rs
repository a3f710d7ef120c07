//! `punctual shards [M]`: shows or changes the number of shards of a store on Redis, while it is in use.

use std::io::Write as _;

use punctual::{
    ErrorKind,
    store::{clock::Clock, redis::RedisStore},
};

use super::limit::Limit;
use crate::{
    args::Globals,
    errors::{Failure, Result},
    output::{Out, Table, counted, grouped, json},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A shard is a part of a store, with all of its keys on one server of a cluster. After a change, new jobs are spread over the \
new number of shards. Jobs that exist stay in their shards until they end.

Examples:
  punctual shards --store redis://localhost
  punctual shards 16 --store redis://localhost")]
pub(crate) struct Shards {
    /// New number of shards, 1 to 1,024 (default: only show the shards).
    #[arg(value_name = "M")]
    count: Option<u16>,
}

impl Shards {
    pub(crate) const fn only_looks(&self) -> bool {
        self.count.is_none()
    }
}

pub(crate) async fn run(globals: &Globals, args: &Shards, limit: &Limit) -> Result {
    let url = globals.store();
    if !url.starts_with("redis") {
        return Err(Failure::new(ErrorKind::Unsupported, "only a store on Redis has shards")
            .why("a store in a file has all of its jobs on one machine")
            .hint("--store redis://host"));
    }
    let look = async {
        let store = RedisStore::open(url, Clock::System).await?;
        match args.count {
            Some(count) => store.reshard(count).await,
            None => store.shards().await,
        }
    };
    let passed = || if args.only_looks() { limit.passed() } else { limit.passed_within_a_change() };
    let shards = limit.within(look).await.ok_or_else(passed)??;
    let mut out = Out::new(std::io::stdout());
    if globals.json() {
        json(&mut out, &shards)?;
        return Ok(out.flush()?);
    }
    let mut table = Table::new(["SHARD", "ACCEPTS JOBS", "JOBS", "IDS AND KEYS KEPT"]);
    for shard in &shards.shards {
        let takes = if shard.is_open { "yes" } else { "no, until it is empty" };
        table.row([shard.number.to_string(), takes.to_owned(), grouped(shard.jobs), grouped(shard.kept)]);
    }
    table.print(&mut out)?;
    out.flush()?;
    if !globals.quiet {
        // Nobody is left to talk to when stderr is gone.
        let _ = writeln!(std::io::stderr(), "{} accept jobs", counted(shards.count.into(), "shard"));
    }
    Ok(())
}
