//! Accepts connections and serves a router on each.
//!
//! The loop is our own, because that of axum has no limits: silent clients would hold their connections, and with them the
//! descriptors of the process, for ever.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router, extract::ConnectInfo};
use hyper::{
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::Tls;

/// How long to wait after a connection could not be accepted.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// How long a connection without a request has to end.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Most bytes of a head. They are held before it is known who the client is.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most connections at once. Further ones wait.
    pub(crate) connections: usize,
    /// How long a connection may be open before it ends with the request in progress.
    pub(crate) connection: Duration,
    /// How long the request in progress may then take, and those in progress at the stop.
    pub(crate) drain: Duration,
    /// How long the head of a request may take to arrive, also on a connection that is idle between two requests.
    pub(crate) head: Duration,
}

/// An extension of requests that came over TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encrypted;

/// Serves connections until `stop`, and then until the requests in progress have ended.
pub(crate) async fn accept(
    listener: TcpListener,
    tls: Option<&Tls>,
    router: Router,
    limits: Limits,
    stop: &CancellationToken,
) {
    let (open, connections) = (Arc::new(Semaphore::new(limits.connections)), TaskTracker::new());
    loop {
        let next = async {
            let permit = Arc::clone(&open).acquire_owned().await.expect("invariant: it is never closed");
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            next = next => next,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, stop) = (router.clone().layer(Extension(ConnectInfo(peer))), stop.clone());
                let tls = tls.cloned();
                connections.spawn(async move {
                    // Answers are written whole. Without this, the last part of one could wait for the client's
                    // acknowledgement.
                    let _ = stream.set_nodelay(true);
                    match tls {
                        None => serve(stream, router, limits, &stop).await,
                        Some(tls) => encrypted(&tls.acceptor(), stream, router, limits, &stop).await,
                    }
                    drop(permit);
                });
            }
            // The client went away before it was accepted. Others are not to wait for that.
            Err(error) if is_of_client(error.kind()) => {}
            Err(error) => {
                tracing::warn!(target: "punctual", %error, "could not accept a connection");
                sleep(AFTER_ERROR).await;
            }
        }
    }
    drop(listener);
    connections.close();
    // Each ends by its own limit.
    connections.wait().await;
}

/// Whether an error of an accept is about one connection only.
const fn is_of_client(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

/// Serves one connection with TLS. The client has as long for the handshake as for the head of a request.
async fn encrypted(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    router: Router,
    limits: Limits,
    stop: &CancellationToken,
) {
    let accepted = tokio::select! {
        accepted = timeout(limits.head, acceptor.accept(stream)) => accepted,
        () = stop.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => serve(stream, router.layer(Extension(Encrypted)), limits, stop).await,
        // Anybody can cause it.
        Ok(Err(error)) => tracing::debug!(target: "punctual", %error, "a TLS handshake failed"),
        Err(_) => {}
    }
}

/// Serves one connection. A client that goes away, or is too slow, is its own problem.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    limits: Limits,
    stop: &CancellationToken,
) {
    let in_progress = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&in_progress);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        let request = router.call(request);
        let counted = Counted::new(&count);
        async move {
            let _counted = counted;
            request.await
        }
    });
    let serve = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut serve = std::pin::pin!(serve);
    tokio::select! {
        _ = serve.as_mut() => return,
        () = sleep(limits.connection) => {}
        () = stop.cancelled() => {}
    }
    serve.as_mut().graceful_shutdown();
    // A client can hold a connection open without a request on it.
    let is_idle = in_progress.load(Ordering::Relaxed) == 0;
    let _ = timeout(if is_idle { limits.drain.min(IDLE_MAX) } else { limits.drain }, serve).await;
}

/// Counts a request for as long as it is in progress.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
