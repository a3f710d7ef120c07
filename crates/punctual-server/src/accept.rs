//! Accepts connections and serves a router on each.
//!
//! The loop is our own, because that of axum has no limits: silent clients would hold their connections, and with them the
//! descriptors of the process, for ever.

mod descriptors;
mod seats;
mod taken;

use std::{
    convert::Infallible,
    io::ErrorKind,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::ConnectInfo,
};
use hyper::{
    Request,
    body::{Frame, Incoming, SizeHint},
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
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::seats::{Seat, Seats};
use self::taken::Taken;
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
    /// Most connections at once, if the process has as many descriptors. A further one takes the place of one that is not in use,
    /// or waits.
    pub(crate) connections: usize,
    /// How long a connection may be open before it ends with the request in progress.
    pub(crate) connection: Duration,
    /// How long the request in progress may then take, and those in progress at the stop.
    pub(crate) drain: Duration,
    /// How long the head of a request may take to arrive, also on a connection that is idle between two requests.
    pub(crate) head: Duration,
    /// How long a client may take no byte of what is sent to it.
    pub(crate) taken: Duration,
}

/// An extension of requests that came over TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encrypted;

/// An extension of requests: it is cancelled when their connection is so old that it ends with the request in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(pub(crate) CancellationToken);

/// What the requests of a connection know about it, as extensions.
///
/// A layer of the router would do the same, but a router with one more layer has all its routes anew: 60 KiB a connection.
struct About {
    peer: SocketAddr,
    seat: Arc<Seat>,
    ending: Ending,
    is_encrypted: bool,
}

impl About {
    fn tell(&self, request: &mut Request<Incoming>) {
        let extensions = request.extensions_mut();
        extensions.insert(ConnectInfo(self.peer));
        extensions.insert(Arc::clone(&self.seat));
        extensions.insert(self.ending.clone());
        if self.is_encrypted {
            extensions.insert(Encrypted);
        }
    }
}

/// Serves connections until `stop`, and then until the requests in progress have ended.
pub(crate) async fn accept(
    listener: TcpListener,
    tls: Option<&Tls>,
    router: Router,
    limits: Limits,
    stop: &CancellationToken,
) {
    let most = descriptors::connections(limits.connections);
    let (open, connections) = (Arc::new(Semaphore::new(most)), TaskTracker::new());
    let seats = Arc::new(Seats::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let permit = tokio::select! {
                    permit = place(&open, &seats) => permit,
                    () = stop.cancelled() => break,
                };
                let (router, stop, tls) = (router.clone(), stop.clone(), tls.cloned());
                let (seats, seat) = (Arc::clone(&seats), seats.take(peer.ip()));
                let about =
                    About { peer, seat: Arc::clone(&seat), ending: Ending::default(), is_encrypted: false };
                connections.spawn(async move {
                    // Answers are written whole. Without this, the last part of one could wait for the client's
                    // acknowledgement.
                    let _ = stream.set_nodelay(true);
                    let stream = Taken::new(stream, limits.taken, Arc::clone(&seat));
                    let served = async {
                        match tls {
                            None => serve(stream, router, limits, about, &stop).await,
                            Some(tls) => {
                                encrypted(&tls.acceptor(), stream, router, limits, about, &stop).await;
                            }
                        }
                    };
                    tokio::select! {
                        () = served => {}
                        () = seat.end.cancelled() => {}
                    }
                    seats.leave(&seat);
                    drop(permit);
                });
            }
            // The client went away before it was accepted. Others are not to wait for that.
            Err(error) if is_of_client(error.kind()) => {}
            Err(error) => {
                tracing::warn!(target: "punctual", %error, "could not accept a connection");
                // Most often there are no descriptors left.
                seats.end_one();
                sleep(AFTER_ERROR).await;
            }
        }
    }
    drop(listener);
    connections.close();
    // Each ends by its own limit.
    connections.wait().await;
}

/// Waits for a place among the open connections. If there is none, one that can be done without has to go.
async fn place(open: &Arc<Semaphore>, seats: &Seats) -> OwnedSemaphorePermit {
    if let Ok(permit) = Arc::clone(open).try_acquire_owned() {
        return permit;
    }
    seats.end_one();
    Arc::clone(open).acquire_owned().await.expect("invariant: it is never closed")
}

