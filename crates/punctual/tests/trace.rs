//! Spans for OpenTelemetry, as an exporter gets them. One exporter serves all tests, so each test has a queue of its own.

#![cfg(all(feature = "derive", feature = "otel", feature = "testing"))]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use opentelemetry::{
    Context, KeyValue, global,
    trace::{
        FutureExt as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, Tracer as _,
        TracerProvider as _,
    },
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use punctual::{
    Client, Ctx, Job, NewJob, Outcome, Payload, Worker, store::memory::MemoryStore, testing::Clock,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::unbounded_channel;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt as _;

#[derive(Clone, Debug, Job, Serialize, Deserialize)]
#[job(kind = "test.work", backoff = "fixed 10s")]
struct Work {
    n: u32,
}

const PRODUCER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The exporter of this test binary.
fn exporter() -> &'static InMemorySpanExporter {
    static EXPORTER: OnceLock<InMemorySpanExporter> = OnceLock::new();
    EXPORTER.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("tracing"));
        global::set_tracer_provider(provider);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
        exporter
    })
}

fn client() -> Client {
    exporter();
    Client::new(Arc::new(MemoryStore::new(Clock::System)))
}

/// The spans by this name, in the order of their ends.
fn spans(name: &str) -> Vec<SpanData> {
    let all = exporter().get_finished_spans().unwrap();
    all.into_iter().filter(|span| span.name == name).collect()
}

fn span(name: &str) -> SpanData {
    let mut spans = spans(name);
    assert_eq!(spans.len(), 1, "{name}: {spans:#?}");
    spans.remove(0)
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let mut found = span.attributes.iter().filter(|KeyValue { key: is, .. }| is.as_str() == key);
    let value = found.next().map(|attribute| attribute.value.to_string());
    assert!(found.next().is_none(), "{key} is there twice: {span:#?}");
    value
}

fn attributes<const N: usize>(span: &SpanData, keys: [&str; N]) -> [Option<String>; N] {
    keys.map(|key| attribute(span, key))
}

fn some<const N: usize>(values: [&str; N]) -> [Option<String>; N] {
    values.map(|value| Some(value.to_owned()))
}

fn links(span: &SpanData) -> Vec<SpanContext> {
    span.links.iter().map(|link| link.span_context.clone()).collect()
}

/// Whether two contexts name the same span. One that travelled is remote.
fn is_same(a: &SpanContext, b: &SpanContext) -> bool {
    (a.trace_id(), a.span_id()) == (b.trace_id(), b.span_id())
}

fn is_root(span: &SpanData) -> bool {
    span.parent_span_id == SpanId::INVALID
}

/// Runs a worker until its handler has returned `runs` times.
async fn work(worker: Worker, runs: usize, outcome: impl Fn(&Ctx) -> Outcome + Send + Sync + 'static) {
    let (tell, mut told) = unbounded_channel();
    let outcome = Arc::new(outcome);
    let worker = worker.serve_topics(false).handle(move |_: Work, ctx: Ctx| {
        let (tell, outcome) = (tell.clone(), Arc::clone(&outcome));
        async move {
            // The context is left and entered again around each wait.
            tokio::task::yield_now().await;
            let _ = tell.send(());
            outcome(&ctx)
        }
    });
    let stop = CancellationToken::new();
    let working = tokio::spawn(worker.run_until(stop.clone()));
    for _ in 0..runs {
        tokio::time::timeout(Duration::from_mins(1), told.recv()).await.unwrap().unwrap();
    }
    stop.cancel();
    working.await.unwrap().unwrap();
}

// ── enqueues ──

