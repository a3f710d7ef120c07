//! Jobs: as they are enqueued, and as they are read.

use punctual::limits::{
    BACKOFF_MAX_MS, CONCURRENCY_MAX, DELAY_MAX_MS, MAX_ATTEMPTS_MAX, NAME_BYTES_MAX, TAGS_MAX,
};
use serde_json::{Value, json};

use super::shape::{
    Field, Schemas, any, base64, batch, closed, flag, hex, id, instant, list, map, of, one_of, open, or_null,
    reference, status, text, titled, whole, within, word,
};

const STATES: [&str; 5] = ["waiting", "running", "done", "dead", "cancelled"];
/// Fields of a job that an enqueue ignores, so that a job that was read can be sent again.
const IGNORED: [&str; 21] = [
    "status?",
    "state?",
    "attempt?",
    "crashes?",
    "snoozes?",
    "version?",
    "cancel_requested?",
    "created_at_ms?",
    "started_at_ms?",
    "finished_at_ms?",
    "reason?",
    "last_error?",
    "failures?",
    "worker?",
    "fence?",
    "lease_until_ms?",
    "progress?",
    "log?",
    "result?",
    "result_base64?",
    "result_content_type?",
];

fn name(description: &str) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX, "description": description})
}

/// What a caller can say of a new job.
fn chosen() -> Vec<Field> {
    let options = super::queue::options().into_iter().filter(|(name, _)| *name != "priority?");
    let fields = [
        ("kind", name("What the job is for.")),
        ("queue?", or_null(name("Its queue (default: default). 1 to 255 bytes."))),
        (
            "payload?",
            any("Any JSON (default: null), at most 1 MiB. With a content_type that is not JSON, it is text."),
        ),
        ("payload_base64?", or_null(base64("Bytes, in place of payload."))),
        (
            "content_type?",
            or_null(text("The type of the payload (default: JSON; of bytes: application/octet-stream).")),
        ),
        ("id?", or_null(id("An id that punctual made, for safe repeats."))),
        (
            "idempotency_key?",
            or_null(text("A key for safe repeats, 1 to 1,024 bytes. The id is derived from it.")),
        ),
        ("across_kinds?", or_null(flag("Whether keys are compared across kinds (default: false)."))),
        ("run_at_ms?", or_null(instant("When the job is due (default: now)."))),
        ("delay_ms?", or_null(within(0, DELAY_MAX_MS, "When the job is due, from now on."))),
        (
            "priority?",
            json!({"anyOf": [
                {"type": "string", "enum": ["high", "normal", "low", "0", "1", "2"]},
                {"type": "integer", "enum": [0, 1, 2]},
                {"type": "null"},
            ], "description": "Its priority (default: that of the queue, else normal)."}),
        ),
        ("group?", or_null(name("Its group, for fair shares and limits."))),
        ("concurrency_key?", or_null(name("Jobs with the same key share a concurrency limit."))),
        (
            "concurrency_limit?",
            or_null(within(1, CONCURRENCY_MAX.into(), "How many of them run at once (default: 1).")),
        ),
        ("unique?", or_null(of("Unique", "Its unique key."))),
        (
            "expires_at_ms?",
            or_null(instant("When the job is cancelled if it has not started (default: never).")),
        ),
        ("expires_in_ms?", or_null(within(0, DELAY_MAX_MS, "The same, from now on."))),
        (
            "tags?",
            or_null(
                json!({"type": "array", "items": {"type": "string"}, "maxItems": TAGS_MAX, "description": "Its tags."}),
            ),
        ),
        ("headers?", or_null(map(&json!({"type": "string"}), "Its headers, at most 8 KiB."))),
    ];
    fields.into_iter().chain(options).collect()
}

/// The fields of a job that a schedule sets for each tick.
const OF_TICKS: [&str; 8] = [
    "id?",
    "idempotency_key?",
    "across_kinds?",
    "run_at_ms?",
    "delay_ms?",
    "unique?",
    "expires_at_ms?",
    "expires_in_ms?",
];

/// The job of a schedule.
pub(super) fn scheduled() -> Value {
    let fields = chosen().into_iter().filter(|(name, _)| !OF_TICKS.contains(name));
    closed("The job that each tick enqueues. Its payload must be text or JSON.", fields)
}

fn new_job() -> Value {
    let ignored = IGNORED.map(|name| (name, any("Ignored, so that a job that was read can be sent again.")));
    closed(
        "A new job. Give at most one of two fields that say the same.",
        chosen().into_iter().chain(ignored),
    )
}

