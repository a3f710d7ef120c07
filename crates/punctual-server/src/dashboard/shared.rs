//! A page that is the same for all who may see it: one rendering serves all open pages for a moment.

use std::{future::Future, sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    http::header,
    response::{IntoResponse, Response},
};
use tokio::{sync::Mutex, time::Instant};

use super::{fault::Fault, watcher::Versions};

/// How long a rendering serves further requests.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// The type of a page.
const HTML: &str = "text/html; charset=utf-8";

/// The last rendering of a page. It is replaced, so there is one at most.
#[derive(Debug, Default)]
pub(super) struct SharedPage(Mutex<Option<Rendering>>);

#[derive(Debug)]
struct Rendering {
    /// What the watcher had noticed before the store was read.
    versions: Versions,
    /// When it was finished. From its beginning, one that takes long would never be fresh for those that wait for it.
    at: Instant,
    page: Result<Bytes, Arc<Fault>>,
}

impl SharedPage {
    /// Returns the last rendering while it is fresh, or makes one. Others wait for it meanwhile.
    ///
    /// `versions` is what the watcher has noticed: a page that is fetched because of a change must show it. A fault is shared,
    /// too, so that a store that does not answer is not asked by each page in turn.
    pub(super) async fn get(
        &self,
        versions: Versions,
        render: impl Future<Output = Result<String, Fault>>,
    ) -> Response {
        let mut last = self.0.lock().await;
        // Those that waited may have an older view than the one that they waited for.
        let is_fresh = |of: &Rendering| versions.is_within(of.versions) && of.at.elapsed() < FRESH_FOR;
        if let Some(rendering) = last.as_ref().filter(|of| is_fresh(of)) {
            return answer(&rendering.page);
        }
        let page = render.await.map(Bytes::from).map_err(Arc::new);
        let answer = answer(&page);
        *last = Some(Rendering { versions, at: Instant::now(), page });
        answer
    }
}

fn answer(page: &Result<Bytes, Arc<Fault>>) -> Response {
    match page {
        Ok(page) => ([(header::CONTENT_TYPE, HTML)], page.clone()).into_response(),
        Err(fault) => Fault::answer(fault),
    }
}
