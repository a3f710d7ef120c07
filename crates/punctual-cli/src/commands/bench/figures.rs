//! All figures of one run, as one JSON object or as a table.

use std::fmt;

use serde::Serialize;

use super::{LATENESS_RATE, PAYLOAD_BYTES, reference::Reference, server::Cost};
use crate::quantile::quantile;

/// Every figure of one run. What a store has not is null.
#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) store: String,
    /// Of what the store is built on, where its doctor names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    pub(super) durability: &'static str,
    /// Of one commit that the disk has confirmed.
    pub(super) fsync_ms: Option<f64>,
    /// By one caller and a worker with one slot, in calls of one job. Done jobs are kept by default.
    pub(super) lives_one_by_one_per_s: f64,
    /// The same for a server of Redis, where callgrind can count.
    #[serde(flatten)]
    pub(super) instructions: Option<Instructions>,
    pub(super) enqueue_bulk_per_s: f64,
    pub(super) enqueue_single_per_s: f64,
    pub(super) enqueue_single64_per_s: f64,
    pub(super) lives_per_s: f64,
    pub(super) lives_random_due_per_s: f64,
    pub(super) lives_default_retention_per_s: f64,
    /// By one worker, of jobs that were all enqueued before.
    pub(super) drain_per_s: f64,
    /// The same with `waiting_jobs` far in the future beside them.
    pub(super) drain_beside_waiting_per_s: f64,
    pub(super) pickup_ms: Spread,
    pub(super) lateness_ms: Spread,
    /// Commands of a server, statements of a file.
    pub(super) idle_ops_per_s: Option<f64>,
    pub(super) idle_cpu_percent: Option<f64>,
    pub(super) waiting_jobs: usize,
    pub(super) bytes_per_waiting_job: Option<f64>,
    #[serde(flatten)]
    pub(super) server: Option<ServerFigures>,
    pub(super) reference: Option<Reference>,
}

/// What a life costs the server: microseconds in its scripts, microseconds of processor time of its main thread, and calls,
/// each with batches as large as a worker makes them.
#[expect(clippy::struct_field_names, reason = "they stand beside the figures of the client")]
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ServerFigures {
    server_us_per_life: f64,
    server_cpu_us_per_life: f64,
    server_calls_per_life: f64,
    server_us_per_life_default_retention: f64,
    server_cpu_us_per_life_default_retention: f64,
    /// Each job enqueued, reserved and acked in a call of its own, the ack with the next reserve.
    server_us_per_life_single: f64,
    server_cpu_us_per_life_single: f64,
    server_calls_per_life_single: f64,
    server_us_per_life_single_default_retention: f64,
    server_cpu_us_per_life_single_default_retention: f64,
}

/// Instructions of a server for a life, one by one and with default retention, and for bare scripts that keep nothing.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Instructions {
    pub(super) server_instructions_per_life: u64,
    pub(super) server_instructions_per_life_bare: u64,
}

impl ServerFigures {
    /// Nothing kept after the ack; kept by default; the same one by one.
    pub(super) const fn of(nothing_kept: Cost, kept: Cost, single: Cost, single_kept: Cost) -> Self {
        Self {
            server_us_per_life: nothing_kept.us,
            server_cpu_us_per_life: nothing_kept.cpu_us,
            server_calls_per_life: nothing_kept.calls,
            server_us_per_life_default_retention: kept.us,
            server_cpu_us_per_life_default_retention: kept.cpu_us,
            server_us_per_life_single: single.us,
            server_cpu_us_per_life_single: single.cpu_us,
            server_calls_per_life_single: single.calls,
            server_us_per_life_single_default_retention: single_kept.us,
            server_cpu_us_per_life_single_default_retention: single_kept.cpu_us,
        }
    }
}

