//! What a worker writes to the log when it starts, and the span that each run is in.

use std::{
    cell::RefCell,
    collections::HashMap,
    fmt,
    sync::{OnceLock, atomic::AtomicU64},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use super::*;

/// The fields of a line or a span, by name.
type Fields = HashMap<&'static str, String>;

/// Keeps all lines of this test binary, each with the span that it was written in.
#[derive(Clone, Default)]
struct Log(Arc<Kept>);

#[derive(Default)]
struct Kept {
    last: AtomicU64,
    spans: Mutex<HashMap<u64, Fields>>,
    lines: Mutex<Vec<(Fields, Option<Fields>)>>,
}

thread_local! {
    /// The spans that this thread is in.
    static IN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

struct Reading<'a>(&'a mut Fields);

impl Visit for Reading<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "punctual"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::from([("span", span.metadata().name().to_owned())]);
        span.record(&mut Reading(&mut fields));
        let id = self.0.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.spans.lock().unwrap().insert(id, fields);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Reading(&mut fields));
        let span = IN.with_borrow(|spans| spans.last().copied());
        let span = span.and_then(|id| self.0.spans.lock().unwrap().get(&id).cloned());
        self.0.lines.lock().unwrap().push((fields, span));
    }

    fn enter(&self, id: &Id) {
        IN.with_borrow_mut(|spans| spans.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        IN.with_borrow_mut(|spans| spans.retain(|other| *other != id.into_u64()));
    }
}

impl Log {
    /// That of this test binary.
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Log> = OnceLock::new();
        SHARED.get_or_init(|| {
            let log = Self::default();
            tracing::subscriber::set_global_default(log.clone()).unwrap();
            log
        })
    }

    /// The lines with this value in a field.
    fn lines(&self, field: &str, value: &str) -> Vec<(Fields, Option<Fields>)> {
        let lines = self.0.lines.lock().unwrap();
        lines.iter().filter(|(fields, _)| fields.get(field).is_some_and(|is| is == value)).cloned().collect()
    }
}

/// Fields by these names, in this order.
fn of<'a>(fields: &'a Fields, names: &[&str]) -> Vec<&'a str> {
    names.iter().map(|name| fields.get(*name).map_or("", String::as_str)).collect()
}

async fn ignore(_: Work, _: Ctx) {}

#[tokio::test]
async fn a_worker_that_starts_names_its_queues_kinds_slots_and_store() {
    let (log, rig) = (Log::shared(), Rig::new());
    let worker = rig.worker().name("named").slots(7).handle(ignore).handle(async |_: Other, _: Ctx| {});
    let stop = CancellationToken::new();
    stop.cancel();
    worker.run_until(stop).await.unwrap();
    let lines = log.lines("worker", "named");
    let (started, _) = lines.iter().find(|(line, _)| of(line, &["message"]) == ["started"]).unwrap();
    let told = of(started, &["queues", "kinds", "slots", "store"]);
    assert_eq!(told, ["default, other", "test.other, test.work", "7", "memory:"]);
}

#[tokio::test]
async fn a_worker_warns_of_a_kind_whose_queue_it_does_not_serve() {
    let (log, rig) = (Log::shared(), Rig::new());
    let worker = rig.worker().name("elsewhere").queue("other").handle(ignore);
    let stop = CancellationToken::new();
    stop.cancel();
    worker.run_until(stop).await.unwrap();
    let lines = log.lines("worker", "elsewhere");
    let warned: Vec<_> = lines.iter().filter(|(line, _)| line.contains_key("kind")).collect();
    assert_eq!(warned.len(), 1, "{lines:?}");
    assert_eq!(of(&warned[0].0, &["kind", "queue"]), ["test.work", "default"]);
}

#[tokio::test]
async fn what_a_handler_logs_is_in_a_span_that_names_its_run() {
    let (log, rig) = (Log::shared(), Rig::new());
    let id = rig.enqueue(1).await.to_string();
    let (tell, mut told) = unbounded_channel();
    let (stop, working) = start(rig.worker().handle(move |_: Work, ctx: Ctx| {
        let tell = tell.clone();
        async move {
            // A span is left and entered again around each wait.
            tokio::task::yield_now().await;
            tracing::info!(target: "punctual", said = %ctx.id(), "hello");
            let _ = tell.send(ctx.fence());
        }
    }));
    let fence = told.recv().await.unwrap().to_string();
    stop.cancel();
    assert_eq!(working.await.unwrap().unwrap().done, 1);
    let lines = log.lines("said", &id);
    let span = lines[0].1.as_ref().unwrap();
    let names = of(span, &["span", "id", "kind", "queue", "attempt", "fence"]);
    assert_eq!(names, ["process", &id, "test.work", "default", "1", &fence]);
}