#[tokio::test]
async fn an_enqueue_is_a_producer_span_whose_context_travels_with_the_job() {
    let client = client();
    let parent = global::tracer("test").start("caller");
    let caller = Context::new().with_span(parent);
    let enqueue = async { client.enqueue(Work { n: 1 }).queue("one").await };
    let id = enqueue.with_context(caller.clone()).await.unwrap().id().unwrap();
    let sent = span("send one");
    assert_eq!(sent.span_kind, SpanKind::Producer);
    assert_eq!(sent.parent_span_id, caller.span().span_context().span_id());
    let names = [
        "messaging.system",
        "messaging.operation.name",
        "messaging.operation.type",
        "messaging.destination.name",
    ];
    assert_eq!(attributes(&sent, names), some(["punctual", "send", "send", "one"]));
    assert_eq!(attribute(&sent, "messaging.message.id"), Some(id.to_string()));
    assert_eq!(attributes(&sent, ["messaging.batch.message_count", "error.type"]), [None, None]);
    assert_eq!(sent.status, Status::Unset);
    assert_eq!(sent.instrumentation_scope.name(), "punctual");
    assert_eq!(sent.instrumentation_scope.version(), Some(env!("CARGO_PKG_VERSION")));
    let job = client.get(id).await.unwrap().unwrap();
    let context = &sent.span_context;
    assert_eq!(job.headers["traceparent"], format!("00-{}-{}-01", context.trace_id(), context.span_id()));
    assert!(!job.headers.contains_key("tracestate"), "{:?}", job.headers);
}

#[tokio::test]
async fn an_enqueue_of_many_jobs_is_one_span() {
    let client = client();
    client
        .enqueue_many((0..3).map(|n| Work { n }))
        .each(|_, spec| {
            spec.queue("many");
        })
        .await
        .unwrap();
    let sent = span("send many");
    let names = ["messaging.batch.message_count", "messaging.destination.name", "messaging.message.id"];
    assert_eq!(attributes(&sent, names), [Some("3".to_owned()), Some("many".to_owned()), None]);

    let job = |queue: &str| {
        let mut job = NewJob::new(client.make_id(), "mixed", queue, Payload::json("1"));
        job.headers.insert("traceparent".to_owned(), PRODUCER.to_owned());
        job
    };
    client.push(vec![job("mixed-1"), job("mixed-2")]).await.unwrap();
    // The queues differ, so the span has no destination. The contexts of the jobs are of others.
    let sent = spans("send").into_iter().find(|span| !span.links.is_empty()).unwrap();
    assert_eq!((sent.span_kind.clone(), links(&sent).len()), (SpanKind::Client, 1));
    assert_eq!(attribute(&sent, "messaging.destination.name"), None);
}

#[tokio::test]
async fn a_job_keeps_a_trace_context_of_its_own() {
    let client = client();
    for (queue, header, value) in [("own", "traceparent", PRODUCER), ("own-state", "tracestate", "a=1")] {
        let enqueued = client.enqueue(Work { n: 1 }).queue(queue).header(header, value).await.unwrap();
        let job = client.get(enqueued.id().unwrap()).await.unwrap().unwrap();
        assert_eq!(job.headers, [(header.to_owned(), value.to_owned())].into());
    }
    let sent = span("send own");
    assert_eq!(sent.span_kind, SpanKind::Client);
    assert_eq!(links(&sent)[0].span_id().to_string(), "00f067aa0ba902b7");
}

#[tokio::test]
async fn an_enqueue_that_fails_says_why() {
    let client = client();
    let job = NewJob::new(client.make_id(), "k", "failed", Payload::json(vec![b'1'; 2 * 1024 * 1024]));
    let error = client.push(vec![job]).await.unwrap_err();
    let sent = span("send failed");
    assert_eq!(attribute(&sent, "error.type"), Some("payload_too_large".to_owned()));
    assert_eq!(sent.status, Status::error(error.to_string()));
}

// ── runs ──

