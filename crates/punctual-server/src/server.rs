//! The server: the HTTP API, the dashboard, metrics and health, behind one gate.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header::LOCATION},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{future::RouteFuture, get, post},
};
use punctual::{CancellationToken, Client, Error, ErrorKind, Result, client::Metrics};
use tokio::time::timeout;
use tower::Service as _;

use crate::{
    DashboardOptions, Tls,
    accept::{Limits, accept},
    activity::Activity,
    answers::{self, Answers},
    api::{self, Problem},
    dashboard::{self, Watcher, login, to_login},
    gate::{Caller, Gate, Needs, asked_as},
    listen::metrics_router,
    metrics::{Sampler, away},
    operations::Operations,
    ready::Readiness,
    rights,
    token::Role,
    trace,
    trouble::{self, Trouble},
};

/// Connections of workers stay open. After an hour they are made anew, so that load is spread over servers behind one address.
const LIMITS: Limits = Limits {
    connections: 10_000,
    connection: Duration::from_hours(1),
    drain: Duration::from_secs(30),
    head: Duration::from_mins(1),
    taken: Duration::from_secs(45),
};
/// How long a server that ends waits for the step of an operation, and for the activity log.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);

/// A server for one store.
///
/// ```no_run
/// # use punctual::{CancellationToken, Client};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// let client = Client::connect("sqlite:jobs.db").await?;
/// let server = punctual_server::Server::new(&client);
/// server.serve("127.0.0.1:7890".parse().expect("an address"), &CancellationToken::new(), |addr| println!("{addr}")).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Server {
    client: Client,
    metrics: Metrics,
    sampler: Sampler,
    gate: Gate,
    dashboard: DashboardOptions,
    activity: Activity,
    operations: Operations,
    tls: Option<Tls>,
    /// Makes the routes of tools for assistants, if they are served.
    tools: Option<fn(&Router) -> Router>,
    /// Puts the door of the SQS protocol before a router, if it is open.
    door: Option<fn(&Self, Router, &CancellationToken) -> Router>,
}

impl Server {
    /// Makes a server whose gate has the tokens of the store ([`Gate::new`]).
    pub fn new(client: &Client) -> Self {
        let metrics = Metrics::default();
        let client = client.with_metrics(&metrics);
        let activity = Activity::new(&client);
        Self {
            gate: Gate::new(&client),
            sampler: Sampler::new(&client),
            operations: Operations::new(&client, &activity),
            activity,
            client,
            metrics,
            dashboard: DashboardOptions::default(),
            tls: None,
            tools: None,
            door: None,
        }
    }

    /// Replaces the gate.
    #[must_use]
    pub fn gate(mut self, gate: Gate) -> Self {
        self.gate = gate;
        self
    }

    /// Sets the options of the dashboard. Its base path is also that of the API, of metrics and of health; `read_only` is for the API,
    /// too.
    #[must_use]
    pub fn dashboard(mut self, options: DashboardOptions) -> Self {
        self.dashboard = options;
        self.dashboard.base_path.truncate(self.dashboard.base_path.trim_end_matches('/').len());
        self
    }

    /// Speaks TLS in [`serve`](Self::serve), and nothing else.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Serves tools for assistants at `POST /mcp`, by the Model Context Protocol. They read, and change nothing. A token, its queues
    /// and hidden payloads hold as in the HTTP API.
    #[cfg(feature = "mcp")]
    #[must_use]
    pub fn mcp(mut self) -> Self {
        self.tools = Some(crate::mcp::routes);
        self
    }

    /// Serves the protocol of Amazon SQS at `POST /` and at the addresses of its queues, for SDKs of AWS.
    ///
    /// Requests are signed with a token that [signs](crate::token::NewToken::signs). While the store has no token, programs on the same
    /// machine need no valid signature.
    #[cfg(feature = "sqs")]
    #[must_use]
    pub fn sqs(mut self) -> Self {
        self.door = Some(|server, router, stop| {
            let Self { client, gate, activity, dashboard, .. } = server;
            crate::sqs::Door::new(client, gate, activity, &dashboard.base_path, dashboard.read_only, stop)
                .before(router)
        });
        self
    }

    /// Returns the router, under its base path. `stop` ends requests that wait for jobs, streams of live pages, and the steps of
    /// operations. Call it in a runtime of tokio: operations of the store then go on at once, else with the first order.
    ///
    /// Requests need the address of the peer: [`axum::extract::ConnectInfo`] of a `SocketAddr`.
    pub fn router(&self, stop: &CancellationToken) -> Router {
        if !self.dashboard.read_only {
            self.operations.start(stop);
        }
        let watcher = Watcher::new(&self.client, stop);
        let (base, pages) = (&self.dashboard.base_path, self.pages(&watcher));
        let gate = self.gate.clone().base_path(base);
        let api = api::with(&self.client, stop, &watcher, &self.activity, &self.operations);
        let inner = self.tools.unwrap_or(no_tools)(&api)
            .merge(api)
            .merge(metrics_router(&self.metrics, Some(self.sampler.clone())))
            .merge(health(&self.client, self.dashboard.read_only))
            .merge(login(&gate, base))
            .fallback(async move |request: Request| pages(request).await)
            .layer(middleware::from_fn(to_the_end))
            .layer(middleware::from_fn_with_state(self.dashboard.read_only, read_only))
            .layer(middleware::from_fn_with_state(Trouble::default(), trouble::said))
            .layer(middleware::from_fn_with_state(Answers::new(), answers::bounded));
        // A request that the gate refuses makes no span: anybody could fill the traces with them, and name the parent.
        let inner = trace::spans(inner, base)
            .layer(gate.layer(rights::of).on_page({
                let base = base.clone();
                move |refusal, _| to_login(&base, refusal)
            }))
            .layer(middleware::from_fn_with_state(self.client.clone(), away));
        let whole = if base.is_empty() {
            inner
        } else {
            let target = base.clone();
            let to_base = move || std::future::ready((StatusCode::PERMANENT_REDIRECT, [(LOCATION, target)]));
            Router::new().route(&format!("{base}/"), get(to_base)).nest(base, inner)
        };
        match self.door {
            Some(door) => door(self, whole, stop),
            None => whole,
        }
    }

