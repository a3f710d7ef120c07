//! The server of a store on Redis, read over its own connection: what it did, what that cost, and how its memory grew.
//!
//! Only reads and removes keys; writes none.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use redis::{Value, aio::MultiplexedConnection};
use serde::Serialize;

/// Keys that one step of a search looks at.
const SEARCH_KEYS: usize = 1_000;
/// How often keys are searched again that were written while others were removed.
const SEARCHES_MAX: usize = 20;
/// Searches in a row that find nothing, until what was on its way to the server must have come.
const SEARCHES_IN_VAIN: u32 = 3;
/// How long the server may take to give memory back that it frees beside its work.
const FREE_MAX: Duration = Duration::from_mins(1);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// How long the server may take for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Commands that are not called from within a script. The server counts the time of what a script calls twice, as the script's
/// and as the command's, so that a sum over all commands would not be the time that passed.
const OUTERMOST: [&str; 4] = ["cmdstat_evalsha", "cmdstat_eval", "cmdstat_bzpopmin", "cmdstat_script|load"];

/// A connection beside the store's own.
pub(super) struct Server {
    connection: MultiplexedConnection,
}

/// What the server did since it started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Calls of scripts.
    calls: u64,
    /// Calls of anything, also from within scripts, but for our own looks.
    pub(super) commands: u64,
    /// Microseconds that it spent in scripts and notifications, as it measured them itself.
    us: u64,
    /// Microseconds of processor time of the thread that runs commands: reading, answering and the system's share, too.
    cpu_us: f64,
}

/// What each of many lives cost the server.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Cost {
    /// As the server measured its scripts.
    pub(super) us: f64,
    /// Processor time of its main thread.
    pub(super) cpu_us: f64,
    /// Calls of scripts: how large the batches were.
    pub(super) calls: f64,
}

impl Usage {
    /// What happened since, for each of so many lives.
    pub(super) fn since(self, before: Self, lives: usize) -> Cost {
        let each = |n: f64| n / lives.max(1) as f64;
        Cost {
            us: each((self.us - before.us) as f64),
            cpu_us: each(self.cpu_us - before.cpu_us),
            calls: each((self.calls - before.calls) as f64),
        }
    }
}

impl Server {
    /// Connects to where the store's address leads.
    pub(super) async fn connect(url: &str) -> Result<Self> {
        // Options of the store mean nothing to the client.
        let client = redis::Client::open(url)?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_MAX));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        Ok(Self { connection: connection.context("could not connect to the server")? })
    }

    /// Another handle on the same connection.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// All fields of INFO, by name.
    async fn info(&self) -> Result<HashMap<String, String>> {
        let mut connection = self.connection();
        let text: String = redis::cmd("INFO")
            .arg("everything")
            .query_async(&mut connection)
            .await
            .context("could not ask the server what it does (INFO)")?;
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    /// What it did so far.
    pub(super) async fn usage(&self) -> Result<Usage> {
        Ok(usage(&self.info().await?))
    }

    /// Bytes in use, once nothing is left to be freed.
    pub(super) async fn memory(&self) -> Result<u64> {
        let begin = Instant::now();
        loop {
            let info = self.info().await?;
            let pending = info.get("lazyfree_pending_objects").is_some_and(|n| n != "0");
            if !pending {
                let used = info.get("used_memory").and_then(|n| n.parse().ok());
                return used.context("the server does not report its memory");
            }
            if FREE_MAX < begin.elapsed() {
                bail!("the server still frees memory after {} s", FREE_MAX.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Removes all keys that begin with `prefix`, which has none of a pattern's signs; also what is written meanwhile by
    /// workers that were stopped just now.
    pub(super) async fn remove(&self, prefix: &str) -> Result<()> {
        let mut in_vain = 0;
        for _ in 0..SEARCHES_MAX {
            in_vain = if self.remove_once(prefix).await? == 0 { in_vain + 1 } else { 0 };
            if in_vain == SEARCHES_IN_VAIN {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        bail!("another process still writes keys that begin with {prefix}: remove them by hand")
    }

    async fn remove_once(&self, prefix: &str) -> Result<usize> {
        let (mut connection, mut cursor, mut removed) = (self.connection(), 0_u64, 0);
        loop {
            let (next, keys): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(format!("{prefix}*"))
                .arg("COUNT")
                .arg(SEARCH_KEYS)
                .query_async(&mut connection)
                .await?;
            removed += keys.len();
            for key in keys {
                let _: Value = redis::cmd("UNLINK").arg(key).query_async(&mut connection).await?;
            }
            if next == 0 {
                return Ok(removed);
            }
            cursor = next;
        }
    }
}

/// Reads the counters of INFO.
fn usage(info: &HashMap<String, String>) -> Usage {
    let seconds = |name: &str| info.get(name).and_then(|n| n.parse::<f64>().ok());
    // Servers before 6.2 report only the sum of all threads.
    let main = seconds("used_cpu_user_main_thread").zip(seconds("used_cpu_sys_main_thread"));
    let all = || seconds("used_cpu_user").zip(seconds("used_cpu_sys"));
    let (user, system) = main.or_else(all).unwrap_or_default();
    let mut usage = Usage { cpu_us: (user + system) * 1e6, ..Usage::default() };
    for (name, value) in info.iter().filter(|(name, _)| name.starts_with("cmdstat_")) {
        let field = |wanted: &str| {
            let mut fields = value.split(',').filter_map(|field| field.split_once('='));
            fields.find(|(name, _)| *name == wanted).and_then(|(_, n)| n.parse().ok()).unwrap_or(0_u64)
        };
        if name != "cmdstat_info" {
            usage.commands += field("calls");
        }
        if OUTERMOST.contains(&name.as_str()) {
            usage.us += field("usec");
        }
        if name.starts_with("cmdstat_eval") {
            usage.calls += field("calls");
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scripts_call_is_not_counted_twice() {
        let info = [
            ("used_cpu_user", "9.0"),
            ("used_cpu_user_main_thread", "2.0"),
            ("used_cpu_sys_main_thread", "1.5"),
            ("cmdstat_evalsha", "calls=4,usec=100,usec_per_call=25.00,rejected_calls=0,failed_calls=0"),
            ("cmdstat_zadd", "calls=40,usec=60,usec_per_call=1.50,rejected_calls=0,failed_calls=0"),
            ("cmdstat_bzpopmin", "calls=1,usec=7"),
            ("cmdstat_info", "calls=1000,usec=100000"),
            ("uptime_in_seconds", "3"),
        ];
        let usage = usage(&info.map(|(name, value)| (name.into(), value.into())).into());
        assert_eq!((usage.calls, usage.commands, usage.us), (4, 45, 107));
        let cost = usage.since(Usage::default(), 2);
        assert_eq!((cost.us, cost.cpu_us, cost.calls), (53.5, 1_750_000.0, 2.0));
    }
}
