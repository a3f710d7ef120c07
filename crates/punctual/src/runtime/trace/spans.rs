//! The spans: `send` for an enqueue, `process` for a run, `receive` and `settle` for calls of a worker to its store.

use std::{collections::BTreeMap, time::SystemTime};

use opentelemetry::{
    Context, InstrumentationScope, KeyValue,
    global::{self, BoxedSpan, BoxedTracer},
    trace::{
        FutureExt as _, Link, Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
    },
};

use super::{names, w3c};
use crate::{
    core::{
        error::{Error, ErrorKind, Result},
        job::{NewJob, cut_error},
        lifecycle::{PANICKED, TIMED_OUT},
    },
    runtime::{
        handler::{Call, Stop},
        worker::Lateness,
    },
    store::{Batch, Enqueued, Lease, Settled, Settlement, Verdict},
};

/// Most links of one span, the default of the SDK.
const LINKS_MAX: usize = 128;

fn tracer() -> BoxedTracer {
    let scope = InstrumentationScope::builder(names::PUNCTUAL).with_version(env!("CARGO_PKG_VERSION"));
    global::tracer_with_scope(scope.build())
}

/// Returns the queue of some jobs, if all of them are in the same one.
fn only<'a>(mut queues: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let first = queues.next()?;
    queues.all(|queue| queue == first).then_some(first)
}

/// Returns links to the producers of jobs with these headers. Jobs of one enqueue share one.
fn links<'a>(headers: impl Iterator<Item = &'a BTreeMap<String, String>>) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for context in headers.filter_map(w3c::of) {
        if links.len() == LINKS_MAX {
            break;
        }
        if links.last().is_none_or(|last| last.span_context != context) {
            links.push(Link::with_context(context));
        }
    }
    links
}

/// Makes the span of an operation on `n` jobs. `queue` is theirs, if it is the same for all.
fn operation(name: &'static str, queue: Option<&str>, kind: SpanKind, n: usize) -> SpanBuilder {
    let mut attributes = vec![
        KeyValue::new(names::SYSTEM, names::PUNCTUAL),
        KeyValue::new(names::OPERATION_NAME, name),
        KeyValue::new(names::OPERATION_TYPE, name),
    ];
    attributes.extend(queue.map(|queue| KeyValue::new(names::DESTINATION, queue.to_owned())));
    if 1 < n {
        attributes.push(KeyValue::new(names::MESSAGE_COUNT, i64::try_from(n).unwrap_or(i64::MAX)));
    }
    let builder = match queue {
        Some(queue) => SpanBuilder::from_name(format!("{name} {queue}")),
        None => SpanBuilder::from_name(name),
    };
    builder.with_kind(kind).with_attributes(attributes)
}

fn fail(span: &mut BoxedSpan, kind: ErrorKind, message: String) {
    span.set_attribute(KeyValue::new(names::ERROR_TYPE, kind.code()));
    span.set_status(Status::error(message));
}

/// The `send` span of an enqueue. If it is dropped, it ends without an answer.
pub(crate) struct Sending(Option<BoxedSpan>);

impl Sending {
    /// Begins the span. Jobs without a trace context get that of the span.
    ///
    /// Jobs with a context of their own, such as those of an outbox, keep it, and the span links to it.
    pub(crate) fn begin(jobs: &mut [NewJob]) -> Self {
        if jobs.is_empty() {
            return Self(None);
        }
        // By the conventions, a span is the producer only if its context travels with a job.
        let produces = jobs.iter().any(|job| !w3c::is_in(&job.headers));
        let kind = if produces { SpanKind::Producer } else { SpanKind::Client };
        let queue = only(jobs.iter().map(|job| job.queue.as_str()));
        let span = operation(names::SEND, queue, kind, jobs.len())
            .with_links(links(jobs.iter().map(|job| &job.headers)));
        let span = tracer().build(span);
        w3c::add(span.span_context(), jobs);
        Self(Some(span))
    }

    /// Ends the span.
    pub(crate) fn end(self, answers: Result<&[Enqueued], &Error>) {
        let Some(mut span) = self.0 else { return };
        match answers {
            Ok(answers) => {
                // The store can change an id, so it is known only now.
                if let [answer] = answers
                    && let Some(id) = answer.id()
                {
                    span.set_attribute(KeyValue::new(names::MESSAGE_ID, id.to_string()));
                }
                if answers.contains(&Enqueued::Full) {
                    fail(&mut span, ErrorKind::Full, "the queue is full".to_owned());
                } else if answers.iter().any(|answer| matches!(answer, Enqueued::Conflict { .. })) {
                    fail(&mut span, ErrorKind::Conflict, "a job of another queue has the id".to_owned());
                }
            }
            Err(error) => fail(&mut span, error.kind(), error.to_string()),
        }
        span.end();
    }
}

/// The `process` span of a run, and the context that its handler runs in. The default has no span.
#[derive(Clone, Default)]
pub(crate) struct Running(Context);

