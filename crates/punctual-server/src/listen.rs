//! Answers over HTTP: metrics and health.

use std::{future::ready, net::SocketAddr, thread::JoinHandle, time::Duration};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use punctual::{
    Error, ErrorKind, Result,
    client::Metrics,
    worker::{Health, HealthReport},
};
use tokio::{net::TcpListener, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::{
    accept::{Limits, accept},
    metrics::{self, Sampler},
};

/// A connection is for one answer.
const LIMITS: Limits = Limits {
    connections: 64,
    connection: Duration::from_secs(10),
    drain: Duration::ZERO,
    head: Duration::from_secs(10),
    taken: Duration::from_secs(10),
};

/// Returns a router for `/metrics`, `/healthz` and `/readyz`.
///
/// ```
/// # use punctual::{client::Metrics, worker::{Health, HealthReport}};
/// let own: axum::Router = axum::Router::new().nest("/jobs", punctual_server::router(&Metrics::default(), &Health::default()));
/// ```
pub fn router(metrics: &Metrics, health: &Health) -> Router {
    let (live, able) = (health.clone(), health.clone());
    metrics_router(metrics, None)
        .route("/healthz", get(move || ready(answer(live.now(), |now| now.is_alive))))
        .route("/readyz", get(move || ready(answer(able.now(), |now| now.is_ready))))
}

/// Returns a router for `/metrics`, with the gauges of a sampler if there is one.
pub(crate) fn metrics_router(metrics: &Metrics, sampler: Option<Sampler>) -> Router {
    let metrics = metrics.clone();
    let content_type = [(CONTENT_TYPE, metrics::CONTENT_TYPE)];
    // With many queues the text takes a while, and health must not wait for it.
    let text = move || {
        let (metrics, sampler) = (metrics.clone(), sampler.clone());
        async move {
            let known = match sampler {
                Some(sampler) => Some(sampler.now().await),
                None => None,
            };
            let text = spawn_blocking(move || metrics::text_of(&metrics, known)).await;
            text.map(|text| (content_type, text)).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
        }
    };
    Router::new().route("/metrics", get(text))
}

/// Returns the line of the health, with 200 if it is good.
fn answer(now: HealthReport, is_good: impl Fn(&HealthReport) -> bool) -> (StatusCode, String) {
    let status = if is_good(&now) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, now.text)
}

/// Listens until it is dropped. Answers in progress then end early.
#[derive(Debug)]
#[must_use = "it listens until this is dropped"]
pub struct Listening {
    addr: SocketAddr,
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Returns the address, with the port that was chosen if the requested one was 0.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed; there is nothing left to release.
            let _ = thread.join();
        }
    }
}

/// Serves [`router`] on an address.
///
/// It has a thread of its own, so a handler that blocks the caller's runtime cannot stop it. When it returns, the port
/// answers. At most 64 connections are open at once, and each is closed after 10 s.
///
/// # Errors
/// `Unavailable` if the port cannot be bound, or the thread cannot be started.
pub fn listen(addr: SocketAddr, metrics: &Metrics, health: &Health) -> Result<Listening> {
    let cannot = |what: &str| Error::new(ErrorKind::Unavailable, format!("could not {what} on {addr}"));
    let listener = std::net::TcpListener::bind(addr).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    });
    let (addr, listener) = listener.map_err(|e| {
        cannot("listen")
            .with_hint("choose another address, or end the program that listens there")
            .with_source(e)
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| cannot("serve").with_source(e))?;
    let listener = {
        let _in_runtime = runtime.enter();
        TcpListener::from_std(listener).map_err(|e| cannot("serve").with_source(e))?
    };
    let (router, end) = (router(metrics, health), CancellationToken::new());
    let serving = end.clone();
    let serve = move || {
        runtime.block_on(accept(listener, None, router, LIMITS, &serving));
        // A text that is being made is not waited for.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("punctual-listen".to_owned()).spawn(serve);
    let thread = thread.map_err(|e| cannot("serve").with_source(e))?;
    Ok(Listening { addr, end, thread: Some(thread) })
}
