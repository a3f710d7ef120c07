//! The list of topics.

use askama::Template;
use axum::{http::Uri, response::Response};
use punctual::topic::{TOPICS_QUEUE, Topic};

use super::{
    fault::Fault,
    fields::Fields,
    frame::{Frame, Here, html},
    links::Links,
    terms::exact,
    text::count,
    view::View,
};

/// The most topics of a page.
const TOPICS_SHOWN: usize = 100;
/// The most queues of a topic that are shown.
const QUEUES_SHOWN: usize = 20;

struct Row {
    name: String,
    /// The first subscribed queues: name and address.
    queues: Vec<(String, String)>,
    more: Option<String>,
    n: String,
}

#[derive(Template)]
#[template(path = "topics.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    unreadable: Vec<String>,
    publications: String,
    first: Option<String>,
    next: Option<String>,
}

/// Lists topics by name, 100 on a page. Makes one call to the store.
pub(super) async fn page(board: View, uri: Uri) -> Result<Response, Fault> {
    let fields = Fields::of_query(&uri);
    let after = fields.exact("after");
    let page = board.client.topics(after).await?;
    let shown = &page.topics[..page.topics.len().min(TOPICS_SHOWN)];
    let last = shown.last().map(|topic| topic.name.clone()).filter(|_| shown.len() < page.topics.len());
    html(&Page {
        frame: Frame::new(&board, Here::Topics, "Topics"),
        rows: shown.iter().map(|topic| Row::new(topic, &board.links)).collect(),
        publications: board.links.jobs(&exact("queue", TOPICS_QUEUE)),
        first: after.map(|_| board.links.to("topics")),
        next: last.or(page.next).map(|last| board.links.query("topics", &[("after", &last)])),
        unreadable: page.unreadable,
    })
}

impl Row {
    fn new(topic: &Topic, links: &Links) -> Self {
        let more = topic.queues.len().checked_sub(QUEUES_SHOWN).filter(|more| 0 < *more);
        let link = |queue: &String| (queue.clone(), links.jobs(&exact("queue", queue)));
        Self {
            name: topic.name.clone(),
            queues: topic.queues.iter().take(QUEUES_SHOWN).map(link).collect(),
            more: more.map(|more| count(more as u64)),
            n: count(topic.queues.len() as u64),
        }
    }
}
