//! A batch: up to ten entries, each of which succeeds or fails by itself.

use std::collections::BTreeSet;

use serde::Serialize;

use super::fault::{Code, Fault};

/// Most entries of a batch.
pub(super) const ENTRIES_MAX: usize = 10;
/// The longest id of an entry, in bytes.
const ID_BYTES_MAX: usize = 80;

/// The answer to a batch.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Outcome<T> {
    successful: Vec<T>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    id: String,
    sender_fault: bool,
    code: &'static str,
    message: String,
}

/// An entry that succeeded and has nothing to say.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Done {
    pub(super) id: String,
}

impl<T> Outcome<T> {
    /// Makes the answer of the results of entries, by their ids.
    pub(super) fn of(results: impl IntoIterator<Item = (String, Result<T, Fault>)>) -> Self {
        let mut outcome = Self { successful: Vec::new(), failed: Vec::new() };
        for (id, result) in results {
            match result {
                Ok(entry) => outcome.successful.push(entry),
                Err(Fault { code, message }) => outcome.failed.push(Failed {
                    id,
                    sender_fault: code.is_of_sender(),
                    code: code.name(),
                    message,
                }),
            }
        }
        outcome
    }
}

/// Checks the number and the ids of entries.
pub(super) fn check<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Result<(), Fault> {
    let n = ids.len();
    if n == 0 {
        return Err(Fault::new(
            Code::EmptyBatchRequest,
            "There should be at least one entry in the request.",
        ));
    }
    if ENTRIES_MAX < n {
        return Err(Fault::new(
            Code::TooManyEntriesInBatchRequest,
            format!("Maximum number of entries per request are {ENTRIES_MAX}. You have sent {n}."),
        ));
    }
    let mut seen = BTreeSet::new();
    for id in ids {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if id.is_empty() || ID_BYTES_MAX < id.len() || !id.bytes().all(is_plain) {
            return Err(Fault::new(
                Code::InvalidBatchEntryId,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.",
            ));
        }
        if !seen.insert(id) {
            return Err(Fault::new(Code::BatchEntryIdsNotDistinct, format!("Id {id} repeated.")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_1_to_10_entries_with_ids_of_their_own() {
        let code = |ids: &[&str]| check(ids.iter().copied()).map_err(|fault| fault.code);
        assert_eq!(code(&["a", "B-1_", &"x".repeat(80)]), Ok(()));
        assert_eq!(code(&[]), Err(Code::EmptyBatchRequest));
        assert_eq!(code(&["a"; 11]), Err(Code::TooManyEntriesInBatchRequest));
        assert_eq!(code(&["a", "a"]), Err(Code::BatchEntryIdsNotDistinct));
        for id in ["", "a.b", "ä", &"x".repeat(81)] {
            assert_eq!(code(&[id]), Err(Code::InvalidBatchEntryId), "{id}");
        }
    }
}
