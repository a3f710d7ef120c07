//! Headers of requests and answers about one resource.

use axum::http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{ETAG, IF_MATCH},
};
use punctual::{Error, ErrorKind};

use crate::api::Problem;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Returns the key of an enqueue, if it has one.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(Error::invalid("Idempotency-Key is given twice").into()),
        (Some(value), None) => match str::from_utf8(value.as_bytes()) {
            Ok(key) => Ok(Some(key)),
            Err(_) => Err(Error::invalid("Idempotency-Key is not UTF-8").into()),
        },
    }
}

/// Returns a version as a header of an answer.
pub(super) fn etag(version: u64) -> HeaderMap {
    let value = HeaderValue::try_from(format!("\"{version}\"")).ok();
    value.map(|value| (ETAG, value)).into_iter().collect()
}

/// Returns the versions that `If-Match` allows; `None` for all.
pub(super) fn versions(headers: &HeaderMap) -> Result<Option<Vec<u64>>, Problem> {
    let mut versions = None;
    for value in headers.get_all(IF_MATCH) {
        for tag in value.to_str().unwrap_or_default().split(',').map(str::trim) {
            if tag == "*" {
                return Ok(None);
            }
            let version = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')?.parse().ok());
            let Some(version) = version else {
                return Err(Error::invalid("If-Match is not a version in quotes")
                    .with_hint("send the ETag of an answer, such as If-Match: \"3\"")
                    .into());
            };
            versions.get_or_insert_with(Vec::new).push(version);
        }
    }
    Ok(versions)
}

/// Returns the version that something has, if it is one of those that `If-Match` allows.
pub(super) fn allowed(what: &str, allowed: &[u64], is: Option<u64>) -> Result<u64, Problem> {
    match is {
        Some(is) if allowed.contains(&is) => Ok(is),
        Some(is) => Err(mismatch(format!("the {what} has the version {is}, which If-Match does not allow"))
            .with_hint(format!("read the {what} again, and decide anew"))),
        None => Err(mismatch(format!("there is no such {what}, and If-Match names a version"))
            .with_hint("leave If-Match out to create it")),
    }
}

/// Returns the problem of a change that was refused. With `If-Match`, a conflict is one with another change.
pub(super) fn refused(headers: &HeaderMap, error: Error) -> Problem {
    if error.kind() == ErrorKind::Conflict && headers.contains_key(IF_MATCH) {
        let problem = mismatch(error.to_string());
        return error.hint().into_iter().fold(problem, Problem::with_hint);
    }
    error.into()
}

fn mismatch(detail: String) -> Problem {
    Problem::new(StatusCode::PRECONDITION_FAILED, "version_mismatch", detail)
}
