//! Actions on jobs.

use serde_json::json;

use super::shape::{
    Schemas, any, base64, batch, closed, id, instant, list, of, one_of, open, or_null, reference, signed,
    status, text, whole, word,
};

pub(super) fn schemas() -> Schemas {
    let guard = closed(
        "What the job must still be. Otherwise it is left alone.",
        [
            ("queue", text("Its queue.")),
            ("state", of("State", "Its state.")),
            ("version?", or_null(whole("Its version (default: any)."))),
        ],
    );
    let target = json!({
        "description": "A job, named by id or by key.",
        "oneOf": [
            closed("", [("id", id("The job.")), ("guard?", or_null(guard.clone()))]),
            closed("", [("key", of("UniqueKey", "The unique key that it holds.")), ("guard?", or_null(guard))]),
        ],
    });
    let actions = ["cancel", "reschedule", "run_now", "reprioritise", "edit", "retry", "delete"];
    let action = closed(
        "What to do with each job. Only the fields of the action can be there.",
        [
            ("action", word(&actions, "The action.")),
            ("reason?", or_null(text("For cancel: the reason."))),
            ("run_at_ms?", or_null(instant("For reschedule: the new due time."))),
            ("delay_ms?", or_null(whole("For reschedule: the new due time, from now on."))),
            (
                "by_ms?",
                or_null(signed("For reschedule: by how much the due time moves, negative for earlier.")),
            ),
            ("priority?", or_null(of("Priority", "For reprioritise: the new priority."))),
            ("payload?", any("For edit: the new payload, JSON or text.")),
            ("payload_base64?", or_null(base64("For edit: the new payload as bytes, in place of payload."))),
            ("content_type?", or_null(text("For edit: the type of the payload (default: JSON)."))),
        ],
    );
    let change = closed(
        "A change of a waiting job: one of its due time, its priority and its payload.",
        [
            ("run_at_ms?", or_null(instant("The new due time."))),
            ("delay_ms?", or_null(whole("The new due time, from now on."))),
            ("priority?", or_null(of("Priority", "The new priority."))),
            ("payload?", any("The new payload, JSON or text.")),
            ("payload_base64?", or_null(base64("The new payload as bytes, in place of payload."))),
            ("content_type?", or_null(text("The type of the new payload (default: JSON)."))),
        ],
    );
    let job = || ("id", id("The job."));
    let state = || ("state", of("State", "Its state. For delete: the state before."));
    let acted = one_of(
        "What became of a job.",
        [
            status("done", "The action was done.", [job(), state()]),
            status("requested", "The job is running, and its cancel is requested.", [job()]),
            status("not_found", "There is no such job.", []),
            status("wrong_state", "The state of the job does not allow the action.", [job(), state()]),
            status("unique_conflict", "Another job holds its unique key.", [("id", id("The other job."))]),
            status(
                "limiter_conflict",
                "Jobs of its concurrency key or group are in another shard.",
                [("id", id("One of them."))],
            ),
        ],
    );
    vec![
        ("Acted", acted),
        (
            "Cancelled",
            one_of(
                "What became of the cancel of a job.",
                [reference("ActedDone"), reference("ActedRequested")],
            ),
        ),
        ("CancelJobRequest", closed("A cancel.", [("reason?", or_null(text("The reason.")))])),
        ("ChangeJobRequest", change),
        (
            "ActRequest",
            closed("Jobs to act on.", [("targets", batch(&target, "The jobs.")), ("action", action)]),
        ),
        (
            "ActAnswer",
            open(
                "What became of each job, in order.",
                [("results", list(&reference("Acted"), "The results."))],
            ),
        ),
    ]
}
