//! `punctual upcoming`: prints a histogram of the due times of waiting jobs.

use std::{io::Write as _, time::Duration};

use punctual::{Timestamp, job::parse_duration};
use serde::Serialize;

use super::Session;
use crate::{
    errors::{Failure, Result},
    output::{grouped, json},
    times::{span, wall},
};

/// Buckets that are shown.
const BUCKETS: usize = 48;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  punctual upcoming
  punctual upcoming -q mail --for 7d
  punctual upcoming -o json")]
pub(crate) struct Upcoming {
    /// Queue to count (default: all).
    #[arg(short, long)]
    queue: Option<String>,
    /// Period to look ahead (default: 24 h).
    #[arg(long = "for", default_value = "24h", hide_default_value = true, value_parser = parse_duration, value_name = "DURATION")]
    span: Duration,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    now_ms: u64,
    bucket_ms: u64,
    overdue: u64,
    buckets: &'a [u64],
    complete: bool,
}

pub(crate) async fn run(session: &mut Session, args: &Upcoming) -> Result {
    let ms = u64::try_from(args.span.as_millis()).unwrap_or(u64::MAX);
    let bucket_ms = ms.div_ceil(BUCKETS as u64);
    if bucket_ms == 0 {
        return Err(Failure::invalid("--for must be at least 1 ms"));
    }
    let request = punctual::store::Upcoming {
        queue: args.queue.clone(),
        bucket: Duration::from_millis(bucket_ms),
        buckets: BUCKETS,
    };
    let found = session.client.upcoming(&request).await?;
    if session.format.is_json() {
        let (overdue, complete) = (found.overdue, found.complete);
        let answer =
            Answer { now_ms: found.now.as_ms(), bucket_ms, overdue, buckets: &found.buckets, complete };
        return Ok(json(&mut session.out, &answer)?);
    }
    let due: u64 = found.buckets.iter().sum();
    let peak = found.buckets.iter().copied().enumerate().max_by_key(|(i, n)| (*n, std::cmp::Reverse(*i)));
    let peak = peak.filter(|(_, n)| 0 < *n).map(|(i, n)| {
        let edge =
            |i: usize| Timestamp::after(found.now, Duration::from_millis(bucket_ms.saturating_mul(i as u64)));
        let show = |i| wall(edge(i), found.now, &session.zone);
        format!(" · peak {} at {}–{}", grouped(n), show(i), show(i + 1))
    });
    let at_least = if found.complete { "" } else { "at least " };
    writeln!(
        session.out,
        "now {} +{}   {at_least}{} due{} · overdue {}",
        sparkline(&found.buckets),
        span(args.span),
        grouped(due),
        peak.unwrap_or_default(),
        grouped(found.overdue),
    )?;
    Ok(())
}

/// Eight heights; anything above nothing is seen.
fn sparkline(buckets: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = buckets.iter().copied().max().unwrap_or(0).max(1);
    let bar = |n: u64| if n == 0 { ' ' } else { BARS[usize::try_from(n * 7 / most).unwrap_or(7)] };
    buckets.iter().map(|n| bar(*n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_is_seen_beside_many() {
        assert_eq!(sparkline(&[0, 1, 350, 700]), " ▁▄█");
        assert_eq!(sparkline(&[0, 0]), "  ");
    }
}