#[tokio::test]
async fn a_run_is_the_root_of_a_trace_with_a_link_to_the_enqueue_and_so_is_a_retry() {
    let client = client();
    let id = client.enqueue(Work { n: 1 }).queue("twice").await.unwrap().id().unwrap();
    let worker = Worker::new(&client).queue("twice");
    work(worker, 2, |ctx| match ctx.attempt() {
        1 => Outcome::Retry { after: Some(Duration::ZERO), error: "boom".to_owned() },
        _ => Outcome::Done,
    })
    .await;
    let (sent, runs) = (span("send twice"), spans("process twice"));
    assert_eq!(runs.len(), 2);
    for (run, attempt) in runs.iter().zip(["1", "2"]) {
        assert_eq!(run.span_kind, SpanKind::Consumer);
        assert!(is_root(run), "{run:#?}");
        assert_ne!(run.span_context.trace_id(), sent.span_context.trace_id());
        assert!(matches!(&links(run)[..], [link] if is_same(link, &sent.span_context)), "{run:#?}");
        let names = ["messaging.system", "messaging.operation.name", "messaging.operation.type"];
        assert_eq!(attributes(run, names), some(["punctual", "process", "process"]));
        let names =
            ["messaging.destination.name", "messaging.message.id", "punctual.kind", "punctual.attempt"];
        assert_eq!(attributes(run, names), some(["twice", &id.to_string(), "test.work", attempt]));
    }
    assert_ne!(runs[0].span_context.trace_id(), runs[1].span_context.trace_id());
    assert_eq!((&runs[0].status, &runs[1].status), (&Status::error("boom"), &Status::Unset));
    assert_eq!(attributes(&runs[0], ["error.type", "punctual.verdict"]), some(["_OTHER", "retry"]));
    assert_eq!(attributes(&runs[1], ["error.type", "punctual.verdict"]), [None, Some("ack".to_owned())]);
}

#[tokio::test]
async fn on_request_the_first_run_is_a_child_of_the_enqueue_and_no_other_is() {
    let client = client();
    client.enqueue(Work { n: 1 }).queue("child").await.unwrap();
    let worker = Worker::new(&client).queue("child").continue_trace(true);
    work(worker, 2, |ctx| match ctx.attempt() {
        1 => Outcome::Retry { after: Some(Duration::ZERO), error: "boom".to_owned() },
        _ => Outcome::Done,
    })
    .await;
    let (sent, runs) = (span("send child"), spans("process child"));
    assert_eq!(runs[0].parent_span_id, sent.span_context.span_id());
    assert_eq!(runs[0].span_context.trace_id(), sent.span_context.trace_id());
    assert!(runs[0].links.is_empty(), "{runs:#?}");
    assert!(is_root(&runs[1]) && is_same(&links(&runs[1])[0], &sent.span_context), "{runs:#?}");
}

#[tokio::test]
async fn a_timeout_and_a_panic_have_types() {
    let client = client();
    client.enqueue(Work { n: 1 }).queue("panics").await.unwrap();
    work(Worker::new(&client).queue("panics"), 1, |_| panic!("at the disco")).await;
    assert_eq!(attribute(&span("process panics"), "error.type"), Some("panic".to_owned()));

    client.enqueue(Work { n: 1 }).queue("late").timeout(Duration::from_millis(10)).await.unwrap();
    let (tell, mut told) = unbounded_channel();
    let worker = Worker::new(&client).serve_topics(false).queue("late").handle(move |_: Work, _: Ctx| {
        let _ = tell.send(());
        std::future::pending::<()>()
    });
    let stop = CancellationToken::new();
    let working = tokio::spawn(worker.run_until(stop.clone()));
    told.recv().await.unwrap();
    stop.cancel();
    working.await.unwrap().unwrap();
    assert_eq!(attribute(&span("process late"), "error.type"), Some("timeout".to_owned()));
}

