//! Leases: reserve, extend, settle, take, wait.

use punctual::limits::{BATCH_MAX, LOG_LINES_MAX, QUEUES_PER_RESERVE_MAX};
use serde_json::{Value, json};

use super::shape::{
    Field, Schemas, any, base64, batch, closed, flag, hex, id, instant, list, of, one_of, open, or_null,
    reference, status, text, titled, whole, within, word,
};

const MAX: u64 = BATCH_MAX as u64;

fn lease(description: &str) -> [Field; 2] {
    [("id", id(description)), ("fence", whole("The fence of the lease."))]
}

fn reserve() -> Value {
    let request = closed(
        "A queue with a share and a bound.",
        [
            ("queue", text("The queue.")),
            ("share?", whole("How many jobs it can have before the queues after it get any (default: 0).")),
            ("at_most?", whole("The most jobs it can have of this call (default: 1,000).")),
        ],
    );
    let queues = json!({
        "type": "array",
        "items": {"oneOf": [{"type": "string"}, titled("QueueShare", request)]},
        "maxItems": QUEUES_PER_RESERVE_MAX,
        "description": "The queues in order: names, or names with shares. Jobs of the first one come first.",
    });
    closed(
        "A request for due jobs.",
        [
            ("queues", queues),
            ("max", within(0, MAX, "The most jobs. With 0, expired leases are reclaimed only.")),
            ("lease_ms?", or_null(whole("The length of the leases, 1,000 to 86,400,000 (default: 15,000)."))),
            ("worker?", text("A name for people.")),
            ("instance?", or_null(hex(16, "A random number of the caller, for safe repeats."))),
            ("call?", or_null(whole("The number of the call, from 1."))),
            ("company?", flag("Whether other jobs run in this worker (default: false).")),
        ],
    )
}

fn batch_of_jobs() -> Value {
    let reserved = open(
        "A job under a lease.",
        lease("The job.").into_iter().chain([
            ("until_ms", instant("The end of the lease.")),
            ("lasts_ms", whole("The length of the lease.")),
            ("job", reference("Job")),
        ]),
    );
    let reclaimed = open(
        "An expired lease that was reclaimed.",
        lease("The job.").into_iter().chain([
            ("queue", text("The queue of the job.")),
            ("state", of("State", "The state of the job now.")),
        ]),
    );
    open(
        "Due jobs under leases.",
        [
            ("now_ms", instant("The time of the store.")),
            ("jobs", list(&reserved, "The jobs.")),
            ("more", flag("Whether more jobs are due now.")),
            ("next_due_ms?", whole("The time until the next job can be due, or a lease ends.")),
            ("reclaimed?", list(&reclaimed, "The expired leases that were reclaimed.")),
        ],
    )
}

fn heartbeat() -> Value {
    let log = json!({"type": "array", "items": reference("LogLine"), "maxItems": LOG_LINES_MAX,
        "description": "The log, oldest line first."});
    let notes = open(
        "What a run reports. It replaces what it reported before.",
        [("progress?", or_null(of("Progress", "The progress."))), ("log?", log)],
    );
    closed(
        "A lease to extend.",
        lease("The job.").into_iter().chain([
            ("notes?", or_null(notes)),
            ("company?", flag("Whether other jobs run beside it from now on (default: false).")),
            (
                "lasts_ms?",
                or_null(whole(
                    "The length of the lease from now on, 1,000 to 86,400,000 (default: unchanged).",
                )),
            ),
        ]),
    )
}

fn settlement() -> Value {
    let verdicts = ["ack", "retry", "retry_after", "snooze", "release", "cancel", "dead"];
    closed(
        "The end of a lease. Only the fields of its verdict can be there.",
        lease("The job.").into_iter().chain([
            ("verdict", word(&verdicts, "How the run ended.")),
            ("after_ms?", or_null(whole("For retry, retry_after and snooze: the pause."))),
            ("at_ms?", or_null(instant("For retry and retry_after: the time of the next attempt."))),
            ("error?", or_null(text("For retry, retry_after and dead: the error."))),
            (
                "reason?",
                or_null(text("For cancel: the reason. For snooze: why the job did not run, if it did not.")),
            ),
            ("result?", any("For ack: the result, at most 64 KiB. JSON, or text if its type is not JSON.")),
            ("result_base64?", or_null(base64("For ack: the result as bytes, in place of result."))),
            ("result_content_type?", or_null(text("The type of the result (default: JSON)."))),
        ]),
    )
}

fn settled() -> Value {
    let reasons = ["attempts", "snoozes", "cancel_requested", "corrupt"];
    let ended = [
        ("state", of("State", "The state of the job now.")),
        ("reason?", word(&reasons, "Why the store ended the job, if the verdict does not say it.")),
    ];
    one_of(
        "What became of a lease.",
        [
            status("settled", "The run ended.", ended),
            status("lease_lost", "The lease is not current. Nothing was changed.", []),
            status(
                "away",
                "A part of the store did not answer.",
                [("sent", flag("Whether the call may have arrived."))],
            ),
        ],
    )
}

pub(super) fn schemas() -> Schemas {
    vec![
        ("ReserveRequest", reserve()),
        ("ReserveAnswer", batch_of_jobs()),
        ("ExtendRequest", closed("Leases to extend.", [("leases", batch(&heartbeat(), "The leases."))])),
        (
            "ExtendAnswer",
            open(
                "What became of each lease, in order.",
                [("results", list(&word(&["held", "lost", "cancel_requested", "away"], ""), "The results."))],
            ),
        ),
        (
            "SettleRequest",
            closed(
                "Leases to end.",
                [
                    ("settle", batch(&settlement(), "The leases, in order.")),
                    ("then?", or_null(of("ReserveRequest", "What to reserve in the same step."))),
                ],
            ),
        ),
        (
            "SettleAnswer",
            open(
                "What became of each lease, in order.",
                [
                    ("results", list(&settled(), "The results.")),
                    ("batch?", of("ReserveAnswer", "The reserved jobs.")),
                ],
            ),
        ),
        (
            "TakeRequest",
            closed(
                "A request for due jobs that are done with the answer.",
                [
                    ("queue", text("The queue.")),
                    ("max", within(1, MAX, "The most jobs.")),
                    ("older_than_ms?", whole("How long the jobs must have been due (default: 0).")),
                ],
            ),
        ),
        ("TakeAnswer", open("Jobs that are done now.", [("jobs", list(&reference("Job"), "The jobs."))])),
        (
            "WaitRequest",
            closed(
                "What to wait for.",
                [
                    (
                        "queues",
                        batch(&json!({"type": "string"}), "Queues, or $end/ID of a job, or $worker/NAME."),
                    ),
                    ("at_most_ms", whole("The longest wait. The server returns after 25 s at the latest.")),
                ],
            ),
        ),
        ("WaitAnswer", open("It does not say why the wait ended.", [])),
    ]
}
