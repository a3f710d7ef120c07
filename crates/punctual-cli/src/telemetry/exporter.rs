//! An exporter that reports its first failure.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter as Export},
};

#[derive(Debug)]
pub(super) struct Exporter {
    inner: SpanExporter,
    endpoint: String,
    has_warned: AtomicBool,
}

impl Exporter {
    pub(super) const fn new(inner: SpanExporter, endpoint: String) -> Self {
        Self { inner, endpoint, has_warned: AtomicBool::new(false) }
    }
}

impl Export for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (spans, sent) = (batch.len(), self.inner.export(batch).await);
        if let Err(error) = &sent {
            let endpoint = &self.endpoint;
            if self.has_warned.swap(true, Ordering::Relaxed) {
                tracing::debug!(endpoint, spans, %error, "could not send traces");
            } else {
                tracing::warn!(endpoint, spans, %error, "could not send traces; jobs go on, and this is not repeated");
            }
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
