//! Problems: the answers that are not 200.

use serde_json::{Map, Value, json};

use super::shape::{Schemas, open, reference, text, within, word};

/// The codes of problems. The list is closed.
const CODES: [&str; 23] = [
    "not_found",
    "queue_unknown",
    "wrong_state",
    "unique_conflict",
    "limiter_conflict",
    "version_mismatch",
    "lease_lost",
    "conflict",
    "invalid",
    "unsupported",
    "outdated",
    "payload_too_large",
    "unauthenticated",
    "forbidden",
    "cross_site",
    "host_not_allowed",
    "rate_limited",
    "overloaded",
    "store_unavailable",
    "store_full",
    "corrupt",
    "unknown_outcome",
    "timed_out",
];

/// A problem: its status, its name in the document, its codes, and what it means.
struct Kind {
    status: u16,
    name: &'static str,
    codes: &'static [&'static str],
    description: &'static str,
}

const fn kind(
    status: u16,
    name: &'static str,
    codes: &'static [&'static str],
    description: &'static str,
) -> Kind {
    Kind { status, name, codes, description }
}

const KINDS: [Kind; 19] = [
    kind(
        400,
        "Incomplete",
        &["invalid"],
        "The body ended before all of it had arrived. Nothing was changed.",
    ),
    kind(401, "Unauthenticated", &["unauthenticated"], "The token is missing, wrong, revoked or expired."),
    kind(
        403,
        "Forbidden",
        &["forbidden", "cross_site"],
        "The token does not allow the request, the server is read-only, or a page of another site sent the request.",
    ),
    kind(
        404,
        "NotFound",
        &["not_found", "queue_unknown"],
        "There is no such job, queue, schedule, topic, worker or operation.",
    ),
    kind(408, "TimedOut", &["timed_out"], "The body did not arrive within 30 s."),
    kind(
        409,
        "Conflict",
        &["conflict"],
        "Two parts of the call, or two settings, contradict each other, or other callers kept changing the same thing.",
    ),
    kind(
        409,
        "WrongState",
        &["wrong_state", "unique_conflict", "limiter_conflict"],
        "The state of the job or operation does not allow the action, another job holds its unique key, or jobs of its concurrency key or \
            group are in another shard.",
    ),
    kind(412, "VersionMismatch", &["version_mismatch"], "It does not have the version of If-Match."),
    kind(413, "TooLarge", &["payload_too_large"], "The body, a payload or a result is over its limit."),
    kind(415, "Encoded", &["invalid"], "The body has a Content-Encoding, such as gzip. Nothing was changed."),
    kind(421, "HostNotAllowed", &["host_not_allowed"], "The Host header names another server."),
    kind(422, "Invalid", &["invalid"], "A field is wrong. Nothing was changed."),
    kind(
        429,
        "RateLimited",
        &["rate_limited"],
        "Something in front of the server asks to wait. The server itself never answers so.",
    ),
    kind(431, "HeadTooLarge", &[], "The head of the request is larger than 64 KiB."),
    kind(500, "Corrupt", &["corrupt"], "A record of the store cannot be read."),
    kind(
        501,
        "Unsupported",
        &["unsupported", "outdated"],
        "The store or this version does not have the call.",
    ),
    kind(
        503,
        "Unavailable",
        &["store_unavailable", "overloaded"],
        "The store is unavailable, or large requests hold all memory for bodies. Nothing was changed.",
    ),
    kind(504, "UnknownOutcome", &["unknown_outcome"], "The answer of the store was lost."),
    kind(507, "Full", &["store_full"], "The store has no space, or the queue is at its cap."),
];

/// Statuses that only calls that write have.
const OF_WRITES: [u16; 2] = [409, 507];
/// Problems that only resources have.
const OF_RESOURCES: [&str; 3] = ["NotFound", "WrongState", "VersionMismatch"];

/// Returns the problems with which a call can answer, by status.
pub(super) fn of_problems(writes: bool) -> Map<String, Value> {
    let kinds = KINDS
        .iter()
        .filter(|kind| !OF_RESOURCES.contains(&kind.name))
        .filter(|kind| writes || !OF_WRITES.contains(&kind.status));
    kinds.map(answer).collect()
}

/// Returns the problems of these names, by status.
pub(super) fn named(names: &[&str]) -> Map<String, Value> {
    KINDS.iter().filter(|kind| names.contains(&kind.name)).map(answer).collect()
}

fn answer(kind: &Kind) -> (String, Value) {
    (kind.status.to_string(), json!({"$ref": format!("#/components/responses/{}", kind.name)}))
}

/// Returns the problems by name.
pub(super) fn responses() -> Map<String, Value> {
    KINDS.iter().map(|kind| (kind.name.to_owned(), response(kind))).collect()
}

fn problem_name(kind: &Kind) -> String {
    format!("{}Problem", kind.name)
}

/// Returns the schemas of problems with the codes of their status. They have names, so that generators make one type of each, and
/// not one for each route.
pub(super) fn problems() -> Map<String, Value> {
    let of_any = of_any();
    let problem = |kind: &Kind| {
        // All of it once more, because generators lose what narrows another schema. They also stumble over a constant that
        // narrows a number, so the status is not narrowed.
        let mut own = of_any.clone();
        own["properties"]["code"]["enum"] = json!(kind.codes);
        (problem_name(kind), own)
    };
    KINDS.iter().filter(|kind| !kind.codes.is_empty()).map(problem).collect()
}

fn response(kind: &Kind) -> Value {
    let mut response = json!({"description": kind.description});
    if !kind.codes.is_empty() {
        response["content"] = json!({"application/problem+json": {"schema": reference(&problem_name(kind))}});
    }
    if matches!(kind.status, 429 | 503) {
        response["headers"] = json!({"Retry-After": {"$ref": "#/components/headers/Retry-After"}});
    }
    response
}

/// Returns the headers of answers.
pub(super) fn headers() -> Value {
    json!({
        "Retry-After": {
            "description": "The time in seconds after which the request can be repeated.",
            "required": true,
            "schema": {"type": "integer", "minimum": 1},
        },
        "ETag": {
            "description": "The version, in quotes.",
            "required": true,
            "schema": {"type": "string"},
        },
        "Location": {
            "description": "The address of the job or operation, relative to that of the request.",
            "required": true,
            "schema": {"type": "string"},
        },
    })
}

fn of_any() -> Value {
    open(
        "An error (RFC 9457). Decide by status and code, and show detail and hint to people.",
        [
            ("type", text("The address of the code.")),
            ("title", text("The status in words.")),
            ("status", within(400, 599, "The status.")),
            ("code", word(&CODES, "What happened, from a closed list.")),
            ("detail", text("What happened, for people.")),
            ("hint?", text("What to try.")),
        ],
    )
}

pub(super) fn schemas() -> Schemas {
    vec![("Problem", of_any())]
}
