//! The dashboard: pages for people, as an axum router. The server renders each page. One script makes
//! pages live, and none needs it.
//!
//! Every request passes `guard`, which alone decides whether a change is allowed and sets the headers of the answer.

mod act;
mod activity;
mod assets;
mod badge;
mod chart;
mod content;
mod copy;
mod edit;
mod events;
mod failures;
mod fault;
mod fields;
mod flash;
mod frame;
mod guard;
mod job;
mod jobs;
mod links;
mod login;
mod matching;
mod operations;
mod overview;
mod queue;
mod queues;
mod recent;
mod schedule;
mod schedules;
mod settings;
mod shared;
mod terms;
pub(crate) mod text;
mod topics;
mod unserved;
mod upcoming;
mod view;
mod watcher;
mod words;
mod workers;

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::header::ACCEPT_ENCODING,
    middleware,
    routing::{get, post},
};
use punctual::{
    CancellationToken, Client, Result,
    store::{Counts, Histogram},
};
use tower_http::{CompressionLevel, compression::CompressionLayer};

use self::{assets::Assets, fault::Fault, links::Links, recent::Recent};
use crate::{activity::Activity, operations::Operations, trace};
pub(crate) use events::streamed;
pub(crate) use login::{login, to_login};
pub(crate) use shared::Shared;
pub(crate) use terms::exact;
pub(crate) use watcher::{Seen, Versions, Watcher};

/// The options of [`dashboard`].
///
/// ```
/// use punctual_server::DashboardOptions;
///
/// let options = DashboardOptions { read_only: true, ..DashboardOptions::default() };
/// assert_eq!(options.base_path, "");
/// ```
#[derive(Clone, Debug, Default)]
pub struct DashboardOptions {
    /// The path under which the router is nested, such as `/jobs` (default: empty, for the root).
    ///
    /// All links begin with it. The overview is at this path without a slash at the end.
    pub base_path: String,
    /// Whether all changes are refused (default: false). Their buttons are not shown.
    pub read_only: bool,
    /// Whether payloads, results and values of headers are hidden (default: false).
    ///
    /// Errors, log lines and filters by payload stay as they are.
    pub hide_payloads: bool,
    /// Ends the streams of live pages when it is cancelled (default: never).
    ///
    /// Cancel it when your server begins to end. Otherwise a server that waits for its requests waits for open pages.
    pub stop: CancellationToken,
}

/// Returns the dashboard of a store, as a router that can be nested under any path.
///
/// The router checks no user and no password. Serve it on a loopback address, or after a login of your own. A change
/// is accepted only from a page of the same origin.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> punctual::Result<()> {
/// use axum::Router;
/// use punctual_server::{DashboardOptions, dashboard};
///
/// let client = punctual::Client::connect("memory:").await?;
/// let options = DashboardOptions { base_path: "/jobs".to_owned(), ..DashboardOptions::default() };
/// let app: Router = Router::new().nest("/jobs", dashboard(&client, options));
/// # let _ = app;
/// # Ok(()) }
/// ```
pub fn dashboard(client: &Client, options: DashboardOptions) -> Router {
    let (watcher, activity) = (Watcher::new(client, &options.stop), Activity::new(client));
    let operations = Operations::new(client, &activity);
    if !options.read_only {
        operations.start(&options.stop);
    }
    with(client, options, &watcher, &activity, &operations)
}

/// As [`dashboard`], with what several routers share.
pub(crate) fn with(
    client: &Client,
    options: DashboardOptions,
    watcher: &Watcher,
    activity: &Activity,
    operations: &Operations,
) -> Router {
    let board = Arc::new(Board {
        client: client.clone(),
        links: Links::new(&options.base_path),
        assets: Assets::new(),
        watcher: watcher.clone(),
        activity: activity.clone(),
        operations: operations.clone(),
        counts: Recent::default(),
        periods: Default::default(),
        overview: Shared::default(),
        overview_with_token: Shared::default(),
        options,
    });
    let router = Router::new()
        .route("/", get(overview::page))
        .route("/upcoming", get(upcoming::page))
        .route("/jobs", get(jobs::page))
        .route("/jobs/confirm", post(act::confirm))
        .route("/jobs/act", post(act::act))
        .route("/jobs/matching", post(matching::preview))
        .route("/jobs/{id}", get(job::page))
        .route("/jobs/{id}/edit", get(edit::page).post(edit::save))
        .route("/jobs/{id}/duplicate", post(copy::duplicate))
        .route("/operations", get(operations::list).post(operations::order))
        .route("/operations/{id}", get(operations::page))
        .route("/operations/{id}/cancel", post(operations::cancel))
        .route("/queues", get(queues::page))
        .route("/queues/{name}", get(queue::page))
        .route("/queues/{name}/pause", post(queue::pause))
        .route("/queues/{name}/resume", post(queue::resume))
        .route("/queues/{name}/purge", post(queue::purge))
        .route("/queues/{name}/settings", get(settings::page).post(settings::save))
        .route("/failures", get(failures::page))
        .route("/schedules", get(schedules::page))
        .route("/schedules/{name}", get(schedule::page))
        .route("/schedules/{name}/pause", post(schedule::pause))
        .route("/schedules/{name}/resume", post(schedule::resume))
        .route("/schedules/{name}/fire", post(schedule::fire))
        .route("/schedules/{name}/delete", post(schedule::delete))
        .route("/topics", get(topics::page))
        .route("/workers", get(workers::page))
        .route("/workers/{id}/quiet", post(workers::quiet))
        .route("/workers/{id}/resume", post(workers::resume))
        .route("/workers/{id}/stop", post(workers::stop))
        .route("/activity", get(activity::page))
        .route("/events", get(events::page))
        .route("/style.css", get(assets::style))
        .route("/live.js", get(assets::script))
        .fallback(async || Fault::NoPage)
        .method_not_allowed_fallback(async || Fault::Method)
        .layer(middleware::from_fn_with_state(Arc::clone(&board), guard::guard))
        // Not the stream of events, whose parts would wait for each other.
        .layer(CompressionLayer::new().quality(CompressionLevel::Fastest))
        .layer(middleware::map_request(as_it_is_for_other_sites))
        .with_state(board);
    trace::routes(router)
}

/// Takes from a request of another site that its answer may be compressed. A list repeats its filter beside errors, and another site
/// must not learn from its length how much of them is in the filter.
async fn as_it_is_for_other_sites(mut request: Request) -> Request {
    if guard::says_same_site(request.headers()) == Some(false) {
        request.headers_mut().remove(ACCEPT_ENCODING);
    }
    request
}

/// What all handlers share.
#[derive(Debug)]
struct Board {
    client: Client,
    links: Links,
    assets: Assets,
    watcher: Watcher,
    activity: Activity,
    operations: Operations,
    counts: Recent<Counts>,
    /// The timeline, for each period.
    periods: [Recent<Histogram>; upcoming::PERIODS.len()],
    overview: Shared<Fault>,
    /// As `overview`, with a button to log out.
    overview_with_token: Shared<Fault>,
    options: DashboardOptions,
}

impl Board {
    /// Reads the counters of the store. `None` while very many queues are counted and no counters are known.
    async fn counts(&self) -> Result<Option<Counts>> {
        let client = self.client.clone();
        self.counts.get(&self.client, async move { client.count(None).await }).await
    }
}
