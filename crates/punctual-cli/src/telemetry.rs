//! Traces: sends the spans of a command to an OpenTelemetry collector, by OTLP over HTTP.
//!
//! The standard variables `OTEL_*` configure it. A collector that is away costs one warning and a bounded time at the end of
//! the command, and no job.

mod client;
mod exporter;

use std::{env, time::Duration};

use opentelemetry::{Context, KeyValue, global, trace::FutureExt as _};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tokio::{task::spawn_blocking, time::timeout};

use self::{client::Client, exporter::Exporter};
use crate::args::{Command, Globals};

/// Longest time for the last spans to be sent when the command ends.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// Sends spans while it exists. Without a collector, it does nothing.
pub(crate) struct Telemetry(Option<SdkTracerProvider>);

impl Telemetry {
    /// Starts it for a command that makes spans, if a collector is configured. Must be called in the runtime of the command.
    ///
    /// A wrong address is a warning: jobs matter more than traces.
    pub(crate) fn start(globals: &Globals, command: &Command) -> Self {
        let Some(endpoint) = endpoint(globals).filter(|_| has_spans(command)) else { return Self(None) };
        let shown = shown(&endpoint);
        let exporter = match exporter(&endpoint, is_short(command)) {
            Ok(exporter) => Exporter::new(exporter, shown),
            Err(error) => {
                let error = error.replace(&endpoint, &shown);
                tracing::warn!(endpoint = shown, error, "traces are off");
                return Self(None);
            }
        };
        let provider =
            SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(exporter).build();
        global::set_tracer_provider(provider.clone());
        Self(Some(provider))
    }

    /// Runs a command, and sends its last spans, for 3 s at most.
    pub(crate) async fn around<T>(self, command: &Command, work: impl Future<Output = T>) -> T {
        let done = work.with_context(parent(command)).await;
        if let Some(provider) = self.0 {
            // It blocks, and the client needs the runtime meanwhile. The exporter has warned of a failure.
            let flushed = spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_MAX));
            let _ = timeout(FLUSH_MAX, flushed).await;
        }
        done
    }
}

/// Makes the exporter of OTLP over HTTP. It reads the variables of OpenTelemetry.
fn exporter(endpoint: &str, is_short: bool) -> std::result::Result<SpanExporter, String> {
    let client = Client::new(endpoint).map_err(|error| error.to_string())?;
    let mut exporter =
        SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_http_client(client);
    if is_short {
        // A person waits for its end.
        exporter = exporter.with_retry_policy(RetryPolicy::disabled());
    }
    if endpoint_of_environment().is_none() {
        exporter = exporter.with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')));
    }
    exporter.build().map_err(|error| error.to_string())
}

/// Returns an address without a password.
fn shown(endpoint: &str) -> String {
    let Ok(mut url) = reqwest::Url::parse(endpoint) else {
        return "an address that cannot be read".to_owned();
    };
    // An address without a host has neither.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.into()
}

/// Returns the context of a command: of the variables `TRACEPARENT` and `TRACESTATE`, so that a script that is part of a trace
/// can enqueue jobs. A process that goes on for long is part of none.
fn parent(command: &Command) -> Context {
    if !is_short(command) {
        return Context::new();
    }
    let (parent, state) = (variable("TRACEPARENT"), variable("TRACESTATE"));
    punctual::trace::parent(|name| if name == "traceparent" { parent.as_deref() } else { state.as_deref() })
}

/// Returns whether the trace of a job's producer is continued by its first run.
pub(crate) fn continues(globals: &Globals) -> bool {
    globals.configured.as_ref().is_some_and(|found| found.config.telemetry.continue_trace)
}

const fn has_spans(command: &Command) -> bool {
    matches!(command, Command::Work(_) | Command::Forward(_) | Command::Serve(_)) || is_short(command)
}

const fn is_short(command: &Command) -> bool {
    matches!(command, Command::Push(_) | Command::Topic(_))
}

/// Returns a variable that is not empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|text| !text.trim().is_empty())
}

/// Returns the address of the collector, unless the environment switches traces off.
fn endpoint(globals: &Globals) -> Option<String> {
    let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
        || variable("OTEL_TRACES_EXPORTER").is_some_and(|text| text == "none");
    if is_off {
        return None;
    }
    let configured = || globals.configured.as_ref()?.config.telemetry.otlp_endpoint.clone();
    endpoint_of_environment().or_else(configured)
}

/// Returns the address of the collector that the environment names. The exporter reads it, too.
fn endpoint_of_environment() -> Option<String> {
    variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"))
}

/// Returns what describes this process in traces: `OTEL_SERVICE_NAME`, else `service.name` of `OTEL_RESOURCE_ATTRIBUTES`, else
/// `punctual`.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let is_named = variable("OTEL_SERVICE_NAME").is_some() || attributes.contains("service.name=");
    let resource = Resource::builder().with_attribute(version);
    if is_named { resource } else { resource.with_service_name("punctual") }.build()
}
