//! Operations.

use serde_json::Value;

use super::shape::{
    Schemas, closed, flag, id, instant, list, map, of, open, or_null, reference, text, whole, word,
};
use crate::operations::{ActionName, OperationState};

fn action(description: &str) -> Value {
    word(&ActionName::ALL.map(ActionName::name), description)
}

pub(super) fn schemas() -> Schemas {
    let request = closed(
        "An order to act on all jobs that match a filter.",
        [
            ("action", action("What to do with each job.")),
            ("filter", text("The filter, in the language of punctual ls. It must not be empty.")),
            (
                "reason?",
                or_null(text("Why, up to 1,024 bytes. A cancel needs it, and it is kept with the jobs.")),
            ),
            ("dry_run?", flag("Whether to count only (default: false).")),
        ],
    );
    let preview = open(
        "What an order would act on.",
        [
            ("action", action("The action.")),
            ("filter", text("The filter.")),
            ("now_ms", instant("When the jobs were counted.")),
            ("count", whole("The number of jobs.")),
            ("at_least", flag("Whether there may be more: the count stops at 10,000 jobs, and after 3 s.")),
            (
                "by_state",
                map(
                    &whole("The number of jobs."),
                    "The jobs by state. Jobs in other states are not acted on.",
                ),
            ),
        ],
    );
    let outcomes = open(
        "What became of the jobs so far.",
        [
            ("done", whole("Jobs on which the action was done.")),
            ("requested", whole("Running jobs whose cancel is requested.")),
            (
                "changed",
                whole("Jobs that changed while a step ran. Nothing was done to these and the following."),
            ),
            ("gone", whole("Jobs that did not exist any more.")),
            ("wrong_state", whole("Jobs whose state did not allow the action.")),
            ("unique_conflict", whole("Jobs whose unique key another job holds.")),
            ("limiter_conflict", whole("Jobs with jobs of their concurrency key or group in another shard.")),
            ("other", or_null(id("One of the other jobs that stand in the way."))),
        ],
    );
    let operation = open(
        "An action on all jobs that match a filter.",
        [
            ("id", text("The id. Later operations have greater ones.")),
            ("action", action("The action.")),
            (
                "filter",
                or_null(text("The filter; null if it looks into payloads, which are hidden from the token.")),
            ),
            ("reason", or_null(text("Why."))),
            ("by", text("The name of the caller that ordered it.")),
            ("token", or_null(text("The id of its token."))),
            ("state", word(&OperationState::ALL.map(OperationState::name), "The state.")),
            ("error", or_null(text("Why it failed."))),
            (
                "cancelled_by",
                or_null(text("The name of the caller that cancelled it. It then takes no further step.")),
            ),
            ("planned", whole("The number of jobs that were counted.")),
            ("at_least", flag("Whether there may have been more.")),
            ("outcomes", of("Outcomes", "What became of the jobs so far.")),
            (
                "confirmed_ms",
                instant("When the jobs were counted. Jobs that arrived or ended later are not touched."),
            ),
            ("ordered_ms", instant("When it was ordered.")),
            ("updated_ms", instant("When its last step ended.")),
            ("ended_ms", or_null(instant("When it ended."))),
        ],
    );
    let all = list(
        &reference("Operation"),
        "The operations, the newest first: at most 10 that run, and 100 that have ended.",
    );
    vec![
        ("OrderOperationRequest", request),
        ("OperationPreview", preview),
        ("Outcomes", outcomes),
        ("Operation", operation),
        ("OperationsAnswer", open("All operations.", [("operations", all)])),
    ]
}
