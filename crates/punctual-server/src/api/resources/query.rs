//! The query of an address, with the fields of the body of a call.

use axum::http::Uri;
use punctual::{Error, store::wire};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::api::Problem;

/// Where a page of names starts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct After {
    /// The name after which to continue.
    pub(super) after: Option<String>,
}

/// Reads the query. `numbers` are its whole numbers, and what they are if they are not given. All other fields are text.
pub(super) fn read<T: DeserializeOwned>(uri: &Uri, numbers: &[(&str, u64)]) -> Result<T, Problem> {
    let mut fields = Map::new();
    for (name, text) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        let value = if numbers.iter().any(|(number, _)| *number == name) {
            let number: Option<u64> = text.parse().ok();
            number.map(Value::from).ok_or_else(|| Error::invalid(format!("{name} is not a whole number")))?
        } else {
            Value::from(text.into_owned())
        };
        if fields.insert(name.clone().into_owned(), value).is_some() {
            return Err(Error::invalid("a field of the query is given twice").into());
        }
    }
    for (name, default) in numbers {
        fields.entry(*name).or_insert_with(|| (*default).into());
    }
    serde_json::from_value(Value::Object(fields)).map_err(|e| {
        let what = format!("the query does not fit the route: {}", wire::words(&e));
        Error::invalid(what).into()
    })
}
