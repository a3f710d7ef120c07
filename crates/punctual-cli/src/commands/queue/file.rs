//! `queue set --from FILE`: reads the settings of queues, as `queue show --json` and `queue ls --json` print them.
//!
//! The whole file is read and checked before the first queue is set. Other known fields (counts, the pause) are ignored. Settings
//! that are left out get their defaults, as in a new queue.

use std::collections::BTreeSet;

use punctual::{Error, Result, job::did_you_mean, store::QueueSettings};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use punctual::store::wire::words;

/// A queue of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    name: String,
    #[serde(borrow)]
    settings: &'a RawValue,
    // What else is printed of a queue.
    #[serde(default, rename = "counts")]
    _counts: IgnoredAny,
    #[serde(default, rename = "oldest_due_ms")]
    _oldest_due_ms: IgnoredAny,
    #[serde(default, rename = "oldest_due_at_ms")]
    _oldest_due_at_ms: IgnoredAny,
    #[serde(default, rename = "oldest_blocked_ms")]
    _oldest_blocked_ms: IgnoredAny,
    #[serde(default, rename = "oldest_blocked_at_ms")]
    _oldest_blocked_at_ms: IgnoredAny,
    #[serde(default, rename = "opens_at_ms")]
    _opens_at_ms: IgnoredAny,
}

/// The queues of a file with their settings: objects one after another, or a list of them.
pub(super) fn read(text: &str) -> Result<Vec<(String, QueueSettings)>> {
    let mut entries: Vec<&RawValue> = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let value = value.map_err(|e| Error::invalid(format!("the file is not JSON: {e}")))?;
        if value.get().starts_with('[') {
            entries.extend(
                serde_json::from_str::<Vec<&RawValue>>(value.get()).map_err(|e| wrong("the list", &e))?,
            );
        } else {
            entries.push(value);
        }
    }
    if entries.is_empty() {
        return Err(Error::invalid("the file names no queue")
            .with_hint("punctual queue ls --json    prints such a file"));
    }
    let mut names = BTreeSet::new();
    entries
        .into_iter()
        .enumerate()
        .map(|(i, entry)| {
            let entry: Entry<'_> = object(&format!("queue {} of the file", i + 1), entry)?;
            let what = format!("queue {:?}", entry.name);
            let settings: QueueSettings = object(&what, entry.settings)?;
            settings.check().map_err(|e| Error::invalid(format!("{what}: {e}")))?;
            if !names.insert(entry.name.clone()) {
                return Err(Error::invalid(format!("{what} is in the file twice")));
            }
            Ok((entry.name, settings))
        })
        .collect()
}

/// Reads an object; serde would accept a list, too, and read it by position.
fn object<'a, T: Deserialize<'a>>(what: &str, raw: &'a RawValue) -> Result<T> {
    if raw.get().starts_with('{') {
        serde_json::from_str(raw.get()).map_err(|e| wrong(what, &e))
    } else {
        Err(Error::invalid(format!("{what}: not an object")))
    }
}

/// Names an unknown field and suggests known ones, which serde lists after it.
fn wrong(what: &str, error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let mut names = text.split('`').skip(1).step_by(2);
    match names.next() {
        Some(field) if text.starts_with("unknown field") => {
            let known: Vec<&str> = names.collect();
            let field: String = field.chars().take(64).collect();
            let unknown = Error::invalid(format!("{what}: unknown field `{field}`"));
            unknown.with_hint(match did_you_mean(&field, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the fields are {}", known.join(", ")),
            })
        }
        _ => Error::invalid(format!("{what}: {}", words(error))),
    }
}

#[cfg(test)]
mod tests {
    use punctual::store::{Keep, Order};

    use super::*;

    #[test]
    fn one_object_many_or_a_list_are_read() {
        let one = r#"{"name":"a","settings":{"order":"lifo","max_jobs":7},"counts":{"waiting":1},"oldest_due_ms":3}"#;
        let read_one = read(one).unwrap();
        assert_eq!((read_one[0].0.as_str(), read_one[0].1.order), ("a", Order::Lifo));
        assert_eq!(
            (read_one[0].1.max_jobs, read_one[0].1.dead),
            (Some(7), Keep::LONG),
            "the rest is the default"
        );
        let other = one.replace("\"a\"", "\"b\"");
        for text in [format!("{one}\n{other}\n"), format!("[{one},\n {other}]")] {
            let names: Vec<String> = read(&text).unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["a", "b"], "{text}");
        }
    }

    #[test]
    fn slips_are_named() {
        for (text, message, hint) in [
            (
                r#"{"nam":"a","settings":{}}"#,
                "queue 1 of the file: unknown field `nam`",
                "did you mean `name`?",
            ),
            (
                r#"{"name":"a","settings":{"max_job":1}}"#,
                "queue \"a\": unknown field `max_job`",
                "did you mean `max_jobs`?",
            ),
            (
                r#"{"name":"a","settings":{"dead":{"age_ms":1,"count":1,"size":1}}}"#,
                "queue \"a\": unknown field `size`",
                "the fields are age_ms, count, bytes",
            ),
            (
                r#"{"name":"a","settings":{"defaults":{"leas_ms":1}}}"#,
                "queue \"a\": unknown field `leas_ms`",
                "did you mean `lease_ms`?",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.hint()), (message, Some(hint)));
        }
    }

    #[test]
    fn what_is_no_settings_is_refused() {
        for (text, message) in [
            ("", "the file names no queue"),
            ("[]", "the file names no queue"),
            ("7", "queue 1 of the file: not an object"),
            ("{\"name\":", "the file is not JSON"),
            ("{\"name\":\"a\"}", "queue 1 of the file: missing field `settings`"),
            (r#"{"name":"a","settings":["x"]}"#, "queue \"a\": not an object"),
            (r#"{"name":"a","settings":{"max_jobs":-1}}"#, "queue \"a\": invalid value"),
            (
                r#"{"name":"a","settings":{"defaults":{"lease_ms":1}}}"#,
                "queue \"a\": lease_ms 1 is not within",
            ),
            (
                r#"[{"name":"a","settings":{}},{"name":"a","settings":{}}]"#,
                "queue \"a\" is in the file twice",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}
