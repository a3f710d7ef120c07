//! The tools, each a GET of the HTTP API.

use std::fmt::Write as _;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rmcp::model::{JsonObject, ToolAnnotations};
use serde_json::{Map, Value, json};

use super::shorten::shortened;

/// An argument of a tool.
pub(super) struct Argument {
    name: &'static str,
    about: &'static str,
    /// Its type in JSON Schema.
    is: &'static str,
}

/// A tool.
pub(super) struct Tool {
    pub(super) name: &'static str,
    about: &'static str,
    /// The path below `/api/v1/`. An argument in braces is required; the others are fields of the query.
    path: &'static str,
    arguments: &'static [Argument],
    /// The longest payload or result of a job in its answers, in bytes of JSON.
    field_bytes_max: usize,
}

const fn text(name: &'static str, about: &'static str) -> Argument {
    Argument { name, about, is: "string" }
}

const fn whole(name: &'static str, about: &'static str) -> Argument {
    Argument { name, about, is: "integer" }
}

const ID: Argument = text("id", "The id of the job.");

pub(super) static TOOLS: [Tool; 7] = [
    Tool {
        name: "stats",
        about: "Returns the number of jobs by state, up to 100 queues, and what workers ran in the last hour. The queues that ran most \
            come first; more says whether there are others.",
        path: "stats",
        arguments: &[],
        field_bytes_max: usize::MAX,
    },
    Tool {
        name: "queue",
        about: "Returns one queue: the number of its jobs by state, its settings, and its pause.",
        path: "queues/{name}",
        arguments: &[text("name", "The name of the queue.")],
        field_bytes_max: usize::MAX,
    },
    Tool {
        name: "list",
        about: "Returns a page of jobs that match a filter. A page can be short, or empty, and still have a field next: then there can be \
            more. Payloads and results over 1 KiB are left out; show has them.",
        path: "jobs",
        arguments: &[
            text(
                "filter",
                "Terms that must all match (default: all jobs). Examples: queue:mail state:dead; kind:email.send due:<-5m; \
                 state:retrying error:\"connection refused\"; payload.user.id:42 failed:<1h; -tag:vip. States: waiting, or one of \
                 its parts scheduled, ready, retrying, blocked; running, done, dead, cancelled.",
            ),
            whole("limit", "The most jobs, 1 to 1,000 (default: 50)."),
            text("cursor", "Where to continue: the field next of the page before."),
        ],
        field_bytes_max: 1 << 10,
    },
    Tool {
        name: "show",
        about: "Returns one job: its state, times, the last 8 failed attempts with their errors, its payload and its result. A payload \
            or result over 64 KiB is left out.",
        path: "jobs/{id}",
        arguments: &[ID],
        field_bytes_max: 64 << 10,
    },
    Tool {
        name: "why",
        about: "Says why a job is not running, or how it ended. The first reason is the most important one.",
        path: "jobs/{id}/why",
        arguments: &[ID],
        field_bytes_max: usize::MAX,
    },
    Tool {
        name: "failures",
        about: "Returns dead and retrying jobs, grouped by kind and by what their errors have in common: at most 100 groups. The filter \
            of a group is for list. complete says whether all failed jobs were found.",
        path: "failures",
        arguments: &[],
        field_bytes_max: usize::MAX,
    },
    Tool {
        name: "upcoming",
        about: "Returns the number of waiting jobs by due time. Jobs that are due already are in overdue. complete says whether all were \
            counted.",
        path: "upcoming",
        arguments: &[
            text("queue", "The queue (default: all)."),
            whole("bucket_ms", "The width of a bucket in milliseconds (default: 900000)."),
            whole("buckets", "The number of buckets from now on, 1 to 1,000 (default: 96)."),
        ],
        field_bytes_max: usize::MAX,
    },
];

impl Argument {
    fn is_in_path(&self, path: &str) -> bool {
        path.contains(&format!("{{{}}}", self.name))
    }

    /// Returns the value as it stands in an address. The API checks what it says.
    fn written(&self, value: &Value) -> Result<String, String> {
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            _ => Err(format!("the argument {} must be of the type {}", self.name, self.is)),
        }
    }
}

impl Tool {
    /// Describes the tool to an assistant.
    pub(super) fn described(&self) -> rmcp::model::Tool {
        let properties: Map<String, Value> = self
            .arguments
            .iter()
            .map(|own| (own.name.to_owned(), json!({"type": own.is, "description": own.about})))
            .collect();
        let required: Vec<&str> =
            self.arguments.iter().filter(|own| own.is_in_path(self.path)).map(|own| own.name).collect();
        let schema: JsonObject = [
            ("type".to_owned(), json!("object")),
            ("properties".to_owned(), properties.into()),
            ("required".to_owned(), json!(required)),
            ("additionalProperties".to_owned(), false.into()),
        ]
        .into_iter()
        .collect();
        let reads =
            ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false);
        rmcp::model::Tool::new(self.name, self.about, schema).with_annotations(reads)
    }

    /// Leaves out of an answer what is too long for an assistant.
    pub(super) fn shortened(&self, text: String) -> String {
        if self.field_bytes_max == usize::MAX { text } else { shortened(text, self.field_bytes_max) }
    }

    /// Returns the address of a call, or what is wrong with its arguments.
    pub(super) fn address(&self, arguments: &JsonObject) -> Result<String, String> {
        if let Some(name) = arguments.keys().find(|name| self.arguments.iter().all(|own| own.name != **name))
        {
            return Err(format!("the tool {} has no argument {name:?}", self.name));
        }
        let mut address = format!("/api/v1/{}", self.path);
        let mut before = '?';
        for own in self.arguments {
            let value = arguments.get(own.name).filter(|value| !value.is_null());
            let value = value.map(|value| own.written(value)).transpose()?.filter(|text| !text.is_empty());
            match (value, own.is_in_path(self.path)) {
                (None, true) => return Err(format!("the argument {} is missing", own.name)),
                (None, false) => {}
                (Some(text), is_in_path) => {
                    let text = utf8_percent_encode(&text, NON_ALPHANUMERIC);
                    if is_in_path {
                        address = address.replace(&format!("{{{}}}", own.name), &text.to_string());
                    } else {
                        let _ = write!(address, "{before}{}={text}", own.name);
                        before = '&';
                    }
                }
            }
        }
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str, arguments: Value) -> Result<String, String> {
        let tool = TOOLS.iter().find(|tool| tool.name == name).unwrap();
        tool.address(&serde_json::from_value(arguments).unwrap())
    }

    #[test]
    fn arguments_stay_in_their_place() {
        let is = |name, arguments, aim: &str| assert_eq!(address(name, arguments).as_deref(), Ok(aim));
        is("stats", json!({}), "/api/v1/stats");
        is("queue", json!({"name": "../jobs?a=b#c"}), "/api/v1/queues/%2E%2E%2Fjobs%3Fa%3Db%23c");
        is("why", json!({"id": 7}), "/api/v1/jobs/7/why");
        is("list", json!({"filter": "a&limit=1", "limit": 2}), "/api/v1/jobs?filter=a%26limit%3D1&limit=2");
        is("list", json!({"limit": null}), "/api/v1/jobs");
    }

    #[test]
    fn other_arguments_are_refused() {
        let refused =
            |name, arguments, what: &str| assert_eq!(address(name, arguments), Err(what.to_owned()));
        refused("show", json!({}), "the argument id is missing");
        refused("show", json!({"id": ""}), "the argument id is missing");
        refused("show", json!({"id": [1]}), "the argument id must be of the type string");
        refused("stats", json!({"queue": "mail"}), "the tool stats has no argument \"queue\"");
    }
}
