//! What all pages share: the head, the navigation, the message after a change and the foot.

use askama::Template;
use axum::response::{Html, IntoResponse, Response};

use super::{fault::Fault, flash::Flash, links::Links, view::View};

/// The entry of the navigation that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Here {
    Overview,
    Upcoming,
    Jobs,
    Queues,
    Failures,
    Schedules,
    Topics,
    Workers,
    Operations,
    Activity,
    /// A page about a fault.
    Nowhere,
}

/// An entry of the navigation.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) link: String,
    pub(super) is_here: bool,
    /// The outline of its icon, in a square of 16.
    pub(super) icon: &'static str,
}

/// The part of a page around its content.
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) links: Links,
    pub(super) style: String,
    pub(super) script: String,
    /// Whether the page can be loaded again by its address.
    pub(super) is_live: bool,
    /// Whether the page changes by itself, without a change that the stream reports.
    pub(super) is_moving: bool,
    pub(super) read_only: bool,
    /// Where the caller can log out, if it has a token.
    pub(super) log_out: Option<String>,
    pub(super) flash: Option<Flash>,
    pub(super) entries: Vec<Entry>,
    pub(super) store: String,
    pub(super) durability: &'static str,
}

/// The entries of the navigation: page, name, address, icon.
const ENTRIES: [(Here, &str, &str, &str); 10] = [
    (Here::Overview, "Overview", "", "M2 9h5V2H2zM2 14h5v-3H2zM9 14h5V7H9zM9 2v3h5V2z"),
    (Here::Upcoming, "Timeline", "upcoming", "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2M8 5v3l2.2 1.6"),
    (Here::Jobs, "Jobs", "jobs", "M2 4h12M2 8h12M2 12h8"),
    (Here::Queues, "Queues", "queues", "M2 3h12v3H2zM2 10h12v3H2z"),
    (Here::Failures, "Failures", "failures", "M8 2 15 14H1zM8 7v3M8 11.8v.4"),
    (Here::Schedules, "Schedules", "schedules", "M2 3.5h12V14H2zM2 7h12M5 1.5v3M11 1.5v3"),
    (Here::Topics, "Topics", "topics", "M3 8h4M7 8l6-5M7 8l6 5M7 8h6"),
    (Here::Workers, "Workers", "workers", "M2 3h12v7H2zM6 13.5h4M8 10v3.5"),
    (Here::Operations, "Operations", "operations", "M2 4l1.5 1.5L6 3M2 11l1.5 1.5L6 10M8 4.5h6M8 11.5h6"),
    (Here::Activity, "Activity", "activity", "M2 8h3l2-5 3 10 2-5h2"),
];

impl Frame {
    pub(super) fn new(board: &View, here: Here, title: impl Into<String>) -> Self {
        let entry = |(page, name, path, icon): (Here, &'static str, &str, &'static str)| Entry {
            name,
            link: if path.is_empty() { board.links.overview() } else { board.links.to(path) },
            is_here: page == here,
            icon,
        };
        // A caller for some queues may open no other page that lists.
        let is_open = |(page, ..): &(Here, _, _, _)| board.queues().is_none() || *page == Here::Jobs;
        let store = board.client.store();
        Self {
            title: title.into(),
            links: board.links.clone(),
            style: board.assets.style(&board.links),
            script: board.assets.script(&board.links),
            // The stream of changes says something of all queues.
            is_live: here != Here::Nowhere && board.queues().is_none(),
            is_moving: false,
            read_only: board.options.read_only,
            log_out: board.has_token().then(|| board.links.to("logout")),
            flash: None,
            entries: ENTRIES.into_iter().filter(is_open).map(entry).collect(),
            store: store.url().to_owned(),
            durability: store.durability().name(),
        }
    }

    /// Marks the answer to a form, which its address alone does not lead to.
    pub(super) fn still(self) -> Self {
        Self { is_live: false, ..self }
    }

    /// Marks a page that changes by itself: it is fetched again every 2 s, and without JavaScript loaded again every 5 s.
    pub(super) fn moving(self) -> Self {
        Self { is_moving: true, ..self }
    }

    /// Adds the message after a change.
    pub(super) fn with(self, flash: Option<Flash>) -> Self {
        Self { flash, ..self }
    }
}

/// Renders a page.
pub(super) fn html(page: &impl Template) -> Result<Response, Fault> {
    text(page).map(|text| Html(text).into_response())
}

/// Renders a page as text.
pub(super) fn text(page: &impl Template) -> Result<String, Fault> {
    page.render().map_err(|error| {
        tracing::error!(target: "punctual", %error, "could not write a page of the dashboard");
        Fault::Template
    })
}
