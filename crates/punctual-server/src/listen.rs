//! Answers over HTTP: metrics and health.

use std::{
    future::{IntoFuture, ready},
    net::SocketAddr,
};

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
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::metrics;

/// Returns a router for `/metrics`, `/healthz` and `/readyz`.
///
/// ```
/// # use punctual::{client::Metrics, worker::{Health, HealthReport}};
/// let own: axum::Router = axum::Router::new().nest("/jobs", punctual_server::router(&Metrics::default(), &Health::default()));
/// ```
pub fn router(metrics: &Metrics, health: &Health) -> Router {
    let (metrics, live, able) = (metrics.clone(), health.clone(), health.clone());
    let content_type = [(CONTENT_TYPE, metrics::CONTENT_TYPE)];
    Router::new()
        .route("/metrics", get(move || ready((content_type, metrics::text(&metrics)))))
        .route("/healthz", get(move || ready(answer(live.now(), |now| now.is_alive))))
        .route("/readyz", get(move || ready(answer(able.now(), |now| now.is_ready))))
}

/// Returns the line of the health, with 200 if it is good.
fn answer(now: HealthReport, is_good: impl Fn(&HealthReport) -> bool) -> (StatusCode, String) {
    let status = if is_good(&now) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, now.text)
}

/// Listens until it is dropped.
#[derive(Debug)]
#[must_use = "it listens until this is dropped"]
pub struct Listening {
    addr: SocketAddr,
    _end: DropGuard,
}

impl Listening {
    /// Returns the address, with the port that was chosen if the requested one was 0.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// Serves [`router`] on an address.
///
/// It has a thread of its own, so a handler that blocks the caller's runtime cannot stop it. When it returns, the port
/// answers.
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
        runtime.block_on(async {
            tokio::select! {
                ended = axum::serve(listener, router).into_future() => drop(ended),
                () = serving.cancelled() => {}
            }
        });
    };
    let thread = std::thread::Builder::new().name("punctual-listen".to_owned()).spawn(serve);
    thread.map_err(|e| cannot("serve").with_source(e))?;
    Ok(Listening { addr, _end: end.drop_guard() })
}
