//! The verbs over all shards: each is done in the shards that it concerns, at the same time, and the answers are put
//! together. With one shard that is one call.
//!
//! A call over several shards holds as a whole where it holds in each. Where one of them could not be reached the call
//! fails, and repeated it has its effect once in every shard (S3): each of them knows by itself whether it has done its
//! part. So parts must not change from one repetition to the next, which is what `attempts` is for.

pub(crate) mod act;
pub(crate) mod attempts;
pub(crate) mod copies;
pub(crate) mod enqueue;
pub(crate) mod layout;
pub(crate) mod lease;
pub(crate) mod misplaced;
pub(crate) mod pins;
pub(crate) mod queue;
pub(crate) mod quiet;
pub(crate) mod read;
pub(crate) mod reshard;
pub(crate) mod shard;
pub(crate) mod upkeep;
pub(crate) mod watch;

use std::collections::BTreeMap;

use futures_util::future::join_all;

use crate::{
    core::error::{ErrorKind, Result},
    store::{BoxFuture, redis::connection::fault::in_part},
};

/// Makes all calls, and answers as they stand, or with an error of one of them.
pub(crate) async fn all<T>(
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

/// Asks for things in the shards that may have them: each in its likeliest home, those that answer `absent` in the next one.
/// `call` takes the round, the shard, and which of the things; it is also called with none of them for the shard `also`.
async fn in_homes<'a, T: Copy + PartialEq>(
    homes: &[Vec<usize>],
    also: Option<usize>,
    absent: T,
    call: impl Fn(usize, usize, Vec<usize>) -> BoxFuture<'a, Result<Vec<T>>>,
) -> Result<Vec<T>> {
    let mut found = vec![absent; homes.len()];
    // No thing has more homes than two for each number of shards that a store had.
    for round in 0.. {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        if round == 0 {
            also.map(|also| groups.entry(also).or_default());
        }
        for (i, homes) in homes.iter().enumerate().filter(|(i, _)| found[*i] == absent) {
            if let Some(home) = homes.get(round) {
                groups.entry(*home).or_default().push(i);
            }
        }
        if groups.is_empty() {
            break;
        }
        let calls = groups.iter().map(|(home, group)| call(round, *home, group.clone()));
        let answers = all(calls).await.map_err(|error| if round == 0 { error } else { in_part(error) })?;
        for (group, answers) in groups.values().zip(answers) {
            group.iter().zip(answers).for_each(|(i, answer)| found[*i] = answer);
        }
    }
    Ok(found)
}
