//! Traces, as a collector gets them from real processes.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use axum::{Router, body::Bytes, http::header::CONTENT_TYPE, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message as _;

use crate::{
    exec::signal,
    fixture::{Cli, Said, said, wait},
    serve::Served,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A span, and the service that sent it.
#[derive(Clone, Debug)]
struct Kept {
    service: String,
    span: Span,
}

impl Kept {
    fn attribute(&self, key: &str) -> Option<String> {
        value(&self.span.attributes, key)
    }

    #[track_caller]
    fn has(&self, attributes: &[(&str, &str)]) {
        for (key, value) in attributes {
            assert_eq!(self.attribute(key).as_deref(), Some(*value), "{key} of {self:#?}");
        }
    }

    fn trace(&self) -> String {
        hex(&self.span.trace_id)
    }

    fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    fn links(&self) -> Vec<(String, String)> {
        self.span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect()
    }

    fn is_error(&self) -> bool {
        self.span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
    }
}

fn value(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// A collector of OpenTelemetry: it keeps the spans that it gets.
struct Collector {
    url: String,
    kept: Arc<Mutex<Vec<Kept>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let kept = Arc::<Mutex<Vec<Kept>>>::default();
        let keep = {
            let kept = Arc::clone(&kept);
            move |body: Bytes| {
                kept.lock().unwrap().extend(decoded(&body));
                std::future::ready(([(CONTENT_TYPE, "application/x-protobuf")], ""))
            }
        };
        let router = Router::new().route("/v1/traces", post(keep));
        // It ends with the process.
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, router).await.unwrap();
            });
        });
        Self { url, kept }
    }

    /// Waits for this many spans by this name.
    fn spans(&self, name: &str, n: usize) -> Vec<Kept> {
        let kept = || self.kept.lock().unwrap().clone();
        let named = || kept().into_iter().filter(|kept| kept.span.name == name).collect::<Vec<_>>();
        let spans = wait(
            || Some(named()).filter(|spans| n <= spans.len()),
            || format!("there are no {n} spans {name:?}: {:#?}", kept()),
        );
        assert_eq!(spans.len(), n, "{spans:#?}");
        spans
    }

    fn span(&self, name: &str) -> Kept {
        self.spans(name, 1).remove(0)
    }

    /// A command that sends its traces here.
    fn command(&self, t: &Cli, line: &str, last: &[&str]) -> Command {
        let words = line.split(' ').map(str::to_owned).chain(last.iter().map(|word| (*word).to_owned()));
        let mut command = t.command(words);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &self.url);
        command
    }
}

fn decoded(body: &[u8]) -> Vec<Kept> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let of_resource = |spans: opentelemetry_proto::tonic::trace::v1::ResourceSpans| {
        let service = value(&spans.resource.unwrap().attributes, "service.name").unwrap();
        let spans = spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.map(move |span| Kept { service: service.clone(), span }).collect::<Vec<_>>()
    };
    request.resource_spans.into_iter().flat_map(of_resource).collect()
}

fn end(worker: Child) -> Said {
    signal(&worker, rustix::process::Signal::TERM);
    said(worker)
}

fn id_of(said: Said) -> String {
    let job: serde_json::Value = serde_json::from_str(&said.ok()).unwrap();
    job["id"].as_str().unwrap().to_owned()
}

/// Fails once, with the trace context of each run in a file.
const ONCE: &str = "echo $TRACEPARENT >> parents; test -e again || { touch again; exit 1; }";

