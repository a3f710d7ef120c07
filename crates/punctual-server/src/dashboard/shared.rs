//! An answer that is the same for all who may see it: one rendering serves all of them for a moment.

use std::{future::Future, sync::Arc, time::Duration};

use axum::body::Bytes;
use tokio::{sync::Mutex, time::Instant};

use super::watcher::Versions;

/// How long a rendering serves further requests.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// The last rendering of an answer, or its fault. It is replaced, so there is one at most.
#[derive(Debug)]
pub(crate) struct Shared<F>(Mutex<Option<Rendering<F>>>);

#[derive(Debug)]
struct Rendering<F> {
    /// What the watcher had noticed before the store was read.
    versions: Versions,
    /// When it was finished. From its beginning, one that takes long would never be fresh for those that wait for it.
    at: Instant,
    answer: Result<Bytes, Arc<F>>,
}

impl<F> Default for Shared<F> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<F> Shared<F> {
    /// Returns the last rendering while it is fresh, or makes one. Others wait for it meanwhile.
    ///
    /// `versions` is what the watcher has noticed: what is fetched because of a change must show it. A fault is shared,
    /// too, so that a store that does not answer is not asked by each caller in turn.
    pub(crate) async fn get<B: Into<Bytes>>(
        &self,
        versions: Versions,
        render: impl Future<Output = Result<B, F>>,
    ) -> Result<Bytes, Arc<F>> {
        let mut last = self.0.lock().await;
        // Those that waited may have an older view than the one that they waited for.
        let is_fresh = |of: &Rendering<F>| versions.is_within(of.versions) && of.at.elapsed() < FRESH_FOR;
        if let Some(rendering) = last.as_ref().filter(|of| is_fresh(of)) {
            return rendering.answer.clone();
        }
        let answer = render.await.map(Into::into).map_err(Arc::new);
        *last = Some(Rendering { versions, at: Instant::now(), answer: answer.clone() });
        answer
    }
}
