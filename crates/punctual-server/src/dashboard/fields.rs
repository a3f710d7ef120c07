//! The fields of a query or of a form: names and values, several of one name if need be.

use axum::{body::Body, http::Uri};
use tokio::time::timeout;

use super::fault::Fault;
use crate::api::ARRIVAL_MAX;

/// The most bytes of a form.
pub(super) const FORM_BYTES_MAX: usize = 64 * 1024;
/// The most fields that are read; further ones are an error.
const FIELDS_MAX: usize = 1_100;

/// The fields of a query or form, in order.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Reads the query of an address.
    pub(super) fn of_query(uri: &Uri) -> Self {
        Self::parse(uri.query().unwrap_or_default().as_bytes())
    }

    /// Reads the form that a page sent, up to 64 KiB. It has 30 s to arrive.
    pub(super) async fn of_form(body: Body) -> Result<Self, Fault> {
        Self::of_large_form(body, FORM_BYTES_MAX).await
    }

    /// Reads a form of at most `bytes_max` bytes.
    pub(super) async fn of_large_form(body: Body, bytes_max: usize) -> Result<Self, Fault> {
        let arrives = timeout(ARRIVAL_MAX, axum::body::to_bytes(body, bytes_max)).await;
        let bytes = arrives.map_err(|_| Fault::Late)?.map_err(|_| Fault::TooLarge)?;
        let fields = Self::parse(&bytes);
        if FIELDS_MAX < fields.0.len() { Err(Fault::TooLarge) } else { Ok(fields) }
    }

    fn parse(text: &[u8]) -> Self {
        Self(
            form_urlencoded::parse(text)
                .take(FIELDS_MAX + 1)
                .map(|(k, v)| (k.into_owned(), v.into_owned()))
                .collect(),
        )
    }

    /// Returns the first value of a field, without spaces around it; empty if there is none.
    pub(super) fn get<'a>(&'a self, name: &'a str) -> &'a str {
        self.all(name).next().unwrap_or_default().trim()
    }

    /// Returns the value of a field as it is, if the field was sent.
    pub(super) fn exact<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// Returns all values of a field.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns all names and values, in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the number in a field; 0 if there is none.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Bytes;
    use futures_util::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_form_that_never_arrives_is_given_up() {
        let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        let form = timeout(Duration::from_hours(1), Fields::of_form(body)).await.expect("it is given up");
        assert!(matches!(form, Err(Fault::Late)));
    }
}
