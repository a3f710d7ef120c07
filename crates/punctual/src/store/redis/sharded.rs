//! The verbs over all shards. Each runs concurrently in the shards that it concerns, and the answers are merged. With
//! one shard that is one call.
//!
//! A call over several shards holds as a whole if it holds in each of them. If one of them cannot be reached, the
//! call fails. When it is repeated, it has its effect once in every shard (S3), because each shard knows whether it
//! has done its part. So the parts must not change from one repetition to the next. `attempts` ensures that.

pub(crate) mod act;
pub(crate) mod attempts;
pub(crate) mod copies;
pub(crate) mod enqueue;
pub(crate) mod givers;
pub(crate) mod layout;
pub(crate) mod lease;
pub(crate) mod misplaced;
pub(crate) mod pins;
pub(crate) mod queue;
pub(crate) mod quiet;
pub(crate) mod read;
pub(crate) mod reshard;
pub(crate) mod restore;
pub(crate) mod shard;
pub(crate) mod upkeep;
pub(crate) mod watch;

use std::collections::BTreeMap;

use futures_util::future::join_all;

use crate::{
    core::error::{ErrorKind, Result},
    store::BoxFuture,
};

/// Makes all calls; returns their answers in order, or the error of one of them.
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
    // The error that means that something may have been done takes precedence.
    match errors.into_iter().max_by_key(|error| error.kind() == ErrorKind::UnknownOutcome) {
        None => Ok(answers),
        Some(error) if is_in_part => Err(error.in_part()),
        Some(error) => Err(error),
    }
}

/// What a shard says of a thing that may be in several shards, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Says {
    /// It is not in this shard.
    Absent,
    /// The shard was not reached.
    Unreached,
    /// The shard was asked, and did not answer.
    Unanswered,
    /// It is in this shard.
    Found,
}

/// Asks for things in the shards that may have them: each in its likeliest home, and then in the next one unless it was found. A
/// home that is away says nothing about the others. Of the answers for a thing, the one that says most counts: `absent` if all of
/// them say so. `call` takes the round, the shard, and which of the things. It is also called with none of them for the shard
/// `also`.
async fn in_homes<'a, T: Copy>(
    homes: &[Vec<usize>],
    also: Option<usize>,
    absent: T,
    says: impl Fn(T) -> Says,
    call: impl Fn(usize, usize, Vec<usize>) -> BoxFuture<'a, Result<Vec<T>>>,
) -> Result<Vec<T>> {
    let mut found = vec![absent; homes.len()];
    // No thing has more than two homes for each number of shards that a store had.
    for round in 0.. {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        if round == 0 {
            also.map(|also| groups.entry(also).or_default());
        }
        for (i, homes) in homes.iter().enumerate().filter(|(i, _)| says(found[*i]) < Says::Found) {
            if let Some(home) = homes.get(round) {
                groups.entry(*home).or_default().push(i);
            }
        }
        if groups.is_empty() {
            break;
        }
        let calls = groups.iter().map(|(home, group)| call(round, *home, group.clone()));
        let answers = all(calls).await.map_err(|error| if round == 0 { error } else { error.in_part() })?;
        for (group, answers) in groups.values().zip(answers) {
            for (i, answer) in group.iter().zip(answers) {
                if says(found[*i]) < says(answer) {
                    found[*i] = answer;
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::core::error::Error;

    /// Two answers that say as much differ by their second part.
    type Answer = (Says, u8);

    const ABSENT: Answer = (Says::Absent, 0);

    /// Asks for one thing in homes that answer so, and returns what counts and how many were asked.
    async fn asked(homes: &[Answer]) -> (Answer, usize) {
        let calls = Mutex::new(0);
        let all = [(0..homes.len()).collect()];
        let call = |_, at: usize, group: Vec<usize>| -> BoxFuture<'_, Result<Vec<Answer>>> {
            *calls.lock().unwrap() += 1;
            let answer = homes[at];
            Box::pin(async move { Ok(vec![answer; group.len()]) })
        };
        let found = in_homes(&all, None, ABSENT, |(says, _)| says, call).await.unwrap()[0];
        (found, calls.into_inner().unwrap())
    }

    #[tokio::test]
    async fn the_answer_that_says_most_counts() {
        use Says::{Absent, Found, Unanswered, Unreached};
        assert_eq!(asked(&[(Found, 1), (Found, 2)]).await, ((Found, 1), 1));
        assert_eq!(asked(&[(Absent, 1), (Absent, 2)]).await, (ABSENT, 2));
        assert_eq!(asked(&[(Unreached, 1), (Absent, 2), (Found, 3)]).await, ((Found, 3), 3));
        assert_eq!(asked(&[(Unanswered, 1), (Found, 2), (Absent, 3)]).await, ((Found, 2), 2));
        assert_eq!(asked(&[(Unreached, 1), (Absent, 2), (Unreached, 3)]).await, ((Unreached, 1), 3));
        // It may have been done there, so it must not be forgotten that it was asked for.
        assert_eq!(asked(&[(Unanswered, 1), (Unreached, 2), (Absent, 3)]).await, ((Unanswered, 1), 3));
        assert_eq!(asked(&[(Absent, 1), (Unreached, 2), (Unanswered, 3)]).await, ((Unanswered, 3), 3));
    }

    #[tokio::test]
    async fn an_error_behind_other_answers_is_one_of_a_part() {
        let refused = async |from: usize| {
            let call = |round, at, group: Vec<usize>| -> BoxFuture<'_, Result<Vec<Answer>>> {
                Box::pin(async move {
                    if round == from {
                        return Err(Error::new(ErrorKind::StoreFull, "write"));
                    }
                    let says = |i| if i == 0 && at == 0 { ABSENT } else { (Says::Found, 1) };
                    Ok(group.into_iter().map(says).collect())
                })
            };
            in_homes(&[vec![0, 1], vec![0]], None, ABSENT, |(says, _)| says, call).await.unwrap_err().kind()
        };
        assert_eq!((refused(0).await, refused(1).await), (ErrorKind::StoreFull, ErrorKind::UnknownOutcome));
    }
}
