//! Jobs, queues, schedules, topics, workers and operations by their address.

mod schedules;
mod topics;

use punctual::limits::{BATCH_MAX, BUCKETS_MAX};
use serde_json::{Map, Value, json};

use super::{
    answers,
    shape::{reference, text, whole, within},
};

/// The type of lines. The schema is that of a line.
const LINES: &str = "application/x-ndjson";

/// An operation on a resource.
struct Operation {
    path: &'static str,
    method: &'static str,
    name: &'static str,
    summary: &'static str,
    /// The fields of the query, and headers.
    parameters: Vec<Value>,
    /// The schema of its body.
    request: Option<&'static str>,
    /// What it answers if all is well.
    answers: Map<String, Value>,
}

/// An operation that answers with one schema, with status 200.
const fn plain(
    path: &'static str,
    method: &'static str,
    name: &'static str,
    summary: &'static str,
    answers: Map<String, Value>,
) -> Operation {
    Operation { path, method, name, summary, parameters: Vec::new(), request: None, answers }
}

/// The same, with a body, and a version in `If-Match`.
fn change(operation: Operation, request: Option<&'static str>) -> Operation {
    let version = "The version that it must have, in quotes: its ETag (default: any).";
    let mut answers = operation.answers;
    answers.extend(answers::named(&["VersionMismatch"]));
    Operation {
        request,
        answers,
        parameters: vec![parameter("header", "If-Match", text(version))],
        ..operation
    }
}

fn parameter(place: &str, name: &str, schema: Value) -> Value {
    let mut schema = schema;
    let description = schema.as_object_mut().and_then(|fields| fields.remove("description"));
    json!({"in": place, "name": name, "description": description, "schema": schema})
}

fn query(name: &str, schema: Value) -> Value {
    parameter("query", name, schema)
}

/// An answer with a body and headers.
fn answer(schema: &Value, headers: &[&str]) -> Value {
    let headers: Map<String, Value> = headers
        .iter()
        .map(|name| ((*name).to_owned(), json!({"$ref": format!("#/components/headers/{name}")})))
        .collect();
    let content = json!({"application/json": {"schema": schema}});
    json!({"description": "The answer.", "headers": headers, "content": content})
}

/// One answer, 200, of a named schema.
fn one(schema: &str, headers: &[&str]) -> Map<String, Value> {
    [("200".to_owned(), answer(&reference(schema), headers))].into_iter().collect()
}

/// The answers of an operation that stores a job.
fn stored() -> Map<String, Value> {
    let enqueued = [
        ("200".to_owned(), answer(&reference("NotInserted"), &[])),
        ("201".to_owned(), answer(&reference("EnqueuedInserted"), &["ETag", "Location"])),
    ];
    enqueued.into_iter().collect()
}

/// The same, also of an operation whose body can be lines.
fn stored_or_lines() -> Map<String, Value> {
    let mut answers = stored();
    answers["200"]["content"][LINES] = json!({"schema": reference("LineAnswer")});
    answers
}

fn idempotency_key() -> Value {
    let key = "A key for safe repeats, 1 to 1,024 bytes: the same as idempotency_key in the body.";
    parameter("header", "Idempotency-Key", text(key))
}

fn of_jobs() -> Vec<Operation> {
    vec![
        Operation {
            path: "/jobs",
            method: "post",
            name: "enqueueJob",
            summary: "Stores a job, or jobs as lines",
            parameters: vec![idempotency_key()],
            request: Some("NewJob"),
            answers: stored_or_lines(),
        },
        Operation {
            path: "/jobs",
            method: "get",
            name: "jobs",
            summary: "Returns a page of jobs",
            parameters: vec![
                query("filter", text("A filter in the language of punctual ls (default: all jobs).")),
                query("cursor", text("Where to continue: next of the page before.")),
                query("limit", within(1, BATCH_MAX as u64, "The most jobs (default: 50).")),
            ],
            request: None,
            answers: one("ListAnswer", &[]),
        },
        Operation {
            path: "/jobs/{id}",
            method: "get",
            name: "job",
            summary: "Returns a job, also after a wait for its end",
            parameters: vec![query(
                "wait_ms",
                whole(
                    "The longest wait for its end (default: 0). The server answers after 25 s at the latest.",
                ),
            )],
            request: None,
            answers: one("Job", &["ETag"]),
        },
        plain(
            "/jobs/{id}/why",
            "get",
            "whyJob",
            "Says why a job is not running, or how it ended",
            one("WhyAnswer", &[]),
        ),
    ]
}