fn job() -> Value {
    let fields: [Field; 40] = [
        ("id", id("Its id.")),
        ("kind", text("What it is for.")),
        ("queue", text("Its queue.")),
        (
            "payload?",
            any(
                "The payload: JSON, or text if content_type is not JSON. null if it is hidden from the token.",
            ),
        ),
        ("payload_base64?", base64("The payload, if it is neither JSON nor text.")),
        ("content_type?", text("The type of the payload (default: JSON).")),
        ("run_at_ms", instant("When it is due.")),
        ("priority", of("Priority", "Its priority.")),
        ("group?", text("Its group.")),
        ("concurrency_key?", text("Jobs with the same key share a concurrency limit.")),
        ("concurrency_limit?", whole("How many of them run at once.")),
        ("unique?", of("Unique", "Its unique key.")),
        ("max_attempts", whole("The most attempts.")),
        ("backoff", of("Backoff", "The pauses between attempts.")),
        ("timeout_ms", whole("The longest run. The worker keeps it.")),
        ("lease_ms?", whole("The length of its leases.")),
        ("expires_at_ms?", instant("When it is cancelled if it has not started.")),
        ("tags?", list(&json!({"type": "string"}), "Its tags.")),
        ("headers?", map(&json!({"type": "string"}), "Its headers.")),
        (
            "status",
            word(
                &["retrying", "scheduled", "blocked", "ready", "running", "done", "dead", "cancelled"],
                "Its state, and of a waiting job what it waits for.",
            ),
        ),
        ("state", of("State", "Its state.")),
        ("attempt", whole("The number of the last attempt, from 1; 0 before the first.")),
        ("crashes", whole("Expired leases in a row.")),
        ("snoozes", whole("Snoozes in a row.")),
        ("version", whole("The number of its changes, from 1.")),
        ("cancel_requested", flag("Whether its cancel was requested while it ran.")),
        ("created_at_ms", instant("When it was enqueued.")),
        ("started_at_ms?", instant("When its last attempt started.")),
        ("finished_at_ms?", instant("When it ended.")),
        ("reason?", text("Why it ended or snoozes.")),
        ("last_error?", text("The error of its last failed attempt.")),
        ("worker?", text("The worker that runs it.")),
        ("fence?", whole("The fence of its lease.")),
        ("lease_until_ms?", instant("The end of its lease.")),
        ("progress?", of("Progress", "The progress of its run.")),
        ("failures?", list(&failure(), "Its last failed attempts, at most 8.")),
        ("log?", list(&reference("LogLine"), "The log of its runs.")),
        ("result?", any("The result: JSON, or text if its type is not JSON.")),
        ("result_base64?", base64("The result, if it is neither JSON nor text.")),
        ("result_content_type?", text("The type of the result (default: JSON).")),
    ];
    open("A job. A field without a value is left out.", fields)
}

fn failure() -> Value {
    open(
        "A failed attempt.",
        [
            ("attempt", whole("The number of the attempt, from 1.")),
            ("started_ms", instant("When it was reserved.")),
            ("ended_ms", instant("When it was settled or reclaimed.")),
            ("worker", text("The worker.")),
            ("error", text("The error.")),
        ],
    )
}

fn unique() -> Value {
    closed(
        "A unique key: at most one job holds it.",
        [
            ("key", text("The key.")),
            (
                "scope?",
                json!({"description": "How long it is held (default: until_done).", "oneOf": [
                    {"enum": ["until_done", "until_start"]},
                    closed("For a fixed time from the enqueue.", [("window_ms", whole("The time."))]),
                ]}),
            ),
            (
                "on_conflict?",
                word(
                    &["keep", "replace", "reschedule"],
                    "What an enqueue does with a waiting holder (default: keep).",
                ),
            ),
            ("version?", or_null(whole("Replaces or reschedules the holder only if it has this version."))),
            ("across_kinds?", flag("Whether the key is compared across kinds (default: false).")),
        ],
    )
}

/// A result of an enqueue.
fn enqueued() -> Value {
    let due = |name, description| {
        let fields = [("id", id("The id of the job.")), ("run_at_ms", instant("When it is due."))];
        status(name, description, fields)
    };
    let duplicate = [
        ("id", id("The id of the job that exists.")),
        ("kind", or_null(text("Its kind; null if its record is gone."))),
        ("state", or_null(word(&STATES, "Its state; null if its record is gone."))),
        ("version", whole("Its version; 0 if its record is gone.")),
        ("cancel_requested", flag("Whether its cancel was requested.")),
    ];
    one_of(
        "What became of a job.",
        [
            due("inserted", "The job was stored."),
            status(
                "duplicate",
                "Its id or unique key is taken in its queue. Nothing was changed.",
                duplicate,
            ),
            status(
                "conflict",
                "A job of another queue has the id. The job was not stored.",
                [("id", id("The id."))],
            ),
            due("replaced", "The waiting holder of its unique key got its payload, options and due time."),
            due("rescheduled", "The waiting holder of its unique key got its due time."),
            status("full", "The queue is at its cap. The job was not stored.", []),
        ],
    )
}

