//! The spans of requests, as an exporter gets them. The exporter is global, so one test makes all requests.

#![expect(clippy::unwrap_used, reason = "these are tests; clippy takes only functions with #[test] for such")]

use std::net::SocketAddr;

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
};
use opentelemetry::{
    global,
    trace::{SpanId, SpanKind, Status},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use punctual::{CancellationToken, Client};
use punctual_server::{DashboardOptions, Server};
use tower::ServiceExt as _;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Makes a request on the same machine, and returns the span that it added.
async fn span(
    router: &Router,
    exporter: &InMemorySpanExporter,
    method: &str,
    path: &str,
) -> Option<SpanData> {
    span_of(router, exporter, method, path, "127.0.0.1:1").await
}

/// Makes a request from an address, and returns the span that it added.
async fn span_of(
    router: &Router,
    exporter: &InMemorySpanExporter,
    method: &str,
    path: &str,
    peer: &str,
) -> Option<SpanData> {
    exporter.reset();
    let peer: SocketAddr = peer.parse().unwrap();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("traceparent", format!("00-{TRACE}-{PARENT}-01"))
        .extension(ConnectInfo(peer));
    router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let mut spans = exporter.get_finished_spans().unwrap();
    spans.retain(|span| span.span_kind == SpanKind::Server);
    assert!(spans.len() <= 1, "{spans:#?}");
    spans.pop()
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    found.map(|attribute| attribute.value.to_string())
}

#[tokio::test]
async fn each_request_is_a_span_by_its_route_and_probes_are_none() {
    let exporter = InMemorySpanExporter::default();
    global::set_tracer_provider(SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build());
    let client = Client::connect("memory:").await.unwrap();
    for base in ["", "/jobs"] {
        let options = DashboardOptions { base_path: base.to_owned(), ..DashboardOptions::default() };
        let router = Server::new(&client).dashboard(options).router(&CancellationToken::new());
        for (method, path, name, status) in [
            ("GET", "/api/v1/jobs", "GET BASE/api/v1/jobs", "200"),
            ("GET", "/api/v1/jobs/x", "GET BASE/api/v1/jobs/{id}", "422"),
            ("GET", "/api/v1/queues", "GET BASE/api/v1/queues", "200"),
            ("POST", "/api/v1/now", "POST BASE/api/v1/now", "200"),
            ("POST", "/api/v1/whatever", "POST BASE/api/v1/{call}", "404"),
            ("GET", "/jobs", "GET BASE/jobs", "200"),
            ("GET", "/queues/mail", "GET BASE/queues/{name}", "404"),
            ("GET", "/nowhere", "GET", "404"),
            ("BREW", "/nowhere", "_OTHER", "403"),
        ] {
            let span = span(&router, &exporter, method, &format!("{base}{path}")).await.unwrap();
            assert_eq!(span.name, name.replace("BASE", base), "{base} {path}");
            assert_eq!(attribute(&span, "url.path"), Some(format!("{base}{path}")));
            let route = name.split_once(' ').map(|(_, route)| route.replace("BASE", base));
            assert_eq!(attribute(&span, "http.route"), route);
            assert_eq!(
                attribute(&span, "http.response.status_code").as_deref(),
                Some(status),
                "{method} {path}"
            );
            assert_eq!(
                (span.span_context.trace_id().to_string(), span.parent_span_id),
                (TRACE.to_owned(), SpanId::from_hex(PARENT).unwrap())
            );
            assert_eq!(span.status, Status::Unset);
        }
        // What the gate refuses makes none: else anybody could fill the traces.
        let far = span_of(&router, &exporter, "GET", &format!("{base}/api/v1/jobs"), "192.0.2.1:50000").await;
        assert!(far.is_none(), "{far:?}");
        for probe in ["/healthz", "/readyz", "/metrics"] {
            assert!(span(&router, &exporter, "GET", &format!("{base}{probe}")).await.is_none(), "{probe}");
        }
    }
}