/// Whether an error of an accept is about one connection only.
const fn is_of_client(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

/// Serves one connection with TLS. The client has as long for the handshake as for the head of a request.
async fn encrypted(
    acceptor: &TlsAcceptor,
    stream: Taken<TcpStream>,
    router: Router,
    limits: Limits,
    about: About,
    stop: &CancellationToken,
) {
    let accepted = tokio::select! {
        accepted = timeout(limits.head, acceptor.accept(stream)) => accepted,
        () = stop.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => serve(stream, router, limits, About { is_encrypted: true, ..about }, stop).await,
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
    about: About,
    stop: &CancellationToken,
) {
    let (ending, seat) = (about.ending.clone(), Arc::clone(&about.seat));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request| {
        about.tell(&mut request);
        let request = router.call(request);
        let to_its_end = Counted::new(&about.seat, |seat| &seat.in_progress);
        let to_its_answer = Counted::new(&about.seat, |seat| &seat.unanswered);
        async move {
            let answer = request.await?;
            drop(to_its_answer);
            Ok::<_, Infallible>(answer.map(|body| Answer { body, _counted: to_its_end }))
        }
    });
    let serve = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut serve = std::pin::pin!(serve);
    let left = tokio::select! {
        _ = serve.as_mut() => return,
        () = sleep(limits.connection) => {
            ending.0.cancel();
            &seat.in_progress
        }
        // At the stop, answers that have begun are streams that nobody ends, or their clients are slow.
        () = stop.cancelled() => &seat.unanswered,
    };
    serve.as_mut().graceful_shutdown();
    // A client can hold a connection open without a request on it.
    let is_idle = left.load(Ordering::Relaxed) == 0;
    let _ = timeout(if is_idle { limits.drain.min(IDLE_MAX) } else { limits.drain }, serve).await;
}

/// The body of an answer, whose request is in progress until the body has been sent.
struct Answer {
    body: Body,
    _counted: Counted,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Counts a request for as long as it is in progress.
struct Counted {
    seat: Arc<Seat>,
    of: fn(&Seat) -> &AtomicUsize,
}

impl Counted {
    fn new(seat: &Arc<Seat>, of: fn(&Seat) -> &AtomicUsize) -> Self {
        of(seat).fetch_add(1, Ordering::Relaxed);
        Self { seat: Arc::clone(seat), of }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.of)(&self.seat).fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use axum::{Extension, routing::get};
    use futures_util::{StreamExt as _, stream};
    use punctual::testing::TestQueue;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        task::JoinHandle,
    };

    use super::*;
    use crate::Server;

    /// Connections of these servers are old at once.
    const LIMITS: Limits = Limits {
        connections: 10,
        connection: Duration::from_millis(200),
        drain: Duration::from_mins(1),
        head: Duration::from_mins(1),
        taken: Duration::from_mins(1),
    };

    /// Serves the router until the token fires.
    async fn serve_old(router: Router, stop: &CancellationToken) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, stop) = (listener.local_addr().unwrap(), stop.clone());
        (addr, tokio::spawn(async move { accept(listener, None, router, LIMITS, &stop).await }))
    }

    /// Sends a request, and returns all that comes until the end of the connection.
    async fn ask(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        all
    }

    /// It has as long as a request that waits for its answer.
    #[tokio::test]
    async fn an_answer_that_has_begun_is_sent_to_its_end_on_an_old_connection() {
        let slow = async |Extension(Ending(ending)): Extension<Ending>| {
            let rest = stream::once(async move {
                ending.cancelled().await;
                sleep(2 * IDLE_MAX).await;
                "rest"
            });
            Body::from_stream(stream::once(async { "begin " }).chain(rest).map(Ok::<_, std::io::Error>))
        };
        let stop = CancellationToken::new();
        let (addr, served) = serve_old(Router::new().route("/", get(slow)), &stop).await;
        let answer = ask(addr, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(answer.contains("begin ") && answer.contains("rest"), "{answer}");
        stop.cancel();
        served.await.unwrap();
    }

    /// Says when it is dropped.
    struct Dropped(Option<tokio::sync::oneshot::Sender<()>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.take().map(|said| said.send(()));
        }
    }

    /// Serves with limits of its own. The address `/` answers shortly, `/large` with what no buffer of the system can have.
    async fn serve_with(limits: Limits, dropped: Dropped) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let dropped = Arc::new(std::sync::Mutex::new(Some(dropped)));
        let large = async move || {
            let held = dropped.lock().unwrap().take();
            Body::from_stream(stream::repeat_with(move || {
                let _ = &held;
                Ok::<_, std::io::Error>(vec![b' '; 1 << 20])
            }))
        };
        let router = Router::new().route("/", get(async || "short")).route("/large", get(large));
        tokio::spawn(async move { accept(listener, None, router, limits, &CancellationToken::new()).await });
        addr
    }

    #[tokio::test]
    async fn a_client_that_never_reads_is_ended() {
        let (said, ended) = tokio::sync::oneshot::channel();
        let limits =
            Limits { connection: Duration::from_hours(1), taken: Duration::from_millis(200), ..LIMITS };
        let addr = serve_with(limits, Dropped(Some(said))).await;
        let mut client = TcpStream::connect(addr).await.unwrap();
        client.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        timeout(Duration::from_mins(1), ended).await.expect("it is ended").unwrap();
    }

    #[tokio::test]
    async fn connections_that_wait_for_nothing_make_place() {
        let limits = Limits { connections: 3, connection: Duration::from_hours(1), ..LIMITS };
        let addr = serve_with(limits, Dropped(None)).await;
        let mut held = Vec::new();
        for request in ["", "GET / HTTP/1.1\r\nhost: local", "GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n"]
        {
            for _ in 0..3 {
                let mut client = TcpStream::connect(addr).await.unwrap();
                client.write_all(request.as_bytes()).await.unwrap();
                held.push(client);
            }
        }
        let request = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let answer = timeout(Duration::from_secs(50), ask(addr, request)).await.expect("it is answered");
        assert!(answer.ends_with("short"), "{answer}");
    }

    /// Its client learns where to go on.
    #[tokio::test]
    async fn a_stream_of_lines_ends_with_its_last_line_on_an_old_connection() {
        let (t, stop) = (TestQueue::new(), CancellationToken::new());
        let (addr, served) = serve_old(Server::new(&t.client).router(&stop), &stop).await;
        let line = r#"{"kind":"k"}"#;
        // Two lines of a body that goes on.
        let chunk = format!("{:x}\r\n{line}\n{line}\n\r\n", 2 * line.len() + 2);
        let head = "POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n";
        let answer = ask(addr, &format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}")).await;
        assert_eq!(answer.matches(r#""inserted""#).count(), 2, "{answer}");
        assert!(answer.contains(r#""from_line":3"#), "{answer}");
        stop.cancel();
        served.await.unwrap();
    }
}