    /// Returns a handler for the pages of the dashboard.
    fn pages(
        &self,
        watcher: &Watcher,
    ) -> impl Fn(Request) -> RouteFuture<Infallible> + Clone + Send + Sync + use<> {
        let pages =
            dashboard::with(&self.client, self.dashboard.clone(), watcher, &self.activity, &self.operations);
        move |request| pages.clone().call(request)
    }

    /// Serves the router on an address until `stop`. Requests in progress then have 30 s to end; waits end at once.
    ///
    /// `ready` gets the address when the port answers, with the port that was chosen if the requested one was 0. At most 10,000
    /// connections are open at once; further ones wait.
    ///
    /// # Errors
    /// `Unavailable` if the port cannot be bound.
    pub async fn serve(
        &self,
        addr: SocketAddr,
        stop: &CancellationToken,
        ready: impl FnOnce(SocketAddr),
    ) -> Result<()> {
        let cannot = |e: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("could not listen on {addr}"))
                .with_hint("choose another address, or end the program that listens there")
                .with_source(e)
        };
        let listener = tokio::net::TcpListener::bind(addr).await.map_err(cannot)?;
        ready(listener.local_addr().map_err(cannot)?);
        accept(listener, self.tls.as_ref(), self.router(stop), LIMITS, stop).await;
        // Otherwise another server goes on with its operations only after their leases have ended.
        _ = timeout(GIVE_BACK_MAX, self.operations.stopped()).await;
        _ = timeout(GIVE_BACK_MAX, self.activity.flush()).await;
        Ok(())
    }
}

/// Answers a client of tools for assistants, which are not served.
fn no_tools(_: &Router) -> Router {
    let nothing = async || {
        Problem::not_found("this server has no tools for assistants")
            .with_hint("start it with --mcp; the cargo feature mcp has this option")
    };
    Router::new().route("/mcp", post(nothing))
}

/// Lets a change of an operator run to its end, also if its client leaves: a change that was made must be in the activity log.
async fn to_the_end(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // The work of producers and workers is not in the log, and tools change nothing. Some calls say in their body whether they change something.
    let is_work = ["enqueue", "reserve", "extend", "settle", "take", "sweep", "wait", "jobs"]
        .iter()
        .any(|call| path.strip_prefix("/api/v1/") == Some(call));
    if is_work || path == "/mcp" || request.method().is_safe() {
        return next.run(request).await;
    }
    let made = tokio::spawn(trace::carried(next.run(request)));
    made.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Lets no caller change anything, if the server is read-only.
async fn read_only(State(is_read_only): State<bool>, mut request: Request, next: Next) -> Response {
    if !is_read_only {
        return next.run(request).await;
    }
    let refusal = Problem::new(StatusCode::FORBIDDEN, "forbidden", "the server is read-only")
        .with_hint("use another server of the store, or start this one without --read-only");
    if rights::of(asked_as(request.method()), request.uri().path()).is_none_or(Needs::changes) {
        return refusal.into_response();
    }
    // Some calls say in their body what they do.
    let Some(caller) = request.extensions_mut().get_mut::<Caller>() else { return next.run(request).await };
    let is_reader = caller.role == Role::Read;
    caller.role = Role::Read;
    let response = next.run(request).await;
    if response.status() == StatusCode::FORBIDDEN && !is_reader { refusal.into_response() } else { response }
}

/// Returns a router for health. The server is alive while it answers, and ready while the store answers and, unless it is read-only, takes writes.
fn health(client: &Client, is_read_only: bool) -> Router {
    let readiness = Readiness::new(client, is_read_only);
    let is_ready = move || {
        let readiness = readiness.clone();
        async move { readiness.now().await }
    };
    Router::new().route("/healthz", get(async || "ok, the server answers\n")).route("/readyz", get(is_ready))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    };

    use axum::body::Body;
    use punctual::testing::{Fault, FaultyStore, TestQueue};
    use tower::ServiceExt as _;

    use super::*;

    /// The store knows the time, and finds no token.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_can_let_nobody_in_is_not_ready() {
        let (t, hangs) = (TestQueue::new(), Arc::new(AtomicBool::new(false)));
        let is_hanging = Arc::clone(&hangs);
        let store = FaultyStore::new(Arc::clone(t.client.store()), move |verb| {
            if verb == "doc" && is_hanging.load(Relaxed) {
                Fault::Late(Duration::from_hours(1))
            } else {
                Fault::Pass
            }
        });
        let health = health(&Client::new(Arc::new(store)), false);
        let ask = |path: &str| health.clone().oneshot(Request::get(path).body(Body::empty()).unwrap());
        assert_eq!(ask("/readyz").await.unwrap().status(), StatusCode::OK);
        hangs.store(true, Relaxed);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ask("/readyz").await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask("/healthz").await.unwrap().status(), StatusCode::OK);
    }
}