impl Running {
    /// Begins the span: the root of a new trace, with a link to the producer.
    ///
    /// If the worker continues traces, the span of a job's first run is a child of the producer's span instead.
    pub(crate) fn begin(call: &Call, continues: bool) -> Self {
        let job = call.record();
        let is_first = job.attempt == 1 && job.snoozes == 0;
        let lateness = Lateness::of(job, job.run_at).as_millis();
        let mut span = operation(names::PROCESS, Some(call.queue()), SpanKind::Consumer, 1);
        span.attributes.get_or_insert_default().extend([
            KeyValue::new(names::MESSAGE_ID, job.id.to_string()),
            KeyValue::new(names::KIND, job.kind.clone()),
            KeyValue::new(names::ATTEMPT, i64::from(job.attempt)),
            KeyValue::new(names::LATENESS, i64::try_from(lateness).unwrap_or(i64::MAX)),
        ]);
        let mut parent = Context::new();
        match w3c::of(&job.headers) {
            Some(producer) if continues && is_first => parent = parent.with_remote_span_context(producer),
            Some(producer) => span = span.with_links(vec![Link::with_context(producer)]),
            None => {}
        }
        Self(Context::new().with_span(tracer().build_with_context(span, &parent)))
    }

    /// Calls `f` in the context of the run.
    pub(crate) fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        let _in = self.0.clone().attach();
        f()
    }

    /// Runs a future in the context of the run.
    pub(crate) fn around<F: Future>(&self, run: F) -> impl Future<Output = F::Output> + use<F> {
        run.with_context(self.0.clone())
    }

    /// Ends the span with the verdict of the run.
    pub(crate) fn end(&self, call: &Call, verdict: &Verdict, name: &'static str) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new(names::VERDICT, name));
        let failed = |kind: &'static str, message: &str| {
            span.set_attribute(KeyValue::new(names::ERROR_TYPE, kind));
            span.set_status(Status::error(message.to_owned()));
        };
        match verdict {
            _ if call.stop_reason() == Some(Stop::LeaseLost) => failed("lease_lost", "the lease was lost"),
            Verdict::Retry { error, .. } | Verdict::RetryAfter { error, .. } | Verdict::Dead { error } => {
                failed(error_type(error), cut_error(error));
            }
            _ => {}
        }
        span.end();
    }
}

/// Returns the type of a run's error, which must be one of few. Texts of handlers have no type.
fn error_type(error: &str) -> &'static str {
    if error.starts_with(TIMED_OUT) {
        "timeout"
    } else if error.starts_with(PANICKED) {
        "panic"
    } else {
        names::OTHER
    }
}

/// A call of a worker to its store, which settles jobs, reserves jobs, or both.
pub(crate) struct Calling(SystemTime);

impl Calling {
    pub(crate) fn begin() -> Self {
        Self(SystemTime::now())
    }

    /// Records a `settle` span if something was to be settled, and a `receive` span if jobs were reserved.
    ///
    /// `run_of` returns the run of a lease that is settled. A call that only reserves and fails is a `receive` span,
    /// too. One that finds no job is no span.
    pub(crate) fn end(
        self,
        settlements: &[Settlement],
        run_of: impl Fn(Lease) -> Option<Call>,
        answer: &Result<(Vec<Settled>, Option<Batch>)>,
    ) {
        let error = answer.as_ref().err();
        if !settlements.is_empty() {
            let runs: Vec<Call> = settlements.iter().filter_map(|settled| run_of(settled.lease)).collect();
            let jobs = runs.iter().map(|run| (run.queue(), run.headers()));
            let ids = settlements.iter().map(|settled| settled.lease.job.to_string());
            self.record(names::SETTLE, jobs, ids, error);
        }
        let batch = answer.as_ref().ok().and_then(|(_, batch)| batch.as_ref());
        let reserved = batch.map_or(&[][..], |batch| &batch.jobs);
        if !reserved.is_empty() || (settlements.is_empty() && error.is_some()) {
            let jobs = reserved.iter().map(|reserved| (reserved.job.queue.as_str(), &reserved.job.headers));
            let ids = reserved.iter().map(|reserved| reserved.job.id.to_string());
            self.record(names::RECEIVE, jobs, ids, error);
        }
    }

    /// Records a span that lasted from the begin of the call until now.
    fn record<'a>(
        &self,
        name: &'static str,
        jobs: impl Iterator<Item = (&'a str, &'a BTreeMap<String, String>)> + Clone,
        mut ids: impl ExactSizeIterator<Item = String>,
        error: Option<&Error>,
    ) {
        let queue = only(jobs.clone().map(|(queue, _)| queue));
        let mut span = operation(name, queue, SpanKind::Client, ids.len()).with_start_time(self.0);
        if ids.len() == 1
            && let Some(id) = ids.next()
        {
            span.attributes.get_or_insert_default().push(KeyValue::new(names::MESSAGE_ID, id));
        }
        let mut span = tracer().build_with_context(span, &Context::new());
        // Not even read unless the span is recorded: there can be many.
        if span.is_recording() {
            for Link { span_context, attributes, .. } in links(jobs.map(|(_, headers)| headers)) {
                span.add_link(span_context, attributes);
            }
        }
        if let Some(error) = error {
            fail(&mut span, error.kind(), error.to_string());
        }
        span.end();
    }
}

/// Runs a future outside of any trace.
#[cfg(feature = "cron")]
pub(crate) fn detached<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    future.with_context(Context::new())
}