/// An answer for a line of a stream of jobs.
fn line_answer() -> Value {
    let line = || ("line", whole("The number of the line, from 1."));
    let problem = || ("problem", of("Problem", "Why."));
    let statuses = ["inserted", "duplicate", "replaced", "rescheduled", "full"];
    let enqueued = open(
        "What became of the job of the line: as the results of the call enqueue, with its number.",
        [
            line(),
            ("status", word(&statuses, "What became of it.")),
            ("id?", id("The id of the job, or of the one that exists.")),
            ("run_at_ms?", instant("When it is due.")),
            ("kind?", or_null(text("For duplicate: its kind; null if its record is gone."))),
            ("state?", or_null(word(&STATES, "For duplicate: its state; null if its record is gone."))),
            ("version?", whole("For duplicate: its version; 0 if its record is gone.")),
            ("cancel_requested?", flag("For duplicate: whether its cancel was requested.")),
        ],
    );
    one_of(
        "An answer for each line, in order.",
        [
            titled("LineEnqueued", enqueued),
            titled(
                "LineRefused",
                open("The line is no job that can be stored. The others go on.", [line(), problem()]),
            ),
            titled(
                "LinesLeft",
                open(
                    "The last answer of a stream that could not go on: no line from here on has an answer.",
                    [("from_line", whole("The number of the line.")), problem()],
                ),
            ),
        ],
    )
}

pub(super) fn schemas() -> Schemas {
    let enqueue = [
        ("jobs", batch(&reference("NewJob"), "The jobs.")),
        ("instance?", or_null(hex(16, "A random number of the caller, for safe repeats."))),
        ("call?", or_null(whole("The number of the call, from 1."))),
        (
            "partial?",
            flag(
                "Whether jobs whose part of the store is unavailable get null (default: false, the call fails).",
            ),
        ),
    ];
    vec![
        ("NewJob", new_job()),
        ("ScheduledJob", scheduled()),
        ("Job", job()),
        ("Enqueued", enqueued()),
        (
            "NotInserted",
            one_of(
                "What became of a job that was not stored as a new one.",
                ["EnqueuedDuplicate", "EnqueuedReplaced", "EnqueuedRescheduled"].map(reference),
            ),
        ),
        ("Unique", unique()),
        ("Priority", word(&["high", "normal", "low"], "A priority.")),
        ("State", word(&STATES, "The state of a job.")),
        (
            "Backoff",
            closed(
                "The pauses between attempts.",
                [
                    (
                        "type",
                        word(&["fixed", "linear", "exponential"], "How the pause grows with the attempt."),
                    ),
                    ("base_ms", within(0, BACKOFF_MAX_MS, "The first pause.")),
                    ("max_ms?", or_null(within(0, BACKOFF_MAX_MS, "The longest pause (default: 6 h)."))),
                    (
                        "jitter?",
                        or_null(flag("Whether pauses are random (default: true, except fixed ones).")),
                    ),
                ],
            ),
        ),
        (
            "Progress",
            open(
                "The progress of a run.",
                [
                    ("done", whole("How much is done.")),
                    ("total?", or_null(whole("The total, if it is known."))),
                    ("message?", or_null(text("What the run is doing, for people."))),
                ],
            ),
        ),
        (
            "LogLine",
            open(
                "A log line of a run.",
                [
                    ("attempt", whole("The number of the attempt, from 1.")),
                    ("at_ms", whole("When it was written, by the clock of the worker.")),
                    ("text", text("The text, at most 1 KiB.")),
                ],
            ),
        ),
        ("LineAnswer", line_answer()),
        ("EnqueueRequest", closed("Jobs to store, with 1 MiB of payloads in all.", enqueue)),
        (
            "EnqueueAnswer",
            open(
                "What became of each job, in order.",
                [
                    ("results", list(&or_null(reference("Enqueued")), "The results.")),
                    ("shard", whole("The shard for which the caller should make its next ids.")),
                ],
            ),
        ),
    ]
}

/// The most attempts, as a field of requests.
pub(super) fn max_attempts() -> Value {
    within(1, MAX_ATTEMPTS_MAX.into(), "The most attempts (default: 20).")
}
