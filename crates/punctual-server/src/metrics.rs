//! The text that Prometheus reads.
//!
//! Names are `punctual_*`, in base units. `queue` and `kind` are the only labels with an open set of values. [`Metrics`]
//! bounds both. A sample of queues is bounded, too (`metrics/sample.rs`).

mod away;
mod gauges;
mod sample;
mod sampler;

use std::{collections::HashMap, fmt, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use punctual::client::{Counted, KindCounted, Metrics, QueueCounted};

pub(crate) use self::{away::away, sampler::Sampler};
use self::{gauges::Gauges, sampler::Known};

/// The type of the answer.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns what `metrics` counted until now, in the text format of Prometheus (version 0.0.4).
///
/// ```
/// # use punctual::client::Metrics;
/// assert!(punctual_server::text(&Metrics::default()).contains("punctual_build_info{"));
/// ```
pub fn text(metrics: &Metrics) -> String {
    text_of(metrics, None)
}

/// Returns what `metrics` counted, and what is known of the store.
pub(crate) fn text_of(metrics: &Metrics, known: Option<Known>) -> String {
    let counted: Box<dyn Collector> = Box::new(Snapshot(metrics.now()));
    let known = known.map(|known| -> Box<dyn Collector> { Box::new(Gauges(known)) });
    text_from([counted].into_iter().chain(known))
}

/// Returns only what is known of the store.
fn of_store(known: Known) -> String {
    text_from([Box::new(Gauges(known)) as Box<dyn Collector>])
}

fn text_from(collectors: impl IntoIterator<Item = Box<dyn Collector>>) -> String {
    let mut registry = Registry::with_prefix("punctual");
    collectors.into_iter().for_each(|collector| registry.register_collector(collector));
    let mut text = String::new();
    encode(&mut text, &registry).expect("invariant: a string takes any text");
    as_prometheus(&text)
}

/// Makes the older text format of a text in `OpenMetrics`. Every monitoring system reads it, and so does `promtool`.
///
/// The samples are the same in both. The comments differ: in `OpenMetrics` its name lacks the suffix of its
/// samples, there is a type `info`, units have a line, and the text has an end mark.
fn as_prometheus(text: &str) -> String {
    let types: HashMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let comment = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
        let Some((word, rest)) = comment.filter(|_| line != "# EOF") else {
            if line != "# EOF" {
                out.extend([line, "\n"]);
            }
            continue;
        };
        let (name, said) = rest.split_once(' ').unwrap_or((rest, ""));
        let (suffix, said) = match (types.get(name).copied(), word) {
            (Some("counter"), _) => ("_total", said),
            (Some("info"), "TYPE") => ("_info", "gauge"),
            (Some("info"), _) => ("_info", said),
            _ => ("", said),
        };
        if word != "UNIT" {
            out.extend(["# ", word, " ", name, suffix, " ", said, "\n"]);
        }
    }
    out
}

/// What was counted at one time.
#[derive(Debug)]
struct Snapshot(Counted);

impl Snapshot {
    fn queues(&self) -> impl Iterator<Item = (&str, &QueueCounted)> {
        self.0.queues.iter().map(|(queue, counted)| (queue.as_str(), counted))
    }

    fn kinds(&self) -> impl Iterator<Item = ([(&'static str, &str); 2], &KindCounted)> {
        self.queues().flat_map(|(queue, counted)| {
            counted
                .kinds
                .iter()
                .map(move |(kind, counted)| ([("queue", queue), ("kind", kind.as_str())], counted))
        })
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let mut of = counters(&mut to, "jobs_enqueued", "Jobs that this process enqueued, by outcome")?;
        for (labels, counted) in self.kinds() {
            for (status, n) in &counted.enqueued {
                add(&mut of, &[labels[0], labels[1], ("status", *status)], *n)?;
            }
        }
        let mut of = counters(&mut to, "jobs_started", "Runs that this process started")?;
        for (labels, counted) in self.kinds().filter(|(_, counted)| 0 < counted.started) {
            add(&mut of, &labels, counted.started)?;
        }
        let mut of = counters(
            &mut to,
            "jobs_settled",
            "Runs that this process settled, by verdict and by the new state of the job",
        )?;
        for (labels, counted) in self.kinds() {
            for ((verdict, state), n) in &counted.settled {
                add(&mut of, &[labels[0], labels[1], ("verdict", *verdict), ("state", *state)], *n)?;
            }
        }
        let mut of = histograms(
            &mut to,
            "job_lateness",
            "How late jobs started: start minus due time, by the store's clock",
        )?;
        for (queue, counted) in self.queues().filter(|(_, counted)| 0 < counted.lateness.count()) {
            observe(&mut of, &[("queue", queue)], counted.lateness.sum(), counted.lateness.buckets())?;
        }
        let mut of =
            histograms(&mut to, "job_run", "How long runs took, from start to end of their handlers")?;
        for (labels, counted) in self.kinds().filter(|(_, counted)| 0 < counted.runs.count()) {
            observe(&mut of, &labels, counted.runs.sum(), counted.runs.buckets())?;
        }
        let mut of = counters(
            &mut to,
            "leases_reclaimed",
            "Expired leases that this process reclaimed, by the new state of the job",
        )?;
        for (queue, counted) in self.queues() {
            for (state, n) in &counted.reclaimed {
                add(&mut of, &[("queue", queue), ("state", *state)], *n)?;
            }
        }
        let mut of = histograms(&mut to, "store_operation", "How long calls to the store took")?;
        for (verb, calls) in &self.0.calls {
            observe(&mut of, &[("operation", *verb)], calls.sum(), calls.buckets())?;
        }
        let mut of =
            counters(&mut to, "store_errors", "Calls to the store that failed, by the code of the error")?;
        for ((verb, code), n) in &self.0.errors {
            add(&mut of, &[("operation", *verb), ("code", *code)], *n)?;
        }
        counters(
            &mut to,
            "store_changes",
            "How often the store was found to be another one, without the jobs of before",
        )?
        .encode_counter::<NoLabelSet, _, u64>(&self.0.store_changes, None)?;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let mut of = to.encode_descriptor("build", "The version of punctual", None, MetricType::Info)?;
        of.encode_info(&version)
    }
}

fn counters<'a>(
    to: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    to.encode_descriptor(name, help, None, MetricType::Counter)
}

/// Begins histograms of seconds; the unit is added to the name.
fn histograms<'a>(
    to: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    to.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)
}

fn add(of: &mut MetricEncoder<'_>, labels: &impl EncodeLabelSet, n: u64) -> fmt::Result {
    of.encode_family(labels)?.encode_counter::<NoLabelSet, u64, u64>(&n, None)
}

fn observe(
    of: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    sum: Duration,
    buckets: impl Iterator<Item = (Option<Duration>, u64)>,
) -> fmt::Result {
    let buckets: Vec<(f64, u64)> =
        buckets.map(|(bound, n)| (bound.map_or(f64::INFINITY, |bound| bound.as_secs_f64()), n)).collect();
    let count = buckets.iter().map(|(_, n)| n).sum();
    of.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), count, &buckets, None)
}