/// Quantiles in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Spread {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Spread {
    pub(super) fn of(mut ms: Vec<f64>) -> Self {
        ms.sort_by(f64::total_cmp);
        Self {
            p50: quantile(&ms, 0.5),
            p99: quantile(&ms, 0.99),
            p999: quantile(&ms, 0.999),
            max: quantile(&ms, 1.0),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:.2} · p99 {:.2} · p99.9 {:.2} · max {:.2} ms",
            self.p50, self.p99, self.p999, self.max
        )
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.reference.unwrap_or_default();
        let version = self.version.as_ref().map(|version| format!(" · {version}")).unwrap_or_default();
        let fsync = self.fsync_ms.map(|ms| format!(" · one synced commit {ms:.2} ms")).unwrap_or_default();
        writeln!(
            f,
            "{}{version} · durability {} · {PAYLOAD_BYTES}-byte payloads{fsync}",
            self.store, self.durability
        )?;
        let yardstick = match (self.reference, self.server) {
            (None, _) => "",
            (_, None) => "plain SQL",
            (_, Some(_)) => "bare scripts",
        };
        writeln!(f, "{:<38}{:>12}{yardstick:>14}", "", "punctual")?;
        let mut row = |what: &str, ours: f64, plain: f64| {
            let plain = if plain == 0.0 { String::new() } else { format!("{plain:.0}") };
            writeln!(f, "{what:<38}{ours:>12.0}{plain:>14}")
        };
        row("one by one, kept 24 h, jobs/s", self.lives_one_by_one_per_s, 0.0)?;
        if let Some(of) = self.instructions {
            let thousands = |n: u64| n as f64 / 1e3;
            row(
                "  thousands of instructions of Redis",
                thousands(of.server_instructions_per_life),
                thousands(of.server_instructions_per_life_bare),
            )?;
        }
        row("bulk enqueue, jobs/s", self.enqueue_bulk_per_s, plain.insert_per_s)?;
        row("single enqueue, 1 caller, jobs/s", self.enqueue_single_per_s, 0.0)?;
        row("single enqueue, 64 callers, jobs/s", self.enqueue_single64_per_s, 0.0)?;
        row("enqueue and run, in order, jobs/s", self.lives_per_s, plain.lives_per_s)?;
        row(
            "enqueue and run, random due, jobs/s",
            self.lives_random_due_per_s,
            plain.lives_random_due_per_s,
        )?;
        row("enqueue and run, kept 24 h, jobs/s", self.lives_default_retention_per_s, 0.0)?;
        row("drain by one worker, jobs/s", self.drain_per_s, 0.0)?;
        row(
            &format!("drain with {} waiting, jobs/s", self.waiting_jobs),
            self.drain_beside_waiting_per_s,
            0.0,
        )?;
        if let Some(bytes) = self.bytes_per_waiting_job {
            row("bytes per waiting job", bytes, 0.0)?;
        }
        if let Some(server) = &self.server {
            server.rows(f, &plain)?;
        }
        writeln!(f, "{:<38}{}", "pick-up, enqueue call to start", self.pickup_ms)?;
        writeln!(f, "{:<38}{}", format!("lateness at {LATENESS_RATE} jobs/s"), self.lateness_ms)?;
        if let Some((operations, cpu)) = self.idle_ops_per_s.zip(self.idle_cpu_percent) {
            writeln!(f, "{:<38}{operations:.2} operations/s, {cpu:.2} % of one CPU", "idle")?;
        }
        Ok(())
    }
}

impl ServerFigures {
    fn rows(&self, f: &mut fmt::Formatter<'_>, plain: &Reference) -> fmt::Result {
        writeln!(f, "{:<38}{:>12}{:>14}", "server, µs per job: scripts / CPU", "", "")?;
        let mut row = |what: &str, ours: (f64, f64), plain: Option<(f64, f64)>| {
            let pair = |(us, cpu_us): (f64, f64)| format!("{us:.1} / {cpu_us:.1}");
            let plain = plain.map(pair).unwrap_or_default();
            writeln!(f, "  {what:<36}{:>12}{plain:>14}", pair(ours))
        };
        row(
            &format!("{:.3} calls per job, nothing kept", self.server_calls_per_life),
            (self.server_us_per_life, self.server_cpu_us_per_life),
            plain.server_us_per_life.zip(plain.server_cpu_us_per_life),
        )?;
        row(
            "default retention",
            (self.server_us_per_life_default_retention, self.server_cpu_us_per_life_default_retention),
            None,
        )?;
        row(
            "one by one",
            (self.server_us_per_life_single, self.server_cpu_us_per_life_single),
            plain.server_us_per_life_single.zip(plain.server_cpu_us_per_life_single),
        )?;
        row(
            "one by one, default retention",
            (
                self.server_us_per_life_single_default_retention,
                self.server_cpu_us_per_life_single_default_retention,
            ),
            None,
        )
    }
}
