//! The document of the API (`OpenAPI` 3.1), at `/api/v1/openapi.json`.
//!
//! The bodies have borrowed and hand-written forms, so their schemas are written here by hand, one file per noun. The tests
//! of the API check every request that the server accepts and every answer against them.

mod act;
mod activity;
mod answers;
mod doc;
mod figures;
mod job;
mod lease;
mod named;
mod operation;
mod queue;
mod read;
mod resources;
mod schedule;
mod shape;
mod tool;
mod topic;
mod worker;

use std::sync::LazyLock;

use axum::body::Bytes;
use serde_json::{Map, Value, json};

/// A call, and what the document says of it. Its bodies are the schemas `NameRequest` and `NameAnswer`.
struct Call {
    name: &'static str,
    summary: &'static str,
    /// Whether it can write, so that two settings can contradict each other, and the store can be full.
    writes: bool,
}

const fn reads(name: &'static str, summary: &'static str) -> Call {
    Call { name, summary, writes: false }
}

const fn writes(name: &'static str, summary: &'static str) -> Call {
    Call { name, summary, writes: true }
}

/// Every call. One that is missing here cannot be made.
const CALLS: [Call; 22] = [
    writes("enqueue", "Stores jobs"),
    writes("reserve", "Returns due jobs under leases"),
    writes("extend", "Extends leases, stores progress and log lines"),
    writes("settle", "Ends leases with verdicts, and can reserve in the same step"),
    writes("take", "Returns due jobs and ends them in the same step"),
    reads("wait", "Returns when a queue may have work"),
    reads("get", "Returns one job"),
    reads("holder", "Returns the job that holds a unique key"),
    reads("list", "Returns a page of jobs"),
    reads("count", "Returns the number of jobs by state"),
    reads("upcoming", "Returns the number of waiting jobs by due time"),
    writes("act", "Cancels, reschedules, retries, edits or deletes jobs"),
    writes("queue", "Shows, pauses, resumes, configures or purges a queue"),
    reads("queues", "Returns names of queues"),
    writes("tool", "Uses a rate limiter, lock or leaderboard"),
    writes("doc", "Uses documents, such as those of schedules and topics"),
    writes("sweep", "Does upkeep"),
    writes("audit", "Checks the store, and can repair it"),
    reads("doctor", "Checks the health of the store"),
    reads("store", "Returns the durability of the store and the version of the server"),
    reads("identity", "Returns the identity of the store"),
    reads("now", "Returns the time of the store"),
];

/// The document as it is served.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());

/// Returns the document as JSON.
pub(super) fn text() -> Bytes {
    TEXT.clone()
}

/// Whether the document has a call.
pub(super) fn has(call: &str) -> bool {
    CALLS.iter().any(|own| own.name == call)
}

fn document() -> Value {
    let mut paths: Map<String, Value> =
        CALLS.iter().map(|call| (format!("/{}", call.name), json!({"post": operation(call)}))).collect();
    paths.insert("/openapi.json".to_owned(), json!({"get": own_operation()}));
    for (path, method, operation) in resources::operations() {
        // Some resources have the address of a call.
        paths.entry(path).or_insert_with(|| json!({}))[method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "punctual",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A durable job queue. Fields that end in _ms are milliseconds: instants are Unix time by the clock \
                of the store, and others are lengths of time. A later version can add fields to answers. A request must \
                have no field that is not listed.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        // Relative to the document, so that it holds under any base path.
        "servers": [{"url": "../v1"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": answers::responses(),
            "headers": answers::headers(),
            "securitySchemes": {"token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of the store, pt_…. While the store has none, programs on the machine of the server \
                    need none.",
            }},
        },
    })
}

fn operation(call: &Call) -> Value {
    let body = |of: &str| {
        let name = format!("{}{of}", capitalised(call.name));
        json!({"application/json": {"schema": shape::reference(&name)}})
    };
    let mut responses = answers::of_problems(call.writes);
    responses.insert("200".to_owned(), json!({"description": "The answer.", "content": body("Answer")}));
    json!({
        "operationId": call.name,
        "summary": call.summary,
        "requestBody": {
            "description": "An empty body means {}.",
            "required": needs_fields(call),
            "content": body("Request"),
        },
        "responses": responses,
    })
}

/// Whether an empty body lacks something.
fn needs_fields(call: &Call) -> bool {
    let name = format!("{}Request", capitalised(call.name));
    schemas().get(&name).is_some_and(|schema| schema.get("required").is_some())
}

fn own_operation() -> Value {
    json!({
        "operationId": "openapi",
        "summary": "Returns this document",
        "security": [],
        "responses": {"200": {"description": "The document.", "content": {"application/json": {"schema": {"type": "object"}}}}},
    })
}

fn schemas() -> Map<String, Value> {
    let all = [
        act::schemas(),
        activity::schemas(),
        answers::schemas(),
        doc::schemas(),
        figures::schemas(),
        job::schemas(),
        lease::schemas(),
        operation::schemas(),
        queue::schemas(),
        read::schemas(),
        schedule::schemas(),
        tool::schemas(),
        topic::schemas(),
        worker::schemas(),
    ];
    let named = all.into_iter().flatten().map(|(name, schema)| (name.to_owned(), schema));
    named::flat(named.chain(answers::problems()))
}

fn capitalised(name: &str) -> String {
    name[..1].to_ascii_uppercase() + &name[1..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn each_reference_of_the_document_has_its_aim_and_each_schema_is_used() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        for reference in &found {
            let aim = document.pointer(reference.trim_start_matches('#'));
            assert!(aim.is_some(), "{reference}");
        }
        for name in schemas().keys() {
            assert!(found.contains(&format!("#/components/schemas/{name}").as_str()), "{name} is not used");
        }
    }

    /// Generators make types of named objects only, and lose what is narrowed or put together.
    #[test]
    fn each_object_has_a_name_and_none_is_put_together_from_others() {
        fn check(value: &Value, place: &str) {
            match value {
                Value::Object(fields) => {
                    assert!(!fields.contains_key("allOf"), "{place} is put together");
                    let is_named = place.matches('/').count() <= 3;
                    assert!(
                        is_named || !fields.contains_key("required") || place.ends_with("/properties"),
                        "{place}"
                    );
                    for (name, value) in fields {
                        check(value, &format!("{place}/{name}"));
                    }
                }
                Value::Array(items) => items.iter().for_each(|value| check(value, &format!("{place}/-"))),
                _ => {}
            }
        }
        let document = document();
        check(&document["components"]["schemas"], "/components/schemas");
        let paths = document["paths"].to_string();
        assert!(!paths.contains("allOf") && !paths.contains("oneOf"), "{paths}");
        for (name, schema) in schemas() {
            assert_eq!(schema["title"], json!(name));
        }
    }
}
