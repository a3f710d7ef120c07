//! Headers of requests and answers about one job.

use axum::http::{
    HeaderMap, HeaderValue,
    header::{ETAG, IF_MATCH},
};
use punctual::Error;

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

/// Returns the version of a job as a header of an answer.
pub(super) fn etag(version: u64) -> HeaderMap {
    let value = HeaderValue::try_from(format!("\"{version}\"")).ok();
    value.map(|value| (ETAG, value)).into_iter().collect()
}

/// Returns the versions of a job that `If-Match` allows; `None` for all.
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
                    .with_hint("send the ETag of the job, such as If-Match: \"3\"")
                    .into());
            };
            versions.get_or_insert_with(Vec::new).push(version);
        }
    }
    Ok(versions)
}
