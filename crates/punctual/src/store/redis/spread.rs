//! The verbs over all shards: each is done in the shards that it concerns, at the same time, and the answers are put
//! together. With one shard that is one call.
//!
//! A call over several shards holds as a whole where it holds in each. Where one of them could not be reached the call
//! fails, and repeated it has its effect once in every shard (S3): each of them knows by itself whether it has done its
//! part. So parts must not change from one repetition to the next, which is what `attempts` is for.

pub(super) mod act;
pub(super) mod attempts;
pub(super) mod enqueue;
pub(super) mod lease;
pub(super) mod queue;
pub(super) mod read;
pub(super) mod upkeep;

use futures_util::future::join_all;

use crate::error::{Error, ErrorKind, Result};

/// Makes all calls, and answers as they stand, or with an error of one of them.
pub(super) async fn all<T>(
    calls: impl IntoIterator<Item = impl Future<Output = Result<T>>>,
) -> Result<Vec<T>> {
    let mut answers = Vec::new();
    let mut errors = Vec::new();
    for answer in join_all(calls).await {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(error) => errors.push(error),
        }
    }
    let is_in_part = !answers.is_empty();
    // What may have been done says most.
    match errors.into_iter().max_by_key(|error| error.kind() == ErrorKind::UnknownOutcome) {
        None => Ok(answers),
        Some(error) if is_in_part => Err(in_part(error)),
        Some(error) => Err(error),
    }
}

/// An error where something else was done: one that says that nothing was done says too much.
fn in_part(error: Error) -> Error {
    if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::StoreFull) {
        let text = format!("did it in some shards only: {error}");
        Error::new(ErrorKind::UnknownOutcome, text).with_source(error)
    } else {
        error
    }
}
