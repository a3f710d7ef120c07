//! Reads of jobs, and the state of the store.

use punctual::limits::{BATCH_MAX, BUCKETS_MAX};
use serde_json::{Value, json};

use super::shape::{
    Schemas, closed, flag, id, instant, list, of, open, or_null, reference, text, whole, within, word,
};

const MAX: u64 = BATCH_MAX as u64;

fn nothing() -> Value {
    closed("The call has no arguments.", [])
}

/// Reads of jobs.
fn of_jobs() -> Schemas {
    let job =
        || open("A job, if there is one.", [("job", or_null(of("Job", "The job; null if there is none.")))]);
    vec![
        ("GetRequest", closed("A job.", [("id", id("The job."))])),
        ("GetAnswer", job()),
        (
            "UniqueKey",
            closed(
                "A unique key with everything that it is compared within.",
                [
                    ("kind?", or_null(text("The kind (default: any)."))),
                    ("queue", text("The queue.")),
                    ("group?", or_null(text("The group."))),
                    ("concurrency_key?", or_null(text("The concurrency key."))),
                    ("key", text("The key.")),
                ],
            ),
        ),
        ("HolderRequest", closed("A unique key.", [("key", reference("UniqueKey"))])),
        ("HolderAnswer", job()),
        (
            "ListRequest",
            closed(
                "Which jobs.",
                [
                    ("filter?", text("A filter in the language of punctual ls (default: all jobs).")),
                    ("cursor?", or_null(text("Where to continue: next of the page before."))),
                    ("limit", within(1, MAX, "The most jobs.")),
                ],
            ),
        ),
        (
            "ListAnswer",
            open(
                "A page of jobs.",
                [
                    ("now_ms", instant("The time of the store.")),
                    ("jobs", list(&reference("Job"), "The jobs.")),
                    ("next?", text("Where to continue. It is absent after the last page.")),
                    ("searched", whole("The jobs that this call read.")),
                    ("total", whole("The jobs in the store.")),
                ],
            ),
        ),
        ("CountRequest", closed("Which jobs.", [("queue?", or_null(text("The queue (default: all).")))])),
        ("CountAnswer", reference("Counts")),
        (
            "UpcomingRequest",
            closed(
                "A request for waiting jobs by due time.",
                [
                    ("queue?", or_null(text("The queue (default: all)."))),
                    ("bucket_ms", whole("The width of a bucket, at least 1.")),
                    ("buckets", within(1, BUCKETS_MAX as u64, "The number of buckets from now on.")),
                ],
            ),
        ),
        (
            "UpcomingAnswer",
            open(
                "The number of waiting jobs by due time.",
                [
                    ("now_ms", instant("The time of the store, at which the first bucket begins.")),
                    ("overdue", whole("Jobs that are already due.")),
                    ("buckets", list(&whole(""), "Jobs per bucket.")),
                    ("complete", flag("Whether all jobs were searched.")),
                ],
            ),
        ),
    ]
}

/// Upkeep and checks.
fn of_checks() -> Schemas {
    let cursor =
        || json!({"type": "array", "items": within(0, 255, ""), "description": "Where to continue."});
    let finding = open(
        "What is wrong.",
        [
            ("id", or_null(id("The job, if one is concerned."))),
            ("queue", or_null(text("The queue, if it is known."))),
            ("what", text("What is wrong, in a word.")),
            ("detail", text("What is wrong, for people.")),
            ("repaired", flag("Whether this call repaired it.")),
        ],
    );
    let check = open(
        "A check.",
        [
            ("level", word(&["ok", "warn", "fail"], "Its result.")),
            ("name", text("What was checked.")),
            ("text", text("What was found.")),
            ("fix?", text("What to try.")),
        ],
    );
    vec![
        ("SweepRequest", closed("How much to do.", [("limit", within(1, MAX, "The most items."))])),
        (
            "SweepAnswer",
            open(
                "What was done.",
                [
                    ("expired", whole("Waiting jobs that were cancelled, since they expired.")),
                    ("removed", whole("Ended jobs that were removed after their retention.")),
                    ("forgotten", whole("Remembered ids, windows and numbers that were forgotten.")),
                    ("reclaimed", whole("Expired leases that were reclaimed.")),
                    ("more", flag("Whether to call again.")),
                    (
                        "next_reclaim_ms?",
                        whole("After how long to sweep again, to reclaim leases that nobody else does."),
                    ),
                ],
            ),
        ),
        (
            "AuditRequest",
            closed(
                "What to check.",
                [("repair?", flag("Whether to repair what is found (default: false).")), ("from?", cursor())],
            ),
        ),
        (
            "AuditAnswer",
            open(
                "A part of the store was checked.",
                [
                    ("checked", whole("Records and entries that were checked.")),
                    ("findings", list(&finding, "What is wrong.")),
                    ("next", or_null(cursor())),
                ],
            ),
        ),
        ("DoctorRequest", nothing()),
        ("DoctorAnswer", open("The checks.", [("checks", list(&check, "The checks."))])),
        ("StoreRequest", nothing()),
        (
            "StoreAnswer",
            open(
                "What the store is.",
                [
                    (
                        "durability",
                        word(&["full", "replicated", "fast", "memory"], "What an acknowledged job survives."),
                    ),
                    ("shard", whole("The shard for which the caller should make its next ids.")),
                    ("version", text("The version of the server.")),
                ],
            ),
        ),
        ("IdentityRequest", nothing()),
        ("IdentityAnswer", open("The identity.", [("identity", text("16 hexadecimal digits."))])),
        ("NowRequest", nothing()),
        ("NowAnswer", open("The time.", [("now_ms", instant("The time of the store."))])),
    ]
}

pub(super) fn schemas() -> Schemas {
    let mut all = of_jobs();
    all.extend(of_checks());
    all
}