/// An action on a job.
fn action(
    path: &'static str,
    method: &'static str,
    name: &'static str,
    summary: &'static str,
    request: Option<&'static str>,
) -> Operation {
    let acted = reference(if name == "cancelJob" { "Cancelled" } else { "ActedDone" });
    let version = "The version that the job must have, in quotes: its ETag (default: any).";
    let mut answers = answers::named(&["WrongState", "VersionMismatch"]);
    answers.insert("200".to_owned(), answer(&acted, &[]));
    let parameters = vec![parameter("header", "If-Match", text(version))];
    Operation { path, method, name, summary, parameters, request, answers }
}

fn of_actions() -> Vec<Operation> {
    vec![
        action(
            "/jobs/{id}",
            "patch",
            "changeJob",
            "Changes the due time, priority or payload of a waiting job",
            Some("ChangeJobRequest"),
        ),
        action("/jobs/{id}", "delete", "deleteJob", "Deletes a job that is not running", None),
        action(
            "/jobs/{id}/cancel",
            "post",
            "cancelJob",
            "Cancels a waiting job, or requests the cancel of a running one",
            Some("CancelJobRequest"),
        ),
        action("/jobs/{id}/retry", "post", "retryJob", "Runs a dead, cancelled or done job again", None),
        action("/jobs/{id}/run-now", "post", "runJobNow", "Makes a waiting job due now", None),
    ]
}

/// A stream of events. A schema cannot say what is in it.
fn events() -> Value {
    let description = "Server-sent events until the server stops or the token is revoked. The data of `counts` is as that of \
        the call count, and comes at once and at most once a second when it changed. The data of `queues` is as that of the call \
        queues.";
    json!({"description": description, "content": {"text/event-stream": {"schema": text("Events.")}}})
}

fn of_store() -> Vec<Operation> {
    vec![
        plain("/stats", "get", "stats", "Returns the figures of the overview", one("StatsAnswer", &[])),
        plain(
            "/events",
            "get",
            "events",
            "Streams the number of jobs by state, and the names of queues",
            [("200".to_owned(), events())].into_iter().collect(),
        ),
        plain("/failures", "get", "failures", "Returns groups of failed jobs", one("FailuresAnswer", &[])),
    ]
}

fn of_queues() -> Vec<Operation> {
    let queue = || one("QueueInfo", &["ETag"]);
    let buckets = within(1, BUCKETS_MAX as u64, "The number of buckets from now on (default: 96).");
    vec![
        Operation {
            path: "/queues",
            method: "get",
            name: "queueNames",
            summary: "Returns names of queues",
            parameters: vec![query("after", text("The name after which to continue."))],
            request: None,
            answers: one("QueuesAnswer", &[]),
        },
        plain("/queues/{name}", "get", "showQueue", "Returns a queue", queue()),
        change(
            plain("/queues/{name}", "patch", "changeQueue", "Changes some settings of a queue", queue()),
            Some("ChangeQueueRequest"),
        ),
        Operation {
            request: Some("PauseRequest"),
            ..plain("/queues/{name}/pause", "post", "pauseQueue", "Pauses a queue", queue())
        },
        plain("/queues/{name}/resume", "post", "resumeQueue", "Ends the pause of a queue", queue()),
        Operation {
            request: Some("PurgeQueueRequest"),
            ..plain(
                "/queues/{name}/purge",
                "post",
                "purgeQueue",
                "Deletes waiting jobs of a queue",
                one("PurgeQueueAnswer", &[]),
            )
        },
        Operation {
            path: "/upcoming",
            method: "get",
            name: "upcomingJobs",
            summary: "Returns the number of waiting jobs by due time",
            parameters: vec![
                query("queue", text("The queue (default: all).")),
                query("bucket_ms", within(1, i64::MAX as u64, "The width of a bucket (default: 900,000).")),
                query("buckets", buckets),
            ],
            request: None,
            answers: one("UpcomingAnswer", &[]),
        },
    ]
}