#[test]
fn a_job_is_followed_from_its_push_over_a_retry_to_its_end() {
    let (t, collector) = (Cli::new(), Collector::start());
    let mut push = collector.command(&t, "push email.send [1] -q mail --json --backoff", &["fixed 100ms"]);
    push.env("TRACEPARENT", format!("00-{TRACE}-{PARENT}-01")).env("OTEL_SERVICE_NAME", "shop");
    let id = id_of(said(push.spawn().unwrap()));
    let sent = collector.span("send mail");
    assert_eq!((sent.service.as_str(), sent.span.kind()), ("shop", SpanKind::Producer));
    assert_eq!((sent.trace(), sent.parent()), (TRACE.to_owned(), PARENT.to_owned()));
    sent.has(&[
        ("messaging.system", "punctual"),
        ("messaging.operation.name", "send"),
        ("messaging.operation.type", "send"),
        ("messaging.destination.name", "mail"),
        ("messaging.message.id", &id),
    ]);

    let worker = collector.command(&t, "work -q mail --exec", &[ONCE]).spawn().unwrap();
    t.wait_for(&id, "done");
    assert_eq!(end(worker).code, Some(0));
    let runs = collector.spans("process mail", 2);
    for (run, attempt) in runs.iter().zip(["1", "2"]) {
        assert_eq!(
            (run.service.as_str(), run.span.kind(), &*run.parent()),
            ("punctual", SpanKind::Consumer, "")
        );
        assert_eq!(run.links(), [(sent.trace(), sent.id())]);
        run.has(&[
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", "mail"),
            ("messaging.message.id", &id),
            ("punctual.kind", "email.send"),
            ("punctual.attempt", attempt),
        ]);
    }
    assert_eq!([runs[0].is_error(), runs[1].is_error()], [true, false]);
    runs[0].has(&[("error.type", "_OTHER"), ("punctual.verdict", "retry")]);
    assert!(runs[0].trace() != TRACE && runs[0].trace() != runs[1].trace(), "{runs:#?}");
    for (name, operation) in [("receive mail", "receive"), ("settle mail", "settle")] {
        for call in collector.spans(name, 2) {
            assert_eq!((call.span.kind(), &*call.parent()), (SpanKind::Client, ""));
            call.has(&[("messaging.operation.type", operation), ("messaging.message.id", &id)]);
            assert_eq!(call.links(), [(sent.trace(), sent.id())]);
        }
    }
    // The command of each run is told its span.
    let told = t.wait_for_file("parents");
    let parents = runs.iter().map(|run| format!("00-{}-{}-01\n", run.trace(), run.id()));
    assert_eq!(told, parents.collect::<String>());
}

#[test]
fn the_configuration_file_names_a_collector_and_continues_traces() {
    let (t, collector) = (Cli::new(), Collector::start());
    let file = format!("[telemetry]\notlp_endpoint = \"{}\"\ncontinue_trace = true\n", collector.url);
    std::fs::write(t.path("punctual.toml"), file).unwrap();
    let id = id_of(t.args(&["push", "k", "[1]", "-q", "mail", "--backoff", "fixed 100ms", "--json"]));
    let worker = t.command(["work", "-q", "mail", "--exec", ONCE]).spawn().unwrap();
    t.wait_for(&id, "done");
    assert_eq!(end(worker).code, Some(0));
    let (sent, runs) = (collector.span("send mail"), collector.spans("process mail", 2));
    assert_eq!((runs[0].trace(), runs[0].parent()), (sent.trace(), sent.id()));
    assert!(runs[0].links().is_empty(), "{runs:#?}");
    assert_eq!((&*runs[1].parent(), runs[1].links()), ("", vec![(sent.trace(), sent.id())]));
}

