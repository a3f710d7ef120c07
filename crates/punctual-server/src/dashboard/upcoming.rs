//! The timeline: when waiting jobs are due.

use std::time::Duration;

use askama::Template;
use axum::{http::Uri, response::Response};
use punctual::store::Upcoming;

use super::{
    Board,
    chart::Chart,
    fault::Fault,
    fields::Fields,
    frame::{Frame, Here, html},
    view::View,
};

/// A period to look ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    name: &'static str,
    words: &'static str,
    bucket: Duration,
    buckets: usize,
    /// How times are written.
    format: &'static str,
}

/// The next hour by the minute, the next day by the quarter of an hour, the next month by six hours.
pub(super) const HOUR: Period =
    Period { name: "1h", words: "Next hour", bucket: Duration::from_mins(1), buckets: 60, format: "%H:%M" };
pub(super) const PERIODS: [Period; 3] = [
    HOUR,
    Period {
        name: "24h",
        words: "Next 24 hours",
        bucket: Duration::from_mins(15),
        buckets: 96,
        format: "%d %b %H:%M",
    },
    Period {
        name: "30d",
        words: "Next 30 days",
        bucket: Duration::from_hours(6),
        buckets: 120,
        format: "%d %b %H:%M",
    },
];

/// A tab: a period, its address, and whether it is shown.
struct Tab {
    words: &'static str,
    link: String,
    is_here: bool,
}

#[derive(Template)]
#[template(path = "upcoming.html")]
struct Page {
    frame: Frame,
    tabs: Vec<Tab>,
    chart: Option<Chart>,
    overdue: bool,
    overdue_link: String,
    complete: bool,
}

impl Period {
    /// Reads the histogram of this period. Makes one call to the store, or two if that one takes long. `None` while very many queues are
    /// searched.
    pub(super) async fn chart(self, board: &Board) -> Result<Option<(Chart, bool, u64)>, Fault> {
        let client = board.client.clone();
        let place =
            PERIODS.iter().position(|period| *period == self).expect("invariant: all are in the table");
        let request = Upcoming { queue: None, bucket: self.bucket, buckets: self.buckets };
        let read = async move { client.upcoming(&request).await };
        let found = board.periods[place].get(&board.client, read).await?;
        Ok(found.map(|found| (Chart::new(&found, self.bucket, self.format), found.complete, found.overdue)))
    }
}

/// Shows the timeline. Makes one call to the store, or two.
pub(super) async fn page(board: View, uri: Uri) -> Result<Response, Fault> {
    let fields = Fields::of_query(&uri);
    let here = PERIODS.into_iter().find(|period| period.name == fields.get("for")).unwrap_or(HOUR);
    let (chart, complete, overdue) = match here.chart(&board).await? {
        Some((chart, complete, overdue)) => (Some(chart), complete, overdue),
        None => (None, true, 0),
    };
    let tabs = PERIODS.into_iter().map(|period| Tab {
        words: period.words,
        link: board.links.query("upcoming", &[("for", period.name)]),
        is_here: period == here,
    });
    html(&Page {
        frame: Frame::new(&board, Here::Upcoming, "Timeline"),
        tabs: tabs.collect(),
        chart,
        overdue: 0 < overdue,
        overdue_link: board.links.jobs("state:waiting due:<0s"),
        complete,
    })
}
