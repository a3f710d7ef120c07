//! The settings of a queue as a form. Only what a person changes in it is changed, so two people can use it at once.

use askama::Template;
use axum::{
    extract::{Path, Request},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use punctual::{
    Error, ErrorKind,
    store::{QueueOp, QueueReply, QueueSettings, Replace},
};

use super::{
    fault::Fault,
    fields::Fields,
    frame::{Frame, Here, html},
    queue::back,
    view::View,
};
use crate::gate::Right;

/// How often a change is tried while others change the same queue.
const TRIES_MAX: usize = 5;
/// What an optional setting without a value is called.
const NONE: &str = "none";

/// The settings of the form: a heading, and names with labels. Limits of single groups are left to the command line.
const SECTIONS: [(&str, &[(&str, &str)]); 6] = [
    (
        "Limits",
        &[
            ("concurrency", "Jobs that run at once"),
            ("rate", "Starts of jobs"),
            ("max_jobs", "Waiting and running jobs"),
            ("max_bytes", "Bytes of their payloads"),
        ],
    ),
    (
        "Each group without limits of its own",
        &[
            ("group.weight", "Weight"),
            ("group.concurrency", "Jobs that run at once"),
            ("group.rate", "Starts of jobs"),
        ],
    ),
    ("Order", &[("order", "Within a priority"), ("placement", "In a store with shards")]),
    (
        "Done jobs that are kept",
        &[
            ("retention.done.age", "For"),
            ("retention.done.count", "At most"),
            ("retention.done.bytes", "At most, in bytes"),
        ],
    ),
    (
        "Dead and cancelled jobs that are kept",
        &[
            ("retention.dead.age", "Dead: for"),
            ("retention.dead.count", "Dead: at most"),
            ("retention.dead.bytes", "Dead: at most, in bytes"),
            ("retention.cancelled.age", "Cancelled: for"),
            ("retention.cancelled.count", "Cancelled: at most"),
            ("retention.cancelled.bytes", "Cancelled: at most, in bytes"),
        ],
    ),
    (
        "Defaults of new jobs",
        &[
            ("defaults.priority", "Priority"),
            ("defaults.max_attempts", "Attempts"),
            ("defaults.backoff", "Backoff"),
            ("defaults.timeout", "Timeout of a run"),
            ("defaults.lease", "Lease"),
        ],
    ),
];

/// The settings that take one of a few words.
const CHOICES: [(&str, &[&str]); 3] = [
    ("order", &["fifo", "lifo"]),
    ("placement", &["spread", "pinned"]),
    ("defaults.priority", &[NONE, "high", "normal", "low"]),
];

/// A setting in the form.
struct Entry {
    key: &'static str,
    label: &'static str,
    takes: &'static str,
    /// The value that the form showed first.
    was: String,
    value: String,
    /// Words to choose from, and whether each is chosen; none for a text.
    choices: Vec<(&'static str, bool)>,
    wrong: Option<String>,
}

#[derive(Template)]
#[template(path = "settings.html")]
struct Page {
    frame: Frame,
    name: String,
    link: String,
    /// Limits and rules that the settings break together.
    wrong: Option<String>,
    is_refused: bool,
    sections: Vec<(&'static str, Vec<Entry>)>,
}

/// What a form says of one setting.
struct Typed {
    key: &'static str,
    was: String,
    value: String,
}

/// Why a form is refused: for each setting by name, and for all of them together.
#[derive(Default)]
struct Wrong {
    of: Vec<(&'static str, String)>,
    all: Option<String>,
    /// Whether others have changed a setting that the form changes.
    is_conflict: bool,
}

/// Shows the form. Makes one call to the store.
pub(super) async fn page(board: View, Path(name): Path<String>) -> Result<Response, Fault> {
    check(&board)?;
    let info = board.client.queue(&name).show().await?.ok_or(Fault::NoQueue(name))?;
    html(&Page::new(&board, &info.name, &info.settings, &[], &Wrong::default()))
}

/// Changes what the form changes, or nothing. Makes two calls to the store, and more while others change the settings, too.
pub(super) async fn save(board: View, Path(name): Path<String>, request: Request) -> Result<Response, Fault> {
    check(&board)?;
    let typed = read(&Fields::of_form(request.into_body()).await?)?;
    let info = board.client.queue(&name).show().await?.ok_or_else(|| Fault::NoQueue(name.clone()))?;
    let mut seen = info.settings;
    for _ in 0..TRIES_MAX {
        let new = match changed(&seen, &typed) {
            Ok(new) => new,
            Err(wrong) => {
                let status = if wrong.is_conflict { StatusCode::CONFLICT } else { StatusCode::BAD_REQUEST };
                let page = html(&Page::new(&board, &name, &seen, &typed, &wrong))?;
                return Ok((status, page).into_response());
            }
        };
        if new == seen {
            return Ok(done(&board, &name, "same-settings"));
        }
        let replace = QueueOp::Replace(Box::new(Replace { seen, new }));
        let made = board.client.store().queue(&name, &replace).await;
        if matches!(made, Ok(QueueReply::Info(_)) | Err(_)) {
            board.activity.note(board.entry("settings").queue(&name), &made);
        }
        match made? {
            QueueReply::Info(_) => return Ok(done(&board, &name, "settings")),
            QueueReply::Conflict(info) => seen = info.settings,
            QueueReply::Unknown | QueueReply::Purged { .. } => return Err(Fault::NoQueue(name)),
        }
    }
    let text = format!("the settings of queue {name:?} were changed by others all the time");
    Err(Error::new(ErrorKind::Conflict, text).with_hint("go back, and save again").into())
}

fn check(view: &View) -> Result<(), Fault> {
    view.check(Right::Admin, None)?;
    if view.options.read_only { Err(Fault::ReadOnly) } else { Ok(()) }
}

fn done(view: &View, name: &str, did: &str) -> Response {
    let redirect: Redirect = back(view, name, &[("did", did)]);
    redirect.into_response()
}

/// Reads the form: each setting as it was shown, and as it is now in its field.
fn read(fields: &Fields) -> Result<Vec<Typed>, Fault> {
    let typed = |key: &'static str| {
        let was = fields.exact(&format!("was.{key}"))?.to_owned();
        let value = fields.exact(key)?.trim();
        Some(Typed {
            key,
            was,
            value: if is_optional(key) && value.is_empty() { NONE } else { value }.to_owned(),
        })
    };
    let all: Option<Vec<Typed>> = keys().map(typed).collect();
    all.ok_or_else(|| Fault::Form("The form is not complete.".to_owned(), "Load the page again.".to_owned()))
}

/// Returns the settings with what the form changes.
fn changed(seen: &QueueSettings, typed: &[Typed]) -> Result<QueueSettings, Wrong> {
    let (mut new, mut wrong) = (seen.clone(), Wrong::default());
    for Typed { key, was, value } in typed.iter().filter(|typed| typed.was != typed.value) {
        let mut of_form = seen.clone();
        if let Err(error) = of_form.set_named(key, value) {
            wrong.of.push((*key, words(&error)));
            continue;
        }
        // As the form would show it: 60s is 1m.
        let (value, now) = (named(&of_form, key), named(seen, key));
        if value == *was || value == now {
            continue;
        }
        if now != *was {
            wrong.is_conflict = true;
            let text = format!(
                "Somebody changed it from {was} to {now} after this page was loaded. Save again to set {value}."
            );
            wrong.of.push((*key, text));
            continue;
        }
        if let Err(error) = new.set_named(key, &value) {
            wrong.of.push((*key, words(&error)));
        }
    }
    if wrong.of.is_empty()
        && let Err(error) = new.check()
    {
        wrong.all = Some(words(&error));
    }
    if wrong.of.is_empty() && wrong.all.is_none() { Ok(new) } else { Err(wrong) }
}

fn words(error: &Error) -> String {
    match error.hint() {
        Some(hint) => format!("{error}: {hint}"),
        None => error.to_string(),
    }
}

/// Returns all names of the form.
fn keys() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().flat_map(|(_, entries)| entries.iter().map(|(key, _)| *key))
}

fn named(settings: &QueueSettings, key: &str) -> String {
    settings.named(key).unwrap_or_default()
}

/// Returns what a setting takes.
fn takes(key: &str) -> &'static str {
    QueueSettings::KEYS.iter().find(|(name, _)| *name == key).map_or("", |(_, takes)| *takes)
}

fn is_optional(key: &str) -> bool {
    takes(key).ends_with(NONE)
}

impl Page {
    /// Makes the form: with the settings as they are, and with what a person has typed over them.
    fn new(board: &View, name: &str, now: &QueueSettings, typed: &[Typed], wrong: &Wrong) -> Self {
        let entry = |(key, label): &(&'static str, &'static str)| {
            let was = named(now, key);
            let own = typed.iter().find(|typed| typed.key == *key && typed.was != typed.value);
            let value = own.map_or_else(|| was.clone(), |own| own.value.clone());
            let words = CHOICES
                .iter()
                .find(|(name, _)| name == key)
                .map_or(&[] as &[&'static str], |(_, words)| *words);
            Entry {
                key,
                label,
                takes: takes(key),
                choices: words.iter().map(|word| (*word, *word == value)).collect(),
                wrong: wrong.of.iter().find(|(name, _)| name == key).map(|(_, text)| text.clone()),
                was,
                value,
            }
        };
        Self {
            frame: Frame::new(board, Here::Queues, format!("Settings of {name}")).still(),
            name: name.to_owned(),
            link: board.links.queue(name),
            wrong: wrong.all.clone(),
            is_refused: !wrong.of.is_empty() || wrong.all.is_some(),
            sections: SECTIONS.iter().map(|(title, all)| (*title, all.iter().map(entry).collect())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_form_has_every_setting_but_those_of_single_groups() {
        let own: BTreeSet<&str> = keys().collect();
        let all: BTreeSet<&str> = QueueSettings::KEYS
            .iter()
            .map(|(key, _)| *key)
            .filter(|key| !key.starts_with("groups."))
            .collect();
        assert_eq!(own, all);
        assert!(CHOICES.iter().all(|(key, _)| own.contains(key)));
    }
}