#[test]
fn a_request_to_a_server_is_a_span_and_its_jobs_are_part_of_its_trace() {
    let (t, collector) = (Cli::new(), Collector::start());
    let file = format!("[telemetry]\notlp_endpoint = \"{}\"\n", collector.url);
    std::fs::write(t.path("punctual.toml"), file).unwrap();
    let served = Served::start(t, "");
    let host = served.url.strip_prefix("http://").unwrap();
    let request = |path: &str, body: &str| {
        let mut stream = TcpStream::connect(host).unwrap();
        let size = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {size}\r\nconnection: close");
        let parent = format!("traceparent: 00-{TRACE}-{PARENT}-01");
        write!(stream, "{head}\r\n{parent}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(request("/api/v1/jobs", r#"{"kind":"k","queue":"one"}"#).starts_with("HTTP/1.1 201"));
    let numbered = r#"{"instance":"9b1c04d2e6a7f835","call":1,"jobs":[{"kind":"k","queue":"two","idempotency_key":"a"}]}"#;
    assert!(request("/api/v1/enqueue", numbered).starts_with("HTTP/1.1 200"));
    assert!(request("/api/v1/nonsense", "").starts_with("HTTP/1.1 4"));
    let routes = ["/api/v1/jobs", "/api/v1/enqueue", "/api/v1/{call}"];
    let spans: BTreeMap<&str, Kept> =
        routes.map(|route| (route, collector.span(&format!("POST {route}")))).into();
    for (route, span) in &spans {
        assert_eq!(span.span.kind(), SpanKind::Server);
        assert_eq!((span.trace(), span.parent()), (TRACE.to_owned(), PARENT.to_owned()));
        span.has(&[("http.request.method", "POST"), ("http.route", route)]);
        assert!(!span.is_error(), "{span:#?}");
    }
    spans["/api/v1/jobs"].has(&[("http.response.status_code", "201"), ("url.path", "/api/v1/jobs")]);
    spans["/api/v1/{call}"].has(&[("url.path", "/api/v1/nonsense")]);
    let sent = collector.span("send one");
    assert_eq!((sent.trace(), sent.parent()), (TRACE.to_owned(), spans["/api/v1/jobs"].id()));
    // A call with a number goes to the store as it is. Its jobs are told the span of the request.
    for (queue, parent) in [("one", &sent), ("two", &spans["/api/v1/enqueue"])] {
        let jobs = Cli::with_store(&served.url).json(&format!("ls queue:{queue} --fields headers"));
        let context = format!("00-{TRACE}-{}-01", parent.id());
        assert_eq!(jobs["jobs"][0]["headers"]["traceparent"], context, "{jobs:#}");
    }
}

#[test]
fn a_collector_that_is_away_costs_one_warning_and_no_job() {
    let t = Cli::new();
    // Nothing listens there any more.
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file = format!("[telemetry]\notlp_endpoint = \"http://ana:secret@{away}\"\n");
    std::fs::write(t.path("punctual.toml"), file).unwrap();
    let pushed = t.run("push k [1] -q mail --json");
    let warnings =
        |said: &Said| said.err.lines().filter(|line| line.contains("could not send traces")).count();
    assert_eq!((pushed.code, warnings(&pushed)), (Some(0), 1), "{pushed:#?}");
    assert!(!pushed.err.contains("secret"), "{pushed:#?}");
    let id = id_of(pushed);
    let mut worker = t.command(["work", "-q", "mail", "--exec", "true"]);
    // A batch is sent ten times a second, and none arrives.
    worker.env("OTEL_BSP_SCHEDULE_DELAY", "100").env("OTEL_EXPORTER_OTLP_TIMEOUT", "100");
    let worker = worker.stderr(Stdio::piped()).spawn().unwrap();
    t.wait_for(&id, "done");
    let second = t.json("push k [2] -q mail")["id"].as_str().unwrap().to_owned();
    t.wait_for(&second, "done");
    let ended = end(worker);
    assert_eq!((ended.code, warnings(&ended)), (Some(0), 1), "{ended:#?}");
}

#[test]
fn a_wrong_address_is_a_warning() {
    let t = Cli::new();
    let mut push = t.command(["push", "k", "[1]"]);
    push.env("OTEL_EXPORTER_OTLP_ENDPOINT", "not an address");
    let pushed = said(push.spawn().unwrap());
    assert!(pushed.code == Some(0) && pushed.err.contains("traces are off"), "{pushed:#?}");
    let mut push = t.command(["push", "k", "[1]"]);
    push.env("OTEL_EXPORTER_OTLP_ENDPOINT", "not an address").env("OTEL_SDK_DISABLED", "true");
    let pushed = said(push.spawn().unwrap());
    assert!(pushed.code == Some(0) && pushed.err.is_empty(), "{pushed:#?}");
}
