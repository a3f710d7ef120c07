//! The gauges of a store and its queues.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, MetricEncoder},
    metrics::MetricType,
    registry::Unit,
};
use punctual::store::Counts;

use super::sampler::Known;

/// What is known of a store at one time.
#[derive(Debug)]
pub(super) struct Gauges(pub(super) Known);

impl Collector for Gauges {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let mut of = gauges(&mut to, "store_up", "Whether the store answers: 1, or 0 if it is away", None)?;
        of.encode_gauge(&u64::from(self.0.is_up))?;
        let Some(sample) = &self.0.sample else { return Ok(()) };

        let help = "How long ago the gauges of the store and of its queues were read";
        let mut of = gauges(&mut to, "sample_age", help, Some(&Unit::Seconds))?;
        of.encode_gauge(&sample.at.elapsed().as_secs_f64())?;
        let help = "Jobs of all queues together, by state; due and retrying jobs are waiting jobs";
        let mut of = gauges(&mut to, "store_jobs", help, None)?;
        for (state, n) in states(&sample.counts) {
            set(&mut of, &[("state", state)], &n)?;
        }
        let mut of = gauges(&mut to, "queues_left_out", "Queues without gauges of their own", None)?;
        of.encode_gauge(&sample.left_out)?;

        let help = "Jobs of a queue, by state; due and retrying jobs are waiting jobs";
        let mut of = gauges(&mut to, "queue_jobs", help, None)?;
        for queue in &sample.queues {
            for (state, n) in states(&queue.counts) {
                set(&mut of, &[("queue", queue.name.as_str()), ("state", state)], &n)?;
            }
        }
        let help = "How long the oldest due job of a queue that no concurrency key holds back has been due, 0 if there is none";
        let mut of = gauges(&mut to, "queue_oldest_due", help, Some(&Unit::Seconds))?;
        for queue in &sample.queues {
            set(&mut of, &[("queue", queue.name.as_str())], &queue.oldest_due.as_secs_f64())?;
        }
        let help = "How long the oldest job of a queue that its concurrency key holds back has been due, 0 if there is none";
        let mut of = gauges(&mut to, "queue_oldest_blocked", help, Some(&Unit::Seconds))?;
        for queue in &sample.queues {
            set(&mut of, &[("queue", queue.name.as_str())], &queue.oldest_blocked.as_secs_f64())?;
        }
        let mut of = gauges(&mut to, "queue_paused", "Whether a queue is paused: 1, else 0", None)?;
        for queue in &sample.queues {
            set(&mut of, &[("queue", queue.name.as_str())], &u64::from(queue.is_paused))?;
        }
        Ok(())
    }
}

const fn states(counts: &Counts) -> [(&'static str, u64); 7] {
    [
        ("waiting", counts.waiting),
        ("due", counts.due),
        ("retrying", counts.retrying),
        ("running", counts.running),
        ("done", counts.done),
        ("dead", counts.dead),
        ("cancelled", counts.cancelled),
    ]
}

fn gauges<'a>(
    to: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
    unit: Option<&'a Unit>,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    to.encode_descriptor(name, help, unit, MetricType::Gauge)
}

fn set(
    of: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    value: &impl EncodeGaugeValue,
) -> fmt::Result {
    of.encode_family(labels)?.encode_gauge(value)
}