#[tokio::test]
async fn spans_and_enqueues_of_a_handler_are_children_of_its_run() {
    let client = client();
    client.enqueue(Work { n: 1 }).queue("parents").await.unwrap();
    let worker = Worker::new(&client).queue("parents");
    let (tell, mut told) = unbounded_channel();
    let worker = worker.serve_topics(false).handle(move |_: Work, ctx: Ctx| {
        let tell = tell.clone();
        async move {
            tokio::task::yield_now().await;
            drop(global::tracer("test").start("a span of a handler"));
            drop(tracing::info_span!(target: "handler", "a tracing span of a handler").entered());
            ctx.client().enqueue(Work { n: 2 }).queue("next").await.unwrap();
            let _ = tell.send(());
        }
    });
    let stop = CancellationToken::new();
    let working = tokio::spawn(worker.run_until(stop.clone()));
    told.recv().await.unwrap();
    stop.cancel();
    working.await.unwrap().unwrap();
    let run = span("process parents");
    for name in ["a span of a handler", "a tracing span of a handler", "send next"] {
        assert_eq!(span(name).span_context.trace_id(), run.span_context.trace_id(), "{name}");
    }
    // `tracing` has a span of the run, too, which its layer turned into a child.
    let process = spans("process").into_iter().find(|span| span.parent_span_id == run.span_context.span_id());
    let process = process.unwrap();
    assert_eq!(span("a tracing span of a handler").parent_span_id, process.span_context.span_id());
}

// ── calls of a worker ──

#[tokio::test]
async fn a_worker_records_the_calls_that_reserved_or_settled_something() {
    let client = client();
    client
        .enqueue_many((0..2).map(|n| Work { n }))
        .each(|_, spec| {
            spec.queue("calls");
        })
        .await
        .unwrap();
    let id = client.enqueue(Work { n: 2 }).queue("calls").await.unwrap().id().unwrap();
    work(Worker::new(&client).queue("calls"), 3, |_| Outcome::Done).await;
    let sent = spans("send calls");
    let received = span("receive calls");
    assert_eq!(received.span_kind, SpanKind::Client);
    assert!(is_root(&received) && received.start_time <= received.end_time, "{received:#?}");
    let names = ["messaging.operation.name", "messaging.operation.type", "messaging.batch.message_count"];
    assert_eq!(attributes(&received, names), some(["receive", "receive", "3"]));
    let linked = links(&received);
    assert!(linked.len() == 2 && is_same(&linked[1], &sent[1].span_context), "{linked:#?}");

    // A call that finds no job has no queue, and is no span.
    assert!(spans("receive").is_empty());

    // One call settles what has ended until then.
    let settled = spans("settle calls");
    let count =
        |span| attribute(span, "messaging.batch.message_count").map_or(1, |n| n.parse::<usize>().unwrap());
    assert_eq!(settled.iter().map(count).sum::<usize>(), 3, "{settled:#?}");
    for span in &settled {
        assert_eq!(
            (span.span_kind.clone(), attribute(span, "messaging.operation.type")),
            (SpanKind::Client, Some("settle".to_owned()))
        );
    }
    let of_one: Vec<_> = settled.iter().filter(|span| count(span) == 1).collect();
    assert!(of_one.iter().all(|span| attribute(span, "messaging.message.id").is_some()), "{of_one:#?}");
    assert_eq!(client.get(id).await.unwrap().unwrap().state, punctual::State::Done);
}

/// A schedule goes on for years. If each tick continued the trace of the one before, so would the trace.
#[cfg(feature = "cron")]
#[tokio::test]
async fn the_tick_after_a_tick_begins_a_trace_of_its_own() {
    use punctual::schedule::Cron;
    let client = client();
    let every = Cron::every(Duration::from_secs(1)).unwrap();
    client.schedule("ticks").set(every, Work { n: 1 }).await.unwrap();
    let worker = Worker::new(&client).queue("default").continue_trace(true);
    work(worker, 2, |_| Outcome::Done).await;
    let runs = spans("process default");
    assert!(2 <= runs.len(), "{runs:#?}");
    assert_ne!(runs[0].span_context.trace_id(), runs[1].span_context.trace_id());
    let sent = spans("send default");
    assert!(2 <= sent.len() && sent.iter().all(is_root), "{sent:#?}");
}