fn of_workers() -> Vec<Operation> {
    let order = |path: &'static str, name: &'static str, summary: &'static str| Operation {
        path,
        method: "post",
        name,
        summary,
        parameters: Vec::new(),
        request: None,
        answers: one("Worker", &[]),
    };
    vec![
        Operation {
            path: "/workers",
            method: "get",
            name: "workers",
            summary: "Returns a page of the running workers",
            parameters: vec![query("after", text("The id after which to continue."))],
            request: None,
            answers: one("WorkersAnswer", &[]),
        },
        order("/workers/{worker}/quiet", "quietWorker", "Lets a worker reserve no further jobs"),
        order("/workers/{worker}/resume", "resumeWorker", "Lets a quiet worker reserve jobs again"),
        order("/workers/{worker}/stop", "stopWorker", "Shuts a worker down within its grace period"),
    ]
}

fn of_operations() -> Vec<Operation> {
    let mut ended = answers::named(&["WrongState"]);
    ended.insert("200".to_owned(), answer(&reference("Operation"), &[]));
    let ordered = [
        ("200".to_owned(), answer(&reference("OperationPreview"), &[])),
        ("201".to_owned(), answer(&reference("Operation"), &["Location"])),
    ];
    vec![
        Operation {
            path: "/operations",
            method: "post",
            name: "orderOperation",
            summary: "Acts on all jobs that match a filter, or says how many there are",
            parameters: Vec::new(),
            request: Some("OrderOperationRequest"),
            answers: ordered.into_iter().collect(),
        },
        Operation {
            path: "/operations",
            method: "get",
            name: "operations",
            summary: "Returns all operations, the newest first",
            parameters: Vec::new(),
            request: None,
            answers: one("OperationsAnswer", &[]),
        },
        Operation {
            path: "/operations/{id}",
            method: "get",
            name: "operation",
            summary: "Returns an operation",
            parameters: Vec::new(),
            request: None,
            answers: one("Operation", &[]),
        },
        Operation {
            path: "/operations/{id}/cancel",
            method: "post",
            name: "cancelOperation",
            summary: "Cancels an operation before its next step",
            parameters: Vec::new(),
            request: None,
            answers: ended,
        },
        Operation {
            path: "/activity",
            method: "get",
            name: "activity",
            summary: "Returns a page of the activity log, the newest entry first",
            parameters: vec![
                query("cursor", text("Where to continue: next of the page before.")),
                query("limit", within(1, BATCH_MAX as u64, "The most entries (default: 50).")),
            ],
            request: None,
            answers: one("ActivityAnswer", &[]),
        },
    ]
}

/// Returns the operations, each with its path and its method.
pub(super) fn operations() -> impl Iterator<Item = (String, &'static str, Value)> {
    let all = [
        of_jobs(),
        of_actions(),
        of_queues(),
        of_store(),
        of_workers(),
        of_operations(),
        schedules::operations(),
        topics::operations(),
    ];
    all.into_iter().flatten().map(|operation| {
        let (path, method) = (operation.path.to_owned(), operation.method);
        (path, method, described(operation))
    })
}

fn described(operation: Operation) -> Value {
    let Operation { path, method, name, summary, mut parameters, request, answers } = operation;
    let mut responses = answers::of_problems(method != "get");
    let of_path = path.split('/').find_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    if let Some(name) = of_path {
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
        responses.extend(answers::named(&["NotFound"]));
    }
    responses.extend(answers);
    let mut described = json!({
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(request) = request {
        let mut content = json!({"application/json": {"schema": reference(request)}});
        if name == "enqueueJob" {
            content[LINES] = json!({"schema": reference(request)});
        }
        // An empty body means {}, which some bodies cannot be.
        let is_required = !matches!(request, "PauseRequest" | "CancelJobRequest" | "PurgeQueueRequest");
        described["requestBody"] = json!({"required": is_required, "content": content});
    }
    described
}
